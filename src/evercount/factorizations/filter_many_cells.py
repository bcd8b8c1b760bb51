"""The streaming kernel: y = x + Σ c_i s_i, s_i ← μ_i (s_i + x), run many ticks at a time as small matrix products.

Two forms: `apply` (the filter alone) and `accumulate` (noise += n·y with inputs scaled by η). With few cells most ticks
run cell by cell in `filter_few_cells`; the remaining ticks, and all ticks of many cells, run over all cells at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evercount._arrays import FloatArray
from evercount.factorizations.base import lower_toeplitz
from evercount.factorizations.filter_few_cells import PASS_TICKS, PRODUCT_TICKS, ROW_TICKS, RowFilter
from evercount.factorizations.square_root_filter import Exponentials

MANY_CELLS = 24
"""From this many cells on, matrix products run over cells; below, over the ticks of one cell (`filter_few_cells`)."""
CELLS_PER_SLICE = 1000
"""Cells of one pass. They fit into the cache, and rows do not lie a power of two apart: cache lines would collide."""


@dataclass(frozen=True, eq=False)
class Product:
    """Up to PRODUCT_TICKS ticks of all cells: out = noise·(z, state), then state = after·(z, state)."""

    ticks: slice
    noise: FloatArray
    after: FloatArray


class BlockFilter:
    """The filter with impulse response h(0) = 1, h(k) = Σ c_i μ_i^k; buffers s have shape (d, cells)."""

    def __init__(self, response: Exponentials) -> None:
        self.weights = response.weights
        self.rates = response.rates
        k = np.arange(PRODUCT_TICKS)
        powers = np.exp(-np.multiply.outer(self.rates, k + 1.0))  # (d, PRODUCT_TICKS): μ^(k+1)
        self._lower = lower_toeplitz(response.values(PRODUCT_TICKS))  # (PRODUCT_TICKS, PRODUCT_TICKS)
        self._readout = np.exp(-np.multiply.outer(k, self.rates)) * self.weights  # what a buffer adds to tick k
        self._feed = np.ascontiguousarray(powers[:, ::-1])  # what the input of tick k adds to the buffers
        self._decay = np.exp(-PRODUCT_TICKS * self.rates)
        self._rows = RowFilter(response)

    def apply(self, x: FloatArray, buffers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after): the filter alone on x of shape (ticks, cells)."""
        y = np.empty_like(x)
        row_ticks, cells = self.ticks_in_rows(*x.shape), x.shape[1]
        if row_ticks:
            buffers, work, ones = buffers.copy(), self._rows.workspace(row_ticks), np.ones(min(row_ticks, PASS_TICKS))
        for now, cell in _passes(row_ticks, cells):
            inputs = x[now, cell]
            y[now, cell], buffers[:, cell] = self._rows.filtered(inputs, ones[: len(inputs)], buffers[:, cell], work)
        ones = np.ones(len(x) - row_ticks)
        products = [*self.products(ones, ones, sums=False)]
        return y, self._over_cells(x[row_ticks:], buffers, np.zeros(cells), products, y[row_ticks:])[0]

    def accumulate(
        self,
        z: FloatArray,
        buffers: FloatArray,
        running: FloatArray,
        weights: Callable[[int, int], tuple[FloatArray, FloatArray]],
        products: Sequence[Product],
        out: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Write the noise into `out`: noise_t = noise_{t−1} + n_t·(filter of η·z)_t."""
        # `weights(start, stop)` are η and n of these ticks, counted from the first tick of this call.
        row_ticks, cells = self.ticks_in_rows(*z.shape), z.shape[1]
        if row_ticks:
            buffers, running, work = buffers.copy(), running.copy(), self._rows.workspace(row_ticks)
        for now, cell in _passes(row_ticks, cells):
            if cell == 0:
                eta, n = weights(now.start, now.stop)
            y, buffers[:, cell] = self._rows.filtered(z[now, cell], eta, buffers[:, cell], work)
            y *= n
            y[0] += running[cell]
            np.cumsum(y, out=out[now, cell])
            running[cell] = out[now.stop - 1, cell]
        return self._over_cells(z[row_ticks:], buffers, running, products, out[row_ticks:])

    def ticks_in_rows(self, ticks: int, cells: int) -> int:
        """How many of these ticks, from the first on, run cell by cell, as rows; the rest run over all cells."""
        return ticks // ROW_TICKS * ROW_TICKS if cells < MANY_CELLS and len(self.rates) else 0

    def products(self, eta: FloatArray, n: FloatArray, *, sums: bool) -> Iterator[Product]:
        """The small matrices of a pass over all cells, with the weights folded in."""
        # `sums` says whether the outputs are running sums.
        order = len(self.rates)
        for start in range(0, len(eta), PRODUCT_TICKS):
            ticks = min(PRODUCT_TICKS, len(eta) - start)
            now = slice(start, start + ticks)
            weights = n[now, np.newaxis]
            lower = self._lower[:ticks, :ticks] * eta[now] * weights
            readout = np.full((ticks, order + 1), 1.0 if sums else 0.0)
            readout[:, :order] = self._readout[:ticks] * weights
            if sums:
                lower = np.cumsum(lower, axis=0)
                np.cumsum(readout[:, :order], axis=0, out=readout[:, :order])
            # The running sum is the last entry of the state: afterwards it is the block's last noise.
            after = np.zeros((order + 1, ticks + order + 1))
            after[:order, :ticks] = self._feed[:, PRODUCT_TICKS - ticks :] * eta[now]
            decay = self._decay if ticks == PRODUCT_TICKS else np.exp(-ticks * self.rates)
            np.fill_diagonal(after[:, ticks:], decay)
            noise = np.concatenate([lower, readout], axis=1)
            after[order] = noise[-1]
            yield Product(now, noise, after)

    def _over_cells(
        self, z: FloatArray, s: FloatArray, running: FloatArray, products: Sequence[Product], out: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Blocks of PRODUCT_TICKS ticks over all cells, by slices of cells that stay in the processor's cache."""
        order, cells = s.shape
        after = np.empty((order + 1, cells))
        for left in range(0, cells, CELLS_PER_SLICE):
            now = slice(left, left + CELLS_PER_SLICE)
            state = np.concatenate([s[:, now], running[np.newaxis, now]])
            for product in products:
                both = np.concatenate([z[product.ticks, now], state])
                np.matmul(product.noise, both, out=out[product.ticks, now])
                np.matmul(product.after, both, out=state)
            after[:, now] = state
        return after[:order], after[order]


def _passes(ticks: int, cells: int) -> Iterator[tuple[slice, int]]:
    """(ticks of a pass, cell): for each pass, one cell after the other."""
    passes = (slice(start, min(start + PASS_TICKS, ticks)) for start in range(0, ticks, PASS_TICKS))
    return ((now, cell) for now in passes for cell in range(cells))
