"""Which noise a stream gets: the candidate with the least error for the views that it publishes.

A view is a sum over ticks: `running` (all so far), `per-tick` (the last one) or `last-7` (the last seven). The choice
is made from public numbers only: query, budget, horizon and views.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from evercount.bounds import nuclear_lower
from evercount.engine.build import Spec, choose_engine, full_ticks, make_noise
from evercount.engine.error_model import ErrorModel
from evercount.engine.view_widths import RUNNING, Names, view_width
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_base import PureFactorization
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.factorizations.view_norms import worst_view
from evercount.mechanisms import Noise
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query

BEST = "best"
MARGIN = 1.4
"""How much better Laplace noise must be to be chosen where δ > 0: pure streams over the same events add up in full."""
TIE = 1.005
"""Errors within this factor are the same: the simpler noise is taken."""
REFERENCE_TICKS = 2**20
"""Ticks over which streams without a horizon are compared."""
NOTHING = Secret.from_hex("00" * 32)
"""Nothing is drawn from it."""


def check_noise_for(query: Query, views: Iterable[str]) -> Names:
    """The views that noise is chosen for, each once; refused where the query has no such views."""
    if isinstance(views, str) or not isinstance(views, Iterable):
        raise ParameterError(f'views is a list of names such as ["per-tick", "last-7", "running"], got {views!r:.80}')
    names = tuple(dict.fromkeys(views)) or (RUNNING,)
    for name in names:
        if view_width(name) is not None:
            query.publishing.check_views(f"view {name!r}: ")
    return names


Choice = tuple[Budget, Factorization]
"""The budget that a stream keeps, and the factorization that it runs on."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One mechanism, the budget that it keeps (δ = 0 for Laplace noise) and the worst std of each view."""

    budget: Budget
    engine: Factorization
    stds: tuple[float, ...]

    def score(self, least: tuple[float, ...]) -> float:
        """The largest std of a view over the least that this view can have alone."""
        return max(own / best for own, best in zip(self.stds, least, strict=True))


def pure_budget(budget: Budget) -> Budget:
    """The same ε with δ = 0: a stronger promise."""
    return replace(budget, delta=0.0, calibration="tight")


def choose_noise(
    query: Query, budget: Budget, horizon: int | None, name: Spec | Factorization | None, views: Names
) -> Choice:
    """The budget and the factorization that a stream runs on.

    Without a name it is the candidate whose largest std over views, each in units of the least that this view can have
    alone, is smallest: Laplace noise always where δ = 0, and for δ > 0 where it is better by more than `MARGIN`. "best"
    does without that margin. Laplace noise has a budget with δ = 0: that is what it promises and what a ledger is
    asked for.

    >>> from evercount import Budget, Count
    >>> choose_noise(Count(), Budget(1.0, 1e-6), 365, None, ("running",))[1].name
    'balanced'
    >>> budget, engine = choose_noise(Count(), Budget(1.0, 1e-6), 365, None, ("per-tick",))
    >>> budget.delta, engine.name
    (0.0, 'fresh')
    """
    if name is not None and name != BEST:
        budget = pure_budget(budget) if isinstance(name, str) and is_pure_name(name) and not budget.pure else budget
        return budget, choose_engine(query, budget, horizon, name, views)
    if name is None and views == (RUNNING,) and full_ticks(query, budget, horizon) == 1:
        return budget, choose_engine(query, budget, horizon, None, views)
    if name is None and (known := _stored.get()) is not None and known[0] == (query, budget, horizon, views):
        return known[1]
    return _least_error(query, budget, horizon, views, 1.0 if name == BEST else MARGIN)


_stored: ContextVar[tuple[object, Choice] | None] = ContextVar("stored noise", default=None)


def remember_blend(query: Query, budget: Budget, horizon: int | None, views: Names, spec: Spec) -> None:
    """Where the same is asked for again in this context, it gets the stored numbers: fits for persons take seconds."""
    _stored.set(((query, budget, horizon, views), (budget, choose_engine(query, budget, horizon, spec, views))))


@lru_cache(maxsize=256)
def _least_error(query: Query, budget: Budget, horizon: int | None, views: Names, margin: float) -> Choice:
    found = candidates(query, budget, horizon, views, margin)
    if views == (RUNNING,) and margin == MARGIN:  # running totals alone keep the noise of their budget
        found = tuple(one for one in found if one.budget.pure == budget.pure)
    if not found:
        return budget, choose_engine(query, budget, horizon, None, views)
    least = least_alone(query, budget, horizon, views, found)
    best = min(one.score(least) for one in found)
    simplest = sorted(found, key=lambda one: one.engine.name != "fresh")  # no state and no horizon
    chosen = next(one for one in simplest if one.score(least) <= TIE * best)
    if chosen.budget.pure and not budget.pure:
        gaussian = min((one for one in found if not one.budget.pure), key=lambda one: one.score(least), default=chosen)
        chosen = gaussian if gaussian.score(least) <= margin * chosen.score(least) else chosen
    return chosen.budget, chosen.engine


@lru_cache(maxsize=64)
def candidates(
    query: Query, budget: Budget, horizon: int | None, views: Names, margin: float = 1.0
) -> tuple[Candidate, ...]:
    """The mechanisms that may be chosen for these views, with their errors.

    A blend, which takes seconds to fit, is left out where no Gaussian noise at all can be within `margin` of what is
    there: a number of some ticks has at least the std of noise for one tick, a running total that of the nuclear norm.
    """
    found: list[Candidate] = []
    widths = [view_width(view) for view in views]
    for own in [budget] if budget.pure else [pure_budget(budget), budget]:
        for name in _names(own.pure, horizon, widths, full_ticks(query, own, horizon)):
            if name == "blend" and found:
                one = own.noise_multiplier() * math.sqrt(in_one_tick(query, own))
                floor = [one * (1.0 if width else float(nuclear_lower(horizon or REFERENCE_TICKS))) for width in widths]
                least = tuple(min(stds) for stds in zip(*(each.stds for each in found), strict=True))
                if Candidate(own, found[0].engine, tuple(floor)).score(least) > margin * min(
                    each.score(least) for each in found
                ):
                    continue
            # a query may lack what a kind of noise needs: an l1 sensitivity, cells without names
            with suppress(ParameterError):
                engine = choose_engine(query, own, horizon, name, views)
                found.append(Candidate(own, engine, view_stds(query, own, horizon, engine, widths)))
    return tuple(found)


def least_alone(
    query: Query, budget: Budget, horizon: int | None, views: Names, found: tuple[Candidate, ...]
) -> tuple[float, ...]:
    """The least worst std that each view can have, in a mechanism that serves it alone."""
    together = [min(stds) for stds in zip(*(one.stds for one in found), strict=True)]
    if len(views) == 1:
        return (together[0],)
    alone = [
        min((one.stds[0] for one in candidates(query, budget, horizon, (view,))), default=math.inf) for view in views
    ]
    return tuple(map(min, together, alone))


def in_one_tick(query: Query, budget: Budget) -> float:
    """The square of what a unit changes in one tick; no noise is for less."""
    if budget.unit == "user" and query.people is not None:
        return query.people.user_sensitivity(budget.adjacency)
    return query.squared_sensitivity(budget.adjacency) * (budget.touched(1).per_tick or 1) ** 2


def _names(pure: bool, horizon: int | None, widths: list[int | None], touched: int) -> list[str | None]:
    """The candidates by name; None stands for the default of running totals."""
    if widths == [None] and (pure or touched == 1):
        return [None]
    if widths == [1]:
        return ["fresh"]  # the least error for one tick that any noise has
    names: list[str | None] = [None, "fresh"]
    if not pure and horizon != 1:
        names.append("blend")
    if len(widths) == 1 and widths[0] is not None and widths[0] > 1:
        names.append(f"pure-window-{widths[0]}" if pure else f"periods-{widths[0]}")
    return names


def planned_errors(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization, views: Names = (RUNNING,)
) -> tuple[ErrorModel, Noise]:
    """The errors and the noise of a stream before it is built; nothing is drawn."""
    noise = make_noise(query, engine, budget, horizon, views=views, secret=NOTHING)
    return ErrorModel(query, engine, noise.sigma, noise.stream.rounded), noise


def view_stds(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization, widths: list[int | None]
) -> tuple[float, ...]:
    """The worst std of each view with exact noise."""
    model, _ = planned_errors(query, budget, horizon, engine)
    return tuple(worst_std(model, width, horizon or REFERENCE_TICKS) for width in widths)


def worst_std(model: ErrorModel, width: int | None, last: int) -> float:
    """The largest std of a view of this width over the first `last` ticks."""
    engine = model.factorization
    if width is None and isinstance(engine, PureFactorization) and (ticks := engine.suspects(last)):
        return float(model.std(np.asarray(ticks)).max())
    tick, _ = worst_view(engine, width, last)
    return float(model.std(np.asarray([tick]), width).max())
