"""The mechanisms for pure privacy by name, with two kinds of trees: the endless bridge, and trees
for recent sums.

The endless bridge serves streams without a horizon. Epoch 0 holds the ticks 1 … 16, epoch e ≥ 1 the
ticks 16^e + 1 … 16^(e+1). Each epoch has a bridge of its own, whose highest level is one node: the
total of the epoch. The noise of a tick is that of the totals of all earlier epochs plus that of its
epoch's bridge, which ends at the noise of its own total. A total has a share of ε between 0.30 and
0.04, so few totals cost little, and the next epoch begins with little more noise than the last one
ended with.

A `WindowTree` is for sums of the last ticks: the error of such a sum does not grow with time.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations.laplace_bridge import (
    ALL_TICKS,
    ENDLESS,
    NARROW,
    UNITS,
    Bridge,
    Design,
    largest_scales,
)
from evercount.factorizations.laplace_trees import (
    DigitTree,
    EndlessTree,
    HybridTree,
    PureFactorization,
    Square,
    best_base,
    check_pure_horizon,
    node_variance,
)

# an epoch ends at this many times the tick where the one before ended; also the branching inside an
# epoch
GROWTH = 16
ENDS = np.asarray([0, *(GROWTH**epoch for epoch in range(1, len(ENDLESS) + 1))])
"""Epoch e holds the ticks ENDS[e] + 1 … ENDS[e + 1]."""


class EpochBridge(Bridge):
    """The bridge of one epoch; its ticks are counted from the start of the epoch."""

    name = "endless-bridge"

    def apart_from_total(self, ticks: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(weight of the epoch's total, variance and largest scale of the rest) of the noise at
        each tick, rate 1."""
        # Sorted ticks. Of continuous noise, as the last two of `laplace_errors`; the rest is
        # independent of the total.
        weights, scales = np.zeros((2, 2, 1))  # at both ends of the blocks
        for level, _, split, row, child in self._descend(ticks):
            alpha = split.alpha / self._one
            if level == 0:
                weight = np.asarray([[0.0, 1.0]])
                scale = np.zeros((1, 2))
            else:
                weight = alpha * weights[0][:, None] + (1 - alpha) * weights[1][:, None]
                scale = largest_scales(UNITS / split.shares, alpha, *scales)
            if level + 1 < self.levels:
                _, first = np.unique((ticks - 1) // self._size[level], return_index=True)
                r = row[first]
                c = child[first]
                weights, scales = (
                    np.stack([ends[r, c], ends[r, c + 1]]) for ends in (weight, scale)
                )
        of_total = weight[row, child + 1]
        rest = split.variance[row, child + 1] - 2 * (of_total * UNITS / self.top_shares[0]) ** 2
        return of_total, np.maximum(rest, 0.0), scale[row, child + 1]


@lru_cache(maxsize=64)
def epoch_bridge(epoch: int, integers: bool, ticks: int | None = None) -> EpochBridge:
    """The bridge of an epoch, or that of its first `ticks` ticks."""
    coefficients = ENDLESS[epoch]
    shape = (1, *(GROWTH,) * epoch, GROWTH - (epoch > 0))
    return EpochBridge(
        math.prod(shape) if ticks is None else ticks, Design(shape, coefficients), integers
    )


class EndlessBridge(EndlessTree):
    """The bridge without a horizon; the least error of the pure mechanisms that need none. It
    serves 2^40 ticks.

    **Guarantee.** A tick lies in the tree of one epoch, and the shares on its path, the epoch's
    total included, add up to UNITS exactly. L·R = M in exact arithmetic. So M·x + L·z with discrete
    Laplace z of rate ε·share/(UNITS·Δ₁) per node is ε-DP with δ = 0, for adaptive inputs. Proof:
    `laplace_bridge.proof.md`, "Without a horizon". Tests:
    tests/factorizations/test_endless_bridge.py::test_left_times_right_is_the_count_in_integers,
    tests/factorizations/test_endless_bridge.py::test_shares_of_every_leaf_add_up_exactly,
    tests/mechanisms/test_endless_noise.py::test_attack_on_the_joint_release.
    """

    name = "endless-bridge"
    ends = ENDS

    def __init__(self, integers: bool = False) -> None:
        self.integers = integers
        self.levels = len(ENDLESS) + 1
        self.bits = self.tree(len(ENDLESS) - 1).bits  # of the last epoch; 0 for whole numbers

    def for_rate(self, rate: float) -> EndlessBridge:
        """As `Bridge.for_rate`: in whole numbers where the noise of the first tick is narrower than
        the grid."""
        narrow = math.sqrt(2) / rate * float(self.row_norms([1])[0]) < NARROW
        return _endless(True) if narrow else self

    def tree(self, epoch: int, ticks: int | None = None) -> EpochBridge:
        return epoch_bridge(epoch, self.integers, ticks)

    @cached_property
    def total_parts(self) -> FloatArray:
        """The part of ε that the total of each epoch has."""
        return np.asarray([self.tree(epoch).top_shares[0] for epoch in range(len(ENDLESS))]) / UNITS

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the epochs' shares and coefficients, as `Bridge.fingerprint`."""
        prints = (self.tree(epoch).fingerprint for epoch in range(len(ENDLESS)))
        return hashlib.sha256("".join(prints).encode()).hexdigest()[:16]

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The epochs, their trees, the precision of α and the numbers that fix the shares."""
        arrays = [
            array for epoch in range(len(ENDLESS)) for array in self.tree(epoch).public_parameters()
        ]
        return (ENDS.astype(np.float64), *arrays)

    def before(self, rate: float) -> FloatArray:
        totals = rate * self.total_parts
        sums = np.cumsum([node_variance(totals), 2 / totals**2], axis=1)
        return np.pad(np.vstack([sums, np.maximum.accumulate(1 / totals)]), ((0, 0), (1, 0)))

    def inside(
        self, epoch: int, ticks: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.tree(epoch).laplace_errors(ticks, rate)

    def factors(self, epoch: int, ticks: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The first node of a bridge is its total."""
        left, right = self.tree(epoch).dense(ticks)
        later = np.zeros(left.shape[1])
        later[0] = 1 / self.total_parts[epoch]
        return left, right, later

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        return np.sqrt(self._apart(earlier, later, lambda share: 1 / np.square(share)))

    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        """As `PureFactorization._apart`; `earlier` may be 0."""
        first = self.epochs(np.maximum(earlier, 1))
        last = self.epochs(later)
        squares = np.empty(len(later))
        for a, b in set(zip(first.tolist(), last.tolist(), strict=True)):
            here = (first == a) & (last == b)
            start = earlier[here] - int(ENDS[a])
            stop = later[here] - int(ENDS[b])
            if a == b:
                squares[here] = self.tree(a)._apart(start, stop, square)
                continue
            rest = self.tree(a)._apart(
                start, np.full(len(start), int(ENDS[a + 1] - ENDS[a])), square
            )
            between = float(square(self.total_parts[a + 1 : b]).sum())
            squares[here] = rest + between + self.tree(b)._apart(np.zeros_like(stop), stop, square)
        return squares

    def rounding_variance(self, earlier: IntArray, later: IntArray) -> FloatArray:
        return self._rounding_at(later) + np.where(
            earlier > 0, self._rounding_at(np.maximum(earlier, 1)), 0.0
        )

    def _rounding_at(self, ticks: IntArray) -> FloatArray:
        epochs = self.epochs(ticks)
        out = np.zeros(ticks.shape)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            out[here] = self.tree(epoch)._rounding_at(ticks[here] - int(ENDS[epoch]))
        return out

    def stated_suspects(self, ticks: int) -> IntArray:
        """All ticks; beyond 2^21 of them, those that `Bridge.stated_suspects` has of each epoch."""
        if ticks <= ALL_TICKS:
            return np.arange(1, ticks + 1)
        every = []
        for epoch in range(int(self.epochs([ticks])[0]) + 1):
            start = int(ENDS[epoch])
            stop = min(ticks, int(ENDS[epoch + 1]))
            every.append(start + self.tree(epoch, stop - start).stated_suspects(stop - start))
        return np.concatenate(every)


_SOME = 4096


class WindowTree(DigitTree):
    """A digit tree whose highest place has no end: short trees one after the other, for sums of the
    last ticks.

    A sum of `width` ticks needs few nodes of the highest level, however long the stream: so a few
    levels are enough, each node has a large part of ε, and the error of such a sum does not grow
    with time. One level is noise on every tick. The noise of the running total grows.

    **Guarantee.** As `DigitTree`: every tick lies in at most `levels` nodes. Proof:
    `mechanisms/laplace_noise.proof.md`, lemma 1. Test:
    tests/mechanisms/test_laplace_windows.py::test_every_tick_lies_in_at_most_levels_nodes.
    """

    def __init__(
        self, width: int, horizon: int | None, base: int, levels: int, name: str = ""
    ) -> None:
        super().__init__(1, base)
        self.horizon = None if horizon is None else check_pure_horizon(horizon)
        self.width = width
        self.levels = levels
        self.size = base ** (levels - 1)
        """Ticks of a node of the highest level; after the first window errors repeat with this
        period."""
        self.column_norm = math.sqrt(levels) * (1 + 1e-9)
        self.name = name or f"pure-window-{width}"

    @property
    def state_bytes(self) -> int:
        """The noise of the last tick."""
        return 8

    def _index(self, ticks: IntArray, level: int) -> IntArray:
        """Nothing lies above the highest place, whose digit grows without end."""
        if level < self.levels:
            return super()._index(ticks, level)
        return np.zeros_like(ticks)

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
        return self._worst_of(self.suspects(self.horizon))

    def worst_window(self) -> float:
        """The largest norm of a sum over the last `width` ticks: of all, or of some thousand where
        there are more."""
        if self.horizon is None:
            last = self.width + self.size
        else:
            last = min(self.horizon, self.width + self.size)
        ticks = np.arange(1, last + 1)
        if last > _SOME:
            ends = [
                np.linspace(first, last, _SOME // 2).astype(np.int64)
                for first in (1, max(last - _SOME, 1))
            ]
            ticks = np.unique(np.concatenate(ends))
        return math.sqrt(int(self.apart(np.maximum(ticks - self.width, 0), ticks).max()))


@lru_cache(maxsize=256)
def window_tree(width: int, horizon: int | None) -> WindowTree:
    """The tree with the least worst std of a sum over the last `width` ticks among a few hundred,
    by exact errors."""
    span = width if horizon is None else min(width, horizon)
    shapes = {(3, 1)}
    for levels in range(2, 8):
        for factor in np.geomspace(0.4, 4.0, 32):
            base = 2 * round((span ** (1 / levels) * factor - 1) / 2) + 1
            if 3 <= base <= 1000 and base ** (levels - 1) <= 4 * span:
                shapes.add((base, levels))
    trees = [WindowTree(width, horizon, base, levels) for base, levels in sorted(shapes)]
    return min(trees, key=lambda tree: tree.levels * tree.worst_window())


# mechanisms for a known horizon, best first
PURE = ("bridge", "pure-tree", "pure-tree-19", "pure-binary")
PURE_ENDLESS = ("endless-bridge", "pure-hybrid", "pure-hybrid-binary")
"""Mechanisms for a stream without a horizon, best first."""
_NAME = re.compile(r"pure-tree-(?!0*2$)([0-9]+)")  # base 2 is pure-binary
_WINDOW = re.compile(r"pure-window-([1-9][0-9]{0,7})")


def pure_factorization(name: str | None, horizon: int | None) -> PureFactorization:
    """The pure mechanism of that name; None chooses the bridge, or the endless bridge without a
    horizon."""
    # Other names: "pure-tree-k" for an odd k, "pure-window-7" for sums over the last 7 ticks.
    names = (*PURE, *PURE_ENDLESS, "fresh")
    if name is None:
        name = "endless-bridge" if horizon is None else "bridge"
    if name in PURE_ENDLESS:
        if horizon is not None:
            raise ParameterError(
                f"{name} is for horizon=None; with a horizon 'bridge' has less error"
            )
        if name == "endless-bridge":
            return _endless(False)
        return _hybrid(name == "pure-hybrid-binary")
    if name == "fresh":
        return WindowTree(1, horizon, 3, 1, name)  # new Laplace noise on every tick's own number
    if isinstance(name, str) and (wide := _WINDOW.fullmatch(name)):
        return window_tree(int(wide[1]), horizon)
    if name not in names and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise UnknownName("factorization for delta=0", name, (*names, "terrace"))
    if horizon is None:
        raise ParameterError(
            f"{name!r} needs a known horizon; without one use 'endless-bridge' (or give a horizon)"
        )
    return _tree(name, check_pure_horizon(horizon))


_hybrid = lru_cache(maxsize=2)(HybridTree)
_endless = lru_cache(maxsize=2)(EndlessBridge)


@lru_cache(maxsize=64)
def _tree(name: str, horizon: int) -> PureFactorization:
    """One object for all that ask: it keeps what it once found out about its errors."""
    if name == "bridge":
        return Bridge(horizon)
    if name == "pure-binary":
        return DigitTree(horizon)
    match = _NAME.fullmatch(name)
    return DigitTree(horizon, int(match[1]) if match else best_base(horizon))


def is_pure_name(name: str | None) -> bool:
    """Whether a factorization of this name has Laplace noise and δ = 0."""
    return name is not None and (
        name in (*PURE, *PURE_ENDLESS, "terrace")
        or bool(_NAME.fullmatch(name) or _WINDOW.fullmatch(name))
    )
