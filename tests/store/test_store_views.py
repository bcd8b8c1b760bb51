"""Readers of a store that is being written to: each read sees one moment, and nothing healthy is
called tampering."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from evercount.store import LiveStream, Reading, Store, StreamDeclaration, schema
from postgres_cluster import Postgres
from store_reading import all_releases

TABLE = {
    "name": "h",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b", "c"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 5000,
}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "a.db")
    cluster: Postgres = request.getfixturevalue("postgres")
    return cluster.fresh()


@pytest.fixture
def opened(place: str, tmp_path: Path) -> Iterator[tuple[Store, LiveStream, Reading]]:
    store = Store(place, head=tmp_path / "head")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    store.close_ticks(live, 3, 0.0)
    reading = Reading.open(place)
    yield store, live, reading
    reading.close()
    store.close()


@contextlib.contextmanager
def after_every_statement(reading: Reading, work: Callable[[], Any]) -> Iterator[list[int]]:
    """The writer commits between any two statements of the reader: the worst moments, every
    time."""
    times = [0]

    def commit(*_: object) -> None:
        times[0] += 1
        work()

    engine = reading.database.reader
    event.listen(engine, "after_cursor_execute", commit)
    try:
        yield times
    finally:
        event.remove(engine, "after_cursor_execute", commit)


def test_all_statements_of_a_read_see_one_moment(opened: tuple[Store, LiveStream, Reading]) -> None:
    store, live, reading = opened
    with reading.database.reading() as connection:
        before = connection.execute(select(func.count()).select_from(schema.ticks)).scalar_one()
        store.close_ticks(live, 1, 0.0)
        assert (
            connection.execute(select(func.count()).select_from(schema.releases)).scalar_one()
            == 3 * before
        )
    with reading.database.reading() as connection:
        assert (
            connection.execute(select(func.count()).select_from(schema.ticks)).scalar_one()
            == before + 1
        )


def test_no_release_lacks_its_hash(opened: tuple[Store, LiveStream, Reading]) -> None:
    store, live, reading = opened
    with after_every_statement(reading, lambda: store.close_ticks(live, 1, 0.0)) as times:
        for _ in range(4):
            found = reading.read_releases(live, 0, 500)
            assert [release["tick"] for release in found] == list(range(1, len(found) + 1))
            assert all(
                len(release["hash"]) == 64 and len(release["values"]) == 3 for release in found
            )
            assert all(release["hash"] for release in all_releases(reading, "h"))
    assert times[0] >= 20


def test_a_store_that_changes_between_any_two_statements_verifies(
    opened: tuple[Store, LiveStream, Reading],
) -> None:
    """Also the head file, which the writer replaces after every commit, is read at the right
    moment."""
    store, live, reading = opened

    def declare_and_close() -> None:
        store.close_ticks(live, 1, 0.0)
        if len(store.streams) < 4:
            table = {**TABLE, "name": f"more{len(store.streams)}"}
            store.close_ticks(store.declare(StreamDeclaration.from_dict(table), 0.0), 1, 0.0)

    with after_every_statement(reading, declare_and_close) as times:
        for _ in range(2):
            assert reading.verify(store.head) == []
            assert reading.check_head(store.head) == {}
            assert reading.ledger()["totals"][0]["streams"] == len(reading.ledger()["entries"])
    assert times[0] >= 25


def test_a_live_store_verifies(opened: tuple[Store, LiveStream, Reading]) -> None:
    """Many reads and verifications by three threads while a fourth closes ticks as fast as it
    can."""
    store, live, reading = opened
    over = threading.Event()
    wrong: list[str] = []
    reads = [0, 0]

    def read() -> None:
        while not over.is_set():
            after = max(0, live.closed - 5)
            for release in reading.read_releases(live, after, 10):
                if not release["hash"]:
                    wrong.append(f"tick {release['tick']} has no hash")
            reads[0] += 1

    def verify() -> None:
        while not over.is_set():
            wrong.extend(reading.verify(store.head))
            reads[1] += 1

    threads = [threading.Thread(target=work) for work in (read, read, verify)]
    for thread in threads:
        thread.start()
    try:
        while reads[0] < 50 or reads[1] < 2:
            store.close_ticks(live, 1, 0.0)
            if live.closed > 4000:
                break
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert reads[0] >= 50
    assert reads[1] >= 2
