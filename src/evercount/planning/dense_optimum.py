"""The yardstick: how far each mechanism is from the least error that any factorization has for the same views and unit.

Errors are worst stds, as a stream's noise is chosen by them (`engine/noise_choice.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.build import choose_engine, full_ticks
from evercount.engine.noise_choice import Candidate, candidates, choose_noise, in_one_tick, view_stds
from evercount.engine.view_widths import view_width
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import BUILT_IN, FACTORIZATIONS, Dense
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.best_dense import Certificate
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.privacy import Budget
from evercount.queries import Count, Query
from evercount.text_rules import aligned


@lru_cache(maxsize=32)
def dense_optimum(
    widths: tuple[int | None, ...], ticks: int, q: int = 1, period: int | None = None, worst: bool = False
) -> Dense:
    """The optimum for views of these widths (1: per tick, 7: the last seven, None: running).

    Args:
        widths: One for each view.
        ticks: The horizon, at most 1024.
        q: The most ticks that a protected unit touches.
        period: Where these lie within so many consecutive ones.
        worst: Whether errors are those of a view's worst tick, or root mean squares over its ticks.

    Returns:
        The factorization, with its `certificate`.

    Raises:
        TooLarge: There are more ticks.

    >>> dense_optimum((1, None), 16).certificate.gap < 0.01
    True
    """
    if ticks > LARGEST_OPTIMAL_HORIZON:
        raise TooLarge(f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, {ticks} were asked for")
    return Dense.optimal([_view(width, ticks) for width in widths], q, period, worst=worst)


def _view(width: int | None, ticks: int) -> FloatArray:
    """The matrix whose row t adds up the last `width` ticks."""
    rows = counting_matrix(ticks)
    return rows if width is None else np.triu(rows, 1 - width)


@dataclass(frozen=True)
class Distance:
    """One mechanism, the worst std of each view, and how far it is from the least that Gaussian noise can have."""

    name: str
    delta: float
    stds: tuple[float, ...]
    above: float
    """By what part its largest ratio, of a view's std to the certified least of the view alone, is above the certified
    least ratio."""
    chosen: bool


def distances(
    budget: Budget, horizon: int | None, views: Sequence[str], query: Query | None = None, own: Sequence[str] = ()
) -> tuple[list[Distance], Certificate, float]:
    """Every mechanism that may be chosen for these views, and `own` ones that are registered, next to the best that
    Gaussian noise can do: (the mechanisms, the certificate of the optimum, the std that its errors are multiples of).
    """
    query, names = query or Count(), tuple(views)
    if budget.pure or horizon is None or not query.memoryless:
        raise ParameterError("the optimum needs delta > 0, a horizon and a query without memory: omit --optimal")
    q, widths = full_ticks(query, budget, horizon), tuple(map(view_width, names))
    best = dense_optimum(widths, horizon, q, budget.touched(horizon).span, True).certificate
    assert best is not None
    one = budget.noise_multiplier() * math.sqrt(in_one_tick(query, budget))
    chosen = choose_noise(query, budget, horizon, None, names)
    found = []
    engines = [choose_engine(query, budget, horizon, name, names) for name in own]
    registered = [Candidate(budget, each, view_stds(query, budget, horizon, each, list(widths))) for each in engines]
    for each in (*candidates(query, budget, horizon, names, margin=math.inf), *registered):
        ratio = max(std / (one * least) for std, least in zip(each.stds, best.alone, strict=True))
        same = (each.engine.name, each.budget.delta) == (chosen[1].name, chosen[0].delta)
        found.append(Distance(each.engine.name, each.budget.delta, each.stds, ratio / best.least_score - 1, same))
    return sorted(found, key=lambda each: each.above), best, one


def optimum_table(budget: Budget, horizon: int | None, views: Sequence[str], query: Query) -> str:
    """`distances` as a table for people, with the certified gap of the optimum itself."""
    found, best, one = distances(budget, horizon, views, query, sorted(FACTORIZATIONS.keys() - set(BUILT_IN)))
    found_best = [f"{one * own:.2f}" for own in best.errors]
    rows = [["worst std", "delta", *views, "above the least"]]
    rows.append(["best matrices found", f"{budget.delta:g}", *found_best, f"{best.gap:.1%}"])
    for each in found:
        name = f"{each.name} (chosen)" if each.chosen else each.name
        rows.append([name, f"{each.delta:g}", *(f"{std:.2f}" for std in each.stds), f"{each.above:.1%}"])
    told = "above the least: than any factorization with Gaussian noise can have, as is certified."
    return "\n".join([*aligned(rows), told])
