"""`optimal`: the numerical optimum of max row norm × max column norm over all factorisations, for up to 1024 ticks.

γ₂(M) = max over p of ‖D_√p · M · D_√q‖_*, q = p reversed, Σp = 1; the maximiser also gives the best L and R.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.base import (
    MARGIN,
    Factorization,
    FloatArray,
    State,
    check_horizon,
    counting_matrix,
)

LARGEST = 1024
GAP = 1e-5
"""The iteration ends when upper and lower bound of γ₂ are this close, relatively."""
STRETCH = 1.9
"""Over-relaxation of the fixed-point step p ← diag|S|: half as many steps; from about 2.3 on it diverges."""


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
        if float((self._right.T @ self._right).min()) < 0:  # what the sensitivity rule needs; not proved in general
            raise ParameterError(f"the numerical optimum for {T} ticks has a negative Gram entry; use 'balanced'")
        self.column_norm = float(np.linalg.norm(self._right, axis=0).max()) * (1 + MARGIN)

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

    def initial(self, cells: int = 1) -> State:
        """See `Factorization`: all normals so far, for no recurrence is known."""
        return State(0, (np.zeros((0, cells)),))

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

    p = _weights(T)
    M = counting_matrix(T)
    values, vectors = _spectrum(p)
    # S = D_√p·M·D_√q·J = V·diag(values)·Vᵀ; R = |values|^½ (sign·V)ᵀ·J·D_√q⁻¹, so RᵀR = D·J·|S|·J·D
    absolute = (vectors * np.abs(values)) @ vectors.T
    q = p[::-1]
    gram = absolute[::-1, ::-1] / np.sqrt(np.multiply.outer(q, q))
    # RᵀR = gram with R lower triangular: Cholesky of the matrix read backwards
    right = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T
    right = right / np.linalg.norm(right, axis=0).max()
    left = np.tril(solve_triangular(right, M.T, lower=True, trans="T").T)
    return left, np.tril(right), float(np.abs(values).sum())


def _spectrum(p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues and vectors of the symmetric matrix D_√p·M·J·D_√p."""
    from scipy.linalg import eigh

    root = np.sqrt(p)
    values, vectors = eigh(root[:, np.newaxis] * counting_matrix(len(p))[:, ::-1] * root)
    return values, vectors


@lru_cache(maxsize=16)
def _weights(T: int) -> FloatArray:
    """The maximiser p: fixed point of p ← diag|S|, started from the solution for half the ticks."""
    if T <= 4:
        p = np.full(T, 1 / T)
    else:
        coarse = _weights(T // 2)
        p = np.interp((np.arange(T) + 0.5) / T, (np.arange(len(coarse)) + 0.5) / len(coarse), coarse)
    for _ in range(400):
        p = p / p.sum()
        values, vectors = _spectrum(p)
        diagonal = np.einsum("ij,ij->i", vectors * np.abs(values), vectors)
        norm = float(np.abs(values).sum())
        # rows of L have squared norms diagonal/p and columns of R the same, reversed
        if float((diagonal / p).max()) <= norm * (1 + GAP):
            break
        p = p * (diagonal / (norm * p)) ** STRETCH
    return p
