"""The formulas of the theorems: the paper's, the corrected ones and lower bounds. One function each, no randomness.

Arguments have the letters of the paper: `beta` is the chance that a bound fails, 1 − `level` elsewhere.
"""

from __future__ import annotations

from evercount.bounds.asymptotic import GROWTHS, Growth
from evercount.bounds.normal_tails import interval_quantile, simultaneous_quantile
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
from evercount.bounds.paper_statements import STATEMENTS, Statement

__all__ = [
    "GROWTHS",
    "STATEMENTS",
    "Growth",
    "Statement",
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
