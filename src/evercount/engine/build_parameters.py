"""Builds the part of a stream that never changes, with every check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evercount.engine.build import Spec, check_postprocess, make_noise
from evercount.engine.cell_range import CellRange
from evercount.engine.error_model import ErrorModel, JoinedCells
from evercount.engine.noise_choice import check_noise_for, choose_noise
from evercount.engine.state import StreamParameters
from evercount.engine.user_counting import PeriodOf, UserCaps
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Factorization, check_horizon
from evercount.mechanisms import NOISES
from evercount.privacy import Budget, TimeRange
from evercount.queries.base import Query


def build_parameters(
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: Spec | Factorization | None,
    noise: str,
    postprocess: Iterable[str],
    replay: bool,
    part: range | None = None,
    views: Iterable[str] = (),
    during: TimeRange | None = None,
    period_of: PeriodOf | None = None,
    joined: tuple[JoinedCells, ...] = (),
    **source: Any,
) -> StreamParameters:
    """All that a stream never changes, with every check; `source` says where its noise comes from.

    With `part` it is a stream of these cells only, with the noise that they have in the whole stream. `joined` says
    which cells joined later.
    """
    if not isinstance(query, Query):
        raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
    if not isinstance(budget, Budget):
        raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
    if noise not in NOISES:
        raise UnknownName("noise", noise, NOISES)
    if horizon is None and isinstance(factorization, Factorization):
        horizon = factorization.horizon
    if not isinstance(factorization, str | Mapping | Factorization | None):
        raise ParameterError(
            f"a factorization is a name or an object such as Dense(L, R), got {type(factorization).__name__}"
        )
    horizon = check_horizon(horizon, unbounded=True)
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
    built = make_noise(noise, query, engine, budget, horizon, names, shown, during, part=part, **source)
    errors = ErrorModel(asked, engine, built.sigma, built.stream.rounded, query.outputs, joined)
    thresholds = None
    if query.discovery is not None:
        thresholds = query.discovery.thresholds(
            budget, horizon, lambda ticks: built.sigma / query.grid * errors.norms(ticks)
        )
    caps = UserCaps.of(query, budget, period_of)
    return StreamParameters(
        asked, budget, horizon, engine, built, names, replay, errors, thresholds, shown, during, caps
    )
