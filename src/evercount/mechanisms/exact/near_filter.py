"""The recursive factorisations in doubles, with a proved bound of the distance to the fixed-point noise.

The same block form as `filter_kernel.py`, in blocks of 32 ticks for many cells and of 64 for fewer. What is carried
from block to block (buffers and running sum) has about 100 bits (`slices.py`). What a tick reads off it has 53 bits:
that error does not add up over time. `exact_noise.proof.md`, lemmas 9 to 11, has the same letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from evercount._arrays import AnyArray, FloatArray
from evercount.factorizations.filter_few_cells import lower_toeplitz_stack
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
Public = tuple[FloatArray, FloatArray, FloatArray, float, float, float]
"""η, n, what inputs and buffers of each block add to the running sum, units of inputs and of n, drift."""
BUFFER = 130.0
"""No buffer is larger, in units of the largest weight of an input so far (lemma 4)."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The matrices of one block length in slices, and sums of their entries."""

    most: int
    """Blocks that are carried through at a time."""
    output: FloatArray
    """[G C], (5, size, size + d)."""
    feed: FloatArray
    """Q, (5, d, size)."""
    chain: FloatArray
    """Powers of D: (buffers, feeds of the blocks) to the buffers before every block and after the last one."""
    row_sums: tuple[float, float]
    """The largest sums of a row's magnitudes in `output`, for inputs and for buffers."""
    drift: float
    """What one block adds to the error of the noise of any later tick, in units (lemma 10)."""
    buffer_error: float
    """What one block adds to the error of what buffers will ever add to one tick, in units (lemma 10)."""


@lru_cache(maxsize=64)
def tables(roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool, most: int) -> Tables:
    """The matrices from the dyadic 1 − root and 1 − top, each entry within 2^−94 of the exact value.

    They serve `most` blocks at a time, or fewer, so that sums of slices stay exact; those of one block always do.
    """
    exact, d = constants(roots, tops, BITS, size), len(roots)
    output, feed = of_integers(exact.output, BITS), of_integers(exact.feed, BITS)
    powers = np.full((d, most + 1), 1 << BITS, dtype=object)
    for k in range(most):
        powers[:, k + 1] = powers[:, k] * exact.decay[:, 0] >> BITS
    chain = np.stack([lower_toeplitz_stack(part) for part in of_integers(powers, BITS)])
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
    check_exact(output, _tops(size, d))
    check_exact(feed, _tops(size, 0))

    # lemma 10; every sum of entries gets room for its own rounding
    responses, readouts = _most(output[4, :, :size]), _most(output[4, :, size:])
    sums = responses * size + readouts * size  # magnitudes of a row of weights that adds up a block
    entry = product_error(size, max(responses, _most(columns[4])), 1.0) + 2.0**-83
    total = product_error(size + d, sums, BUFFER) + entry * (65 * size + BUFFER * d) + 2.0**-72
    total += 2.0**-83 * (sums + 65 * size)  # rounding of weighted inputs; earlier versions rounded weights in a matrix
    drift, buffer_error = total, 0.0
    for i, (lack, (gain, memory, _)) in enumerate(zip(roots, exact.bounds, strict=True)):
        flow, past = float(inflow[i, 0]), float(chain[0, i, -1, 1:].sum())
        # rounding of a feed, of the links before and after a block, and of kept buffers: 2^−77 where a dump cuts them
        own = product_error(size, flow, 65.0) + 2.0**-83 * (flow + 65 * size)
        own += 2 * product_error(most + 1, past + 1, max(BUFFER, 65 * flow))
        own += BUFFER * (2.0**-76 if narrow else 2.0**-100) + 2.0**-76
        drift += gain / lack * own
        buffer_error += gain * memory * own
    return Tables(most, output, feed, chain, (responses, readouts), drift * 1.01, buffer_error * 1.01)


class NearFilter(FilterKernel):
    """A recursive factorisation in doubles. The state has the rows of `FilterKernel`: high and low, (2, rows, cells).

    **Guarantee.** Outside the event B of `exact_noise.proof.md`, the noise that `advance` returns is within its bound
    of the real number (L z)_t, in whatever order matrix products add up, and so is the noise that the integers of
    `step` make from the state, with `drift` as bound.
    Proof: lemmas 9 to 11 there. Tests: `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted
    losses of bits are caught).
    """

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """(ticks of a block, number of blocks) of the next call, where `ticks` ticks of `cells` cells are wanted."""
        if cells >= 24:
            return (LONG_BLOCK_TICKS if cells < MANY else BLOCK_TICKS), 1
        blocks = 8 if ticks <= 8 * LONG_BLOCK_TICKS else MOST_TICKS_AT_ONCE // LONG_BLOCK_TICKS
        return LONG_BLOCK_TICKS, max(1, blocks // cells)

    def drift(self, tick: int, size: int = LONG_BLOCK_TICKS) -> float:
        """A bound of what the state after `tick` ticks adds to the error of any later number (lemma 10).

        All blocks so far had `size` ticks.
        """
        if not self.summed:
            return 2 * self._tables(size).buffer_error
        knots, units, sums, norm = self._units
        at = int(np.searchsorted(knots, tick, side="right")) - 1
        total = float(sums[at]) + (tick - int(knots[at])) * float(units[at])
        total += LONG_BLOCK_TICKS * float(units[0] + units[at])
        # a block's rounding of the running sum, whose size is at most 64 deviations
        return total * self._tables(size).drift / size + (tick / BLOCK_TICKS + 2) * 2.0**-96 * norm

    def _tables(self, size: int) -> Tables:
        most = MOST_BLOCKS if size == LONG_BLOCK_TICKS else 1
        return tables(self.roots_lack, self.tops_lack, size, self.narrow > 0, most)

    @cached_property
    def _units(self) -> tuple[AnyArray, FloatArray, FloatArray, float]:
        """Knots, the largest product of units of inputs and n between each and the next, its sum over ticks; ‖L_t‖."""
        knots, values, eta = self.n.line.knots, self.n.line.values, self.eta.line
        so_far = np.maximum.accumulate(eta.values)
        ahead = np.maximum.accumulate(values[::-1])[::-1]
        # a call that reaches the ticks between two knots begins after `before` and ends before `after`
        before = np.searchsorted(knots, knots - MOST_TICKS_AT_ONCE - LONG_BLOCK_TICKS)
        after = np.append(knots[1:], knots[-1]) + MOST_TICKS_AT_ONCE + LONG_BLOCK_TICKS
        inputs = so_far[np.minimum(np.searchsorted(eta.knots, after), len(so_far) - 1)]
        units = 4 * ahead[np.maximum(before - 1, 0)] * inputs
        return knots, units, np.append(0.0, np.cumsum(np.diff(knots) * units[:-1])), self.norm(MOST_TICKS)

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, float, FloatArray]:
        """(noise, bound, state after) of `blocks` blocks of `size` ticks from `start` on, a multiple of 32.

        `fine` takes longer and has a bound that is little more than the last rounding of the noise.
        """
        matrices, d, cells, after = self._tables(size), self.order, normals.shape[1], state[:, : self.order]
        eta, n, sums, unit, unit_n, drift = self._public(start, size, blocks)
        # inputs of a block, then the buffers before it
        inputs = np.empty((5, size + d, blocks, cells))
        x, before = inputs[:, :size], inputs[:, size:]
        for row, numbers in zip(x[:3], normals.slices(), strict=True):
            row[:] = numbers.reshape(blocks, size, cells).swapaxes(0, 1)
        settle(product(eta, with_sums(x)), unit, x)
        fed = settle(product(matrices.feed, x.reshape(5, size, -1), np.matmul), unit).reshape(before.shape)
        for first in range(0, blocks, matrices.most):
            some = slice(first, min(first + matrices.most, blocks))
            links = np.concatenate([cut(after[0], after[1], unit)[:, :, np.newaxis], fed[:, :, some]], axis=2)
            one, two, three = product(matrices.chain[:, :, : links.shape[2], : links.shape[2]], links, np.matmul)
            before[:, :, some] = settle((one[:, :-1].copy(), two[:, :-1], three[:, :-1]), unit)
            after = pair((one[:, -1], two[:, -1], three[:, -1]))

        flat, (responses, readouts) = inputs.reshape(5, size + d, -1), matrices.row_sums
        top, highest = float(np.abs(x[4]).max()), float(np.abs(before[4]).max(initial=0.0))
        if fine:
            w = settle(product(matrices.output, flat, np.matmul), unit).reshape(5, size, blocks, cells)
            noise, error = w[4], (responses + readouts + 1) * (unit + top + highest)
            error *= (size + 8) * ROUNDING * 2.0**-20 + 2.0**-70
        else:
            noise = (matrices.output[4] @ flat[4]).reshape(size, blocks, cells)
            error = (3 * size + d + 16) * ROUNDING * (responses * top + readouts * highest)
        if not self.summed:
            return noise.swapaxes(0, 1).reshape(-1, cells), drift + error, after
        one, two, three = (
            np.concatenate([np.zeros((1, cells)), term]).cumsum(axis=0)
            for term in product(sums, inputs, partial(np.einsum, "nb,nbc->bc"))
        )
        check_sums(one, two, unit * unit_n)
        level = pair((one, two, three), state[0, d], state[1, d])  # the running sum before every block, and after
        low = level[1, :-1]
        if fine:
            noise = n[0] * w[0]
            check_sums(size * noise, two[:1], unit * unit_n)
            low = low + _running(n[0] * w[3] + n[3] * w[4])
        else:
            noise *= n[4]
        noise = _running(noise)
        noise += level[0, :-1]
        noise += low
        bound = drift + size * unit_n * error + 4 * ROUNDING * float(np.abs(level[0]).max())
        return noise.swapaxes(0, 1).reshape(-1, cells), bound, np.concatenate([after, level[:, -1:]], axis=1)

    @cached_property
    def _public(self) -> Callable[[int, int, int], Public]:
        return lru_cache(maxsize=4)(self._public_numbers)

    def _public_numbers(self, start: int, size: int, blocks: int) -> Public:
        matrices, unit = self._tables(size), _power(self.eta.largest(start + size * blocks))
        eta = cut(*_weights(self.eta, start, size, blocks), unit)
        high, low = _weights(self.n, start, size, blocks)
        unit_n = _power(float(high.max()))
        n = cut(high, low, unit_n)
        sums = n  # not read where the noise is no running sum
        if self.summed:
            sums = settle(product(matrices.output.swapaxes(1, 2), n, np.matmul), unit_n)
            check_exact(sums.swapaxes(1, 2), _tops(size, self.order), unit_n)
        drift = self.drift(start + size * blocks, size)
        return eta[..., np.newaxis], n[..., np.newaxis], sums, unit, unit_n, drift


def _running(terms: FloatArray) -> FloatArray:
    """Running sums over the first axis, in place: faster than `cumsum`, which goes against the order of memory."""
    for k in range(1, len(terms)):
        terms[k] += terms[k - 1]
    return terms


def _tops(size: int, order: int) -> FloatArray:
    """The largest inputs and buffers that a block can have, in units."""
    return np.asarray([SIGMAS] * size + [BUFFER] * order)


def _weights(line: Dyadics, start: int, size: int, blocks: int) -> tuple[FloatArray, FloatArray]:
    """Exact weights as (high, low), each (size, blocks)."""
    numerators, h = line.block(start, size * blocks)
    high = numerators.astype(np.float64)
    whole = high.astype(np.int64) if numerators.dtype == np.int64 else np.vectorize(int, otypes=[object])(high)
    low = (numerators - whole).astype(np.float64)
    high, low = (np.ascontiguousarray((part * 2.0**-h).reshape(blocks, size).T) for part in (high, low))
    return high, low


def _power(value: float) -> float:
    """The smallest power of two above a positive number."""
    return 2.0 ** math.frexp(value)[1]


def _most(rows: FloatArray) -> float:
    """The largest sum of magnitudes of a row, with room for its rounding."""
    return float(np.abs(rows).sum(axis=-1).max(initial=0.0)) * 1.001
