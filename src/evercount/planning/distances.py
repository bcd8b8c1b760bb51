"""How far each mechanism is from the least error that any noise has for the same views and unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evercount._validate import aligned
from evercount.bounds.least_variance import least_variance
from evercount.engine.build import choose_engine, full_ticks, view_width
from evercount.engine.noise_choice import Candidate, candidates, choose_noise, in_one_tick
from evercount.engine.worst_errors import view_stds
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import BUILT_IN, FACTORIZATIONS, Dense
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.best_dense import Certificate
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.privacy import Budget
from evercount.queries import Count, Query


@lru_cache(maxsize=32)
def dense_optimum(
    widths: tuple[int | None, ...],
    ticks: int,
    q: int = 1,
    period: int | None = None,
    worst: bool = False,
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
        raise TooLarge(
            f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, {ticks} were "
            "asked for"
        )
    # row t adds up ticks 1 … t; of a view, the last `width` of them
    running = counting_matrix(ticks)
    views = [running if width is None else np.triu(running, 1 - width) for width in widths]
    return Dense.optimal(views, q, period, worst=worst)


@dataclass(frozen=True)
class Distance:
    """One mechanism, the worst std of each view, and how far it is from the least that noise can
    have."""

    name: str
    delta: float
    stds: tuple[float, ...]
    above: float
    """By what part its largest ratio, of a view's std to the certified least of the view alone, is
    above the certified least ratio: of Gaussian noise, and of noise of any law where δ = 0."""
    above_any: float
    """The same for noise of any law; NaN where nothing is known."""
    chosen: bool


@dataclass(frozen=True)
class AnyNoise:
    """What noise of any law needs for some views."""

    alone: tuple[float, ...]
    """No noise that is drawn without a look at the data has a smaller worst std of this view, even
    alone."""
    least_score: float
    """None has a smaller largest ratio of its stds to these."""

    def above(self, stds: Sequence[float]) -> float:
        """By what part the largest ratio of these stds is above the least."""
        return (
            max(own / least for own, least in zip(stds, self.alone, strict=True)) / self.least_score
            - 1
        )


def any_noise(
    budget: Budget, horizon: int | None, views: Sequence[str], query: Query | None = None
) -> AnyNoise | None:
    """What noise of any law needs; None without a horizon, and for queries in which an event
    changes several numbers.

    **Guarantee.** No data-independent noise that keeps the budget has less. Proof:
    `bounds/least_variance.proof.md`. Test:
    tests/bounds/test_least_variance.py::test_none_of_ours_is_below_what_any_noise_needs.
    """
    query = query or Count()
    change = _change_of_one_number(query, budget)
    if horizon is None or change is None:
        return None
    best = dense_optimum(tuple(map(view_width, views)), horizon, worst=True).certificate
    assert best is not None
    one = change * math.sqrt(least_variance(budget.epsilon, budget.delta))
    return AnyNoise(tuple(one * least for least in best.alone), best.least_score)


def _change_of_one_number(query: Query, budget: Budget) -> float | None:
    """The most that a unit changes one number in one tick; None where a unit may change several at
    once."""
    if not query.memoryless or query.people is not None or query.discovery is not None:
        return None
    squared = query.squared_sensitivity(budget.adjacency)
    try:
        total = query.l1_sensitivity(budget.adjacency)
    except ParameterError:
        return None
    if not math.isclose(total**2, squared, rel_tol=1e-9):
        return None
    return total * (budget.touched(1).per_tick or 1)


class Distances(NamedTuple):
    """Mechanisms, the nearest first, and what they are compared with."""

    mechanisms: list[Distance]
    optimum: Certificate
    unit: float  # the std that the errors of the optimum are multiples of; NaN for δ = 0


def distances(
    budget: Budget,
    horizon: int | None,
    views: Sequence[str],
    query: Query | None = None,
    own: Sequence[str] = (),
) -> Distances:
    """Every mechanism that may be chosen for these views, and `own` ones that are registered, next
    to the best that Gaussian noise can do. For δ = 0 `above` is `above_any`."""
    query = query or Count()
    names = tuple(views)
    if horizon is None or not query.memoryless:
        raise ParameterError(
            "the optimum needs a horizon and a query without memory: omit --optimal"
        )
    anyhow = any_noise(budget, horizon, names, query)
    if budget.pure and anyhow is None:
        raise ParameterError(
            "at delta=0 the least error is known where an event changes one number: give a delta, "
            "or omit --optimal"
        )
    q = full_ticks(query, budget, horizon)
    widths = tuple(map(view_width, names))
    if budget.pure:
        q = 1  # all that a unit does, in one tick
    span = None
    if not budget.pure:
        span = budget.touched(horizon).span
    best = dense_optimum(widths, horizon, q, span, True).certificate
    assert best is not None
    one = math.nan
    if not budget.pure:
        one = budget.noise_multiplier() * math.sqrt(in_one_tick(query, budget))
    chosen = choose_noise(query, budget, horizon, None, names)
    mechanisms = []
    engines = [choose_engine(query, budget, horizon, name, names) for name in own]
    registered = [
        Candidate(budget, each, view_stds(query, budget, horizon, each, names)) for each in engines
    ]
    for each in (*candidates(query, budget, horizon, names, margin=math.inf), *registered):
        above_any = math.nan
        if anyhow is not None:
            above_any = anyhow.above(each.stds)
        above = above_any
        if not budget.pure:
            ratio = max(
                std / (one * least) for std, least in zip(each.stds, best.alone, strict=True)
            )
            above = ratio / best.least_score - 1
        same = (each.engine.name, each.budget.delta) == (chosen[1].name, chosen[0].delta)
        mechanisms.append(
            Distance(each.engine.name, each.budget.delta, each.stds, above, above_any, same)
        )
    return Distances(sorted(mechanisms, key=lambda each: each.above), best, one)


def optimum_table(budget: Budget, horizon: int | None, views: Sequence[str], query: Query) -> str:
    """`distances` as a table for people, with the certified gap of the optimum itself."""
    own: list[str] = []
    if not budget.pure:
        own = sorted(FACTORIZATIONS.keys() - set(BUILT_IN))
    mechanisms, best, one = distances(budget, horizon, views, query, own)
    anyhow = any_noise(budget, horizon, views, query)
    delta = f"{budget.delta:g}"

    def row(name: str, promise: str, stds: Iterable[float], *above: float) -> list[str]:
        shares = ["" if math.isnan(share) else f"{share:.1%}" for share in above]
        return [name, promise, *(f"{std:.2f}" for std in stds), *shares]

    heads = ["above any noise"] if budget.pure else ["above Gaussian", "above any noise"]
    rows = [["worst std", "delta", *views, *heads]]
    if not budget.pure:
        gap = math.nan
        if anyhow is not None:
            gap = anyhow.above([one * error for error in best.errors])
        rows.append(
            row("best matrices found", delta, (one * error for error in best.errors), best.gap, gap)
        )
    for each in mechanisms:
        name = f"{each.name} (chosen)" if each.chosen else each.name
        above = [each.above_any] if budget.pure else [each.above, each.above_any]
        rows.append(row(name, f"{each.delta:g}", each.stds, *above))
    empty = [math.nan] * len(heads)
    notes = [
        (
            "least: certified for each view alone. above: of the certified least for the views "
            "together, at most."
        )
    ]
    if not budget.pure:
        rows.append(
            row("least of Gaussian noise", delta, (one * least for least in best.alone), *empty)
        )
    if anyhow is not None:
        rows.append(row("least of any noise", delta, anyhow.alone, *empty))
        notes.append("any noise: of any law, drawn without a look at the data; units in one tick.")
    return "\n".join([*aligned(rows), *notes])
