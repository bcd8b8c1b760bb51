"""The recursive factorisations in doubles, with a proved bound of the distance to the fixed-point noise.

The same block form as `filter_kernel.py`, in blocks of 32 ticks for many cells and of 64 for fewer. What is carried
from block to block (buffers and running sum) has about 100 bits (`slices.py`). What a tick reads off it has 53 bits:
that error does not add up over time. `exact_noise.proof.md`, lemmas 9 to 11, has the same letters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evercount._arrays import AnyArray, FloatArray
from evercount.factorizations.filter_few_cells import lower_toeplitz_stack
from evercount.factorizations.piecewise_linear import PiecewiseLinear
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, MOST_TICKS, SIGMAS, Dyadics, FilterKernel, constants
from evercount.mechanisms.exact.slices import (
    ROUNDING,
    check_exact,
    check_sums,
    cut,
    of_integers,
    pair,
    product,
    product_error,
    settle,
    with_sums,
)
from evercount.mechanisms.exact.tree_kernels import IdentityKernel
from evercount.noise import Normals

LONG_BLOCK_TICKS = 2 * BLOCK_TICKS
MANY = 4000
"""From this many cells on, blocks are short (BLOCK_TICKS, else LONG_BLOCK_TICKS): fewer rows wait in memory."""
MOST_BLOCKS = 64
"""Blocks of few cells that go through the matrices at once."""
MOST_TICKS_AT_ONCE = 4 * LONG_BLOCK_TICKS * MOST_BLOCKS
"""Ticks of one call."""
BITS = 256
"""Fractional bits of the constants before they are cut into slices."""
BUFFER = 130.0
"""No buffer is larger, in units of the largest weight of an input so far (lemma 4)."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The matrices of one block length in slices, and sums of their entries."""

    most: int
    """Blocks that are carried through at a time."""
    output: FloatArray
    """[G C]: what inputs and buffers add to the ticks of a block, (5, size, size + d)."""
    feed: FloatArray
    """Q: how inputs end up in the buffers, (5, d, size)."""
    chain: FloatArray
    """Powers of D: (buffers, feeds of the blocks) to the buffers before every block and after the last one."""
    row_sums: tuple[float, float]
    """The largest sums of a row's magnitudes in `output`, for inputs and for buffers."""
    drift: float
    """What one block adds to the error of the noise of any later tick, in units (lemma 10)."""
    buffer_error: float
    """What one block adds to the error of what buffers will ever add to one tick, in units (lemma 10)."""


@lru_cache(maxsize=64)
def tables(roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool) -> Tables:
    """The matrices for the most blocks at a time whose sums of slices stay exact; those of one block always do."""
    most = MOST_BLOCKS if size == LONG_BLOCK_TICKS else 1
    while True:
        try:
            return _tables(roots, tops, size, narrow, most)
        except AssertionError:  # from `check_exact`: sums over `most` blocks would pass 2^53
            if most == 1:
                raise
            most //= 2


def _tables(roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool, most: int) -> Tables:
    """The matrices from the dyadic 1 − root and 1 − top, each entry within 2^−94 of the exact value."""
    exact, d = constants(roots, tops, BITS, size), len(roots)
    readout = of_integers(np.array(exact.readout, dtype=object), BITS)
    response = of_integers(np.array(exact.response, dtype=object), BITS)
    output = np.concatenate([lower_toeplitz_stack(response), readout], axis=2)
    feed = of_integers(np.array(exact.feed, dtype=object).reshape(d, size), BITS)
    powers = np.full((d, most + 1), 1 << BITS, dtype=object)
    for k in range(most):
        powers[:, k + 1] = powers[:, k] * np.array(exact.decay, dtype=object) >> BITS
    chain = np.stack([lower_toeplitz_stack(part) for part in of_integers(powers, BITS)])

    # lemma 10; every sum of entries gets room for its own rounding
    responses, readouts = _most(output[4, :, :size]), _most(output[4, :, size:])
    columns = output.swapaxes(1, 2)
    sums = responses * size + readouts * size  # magnitudes of a row of weights that adds up a block
    entry = product_error(size, max(responses, _most(columns[4])), 1.0) + 2.0**-83
    total = product_error(size + d, sums, BUFFER) + entry * (65 * size + BUFFER * d) + 2.0**-72
    total += 2.0**-83 * (sums + 65 * size)  # rounding of the weighted inputs, or of the weights in the matrix
    drift, buffer_error = total, 0.0
    check_exact(columns, np.ones(size))
    check_exact(output, _tops(size, d))
    check_exact(feed, _tops(size, 0))
    for i, lack in enumerate(roots):
        inflow, links = float(feed[4, i].sum()) * 1.001, most + 1
        top, past = max(BUFFER, 65 * inflow), float(chain[0, i, -1, 1:].sum())
        check_exact(chain[:, i], np.asarray([BUFFER] + [65 * inflow] * most))
        # rounding of a feed, of the links before and after a block, and of kept buffers: 2^−77 where a dump cuts them
        own = product_error(size, inflow, 65.0) + 2.0**-83 * (inflow + 65 * size)
        own += 2 * product_error(links, past + 1, top) + BUFFER * (2.0**-76 if narrow else 2.0**-100) + 2.0**-76
        drift += exact.gains[i] / lack * own
        buffer_error += exact.gains[i] * exact.memory[i] * own
    return Tables(most, output, feed, chain, (responses, readouts), drift * 1.01, buffer_error * 1.01)


@dataclass(frozen=True, eq=False)
class _Public:
    """Public numbers of some ticks."""

    eta: FloatArray | None
    """Weights of the normals, (5, size, blocks, 1), or None where the matrices hold them: for one block."""
    n: FloatArray
    """The weights n, (5, size, blocks, 1)."""
    unit: float
    """The unit of inputs and buffers."""
    unit_sum: float
    feed: FloatArray
    sums: FloatArray | None
    """What inputs and buffers add to the running sum in a block, (5, size + d, blocks)."""
    plain: FloatArray
    """What they add to the ticks of a block, in doubles; for one block what they add to the noise itself."""
    errors_per_unit: tuple[float, float]
    """What inputs and buffers add to the error of a number in doubles, for each unit of their size (lemma 11)."""
    fine: float
    """The same for `advance(fine=True)`."""
    drift: float


class NearFilter:
    """A recursive factorisation in doubles. The state has the rows of `FilterKernel`: high and low, (2, rows, cells).

    **Guarantee.** Outside the event B of `exact_noise.proof.md`, the noise that `advance` returns is within its bound
    of the real number (L z)_t, in whatever order matrix products add up, and so is the noise that the integers of
    `FilterKernel` make from the state, with `drift` as bound.
    Proof: lemmas 9 to 11 there. Tests: `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted
    losses of bits are caught).
    """

    def __init__(self, kernel: FilterKernel | IdentityKernel, narrow: bool = True) -> None:
        self._kernel = kernel
        one = Dyadics(PiecewiseLinear(np.zeros(1, dtype=np.int64), np.ones(1)))
        self._eta, self._n = kernel.eta or one, kernel.n or one
        self._order = len(kernel.roots_lack)
        self._tables = {
            size: tables(kernel.roots_lack, kernel.tops_lack, size, narrow) for size in (BLOCK_TICKS, LONG_BLOCK_TICKS)
        }
        self._summed = kernel.rows > self._order  # whether the noise is a running sum
        self.narrow = self._order if narrow else 0
        self._public = lru_cache(maxsize=4)(self._public_numbers)

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """(ticks of a block, number of blocks) of the next call, where `ticks` ticks of `cells` cells are wanted."""
        if cells >= 24:
            return (LONG_BLOCK_TICKS if cells < MANY else BLOCK_TICKS), 1
        return LONG_BLOCK_TICKS, max(
            1, (8 if ticks <= 8 * LONG_BLOCK_TICKS else MOST_TICKS_AT_ONCE // LONG_BLOCK_TICKS) // cells
        )

    def drift(self, tick: int, size: int = LONG_BLOCK_TICKS) -> float:
        """A bound of what the state after `tick` ticks adds to the error of any later number (lemma 10).

        All blocks so far had `size` ticks.
        """
        if not self._summed:
            return 2 * self._tables[size].buffer_error
        knots, units, sums = self._units
        at = int(np.searchsorted(knots, tick, side="right")) - 1
        total = float(sums[at]) + (tick - int(knots[at])) * float(units[at])
        each, blocks = self._tables[size].drift / size, tick / BLOCK_TICKS + 2
        return (total + LONG_BLOCK_TICKS * float(units[0] + units[at])) * each + blocks * self._sum_error

    @cached_property
    def _sum_error(self) -> float:
        """What a block adds to the error of the running sum, whose size is at most 64 deviations."""
        return 2.0**-96 * self._kernel.norm(MOST_TICKS)

    @cached_property
    def _units(self) -> tuple[AnyArray, FloatArray, FloatArray]:
        """Knots; the largest product of units of inputs and weights n between each and the next; its sum over ticks."""
        knots, values, eta = self._n.line.knots, self._n.line.values, self._eta.line
        so_far = np.maximum.accumulate(eta.values)
        ahead = np.maximum.accumulate(values[::-1])[::-1]
        # a call that reaches the ticks between two knots begins after `before` and ends before `after`
        before = np.searchsorted(knots, knots - MOST_TICKS_AT_ONCE - LONG_BLOCK_TICKS)
        after = np.append(knots[1:], knots[-1]) + MOST_TICKS_AT_ONCE + LONG_BLOCK_TICKS
        units = (
            4
            * ahead[np.maximum(before - 1, 0)]
            * so_far[np.minimum(np.searchsorted(eta.knots, after), len(so_far) - 1)]
        )
        return knots, units, np.append(0.0, np.cumsum(np.diff(knots) * units[:-1]))

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """(noise, bound, state after) of `blocks` blocks of `size` ticks from `start` on, a multiple of 32.

        `fine` takes longer and has a bound that is little more than the last rounding of the noise.
        """
        matrices, d, cells, after = self._tables[size], self._order, normals.shape[1], state[:, : self._order]
        public = self._public(start, size, blocks, blocks == 1 and not fine)
        # inputs of a block, then the buffers before it
        inputs = np.empty((5, size + d, blocks, cells))
        x, before = inputs[:, :size], inputs[:, size:]
        for row, numbers in zip(x[:3], normals.slices(), strict=True):
            row[:] = numbers.reshape(blocks, size, cells).swapaxes(0, 1)
        with_sums(x)
        if public.eta is not None:
            x[:] = settle(product(public.eta, x), public.unit)
        fed = settle(product(public.feed, x.reshape(5, size, -1), np.matmul), public.unit).reshape(before.shape)
        for first in range(0, blocks, matrices.most):
            some = slice(first, min(first + matrices.most, blocks))
            links = np.concatenate([cut(after[0], after[1], public.unit)[:, :, np.newaxis], fed[:, :, some]], axis=2)
            one, two, three = product(matrices.chain[:, :, : links.shape[2], : links.shape[2]], links, np.matmul)
            before[:, :, some] = settle((one[:, :-1].copy(), two[:, :-1], three[:, :-1]), public.unit)
            after = pair((one[:, -1], two[:, -1], three[:, -1]))

        top, highest = float(np.abs(x[4]).max()), float(np.abs(before[4]).max(initial=0.0))
        if fine:
            parts = product(matrices.output, inputs.reshape(5, size + d, -1), np.matmul)
            w = settle(parts, public.unit).reshape(5, size, blocks, cells)
            noise, bound = w[4], public.drift + public.fine * (public.unit + top + highest)
        else:
            noise = (public.plain @ inputs[4].reshape(size + d, -1)).reshape(size, blocks, cells)
            bound = public.drift + public.errors_per_unit[0] * top + public.errors_per_unit[1] * highest
        if public.sums is not None:
            one, two, three = (
                np.concatenate([np.zeros((1, cells)), term]).cumsum(axis=0)
                for term in product(public.sums, inputs, _inner)
            )
            check_sums(one, two, public.unit_sum)
            level = pair((one, two, three), state[0, d], state[1, d])  # the running sum before every block, and after
            after = np.concatenate([after, level[:, -1:]], axis=1)
            low = level[1, :-1]
            if fine:
                noise = public.n[0] * w[0]
                check_sums(size * noise, two[:1], public.unit_sum)
                low = low + _running(public.n[0] * w[3] + public.n[3] * w[4])
            elif blocks > 1:
                noise *= public.n[4]
            if fine or blocks > 1:
                noise = _running(noise)
            noise += level[0, :-1]
            noise += low
            bound += 4 * ROUNDING * float(np.abs(level[0]).max())
        return noise.swapaxes(0, 1).reshape(-1, cells), bound, after

    def _public_numbers(self, start: int, size: int, blocks: int, fold: bool) -> _Public:
        matrices, unit = self._tables[size], _power(self._eta.largest(start + size * blocks))
        eta = cut(*_weights(self._eta, start, size, blocks), unit)
        high, low = _weights(self._n, start, size, blocks)
        unit_n, d = _power(float(high.max())), self._order
        n = cut(high, low, unit_n)
        feed, plain, sums, times = matrices.feed, matrices.output[4], None, 1.0
        if self._summed:
            sums, times = settle(product(matrices.output.swapaxes(1, 2), n, np.matmul), unit_n), size * unit_n
            check_exact(sums.swapaxes(1, 2), _tops(size, d), unit_n)
        drift, (inputs, buffers) = self.drift(start + size * blocks, size), matrices.row_sums
        error, entries = (3 * size + d + 16) * ROUNDING * times, 0.0
        fine = times * (inputs + buffers + 1) * ((size + 8) * ROUNDING * 2.0**-20 + 2.0**-70)
        if fold:  # the weights of one block go into the matrices
            feed = settle(product(feed, eta.swapaxes(1, 2)), unit)
            if sums is not None:
                sums[:, :size] = settle(product(sums[:, :size], eta), unit * unit_n)
                one, two, three = (term.cumsum(axis=0) for term in product(n, matrices.output))
                plain = one + (two + three)
            plain = np.hstack([plain[:, :size] * eta[4, :, 0], plain[:, size:]])
            error, entries = (size + d + 24) * ROUNDING, 2.0**-58 * unit_n
            inputs, buffers = _most(plain[:, :size]), _most(plain[:, size:])
        errors_per_unit = error * inputs + entries * unit, error * buffers + entries
        weights = None if fold else eta[..., np.newaxis]
        return _Public(
            weights, n[..., np.newaxis], unit, unit * unit_n, feed, sums, plain, errors_per_unit, fine, drift
        )


def _running(terms: FloatArray) -> FloatArray:
    """Running sums of (size, blocks, cells) over the ticks of a block."""
    return np.asarray(_ones(len(terms)) @ terms.reshape(len(terms), -1)).reshape(terms.shape)


@lru_cache(maxsize=4)
def _ones(size: int) -> FloatArray:
    """The matrix of running sums."""
    return np.tril(np.ones((size, size)))


def _inner(weights: FloatArray, numbers: FloatArray) -> FloatArray:
    """The sum of (rows, blocks, cells) over rows, with a weight for each row and block."""
    return np.asarray(np.einsum("nb,nbc->bc", weights, numbers), dtype=np.float64)


def _tops(size: int, order: int) -> FloatArray:
    """The largest inputs and buffers that a block can have, in units."""
    return np.asarray([SIGMAS] * size + [BUFFER] * order)


def _weights(line: Dyadics, start: int, size: int, blocks: int) -> tuple[FloatArray, FloatArray]:
    """Exact weights as (high, low), each (size, blocks)."""
    numerators, h = line.block(start, size * blocks)
    high = numerators.astype(np.float64)
    high_integers = (
        high.astype(np.int64) if numerators.dtype != object else np.array([int(v) for v in high], dtype=object)
    )
    low = (numerators - high_integers).astype(np.float64)
    high, low = (np.ascontiguousarray((part * 2.0**-h).reshape(blocks, size).T) for part in (high, low))
    return high, low


def _power(value: float) -> float:
    """The smallest power of two above a positive number."""
    return 2.0 ** math.frexp(value)[1]


def _most(rows: FloatArray) -> float:
    """The largest sum of magnitudes of a row, with room for its rounding."""
    return float(np.abs(rows).sum(axis=-1).max(initial=0.0)) * 1.001
