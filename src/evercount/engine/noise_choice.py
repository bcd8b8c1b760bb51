"""Which noise a stream gets.

The candidate with the least error for the views that a stream publishes is taken. A view is a sum
over ticks: `running` (all so far), `per-tick` (the last one) or `last-7` (the last seven). The
choice is made from public numbers only: query, budget, horizon and views.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from evercount.bounds import nuclear_lower
from evercount.engine.build import (
    RUNNING,
    Decayed,
    Names,
    Spec,
    check_blend,
    choose_engine,
    fitted_width,
    full_ticks,
    view_weighting,
)
from evercount.engine.weighted_errors import check_decays, check_weighted
from evercount.engine.worst_errors import REFERENCE_TICKS, view_stds
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import Factorization
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.factorizations.terrace import NAME as TERRACE
from evercount.privacy import Budget
from evercount.queries.base import Query

MOST_VIEWS = 32
"""Views of one stream: for each the noise is fitted once more, and each makes every fit longer."""
BEST = "best"
MARGIN = 1.4
"""How much better Laplace noise must be to be chosen where δ > 0: pure streams over the same events
add up in full."""
TIE = 1.005
"""Errors within this factor are the same: the simpler noise is taken."""


def check_noise_for(query: Query, views: Iterable[str]) -> Names:
    """The views that noise is chosen for, each once; refused where the query has no such views."""
    if isinstance(views, str) or not isinstance(views, Iterable):
        raise ParameterError(
            f'views is a list of names such as ["per-tick", "last-7", "running"], got {views!r:.80}'
        )
    names = tuple(dict.fromkeys(views)) or (RUNNING,)
    for name in names:
        weighting = view_weighting(name)
        if weighting is not None:
            query.publishing.check_views(f"view {name!r}: ")
        if isinstance(weighting, Decayed):
            check_weighted(query)
    return names


def check_view_count(views: Collection[str]) -> None:
    """Refuse more views than a stream may have; what was chosen before is not chosen again."""
    if len(views) > MOST_VIEWS:
        raise TooLarge(
            f"a stream has at most {MOST_VIEWS} views, and {len(views)} are named: name the most "
            "important"
        )


Choice = tuple[Budget, Factorization]
"""The budget that a stream keeps, and the factorization that it runs on."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One mechanism, the budget that it keeps (δ = 0 for Laplace noise) and the worst std of each
    view."""

    budget: Budget
    engine: Factorization
    stds: tuple[float, ...]

    def score(self, least: tuple[float, ...]) -> float:
        """The largest std of a view over the least that this view can have alone."""
        return max(own / best for own, best in zip(self.stds, least, strict=True))


def pure_budget(budget: Budget) -> Budget:
    """The same ε with δ = 0: a stronger promise."""
    return replace(budget, delta=0.0, calibration="tight")


def kept_budget(budget: Budget, name: Spec | Factorization) -> Budget:
    """The budget that a stream keeps on this noise: with δ = 0 on Laplace noise."""
    if budget.pure or isinstance(name, Factorization):
        return budget
    named = name.get("name") if isinstance(name, Mapping) else name
    if isinstance(named, str) and is_pure_name(named):
        return pure_budget(budget)
    return budget


def choose_noise(
    query: Query,
    budget: Budget,
    horizon: int | None,
    name: Spec | Factorization | None,
    views: Names,
) -> Choice:
    """The budget and the factorization that a stream runs on.

    Without a name it is the candidate whose largest std over views, each in units of the least that
    this view can have alone, is smallest: Laplace noise always where δ = 0, and for δ > 0 where it
    is better by more than `MARGIN`. "best" does without that margin. Laplace noise has a budget
    with δ = 0: that is what it promises and what a ledger is asked for.

    >>> from evercount import Budget, Count
    >>> choose_noise(Count(), Budget(1.0, 1e-6), 365, None, ("running",))[1].name
    'balanced'
    >>> budget, engine = choose_noise(Count(), Budget(1.0, 1e-6), 365, None, ("per-tick",))
    >>> budget.delta, engine.name
    (0.0, 'fresh')
    """
    check_decays(views, horizon)
    if name in (None, BEST, "blend"):
        check_view_count(views)
    if name is not None and name != BEST:
        budget = kept_budget(budget, name)
        return budget, choose_engine(query, budget, horizon, name, views)
    return _least_error(query, budget, horizon, views, 1.0 if name == BEST else MARGIN)


FITTED = ("blend", TERRACE)
"""Noise that is fitted to the views; of all other the worst std of a view is the same, whatever
else is published."""


def check_named_noise(
    query: Query, budget: Budget, horizon: int | None, name: Spec | None, views: Names
) -> None:
    """Refuse what `choose_noise` would refuse, as far as that is known before anything is chosen or
    fitted."""
    if name in (None, BEST, "blend"):
        check_view_count(views)
    if name == "blend":
        check_blend(budget)
    elif name not in (None, BEST, *FITTED):
        choose_noise(query, budget, horizon, name, views)


@lru_cache(maxsize=256)
def _least_error(
    query: Query, budget: Budget, horizon: int | None, views: Names, margin: float
) -> Choice:
    """Choose the candidate of least error; Gaussian noise where it is within `margin` of Laplace
    noise."""
    rivals = candidates(query, budget, horizon, views, margin)
    if not rivals:
        return budget, choose_engine(query, budget, horizon, None, views)
    least = least_alone(query, budget, horizon, views, rivals)
    best = min(one.score(least) for one in rivals)
    simplest = sorted(rivals, key=lambda one: one.engine.name != "fresh")  # no state, no horizon
    chosen = next(one for one in simplest if one.score(least) <= TIE * best)
    if chosen.budget.pure and not budget.pure:
        gaussian = min(
            (one for one in rivals if not one.budget.pure),
            key=lambda one: one.score(least),
            default=chosen,
        )
        if gaussian.score(least) <= margin * chosen.score(least):
            chosen = gaussian
    return chosen.budget, chosen.engine


@lru_cache(maxsize=64)
def candidates(
    query: Query, budget: Budget, horizon: int | None, views: Names, margin: float = 1.0
) -> tuple[Candidate, ...]:
    """The mechanisms that may be chosen for these views, with their errors.

    A blend, which takes seconds to fit, is left out where no Gaussian noise at all can be within
    `margin` of what is there: a number of some ticks has at least the std of noise for one tick, a
    running total that of the nuclear norm.
    """
    rivals: list[Candidate] = []
    # a period that is no number of ticks is refused before anything is tried
    full_ticks(query, budget, horizon)
    widths = [fitted_width(view) for view in views]
    for own in [budget] if budget.pure else [pure_budget(budget), budget]:
        for name in _names(query, own, horizon, widths):
            check_wanted()
            if name == "blend" and _gaussian_is_beaten(query, own, horizon, widths, rivals, margin):
                continue
            # a query may lack what a kind of noise needs: an l1 sensitivity, cells without names
            with suppress(ParameterError):
                fitted = views if name in FITTED else ()
                engine = _engine(query, own, horizon, name, fitted)
                stds = (_view_std(query, own, horizon, name, fitted, view) for view in views)
                rivals.append(Candidate(own, engine, tuple(stds)))
    return tuple(
        one for one in rivals if not (isinstance(one.engine, _TREES) and _beaten(one, rivals))
    )


def _gaussian_is_beaten(
    query: Query,
    own: Budget,
    horizon: int | None,
    widths: Sequence[int | None],
    rivals: Sequence[Candidate],
    margin: float,
) -> bool:
    """Whether no Gaussian noise at all can be within `margin` of the best of the rivals."""
    if not rivals:
        return False
    one_tick = own.noise_multiplier() * math.sqrt(in_one_tick(query, own))
    floor = []
    for width in widths:
        if width:
            floor.append(one_tick)
        else:
            floor.append(one_tick * float(nuclear_lower(horizon or REFERENCE_TICKS)))
    least = tuple(min(stds) for stds in zip(*(each.stds for each in rivals), strict=True))
    best = min(each.score(least) for each in rivals)
    return Candidate(own, rivals[0].engine, tuple(floor)).score(least) > margin * best


@lru_cache(maxsize=256)
def _engine(
    query: Query, own: Budget, horizon: int | None, name: str | None, views: Names
) -> Factorization:
    """Choose the factorization of a candidate; once, as it may have to be fitted."""
    return choose_engine(query, own, horizon, name, views)


@lru_cache(maxsize=1024)
def _view_std(
    query: Query, own: Budget, horizon: int | None, name: str | None, views: Names, view: str
) -> float:
    """Compute the worst std of one view; once, whatever it is compared with."""
    engine = _engine(query, own, horizon, name, views)
    return view_stds(query, own, horizon, engine, [view])[0]


_TREES = (DigitTree, HybridTree)
"""They have less error than bridges and terraces for narrow noise only, and are left out
elsewhere."""


def _beaten(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Whether another candidate promises no less and is better for every view; `fresh` is not left
    out."""
    if one.engine.name == "fresh":
        return False
    rivals = (each for each in others if each.budget.delta <= one.budget.delta)
    return any(
        all(less < own for less, own in zip(each.stds, one.stds, strict=True)) for each in rivals
    )


def least_alone(
    query: Query, budget: Budget, horizon: int | None, views: Names, rivals: tuple[Candidate, ...]
) -> tuple[float, ...]:
    """The least worst std that each view can have, in a mechanism that serves it alone."""
    together = [min(stds) for stds in zip(*(one.stds for one in rivals), strict=True)]
    if len(views) == 1:
        return (together[0],)
    serving = (candidates(query, budget, horizon, (view,)) for view in views)
    alone = [min((one.stds[0] for one in each), default=math.inf) for each in serving]
    return tuple(map(min, together, alone))


def in_one_tick(query: Query, budget: Budget) -> float:
    """The square of what a unit changes in one tick; no noise is for less."""
    if budget.unit == "user" and query.people is not None:
        return query.people.user_sensitivity(budget.adjacency)
    return query.squared_sensitivity(budget.adjacency) * (budget.touched(1).per_tick or 1) ** 2


def _names(
    query: Query, own: Budget, horizon: int | None, widths: list[int | None]
) -> list[str | None]:
    """List the candidates by name; None stands for the default of running totals."""
    if widths == [1]:
        return ["fresh"]  # the least error for one tick that any noise has
    if query.publishing.weights is not None:
        if own.pure:
            return [None, "fresh", TERRACE]
        return [None, "fresh", "anytime"]
    if widths == [None] and horizon is None:  # others grow with the square root of time
        return [None, "pure-hybrid"] if own.pure else [None]
    if widths == [None] and not own.pure and full_ticks(query, own, horizon) == 1:
        return [None]
    names: list[str | None] = [None, "fresh"]
    if own.pure:
        names.append(TERRACE)
        if None in widths:
            names.append("pure-hybrid" if horizon is None else "pure-tree")
    elif horizon != 1:
        names.append("blend")
    if len(widths) == 1 and widths[0] is not None:
        names.append(f"pure-window-{widths[0]}" if own.pure else f"periods-{widths[0]}")
    return names
