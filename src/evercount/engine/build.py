"""Puts a stream together: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evercount.engine.error_model import ErrorModel
from evercount.engine.state import StreamParameters
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Factorization, check_horizon
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
    query, engine = query.choose_engine(horizon, factorization, budget.pure)
    names = check_postprocess(postprocess)
    if "monotone" in names and not query.monotone:
        raise ParameterError(f"{query.name!r} may truly fall, so its releases cannot be made monotone")
    query.check_budget(budget)
    built = make_noise(noise, query, engine, budget, horizon, names, **source)
    errors = ErrorModel(query, engine, built.sigma, built.stream.rounded)
    return StreamParameters(query, budget, horizon, engine, built, names, replay, errors)


def sensitivity_on(engine: Factorization, query: Query, adjacency: Adjacency) -> float:
    """S with ‖R(X−X′)‖_F² ≤ c²·S for this query on this factorisation.

    **Guarantee.** The query's smaller S is taken only where the Gram matrix is known to fall. Test:
    tests/queries/test_queries_matching.py::test_smaller_claim_is_used_only_where_it_is_proved.
    """
    falling = query.falling_sensitivity(adjacency)
    return falling if falling is not None and engine.falling_gram else query.squared_sensitivity(adjacency)


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
