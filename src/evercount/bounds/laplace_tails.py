"""Error bars of pure trees: exact quantiles of sums of Laplace numbers, in units of their std.

A normal quantile would be too small: a single Laplace number leaves ±1.96 std with probability 6.3 %, not 5 %.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from evercount.errors import ParameterError

_NORMAL = 4096
"""Sums of more numbers are treated as this many: the quantile only falls with their number."""


def laplace_tail(weight: int, x: float) -> float:
    """P(|S| > x) for the sum S of so many independent Laplace numbers of scale 1.

    |S| is a gamma variable of shape weight − j with probability C(weight−1+j, j)/2^(weight−1+j), j = 0 … weight−1.
    """
    from scipy.special import gammaincc, gammaln

    j = np.arange(weight)
    n = weight - 1 + j
    chance = np.exp(gammaln(n + 1) - gammaln(j + 1) - gammaln(weight) - n * math.log(2))
    return float(chance @ gammaincc(weight - j, x))


@lru_cache(maxsize=4096)
def laplace_quantile(weight: int, beta: float) -> float:
    """a with P(|S| > a·std) = beta for a sum of `weight` independent Laplace numbers; rounded up."""
    if not 0 < beta < 1:
        raise ParameterError(f"beta must lie between 0 and 1, got {beta!r}")
    if weight == 1:
        return -math.log(beta) / math.sqrt(2) * (1 + 1e-12)
    weight = min(weight, _NORMAL)
    std = math.sqrt(2 * weight)
    low, high = 0.0, (math.log(2 / beta) + 2) * 2 + 10
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if laplace_tail(weight, middle * std) > beta else (low, middle)
    return high


def continuous_std(std: float) -> float:
    """The std of the continuous Laplace number of the same rate as the discrete one of this std.

    Intervals are made of it: a·√W times it, plus half a unit, holds a sum of W discrete numbers at least as often as
    a·std holds the continuous sum. For a std far below 1 the discrete one says little about the tails. Computed, not
    proved: tests/bounds/test_laplace_tails.py::test_intervals_hold_sums_of_discrete_numbers, for W ≤ 40 and rates 0.03
    … 12.
    """
    above = 1 / std**2
    rate = math.log1p(above + math.sqrt(above * (above + 2)))  # cosh(rate) = 1 + 1/std²
    return math.sqrt(2) / rate


def laplace_factor(beta: float) -> float:
    """A half width in stds that is enough for every pure tree, where β ≤ 0.2: ln(1/β)/√2 or the normal quantile."""
    from evercount.bounds import interval_quantile

    return max(laplace_quantile(1, beta), interval_quantile(beta))
