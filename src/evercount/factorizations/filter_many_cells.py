"""The streaming kernel: y = x + Σ c_i s_i, s_i ← μ_i (s_i + x), run many ticks at a time as small matrix products.

Both public forms are here: `apply` (the filter alone) and `accumulate` (noise += n·y with inputs scaled by η).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evercount._arrays import FloatArray
from evercount.factorizations.base import first_columns
from evercount.factorizations.filter_few_cells import CHUNK, ROW, SIZE, RowFilter
from evercount.factorizations.square_root_filter import Exponentials

WIDE = 24
"""From this many cells on, products run over cells; below, over the ticks of one cell (`rows.py`)."""
SLICE = 1000
"""Cells of one wide pass: they stay in the cache, and rows do not lie a power of two apart, which would crowd it."""


@dataclass(frozen=True, eq=False)
class Product:
    """Up to SIZE ticks of all cells: out = noise·(z, state), then state = after·(z, state)."""

    ticks: slice
    noise: FloatArray
    after: FloatArray


class BlockFilter:
    """The filter with impulse response h(0) = 1, h(k) = Σ c_i μ_i^k; buffers s have shape (d, cells)."""

    def __init__(self, response: Exponentials) -> None:
        self.weights = response.weights
        self.rates = response.rates
        k = np.arange(SIZE)
        powers = np.exp(-np.multiply.outer(self.rates, k + 1.0))  # (d, SIZE): μ^(k+1)
        self._lower = first_columns(response.values(SIZE))  # (SIZE, SIZE)
        self._readout = np.exp(-np.multiply.outer(k, self.rates)) * self.weights  # what a buffer adds to tick k
        self._feed = np.ascontiguousarray(powers[:, ::-1])  # (d, SIZE): how tick k ends up in the buffers
        self._decay = np.exp(-SIZE * self.rates)
        self._rows = RowFilter(response)

    def apply(self, x: FloatArray, buffers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after): the plain filter on x of shape (ticks, cells)."""
        y = np.empty_like(x)
        whole, cells = self.whole(*x.shape), x.shape[1]
        if whole:
            buffers, work, ones = buffers.copy(), self._rows.workspace(whole), np.ones(min(whole, CHUNK))
        for now, cell in _passes(whole, cells):
            inputs = x[now, cell]
            y[now, cell], buffers[:, cell] = self._rows.filtered(inputs, ones[: len(inputs)], buffers[:, cell], work)
        ones = np.ones(len(x) - whole)
        products = [*self.products(ones, ones, 1.0, sums=False)]
        return y, self._wide(x[whole:], buffers, np.zeros(cells), products, y[whole:])[0]

    def accumulate(
        self,
        z: FloatArray,
        buffers: FloatArray,
        running: FloatArray,
        weights: Callable[[int, int], tuple[FloatArray, FloatArray]],
        products: Sequence[Product],
        out: FloatArray,
        scale: float,
    ) -> tuple[FloatArray, FloatArray]:
        """(buffers after, running after); out = scale·noise with noise_t = noise_{t−1} + n_t·(filter of η·z)_t.

        `weights(start, stop)` are η and n of these ticks, counted from the first; `products` those of the ticks that
        run over cells.
        """
        whole, cells = self.whole(*z.shape), z.shape[1]
        if whole:
            buffers, running, work = buffers.copy(), running.copy(), self._rows.workspace(whole)
        for now, cell in _passes(whole, cells):
            if cell == 0:
                eta, n = weights(now.start, now.stop)
                if scale != 1.0:
                    n *= scale
            y, buffers[:, cell] = self._rows.filtered(z[now, cell], eta, buffers[:, cell], work)
            y *= n
            y[0] += running[cell] * scale
            np.cumsum(y, out=out[now, cell])
            running[cell] = out[now.stop - 1, cell] / scale
        return self._wide(z[whole:], buffers, running, products, out[whole:])

    def whole(self, ticks: int, cells: int) -> int:
        """How many of these ticks run cell by cell, as rows; the others run over cells."""
        return ticks // ROW * ROW if cells < WIDE and len(self.rates) else 0

    def products(self, eta: FloatArray, n: FloatArray, scale: float, *, sums: bool) -> Iterator[Product]:
        """The small matrices of a pass over all cells: weights, scale and running sum are folded into them."""
        order = len(self.rates)
        for start in range(0, len(eta), SIZE):
            ticks = min(SIZE, len(eta) - start)
            part = slice(start, start + ticks)
            weights = n[part, np.newaxis] * scale
            lower = self._lower[:ticks, :ticks] * eta[part] * weights
            readout = np.full((ticks, order + 1), scale if sums else 0.0)
            readout[:, :order] = self._readout[:ticks] * weights
            if sums:
                lower = np.cumsum(lower, axis=0)
                np.cumsum(readout[:, :order], axis=0, out=readout[:, :order])
            # the running sum comes last among the buffers: it stays, and takes in what the block adds up to
            after = np.zeros((order + 1, ticks + order + 1))
            after[:order, :ticks] = self._feed[:, SIZE - ticks :] * eta[part]
            np.fill_diagonal(after[:, ticks:], self._decay if ticks == SIZE else np.exp(-ticks * self.rates))
            noise = np.concatenate([lower, readout], axis=1)
            after[order] = noise[-1] / scale
            yield Product(part, noise, after)

    def _wide(
        self, z: FloatArray, s: FloatArray, running: FloatArray, products: Sequence[Product], out: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Blocks of SIZE ticks over all cells, by slices of cells that stay in the processor's cache."""
        order, cells = s.shape
        after = np.empty((order + 1, cells))
        for left in range(0, cells, SLICE):
            now = slice(left, left + SLICE)
            state = np.concatenate([s[:, now], running[np.newaxis, now]])
            for product in products:
                both = np.concatenate([z[product.ticks, now], state])
                np.matmul(product.noise, both, out=out[product.ticks, now])
                np.matmul(product.after, both, out=state)
            after[:, now] = state
        return after[:order], after[order]


def _passes(ticks: int, cells: int) -> Iterator[tuple[slice, int]]:
    """Chunks of ticks, and in each of them cell after cell."""
    chunks = (slice(start, min(start + CHUNK, ticks)) for start in range(0, ticks, CHUNK))
    return ((chunk, cell) for chunk in chunks for cell in range(cells))
