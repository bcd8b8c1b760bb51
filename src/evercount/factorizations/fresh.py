"""`fresh`: new noise on every tick's own number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.factorizations.base import Factorization, State, check_horizon, counting_matrix


class Fresh(Factorization):
    """R = I, L = M: independent noise on every tick's own number. Best for what is published tick by tick.

    An event touches one tick, so nothing adds up over the years and no horizon is needed. The error of the running
    total grows with the square root of time.

    Args:
        horizon: The number of ticks, or None.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50.

    >>> Fresh().row_norms([1, 4, 9]).tolist()
    [1.0, 2.0, 3.0]
    """

    name = "fresh"

    def __init__(self, horizon: int | None = None) -> None:
        self.horizon = check_horizon(horizon, unbounded=True)
        self.column_norm = 1.0

    @property
    def falling_gram(self) -> bool:
        return True

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
