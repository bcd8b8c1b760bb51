"""Names of the mechanisms for pure privacy, and which one is the default."""

from __future__ import annotations

import re
from functools import lru_cache

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations.base import check_known_horizon
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_base import PureFactorization
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, best_base
from evercount.factorizations.laplace_windows import FreshLaplace, window_tree

PURE = ("bridge", "pure-tree", "pure-tree-19", "pure-binary")  # mechanisms for a known horizon, best first
PURE_ENDLESS = ("endless-bridge", "pure-hybrid", "pure-hybrid-binary")
"""Mechanisms for a stream without a horizon, best first."""
_NAME = re.compile(r"pure-tree-(\d+)")
_WINDOW = re.compile(r"pure-window-([1-9][0-9]{0,7})")


def pure_factorization(name: str | None, horizon: int | None) -> PureFactorization:
    """The pure mechanism of that name; None chooses the bridge, or the endless bridge without a horizon."""
    # Other names: "pure-tree-k" for an odd k, "pure-window-7" for sums over the last 7 ticks.
    known = (*PURE, *PURE_ENDLESS, "fresh")
    if name is None:
        name = "endless-bridge" if horizon is None else "bridge"
    if name in PURE_ENDLESS:
        if horizon is not None:
            raise ParameterError(f"{name} is for horizon=None; with a horizon 'bridge' has less error")
        return EndlessBridge() if name == "endless-bridge" else _hybrid(name == "pure-hybrid-binary")
    if name == "fresh":
        return FreshLaplace(horizon)
    if isinstance(name, str) and (wide := _WINDOW.fullmatch(name)):
        return window_tree(int(wide[1]), horizon)
    if name not in known and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UnknownName("factorization for delta=0", name, known)
    if horizon is None:
        raise ParameterError(f"{name!r} needs a known horizon; without one use 'endless-bridge' (or give a horizon)")
    return _tree(name, check_known_horizon(horizon))


_hybrid = lru_cache(maxsize=2)(HybridTree)


@lru_cache(maxsize=64)
def _tree(name: str, horizon: int) -> PureFactorization:
    """One object for all that ask: it keeps what it once found out about its errors."""
    if name == "bridge":
        return Bridge(horizon)
    if name == "pure-binary":
        return DigitTree(horizon, 2)
    match = _NAME.fullmatch(name)
    return DigitTree(horizon, int(match[1]) if match else best_base(horizon), True)


def is_pure_name(name: str | None) -> bool:
    """Whether a factorization of this name has Laplace noise and δ = 0."""
    return name is not None and (name in PURE + PURE_ENDLESS or bool(_NAME.fullmatch(name) or _WINDOW.fullmatch(name)))
