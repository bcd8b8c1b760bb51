"""The log of SQLite is moved while the writer works, and everything that was committed stays."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from evercount.service.log_keeper import LogKeeper
from evercount.service.runtime import Service
from evercount.store import Batch, Store, StreamDeclaration
from serving import ADMIN, HEADERS, Postgres, served

TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}}


def accept(store: Store, number: int) -> None:
    live = store.streams["one"]
    store.accept([Batch("one", [1], live.encode([1]), key=f"k{number}", body=b"x")], 0.0)


def test_moving_leaves_nothing_in_the_log_and_loses_nothing(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = Store(place)
    store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    for number in range(30):
        accept(store, number)
        if number % 3 == 2:
            store.database.move_log(partial(next, iter([False, True])))
    with sqlite3.connect(place) as other:
        busy, pages, moved = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    other.close()
    assert (busy, pages) == (0, moved)
    copy = tmp_path / "copy.db"  # the file alone holds all of it now
    copy.write_bytes(place.read_bytes())
    with sqlite3.connect(copy) as alone:
        assert alone.execute("SELECT count(*) FROM batches").fetchone() == (30,)
    alone.close()
    store.close()
    again = Store(place)
    assert again.streams["one"].totals.tolist() == [30]
    again.close()


def test_a_service_moves_its_log_while_it_writes(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    service = Service(store, admin=ADMIN)
    service._log_keeper.pause = 0.001
    with served(service) as client:
        for _ in range(200):
            client.post("/v1/streams/one/events", json=[1], headers=HEADERS).raise_for_status()
        assert service._log_keeper.is_alive()
        assert store.streams["one"].totals.tolist() == [200]
    assert not service._log_keeper.is_alive()


def test_postgresql_needs_none(postgres: Postgres, tmp_path: Path) -> None:
    store = Store(postgres.fresh(), head=tmp_path / "head")
    keeper = LogKeeper(store.database)
    keeper.run()  # returns at once
    store.close()
