"""Deterministic mathematics: factorisations M = L·R of the running count, by name. No randomness, no ε."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations.base import Factorization, State, check_horizon, tick_grid
from evercount.factorizations.identity import Identity
from evercount.factorizations.optimal import Optimal
from evercount.factorizations.row_weighted import Anytime, Balanced, Normalized, Unbounded
from evercount.factorizations.square_root import SquareRoot
from evercount.factorizations.trees import BinaryTree, Honaker, HonakerOffline

FACTORIZATIONS: dict[str, type[Factorization]] = {
    kind.name: kind
    for kind in (Balanced, Anytime, Unbounded, Normalized, SquareRoot, BinaryTree, Honaker, Identity, Optimal)
}
"""Every factorisation that a stream can run, by the name that users type."""

ENDLESS = ("anytime", "unbounded", "identity")
"""Those that run without a horizon."""


def factorization(name: str | None, horizon: int | None) -> Factorization:
    """The factorisation of that name; None chooses `balanced` for a known horizon and `anytime` without one."""
    if name is None:
        name = "anytime" if horizon is None else "balanced"
    if name not in FACTORIZATIONS:
        raise UnknownName("factorization", name, FACTORIZATIONS)
    if horizon is None and name not in ENDLESS:
        raise ParameterError(
            f"{name!r} needs a known horizon; without one use factorization='anytime' (or give a horizon)"
        )
    build = cast(Callable[[int | None], Factorization], FACTORIZATIONS[name])
    return build(check_horizon(horizon, unbounded=True))


__all__ = [
    "ENDLESS",
    "FACTORIZATIONS",
    "Anytime",
    "Balanced",
    "BinaryTree",
    "Factorization",
    "Honaker",
    "HonakerOffline",
    "Identity",
    "Normalized",
    "Optimal",
    "SquareRoot",
    "State",
    "Unbounded",
    "check_horizon",
    "factorization",
    "tick_grid",
]
