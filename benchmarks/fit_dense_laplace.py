"""The least worst variance of dense Laplace mechanisms for running counts with δ = 0, by descent: a yardstick.

    python benchmarks/fit_dense_laplace.py 64 1024     # horizons; 1024 takes some minutes on 16 cores

R is a square lower-triangular matrix whose columns have l1 norm 1, L = M·R⁻¹, and the variance of tick t is
2·‖L_t‖²/ε². Minimised: its p-norm over the ticks, p = 4, 16, 64, by L-BFGS over all entries of R, from Toeplitz
matrices (k + 1)^−a with the best a. A local search: what it prints was reached, and is no lower bound. Such a mechanism
keeps all its noise (T numbers a cell), so evercount does not offer it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize, minimize_scalar

FloatArray = npt.NDArray[np.float64]
STAGES = ((4, 400), (16, 400), (64, 600))
"""(p, iterations)."""


def toeplitz(T: int, a: float) -> FloatArray:
    """Entries (i − j + 1)^−a on and below the diagonal."""
    lag = np.subtract.outer(np.arange(T), np.arange(T))
    return np.where(lag >= 0, np.maximum(lag + 1.0, 1.0) ** -a, 0.0)


def left_factor(raw: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(L, R, l1 norms of the columns) for R = raw with normalised columns; L = M·R⁻¹."""
    size = np.abs(raw).sum(axis=0)
    right = raw / size
    ones = np.tril(np.ones_like(raw))
    return solve_triangular(right, ones.T, lower=True, trans="T").T, right, size


def variances(raw: FloatArray) -> FloatArray:
    """2·‖L_t‖² of every tick."""
    left, _, _ = left_factor(raw)
    return np.asarray(2 * (left**2).sum(axis=1))


def cost(entries: FloatArray, T: int, power: int, lower: Any) -> tuple[float, FloatArray]:
    """ln of the p-norm of the variances, and its gradient."""
    raw = np.zeros((T, T))
    raw[lower] = entries
    left, right, size = left_factor(raw)
    v = 2 * (left**2).sum(axis=1)
    top = v.max()
    shares = (v / top) ** power
    value = np.log(top) + np.log(shares.mean()) / power
    by_left = 4 * left * (shares / shares.sum() / v)[:, None]
    # d L = −L·dR·R⁻¹, so the gradient is −Lᵀ·G·R⁻ᵀ
    by_right = -solve_triangular(right, (left.T @ by_left).T, lower=True).T
    by_raw = (by_right - np.sign(raw) * (by_right * right).sum(axis=0)) / size
    return float(value), by_raw[lower]


def fit(T: int) -> FloatArray:
    """The entries of R that the search ends with."""
    start: Any = minimize_scalar(lambda a: variances(toeplitz(T, a)).max(), bounds=(0.5, 2.0), method="bounded")
    print(f"T = {T}: Toeplitz (k + 1)^-{start.x:.3f}: {start.fun:.1f}", flush=True)
    lower = np.tril_indices(T)
    entries = toeplitz(T, float(start.x))[lower]
    for power, iterations in STAGES:
        options: Any = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": 30}
        found: Any = minimize(cost, entries, (T, power, lower), jac=True, method="L-BFGS-B", options=options)
        entries = found.x
        raw = np.zeros((T, T))
        raw[lower] = entries
        v = variances(raw)
        print(f"T = {T}, p = {power}: worst {v.max():.2f}, mean {v.mean():.2f} ({time.process_time():.0f} s)", flush=True)
    return raw


def main() -> None:
    """Print what is reached for each horizon."""
    for word in sys.argv[1:] or ["64"]:
        fit(int(word))


if __name__ == "__main__":
    main()
