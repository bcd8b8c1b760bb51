"""Puts a stream together: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from evercount.engine.error_model import ErrorModel
from evercount.engine.state import StreamParameters
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Direct, Factorization, check_horizon
from evercount.mechanisms import NOISES, Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure_for
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query

POSTPROCESSES = ("nonnegative", "integer", "monotone")


def build_parameters(
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: str | None,
    noise: str,
    postprocess: Iterable[str],
    replay: bool,
    **source: Any,
) -> StreamParameters:
    """All that a stream never changes, with every check; `source` says where its noise comes from."""
    if not isinstance(query, Query):
        raise ParameterError(f"the first argument must be a query such as Count(), got {query!r}")
    if not isinstance(budget, Budget):
        raise ParameterError(f"the second argument must be a Budget, got {budget!r}")
    if noise not in NOISES:
        raise UnknownName("noise", noise, NOISES)
    horizon = check_horizon(horizon, unbounded=True)
    query, engine = choose_engine(query, horizon, factorization, budget.pure, budget.adjacency)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(f"{query.name!r} may truly fall, so its releases cannot be made monotone")
    query.check_budget(budget)
    built = make_noise(noise, query, engine, budget, horizon, names, **source)
    errors = ErrorModel(query, engine, built.sigma, built.stream.rounded)
    return StreamParameters(query, budget, horizon, engine, built, names, replay, errors)


def choose_engine(
    query: Query, horizon: int | None, name: str | None, pure: bool = False, adjacency: Adjacency = "add-remove"
) -> tuple[Query, Factorization]:
    """The query with its way of counting settled, and the factorisation that it runs on.

    Without a name it is `direct` where one event moves values so little that its exact worst error is smaller.
    """
    query, engine = query.choose_engine(horizon, name, pure)
    if pure or name is not None or horizon is None or query.squared_value_sensitivity(adjacency) is None:
        return query, engine
    direct = Direct(horizon)
    return query, direct if _worst_error(direct, query, adjacency) < _worst_error(engine, query, adjacency) else engine


def _worst_error(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """The largest std of a cell over all ticks, for a noise multiplier of 1."""
    S = _smallest_sensitivity(engine, query, adjacency)
    return float(np.sqrt(S)) * engine.column_norm * engine.worst_row()[1]


def sensitivity_on(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """S with ‖R(X−X′)‖_F² ≤ c²·S for this query on this factorisation.

    **Guarantee.** The query's smaller S is taken only where the Gram matrix is known to fall, and its v² only where R
    is the running-count matrix, whose c² is T. Tests:
    tests/queries/test_queries_matching.py::test_smaller_claim_is_used_only_where_it_is_proved and
    tests/queries/test_queries_values.py::test_values_are_claimed_only_for_direct_noise.
    """
    S = _smallest_sensitivity(engine, query, adjacency)
    if math.isinf(S):
        raise ParameterError(
            f"one event can change {query.name!r} again and again in this kind of stream, so noise for its increments "
            "is not private: give a horizon and leave the factorisation out (or name 'direct')"
        )
    return S


def _smallest_sensitivity(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """The smallest S that is proved for this query on this factorisation; infinite where none is."""
    candidates = [query.squared_sensitivity(adjacency)]
    if engine.falling_gram:
        candidates.append(query.falling_sensitivity(adjacency) or math.inf)
    if engine.releases_values:
        candidates.append(query.squared_value_sensitivity(adjacency) or math.inf)
    return min(candidates)


def make_noise(
    name: str,
    query: Query,
    engine: Factorization,
    budget: Budget,
    horizon: int | None,
    postprocess: tuple[str, ...] = (),
    **rest: Any,
) -> Noise:
    """The noise of a stream: Laplace on a pure tree where δ = 0, else Gaussian through the factorisation.

    Its key belongs to the whole declaration (`mechanisms.declared_key`).
    """
    declaration = {
        "query": [query.name, query.parameters()],
        "budget": budget.to_dict(),
        "horizon": horizon,
        "noise": name,
        "grid": float(query.grid).hex(),
        "postprocess": postprocess,
    }
    if budget.pure:
        return build_pure_for(query, budget, engine, name, declaration=declaration, **rest)
    return build_noise(
        name,
        engine,
        cells=query.cells,
        grid=query.grid,
        squared_sensitivity=budget.scale_sensitivity(sensitivity_on(engine, query, budget.adjacency)),
        budget=budget,
        horizon=horizon,
        restart=query.restart,
        declaration=declaration,
        **rest,
    )


def check_postprocess(names: Iterable[str]) -> tuple[str, ...]:
    """The names in their fixed order, or UnknownName."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in POSTPROCESSES:
            raise UnknownName("post-processing", name, POSTPROCESSES)
    return tuple(name for name in POSTPROCESSES if name in given)
