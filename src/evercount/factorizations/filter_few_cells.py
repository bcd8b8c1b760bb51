"""The streaming kernel for few cells: the ticks of one cell become rows of a matrix, and matrix products do the work.

A row is [buffers before it | its ROW_TICKS inputs]. The buffers before all rows follow from the inputs by a recurrence
over rows, which is itself solved by matrix products; then every tick's output is a product with its row.
"""

from __future__ import annotations

import numpy as np

from evercount._arrays import FloatArray
from evercount.factorizations.base import lower_toeplitz
from evercount.factorizations.square_root_filter import Exponentials

PRODUCT_TICKS = 32  # ticks whose outputs come from one matrix product
ROW_TICKS = 64
"""Ticks of a row. Twice PRODUCT_TICKS: that halves the recurrence over rows for a few more multiplications."""
GROUP_ROWS = 16  # rows that one step of the recurrence over rows handles
PASS_TICKS = 3 << 13
"""Ticks of one pass. Its arrays fit into the cache, and do not lie a power of two apart: cache lines would collide."""


class RowFilter:
    """The filter h(0) = 1, h(k) = Σ c_i μ_i^k on the ticks of one cell; its buffers have shape (d,)."""

    def __init__(self, response: Exponentials) -> None:
        self.order = len(response.rates)
        k = np.arange(ROW_TICKS)
        powers = np.exp(-np.multiply.outer(response.rates, k))  # (d, ROW_TICKS): μ^k
        # Column k: what the buffers before a row and the row's inputs contribute to its tick k.
        lower = lower_toeplitz(response.values(ROW_TICKS))
        outputs = np.concatenate([powers * response.weights[:, np.newaxis], lower.T])
        # Tick k depends on inputs up to k only, so the rows of zeros at the bottom are cut off.
        self._outputs = [
            np.ascontiguousarray(outputs[: self.order + start + PRODUCT_TICKS, start : start + PRODUCT_TICKS])
            for start in range(0, ROW_TICKS, PRODUCT_TICKS)
        ]
        step = np.exp(-response.rates)[:, np.newaxis]
        # Column k: what the input of tick k adds to the buffers after the row.
        self._feed = np.ascontiguousarray(powers[:, ::-1] * step)
        # The recurrence over the rows of a group, and over groups.
        over_rows = np.exp(-ROW_TICKS * np.multiply.outer(response.rates, np.arange(GROUP_ROWS)))
        self._group = np.ascontiguousarray(lower_toeplitz_stack(over_rows).transpose(0, 2, 1))
        decay = np.exp(-ROW_TICKS * response.rates)[:, np.newaxis, np.newaxis]
        self._group_end = np.ascontiguousarray(self._group[:, :, -1:] * decay)
        steps = np.arange(PASS_TICKS // (ROW_TICKS * GROUP_ROWS))
        self._groups = lower_toeplitz_stack(np.exp(-ROW_TICKS * GROUP_ROWS * np.multiply.outer(response.rates, steps)))

    def workspace(self, ticks: int) -> tuple[FloatArray, FloatArray]:
        """Arrays for the rows and the outputs of a pass. Passes share them, so that they stay in the cache."""
        count = min(ticks, PASS_TICKS) // ROW_TICKS
        return np.empty((count, self.order + ROW_TICKS)), np.empty((count, ROW_TICKS))

    def filtered(
        self, z: FloatArray, eta: FloatArray, s: FloatArray, work: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after) for inputs η·z of up to PASS_TICKS ticks; y lies in the workspace."""
        count = len(z) // ROW_TICKS
        rows, y = work[0][:count], work[1][:count]
        np.multiply(z.reshape(count, ROW_TICKS), eta.reshape(count, ROW_TICKS), out=rows[:, self.order :])
        s = self._fill(rows, s)
        for number, product in enumerate(self._outputs):
            np.matmul(rows[:, : len(product)], product, out=y[:, number * PRODUCT_TICKS : (number + 1) * PRODUCT_TICKS])
        return y.ravel(), s

    def _fill(self, rows: FloatArray, s: FloatArray) -> FloatArray:
        """Write the buffers before each row into that row. `s` are the buffers before the first row."""
        # Returns the buffers after the last row. The recurrence s_{b+1} = μ^ROW_TICKS·s_b + feed_b runs by groups of
        # GROUP_ROWS rows: the buffers before a group are added to the group's first input.
        count, order = len(rows), self.order
        groups = count // GROUP_ROWS + 1
        inputs = np.zeros((order, groups, GROUP_ROWS))  # entry b is what row b−1 adds; entry 0 is `s`
        flat = inputs.reshape(order, -1)
        flat[:, 0] = s
        np.matmul(self._feed, rows[:, order:].T, out=flat[:, 1 : count + 1])
        if groups > 1:
            ends = np.matmul(inputs[:, :-1], self._group_end)  # what each group alone adds to the next
            inputs[:, 1:, :1] += np.matmul(self._groups[:, : groups - 1, : groups - 1], ends)
        states = np.matmul(inputs, self._group).reshape(order, -1)
        rows[:, :order] = states[:, :count].T
        return np.asarray(states[:, count])


def lower_toeplitz_stack(first_columns: FloatArray) -> FloatArray:
    """One lower-triangular Toeplitz matrix for each row of `first_columns`, stacked."""
    size = first_columns.shape[1]
    return np.asarray([lower_toeplitz(column) for column in first_columns]).reshape(-1, size, size)
