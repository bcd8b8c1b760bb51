"""`direct`: independent noise on every running sum itself."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray
from evercount.factorizations.base import NORM_ROUNDING_MARGIN, Factorization, State, check_horizon, counting_matrix


class Direct(Factorization):
    """R = M, L = I: independent noise on every released value. It needs a horizon: its price grows with √T.

    For changes of single increments that is the worst of all factorizations. But where one event moves the *value* by
    at most v at every tick, however often, ‖R(X−X′)‖² ≤ T·v² (`Query.squared_value_sensitivity`), which may be far
    below c²·S.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is None or not a whole number from 1 to 2^50.

    >>> Direct(9).dense()[1][2].tolist()
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    name = "direct"

    def __init__(self, horizon: int | None) -> None:
        self.horizon = check_horizon(horizon)
        assert self.horizon is not None
        self.column_norm = math.sqrt(self.horizon) * (1 + NORM_ROUNDING_MARGIN)

    @property
    def falling_gram(self) -> bool:
        """G(i, j) is T less the larger of i and j, counted from 0; it falls along rows."""
        return True

    @property
    def releases_values(self) -> bool:
        return True

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        return np.ones(self._check_ticks(ticks).shape)

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return 0.0 if earlier == later else math.sqrt(2.0) if earlier else 1.0

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        return np.eye(size), counting_matrix(size)

    def initial(self, cells: int = 1) -> State:
        """No memory. The empty array keeps the number of cells."""
        return State(0, (np.zeros((0, cells)),))

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        return z.copy(), State(state.tick + ticks, state.arrays)
