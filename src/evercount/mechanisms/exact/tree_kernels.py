"""Other factorisations in fixed point: `identity`, `direct`, `binary-tree`, `optimal` without rounding; `honaker`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.factorizations.trees import node_estimates, prefix_sums
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, DRAW_BITS, SIGMAS, Dyadics


def _levels(horizon: int) -> int:
    """Levels of the tree over whole blocks."""
    return (-(-horizon // BLOCK_TICKS) * BLOCK_TICKS).bit_length()


class IdentityKernel:
    """The running sum of the normals."""

    bits = DRAW_BITS
    rows = 1
    eta: Dyadics | None = None
    n: Dyadics | None = None
    roots_lack: tuple[float, ...] = ()
    tops_lack: tuple[float, ...] = ()

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""
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


class DirectKernel(IdentityKernel):
    """The normals themselves."""

    rows = 0

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`: 1."""
        return 1.0

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        return z, state


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
        return prefix_sums(z, state, block * BLOCK_TICKS)


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
        start, stop = block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS
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

        return self.estimate(
            state, block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS, z << (self.bits - DRAW_BITS), combine
        )

    def estimate(
        self,
        state: AnyArray,
        start: int,
        stop: int,
        z: AnyArray,
        combine: Callable[[int, AnyArray, AnyArray], AnyArray],
    ) -> tuple[AnyArray, AnyArray]:
        """(Y, state after) of ticks start+1 … stop, for any form of numbers that can be added and combined."""
        prefixes, newest = state[: self.levels + 1], state[self.levels + 1 :]
        values, after = node_estimates(z, newest, start, stop, combine)
        noise, prefixes = prefix_sums(values, prefixes, start)
        return noise, np.concatenate([prefixes, after])


class OptimalKernel(IdentityKernel):
    """The dense matrix, its doubles taken exactly. Every block reads all draws from the first on; there is no state."""

    rows = 0

    def __init__(self, left: FloatArray) -> None:
        self.left = left
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
        return 0, (block + 1) * BLOCK_TICKS

    def norm(self, ticks: int) -> float:
        """See `FilterKernel`."""
        return self._norm

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """See `FilterKernel`."""
        out = np.zeros((BLOCK_TICKS, z.shape[1]), dtype=object)
        for k, t in enumerate(range(block * BLOCK_TICKS, min((block + 1) * BLOCK_TICKS, self._size))):
            row = self._whole[t, : t + 1].astype(object) << self._shift[t, : t + 1].astype(object)
            out[k] = row @ z[: t + 1]
        return out, state
