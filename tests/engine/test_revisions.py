"""Revised days: every neighbour of small streams, through the code that releases, against the norm
of the noise."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from conftest import ROOT_SECRET
from evercount import (
    ActiveUsers,
    Average,
    Budget,
    Count,
    DiscoveredKeys,
    Histogram,
    Secret,
    Stream,
    Sum,
)
from evercount.engine import state, user_counting
from evercount.engine.build import squared_norm
from evercount.engine.revisions import check_revised, day_budget
from evercount.errors import InputError, ParameterError
from soak_cases import soak_except
from wrapped_functions import wrap

LAGS, DAYS = 3, 3
TICKS = DAYS + LAGS - 1
SECRET = Secret.from_hex(ROOT_SECRET)
EVENT = Budget(1.0, 1e-6)
REPLACE = Budget(1.0, 1e-6, adjacency="replace")
PERSON = Budget(1.0, 1e-6, unit="user", max_events=4, max_per_tick=2, period=1)


def ticks_of(events: dict[tuple[int, int], list[Any]]) -> list[list[Any]]:
    """The ticks of a stream with these events by (day, lag)."""
    return [
        [events.get((tick - lag, lag), []) for lag in range(LAGS)] for tick in range(1, TICKS + 1)
    ]


def squared_distance(
    query: Any, ours: dict[Any, Any], theirs: dict[Any, Any], known: dict[str, Any] | None = None
) -> float:
    """‖R(X−X′)‖² of two data sets: what they publish with the same noise differs by L of that, day
    by day.

    `known` are the rows of data sets that came before.
    """
    known, rows = {} if known is None else known, []
    engine = Stream(
        query, EVENT, None, "balanced", secret=SECRET, replay=True, revise_for=LAGS - 1
    ).factorization
    for events in (ours, theirs):
        if repr(events) not in known:
            stream = Stream(
                query, EVENT, None, "balanced", secret=SECRET, replay=True, revise_for=LAGS - 1
            )
            known[repr(events)] = np.nan_to_num(stream.run(ticks_of(events)).rows)
        rows.append(known[repr(events)])
    return norm_of(rows[0] - rows[1], engine)


def norm_of(difference: Any, engine: Any) -> float:
    """The squared norm before L, day by day."""
    apart, left = difference.reshape(TICKS, LAGS, -1), engine.dense(LAGS)[0]
    total = 0.0
    for day in range(1, TICKS + 1):
        seen = np.stack([apart[day + lag - 1, lag] for lag in range(LAGS) if day + lag <= TICKS])
        total += float((np.linalg.solve(left[: len(seen), : len(seen)], seen) ** 2).sum())
    return total


def neighbours(query: Any, budget: Budget) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """Pairs that differ in one event, or in what is counted of one person on one day; everything
    else is full."""
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
    known: dict[str, Any] = {}
    return max(
        squared_distance(query, *named(query, pair), known) for pair in neighbours(query, budget)
    )


@pytest.mark.parametrize("name", CASES)
def test_no_neighbours_beat_one_day(name: str) -> None:
    query, budget = CASES[name]
    engine = Stream(query, day_budget(budget), LAGS, "balanced").factorization
    norm = squared_norm(engine, query, day_budget(budget), LAGS)
    assert 0.8 * norm < worst(query, budget) <= norm * (1 + 1e-9)


def test_planted_rules_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps that are forgotten with the tick, and a day that comes back after its last lag, beat the
    norm."""
    query, budget = CASES["persons"]
    engine = Stream(query, day_budget(budget), LAGS, "balanced").factorization
    base = {(day, lag): [0.0] for day in range(1, DAYS + 1) for lag in range(LAGS)}
    fresh_caps = base | {(1, lag): [1.0, 1.0] for lag in range(LAGS)}  # two at each lag, six in all
    assert squared_distance(query, base, fresh_caps) > squared_norm(
        engine, query, day_budget(budget), LAGS
    )

    def wrapped(right: Any, before: Any, increments: Any, lags: int) -> Any:
        sums, cells = increments.copy(), len(before) // lags
        for row in sums:
            row += np.roll(before, cells)  # the oldest day becomes the new one
            before = row
        return (sums, before.copy()) if lags > 1 else right(before, increments, lags)

    wrap(monkeypatch, state, "_add_up", wrapped)
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
    for budget in (
        Budget(1.0, 1e-6, unit="user", max_events=3),
        Budget(1.0, 0, unit="user", max_events=3, period=7),
    ):
        with pytest.raises(ParameterError, match="on one day"):
            day_budget(budget)
        with pytest.raises(ParameterError, match="on one day"):
            Stream(Count(), budget, revise_for=2)


# -- persons, through the code that caps them ------------------------------------------------------

OTHERS = {(day, lag): [("b", 1)] for day in range(1, DAYS + 1) for lag in range(LAGS)}
Named = dict[tuple[int, int], list[tuple[str, int]]]


def rows_of_persons(budget: Budget, events: Named) -> Any:
    stream = Stream(
        Count(), budget, None, "balanced", secret=SECRET, replay=True, revise_for=LAGS - 1
    )
    ticks = [
        [events.get((tick - lag, lag), []) for lag in range(LAGS)] for tick in range(1, TICKS + 1)
    ]
    numbers = [[[number for _, number in part] for part in lags] for lags in ticks]
    users = [[[user for user, _ in part] for part in lags] for lags in ticks]
    return np.nan_to_num(stream.run(numbers, users).rows)


def worst_person(budget: Budget, counted: Any = None) -> float:
    """The most that the events of one person on one day change, whatever comes: none, one or three
    at each lag.

    No cap lets more than two of a tick count: three are as many as two, and beyond the cap.
    ‖R(X−X′)‖² of raw data sets: evercount itself caps what persons have.
    """
    found, day = 0.0, 2
    base = OTHERS | {
        place: [*events, ("a", 1)] for place, events in OTHERS.items() if place[0] != day
    }
    engine = Stream(
        Count(), budget, None, "balanced", secret=SECRET, replay=True, revise_for=LAGS - 1
    ).factorization
    without = rows_of_persons(budget, base)
    for counts in counted or product(*[(0, 1, 3)] * LAGS):
        mine = {
            (day, lag): OTHERS[day, lag] + [("a", 1)] * count for lag, count in enumerate(counts)
        }
        found = max(found, norm_of(without - rows_of_persons(budget, base | mine), engine))
    return found


CAPPED = {
    "four of a day, two of a tick": PERSON,
    "two of a day": Budget(1.0, 1e-6, unit="user", max_events=2, period=1),
    "one of a tick": Budget(1.0, 1e-6, unit="user", max_per_tick=1, period=1),
    "one tick of a day": Budget(1.0, 1e-6, unit="user", max_per_tick=2, max_ticks=1, period=1),
}


@pytest.mark.parametrize(
    "name", soak_except(["four of a day, two of a tick", "one tick of a day"], CAPPED)
)
def test_no_persons_beat_one_day(name: str) -> None:
    budget = CAPPED[name]
    engine = Stream(Count(), day_budget(budget), LAGS, "balanced").factorization
    norm = squared_norm(engine, Count(), day_budget(budget), LAGS)
    assert 0.8 * norm < worst_person(budget) <= norm * (1 + 1e-9)


def test_caps_that_forget_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day whose users are forgotten when a tick closes, and a cap that does not know the day,
    beat the norm."""
    engine = Stream(Count(), day_budget(PERSON), LAGS, "balanced").factorization
    norm = squared_norm(engine, Count(), day_budget(PERSON), LAGS)
    with monkeypatch.context() as planted:
        planted.setattr(user_counting, "users_after", lambda known, tick, lags: {})
        assert worst_person(PERSON, [(2, 2, 2)]) > norm
    right = user_counting.users_after
    with monkeypatch.context() as planted:
        planted.setattr(
            user_counting, "users_after", lambda known, tick, lags: right(known, tick, lags - 1)
        )
        assert worst_person(PERSON, [(2, 2, 2)]) > norm


def test_users_are_known_until_the_last_lag_and_no_longer() -> None:
    stream = Stream(Count(), PERSON, revise_for=LAGS - 1)
    stream.step([[1, 1]], users=[["a", "b"]])
    stream.step([[], [1]], users=[[], ["a"]])
    assert sorted(stream.dump()["users"]) == ["1 a", "1 b"]
    again = Stream.restore(stream.snapshot())
    stream.close()
    again.step([[1]], users=[["c"]])  # the last lag of the first day
    assert sorted(again.dump()["users"]) == ["3 c"]
    assert (
        "for one tick (evercount counts at most its first 2 events that come in one tick"
        in again.guarantee
    )


def test_a_promise_of_the_caller_is_refused() -> None:
    stream = Stream(Count(), PERSON, revise_for=2)
    with pytest.raises(ParameterError, match="lag by lag"):
        stream.step([3], capped=True)
    with pytest.raises(InputError, match="a list of lists"):
        stream.step([[1], [1]], users=[["a"]])
