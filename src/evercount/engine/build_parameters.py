"""All that a stream never changes, built with every check from what is declared."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evercount._validate import check_kind, check_whole
from evercount.engine.build import RUNNING, Spec, check_postprocess, make_noise, noise_declaration
from evercount.engine.cell_range import CellRange
from evercount.engine.error_model import ErrorModel, JoinedCells
from evercount.engine.noise_choice import BEST, check_noise_for, choose_noise
from evercount.engine.revisions import (
    MOST_LAGS,
    RevisedErrors,
    Revisions,
    check_revised,
    day_budget,
)
from evercount.engine.state import StreamParameters
from evercount.engine.user_counting import PeriodOf, UserCaps
from evercount.errors import ParameterError
from evercount.factorizations import Factorization, check_horizon
from evercount.mechanisms.calibrate import build_revisions
from evercount.noise import Secret
from evercount.privacy import Budget, TimeRange
from evercount.queries.base import Query

PERIODS_OF_A_KEY = 4  # how many periods the key of noise knows where they have no name


def build_parameters(
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    replay: bool,
    part: range | None = None,
    views: Iterable[str] = (),
    during: TimeRange | None = None,
    period_of: PeriodOf | None = None,
    joined: tuple[JoinedCells, ...] = (),
    revise_for: int | None = None,
    **source: Any,
) -> StreamParameters:
    """All that a stream never changes, with every check; `source` says where its noise comes from.
    With `part` it is a stream of these cells only, with the noise that they have in the whole
    stream. `joined` says which cells joined later. With `revise_for` days are published again, and
    each day is a stream of `revise_for` + 1 ticks.

    **Guarantee.** `engine/revisions.proof.md`: all days together keep the budget that the stream of
    one day keeps. Test:
    tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own.
    """
    check_kind("query, the first argument,", query, Query, "Count()")
    check_kind("budget, the second argument,", budget, Budget, "Budget(epsilon=1, delta=1e-6)")
    check_kind("secret", source.get("secret"), Secret | None, "Secret.generate()")
    check_kind(
        "factorization",
        factorization,
        str | Mapping | Factorization | None,
        "'best' or Dense(L, R)",
    )
    check_kind("during", during, TimeRange | None, "the `during` of another stream")
    if horizon is None and isinstance(factorization, Factorization):
        horizon = factorization.horizon
    horizon = check_horizon(horizon)
    if revise_for is not None:
        if part is not None:
            raise ParameterError(
                "late = 'revise': the cells of a revised stream cannot be cut into shards"
            )
        budget, engine = choose_revised(
            query, budget, factorization, postprocess, views, revise_for
        )
        return _revised_parameters(
            query, budget, horizon, engine, replay, during, revise_for, **source
        )
    shown = check_noise_for(query, views)
    query = query.for_views(shown)
    query.check_budget(budget)
    budget, engine = choose_noise(query, budget, horizon, factorization, shown)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(
            f"{query.name!r} can decrease, so its releases cannot be made monotone"
        )
    released: Query = query if part is None else CellRange(query, part)
    periods = unnamed_periods(budget, during, period_of)
    noise = make_noise(
        query, engine, budget, horizon, names, shown, during, periods, part=part, **source
    )
    errors = ErrorModel(released, engine, noise.sigma, noise.stream.rounded, query.outputs, joined)
    thresholds = None
    if query.discovery is not None:
        thresholds = query.discovery.thresholds(budget, horizon, errors.unrounded_std)
    return StreamParameters(
        query=released,
        declared=query,
        budget=budget,
        horizon=horizon,
        factorization=engine,
        noise=noise,
        postprocess=names,
        replay=replay,
        errors=errors,
        thresholds=thresholds,
        views=shown,
        during=during,
        user_caps=UserCaps.of(query, budget, period_of),
        part=part,
    )


def _revised_parameters(
    query: Query,
    budget: Budget,
    horizon: int | None,
    engine: Factorization,
    replay: bool,
    during: TimeRange | None,
    revise_for: int,
    **source: Any,
) -> StreamParameters:
    """Build the parameters of a stream whose days are published again: the noise of each day is
    that of a stream of its own (`build_parameters`)."""
    days = Revisions(query, revise_for + 1)
    make = partial(make_noise, query, engine, day_budget(budget), days.lags)
    declared = noise_declaration(query, budget, horizon, during=during)
    noise = build_revisions(engine, days.lags, query.cells, horizon, make, declared, **source)
    return StreamParameters(
        query=days,
        declared=query,
        budget=budget,
        horizon=horizon,
        factorization=engine,
        noise=noise,
        postprocess=(),
        replay=replay,
        errors=RevisedErrors(days, engine, noise.sigma, noise.stream.rounded),
        views=(RUNNING,),
        during=during,
        user_caps=UserCaps.of(query, budget, None, revise_for),
        revise_for=revise_for,
    )


def unnamed_periods(
    budget: Budget, during: TimeRange | None, period_of: PeriodOf | None
) -> tuple[int, ...]:
    """The last ticks of the first periods of a stream whose time range does not name them: a
    function has no name."""
    if period_of is None or budget.period_ticks is None or (during is not None and during.periods):
        return ()
    ticks = range(1, (PERIODS_OF_A_KEY + 1) * budget.period_ticks + 1)
    first = period_of(1)
    later = range(first + 1, first + 1 + PERIODS_OF_A_KEY)
    return tuple(bisect_left(ticks, period, key=period_of) for period in later)


def check_revised_stream(
    query: Query, budget: Budget, postprocess: Iterable[str], views: Iterable[str], revise_for: int
) -> int:
    """Refuse what cannot be revised, and return how many lags each day has."""
    check_revised(query)
    if check_postprocess(postprocess):
        raise ParameterError(
            "late = 'revise': what is released is not post-processed; declare views, which are"
        )
    if set(views) - {RUNNING}:
        raise ParameterError(
            "late = 'revise': noise is for single days, so omit noise_for; views show any sum of "
            "them"
        )
    query.check_budget(day_budget(budget))
    return check_whole("revise_for", revise_for, 1, MOST_LAGS - 1) + 1


def choose_revised(
    query: Query,
    budget: Budget,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    views: Iterable[str],
    revise_for: int,
) -> tuple[Budget, Factorization]:
    """Choose the noise of each day, and the budget that all days together then keep."""
    lags = check_revised_stream(query, budget, postprocess, views, revise_for)
    of_day, engine = choose_noise(
        query, day_budget(budget), lags, factorization or BEST, (RUNNING,)
    )
    return replace(budget, delta=of_day.delta, calibration=of_day.calibration), engine
