"""The streaming kernel for few cells: the ticks of one cell as rows of a matrix, so that products do all the work.

A row is [buffers before it | its ROW inputs]. All buffers follow from the inputs by a recurrence over rows, which is
itself solved by products; then every tick's output is a product of its row.
"""

from __future__ import annotations

import numpy as np

from evercount._arrays import FloatArray
from evercount.factorizations.base import first_columns
from evercount.factorizations.square_root_filter import Exponentials

SIZE = 32
"""Ticks whose outputs come from one matrix product."""
ROW = 64
"""Ticks from one known state of the buffers to the next: twice as many halve the recurrence for a few more products."""
GROUP = 16
"""Rows that the recurrence takes at a time."""
CHUNK = 3 << 13
"""Ticks of one pass: its temporaries stay in the cache, and do not lie a power of two apart, which would crowd it."""


class RowFilter:
    """The filter h(0) = 1, h(k) = Σ c_i μ_i^k on the ticks of one cell; its buffers have shape (d,)."""

    def __init__(self, response: Exponentials) -> None:
        self.order = len(response.rates)
        k = np.arange(ROW)
        powers = np.exp(-np.multiply.outer(response.rates, k))  # (d, ROW): μ^k
        # column k: how the buffers before a row, and its inputs, make its tick k; only inputs up to k have a part
        whole = np.concatenate([powers * response.weights[:, np.newaxis], first_columns(response.values(ROW)).T])
        self._outputs = [
            np.ascontiguousarray(whole[: self.order + start + SIZE, start : start + SIZE])
            for start in range(0, ROW, SIZE)
        ]
        step = np.exp(-response.rates)[:, np.newaxis]
        self._feed = np.ascontiguousarray(powers[:, ::-1] * step)  # how tick k of a row ends up in the buffers after it
        # the recurrence over rows, and over groups of rows
        over_rows = np.exp(-ROW * np.multiply.outer(response.rates, np.arange(GROUP)))
        self._group = np.ascontiguousarray(triangles(over_rows).transpose(0, 2, 1))
        decay = np.exp(-ROW * response.rates)[:, np.newaxis, np.newaxis]
        self._group_end = np.ascontiguousarray(self._group[:, :, -1:] * decay)
        steps = np.arange(CHUNK // (ROW * GROUP))
        self._groups = triangles(np.exp(-ROW * GROUP * np.multiply.outer(response.rates, steps)))

    def workspace(self, ticks: int) -> tuple[FloatArray, FloatArray]:
        """Room for the rows and outputs of a pass: passes that share it find it in the cache."""
        count = min(ticks, CHUNK) // ROW
        return np.empty((count, self.order + ROW)), np.empty((count, ROW))

    def filtered(
        self, z: FloatArray, eta: FloatArray, s: FloatArray, work: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after) for inputs η·z of up to CHUNK ticks; y lies in the workspace."""
        count = len(z) // ROW
        rows, y = work[0][:count], work[1][:count]
        np.multiply(z.reshape(count, ROW), eta.reshape(count, ROW), out=rows[:, self.order :])
        s = self._fill(rows, s)
        for number, product in enumerate(self._outputs):
            np.matmul(rows[:, : len(product)], product, out=y[:, number * SIZE : (number + 1) * SIZE])
        return y.ravel(), s

    def _fill(self, rows: FloatArray, s: FloatArray) -> FloatArray:
        """Write the buffers before every row into it, from those before the first; returns those after the last.

        s_{b+1} = μ^ROW·s_b + feed_b, by groups of GROUP rows: what came before a group is added to its first input.
        """
        count, order = len(rows), self.order
        groups = count // GROUP + 1
        inputs = np.zeros((order, groups, GROUP))  # number b is what row b−1 feeds
        flat = inputs.reshape(order, -1)
        flat[:, 0] = s
        np.matmul(self._feed, rows[:, order:].T, out=flat[:, 1 : count + 1])
        if groups > 1:
            ends = np.matmul(inputs[:, :-1], self._group_end)  # what a group alone brings to the next
            inputs[:, 1:, :1] += np.matmul(self._groups[:, : groups - 1, : groups - 1], ends)
        states = np.matmul(inputs, self._group).reshape(order, -1)
        rows[:, :order] = states[:, :count].T
        return np.asarray(states[:, count])


def triangles(rows: FloatArray) -> FloatArray:
    """One lower-triangular Toeplitz matrix per row."""
    size = rows.shape[1]
    return np.concatenate([first_columns(row)[np.newaxis] for row in rows] or [np.empty((0, size, size))])
