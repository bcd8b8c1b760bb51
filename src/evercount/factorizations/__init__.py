"""Factorizations M = L·R of the running-count matrix, by name. Deterministic mathematics: no randomness, no ε."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations.base import Factorization, State, check_horizon, tick_grid
from evercount.factorizations.direct import Direct
from evercount.factorizations.fresh import Fresh
from evercount.factorizations.honaker_full import HonakerFull
from evercount.factorizations.optimal import Optimal
from evercount.factorizations.periods import Periods
from evercount.factorizations.row_weighted import Anytime, Balanced, Normalized, Unbounded
from evercount.factorizations.square_root import SquareRoot
from evercount.factorizations.trees import BinaryTree, Honaker

FACTORIZATIONS: dict[str, type[Factorization]] = {
    kind.name: kind
    for kind in (
        Balanced,
        Anytime,
        Unbounded,
        Normalized,
        SquareRoot,
        BinaryTree,
        Honaker,
        HonakerFull,
        Fresh,
        Optimal,
        Direct,
    )
}
"""Every factorization that a Gaussian stream can run, by the name that users type."""

ENDLESS = ("anytime", "unbounded", "fresh")
"""The names of those that run without a horizon."""
_PERIODS = re.compile(r"periods-([1-9][0-9]{0,8})")


def factorization(name: str | None, horizon: int | None) -> Factorization:
    """Build a factorization from its name.

    Args:
        name: A key of `FACTORIZATIONS`, or "periods-7" for sums over the last 7 ticks. None chooses `balanced` for a
            known horizon and `anytime` without one.
        horizon: The number of ticks, or None for a stream without end.

    Returns:
        The factorization.

    Raises:
        UnknownName: There is no factorization of this name.
        ParameterError: The horizon is not a whole number from 1 to 2^50, or this factorization needs one.
        TooLarge: `optimal` is computed for at most 1024 ticks.

    >>> factorization("binary-tree", 1000).name
    'binary-tree'
    >>> factorization(None, None).name
    'anytime'
    >>> factorization("ballanced", 1000)
    Traceback (most recent call last):
    ...
    evercount.errors.UnknownName: ...Did you mean 'balanced'...
    """
    if name is None:
        name = "anytime" if horizon is None else "balanced"
    if isinstance(name, str) and (match := _PERIODS.fullmatch(name)):
        return Periods(int(match[1]), horizon)
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
    "Direct",
    "Factorization",
    "Fresh",
    "Honaker",
    "HonakerFull",
    "Normalized",
    "Optimal",
    "Periods",
    "SquareRoot",
    "State",
    "Unbounded",
    "check_horizon",
    "factorization",
    "tick_grid",
]
