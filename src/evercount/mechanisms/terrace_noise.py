"""The noise of a terrace, tick by tick, in whole grid units.

The number of a tick and those of blocks are pseudorandom functions of (secret, level, number,
cell). When a block begins, all numbers inside it are drawn, added up and forgotten: what is kept of
an open block is its correction. Corrections are fractions, and are rounded up or down by one random
number of each cell, its dither: so the fractions at different ticks are rounded alike, and rounding
has mean 0 whatever they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from evercount._validate import IntArray
from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations.terrace import BITS, Terrace
from evercount.noise import Secret
from evercount.noise.laplace_sampler import LARGEST_RATE, ExactLaplace
from evercount.noise.prf import Prf, counters

NUMBERS_AT_ONCE = 1 << 18
LARGEST_SUM = 1 << 44
"""Sums of a block's numbers stay below this many grid units, but for a chance below 2^−70 for each
number."""
LARGEST_CORRECTION = 1 << 61
"""In 2^−BITS; only a stream of more blocks than anybody has ever had comes here."""
FARTHEST = 56.0  # numbers leave this many times their scale with a chance below 2^−80
DITHER = "evercount/noise/dither/1"
"""The label of the key of dithers."""
ONE = 1 << BITS
HALF = 1 << (BITS - 1)


class OpenBlocks(NamedTuple):
    """The open blocks of every level, lowest first, at some tick."""

    first: int
    """The first tick of the shortest one."""
    closed: IntArray
    """The corrections of all shortest blocks before it, added up, in 2^−BITS: shape (cells,)."""
    corrections: IntArray
    """That of each open block, in 2^−BITS: shape (levels of blocks, cells)."""


class TerraceNoise:
    """Rows of the noise of one terrace: functions of (secret, public numbers, tick, cell), in whole
    grid units.

    **Guarantee.** Row t is u_1 + … + u_t plus a function of the discrepancies alone, in whole
    numbers; each number has the rate of its level. So running sums plus rows are ε-DP with δ = 0
    for changes of l1 norm `l1`. Proof: `factorizations/terrace.proof.md`. Tests:
    tests/mechanisms/test_terrace_noise.py::test_a_shift_of_the_data_leaves_all_discrepancies and
    tests/mechanisms/test_terrace_noise.py::test_exact_law_of_released_integers.
    """

    def __init__(
        self, terrace: Terrace, unit: float, cells: int, secret: Secret, first_cell: int = 0
    ) -> None:
        self.terrace = terrace
        self.cells = cells
        self.first_cell = first_cell
        self.rates = [min(share * unit, LARGEST_RATE) for share in terrace.design.shares]
        top = terrace.lengths[-1]
        if top * FARTHEST / self.rates[0] + FARTHEST / min(self.rates) >= LARGEST_SUM:
            raise ParameterError(
                "the noise of a terrace passes 2^44 grid units: use a coarser grid or shorter "
                "blocks"
            )
        numbers = [unit.hex(), *map(list, terrace.design.as_dict().values())]
        key = secret.derive("terrace " + json.dumps(numbers))
        self._levels = [
            ExactLaplace(key.derive(f"level {level}")) for level in range(terrace.levels)
        ]
        blocks = counters(np.zeros(1, np.int64), range(first_cell, first_cell + cells))
        words = Prf(key, DITHER).words(blocks)[:, 0]
        self._dither = (words >> np.uint64(64 - BITS)).astype(np.int64)
        self._sum = np.zeros(cells, np.int64)  # u_1 + … + u_t
        self._tick = 0
        self._open = OpenBlocks(
            1 - terrace.lengths[1], np.zeros(cells, np.int64), self._no_corrections()
        )
        self._next: OpenBlocks | None = None

    def _no_corrections(self) -> IntArray:
        return np.zeros((self.terrace.levels - 1, self.cells), np.int64)

    def rows(self, first: int, count: int) -> IntArray:
        """Noise of ticks first … first+count−1, which follow those asked for before; shape (count,
        cells)."""
        assert first == self._tick + 1
        shortest = self.terrace.lengths[1]
        parts = []
        while count:
            if (first - 1) % shortest == 0:
                self._begin_blocks(first)
            into = first - self._open.first
            part = min(count, shortest - into)
            sums = self._sum + np.cumsum(self._numbers(0, first, part), axis=0)
            parts.append(
                sums + self._published_correction(self._open, np.arange(into + 1, into + part + 1))
            )
            self._sum = sums[-1]
            first += part
            count -= part
        self._tick = first - 1
        if parts:
            return np.concatenate(parts)
        return np.empty((0, self.cells), np.int64)

    def _published_correction(self, blocks: OpenBlocks, into: IntArray) -> IntArray:
        """F in whole grid units, after so many ticks of the shortest open block; shape (ticks,
        cells)."""
        shortest = self.terrace.lengths[1]
        correction = blocks.closed + rounded_quotient(
            into[:, np.newaxis] * blocks.corrections[0], shortest
        )
        return np.asarray((correction + self._dither) >> BITS)

    def _begin_blocks(self, tick: int) -> None:
        """Open the blocks that begin with this tick."""
        self._open = self._opened(tick) if self._next is None else self._next
        self._next = None

    def prepare(self) -> None:
        """Draw the numbers of the next blocks now, if the next tick begins one."""
        if self._next is None and self._tick % self.terrace.lengths[1] == 0:
            self._next = self._opened(self._tick + 1)

    def last_of_block(self, tick: int) -> int:
        """The last tick of the shortest block that holds this one."""
        shortest = self.terrace.lengths[1]
        return -(-tick // shortest) * shortest

    def _opened(self, tick: int) -> OpenBlocks:
        """The open blocks after those that begin with this tick were drawn."""
        lengths = self.terrace.lengths
        corrections = self._open.corrections.copy()
        closed = self._open.closed + corrections[0]
        if np.abs(closed).max(initial=0) >= LARGEST_CORRECTION:
            raise ParameterError(
                "the noise of the running sums passed 2^45: use a larger epsilon or a coarser grid"
            )
        for level in range(self.terrace.levels - 1, 0, -1):
            if (tick - 1) % lengths[level]:
                continue
            gain = self._gain(level, tick)
            if level + 1 < self.terrace.levels:
                gain += rounded_quotient(corrections[level], lengths[level + 1] // lengths[level])
            corrections[level - 1] = gain
        return OpenBlocks(tick, closed, corrections)

    def _gain(self, level: int, tick: int) -> IntArray:
        """α·(z − M) of the block of this level that begins with this tick, M the mean of its sum
        given all inside."""
        length = self.terrace.lengths[level]
        gain = np.empty(self.cells, np.int64)
        step = max(1, NUMBERS_AT_ONCE // length)
        for start in range(0, self.cells, step):
            cells = range(start, min(start + step, self.cells))
            gain[cells.start : cells.stop] = self._gain_of(level, tick, cells)
        return gain

    def _gain_of(self, level: int, tick: int, cells: range) -> IntArray:
        lengths = self.terrace.lengths
        weights = self.terrace.design.weights
        means = self._numbers(0, tick, lengths[level], cells) << BITS
        for inner in range(1, level + 1):
            count = lengths[level] // lengths[inner]
            sums = means.reshape(count, -1, len(cells)).sum(axis=1)
            own = self._numbers(inner, (tick - 1) // lengths[inner] + 1, count, cells) << BITS
            gains = rounded_product(own - sums, weights[inner - 1])
            means = sums + gains
        return np.asarray(gains[0])

    def _numbers(self, level: int, first: int, count: int, cells: range | None = None) -> IntArray:
        """Numbers first … first+count−1 of a level, counted from 1, shape (count, cells)."""
        some = range(self.cells) if cells is None else cells
        numbers = np.arange(first, first + count)
        return self._levels[level].draw(
            numbers, self.rates[level], len(some), self.first_cell + some.start
        )

    # -- the state of a snapshot -------------------------------------------------------------------

    def state(self, tick: int, row: IntArray) -> dict[str, IntArray]:
        """What `start_at` needs to go on after a tick of the open block that had this row."""
        sums = (
            row
            - self._published_correction(self._open, np.asarray([tick - self._open.first + 1]))[0]
        )
        return {"sum": sums, "closed": self._open.closed, "open": self._open.corrections}

    def start_at(self, tick: int, state: Mapping[str, Any]) -> IntArray:
        """Go on after this tick, and return its row."""
        shapes = {
            "sum": (self.cells,),
            "closed": (self.cells,),
            "open": (self.terrace.levels - 1, self.cells),
        }
        parts = {}
        for name, shape in shapes.items():
            part = np.asarray(state.get(name))
            if part.shape != shape or part.dtype != np.int64:
                raise SnapshotError("the noise state belongs to other cells")
            parts[name] = part.copy()
        first = self.last_of_block(tick) - self.terrace.lengths[1] + 1
        self._tick, self._sum, self._next = tick, parts["sum"], None
        self._open = OpenBlocks(first, parts["closed"], parts["open"])
        row = self._sum + self._published_correction(self._open, np.asarray([tick - first + 1]))[0]
        return np.asarray(row)


def rounded_quotient(number: IntArray, by: int) -> IntArray:
    """number/by, rounded to the nearest whole number, halves away from 0: what −x gives is minus
    what x gives."""
    size = np.abs(number)
    return np.asarray(np.sign(number) * ((2 * size + by) // (2 * by)))


def rounded_product(number: IntArray, weight: int) -> IntArray:
    """number·weight/2^BITS, rounded as `rounded_quotient`; numbers below 2^62 in size and weights
    below 2^BITS."""
    size = np.abs(number)
    high = size >> BITS
    low = size & (ONE - 1)
    return np.asarray(np.sign(number) * (high * weight + ((low * weight + HALF) >> BITS)))
