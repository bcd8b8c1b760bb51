"""Dyadic trees: the binary mechanism and Honaker's two refinements of it.

A prefix of t ticks is the union of dyadic intervals, one per set bit of t. Ordered by where they
end, the intervals that are ever used form a square lower-triangular R (a Fenwick tree): row t
covers the last lowbit(t) ticks up to t. The textbook tree also has right children. The binary
mechanism never reads them, and they do not change the column norm; Honaker's variant reads them, so
it draws normals for all nodes. `honaker-full` is the best linear estimate of every prefix from all
nodes, future ones too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evercount._validate import AnyArray, FloatArray, IntArray
from evercount.factorizations.base import (
    NORM_ROUNDING_MARGIN,
    Factorization,
    State,
    check_known_horizon,
)


def low_bit_level(ticks: IntArray) -> IntArray:
    """The position of the lowest set bit."""
    return np.asarray(np.bitwise_count((ticks & -ticks) - 1), dtype=np.int64)


def tree_column_norm(horizon: int) -> float:
    """√(number of levels): one tick lies in one node of each level."""
    return float(np.sqrt(horizon.bit_length())) * (1 + NORM_ROUNDING_MARGIN)


def prefix_sums(values: AnyArray, prefixes: AnyArray, start: int) -> tuple[AnyArray, AnyArray]:
    """Add up nodes along the chains of the tree: noise_t = values_t + noise_{t − lowbit(t)} for
    ticks start+1, …."""
    # prefixes[j] is the noise at tick `start` with its bits below j cleared; no later tick reads
    # others.
    stop = start + len(values)
    noise = values.copy()
    for level in range(stop.bit_length() - 1, -1, -1):
        first = ((start >> level) + 1 | 1) << level  # the next tick whose lowest set bit is `level`
        at = first - start - 1
        half = 1 << level
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
    """What both streaming trees share: the column norm, the Gram matrix and where the worst tick
    lies."""

    falling_gram = True  # an interval that holds i and k holds all ticks between

    def __init__(self, horizon: int) -> None:
        self.horizon: int = check_known_horizon(horizon)
        self.column_norm = tree_column_norm(self.horizon)

    def worst_row(self) -> tuple[int, float]:
        """Exact: the worst tick has as many set bits as possible."""
        # For every set bit of T + 1: the bits above it kept, itself cleared, all bits below it set.
        end = self.horizon + 1
        ticks = ((end >> bit << bit) - 1 for bit in range(end.bit_length()) if end >> bit & 1)
        return self._worst_of([tick for tick in ticks if tick])


class BinaryTree(_DyadicTree):
    """The binary mechanism (Dwork et al. 2010; Chan, Shi and Song 2011): std at tick t is
    σ·√popcount(t).

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
        left, _ = self.block(self.initial(size), np.eye(size), size)
        right = np.zeros((size, size))
        for t in range(1, size + 1):
            right[t - 1, t - (t & -t) : t] = 1.0
        return left, right

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros((self.horizon.bit_length() + 1, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        noise, prefixes = prefix_sums(z, state.arrays[0], state.tick)
        return noise, State(state.tick + ticks, (prefixes,))


class Honaker(_DyadicTree):
    """Honaker's variant, online: each interval's count is estimated from all nodes at and below it,
    all of them past.

    The estimate of an interval of 2^h ticks has variance v_h with v_0 = 1, v_h =
    2v_{h−1}/(2v_{h−1}+1), and weight v_h on its own node. The column norm is that of the full tree.

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
        start = state.tick
        stop = state.tick + ticks

        def combine(level: int, own: FloatArray, pair: FloatArray) -> FloatArray:
            v = self.variances[level]
            return np.asarray(v * own + (1 - v) * pair)

        values, after = node_estimates(z, newest, start, stop, combine)
        noise, prefixes = prefix_sums(values, prefixes, start)
        return noise, State(stop, (prefixes, after))


def node_estimates(
    z: AnyArray,
    newest: AnyArray,
    start: int,
    stop: int,
    combine: Callable[[int, AnyArray, AnyArray], AnyArray],
) -> tuple[AnyArray, AnyArray]:
    """(largest node that ends at each tick of start+1 … stop, newest of each level) of `Honaker`,
    in any arithmetic."""
    # `combine` makes a node from (level, own normal, sum of its children). Normals of one tick are
    # ordered by level.
    numbers = np.arange(start + 1, stop + 1)
    # index of each tick's first normal
    offset = np.concatenate([[0], np.cumsum(1 + low_bit_level(numbers))])
    values = z[offset[:-1]]  # level 0: every tick
    estimates = values
    after = newest.copy()
    if len(numbers):
        after[0] = values[-1]
    for level in range(1, stop.bit_length()):
        first = ((start >> level) + 1) << level
        ends = np.arange(first, stop + 1, 1 << level)
        if not len(ends):
            break
        halves = np.concatenate([newest[level - 1 : level], estimates])
        # the newest is a left half if the number of them is odd
        left = 1 - (start >> level - 1 & 1)
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


class HonakerFull(Factorization):
    """Honaker's full estimator: each prefix is estimated from all nodes of the tree, also those
    that end after t.

    It streams, although it reads the future: M·x + L·z needs the noise of future nodes and not
    their data. Noise of the estimator's covariance M·(RᵀR)⁻¹·Mᵀ, R the tree, is drawn at the
    boundaries of nodes from the top down: that of the complete tree has variance v_H, and that in
    the middle of a node of height h + 1 is the mean of its two ends plus √(v_h/2) times a fresh
    normal (given a node's count, the left half's estimate is the mean of two independent ones of
    variance v_h). One normal per tick, and one number per level and cell to remember. `balanced`
    has less error.

    The right factor is a table of Haar wavelets: 1/√v_H for the complete tree, and for each node of
    height h + 1 the number ±1/√(2·v_h) with a plus on its left half and a minus on its right half.

    **Guarantee.** L·R′ = M and R′ᵀR′ = RᵀR, so sensitivities are those of the tree. Let a node of
    height h + 1 be the lowest that holds ticks i and k. Its wavelet adds −1/(2·v_h) = −(1 −
    2^−(h+1)) to entry (i, k), each higher one 1 − 2^−g for its height g, and the complete tree
    1/v_H = 2 − 2^−H: together H − h, the number of nodes that hold both. On the diagonal it is H
    + 1. The wavelet of a node that begins after tick T is 0 on ticks 1 … T, so the sums are
    complete for every horizon. That R′ reads the future does no harm, also with adaptive inputs:
    `sensitivity.proof.md`, "Nodes of the future". Tests:
    tests/factorizations/test_factorizations_numbers.py::test_honaker_full_streams_the_best_estimate,
    tests/queries/test_queries_matching.py::test_gram_matrices_fall.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> HonakerFull(1024).row_norms([341, 1024]).round(3).tolist()
    [1.258, 0.707]
    """

    name = "honaker-full"
    # that of the tree, where an interval that holds i and k holds all ticks between
    falling_gram = True

    def __init__(self, horizon: int) -> None:
        self.horizon: int = check_known_horizon(horizon)
        self.height: int = (self.horizon - 1).bit_length()  # levels of the tree above its leaves
        self.column_norm = tree_column_norm(1 << self.height)
        self.variances = node_variances(self.height + 1)
        self._own = np.append(np.sqrt(self.variances[:-1] / 2), np.sqrt(self.variances[-1]))

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """The std of the best linear unbiased estimate of each prefix."""
        t = self._check_ticks(ticks)
        return np.sqrt(self._covariance(t, t))

    def worst_row(self) -> tuple[int, float]:
        """A third into a node that holds tick T, or into the node of its size before it.

        This is a search, no theorem. Test:
        tests/factorizations/test_factorizations_numbers.py::test_worst_tick_of_honaker_full.
        """
        ticks = {1, self.horizon}
        for level in range(self.height + 1):
            node = self.horizon >> level
            third = (1 << level) // 3
            ticks |= {
                (start << level) + third + more for start in (node - 1, node) for more in (0, 1)
            }
        return self._worst_of(sorted(tick for tick in ticks if 1 <= tick <= self.horizon))

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(self.difference_norms(np.asarray([earlier]), np.asarray([later]))[0])

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        later = self._check_ticks(later)
        apart = self._covariance(earlier, earlier) + self._covariance(later, later)
        apart -= 2 * self._covariance(earlier, later)
        return np.sqrt(np.maximum(apart, 0.0))

    def _covariance(self, s: IntArray, t: IntArray) -> FloatArray:
        """Covariance of the noise at ticks s ≤ t in units of σ², from the top down until a middle
        parts them."""
        # Noise inside a node is a line between its two ends plus fresh noise, which is independent
        # on both sides of the middle. So where the middle lies between s and t, only the lines
        # matter.
        begin = np.zeros(np.shape(s), dtype=np.int64)
        # variance at the begin; covariance with the end
        left = np.zeros(begin.shape)
        both = np.zeros(begin.shape)
        right = np.full(begin.shape, self.variances[-1])  # variance at the end
        result = np.where(s > 0, right, 0.0)
        parted = np.zeros(begin.shape, dtype=bool)
        for level in range(self.height - 1, -1, -1):
            half = 1 << level
            middle = begin + half
            own = (left + right + 2 * both) / 4 + self.variances[level] / 2
            # covariance of the middle with both ends
            before = (left + both) / 2
            after = (both + right) / 2
            a = (s - begin) / half
            b = (t - middle) / half
            lines = (1 - a) * ((1 - b) * before + b * both) + a * ((1 - b) * own + b * after)
            parts = ~parted & (s <= middle) & (middle <= t)
            result = np.where(parts, lines, result)
            parted = parted | parts
            later = s > middle
            both = np.where(later, after, before)
            left = np.where(later, own, left)
            right = np.where(later, right, own)
            begin = np.where(later, middle, begin)
        return result

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """A column of L for each normal, in the order in which they are drawn."""
        size = self._check_dense(ticks)
        used = self.draws(0, size)
        height = self.height
        left, _ = self.block(self.initial(used), np.eye(used), size)
        right = np.zeros((used, size))
        right[0] = 1 / self._own[height]
        for level in range(height):
            begins = np.arange(0, size, 2 << level)
            for begin, row in zip(
                begins.tolist(), draw_of_middle(begins, level, height).tolist(), strict=True
            ):
                middle = begin + (1 << level)
                right[row, begin:middle] = 0.5 / self._own[level]
                right[row, middle : middle + (1 << level)] = -0.5 / self._own[level]
        return left, right

    def draws(self, start: int, stop: int) -> int:
        """A normal for each boundary up to `stop`, and for the ends of the nodes that hold it."""
        return known_boundaries(stop, self.height) - known_boundaries(start, self.height)

    def initial(self, cells: int = 1) -> State:
        """The noise at the ends of the nodes that hold the tick, by height."""
        return State(0, (np.zeros((self.height + 1, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)

        def combine(level: int, own: FloatArray, pair: FloatArray) -> FloatArray:
            return np.asarray(pair / 2 + self._own[level] * own)

        noise, ends = noise_at_boundaries(
            z, state.arrays[0], state.tick, state.tick + ticks, combine
        )
        return noise, State(state.tick + ticks, (ends,))


def known_boundaries(tick: int, height: int) -> int:
    """Boundaries with known noise after a tick: a node's end lies ahead for each zero in the bits
    of t − 1."""
    if tick:
        return tick + height - (tick - 1).bit_count()
    return 0


def draw_of_middle(begins: IntArray, level: int, height: int) -> IntArray:
    """The number of the normal in the middle of each node of 2^(level+1) ticks, from the tick
    before its first."""
    return np.asarray(begins + height - level - np.bitwise_count(begins), dtype=np.int64)


def noise_at_boundaries(
    z: AnyArray,
    ends: AnyArray,
    start: int,
    stop: int,
    combine: Callable[[int, AnyArray, AnyArray], AnyArray],
) -> tuple[AnyArray, AnyArray]:
    """(noise at ticks start+1 … stop, ends of the nodes that hold `stop`) of `HonakerFull`, in any
    arithmetic."""
    # `combine` makes the noise in the middle of a node from (level, own normal, sum of that at its
    # ends), and for the highest level that at the end of the tree from (level, own normal, 0).
    # Normals of a tick come from the top down.
    height = len(ends) - 1
    size = stop - start
    levels = np.arange(height + 1)
    drawn = known_boundaries(start, height)
    noise = np.empty((size + height + 2, *z.shape[1:]), dtype=z.dtype)

    def place(boundaries: IntArray) -> IntArray:
        """The row of a boundary. Known ones after `stop` differ in their lowest set bits."""
        rows = boundaries - start
        late = boundaries > stop
        rows[late] = size + 1 + low_bit_level(boundaries[late])
        return rows

    noise[place(-(-start >> levels) << levels)] = ends
    if start == 0 and size:
        noise[place(np.asarray([1 << height]))] = combine(height, z[:1], 0 * z[:1])
    for level in range(height - 1, -1, -1):
        begins = np.arange(-(-start >> level + 1) << level + 1, stop, 2 << level)
        if len(begins):
            pair = noise[place(begins)] + noise[place(begins + (2 << level))]
            own = z[draw_of_middle(begins, level, height) - drawn]
            noise[place(begins + (1 << level))] = combine(level, own, pair)
    return noise[1 : size + 1], noise[place(-(-stop >> levels) << levels)]
