"""What every mechanism for pure differential privacy shares: nodes with Laplace noise, each with a share of ε."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, State

Draw = Callable[[IntArray], IntArray]  # from node numbers to their noise, shape (nodes, cells)

LARGEST_TICKS = 2**40


class PureFactorization(Factorization):
    """What a stream needs to know of a pure tree: nodes per tick, and exact stds of discrete Laplace noise."""

    levels: int  # the most nodes that hold one tick: the l1 norm of a column of R

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell: a prefix for each level (with few cells, a block of ticks)."""
        return 8 * self.levels

    def full_rate(self, sigma: float) -> float:
        """The rate, per grid unit, of a node that has all of ε, for the σ (in grid units) that a stream states."""
        return math.sqrt(2) / sigma

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """Std over that of continuous Laplace noise of rate ε/Δ₁."""
        return np.sqrt(self.laplace_errors(ticks, math.sqrt(2))[1])

    @abstractmethod
    def laplace_errors(self, ticks: npt.ArrayLike, rate: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(variance, continuous variance, largest scale) of the noise at each tick, in grid units.

        `rate` is that of a node that has all of ε. The first is exact for discrete noise, the second is that of
        continuous Laplace numbers of the same rates, and the third is a bound on |coefficient|·(1/rate) of every
        single number: tails follow from the last two (`bounds/laplace_tails.py`).
        """

    def suspects(self, ticks: int) -> list[int]:
        """Ticks, none above `ticks`, one of which has the largest std of the first `ticks`."""
        # Empty where none are known; with a horizon, `ticks` must be that.
        return [] if self.horizon is None else [self.worst_row()[0]]

    def initial(self, cells: int = 1) -> State:
        """Refused: see `noise`."""
        raise ParameterError("a pure tree runs with Laplace noise only: use Budget(epsilon, delta=0)")

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """Refused: see `noise`."""
        raise ParameterError("a pure tree runs with Laplace noise only: use Budget(epsilon, delta=0)")


def node_variance(rate: FloatArray) -> FloatArray:
    """Variance of discrete Laplace noise of these rates: 1/(2·sinh²(rate/2))."""
    return np.asarray(0.5 / np.sinh(np.minimum(rate, 700.0) / 2) ** 2)
