"""Public weights of the row-weighted family: piecewise linear over blocks whose lengths are powers of two.

A block is at most 1/KNOT_DENSITY times as long as its distance to either end. So 10^8 ticks need about ten thousand
knots, and every tick near an end is a knot of its own. Values between two knots are *defined* as the exact linear
interpolation; doubles give it up to one rounding, fixed-point arithmetic exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evercount._arrays import FloatArray, IntArray

KNOT_DENSITY = 256  # least ratio of a block's distance from the ends to its length
LONGEST_CACHED_RAMP = 1 << 15
"""Ramps up to this length share one cached array; longer ones are built when needed."""


def dyadic_knots(last: int, mirrored: bool) -> IntArray:
    """Knots 0 = t_0 < t_1 < … = last with power-of-two steps, small near 0 and, with `mirrored`, near the end too."""
    knots = [0]
    at = 0
    length = 1
    while at < last:
        length = min(2 * length, at & -at) if at else 1
        while length > 1 and length * KNOT_DENSITY > min(at, last - at - length if mirrored else at):
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
    def _knot_ticks(self) -> list[int]:
        return [int(knot) for knot in self.knots]  # bisect in a list is faster than a search in an array

    @cached_property
    def _run_ends(self) -> list[int]:
        """Indices of the knots at which the length of blocks changes, and of the last knot."""
        lengths = np.diff(self.knots)
        return [*(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]

    @cached_property
    def _lines(self) -> FloatArray:
        """(value, slope) of every block; after the last knot the function is constant."""
        slopes = np.append(np.diff(self.values) / np.diff(self.knots), 0.0)
        return np.stack([self.values, slopes], axis=1)

    def at(self, start: int, stop: int) -> FloatArray:
        """Values at ticks start … stop−1 (0-based). How ticks are split into calls changes them by rounding at most."""
        out = np.empty(stop - start)
        knots = self._knot_ticks
        first, last = bisect_left(knots, start), bisect_right(knots, stop) - 1
        if first > last:  # all ticks lie inside one block
            self._inside_block(last, start, stop, out)
            return out
        self._inside_block(first - 1, start, knots[first], out[: knots[first] - start])
        left, run = first, bisect_right(self._run_ends, first)
        while left < last:  # a run of blocks of one length: one product with the ramp of that length
            right = min(self._run_ends[run], last)
            length = knots[left + 1] - knots[left]
            grid = out[knots[left] - start : knots[right] - start].reshape(right - left, length)
            np.matmul(self._lines[left:right], _ramp(length), out=grid)
            left, run = right, run + 1
        self._inside_block(last, knots[last], stop, out[knots[last] - start :])
        return out

    def _inside_block(self, block: int, start: int, stop: int, out: FloatArray) -> None:
        """Write ticks start … stop−1 into `out`. They lie in one block, which may be the endless last one."""
        if start < stop:
            value, slope = self._lines[block]
            np.multiply(_ramp(stop - start)[1], slope, out=out)
            out += value + slope * (start - self._knot_ticks[block])


def _ramp(length: int) -> FloatArray:
    """The rows (1, …, 1) and (0, …, length−1): (value, slope) times this matrix gives a line's values."""
    return _cached_ramp()[:, :length] if length <= LONGEST_CACHED_RAMP else _new_ramp(length)


def _new_ramp(length: int) -> FloatArray:
    ramp = np.ones((2, length))
    ramp[1] = np.arange(length)
    return ramp


@lru_cache(maxsize=1)
def _cached_ramp() -> FloatArray:
    ramp = _new_ramp(LONGEST_CACHED_RAMP)
    ramp.flags.writeable = False
    return ramp
