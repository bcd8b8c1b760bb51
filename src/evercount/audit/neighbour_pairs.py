"""Neighbouring data for replays: the worst pairs that the sensitivity search finds, and random ones
by hypothesis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice, product
from typing import Any, Protocol

import numpy as np

from evercount.audit.replay import Data, Pair, Program
from evercount.audit.sensitivity import audit_sensitivity
from evercount.audit.universes import Universe
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.sensitivities import bounded

SEARCHED = 4000  # pairs that the sensitivity search tries
CHANGED = "changed user"


class Audited(Program, Protocol):
    """A program together with the legal events of its data, from which neighbours are made."""

    universe: Universe


def worst_pairs(program: Audited, query: Query, ticks: int, searched: int = SEARCHED) -> list[Pair]:
    """The pairs that the sensitivity search finds worst, for R of the program's noise and for
    Σ(P² + N²), as data of its budget's unit."""
    claim = program.claim(ticks)
    events = program.universe
    budget = claim.budget
    if query.people is not None and budget.unit == "user":
        return named_user_pairs(events, budget, ticks)
    # R = L⁺·M: the search needs the direction of the worst change only
    right = np.linalg.pinv(claim.left) @ np.tril(np.ones((ticks, ticks)))
    report = audit_sensitivity(query, right, budget.adjacency, ticks, events, budget=searched)
    candidates = [finding.pair for finding in report.findings] + [report.pair]
    pairs = []
    for pair in candidates:
        if pair is not None:
            one, other = (tuple(as_events(tick) for tick in data) for data in pair)
            if budget.unit == "event":
                pairs.append((one, other))
            else:
                pairs += [as_user(one, other, budget, spread) for spread in (False, True)]
    if budget.adjacency == "replace" and budget.unit == "event":
        quiet = ((),) * (ticks - 1)
        pairs += [((one, *quiet), (other, *quiet)) for one, other in events.replaced_ticks]
    return [pair for number, pair in enumerate(pairs) if pair not in pairs[:number]]


def named_user_pairs(events: Universe, budget: Budget, ticks: int) -> list[Pair]:
    """Pairs that differ in all events of one user, for queries whose events name their users."""
    # The user comes under every key: in one tick, in every tick, and one key after the other. For
    # replaced users somebody else, whom no other event names, comes in their place under the keys
    # in the opposite order.
    first = user_of(events.events[0])
    own = tuple(event for event in events.events if user_of(event) == first)
    rest = tuple(event for event in events.events if user_of(event) != first)
    shapes = [
        [own if tick == 0 else () for tick in range(ticks)],
        [own for _ in range(ticks)],
        [(own[tick % len(own)],) for tick in range(ticks)],
    ]
    pairs = []
    for shape, others in product(shapes, ((), rest)):
        instead: list[tuple[Any, ...]] = [()] * ticks
        if budget.adjacency == "replace":
            instead = [_rename(tick[::-1]) for tick in shape]
        one, other = (tuple((*others, *tick) for tick in side) for side in (shape, instead))
        pairs.append((one, other))
    return pairs


def user_of(event: Any) -> Any:
    if isinstance(event, tuple):
        return event[0]
    return event


def _rename(events: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((CHANGED, *event[1:]) if isinstance(event, tuple) else CHANGED for event in events)


def as_events(tick: Any) -> tuple[Any, ...]:
    """The single events of a tick of the sensitivity search; a number n stands for n events of
    value 1."""
    if isinstance(tick, int):
        return (1,) * tick
    return tuple(tick)


def as_user(one: Data, other: Data, budget: Budget, spread: bool = False) -> Pair:
    """The pair with a user in place of the changed event, with twice the allowed number of
    events."""
    # They come in the tick of the changed event, or in turn in it and all later ones (`spread`).
    # The program must drop the excess. Everybody else is a user with one event.
    first = next(tick for tick, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    removed_events = _difference(one[first], other[first])
    added_events: tuple[Any, ...] = ()
    if budget.adjacency == "replace":
        added_events = _difference(other[first], one[first])
    common = (*one[:first], _difference(one[first], removed_events), *one[first + 1 :])
    end = first + 1
    if spread:
        end = len(one)
        if budget.period_ticks is not None:
            end = min(end, (first // budget.period_ticks + 1) * budget.period_ticks)
    ticks = range(first, end)
    places = list(islice(cycle(ticks), 2 * bounded("events", budget, len(one))))

    def side(own: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for number, tick in enumerate(common):
            others = ((f"user {number} {place}", event) for place, event in enumerate(tick))
            yield (*others, *((CHANGED, event) for event in own * places.count(number)))

    return tuple(side(removed_events)), tuple(side(added_events))


def _difference(longer: tuple[Any, ...], shorter: tuple[Any, ...]) -> tuple[Any, ...]:
    """List the events of one tick that another one lacks."""
    others = list(shorter)
    difference = []
    for event in longer:
        if event in others:
            others.remove(event)
        else:
            difference.append(event)
    return tuple(difference)


def neighbours(events: Universe, budget: Budget, ticks: int) -> Any:
    """A hypothesis strategy of neighbouring data over this universe, for the budget's adjacency and
    unit."""
    from hypothesis import strategies as st

    number = st.integers(0, ticks - 1)
    most = 1
    if budget.unit == "user":  # more than the cap allows
        most = bounded("events", budget, ticks) + 3

    @st.composite
    def pairs(draw: Any) -> Pair:
        # the changed events first and the others around them: then hypothesis can drop the others
        # one by one
        event = st.sampled_from(events.events)
        changed = draw(st.lists(event, min_size=1, max_size=most, unique=events.distinct))
        instead = [draw(st.sampled_from(_alternatives(item, events, budget))) for item in changed]
        others = draw(st.lists(event, max_size=3 * ticks, unique=events.distinct))
        if events.distinct:
            others = [item for item in others if item not in changed]
        if not events.merge:
            others = others[: ticks - 1]
            changed = changed[:1]
            instead = instead[:1]
            others += [events.events[0]] * (ticks - 1 - len(others))
            at = draw(number)
            places = [tick for tick in range(ticks) if tick != at] + [at]
        else:
            places = [draw(number) for _ in others + changed]
        own = [False] * len(others) + [True] * len(changed)
        sides = ([(item,) for item in others + changed], [*((item,) for item in others), *instead])
        order = sorted(range(len(places)), key=lambda place: (places[place], draw(st.booleans())))

        def ticks_of(steps: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
            for tick in range(ticks):
                items = [
                    (place, item)
                    for place in order
                    if places[place] == tick
                    for item in steps[place]
                ]
                if budget.unit == "event":
                    yield tuple(item for _, item in items)
                else:
                    yield tuple(
                        (CHANGED if own[place] else f"user {place}", item) for place, item in items
                    )

        return tuple(ticks_of(sides[0])), tuple(ticks_of(sides[1]))

    return pairs()


def _alternatives(event: Any, events: Universe, budget: Budget) -> list[tuple[Any, ...]]:
    """List what may stand in place of an event. A user's replaced events stay events: the cap
    counts them."""
    steps = events.alternatives(event, budget.adjacency)
    if budget.adjacency == "replace" and budget.unit == "user":
        steps = [step for step in steps if len(step) == 1 and step[0] in events.events]
    return steps or [(event,)]
