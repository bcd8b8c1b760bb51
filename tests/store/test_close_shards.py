"""Shards of a stream: together the table of the whole stream, whoever closes them, how often, and
whatever is lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, ParameterError, StoreError, TooLarge
from evercount.noise import Secret
from evercount.store import Batch, Reading, Store, closing_ticks, schema
from evercount.store.accept_totals import SourceBatch
from evercount.store.closing_ticks import ShardWork, close_here, close_shard
from evercount.store.database import Database, parse_url
from postgres_cluster import Postgres
from soak_cases import soak_except
from store_reading import all_releases

SECRET = Secret.from_hex("6e" * 32)
KEY = bytes(range(32))
CELLS, TICKS = 11, 9
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "cut",
        "query": {"name": "histogram", "parameters": {"keys": CELLS}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": 40,
        "postprocess": ["monotone"],
    }
)

START = DECLARATION.schedule.begin / 1e6
TOTALS = np.random.default_rng(6).integers(0, 5, (TICKS, CELLS))


def new_store(place: Any, shards: int | None = 3, **rest: Any) -> Store:
    store = Store(place, KEY, **rest)
    store.declare(DECLARATION, START, SECRET, shards=shards)
    return store


def released(store: Reading) -> list[tuple[Any, ...]]:
    return [
        tuple(one[name] for name in ("values", "std", "low", "high"))
        for one in all_releases(store, "cut")
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What the stream publishes in its first ticks where it is not cut, and the head of its
    chain."""
    tables = {}
    for ticks in (4, TICKS):
        store = new_store(tmp_path_factory.mktemp("whole") / "store.db", None)
        store.accept_totals(
            "cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, TOTALS[:ticks]))
        )
        store.close_ticks(store.find("cut"), ticks, 0.0)
        tables[ticks] = released(store), store.find("cut").head
        store.close()
    return tables


@pytest.mark.parametrize("shards", soak_except([3], [1, 3, 7, CELLS]))
def test_shards_publish_the_table_of_the_whole_stream(
    tmp_path: Path, shards: int, whole: dict[int, Any]
) -> None:
    """Totals and single events, ticks together and alone, restarts between; the same chain, too."""
    store = new_store(tmp_path / "store.db", shards)
    less = TOTALS.copy()
    less[0, 4] -= 1
    assert less[0, 4] >= 0
    store.accept_totals("cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, less)))
    row = np.zeros(CELLS, np.int64)
    row[4] = 1
    store.accept([Batch("cut", [4], row)], START)
    for count in (1, 3, 5):
        store.close_ticks(store.find("cut"), count, 0.0)
        store.close()
        store = new_store(tmp_path / "store.db", None if count == 3 else shards)
    assert (released(store), store.find("cut").head) == whole[TICKS]
    assert store.verify(store.head) == []
    with store.database.reading() as connection:
        assert (
            connection.execute(select(func.count()).select_from(schema.counted_totals)).scalar()
            == 0
        )
    store.close()


def interrupted(store: Store, ticks: int, shards_done: list[int]) -> None:
    """A driver that dies after some shards have committed."""

    def some(work: ShardWork) -> None:
        for number in shards_done:
            close_shard(work, number, KEY)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.close_ticks(store.find("cut"), ticks, 0.0, run=some)


@pytest.mark.parametrize("done", [[], [1], [0, 1, 2]])
def test_what_was_begun_is_ended_with_the_same_totals(
    tmp_path: Path, done: list[int], whole: dict[int, Any]
) -> None:
    """Readers see nothing of a tick before all of it is there; events that come meanwhile are
    late."""
    store = new_store(tmp_path / "store.db")
    store.accept_totals("cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, TOTALS[:4])))
    interrupted(store, 4, done)
    reader = Reading.open(tmp_path / "store.db")
    assert released(reader) == []
    assert reader.verify() == []
    reader.close()
    store.close()
    store = new_store(tmp_path / "store.db")
    live = store.find("cut")
    assert (live.closed, live.open_tick) == (0, 5)
    store.accept_totals("cut", SourceBatch("q", 1), Arrivals(TickTotals.dense(1, TOTALS[:4] + 100)))
    store.close_ticks(live, 1, 0.0)
    assert live.closed == 4
    assert (released(store), live.head) == whole[4]
    store.close()


def test_a_repeated_call_commits_nothing(tmp_path: Path, whole: dict[int, Any]) -> None:
    store = new_store(tmp_path / "store.db")
    answers = []

    def twice(work: ShardWork) -> None:
        answers.extend(close_shard(work, number, KEY) for number in (2, 0, 1, 0, 1, 2))

    store.accept_totals("cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, TOTALS)))
    store.close_ticks(store.find("cut"), TICKS, 0.0, run=twice)
    assert answers == [TICKS] * 3 + [0] * 3
    assert (released(store), store.find("cut").head) == whole[TICKS]
    store.close()


def both_at_once(monkeypatch: pytest.MonkeyPatch, work: ShardWork) -> list[Any]:
    """Two calls for one shard that have both computed their numbers before either commits."""
    meet, real, answers = threading.Barrier(2), closing_ticks.TaskStream.restore, []

    def restore(blob: bytes, period_of: Any) -> Any:
        meet.wait(300)
        return real(blob, period_of)

    def call() -> None:
        try:
            answers.append(close_shard(work, 0, KEY))
        except StoreError as error:
            answers.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(closing_ticks.TaskStream, "restore", restore)
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return answers


def test_two_calls_at_once_commit_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[int, Any]
) -> None:
    store = new_store(tmp_path / "store.db")
    store.accept_totals("cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, TOTALS)))
    answers: list[Any] = []

    def run(work: ShardWork) -> None:
        answers.extend(both_at_once(monkeypatch, work))
        close_here(KEY, work)

    store.close_ticks(store.find("cut"), TICKS, 0.0, run=run)
    assert sorted(answers) == [0, TICKS]
    assert (released(store), store.find("cut").head) == whole[TICKS]
    store.close()


def test_a_commit_that_finds_other_numbers_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two calls at once computes something else: it is not the one that is published, and
    says so."""
    store = new_store(tmp_path / "store.db")
    real, first = closing_ticks.release_rows, threading.Lock()

    def changed(stream: int, table: Any, cell: int) -> Any:
        return real(
            stream, replace(table, numbers=table.numbers + first.acquire(blocking=False)), cell
        )

    monkeypatch.setattr(closing_ticks, "release_rows", changed)

    def run(work: ShardWork) -> None:
        (failure,) = [
            answer for answer in both_at_once(monkeypatch, work) if isinstance(answer, StoreError)
        ]
        raise failure

    with pytest.raises(StoreError, match="committed with other numbers"):
        store.close_ticks(store.find("cut"), 2, 0.0, run=run)
    assert released(store) == []
    store.close()


def test_a_commit_that_finds_narrower_intervals_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of the program stated narrower intervals of the same values: what it
    committed is accepted."""
    store = new_store(tmp_path / "store.db")
    real, answers = closing_ticks.release_rows, list[Any]()

    def narrower(stream: int, table: Any, cell: int) -> Any:
        inside = np.asarray([0.0, 0.0, 0.5, -0.5])[:, np.newaxis]  # value, std, low, high
        return real(stream, replace(table, numbers=table.numbers + inside), cell)

    monkeypatch.setattr(closing_ticks, "release_rows", narrower)

    def run(work: ShardWork) -> None:
        answers.extend(both_at_once(monkeypatch, work))
        close_here(KEY, work)

    store.close_ticks(store.find("cut"), 2, 0.0, run=run)
    assert sorted(answers) == [0, 2]
    store.close()


def test_a_shard_that_is_missing_is_not_published(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store.db")
    with pytest.raises(StoreError, match="shard 1 has not closed tick 2"):
        store.close_ticks(
            store.find("cut"),
            2,
            0.0,
            run=lambda work: [close_shard(work, n, KEY) for n in (0, 2)] and None,
        )
    with pytest.raises(StoreError, match="is encrypted"):
        store.close_ticks(store.find("cut"), 2, 0.0, run=lambda work: close_here(None, work))
    with store.database.transaction() as connection:
        connection.execute(
            update(schema.shards).where(schema.shards.c.number == 1).values(number=9)
        )
    with pytest.raises(StoreError, match="no shard 1"):
        store.close_ticks(store.find("cut"), 2, 0.0)
    store.close()


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store.db")
    with pytest.raises(Conflict, match="is kept in 3 shards"):
        store.declare(DECLARATION, START, shards=4)
    assert store.declare(DECLARATION, START).shards is not None
    store.close()
    store = new_store(tmp_path / "whole.db", None)
    store.close_ticks(store.find("cut"), 1, 0.0)
    with pytest.raises(Conflict, match="began as a whole"):
        store.declare(DECLARATION, START, shards=3)
    fields = {**DECLARATION.to_dict(), "postprocess": []}
    average = {**fields, "name": "w", "query": "average"}
    with pytest.raises(ParameterError, match="cannot be cut"):
        store.declare(StreamDeclaration.from_dict(average), START, shards=2)
    many = {**fields, "name": "m", "query": {"name": "histogram", "parameters": {"keys": 100_001}}}
    with pytest.raises(TooLarge, match="in each of its shards"):
        store.declare(StreamDeclaration.from_dict(many), START)
    store.close()


def test_the_place_of_a_store_is_told_without_its_password() -> None:
    database = object.__new__(Database)
    database.url, database.sqlite = parse_url("postgresql://me:hush@host:5/name"), False
    assert closing_ticks.shareable_place(database) == "postgresql+psycopg://me@host:5/name"


def test_shards_on_postgresql(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[int, Any]
) -> None:
    store = new_store(postgres.fresh(), head=tmp_path / "head")
    store.accept_totals("cut", SourceBatch("q", 0), Arrivals(TickTotals.dense(1, TOTALS)))

    def run(work: ShardWork) -> None:
        both_at_once(monkeypatch, work)
        close_here(KEY, work)

    store.close_ticks(store.find("cut"), TICKS, 0.0, run=run)
    assert (released(store), store.find("cut").head) == whole[TICKS]
    store.close()
