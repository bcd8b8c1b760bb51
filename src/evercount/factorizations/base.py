"""The contract of a factorization M = L·R of the running-count matrix, and of its streaming state.

Ticks are numbered 1, 2, … in public; arrays are indexed from 0. Nothing here is random and nothing
knows ε: the noise of tick t is row t of L times standard normals z that the caller draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import HorizonReached, ParameterError, TooLarge
from evercount.factorizations.interruption import check_wanted

LARGEST_HORIZON = 2**50
"""The longest horizon, and the last tick of a stream without one."""
LARGEST_DENSE_TICKS = 4096
"""`dense()` refuses more ticks: its matrices are for tests and need 8·ticks² bytes each."""
NO_STREAMING = (
    "this factorization does not run with normals: pure trees have Laplace noise, others give "
    "dense() only"
)
NORM_ROUNDING_MARGIN = 1e-9
"""Every column norm is raised by this fraction: thousands of times the rounding error of its
evaluation."""


@dataclass(frozen=True, eq=False)
class State:
    """The streaming state of a noise stream after `tick` ticks. It is never changed in place.

    Args:
        tick: The number of ticks that are done.
        arrays: The factorization's own memory; the last axis of each array runs over cells.

    >>> State(tick=3, arrays=()).tick
    3
    """

    tick: int
    arrays: tuple[FloatArray, ...]


def check_horizon(horizon: Any) -> int | None:
    """Check a horizon.

    Args:
        horizon: The number of ticks, or None for a stream without end.

    Returns:
        The horizon as a Python int, or None.

    Raises:
        ParameterError: It is not a whole number from 1 to 2^50.

    >>> check_horizon(1000)
    1000
    """
    if horizon is None:
        return None
    return check_known_horizon(horizon)


def check_known_horizon(horizon: Any) -> int:
    """`check_horizon` for a factorization that cannot run without a horizon."""
    if horizon is None:
        raise ParameterError(
            "this factorization needs a known horizon; use factorization='anytime' for horizon=None"
        )
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer):
        raise ParameterError(f"horizon must be a whole number of ticks (or None), got {horizon!r}")
    if not 1 <= horizon <= LARGEST_HORIZON:
        raise ParameterError(f"horizon must be between 1 and 2^50 ticks, got {horizon}")
    return int(horizon)


class Factorization(ABC):
    """A factorization of the lower-triangular all-ones matrix, with exact norms and a streaming
    form.

    A subclass sets the three attributes below and implements the abstract methods. One of your own
    is given to a stream as an object, or by name after `register_factorization`; its claims are
    then checked (`Dense`).

    Attributes:
        name: What users type.
        horizon: The number of ticks, or None for a stream without end.
        column_norm: An upper bound of ‖R‖_{1→2}. Noise of std σ = multiplier·√S·column_norm is
            private.

    Guarantee. `column_norm` is never below ‖R‖_{1→2} of the matrices that `dense()` returns and
    that `next`/`block` run, and every entry of RᵀR is ≥ 0, so that the sensitivity rule Δ² ≤
    column_norm²·S of `sensitivity.proof.md` applies. Tests:
    tests/factorizations/test_factorizations_contract.py runs over every registered factorization.

    >>> import numpy as np
    >>> from evercount.factorizations import BinaryTree
    >>> tree = BinaryTree(horizon=8)
    >>> z = np.ones((tree.draws(0, 8), 1))
    >>> noise, state = tree.block(tree.initial(cells=1), z, ticks=8)
    >>> noise[:, 0].tolist()
    [1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 3.0, 1.0]
    >>> state.tick
    8
    """

    name: str
    horizon: int | None
    column_norm: float
    releases_values: bool = False
    """Whether R is the running-count matrix itself, so that ‖R(X−X′)‖² is a sum over ticks of
    changes of values."""

    @property
    def falling_gram(self) -> bool:
        """Whether the entries of G = RᵀR are proved to fall away from the diagonal, along rows or
        along columns.

        Guarantee. If True, G(i,k) ≤ G(i,j) for all i ≤ j ≤ k, or G(i,k) ≤ G(j,k) for all i ≤ j ≤ k:
        then changes that take turns cancel (`sensitivity.proof.md`, "Changes that take turns").
        False promises nothing. Test:
        tests/queries/test_queries_matching.py::test_gram_matrices_fall.
        """
        return False

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The numbers besides `name` and `horizon` that fix L, as arrays of doubles: for
        fingerprints of noise.

        Returns:
            The arrays.
        """
        return ()

    @property
    def spec(self) -> str | dict[str, Any]:
        """What `Stream(factorization=…)` and files take to build the same factorization again."""
        return self.name

    # -- norms -------------------------------------------------------------------------------------

    @abstractmethod
    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """‖L_t‖₂ at each tick. The std of the released noise at tick t is σ times this.

        Args:
            ticks: Ticks from 1 to the horizon, in an array of any shape.

        Returns:
            The norms, in the same shape.

        Raises:
            ParameterError: A tick is not a whole number or lies outside 1..horizon.
        """

    @abstractmethod
    def difference_norm(self, earlier: int, later: int) -> float:
        """‖L_later − L_earlier‖₂: the std of the difference of two releases, in units of σ.

        Args:
            earlier: A tick; 0 stands for the time before the first tick, where the noise is 0.
            later: A tick that is not before `earlier`.

        Returns:
            The norm.

        Raises:
            ParameterError: A tick lies outside 1..horizon, or `earlier` is after `later`.
        """

    def roundings(self, earlier: IntArray, later: IntArray) -> IntArray:
        """How many roundings to whole grid units are in the difference of two releases with exact
        noise.

        Args:
            earlier: Ticks; 0 stands for the time before the first tick.
            later: For each, a tick that is not before it.

        Returns:
            One number for each pair.
        """
        return np.where(earlier > 0, 2, 1)

    def rounding_variance(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """What rounding adds to the variance of the difference of two releases, in squares of the
        grid.

        Roundings count as independent of each other and of the noise: 1/12 each where what they cut
        off is uniform.

        Args:
            earlier: Ticks; 0 stands for the time before the first tick.
            later: For each, a tick that is not before it.

        Returns:
            One number for each pair.
        """
        return np.asarray(self.roundings(earlier, later) / 12)

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """`difference_norm` of many pairs, equal up to rounding; faster where it can be.

        Args:
            earlier: Ticks; 0 stands for the time before the first tick.
            later: For each, a tick that is not before it.

        Returns:
            One norm for each pair.

        Raises:
            ParameterError: A tick lies beyond the horizon.
        """
        return self.pair_norms(earlier, later)

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """`difference_norm` of many pairs, bit for bit: errors that are published do not depend on
        what else is asked.

        Args:
            earlier: Ticks; 0 stands for the time before the first tick.
            later: For each, a tick that is not before it.

        Returns:
            One norm for each pair.

        Raises:
            ParameterError: A tick lies beyond the horizon.
        """
        norms = []
        for one, other in zip(earlier.tolist(), later.tolist(), strict=True):
            check_wanted()
            norms.append(self.difference_norm(one, other))
        return np.asarray(norms)

    def worst_row(self) -> tuple[int, float]:
        """The tick with the largest row norm, searched on a grid that includes the first and the
        last tick.

        Returns:
            (tick, ‖L_tick‖₂).

        Raises:
            ParameterError: There is no horizon, so the error grows for ever.
        """
        if self.horizon is None:
            raise ParameterError("an unbounded factorization has no worst row; ask for a tick")
        return self._worst_of(tick_grid(self.horizon))

    def _worst_of(self, ticks: Sequence[int] | IntArray) -> tuple[int, float]:
        """The first of these ticks with the largest row norm."""
        norms = self.row_norms(np.asarray(ticks))
        largest = int(np.argmax(norms))
        return int(ticks[largest]), float(norms[largest])

    # -- the matrices, for small horizons ----------------------------------------------------------

    @abstractmethod
    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """The matrices exactly as the streaming form runs them. For tests.

        Args:
            ticks: How many ticks; None for the horizon.

        Returns:
            (L, R) of the first `ticks` ticks.

        Raises:
            TooLarge: More than `LARGEST_DENSE_TICKS` ticks.
            ParameterError: More ticks than the horizon has, or None for a factorization without a
                horizon.
        """

    # -- streaming ---------------------------------------------------------------------------------

    def draws(self, start: int, stop: int) -> int:
        """The number of normals that each cell consumes in ticks start+1 … stop.

        Args:
            start: The tick before the first of them.
            stop: The last tick.

        Returns:
            The number of normals.
        """
        return stop - start

    def initial(self, cells: int = 1) -> State:
        """The state before the first tick, for this many cells.

        Args:
            cells: The number of cells.

        Returns:
            The state.

        Raises:
            ParameterError: It does not run with normals.
        """
        raise ParameterError(NO_STREAMING)

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """Noise of the next ticks. Pure: neither `state` nor `z` is changed.

        Args:
            state: The state before these ticks.
            z: Standard normals of shape (draws, cells), where draws is
                `draws(state.tick, state.tick + ticks)`.
            ticks: How many ticks.

        Returns:
            (noise of shape (ticks, cells), the state after these ticks).

        Raises:
            HorizonReached: The ticks go beyond the horizon.
            ParameterError: `z` has the wrong shape, or it does not run with normals.
        """
        raise ParameterError(NO_STREAMING)

    def next(self, state: State, z: FloatArray) -> tuple[FloatArray, State]:
        """`block` for one tick: noise of shape (cells,) from z of shape (draws, cells) or (cells,).

        Args:
            state: The state after the tick before.
            z: Independent standard normals.

        Returns:
            The noise of the tick and the next state.

        Raises:
            HorizonReached: The tick goes beyond the horizon.
            ParameterError: As `block`.
        """
        noise, state = self.block(state, np.atleast_2d(z), 1)
        return noise[0], state

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell, in bytes."""
        return sum(array.nbytes for array in self.initial(1).arrays)

    # -- checks that all factorizations share ------------------------------------------------------

    def _check_ticks(self, ticks: npt.ArrayLike) -> IntArray:
        """Refuse what are not whole numbers from 1 to the horizon; return them as an array."""
        array = np.asarray(ticks)
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise ParameterError(f"ticks must be whole numbers, got dtype {array.dtype}")
        array = array.astype(np.int64)
        last = LARGEST_HORIZON if self.horizon is None else self.horizon
        if array.size and (array.min() < 1 or array.max() > last):
            raise ParameterError(
                f"ticks must lie in 1..{last}, got {int(array.min())}..{int(array.max())}"
            )
        return array

    def _check_pair(self, earlier: int, later: int) -> tuple[int, int]:
        """Refuse two ticks in the wrong order; the earlier one may be 0."""
        if earlier != 0:
            self._check_ticks(np.asarray([earlier]))
        self._check_ticks(np.asarray([later]))
        if earlier > later:
            raise ParameterError(f"the earlier tick {earlier} is after the later tick {later}")
        return int(earlier), int(later)

    def _check_pairs(self, earlier: IntArray, later: IntArray) -> tuple[IntArray, IntArray]:
        """`_check_pair` of each pair."""
        self._check_ticks(earlier[earlier != 0])
        self._check_ticks(later)
        if (earlier > later).any():
            first = int(np.argmax(earlier > later))
            raise ParameterError(
                f"the earlier tick {earlier[first]} is after the later tick {later[first]}"
            )
        return earlier.astype(np.int64), later.astype(np.int64)

    def _check_dense(self, ticks: int | None) -> int:
        """Return the size of dense matrices; refuse more ticks than tests need."""
        size = self.horizon if ticks is None else ticks
        if size is None:
            raise ParameterError("an unbounded factorization needs the number of ticks for dense()")
        self._check_ticks(np.asarray([size]))
        if size > LARGEST_DENSE_TICKS:
            raise TooLarge(
                f"dense matrices are for tests, up to {LARGEST_DENSE_TICKS} ticks; {size} were "
                "asked for"
            )
        return size

    def _check_block(self, state: State, z: FloatArray, ticks: int) -> FloatArray:
        """Refuse a block past the horizon, and another number of normals than it draws."""
        stop = state.tick + ticks
        if self.horizon is not None and stop > self.horizon:
            raise HorizonReached(self.horizon)
        draws = self.draws(state.tick, stop)
        if z.ndim != 2 or len(z) != draws:
            raise ParameterError(
                f"ticks {state.tick + 1}..{stop} need z of shape ({draws}, cells), got {z.shape}"
            )
        return z


def tick_grid(horizon: int, points: int = 512) -> IntArray:
    """A sample of ticks, dense at both ends, for plots and searches.

    Args:
        horizon: The last tick.
        points: About how many ticks at most.

    Returns:
        Distinct ticks in rising order, always with the first and the last one.

    >>> tick_grid(5).tolist()
    [1, 2, 3, 4, 5]
    >>> ticks = tick_grid(10**6)
    >>> int(ticks[0]), int(ticks[-1]), len(ticks) <= 512
    (1, 1000000, True)
    """
    if horizon <= points:
        return np.arange(1, horizon + 1, dtype=np.int64)
    near_start = np.unique(np.geomspace(1, horizon / 2, points // 3).astype(np.int64))
    even = np.linspace(1, horizon, points // 3).astype(np.int64)
    return np.unique(np.concatenate([near_start, even, horizon + 1 - near_start, [horizon]]))


def lower_toeplitz(first_columns: FloatArray) -> FloatArray:
    """The lower-triangular Toeplitz matrices with these first columns, which lie along the last
    axis."""
    ticks = np.arange(first_columns.shape[-1])
    lags = np.subtract.outer(ticks, ticks)
    return np.where(lags >= 0, first_columns[..., np.maximum(lags, 0)], 0.0)


def counting_matrix(ticks: int) -> FloatArray:
    """M: the lower-triangular all-ones matrix."""
    return np.tril(np.ones((ticks, ticks)))
