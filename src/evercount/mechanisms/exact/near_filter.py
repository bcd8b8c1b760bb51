"""The recursive factorisations in doubles, with a proved bound of the distance to the fixed-point noise.

The same block form as `filter_kernel.py`, in blocks of 32 ticks for many cells and of 64 for fewer. What is carried
from block to block (buffers and running sum) has about 100 bits (`slices.py`). What a tick reads off it has 53 bits:
that error does not add up over time. `exact_noise.proof.md`, lemmas 9 to 11, has the same letters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.factorizations.base import lower_toeplitz
from evercount.factorizations.filter_few_cells import lower_toeplitz_stack
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, MOST_TICKS, SIGMAS, Dyadics, FilterKernel, poles
from evercount.mechanisms.exact.slices import (
    EXACT,
    ROUNDING,
    WIDTH,
    Slices,
    check_exact,
    cut,
    of_integers,
    pair,
    product,
    product_error,
    settle,
)
from evercount.mechanisms.exact.tree_kernels import IdentityKernel
from evercount.noise import Normals

LONG_BLOCK_TICKS = 2 * BLOCK_TICKS
MANY = 4000
"""From this many cells on, blocks have BLOCK_TICKS ticks, else LONG_BLOCK_TICKS: fewer rows lie ready."""
MOST_BLOCKS = 64
"""Blocks of few cells that go through the matrices at once."""
MOST_TICKS_AT_ONCE = LONG_BLOCK_TICKS * MOST_BLOCKS
BITS = 256
"""Fractional bits of the constants before they are cut into slices."""
BUFFER = 130.0
"""No buffer is larger, in units of the largest weight of an input so far (lemma 4)."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The matrices of one block length, and sums of their entries."""

    size: int
    most: int
    """Blocks that are carried through at a time."""
    output: Slices
    """[G C]: what inputs and buffers add to the ticks of a block, (size, size + d)."""
    feed: Slices
    """Q: how inputs end up in the buffers, (d, size)."""
    chain: Slices
    """Powers of D: (buffers, feeds of the blocks) to the buffers before every block and after the last one."""
    responses: float
    """The largest Σ_j |G_kj| over k."""
    readouts: float
    """The largest Σ_i |C_ki| over k."""
    drift: float
    """What one block adds to the error of the noise of any later tick, in units (lemma 10)."""
    buffer_error: float
    """What one block adds to the error of what buffers will ever add to one tick, in units (lemma 10)."""


@lru_cache(maxsize=64)
def tables(roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool) -> Tables:
    """The matrices for as many blocks at a time as sums of slices stay exact for; one block always does."""
    most = MOST_BLOCKS if size == LONG_BLOCK_TICKS else 1
    while True:
        try:
            return _tables(roots, tops, size, narrow, most)
        except AssertionError:  # `check_exact`: sums over so many blocks would pass 2^53
            if most == 1:
                raise
            most //= 2


def _tables(roots: tuple[float, ...], tops: tuple[float, ...], size: int, narrow: bool, most: int) -> Tables:
    """The matrices from the dyadic 1 − root and 1 − top, each entry within 2^−94 of the exact value."""
    one, d = 1 << BITS, len(roots)
    response, readout, feed, decay = [one] + [0] * (size - 1), [], [], []
    reach, memory, gains = [], [], []
    for root, weight, shift in poles(roots, tops):
        step, scaled = int(root * one), round(weight * (one << shift))  # a root is a multiple of 2^−BITS
        powers = [one]
        for _ in range(size):
            powers.append(powers[-1] * step >> BITS)
        readout.append([scaled * power >> BITS for power in powers[:size]])
        for k in range(1, size):
            response[k] += readout[-1][k] >> shift
        feed.append([powers[size - j] >> shift for j in range(size)])
        row = [one]
        for _ in range(most):
            row.append(row[-1] * powers[size] >> BITS)
        decay.append(row)
        gains.append(abs(float(weight * (1 << shift))))
        reach.append(gains[-1] * float(1 / (1 - root)))
        memory.append(float(1 / (1 - root**size)))
    output = _concatenate(
        of_integers(_objects(response, (size,)), BITS).map(lower_toeplitz),
        of_integers(_objects(readout, (d, size)).T, BITS),
    )
    fed = of_integers(_objects(feed, (d, size)), BITS)
    chain = of_integers(_objects(decay, (d, most + 1)), BITS).map(lower_toeplitz_stack)

    # lemma 10; every sum of entries gets room for its own rounding
    responses = _most(output.whole[:, :size])
    readouts = _most(output.whole[:, size:])
    columns = output.map(lambda array: array.T)
    sums = responses * size + readouts * size  # of a row of weights that sums up a block
    entry = product_error(size, max(responses, _most(columns.whole)), 1.0) + 2.0**-83
    total = product_error(size + d, sums, BUFFER) + entry * (65 * size + BUFFER * d) + 2.0**-74
    total += 2.0**-83 * (sums + 65 * size)  # of the weighted inputs, or of the weights in the matrix
    drift, buffer_error = total, 0.0
    check_exact(columns, np.ones(size))
    check_exact(output, _tops(size, d))
    check_exact(fed, _tops(size, 0))
    for i in range(d):
        inflow, links = float(fed.whole[i].sum()) * 1.001, most + 1
        top, past = max(BUFFER, 65 * inflow), float(chain.first[i, -1, 1:].sum())
        link = Slices(chain.first[i], chain.second[i], chain.third[i])
        check_exact(link, np.asarray([BUFFER] + [65 * inflow] * most))
        # of a feed, of the links before and after a block, and of what is kept: 2^−77 of it where a dump cuts it
        own = product_error(size, inflow, 65.0) + 2.0**-83 * (inflow + 65 * size)
        own += 2 * product_error(links, past + 1, top) + BUFFER * (2.0**-76 if narrow else 2.0**-100) + 2.0**-76
        drift += reach[i] * own
        buffer_error += gains[i] * memory[i] * own
    return Tables(size, most, output, fed, chain, responses, readouts, drift * 1.01, buffer_error * 1.01)


@dataclass(frozen=True, eq=False)
class _Public:
    """Public numbers of some ticks; columns are blocks."""

    eta: Slices | None
    """Weights of the normals, or None where there are none or the matrices hold them."""
    n: Slices
    unit: float
    """Of inputs and buffers."""
    unit_n: float
    feed: Slices
    output: Slices
    sums: Slices | None
    """What inputs and buffers add to the running sum in a block."""
    plain: FloatArray
    """What is left to do on doubles: `output`, or for one block what inputs and buffers add to the noise itself."""
    largest_eta: float
    largest_n: float
    drift: float


@dataclass(frozen=True, eq=False)
class _Carried:
    """Some blocks: their inputs, and what was carried to each of them."""

    tables: Tables
    public: _Public
    blocks: int
    inputs: Slices
    """Inputs of a block, then the buffers before it, (size + d, blocks·cells)."""
    level: FloatArray
    """The running sum before every block, (2, blocks, cells): high and low."""
    largest: float
    """A bound of what the filter puts out."""
    after: FloatArray
    """The state after all of them."""


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
        self._eta, self._n = kernel.eta, kernel.n
        self._roots, self._tops = kernel.roots_lack, kernel.tops_lack
        self._order = len(self._roots)
        self._tables = {size: tables(self._roots, self._tops, size, narrow) for size in (BLOCK_TICKS, LONG_BLOCK_TICKS)}
        self._sums = kernel.rows > self._order  # whether the noise is a running sum
        self.narrow = self._order if narrow else 0
        self._public = lru_cache(maxsize=4)(self._public_numbers)

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """(ticks of a block, blocks) of the next call, for so many cells and ticks that are wanted at least."""
        if cells >= 24:
            return (LONG_BLOCK_TICKS if cells < MANY else BLOCK_TICKS), 1
        return LONG_BLOCK_TICKS, max(1, (8 if ticks <= 8 * LONG_BLOCK_TICKS else 4 * MOST_BLOCKS) // cells)

    def drift(self, tick: int, size: int = LONG_BLOCK_TICKS) -> float:
        """A bound of what the state after `tick` ticks adds to the error of any later number (lemma 10).

        All blocks so far had `size` ticks.
        """
        if not self._sums:
            return self._tables[size].buffer_error
        knots, units, sums = self._units
        at = int(np.searchsorted(knots, tick, side="right")) - 1
        total = float(sums[at]) + (tick - int(knots[at])) * float(units[at])
        each = self._tables[size].drift / size
        return (total + LONG_BLOCK_TICKS * float(units[0] + units[at])) * each + (
            tick / BLOCK_TICKS + 2
        ) * self._sum_error

    @cached_property
    def _sum_error(self) -> float:
        """What a block adds to the error of the running sum for its size, which 64 deviations bound."""
        return 2.0**-96 * self._kernel.norm(MOST_TICKS)

    @cached_property
    def _units(self) -> tuple[AnyArray, FloatArray, FloatArray]:
        """Knots; the largest product of units of inputs and weights n between each and the next; its sum over ticks."""
        eta, n = self._eta, self._n
        if eta is None or n is None:
            return np.zeros(1), np.ones(1), np.zeros(1)
        knots, values = n.line.knots, n.line.values
        ahead = np.maximum.accumulate(values[::-1])[::-1]
        so_far = np.maximum.accumulate(eta.line.values)
        after = (
            np.append(knots[1:], knots[-1]) + MOST_TICKS_AT_ONCE + LONG_BLOCK_TICKS
        )  # a call that begins before the next knot ends before
        units = 4 * ahead * so_far[np.minimum(np.searchsorted(eta.line.knots, after), len(so_far) - 1)]
        return knots, units, np.append(0.0, np.cumsum(np.diff(knots) * units[:-1]))

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float, FloatArray]:
        """(noise, bound, state after) of so many blocks of `size` ticks from `start` on, a multiple of 32."""
        parts = list(self._carry(state, start, size, blocks, normals))
        noise, bounds = zip(*(self._read(part) for part in parts), strict=True)
        return np.concatenate(noise), max(bounds), parts[-1].after

    def refine(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float]:
        """(noise, bound) of the same ticks with about 100 bits, (2, ticks, cells): high and low."""
        noise, bounds = zip(
            *(self._read_finely(part) for part in self._carry(state, start, size, blocks, normals)), strict=True
        )
        return np.concatenate(noise, axis=1), max(bounds)

    def _carry(self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals) -> Iterator[_Carried]:
        """What is carried from block to block, for up to MOST_BLOCKS blocks at a time."""
        most = self._tables[size].most
        for begin in range(0, blocks, most):
            count, first = min(most, blocks - begin), begin * size
            part = self._carry_once(state, start + first, size, count, normals[first : first + count * size])
            yield part
            state = part.after

    def _carry_once(self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals) -> _Carried:
        made, d, cells = self._tables[size], self._order, normals.shape[1]
        public = self._public(start, size, blocks)
        top = (float(normals.integer.max(initial=0)) + 1.0) * public.largest_eta
        x = Slices(*normals.slices())
        if blocks > 1:  # (blocks·size, cells) to (size, blocks·cells)
            x = x.map(lambda a: a.reshape(blocks, size, cells).transpose(1, 0, 2).reshape(size, blocks * cells))
        if public.eta is not None:
            x = settle(product(public.eta.map(lambda a: _spread(a, cells)), x), public.unit)
        fed = settle(product(public.feed, x, np.matmul), public.unit)
        before = cut(state[0, :d], state[1, :d], public.unit)
        links = before.map(lambda a: a[:, np.newaxis])
        links = _concatenate(links, fed.map(lambda a: a.reshape(d, blocks, cells)))
        chain = made.chain.map(lambda a: a[:, : blocks + 1, : blocks + 1])
        after = pair(product(chain.map(lambda a: a[:, -1:]), links, np.matmul))[:, :, 0]
        if blocks > 1:
            starts = settle(product(chain.map(lambda a: a[:, :-1]), links, np.matmul), public.unit)
            before = starts.map(lambda a: a.reshape(d, blocks * cells))
        inputs = _concatenate(x, before, axis=0)
        largest = made.responses * top + made.readouts * float(np.abs(before.whole).max(initial=0.0))
        level = np.zeros((2, blocks, cells))
        if public.sums is not None:

            def inner(weights: FloatArray, numbers: FloatArray) -> FloatArray:
                shaped = numbers.reshape(len(numbers), blocks, cells)
                return np.asarray(np.einsum("nb,nbc->bc", weights, shaped), dtype=np.float64)

            one, two, three = (
                np.concatenate([np.zeros((1, cells)), part]).cumsum(axis=0)
                for part in product(public.sums, inputs, inner)
            )
            _check_sums(one, two, public.unit * public.unit_n)
            level = pair((one, two, three), state[0, d], state[1, d])
            after = np.concatenate([after, level[:, -1:]], axis=1)
        return _Carried(made, public, blocks, inputs, level[:, :blocks], largest, after)

    def _read(self, part: _Carried) -> tuple[FloatArray, float]:
        """The noise of every tick in doubles, and the bound of its error (lemma 11)."""
        size, cells = part.tables.size, part.level.shape[2]
        noise = part.public.plain @ part.inputs.whole
        bound = (size + self._order + 8) * ROUNDING * part.largest
        if part.public.sums is not None:
            if part.blocks > 1:
                noise *= _spread(part.public.n.whole, cells)
                noise = _running(size) @ noise
            noise += part.level[0].reshape(-1)
            bound = (3 * size + self._order + 16) * ROUNDING * part.largest * size * part.public.largest_n
            bound += 4 * ROUNDING * float(np.abs(part.level[0]).max())
        return _ticks_first(noise, part.blocks), bound + part.public.drift

    def _read_finely(self, part: _Carried) -> tuple[FloatArray, float]:
        """The noise of every tick in slices, and the bound of its error (lemma 11)."""
        made, public, cells = part.tables, part.public, part.level.shape[2]
        parts = product(public.output, part.inputs, np.matmul)
        error = product_error(made.size + self._order, made.responses + made.readouts, BUFFER)
        bound = error * public.unit
        if public.sums is not None:
            weighted = product(public.n.map(lambda a: _spread(a, cells)), settle(parts, public.unit))
            _check_sums(made.size * weighted[0], made.size * weighted[1], public.unit * public.unit_n)
            one, two, three = (_running(made.size) @ term for term in weighted)
            parts = (one, two, three)
            bound = error + product_error(made.size, 1.0, 2 * BUFFER * (made.responses + made.readouts)) + 2.0**-90
            bound *= made.size * public.unit * public.unit_n
        noise = pair(parts, *part.level.reshape(2, -1))
        shaped = np.stack([_ticks_first(half, part.blocks) for half in noise])
        return shaped, bound + public.drift + 2.0**-100 * float(np.abs(noise).max())

    def _public_numbers(self, start: int, size: int, blocks: int) -> _Public:
        made, eta, n, drift = self._tables[size], self._eta, self._n, self.drift(start, size)
        feed, output = made.feed, made.output
        if eta is None or n is None:
            ones, zeros = np.ones((size, blocks)), np.zeros((size, blocks))
            one, plain = Slices(ones, zeros, zeros), output.whole
            sums = one if self._sums else None
            if blocks == 1 and self._sums:
                plain = _running(size)
            return _Public(None, one, 1.0, 2.0, feed, output, sums, plain, 1.0, 1.0, drift)
        unit = _power(eta.largest(start + size * blocks))
        weights, (high, low) = cut(*_weights(eta, start, size, blocks), unit), _weights(n, start, size, blocks)
        unit_n = _power(float(high.max()))
        sliced = cut(high, low, unit_n)
        sums = settle(product(output.map(np.transpose), sliced, np.matmul), unit_n)
        check_exact(sums.map(np.transpose), _tops(size, self._order), unit_n)
        largest = float(weights.whole.max()), float(high.max())
        if blocks > 1:
            return _Public(weights, sliced, unit, unit_n, feed, output, sums, output.whole, *largest, drift)

        def fold(matrix: Slices, by: Slices, unit: float) -> Slices:
            """A matrix whose first columns are multiplied by the weights of the normals."""
            inputs = settle(product(matrix.map(lambda a: a[:, :size]), by), unit)
            return _concatenate(inputs, matrix.map(lambda a: a[:, size:]))

        row = weights.map(np.transpose)
        feed, output = fold(feed, row, unit), fold(output, row, unit)
        sums = fold(sums.map(np.transpose), row, unit * unit_n).map(np.transpose)
        plain = _running(size) @ (output.whole * sliced.whole)
        return _Public(None, sliced, unit, unit_n, feed, output, sums, plain, *largest, drift)


def _tops(size: int, order: int) -> FloatArray:
    """The largest inputs and buffers that a block can have, in units."""
    return np.asarray([SIGMAS] * size + [BUFFER] * order)


def _check_sums(one: FloatArray, two: FloatArray, unit: float) -> None:
    """That sums of the first two parts stayed exact."""
    sizes = float(np.abs(one).max()) / unit, float(np.abs(two).max()) / unit * 2.0**WIDTH
    if max(sizes) * 2.0 ** (2 * WIDTH) >= EXACT:
        raise AssertionError("a running sum left its room: the chance of that is below e^-2000")


def _spread(array: FloatArray, cells: int) -> FloatArray:
    """(size, blocks) repeated for all cells, to go with (size, blocks·cells)."""
    return array if array.shape[1] == 1 or cells == 1 else np.repeat(array, cells, axis=1)


def _ticks_first(noise: FloatArray, blocks: int) -> FloatArray:
    """(size, blocks·cells) to (blocks·size, cells)."""
    if blocks == 1:
        return noise
    size, cells = len(noise), noise.shape[1] // blocks
    return noise.reshape(size, blocks, cells).transpose(1, 0, 2).reshape(blocks * size, cells)


def _weights(line: Dyadics, start: int, size: int, blocks: int) -> tuple[FloatArray, FloatArray]:
    """Exact weights as (high, low), each (size, blocks)."""
    numerators, h = line.block(start, size * blocks)
    high = numerators.astype(np.float64)
    whole = (
        high.astype(np.int64) if numerators.dtype != object else _objects([int(v) for v in high.tolist()], high.shape)
    )
    low = (numerators - whole).astype(np.float64)
    scale = 2.0**-h
    high, low = (np.ascontiguousarray((part * scale).reshape(blocks, size).T) for part in (high, low))
    return high, low


def _power(value: float) -> float:
    """The smallest power of two above a positive number."""
    return 2.0 ** math.frexp(value)[1]


def _objects(values: list[int] | list[list[int]], shape: tuple[int, ...]) -> ObjectArray:
    out = np.empty(shape, dtype=object)
    for place, value in enumerate(values):
        out[place] = value
    return out


def _most(rows: FloatArray) -> float:
    """The largest sum of magnitudes of a row, with room for its rounding."""
    return float(np.abs(rows).sum(axis=-1).max(initial=0.0)) * 1.001


def _concatenate(one: Slices, two: Slices, axis: int = 1) -> Slices:
    return Slices(
        np.concatenate([one.first, two.first], axis=axis),
        np.concatenate([one.second, two.second], axis=axis),
        np.concatenate([one.third, two.third], axis=axis),
    )


@lru_cache(maxsize=4)
def _running(size: int) -> FloatArray:
    """The matrix of running sums."""
    return np.tril(np.ones((size, size)))
