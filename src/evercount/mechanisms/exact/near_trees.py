"""`binary-tree`, `honaker` and `optimal` in doubles, with a proved bound of the distance to the fixed-point noise.

A number of a tree is two doubles: a multiple of 2^−40, of which sums are exact, and a rest. `exact_noise.proof.md`,
lemma 12, has the same letters.
"""

from __future__ import annotations

import math

import numpy as np

from evercount._arrays import AnyArray, FloatArray
from evercount.factorizations.trees import prefix_sums
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, SIGMAS
from evercount.mechanisms.exact.slices import (
    ROUNDING,
    Slices,
    check_exact,
    cut,
    of_integers,
    pair,
    product,
    product_error,
    settle,
    two_sum,
)
from evercount.mechanisms.exact.tree_kernels import HonakerKernel, IdentityKernel, OptimalKernel
from evercount.noise import Normals

MOST_LEVELS = 48
PIECE = 64
"""Ticks of the past that `optimal` sums at a time."""


class NearTree:
    """The binary mechanism in doubles. Rows of the state as in `TreeKernel`, (2, rows, cells): high and low.

    **Guarantee.** That of `NearFilter`. Proof: `exact_noise.proof.md`, lemma 12. Tests:
    `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted losses of bits are caught).
    """

    narrow = 0

    def __init__(self, kernel: IdentityKernel) -> None:
        self._kernel = kernel

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """See `NearFilter`."""
        return BLOCK_TICKS, 1 if cells >= 24 else max(1, (16 if ticks <= 512 else 256) // cells)

    def drift(self, tick: int) -> float:
        """See `NearFilter`."""
        return 2.0**-76

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        noise, after = self._pairs(state, start, start + size * blocks, normals)
        return noise[:, 0] + noise[:, 1], self.drift(start), np.ascontiguousarray(after.transpose(1, 0, 2))

    def refine(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float]:
        """See `NearFilter`."""
        noise, _ = self._pairs(state, start, start + size * blocks, normals)
        return np.stack(two_sum(noise[:, 0], noise[:, 1])), self.drift(start)

    def _pairs(self, state: FloatArray, start: int, stop: int, normals: Normals) -> tuple[AnyArray, AnyArray]:
        first, second, third = normals.slices()
        z = np.stack([first + second, third], axis=1)
        return self._sums(np.ascontiguousarray(state.transpose(1, 0, 2)), start, stop, z)

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        return prefix_sums(z, state, start)


class NearDirect(NearTree):
    """The normals themselves: a tree whose every number is one node, so the bound of a tree holds."""

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        return z, state


class NearHonaker(NearTree):
    """Honaker's variant in doubles."""

    def __init__(self, kernel: HonakerKernel) -> None:
        super().__init__(kernel)
        self._honaker = kernel
        weights = np.asarray(kernel.weights, dtype=object)
        self._own, self._children = (of_integers(column, kernel.bits) for column in weights.T)

    def drift(self, tick: int) -> float:
        """See `NearFilter`."""
        return MOST_LEVELS**2 * 2.0**-76

    def _sums(self, state: AnyArray, start: int, stop: int, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        def combine(level: int, own: AnyArray, children: AnyArray) -> AnyArray:
            one, two = (
                product(weight.map(lambda array: array[level]), cut(number[:, 0], number[:, 1], 1.0))
                for weight, number in ((self._own, own), (self._children, children))
            )
            sums: Slices = settle((one[0] + two[0], one[1] + two[1], one[2] + two[2]), 1.0)
            return np.stack([sums.first + sums.second, sums.third], axis=1)

        return self._honaker.estimate(state, start, stop, z, combine)


class NearOptimal:
    """The dense matrix in doubles; it has no state, every block reads all draws."""

    narrow = 0

    def __init__(self, kernel: OptimalKernel) -> None:
        self._left = kernel.left
        self._sum = float(np.abs(kernel.left).sum(axis=1).max()) * 1.001

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """See `NearFilter`."""
        return BLOCK_TICKS, 1

    def drift(self, tick: int) -> float:
        """See `NearFilter`."""
        return 0.0

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float, FloatArray]:
        """See `NearFilter`."""
        rows, used = self._left[start : start + size], min(normals.shape[0], len(self._left))
        noise = np.zeros((size, normals.shape[1]))
        noise[: len(rows)] = rows[:, :used] @ Slices(*normals[:used].slices()).whole
        top = float(normals.integer.max(initial=0)) + 1.0
        return noise, (used + 8) * ROUNDING * self._sum * top, state

    def refine(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float]:
        """See `NearFilter`."""
        rows = self._left[start : start + size]
        unit = 2.0 ** math.frexp(float(np.abs(rows).max()))[1]
        noise, bound = np.zeros((2, size, normals.shape[1])), 0.0
        used = min(normals.shape[0], len(self._left))
        for first in range(0, used, PIECE):
            some = rows[:, first : min(first + PIECE, used)]
            matrix = cut(some, np.zeros_like(some), unit)
            check_exact(matrix, np.full(some.shape[1], SIGMAS), unit)
            z = Slices(*normals[first : first + some.shape[1]].slices())
            noise[:, : len(rows)] = pair(product(matrix, z, np.matmul), *noise[:, : len(rows)])
            bound += unit * product_error(PIECE, self._sum / unit, SIGMAS) + self._sum * 2.0**-91
        return noise, bound
