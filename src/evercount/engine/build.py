"""Puts a stream together: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Factorization, factorization
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import window_tree
from evercount.mechanisms import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure_for
from evercount.mechanisms.laplace_rates import unit_rate
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.window import Window

POSTPROCESSES = ("nonnegative", "integer", "monotone")


def choose_engine(query: Query, budget: Budget, horizon: int | None, name: str | None) -> tuple[Query, Factorization]:
    """The query with its way of counting settled, and the factorisation that it runs on."""
    pure = budget.pure
    if isinstance(query, Window):
        if name is not None:
            raise ParameterError("a Window chooses its own factorisation; choose its method instead")
        query = query.resolved(horizon, pure)
        return query, window_tree(query.width, horizon) if pure else query.engine(horizon)
    if not pure:
        return query, factorization(name, horizon)
    tree = pure_factorization(name, horizon)
    if isinstance(tree, Bridge):
        l1 = query.l1_sensitivity(budget.adjacency) * budget.max_events
        return query, tree.for_rate(unit_rate(budget.epsilon, l1, query.grid, UNITS) * UNITS)
    return query, tree


def sensitivity_on(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """S with ‖R(X−X′)‖_F² ≤ c²·S for this query on this factorisation.

    **Guarantee.** The query's smaller S is taken only where the Gram matrix is known to fall. Test:
    tests/queries/test_queries_matching.py::test_smaller_claim_is_used_only_where_it_is_proved.
    """
    falling = query.falling_sensitivity(adjacency)
    return falling if falling is not None and engine.falling_gram else query.squared_sensitivity(adjacency)


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
    if isinstance(query, GraphQuery) and budget.unit == "user" and budget.adjacency == "replace":
        # changing a user's edges one by one may pass through streams that the graph promises exclude
        raise ParameterError("graph streams protect users under adjacency='add-remove' only")


def check_postprocess(names: Iterable[str]) -> tuple[str, ...]:
    """The names in their fixed order, or UnknownName."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        if name not in POSTPROCESSES:
            raise UnknownName("post-processing", name, POSTPROCESSES)
    return tuple(name for name in POSTPROCESSES if name in given)
