"""Public weights of the row-weighted family: piecewise linear over blocks whose lengths are powers of two.

A block that starts at tick a is at most a fraction 1/DENSITY of its distance to either end, so that 10^8 ticks need
some ten thousand knots, while every tick near an end is a knot of its own. Values between two knots are *defined* as
the exact linear interpolation; doubles carry it to one rounding, fixed-point arithmetic exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evercount.factorizations.base import FloatArray

DENSITY = 256

IntArray = npt.NDArray[np.int64]


def dyadic_knots(last: int, mirrored: bool) -> IntArray:
    """0 = t_0 < t_1 < … = last with power-of-two steps; `mirrored` makes the steps small near the end as well."""
    knots = [0]
    at = 0
    length = 1
    while at < last:
        length = min(2 * length, at & -at) if at else 1
        while length > 1 and length * DENSITY > min(at, last - at - length if mirrored else at):
            length //= 2
        while at + length > last:
            length //= 2
        at += length
        knots.append(at)
    return np.asarray(knots, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A public function of the 0-based tick, linear between knots and constant after the last one."""

    knots: IntArray
    values: FloatArray

    @cached_property
    def _lengths(self) -> IntArray:
        return np.diff(self.knots)

    @cached_property
    def _lines(self) -> FloatArray:
        """(value, slope) of every block; behind the last knot the function is constant."""
        slopes = np.append(np.diff(self.values) / self._lengths, 0.0)
        return np.stack([self.values, slopes], axis=1)

    def at(self, start: int, stop: int) -> FloatArray:
        """Values at ticks start … stop−1 (0-based), the same to one rounding whatever the split into calls."""
        out = np.empty(stop - start)
        first = int(np.searchsorted(self.knots, start, side="left"))
        last = int(np.searchsorted(self.knots, stop, side="right")) - 1
        if first > last:  # inside one block
            self._part(last, start, stop, out)
            return out
        head, tail = int(self.knots[first]), int(self.knots[last])
        self._part(first - 1, start, head, out[: head - start])
        lengths = self._lengths[first:last]
        ends = [*(np.flatnonzero(lengths[1:] != lengths[:-1]) + 1).tolist(), len(lengths)] if len(lengths) else []
        left, at = first, head - start
        for right in (first + end for end in ends):  # blocks of one length: a product with the ramp of that length
            length = int(self._lengths[left])
            size = (right - left) * length
            grid = out[at : at + size].reshape(right - left, length)
            np.matmul(self._lines[left:right], _ramp(0, length), out=grid)
            left, at = right, at + size
        self._part(last, tail, stop, out[tail - start :])
        return out

    def _part(self, block: int, start: int, stop: int, out: FloatArray) -> None:
        """Ticks start … stop−1, all in one block (which may be the endless last one)."""
        if start < stop:
            at = int(self.knots[block])
            np.matmul(self._lines[block : block + 1], _ramp(start - at, stop - at), out=out[np.newaxis])


def _ramp(start: int, stop: int) -> FloatArray:
    ramp = np.ones((2, stop - start))
    ramp[1] = np.arange(start, stop)
    return ramp
