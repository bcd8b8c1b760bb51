"""Builds the part of a stream that never changes, with every check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evercount._validate import check_whole
from evercount.engine.build import Spec, check_postprocess, make_noise, noise_declaration
from evercount.engine.derived_query import MOST_LAGS, CellRange, Revisions, check_revised
from evercount.engine.error_model import ErrorModel, JoinedCells
from evercount.engine.noise_choice import BEST, check_noise_for, choose_noise
from evercount.engine.revisions import RevisedErrors, day_budget
from evercount.engine.state import StreamParameters
from evercount.engine.user_counting import PeriodOf, UserCaps
from evercount.engine.view_widths import RUNNING
from evercount.errors import ParameterError
from evercount.factorizations import Factorization, check_horizon
from evercount.mechanisms.revision_noise import build_revisions
from evercount.noise import Secret
from evercount.privacy import Budget, TimeRange
from evercount.queries.base import Query


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
    """All that a stream never changes, with every check; `source` says where its noise comes from. With `part` it is a
    stream of these cells only, with the noise that they have in the whole stream. `joined` says which cells joined
    later."""
    if not isinstance(query, Query):
        raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
    if not isinstance(budget, Budget):
        raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
    if not isinstance(source.get("secret"), Secret | None):
        raise ParameterError(
            f"secret must be a Secret, such as Secret.generate(), got {type(source['secret']).__name__}"
        )
    if horizon is None and isinstance(factorization, Factorization):
        horizon = factorization.horizon
    if not isinstance(factorization, str | Mapping | Factorization | None):
        raise ParameterError(
            f"a factorization is a name or an object such as Dense(L, R), got {type(factorization).__name__}"
        )
    horizon = check_horizon(horizon, unbounded=True)
    if revise_for is not None:
        if part is not None:
            raise ParameterError("late = 'revise': the cells of a revised stream cannot be cut into shards")
        budget, engine = choose_revised(query, budget, factorization, postprocess, views, revise_for)
        return _revised(query, budget, engine, horizon, replay, during, revise_for, source)
    shown = check_noise_for(query, views)
    query = query.for_views(shown)
    query.check_budget(budget)
    budget, engine = choose_noise(query, budget, horizon, factorization, shown)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(f"{query.name!r} can decrease, so its releases cannot be made monotone")
    asked = query if part is None else CellRange(query, part)
    if during is not None and not isinstance(during, TimeRange):
        raise ParameterError(f"during must be a TimeRange, got {during!r}")
    built = make_noise(query, engine, budget, horizon, names, shown, during, part=part, **source)
    errors = ErrorModel(asked, engine, built.sigma, built.stream.rounded, query.outputs, joined)
    found = query.discovery
    thresholds = None if found is None else found.thresholds(budget, horizon, errors.unrounded_std)
    caps = UserCaps.of(query, budget, period_of)
    fixed = (asked, budget, horizon, engine, built, names, replay, errors)
    return StreamParameters(*fixed, thresholds, shown, during, caps)


def choose_revised(
    query: Query,
    budget: Budget,
    factorization: Spec | Factorization | None,
    postprocess: Iterable[str],
    views: Iterable[str],
    revise_for: int,
) -> tuple[Budget, Factorization]:
    check_revised(query)
    if check_postprocess(postprocess):
        raise ParameterError("late = 'revise': declare views, which are post-processed; what is released is not")
    if set(views) - {RUNNING}:
        raise ParameterError("late = 'revise': noise is for single days, so omit noise_for; views show any sum of them")
    of_day = day_budget(budget)
    query.check_budget(of_day)
    kept, engine = choose_noise(
        query, of_day, check_whole("revise_for", revise_for, 1, MOST_LAGS - 1) + 1, factorization or BEST, (RUNNING,)
    )
    return replace(budget, delta=kept.delta, calibration=kept.calibration), engine


def _revised(
    query: Query,
    budget: Budget,
    engine: Factorization,
    horizon: int | None,
    replay: bool,
    during: TimeRange | None,
    revise_for: int,
    source: Mapping[str, Any],
) -> StreamParameters:
    """A stream whose days are published again: each day is a stream of `revise_for` + 1 ticks.

    **Guarantee.** `engine/revisions.proof.md`: all days together keep the budget that the stream of one day keeps.
    Test: tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own.
    """
    asked, none = Revisions(query, revise_for + 1), ()
    make = partial(make_noise, query, engine, day_budget(budget), asked.lags)
    declared = noise_declaration(query, budget, horizon, none, (RUNNING,), during)
    built = build_revisions(engine, asked.lags, query.cells, horizon, make, declared, **source)
    errors = RevisedErrors(asked, engine, built.sigma, built.stream.rounded)
    caps = UserCaps.of(query, budget, None, revise_for)
    fixed = (asked, budget, horizon, engine, built, none, replay, errors, None, (RUNNING,), during, caps)
    return StreamParameters(*fixed, revise_for=revise_for)
