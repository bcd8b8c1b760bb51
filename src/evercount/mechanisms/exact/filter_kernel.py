"""The recursive factorisations in fixed point: `balanced`, `normalized`, `unbounded` and `square-root`.

Time is cut into blocks of 32 ticks. With X the (weighted) normals of a block and S the buffers before it,

    W_k = ⌊Σ_{j≤k} G_{k−j}·X_j + Σ_i C_{k,i}·S_i⌋     S_i ← ⌊D_i·S_i + Σ_j Q_{i,j}·X_j⌋     Y_k = Y_{k−1} + ⌊n_k·W_k⌋

with integer matrices that do not depend on time. Sums are exact and floored once, so Python integers and limbs give the
same numbers. `exact_noise.proof.md` has the same letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, ObjectArray
from evercount.factorizations.piecewise_linear import PiecewiseLinear
from evercount.mechanisms.exact.limbs import (
    BASE,
    WIDTH,
    aligned,
    carry,
    check_capacity,
    convolve,
    fit,
    from_ints,
    limbs_for,
    stack,
    times,
    to_ints,
)

SIZE = 32
"""Ticks of a canonical block."""
SIGMAS = 64
"""No normal and no buffer is ever further out than so many standard deviations (but with probability < e^−2000)."""
DRAW_BITS = 128
MOST_TICKS = 2**47

IntRows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Constants:
    """The integer matrices, with `bits` fractional bits, each entry within half a unit of the exact value.

    Buffer i is kept divided by 2^shift_i, so that its standard deviation is below twice that of its inputs.
    """

    bits: int
    response: tuple[int, ...]
    """G_0 … G_31; G_0 is exactly 1."""
    readout: IntRows
    """C: 32 rows of d."""
    feed: IntRows
    """Q: d rows of 32."""
    decay: tuple[int, ...]
    """D."""
    gains: tuple[float, ...]
    """Upper bounds of |C_{k,i}| over k."""
    memory: tuple[float, ...]
    """Upper bounds of 1/(1 − D_i): how many blocks an error lives on."""
    inflow: tuple[float, ...]
    """Upper bounds of Σ_j Q_{i,j}."""

    @property
    def order(self) -> int:
        """d, the number of buffers."""
        return len(self.decay)


@lru_cache(maxsize=64)
def constants(roots_lack: tuple[float, ...], tops_lack: tuple[float, ...], bits: int) -> Constants:
    """The matrices of Π(1 − top_j·z)/Π(1 − root_i·z) from the dyadic 1 − root and 1 − top, by exact rationals."""
    roots = [1 - Fraction(lack) for lack in roots_lack]
    tops = [1 - Fraction(lack) for lack in tops_lack]
    one = 1 << bits
    series = [Fraction(1)] + [Fraction(0)] * (SIZE - 1)
    for root, top in zip(roots, tops, strict=True):
        previous = Fraction(0)
        last = Fraction(0)
        for k, value in enumerate(series):
            last = value - top * previous + root * last
            previous, series[k] = value, last
    readout, feed, decay, gains, memory, inflow = [], [], [], [], [], []
    for i, root in enumerate(roots):
        weight = 1 / root
        for j in range(len(roots)):
            weight *= root - tops[j]
            if j != i:
                weight /= root - roots[j]
        shift = _half_log(1 - root * root)
        if shift > 60:
            raise AssertionError("a pole is closer to 1 than any filter that is designed here")
        powers = [Fraction(1)]
        for _ in range(SIZE):
            powers.append(powers[-1] * root)
        scaled = weight * (1 << shift)
        readout.append(tuple(round(scaled * power * one) for power in powers[:SIZE]))
        feed.append(tuple(round(powers[SIZE - j] / (1 << shift) * one) for j in range(SIZE)))
        decay.append(round(powers[SIZE] * one))
        gains.append(float(abs(scaled)) * (1 + 1e-9))
        memory.append(float(1 / (1 - powers[SIZE])) * (1 + 1e-9))
        inflow.append(float(sum(powers[1:]) / (1 << shift)) * (1 + 1e-9))
    return Constants(
        bits,
        tuple(round(value * one) for value in series),
        tuple(zip(*readout, strict=True)) if readout else ((),) * SIZE,
        tuple(feed),
        tuple(decay),
        tuple(gains),
        tuple(memory),
        tuple(inflow),
    )


def _half_log(gap: Fraction) -> int:
    """The largest b ≥ 0 with 4^b·gap ≤ 1, for 0 < gap ≤ 1."""
    return (math.floor(1 / gap).bit_length() - 1) // 2


def _integers(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], int]:
    """(whole, h ≥ 0) with values = whole / 2^h exactly; whole is int64 where it fits."""
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    zeros = np.bitwise_count((whole & -whole) - 1).astype(np.int64)
    whole, exponent = whole >> zeros, exponent - 53 + zeros
    point = max(0, -int(exponent.min()))
    shift = exponent + point
    if int(shift.max()) > 8:  # odd parts have at most 53 bits
        fits = int((shift + np.frexp(whole.astype(np.float64))[1]).max()) <= 62
        whole, shift = (whole, shift) if fits else (whole.astype(object), shift.astype(object))
    return whole << shift, point


class Dyadics:
    """A piecewise linear weight as exact dyadic rationals, and bounds over the first so many ticks."""

    def __init__(self, line: PiecewiseLinear) -> None:
        self._line = line

    def block(self, start: int, ticks: int = SIZE) -> tuple[npt.NDArray[Any], int]:
        """(numerators, h ≥ 0): the values at so many ticks from start on (0-based) are exactly numerator / 2^h.

        Numerators are int64 where they fit, else Python integers.
        """
        knots = self._line.knots
        first = int(np.searchsorted(knots, start, side="right")) - 1
        last = int(np.searchsorted(knots, start + ticks, side="left")) + 1
        knots, values = knots[first:last], self._line.values[first:last]
        whole, point = _integers(values)
        lengths = np.append(np.diff(knots), 1)
        steps = np.append(np.diff(whole), 0)
        top = int(lengths.max()).bit_length() - 1
        if int(np.abs(whole).max()).bit_length() + top > 61:
            whole, steps, lengths = whole.astype(object), steps.astype(object), lengths.astype(object)
        now = np.arange(start, start + ticks)
        piece = np.searchsorted(knots, now, side="right") - 1
        slopes = steps * ((1 << top) // lengths)
        numerators = (whole << top)[piece] + slopes[piece] * (now - knots[piece])
        return numerators, point + top

    def reach(self, ticks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Knots and values of the first `ticks` ticks; the last knot is at or after the last tick."""
        end = int(np.searchsorted(self._line.knots, ticks - 1, side="left")) + 1
        return self._line.knots[:end], self._line.values[:end]

    def largest(self, ticks: int) -> float:
        """An upper bound of the value over the first `ticks` ticks."""
        return float(self.reach(ticks)[1].max())

    def total(self, ticks: int) -> float:
        """An upper bound of the sum over the first `ticks` ticks."""
        knots, values = self.reach(ticks)
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
        self.constants = constants(tuple(roots_lack.tolist()), tuple(tops_lack.tolist()), bits)
        self.eta = Dyadics(eta) if eta is not None else None
        self.n = Dyadics(n) if n is not None else None
        self.rows = self.constants.order + (self.n is not None)
        self._backwards = self.constants.response[::-1]
        signs = {entry < 0 for entry in self.constants.readout[0]}
        if signs - {eta is not None} or max(self.constants.response[1:]) > 1 << bits:
            raise AssertionError("the filter's poles and zeros do not interlace")  # lemmas 4 and 5 need it

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""
        return block * SIZE, (block + 1) * SIZE

    # -- error bounds: exact_noise.proof.md, section 3 ------------------------------------------------------------

    def norm(self, ticks: int) -> float:
        """An upper bound of ‖L_t‖ over the first `ticks` ticks (lemma 5)."""
        if self.eta is None or self.n is None:
            return math.sqrt(ticks)
        _, eta = self.eta.reach(ticks)
        _, n = self.n.reach(ticks)
        ahead = np.maximum.accumulate(n[::-1])[::-1]  # the largest n from here on
        entries = np.maximum(eta, np.append(eta[1:], eta[-1])) * ahead
        return math.sqrt(ticks) * float(entries.max()) * (1 + 1e-9)

    def error(self, ticks: int) -> float:
        """A bound of |Ỹ_t − (L z)_t|·2^bits for every t ≤ ticks, given that nothing exceeds 64 deviations (lemma 4)."""
        table = self.constants
        a = self.eta.largest(ticks) if self.eta is not None else 1.0
        cut = 1.0 if self.eta is not None else 0.0
        blocks = -(-ticks // SIZE)
        tick = 1.0 + 2 * cut + SIZE / 2 * SIGMAS * a
        for gain, memory, inflow in zip(table.gains, table.memory, table.inflow, strict=True):
            fresh = 1.0 + (2 * SIGMAS + 1) * a / 2 + SIZE / 2 * SIGMAS * a + inflow * cut
            kept = fresh * min(blocks, memory)
            if kept * 2.0**-self.bits > a / 2:
                return math.inf
            tick += (gain + 2.0**-self.bits) * kept + (2 * SIGMAS + 1) * a / 2
        if self.n is None:
            return tick * (1 + 1e-6)
        return (self.n.total(ticks) * tick + ticks) * (1 + 1e-6)

    # -- Python integers -------------------------------------------------------------------------------------------

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
        values, h = line.block(block * SIZE)
        return values.tolist(), h

    def _column(
        self,
        state: list[int],
        z: list[int],
        eta: tuple[list[int], int] | None,
        n: tuple[list[int], int] | None,
    ) -> tuple[list[int], list[int]]:
        bits, table = self.bits, self.constants
        buffers = state[: table.order]
        x = [value << (bits - DRAW_BITS) for value in z]
        if eta is not None:
            weights, h = eta
            x = [weight * value >> h for weight, value in zip(weights, x, strict=True)]
        back = self._backwards
        w = [
            (sum(map(mul, back[SIZE - 1 - k :], x)) + sum(map(mul, table.readout[k], buffers))) >> bits
            for k in range(SIZE)
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

    # -- limbs -------------------------------------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> tuple[FloatArray, FloatArray]:
        """[G without its diagonal; Q] and [C; D] as stacked digits."""
        table, d = self.constants, self.constants.order
        response = [[table.response[k - j] if k > j else 0 for j in range(SIZE)] for k in range(SIZE)]
        decay = [[value if i == j else 0 for j in range(d)] for i, value in enumerate(table.decay)]
        limbs = self.bits // WIDTH
        inputs, buffers = stack([*response, *table.feed], limbs), stack([*table.readout, *decay], limbs)
        check_capacity(inputs, buffers)
        return inputs, buffers

    @cached_property
    def _inner(self) -> int:
        """Limbs of inputs, buffers and W, all below 129·a."""
        a = self.eta.largest(MOST_TICKS) if self.eta is not None else 1.0
        return limbs_for(self.bits + math.log2((2 * SIGMAS + 1) * a))

    @cached_property
    def limbs(self) -> int:
        """Limbs of Y, and of the state."""
        if self.n is None or self.eta is None:
            return self._inner + 1
        top = 2 * SIGMAS * max(self.norm(MOST_TICKS), self.n.largest(MOST_TICKS) * self.eta.largest(MOST_TICKS))
        return max(self._inner, limbs_for(self.bits + math.log2(top)))

    def wide(self, state: npt.NDArray[np.int32], block: int, z: FloatArray) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        """`step` in limbs: state (limbs, rows, cells), z (limbs, 32, cells), Y (limbs, 32, cells)."""
        d = self.constants.order
        buffers = _roomy(fit(np.array(state[:, :d], dtype=np.float64, order="C"), self._inner))
        x = self._weighted(z, range(block, block + 1))
        total = self._products(x, buffers)
        numbers = fit(carry(total, self.bits // WIDTH), self._inner)
        after = np.zeros_like(state)
        after[: self._inner, :d] = numbers[:, SIZE:]
        y = numbers[:, :SIZE]
        if self.n is not None:
            y = self._summed(y, range(block, block + 1), state[:, d].astype(np.float64))
            after[:, d] = y[:, -1]
        return y, after

    def many(self, state: ObjectArray, blocks: range, z: FloatArray) -> tuple[FloatArray, ObjectArray]:
        """`step` for many blocks of few cells: state (rows, cells), z (limbs, 32, blocks·cells), Y likewise.

        Columns are ordered by block, then cell. The buffers go from block to block in Python integers.
        """
        d, cells, fraction = self.constants.order, state.shape[1], self.bits // WIDTH
        x = self._weighted(z, blocks)
        total = self._products(x, None)
        after = state.copy()
        if d:
            fed = to_ints(carry(total[:, SIZE:])).reshape(d, len(blocks), cells)
            starts = np.empty_like(fed)
            decay = np.asarray(self.constants.decay, dtype=object)[:, np.newaxis]
            buffers = state[:d]
            for number in range(len(blocks)):
                starts[:, number] = buffers
                buffers = (decay * buffers + fed[:, number]) >> self.bits
            after[:d] = buffers
            start = _roomy(from_ints(starts.reshape(d, -1), self._inner))
            convolve(self._tables[1][:SIZE], start, fraction, total[:, :SIZE])
        y = fit(carry(total[:, :SIZE], fraction), self._inner)
        if self.n is not None:
            y = self._summed(y, blocks, from_ints(state[d], self.limbs))
            after[d] = to_ints(y[:, -1, -cells:])
        return y, after

    def _weighted(self, z: FloatArray, blocks: range) -> FloatArray:
        """X, contiguous, in `_inner` limbs."""
        if self.eta is None:
            constants, drop = aligned(np.ones(1, dtype=np.int64), DRAW_BITS - self.bits)
            return np.ascontiguousarray(times(z, constants[:, :, np.newaxis], drop, self._inner))
        constants, drop = self._digits(self.eta, blocks, z.shape[2] // len(blocks), DRAW_BITS - self.bits)
        return np.ascontiguousarray(times(z, constants, drop, self._inner))

    def _products(self, x: FloatArray, buffers: FloatArray | None) -> FloatArray:
        """Σ G·X + C·S (32 rows) and Σ Q·X + D·S (d rows), not carried, with twice the fractional bits."""
        fraction = self.bits // WIDTH
        total = np.zeros((fraction + self._inner, SIZE + self.constants.order, x.shape[2]))
        total[fraction:, :SIZE] = x  # the diagonal of G
        convolve(self._tables[0], x, fraction, total)
        if buffers is not None:
            convolve(self._tables[1], buffers, fraction, total)
        return total

    def _summed(self, w: FloatArray, blocks: range, before: FloatArray) -> FloatArray:
        """Y of every tick: floors of n·W, summed up from `before` (limbs, cells)."""
        assert self.n is not None
        cells = before.shape[1]
        constants, drop = self._digits(self.n, blocks, cells, 0)
        y = times(w, constants, drop, self.limbs)
        for k in range(1, SIZE):
            y[:, k] += y[:, k - 1]
        if len(blocks) == 1:
            y += before[:, np.newaxis]
        else:
            ends = y[:, -1].reshape(self.limbs, len(blocks), cells)
            offsets = np.cumsum(np.concatenate([before[:, np.newaxis], ends[:, :-1]], axis=1), axis=1)
            y += offsets.reshape(self.limbs, 1, -1)
        return carry(y)

    def _digits(self, line: Dyadics, blocks: range, cells: int, shift: int) -> tuple[FloatArray, int]:
        """Weights of the ticks as digits that broadcast over (limbs, 32, blocks·cells)."""
        values, h = line.block(blocks[0] * SIZE, len(blocks) * SIZE)
        constants, drop = aligned(values, shift + h)
        table = constants.reshape(len(constants), len(blocks), SIZE).transpose(0, 2, 1)
        return (table if len(blocks) == 1 or cells == 1 else np.repeat(table, cells, axis=2)), drop


def _roomy(buffers: FloatArray) -> FloatArray:
    """The same, if their top digits are digits."""
    if buffers.size and np.abs(buffers[-1]).max() >= BASE:
        raise AssertionError("a buffer is 64 standard deviations out: the chance of that is below e^-2000")
    return buffers
