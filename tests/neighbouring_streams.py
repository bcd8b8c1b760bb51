"""Neighbouring streams over a finite universe of events, and how far apart a query puts them.

A stream is a tuple of ticks, a tick a tuple of events. Neighbours differ in one event (or in at
most `changed`): it is absent (add-remove; or it is `noop`, where that is given) or any other event
of the universe (replace), at its own place. For add-remove only pairs (longer, shorter) are made:
the norm below is symmetric.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_name
from evercount.errors import InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import Query

Stream = tuple[tuple[Any, ...], ...]
ABSENT: Final = object()
"""Default of `noop`: a removed event leaves nothing behind."""

MOST_REMEMBERED = 2**25
"""Increments that a search keeps in memory: a stream is the neighbour of many others."""


def change_norm(one: npt.ArrayLike, other: npt.ArrayLike, grid: float = 1.0) -> float:
    """Σ_cells (P² + N²) of the change between two encoded streams of shape (ticks, cells).

    P and N are the sums over ticks of the positive and of the negative parts of a cell's change.
    Its square root obeys the triangle inequality: see `queries/user_cap.proof.md`.
    """
    change = _change(one, other)
    positive = np.maximum(change, 0.0).sum(axis=0)
    negative = np.maximum(-change, 0.0).sum(axis=0)
    return float((positive**2 + negative**2).sum()) * grid**2


def factored_norm(
    R: FloatArray, one: npt.ArrayLike, other: npt.ArrayLike, grid: float = 1.0
) -> float:
    """‖R(X−X′)‖_F² of two encoded streams of shape (ticks, cells)."""
    change = _change(one, other)
    return float(np.square(np.asarray(R)[:, : len(change)] @ change).sum()) * grid**2


def _change(one: npt.ArrayLike, other: npt.ArrayLike) -> FloatArray:
    first, second = np.atleast_2d(np.asarray(one)), np.atleast_2d(np.asarray(other))
    if first.shape != second.shape:
        raise ParameterError(
            f"the two streams have different shapes, {first.shape} and {second.shape}."
        )
    change: FloatArray = (second - first).astype(np.float64)
    return change


def all_streams(universe: Sequence[Any], ticks: int, per_tick: int = 1) -> Iterator[Stream]:
    """Every stream of `ticks` ticks with exactly `per_tick` events each."""
    for events in product(universe, repeat=ticks * per_tick):
        yield tuple(events[i : i + per_tick] for i in range(0, ticks * per_tick, per_tick))


def neighbours_of(
    stream: Stream,
    universe: Sequence[Any],
    adjacency: Adjacency,
    *,
    noop: Any = ABSENT,
    changed: int = 1,
) -> Iterator[Stream]:
    """Every neighbour of one stream that differs in exactly `changed` events."""
    _check(adjacency)
    places = [(tick, place) for tick, events in enumerate(stream) for place in range(len(events))]
    for chosen in combinations(places, changed):
        if adjacency == "add-remove":
            yield _edited(stream, dict.fromkeys(chosen, noop))
            continue
        options = [
            [event for event in universe if not _same(event, stream[t][i])] for t, i in chosen
        ]
        for events in product(*options):
            yield _edited(stream, dict(zip(chosen, events, strict=True)))


def all_neighbours(
    universe: Sequence[Any],
    ticks: int,
    adjacency: Adjacency,
    *,
    per_tick: int = 1,
    noop: Any = ABSENT,
    changed: int = 1,
) -> Iterator[tuple[Stream, Stream]]:
    """Every neighbouring pair of streams with `per_tick` events in each tick (of the longer
    stream)."""
    for stream in all_streams(universe, ticks, per_tick):
        for neighbour in neighbours_of(stream, universe, adjacency, noop=noop, changed=changed):
            yield stream, neighbour


def random_neighbours(
    universe: Sequence[Any],
    ticks: int,
    adjacency: Adjacency,
    samples: int,
    *,
    seed: int = 0,
    per_tick: int = 1,
    noop: Any = ABSENT,
    changed: int = 1,
) -> Iterator[tuple[Stream, Stream]]:
    """`samples` random pairs, biased towards the repetitive streams that make large changes.

    Each stream draws its own small part of the universe and its own period, so that constant and
    periodic streams come up as often as irregular ones.
    """
    _check(adjacency)
    draw = random.Random(seed)  # a search, no noise: any seed is good
    places = [(tick, place) for tick in range(ticks) for place in range(per_tick)]
    for _ in range(samples):
        part = draw.sample(list(universe), draw.randint(1, len(universe)))
        period = draw.choice((1, 2, 3, len(places)))
        pattern = [draw.choice(part) for _ in range(period)]
        flip = draw.choice((0.0, 0.1, 0.5))
        events = [
            draw.choice(universe) if draw.random() < flip else pattern[i % period]
            for i in range(len(places))
        ]
        stream = tuple(tuple(events[t * per_tick : (t + 1) * per_tick]) for t in range(ticks))
        chosen = draw.sample(places, min(changed, len(places)))
        if adjacency == "add-remove":
            yield stream, _edited(stream, dict.fromkeys(chosen, noop))
        else:
            edits = {}
            for t, i in chosen:
                others = [event for event in universe if not _same(event, stream[t][i])]
                if others:
                    edits[t, i] = draw.choice(others)
            yield stream, _edited(stream, edits)


def _same(one: Any, other: Any) -> bool:
    """Whether two events are equal; arrays are told apart by identity."""
    try:
        return bool(one is other or one == other)
    except ValueError:
        return False


def _edited(stream: Stream, edits: dict[tuple[int, int], Any]) -> Stream:
    ticks = []
    for tick, events in enumerate(stream):
        edited = [edits.get((tick, place), event) for place, event in enumerate(events)]
        ticks.append(tuple(event for event in edited if event is not ABSENT))
    return tuple(ticks)


def _check(adjacency: Adjacency) -> None:
    check_name("adjacency", adjacency, ("add-remove", "replace"))


# -- the search ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worst:
    """The pair with the largest change among those tried, and that change in real units squared."""

    value: float
    pair: tuple[Stream, Stream] | None
    tried: int
    exhaustive: bool


def count_pairs(
    universe: Sequence[Any], ticks: int, adjacency: Adjacency, *, per_tick: int = 1
) -> int:
    """How many pairs `all_neighbours` makes."""
    _check(adjacency)
    places = ticks * per_tick
    ways = 1 if adjacency == "add-remove" else len(universe) - 1
    return int(len(universe) ** places * places * ways)


def worst_pair(
    query: Query,
    pairs: Iterator[tuple[Stream, Stream]],
    *,
    R: FloatArray | None = None,
    exhaustive: bool = False,
    as_tick: Callable[[tuple[Any, ...]], Any] = list,
    progress: Callable[[int], None] | None = None,
) -> Worst:
    """The pair with the largest Σ(P²+N²), or with the largest ‖R(X−X′)‖² when R is given.

    `as_tick` turns a tuple of events into what the query takes as a tick. Pairs with a stream that
    the query refuses are skipped: they are not legal neighbours. `progress` is called with the
    number of pairs done so far.
    """
    encoded: dict[Hashable, tuple[Stream, IntArray | None]] = {}

    def encode(stream: Stream) -> IntArray | None:
        # the stream is kept, so that no object takes another's id
        key = tuple(tuple(map(id, tick)) for tick in stream)
        if key not in encoded:
            if len(encoded) * len(stream) * query.cells > MOST_REMEMBERED:
                encoded.clear()
            try:
                encoded[key] = (
                    stream,
                    query.encode_run(query.initial_state(), [as_tick(t) for t in stream])[0],
                )
            except InputError:
                encoded[key] = stream, None
        return encoded[key][1]

    value, best, tried = 0.0, None, 0
    for one, other in pairs:
        tried += 1
        if progress is not None:
            progress(tried)
        first, second = encode(one), encode(other)
        if first is None or second is None:
            continue
        grid = query.grid
        norm = (
            change_norm(first, second, grid) if R is None else factored_norm(R, first, second, grid)
        )
        if norm > value:
            value, best = norm, (one, other)
    return Worst(value, best, tried, exhaustive)
