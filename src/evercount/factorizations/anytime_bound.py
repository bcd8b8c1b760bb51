"""How close a factorization without a horizon can come to the optimum at every tick: a certified lower bound.

Let an endless factorization have columns of R of norm at most 1 and ‖L_t‖ ≤ ρ·γ₂(M_t) at every t ≤ T, with M_t the
running count over t ticks. Then diag(1/γ₂(M_t))·L and R factorise A = diag(1/γ₂(M_t))·M, with row norms of at most ρ:
so ρ ≥ γ₂(A). And γ₂(A) ≥ ‖D_√p·A·D_√q‖_* for all weights p, q ≥ 0 with sums 1 (the dual; Haagerup). Smaller rows only
make γ₂ smaller, so upper bounds on γ₂(M_t) may stand for it.
"""

from __future__ import annotations

import numpy as np

from evercount.errors import ParameterError
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON, OPTIMALITY_GAP, dual_maximiser

SCALING_STEPS = 400  # the most steps of the alternating scaling; any step gives a valid bound
SCALING_GAP = 1e-5  # the scaling ends when upper and lower bound of γ₂(A) differ by at most this fraction
ROUNDING = 1e-9  # far more than the rounding errors of the singular values, relative


def anytime_lower_bound(horizon: int) -> float:
    """ρ such that no endless factorization stays below ρ times the optimum told T = t at every t up to the horizon.

    Test: tests/factorizations/test_anytime.py::test_no_endless_factorization_comes_closer.
    """
    if not 2 <= horizon <= LARGEST_OPTIMAL_HORIZON:
        raise ParameterError(f"the bound is computed for 2 to {LARGEST_OPTIMAL_HORIZON} ticks, got {horizon}")
    optimum = np.asarray([float(dual_maximiser(t)[1].sum()) for t in range(1, horizon + 1)]) * (1 + OPTIMALITY_GAP)
    matrix = counting_matrix(horizon) / optimum[:, None]
    p = q = np.full(horizon, 1 / horizon)
    best = 0.0
    for _ in range(SCALING_STEPS):
        left, values, right = np.linalg.svd(np.sqrt(p)[:, None] * matrix * np.sqrt(q), full_matrices=False)
        total = float(values.sum())
        best = max(best, total)
        new_p, new_q = left**2 @ values / total, (right.T**2) @ values / total
        upper = total * np.sqrt(float((new_p / p).max()) * float((new_q / q).max()))
        if upper <= best * (1 + SCALING_GAP):
            break
        p, q = new_p, new_q
    return best * (1 - ROUNDING)
