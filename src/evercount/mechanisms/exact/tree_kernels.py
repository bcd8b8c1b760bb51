"""Other factorisations, in fixed point and in doubles: `identity`, `direct`, `optimal` and the binary trees.

Only `honaker` and `honaker-full` round. In doubles a number of a tree is two of them: a multiple of 2^−40, of which
sums are exact, and a rest. `exact_noise.proof.md`, lemmas 6, 7 and 12, has the same letters. `identity` in doubles is
in `near_filter.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.factorizations.honaker_full import known_boundaries, noise_at_boundaries
from evercount.factorizations.trees import node_estimates, prefix_sums
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, DRAW_BITS, SIGMAS, Dyadics
from evercount.mechanisms.exact.slices import ROUNDING, cut, of_integers, product, settle
from evercount.noise import Normals

MOST_LEVELS = 48


class IdentityKernel:
    """The running sum of the normals."""

    bits = DRAW_BITS
    rows = 1
    eta: Dyadics | None = None
    n: Dyadics | None = None
    roots_lack: tuple[float, ...] = ()
    tops_lack: tuple[float, ...] = ()

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`."""
        return block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: √t."""
        return math.sqrt(ticks)

    def error(self, ticks: int) -> float:
        """See `FilterKernel`: sums of integers are exact."""
        return 0.0

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        y = np.add.accumulate(np.concatenate([state, z]), axis=0, dtype=object)[1:]
        return y, y[-1:]


class TreeKernel(IdentityKernel):
    """The binary mechanism: sums of the nodes of a prefix.

    **Guarantee.** In doubles that of `NearFilter`. Proof: `exact_noise.proof.md`, lemma 12. Tests:
    `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted losses of bits are caught).
    """

    narrow = 0

    def __init__(self, horizon: int) -> None:
        self.levels = (-(-horizon // BLOCK_TICKS) * BLOCK_TICKS).bit_length()  # of the tree over whole blocks
        self.rows = self.levels + 1

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: at most one node per bit of t."""
        return math.sqrt(ticks.bit_length())

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        return self._sums(state, block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS, z)

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """See `NearFilter`."""
        return BLOCK_TICKS, 1 if cells >= 24 else max(1, (16 if ticks <= 512 else 256) // cells)

    def drift(self, tick: int, size: int = BLOCK_TICKS) -> float:
        """See `NearFilter`."""
        return 2.0**-76

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        first, second, third = normals.slices()
        z = np.stack([first + second, third], axis=1)
        noise, after = self._sums(np.ascontiguousarray(state.swapaxes(0, 1)), start, start + size * blocks, z)
        return noise[:, 0] + noise[:, 1], self.drift(start), np.ascontiguousarray(after.swapaxes(0, 1))

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        """(Y, state after) of ticks start+1 … stop, in integers or in doubles."""
        return prefix_sums(z, state, start)


class DirectKernel(TreeKernel):
    """The normals themselves: a tree whose every number is one node, so the bound of a tree holds."""

    def __init__(self) -> None:
        self.rows = 0

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: 1."""
        return 1.0

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        return z, state


class HonakerKernel(TreeKernel):
    """Honaker's variant: estimate of an interval = ⌊v_h·z + (1 − v_h)·(left + right)⌋, v_h = 2^h/(2^(h+1) − 1).

    The state is the prefixes of the tree, then the newest estimate of every level.
    """

    def __init__(self, horizon: int, bits: int) -> None:
        super().__init__(horizon)
        self.bits = bits
        self.rows = 2 * self.levels + 1
        own = [(1 << h + bits) // ((2 << h) - 1) for h in range(self.levels)]
        self.weights = [(v, (1 << bits) - v) for v in own]

    @cached_property
    def _slices(self) -> FloatArray:
        """The weights, (5, levels, 2)."""
        return of_integers(np.asarray(self.weights, dtype=object), self.bits)

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`: one draw for every node that completes."""
        start, stop = block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS
        return 2 * start - start.bit_count(), 2 * stop - stop.bit_count()

    def error(self, ticks: int) -> float:
        """See `FilterKernel` (lemma 7)."""
        levels = ticks.bit_length()
        return levels**2 * (1 + 3 * SIGMAS * (levels + 1)) * (1 + 1e-6)

    def drift(self, tick: int, size: int = BLOCK_TICKS) -> float:
        """See `NearFilter`."""
        return MOST_LEVELS**2 * 2.0**-76

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        whole = z.dtype == object
        combine: Callable[[int, AnyArray, AnyArray], AnyArray] = self._whole if whole else self._doubles
        newest = state[self.levels + 1 :]
        values, after = node_estimates(z << self.bits - DRAW_BITS if whole else z, newest, start, stop, combine)
        noise, prefixes = prefix_sums(values, state[: self.levels + 1], start)
        return noise, np.concatenate([prefixes, after])

    def _whole(self, level: int, own: AnyArray, children: AnyArray) -> AnyArray:
        v, rest = self.weights[level]
        return np.asarray((v * own + rest * children) >> self.bits, dtype=object)

    def _doubles(self, level: int, own: AnyArray, children: AnyArray) -> AnyArray:
        numbers = np.stack([own, children])
        slices = cut(numbers[:, :, 0], numbers[:, :, 1], 1.0)
        weights = self._slices[:, level].reshape(5, 2, *[1] * (slices.ndim - 2))
        one, two, three = (part.sum(axis=0) for part in product(weights, slices))
        sums = settle((one, two, three), 1.0)
        return np.stack([sums[0] + sums[1], sums[2]], axis=1)


class HonakerFullKernel(TreeKernel):
    """Honaker's full estimator: noise in the middle of a node = ⌊(sum of its ends)/2⌋ + ⌊√(v_h/2)·z⌋, v_h as above.

    At the end of the complete tree it is ⌊√v_H·z⌋. The state is the noise at the ends of the nodes that hold the tick.

    **Guarantee.** Where no normal is 64 deviations out, |Ỹ_t − (L z)_t·2^bits| ≤ `error`(T), and doubles are within
    `drift` of (L z)_t. Proof: `exact_noise.proof.md`, lemmas 7 and 12. Tests: `tests/mechanisms/test_exact_error.py`,
    `tests/mechanisms/test_near_noise.py::test_planted_loss_in_middles_of_nodes_is_caught`.
    """

    def __init__(self, horizon: int, bits: int) -> None:
        self.bits = bits
        self.height = (horizon - 1).bit_length()
        self.rows = self.height + 1
        halves = [1] * self.height + [0]  # v_h/2 of the middles, v_H of the end
        self.weights = [math.isqrt((1 << 2 * bits + h - half) // ((2 << h) - 1)) for h, half in enumerate(halves)]

    @cached_property
    def _slices(self) -> FloatArray:
        """The weights, (5, levels)."""
        return of_integers(np.asarray(self.weights, dtype=object), self.bits)

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

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        integers = z.dtype == object
        combine: Callable[[int, AnyArray, AnyArray], AnyArray] = self._integers if integers else self._doubles
        last = min(stop, 1 << self.height)
        noise, ends = noise_at_boundaries(z << self.bits - DRAW_BITS if integers else z, state, start, last, combine)
        # a tree shorter than a block has no noise for the block's last ticks, and no stream takes them
        rest = np.zeros((stop - last, *z.shape[1:]), dtype=z.dtype)
        return np.concatenate([noise, rest]), ends

    def _integers(self, level: int, own: AnyArray, pair: AnyArray) -> AnyArray:
        return np.asarray((pair >> 1) + (self.weights[level] * own >> self.bits), dtype=object)

    def _doubles(self, level: int, own: AnyArray, pair: AnyArray) -> AnyArray:
        one, two, three = product(self._slices[:, level], cut(own[:, 0], own[:, 1], 1.0))
        sums = settle((one + pair[:, 0] / 2, two, three + pair[:, 1] / 2), 1.0)
        return np.stack([sums[0] + sums[1], sums[2]], axis=1)


class OptimalKernel(IdentityKernel):
    """The dense matrix, its doubles taken exactly. Every block reads all draws from the first on; there is no state."""

    rows = narrow = 0

    def __init__(self, left: FloatArray) -> None:
        self.left = left
        mantissa, exponent = np.frexp(left)
        # entries are whole·2^−extra; zeros have exponent 0 and no say
        self._whole = (mantissa * 2.0**53).astype(np.int64)
        shift = np.where(left != 0, exponent - 53, 0)
        extra = -min(0, int(shift.min()))
        self._shift = np.where(left != 0, shift + extra, 0)
        self.bits = DRAW_BITS + extra
        self._norm = float(np.linalg.norm(left, axis=1).max()) * (1 + 1e-6)
        self._sum = float(np.abs(left).sum(axis=1).max()) * 1.001

    def window(self, block: int) -> tuple[int, int]:
        """See `FilterKernel`: all draws so far."""
        return 0, (block + 1) * BLOCK_TICKS

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`."""
        return self._norm

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        out = np.zeros((BLOCK_TICKS, z.shape[1]), dtype=object)
        for k, t in enumerate(range(block * BLOCK_TICKS, min((block + 1) * BLOCK_TICKS, len(self.left)))):
            row = self._whole[t, : t + 1].astype(object) << self._shift[t, : t + 1].astype(object)
            out[k] = row @ z[: t + 1]
        return out, state

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """See `NearFilter`."""
        return BLOCK_TICKS, 1

    def drift(self, tick: int, size: int = BLOCK_TICKS) -> float:
        """See `NearFilter`: there is no state."""
        return 0.0

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        rows, used = self.left[start : start + size], min(normals.shape[0], len(self.left))
        z = normals[:used].to_float()
        noise = np.zeros((size, z.shape[1]))
        noise[: len(rows)] = rows[:, :used] @ z
        return noise, (used + 8) * ROUNDING * self._sum * float(np.abs(z).max()), state
