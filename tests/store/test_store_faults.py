"""Disk full, read-only files, half-made schemas and damaged content: refused or undone, never half
done."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from evercount.errors import StoreError
from evercount.noise import Secret
from evercount.store import Batch, Reading, Store, StreamDeclaration
from evercount.store.database import Database
from evercount.store.rollback_guard import HeadFile
from evercount.store.writer import WatchedStore
from mounted_disks import fill, read_only, small_disk
from store_reading import all_releases

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
    connection.exec_driver_sql(
        f"PRAGMA max_page_count={pages + more if more is not None else 2**30}"
    )
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
        with pytest.raises(
            StoreError, match=r"notes\.txt is not an SQLite database: name another file"
        ):
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


def test_a_full_disk_is_named_with_what_to_do_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", 1 << 21) as disk:
        store = Store(disk / "a.db")
        live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
        filler = fill(disk, 1 << 17)
        with pytest.raises(StoreError, match=r"the disk is full.*make room"):
            close_for_ever(store)
        with pytest.raises(StoreError, match=r"the disk is full.*make room"):
            Store(disk / "b.db")
        closed = live.closed
        filler.unlink()
        store.recover()
        store.close_ticks(store.find("wide"), 5, 0.0)
        assert store.find("wide").closed == closed + 5
        assert store.verify(store.head) == []
        store.close()


def test_a_head_on_a_full_disk_needs_room_and_no_other_place(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 16) as disk:
        store = Store(tmp_path / "a.db", head=disk / "a.head")
        filler = fill(disk)
        with pytest.raises(
            StoreError, match=r"the head file cannot be written: the disk is full.*make room"
        ) as caught:
            store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
        assert "--head" not in caught.value.for_operator()
        filler.unlink()
        store.recover()
        store.close_ticks(store.find("wide"), 1, 0.0)
        assert store.verify(store.head) == []
        store.close()


@pytest.mark.parametrize("log", [False, True], ids=["closed", "live"])
def test_a_store_is_read_where_nothing_can_be_written(tmp_path: Path, log: bool) -> None:
    (tmp_path / "disk").mkdir()
    place = tmp_path / "disk" / "a.db"
    store = Store(place)
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    store.close_ticks(live, 3, 0.0)
    published = list(all_releases(store, "wide"))
    if not log:
        store.close()
    with read_only(tmp_path / "disk"):
        assert not os.access(place, os.W_OK)
        with closing(Reading.open(place)) as reader:
            assert list(all_releases(reader, "wide")) == published
            assert reader.verify(HeadFile(place.with_name("a.db.head"))) == []
            reader.backup(tmp_path / "copy.db")
        with closing(WatchedStore(place)) as watched:
            assert list(all_releases(watched, "wide")) == published
            if log:
                store.close()
    with closing(Reading.open(tmp_path / "copy.db")) as copy:
        assert list(all_releases(copy, "wide")) == published


def test_a_reader_without_its_log_is_refused_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Without its log a copy lacks the latest releases, and would show older ones as the newest."""
    (tmp_path / "disk").mkdir()
    store = Store(tmp_path / "a.db")
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 3, 0.0)
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"a.db{suffix}", tmp_path / "disk" / f"a.db{suffix}")
    store.close()
    with read_only(tmp_path / "disk"), pytest.raises(StoreError, match="evercount store backup"):
        Reading.open(tmp_path / "disk" / "a.db")


def test_others_lose_their_rights_and_the_operator_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, head = tmp_path / "a.db", tmp_path / "a.db.head"
    Store(place).close()
    assert caplog.messages == []
    place.chmod(0o644)
    head.chmod(0o666)
    Reading.open(place).close()
    assert (place.stat().st_mode & 0o777, head.stat().st_mode & 0o777) == (0o644, 0o666), (
        "a reader changes nothing"
    )
    Store(place).close()
    assert (place.stat().st_mode & 0o777, head.stat().st_mode & 0o777) == (0o640, 0o664)
    assert caplog.messages == [
        f"every user of this machine could read the store {place}; now they cannot",
        f"every user of this machine could read or change the head file {head}; now they cannot",
    ]
    Store(place).close()
    assert len(caplog.messages) == 2


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
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous")
        }
    store.close()
    assert found == {"journal_mode": "wal", "synchronous": 2}
