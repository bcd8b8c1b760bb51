"""The bridge: tree noise for pure privacy that reaches each tick from both sides of its block.

A tree over the ticks 1 … N, N ≥ T, with branching k_1 … k_H from the top. Every node has a share of ε, and the shares
on each path from the top to a leaf add up to all of it. Between two boundaries of a block with known noise e_a (start)
and e_b (end), and children with noise ζ_1 … ζ_k, the noise at inner boundary i is

    E_i = α_i·(e_a + ζ_1 + … + ζ_i) + (1 − α_i)·(e_b − ζ_{i+1} − … − ζ_k)

Both brackets are unbiased, so every α_i is allowed; it is the one of least variance, rounded to a multiple of 1/64
(of 1/16 in trees of 6 and more levels). All numbers are therefore whole multiples of 2^(−6·(H−1)) (2^(−4·(H−1))), and
are computed as integers. At the top there is no e_b: α = 1.

Shares vary with the position of a node: `bridge_table.py` has few numbers for each range of horizons. Shares and
coefficients use additions, multiplications and divisions of doubles only, in a fixed order: they are the same on
every computer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_known_horizon
from evercount.factorizations.bridge_blocks import (
    Blocks,
    Boundary,
    Memory,
    Split,
    arrays_of,
    boundary_moments,
    join_blocks,
    largest_scales,
    last_block,
)
from evercount.factorizations.bridge_table import Design, design_for
from evercount.factorizations.laplace_base import LARGEST_TICKS, PureFactorization, node_variance

DrawShares = Callable[[IntArray, IntArray], npt.NDArray[Any]]
"""From node numbers and their shares to their noise, shape (nodes, cells)."""
UNITS = 1 << 24  # shares are whole multiples of ε/UNITS
FINE, COARSE, DEEP = 6, 4, 6
"""α is a multiple of 2^−FINE, and of 2^−COARSE in trees of at least DEEP levels: so 64 bits hold the noise."""
PLACES = 64  # a node's share depends on the position of its block in 64 steps
LEAST, MOST = 1 / 64, 63 / 64  # a node takes at least and at most this part of what its ancestors left
ALL_TICKS = 1 << 21  # the worst tick is looked for among all ticks of horizons up to this
NARROW = 0.75  # noise whose std at the first tick is below this many grid units has whole coefficients
_KEPT_BLOCKS = 2048  # blocks of a level that the search for the worst tick of longer horizons goes on with
_TICKS_AT_ONCE = 1 << 15  # ticks whose errors are computed at a time


class Bridge(PureFactorization):
    """The bridge for one horizon; the least error of the pure mechanisms.

    **Guarantee.** For every path from the top to a leaf the shares add up to UNITS exactly, and L·R = M in exact
    arithmetic, so that M·x + L·z with discrete Laplace z of rate ε·share/(UNITS·Δ₁) per node is ε-DP with δ = 0, for
    adaptive inputs. `integers=True` has every α 0 or 1: noise in whole numbers, for noise narrower than the grid, where
    fractions would only be rounded away. Proof: `laplace_bridge.proof.md`. Tests:
    tests/factorizations/test_laplace_bridge.py::test_left_times_right_is_the_count_in_integers,
    tests/factorizations/test_laplace_bridge.py::test_shares_of_every_leaf_add_up_exactly,
    tests/mechanisms/test_bridge_stream.py::test_attack_on_the_joint_release.

    >>> bridge = Bridge(1024)
    >>> bridge.branching, round(2**0.5 * bridge.worst_row()[1], 1)  # and the worst std at ε = 1
    ((4, 16, 16), 12.3)
    """

    name = "bridge"
    column_norm = math.inf

    def __init__(self, horizon: int, design: Design | None = None, integers: bool = False) -> None:
        T = check_known_horizon(horizon)
        if T > LARGEST_TICKS:
            raise ParameterError(f"pure trees serve at most 2^40 ticks, the horizon is {T}")
        self.horizon: int = T
        self._design = design_for(T) if design is None else design
        self.branching = self._design.branching
        self.levels = len(self.branching)
        if math.prod(self.branching) < T:
            raise ParameterError(f"a tree of branching {self.branching} has fewer leaves than the horizon {T}")
        self._size = [math.prod(self.branching[level + 1 :]) for level in range(self.levels)]  # ticks of a node
        self._blocks = [math.prod(self.branching[:level]) for level in range(self.levels)]
        self._offset = [sum(self._blocks[1 : level + 1]) for level in range(self.levels)]  # first node of a level
        self._step = 0 if integers else FINE if self.levels < DEEP else COARSE
        self._one = 1 << self._step
        self.bits = self._step * (self.levels - 1)
        """Binary places of the noise before it is rounded to the grid."""

    def for_rate(self, rate: float) -> Bridge:
        """This bridge, or its form in whole numbers where the noise of the first tick is narrow; `rate`: all of ε."""
        narrow = math.sqrt(2) / rate * float(self.row_norms([1])[0]) < NARROW
        return Bridge(self.horizon, self._design, integers=True) if narrow else self

    def _parts(self, level: int, index: IntArray) -> FloatArray:
        """The part of what is left that each child of these blocks takes, shape (blocks, k)."""
        k = self.branching[level]
        if level == self.levels - 1:
            return np.ones((len(index), k))
        c = self._design.coefficients[level]
        x = (2 * np.arange(k) + 1) / k - 1
        z = np.broadcast_to(c[0] + x * (c[1] + x * (c[2] + x * c[3])), (len(index), k))
        if level:
            y = (2 * (index * PLACES // self._blocks[level]) + 1) / PLACES - 1
            z = z + (y * (c[4] + y * (c[5] + y * c[6])))[:, None]
        return np.asarray(LEAST + (MOST - LEAST) * (0.5 + 0.5 * (z / (1 + np.abs(z)))))

    def _split(self, level: int, blocks: Blocks) -> Split:
        left = blocks.left[:, None]
        shares = np.floor(self._parts(level, blocks.index) * left).astype(np.int64)
        w = shares / UNITS
        s = 2 / (w * w)
        if level == 0:
            alpha = np.full((1, self.branching[0] + 1), self._one)
        else:
            sums = np.concatenate([np.zeros((len(s), 1)), np.cumsum(s, axis=1)], axis=1)
            c = blocks.both[:, None]
            ahead = blocks.start[:, None] + sums - c
            behind = blocks.end[:, None] + (sums[:, -1:] - sums) - c
            alpha = np.clip(np.rint(self._one * (behind / (ahead + behind))), 0, self._one).astype(np.int64)
            alpha[:, 0], alpha[:, -1] = self._one, 0
        return Split(shares, alpha, *boundary_moments(s, alpha / self._one, blocks.start, blocks.end, blocks.both))

    @staticmethod
    def _top() -> Blocks:
        zero = np.zeros(1)
        return Blocks(np.zeros(1, np.int64), np.full(1, UNITS), zero, zero, zero)

    @staticmethod
    def _inside(blocks: Blocks, split: Split, row: IntArray, child: IntArray, index: IntArray) -> Blocks:
        """Children of these blocks, as blocks of the next level."""
        return Blocks(
            index,
            blocks.left[row] - split.shares[row, child],
            split.variance[row, child],
            split.variance[row, child + 1],
            split.cov[row, child],
        )

    def _descend(self, ticks: IntArray) -> Iterator[tuple[int, Blocks, Split, IntArray, IntArray]]:
        """Per level: the distinct blocks that hold these ticks, their children, and each tick's (block, child)."""
        blocks = self._top()
        for level, k in enumerate(self.branching):
            split = self._split(level, blocks)
            node = (ticks - 1) // self._size[level]
            row = np.searchsorted(blocks.index, node // k)
            yield level, blocks, split, row, node % k
            if level + 1 < self.levels:
                index = np.unique(node)
                blocks = self._inside(blocks, split, np.searchsorted(blocks.index, index // k), index % k, index)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the shares and coefficients of the first, the last and some other ticks."""
        # A snapshot holds it: noise of other shares would not continue a stream.
        ticks = np.unique(np.linspace(1, self.horizon, 64).astype(np.int64))
        parts = [self.branching.__repr__().encode()]
        for _, blocks, split, _, _ in self._descend(ticks):
            parts += [array.astype("<i8").tobytes() for array in (blocks.index, split.shares, split.alpha)]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The tree, the precision of α and the numbers that fix the shares."""
        coefficients = (np.asarray(level, np.float64) for level in self._design.coefficients)
        return (np.asarray(self.branching, np.float64), np.asarray([self._step], np.float64), *coefficients)

    @cached_property
    def least_share(self) -> int:
        """A lower bound on the share of every node, in UNITS."""
        low, least = UNITS, UNITS
        for level in range(self.levels):
            steps = min(PLACES, self._blocks[level])
            first = -(-np.arange(steps) * self._blocks[level] // steps)  # a block of each step
            parts = self._parts(level, first)
            least = min(least, math.floor(low * float(parts.min())) - (level < self.levels - 1))
            low = math.floor(low * (1 - float(parts.max()))) - 1
        return least

    @property
    def top_shares(self) -> IntArray:
        """Shares of the nodes of the highest level, in UNITS."""
        return np.asarray(self._split(0, self._top()).shares[0])

    @property
    def state_bytes(self) -> int:
        return 8 * sum(k + 1 for k in self.branching)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        at = self._check_ticks(ticks)
        out = np.empty(at.size)
        flat = at.ravel()
        for start in range(0, at.size, _TICKS_AT_ONCE):
            for level, _, split, row, child in self._descend(flat[start : start + _TICKS_AT_ONCE]):
                if level == self.levels - 1:
                    out[start : start + _TICKS_AT_ONCE] = split.variance[row, child + 1]
        return np.sqrt(out / 2).reshape(at.shape)

    def worst_row(self) -> tuple[int, float]:
        """(tick, norm) of the worst tick; above 2^21 ticks, of the blocks whose ends have the largest variances."""
        return self._worst_row

    @cached_property
    def _worst_row(self) -> tuple[int, float]:
        if self.horizon <= ALL_TICKS:
            norms = self.row_norms(np.arange(1, self.horizon + 1))
            at = int(np.argmax(norms))
            return at + 1, float(norms[at])
        best, blocks = (0.0, 1), self._top()
        for level, k in enumerate(self.branching):
            split = self._split(level, blocks)
            ends = (blocks.index[:, None] * k + np.arange(1, k + 1)) * self._size[level]
            inside = np.where(ends <= self.horizon, split.variance[:, 1:], 0.0)
            at = int(np.argmax(inside))
            best = max(best, (float(inside.flat[at]), int(ends.flat[at])))
            if level + 1 < self.levels:
                index = (blocks.index[:, None] * k + np.arange(k)).ravel()
                keep = np.flatnonzero(index * self._size[level] < self.horizon)
                inner = self._inside(blocks, split, keep // k, keep % k, index[keep])
                order = np.sort(np.argsort(-np.maximum(inner.start, inner.end), kind="stable")[:_KEPT_BLOCKS])
                blocks = Blocks(*(part[order] for part in arrays_of(inner)))
        return best[1], math.sqrt(best[0] / 2)

    def laplace_errors(self, ticks: npt.ArrayLike, rate: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = self._check_ticks(ticks).ravel()
        out = np.empty((3, at.size))
        for start in range(0, at.size, _TICKS_AT_ONCE):
            part = at[start : start + _TICKS_AT_ONCE]
            ends = np.zeros((5, 1))  # exact variances and covariance, largest scales, of the blocks' ends
            for level, _, split, row, child in self._descend(part):
                own = split.shares / UNITS * rate
                alpha = split.alpha / self._one
                exact, cov = boundary_moments(node_variance(own), alpha, *ends[:3])
                scale = largest_scales(1 / own, alpha, *ends[3:])
                if level + 1 < self.levels:
                    _, first = np.unique((part - 1) // self._size[level], return_index=True)
                    r, c = row[first], child[first]
                    ends = np.stack([exact[r, c], exact[r, c + 1], cov[r, c], scale[r, c], scale[r, c + 1]])
                else:
                    plain = split.variance[row, child + 1] / (rate * rate)
                    out[:, start : start + _TICKS_AT_ONCE] = exact[row, child + 1], plain, scale[row, child + 1]
        return out[0], out[1], out[2]

    def coefficients(self, ticks: npt.ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
        """(nodes, coefficients·2^bits, shares), each (ticks, k_1 + … + k_H): the rows of L in whole numbers."""
        at = self._check_ticks(ticks).ravel()
        width = sum(self.branching)
        nodes, shares = np.empty((2, len(at), width), np.int64)
        start, end = np.zeros((2, len(at), width), np.int64)
        done = 0
        for level, blocks, split, row, child in self._descend(at):
            k = self.branching[level]
            here = slice(done, done + k)
            nodes[:, here] = self._offset[level] + blocks.index[row][:, None] * k + np.arange(k)
            shares[:, here] = split.shares[row]
            ends = []  # rows of L at a boundary: α·(start + children passed) + (1 − α)·(end − the others), times `_one`
            for i in (child, child + 1):
                a, passed = split.alpha[row, i][:, None], np.arange(k) < i[:, None]
                line = a * start + (self._one - a) * end
                line[:, here] = np.where(passed, a, a - self._one) << self._step * (level - 1) if level else passed
                ends.append(line)
            start, end = ends
            done += k
        return nodes, end, shares

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(self.pair_norms(np.asarray([earlier]), np.asarray([later]))[0])

    def window_norms(self, width: int, ticks: IntArray) -> FloatArray:
        return self.pair_norms(np.maximum(ticks - width, 0), ticks)

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """`difference_norm` of every pair; 0 where both are the time before the first tick."""
        pairs = len(later)
        nodes, weights, shares = self.coefficients(np.maximum(np.concatenate([later, earlier]), 1))
        weights[np.concatenate([later, earlier]) == 0] = 0
        weights[pairs:] *= -1
        nodes, weights, shares = (np.hstack([part[:pairs], part[pairs:]]) for part in (nodes, weights, shares))
        order = np.argsort(nodes, axis=1)
        nodes, weights, shares = (np.take_along_axis(part, order, axis=1) for part in (nodes, weights, shares))
        new = np.diff(nodes, axis=1, prepend=-1) != 0  # each node of a pair once
        total = np.bincount(np.cumsum(new.ravel()) - 1, weights.ravel() / float(1 << self.bits))
        squares = np.square(total / (shares[new] / UNITS))
        return np.asarray(np.sqrt(np.bincount(np.nonzero(new)[0], squares, pairs)))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) with a column of L and a row of R for each node; rows of R carry the nodes' shares of ε."""
        size = self._check_dense(ticks)
        nodes, weights, shares = self.coefficients(np.arange(1, size + 1))
        distinct, first, place = np.unique(nodes.ravel(), return_index=True, return_inverse=True)
        part = shares.ravel()[first] / UNITS
        left = np.zeros((size, len(distinct)))
        left[np.repeat(np.arange(size), nodes.shape[1]), place.ravel()] = weights.ravel() / float(1 << self.bits)
        right = np.zeros((len(distinct), size))
        for row, node in enumerate(distinct.tolist()):
            begin, stop = self.interval(node)
            right[row, begin - 1 : stop] = 1.0
        return left / part, right * part[:, None]

    def interval(self, node: int) -> tuple[int, int]:
        """(first, last) tick of a node, 1-based; `last` may lie beyond the horizon."""
        level = max(level for level in range(self.levels) if self._offset[level] <= node)
        size = self._size[level]
        start = (node - self._offset[level]) * size
        return start + 1, start + size

    def noise(
        self, first: int, count: int, draw: DrawShares, memory: Memory | None = None
    ) -> tuple[npt.NDArray[Any], Memory]:
        """Noise of ticks first … first+count−1 (1-based) in units of 2^−bits, shape (count, cells), and the memory."""
        # The memory of an earlier call saves draws and changes no number.
        kept: Memory = []
        blocks = self._top()
        split: Split | None = None
        ends: npt.NDArray[Any] | None = None
        outer: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None
        for level, k in enumerate(self.branching):
            low, high = ((tick - 1) // (self._size[level] * k) for tick in (first, first + count - 1))
            old = memory[level] if memory is not None and memory[level].blocks.index[0] == low else None
            index = np.arange(low + (old is not None), high + 1)
            parts: list[Boundary] = [] if old is None else [old]
            if len(index):
                if split is not None:
                    above = self.branching[level - 1]
                    row = np.searchsorted(blocks.index, index // above)
                    fresh = self._inside(blocks, split, row, index % above, index)
                    assert ends is not None
                    outer = ends[row, index % above], ends[row, index % above + 1]
                else:
                    fresh, outer = blocks, None
                inner = self._split(level, fresh)
                nodes = self._offset[level] + index[:, None] * k + np.arange(k)
                drawn = draw(nodes.ravel(), inner.shares.ravel()).reshape(len(index), k, -1)
                parts.append(Boundary(fresh, inner, self._boundaries(level, inner.alpha, drawn, outer)))
            blocks, split, ends = join_blocks(parts)
            kept.append(last_block(blocks, split, ends))
        assert ends is not None
        k = self.branching[-1]
        at = np.arange(first - 1, first - 1 + count)
        return ends[at // k - (first - 1) // k, at % k + 1], kept

    def _boundaries(
        self,
        level: int,
        alpha: IntArray,
        drawn: npt.NDArray[Any],
        outer: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None,
    ) -> npt.NDArray[Any]:
        """Noise at all boundaries, shape (blocks, k + 1, cells)."""
        # A running sum from the start, minus 1 − α times what that sum misses the known end by.
        sums = np.cumsum(drawn, axis=1)
        shape = (len(drawn), drawn.shape[1] + 1, drawn.shape[2])
        if outer is None:
            out = np.zeros(shape, drawn.dtype)
            out[:, 1:] = sums
            return out
        start, end = outer
        out = np.empty(shape, np.result_type(drawn, start, end))
        sums <<= self._step * (level - 1)
        miss = start + sums[:, -1] - end
        np.multiply(alpha[:, :, None] - self._one, miss[:, None, :], out=out)
        out += (start << self._step)[:, None, :]
        out[:, 1:] += sums << self._step
        return out
