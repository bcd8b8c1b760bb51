"""The service shows the stream that Spark writes, live, from the same store and without its
lock."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import StoreError
from evercount.noise import Secret
from evercount.service.runtime import Service
from evercount.store import Store
from evercount.store.accept_totals import SourceBatch
from evercount.store.writer import WatchedStore
from preloaded_programs import COMMAND, Programs
from served_service import ADMIN, HEADERS, served
from store_reading import all_releases

SECRET = Secret.from_hex("7e" * 32)
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "live",
        "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": 6,
        "columns": {"time": "ts", "key": "key"},
        "public": True,
    }
)
SCHEDULE = DECLARATION.schedule


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db", bytes(range(32)))
    made.declare(DECLARATION, SCHEDULE.begin / 1e6, SECRET)
    yield made
    made.close()


def next_release(lines: Iterator[str]) -> dict[str, Any]:
    """The next release of server-sent events."""
    return next(
        json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")
    )


def test_releases_of_spark_are_shown_live(spark: Any, store: Store, tmp_path: Path) -> None:
    """The writer holds the store's lock and key all the time; the service has neither."""
    from evercount.spark import release_stream

    rows = spark.sql("SELECT '2026-01-01T01:00:00Z' AS ts, 'north' AS key")
    rows.write.json(str(tmp_path / "in"))
    events = (
        spark.readStream.option("maxFileAge", "36500d")
        .schema("ts string, key string")
        .json(str(tmp_path / "in"))
    )
    service = Service(WatchedStore(tmp_path / "store.db"), admin=ADMIN)
    with served(service) as client, client.stream("GET", "/v1/streams/live/live?after=0") as stream:
        lines = stream.iter_lines()
        for last in (1, 3):
            clock = lambda at=last: SCHEDULE.start_of(at + 1)  # noqa: E731
            release_stream(events, DECLARATION, store, str(tmp_path / "checkpoint"), clock=clock)
            shown = [
                next_release(lines)
                for _ in range(store.find("live").closed - (0 if last == 1 else 1))
            ]
            assert shown == list(all_releases(store, "live"))[-len(shown) :]
        facts = client.get("/v1/streams/live").json()
        assert (facts["released"], facts["open_tick"], facts["state"]) == (3, 4, "open")
        # the page of the dashboard, which reads what is above
        assert client.get("/").status_code == 200
        stream.close()


def test_streams_that_come_later_are_shown_and_nothing_is_changed(
    store: Store, tmp_path: Path
) -> None:
    watched = WatchedStore(tmp_path / "store.db")
    service = Service(watched, admin=ADMIN)
    with served(service) as client:
        for path in ("/v1/streams/live/events", "/v1/streams/live/close-tick"):
            refused = client.post(path, json=["north"], headers=HEADERS)
            assert (refused.status_code, refused.json()["error"]["type"]) == (403, "ReadOnly")
        other = StreamDeclaration.from_dict({**DECLARATION.to_dict(), "name": "other"})
        live = store.declare(other, SCHEDULE.begin / 1e6)
        store.accept_totals(
            "other", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, np.ones((2, 2), np.int64)))
        )
        store.close_ticks(live, 2, 0.0)
        watched.look()
        found = client.get("/v1/streams/other/releases").json()["releases"]
        assert found == list(all_releases(store, "other"))
        with pytest.raises(StoreError, match="for reading only"):
            watched.declare(
                StreamDeclaration.from_dict({**DECLARATION.to_dict(), "name": "third"}), 0.0
            )


def test_a_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        WatchedStore(tmp_path / "store.db")


def test_the_command_shows_a_store(store: Store, programs: Programs, tmp_path: Path) -> None:
    """`evercount serve --read-only` next to the process that has the lock."""
    store.close_ticks(store.find("live"), 1, 0.0)
    words = ("serve", "--read-only", "--port", "0", "--db", "store.db")
    process = programs.start(
        COMMAND, *words, cwd=tmp_path, env={**os.environ, "EVERCOUNT_ADMIN_TOKEN": ADMIN}
    )
    line = process.stderr.readline()
    address = next(word for word in line.split() if word.startswith("http"))
    found = httpx.get(f"{address}/v1/streams/live/releases", timeout=300).json()["releases"]
    process.terminate()
    process.stderr.read()
    assert process.wait() == 0
    assert found == list(all_releases(store, "live"))
