"""Keys of the day in the store: restarts, cells, holes, the chain, exports, and a store that is
watched."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from evercount.cli import app
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Reading, Store, StreamDeclaration
from evercount.store.stored_releases import public_keys_of
from evercount.store.writer import WatchedStore
from store_reading import all_releases, close_and_read, stored_labels

SECRET = Secret.from_hex("ed" * 32)
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "keys",
        "query": "discovered-keys",
        "budget": {"epsilon": 4.0, "delta": 0.01},
        "views": ["per-tick"],
    }
)
TICKS = [
    ["oslo"] * 40,
    ["bergen"] * 60 + ["a hut"],
    [],
    ["=bodø"] * 50 + ["oslo"] * 40,
    ["bergen"] * 45,
]


def fill(place: Path) -> Store:
    """A store that was opened again before every tick."""
    store = Store(place)
    store.declare(DECLARATION, 0.0, SECRET)
    for tick in TICKS:
        store.close()
        store = Store(place)
        store.accept([read_batch(DECLARATION, json.dumps(tick).encode(), most=10**6)], 0.0)
        (release,) = close_and_read(store, store.find("keys"), 1, 0.0)
        assert len(release["values"]) <= len(store.find("keys").labels)
    return store


def named(release: dict[str, Any], labels: list[str]) -> dict[str, float]:
    pairs = zip(labels, release["values"], strict=False)
    return {label: value for label, value in pairs if value is not None}


def test_releases_are_those_of_the_library_whatever_restarts(tmp_path: Path) -> None:
    store = fill(tmp_path / "a.db")
    run = DECLARATION.started(0).build(secret=SECRET, replay=True).run(TICKS)
    expected = [dict(zip(one.labels, one.values.tolist(), strict=True)) for one in run]
    assert [sorted(one)[:-2] for one in expected] == [
        ["oslo"],
        ["bergen"],
        [],
        ["=bodø", "oslo"],
        ["bergen"],
    ]
    labels = stored_labels(store, "keys")
    assert labels == ["total", "other", "oslo", "bergen", "=bodø"], "numbered as they come"
    assert list(store.find("keys").labels) == labels
    assert store.database.read(public_keys_of, store.find("keys").id) == [
        ("oslo", 1),
        ("bergen", 2),
        ("=bodø", 4),
    ]
    assert [named(release, labels) for release in all_releases(store, "keys")] == expected
    later = store.read_releases(store.find("keys"), cells=range(2, 4))
    assert [release["values"] for release in later] == [
        [
            [one.get("oslo"), one.get("bergen")][: 2 if "bergen" in one else "oslo" in one]
            for one in expected
        ][i]
        for i in range(5)
    ]
    assert store.verify(store.head) == []
    live = store.find("keys")
    (table,) = store.release_tables(live, 5)
    one, other = table.columns(), run.table(starts=table.starts).columns()
    assert {name: column.tolist() for name, column in one.items()} == {
        name: column.tolist() for name, column in other.items()
    }, "exports have the order of every interface"
    store.close()
    reading = Reading.open(tmp_path / "a.db")
    assert [
        named(release, stored_labels(reading, "keys")) for release in all_releases(reading, "keys")
    ] == expected
    reading.close()
    exported = CliRunner().invoke(
        app, ["store", "export-releases", "keys", "--db", str(tmp_path / "a.db")]
    )
    cells = [line.split(",")[1] for line in exported.output.splitlines()[1:]]
    assert len(cells) == sum(map(len, expected))
    assert "'=bodø" in cells


def test_a_number_under_another_key_is_noticed(tmp_path: Path) -> None:
    """Of a key that was not new at its tick, too."""
    fill(tmp_path / "a.db").close()
    with sqlite3.connect(tmp_path / "a.db") as raw:
        assert raw.execute("update releases set cell = 2 where tick = 5 and cell = 3").rowcount == 1
    store = Store(tmp_path / "a.db")
    assert store.verify(store.head) == [
        "keys: the release of tick 5 was changed after it was stored"
    ]
    store.close()


def test_a_watched_store_shows_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(DECLARATION, 0.0, SECRET)
    watched = WatchedStore(tmp_path / "a.db")
    for tick in TICKS:
        store.accept([read_batch(DECLARATION, json.dumps(tick).encode(), most=10**6)], 0.0)
        (release,) = close_and_read(store, live, 1, 0.0)
        assert watched.look() == ["keys"]
        shown = watched.streams["keys"]
        assert watched.read_releases(shown, shown.closed - 1, 1) == [release]
        assert list(watched.streams["keys"].labels) == list(live.labels)
    watched.close()
    store.close()


def test_many_missed_ticks_are_closed_together(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(DECLARATION, 0.0, SECRET)
    store.accept([read_batch(DECLARATION, json.dumps(["oslo"] * 80).encode())], 0.0)
    described = close_and_read(store, live, 30, 0.0)
    assert [len(one["values"]) for one in described] == [3, *[2] * 29]
    assert np.isfinite(described[-1]["values"]).all()
    assert store.verify(store.head) == []
    store.close()
