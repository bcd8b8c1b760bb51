"""`honaker-full`: the best linear estimate of every prefix from all nodes of the binary tree, future ones too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evercount._arrays import AnyArray, FloatArray, IntArray
from evercount.factorizations.base import Factorization, State, check_known_horizon
from evercount.factorizations.trees import low_bit_level, node_variances, tree_column_norm


class HonakerFull(Factorization):
    """Honaker's full estimator: each prefix is estimated from all nodes of the tree, also those that end after t.

    It streams, although it reads the future: M·x + L·z needs the noise of future nodes and not their data. Noise of the
    estimator's covariance M·(RᵀR)⁻¹·Mᵀ, R the tree, is drawn at the boundaries of nodes from the top down: that of the
    complete tree has variance v_H, and that in the middle of a node of height h + 1 is the mean of its two ends plus
    √(v_h/2) times a fresh normal (given a node's count, the left half's estimate is the mean of two independent ones of
    variance v_h). One normal per tick, and one number per level and cell to remember. `balanced` has less error.

    The right factor is a table of Haar wavelets: 1/√v_H for the complete tree, and for each node of height h + 1 the
    number ±1/√(2·v_h) with a plus on its left half and a minus on its right half.

    **Guarantee.** L·R′ = M and R′ᵀR′ = RᵀR, so sensitivities are those of the tree. Let a node of height h + 1 be the
    lowest that holds ticks i and k. Its wavelet adds −1/(2·v_h) = −(1 − 2^−(h+1)) to entry (i, k), each higher one
    1 − 2^−g for its height g, and the complete tree 1/v_H = 2 − 2^−H: together H − h, the number of nodes that hold
    both. On the diagonal it is H + 1. The wavelet of a node that begins after tick T is 0 on ticks 1 … T, so the
    sums are complete for every horizon. That R′ reads the future does no harm, also with adaptive inputs:
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

    def __init__(self, horizon: int) -> None:
        self.horizon: int = check_known_horizon(horizon)
        self.height: int = (self.horizon - 1).bit_length()  # levels of the tree above its leaves
        self.column_norm = tree_column_norm(1 << self.height)
        self.variances = node_variances(self.height + 1)
        self._own = np.append(np.sqrt(self.variances[:-1] / 2), np.sqrt(self.variances[-1]))

    @property
    def falling_gram(self) -> bool:
        """That of the tree, where an interval that holds i and k holds all ticks between."""
        return True

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
            ticks |= {(start << level) + third + more for start in (node - 1, node) for more in (0, 1)}
        inside = sorted(tick for tick in ticks if 1 <= tick <= self.horizon)
        norms = self.row_norms(np.asarray(inside))
        return inside[int(np.argmax(norms))], float(norms.max())

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(self.difference_norms_to(later, np.asarray([earlier]))[0])

    def difference_norms_to(self, later: int, earlier: IntArray) -> FloatArray:
        t = np.full(len(earlier), later)
        apart = self._covariance(earlier, earlier) + self._covariance(t, t) - 2 * self._covariance(earlier, t)
        return np.sqrt(np.maximum(apart, 0.0))

    def _covariance(self, s: IntArray, t: IntArray) -> FloatArray:
        """Covariance of the noise at ticks s ≤ t in units of σ², from the top down until a middle parts them."""
        # Noise inside a node is a line between its two ends plus fresh noise, which is independent on both sides of the
        # middle. So where the middle lies between s and t, only the lines matter.
        begin = np.zeros(np.shape(s), dtype=np.int64)
        left, both = np.zeros(begin.shape), np.zeros(begin.shape)  # variance at the begin; covariance with the end
        right = np.full(begin.shape, self.variances[-1])  # variance at the end
        result, parted = np.where(s > 0, right, 0.0), np.zeros(begin.shape, dtype=bool)
        for level in range(self.height - 1, -1, -1):
            half = 1 << level
            middle = begin + half
            own = (left + right + 2 * both) / 4 + self.variances[level] / 2
            before, after = (left + both) / 2, (both + right) / 2  # covariance of the middle with both ends
            a, b = (s - begin) / half, (t - middle) / half
            lines = (1 - a) * ((1 - b) * before + b * both) + a * ((1 - b) * own + b * after)
            parts = ~parted & (s <= middle) & (middle <= t)
            result, parted = np.where(parts, lines, result), parted | parts
            later = s > middle
            both = np.where(later, after, before)
            left, right = np.where(later, own, left), np.where(later, right, own)
            begin = np.where(later, middle, begin)
        return result

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """A column of L for each normal, in the order in which they are drawn."""
        size = self._check_dense(ticks)
        used, height = self.draws(0, size), self.height
        left, _ = self.block(self.initial(used), np.eye(used), size)
        right = np.zeros((used, size))
        right[0] = 1 / self._own[height]
        for level in range(height):
            begins = np.arange(0, size, 2 << level)
            for begin, row in zip(begins.tolist(), draw_of_middle(begins, level, height).tolist(), strict=True):
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

        noise, ends = noise_at_boundaries(z, state.arrays[0], state.tick, state.tick + ticks, combine)
        return noise, State(state.tick + ticks, (ends,))


def known_boundaries(tick: int, height: int) -> int:
    """Boundaries with known noise after a tick: a node's end lies ahead for each zero in the bits of t − 1."""
    return tick + height - (tick - 1).bit_count() if tick else 0


def draw_of_middle(begins: IntArray, level: int, height: int) -> IntArray:
    """The number of the normal in the middle of each node of 2^(level+1) ticks, from the tick before its first."""
    return np.asarray(begins + height - level - np.bitwise_count(begins), dtype=np.int64)


def noise_at_boundaries(
    z: AnyArray, ends: AnyArray, start: int, stop: int, combine: Callable[[int, AnyArray, AnyArray], AnyArray]
) -> tuple[AnyArray, AnyArray]:
    """(noise at ticks start+1 … stop, ends of the nodes that hold `stop`) of `HonakerFull`, in any arithmetic."""
    # `combine` makes the noise in the middle of a node from (level, own normal, sum of that at its ends), and for the
    # highest level that at the end of the tree from (level, own normal, 0). Normals of a tick come from the top down.
    height, size = len(ends) - 1, stop - start
    levels = np.arange(height + 1)
    drawn = known_boundaries(start, height)
    known = np.empty((size + height + 2, *z.shape[1:]), dtype=z.dtype)

    def place(boundaries: IntArray) -> IntArray:
        """The row of a boundary. Known ones after `stop` differ in their lowest set bits."""
        rows, late = boundaries - start, boundaries > stop
        rows[late] = size + 1 + low_bit_level(boundaries[late])
        return rows

    known[place(-(-start >> levels) << levels)] = ends
    if start == 0 and size:
        known[place(np.asarray([1 << height]))] = combine(height, z[:1], 0 * z[:1])
    for level in range(height - 1, -1, -1):
        begins = np.arange(-(-start >> level + 1) << level + 1, stop, 2 << level)
        if len(begins):
            pair = known[place(begins)] + known[place(begins + (2 << level))]
            own = z[draw_of_middle(begins, level, height) - drawn]
            known[place(begins + (1 << level))] = combine(level, own, pair)
    return known[1 : size + 1], known[place(-(-stop >> levels) << levels)]
