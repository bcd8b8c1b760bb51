"""plan for rare events: the sparse counter beside plain counters, and where it wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evercount._validate import chance_outside
from evercount.bounds.laplace_tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS, pure_factorization
from evercount.planning.compare import compared_ticks, plan
from evercount.privacy import Budget
from evercount.sparse.budget_split import plain_bound, plan_sparse
from evercount.sparse.sparse_plan import SparsePlan

ONES = tuple(digit * 10**power for power in range(6) for digit in (1, 3))
"""Numbers of events at which a sparse counter is compared."""


@dataclass(frozen=True)
class SparseComparison:
    """A sparse counter beside the plain ones. Every bound holds for all ticks together with chance `level`."""

    split: SparsePlan  # how a counter by partition shares ε, with its thresholds and segments
    ticks: int  # over how many ticks bounds are compared: the horizon, or those that were asked for where there is none
    method: str  # what a `SparseCount` of these parameters does: it takes the least of the bounds
    level: float
    bound: float | None  # of the partition into segments with at most `max_ones` events; None where that is unknown
    plain: dict[str, float]  # bounds of plain counters by mechanism, least first
    ones: list[int]
    bounds: list[float]
    """Of the sparse counter, for each of `ones`: promised as max_ones, or (max_ones unknown) come so far."""
    wins: tuple[int, int] | None
    """From and up to about how many events the sparse counter has the least bound; None: never among `ones`."""

    @property
    def best_plain(self) -> float:
        """The bound that a sparse counter must beat."""
        return min(self.plain.values())

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `curve` has one entry for each number of events."""
        split, plain = self.split, self.best_plain
        known = {"epsilon": split.epsilon, "delta": split.delta, "horizon": split.horizon, "max_ones": split.max_ones}
        shares = {"threshold_epsilon": split.threshold_epsilon, "tick_epsilon": split.tick_epsilon}
        shares["counter_epsilon"] = split.counter_epsilon
        segments = {"threshold": split.threshold, "spread": split.spread, "segments": split.segments}
        bounds = {"bound": self.bound, "plain": self.plain, "wins": self.wins, "level": self.level}
        curve = [
            # publishing max_ones/2 for ever needs no data
            {"ones": s, "sparse": bound, "plain": plain, "constant": None if split.max_ones is None else s / 2}
            for s, bound in zip(self.ones, self.bounds, strict=True)
        ]
        told = {"ticks": self.ticks, "method": self.method, "guarantee": split.sentence()}
        return {"query": "sparse-count", **known, **told, **shares, **segments, **bounds, "curve": curve}


def plan_sparse_count(
    budget: Budget,
    horizon: int | None,
    max_ones: int | None = None,
    *,
    names: tuple[str, ...] | None = None,
    ticks: int | None = None,
    level: float = 0.95,
) -> SparseComparison:
    """`SparseCount` beside the plain counters for this budget and horizon: proved simultaneous bounds of all of them.

    Without a horizon all are compared over `ticks` ticks, 2^20 by default; thresholds are then those of tick 1.

    Plain counters: as `plan` states them, for δ = 0 by the tails of each tick's own coefficients, as the sparse
    counter's own (`bounds/laplace_tails.py`).
    """
    if budget.adjacency != "add-remove" or budget.unit != "event":
        raise ParameterError("sparse-count protects one event more or less: adjacency add-remove and unit event")
    if budget.calibration != "tight":
        raise ParameterError(f"sparse-count has tight noise only, got calibration {budget.calibration!r}")
    beta, span = chance_outside(level), compared_ticks(horizon, ticks)
    split = plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, beta, "partition")
    plain = _plain_counters(budget, horizon, span, names, level)

    def sparse(ones: int) -> float:
        if max_ones is None:
            return split.bound(ones, span)
        promised = plan_sparse(budget.epsilon, horizon, budget.delta, ones, beta, "partition")
        return promised.bound_without_promise(ticks=span)

    def beats(ones: int) -> bool:
        rival = min(plain.values()) if max_ones is None else min(*plain.values(), ones / 2)
        return sparse(ones) < rival

    return SparseComparison(
        split,
        ticks=span,
        method=plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, beta).method,
        level=level,
        bound=None if max_ones is None else split.bound_without_promise(ticks=span),
        plain=dict(sorted(plain.items(), key=lambda item: item[1])),
        ones=list(ONES),
        bounds=[sparse(s) for s in ONES],
        wins=_winning_range(beats),
    )


def _plain_counters(
    budget: Budget, horizon: int | None, ticks: int, names: tuple[str, ...] | None, level: float
) -> dict[str, float]:
    """Simultaneous bounds over these ticks of the counters without partition."""
    if not budget.pure:
        compared = plan(budget, horizon, names=names, ticks=ticks if horizon is None else None, level=level)
        return {row.name: row.simultaneous for row in compared.rows}
    beta = chance_outside(level)
    if horizon is not None:
        return {name: plain_bound(budget.epsilon, horizon, 0.0, beta, name) for name in names or PURE}
    return {
        name: simultaneous_radius(pure_factorization(name, None), budget.epsilon, beta, ticks)
        for name in names or PURE_ENDLESS
    }


def _winning_range(beats: Callable[[int], bool]) -> tuple[int, int] | None:
    """(first, last) of ONES where `beats` holds, both refined to two digits; between them it is taken to hold."""
    good = [i for i, s in enumerate(ONES) if beats(s)]
    if not good:
        return None

    def edge(inside: int, outside: int) -> int:
        while abs(outside - inside) > max(1, min(inside, outside) // 20):
            middle = (inside + outside) // 2
            inside, outside = (middle, outside) if beats(middle) else (inside, middle)
        return inside

    low, high = good[0], good[-1]
    first = edge(ONES[low], ONES[low - 1]) if low else ONES[0]
    last = edge(ONES[high], ONES[high + 1]) if high + 1 < len(ONES) else ONES[-1]
    return first, last
