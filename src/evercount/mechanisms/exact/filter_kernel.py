"""The recursive factorizations in fixed point and in doubles: `balanced`, `normalized`,
`unbounded`, `square-root`.

Time is cut into blocks. With X the (weighted) normals of a block and S the buffers before it,

    W_k = ⌊Σ_{j≤k} G_{k−j}·X_j + Σ_i C_{k,i}·S_i⌋
    S_i ← ⌊D_i·S_i + Σ_j Q_{i,j}·X_j⌋
    Y_k = Y_{k−1} + ⌊n_k·W_k⌋

with matrices that do not depend on time. In integers, with blocks of 32 ticks, this defines the
noise. Doubles take their place wherever the rounded result is certain: what is carried from block
to block (buffers and running sum) has about 100 bits (`filter_numbers.py`); what a tick reads off
it has 53 bits, an error that does not add up over time. `exact_noise.proof.md`, lemmas 4, 5 and 9
to 11, has the same letters.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from evercount._validate import AnyArray, FloatArray, ObjectArray
from evercount.factorizations.filter_numbers import PiecewiseLinear
from evercount.mechanisms.exact.filter_numbers import (
    BLOCK_TICKS,
    DRAW_BITS,
    LONG_BLOCK_TICKS,
    MOST_TICKS,
    MOST_TICKS_AT_ONCE,
    ONE,
    ROUNDING,
    SIGMAS,
    Dyadics,
    Tables,
    check_exact,
    check_sums,
    constants,
    cut,
    largest_inputs,
    pair,
    power_above,
    product,
    settle,
    tables,
    two_sum,
    with_sums,
)
from evercount.noise import Normals


class Public(NamedTuple):
    """The numbers of one call of `advance` that depend on nothing secret."""

    matrices: Tables
    eta: FloatArray
    n: FloatArray
    sums: FloatArray  # what inputs and buffers of each block add to the running sum
    unit: float
    unit_n: float
    drift: float


class FilterKernel:
    """One recursive factorization with `bits` fractional bits. `eta` and `n` are both None without
    weights.

    `square-root` and `direct` have neither weights nor a running sum. The state is one row per
    buffer and, where there is a running sum, a last row with it: integers, or two doubles each, (2,
    rows, cells). With `narrow`, dumps cut the low parts of buffers to 24 bits.

    **Guarantee.** Outside the event B of `exact_noise.proof.md`, the integers of `step` are within
    `error`, and the doubles of `advance` within the bound they come with, of the real number (L
    z)_t, in whatever order matrix products add up. Proof: lemmas 4 and 9 to 11 there. Tests:
    `tests/mechanisms/test_exact_error.py` and `tests/mechanisms/test_near_noise.py` (measured error
    below the bound; planted losses of bits are caught).
    """

    # ticks of a block in doubles, where there are not very many cells
    long_block = LONG_BLOCK_TICKS

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
        self.eta = Dyadics(eta or ONE)
        self.n = Dyadics(n or ONE)
        self.weighted, self.order = eta is not None, len(self.roots_lack)
        self.rows = self.order + self.weighted
        self.narrow = self.order if narrow else 0
        self._public = lru_cache(maxsize=4)(self._public_numbers)
        signs = {entry < 0 for entry in self.constants.output[0, BLOCK_TICKS:]}
        if signs - {self.weighted} or self.constants.output[1:, 0].max() > 1 << bits:
            # lemmas 4 and 5 need it
            raise AssertionError("the filter's poles and zeros do not interlace")

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """The draws that ticks start+1 … stop read, both multiples of 32."""
        return start, stop

    # -- error bounds: exact_noise.proof.md, lemmas 4 and 5 ----------------------------------------

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
        """A bound of |Ỹ_t − (L z)_t|·2^bits for every t ≤ ticks, given that nothing exceeds 64
        deviations (lemma 4)."""
        if self.bits == DRAW_BITS:
            return 0.0  # `direct`: nothing is rounded
        a, floor = (self.eta.largest(ticks), 1.0) if self.weighted else (1.0, 0.0)
        table = self.constants
        blocks = -(-ticks // BLOCK_TICKS)
        tick = 1.0 + 2 * floor + BLOCK_TICKS / 2 * SIGMAS * a
        for gain, memory, inflow in table.bounds:
            fresh = 1.0 + (2 * SIGMAS + 1) * a / 2 + BLOCK_TICKS / 2 * SIGMAS * a + inflow * floor
            buffered = fresh * min(blocks, memory)
            if buffered * 2.0**-self.bits > a / 2:
                return math.inf
            tick += (gain + 2.0**-self.bits) * buffered + (2 * SIGMAS + 1) * a / 2
        return ((self.n.total(ticks) * tick + ticks) if self.weighted else tick) * (1 + 1e-6)

    # -- the recurrence ----------------------------------------------------------------------------

    def step(
        self, state: ObjectArray, start: int, z: ObjectArray
    ) -> tuple[ObjectArray, ObjectArray]:
        """(Y, state after) of 32 ticks: Y with `bits` fractional bits, (32, cells), from z·2^128 of
        (32, cells)."""
        table = self.constants
        buffers = state[: self.order]
        x = self.eta.times(start, z << self.bits - DRAW_BITS)
        w = np.asarray(table.output @ np.concatenate([x, buffers]) >> self.bits, dtype=object)
        after = np.asarray((table.decay * buffers + table.feed @ x) >> self.bits, dtype=object)
        if not self.weighted:
            return w, after
        y = state[-1] + np.add.accumulate(self.n.times(start, w), axis=0, dtype=object)
        return y, np.concatenate([after, y[-1:]])

    # -- doubles: exact_noise.proof.md, lemmas 10 and 11 -------------------------------------------

    def drift(self, tick: int, size: int = LONG_BLOCK_TICKS) -> float:
        """A bound of what the state after `tick` ticks adds to the error of any later number (lemma
        10).

        All blocks so far had `size` ticks.
        """
        if not self.weighted:
            return 2 * self._tables(size).buffer_error
        knots, units, sums, norm = self._units
        at = int(np.searchsorted(knots, tick, side="right")) - 1
        total = float(sums[at]) + (tick - int(knots[at])) * float(units[at])
        total += LONG_BLOCK_TICKS * float(units[0] + units[at])
        # a block's rounding of the running sum, whose size is at most 64 deviations
        return total * self._tables(size).drift / size + (tick / BLOCK_TICKS + 2) * 2.0**-96 * norm

    def _tables(self, size: int) -> Tables:
        return tables(
            self.roots_lack,
            self.tops_lack,
            size,
            self.narrow > 0,
            64 if size == LONG_BLOCK_TICKS else 1,
        )

    @cached_property
    def _units(self) -> tuple[AnyArray, FloatArray, FloatArray, float]:
        """Knots, the largest product of units of inputs and n between each and the next, its sum
        over ticks; ‖L_t‖."""
        knots = self.n.line.knots
        values = self.n.line.values
        eta = self.eta.line
        so_far = np.maximum.accumulate(eta.values)
        ahead = np.maximum.accumulate(values[::-1])[::-1]
        # a call that reaches the ticks between two knots begins after `before` and ends before
        # `after`
        before = np.searchsorted(knots, knots - MOST_TICKS_AT_ONCE - LONG_BLOCK_TICKS)
        after = np.append(knots[1:], knots[-1]) + MOST_TICKS_AT_ONCE + LONG_BLOCK_TICKS
        inputs = so_far[np.minimum(np.searchsorted(eta.knots, after), len(so_far) - 1)]
        units = 4 * ahead[np.maximum(before - 1, 0)] * inputs
        return (
            knots,
            units,
            np.append(0.0, np.cumsum(np.diff(knots) * units[:-1])),
            self.norm(MOST_TICKS),
        )

    def advance(
        self,
        state: FloatArray,
        start: int,
        size: int,
        blocks: int,
        normals: Normals,
        fine: bool = False,
    ) -> tuple[FloatArray, float, FloatArray]:
        """(noise, bound, state after) of `blocks` blocks of `size` ticks from `start` on, a
        multiple of 32.

        Noise is (parts, ticks, cells): one double each, whose last rounding is not in the bound, or
        with `fine` the sum of two (of one for `optimal`), which takes longer and whose bound is
        little more than `drift`.
        """
        numbers = self._public(start, size, blocks)
        d = self.order
        cells = normals.shape[1]
        inputs = np.empty((5, size + d, blocks, cells))  # of a block, then the buffers before it
        weigh(normals, numbers, inputs[:, :size])
        after = carry(state[:, :d], numbers, inputs)
        if fine:
            w, error = respond_finely(inputs, numbers)
        else:
            w, error = respond(inputs, numbers)
        if self.weighted:
            level = add_up_blocks(state[:, d], inputs, numbers)
            if fine:
                noise = add_up_finely(w, level, numbers)
            else:
                noise = add_up(w, level, numbers)
            after = np.concatenate([after, level[:, -1:]], axis=1)
            error = size * numbers.unit_n * error
            error += (2.0**-100 if fine else 4 * ROUNDING) * float(np.abs(level[0]).max())
        else:
            noise = np.stack([w[0] + w[1], w[2]]) if fine else w[np.newaxis]
        return noise.swapaxes(1, 2).reshape(len(noise), -1, cells), numbers.drift + error, after

    def _public_numbers(self, start: int, size: int, blocks: int) -> Public:
        matrices = self._tables(size)
        unit = power_above(self.eta.largest(start + size * blocks))
        eta = cut(*self.eta.pairs(start, size, blocks), unit)
        high, low = self.n.pairs(start, size, blocks)
        unit_n = power_above(float(high.max()))
        n = sums = cut(high, low, unit_n)
        if self.weighted:
            sums = settle(product(matrices.output.swapaxes(1, 2), n, np.matmul), unit_n)
            check_exact(sums.swapaxes(1, 2), largest_inputs(size, self.order), unit_n)
        drift = self.drift(start + size * blocks, size)
        return Public(matrices, eta[..., np.newaxis], n[..., np.newaxis], sums, unit, unit_n, drift)


# -- lemma 10: what is carried ---------------------------------------------------------------------


def weigh(normals: Normals, numbers: Public, x: FloatArray) -> None:
    """*Inputs*: x = η·z of every block, in slices."""
    for row, part in zip(x[:3], normals.slices(), strict=True):
        row[:] = part.reshape(x.shape[2], x.shape[1], -1).swapaxes(0, 1)
    settle(product(numbers.eta, with_sums(x)), numbers.unit, x)


def carry(buffers: FloatArray, numbers: Public, inputs: FloatArray) -> FloatArray:
    """*Feeds* and *buffers*: fill in those before every block, after its inputs; returns those
    after the last one."""
    matrices = numbers.matrices
    unit = numbers.unit
    size = matrices.output.shape[1]
    blocks = inputs.shape[2]
    x = inputs[:, :size]
    before = inputs[:, size:]
    fed = settle(product(matrices.feed, x.reshape(5, size, -1), np.matmul), unit).reshape(
        before.shape
    )
    for first in range(0, blocks, matrices.most):
        some = slice(first, min(first + matrices.most, blocks))
        links = np.concatenate(
            [cut(buffers[0], buffers[1], unit)[:, :, np.newaxis], fed[:, :, some]], axis=2
        )
        one, two, three = product(
            matrices.chain[:, :, : links.shape[2], : links.shape[2]], links, np.matmul
        )
        before[:, :, some] = settle((one[:, :-1].copy(), two[:, :-1], three[:, :-1]), unit)
        buffers = pair((one[:, -1], two[:, -1], three[:, -1]))
    return buffers


def add_up_blocks(level: FloatArray, inputs: FloatArray, numbers: Public) -> FloatArray:
    """*Running sum*: in pairs, before every block and after the last one."""
    one, two, three = (
        np.concatenate([np.zeros((1, inputs.shape[3])), term]).cumsum(axis=0)
        for term in product(numbers.sums, inputs, partial(np.einsum, "nb,nbc->bc"))
    )
    check_sums(one, two, numbers.unit * numbers.unit_n)
    return pair((one, two, three), *level)


# -- lemma 11: what is read off --------------------------------------------------------------------


def respond(inputs: FloatArray, numbers: Public) -> tuple[FloatArray, float]:
    """*In doubles*: (w, its error, with room for that of the sums in `add_up`)."""
    matrices = numbers.matrices
    top, highest = _largest(inputs, numbers)
    size = matrices.output.shape[1]
    order = len(inputs[0]) - matrices.output.shape[1]
    responses, readouts = matrices.row_sums
    w = (matrices.output[4] @ inputs[4].reshape(size + order, -1)).reshape(size, *inputs.shape[2:])
    return w, (3 * size + order + 16) * ROUNDING * (responses * top + readouts * highest)


def respond_finely(inputs: FloatArray, numbers: Public) -> tuple[FloatArray, float]:
    """*Finely*: (w in slices, its error, with room for that of the sums in `add_up_finely`)."""
    matrices = numbers.matrices
    top, highest = _largest(inputs, numbers)
    size = matrices.output.shape[1]
    responses, readouts = matrices.row_sums
    w = product(matrices.output, inputs.reshape(5, len(inputs[0]), -1), np.matmul)
    error = (responses + readouts + 1) * (numbers.unit + top + highest)
    error *= (size + 8) * ROUNDING * 2.0**-20 + 2.0**-70
    return settle(w, numbers.unit).reshape(5, size, *inputs.shape[2:]), error


def add_up(w: FloatArray, level: FloatArray, numbers: Public) -> FloatArray:
    """*In doubles*: Y + Σ n·w, in the place of w."""
    w *= numbers.n[4]
    _running(w)
    w += level.sum(axis=0)[:-1]
    return w[np.newaxis]


def add_up_finely(w: FloatArray, level: FloatArray, numbers: Public) -> FloatArray:
    """*Finely*: Y + Σ n·w in pairs."""
    n = numbers.n
    steps = numbers.n[0] * w[0]
    check_sums(len(steps) * steps, np.zeros(()), numbers.unit * numbers.unit_n)
    noise = np.stack(two_sum(_running(steps), level[0, :-1]))
    noise[1] += _running(n[0] * w[3] + n[3] * w[4]) + level[1, :-1]
    return noise


def _largest(inputs: FloatArray, numbers: Public) -> tuple[float, float]:
    """The largest input and the largest buffer of this call."""
    x, before = np.split(np.abs(inputs[4]), [numbers.matrices.output.shape[1]])
    return float(x.max()), float(before.max(initial=0.0))


def _running(terms: FloatArray) -> FloatArray:
    """Running sums over the first axis, in place: faster than `cumsum`, which goes against the
    order of memory."""
    for k in range(1, len(terms)):
        terms[k] += terms[k - 1]
    return terms
