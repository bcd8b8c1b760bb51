"""Dyadic trees: the binary mechanism and Honaker's refinement of it.

A prefix of t ticks is the union of dyadic intervals, one per set bit of t. Ordered by where they end, the intervals
that are ever used form a square lower-triangular R (a Fenwick tree): row t covers the last lowbit(t) ticks up to t.
The textbook tree also has right children. The binary mechanism never reads them, and they do not change the column
norm; Honaker's variant reads them, so it draws normals for all nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evercount._arrays import AnyArray, FloatArray, IntArray
from evercount.factorizations.base import NORM_ROUNDING_MARGIN, Factorization, State, check_known_horizon


def low_bit_level(ticks: IntArray) -> IntArray:
    """The position of the lowest set bit."""
    return np.asarray(np.bitwise_count((ticks & -ticks) - 1), dtype=np.int64)


def tree_column_norm(horizon: int) -> float:
    """√(number of levels): one tick lies in one node of each level."""
    return float(np.sqrt(horizon.bit_length())) * (1 + NORM_ROUNDING_MARGIN)


def _ticks_with_most_ones(horizon: int) -> list[int]:
    """Candidates for the worst tick of a tree, which has as many set bits as possible."""
    # For every set bit of T + 1: the bits above it kept, itself cleared, all bits below it set.
    end = horizon + 1
    return [t for bit in range(end.bit_length()) if end >> bit & 1 and (t := (end >> bit << bit) - 1) > 0]


def prefix_sums(values: AnyArray, prefixes: AnyArray, start: int) -> tuple[AnyArray, AnyArray]:
    """Add up nodes along the chains of the tree: noise_t = values_t + noise_{t − lowbit(t)} for ticks start+1, …."""
    # prefixes[j] is the noise at tick `start` with its bits below j cleared; no later tick reads others.
    stop = start + len(values)
    noise = values.copy()
    for level in range(stop.bit_length() - 1, -1, -1):
        first = ((start >> level) + 1 | 1) << level  # the next tick whose lowest set bit is `level`
        at, half = first - start - 1, 1 << level
        if half > at < len(values):
            noise[at] += prefixes[level]
            at += 2 * half
        later = noise[at :: 2 * half]
        later += noise[at - half :: 2 * half][: len(later)]
    after = prefixes.copy()
    for level in range(len(prefixes)):
        tick = stop >> level << level
        if tick > start:
            after[level] = noise[tick - start - 1]
    return noise, after


class _DyadicTree(Factorization):
    """What both streaming trees share: the column norm, the Gram matrix and where the worst tick lies."""

    def __init__(self, horizon: int) -> None:
        self.horizon: int = check_known_horizon(horizon)
        self.column_norm = tree_column_norm(self.horizon)

    @property
    def falling_gram(self) -> bool:
        """An interval that holds i and k holds all ticks between."""
        return True

    def worst_row(self) -> tuple[int, float]:
        """Exact."""
        ticks = _ticks_with_most_ones(self.horizon)
        norms = self.row_norms(np.asarray(ticks))
        return ticks[int(np.argmax(norms))], float(norms.max())


class BinaryTree(_DyadicTree):
    """The binary mechanism (Dwork et al. 2010; Chan, Shi and Song 2011): std at tick t is σ·√popcount(t).

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> BinaryTree(1023).worst_row()  # tick 1023 has ten set bits
    (1023, 3.1622776601683795)
    """

    name = "binary-tree"

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        return np.sqrt(np.bitwise_count(self._check_ticks(ticks)).astype(np.float64))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The intervals that only one of the two prefixes uses."""
        earlier, later = self._check_pair(earlier, later)
        below = (1 << (earlier ^ later).bit_length()) - 1
        return float(np.sqrt((earlier & below).bit_count() + (later & below).bit_count()))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        left, right = np.zeros((size, size)), np.zeros((size, size))
        for t in range(1, size + 1):
            right[t - 1, t - (t & -t) : t] = 1.0
            chain = t
            while chain:
                left[t - 1, chain - 1] = 1.0
                chain &= chain - 1
        return left, right

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros((self.horizon.bit_length() + 1, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        noise, prefixes = prefix_sums(z, state.arrays[0], state.tick)
        return noise, State(state.tick + ticks, (prefixes,))


class Honaker(_DyadicTree):
    """Honaker's variant, online: each interval's count is estimated from all nodes at and below it, all of them past.

    The estimate of an interval of 2^h ticks has variance v_h with v_0 = 1, v_h = 2v_{h−1}/(2v_{h−1}+1), and weight
    v_h on its own node. The column norm is that of the full tree.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> tick, norm = Honaker(1023).worst_row()
    >>> tick, round(norm, 3)
    (1023, 2.409)
    """

    name = "honaker"

    def __init__(self, horizon: int) -> None:
        super().__init__(horizon)
        self.variances = node_variances(self.horizon.bit_length())

    def draws(self, start: int, stop: int) -> int:
        """One normal for every node that completes."""
        return (2 * stop - stop.bit_count()) - (2 * start - start.bit_count())

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """Σ v_h over the set bits of t."""
        t = self._check_ticks(ticks)
        bits = (t[..., np.newaxis] >> np.arange(len(self.variances))) & 1
        return np.asarray(np.sqrt(bits @ self.variances))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The largest interval that only `later` uses holds those of `earlier`: a covariance."""
        earlier, later = self._check_pair(earlier, later)
        if earlier == later:
            return 0.0
        top = (earlier ^ later).bit_length() - 1
        v = self.variances
        total = v[top] + sum(v[h] for h in range(top) if later >> h & 1)
        for h in range(top):
            if earlier >> h & 1:
                total += v[h] * (1 - 2 * float(np.prod(1 - v[h + 1 : top + 1])))
        return float(np.sqrt(total))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """L is ticks × nodes, R is nodes × ticks."""
        size = self._check_dense(ticks)
        nodes = self.draws(0, size)
        left, _ = self.block(self.initial(nodes), np.eye(nodes), size)
        right = np.zeros((nodes, size))
        row = 0
        for t in range(1, size + 1):
            for level in range((t & -t).bit_length()):
                right[row, t - (1 << level) : t] = 1.0
                row += 1
        return left, right

    def initial(self, cells: int = 1) -> State:
        """Running noises and the newest interval estimate per level."""
        levels = self.horizon.bit_length()
        return State(0, (np.zeros((levels + 1, cells)), np.zeros((levels, cells))))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        prefixes, newest = state.arrays
        start, stop = state.tick, state.tick + ticks

        def combine(level: int, own: FloatArray, pair: FloatArray) -> FloatArray:
            v = self.variances[level]
            return np.asarray(v * own + (1 - v) * pair)

        values, after = node_estimates(z, newest, start, stop, combine)
        noise, prefixes = prefix_sums(values, prefixes, start)
        return noise, State(stop, (prefixes, after))


def node_estimates(
    z: AnyArray, newest: AnyArray, start: int, stop: int, combine: Callable[[int, AnyArray, AnyArray], AnyArray]
) -> tuple[AnyArray, AnyArray]:
    """(largest node that ends at each tick of start+1 … stop, newest of each level) of `Honaker`, in any arithmetic."""
    # `combine` makes a node from (level, own normal, sum of its children). Normals of one tick are ordered by level.
    numbers = np.arange(start + 1, stop + 1)
    offset = np.concatenate([[0], np.cumsum(1 + low_bit_level(numbers))])  # index of each tick's first normal
    values = z[offset[:-1]]  # level 0: every tick
    estimates, after = values, newest.copy()
    if len(numbers):
        after[0] = values[-1]
    for level in range(1, stop.bit_length()):
        first = ((start >> level) + 1) << level
        ends = np.arange(first, stop + 1, 1 << level)
        if not len(ends):
            break
        halves = np.concatenate([newest[level - 1 : level], estimates])
        left = 1 - (start >> level - 1 & 1)  # the newest is a left half if the number of them is odd
        pair = halves[left:][: 2 * len(ends)]
        estimates = combine(level, z[offset[ends - start - 1] + level], pair[::2] + pair[1::2])
        values[first - start - 1 :: 1 << level] = estimates
        after[level] = estimates[-1]
    return values, after


def node_variances(levels: int) -> FloatArray:
    """v_0 … v_{levels−1} of `Honaker`."""
    v = [1.0]
    while len(v) < levels:
        v.append(2 * v[-1] / (2 * v[-1] + 1))
    return np.asarray(v)
