"""plan_views: which error will each view have? The candidates for a stream's noise, and the one that is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from evercount.engine.noise_choice import candidates, check_noise_for, choose_noise
from evercount.factorizations import check_horizon
from evercount.privacy import Budget
from evercount.queries import Count, Query


@dataclass(frozen=True)
class ViewRow:
    """One mechanism.

    Args:
        name: the factorization.
        delta: δ of its promise: 0 for Laplace noise, whatever was asked for.
        stds: the worst std of each view.
        twice: the ε of two such streams over the same events together.
        chosen: whether a stream with these views runs on it.
    """

    name: str
    delta: float
    stds: dict[str, float]
    twice: float
    chosen: bool


@dataclass(frozen=True)
class ViewPlan:
    """The rows, the chosen one first. Printed, it is a table.

    Args:
        query: the query, as text.
        epsilon: the budget.
        delta: the budget.
        horizon: the number of ticks, or None: then over 2^20 ticks.
        rows: one for each mechanism.
    """

    query: str
    epsilon: float
    delta: float
    horizon: int | None
    rows: list[ViewRow]

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable.

        Returns:
            The facts by name.
        """
        return asdict(self)

    def __str__(self) -> str:
        views = list(self.rows[0].stds)
        table = [["noise", "delta", *views, "twice: epsilon"]]
        for row in self.rows:
            name = f"{row.name} (chosen)" if row.chosen else row.name
            stds = [f"{row.stds[view]:,.2f}" for view in views]
            table.append([name, f"{row.delta:g}", *stds, f"{row.twice:.2f}"])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(
                text.rjust(width) if place else text.ljust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in table
        )


def plan_views(budget: Budget, horizon: int | None, views: Iterable[str], query: Query | None = None) -> ViewPlan:
    """The worst std of each view with every noise that may be chosen for these views.

    Args:
        budget: the promise.
        horizon: the number of ticks, or None.
        views: "running", "per-tick", "last-7".
        query: what is asked; a `Count` if omitted.

    Returns:
        The candidates, the chosen one first.

    Raises:
        ParameterError: there is no such view, or the query has none.

    >>> from evercount import Budget
    >>> print(plan_views(Budget(1.0, 0.0), 365, ["per-tick", "running"]))
    noise           delta  per-tick  running  twice: epsilon
    fresh (chosen)      0      1.36    25.92            2.00
    bridge              0      5.94    10.31            2.00
    """
    query, horizon = query or Count(), check_horizon(horizon, unbounded=True)
    names = check_noise_for(query, views)
    query = query.for_views(names)
    kept, engine = choose_noise(query, budget, horizon, None, names)
    rows = []
    for one in candidates(query, budget, horizon, names, margin=math.inf):
        mine = one.budget.pure == kept.pure and one.engine.name == engine.name
        twice = (
            2 * budget.epsilon if one.budget.pure else Budget.from_mu(math.sqrt(2) * budget.mu, budget.delta).epsilon
        )
        stds = dict(zip(names, one.stds, strict=True))
        rows.append(ViewRow(one.engine.name, one.budget.delta, stds, twice, mine))
    rows.sort(key=lambda row: (not row.chosen, max(row.stds.values())))
    return ViewPlan(repr(query), budget.epsilon, budget.delta, horizon, rows)
