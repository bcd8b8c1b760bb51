"""The privacy profile: the exact δ of the noise at every ε, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from evercount import Budget, Count, Stream
from evercount.errors import ParameterError
from evercount.privacy import Ledger, exact_privacy_profile
from evercount.privacy.accounting import dp_event


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_gaussian_profile_is_the_integral(epsilon, calibration):
    """∫ max(0, p − e^ε·q) of two normals that are μ apart, where μ is that of the noise."""
    budget = Budget(0.9, 0.01, calibration=calibration)
    mu = 1 / budget.noise_multiplier()
    start = epsilon / mu + mu / 2
    exact = integrate.quad(
        lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), start, start + 40
    )[0]
    found = exact_privacy_profile(budget, epsilon=epsilon)
    assert found == pytest.approx(exact, rel=1e-6)
    assert found == pytest.approx(0.01, rel=1e-9) or epsilon != 0.9 or calibration == "paper"


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0, 1.5])
def test_pure_profile_is_that_of_the_discrete_laplace_law(epsilon):
    """Σ max(0, p(k) − e^ε·p(k − 1)), p(k) ~ e^(−|k|): one number, changed by one unit, that has all
    of ε₀ = 1."""
    k = np.arange(-200, 201)
    p = np.exp(-np.abs(k)) * math.tanh(0.5)
    q = np.exp(-np.abs(k - 1)) * math.tanh(0.5)
    exact = float(np.maximum(0, p - math.exp(epsilon) * q).sum())
    assert exact_privacy_profile(Budget(1.0, 0.0), epsilon=epsilon) == pytest.approx(
        exact, abs=1e-12
    )


@pytest.mark.parametrize("delta", [1e-9, 1e-4, 0.02, 0.3])
@pytest.mark.parametrize(
    "budget", [Budget(0.9, 1e-4), Budget(0.9, 1e-4, calibration="classic"), Budget(2.0, 0.0)]
)
def test_both_directions_agree_on_the_private_side(budget, delta):
    epsilon = exact_privacy_profile(budget, delta=delta)
    assert exact_privacy_profile(budget, epsilon=epsilon) <= delta * (1 + 1e-12)
    if epsilon > 0:
        assert exact_privacy_profile(budget, epsilon=epsilon * (1 - 1e-6)) > delta


def test_a_stream_pays_for_its_arithmetic():
    budget = Budget(1.0, 1e-6)
    stream = Stream(Count(), budget, 50)
    assert exact_privacy_profile(stream, epsilon=1.0) <= 1e-6
    assert exact_privacy_profile(stream, epsilon=1.0) >= stream.numeric_delta
    # far out the noise gives next to nothing, and the price, which grows with e^ε, is what is left
    far = exact_privacy_profile(stream, epsilon=8.0)
    assert far == pytest.approx(stream.numeric_delta * math.exp(7.0), rel=1e-3)
    assert far >= stream.numeric_delta * (1 + math.exp(8)) / (1 + math.e)
    epsilon = exact_privacy_profile(stream, delta=1e-20)
    assert exact_privacy_profile(stream, epsilon=epsilon) <= 1e-20
    with pytest.raises(ParameterError, match="arithmetic"):
        exact_privacy_profile(stream, delta=stream.numeric_delta / 2)
    simulated = Stream(Count(), budget, 50)
    assert exact_privacy_profile(simulated, epsilon=0.5) == exact_privacy_profile(
        budget, epsilon=0.5
    )
    assert exact_privacy_profile(Stream(Count(), Budget(1.0, 0.0), 50), epsilon=1.0) == 0.0


BAD = (
    {},
    {"epsilon": 1.0, "delta": 0.1},
    {"epsilon": -1.0},
    {"epsilon": math.inf},
    {"delta": 0.0},
    {"delta": 1.0},
)


@pytest.mark.parametrize("asked", BAD)
def test_bad_questions_are_refused(asked):
    with pytest.raises(ParameterError):
        exact_privacy_profile(Budget(1.0, 1e-6), **asked)
    with pytest.raises(ParameterError, match="Budget or a Stream"):
        exact_privacy_profile("budget", epsilon=1.0)  # type: ignore[arg-type]


def test_pure_budgets_have_an_epsilon_at_delta_zero():
    assert exact_privacy_profile(Budget(1.0, 0.0), delta=0.0) == pytest.approx(1.0, rel=1e-12)


def test_a_promise_alone_has_no_profile():
    """An entry of a ledger looks like a stream, and no noise is known of it: it must not look like
    no cost at all."""
    entry = Ledger(Budget(1.0, 1e-6)).spend("by another program", Budget(0.5, 1e-10))
    for asked in ({"delta": 1e-6}, {"epsilon": 0.1}):
        with pytest.raises(ParameterError, match="only the promise is known"):
            exact_privacy_profile(entry, **asked)
    with pytest.raises(ParameterError, match="only the promise is known"):
        dp_event(entry)
