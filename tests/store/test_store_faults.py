"""Disk full, read-only files, half-made schemas and damaged content: refused or undone, never half done."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evercount.errors import StoreError
from evercount.noise import Secret
from evercount.store import Batch, Store, StreamDeclaration
from evercount.store.database import Database
from stored import all_releases

TABLE = {
    "name": "wide",
    "query": {"name": "histogram", "parameters": {"keys": 50}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 4096,
}


@contextmanager
def refused(reason: str) -> Iterator[None]:
    """The database's own reason is for the operator; anybody may read that it refused."""
    with pytest.raises(StoreError, match="refused the request") as caught:
        yield
    assert reason in caught.value.for_operator()


def limit_pages(store: Store, more: int | None) -> None:
    """Make the disk full after so many more pages; None: as good as endless."""
    connection = store.database.connection()
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    connection.exec_driver_sql(f"PRAGMA max_page_count={pages + more if more is not None else 2**30}")
    connection.commit()


def close_for_ever(store: Store) -> None:
    while True:
        store.close_ticks(store.find("wide"), 1, 0.0)


def accept_for_ever(store: Store) -> None:
    row = store.find("wide").encode([3])
    for number in itertools.count():
        store.accept([Batch("wide", [3], row, key=f"key {number}", body=b"y")], 0.0)


def test_a_full_disk_undoes_everything_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    secret = Secret.generate()
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0, secret)
    store.accept([Batch("wide", [1, 2, 2], live.encode([1, 2, 2]), key="k", body=b"x")], 0.0)
    limit_pages(store, 2)
    with refused("full"):
        close_for_ever(store)
    closed = len(list(all_releases(store, "wide")))
    assert 0 < closed == live.closed
    with refused("full"):
        store.close_ticks(live, 100, 0.0)
    assert live.closed == closed
    with refused("full"):
        accept_for_ever(store)
    before = live.totals.tolist()
    store.recover()
    live = store.find("wide")
    assert live.totals.tolist() == before
    limit_pages(store, None)
    store.close_ticks(live, 5, 0.0)
    plain = live.declaration.build(secret=secret, replay=True)
    for release in all_releases(store, "wide"):
        totals = live.encode([1, 2, 2]) if release["tick"] == 1 else live.encode([])
        if release["tick"] == closed + 1:
            totals = totals + before
        assert release["values"] == plain.run_totals([totals])[0].values.tolist()
    assert store.verify(store.head) == []
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only files")
def test_a_read_only_file_is_refused_by_its_permissions(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    Store(place).close()
    place.chmod(0o400)
    with pytest.raises(StoreError, match="read-only"):
        Store(place)


def test_a_read_only_database_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    store.database.connection().exec_driver_sql("PRAGMA query_only=ON")
    store.database.connection().commit()
    with refused("readonly"):
        store.accept([Batch("wide", [1], live.encode([1]))], 0.0)
    with refused("readonly"):
        store.close_ticks(live, 1, 0.0)
    assert (live.closed, live.totals.sum()) == (0, 0)
    store.close()


def test_files_of_other_kinds_and_missing_folders_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("these are notes, not a database")
    for write in (True, False):
        with pytest.raises(StoreError, match=r"notes\.txt is not an SQLite database: name another file"):
            Database(other, write)
        with pytest.raises(StoreError, match="is a folder: name a file in it"):
            Database(tmp_path, write)
    with pytest.raises(StoreError, match="does not exist"):
        Store(tmp_path / "nowhere" / "a.db")
    assert other.read_text() == "these are notes, not a database"
    assert [*tmp_path.iterdir()] == [other], "nor is a lock left next to it"


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    with sqlite3.connect(place) as connection:
        connection.execute("create table streams (mine text)")
    connection.close()
    with pytest.raises(StoreError, match="did not make"):
        Store(place)


def test_an_inconsistent_store_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = Store(place)
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 2, 0.0)
    store.close()
    with sqlite3.connect(place) as connection:
        connection.execute("update accumulators set tick = 2")
    connection.close()
    with pytest.raises(StoreError, match="inconsistent"):
        Store(place)
    with sqlite3.connect(place) as connection:
        connection.execute("update accumulators set tick = 3")
        connection.execute("update states set sealed = substr(sealed, 1, 100)")
    connection.close()
    with pytest.raises(StoreError, match="cannot be restored"):
        Store(place)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = Store(place)
    store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    assert place.stat().st_mode & 0o077 == 0
    store.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0
    with pytest.raises(StoreError, match="exists already"):
        store.backup(tmp_path / "copy.db")
    store.close()


def test_sqlite_is_asked_to_be_durable(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    connection = store.database.connection()
    with connection.begin():
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("journal_mode", "synchronous")
        }
    store.close()
    assert found == {"journal_mode": "wal", "synchronous": 2}
