"""Dyadic trees: the binary mechanism and Honaker's refinement of it.

A prefix of t ticks is the union of dyadic intervals, one per set bit of t. Ordered by where they end, the intervals
that are ever used form a square lower-triangular R (a Fenwick tree): row t covers the last lowbit(t) ticks up to t.
The right children that the textbook tree also carries are never read by the binary mechanism and do not change the
column norm; Honaker's variant reads them and so draws normals for all nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evercount._arrays import AnyArray, FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import LARGEST_HORIZON, MARGIN, Factorization, State, check_horizon, counting_matrix


def low_bit_level(ticks: IntArray) -> IntArray:
    """The position of the lowest set bit."""
    return np.asarray(np.bitwise_count((ticks & -ticks) - 1), dtype=np.int64)


def _levels(horizon: int | None) -> int:
    return (LARGEST_HORIZON if horizon is None else horizon).bit_length()


def _fullest(horizon: int) -> list[int]:
    """Ticks among which the worst one of a tree lies: t − 1 with lower bits all set, for every set bit of T + 1."""
    top = horizon + 1
    return [t for bit in range(top.bit_length()) if top >> bit & 1 and (t := (top >> bit << bit) - 1) > 0]


def prefix_sums(values: FloatArray, prefixes: FloatArray, start: int) -> tuple[FloatArray, FloatArray]:
    """noise_t = values_t + noise_{t − lowbit(t)} for ticks start+1…, and the prefixes after the last one.

    prefixes[j] is the noise at `start` with its bits below j cleared: all that a later tick can refer to.
    """
    count = len(values)
    stop = start + count
    noise = values.copy()
    for level in range(stop.bit_length() - 1, -1, -1):
        first = ((start >> level) + 1) << level
        first += (1 << level) if not (first >> level) & 1 else 0  # the next tick whose lowest set bit is `level`
        at = np.arange(first, stop + 1, 2 << level) - start - 1
        if not len(at):
            continue
        parents = at - (1 << level)
        if parents[0] < 0:
            noise[at[0]] += prefixes[level]
            at, parents = at[1:], parents[1:]
        noise[at] += noise[parents]
    after = prefixes.copy()
    for level in range(len(prefixes)):
        tick = stop >> level << level
        if tick > start:
            after[level] = noise[tick - start - 1]
    return noise, after


class BinaryTree(Factorization):
    """The binary mechanism (Dwork et al. 2010; Chan, Shi and Song 2011): std at tick t is σ·√popcount(t)."""

    name = "binary-tree"

    def __init__(self, horizon: int) -> None:
        T = check_horizon(horizon)
        assert T is not None
        self.horizon = T
        self.column_norm = float(np.sqrt(T.bit_length())) * (1 + MARGIN)

    @property
    def falling_gram(self) -> bool:
        """See `Factorization`: an interval that holds i and k holds all ticks between."""
        return True

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """See `Factorization`: √popcount(t)."""
        return np.sqrt(np.bitwise_count(self._check_ticks(ticks)).astype(np.float64))

    def worst_row(self) -> tuple[int, float]:
        """See `Factorization`: exact."""
        assert self.horizon is not None
        norms = self.row_norms(np.asarray(_fullest(self.horizon)))
        return _fullest(self.horizon)[int(np.argmax(norms))], float(norms.max())

    def difference_norm(self, earlier: int, later: int) -> float:
        """See `Factorization`: the intervals that only one of the two prefixes uses."""
        earlier, later = self._check_pair(earlier, later)
        below = (1 << (earlier ^ later).bit_length()) - 1
        return float(np.sqrt((earlier & below).bit_count() + (later & below).bit_count()))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """See `Factorization`."""
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
        """See `Factorization`: one running noise per level."""
        return State(0, (np.zeros((_levels(self.horizon) + 1, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """See `Factorization`."""
        z = self._check_block(state, z, ticks)
        noise, prefixes = prefix_sums(z, state.arrays[0], state.tick)
        return noise, State(state.tick + ticks, (prefixes,))


class Honaker(Factorization):
    """Honaker's variant, online: each interval's count is estimated from all nodes at and below it, all of them past.

    The estimate of an interval of 2^h ticks has variance v_h with v_0 = 1, v_h = 2v_{h−1}/(2v_{h−1}+1), and weight
    v_h on its own node. The column norm is that of the full tree.
    """

    name = "honaker"

    def __init__(self, horizon: int) -> None:
        T = check_horizon(horizon)
        assert T is not None
        self.horizon = T
        self.column_norm = float(np.sqrt(T.bit_length())) * (1 + MARGIN)
        self.variances = node_variances(T.bit_length())

    @property
    def falling_gram(self) -> bool:
        """See `Factorization`: an interval that holds i and k holds all ticks between."""
        return True

    def draws(self, start: int, stop: int) -> int:
        """See `Factorization`: one normal for every node that completes."""
        return (2 * stop - stop.bit_count()) - (2 * start - start.bit_count())

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """See `Factorization`: Σ v_h over the set bits of t."""
        t = self._check_ticks(ticks)
        bits = (t[..., np.newaxis] >> np.arange(len(self.variances))) & 1
        return np.asarray(np.sqrt(bits @ self.variances))

    def worst_row(self) -> tuple[int, float]:
        """See `Factorization`: exact."""
        assert self.horizon is not None
        norms = self.row_norms(np.asarray(_fullest(self.horizon)))
        return _fullest(self.horizon)[int(np.argmax(norms))], float(norms.max())

    def difference_norm(self, earlier: int, later: int) -> float:
        """See `Factorization`: the larger interval of `later` contains those of `earlier`, hence a covariance."""
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
        """See `Factorization`: L is ticks × nodes, R is nodes × ticks."""
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
        """See `Factorization`: running noises and the newest interval estimate per level."""
        levels = _levels(self.horizon)
        return State(0, (np.zeros((levels + 1, cells)), np.zeros((levels, cells))))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """See `Factorization`."""
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
    """(best estimate of the largest node that ends at each tick, newest estimate of each level) of `Honaker`.

    `combine(level, own, pair)` makes a node's estimate from its own normal and the sum of its children's estimates, in
    whatever form numbers are held.
    """
    numbers = np.arange(start + 1, stop + 1)
    offset = np.concatenate([[0], np.cumsum(1 + low_bit_level(numbers))])  # first draw of each tick
    values = z[offset[:-1]]  # level 0: every tick
    estimates, after = values, newest.copy()
    if len(numbers):
        after[0] = values[-1]
    for level in range(1, stop.bit_length()):
        first = ((start >> level) + 1) << level
        ends = np.arange(first, stop + 1, 1 << level)
        if not len(ends):
            break
        half = 1 << (level - 1)
        lower_first = ((start >> (level - 1)) + 1) << (level - 1)  # tick of row 0 of `estimates`
        right = estimates[(ends - lower_first) // half]
        left_rows = (ends - half - lower_first) // half
        left = estimates[np.maximum(left_rows, 0)]
        if left_rows[0] < 0:
            left[0] = newest[level - 1]
        estimates = combine(level, z[offset[ends - start - 1] + level], left + right)
        values[ends - start - 1] = estimates
        after[level] = estimates[-1]
    return values, after


def node_variances(levels: int) -> FloatArray:
    """v_0 … v_{levels−1} of `Honaker`."""
    v = [1.0]
    while len(v) < levels:
        v.append(2 * v[-1] / (2 * v[-1] + 1))
    return np.asarray(v)


class HonakerOffline(Factorization):
    """Honaker's full estimator, which also reads nodes that end *after* t. For comparison only.

    It could be streamed: M·x + L·z needs the noise of future nodes, not their data (`laplace_bridge.proof.md`, theorem,
    holds for every L with L·R = M). There is no streaming form here, as other factorisations have far less error.
    """

    name = "honaker-offline"

    def __init__(self, horizon: int) -> None:
        T = check_horizon(horizon)
        assert T is not None
        if T & (T - 1):
            raise ParameterError(f"the offline estimator is for horizons that are a power of two, got {T}")
        self.horizon = T
        self.column_norm = float(np.sqrt(T.bit_length())) * (1 + MARGIN)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """Std of the best linear unbiased estimate of each prefix: O(log T) by climbing from t to the root.

        Carried along: the covariance of (N, P), the count of the present node and the part of it before t, given all
        nodes below; each node's own noisy count then updates both.
        """
        t = self._check_ticks(ticks)
        height = self.horizon.bit_length() - 1 if self.horizon else 0
        v = node_variances(height + 1)
        start = np.minimum(low_bit_level(t), height)
        nn = v[start].copy()
        np_, pp = nn.copy(), nn.copy()
        for level in range(1, height + 1):
            climbs = level > start
            on_right = (t - 1) >> (level - 1) & 1  # does the node that holds tick t lie to the right?
            sibling = v[level - 1]
            a, b, c = nn + sibling, np_ + sibling * on_right, pp + sibling * on_right
            gain = 1 / (1 + a)
            nn = np.where(climbs, a * gain, nn)
            pp = np.where(climbs, c - b * b * gain, pp)
            np_ = np.where(climbs, b * gain, np_)
        return np.sqrt(pp)

    def difference_norm(self, earlier: int, later: int) -> float:
        """See `Factorization`; by the dense matrix."""
        earlier, later = self._check_pair(earlier, later)
        left, _ = self.dense()
        first = left[earlier - 1] if earlier else np.zeros(left.shape[1])
        return float(np.linalg.norm(left[later - 1] - first))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """See `Factorization`; only for the whole horizon."""
        size = self._check_dense(ticks)
        if size != self.horizon:
            raise ParameterError("the offline estimator exists for its whole horizon only")
        _, right = Honaker(size).dense()
        return counting_matrix(size) @ np.linalg.pinv(right), right

    def initial(self, cells: int = 1) -> State:
        """Refused: the estimator reads the future."""
        raise ParameterError(
            "Honaker's full estimator has no streaming form here (it reads future nodes); use 'honaker'"
        )

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """Refused: the estimator reads the future."""
        raise ParameterError(
            "Honaker's full estimator has no streaming form here (it reads future nodes); use 'honaker'"
        )
