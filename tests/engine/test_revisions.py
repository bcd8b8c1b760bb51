"""Revised days: every neighbour of small streams, through the code that releases, against the norm of the noise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from conftest import ROOT_SECRET
from evercount import ActiveUsers, Average, Budget, Count, DiscoveredKeys, Histogram, Secret, Stream, Sum
from evercount.engine import state
from evercount.engine.build import squared_norm
from evercount.engine.revised_query import check_revised
from evercount.engine.revisions import day_budget
from evercount.errors import ParameterError

LAGS, DAYS = 3, 3
TICKS = DAYS + LAGS - 1
SECRET = Secret.from_hex(ROOT_SECRET)
EVENT = Budget(1.0, 1e-6)
REPLACE = Budget(1.0, 1e-6, adjacency="replace")
PERSON = Budget(1.0, 1e-6, unit="user", max_events=4, max_per_tick=2, period=1)


def ticks_of(events: dict[tuple[int, int], list[Any]]) -> list[list[Any]]:
    """The ticks of a stream with these events by (day, lag)."""
    return [[events.get((tick - lag, lag), []) for lag in range(LAGS)] for tick in range(1, TICKS + 1)]


def squared_distance(query: Any, ours: dict[Any, Any], theirs: dict[Any, Any]) -> float:
    """‖R(X−X′)‖² of two data sets: what they publish with the same noise differs by L of that, day by day."""
    rows = []
    for events in (ours, theirs):
        stream = Stream(query, EVENT, None, "balanced", secret=SECRET, replay=True, revise_for=LAGS - 1)
        rows.append(np.nan_to_num(stream.run(ticks_of(events)).rows))
    apart = (rows[0] - rows[1]).reshape(TICKS, LAGS, -1)
    left = stream.factorization.dense(LAGS)[0]
    total = 0.0
    for day in range(1, TICKS + 1):
        seen = np.stack([apart[day + lag - 1, lag] for lag in range(LAGS) if day + lag <= TICKS])
        total += float((np.linalg.solve(left[: len(seen), : len(seen)], seen) ** 2).sum())
    return total


def neighbours(query: Any, budget: Budget) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Pairs that differ in one event, or in what is counted of one person on one day; everything else is full."""
    base = {(day, lag): [0, 1] for day in range(1, DAYS + 1) for lag in range(LAGS)}
    if budget.unit == "user":
        for day, *counts in product((1, 2), *[range(3)] * LAGS):
            if 0 < sum(counts) <= 4:
                extra = {(day, lag): [0, 1] + [0] * count for lag, count in enumerate(counts)}
                yield base, base | extra
        return
    for place in base:
        if budget.adjacency == "replace":
            yield base | {place: [0, 1, 0]}, base | {place: [0, 1, 1]}
        else:
            yield base, base | {place: [0, 1, 1]}


CASES = {
    "events": (Histogram(["0", "1"]), EVENT),
    "replaced events": (Histogram(["0", "1"]), REPLACE),
    "sums": (Sum(0, 1), EVENT),
    "persons": (Sum(-1, 1), PERSON),
}


def named(query: Any, pair: tuple[dict[Any, Any], dict[Any, Any]]) -> list[dict[Any, Any]]:
    """Events as the query takes them."""
    name = str if query.name == "histogram" else (lambda number: 1 if number == 0 else number)
    return [{place: list(map(name, events)) for place, events in one.items()} for one in pair]


def worst(query: Any, budget: Budget) -> float:
    return max(squared_distance(query, *named(query, pair)) for pair in neighbours(query, budget))


@pytest.mark.parametrize("name", CASES)
def test_no_neighbours_beat_one_day(name: str) -> None:
    query, budget = CASES[name]
    engine = Stream(query, day_budget(budget), LAGS, "balanced").factorization
    norm = squared_norm(engine, query, day_budget(budget), LAGS)
    assert 0.8 * norm < worst(query, budget) <= norm * (1 + 1e-9)


def test_planted_rules_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps that are forgotten with the tick, and a day that comes back after its last lag, beat the norm."""
    query, budget = CASES["persons"]
    engine = Stream(query, day_budget(budget), LAGS, "balanced").factorization
    base = {(day, lag): [0.0] for day in range(1, DAYS + 1) for lag in range(LAGS)}
    fresh_caps = base | {(1, lag): [1.0, 1.0] for lag in range(LAGS)}  # two at each lag, six in all
    assert squared_distance(query, base, fresh_caps) > squared_norm(engine, query, day_budget(budget), LAGS)

    right = state._add_up

    def wrapped(before: Any, increments: Any, lags: int) -> Any:
        sums, cells = increments.copy(), len(before) // lags
        for row in sums:
            row += np.roll(before, cells)  # the oldest day becomes the new one
            before = row
        return (sums, before.copy()) if lags > 1 else right(before, increments, lags)

    monkeypatch.setattr(state, "_add_up", wrapped)
    query, budget = CASES["events"]
    engine = Stream(query, budget, LAGS, "balanced").factorization
    assert worst(query, budget) > squared_norm(engine, query, budget, LAGS)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (ActiveUsers(), "who sent them"),
        (DiscoveredKeys(), "list the keys"),
        (Average(0, 1, per="event"), "the sum and the count"),
    ],
)
def test_what_cannot_be_revised_is_refused(query: Any, why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        check_revised(query)


def test_units_over_several_days_are_refused() -> None:
    for budget in (Budget(1.0, 1e-6, unit="user", max_events=3), Budget(1.0, 0, unit="user", max_events=3, period=7)):
        with pytest.raises(ParameterError, match="on one day"):
            day_budget(budget)
        with pytest.raises(ParameterError, match="protects single events"):
            Stream(Count(), budget, revise_for=2)
