"""The contract of a factorisation M = L·R of the running-count matrix, and of its streaming state.

Ticks are numbered 1, 2, … in public; arrays are indexed from 0. Nothing here is random and nothing knows ε: the noise
of tick t is row t of L times standard normals z that the caller brings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray
from evercount.errors import HorizonReached, ParameterError, TooLarge

LARGEST_HORIZON = 2**50
LARGEST_DENSE = 4096
MARGIN = 1e-9
"""Relative head-room added to every column norm: thousands of times the rounding error of its evaluation."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a noise stream stands: `tick` ticks are done; `arrays` are the factorisation's own memory."""

    tick: int
    arrays: tuple[FloatArray, ...]

    @property
    def nbytes(self) -> int:
        """Memory of the state for all its cells."""
        return sum(array.nbytes for array in self.arrays)


def check_horizon(horizon: Any, *, unbounded: bool = False) -> int | None:
    """The horizon as an int (or None where the factorisation is unbounded), or a ParameterError."""
    if horizon is None:
        if unbounded:
            return None
        raise ParameterError("this factorisation needs a known horizon; use factorization='anytime' for horizon=None")
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer):
        raise ParameterError(f"horizon must be a whole number of ticks (or None), got {horizon!r}")
    if not 1 <= horizon <= LARGEST_HORIZON:
        raise ParameterError(f"horizon must be between 1 and 2^50 ticks, got {horizon}")
    return int(horizon)


class Factorization(ABC):
    """A factorisation of the lower-triangular all-ones matrix, with exact norms and a streaming form.

    Guarantee. `column_norm` is never below ‖R‖_{1→2} of the matrices that `dense()` returns and that `next`/`block`
    run, and every entry of RᵀR is ≥ 0, so that the sensitivity rule Δ² ≤ column_norm²·S of `sensitivity.proof.md`
    applies. Tests: tests/factorizations/test_factorizations_contract.py runs over every registered factorisation.
    """

    name: str
    horizon: int | None
    column_norm: float

    @property
    def falling_gram(self) -> bool:
        """Whether the entries of G = RᵀR are proved to fall away from the diagonal, along rows or along columns.

        Guarantee. If True, G(i,k) ≤ G(i,j) for all i ≤ j ≤ k, or G(i,k) ≤ G(j,k) for all i ≤ j ≤ k: then changes that
        take turns cancel (`sensitivity.proof.md`, "Changes that take turns"). False promises nothing. Test:
        tests/queries/test_queries_matching.py::test_gram_matrices_fall.
        """
        return False

    # -- norms -------------------------------------------------------------------------------------------------

    @abstractmethod
    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """‖L_t‖₂ for each 1-based tick: the std of the released noise at t is σ times this."""

    @abstractmethod
    def difference_norm(self, earlier: int, later: int) -> float:
        """‖L_later − L_earlier‖₂ (tick 0 is the empty row): the std of a difference of two releases over σ."""

    def worst_row(self) -> tuple[int, float]:
        """(tick, ‖L_tick‖) with the largest row norm among a grid of ticks that contains the last one."""
        if self.horizon is None:
            raise ParameterError("an unbounded factorisation has no worst row; ask for a tick")
        ticks = tick_grid(self.horizon)
        norms = self.row_norms(ticks)
        at = int(np.argmax(norms))
        return int(ticks[at]), float(norms[at])

    # -- the matrices, for small horizons ------------------------------------------------------------------------

    @abstractmethod
    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) of the first `ticks` ticks (default: the horizon) exactly as the streaming form runs them."""

    # -- streaming -----------------------------------------------------------------------------------------------

    def draws(self, start: int, stop: int) -> int:
        """How many normals per cell the ticks start+1 … stop consume."""
        return stop - start

    @abstractmethod
    def initial(self, cells: int = 1) -> State:
        """The state before the first tick."""

    @abstractmethod
    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """Noise of the next `ticks` ticks, shape (ticks, cells), from z of shape (draws, cells); pure."""

    def prepare(self, start: int, stop: int, cells: int, scale: float) -> Any:
        """Public numbers of ticks start+1 … stop that several calls of `block_into` can share."""
        return None

    def block_into(self, state: State, z: FloatArray, out: FloatArray, scale: float, prepared: Any) -> State:
        """As `block` for len(out) ticks, with scale × noise in `out`; `prepared` is for these ticks and this scale."""
        noise, state = self.block(state, z, len(out))
        np.multiply(noise, scale, out=out)
        return state

    def next(self, state: State, z: FloatArray) -> tuple[FloatArray, State]:
        """Noise of the next tick, shape (cells,), from z of shape (draws, cells) or (cells,); pure."""
        noise, state = self.block(state, np.atleast_2d(z), 1)
        return noise[0], state

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell."""
        return self.initial(1).nbytes

    # -- shared checks -------------------------------------------------------------------------------------------

    def _check_ticks(self, ticks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        array = np.asarray(ticks)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise ParameterError(f"ticks must be whole numbers, got dtype {array.dtype}")
        array = array.astype(np.int64)
        top = LARGEST_HORIZON if self.horizon is None else self.horizon
        if array.size and (array.min() < 1 or array.max() > top):
            raise ParameterError(f"ticks must lie in 1..{top}, got {int(array.min())}..{int(array.max())}")
        return array

    def _check_pair(self, earlier: int, later: int) -> tuple[int, int]:
        if earlier != 0:
            self._check_ticks(np.asarray([earlier]))
        self._check_ticks(np.asarray([later]))
        if earlier > later:
            raise ParameterError(f"the earlier tick {earlier} is after the later tick {later}")
        return int(earlier), int(later)

    def _check_dense(self, ticks: int | None) -> int:
        size = self.horizon if ticks is None else ticks
        if size is None:
            raise ParameterError("an unbounded factorisation needs the number of ticks for dense()")
        self._check_ticks(np.asarray([size]))
        if size > LARGEST_DENSE:
            raise TooLarge(f"dense matrices are for tests, up to {LARGEST_DENSE} ticks; {size} were asked for")
        return size

    def _check_block(self, state: State, z: FloatArray, ticks: int) -> FloatArray:
        if self.horizon is not None and state.tick + ticks > self.horizon:
            raise HorizonReached(self.horizon)
        if z.ndim != 2 or z.shape[0] != self.draws(state.tick, state.tick + ticks):
            raise ParameterError(
                f"ticks {state.tick + 1}..{state.tick + ticks} need z of shape "
                f"({self.draws(state.tick, state.tick + ticks)}, cells), got {z.shape}"
            )
        return z


def tick_grid(horizon: int, points: int = 512) -> npt.NDArray[np.int64]:
    """Up to about `points` distinct 1-based ticks, dense at both ends, always with the first and the last."""
    if horizon <= points:
        return np.arange(1, horizon + 1, dtype=np.int64)
    half = np.unique(np.geomspace(1, horizon / 2, points // 3).astype(np.int64))
    even = np.linspace(1, horizon, points // 3).astype(np.int64)
    return np.unique(np.concatenate([half, even, horizon + 1 - half, [horizon]]))


def first_columns(values: FloatArray) -> FloatArray:
    """Lower-triangular Toeplitz matrix with the given first column."""
    n = len(values)
    offsets = np.subtract.outer(np.arange(n), np.arange(n))
    return np.where(offsets >= 0, values[np.maximum(offsets, 0)], 0.0)


def counting_matrix(ticks: int) -> FloatArray:
    """M: the lower-triangular all-ones matrix."""
    return np.tril(np.ones((ticks, ticks)))
