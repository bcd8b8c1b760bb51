"""Periods: running counts whose noise starts afresh every `width` ticks, for sums over the last `width` of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_whole
from evercount.factorizations.base import Factorization, State, check_horizon
from evercount.factorizations.row_weighted import Balanced

LARGEST_WIDTH = 2**24


class Periods(Factorization):
    """R is block diagonal, a copy of `Balanced(width)` for every `width` ticks. For 7 ticks its name is "periods-7".

    A sum over the last `width` ticks has the noise of the end of one period and of the beginning of the next, however
    long the stream is. The noise of the running total grows with the number of periods.

    Guarantee. See `Factorization`: the blocks do not overlap, so columns of R, RᵀR ≥ 0 and its falling rows are those
    of one block.

    Args:
        width: The number of ticks of a period.
        horizon: The number of ticks, or None for a stream without end.

    Raises:
        ParameterError: The width is not a whole number from 1 to 2^24, or the horizon is not legal.

    >>> Periods(7).difference_norm(365, 372) < Balanced(10**4).difference_norm(365, 372)
    True
    """

    def __init__(self, width: int, horizon: int | None = None) -> None:
        self.width = check_whole("width", width, 1, LARGEST_WIDTH)
        self.period = Balanced(self.width)
        self.name = f"periods-{self.width}"
        self.horizon = check_horizon(horizon, unbounded=True)
        self.column_norm = self.period.column_norm
        self._end = float(self.period.row_norms([self.width])[0])

    @property
    def falling_gram(self) -> bool:
        return self.period.falling_gram

    def public_parameters(self) -> tuple[FloatArray, ...]:
        return self.period.public_parameters()

    def _place(self, ticks: IntArray) -> tuple[IntArray, IntArray]:
        """How many whole periods lie before each tick's own, and the place in its own, from 1."""
        return (ticks - 1) // self.width, (ticks - 1) % self.width + 1

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        before, into = self._place(self._check_ticks(ticks))
        return np.asarray(np.sqrt(before * self._end**2 + self.period.row_norms(into) ** 2))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The rest of one period, whole periods, and the beginning of another."""
        earlier, later = self._check_pair(earlier, later)
        if earlier == 0:
            return float(self.row_norms([later])[0])
        (one, two), (first, last) = (part.tolist() for part in self._place(np.asarray([earlier, later])))
        if one == two:
            return self.period.difference_norm(first, last)
        rest, head = self.period.difference_norm(first, self.width), float(self.period.row_norms([last])[0])
        return math.sqrt(rest**2 + (two - one - 1) * self._end**2 + head**2)

    def roundings(self, earlier: IntArray, later: IntArray) -> IntArray:
        """Also the end of every period between."""
        first, last = (np.where(ticks > 0, (ticks - 1) // self.width, -1) for ticks in (earlier, later))
        inside = (earlier > 0) & (earlier % self.width != 0)  # the end of a period cancels with itself
        return np.asarray(np.where(inside, last - first + 2, last - first))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        count = -(-size // self.width)
        left, right = self.period.dense()
        whole = np.kron(np.tri(count, k=-1), np.ones((self.width, 1)) * left[-1])  # periods before
        inside, blocks = np.kron(np.eye(count), left) + whole, np.kron(np.eye(count), right)
        return np.asarray(inside[:size, :size], np.float64), np.asarray(blocks[:size, :size], np.float64)

    def initial(self, cells: int = 1) -> State:
        """The state of the period, and the noise of whole periods before it."""
        return State(0, (*self.period.initial(cells).arrays, np.zeros(cells)))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        out = np.empty((ticks, z.shape[1]))
        done, (*inner, before) = 0, state.arrays
        while done < ticks:
            into = (state.tick + done) % self.width
            part = slice(done, min(ticks, done + self.width - into))
            begin = State(into, tuple(inner)) if into else self.period.initial(z.shape[1])
            noise, after = self.period.block(begin, z[part], part.stop - done)
            out[part] = noise + before
            inner, done = list(after.arrays), part.stop
            if (state.tick + done) % self.width == 0:
                before = out[done - 1].copy()
        return out, State(state.tick + ticks, (*inner, before))
