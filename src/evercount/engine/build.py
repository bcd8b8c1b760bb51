"""Puts a stream together: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Factorization, factorization
from evercount.factorizations.laplace_trees import pure_factorization, window_tree
from evercount.mechanisms import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure_for
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.window import Window

POSTPROCESSES = ("nonnegative", "integer", "monotone")


def choose_engine(
    query: Query, horizon: int | None, name: str | None, pure: bool = False
) -> tuple[Query, Factorization]:
    """The query with its way of counting settled, and the factorisation that it runs on."""
    if isinstance(query, Window):
        if name is not None:
            raise ParameterError("a Window chooses its own factorisation; choose its method instead")
        query = query.resolved(horizon, pure)
        return query, window_tree(query.width, horizon) if pure else query.engine(horizon)
    return query, pure_factorization(name, horizon) if pure else factorization(name, horizon)


def sensitivity_on(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """S with ‖R(X−X′)‖_F² ≤ c²·S for this query on this factorisation.

    **Guarantee.** The query's smaller S is taken only where the Gram matrix is known to fall. Test:
    tests/queries/test_queries_matching.py::test_smaller_claim_is_used_only_where_it_is_proved.
    """
    falling = query.falling_sensitivity(adjacency)
    return falling if falling is not None and engine.falling_gram else query.squared_sensitivity(adjacency)


def unit_sensitivity(engine: Factorization, query: Query, budget: Budget) -> float:
    """S for what the budget protects: one event, a user of at most k events, or a user of any number of them.

    **Guarantee.** A query's own user-level S is taken only where the budget protects users, and never scaled. Test:
    tests/queries/test_queries_distinct_users.py::test_noise_is_calibrated_to_the_unit.
    """
    own = query.user_sensitivity(budget.adjacency) if budget.unit == "user" else None
    return budget.scale_sensitivity(sensitivity_on(engine, query, budget.adjacency)) if own is None else own


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
        squared_sensitivity=unit_sensitivity(engine, query, budget),
        budget=budget,
        horizon=horizon,
        restart=query.restart,
        declaration=declaration,
        **rest,
    )


def check_fit(query: Query, budget: Budget, postprocess: tuple[str, ...]) -> None:
    """Refuse combinations that would state something wrong."""
    if "monotone" in postprocess and not query.monotone:
        raise ParameterError(f"{query.name!r} may truly fall, so its releases cannot be made monotone")
    if query.names_users and budget.max_events != 1:
        raise ParameterError(
            f"{query.name!r} protects users with any number of events: leave max_events={budget.max_events} out"
        )
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
