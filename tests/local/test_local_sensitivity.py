"""The local model's privacy: the sensitivity over all pairs, the noise that it asks for, the
message that it makes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from evercount._validate import FloatArray
from evercount.errors import ParameterError, TooLarge, UnknownName
from evercount.local import LocalPlan
from evercount.local.collection_plan import UNIT, squared_distance
from evercount.privacy import gaussian


def means(plan: LocalPlan) -> FloatArray:
    """R·e_j for every bucket j, as rows in real units: what messages are centred on, straight from
    the factor."""
    table = np.zeros((plan.w, plan.entries), np.int64)
    for j in range(plan.w):
        table[j, j : plan.w] = plan.factor[: plan.w - j]
        if plan.counters == 2:
            k = plan.w - 1 - j
            table[j, plan.w + k :] = plan.factor[: plan.w - k]
    return np.asarray(table / UNIT)


def toeplitz(column: np.ndarray) -> np.ndarray:
    w = len(column)
    offsets = np.subtract.outer(np.arange(w), np.arange(w))
    return np.where(offsets >= 0, column[np.maximum(offsets, 0)], 0)


@pytest.mark.parametrize("w", [2, 3, 8, 33, 128])
def test_the_worst_pair_by_enumeration(w: int) -> None:
    plan = LocalPlan(0.5, 1e-6, 10**4, buckets=w)
    R = toeplitz(plan.factor)
    G = R.T @ R
    squared = np.diag(G)[:, None] + np.diag(G)[None, :] - 2 * G
    assert squared.max() == squared_distance(w)
    assert squared[0].max() == squared.max()  # the first bucket is in a worst pair
    assert Fraction(plan.sensitivity) ** 2 >= int(squared.max())
    assert plan.sensitivity <= math.sqrt(squared.max()) * (1 + 1e-9)


def test_the_papers_sensitivity_is_too_small() -> None:
    """One-hot vectors differ in two places: the column norm alone is beaten by a pair. Golden
    ratios."""
    for w, ratio in ((8, 1.159), (128, 1.253)):
        plan = LocalPlan(0.5, 1e-6, 10**4, buckets=w)
        assert plan.sensitivity / math.sqrt(plan.factor @ plan.factor) == pytest.approx(
            ratio, abs=1e-3
        )


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_every_pair_of_values_costs_no_more_than_the_promise(form: str) -> None:
    """δ of the Gaussian mechanism at every pair of means, counter by counter, with exact hockey
    sticks."""
    plan = LocalPlan(0.7, 1e-7, 4000, form)  # type: ignore[arg-type]
    table = means(plan).reshape(plan.w, plan.counters, plan.w)
    worst = 0.0
    for i in range(plan.w):
        apart = np.linalg.norm(table - table[i], axis=2).max(axis=0)
        delta = sum(
            gaussian.delta_of(float(distance) / plan.sigma, plan.epsilon / plan.counters)
            for distance in apart
            if distance
        )
        worst = max(worst, delta + plan.numeric_delta)
    assert worst <= plan.delta
    # The noise is not larger than needed; two counters do not have their worst pair at the same
    # values.
    assert worst > (0.99 if form == "one-counter" else 0.8) * plan.delta


def test_column_norm_calibration_would_be_caught() -> None:
    """Negative control: noise for ‖R‖ instead of the worst pair breaks the promise by a wide
    margin."""
    plan = LocalPlan(0.7, 1e-7, 4000)
    short = plan.sigma * math.sqrt(plan.factor @ plan.factor) / plan.sensitivity
    apart = np.linalg.norm(means(plan) - means(plan)[0], axis=1).max()
    assert gaussian.delta_of(float(apart) / short, plan.epsilon) > 5 * plan.delta


def test_factor_is_the_rounded_square_root() -> None:
    plan = LocalPlan(0.5, 1e-6, 10**4, buckets=200)
    exact = [Fraction(math.comb(2 * k, k), 4**k) * UNIT for k in range(200)]
    assert all(
        abs(int(got) - want) <= Fraction(1, 2) for got, want in zip(plan.factor, exact, strict=True)
    )
    product = toeplitz(plan.left) @ toeplitz(plan.factor / UNIT)
    assert np.allclose(product, np.tril(np.ones((200, 200))), atol=1e-9)


def test_golden_variances() -> None:
    """n·max Var x̂ at (0.5, 1e-6), w = 128: one counter 2775, conditioned on the total 2429, two
    counters 5018."""
    from evercount.local.estimate import LocalEstimate

    plan = LocalPlan(0.5, 1e-6, 65536)
    assert plan.w == 128
    assert 4 * (plan.sigma**2 + plan.entry**2 / 12) * (plan.left @ plan.left) == pytest.approx(
        2775, rel=2e-3
    )
    for form, want in (("one-counter", 2429), ("two-counter", 5018)):
        made = LocalPlan(0.5, 1e-6, 65536, form)  # type: ignore[arg-type]
        estimate = LocalEstimate(made, 1, np.zeros(129))
        assert estimate.std.max() ** 2 == pytest.approx(want, rel=1e-3)


def test_the_ball_fits_sixteen_bits_and_honest_noise() -> None:
    for w in (2, 64, 500, 4096):
        plan = LocalPlan(0.3, 1e-8, 10**6, buckets=w)
        assert plan.radius <= 32767
        assert plan.scale / (1 << plan.shift) > 100  # rounding adds less than 1e-5 of the variance
        assert plan.radius > plan.scale / (1 << plan.shift) * math.sqrt(w)


def test_refusals() -> None:
    with pytest.raises(ParameterError):
        LocalPlan(0.0, 1e-6, 100)
    with pytest.raises(ParameterError):
        LocalPlan(0.5, 1e-6, 0)
    with pytest.raises(UnknownName):
        LocalPlan(0.5, 1e-6, 100, "three-counter")  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="4096"):
        LocalPlan(5.0, 1e-6, 10**8)
    with pytest.raises(ParameterError, match="too small"):
        LocalPlan(0.5, 1e-33, 10**4)
    with pytest.raises(ParameterError, match="at least 2"):
        LocalPlan(0.5, 1e-6, 100, buckets=1)
