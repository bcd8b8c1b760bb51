"""Attacks the declared sensitivity of any query over a small universe of events: all neighbours, or random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evercount._arrays import FloatArray
from evercount._validate import check_count
from evercount.audit.neighbours import (
    ABSENT,
    Stream,
    all_neighbours,
    count_pairs,
    random_neighbours,
    worst_pair,
)
from evercount.errors import ParameterError
from evercount.queries.base import Adjacency, Query

ENOUGH_PAIRS = 200_000
"""Up to this many pairs `check` tries all of them; above, it searches at random."""


class Factored(Protocol):
    """What the check needs of a factorization: (L, R) of the first ticks and the norm that it declares."""

    column_norm: float

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) of the first ticks."""


@dataclass(frozen=True)
class Verdict:
    """What `check` found.

    `found` is the largest Σ(P²+N²) among the pairs tried, or the largest ‖R(X−X′)‖² when a factorization was given.
    `claimed` is S, or c²·S. `exhaustive` tells whether all pairs of that universe and length were tried.
    """

    adjacency: Adjacency
    claimed: float
    found: float
    pair: tuple[Stream, Stream] | None
    tried: int
    exhaustive: bool

    @property
    def refuted(self) -> bool:
        """True when a pair beats the claim (beyond rounding)."""
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
    factorization: Factored | None = None,
    samples: int = 20_000,
    *,
    per_tick: int = 1,
    noop: Any = ABSENT,
    seed: int = 0,
    as_tick: Callable[[tuple[Any, ...]], Any] = list,
    progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Attack the declared S of any query by trying neighbouring streams over a finite universe of events.

    All pairs are tried when there are at most 200,000 of them, else `samples` random ones. A refutation is a proof: the
    pair is in the verdict. "Not refuted" is not a proof, only evidence for that universe and that many ticks.
    """
    ticks, per_tick = check_count("ticks", ticks), check_count("per_tick", per_tick)
    check_count("samples", samples)
    if not universe:
        raise ParameterError("the universe needs at least one event.")
    claimed = query.squared_sensitivity(adjacency)
    exhaustive = count_pairs(universe, ticks, adjacency, per_tick=per_tick) <= ENOUGH_PAIRS
    if exhaustive:
        pairs = all_neighbours(universe, ticks, adjacency, per_tick=per_tick, noop=noop)
    else:
        pairs = random_neighbours(universe, ticks, adjacency, samples, seed=seed, per_tick=per_tick, noop=noop)
    R = None if factorization is None else factorization.dense(ticks)[1]
    worst = worst_pair(query, pairs, R=R, exhaustive=exhaustive, as_tick=as_tick, progress=progress)
    if factorization is not None:
        claimed *= factorization.column_norm**2
    return Verdict(adjacency, claimed, worst.value, worst.pair, worst.tried, exhaustive)
