"""Neighbouring streams of T ticks, from the words of the guarantee (`privacy/guarantee_text.py`)
and from nothing else.

Queries are asked only to count (`encode`). Their claims, those of budgets and the caps of streams
are not looked at: what a budget protects is enumerated here once more, in plain Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.sensitivity import audit_sensitivity
from evercount.audit.universes import Universe, universe
from evercount.privacy import Budget
from evercount.queries.base import Query
from product_internals import takes_keys

T = 4
MOST_PAIRS = 600  # of queries with a memory: all, where these are enough
MOST_EVENTS = 3  # of one id whose events are counted apart: one more than any cap here lets through
Row = tuple[str, Any]  # the id of a user, and the event
Rows = tuple[tuple[Row, ...], ...]  # of each tick
Pair = tuple[Rows, Rows]
QUIET: Rows = ((),) * T


@dataclass(frozen=True)
class Reach:
    """How far apart neighbours are."""

    norm: Callable[[FloatArray], float]
    """The largest ‖R·D‖² for a matrix R."""
    l1: float
    pair: Pair | None  # one that differs much, where events are rows of users


def reach_of(query: Query, budget: Budget) -> Reach:
    """How far apart the budget's neighbours are, in real units, after its caps."""
    return _reach(query, replace(budget, epsilon=1.0, delta=1e-6, calibration="tight"))


@cache
def _reach(query: Query, budget: Budget) -> Reach:
    users = budget.unit == "user"
    if (users and query.people is not None) or query.memoryless:
        return _of_pairs(query, budget, [*_neighbours(query, budget)])
    changed = _events_of_unit(budget) if users else 1

    def audit(right: FloatArray) -> Any:
        return audit_sensitivity(
            query, right, budget.adjacency, T, events_of(query), budget=MOST_PAIRS, changed=changed
        )

    l1 = audit(np.eye(T)).l1
    return Reach(
        lambda right: float(audit(right).findings[0].found), 0.0 if l1 is None else l1.found, None
    )


def _events_of_unit(budget: Budget) -> int:
    """How many events of one id count at most, in one period: in a stream of T ticks with one event
    in each."""
    ticks = min(T, budget.period if isinstance(budget.period, int) else T, budget.max_ticks or T)
    return min(ticks * (budget.max_per_tick or T), budget.max_events or T, T)


def events_of(query: Query) -> Universe:
    return Universe((0, 1, 2)) if query.name == "prefix" else universe(query)


def _of_pairs(query: Query, budget: Budget, pairs: Sequence[Pair]) -> Reach:
    encoded: dict[Rows, FloatArray] = {}
    for rows in dict.fromkeys(rows for pair in pairs for rows in pair):
        encoded[rows] = increments(query, budget, rows)
    changes = np.stack([encoded[one] - encoded[other] for one, other in pairs])
    apart = np.abs(changes).sum(axis=(1, 2))
    different = np.unique(changes, axis=0)

    def norm(right: FloatArray) -> float:
        images = np.einsum("st,ptc->psc", right, different)
        return float(np.square(images).sum(axis=(1, 2)).max())

    return Reach(norm, float(apart.max()), pairs[int(apart.argmax())])


# -- what is counted -------------------------------------------------------------------------------


def increments(query: Query, budget: Budget, rows: Rows) -> FloatArray:
    """What each tick adds, in real units, shape (T, cells)."""
    ticks = [ticks_of(query, tick) for tick in capped(budget, rows)]
    known = (
        query
        if query.discovery is None
        else query.discovery.with_known_keys(events_of(query).events)
    )
    made: FloatArray = known.encode_run(known.initial_state(), ticks)[0] * known.grid
    return made


def ticks_of(query: Query, tick: Sequence[Row]) -> Any:
    """A tick as the query reads it."""
    if query.people is not None:
        return [(user, event) if takes_keys(query) else user for user, event in tick]
    events = [event for _, event in tick]
    return len(events) if query.event_number is not None else events_of(query).tick(events)


def capped(budget: Budget, rows: Rows) -> Rows:
    """Of each user and period the first ticks in which they have an event, the first events there,
    the first in all."""
    came: dict[tuple[str, int], list[int]] = {}
    in_tick, in_all = Counter[Any](), Counter[Any]()
    kept = []
    for number, tick in enumerate(rows):
        counted = []
        for user, event in tick:
            unit = user, number // (budget.period if isinstance(budget.period, int) else T)
            ticks = came.setdefault(unit, [])
            if number not in ticks:
                ticks.append(number)
            if budget.max_ticks is not None and number not in ticks[: budget.max_ticks]:
                continue
            if budget.max_per_tick is not None and in_tick[unit, number] >= budget.max_per_tick:
                continue
            if budget.max_events is not None and in_all[unit] >= budget.max_events:
                continue
            in_tick[unit, number] += 1
            in_all[unit] += 1
            counted.append((user, event))
        kept.append(tuple(counted))
    return tuple(kept)


# -- who are neighbours ----------------------------------------------------------------------------


def _neighbours(query: Query, budget: Budget) -> Iterator[Pair]:
    if budget.unit == "event":
        return _of_events(query, budget.adjacency == "replace")
    if query.people is not None:
        return _of_ids(query, budget)
    return _of_places(query, budget)


def _of_events(query: Query, replaced: bool) -> Iterator[Pair]:
    """One event is absent, or another one in its place. What came before in its tick may matter:
    other events."""
    rows = _rows_of_events(query)
    around = [(), *((row,) for row in rows)] if query.whole_ticks else [()]
    for tick, before, after, row in product(range(T), around, around, rows):
        full = _at(tick, (*before, row, *after))
        if not replaced:
            yield full, _at(tick, (*before, *after))
        for other in rows if replaced else ():
            yield full, _at(tick, (*before, other, *after))


def _of_places(query: Query, budget: Budget) -> Iterator[Pair]:
    """Everything of one id in one period is absent, or each of its events any other one in its
    place."""
    events = [event for _, event in _rows_of_events(query)]
    for inside in _periods(budget):
        for numbers in product(range(3), repeat=len(inside)):
            if not 0 < sum(numbers) <= MOST_EVENTS:
                continue
            made = [
                _placed(inside, numbers, chosen) for chosen in product(events, repeat=sum(numbers))
            ]
            yield from product(made, [QUIET] if budget.adjacency == "add-remove" else made)


def _placed(inside: range, numbers: Sequence[int], chosen: Sequence[Any]) -> Rows:
    rest = iter(chosen)
    number_in = dict(zip(inside, numbers, strict=True))
    return tuple(
        tuple(("u", next(rest)) for _ in range(number_in.get(tick, 0))) for tick in range(T)
    )


def _of_ids(query: Query, budget: Budget) -> Iterator[Pair]:
    """Everything under one id in one period is absent, or anything under one id that occurs nowhere
    else."""
    contents = [None, *dict.fromkeys(event for _, event in _rows_of_events(query))]
    own = [*_histories("u", contents, range(T))]
    for inside in _periods(budget):
        others: list[Rows] = [QUIET]
        if budget.adjacency == "replace":
            others = [*_histories("w", contents, inside)]
        for full in own:
            rest = [() if tick in inside else full[tick] for tick in range(T)]
            for other in others:
                yield full, tuple((*rest[tick], *other[tick]) for tick in range(T))


def _histories(user: str, contents: Sequence[Any], inside: range) -> Iterator[Rows]:
    for chosen in product(contents, repeat=len(inside)):
        event_in = dict(zip(inside, chosen, strict=True))
        yield tuple(
            () if event_in.get(tick) is None else ((user, event_in[tick]),) for tick in range(T)
        )


def _periods(budget: Budget) -> list[range]:
    length = budget.period if isinstance(budget.period, int) else T
    return [range(begin, min(begin + length, T)) for begin in range(0, T, length)]


def _at(tick: int, rows: tuple[Row, ...]) -> Rows:
    return tuple(rows if number == tick else () for number in range(T))


def _rows_of_events(query: Query) -> list[Row]:
    """Events with the users that have them: those whom they name, or one."""
    # there is one kind of event: replaced by another one it is the same
    if query.event_number is not None:
        return [("u", 1)]
    events = [event for event in events_of(query).events if event != ()]
    if query.people is None:
        ends = events if len(events) <= 3 else [events[0], events[1], events[-1]]
        return [("u", event) for event in ends]
    if not takes_keys(query):
        return [(user, "") for user in ("u", "v")]
    names = query.people._legal
    return [(user, key) for user in ("u", "v") for key in names]
