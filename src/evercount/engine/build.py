"""Puts a stream together: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Direct, Factorization, factorization
from evercount.factorizations.laplace_trees import pure_factorization, window_tree
from evercount.mechanisms import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure_for
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.window import WindowQuery

POSTPROCESSES = ("nonnegative", "integer", "monotone")


def choose_engine(
    query: Query, horizon: int | None, name: str | None, pure: bool = False, adjacency: Adjacency = "add-remove"
) -> tuple[Query, Factorization]:
    """The query with its way of counting settled, and the factorisation that it runs on.

    Without a name it is `direct` where one event moves values so little that its exact worst error is smaller.
    """
    if isinstance(query, WindowQuery):
        if name is not None:
            raise ParameterError("a Window chooses its own factorisation; choose its method instead")
        query = query.resolved(horizon, pure)
        return query, window_tree(query.width, horizon) if pure else query.engine(horizon)
    if pure:
        return query, pure_factorization(name, horizon)
    engine = factorization(name, horizon)
    if name is None and horizon is not None and query.squared_value_sensitivity(adjacency) is not None:
        direct = Direct(horizon)
        if _worst_error(direct, query, adjacency) < _worst_error(engine, query, adjacency):
            return query, direct
    return query, engine


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
    name: str, query: Query, engine: Factorization, budget: Budget, horizon: int | None, **rest: Any
) -> Noise:
    """The noise of a stream: Laplace on a pure tree where δ = 0, else Gaussian through the factorisation."""
    if budget.pure:
        return build_pure_for(query, budget, engine, name, **rest)
    return build_noise(
        name,
        engine,
        cells=query.cells,
        grid=query.grid,
        squared_sensitivity=budget.scale_sensitivity(sensitivity_on(engine, query, budget.adjacency)),
        budget=budget,
        horizon=horizon,
        restart=query.restart,
        **rest,
    )


def check_fit(query: Query, budget: Budget, postprocess: tuple[str, ...]) -> None:
    """Refuse combinations that would state something wrong."""
    if "monotone" in postprocess and not query.monotone:
        raise ParameterError(f"{query.name!r} may truly fall, so its releases cannot be made monotone")
    promised = isinstance(query, GraphQuery) and (query.stream != "mixed" or query.max_degree is not None)
    if promised and budget.unit == "user" and budget.adjacency == "replace":
        # changing a user's edges one by one may pass through streams that the graph promises exclude
        raise ParameterError(
            "graph streams protect users under adjacency='add-remove' only; under 'replace' use stream='mixed' without "
            "max_degree, which promises nothing"
        )


def check_postprocess(names: Iterable[str]) -> tuple[str, ...]:
    """The names in their fixed order, or UnknownName."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in POSTPROCESSES:
            raise UnknownName("post-processing", name, POSTPROCESSES)
    return tuple(name for name in POSTPROCESSES if name in given)
