"""The endless bridge: pure privacy for streams without a horizon.

Epoch 0 holds the ticks 1 … 16, epoch e ≥ 1 the ticks 16^e + 1 … 16^(e+1). Each epoch has a bridge of its own, whose
highest level is one node: the total of the epoch. The noise of a tick is that of the totals of all earlier epochs plus
that of its epoch's bridge, which ends at the noise of its own total. A total has a share of ε between 0.30 and
0.04, so few totals cost little, and the next epoch begins with little more noise than the last one ended with.
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.bridge_blocks import largest_scales
from evercount.factorizations.bridge_table import ENDLESS, Design
from evercount.factorizations.laplace_base import LARGEST_TICKS, PureFactorization, node_variance
from evercount.factorizations.laplace_bridge import NARROW, UNITS, Bridge

GROWTH = 16  # an epoch ends at this many times the tick where the one before ended; also the branching inside an epoch
ENDS = np.asarray([0, *(GROWTH**epoch for epoch in range(1, len(ENDLESS) + 1))])
"""Epoch e holds the ticks ENDS[e] + 1 … ENDS[e + 1]."""


class EpochBridge(Bridge):
    """The bridge of one epoch; its ticks are counted from the start of the epoch."""

    name = "endless-bridge"

    def beside_total(self, ticks: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(weight of the epoch's total, variance and largest scale of the rest) of the noise at each tick, rate 1."""
        # Sorted ticks. Of continuous noise, as the last two of `laplace_errors`; the rest is independent of the total.
        weights, scales = np.zeros((2, 2, 1))  # at both ends of the blocks
        for level, _, split, row, child in self._descend(ticks):
            alpha = split.alpha / self._one
            if level == 0:
                weight, scale = np.asarray([[0.0, 1.0]]), np.zeros((1, 2))
            else:
                weight = alpha * weights[0][:, None] + (1 - alpha) * weights[1][:, None]
                scale = largest_scales(UNITS / split.shares, alpha, *scales)
            if level + 1 < self.levels:
                _, first = np.unique((ticks - 1) // self._size[level], return_index=True)
                r, c = row[first], child[first]
                weights, scales = (np.stack([ends[r, c], ends[r, c + 1]]) for ends in (weight, scale))
        of_total = weight[row, child + 1]
        rest = split.variance[row, child + 1] - 2 * (of_total * UNITS / self.top_shares[0]) ** 2
        return of_total, np.maximum(rest, 0.0), scale[row, child + 1]


@lru_cache(maxsize=64)
def epoch_bridge(epoch: int, integers: bool, ticks: int | None = None) -> EpochBridge:
    """The bridge of an epoch, or that of its first `ticks` ticks."""
    coefficients = ENDLESS[epoch]
    shape = (1, *(GROWTH,) * epoch, GROWTH - (epoch > 0))
    return EpochBridge(math.prod(shape) if ticks is None else ticks, Design(shape, coefficients), integers)


class EndlessBridge(PureFactorization):
    """The bridge without a horizon; the least error of the pure mechanisms that need none. It serves 2^40 ticks.

    **Guarantee.** A tick lies in the tree of one epoch, and the shares on its path, the epoch's total included, add up
    to UNITS exactly. L·R = M in exact arithmetic. So M·x + L·z with discrete Laplace z of rate ε·share/(UNITS·Δ₁) per
    node is ε-DP with δ = 0, for adaptive inputs. Proof: `laplace_bridge.proof.md`, "Without a horizon". Tests:
    tests/factorizations/test_endless_bridge.py::test_left_times_right_is_the_count_in_integers,
    tests/factorizations/test_endless_bridge.py::test_shares_of_every_leaf_add_up_exactly,
    tests/mechanisms/test_endless_noise.py::test_attack_on_the_joint_release.
    """

    name = "endless-bridge"
    horizon = None
    column_norm = math.inf

    def __init__(self, integers: bool = False) -> None:
        self.integers = integers
        self.levels = len(ENDLESS) + 1

    def for_rate(self, rate: float) -> EndlessBridge:
        """As `Bridge.for_rate`: in whole numbers where the noise of the first tick is narrower than the grid."""
        narrow = math.sqrt(2) / rate * float(self.row_norms([1])[0]) < NARROW
        return EndlessBridge(integers=True) if narrow else self

    def epochs(self, ticks: npt.ArrayLike) -> IntArray:
        """The epoch that holds each tick."""
        at = self._check_ticks(ticks)
        if at.size and int(at.max()) > LARGEST_TICKS:
            raise ParameterError(f"pure trees serve at most 2^40 ticks, got tick {int(at.max())}")
        return np.asarray(np.searchsorted(ENDS, at, side="left") - 1)

    def bridge(self, epoch: int) -> EpochBridge:
        """The bridge of an epoch."""
        return epoch_bridge(epoch, self.integers)

    @cached_property
    def total_parts(self) -> FloatArray:
        """The part of ε that the total of each epoch has."""
        return np.asarray([self.bridge(epoch).top_shares[0] for epoch in range(len(ENDLESS))]) / UNITS

    @property
    def bits(self) -> int:
        """Binary places of the noise of the last epoch before it is rounded to the grid; 0 for whole numbers."""
        return self.bridge(len(ENDLESS) - 1).bits

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the epochs' shares and coefficients, as `Bridge.fingerprint`."""
        prints = (self.bridge(epoch).fingerprint for epoch in range(len(ENDLESS)))
        return hashlib.sha256("".join(prints).encode()).hexdigest()[:16]

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The epochs, their trees, the precision of α and the numbers that fix the shares."""
        arrays = [array for epoch in range(len(ENDLESS)) for array in self.bridge(epoch).public_parameters()]
        return (ENDS.astype(np.float64), *arrays)

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell in the last epoch, and the noise of all totals before it."""
        return 8 + self.bridge(len(ENDLESS) - 1).state_bytes

    def laplace_errors(self, ticks: npt.ArrayLike, rate: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The totals of earlier epochs, and the bridge of the tick's own epoch."""
        at, epochs = np.asarray(ticks), self.epochs(ticks)
        totals = rate * self.total_parts
        before = np.zeros((3, len(ENDLESS) + 1))
        before[:2, 1:] = np.cumsum([node_variance(totals), 2 / totals**2], axis=1)
        before[2, 1:] = np.maximum.accumulate(1 / totals)
        exact, plain, largest = before[:, epochs]
        for epoch in np.unique(epochs):
            here = epochs == epoch
            own = self.bridge(int(epoch)).laplace_errors(at[here] - ENDS[epoch], rate)
            exact[here] += own[0]
            plain[here] += own[1]
            largest[here] = np.maximum(largest[here], own[2])
        return exact, plain, largest

    def suspects(self, ticks: int) -> list[int]:
        worst = []
        for epoch in range(int(self.epochs([ticks])[0]) + 1):
            inside = min(ticks, int(ENDS[epoch + 1])) - int(ENDS[epoch])
            worst.append(int(ENDS[epoch]) + epoch_bridge(epoch, self.integers, inside).worst_row()[0])
        return worst

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(self._pair_norms(np.asarray([earlier]), np.asarray([later]))[0])

    def window_norms(self, width: int, ticks: IntArray) -> FloatArray:
        return self._pair_norms(np.maximum(ticks - width, 0), ticks)

    def _pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        first, last = self.epochs(np.maximum(earlier, 1)), self.epochs(later)
        norms = np.empty(len(later))
        for a, b in set(zip(first.tolist(), last.tolist(), strict=True)):
            here = (first == a) & (last == b)
            start, stop = earlier[here] - int(ENDS[a]), later[here] - int(ENDS[b])
            if a == b:
                norms[here] = self.bridge(a).pair_norms(start, stop)
                continue
            rest = self.bridge(a).pair_norms(start, np.full(len(start), int(ENDS[a + 1] - ENDS[a])))
            between = float((1 / self.total_parts[a + 1 : b] ** 2).sum())
            norms[here] = np.sqrt(rest**2 + between + self.bridge(b).row_norms(stop) ** 2)
        return norms

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) of the first ticks; rows of R carry the nodes' shares of ε."""
        size = self._check_dense(ticks)
        rows, columns = [], []
        for epoch in range(int(self.epochs([size])[0]) + 1):
            start, stop = int(ENDS[epoch]), min(int(ENDS[epoch + 1]), size)
            left, right = self.bridge(epoch).dense(stop - start)
            tall, wide = np.zeros((size, left.shape[1])), np.zeros((len(right), size))
            tall[start:stop], wide[:, start:stop] = left, right
            tall[stop:, 0] = 1 / self.total_parts[epoch]  # the first node of a bridge is the total
            columns.append(tall)
            rows.append(wide)
        return np.hstack(columns), np.vstack(rows)
