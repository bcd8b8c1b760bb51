"""Events and privacy loss distributions of dp_accounting: never below what our noise, or theirs,
leaks."""

from __future__ import annotations

import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as distributions

from evercount import Budget, Count, DiscoveredKeys, Ledger, Stream
from evercount.errors import ParameterError
from evercount.privacy import compose, exact_privacy_profile
from evercount.privacy.accounting import cost_of_pld, dp_event


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_events_have_the_profile_of_the_noise(delta):
    budget = Budget(1.0, delta)
    accountant = PLDAccountant().compose(dp_event(budget))
    for epsilon in (0.3, 0.7, 0.99):
        theirs = accountant.get_delta(epsilon)
        assert theirs == pytest.approx(exact_privacy_profile(budget, epsilon=epsilon), rel=2e-3)
    stream = Stream(Count(), Budget(1.0, 1e-6), 24, "balanced")
    assert dp_event(stream).noise_multiplier == pytest.approx(1 / stream.cost.mu)
    with pytest.raises(ParameterError, match="Budget or a Stream"):
        dp_event("stream")


def test_thresholds_of_keys_are_in_no_event():
    """Half of δ pays for keys that appear: at 1e-8 nothing holds, and the noise alone would have a
    small ε there."""
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-6), 30)
    assert stream.numeric_delta >= 4e-7
    with pytest.raises(ParameterError, match="delta=1e-08"):
        exact_privacy_profile(stream, delta=1e-8)
    noise_alone = PLDAccountant().compose(dp_event(Budget.from_mu(stream.cost.mu, 1e-8)))
    assert noise_alone.get_epsilon(1e-8) < 2.0
    with pytest.raises(ParameterError, match=r"keys that nobody listed.*from_privacy_parameters"):
        dp_event(stream)
    promise = distributions.from_privacy_parameters(
        distributions.common.DifferentialPrivacyParameters(1.0, 1e-6)
    )
    assert promise.get_epsilon_for_delta(1e-8) == float("inf")


def test_a_ledger_never_charges_less_than_the_distribution():
    """Three kinds, each alone and with Gaussian noise; planted: a cost of a tenth less is below the
    truth."""
    kinds = [
        distributions.from_gaussian_mechanism(4.0),
        distributions.from_laplace_mechanism(2.0),
        distributions.from_privacy_parameters(
            distributions.common.DifferentialPrivacyParameters(0.3, 1e-8)
        ),
    ]
    for pld in kinds:
        cost = cost_of_pld(pld, 1e-6)
        assert cost.budget.epsilon >= pld.get_epsilon_for_delta(1e-6)
        both = compose([cost, Budget(0.5, 1e-9)], 2e-6).epsilon
        noise = Budget(0.5, 1e-9).noise_multiplier()
        truth = pld.compose(distributions.from_gaussian_mechanism(noise)).get_epsilon_for_delta(
            2e-6
        )
        assert both >= truth * (1 - 1e-6)
    gaussian = cost_of_pld(kinds[0], 1e-6)
    assert 0.25 <= gaussian.mu < 0.26, "and for Gaussian noise it is close"
    assert 0.9 * gaussian.budget.epsilon < kinds[0].get_epsilon_for_delta(1e-6)
    Ledger(Budget(2.0, 1e-5)).spend("theirs", gaussian)
    with pytest.raises(ParameterError, match="at infinity"):
        cost_of_pld(kinds[2], 1e-9)
    with pytest.raises(ParameterError, match="PrivacyLossDistribution"):
        cost_of_pld(1.0, 1e-9)
