"""Trees for pure privacy whose sums over the last ticks have an error that does not grow with time."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_horizon
from evercount.factorizations.laplace_base import LARGEST_TICKS
from evercount.factorizations.laplace_trees import DigitTree

_SOME = 4096


class WindowTree(DigitTree):
    """A digit tree whose highest place has no end: short trees one after the other, for sums of the last ticks.

    A sum of `width` ticks needs few nodes of the highest level, however long the stream: so a few levels are enough,
    each node has a large part of ε, and the error of such a sum does not grow with time. One level is noise on every
    tick. The noise of the running total grows.

    **Guarantee.** As `DigitTree`: every tick lies in at most `levels` nodes. Proof:
    `mechanisms/laplace_noise.proof.md`, lemma 1. Test:
    tests/mechanisms/test_laplace_windows.py::test_every_tick_lies_in_at_most_levels_nodes.
    """

    def __init__(self, width: int, horizon: int | None, base: int, levels: int) -> None:
        super().__init__(1, base, balanced=levels > 1)
        self.horizon = check_horizon(horizon, unbounded=True)
        if self.horizon is not None and self.horizon > LARGEST_TICKS:
            raise ParameterError(f"pure trees serve at most 2^40 ticks, the horizon is {horizon}")
        self.width, self.levels = width, levels
        self.size = base ** (levels - 1)
        """Ticks of a node of the highest level; after the first window errors repeat with this period."""
        self.column_norm = math.sqrt(levels) * (1 + 1e-9)
        self.name = f"pure-window-{width}"

    def digits(self, ticks: npt.ArrayLike) -> IntArray:
        """The digit of the highest place grows without end."""
        t = np.asarray(ticks, dtype=np.int64)
        index = [self._index(t, level) for level in range(self.levels)]
        lower = [index[i] - self.base * index[i + 1] for i in range(self.levels - 1)]
        return np.stack([*lower, index[-1]], axis=-1)

    def tops(self, ticks: npt.ArrayLike) -> IntArray:
        """How many whole nodes of the highest level the prefix of each tick uses."""
        return self._index(np.asarray(ticks, dtype=np.int64), self.levels - 1)

    def public_parameters(self) -> tuple[FloatArray, ...]:
        return (np.asarray([self.base, self.levels], np.float64),)

    def suspects(self, ticks: int) -> list[int]:
        """The running total has its largest error near the end."""
        return list(range(max(1, ticks - min(2 * self.size, _SOME)), ticks + 1))

    def worst_row(self) -> tuple[int, float]:
        if self.horizon is None:
            return super().worst_row()
        ticks = np.asarray(self.suspects(self.horizon))
        norms = self.row_norms(ticks)
        at = int(np.argmax(norms))
        return int(ticks[at]), float(norms[at])

    def worst_window(self) -> float:
        """The largest norm of a sum over the last `width` ticks: of all, or of some thousand where there are more."""
        last = self.width + self.size if self.horizon is None else min(self.horizon, self.width + self.size)
        ticks = np.arange(1, last + 1)
        if last > _SOME:
            ends = [np.linspace(first, last, _SOME // 2).astype(np.int64) for first in (1, max(last - _SOME, 1))]
            ticks = np.unique(np.concatenate(ends))
        return math.sqrt(int(self.apart(np.maximum(ticks - self.width, 0), ticks).max()))


class FreshLaplace(WindowTree):
    """`fresh` for δ = 0: new Laplace noise on every tick's own number."""

    def __init__(self, horizon: int | None) -> None:
        super().__init__(1, horizon, 3, 1)
        self.name = "fresh"


@lru_cache(maxsize=256)
def window_tree(width: int, horizon: int | None) -> WindowTree:
    """The tree with the least worst std of a sum over the last `width` ticks among a few hundred, by exact errors."""
    span = width if horizon is None else min(width, horizon)
    shapes = {(3, 1)}
    for levels in range(2, 8):
        for factor in np.geomspace(0.4, 4.0, 32):
            base = 2 * round((span ** (1 / levels) * factor - 1) / 2) + 1
            if 3 <= base <= 1000 and base ** (levels - 1) <= 4 * span:
                shapes.add((base, levels))
    trees = [WindowTree(width, horizon, base, levels) for base, levels in sorted(shapes)]
    return min(trees, key=lambda tree: tree.levels * tree.worst_window())
