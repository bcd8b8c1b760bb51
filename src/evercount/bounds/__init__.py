"""The formulas of the theorems: the paper's, the corrected ones and lower bounds. One function
each, no randomness.

Arguments have the letters of the paper: `beta` is the chance that a bound fails, 1 − `level`
elsewhere.
"""

from __future__ import annotations

from evercount.bounds.counting_error import GROWTHS, Growth
from evercount.bounds.norms import (
    binary_norm,
    binary_std,
    gamma_hat,
    haagerup_upper,
    landau,
    mathias_lower,
    mathias_upper,
    nuclear_lower,
    psi,
    psi_paper,
)
from evercount.bounds.tails import interval_quantile, simultaneous_quantile

__all__ = [
    "GROWTHS",
    "Growth",
    "binary_norm",
    "binary_std",
    "gamma_hat",
    "haagerup_upper",
    "interval_quantile",
    "landau",
    "mathias_lower",
    "mathias_upper",
    "nuclear_lower",
    "psi",
    "psi_paper",
    "simultaneous_quantile",
]
