"""Retired streams: history stays, nothing is released again, the budget stays spent, the noise is
never used again."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.engine.arrivals import Arrivals, PersonEvents
from evercount.engine.close_ticks import TickTotals
from evercount.errors import BudgetExceeded, Conflict, EvercountError, ParameterError, StreamStopped
from evercount.noise import Secret
from evercount.store import (
    Batch,
    BudgetCap,
    Store,
    StreamDeclaration,
    declare_stream,
    retire_stream,
    schema,
    set_cap,
)
from evercount.store.accept_totals import SourceBatch
from evercount.store.stream_life import SECRET_TABLES
from postgres_cluster import Postgres
from store_reading import all_releases, close_and_read

DECLARATION = {
    "name": "one",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9, "unit": "user", "max_events": 3},
    "horizon": 64,
    "factorization": "balanced",
}
SECRET = Secret.from_hex("ab" * 32)


def declared(**changes: object) -> StreamDeclaration:
    return StreamDeclaration.from_dict({**DECLARATION, **changes})


def started(place: str | Path, head: Path | None = None) -> Store:
    """A store whose stream has two releases and an open tick with one event of a named user."""
    store = Store(place, head=head)
    live = store.declare(declared(), 0.0, SECRET)
    store.close_ticks(live, 2, 0.0)
    batch = Batch("one", ["a"], live.encode(["a"]), users=["ann"], key="k", body=b"x")
    store.accept([batch], 0.0)
    return store


def run(*arguments: object, answer: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(commands, [str(a) for a in arguments], input=answer)
    assert done.exception is None or isinstance(done.exception, EvercountError | SystemExit)
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


def test_a_retired_stream_leaves_the_memory(tmp_path: Path) -> None:
    """A service that runs for a year declares and retires streams: the tables of each are
    megabytes."""
    store = Store(tmp_path / "a.db")
    live = store.declare(declared(horizon=None, factorization=None), 0.0)
    store.close_ticks(live, 3, 0.0)
    kept = [weakref.ref(live), weakref.ref(live.stream)]  # equal streams share their tables
    retire_stream(store, "one", 0.0)
    del live
    store.close()  # the thread that draws noise ahead has ended
    gc.collect()
    assert [one() for one in kept] == [None] * 2


def test_nothing_of_a_retired_stream_is_left_to_release(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = started(place)
    before, spent = list(all_releases(store, "one")), store.ledger()
    retire_stream(store, "one", 0.0, reason="a typo")
    for _ in range(2):
        assert "one" not in store.streams
        ended = store.ended["one"]
        assert (ended.ending, ended.reason, ended.closed) == ("retired", "a typo", 2)
        assert list(all_releases(store, "one")) == before
        assert store.ledger()["totals"] == spent["totals"]
        with store.database.reading() as connection:
            for table in SECRET_TABLES:
                assert connection.execute(select(table)).first() is None, table.name
        answer = store.accept([Batch("one", ["a"], np.ones(2, np.int64), users=["ann"])], 0.0)
        assert isinstance(answer[0], StreamStopped)
        assert store.verify(store.head) == []
        store.close()
        store = Store(place)
    store.close()


def test_shards_and_events_of_users_go_with_their_stream(tmp_path: Path) -> None:
    """Totals and users' events of open ticks, and the states of shards; the digests of batches
    stay."""
    store, none = Store(tmp_path / "a.db"), np.empty(0, np.int64)
    clock = {"tick": "1h", "start": "2026-01-01T00:00:00Z"}
    histogram = {"name": "histogram", "parameters": {"keys": 3}}
    user = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 2}
    names = ("cut", "users", "other")
    for name in names:
        budget = {"epsilon": 1.0, "delta": 1e-6} if name == "cut" else user
        one = declared(name=name, query=histogram, budget=budget, horizon=8, **clock)
        store.declare(one, one.schedule.begin / 1e6, shards=2)
        single = np.ones(1, np.int64)
        events = PersonEvents(single, ["ann"], single, single, single, single)
        counted = (
            Arrivals(TickTotals.dense(1, np.ones((2, 3), np.int64)))
            if name == "cut"
            else Arrivals(TickTotals(1, 0, 3, none, none, none), persons=events)
        )
        store.accept_totals(name, SourceBatch(name, 0), counted)
    numbers = {name: store.find(name).id for name in names}
    tables = (
        schema.counted_totals,
        schema.counted_events,
        schema.cut_streams,
        schema.shards,
        schema.counted_batches,
    )

    def streams_in(table: Any) -> set[int]:
        with store.database.reading() as connection:
            return set(connection.execute(select(table.c.stream)).scalars())

    everyone = set(numbers.values())
    assert [streams_in(table) for table in tables[2:]] == [everyone] * 3
    assert set.union(*(streams_in(table) for table in tables[:2])) == everyone
    for name in ("cut", "users"):
        retire_stream(store, name, 0.0)
    for table in SECRET_TABLES:
        assert streams_in(table) <= {numbers["other"]}, table.name
    assert [streams_in(table) for table in tables[1:]] == [*([{numbers["other"]}] * 3), everyone]
    assert store.verify(store.head) == []
    store.close()


def test_no_copy_of_the_secret_is_left_in_the_files(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = started(place)
    hidden = SECRET.hex().encode()
    store.database.checkpoint()
    assert hidden in place.read_bytes()
    retire_stream(store, "one", 0.0)
    files = [file for file in tmp_path.iterdir() if file.is_file()]
    assert len(files) >= 3
    assert not any(hidden in file.read_bytes() for file in files)
    store.close()


def test_the_noise_of_a_retired_stream_is_never_used_again(tmp_path: Path) -> None:
    store = started(tmp_path / "a.db")
    retire_stream(store, "one", 0.0)
    with pytest.raises(Conflict, match="has ended"):
        store.declare(declared(), 0.0)
    with pytest.raises(Conflict, match="same noise"):
        store.declare(declared(name="two"), 0.0, SECRET)
    assert store.declare(declared(name="two"), 0.0).secret.hex() != SECRET.hex()
    store.close()


def test_a_reused_secret_would_reveal_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why: with the check taken out, the difference of two releases is the difference of the data,
    exactly."""
    store = started(tmp_path / "a.db")
    first = close_and_read(store, store.find("one"), 1, 0.0)[0]["values"]
    retire_stream(store, "one", 0.0)
    monkeypatch.setattr(declare_stream, "refuse_twin", lambda *_: None)
    live = store.declare(declared(name="two"), 0.0, SECRET)
    store.close_ticks(live, 2, 0.0)
    second = close_and_read(store, live, 1, 0.0)[0]["values"]
    assert np.subtract(first, second).tolist() == [1.0, 0.0]
    store.close()


def test_a_backup_from_before_the_retirement_is_quarantined(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    store = started(place)
    store.backup(copy)
    retire_stream(store, "one", 0.0)
    store.close()
    place.unlink()
    shutil.copy(copy, place)
    for _ in range(2):
        store = Store(place)
        assert store.streams == {}
        assert store.ended["one"].ending == "quarantined"
        assert "retired after" in store.ended["one"].reason
        store.close()
    code, output = run("verify", "--db", place, "--adopt")
    assert code == 0, output
    store = Store(place)
    assert store.ended["one"].ending == "quarantined", (
        "adopting a copy must not bring a retired stream back"
    )
    retire_stream(store, "one", 0.0)
    store.close()
    assert run("verify", "--db", place)[0] == 0


def test_a_crash_between_the_retirement_and_the_head_changes_nothing(tmp_path: Path) -> None:
    place, head = tmp_path / "a.db", tmp_path / "a.db.head"
    store = started(place)
    before = head.read_text()
    retire_stream(store, "one", 0.0)
    store.close()
    head.write_text(before)
    store = Store(place)
    assert store.ended["one"].ending == "retired"
    store.close()
    assert '"retired": ["one"]' in head.read_text()


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_a_quarantined_stream_is_followed_by_a_successor(
    tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    """One command retires what an old copy left behind and declares the stream that goes on."""
    head = tmp_path / "head"
    place: str | Path = tmp_path / "a.db"
    copy: str | Path = tmp_path / "copy.db"
    if where == "sqlite":
        store = started(place, head)
        store.backup(Path(copy))
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        place, copy = postgres.fresh(), postgres.fresh()
        store = started(place, head)
        connection = ("-h", "127.0.0.1", "-p", postgres.port, "-U", "evercount")
        dump = postgres.folder / f"{place.rsplit('/', 1)[1]}.sql"
        postgres.run("pg_dump", *connection, "-f", dump, place.rsplit("/", 1)[1])
        postgres.run("psql", *connection, "-q", "-f", dump, copy.rsplit("/", 1)[1])
    alone = store.ledger()["totals"][0]
    store.close_ticks(store.find("one"), 1, 0.0)
    store.close()
    code, output = run(
        "retire", "one", "--db", copy, "--head", head, "--successor", "two", answer="n\n"
    )
    assert code == 1
    assert "cannot be undone" in output
    assert declared().budget.sentence() in output
    assert ".." not in output, "the sentence of the budget has its own full stop"
    code, output = run("retire", "one", "--db", copy, "--head", head, "--successor", "two", "--yes")
    assert code == 0, output
    assert "Both together keep epsilon=1.4077" in output
    store = Store(copy, head=head)
    assert store.ended["one"].successor == "two"
    live = store.streams["two"]
    assert live.closed == 0
    assert live.secret.hex() != SECRET.hex()
    assert live.declaration.query == declared().query
    total = store.ledger()["totals"][0]
    assert (total["streams"], total["delta"]) == (2, 2 * alone["delta"])
    assert total["epsilon"] > alone["epsilon"]
    assert close_and_read(store, live, 1, 0.0)[0]["tick"] == 1
    assert store.verify(store.head) == []
    store.close()


def test_what_refuses_the_successor_changes_nothing(tmp_path: Path) -> None:
    store = started(tmp_path / "a.db")
    store.declare(declared(name="two"), 0.0)
    with pytest.raises(Conflict, match="already"):
        retire_stream(store, "one", 0.0, successor="two")
    with pytest.raises(ParameterError, match="no stream"):
        retire_stream(store, "none", 0.0)
    set_cap(store.database, BudgetCap(1.2, 1e-8))
    with pytest.raises(BudgetExceeded, match="cap"):
        retire_stream(store, "one", 0.0, successor="three")
    assert set(store.streams) == {"one", "two"}
    assert store.ended == {}
    store.close()


def test_the_same_call_again_ends_an_interrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started(tmp_path / "a.db")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "declare", killed)
        with pytest.raises(KeyboardInterrupt):
            retire_stream(store, "one", 0.0, successor="two")
    assert store.ended["one"].successor is None
    for _ in range(2):
        _, live = retire_stream(store, "one", 0.0, successor="two")
        assert live is store.streams["two"]
    with pytest.raises(Conflict, match="its successor is 'two'"):
        retire_stream(store, "one", 0.0, successor="three")
    store.close()


def test_verify_finds_a_secret_that_was_put_back(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    store = started(place)
    retire_stream(store, "one", 0.0)
    store.close()
    with sqlite3.connect(place) as connection:
        connection.execute("insert into secrets (stream, sealed) values (1, x'00')")
    connection.close()
    code, output = run("verify", "--db", place)
    assert code == 1
    assert "is retired" in output
