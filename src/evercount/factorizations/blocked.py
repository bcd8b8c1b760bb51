"""The streaming kernel: y = x + Σ c_i s_i, s_i ← μ_i (s_i + x), run many ticks at a time as small matrix products.

Both public forms are here: `apply` (the filter alone) and `accumulate` (noise += n·y with inputs scaled by η).
"""

from __future__ import annotations

import numpy as np

from evercount.factorizations.base import FloatArray, first_columns
from evercount.factorizations.rational import Exponentials

SIZE = 32
"""Ticks per matrix product."""
WIDE = 24
"""From this many cells on, products run over cells; below, over blocks of ticks of one cell."""
SLICE = 1024
"""Cells of one wide pass."""
CHUNK = 1 << 14
"""Ticks of one narrow pass: its temporaries stay in the processor's cache."""


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
        # the same recurrence over blocks (steps of SIZE ticks) and over groups of SIZE blocks
        self._group_decay = np.exp(-SIZE * np.multiply.outer(self.rates, k + 1.0))
        self._group = _triangles(np.exp(-SIZE * np.multiply.outer(self.rates, k))).transpose(0, 2, 1)
        steps = np.arange(CHUNK // SIZE**2)
        self._groups = _triangles(np.exp(-(SIZE**2) * np.multiply.outer(self.rates, steps)))

    def apply(self, x: FloatArray, buffers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after): the plain filter on x of shape (ticks, cells)."""
        ones = np.ones(len(x))
        y = np.empty_like(x)
        if x.shape[1] >= WIDE or len(x) < SIZE or not len(self.rates):
            return y, self._wide(x, buffers, None, ones, ones, y, 1.0)[0]
        after = np.empty_like(buffers)
        for cell in range(x.shape[1]):
            s = buffers[:, cell]
            for start in range(0, len(x), CHUNK):
                part = slice(start, start + CHUNK)
                y[part, cell], s = self._narrow(x[part, cell], ones[part], s)
            after[:, cell] = s
        return y, after

    def accumulate(
        self,
        z: FloatArray,
        buffers: FloatArray,
        running: FloatArray,
        eta: FloatArray,
        n: FloatArray,
        out: FloatArray,
        scale: float,
    ) -> tuple[FloatArray, FloatArray]:
        """(buffers after, running after); out = scale·noise with noise_t = noise_{t−1} + n_t·(filter of η·z)_t."""
        if z.shape[1] >= WIDE or len(z) < SIZE or not len(self.rates):
            return self._wide(z, buffers, running, eta, n, out, scale)
        after, end = np.empty_like(buffers), np.empty_like(running)
        for cell in range(z.shape[1]):
            s, total = buffers[:, cell], running[cell] * scale
            for start in range(0, len(z), CHUNK):
                part = slice(start, start + CHUNK)
                y, s = self._narrow(z[part, cell], eta[part], s)
                y *= n[part] if scale == 1.0 else n[part] * scale
                y[0] += total
                np.cumsum(y, out=out[part, cell])
                total = out[min(start + CHUNK, len(z)) - 1, cell]
            after[:, cell], end[cell] = s, total / scale
        return after, end

    def _wide(
        self,
        z: FloatArray,
        s: FloatArray,
        running: FloatArray | None,
        eta: FloatArray,
        n: FloatArray,
        out: FloatArray,
        scale: float,
    ) -> tuple[FloatArray, FloatArray]:
        """Blocks of SIZE ticks over all cells, by slices of cells that stay in the processor's cache.

        The weights, the scale and the running sum are folded into the small matrices.
        """
        order, cells = s.shape
        state = np.concatenate([s, np.zeros((1, cells)) if running is None else running[np.newaxis]])
        added = np.empty((min(SIZE, len(z)), min(cells, SLICE)))
        for start in range(0, len(z), SIZE):
            ticks = min(SIZE, len(z) - start)
            part = slice(start, start + ticks)
            weights = n[part, np.newaxis] * scale
            lower = self._lower[:ticks, :ticks] * eta[part] * weights
            readout = np.full((ticks, order + 1), scale)
            readout[:, :order] = self._readout[:ticks] * weights
            if running is not None:
                lower = np.cumsum(lower, axis=0)
                np.cumsum(readout[:, :order], axis=0, out=readout[:, :order])
            feed = self._feed[:, SIZE - ticks :] * eta[part]
            decay = (self._decay if ticks == SIZE else np.exp(-ticks * self.rates))[:, np.newaxis]
            for left in range(0, cells, SLICE):
                now = slice(left, left + SLICE)
                block, buffers = out[part, now], state[:, now]
                np.matmul(lower, z[part, now], out=block)
                block += np.matmul(readout, buffers, out=added[:ticks, : block.shape[1]])
                buffers[:order] *= decay
                buffers[:order] += feed @ z[part, now]
                if running is not None:
                    np.divide(block[-1], scale, out=buffers[order])
        return state[:order], state[order]

    def _narrow(self, z: FloatArray, eta: FloatArray, s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """One cell, up to CHUNK ticks of inputs η·z: all blocks at once."""
        whole = len(z) // SIZE
        split = whole * SIZE
        both = np.empty((whole, SIZE + len(s)))  # each block's inputs, then the buffers before it
        rows = both[:, :SIZE]
        np.multiply(z[:split].reshape(whole, SIZE), eta[:split].reshape(whole, SIZE), out=rows)
        starts = self._starts(self._feed @ rows.T, s)  # (d, whole+1): buffers before each block, and after
        both[:, SIZE:] = starts[:, :-1].T
        y = np.empty(len(z))
        np.matmul(both, self._both, out=y[:split].reshape(whole, SIZE))
        s = starts[:, -1]
        if len(z) > split:
            ones = np.ones(len(z) - split)
            tail = y[split:, np.newaxis]
            s = self._wide(z[split:, np.newaxis], s[:, np.newaxis], None, eta[split:], ones, tail, 1.0)[0][:, 0]
        return y, s

    def _starts(self, inputs: FloatArray, s: FloatArray) -> FloatArray:
        """States s_0 = s, s_{b+1} = μ^SIZE·s_b + inputs_b as (d, blocks+1), by groups of SIZE blocks."""
        order, blocks = inputs.shape
        groups = -(-blocks // SIZE)
        states = np.empty((order, groups * SIZE + 1))
        states[:, 0] = s
        if blocks % SIZE:
            padded = np.zeros((order, groups * SIZE))
            padded[:, :blocks] = inputs
            inputs = padded
        inside = np.matmul(inputs.reshape(order, groups, SIZE), self._group)  # a group's response to its own inputs
        ends = np.concatenate([s[:, np.newaxis], inside[:, :, -1]], axis=1)
        before = np.matmul(self._groups[:, :groups, :groups], ends[:, :groups, np.newaxis])
        inside += before * self._group_decay[:, np.newaxis, :]
        states[:, 1:] = inside.reshape(order, -1)
        return states[:, : blocks + 1]


def _triangles(rows: FloatArray) -> FloatArray:
    """One lower-triangular Toeplitz matrix per row."""
    size = rows.shape[1]
    return np.concatenate([first_columns(row)[np.newaxis] for row in rows] or [np.empty((0, size, size))])
