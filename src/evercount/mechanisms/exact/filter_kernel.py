"""The recursive factorisations in fixed point: `balanced`, `normalized`, `unbounded` and `square-root`.

Time is cut into blocks of 32 ticks. With X the (weighted) normals of a block and S the buffers before it,

    W_k = ⌊Σ_{j≤k} G_{k−j}·X_j + Σ_i C_{k,i}·S_i⌋     S_i ← ⌊D_i·S_i + Σ_j Q_{i,j}·X_j⌋     Y_k = Y_{k−1} + ⌊n_k·W_k⌋

with integer matrices that do not depend on time. These integers define the noise. Doubles (`near_filter.py`) take
their place wherever the rounded result is certain. `exact_noise.proof.md` has the same letters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, ObjectArray
from evercount.factorizations.piecewise_linear import PiecewiseLinear

BLOCK_TICKS = 32
"""Ticks of a canonical block."""
SIGMAS = 64
"""No normal and no buffer exceeds this many standard deviations, except with probability < e^−2000."""
DRAW_BITS = 128
MOST_TICKS = 2**47
_WORK_BITS = 600
"""Fractional bits of powers before they are rounded."""

IntRows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Constants:
    """The matrices of a block as integers with a fixed number of fractional bits, each entry within half a unit.

    Buffer i is kept divided by 2^shift_i, so that its standard deviation is below twice that of its inputs.
    """

    response: tuple[int, ...]
    """G_0 … of the ticks of a block; G_0 is exactly 1."""
    readout: IntRows
    """C: a row of d for each tick."""
    feed: IntRows
    """Q: d rows."""
    decay: tuple[int, ...]
    """D."""
    gains: tuple[float, ...]
    """Upper bounds of |C_{k,i}| over k."""
    memory: tuple[float, ...]
    """Upper bounds of 1/(1 − D_i): how many blocks an error lives on."""
    inflow: tuple[float, ...]
    """Upper bounds of Σ_j Q_{i,j}."""


@lru_cache(maxsize=64)
def constants(
    roots_lack: tuple[float, ...], tops_lack: tuple[float, ...], bits: int, size: int = BLOCK_TICKS
) -> Constants:
    """The matrices of Π(1 − top_j·z)/Π(1 − root_i·z) over `size` ticks, from the dyadic 1 − root and 1 − top."""
    one = 1 << _WORK_BITS

    def rounded(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(round(Fraction(value, 1 << _WORK_BITS - bits)) for value in values)

    response, rows = [one] + [0] * (size - 1), []
    for root, weight, shift in poles(roots_lack, tops_lack):
        powers = [one]
        for _ in range(size):
            powers.append(powers[-1] * root.numerator // root.denominator)
        gain = weight * (1 << shift)
        readout = [gain.numerator * power // gain.denominator for power in powers[:size]]
        feed = [power >> shift for power in powers[:0:-1]]
        for k in range(1, size):
            response[k] += readout[k] >> shift
        bounds = (abs(gain), 1 / (1 - root**size), Fraction(sum(feed), one))
        rows.append((rounded(readout), rounded(feed), powers[-1], *(float(bound) * (1 + 1e-9) for bound in bounds)))
    readouts, feeds, decay, *bounds_of = zip(*rows, strict=True) if rows else ((),) * 6
    by_tick = tuple(zip(*readouts, strict=True)) or ((),) * size
    return Constants(rounded(response), by_tick, feeds, rounded(decay), *bounds_of)


@lru_cache(maxsize=64)
def poles(roots_lack: tuple[float, ...], tops_lack: tuple[float, ...]) -> list[tuple[Fraction, Fraction, int]]:
    """(root, weight, shift) of every buffer: the response at k ≥ 1 is Σ weight·root^k; buffers are kept / 2^shift."""
    roots = [1 - Fraction(lack) for lack in roots_lack]
    tops = [1 - Fraction(lack) for lack in tops_lack]
    buffers = []
    for i, root in enumerate(roots):
        weight = 1 / root
        for j in range(len(roots)):
            weight *= root - tops[j]
            if j != i:
                weight /= root - roots[j]
        shift = _half_log(1 - root * root)
        if shift > 60:
            raise AssertionError("a pole is closer to 1 than any filter that is designed here")
        buffers.append((root, weight, shift))
    return buffers


def _half_log(gap: Fraction) -> int:
    """The largest b ≥ 0 with 4^b·gap ≤ 1, for 0 < gap ≤ 1."""
    return (math.floor(1 / gap).bit_length() - 1) // 2


def _integers(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], int]:
    """(numerators, h ≥ 0) with values = numerators / 2^h exactly; int64 where they fit, else Python integers."""
    mantissa, exponent = np.frexp(values)
    numerators = np.ldexp(mantissa, 53).astype(np.int64)
    zeros = np.bitwise_count((numerators & -numerators) - 1).astype(np.int64)
    numerators, exponent = numerators >> zeros, exponent - 53 + zeros
    point = max(0, -int(exponent.min()))
    shift = exponent + point
    if int(shift.max()) > 8:  # odd parts have at most 53 bits
        fits = int((shift + np.frexp(numerators.astype(np.float64))[1]).max()) <= 62
        numerators, shift = (numerators, shift) if fits else (numerators.astype(object), shift.astype(object))
    return numerators << shift, point


class Dyadics:
    """A piecewise linear weight as exact dyadic rationals, and its bounds over the first ticks."""

    def __init__(self, line: PiecewiseLinear) -> None:
        self.line = line

    def block(self, start: int, ticks: int = BLOCK_TICKS) -> tuple[npt.NDArray[Any], int]:
        """(numerators, h ≥ 0): the values at `ticks` ticks from `start` on (0-based) are exactly numerator / 2^h.

        Numerators are int64 where they fit, else Python integers.
        """
        knots = self.line.knots
        first = int(np.searchsorted(knots, start, side="right")) - 1
        last = int(np.searchsorted(knots, start + ticks, side="left")) + 1
        knots, values = knots[first:last], self.line.values[first:last]
        at_knots, point = _integers(values)
        lengths = np.append(np.diff(knots), 1)
        steps = np.append(np.diff(at_knots), 0)
        top = int(lengths.max()).bit_length() - 1
        if int(np.abs(at_knots).max()).bit_length() + top > 61:
            at_knots, steps, lengths = at_knots.astype(object), steps.astype(object), lengths.astype(object)
        slopes = steps * ((1 << top) // lengths)
        edges = np.minimum(np.concatenate([[start], knots[1:], [start + ticks]]), start + ticks)
        counts = edges[1:] - edges[:-1]  # how many of the ticks lie in each piece
        offsets = np.arange(start, start + ticks) - np.repeat(knots, counts)
        numerators = np.repeat(at_knots << top, counts) + np.repeat(slopes, counts) * offsets
        return numerators, point + top

    def first_knots(self, ticks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
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
    """One recursive factorisation with `bits` fractional bits. `eta` and `n` are None for `square-root`.

    The state is one row per buffer and, where there are weights, a last row with the running noise Y.
    """

    def __init__(
        self,
        roots_lack: FloatArray,
        tops_lack: FloatArray,
        eta: PiecewiseLinear | None,
        n: PiecewiseLinear | None,
        bits: int,
    ) -> None:
        self.bits = bits
        self.roots_lack: tuple[float, ...] = tuple(roots_lack.tolist())
        self.tops_lack: tuple[float, ...] = tuple(tops_lack.tolist())
        self.constants = constants(self.roots_lack, self.tops_lack, bits)
        self.eta = Dyadics(eta) if eta is not None else None
        self.n = Dyadics(n) if n is not None else None
        self.rows = len(self.roots_lack) + (self.n is not None)
        self._backwards = self.constants.response[::-1]
        signs = {entry < 0 for entry in self.constants.readout[0]}
        if signs - {eta is not None} or max(self.constants.response[1:]) > 1 << bits:
            raise AssertionError("the filter's poles and zeros do not interlace")  # lemmas 4 and 5 need it

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""
        return block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS

    # -- error bounds: exact_noise.proof.md, lemmas 4 and 5 -------------------------------------------------------

    def norm(self, ticks: int) -> float:
        """An upper bound of ‖L_t‖ over the first `ticks` ticks (lemma 5)."""
        if self.eta is None or self.n is None:
            return math.sqrt(ticks)
        _, eta = self.eta.first_knots(ticks)
        _, n = self.n.first_knots(ticks)
        ahead = np.maximum.accumulate(n[::-1])[::-1]  # the largest n from here on
        entries = np.maximum(eta, np.append(eta[1:], eta[-1])) * ahead
        return math.sqrt(ticks) * float(entries.max()) * (1 + 1e-9)

    def error(self, ticks: int) -> float:
        """A bound of |Ỹ_t − (L z)_t|·2^bits for every t ≤ ticks, given that nothing exceeds 64 deviations (lemma 4)."""
        table = self.constants
        a = self.eta.largest(ticks) if self.eta is not None else 1.0
        cut = 1.0 if self.eta is not None else 0.0
        blocks = -(-ticks // BLOCK_TICKS)
        tick = 1.0 + 2 * cut + BLOCK_TICKS / 2 * SIGMAS * a
        for gain, memory, inflow in zip(table.gains, table.memory, table.inflow, strict=True):
            fresh = 1.0 + (2 * SIGMAS + 1) * a / 2 + BLOCK_TICKS / 2 * SIGMAS * a + inflow * cut
            kept = fresh * min(blocks, memory)
            if kept * 2.0**-self.bits > a / 2:
                return math.inf
            tick += (gain + 2.0**-self.bits) * kept + (2 * SIGMAS + 1) * a / 2
        if self.n is None:
            return tick * (1 + 1e-6)
        return (self.n.total(ticks) * tick + ticks) * (1 + 1e-6)

    # -- the recurrence --------------------------------------------------------------------------------------------

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """(Y, state after) of one block: Y with `bits` fractional bits, (32, cells), from z·2^128 of (32, cells)."""
        eta = self._listed(self.eta, block)
        n = self._listed(self.n, block)
        out = np.empty(z.shape, dtype=object)
        after = np.empty_like(state)
        for cell in range(z.shape[1]):
            values, rows = self._column(state[:, cell].tolist(), z[:, cell].tolist(), eta, n)
            out[:, cell] = values
            after[:, cell] = rows
        return out, after

    def _listed(self, line: Dyadics | None, block: int) -> tuple[list[int], int] | None:
        if line is None:
            return None
        values, h = line.block(block * BLOCK_TICKS)
        return values.tolist(), h

    def _column(
        self,
        state: list[int],
        z: list[int],
        eta: tuple[list[int], int] | None,
        n: tuple[list[int], int] | None,
    ) -> tuple[list[int], list[int]]:
        bits, table = self.bits, self.constants
        buffers = state[: len(table.decay)]
        x = [value << (bits - DRAW_BITS) for value in z]
        if eta is not None:
            weights, h = eta
            x = [weight * value >> h for weight, value in zip(weights, x, strict=True)]
        back = self._backwards
        w = [
            (sum(map(mul, back[BLOCK_TICKS - 1 - k :], x)) + sum(map(mul, table.readout[k], buffers))) >> bits
            for k in range(BLOCK_TICKS)
        ]
        after = [
            (decay * value + sum(map(mul, feed, x))) >> bits
            for decay, value, feed in zip(table.decay, buffers, table.feed, strict=True)
        ]
        if n is None:
            return w, after
        weights, h = n
        y, total = [], state[-1]
        for weight, value in zip(weights, w, strict=True):
            total += weight * value >> h
            y.append(total)
        return y, [*after, total]
