"""`square-root`: the paper's L = R = Toep(f), run by a rational filter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray
from evercount.factorizations.base import (
    NORM_ROUNDING_MARGIN,
    Factorization,
    State,
    check_known_horizon,
    lower_toeplitz,
)
from evercount.factorizations.filter_many_cells import BlockFilter
from evercount.factorizations.square_root_filter import Exponentials, design


class SquareRoot(Factorization):
    """L = Toep(F) and R = Toep(1/((1−z)F)): the paper's factorization up to a loss below 1e-6, in O(log T) memory.

    L·R = M holds exactly for every filter F; the norms are those of the filter that runs.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> engine = SquareRoot(2**16)
    >>> tick, norm = engine.worst_row()
    >>> tick, round(norm * engine.column_norm, 4)
    (65536, 4.5964)
    """

    name = "square-root"

    def __init__(self, horizon: int) -> None:
        T = check_known_horizon(horizon)
        self.horizon = T
        self.filter = design(T)
        self._forward = self.filter.forward()
        right = self.filter.summed_inverse()
        self.column_norm = float(np.sqrt(right.squared_sums(np.asarray(float(T))))) * (1 + NORM_ROUNDING_MARGIN)
        self._blocks = BlockFilter(self._forward)

    @property
    def falling_gram(self) -> bool:
        """R is Toeplitz with falling coefficients."""
        return True

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """A closed form in O(d²) for each tick."""
        t = self._check_ticks(ticks).astype(np.float64)
        return np.sqrt(self._forward.squared_sums(t))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The later row has new coefficients, and those of the earlier one are shifted."""
        earlier, later = self._check_pair(earlier, later)
        fresh = self._forward.squared_sums(np.asarray(float(later - earlier)))
        if not earlier or not self.filter.order:
            return float(np.sqrt(fresh))
        drop = self._forward.weights * np.expm1(-self._forward.rates * (later - earlier))
        head = float(np.exp(-self._forward.rates * (later - earlier)) @ self._forward.weights) - 1.0
        if later == earlier:
            return 0.0
        shifted = Exponentials(head, drop, self._forward.u)
        return float(np.sqrt(fresh + shifted.squared_sums(np.asarray(float(earlier)))))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        left = lower_toeplitz(self._forward.values(size))
        return left, lower_toeplitz(self.filter.summed_inverse().values(size))

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros((self.filter.order, cells)),))

    def public_parameters(self) -> tuple[FloatArray, ...]:
        return self.filter.pole_lack, self.filter.zero_lack

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        noise, buffers = self._blocks.apply(z, state.arrays[0])
        return noise, State(state.tick + ticks, (buffers,))
