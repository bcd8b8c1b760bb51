"""The streaming kernel: y = x + Σ c_i s_i, s_i ← μ_i (s_i + x), run many ticks at a time as small matrix products.

Both public forms are here: `apply` (the filter alone) and `accumulate` (noise += n·y with inputs scaled by η).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evercount.factorizations.base import FloatArray, first_columns
from evercount.factorizations.rational import Exponentials

SIZE = 32
"""Ticks per matrix product."""
WIDE = 24
"""From this many cells on, products run over cells; below, over blocks of ticks of one cell."""
SLICE = 1000
"""Cells of one wide pass: they stay in the cache, and rows do not lie a power of two apart, which would crowd it."""
CHUNK = 1 << 14
"""Ticks of one narrow pass: its temporaries stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Product:
    """Up to SIZE ticks of all cells: out = noise·(z, state), then state = after·(z, state)."""

    ticks: slice
    noise: FloatArray
    after: FloatArray


@dataclass(frozen=True, eq=False)
class Prepared:
    """The public numbers of a run of ticks: η and scale·n of those that run cell by cell, `products` of the others."""

    scale: float
    eta: FloatArray
    n: FloatArray
    products: tuple[Product, ...]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Normals as the filter takes them in: `blocks` of those ticks that run cell by cell, the `rest` as it was."""

    blocks: list[list[FloatArray]]
    rest: FloatArray


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
        self._both = np.ascontiguousarray(np.concatenate([self._lower, self._readout], axis=1).T)
        self._ones = np.triu(np.ones((SIZE, SIZE)))
        # the same recurrence over blocks (steps of SIZE ticks) and over groups of SIZE blocks
        over_blocks = np.exp(-SIZE * np.multiply.outer(self.rates, k))
        self._group = np.ascontiguousarray(_triangles(over_blocks).transpose(0, 2, 1))
        self._group_end = np.ascontiguousarray(self._group[:, :, -1:] * self._decay[:, np.newaxis, np.newaxis])
        steps = np.arange(CHUNK // SIZE**2)
        self._groups = _triangles(np.exp(-(SIZE**2) * np.multiply.outer(self.rates, steps)))

    def apply(self, x: FloatArray, buffers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after): the plain filter on x of shape (ticks, cells)."""
        y = np.empty_like(x)
        whole = self._whole(*x.shape)
        inputs = self._by_cell(x[:whole], np.ones(whole))
        if inputs:
            after = np.empty_like(buffers)
            for cell, parts in enumerate(inputs):
                s, start = buffers[:, cell], 0
                for part in parts:
                    blocks, s = self._filtered(part, s)
                    y[start : start + blocks.size, cell] = blocks.ravel()
                    start += blocks.size
                after[:, cell] = s
            buffers = after
        ones = np.ones(len(x) - whole)
        products = [*self._products(ones, ones, 1.0, False)]
        return y, self._wide(x[whole:], buffers, np.zeros(x.shape[1]), products, y[whole:])[0]

    def prepare(self, eta: FloatArray, n: FloatArray, cells: int, scale: float) -> Prepared:
        """Everything that these ticks need but the normals and the state."""
        whole = self._whole(len(eta), cells)
        by_ticks = n[:whole] if scale == 1.0 else n[:whole] * scale
        return Prepared(scale, eta[:whole], by_ticks, tuple(self._products(eta[whole:], n[whole:], scale, True)))

    def feed(self, z: FloatArray, prepared: Prepared) -> Inputs:
        """What can be done with the normals before the state is known."""
        whole = len(prepared.eta)
        return Inputs(self._by_cell(z[:whole], prepared.eta), z[whole:])

    def accumulate(
        self, inputs: Inputs, buffers: FloatArray, running: FloatArray, prepared: Prepared, out: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(buffers after, running after); out = scale·noise with noise_t = noise_{t−1} + n_t·(filter of η·z)_t."""
        whole, cells = len(prepared.n), len(running)
        if whole:
            n, target = prepared.n.reshape(-1, SIZE), out[:whole].reshape(-1, SIZE, cells)
            after, end = np.empty_like(buffers), np.empty_like(running)
            for cell, parts in enumerate(inputs.blocks):
                s, total, start = buffers[:, cell], running[cell] * prepared.scale, 0
                for part in parts:
                    now = slice(start, start + len(part))
                    blocks, s = self._filtered(part, s)
                    blocks *= n[now]
                    total = self._summed(blocks, total, target[now, :, cell])
                    start = now.stop
                after[:, cell], end[cell] = s, total / prepared.scale
            buffers, running = after, end
        return self._wide(inputs.rest, buffers, running, prepared.products, out[whole:])

    def _whole(self, ticks: int, cells: int) -> int:
        """How many of these ticks run by blocks of one cell's ticks; the others run over cells."""
        return ticks // SIZE * SIZE if cells < WIDE and len(self.rates) else 0

    def _products(self, eta: FloatArray, n: FloatArray, scale: float, sums: bool) -> Iterator[Product]:
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

    def _by_cell(self, z: FloatArray, eta: FloatArray) -> list[list[FloatArray]]:
        """For each cell, in chunks: rows of η·z of SIZE ticks, with room behind each for the buffers before it."""
        weights = eta.reshape(-1, SIZE)
        made: list[list[FloatArray]] = []
        for rows in z.reshape(-1, SIZE, z.shape[1]).transpose(2, 0, 1) if len(z) else ():
            made.append([])
            for start in range(0, len(rows), CHUNK // SIZE):
                part = slice(start, start + CHUNK // SIZE)
                both = np.empty((len(rows[part]), SIZE + len(self.rates)))
                np.multiply(rows[part], weights[part], out=both[:, :SIZE])
                made[-1].append(both)
        return made

    def _filtered(self, both: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after) of one chunk of `_by_cell`, in blocks of SIZE ticks: all at once."""
        before, s = self._starts(both[:, :SIZE], s)
        both[:, SIZE:] = before.T
        return both @ self._both, s

    def _summed(self, blocks: FloatArray, total: float, out: FloatArray) -> float:
        """Write total + running sums of all blocks; returns the last. Products: additions need not wait for another."""
        sums = np.empty(len(blocks) + 1)
        sums[0] = total
        np.matmul(blocks, self._ones[0], out=sums[1:])
        np.cumsum(sums, out=sums)
        np.add(blocks @ self._ones, sums[:-1, np.newaxis], out=out)
        return float(sums[-1])

    def _starts(self, rows: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Buffers before every block of inputs, as (d, blocks), and those after the last; s are before the first.

        s_{b+1} = μ^SIZE·s_b + feed_b, by groups of SIZE blocks: what came before a group is added to its first input.
        """
        blocks, order = len(rows), len(s)
        groups = blocks // SIZE + 1
        inputs = np.zeros((order, groups, SIZE))  # number b is what block b−1 feeds
        flat = inputs.reshape(order, -1)
        flat[:, 0] = s
        np.matmul(self._feed, rows.T, out=flat[:, 1 : blocks + 1])
        if groups > 1:
            ends = np.matmul(inputs[:, :-1], self._group_end)  # what a group alone brings to the next
            inputs[:, 1:, :1] += np.matmul(self._groups[:, : groups - 1, : groups - 1], ends)
        states = np.matmul(inputs, self._group).reshape(order, -1)
        return states[:, :blocks], states[:, blocks]


def _triangles(rows: FloatArray) -> FloatArray:
    """One lower-triangular Toeplitz matrix per row."""
    size = rows.shape[1]
    return np.concatenate([first_columns(row)[np.newaxis] for row in rows] or [np.empty((0, size, size))])
