"""The public numbers of recursive factorizations (matrices of a block, weights), and arithmetic
with three doubles.

Three doubles give products and sums with about 100 bits, as products of matrices. A number of a
unit (a power of two) is first + second + third: `first` is a multiple of unit·2^−20, `second` of
unit·2^−40, and `third` the rest. Sums of products of firsts, and of firsts and seconds, are sums of
integers below 2^53 (times a power of two): exact in any order, fused or not. Only the other
products are rounded, and these are 2^−40 times smaller. An array of slices is (5, …): first,
second, third, second + third rounded, and the number as a double. `exact_noise.proof.md`, lemma 9,
has the same letters.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evercount._validate import AnyArray, FloatArray, IntArray, ObjectArray
from evercount.factorizations.base import lower_toeplitz
from evercount.factorizations.filter_numbers import PiecewiseLinear

WIDTH = 20  # bits of a slice
ROUNDING = 2.0**-53  # relative error of one operation on doubles
EXACT = 2.0**53  # integers up to this size are exact as doubles

Parts = tuple[FloatArray, FloatArray, FloatArray]
"""The sum of three arrays: multiples of 2^−40, multiples of 2^−60, and a small rest (each times the
units)."""
Multiply = Callable[[FloatArray, FloatArray], FloatArray]


def with_sums(slices: FloatArray) -> FloatArray:
    """The same array with its last two rows computed from the first three."""
    np.add(slices[1], slices[2], out=slices[3])
    np.add(slices[0], slices[3], out=slices[4])
    return slices


def cut(high: FloatArray, low: FloatArray, unit: float) -> FloatArray:
    """high + low as slices, for |high| < 2^31·unit, and |low| ≤ 2^−50·|high| or high a multiple of
    2^−40·unit."""
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
    """A bound of the rounding in `product`: sums of `terms` terms, a of unit 1 with Σ|a| ≤ size,
    |v| ≤ top·unit.

    In units of v's unit, with the rounding of constants by `of_integers` (lemma 9).
    """
    return (terms + 8) * ROUNDING * 2.0**-41 * (2.1 * size + 2.1 * terms + 1.1 * terms * top)


def check_exact(matrix: FloatArray, tops: FloatArray, unit: float = 1.0) -> None:
    """Check that the first two parts of matrix·v are sums of integers below 2^53, for |v_j| ≤
    tops_j in units of v."""
    one, two = np.abs(matrix[:2]) @ tops[..., np.newaxis]
    check_sums(one, two + 1.1 * 2.0**-WIDTH * np.abs(matrix[0]).sum(axis=-1, keepdims=True), unit)


def check_sums(one: FloatArray, two: FloatArray, unit: float) -> None:
    """Check that the first two parts of a sum, or bounds of them, are integers below 2^53 in their
    units."""
    top = max(float(np.abs(one).max(initial=0.0)), float(np.abs(two).max(initial=0.0)) * 2.0**WIDTH)
    if top / unit * 2.0 ** (2 * WIDTH) >= EXACT:
        raise AssertionError("sums of products of slices would pass 2^53")


BLOCK_TICKS = 32  # ticks of a block in integers, and in doubles where there are very many cells
LONG_BLOCK_TICKS = 2 * BLOCK_TICKS  # ticks of a block in doubles otherwise
MOST_TICKS_AT_ONCE = 2**14  # ticks of one call of `advance`
SIGMAS = 64
"""No normal and no buffer exceeds this many standard deviations, except with probability <
e^−2000."""
DRAW_BITS = 128
# ticks that the counters of the generator serve (a tree uses up to two draws a tick)
MOST_TICKS = 2**47
_WORK_BITS = 600  # fractional bits of powers before they are rounded
_SLICED_BITS = 256  # fractional bits of matrices before they are cut into slices
ONE = PiecewiseLinear(np.zeros(1, dtype=np.int64), np.ones(1))  # the weight 1 at every tick
BUFFER = 130.0  # no buffer is larger, in units of the largest weight of an input so far (lemma 4)


class Constants(NamedTuple):
    """The matrices of a block as integers with a fixed number of fractional bits, each entry within
    half a unit.

    Buffer i is kept divided by 2^shift_i, so that its standard deviation is below twice that of its
    inputs.
    """

    output: ObjectArray
    """[G C]: what inputs and buffers add to the ticks of a block, (size, size + d). G has 1 on its
    diagonal."""
    feed: ObjectArray  # Q: how inputs end up in the buffers, (d, size)
    decay: ObjectArray  # D, (d, 1)
    bounds: tuple[tuple[float, ...], ...]
    """Upper bounds of |C_{k,i}| over k, of 1/(1 − D_i) (how many blocks an error lives on) and of
    Σ_j Q_{i,j}."""


@lru_cache(maxsize=64)
def constants(
    roots_lack: tuple[float, ...], tops_lack: tuple[float, ...], bits: int, size: int = BLOCK_TICKS
) -> Constants:
    """The matrices of Π(1 − top_j·z)/Π(1 − root_i·z) over `size` ticks, from the dyadic 1 − root
    and 1 − top."""
    roots = [1 - Fraction(lack) for lack in roots_lack]
    one = 1 << _WORK_BITS
    response = np.asarray([one] + [0] * (size - 1), dtype=object)
    bounds = []
    d = len(roots)
    readouts, feeds, decay = (
        np.empty(shape, dtype=object) for shape in ((size, d), (d, size), (d, 1))
    )
    for i, root in enumerate(roots):
        # the response at k ≥ 1 is Σ weight·root^k
        weight = math.prod((root - 1 + Fraction(lack) for lack in tops_lack), start=1 / root)
        weight /= math.prod(root - other for other in roots if other != root)
        # the largest with 4^shift·(1 − root²) ≤ 1
        shift = (math.floor(1 / (1 - root * root)).bit_length() - 1) // 2
        if shift > 60:
            raise AssertionError("a pole is closer to 1 than any filter that is designed here")
        powers = np.full(size + 1, one, dtype=object)
        for k in range(size):
            powers[k + 1] = powers[k] * root.numerator // root.denominator
        gain = weight * (1 << shift)
        readouts[:, i] = gain.numerator * powers[:-1] // gain.denominator
        feeds[i] = powers[:0:-1] >> shift
        decay[i] = powers[-1]
        response[1:] += readouts[1:, i] >> shift
        limits = (abs(gain), 1 / (1 - root**size), Fraction(sum(feeds[i]), one))
        bounds.append(tuple(float(limit) * (1 + 1e-9) for limit in limits))
    toeplitz = np.tril(response[np.subtract.outer(np.arange(size), np.arange(size))])
    rounded = np.vectorize(
        lambda value: round(Fraction(value, 1 << _WORK_BITS - bits)), otypes=[object]
    )
    output = np.concatenate([toeplitz, readouts], axis=1)
    return Constants(rounded(output), rounded(feeds), rounded(decay), tuple(bounds))


@dataclass(frozen=True, eq=False)
class Dyadics:
    """A piecewise linear weight as exact dyadic rationals, and its bounds over the first ticks."""

    line: PiecewiseLinear

    def block(self, start: int, ticks: int = BLOCK_TICKS) -> tuple[AnyArray, int]:
        """(numerators, h ≥ 0): the values at `ticks` ticks from `start` on (0-based) are exactly
        numerator / 2^h.

        Numerators are int64 where they fit, else Python integers.
        """
        first = int(np.searchsorted(self.line.knots, start, side="right")) - 1
        piece = slice(first, int(np.searchsorted(self.line.knots, start + ticks, side="left")) + 1)
        knots = self.line.knots[piece]
        ratios = [value.as_integer_ratio() for value in self.line.values[piece].tolist()]
        lengths = np.append(np.diff(knots), 1)
        h = (
            max(denominator for _, denominator in ratios).bit_length()
            + int(lengths.max()).bit_length()
            - 2
        )
        whole = [numerator * ((1 << h) // denominator) for numerator, denominator in ratios]
        at_knots = np.asarray(whole, dtype=np.int64 if max(whole) < 2**61 else object)
        slopes = np.append(np.diff(at_knots), 0) // lengths  # exact: lengths are powers of two
        edges = np.minimum(np.concatenate([[start], knots[1:], [start + ticks]]), start + ticks)
        counts = edges[1:] - edges[:-1]  # how many of the ticks lie in each piece
        offsets = np.arange(start, start + ticks) - np.repeat(knots, counts)
        return np.repeat(at_knots, counts) + np.repeat(slopes, counts) * offsets, h

    def pairs(self, start: int, size: int, blocks: int) -> tuple[FloatArray, FloatArray]:
        """Exact weights as high + low, each (size, blocks)."""
        numerators, h = self.block(start, size * blocks)
        high = numerators.astype(np.float64)
        if numerators.dtype == np.int64:
            whole = high.astype(np.int64)
        else:
            whole = np.vectorize(int, otypes=[object])(high)
        low = (numerators - whole).astype(np.float64)
        high, low = (
            np.ascontiguousarray((part * 2.0**-h).reshape(blocks, size).T) for part in (high, low)
        )
        return high, low

    def times(self, start: int, numbers: ObjectArray) -> ObjectArray:
        """Integers of the 32 ticks from `start` on times the weights, rounded downwards."""
        numerators, h = self.block(start)
        return np.asarray(numerators.astype(object)[:, np.newaxis] * numbers >> h, dtype=object)

    def first_knots(self, ticks: int) -> tuple[IntArray, FloatArray]:
        """Knots and values of the first `ticks` ticks; the last knot is at or after the last
        tick."""
        end = int(np.searchsorted(self.line.knots, ticks - 1, side="left")) + 1
        return self.line.knots[:end], self.line.values[:end]

    def largest(self, ticks: int) -> float:
        """An upper bound of the value over the first `ticks` ticks."""
        return float(self.first_knots(ticks)[1].max())

    def total(self, ticks: int) -> float:
        """An upper bound of the sum over the first `ticks` ticks."""
        knots, values = self.first_knots(ticks)
        inside = float(np.sum(np.diff(knots) * np.maximum(values[:-1], values[1:])))
        return (inside + float(values[-1]) * max(1, ticks - int(knots[-1]))) * (1 + 1e-9)


class Tables(NamedTuple):
    """The matrices of one block length in slices, and sums of their entries."""

    most: int  # blocks that are carried through at a time
    output: FloatArray  # [G C], (5, size, size + d)
    feed: FloatArray  # Q, (5, d, size)
    chain: FloatArray
    """Powers of D: (buffers, feeds of the blocks) to the buffers before every block and after the
    last one."""
    row_sums: tuple[float, float]
    """The largest sums of a row's magnitudes in `output`, for inputs and for buffers."""
    # what one block adds to the error of the noise of any later tick, in units (lemma 10)
    drift: float
    buffer_error: float
    """What one block adds to the error of what buffers will ever add to one tick, in units (lemma
    10)."""


@lru_cache(maxsize=64)
def tables(
    roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool, most: int
) -> Tables:
    """The matrices from the dyadic 1 − root and 1 − top, each entry within 2^−94 of the exact
    value.

    They serve `most` blocks at a time, or fewer, so that sums of slices stay exact; those of one
    block always do.
    """
    exact = constants(roots, tops, _SLICED_BITS, size)
    d = len(roots)
    output = of_integers(exact.output, _SLICED_BITS)
    feed = of_integers(exact.feed, _SLICED_BITS)
    powers = np.full((d, most + 1), 1 << _SLICED_BITS, dtype=object)
    for k in range(most):
        powers[:, k + 1] = powers[:, k] * exact.decay[:, 0] >> _SLICED_BITS
    chain = lower_toeplitz(of_integers(powers, _SLICED_BITS))
    inflow = feed[4].sum(axis=1, keepdims=True) * 1.001
    links = np.hstack([np.full((d, 1), BUFFER), np.repeat(65 * inflow, most, axis=1)])
    try:
        check_exact(chain, links)
    except AssertionError:  # sums over `most` blocks would pass 2^53
        if most == 1:
            raise
        return tables(roots, tops, size, narrow, most // 2)
    columns = output.swapaxes(1, 2)
    check_exact(columns, np.ones(size))
    check_exact(output, largest_inputs(size, d))
    check_exact(feed, largest_inputs(size, 0))

    # lemma 10; every sum of entries gets room for its own rounding
    responses = _most(output[4, :, :size])
    readouts = _most(output[4, :, size:])
    sums = responses * size + readouts * size  # magnitudes of a row of weights that adds up a block
    entry = product_error(size, max(responses, _most(columns[4])), 1.0) + 2.0**-83
    total = product_error(size + d, sums, BUFFER) + entry * (65 * size + BUFFER * d) + 2.0**-72
    total += 2.0**-83 * sums  # rounding of weighted inputs
    drift = total
    buffer_error = 0.0
    for i, (lack, (gain, memory, _)) in enumerate(zip(roots, exact.bounds, strict=True)):
        flow = float(inflow[i, 0])
        past = float(chain[0, i, -1, 1:].sum())
        # rounding of a feed, of the links before and after a block, and of kept buffers, which a
        # dump may cut
        own = product_error(size, flow, 65.0) + 2.0**-83 * flow
        own += 2 * product_error(most + 1, past + 1, max(BUFFER, 65 * flow))
        own += BUFFER * (2.0**-76 if narrow else 2.0**-100) + 2.0**-76
        drift += gain / lack * own
        buffer_error += gain * memory * own
    return Tables(
        most, output, feed, chain, (responses, readouts), drift * 1.01, buffer_error * 1.01
    )


def largest_inputs(size: int, order: int) -> FloatArray:
    """The largest inputs and buffers that a block can have, in units."""
    return np.asarray([SIGMAS] * size + [BUFFER] * order)


def _most(rows: FloatArray) -> float:
    """The largest sum of magnitudes of a row, with room for its rounding."""
    return float(np.abs(rows).sum(axis=-1).max(initial=0.0)) * 1.001
