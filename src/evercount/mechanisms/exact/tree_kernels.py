"""Other factorisations, in fixed point and in doubles: the binary trees and `optimal`.

Only `honaker` and `honaker-full` round. In doubles a number of a tree is two of them: a multiple of 2^−40, of which
sums are exact, and a rest. `exact_noise.proof.md`, lemmas 6, 7 and 12, has the same letters.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray, ObjectArray
from evercount.factorizations.honaker_full import draw_of_middle, known_boundaries, noise_at_boundaries
from evercount.factorizations.trees import node_estimates, prefix_sums
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, DRAW_BITS, SIGMAS
from evercount.mechanisms.exact.slices import ROUNDING, cut, of_integers, product, settle, with_sums
from evercount.noise import Normals

MOST_LEVELS = 48
BLOCK_LEVEL = BLOCK_TICKS.bit_length() - 1
"""The level of the nodes of a block's length."""


class TreeKernel:
    """The binary mechanism: sums of the nodes of a prefix. Other trees differ in what a node is.

    In doubles, the inside of a block is one product of matrices; the tree over the blocks is taken level by level.

    **Guarantee.** In doubles that of `NearFilter`. Proof: `exact_noise.proof.md`, lemma 12. Tests:
    `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted losses of bits are caught).
    """

    bits, narrow = DRAW_BITS, 0
    inner, shared = BLOCK_TICKS - 1, 0
    """Draws that only the inside of a block reads, and draws after them that the tree over the blocks reads too."""
    line = np.repeat([[1.0, 0.0]], BLOCK_TICKS - 1, axis=0)
    """What the noise at both ends of a block adds to the ticks inside it."""
    weights: tuple[tuple[int, int], ...] = ()
    """Of each level, for a node's own normal and for the sum of two other nodes."""

    def __init__(self, horizon: int) -> None:
        self.levels = (-(-horizon // BLOCK_TICKS) * BLOCK_TICKS).bit_length()  # of the tree over whole blocks
        self.rows = self.levels + 1
        self.upper = list(range(BLOCK_LEVEL, self.rows))  # the state of the tree over the blocks

    def first_inside(self, ticks: IntArray) -> IntArray:
        """The number of the first draw inside the blocks that begin after these ticks."""
        return ticks

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`."""
        start, stop = self.first_inside(np.asarray([block, block + 1]) * BLOCK_TICKS).tolist()
        return start, stop

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: at most one node per bit of t."""
        return math.sqrt(ticks.bit_length())

    def error(self, ticks: int) -> float:
        """See `FilterKernel`: sums of integers are exact."""
        return 0.0

    def drift(self, tick: int, size: int = BLOCK_TICKS) -> float:
        """See `NearFilter`."""
        return MOST_LEVELS**2 * 2.0**-76

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """See `NearFilter`."""
        return BLOCK_TICKS, 1 if cells >= 24 else max(1, (16 if ticks <= 16 * BLOCK_TICKS else 512) // cells)

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        start = block * BLOCK_TICKS
        return self._sums(state, start, start + BLOCK_TICKS, z << self.bits - DRAW_BITS, 0)

    @cached_property
    def inside(self) -> FloatArray:
        """What the draws inside a block add to its ticks, (5, 32, draws): the noise of the first block for each."""
        first = int(self.first_inside(np.zeros(1, dtype=np.int64))[0])
        ones: ObjectArray = np.eye(self.window(0)[1], dtype=object)[:, first : first + self.inner + self.shared]
        units = np.asarray(ones << DRAW_BITS, dtype=object)
        return of_integers(self.step(np.zeros((self.rows, units.shape[1]), dtype=object), 0, units)[0], self.bits)

    @cached_property
    def slices(self) -> FloatArray:
        """The weights, (5, levels, 2)."""
        return of_integers(np.asarray(self.weights, dtype=object), self.bits)

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        cells, numbers, block = normals.shape[1], np.arange(blocks), start // size
        after = np.ascontiguousarray(state.swapaxes(0, 1))
        if fine or not self.upper:  # level by level
            noise, after = self._sums(after, start, start + size * blocks, _pairs(*normals.slices()), 0)
            return noise.sum(axis=1), self.drift(start), np.ascontiguousarray(after.swapaxes(0, 1))
        first = self.first_inside(start + size * numbers) - self.window(block)[0]
        inside = first + np.arange(self.inner + self.shared)[:, np.newaxis]
        z = np.empty((5, *inside.shape, cells))
        z[:3] = normals[inside].slices()
        with_sums(z)
        above = _pairs(*normals[np.delete(np.arange(normals.shape[0]), inside[: self.inner])].slices())
        if self.shared:  # nodes that are as long as a block
            parts = product(self.inside[:, -1:], z.reshape(5, len(inside), -1), np.matmul)
            one, two, three = (part.reshape(blocks, cells) for part in parts)
            above[first - self.inner * numbers] = _pairs(*settle((one, two, three), 1.0)[:3])
        ends, later = self._sums(after[self.upper], block, block + blocks, above, BLOCK_LEVEL)
        corners = np.concatenate([after[:1], ends]).sum(axis=1)[np.newaxis]
        after[:BLOCK_LEVEL], after[self.upper] = later[0], later
        inputs = np.concatenate([z[4], corners[:, :-1], corners[:, 1:]])
        matrix = np.hstack([self.inside[4, :-1], self.line])
        ticks = (matrix @ inputs.reshape(len(inputs), -1)).reshape(size - 1, blocks, cells)
        noise = np.concatenate([ticks, corners[:, 1:]]).swapaxes(0, 1).reshape(-1, cells)
        sizes = float(np.abs(matrix).sum(axis=1).max()) * 1.001 * float(np.abs(inputs).max())
        bound = self.drift(start) + (len(inputs) + 8) * ROUNDING * sizes
        return noise, bound, np.ascontiguousarray(after.swapaxes(0, 1))

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray, low: int) -> tuple[AnyArray, AnyArray]:
        """(Y, state after) of ticks start+1 … stop of a tree with leaves on level `low`, in integers or in doubles."""
        return prefix_sums(z, state, start)

    def combine(self, level: int, own: AnyArray, others: AnyArray) -> AnyArray:
        """A node from its own normal and the sum of two other nodes, in integers or in doubles."""
        if own.dtype == object:
            v, rest = self.weights[level]
            return np.asarray((v * own + rest * others) >> self.bits, dtype=object)
        numbers = np.stack([own, others])
        slices = cut(numbers[:, :, 0], numbers[:, :, 1], 1.0)
        weights = self.slices[:, level].reshape(5, 2, *[1] * (slices.ndim - 2))
        one, two, three = (part.sum(axis=0) for part in product(weights, slices))
        return _pairs(*settle((one, two, three), 1.0)[:3])


class HonakerKernel(TreeKernel):
    """Honaker's variant: estimate of an interval = ⌊v_h·z + (1 − v_h)·(left + right)⌋, v_h = 2^h/(2^(h+1) − 1).

    The state is the prefixes of the tree, then the newest estimate of every level.
    """

    inner, shared = 2 * BLOCK_TICKS - 2, 1

    def __init__(self, horizon: int, bits: int) -> None:
        super().__init__(horizon)
        self.upper += range(self.rows + BLOCK_LEVEL, self.rows + self.levels)
        self.bits, self.rows = bits, self.rows + self.levels
        own = [(1 << h + bits) // ((2 << h) - 1) for h in range(self.levels)]
        self.weights = tuple((v, (1 << bits) - v) for v in own)

    def first_inside(self, ticks: IntArray) -> IntArray:
        """See `TreeKernel`: one draw for every node that completes."""
        return np.asarray(2 * ticks - np.bitwise_count(ticks), dtype=np.int64)

    def error(self, ticks: int) -> float:
        """See `FilterKernel` (lemma 7)."""
        levels = ticks.bit_length()
        return levels**2 * (1 + 3 * SIGMAS * (levels + 1)) * (1 + 1e-6)

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray, low: int) -> tuple[AnyArray, AnyArray]:
        half = len(state) // 2 + 1
        values, after = node_estimates(z, state[half:], start, stop, lambda level, *of: self.combine(level + low, *of))
        noise, prefixes = prefix_sums(values, state[:half], start)
        return noise, np.concatenate([prefixes, after])


class HonakerFullKernel(TreeKernel):
    """Honaker's full estimator: noise in the middle of a node = ⌊(sum of its ends)/2⌋ + ⌊√(v_h/2)·z⌋, v_h as above.

    At the end of the complete tree it is ⌊√v_H·z⌋. The state is the noise at the ends of the nodes that hold the tick.

    **Guarantee.** Where no normal is 64 deviations out, |Ỹ_t − (L z)_t·2^bits| ≤ `error`(T), and doubles are within
    their bound of (L z)_t. Proof: `exact_noise.proof.md`, lemmas 7 and 12. Tests:
    `tests/mechanisms/test_exact_error.py`,
    `tests/mechanisms/test_near_noise.py::test_planted_loss_in_middles_of_nodes_is_caught`.
    """

    line = np.asarray([[1 - k / BLOCK_TICKS, k / BLOCK_TICKS] for k in range(1, BLOCK_TICKS)])

    def __init__(self, horizon: int, bits: int) -> None:
        self.bits, self.height = bits, (horizon - 1).bit_length()
        self.rows = self.height + 1
        self.upper = list(range(BLOCK_LEVEL, self.rows))  # empty if the tree is shorter than a block
        halves = [1] * self.height + [0]  # v_h/2 of the middles, v_H of the end
        own = [math.isqrt((1 << 2 * bits + h - half) // ((2 << h) - 1)) for h, half in enumerate(halves)]
        self.weights = tuple((v, 1 << bits - 1) for v in own)

    def first_inside(self, ticks: IntArray) -> IntArray:
        """See `TreeKernel`."""
        return draw_of_middle(ticks, BLOCK_LEVEL - 1, self.height)

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`: one draw for every boundary that becomes known."""
        start, stop = (min(tick * BLOCK_TICKS, 1 << self.height) for tick in (block, block + 1))
        return known_boundaries(start, self.height), known_boundaries(stop, self.height)

    def norm(self, ticks: int) -> float:
        """See `FilterKernel` (lemma 7)."""
        return math.sqrt(self.height / 4 + 1.5)

    def error(self, ticks: int) -> float:
        """See `FilterKernel` (lemma 7)."""
        return (self.height + 1) * (SIGMAS + 2) * (1 + 1e-6)

    def combine(self, level: int, own: AnyArray, others: AnyArray) -> AnyArray:
        """See `TreeKernel`: in integers with a floor for each of the two."""
        if own.dtype == object:
            return np.asarray((others >> 1) + (self.weights[level][0] * own >> self.bits), dtype=object)
        return super().combine(level, own, others)

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray, low: int) -> tuple[AnyArray, AnyArray]:
        last = min(stop, 1 << len(state) - 1)
        noise, ends = noise_at_boundaries(z, state, start, last, lambda level, *of: self.combine(level + low, *of))
        # a tree shorter than a block has no noise for the block's last ticks, and no stream takes them
        rest = np.zeros((stop - last, *z.shape[1:]), dtype=z.dtype)
        return np.concatenate([noise, rest]), ends


class OptimalKernel(TreeKernel):
    """The dense matrix, its doubles taken exactly. Every block reads all draws from the first on; there is no state."""

    rows = 0

    def __init__(self, left: FloatArray) -> None:
        self._norm = float(np.linalg.norm(left, axis=1).max()) * (1 + 1e-6)
        self._sum = float(np.abs(left).sum(axis=1).max()) * 1.001
        self._extra = max(0, 53 - int(np.frexp(left[left != 0])[1].min()))  # entries are integers / 2^extra
        self.bits = DRAW_BITS + self._extra
        self.left = np.pad(left, (0, -len(left) % BLOCK_TICKS))  # no stream takes the ticks that are added

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`: all draws so far."""
        return 0, (block + 1) * BLOCK_TICKS

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`."""
        return self._norm

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        rows = np.ldexp(self.left[block * BLOCK_TICKS : (block + 1) * BLOCK_TICKS, : len(z)], self._extra)
        return np.vectorize(int, otypes=[object])(rows) @ z, state

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        z = normals.to_float()
        bound = (len(z) + 8) * ROUNDING * self._sum * float(np.abs(z).max())
        return self.left[start : start + size * blocks, : len(z)] @ z, bound, state


def _pairs(first: FloatArray, second: FloatArray, third: FloatArray) -> FloatArray:
    """Slices (numbers, cells) as a multiple of 2^−40 and a rest, (numbers, 2, cells)."""
    return np.stack([first + second, third], axis=1)
