"""Totals that were counted elsewhere: each batch once, every tick as if its events had come one by
one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, StoreError
from evercount.noise import Secret
from evercount.store import Store
from evercount.store.accept_totals import FedStream, SourceBatch
from evercount.store.open_stream import FILES
from postgres_cluster import Postgres
from store_reading import all_releases
from wrapped_functions import wrap

SECRET = Secret.from_hex("6c" * 32)
START = 1_767_225_600
HOUR = 3600.0
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "counted",
        "query": {"name": "histogram", "parameters": {"keys": ["a", "b", "c"]}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": 40,
        "views": ["running"],
    }
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store.db", key=bytes(range(32)))
    made.declare(DECLARATION, START, SECRET)
    yield made
    made.close()


def batch(
    number: int, rows: dict[int, list[int]], query: str = "q1", **rest: Any
) -> tuple[SourceBatch, Arrivals]:
    """A batch of some ticks: tick → one number for each cell."""
    ticks = sorted(rows)
    dense = np.asarray([rows[tick] for tick in ticks])
    at, cell = np.nonzero(dense)
    tick = np.asarray(ticks)[at]
    first = ticks[0] if ticks else 1
    totals = TickTotals(first, ticks[-1] - first + 1, 3, tick, cell, dense[at, cell])
    return SourceBatch(query, number, **rest), Arrivals(totals)


def released(store: Store) -> list[list[float]]:
    return [one["values"] for one in all_releases(store, "counted")]


def expected(rows: Any, declaration: StreamDeclaration = DECLARATION) -> list[list[float]]:
    stream = declaration.build(secret=SECRET, replay=True)
    return stream.run_totals(np.asarray(rows)).rows.tolist()


def test_batches_add_up_and_ticks_without_events_are_released(store: Store) -> None:
    live = store.find("counted")
    assert store.accept_totals("counted", *batch(0, {1: [1, 0, 2], 4: [0, 5, 0]}))
    assert store.accept_totals("counted", *batch(1, {1: [3, 0, 0], 2: [1, 1, 1]}))
    store.close_ticks(live, 5, 0.0)
    assert released(store) == expected([[4, 0, 2], [1, 1, 1], [0, 0, 0], [0, 5, 0], [0, 0, 0]])


def test_a_repeated_batch_is_counted_once_also_after_its_ticks_closed(store: Store) -> None:
    one = batch(0, {1: [1, 0, 2]})
    assert store.accept_totals("counted", *one)
    assert not store.accept_totals("counted", *one)
    store.close_ticks(store.find("counted"), 1, 0.0)
    assert not store.accept_totals("counted", *one)
    store.close_ticks(store.find("counted"), 1, 0.0)
    assert released(store) == expected([[1, 0, 2], [0, 0, 0]])


def test_a_repeated_batch_with_other_totals_is_refused(store: Store) -> None:
    store.accept_totals("counted", *batch(0, {1: [1, 0, 2]}))
    with pytest.raises(Conflict, match="counted before with other events"):
        store.accept_totals("counted", *batch(0, {1: [1, 1, 2]}))
    store.close_ticks(store.find("counted"), 1, 0.0)
    assert released(store) == expected([[1, 0, 2]])


def test_gaps_and_unknown_checkpoints_are_refused(store: Store) -> None:
    with pytest.raises(Conflict, match="ahead of the store"):
        store.accept_totals("counted", *batch(1, {1: [1, 0, 0]}))
    store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}))
    with pytest.raises(Conflict, match="ahead of the store"):
        store.accept_totals("counted", *batch(2, {1: [1, 0, 0]}))
    with pytest.raises(Conflict, match="fed from another checkpoint"):
        store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}, query="q2"))
    assert store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}, query="q2", fresh=True))
    assert store.accept_totals("counted", *batch(1, {1: [1, 0, 0]}, query="q2"))


def test_a_checkpoint_of_another_stream_is_refused(store: Store) -> None:
    other = replace(DECLARATION, name="other")
    store.declare(other, START)
    store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}))
    with pytest.raises(Conflict, match="belongs to another stream"):
        store.accept_totals("other", *batch(0, {1: [1, 0, 0]}))


def test_totals_that_are_too_late_to_be_revised_are_not_counted(tmp_path: Path) -> None:
    """Of what comes in tick 4, ticks 3 and 4 count where one tick back is revised: the rest changes
    nothing."""
    declaration = replace(DECLARATION, late="revise", revise_for=1, views=("per-tick",))
    found = []
    for number, rows in enumerate(
        ({1: [9, 0, 0], 2: [0, 9, 0], 3: [0, 0, 2], 4: [3, 0, 0]}, {3: [0, 0, 2], 4: [3, 0, 0]})
    ):
        store = Store(tmp_path / f"{number}.db")
        live = store.declare(declaration, START, SECRET)
        store.close_ticks(live, 3, 0.0)
        assert store.accept_totals("counted", *batch(0, rows))
        store.close_ticks(live, 1, 0.0)
        found.append(released(store))
        store.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("late", ["drop", "next"])
def test_late_totals_follow_the_declared_rule(tmp_path: Path, late: Any) -> None:
    declaration = replace(DECLARATION, late=late)
    store = Store(tmp_path / "store.db")
    live = store.declare(declaration, START, SECRET)
    store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}))
    store.close_ticks(live, 2, 0.0)
    store.accept_totals("counted", *batch(1, {1: [0, 2, 0], 2: [0, 0, 3], 3: [1, 1, 1]}))
    store.close_ticks(live, 1, 0.0)
    found = released(store)
    store.close()
    third = [1, 3, 4] if late == "next" else [1, 1, 1]
    assert found == expected([[1, 0, 0], [0, 0, 0], third], declaration)


def test_totals_survive_a_restart_and_are_sealed(tmp_path: Path) -> None:
    path, key = tmp_path / "store.db", bytes(range(32))
    store = Store(path, key)
    store.declare(DECLARATION, START, SECRET)
    store.accept_totals("counted", *batch(0, {2: [123456789, 0, 0]}))
    store.close()
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert (123456789).to_bytes(8, "little") not in content
    store = Store(path, key)
    store.close_ticks(store.find("counted"), 2, 0.0)
    assert released(store) == expected([[0, 0, 0], [123456789, 0, 0]])
    assert not store.accept_totals("counted", *batch(0, {2: [123456789, 0, 0]}))
    store.close()


def test_totals_are_gone_when_their_tick_is_released(store: Store) -> None:
    from sqlalchemy import select

    from evercount.store.schema import counted_totals

    store.accept_totals("counted", *batch(0, {1: [1, 0, 0], 3: [1, 0, 0]}))
    store.close_ticks(store.find("counted"), 2, 0.0)
    with store.database.reading() as connection:
        assert connection.execute(select(counted_totals.c.tick)).scalars().all() == [3]


def test_totals_after_the_horizon_are_ignored(store: Store) -> None:
    store.accept_totals("counted", *batch(0, {40: [1, 0, 0], 41: [9, 9, 9]}))
    store.close_ticks(store.find("counted"), 40, 0.0)
    assert released(store)[-1] == expected([[0, 0, 0]] * 39 + [[1, 0, 0]])[-1]


def test_sums_beyond_the_declared_number_are_cut_when_the_tick_closes(tmp_path: Path) -> None:
    query = {"name": "count", "parameters": {"most_per_tick": 10}}
    declaration = StreamDeclaration.from_dict({**DECLARATION.to_dict(), "query": query})
    store = Store(tmp_path / "store.db")
    live = store.declare(declaration, START, SECRET)
    for number in range(2):
        store.accept_totals(
            "counted", SourceBatch("q", number), Arrivals(TickTotals.dense(1, [[6], [5]]))
        )
    store.close_ticks(live, 2, 0.0)
    found = released(store)
    store.close()
    assert found == expected([[10], [10]], declaration)


def test_sums_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    declaration = StreamDeclaration.from_dict(
        {**DECLARATION.to_dict(), "query": {"name": "sum", "parameters": {"low": -1, "high": 1}}}
    )
    store = Store(tmp_path / "store.db")
    live = store.declare(declaration, START, SECRET)
    for number, total in enumerate([2**61, 2**61, 2**61, -(2**61), -(2**61), 7 - 2**61]):
        store.accept_totals(
            "counted", SourceBatch("q", number), Arrivals(TickTotals.dense(1, [[total]]))
        )
    store.close_ticks(live, 1, 0.0)
    found = released(store)
    store.close()
    assert found == expected([[7]], declaration)


def test_a_failed_commit_counts_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's name and its totals are one transaction."""
    from evercount.store import accept_totals

    def broken(real: Any, *arguments: Any) -> None:
        real(*arguments)
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        wrap(patch, accept_totals, "_add", broken)
        with pytest.raises(StoreError, match="disk"):
            store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}))
    assert store.accept_totals("counted", *batch(0, {1: [1, 0, 0]}))
    store.close_ticks(store.find("counted"), 1, 0.0)
    assert released(store) == expected([[1, 0, 0]])


def test_postgresql_keeps_totals_too(postgres: Postgres, tmp_path: Path) -> None:
    place, head = postgres.fresh(), tmp_path / "head"
    store = Store(place, head=head)
    store.declare(DECLARATION, START, SECRET)
    store.accept_totals("counted", *batch(0, {1: [1, 0, 2], 300: [1, 0, 0]}))
    store.close()
    store = Store(place, head=head)
    assert not store.accept_totals("counted", *batch(0, {1: [1, 0, 2], 300: [1, 0, 0]}))
    store.close_ticks(store.find("counted"), 2, 0.0)
    assert released(store) == expected([[1, 0, 2], [0, 0, 0]])
    store.close()


def test_a_stream_that_counts_files_takes_no_batches(tmp_path: Path) -> None:
    """Its ticks are closed by runs of `evercount release --db`, which would lose what came from
    elsewhere."""
    store = Store(tmp_path / "store.db")
    live = store.declare(DECLARATION, START, SECRET, waits_for=FILES)
    with pytest.raises(Conflict, match="evercount release --db"):
        store.accept_totals("counted", *batch(0, {1: [1, 0, 0], 2: [0, 1, 0]}))
    assert not live.counted
    with pytest.raises(Conflict, match="evercount release --db"):
        FedStream(store, DECLARATION, START * SECOND).due(START * SECOND)
    store.close()
