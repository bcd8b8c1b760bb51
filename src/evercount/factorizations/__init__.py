"""Factorizations M = L·R of the running-count matrix, by name. Deterministic mathematics: no
randomness, no ε."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import cast
from weakref import WeakValueDictionary

from evercount.errors import EvercountError, ParameterError, UnknownName
from evercount.factorizations.base import Factorization, State, check_horizon, tick_grid
from evercount.factorizations.dense import Dense, as_dense, check_own_name, check_own_size
from evercount.factorizations.independent import Direct, Fresh, Periods
from evercount.factorizations.optimal import Optimal
from evercount.factorizations.row_weighted import (
    Anytime,
    Balanced,
    Normalized,
    SquareRoot,
    Unbounded,
)
from evercount.factorizations.trees import BinaryTree, Honaker, HonakerFull

FACTORIZATIONS: dict[str, Callable[[int], Factorization]] = {
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
"""Every factorization that a Gaussian stream can run, by the name that users type; registered ones
are added."""

BUILT_IN = tuple(FACTORIZATIONS)  # the names that are there before any is registered

ENDLESS = ("anytime", "unbounded", "fresh")  # the names of those that run without a horizon
_shared: WeakValueDictionary[tuple[str, int | None], Factorization] = WeakValueDictionary()
"""Built-in ones that are in use: equal streams share the tables of one, 200 KiB where there is no
horizon."""
_PERIODS = re.compile(r"periods-([1-9][0-9]{0,8})")
_RESERVED = re.compile(r"periods.*|pure.*|.*bridge.*|best|blend|terrace|hybrid|dense")
"""Names that mean something else where a factorization is named."""


def factorization(name: str | None, horizon: int | None) -> Factorization:
    """Build a factorization from its name.

    Args:
        name: A key of `FACTORIZATIONS`, or "periods-7" for sums over the last 7 ticks. None chooses
            `balanced` for a known horizon and `anytime` without one.
        horizon: The number of ticks, or None for a stream without end.

    Returns:
        The factorization.

    Raises:
        UnknownName: There is no factorization of this name.
        ParameterError: The horizon is not a whole number from 1 to 2^50, or this factorization
            needs one.
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
            f"{name!r} needs a known horizon; without one use factorization='anytime' (or give a "
            "horizon)"
        )
    build = cast(Callable[[int | None], Factorization], FACTORIZATIONS[name])
    horizon = check_horizon(horizon)
    if name not in BUILT_IN:
        return build(horizon)
    shared = _shared.get((name, horizon))
    if shared is None:
        return _shared.setdefault((name, horizon), build(horizon))
    return shared


def register_factorization(name: str, build: Callable[[int], Factorization]) -> None:
    """Let a name stand for a factorization of your own: in streams, plans, audits and simulations
    of this process.

    It is built and checked for each horizon (`Dense`), and an error of `build` is one of that
    horizon only. A later registration of the same name replaces it. A snapshot of a stream that was
    built by name holds the name, and is restored where the same matrices are registered.

    Args:
        name: The name, other than those of evercount.
        build: From the horizon to the factorization, such as `Dense(L, R)`; a class of your own
            will do.

    Raises:
        ParameterError: The name is taken by evercount, or `build` cannot be called.

    **Guarantee.** The noise of a registered factorization is calibrated to the norm that `Dense`
    checks, never to one that a class claims. Test:
    tests/engine/test_own_factorization.py::test_claims_are_not_trusted.

    >>> import numpy as np
    >>> alone = lambda horizon: Dense(np.tri(horizon), np.eye(horizon))
    >>> register_factorization("each-tick-alone", alone)
    >>> factorization("each-tick-alone", 8).row_norms([1, 4]).tolist()
    [1.0, 2.0]
    >>> del FACTORIZATIONS["each-tick-alone"]
    """
    check_own_name(name)
    if name in BUILT_IN or _RESERVED.fullmatch(name):
        raise ParameterError(f"the name {name!r} is reserved: choose another")
    if not callable(build):
        raise ParameterError(
            f"a factorization is registered as a function of the horizon, not as {build!r:.80}"
        )

    @lru_cache(maxsize=4)
    def checked(horizon: int) -> Factorization:
        check_own_size(horizon)
        try:
            built = build(horizon)
        except EvercountError:
            raise
        except Exception as error:
            raise ParameterError(
                f"{name!r} could not be built for {horizon} ticks: {error!r:.200}"
            ) from error
        return as_dense(built, horizon, name)

    FACTORIZATIONS[name] = checked


__all__ = [
    "BUILT_IN",
    "ENDLESS",
    "FACTORIZATIONS",
    "Anytime",
    "Balanced",
    "BinaryTree",
    "Dense",
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
    "register_factorization",
    "tick_grid",
]
