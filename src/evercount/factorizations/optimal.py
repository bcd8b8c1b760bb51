"""`optimal`: the numerical optimum of max row norm × max column norm over all factorisations, for up to 1024 ticks.

γ₂(M) = max over p of ‖D_√p · M · D_√q‖_*, q = p reversed, Σp = 1; the maximiser also gives the best L and R.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.base import MARGIN, Factorization, State, check_horizon, counting_matrix

LARGEST = 1024
GAP = 1e-5
"""The iteration ends when upper and lower bound of γ₂ are this close, relatively."""
STRETCH = 1.9
"""Over-relaxation of the fixed-point step p ← diag|S|: half as many steps; from about 2.3 on it diverges."""
MEMORY = 6
"""Points that an accelerated step combines. 200 ticks take 15 steps and 1024 take 20; plain steps: 50 and 70."""
STEPS = 400


class Optimal(Factorization):
    """The certified optimum to a relative gap of 1e-5, made lower triangular by a Cholesky factor of RᵀR.

    `lower_bound` certifies: no factorisation of M has a smaller product of norms than it.
    """

    name = "optimal"

    def __init__(self, horizon: int) -> None:
        T = check_horizon(horizon)
        assert T is not None
        if T > LARGEST:
            raise TooLarge(
                f"'optimal' is computed numerically for at most {LARGEST} ticks, {T} were asked for; "
                "'balanced' is within 0.6 % of it and has no such limit"
            )
        self.horizon = T
        self._left, self._right, self.lower_bound = _solve(T)
        gram = self._right.T @ self._right
        if float(gram.min()) < 0:  # what the sensitivity rule needs; not proved in general
            raise ParameterError(f"the numerical optimum for {T} ticks has a negative Gram entry; use 'balanced'")
        self.column_norm = float(np.linalg.norm(self._right, axis=0).max()) * (1 + MARGIN)
        falls = (gram[:, :-1] - gram[:, 1:])[np.triu_indices(T, 0, T - 1)]
        self._falls = bool(np.all(falls > MARGIN))  # far above what rounding can do to an entry

    @property
    def falling_gram(self) -> bool:
        """See `Factorization`: checked along all rows of the matrix that was found, not proved in general."""
        return self._falls

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """See `Factorization`."""
        return np.asarray(np.linalg.norm(self._left[self._check_ticks(ticks) - 1], axis=-1))

    def difference_norm(self, earlier: int, later: int) -> float:
        """See `Factorization`."""
        earlier, later = self._check_pair(earlier, later)
        first = self._left[earlier - 1] if earlier else np.zeros(len(self._left))
        return float(np.linalg.norm(self._left[later - 1] - first))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """See `Factorization`."""
        size = self._check_dense(ticks)
        return self._left[:size, :size].copy(), self._right[:size, :size].copy()

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """See `Factorization`: L itself."""
        return (self._left,)

    def initial(self, cells: int = 1) -> State:
        """See `Factorization`: all normals so far, for no recurrence is known."""
        return State(0, (np.zeros((0, cells)),))

    @property
    def state_bytes(self) -> int:
        """Memory of the streaming state for one cell at the end of the horizon, when it holds all T normals."""
        return 8 * len(self._left)

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        """See `Factorization`."""
        z = self._check_block(state, z, ticks)
        past = np.concatenate([state.arrays[0], z])
        stop = state.tick + ticks
        return self._left[state.tick : stop, :stop] @ past, State(stop, (past,))


@lru_cache(maxsize=8)
def _solve(T: int) -> tuple[FloatArray, FloatArray, float]:
    """(L, R, lower bound), both lower triangular."""
    from scipy.linalg import solve_triangular

    p, values, vectors = _maximiser(T)
    # S = D_√p·M·D_√q·J is symmetric, and RᵀR = D·J·|S|·J·D with D = D_√q⁻¹
    absolute = (vectors * values) @ vectors.T
    q = p[::-1]
    gram = absolute[::-1, ::-1] / np.sqrt(np.multiply.outer(q, q))
    # RᵀR = gram with R lower triangular: Cholesky of the matrix read backwards
    right = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T
    right = right / np.linalg.norm(right, axis=0).max()
    left = np.tril(solve_triangular(right, counting_matrix(T).T, lower=True, trans="T").T)
    return left, np.tril(right), float(values.sum())


def _spectrum(p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues and vectors of |S|: S² = D_√p·M·D_q·Mᵀ·D_√p has a tridiagonal inverse, as M⁻¹ is bidiagonal."""
    from scipy.linalg import eigh_tridiagonal

    inverse = 1 / p[::-1]
    diagonal = (inverse + np.append(inverse[1:], 0.0)) / p
    beside = -inverse[1:] / np.sqrt(p[1:] * p[:-1])
    # stemr makes no matrix products: those of stevd run on threads, which wait for each other on a busy machine
    values, vectors = eigh_tridiagonal(diagonal, beside, lapack_driver="stemr")
    return np.asarray(values, np.float64) ** -0.5, np.asarray(vectors, np.float64)


def _maximiser(T: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """p and the spectrum of its |S|: the fixed point of p ← diag|S|, by Anderson's acceleration in log p.

    **Guarantee.** max(diag|S|/p) ≤ ‖S‖_*·(1 + GAP), so the product of norms is within GAP of the lower bound ‖S‖_*. The
    iteration starts from equal weights, so the result depends on T only. Test:
    tests/factorizations/test_factorizations_numbers.py::test_optimal_is_certified_and_balanced_is_close.
    """
    x = np.zeros(T)
    points: list[FloatArray] = []
    changes: list[FloatArray] = []
    before = np.inf
    for _ in range(STEPS):
        p = np.exp(x)
        p /= p.sum()
        values, vectors = _spectrum(p)
        # rows of L have squared norms diag|S|/p and columns of R the same, reversed
        change = np.log(vectors**2 @ values / (values.sum() * p))
        gap = float(np.expm1(change.max()))
        if gap <= GAP:
            return p, values, vectors
        if gap > before:  # the acceleration went astray: go on with a plain step
            points, changes = [], []
        before = gap
        points, changes = [*points, np.log(p)][-MEMORY:], [*changes, change][-MEMORY:]
        x = points[-1] + STRETCH * change
        if len(points) > 1:
            moved, altered = np.diff(points, axis=0).T, np.diff(changes, axis=0).T
            x -= (moved + STRETCH * altered) @ np.linalg.lstsq(altered, change)[0]
    raise ParameterError(f"the optimum for {T} ticks was not found in {STEPS} steps; use 'balanced'")
