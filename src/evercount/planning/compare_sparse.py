"""Plans for rare events: the sparse counter next to plain counters."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from evercount.bounds.tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS, pure_factorization
from evercount.planning.compare import BETA, compared_ticks, plan
from evercount.privacy import Budget
from evercount.sparse.budget_split import plan_sparse
from evercount.sparse.sparse_plan import SparsePlan, named_radius

ONES = tuple(digit * 10**power for power in range(6) for digit in (1, 3))
"""Numbers of events at which a sparse counter is compared."""


@dataclass(frozen=True)
class SparseComparison:
    """A sparse counter next to the plain ones. Every bound holds for all ticks together with
    probability 95 %."""

    split: SparsePlan  # how a counter by partition shares ε, with its thresholds and segments
    # over how many ticks bounds are compared: the horizon, or those that were asked for where there
    # is none
    ticks: int
    method: str  # what a `SparseCount` of these parameters does: it takes the least of the bounds
    # of the partition into segments with at most `max_ones` events; None where that is unknown
    bound: float | None
    plain: dict[str, float]  # bounds of plain counters by mechanism, least first
    ones: list[int]
    bounds: list[float]
    """Of the sparse counter, for each of `ones`: promised as max_ones, or (max_ones unknown) come
    so far."""
    wins: tuple[int, int] | None
    """The first and the last of `ones` for which the sparse counter has the least bound; None: for
    none of them."""

    @property
    def best_plain(self) -> float:
        """The bound that a sparse counter must beat."""
        return min(self.plain.values())

    def to_dict(self) -> dict[str, Any]:
        return {"query": "sparse-count", "guarantee": self.split.sentence(), **asdict(self)}


def plan_sparse_count(
    budget: Budget,
    horizon: int | None,
    max_ones: int | None = None,
    *,
    names: tuple[str, ...] | None = None,
    ticks: int | None = None,
) -> SparseComparison:
    """`SparseCount` next to the plain counters for this budget and horizon: proved simultaneous
    bounds of all of them.

    Without a horizon all are compared over `ticks` ticks, 2^20 by default; thresholds are then
    those of tick 1.

    Plain counters: as `plan` states them, for δ = 0 by the tails of each tick's own coefficients,
    as the sparse counter's own (`bounds/tails.py`).
    """
    if budget.adjacency != "add-remove" or budget.unit != "event":
        raise ParameterError(
            "sparse-count protects one event more or less: adjacency add-remove and unit event"
        )
    if budget.calibration != "tight":
        raise ParameterError(
            f"sparse-count has tight noise only, got calibration {budget.calibration!r}"
        )
    span = compared_ticks(horizon, ticks)
    split = plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, BETA, "partition")
    plain = _plain_counters(budget, horizon, span, names)

    def sparse(ones: int) -> float:
        if max_ones is None:
            return split.bound(ones, span)
        promised = plan_sparse(budget.epsilon, horizon, budget.delta, ones, BETA, "partition")
        return promised.bound_without_promise(ticks=span)

    bounds = [sparse(ones) for ones in ONES]
    rivals = [min(*plain.values(), math.inf if max_ones is None else ones / 2) for ones in ONES]
    least = [ones for ones, bound, rival in zip(ONES, bounds, rivals, strict=True) if bound < rival]
    return SparseComparison(
        split,
        ticks=span,
        method=plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, BETA).method,
        bound=None if max_ones is None else split.bound_without_promise(ticks=span),
        plain=dict(sorted(plain.items(), key=lambda item: item[1])),
        ones=list(ONES),
        bounds=bounds,
        wins=(least[0], least[-1]) if least else None,
    )


def _plain_counters(
    budget: Budget, horizon: int | None, ticks: int, names: tuple[str, ...] | None
) -> dict[str, float]:
    """Bound the errors of the counters without partition, over these ticks together."""
    if not budget.pure:
        compared = plan(budget, horizon, names=names, ticks=ticks if horizon is None else None)
        return {row.name: row.simultaneous for row in compared.rows}
    if horizon is not None:
        return {name: named_radius(name, horizon, budget.epsilon, BETA) for name in names or PURE}
    return {
        name: simultaneous_radius(pure_factorization(name, None), budget.epsilon, BETA, ticks)
        for name in names or PURE_ENDLESS
    }
