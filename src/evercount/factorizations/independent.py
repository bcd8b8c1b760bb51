"""Noise that does not last: `fresh` on every tick, `periods-N` for N ticks, `direct` on every
running sum itself."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_whole
from evercount.factorizations.base import (
    NORM_ROUNDING_MARGIN,
    Factorization,
    State,
    check_horizon,
    check_known_horizon,
    counting_matrix,
)
from evercount.factorizations.row_weighted import Balanced


class Direct(Factorization):
    """R = M, L = I: independent noise on every released value. It needs a horizon: its price grows
    with √T.

    For changes of single increments that is the worst of all factorizations. But where one event
    moves the *value* by at most v at every tick, however often, ‖R(X−X′)‖² ≤ T·v²
    (`Query.squared_value_sensitivity`), which may be far below c²·S.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is None or not a whole number from 1 to 2^50.

    >>> Direct(9).dense()[1][2].tolist()
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    name = "direct"
    releases_values = True
    # G(i, j) is T less the larger of i and j, counted from 0; it falls along rows
    falling_gram = True

    def __init__(self, horizon: int | None) -> None:
        self.horizon = check_known_horizon(horizon)
        self.column_norm = math.sqrt(self.horizon) * (1 + NORM_ROUNDING_MARGIN)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        return np.ones(self._check_ticks(ticks).shape)

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        if earlier == later:
            return 0.0
        return math.sqrt(2.0) if earlier else 1.0

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        return np.eye(size), counting_matrix(size)

    def initial(self, cells: int = 1) -> State:
        """No memory. The empty array keeps the number of cells."""
        return State(0, (np.zeros((0, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        return z.copy(), State(state.tick + ticks, state.arrays)


class Fresh(Factorization):
    """R = I, L = M: independent noise on every tick's own number. Best for what is published tick
    by tick.

    An event touches one tick, so nothing adds up over the years and no horizon is needed. The error
    of the running total grows with the square root of time.

    Args:
        horizon: The number of ticks, or None.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50.

    >>> Fresh().row_norms([1, 4, 9]).tolist()
    [1.0, 2.0, 3.0]
    """

    name = "fresh"
    falling_gram = True

    def __init__(self, horizon: int | None = None) -> None:
        self.horizon = check_horizon(horizon)
        self.column_norm = 1.0

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        return np.sqrt(self._check_ticks(ticks).astype(np.float64))

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(np.sqrt(later - earlier))

    def roundings(self, earlier: IntArray, later: IntArray) -> IntArray:
        """Every tick's number is rounded by itself."""
        return later - earlier

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        return counting_matrix(size), np.eye(size)

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros(cells),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        noise = np.cumsum(z, axis=0)
        noise += state.arrays[0]
        last = noise[-1].copy() if ticks else state.arrays[0]
        return noise, State(state.tick + ticks, (last,))


LARGEST_WIDTH = 2**24


class Periods(Factorization):
    """R is block diagonal, a copy of `Balanced(width)` for every `width` ticks. For 7 ticks its
    name is "periods-7".

    A sum over the last `width` ticks has the noise of the end of one period and of the beginning of
    the next, however long the stream is. The noise of the running total grows with the number of
    periods.

    Guarantee. See `Factorization`: the blocks do not overlap, so columns of R, RᵀR ≥ 0 and its
    falling rows are those of one block.

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
        self.horizon = check_horizon(horizon)
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
        (one, two), (first, last) = (
            part.tolist() for part in self._place(np.asarray([earlier, later]))
        )
        if one == two:
            return self.period.difference_norm(first, last)
        rest = self.period.difference_norm(first, self.width)
        head = float(self.period.row_norms([last])[0])
        return math.sqrt(rest**2 + (two - one - 1) * self._end**2 + head**2)

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        earlier, later = self._check_pairs(earlier, later)
        norms = np.empty(len(later))
        one, first = self._place(np.maximum(earlier, 1))
        two, last = self._place(later)
        start = earlier == 0
        within = (earlier > 0) & (one == two)
        norms[start] = self.row_norms(later[start])
        norms[within] = self.period.pair_norms(first[within], last[within])
        across = (earlier > 0) & (one < two)
        rests = self.period.pair_norms(first[across], np.full(int(across.sum()), self.width))
        parts = rests, (two - one - 1)[across], self.period.row_norms(last[across])
        norms[across] = [
            math.sqrt(rest**2 + whole * self._end**2 + head**2)
            for rest, whole, head in zip(*(part.tolist() for part in parts), strict=True)
        ]
        return norms

    def roundings(self, earlier: IntArray, later: IntArray) -> IntArray:
        """Also the end of every period between."""
        first, last = (
            np.where(ticks > 0, (ticks - 1) // self.width, -1) for ticks in (earlier, later)
        )
        # the end of a period cancels with itself
        inside = (earlier > 0) & (earlier % self.width != 0)
        return np.asarray(np.where(inside, last - first + 2, last - first))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        count = -(-size // self.width)
        left, right = self.period.dense()
        whole = np.kron(np.tri(count, k=-1), np.ones((self.width, 1)) * left[-1])  # periods before
        inside = np.kron(np.eye(count), left) + whole
        blocks = np.kron(np.eye(count), right)
        return np.asarray(inside[:size, :size], np.float64), np.asarray(
            blocks[:size, :size], np.float64
        )

    def initial(self, cells: int = 1) -> State:
        """The state of the period, and the noise of whole periods before it."""
        return State(0, (*self.period.initial(cells).arrays, np.zeros(cells)))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        out = np.empty((ticks, z.shape[1]))
        done = 0
        *inner, before = state.arrays
        while done < ticks:
            into = (state.tick + done) % self.width
            part = slice(done, min(ticks, done + self.width - into))
            if into:
                begin = State(into, tuple(inner))
            else:
                begin = self.period.initial(z.shape[1])
            noise, after = self.period.block(begin, z[part], part.stop - done)
            out[part] = noise + before
            inner = list(after.arrays)
            done = part.stop
            if (state.tick + done) % self.width == 0:
                before = out[done - 1].copy()
        return out, State(state.tick + ticks, (*inner, before))
