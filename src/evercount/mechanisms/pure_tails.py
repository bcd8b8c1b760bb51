"""Error bars of pure trees: exact quantiles of sums of Laplace numbers, in units of their std.

A normal quantile would be too small: a single Laplace number leaves ±1.96 std with probability 6.3 %, not 5 %.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evercount.errors import ParameterError
from evercount.mechanisms.pure_trees import DigitTree, PureFactorization

FloatArray = npt.NDArray[np.float64]
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


def quantiles(tree: PureFactorization, ticks: npt.ArrayLike, beta: float) -> FloatArray:
    """Half widths in stds: at each tick the error passes them with probability `beta` (up to the grid's unit).

    Exact for a `DigitTree`, whose nodes all have one scale. For the hybrid the larger of the quantiles of one Laplace
    number and of a normal one, between which that of a sum of different scales lies where it was computed (tests).
    """
    at = np.asarray(ticks, dtype=np.int64)
    if isinstance(tree, DigitTree):
        weights = tree.weight(at)
        made = np.empty(weights.shape)
        for weight in np.unique(weights):
            made[weights == weight] = laplace_quantile(max(int(weight), 1), beta)
        return made
    return np.full(at.shape, laplace_factor(beta))


def laplace_factor(beta: float) -> float:
    """A half width in stds that is enough for every pure tree, where β ≤ 0.2: ln(1/β)/√2 or the normal quantile."""
    from evercount.bounds import interval_quantile

    return max(laplace_quantile(1, beta), interval_quantile(beta))
