"""Attacks the declared sensitivity of any query over a small universe of events: all neighbours, or random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, get_args

import numpy as np

from evercount._validate import check_count, check_name
from evercount.audit.pair_search import SQUARES, Pair, PairSearch
from evercount.audit.universes import Universe
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.queries.base import Adjacency, Query

ENOUGH_PAIRS = 200_000  # up to this many pairs `check` tries all of them; above, it searches at random
ABSENT: Final = object()  # default of `noop`: a removed event leaves nothing behind


@dataclass(frozen=True)
class Verdict:
    """What `check` found.

    `found` is the largest Σ(P²+N²) among the pairs tried, or the largest ‖R(X−X′)‖² when a factorization was given.
    `claimed` is S, or c²·S. `exhaustive` tells whether all pairs of that universe and length were tried.
    """

    adjacency: Adjacency
    claimed: float
    found: float
    pair: Pair | None
    tried: int
    exhaustive: bool

    @property
    def refuted(self) -> bool:
        return self.found > self.claimed * (1 + 1e-9)

    def __str__(self) -> str:
        how = "all" if self.exhaustive else "random"
        word = "REFUTED" if self.refuted else "not refuted"
        return f"{word}: largest found {self.found:g}, claimed {self.claimed:g} ({how} {self.tried:,} pairs)"


def check(
    query: Query,
    universe: Sequence[Any],
    ticks: int,
    adjacency: Adjacency,
    factorization: Factorization | None = None,
    samples: int = 20_000,
    *,
    per_tick: int = 1,
    noop: Any = ABSENT,
    seed: int = 0,
    as_tick: Callable[[Sequence[Any]], Any] = list,
) -> Verdict:
    """Attack the declared S of any query by trying neighbouring streams over a finite universe of events.

    Every tick has `per_tick` events. A neighbour lacks one event (or has `noop` in its place), or has another event
    there (replace). All pairs are tried when there are at most 200,000 of them, else `samples` of a random search. A
    refutation is a proof: the pair is in the verdict. "Not refuted" is not a proof, only evidence for that universe and
    that many ticks.
    """
    check_name("adjacency", adjacency, get_args(Adjacency))
    ticks, samples = check_count("ticks", ticks), check_count("samples", samples)
    if not universe:
        raise ParameterError("the universe needs at least one event.")
    world = _Ticks.of(universe, check_count("per_tick", per_tick), noop, as_tick)
    R = np.eye(ticks) if factorization is None else factorization.dense(ticks)[1]
    search = PairSearch(query, world, adjacency, ticks, ticks, {"R": R}, random.Random(seed))
    exhaustive = search.enumerate(ENOUGH_PAIRS)
    if not exhaustive:
        search.climb(samples, None)
    judge, norm = (SQUARES, 1.0) if factorization is None else (0, factorization.column_norm)
    claimed = query.squared_sensitivity(adjacency) * norm**2
    return Verdict(adjacency, claimed, search.largest[judge], search.worst[judge], search.pairs, exhaustive)


@dataclass(frozen=True)
class _Ticks(Universe):
    """An event of this universe is a whole tick: the numbers of its events. Neighbours differ in one of these."""

    known: int = 0

    @classmethod
    def of(cls, events: Sequence[Any], per_tick: int, noop: Any, as_tick: Callable[[Sequence[Any]], Any]) -> _Ticks:
        full = tuple(product(range(len(events)), repeat=per_tick))
        gone = () if noop is ABSENT else (len(events),)
        shorter = tuple({((*tick[:at], *gone, *tick[at + 1 :]),) for tick in full for at in range(per_tick)})
        every = [*events, noop]

        def read(step: Sequence[Any]) -> Any:
            return as_tick([every[number] for tick in step for number in tick])

        return cls(full, shorter, merge=False, tick=read, known=len(events))

    def alternatives(self, event: Any, adjacency: str) -> list[tuple[Any, ...]]:
        gone = () if len(self.absent[0][0]) < len(event) else (self.known,)
        others = [gone] if adjacency == "add-remove" else [(number,) for number in range(self.known)]
        edits = [(*event[:at], *other, *event[at + 1 :]) for at in range(len(event)) for other in others]
        return [(tick,) for tick in dict.fromkeys(edits) if tick != event]
