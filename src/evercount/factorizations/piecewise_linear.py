"""Public weights of the row-weighted family: piecewise linear over blocks whose lengths are powers of two.

A block that starts at tick a is at most a fraction 1/DENSITY of its distance to either end, so that 10^8 ticks need
some ten thousand knots, while every tick near an end is a knot of its own. Values between two knots are *defined* as
the exact linear interpolation; doubles carry it to one rounding, fixed-point arithmetic exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evercount._arrays import FloatArray, IntArray

DENSITY = 256
LONGEST_KEPT = 1 << 15
"""Ticks up to which their numbers are kept as doubles."""


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
    def _places(self) -> list[int]:
        return [int(knot) for knot in self.knots]  # bisect in a list costs less than a search in an array

    @cached_property
    def _ends(self) -> list[int]:
        """The numbers of the knots at which the length of blocks changes, and of the last one."""
        lengths = np.diff(self.knots)
        return [*(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]

    @cached_property
    def _lines(self) -> FloatArray:
        """(value, slope) of every block; behind the last knot the function is constant."""
        slopes = np.append(np.diff(self.values) / np.diff(self.knots), 0.0)
        return np.stack([self.values, slopes], axis=1)

    def at(self, start: int, stop: int) -> FloatArray:
        """Values at ticks start … stop−1 (0-based), the same to rounding whatever the split into calls."""
        out = np.empty(stop - start)
        knots = self._places
        first, last = bisect_left(knots, start), bisect_right(knots, stop) - 1
        if first > last:  # inside one block
            self._part(last, start, stop, out)
            return out
        self._part(first - 1, start, knots[first], out[: knots[first] - start])
        left, run = first, bisect_right(self._ends, first)
        while left < last:  # blocks of one length: a product with the ramp of that length
            right = min(self._ends[run], last)
            length = knots[left + 1] - knots[left]
            grid = out[knots[left] - start : knots[right] - start].reshape(right - left, length)
            np.matmul(self._lines[left:right], _ramp(length), out=grid)
            left, run = right, run + 1
        self._part(last, knots[last], stop, out[knots[last] - start :])
        return out

    def _part(self, block: int, start: int, stop: int, out: FloatArray) -> None:
        """Ticks start … stop−1, all in one block (which may be the endless last one)."""
        if start < stop:
            value, slope = self._lines[block]
            np.multiply(_ramp(stop - start)[1], slope, out=out)
            out += value + slope * (start - self._places[block])


def _ramp(length: int) -> FloatArray:
    """Rows of ones and of 0 … length−1: a line (value, slope) times it is the line's values."""
    return _kept_ramp()[:, :length] if length <= LONGEST_KEPT else _new_ramp(length)


def _new_ramp(length: int) -> FloatArray:
    ramp = np.ones((2, length))
    ramp[1] = np.arange(length)
    return ramp


@lru_cache(maxsize=1)
def _kept_ramp() -> FloatArray:
    ramp = _new_ramp(LONGEST_KEPT)
    ramp.flags.writeable = False
    return ramp
