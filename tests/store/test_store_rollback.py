"""Streams of a database that was put back from an older copy do not go on, on SQLite and on
PostgreSQL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.errors import Conflict, StoreError, StreamStopped
from evercount.noise import Secret
from evercount.store import Batch, Store, StreamDeclaration, retire_stream
from evercount.store.reader import restore_copy
from postgres_cluster import Postgres
from store_reading import all_releases

DECLARATION = {
    "name": "one",
    "query": {"name": "count"},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 64,
}


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


def endings(place: str | Path, head: Path | None = None) -> dict[str, str]:
    store = Store(place, head=head)
    try:
        assert not set(store.streams) & set(store.ended)
        return {name: ended.ending for name, ended in store.ended.items()}
    finally:
        store.close()


def test_an_old_backup_is_quarantined(tmp_path: Path) -> None:
    """Only the stream that went on since; the other one keeps serving."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    advance(place, 1, name="two")
    assert run("backup", copy, "--db", place)[0] == 0
    put_back(copy, place)
    assert endings(place) == {}  # nothing was released since: the copy is as good as the original
    advance(place, 2)
    put_back(copy, place)
    code, output = run("verify", "--db", place)
    assert code == 1
    assert "older than its head" in output
    assert endings(place) == {"one": "quarantined"}
    advance(place, 1, name="two")
    store = Store(place)
    ended = store.ended["one"]
    assert (ended.closed, ended.readable) == (3, True)
    assert store.streams["two"].closed == 2
    assert [release["tick"] for release in all_releases(store, "one")] == [1, 2, 3]
    with pytest.raises(Conflict, match="has ended"):
        store.declare(StreamDeclaration.from_dict(DECLARATION), 0.0)
    answer = store.accept([Batch("one", [1], np.ones(1, np.int64))], 0.0)
    assert isinstance(answer[0], StreamStopped)
    store.close()


def test_a_quarantine_outlives_restarts(tmp_path: Path) -> None:
    """The head must not go back to the tick of the copy, whatever the other streams do."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    run("backup", copy, "--db", place)
    advance(place, 2)
    newest = tmp_path / "newest.db"
    run("backup", newest, "--db", place)
    put_back(copy, place)
    for _ in range(2):
        advance(place, 1, name="two")
        assert endings(place) == {"one": "quarantined"}
    put_back(copy, place)
    # "two" is lost with this copy, and "one" is where it was
    assert endings(place) == {"one": "quarantined"}
    put_back(newest, place)
    store = Store(place)
    assert store.streams["one"].closed == 5
    store.close()


def test_a_stream_that_a_copy_does_not_have_stays_spent(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    run("backup", copy, "--db", place)
    store = Store(place)
    secret = Secret.generate()
    other = StreamDeclaration.from_dict({**DECLARATION, "name": "two", "horizon": 32})
    store.close_ticks(store.declare(other, 0.0, secret), 1, 0.0)
    spent = store.ledger()["totals"]
    store.close()
    put_back(copy, place)
    for _ in range(2):
        store = Store(place)
        assert set(store.streams) == {"one"}
        assert store.ledger()["totals"] == spent
        assert store.ledger()["entries"][-1]["stream"] == "two"
        with pytest.raises(Conflict, match="has ended"):
            store.declare(other, 0.0)
        with pytest.raises(Conflict, match="same noise"):
            store.declare(
                StreamDeclaration.from_dict({**DECLARATION, "name": "three", "horizon": 32}),
                0.0,
                secret,
            )
        store.close()
    assert run("verify", "--db", place)[0] == 0


def test_a_head_that_does_not_say_what_was_spent_stops_the_store(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 3)
    run("backup", copy, "--db", place)
    advance(place, 0, name="two")
    put_back(copy, place)
    head = tmp_path / "a.db.head"
    content = json.loads(head.read_text())
    del content["spent"]["two"]
    head.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="head file cannot be read"):
        Store(place)


def test_another_history_of_the_same_length_is_hidden(tmp_path: Path) -> None:
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
    store = Store(place)
    assert (store.ended["one"].ending, store.ended["one"].readable) == ("quarantined", False)
    ended, _ = retire_stream(store, "one", 0.0)
    assert not ended.readable
    store.close()
    store = Store(place)
    assert not store.ended["one"].readable
    store.close()


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


def test_a_copy_that_the_head_knows_to_be_old_is_not_adopted(tmp_path: Path) -> None:
    """It would go on with noise that is used, and the ledger would forget the stream that the copy
    lacks."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 1)
    assert run("backup", copy, "--db", place)[0] == 0
    advance(place, 1)
    advance(place, 1, name="two")
    put_back(copy, place)
    code, output = run("verify", "--db", place, "--adopt")
    assert code == 1, output
    assert [line.split()[1] for line in output.splitlines()] == ["one:", "two:"]
    assert endings(place) == {"one": "quarantined"}
    store = Store(place)
    assert len(store.ledger()["entries"]) == 2
    store.close()


def test_a_copy_from_before_the_first_release_needs_its_head(tmp_path: Path) -> None:
    """It holds the secret of the stream: next to the original it would release the same ticks with
    the same noise."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    advance(place, 0)
    assert run("backup", copy, "--db", place)[0] == 0
    advance(place, 1)
    with pytest.raises(StoreError, match="missing"):
        Store(copy)
    with pytest.raises(StoreError, match="missing"):
        restore_copy(copy, tmp_path / "elsewhere.db")
    code, output = run("verify", "--db", copy)
    assert code == 1, output
    assert "missing" in output


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


def test_an_old_dump_of_postgresql_is_quarantined(tmp_path: Path, postgres: Postgres) -> None:
    place, head = postgres.fresh(), tmp_path / "pg.head"
    advance(place, 2, head)
    copy = postgres.fresh()
    connection = ("-h", "127.0.0.1", "-p", postgres.port, "-U", "evercount")
    dump = postgres.folder / "dump.sql"
    postgres.run("pg_dump", *connection, "-f", dump, place.rsplit("/", 1)[1])
    postgres.run("psql", *connection, "-q", "-f", dump, copy.rsplit("/", 1)[1])
    assert endings(copy, head) == {}
    advance(place, 1, head)
    assert endings(copy, head) == {"one": "quarantined"}
    assert endings(place, head) == {}
