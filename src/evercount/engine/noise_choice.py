"""Which noise a stream gets, and paths of it.

The candidate with the least error for the views that a stream publishes is taken. A view is a sum
over ticks: `running` (all so far), `per-tick` (the last one) or `last-7` (the last seven). The
choice is made from public numbers only: query, budget, horizon and views. Simulated paths are for
researchers, and for bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from evercount._validate import FloatArray, check_count
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
    make_noise,
    view_weighting,
)
from evercount.engine.error_model import ErrorModel, whole_ticks
from evercount.engine.weighted_errors import (
    check_decays,
    check_weighted,
    decayed_std,
    weighted_suspects,
)
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import Factorization, Fresh, Periods
from evercount.factorizations.base import tick_grid
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, PureFactorization
from evercount.factorizations.terrace import NAME as TERRACE
from evercount.factorizations.terrace import Terrace
from evercount.factorizations.view_norms import worst_view
from evercount.mechanisms import Noise, NoiseStream
from evercount.mechanisms.composed_noise import FreshStream, PeriodicStream
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from evercount.noise.secret import insecure_generator, insecure_secret
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
REFERENCE_TICKS = 2**20
"""Ticks over which streams without a horizon are compared."""
NOTHING = Secret.from_hex("00" * 32)
"""Nothing is drawn from it."""


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
    return pure_budget(budget) if isinstance(named, str) and is_pure_name(named) else budget


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
"""Names of noise whose numbers are fitted when it is first asked for."""


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
    found = candidates(query, budget, horizon, views, margin)
    if not found:
        return budget, choose_engine(query, budget, horizon, None, views)
    least = least_alone(query, budget, horizon, views, found)
    best = min(one.score(least) for one in found)
    simplest = sorted(found, key=lambda one: one.engine.name != "fresh")  # no state and no horizon
    chosen = next(one for one in simplest if one.score(least) <= TIE * best)
    if chosen.budget.pure and not budget.pure:
        gaussian = min(
            (one for one in found if not one.budget.pure),
            key=lambda one: one.score(least),
            default=chosen,
        )
        chosen = gaussian if gaussian.score(least) <= margin * chosen.score(least) else chosen
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
    found: list[Candidate] = []
    # a period that is no number of ticks is refused before anything is tried
    full_ticks(query, budget, horizon)
    widths = [fitted_width(view) for view in views]
    for own in [budget] if budget.pure else [pure_budget(budget), budget]:
        for name in _names(query, own, horizon, widths):
            check_wanted()
            if name == "blend" and found:
                one = own.noise_multiplier() * math.sqrt(in_one_tick(query, own))
                floor = [
                    one * (1.0 if width else float(nuclear_lower(horizon or REFERENCE_TICKS)))
                    for width in widths
                ]
                least = tuple(
                    min(stds) for stds in zip(*(each.stds for each in found), strict=True)
                )
                best = min(each.score(least) for each in found)
                if Candidate(own, found[0].engine, tuple(floor)).score(least) > margin * best:
                    continue
            # a query may lack what a kind of noise needs: an l1 sensitivity, cells without names
            with suppress(ParameterError):
                fitted = views if name in FITTED else ()
                engine = _engine(query, own, horizon, name, fitted)
                stds = (_view_std(query, own, horizon, name, fitted, view) for view in views)
                found.append(Candidate(own, engine, tuple(stds)))
    return tuple(
        one for one in found if not (isinstance(one.engine, _TREES) and _beaten(one, found))
    )


FITTED = ("blend", TERRACE)
"""Noise that is fitted to the views; of all other the worst std of a view is the same, whatever
else is published."""


@lru_cache(maxsize=256)
def _engine(
    query: Query, own: Budget, horizon: int | None, name: str | None, views: Names
) -> Factorization:
    return choose_engine(query, own, horizon, name, views)


@lru_cache(maxsize=1024)
def _view_std(
    query: Query, own: Budget, horizon: int | None, name: str | None, views: Names, view: str
) -> float:
    """The worst std of one view; computed once, whatever it is compared with."""
    engine = _engine(query, own, horizon, name, views)
    return view_stds(query, own, horizon, engine, [view])[0]


_TREES = (DigitTree, HybridTree)
"""They have less error than bridges and terraces for narrow noise only, and are left out
elsewhere."""


def _beaten(one: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether another candidate promises no less and is better for every view; `fresh` is not left
    out."""
    if one.engine.name == "fresh":
        return False
    rivals = (each for each in found if each.budget.delta <= one.budget.delta)
    return any(
        all(less < own for less, own in zip(each.stds, one.stds, strict=True)) for each in rivals
    )


def least_alone(
    query: Query, budget: Budget, horizon: int | None, views: Names, found: tuple[Candidate, ...]
) -> tuple[float, ...]:
    """The least worst std that each view can have, in a mechanism that serves it alone."""
    together = [min(stds) for stds in zip(*(one.stds for one in found), strict=True)]
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
    """The candidates by name; None stands for the default of running totals."""
    if widths == [1]:
        return ["fresh"]  # the least error for one tick that any noise has
    if query.publishing.weights is not None:
        return [None, "fresh", TERRACE] if own.pure else [None, "fresh", "anytime"]
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


def planned_errors(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization
) -> tuple[ErrorModel, Noise]:
    """The errors and the noise of a stream before it is built; nothing is drawn."""
    noise = make_noise(query, engine, budget, horizon, secret=NOTHING)
    return ErrorModel(query, engine, noise.sigma, noise.stream.rounded), noise


def view_stds(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization, views: Sequence[str]
) -> tuple[float, ...]:
    """The worst std of each view with exact noise; of averages over time, whose first ticks would
    decide, the root mean square over the ticks."""
    model, _ = planned_errors(query, budget, horizon, engine)
    last = horizon or REFERENCE_TICKS
    if query.publishing.weights is not None:
        return (mean_std(model, last),) * len(views)
    return tuple(worst_of_view(model, view, last) for view in views)


def mean_std(model: ErrorModel, last: int) -> float:
    """The root mean square of the std over the first `last` ticks; beyond some thousand ticks, of a
    sample of them."""
    ticks = tick_grid(last, MOST_AVERAGED)
    squares = (model.std(ticks) ** 2).max(axis=1)
    spans = np.diff(ticks, append=last + 1)
    return math.sqrt(float(squares @ spans) / last)


def worst_of_view(model: ErrorModel, view: str, last: int) -> float:
    """The largest std of a view by its name; of a decayed sum over many ticks, that of a sample of
    them."""
    weighting = view_weighting(view)
    if not isinstance(weighting, Decayed):
        return worst_std(model, weighting, last)
    return float(decayed_std(model, weighting, weighted_suspects(model.factorization, last)).max())


def worst_std(model: ErrorModel, width: int | None, last: int) -> float:
    """The largest std of a view of this width over the first `last` ticks."""
    engine = model.factorization
    if width is None and isinstance(engine, PureFactorization):
        return float(model.std([worst_tick(model, last)]).max())
    if isinstance(engine, Terrace):
        tick, _ = engine.worst_tick(width, last)
    else:
        tick, _ = worst_view(engine, width, last)
    ticks = np.asarray([tick])
    trees = isinstance(engine, PureFactorization) and not isinstance(engine, Terrace)
    if trees and last <= ALL_PAIRS:  # norms are those of continuous noise
        ticks = np.arange(1, last + 1)
    return float(model.std(ticks, width).max())


ALL_PAIRS = 2**14
"""Up to this many ticks, the worst of a view of Laplace noise is looked for among all of them."""


def worst_tick(model: ErrorModel, last: int) -> int:
    """The tick, of the first `last`, with the largest std that a stream of Laplace noise states."""
    engine = model.factorization
    assert isinstance(engine, PureFactorization)
    ticks = engine.stated_suspects(last)
    return int(ticks[np.argmax(model.cell_errors(ticks)[0])])


MOST_AVERAGED = 4096


def simulated_noise(model: ErrorModel, paths: int, seed: int | None) -> NoiseStream:
    """The noise of running sums, in grid units: each cell is an independent path of the law of one
    cell. Insecure."""
    engine, scale, secret = (
        model.factorization,
        model.sigma / model.query.grid,
        insecure_secret(seed),
    )
    if model.pure:
        return build_pure(
            engine, cells=paths, grid=1.0, l1=1.0, epsilon=model.full_rate, secret=secret
        ).stream
    if isinstance(engine, Fresh):
        return FreshStream(scale, paths, secret, 0, 0.0, MOST_TICKS)
    if isinstance(engine, Periods):
        return PeriodicStream(engine, scale, paths, secret)
    return ExactStream(engine, scale, paths, secret)


def noise_paths(model: ErrorModel, count: int, last: int | None, seed: int | None) -> FloatArray:
    """Paths of what is published of one cell, up to the tick `last`."""
    query = model.query
    count = check_count("n", count)
    if last is None:
        raise ParameterError(
            "a stream without a horizon has no last tick: say how many ticks a path has"
        )
    at = np.arange(1, check_count("ticks", last) + 1)
    whole_ticks(at[-1:], model.factorization.horizon)
    rows = simulated_noise(model, count, seed).take(last)
    if query.publishing.own_ticks:
        rows = np.diff(rows, axis=0, prepend=0)
    return np.asarray((rows * (query.grid * query.publishing.sum_weights(at))[:, np.newaxis]).T)


SIMULATED_RUNS = 4000
RUNS_AT_A_TIME = 100
LONGEST_SIMULATION = 2**17  # the largest number of ticks: memory and time grow with it
SEED = 0x5EED  # public, so that a bound is a function of public parameters alone


def simulated_factor(
    errors: ErrorModel, spread: FloatArray, slack: FloatArray, shape: FloatArray, beta: float
) -> float:
    """The smallest q, up to simulation, with P(|error| ≤ q·shape·spread + slack at all ticks) ≥ 1 −
    beta. It is the upper 99.9 % confidence limit over `SIMULATED_RUNS` runs; infinite where beta is
    too small for these."""
    query, engine, ticks = errors.query, errors.factorization, len(shape)
    # a combination of Laplace numbers of several cells has other tails
    mixed = errors.pure and query.cells != 1
    if query.outputs != 1 or mixed or not 0 < ticks <= LONGEST_SIMULATION:
        raise ParameterError(
            "method='simulate' is for one running sum, from tick 1 on, up to 2^17 ticks; use "
            "'union'"
        )
    largest, source = [], insecure_generator(SEED)
    for number in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        if errors.pure:
            noise = simulated_noise(errors, RUNS_AT_A_TIME, SEED + number).take(ticks)
            scale = float(np.atleast_1d(query.publishing.norms())[0]) * query.grid
            off = (np.abs(noise) * scale - slack) / spread
        else:  # over its std; slack is rounding and comes on top
            normals = source.standard_normal((engine.draws(0, ticks), RUNS_AT_A_TIME))
            real, _ = engine.block(engine.initial(RUNS_AT_A_TIME), normals, ticks)
            off = np.abs(real) / engine.row_norms(np.arange(1, ticks + 1))[:, np.newaxis]
        largest.append(np.max(off / shape, axis=0))
    ordered = np.sort(np.concatenate(largest))
    rank = int(
        np.ceil(SIMULATED_RUNS * (1 - beta) + 3.1 * np.sqrt(SIMULATED_RUNS * beta * (1 - beta)))
    )
    return max(float(ordered[rank]), 0.0) if rank < SIMULATED_RUNS else float("inf")
