"""`Dense`: a factorization of your own, given as two matrices and checked before any noise is
calibrated to it.

The noise of a stream is σ·L·z, so what must be hidden is (L⁻¹·M)·X, with the exact inverse of the
doubles in L. R is a double next to L⁻¹·M; `dense.proof.md` bounds how far it is off and has the
same letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, check_count, check_public_text
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.base import (
    NORM_ROUNDING_MARGIN,
    Factorization,
    State,
    counting_matrix,
)

if TYPE_CHECKING:
    from evercount.factorizations.best_dense import Certificate

LARGEST_OWN_HORIZON = 2048
"""More ticks are refused: the checks multiply matrices of this size."""
PRODUCT_TOLERANCE = 1e-9
"""L·R may differ from M by this much in an entry; the norm is raised by what such a difference can
cost."""
SMALLEST_SHARE = 2.0**-100
"""Entries of L below this share of the largest in their row are taken as 0: exact noise needs a
common unit."""
NORM_RANGE = 2.0**-30, 2.0**30
"""The norm of R must lie here, and row norms of L below the square of the second."""
SMALLEST_PIVOT = 1e-7
"""Of a Cholesky factor, relative to the largest row: a smaller one is made of rounding errors."""
ROUNDING = 2.0**-53


class Matrices(Factorization):
    """A factorization that is its two lower triangular matrices; no recurrence is known."""

    _left: FloatArray
    _right: FloatArray

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        return np.asarray(np.linalg.norm(self._left[self._check_ticks(ticks) - 1], axis=-1))

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        first = self._left[earlier - 1] if earlier else np.zeros(len(self._left))
        return float(np.linalg.norm(self._left[later - 1] - first))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        return self._left[:size, :size].copy(), self._right[:size, :size].copy()

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """L itself."""
        return (self._left,)

    def initial(self, cells: int = 1) -> State:
        """All normals so far, because no recurrence is known."""
        return State(0, (np.zeros((0, cells)),))

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell at the end of the horizon, when it holds all T
        normals."""
        return 8 * len(self._left)

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        past = np.concatenate([state.arrays[0], z])
        stop = state.tick + ticks
        return self._left[state.tick : stop, :stop] @ past, State(stop, (past,))


class Dense(Matrices):
    """Your own factorization M = L·R of the counting matrix, as two lower triangular matrices of up
    to 2048 ticks.

    Exact noise takes the doubles of L as they are. It reads all draws so far in every block of
    ticks, so a run takes time in proportion to the square of the horizon.

    **Guarantee.** With R* = L⁻¹·M in exact arithmetic, ‖R*·D‖_F² ≤ column_norm²·Σ_k (P_k² + N_k²)
    for all D (P_k, N_k: the sums of the positive and of the negative parts of column k), whatever
    the signs of RᵀR; where `falling_gram`, also the bounds of changes that take turns. Proof:
    `dense.proof.md`. Tests: tests/factorizations/test_dense.py::test_no_change_beats_the_norm (all
    small changes, random matrices) and
    tests/factorizations/test_dense.py::test_planted_norms_are_caught.

    Args:
        left: L, T × T, lower triangular.
        right: R, of the same shape. None: computed as L⁻¹·M.
        name: What plans and releases call it.

    Raises:
        ParameterError: L·R is not the counting matrix, a matrix is not lower triangular or not
            finite, or L is so close to singular that its norm cannot be bounded.
        TooLarge: There are more than 2048 ticks.

    >>> import numpy as np
    >>> R = np.eye(4) + 0.5 * np.eye(4, k=-1)
    >>> half = Dense(np.tri(4) @ np.linalg.inv(R), R)
    >>> half.horizon, round(half.column_norm, 4)
    (4, 1.118)
    >>> Dense(np.eye(2), np.eye(2))
    Traceback (most recent call last):
    ...
    evercount.errors.ParameterError: L·R is 0 at row 2, column 1, where the counting matrix has 1
    """

    falling_gram = False

    def __init__(
        self, left: npt.ArrayLike, right: npt.ArrayLike | None = None, name: str = "dense"
    ) -> None:
        L = _square("L", left)
        R = _solved(L) if right is None else _square("R", right)
        if L.shape != R.shape:
            raise ParameterError(
                f"L has the shape {L.shape} and R {R.shape}: both have a row for each tick"
            )
        _check_triangular(L, R)
        self.name = check_own_name(name)
        self.horizon = len(L)
        largest = np.abs(L).max(axis=1, keepdims=True)
        L = np.where(np.abs(L) < SMALLEST_SHARE * largest, 0.0, L)
        _check_product(L, R)
        columns = float(np.linalg.norm(R, axis=0).max())
        low, high = NORM_RANGE
        if not low <= columns <= high or float(np.linalg.norm(L, axis=1).max()) > high**2:
            raise ParameterError(
                f"the largest column of R has norm {columns:.3g}: scale it to about 1, and L "
                "inversely"
            )
        off = _off(L, R)
        gram = R.T @ R
        rounding = 1.01 * _gamma(len(R)) * columns**2
        if float(R.min()) >= 0:
            negative = 0.0
        else:
            negative = max(0.0, rounding - float(gram.min()))
        raised = np.sqrt(columns**2 + negative) + np.sqrt(2 * len(L)) * off
        self._left = L
        self._right = R
        self.column_norm = float(raised) * (1 + NORM_ROUNDING_MARGIN)
        self.gram, self.gram_error = gram, rounding + 2 * columns * off + off**2
        """RᵀR, and how far an entry of R*ᵀR* may be from it."""
        self.certificate: Certificate | None = None
        """Of `optimal`: how close to the best possible it is."""
        # checked along all rows of RᵀR; what L⁻¹·M adds to that is in `column_norm`
        self.falling_gram = not negative and _rows_fall(R, gram, 2 * rounding)
        self._by_name = False
        for array in (self._left, self._right, self.gram):
            array.flags.writeable = False

    @classmethod
    def of_noise(cls, left: npt.ArrayLike, name: str = "dense") -> Dense:
        """The triangular factorization with the noise of L·z, for any L with a row for each tick.

        L need not be square or triangular: its lower triangular Cholesky factor C of L·Lᵀ has noise
        of the same law, and R = C⁻¹·M is triangular (`sensitivity.proof.md`, "Nodes of the
        future").

        Args:
            left: L, with T rows of full rank.
            name: What plans and releases call it.

        Returns:
            The factorization.

        Raises:
            ParameterError: The rows of L are not independent, or a number is not finite.

        >>> import numpy as np
        >>> Dense.of_noise(np.fliplr(np.tri(3)[::-1])).row_norms([1, 3]).round(3).tolist()
        [1.732, 1.0]
        """
        L = _finite("L", left)
        check_own_size(len(L))
        try:
            C = np.linalg.cholesky(L @ L.T)
        except np.linalg.LinAlgError:
            C = np.zeros((1, 1))
        if not float(np.diagonal(C).min()) > SMALLEST_PIVOT * float(
            np.linalg.norm(L, axis=1).max()
        ):
            raise ParameterError(
                "the rows of L are not independent: some sum of releases would have no noise"
            )
        return cls(C, name=name)

    @classmethod
    def optimal(
        cls,
        workload: Any,
        unit: int = 1,
        period: int | None = None,
        *,
        worst: bool = False,
        name: str = "dense-optimum",
    ) -> Dense:
        """The factorization of least error for given linear queries of up to 1024 ticks, and how
        close to least it is.

        A query is a row of weights on the numbers of single ticks: np.tri(T) has the running
        totals, np.eye(T) the ticks themselves, other rows decayed sums or averages of weekdays.
        Several workloads together get the least possible largest ratio of a workload's error to the
        least that it can have alone.

        Args:
            workload: A matrix with a column for every tick, or a list of such matrices.
            unit: The most ticks that one protected unit touches: 1 for events, `max_ticks` for
                persons.
            period: Where a unit's ticks lie within this many consecutive ones.
            worst: What is minimised: the largest error of a row, or the root mean square over each
                workload's rows.
            name: What plans and releases call it.

        Returns:
            The factorization. Its `certificate` has the errors for a noise multiplier of 1, the
            least that any factorization can have, and the gap between the two.

        Raises:
            ParameterError: A workload is not a finite matrix with a column for every tick.
            TooLarge: There are more than 1024 ticks.

        **Guarantee.** Its norms are checked as those of any matrices; that it is close to the best
        is certified by `certificate.least_score` (`dense.proof.md`, 6). Test:
        tests/factorizations/test_best_dense.py::test_no_factorization_beats_the_certificate.

        >>> import numpy as np
        >>> days, totals = np.eye(16), np.tri(16)
        >>> best = Dense.optimal([days, totals])
        >>> best.horizon, best.certificate.gap < 0.01
        (16, True)
        """
        from scipy.linalg import solve_triangular

        from evercount.factorizations.best_dense import best_gram, check_workloads

        span = None if period is None else check_count("period", period)
        best = best_gram(check_workloads(workload), check_count("unit", unit), span, worst)
        # RᵀR = G with R lower triangular: Cholesky of the matrix read backwards
        right = np.tril(np.linalg.cholesky(best.gram[::-1, ::-1])[::-1, ::-1].T)
        left = solve_triangular(right, counting_matrix(len(right)).T, lower=True, trans="T").T
        dense = cls(np.tril(left), right, name)
        dense.certificate = best
        return dense

    @property
    def spec(self) -> str | dict[str, Any]:
        """The matrices, so that a snapshot needs nobody to build them; the name where it was
        registered."""
        if self._by_name:
            return self.name
        return {"name": self.name, "left": self._left, "right": self._right}


def as_dense(engine: Factorization, horizon: int | None, name: str | None = None) -> Dense:
    """Any factorization as the matrices that it claims, checked; under `name` where it was
    registered by that.

    **Guarantee.** Nothing of a user's class is trusted but that `dense()` returns what the user
    means: norms, key and noise follow from the checked matrices. Test:
    tests/engine/test_own_factorization.py::test_claims_are_not_trusted.
    """
    if not isinstance(engine, Factorization):
        raise ParameterError(
            "a factorization is an instance of Factorization, such as Dense(L, R), got "
            f"{engine!r:.80}"
        )
    own = name or engine.name
    if engine.horizon is None:
        raise ParameterError(
            f"{own!r} has no horizon: a factorization of your own is checked as matrices of all "
            "ticks"
        )
    if horizon is not None and engine.horizon != horizon:
        raise ParameterError(
            f"{own!r} has {engine.horizon} ticks and the stream {horizon}: build it for that "
            "horizon"
        )
    check_own_size(engine.horizon)
    left, right = (
        _finite(letter, matrix) for letter, matrix in zip("LR", engine.dense(), strict=True)
    )
    if left.shape[1] != len(right) or (len(left), right.shape[1]) != (engine.horizon,) * 2:
        raise ParameterError(
            f"dense() of {own!r} gives matrices of {left.shape} and {right.shape}: they cannot be "
            "multiplied"
        )
    norm = float(np.linalg.norm(right, axis=0).max())
    if not engine.column_norm >= norm * (1 - NORM_ROUNDING_MARGIN):
        raise ParameterError(
            f"{own!r} claims a column norm of {engine.column_norm:.6g}, and its R has one of "
            f"{norm:.6g}: noise of that size would not be private"
        )
    if (
        left.shape[0] == left.shape[1]
        and not np.triu(left, 1).any()
        and not np.triu(right, 1).any()
    ):
        dense = Dense(left, right, own)
    else:
        _check_product(left, right)
        dense = Dense.of_noise(left, own)
    dense._by_name = name is not None
    return dense


def _finite(letter: str, matrix: npt.ArrayLike) -> FloatArray:
    """Refuse what is not a matrix of finite numbers."""
    try:
        array = np.array(matrix)
        if array.dtype.kind not in "biuf":
            raise TypeError(array.dtype)
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{letter} is not a matrix of real numbers") from None
    if array.ndim != 2 or not array.size:
        raise ParameterError(
            f"{letter} is a matrix with a row for each tick, not an array of shape {array.shape}"
        )
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0] + 1
        raise ParameterError(
            f"{letter} has {array[row - 1, column - 1]} at row {row}, column {column}"
        )
    return array


def _square(letter: str, matrix: npt.ArrayLike) -> FloatArray:
    """Refuse a matrix that is not square, or too large."""
    array = _finite(letter, matrix)
    if array.shape[0] != array.shape[1]:
        raise ParameterError(
            f"{letter} has the shape {array.shape}; it must be square (see Dense.of_noise)"
        )
    check_own_size(len(array))
    return array


def check_own_size(ticks: int) -> None:
    """Refuse more ticks than are checked as matrices."""
    if ticks > LARGEST_OWN_HORIZON:
        raise TooLarge(
            f"a factorization of your own has at most {LARGEST_OWN_HORIZON} ticks, as its matrices "
            f"are checked; {ticks} were asked for"
        )


def check_own_name(name: Any) -> str:
    """The name of a factorization: a short public text."""
    if not isinstance(name, str) or not 1 <= len(name) <= 80:
        raise ParameterError(
            f"the name of a factorization is a string of 1 to 80 characters, got {name!r:.120}"
        )
    return check_public_text("the factorization's name", name)


def _check_triangular(L: FloatArray, R: FloatArray) -> None:
    """Refuse matrices that use what comes later."""
    for letter, matrix, why in (
        (
            "R",
            R,
            (
                "it would weigh ticks to come, and privacy for data that react to releases needs a "
                "triangular R"
            ),
        ),
        ("L", L, "the noise of a tick would need normals of later ticks"),
    ):
        above = np.argwhere(np.triu(matrix, 1))
        if len(above):
            row, column = (above[0] + 1).tolist()
            raise ParameterError(
                f"{letter} is not lower triangular (row {row}, column {column}): {why}. "
                "Dense.of_noise(L) is the triangular factorization with the same noise"
            )


def _check_product(L: FloatArray, R: FloatArray) -> None:
    """Refuse factors whose product is not the counting matrix."""
    off = np.abs(L @ R - counting_matrix(len(L)))
    if not float(off.max()) <= PRODUCT_TOLERANCE:
        row, column = np.unravel_index(int(np.argmax(off)), off.shape)
        raise ParameterError(
            f"L·R is {float(L[row] @ R[:, column]):.10g} at row {row + 1}, column {column + 1}, "
            f"where the counting matrix has {int(column <= row)}"
        )


def _solved(L: FloatArray) -> FloatArray:
    """Solve L·R = M for R."""
    from scipy.linalg import solve_triangular

    if np.triu(L, 1).any() or not np.diagonal(L).all():
        return np.eye(len(L))  # refused later, with the reason
    return np.tril(solve_triangular(L, counting_matrix(len(L)), lower=True))


def _gamma(n: int) -> float:
    """Relative to the sum of absolute products: the error of a sum of n products in doubles."""
    return n * ROUNDING / (1 - n * ROUNDING)


def _off(L: FloatArray, R: FloatArray) -> float:
    """A bound of ‖(L⁻¹·M − R)_j‖₂ over all columns: `dense.proof.md`, 1."""
    from scipy.linalg import solve_triangular

    T = len(L)
    sizes = np.abs(L)
    share = 1.01 * _gamma(T + 2)
    X = np.tril(solve_triangular(L, np.eye(T), lower=True))
    rest = np.abs(np.eye(T) - L @ X) + share * (sizes @ np.abs(X) + 1e-200 + np.eye(T))
    f = 1.01 * float(rest.sum(axis=1).max())
    if not f < 0.5:
        raise ParameterError(
            "L is too close to a singular matrix: how much noise it needs cannot be computed in "
            "doubles"
        )
    inverse = 1.01 * float(np.abs(X).sum(axis=1).max()) / (1 - f)
    M = counting_matrix(T)
    residual = np.abs(M - L @ R) + share * (sizes @ np.abs(R) + 1e-200 + M)
    return float(1.01 * np.sqrt(T) * inverse * residual.max())


def _rows_fall(R: FloatArray, gram: FloatArray, rounding: float) -> bool:
    """Whether each row of RᵀR falls from the diagonal on: by more than rounding, or from a sum
    without terms to one."""
    terms = (R != 0).astype(np.float64)
    none = terms.T @ terms == 0
    falls = (gram[:, :-1] - gram[:, 1:] > rounding) | (none[:, :-1] & none[:, 1:])
    return bool(falls[np.triu_indices(len(R), 0, len(R) - 1)].all())
