"""The Gaussian mechanism's δ, ε and μ: 60-digit oracle, an independent accountant, and the private
side."""

from __future__ import annotations

import math

import mpmath
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.errors import ParameterError
from evercount.privacy import gaussian

EPSILONS = (1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 30.0, 1e3, 2e4)
DELTAS = (1e-300, 1e-100, 1e-30, 1e-10, 1e-5, 0.1, 0.9)


def oracle(mu: float, epsilon: float) -> mpmath.mpf:
    """δ(μ, ε) from its definition; enough digits that the difference keeps 60 of them (140 of all
    below)."""
    with mpmath.workdps(150):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_evaluation_error_is_within_its_bound(epsilon: float) -> None:
    for delta in DELTAS:
        for factor in (0.93, 1.0, 1.1):
            mu = factor * gaussian.mu_of(epsilon, delta)
            exact = oracle(mu, epsilon)
            if exact < mpmath.mpf(2) ** -1000:
                continue
            found = gaussian._evaluate(mu, epsilon)
            error = abs(float(mpmath.log(exact) - mpmath.mpf(found.log_delta)))
            assert error <= found.error / 5  # the proof's constants leave room
            assert found.error < 1e-10
            assert gaussian.delta_of(mu, epsilon) == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_mu_of_is_on_the_private_side(epsilon: float, delta: float) -> None:
    mu = gaussian.mu_of(epsilon, delta)
    assert oracle(mu, epsilon) <= delta
    assert oracle(mu * (1 + 1e-9), epsilon) > delta  # and it is the largest, to nine digits


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_of_is_on_the_private_side(mu: float, delta: float) -> None:
    epsilon = gaussian.epsilon_of(mu, delta)
    assert oracle(mu, epsilon) <= delta
    if epsilon > 0:
        assert oracle(mu, epsilon * (1 - 1e-9) - 1e-30) > delta * (1 - 1e-11)
    else:
        assert oracle(mu, 0.0) <= delta


@settings(max_examples=60, deadline=None)
@given(st.floats(-6, 3), st.floats(-2, 1.5))
def test_delta_upper_is_an_upper_bound(log_epsilon: float, log_ratio: float) -> None:
    epsilon = 10.0**log_epsilon
    mu = epsilon / 10.0**log_ratio
    exact = oracle(mu, epsilon)
    upper = gaussian.delta_upper(mu, epsilon)
    assert upper >= exact
    if exact > mpmath.mpf(2) ** -1000:
        assert upper <= exact * (1 + mpmath.mpf("1e-9"))


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 1.5), st.floats(-25, -1), st.floats(1.01, 3))
def test_mu_grows_with_epsilon_and_with_delta(
    log_epsilon: float, log_delta: float, factor: float
) -> None:
    epsilon, delta = 10.0**log_epsilon, 10.0**log_delta
    assert gaussian.mu_of(factor * epsilon, delta) > gaussian.mu_of(epsilon, delta)
    assert gaussian.mu_of(epsilon, factor * delta) > gaussian.mu_of(epsilon, delta)


@settings(max_examples=60, deadline=None)
@given(st.floats(-3, 2), st.floats(-100, -1))
def test_epsilon_of_inverts_mu_of(log_epsilon: float, log_delta: float) -> None:
    epsilon, delta = 10.0**log_epsilon, 10.0**log_delta
    mu = gaussian.mu_of(epsilon, delta)
    assert gaussian.epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-8)
    assert gaussian.delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-5), (0.5, 1e-10), (1.0, 1e-6), (3.0, 1e-8), (8.0, 0.01)]
)
def test_against_an_independent_accountant(epsilon: float, delta: float) -> None:
    sigma = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    assert 1 / gaussian.mu_of(epsilon, delta) == pytest.approx(sigma, rel=1e-6)
    assert gaussian.epsilon_of(1 / sigma, delta) == pytest.approx(
        gaussian_mechanism.get_epsilon_gaussian(sigma, delta), rel=1e-6
    )


def test_known_numbers() -> None:
    assert 1 / gaussian.mu_of(0.5, 1e-10) == pytest.approx(11.436, abs=5e-4)
    assert gaussian.multiplier("paper", 0.5, 1e-10) == pytest.approx(19.285, abs=5e-4)
    assert gaussian.multiplier("paper", 0.5, 1e-10) * gaussian.mu_of(0.5, 1e-10) == pytest.approx(
        1.69, abs=5e-3
    )
    with mpmath.workdps(60):
        inside = mpmath.mpf(4) / 9 + mpmath.log(mpmath.sqrt(2 / mpmath.pi) / mpmath.mpf("1e-10"))
        assert gaussian.multiplier("paper", 0.5, 1e-10) == pytest.approx(
            float(4 * mpmath.sqrt(inside)), rel=1e-14
        )


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-4, 0.9999), st.floats(-80, -1e-4))
def test_classic_and_paper_are_never_below_tight(epsilon: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    tight = 1 / gaussian.mu_of(epsilon, delta)
    assert gaussian.multiplier("paper", epsilon, delta) >= tight
    assert gaussian.multiplier("classic", epsilon, delta) >= tight


def test_classic_formula() -> None:
    assert gaussian.multiplier("classic", 0.5, 1e-10) == pytest.approx(
        2 * math.sqrt(2 * math.log(1.25e10)), rel=1e-14
    )


@pytest.mark.parametrize("calibration", ["classic", "paper"])
def test_classic_and_paper_refuse_large_epsilon(calibration: gaussian.Calibration) -> None:
    for epsilon in (1.0, 2.5):
        with pytest.raises(ParameterError, match="tight"):
            gaussian.multiplier(calibration, epsilon, 1e-10)


def test_a_calibration_that_adds_too_little_noise_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the check behind classic and paper refuses a multiplier that is 1 % too
    small."""
    paper = gaussian.multiplier("paper", 0.5, 1e-10)
    monkeypatch.setattr(gaussian, "mu_of", lambda *of: 1 / (0.9999 * paper))
    assert gaussian.multiplier("paper", 0.5, 1e-10) == paper
    monkeypatch.setattr(gaussian, "mu_of", lambda *of: 1 / (1.01 * paper))
    with pytest.raises(ParameterError, match="too little noise"):
        gaussian.multiplier("paper", 0.5, 1e-10)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True, "0.5", None])
def test_bad_parameters_are_refused(bad: object) -> None:
    with pytest.raises(ParameterError):
        gaussian.mu_of(bad, 1e-10)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        gaussian.delta_of(bad, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        gaussian.epsilon_of(bad, 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.0, 1.5, math.nan, 1e-310, True, "1e-5"])
def test_bad_delta_is_refused(bad: object) -> None:
    with pytest.raises(ParameterError):
        gaussian.mu_of(0.5, bad)  # type: ignore[arg-type]


def test_extreme_parameters_stay_on_the_private_side() -> None:
    assert gaussian.delta_of(1e-3, 50.0) == 0.0  # far below every double
    assert 0 < gaussian.delta_upper(1e-3, 50.0) < 1e-320
    assert 0 < gaussian.delta_upper(1e-300, 1e300) < 1e-320
    assert gaussian.epsilon_of(1e-9, 0.5) == 0.0
    for epsilon, delta in [
        (1e-200, 1e-300),
        (1e12, 1e-10),
        (1e12, 1e-300),
        (1e300, 1e-300),
        (1e-12, 0.999),
    ]:
        mu = gaussian.mu_of(epsilon, delta)
        assert mu > 0
        assert gaussian.delta_upper(mu, epsilon) <= delta
