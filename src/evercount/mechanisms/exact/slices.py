"""Numbers in three doubles: products and sums with about 100 bits, as products of matrices.

A number of a unit (a power of two) is first + second + third: `first` is a multiple of unit·2^−20, `second` of
unit·2^−40, and `third` the rest. Sums of products of firsts, and of firsts and seconds, are sums of integers below 2^53
(times a power of two): exact in any order, fused or not. Only the other products are rounded, and these are 2^−40 times
smaller. An array of slices is (5, …): first, second, third, second + third rounded, and the number as a double.
`exact_noise.proof.md`, lemma 9, has the same letters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from evercount._arrays import FloatArray, ObjectArray

WIDTH = 20  # bits of a slice
ROUNDING = 2.0**-53  # relative error of one operation on doubles
EXACT = 2.0**53  # integers up to this size are exact as doubles

Parts = tuple[FloatArray, FloatArray, FloatArray]
"""The sum of three arrays: multiples of 2^−40, multiples of 2^−60, and a small rest (each times the units)."""
Multiply = Callable[[FloatArray, FloatArray], FloatArray]


def with_sums(slices: FloatArray) -> FloatArray:
    """The same array with its last two rows computed from the first three."""
    np.add(slices[1], slices[2], out=slices[3])
    np.add(slices[0], slices[3], out=slices[4])
    return slices


def cut(high: FloatArray, low: FloatArray, unit: float) -> FloatArray:
    """high + low as slices, for |high| < 2^31·unit, and |low| ≤ 2^−50·|high| or high a multiple of 2^−40·unit."""
    return settle((high.copy(), np.zeros(()), low), unit)


def settle(parts: Parts, unit: float, out: FloatArray | None = None) -> FloatArray:
    """The sum of parts as slices, in `out` if it is given. The first part is overwritten."""
    one, two, three = parts
    slices = np.empty((5, *one.shape)) if out is None else out
    for place, more in ((0, two), (1, three)):
        # adding and subtracting 1.5·2^52 grids rounds to the grid
        large = 1.5 * 2.0 ** (52 - WIDTH * (place + 1)) * unit
        np.add(one, more, out=slices[place])
        slices[place] += large
        slices[place] -= large
        one -= slices[place]
        one += more
    slices[2] = one
    return with_sums(slices)


def product(a: FloatArray, v: FloatArray, multiply: Multiply = operator.mul) -> Parts:
    """a·v in parts, for any bilinear product of arrays."""
    one = multiply(a[0], v[0])
    two = multiply(a[0], v[1])
    two += multiply(a[1], v[0])
    three = multiply(a[0], v[2])
    three += multiply(a[1], v[3])
    three += multiply(a[2], v[4])
    return one, two, three


def pair(parts: Parts, high: FloatArray | float = 0.0, low: FloatArray | float = 0.0) -> FloatArray:
    """high + low + parts as two doubles (2, …): the number rounded, and what is left."""
    total, lost = two_sum(np.asarray(high), parts[0])
    total, more = two_sum(total, parts[1])
    return np.stack(two_sum(total, (lost + more) + (parts[2] + low)))


def two_sum(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(a + b rounded, what the rounding lost): their sum is exactly a + b (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def power_above(value: float) -> float:
    """The smallest power of two above a positive number: its unit."""
    return 2.0 ** math.frexp(value)[1]


def of_integers(values: ObjectArray, bits: int) -> FloatArray:
    """Constants value / 2^bits as slices of unit 1, each within 2^−94 of the exact number."""
    slices = np.empty((5, *values.shape))
    for place in range(3):
        drop = bits - WIDTH * (place + 1) if place < 2 else 0
        part = (values + (1 << drop >> 1)) >> drop << drop
        slices[place] = np.ldexp(part.astype(np.float64), -bits)
        values = values - part
    return with_sums(slices)


def product_error(terms: int, size: float, top: float) -> float:
    """A bound of the rounding in `product`: sums of `terms` terms, a of unit 1 with Σ|a| ≤ size, |v| ≤ top·unit.

    In units of v's unit, with the rounding of constants by `of_integers` (lemma 9).
    """
    return (terms + 8) * ROUNDING * 2.0**-41 * (2.1 * size + 2.1 * terms + 1.1 * terms * top)


def check_exact(matrix: FloatArray, tops: FloatArray, unit: float = 1.0) -> None:
    """Check that the first two parts of matrix·v are sums of integers below 2^53, for |v_j| ≤ tops_j in units of v."""
    one, two = np.abs(matrix[:2]) @ tops[..., np.newaxis]
    check_sums(one, two + 1.1 * 2.0**-WIDTH * np.abs(matrix[0]).sum(axis=-1, keepdims=True), unit)


def check_sums(one: FloatArray, two: FloatArray, unit: float) -> None:
    """Check that the first two parts of a sum, or bounds of them, are integers below 2^53 in their units."""
    top = max(float(np.abs(one).max(initial=0.0)), float(np.abs(two).max(initial=0.0)) * 2.0**WIDTH)
    if top / unit * 2.0 ** (2 * WIDTH) >= EXACT:
        raise AssertionError("sums of products of slices would pass 2^53")
