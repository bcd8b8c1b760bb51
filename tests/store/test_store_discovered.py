"""Discovered keys in the store: restarts in the middle, retries, their table, the chain, users and
many new keys."""

from __future__ import annotations

import json
import sqlite3
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.errors import Conflict, InputError
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Reading, Store, StreamDeclaration
from evercount.store.writer import WatchedStore
from product_internals import inner_state
from store_reading import all_releases, close_and_read, stored_labels

SECRET = Secret.from_hex("ec" * 32)
DECLARATION = {
    "name": "keys",
    "query": {"name": "discovered-keys", "parameters": {"minimum": 3}},
    "budget": {"epsilon": 4.0, "delta": 0.01},
    "horizon": 64,
}


def declared(**changes: Any) -> StreamDeclaration:
    return StreamDeclaration.from_dict({**DECLARATION, **changes})


def send(store: Store, one: StreamDeclaration, events: list[Any], key: str | None = None) -> Any:
    (answer,) = store.accept(
        [read_batch(one, json.dumps(events).encode(), key=key, most=10**6)], 0.0
    )
    return answer


def ticks_of() -> list[list[str]]:
    return [["a"] * 40, ["b"] * 60 + ["rare 1"], ["a", "b"], ["c"] * 80 + ["rare 2"] * 4, []]


def close(store: Store, events: list[str], one: StreamDeclaration) -> list[float]:
    for start in range(0, len(events), 17):
        assert isinstance(send(store, one, events[start : start + 17]), Accepted)
    (release,) = close_and_read(store, store.find("keys"), 1, 0.0)
    values: list[float] = release["values"]
    return values


@pytest.mark.parametrize("place", ["sqlite", "postgresql"])
def test_a_restart_at_any_moment_changes_nothing(
    tmp_path: Path, place: str, request: pytest.FixtureRequest
) -> None:
    one = declared()
    plain = one.started(0).build(secret=SECRET, replay=True)
    expected = [plain.step(tick).values.tolist() for tick in ticks_of()]
    where: Any = (
        tmp_path / "a.db" if place == "sqlite" else request.getfixturevalue("postgres").fresh()
    )
    head = tmp_path / "head"
    store = Store(where, head=head)
    store.declare(one, 0.0, SECRET)
    found = []
    for number, tick in enumerate(ticks_of()):
        send(store, one, tick[: len(tick) // 2])
        if number % 2:
            store.close()
            store = Store(where, head=head)
        found.append(close(store, tick[len(tick) // 2 :], one))
        assert list(store.find("keys").labels) == stored_labels(store, "keys")
    assert found == expected
    assert stored_labels(store, "keys") == list(plain.labels)
    assert store.verify(store.head) == []
    store.close()
    reading = Reading.open(where)
    assert stored_labels(reading, "keys") == list(plain.labels)
    assert [release["values"] for release in all_releases(reading, "keys")] == expected
    reading.close()


def test_retries_count_once_and_bad_keys_are_refused(tmp_path: Path) -> None:
    one, store = declared(), Store(tmp_path / "a.db")
    live = store.declare(one, 0.0, SECRET)
    for _ in range(3):
        assert send(store, one, ["a"] * 50, key="same") == Accepted(50, 1)
    assert isinstance(send(store, one, ["b"] * 50, key="same"), Conflict)
    for bad in ("", " a", "x" * 201, "x" * 1_000_000, 7, None, ["a"]):
        with pytest.raises(InputError, match="event 1 of this request"):
            send(store, one, ["a", bad])
    assert live.events == ["a"] * 50
    (release,) = close_and_read(store, live, 1, 0.0)
    assert (
        release["values"]
        == one.started(0).build(secret=SECRET, replay=True).step(["a"] * 50).values.tolist()
    )
    store.close()


def test_normal_forms_of_a_key_are_one_key(tmp_path: Path) -> None:
    one, store = declared(), Store(tmp_path / "a.db")
    live = store.declare(one, 0.0, SECRET)
    composed, apart = "Gr\u00fcnau", unicodedata.normalize("NFD", "Gr\u00fcnau")
    assert composed != apart
    for events in ([composed] * 30, [apart] * 30, [composed, apart] * 5):
        assert isinstance(send(store, one, events), Accepted)
    (release,) = close_and_read(store, live, 1, 0.0)
    assert (
        release["values"]
        == one.started(0).build(secret=SECRET, replay=True).step([composed] * 70).values.tolist()
    )
    assert list(live.labels) == ["total", "other", composed]
    store.close()


def test_users_are_capped(tmp_path: Path) -> None:
    budget = {"epsilon": 8.0, "delta": 0.01, "unit": "user", "max_events": 2}
    one, store = declared(budget=budget), Store(tmp_path / "a.db")
    live = store.declare(one, 0.0, SECRET)
    send(store, one, [{"user": f"u{number % 60}", "key": "a"} for number in range(300)])
    (release,) = close_and_read(store, live, 1, 0.0)
    plain = one.started(0).build(secret=SECRET, replay=True)
    assert release["values"] == plain.step(["a"] * 120, capped=True).values.tolist()
    assert list(live.labels) == ["total", "other", "a"]
    store.close()


def test_a_changed_name_of_a_key_is_noticed_and_exports_have_names(tmp_path: Path) -> None:
    one, place = declared(), tmp_path / "a.db"
    store = Store(place)
    store.declare(one, 0.0, SECRET)
    for tick in ticks_of():
        close(store, tick, one)
    names = stored_labels(store, "keys")
    assert names[2:] == ["a", "b", "c"]
    store.close()
    exported = CliRunner().invoke(app, ["store", "export-releases", "keys", "--db", str(place)])
    assert exported.exit_code == 0, exported.output
    # ticks closed by hand have no start
    cells = [line.split(",")[1] for line in exported.output.splitlines()[1:]]
    assert cells == [*names[:3], *names[:4], *names[:4], *names, *names]
    with sqlite3.connect(place) as raw:
        raw.execute("update public_keys set label = 'z' where label = 'b'")
    store = Store(place)
    assert store.verify(store.head) == [
        "keys: the release of tick 2 was changed after it was stored"
    ]
    store.close()


def test_a_hundred_thousand_new_keys_in_one_tick(tmp_path: Path) -> None:
    one, store = declared(), Store(tmp_path / "a.db")
    live = store.declare(one, 0.0, SECRET)
    send(store, one, [f"new {number}" for number in range(100_000)] + ["a"] * 50)
    (release,) = close_and_read(store, live, 1, 0.0)
    assert list(live.labels) == ["total", "other", "a"]
    assert len(release["values"]) == 3
    store.close()
    again = Store(tmp_path / "a.db")
    assert len(inner_state(again.find("keys").stream).encoder.rare) == 100_000
    again.close()


def test_a_watched_store_shows_keys_as_they_become_public(tmp_path: Path) -> None:
    one = declared()
    store = Store(tmp_path / "a.db")
    store.declare(one, 0.0, SECRET)
    watched, late, seen = WatchedStore(tmp_path / "a.db"), None, []
    for number, tick in enumerate(ticks_of()):
        values = close(store, tick, one)
        if number == 1:
            late = WatchedStore(tmp_path / "a.db")  # it begins after the first keys
        for shown in (watched, late):
            if shown is not None:
                shown.look()
                assert list(shown.streams["keys"].labels) == stored_labels(store, "keys")
                assert len(shown.streams["keys"].labels) == len(values)
        seen.append(len(values))
    assert len(set(seen)) > 1, "some keys became public"
    assert late is not None
    for one_store in (watched, late, store):
        one_store.close()
