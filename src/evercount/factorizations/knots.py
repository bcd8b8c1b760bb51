"""Public weights of the row-weighted family: piecewise linear over blocks whose lengths are powers of two.

A block that starts at tick a is at most a fraction 1/DENSITY of its distance to either end, so that 10^8 ticks need
some ten thousand knots, while every tick near an end is a knot of its own. Values between two knots are *defined* as
the exact linear interpolation; doubles carry it to one rounding, fixed-point arithmetic exactly.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

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

    def at(self, start: int, stop: int) -> FloatArray:
        """Values at ticks start … stop−1 (0-based), the same whatever the split into calls."""
        out = np.empty(stop - start)
        first = int(np.searchsorted(self.knots, start, side="right")) - 1
        last = int(np.searchsorted(self.knots, stop, side="left"))
        knots, values = self.knots[first : last + 1], self.values[first : last + 1]
        lengths = np.diff(knots)
        slopes = np.diff(values) / lengths
        runs = np.flatnonzero(np.diff(lengths)) + 1
        for q0, q1 in itertools.pairwise([0, *runs, len(lengths)] if len(lengths) else []):
            length = int(lengths[q0])
            while q0 < q1 and (knots[q0] < start or knots[q0 + 1] > stop):  # a block that is cut at its front or back
                left = int(knots[q0])
                lo, hi = max(left, start), min(left + length, stop)
                out[lo - start : hi - start] = (
                    slopes[q0] * np.arange(lo - left, hi - left, dtype=np.float64) + values[q0]
                )
                q0 += 1
            whole = q1 - 1 if q1 > q0 and knots[q1] > stop else q1
            if whole > q0:
                left, right = int(knots[q0]), int(knots[whole])
                grid = out[left - start : right - start].reshape(whole - q0, length)
                np.multiply.outer(slopes[q0:whole], np.arange(length, dtype=np.float64), out=grid)
                grid += values[q0:whole, np.newaxis]
            if whole < q1:
                left = int(knots[whole])
                offsets = np.arange(stop - left, dtype=np.float64)
                out[left - start :] = slopes[whole] * offsets + values[whole]
        if stop > self.knots[-1]:
            out[max(int(self.knots[-1]) - start, 0) :] = self.values[-1]
        return out
