"""Other factorisations in fixed point: `identity`, `direct`, `binary-tree`, `optimal` without rounding; `honaker`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from evercount._arrays import AnyArray, FloatArray, Limbs32, ObjectArray
from evercount.factorizations.trees import node_estimates, prefix_sums
from evercount.mechanisms.exact.filter_kernel import DRAW_BITS, MOST_TICKS, SIGMAS, SIZE
from evercount.mechanisms.exact.limbs import BASE, WIDTH, carry, check_capacity, convolve, digits, limbs_for, times

PIECE = 64
"""Ticks of the past that `optimal` sums at a time."""


def _levels(horizon: int) -> int:
    """Levels of the tree over whole blocks."""
    return (-(-horizon // SIZE) * SIZE).bit_length()


class IdentityKernel:
    """The running sum of the normals."""

    bits = DRAW_BITS
    rows = 1

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""
        return block * SIZE, (block + 1) * SIZE

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

    @property
    def limbs(self) -> int:
        """See `FilterKernel`: room for 64 deviations of the largest row, and sums below 2^47 normals."""
        return limbs_for(self.bits + math.log2(SIGMAS * self.norm(MOST_TICKS)))

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """See `FilterKernel`."""
        y = np.zeros((self.limbs, SIZE, z.shape[2]))
        y[: len(z)] = z
        y[:, 0] += state[:, 0]
        for k in range(1, SIZE):
            y[:, k] += y[:, k - 1]
        carry(y)
        return y, y[:, -1:].astype(np.int32)


class DirectKernel(IdentityKernel):
    """The normals themselves."""

    rows = 0

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: 1."""
        return 1.0

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        return z, state

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """See `FilterKernel`."""
        y = np.zeros((self.limbs, SIZE, z.shape[2]))
        y[: len(z)] = z
        return y, state


class TreeKernel(IdentityKernel):
    """The binary mechanism: sums of the nodes of a prefix."""

    def __init__(self, horizon: int) -> None:
        self.levels = _levels(horizon)
        self.rows = self.levels + 1

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: at most one node per bit of t."""
        return math.sqrt(ticks.bit_length())

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        return _prefix_sums(z, state, block * SIZE)

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """See `FilterKernel`. Limbs are added without carrying: a prefix has at most 48 nodes."""
        padded = np.zeros((self.limbs, *z.shape[1:]))
        padded[: len(z)] = z
        noise, prefixes = _prefix_sums(_ticks_first(padded), _ticks_first(state), block * SIZE)
        return _ticks_first(noise), _ticks_first(prefixes.astype(np.int32))


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

    def window(self, block: int) -> tuple[int, int]:
        """See `IdentityKernel`: one draw for every node that completes."""
        start, stop = block * SIZE, (block + 1) * SIZE
        return 2 * start - start.bit_count(), 2 * stop - stop.bit_count()

    def error(self, ticks: int) -> float:
        """See `FilterKernel` (lemma 7)."""
        levels = ticks.bit_length()
        return levels**2 * (1 + 3 * SIGMAS * (levels + 1)) * (1 + 1e-6)

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""

        def combine(level: int, own: AnyArray, children: AnyArray) -> AnyArray:
            v, rest = self.weights[level]
            return np.asarray((v * own + rest * children) >> self.bits, dtype=object)

        return self.estimate(state, block, z << (self.bits - DRAW_BITS), combine)

    @cached_property
    def _digits(self) -> list[tuple[FloatArray, FloatArray]]:
        return [(_one(v), _one(rest)) for v, rest in self.weights]

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """See `FilterKernel`."""

        def combine(level: int, own: AnyArray, children: AnyArray) -> AnyArray:
            total = np.zeros((self.limbs + fraction, *_ticks_first(own).shape[1:]))
            for weights, numbers in zip(self._digits[level], (own, children), strict=True):
                for place, digit in enumerate(weights[:, 0].tolist()):
                    total[place : place + self.limbs] += digit * _ticks_first(numbers)
            return _ticks_first(carry(total, fraction))

        fraction = self.bits // WIDTH
        shifted = times(z, _one(1 << self.bits - DRAW_BITS)[:, :, np.newaxis], 0, self.limbs)
        noise, after = self.estimate(_ticks_first(state), block, _ticks_first(shifted), combine)
        return _ticks_first(noise), _ticks_first(after.astype(np.int32))

    def estimate(
        self,
        state: AnyArray,
        block: int,
        z: AnyArray,
        combine: Callable[[int, AnyArray, AnyArray], AnyArray],
    ) -> tuple[AnyArray, AnyArray]:
        """(Y, state after) for any form of numbers that can be added and combined."""
        prefixes, newest = state[: self.levels + 1], state[self.levels + 1 :]
        start, stop = block * SIZE, (block + 1) * SIZE
        values, after = node_estimates(z, newest, start, stop, combine)
        noise, prefixes = _prefix_sums(values, prefixes, start)
        return noise, np.concatenate([prefixes, after])


class OptimalKernel(IdentityKernel):
    """The dense matrix, its doubles taken exactly. Every block reads all draws from the first on; there is no state."""

    rows = 0

    def __init__(self, left: FloatArray) -> None:
        self._size = len(left)
        mantissa, exponent = np.frexp(left)
        # entries are whole·2^−extra; zeros have exponent 0 and no say
        self._whole = (mantissa * 2.0**53).astype(np.int64)
        self._shift = np.where(left != 0, exponent - 53, 0)
        self._extra = -min(0, int(self._shift.min()))
        self._shift = np.where(left != 0, self._shift + self._extra, 0)
        self.bits = DRAW_BITS + self._extra
        self._norm = float(np.linalg.norm(left, axis=1).max()) * (1 + 1e-6)

    def window(self, block: int) -> tuple[int, int]:
        """See `IdentityKernel`: all draws so far."""
        return 0, (block + 1) * SIZE

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`."""
        return self._norm

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        out = np.zeros((SIZE, z.shape[1]), dtype=object)
        for k, t in enumerate(range(block * SIZE, min((block + 1) * SIZE, self._size))):
            row = self._whole[t, : t + 1].astype(object) << self._shift[t, : t + 1].astype(object)
            out[k] = row @ z[: t + 1]
        return out, state

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """See `FilterKernel`. The sum over the past is cut into pieces that doubles hold exactly."""
        rows = slice(block * SIZE, min((block + 1) * SIZE, self._size))
        constants = self._matrix(rows)
        total = np.zeros((len(constants) + len(z) + 1, SIZE, z.shape[2]))
        for start in range(0, min(z.shape[1], self._size), PIECE):
            part = constants[:, :, start : start + PIECE]
            stacked = part[::-1].transpose(1, 0, 2).reshape(part.shape[1], -1)
            check_capacity(stacked)
            piece = np.zeros((len(total), part.shape[1], z.shape[2]))
            convolve(stacked, np.ascontiguousarray(z[:, start : start + part.shape[2]]), len(part), piece)
            total[:, : part.shape[1]] += carry(piece)
        return carry(total), state

    def _matrix(self, rows: slice) -> FloatArray:
        """Signed digits of the rows of the integer matrix, (limbs, rows, columns up to the last row)."""
        whole, shift = self._whole[rows, : rows.stop], self._shift[rows, : rows.stop]
        size, found = np.abs(whole), []
        for place in range(-(-int(shift.max() + 53) // WIDTH)):
            by = shift - WIDTH * place
            digit = np.where(by >= 0, size << np.clip(by, 0, WIDTH), size >> np.clip(-by, 0, 63))
            found.append(np.where(by >= WIDTH, 0, digit & (BASE - 1)) * np.sign(whole))
        return np.asarray(found, dtype=np.float64)


def _prefix_sums(values: AnyArray, prefixes: AnyArray, start: int) -> tuple[AnyArray, AnyArray]:
    """`prefix_sums` for any numbers that can be added."""
    return prefix_sums(values, prefixes, start)


def _ticks_first(x: AnyArray) -> AnyArray:
    """(limbs, ticks, cells) ↔ (ticks, limbs, cells), as a view."""
    return x.transpose(1, 0, 2)


def _one(value: int) -> FloatArray:
    return digits(np.asarray([value], dtype=object))
