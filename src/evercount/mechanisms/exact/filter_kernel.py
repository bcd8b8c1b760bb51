"""The recursive factorisations in fixed point: `balanced`, `normalized`, `unbounded`, `square-root`.

Time is cut into blocks of 32 ticks. With X the (weighted) normals of a block and S the buffers before it,

    W_k = ⌊Σ_{j≤k} G_{k−j}·X_j + Σ_i C_{k,i}·S_i⌋     S_i ← ⌊D_i·S_i + Σ_j Q_{i,j}·X_j⌋     Y_k = Y_{k−1} + ⌊n_k·W_k⌋

with integer matrices that do not depend on time. These integers define the noise. Doubles (`near_filter.py`) take
their place wherever the rounded result is certain. `exact_noise.proof.md` has the same letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray, ObjectArray
from evercount.factorizations.piecewise_linear import PiecewiseLinear

BLOCK_TICKS = 32
"""Ticks of a canonical block."""
SIGMAS = 64
"""No normal and no buffer exceeds this many standard deviations, except with probability < e^−2000."""
DRAW_BITS = 128
MOST_TICKS = 2**47
"""Ticks that the counters of the generator serve (a tree uses up to two draws a tick)."""
_WORK_BITS = 600
"""Fractional bits of powers before they are rounded."""
ONE = PiecewiseLinear(np.zeros(1, dtype=np.int64), np.ones(1))
"""The weight 1 at every tick."""


@dataclass(frozen=True, eq=False)
class Constants:
    """The matrices of a block as integers with a fixed number of fractional bits, each entry within half a unit.

    Buffer i is kept divided by 2^shift_i, so that its standard deviation is below twice that of its inputs.
    """

    output: ObjectArray
    """[G C]: what inputs and buffers add to the ticks of a block, (size, size + d). G has 1 on its diagonal."""
    feed: ObjectArray
    """Q: how inputs end up in the buffers, (d, size)."""
    decay: ObjectArray
    """D, (d, 1)."""
    bounds: tuple[tuple[float, ...], ...]
    """Upper bounds of |C_{k,i}| over k, of 1/(1 − D_i) (how many blocks an error lives on) and of Σ_j Q_{i,j}."""


@lru_cache(maxsize=64)
def constants(
    roots_lack: tuple[float, ...], tops_lack: tuple[float, ...], bits: int, size: int = BLOCK_TICKS
) -> Constants:
    """The matrices of Π(1 − top_j·z)/Π(1 − root_i·z) over `size` ticks, from the dyadic 1 − root and 1 − top."""
    roots, one = [1 - Fraction(lack) for lack in roots_lack], 1 << _WORK_BITS
    response, bounds = np.asarray([one] + [0] * (size - 1), dtype=object), []
    d = len(roots)
    readouts, feeds, decay = (np.empty(shape, dtype=object) for shape in ((size, d), (d, size), (d, 1)))
    for i, root in enumerate(roots):
        # the response at k ≥ 1 is Σ weight·root^k
        weight = math.prod((root - 1 + Fraction(lack) for lack in tops_lack), start=1 / root)
        weight /= math.prod(root - other for other in roots if other != root)
        shift = (math.floor(1 / (1 - root * root)).bit_length() - 1) // 2  # the largest with 4^shift·(1 − root²) ≤ 1
        if shift > 60:
            raise AssertionError("a pole is closer to 1 than any filter that is designed here")
        powers = np.full(size + 1, one, dtype=object)
        for k in range(size):
            powers[k + 1] = powers[k] * root.numerator // root.denominator
        gain = weight * (1 << shift)
        readouts[:, i] = gain.numerator * powers[:-1] // gain.denominator
        feeds[i], decay[i] = powers[:0:-1] >> shift, powers[-1]
        response[1:] += readouts[1:, i] >> shift
        limits = (abs(gain), 1 / (1 - root**size), Fraction(sum(feeds[i]), one))
        bounds.append(tuple(float(limit) * (1 + 1e-9) for limit in limits))
    toeplitz = np.tril(response[np.subtract.outer(np.arange(size), np.arange(size))])
    rounded = np.vectorize(lambda value: round(Fraction(value, 1 << _WORK_BITS - bits)), otypes=[object])
    output = np.concatenate([toeplitz, readouts], axis=1)
    return Constants(rounded(output), rounded(feeds), rounded(decay), tuple(bounds))


@dataclass(frozen=True, eq=False)
class Dyadics:
    """A piecewise linear weight as exact dyadic rationals, and its bounds over the first ticks."""

    line: PiecewiseLinear

    def block(self, start: int, ticks: int = BLOCK_TICKS) -> tuple[AnyArray, int]:
        """(numerators, h ≥ 0): the values at `ticks` ticks from `start` on (0-based) are exactly numerator / 2^h.

        Numerators are int64 where they fit, else Python integers.
        """
        knots = self.line.knots
        first = int(np.searchsorted(knots, start, side="right")) - 1
        last = int(np.searchsorted(knots, start + ticks, side="left")) + 1
        knots = knots[first:last]
        mantissa, exponent = np.frexp(self.line.values[first:last])
        at_knots: AnyArray = np.ldexp(mantissa, 53).astype(np.int64)
        zeros = np.bitwise_count((at_knots & -at_knots) - 1).astype(np.int64)
        lengths: AnyArray = np.append(np.diff(knots), 1)
        top = int(lengths.max()).bit_length() - 1
        point = max(0, int((53 - exponent - zeros).max())) + top
        at_knots, shift = at_knots >> zeros, exponent - 53 + zeros + point
        if int(exponent.max()) + point > 61:
            at_knots, shift, lengths = at_knots.astype(object), shift.astype(object), lengths.astype(object)
        at_knots = at_knots << shift
        slopes = np.append(np.diff(at_knots), 0) // lengths  # exact: lengths are powers of two up to 2^top
        edges = np.minimum(np.concatenate([[start], knots[1:], [start + ticks]]), start + ticks)
        counts = edges[1:] - edges[:-1]  # how many of the ticks lie in each piece
        offsets = np.arange(start, start + ticks) - np.repeat(knots, counts)
        return np.repeat(at_knots, counts) + np.repeat(slopes, counts) * offsets, point

    def times(self, block: int, numbers: ObjectArray) -> ObjectArray:
        """Integers of the ticks of a block times the weights, rounded downwards."""
        numerators, h = self.block(block * BLOCK_TICKS)
        return np.asarray(numerators.astype(object)[:, np.newaxis] * numbers >> h, dtype=object)

    def first_knots(self, ticks: int) -> tuple[IntArray, FloatArray]:
        """Knots and values of the first `ticks` ticks; the last knot is at or after the last tick."""
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


class FilterKernel:
    """One recursive factorisation with `bits` fractional bits. `eta` is None where normals have no weights.

    `n` is None for `square-root`, whose noise is no running sum. The state is one row per buffer and, where there is a
    running sum, a last row with it. With `narrow`, dumps cut the low parts of buffers to 24 bits.
    """

    def __init__(
        self,
        roots_lack: FloatArray,
        tops_lack: FloatArray,
        eta: PiecewiseLinear | None,
        n: PiecewiseLinear | None,
        bits: int,
        narrow: bool = False,
    ) -> None:
        self.bits = bits
        self.roots_lack: tuple[float, ...] = tuple(roots_lack.tolist())
        self.tops_lack: tuple[float, ...] = tuple(tops_lack.tolist())
        self.constants = constants(self.roots_lack, self.tops_lack, bits)
        self.eta, self.n = Dyadics(eta or ONE), Dyadics(n or ONE)
        self.weighted, self.summed, self.order = eta is not None, n is not None, len(self.roots_lack)
        self.rows = self.order + self.summed
        self.narrow = self.order if narrow else 0
        signs = {entry < 0 for entry in self.constants.output[0, BLOCK_TICKS:]}
        if signs - {self.weighted} or self.constants.output[1:, 0].max() > 1 << bits:
            raise AssertionError("the filter's poles and zeros do not interlace")  # lemmas 4 and 5 need it

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""
        return block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS

    # -- error bounds: exact_noise.proof.md, lemmas 4 and 5 -------------------------------------------------------

    def norm(self, ticks: int) -> float:
        """An upper bound of ‖L_t‖ over the first `ticks` ticks (lemma 5)."""
        if not self.weighted:
            return math.sqrt(ticks) if self.rows else 1.0  # `direct` has no state
        _, eta = self.eta.first_knots(ticks)
        _, n = self.n.first_knots(ticks)
        ahead = np.maximum.accumulate(n[::-1])[::-1]  # the largest n from here on
        entries = np.maximum(eta, np.append(eta[1:], eta[-1])) * ahead
        return math.sqrt(ticks) * float(entries.max()) * (1 + 1e-9)

    def error(self, ticks: int) -> float:
        """A bound of |Ỹ_t − (L z)_t|·2^bits for every t ≤ ticks, given that nothing exceeds 64 deviations (lemma 4)."""
        if self.bits == DRAW_BITS:
            return 0.0  # `identity` and `direct`: sums of integers are exact
        a, cut = (self.eta.largest(ticks), 1.0) if self.weighted else (1.0, 0.0)
        table, blocks = self.constants, -(-ticks // BLOCK_TICKS)
        tick = 1.0 + 2 * cut + BLOCK_TICKS / 2 * SIGMAS * a
        for gain, memory, inflow in table.bounds:
            fresh = 1.0 + (2 * SIGMAS + 1) * a / 2 + BLOCK_TICKS / 2 * SIGMAS * a + inflow * cut
            kept = fresh * min(blocks, memory)
            if kept * 2.0**-self.bits > a / 2:
                return math.inf
            tick += (gain + 2.0**-self.bits) * kept + (2 * SIGMAS + 1) * a / 2
        return ((self.n.total(ticks) * tick + ticks) if self.summed else tick) * (1 + 1e-6)

    # -- the recurrence --------------------------------------------------------------------------------------------

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """(Y, state after) of one block: Y with `bits` fractional bits, (32, cells), from z·2^128 of (32, cells)."""
        table, buffers = self.constants, state[: self.order]
        x = self.eta.times(block, z << self.bits - DRAW_BITS)
        w = np.asarray(table.output @ np.concatenate([x, buffers]) >> self.bits, dtype=object)
        after = np.asarray((table.decay * buffers + table.feed @ x) >> self.bits, dtype=object)
        if not self.summed:
            return w, after
        y = state[-1] + np.add.accumulate(self.n.times(block, w), axis=0, dtype=object)
        return y, np.concatenate([after, y[-1:]])
