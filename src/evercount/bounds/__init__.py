"""Theorem formulas: the paper's, the corrected ones and lower bounds; one function per statement, no randomness."""

from __future__ import annotations

from evercount.bounds.growth import GROWTHS, Growth
from evercount.bounds.norms import (
    binary_norm,
    binary_std,
    gamma_hat,
    landau,
    mathias_lower,
    mathias_upper,
    nuclear_lower,
    psi,
    psi_paper,
)
from evercount.bounds.statements import STATEMENTS, Statement
from evercount.bounds.tails import interval_quantile, simultaneous_quantile

__all__ = [
    "GROWTHS",
    "STATEMENTS",
    "Growth",
    "Statement",
    "binary_norm",
    "binary_std",
    "gamma_hat",
    "interval_quantile",
    "landau",
    "mathias_lower",
    "mathias_upper",
    "nuclear_lower",
    "psi",
    "psi_paper",
    "simultaneous_quantile",
]
