"""Quantiles of sums of Laplace numbers: against simulation, against the closed form for two, and the common factor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount.bounds import interval_quantile
from evercount.errors import ParameterError
from evercount.mechanisms.pure_tails import laplace_factor, laplace_quantile, laplace_tail, quantiles
from evercount.mechanisms.pure_trees import DigitTree, HybridTree


def test_tails_in_closed_form() -> None:
    for x in (0.1, 1.0, 5.0):
        assert laplace_tail(1, x) == pytest.approx(math.exp(-x))
        assert laplace_tail(2, x) == pytest.approx((1 + x / 2) * math.exp(-x))
    assert laplace_tail(40, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("weight", [1, 2, 5, 17])
def test_quantiles_against_simulation(weight: int) -> None:
    """400,000 sums: the share outside is β within 5 standard errors; with the normal quantile it is not."""
    sums = np.random.default_rng(weight).laplace(size=(400_000, weight)).sum(axis=1) / math.sqrt(2 * weight)
    for beta in (0.1, 0.01):
        share = (np.abs(sums) > laplace_quantile(weight, beta)).mean()
        assert abs(share - beta) < 5 * math.sqrt(beta / 400_000)
    normal = (np.abs(sums) > interval_quantile(0.01)).mean()
    assert weight > 5 or normal > 0.013


def test_one_factor_is_enough_for_all_sums() -> None:
    for beta in (0.2, 0.05, 1e-3, 1e-9):
        factor = laplace_factor(beta)
        assert all(laplace_quantile(weight, beta) <= factor * (1 + 1e-9) for weight in (1, 2, 3, 5, 9, 30, 100, 1000))
    rng = np.random.default_rng(1)
    scales = rng.random((8, 12)) ** 3
    for row in scales:
        sums = (rng.laplace(size=(200_000, 12)) * row).sum(axis=1) / math.sqrt(2 * (row**2).sum())
        for beta in (0.1, 0.01):
            assert (np.abs(sums) > laplace_factor(beta)).mean() < beta + 5 * math.sqrt(beta / 200_000)


def test_quantiles_of_trees() -> None:
    tree = DigitTree(100)
    got = quantiles(tree, [1, 3, 64, 63], 0.05)
    assert got[0] == got[2] == laplace_quantile(1, 0.05)
    assert got[3] == laplace_quantile(6, 0.05)
    assert got[0] > got[1] > got[3] > interval_quantile(0.05)
    assert (quantiles(HybridTree(), [1, 9], 0.05) == laplace_factor(0.05)).all()
    with pytest.raises(ParameterError):
        laplace_quantile(3, 0.0)
