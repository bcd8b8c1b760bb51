"""Numbers as three doubles each, for products and sums of about 100 bits at the speed of matrix products of doubles.

A number v is first + second + third: `first` is a multiple of unit·2^−20, `second` of unit·2^−40, and `third` the rest.
Sums of products of firsts, and of firsts and seconds, are sums of integers below 2^53 (times a power of two): exact in
any order, fused or not. Only the other products are rounded, and these are 2^−40 times smaller.
`exact_noise.proof.md`, lemma 9, has the same letters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evercount._arrays import FloatArray, ObjectArray

WIDTH = 20
"""Bits of a slice."""
ROUNDING = 2.0**-53
"""Relative error of one operation on doubles."""
EXACT = 2.0**53
"""Integers up to this size are exact as doubles."""

Parts = tuple[FloatArray, FloatArray, FloatArray]
"""The sum of three arrays: multiples of 2^−40, multiples of 2^−60, and a small rest (each times the units)."""
Multiply = Callable[[FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True, eq=False)
class Slices:
    """An array of numbers, first + second + third."""

    first: FloatArray
    second: FloatArray
    third: FloatArray

    @cached_property
    def rest(self) -> FloatArray:
        """second + third, rounded."""
        return self.second + self.third

    @cached_property
    def whole(self) -> FloatArray:
        """The numbers as doubles."""
        return self.first + self.rest

    def map(self, change: Callable[[FloatArray], FloatArray]) -> Slices:
        """The same numbers in another shape or order."""
        return Slices(change(self.first), change(self.second), change(self.third))


def nearest(x: FloatArray, grid: float) -> FloatArray:
    """The multiple of a power of two that is nearest to x, for |x| < 2^51·grid."""
    large = 1.5 * 2.0**52 * grid
    rounded = x + large
    rounded -= large
    return rounded


def cut(high: FloatArray, low: FloatArray, unit: float) -> Slices:
    """high + low as slices, for |high| < 2^31·unit and |low| ≤ 2^−50·|high|."""
    first = nearest(high, unit * 2.0**-WIDTH)
    rest = high - first
    second = nearest(rest, unit * 2.0 ** (-2 * WIDTH))
    rest -= second
    rest += low
    return Slices(first, second, rest)


def product(a: Slices, v: Slices, multiply: Multiply = operator.mul) -> Parts:
    """a·v in parts, for any bilinear product of arrays."""
    one = multiply(a.first, v.first)
    two = multiply(a.first, v.second)
    two += multiply(a.second, v.first)
    three = multiply(a.first, v.third)
    three += multiply(a.second, v.rest)
    three += multiply(a.third, v.whole)
    return one, two, three


def settle(parts: Parts, unit: float) -> Slices:
    """The sum of parts as slices again. The parts are used up."""
    one, two, three = parts
    first = nearest(one + two, unit * 2.0**-WIDTH)
    one -= first
    one += two
    second = nearest(one + three, unit * 2.0 ** (-2 * WIDTH))
    one -= second
    one += three
    return Slices(first, second, one)


def two_sum(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(a + b rounded, what the rounding lost): their sum is exactly a + b (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def pair(parts: Parts, high: FloatArray | float = 0.0, low: FloatArray | float = 0.0) -> FloatArray:
    """high + low + parts as two doubles (2, …): the number rounded, and what is left."""
    total, lost = two_sum(np.asarray(high), parts[0])
    total, more = two_sum(total, parts[1])
    return np.stack(two_sum(total, (lost + more) + (parts[2] + low)))


def of_integers(values: ObjectArray, bits: int) -> Slices:
    """Constants value / 2^bits as slices of unit 1, each within 2^−94 of the exact number."""

    def rounded(numbers: ObjectArray, place: int) -> ObjectArray:
        return np.asarray(numbers + (1 << bits - place - 1) >> bits - place << bits - place, dtype=object)

    first = rounded(values, WIDTH)
    second = rounded(values - first, 2 * WIDTH)
    parts = (np.ldexp(part.astype(np.float64), -bits) for part in (first, second, values - first - second))
    return Slices(next(parts), next(parts), next(parts))


def product_error(terms: int, size: float, top: float) -> float:
    """A bound of the rounding in `product`: sums of so many terms, a of unit 1 with Σ|a| ≤ size, |v| ≤ top·unit.

    In units of v's unit, with the rounding of constants by `of_integers` (lemma 9).
    """
    return (terms + 8) * ROUNDING * 2.0**-41 * (2.1 * size + 2.1 * terms + 1.1 * terms * top)


def check_exact(matrix: Slices, tops: FloatArray, unit: float = 1.0) -> None:
    """That the first two parts of matrix·v are sums of integers below 2^53, for |v_j| ≤ tops_j in units of v."""
    one = np.abs(matrix.first) @ tops
    two = np.abs(matrix.second) @ tops * 2.0**WIDTH + 1.1 * np.abs(matrix.first).sum(axis=-1)
    if max(one.max(initial=0.0), two.max(initial=0.0)) / unit * 2.0 ** (2 * WIDTH) > EXACT:
        raise AssertionError("sums of products of slices would pass 2^53")
