"""Rows with names that were read elsewhere: keys that nobody listed, and persons that are
counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals, NamedRows
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, ParameterError
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Store, named_events
from evercount.store.accept_totals import SourceBatch
from evercount.store.named_events import pack_rows, unpack_rows
from evercount.store.schema import counted_events
from store_reading import all_releases

SECRET = Secret.from_hex("6e" * 32)
TICKS = 4
Row = tuple[Any, ...]
"""Tick, name and numbers."""


def declared(
    query: Any, columns: dict[str, str], late: str = "next", **budget: Any
) -> StreamDeclaration:
    table = {
        "name": "named",
        "query": query,
        "budget": {"epsilon": 8.0, "delta": 0.01, **budget},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": TICKS,
        "late": late,
        "columns": {"time": "ts", **columns},
    }
    return StreamDeclaration.from_dict(table)


KEYS = declared({"name": "discovered-keys", "parameters": {"minimum": 2}}, {"key": "k"})
PERSONS = declared("active-users", {"user": "who"}, unit="user", max_ticks=2)


def batch(
    number: int, rows: list[Row], parts: int = 1, declaration: StreamDeclaration = KEYS
) -> tuple[SourceBatch, Arrivals]:
    """The rows in parts by ticks."""
    ticks = sorted({row[0] for row in rows})
    some = [[row for row in rows if row[0] in part] for part in np.array_split(ticks, parts)]
    named = [
        NamedRows(
            np.asarray([row[0] for row in one], np.int64),
            [row[1] for row in one],
            np.asarray([row[2:] for row in one], np.int64),
        )
        for one in some
        if one
    ]
    none = np.empty(0, np.int64)
    totals = TickTotals(1, 0, declaration.query.cells, none, none, none)
    return SourceBatch("q", number), Arrivals(totals, rows_with_names=iter(named))


def opened(path: Path, declaration: StreamDeclaration = KEYS) -> Store:
    store = Store(path / "store.db", bytes(range(32)))
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    return store


def by_library(declaration: StreamDeclaration, ticks: list[Any]) -> list[list[float]]:
    stream = declaration.build(secret=SECRET, replay=True)
    return [stream.step(tick).values.tolist() for tick in ticks]


def test_rows_survive_their_form() -> None:
    names = ["oslo", "", "süd\nwest", "\x00", "x" * 999]
    numbers = np.arange(15).reshape(5, 3) - 7
    found = unpack_rows(pack_rows(names, numbers))
    assert found[0] == names
    assert np.array_equal(found[1], numbers)


def test_keys_of_several_batches_and_of_the_service_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any parts, over a restart, ticks read one by one; a repeated batch is known, and a changed
    one refused."""
    monkeypatch.setattr(named_events, "BYTES_AT_A_TIME", 1)
    rows = [
        (tick, f"key {number}", tick * 20 + number) for tick in (1, 2, 4) for number in (2, 0, 1)
    ]
    store = opened(tmp_path)
    assert store.accept_totals("named", *batch(0, rows, parts=3))
    assert not store.accept_totals("named", *batch(0, rows[::-1], parts=2))
    with pytest.raises(Conflict, match="counted before with other events"):
        store.accept_totals("named", *batch(0, [*rows[:-1], (4, "key 1", 82)]))
    with pytest.raises(ParameterError, match="with their names where keys are not listed"):
        store.accept_totals("named", SourceBatch("q", 1), Arrivals(TickTotals.dense(1, [[1]])))
    assert b"key 0" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    store.accept(
        [read_batch(KEYS, b'[{"key": "key 1"}, {"key": "posted"}]')], KEYS.schedule.begin / 1e6
    )
    store.close()
    store = Store(tmp_path / "store.db", bytes(range(32)))
    assert store.accept_totals("named", *batch(1, [(1, "key 0", 5), (3, "lone", 1)]))
    live = store.find("named")
    while live.closed < TICKS:
        store.close_ticks(live, TICKS - live.closed, 0.0)
    found = [one["values"] for one in all_releases(store, "named")]
    with store.database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(counted_events)).scalar() == 0
    store.close()
    ticks: list[dict[str, int]] = [{}, {}, {"lone": 1}, {}]
    for tick, key, number in rows:
        ticks[tick - 1][key] = number
    ticks[0] = {"key 0": 25, "key 1": 22, "key 2": 22, "posted": 1}
    expected = by_library(KEYS, ticks)
    assert [[value for value in row if value is not None] for row in found] == expected
    assert len(expected[-1]) > 3


@pytest.mark.parametrize("late", ["next", "drop"])
def test_late_rows_follow_the_rule(tmp_path: Path, late: str) -> None:
    declaration = declared(
        {"name": "discovered-keys", "parameters": {"minimum": 2}}, {"key": "k"}, late
    )
    store = opened(tmp_path, declaration)
    store.accept_totals("named", *batch(0, [(1, "a", 50)]))
    store.close_ticks(store.find("named"), 2, 0.0)
    store.accept_totals(
        "named",
        *batch(1, [(1, "a", 7), (2, "b", 60), (2, "a", 2), (3, "a", 3), (4, "a", 4)], parts=2),
    )
    store.close_ticks(store.find("named"), 2, 0.0)
    found = [one["values"] for one in all_releases(store, "named")]
    store.close()
    third = {"a": 12, "b": 60} if late == "next" else {"a": 3}
    expected = by_library(declaration, [{"a": 50}, {}, third, {"a": 4}])
    assert [[value for value in row if value is not None] for row in found] == expected


def test_persons_count_once_a_tick_in_their_first_ticks(tmp_path: Path) -> None:
    store = opened(tmp_path, PERSONS)
    first = [(tick, who, 0, 0, 0) for tick, who in ((1, "ann"), (1, "bob"), (2, "ann"), (3, "ann"))]
    again = [(tick, who, 0, 0, 0) for tick, who in ((1, "ann"), (3, "bob"), (4, "cyd"))]
    for number, rows in enumerate((first, again)):
        assert store.accept_totals("named", *batch(number, rows, declaration=PERSONS))
    store.close_ticks(store.find("named"), TICKS, 0.0)
    found = [one["values"] for one in all_releases(store, "named")]
    store.close()
    totals = by_library(PERSONS, [["ann", "bob", "ann"], ["ann"], ["ann", "bob"], ["cyd"]])
    assert found == np.diff(totals, axis=0, prepend=0).tolist()
