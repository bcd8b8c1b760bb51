"""`optimal`, the best factorization of up to 1024 ticks, and how close an endless one can come to
it at every tick.

It has the least max row norm × max column norm: γ₂(M) = max over p of ‖D_√p · M · D_√q‖_*, q = p
reversed, Σp = 1; the maximiser also gives the best L and R.

The bound for endless ones is certified. Let an endless factorization have columns of R of norm at
most 1 and ‖L_t‖ ≤ ρ·γ₂(M_t) at every t ≤ T, with M_t the running count over t ticks. Then
diag(1/γ₂(M_t))·L and R factorise A = diag(1/γ₂(M_t))·M, with row norms of at most ρ: so ρ ≥ γ₂(A).
And γ₂(A) ≥ ‖D_√p·A·D_√q‖_* for all weights p, q ≥ 0 with sums 1 (the dual; Haagerup). Smaller rows
only make γ₂ smaller, so upper bounds on γ₂(M_t) may stand for it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from evercount._validate import FloatArray
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.base import NORM_ROUNDING_MARGIN, check_known_horizon, counting_matrix
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.dense import Matrices
from evercount.factorizations.interruption import check_wanted

# more ticks are refused: the matrices and the iteration would take too long
LARGEST_OPTIMAL_HORIZON = 1024
# the iteration ends when the upper and the lower bound of γ₂ differ by at most this fraction
OPTIMALITY_GAP = 1e-5
OVER_RELAXATION = 1.9
"""Over-relaxation of the fixed-point step p ← diag|S|: half as many steps; from about 2.3 on it
diverges."""
ANDERSON_POINTS = 6
"""Points that an accelerated step combines. 200 ticks take 15 steps and 1024 take 20; without: 50
and 70."""
MOST_ITERATIONS = 400  # after this many steps the iteration gives up with a ParameterError


BLAS_THREADS = 2
"""Threads of the solver: a snapshot of an `optimal` stream is restored only where L is the same to
the last bit."""


class Optimal(Matrices):
    """The best factorization up to a relative gap of 1e-5, made lower triangular by a Cholesky
    factor of RᵀR.

    `lower_bound` is a certificate: no factorization of M has a smaller product of norms.

    Args:
        horizon: The number of ticks, at most 1024.

    Raises:
        TooLarge: The horizon is above 1024.
        ParameterError: The horizon is not a whole number of at least 1, or the iteration did not
            end.

    >>> engine = Optimal(64)
    >>> tick, norm = engine.worst_row()
    >>> engine.lower_bound <= norm * engine.column_norm <= engine.lower_bound * (1 + 2e-5)
    True
    """

    name = "optimal"
    falling_gram = False

    def __init__(self, horizon: int) -> None:
        T = check_known_horizon(horizon)
        if T > LARGEST_OPTIMAL_HORIZON:
            raise TooLarge(
                f"'optimal' is computed numerically for at most {LARGEST_OPTIMAL_HORIZON} ticks, "
                f"{T} were asked for; 'balanced' is within 0.6 % of it and has no such limit"
            )
        self.horizon = T
        self._left, self._right, self.lower_bound = _solve(T)
        gram = self._right.T @ self._right
        # the sensitivity rule needs G ≥ 0, which is not proved in general
        if float(gram.min()) < 0:
            raise ParameterError(
                f"the numerical optimum for {T} ticks has a negative Gram entry; use 'balanced'"
            )
        self.column_norm = float(np.linalg.norm(self._right, axis=0).max()) * (
            1 + NORM_ROUNDING_MARGIN
        )
        falls = (gram[:, :-1] - gram[:, 1:])[np.triu_indices(T, 0, T - 1)]
        # checked along all rows, not proved in general; the margin is far above the rounding error
        # of an entry
        self.falling_gram = bool(np.all(falls > NORM_ROUNDING_MARGIN))


@lru_cache(maxsize=8)
@blas_threads(BLAS_THREADS)  # its last digits depend on their number, and snapshots on these
def _solve(T: int) -> tuple[FloatArray, FloatArray, float]:
    """(L, R, lower bound), both lower triangular."""
    from scipy.linalg import solve_triangular

    p, values, vectors = dual_maximiser(T)
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
    """Eigenvalues and vectors of |S|: S² = D_√p·M·D_q·Mᵀ·D_√p has a tridiagonal inverse, as M⁻¹ is
    bidiagonal."""
    from scipy.linalg import eigh_tridiagonal

    inverse = 1 / p[::-1]
    diagonal = (inverse + np.append(inverse[1:], 0.0)) / p
    off_diagonal = -inverse[1:] / np.sqrt(p[1:] * p[:-1])
    # stemr, not stevd: the matrix products of stevd run on threads that wait for each other on a
    # busy machine
    values, vectors = eigh_tridiagonal(diagonal, off_diagonal, lapack_driver="stemr")
    return np.asarray(values, np.float64) ** -0.5, np.asarray(vectors, np.float64)


def dual_maximiser(T: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """p and the spectrum of its |S|: the fixed point of p ← diag|S|, by Anderson's acceleration in
    log p.

    **Guarantee.** max(diag|S|/p) ≤ ‖S‖_*·(1 + OPTIMALITY_GAP), so the product of norms is within
    that fraction of the lower bound ‖S‖_*. The iteration starts from equal weights, so the result
    depends on T only. Test:
    tests/factorizations/test_factorizations_numbers.py::test_optimal_is_certified_and_balanced_is_close.
    """
    x = np.zeros(T)
    points: list[FloatArray] = []
    changes: list[FloatArray] = []
    previous_gap = np.inf
    for _ in range(MOST_ITERATIONS):
        check_wanted()
        p = np.exp(x)
        p /= p.sum()
        values, vectors = _spectrum(p)
        # rows of L have squared norms diag|S|/p and columns of R the same, reversed
        change = np.log(vectors**2 @ values / (values.sum() * p))
        gap = float(np.expm1(change.max()))
        if gap <= OPTIMALITY_GAP:
            return p, values, vectors
        # the acceleration made it worse: forget its points and take a simple step
        if gap > previous_gap:
            points = []
            changes = []
        previous_gap = gap
        points = [*points, np.log(p)][-ANDERSON_POINTS:]
        changes = [*changes, change][-ANDERSON_POINTS:]
        x = points[-1] + OVER_RELAXATION * change
        if len(points) > 1:
            point_steps = np.diff(points, axis=0).T
            change_steps = np.diff(changes, axis=0).T
            x -= (point_steps + OVER_RELAXATION * change_steps) @ np.linalg.lstsq(
                change_steps, change
            )[0]
    raise ParameterError(
        f"the optimum for {T} ticks was not found in {MOST_ITERATIONS} steps; use 'balanced'"
    )


SCALING_STEPS = 400  # the most steps of the alternating scaling; any step gives a valid bound
# the scaling ends when upper and lower bound of γ₂(A) differ by at most this fraction
SCALING_GAP = 1e-5
ROUNDING = 1e-9  # far more than the rounding errors of the singular values, relative


def anytime_lower_bound(horizon: int) -> float:
    """ρ such that no endless factorization stays below ρ times the optimum told T = t at every t up
    to the horizon.

    Test: tests/factorizations/test_anytime.py::test_no_endless_factorization_comes_closer.
    """
    if not 2 <= horizon <= LARGEST_OPTIMAL_HORIZON:
        raise ParameterError(
            f"the bound is computed for 2 to {LARGEST_OPTIMAL_HORIZON} ticks, got {horizon}"
        )
    optimum = np.asarray([float(dual_maximiser(t)[1].sum()) for t in range(1, horizon + 1)]) * (
        1 + OPTIMALITY_GAP
    )
    matrix = counting_matrix(horizon) / optimum[:, None]
    p = q = np.full(horizon, 1 / horizon)
    best = 0.0
    for _ in range(SCALING_STEPS):
        left, values, right = np.linalg.svd(
            np.sqrt(p)[:, None] * matrix * np.sqrt(q), full_matrices=False
        )
        total = float(values.sum())
        best = max(best, total)
        new_p = left**2 @ values / total
        new_q = (right.T**2) @ values / total
        upper = total * np.sqrt(float((new_p / p).max()) * float((new_q / q).max()))
        if upper <= best * (1 + SCALING_GAP):
            break
        p = new_p
        q = new_q
    return best * (1 - ROUNDING)
