"""A database that was put back from an older copy is refused, on SQLite and on PostgreSQL."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.errors import StoreError
from evercount.store import Store, StreamDeclaration
from serving import Postgres

DECLARATION = {"name": "one", "query": {"name": "count"}, "budget": {"epsilon": 1.0, "delta": 1e-9}, "horizon": 64}


def advance(place: str | Path, ticks: int, head: Path | None = None, name: str = "one") -> None:
    store = Store(place, head=head)
    try:
        live = store.declare(StreamDeclaration.from_dict({**DECLARATION, "name": name}), 0.0)
        if ticks:
            store.close_ticks(live, ticks, 0.0)
    finally:
        store.close()


def put_back(copy: Path, place: Path) -> None:
    for left in place.parent.glob(place.name + "-*"):
        left.unlink()
    shutil.copy(copy, place)


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(commands, [str(a) for a in arguments])
    return done.exit_code, done.output or str(done.exception)


def test_an_old_backup_is_refused(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    assert run("backup", copy, "--db", place)[0] == 0
    put_back(copy, place)
    advance(place, 0)  # nothing was released since: the copy is as good as the original
    advance(place, 2)
    put_back(copy, place)
    with pytest.raises(StoreError, match="older than its head"):
        Store(place)
    code, output = run("verify", "--db", place)
    assert code == 1
    assert "older than its head" in output


def test_a_backup_without_a_later_stream_is_refused(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    run("backup", copy, "--db", place)
    advance(place, 0, name="two")
    put_back(copy, place)
    with pytest.raises(StoreError, match="older than its head") as caught:
        Store(place)
    assert "'two'" in caught.value.detail


def test_another_history_of_the_same_length_is_refused(tmp_path: Path) -> None:
    place, other = tmp_path / "a.db", tmp_path / "b.db"
    advance(place, 3)
    head = (tmp_path / "a.db.head").read_text()
    copy = tmp_path / "copy.db"
    run("backup", copy, "--db", place)
    shutil.copy(copy, other)
    (tmp_path / "b.db.head").write_text(head)
    store = Store(other)
    live = store.find("one")
    live.totals = live.totals + 1000  # not what was accepted
    store.close_ticks(live, 1, 0.0)
    store.close()
    advance(place, 1)
    put_back(other, place)
    with pytest.raises(StoreError, match="older than its head, or was changed"):
        Store(place)


def test_a_missing_head_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    place, head = tmp_path / "a.db", tmp_path / "a.db.head"
    advance(place, 3)
    head.unlink()
    with pytest.raises(StoreError, match="missing"):
        Store(place)
    code, output = run("verify", "--db", place, "--adopt")
    assert code == 0, output
    advance(place, 1)
    head.write_text("{}")
    with pytest.raises(StoreError, match="cannot be read"):
        Store(place)


def test_a_new_database_under_an_old_head_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    advance(place, 1)
    for file in tmp_path.glob("a.db*"):
        if file.suffix != ".head":
            file.unlink()
    with pytest.raises(StoreError, match="another store"):
        Store(place)


def test_a_crash_between_commit_and_head_is_no_rollback(tmp_path: Path) -> None:
    place, head = tmp_path / "a.db", tmp_path / "a.db.head"
    advance(place, 2)
    before = head.read_text()
    advance(place, 1)
    head.write_text(before)
    advance(place, 1)


def test_an_old_dump_of_postgresql_is_refused(tmp_path: Path, postgres: Postgres) -> None:
    place, head = postgres.fresh(), tmp_path / "pg.head"
    advance(place, 2, head)
    copy = postgres.fresh()
    connection = ("-h", "127.0.0.1", "-p", postgres.port, "-U", "evercount")
    dump = postgres.folder / "dump.sql"
    postgres.run("pg_dump", *connection, "-f", dump, place.rsplit("/", 1)[1])
    postgres.run("psql", *connection, "-q", "-f", dump, copy.rsplit("/", 1)[1])
    advance(copy, 0, head)
    advance(place, 1, head)
    with pytest.raises(StoreError, match="older than its head"):
        Store(copy, head=head)
