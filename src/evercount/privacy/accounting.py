"""exact_privacy_profile: every (ε, δ) that one mechanism keeps, from one of the two numbers. And
the way to and from `dp_accounting`, whose events and privacy loss distributions other programs use
(extra `accounting`).
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from evercount._validate import FloatArray, check_delta, check_number
from evercount.errors import MissingExtra, ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import Cost, Overlap, least_epsilon

# values of ε at which a distribution is compared with Gaussian noise; between them its δ is bounded
GRID = 4096
# the most of δ that may be left out of an event, and added to δ by whoever reads the result
FOR_ARITHMETIC = 1e-3
# what is below this of a distribution's δ is charged as δ: differences of its doubles say no more
LEAST_TAIL = 1e-14


def dp_event(what: Budget | Costed) -> Any:
    """The noise of a budget or a stream as an event of `dp_accounting`, for its accountants.

    **Guarantee.** Whatever an accountant proves of the event, for its default neighbours, holds for
    the noise and for whatever the budget protects: the event is a Gaussian mechanism of the noise's
    own μ, or for δ = 0 discrete Laplace noise on one number, whose profile no mechanism of that ε
    exceeds. A stream's `numeric_delta`, what finite arithmetic costs, is not part of it: add that
    to δ. Where it is more than a thousandth of δ, because thresholds of keys that nobody listed are
    paid from it, there is no event, and the stream is refused. Tests:
    tests/privacy/test_accounting.py::test_events_have_the_profile_of_the_noise and
    ::test_thresholds_of_keys_are_in_no_event.

    Args:
        what: A budget, for ideal noise that spends it, or a `Stream`.

    Returns:
        The event.

    Raises:
        MissingExtra: dp_accounting is not installed.
        ParameterError: It is neither, or a stream that pays for more than noise and its arithmetic.

    >>> dp_event(Budget.from_mu(0.25, 1e-6)).noise_multiplier
    4.00...
    """
    try:
        events: Any = importlib.import_module("dp_accounting.dp_event")
    except ImportError as error:
        raise MissingExtra("an event of dp_accounting", "accounting") from error
    cost = _cost_of(what, "a privacy event")
    if cost.budget.pure:
        return events.DiscreteLaplaceDpEvent(cost.budget.epsilon, 1)
    if (cost.leak or 0.0) > FOR_ARITHMETIC * cost.budget.delta:
        raise ParameterError(
            f"of the stream's delta {cost.budget.delta:g} a part of {cost.leak:.3g} pays for what "
            "is not noise, such as keys that nobody listed, and no event of dp_accounting says "
            "that. Compose the promise of the stream, "
            "privacy_loss_distribution.from_privacy_parameters("
            "DifferentialPrivacyParameters(epsilon, delta)), or its cost in a Ledger or with "
            "compose"
        )
    return events.GaussianDpEvent(1 / cost.mu)


def cost_of_pld(pld: Any, delta: float, **promise: Any) -> Cost:
    """What a mechanism costs, from its privacy loss distribution in `dp_accounting`: for a
    `Ledger`.

    **Guarantee.** The cost is Gaussian noise of the least μ found whose profile is above that of
    the distribution at every ε, and a leak for the mass at infinity: composed with others it is
    never charged less than the distribution would be (`composition.proof.md`, section 9). It is
    trusted that the distribution is one of the unit named. Test:
    tests/privacy/test_accounting.py::test_a_ledger_never_charges_less_than_the_distribution.

    Args:
        pld: A `PrivacyLossDistribution`.
        delta: The δ at which its ε is stated.
        promise: `adjacency`, `unit` and caps, as for `Budget`.

    Returns:
        The cost.

    Raises:
        ParameterError: δ is not above what the distribution has at infinity.
    """
    if not callable(getattr(pld, "get_delta_for_epsilon", None)):
        raise ParameterError(
            f"a PrivacyLossDistribution of dp_accounting is needed, not {type(pld).__name__}"
        )
    delta = check_delta(delta)
    last = 1.0
    infinite = float(pld.get_delta_for_epsilon(1e6))
    while float(pld.get_delta_for_epsilon(last)) - infinite > LEAST_TAIL:
        last *= 2
    leak = infinite + LEAST_TAIL
    if not leak < delta:
        raise ParameterError(
            f"the distribution has {infinite:.3g} at infinity, plus rounding: delta must be larger"
        )
    epsilons = np.linspace(0.0, last, GRID)
    # δ falls with ε: what it is at one value, Gaussian noise must have at the next
    needed = (
        (np.asarray(pld.get_delta_for_epsilon(epsilons[:-1])) - infinite) / (1 - leak) * (1 + 1e-9)
    )
    above_tail = needed > LEAST_TAIL
    low = 0.0
    high = 1.0

    def dominates(mu: float) -> bool:
        return bool(np.all(_gaussian(mu, epsilons[1:][above_tail]) >= needed[above_tail]))

    while not dominates(high):
        low = high
        high = 2 * high
        if high > 1e3:
            raise ParameterError("the distribution is not below any Gaussian noise")
    for _ in range(40):
        middle = (low + high) / 2
        if dominates(middle):
            high = middle
        else:
            low = middle
    budget = replace(Budget.from_mu(high, delta - leak, **promise), delta=delta)
    while (cost := Cost(budget, leak)).mu < high:  # the ε was rounded
        budget = replace(budget, epsilon=budget.epsilon * (1 + 1e-9))
    return cost


def _gaussian(mu: float, epsilons: FloatArray) -> FloatArray:
    """δ(μ, ε) without loss of digits."""
    from scipy.special import log_ndtr

    above = log_ndtr(mu / 2 - epsilons / mu)
    below = log_ndtr(-mu / 2 - epsilons / mu)
    return np.asarray(np.exp(above) * -np.expm1(np.minimum(epsilons + below - above, 0.0)))


class Costed(Protocol):
    """A stream: it knows what it costs."""

    @property
    def cost(self) -> Cost:
        """Its budget, and how much of δ no noise pays for."""


def exact_privacy_profile(
    what: Budget | Costed, *, epsilon: float | None = None, delta: float | None = None
) -> float:
    """The least δ at an ε, or the least ε at a δ, of the noise that a budget buys or a stream has.

    **Guarantee.** Of Gaussian noise it is δ(μ, ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) with the
    noise's own μ = Δ/σ, rounded up by at most the error of its evaluation (`gaussian.proof.md`, 1
    and 3): the exact profile of neighbours that use the sensitivity up, and an upper bound for all.
    For a stream the price of finite arithmetic is added: (1 + e^ε)·β, which the stream states at
    its own ε. Of a pure budget it is (e^ε₀ − e^ε)/(e^ε₀ + 1) for ε < ε₀: no mechanism that is ε₀-DP
    reveals more, and discrete Laplace noise on one number does reveal that much. Tests:
    tests/privacy/test_privacy_profile.py::test_gaussian_profile_is_the_integral and
    tests/privacy/test_privacy_profile.py::test_pure_profile_is_that_of_the_discrete_laplace_law.

    Args:
        what: A budget, for ideal noise that spends it, or a `Stream`.
        epsilon: Asks for δ at this ε ≥ 0.
        delta: Asks for ε at this δ, from 0 (pure budgets only) to below 1.

    Returns:
        The δ, or the ε.

    Raises:
        ParameterError: Not exactly one of the two is given, or it is outside its range, or a
            stream's price of finite arithmetic alone exceeds this δ.

    >>> exact_privacy_profile(Budget(1.0, 1e-6), epsilon=1.0) <= 1e-6
    True
    >>> round(exact_privacy_profile(Budget(1.0, 1e-6), delta=1e-9), 3)
    1.318
    >>> round(exact_privacy_profile(Budget(1.0, 0.0), epsilon=0.5), 4)
    0.2876
    """
    if (epsilon is None) == (delta is None):
        raise ParameterError("give either epsilon, to get delta, or delta, to get epsilon")
    cost = _cost_of(what, "a privacy profile")
    own = cost.budget.epsilon
    if epsilon is not None:
        at = check_number("epsilon", epsilon)
        if at < 0:
            raise ParameterError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")
        if not cost.budget.pure:
            delta_at = gaussian.delta_upper(cost.mu, at) + cost.leak_at(at)
            return min(1.0, delta_at * (1 + 2.0**-52))
        # (e^ε₀ − e^ε)/(e^ε₀ + 1) without large powers
        return min(1.0, max(0.0, -math.expm1(at - own) / (1 + math.exp(-own))) * (1 + 2.0**-50))
    target = check_number("delta", delta)
    if not (0 <= target < 1 and (target > 0 or cost.budget.pure)):
        raise ParameterError(
            f"delta must lie between 0 and 1, got {delta!r}; 0 is for pure budgets"
        )
    if not cost.budget.pure:
        least = least_epsilon(cost.mu, Fraction(0), target, Overlap((cost,), ()))
        if least is None:
            raise ParameterError(
                f"finite arithmetic alone costs nearly delta={delta!r} here: ask for a larger one"
            )
        return least
    inside = 1 - target * (1 + math.exp(-own))  # e^ε = e^ε₀ − δ·(e^ε₀ + 1)
    if inside <= 0:
        return 0.0
    return max(0.0, (own + math.log(inside)) * (1 + 2.0**-50) + 2.0**-50)


def _cost_of(what: Budget | Costed, name: str) -> Cost:
    """Look up what it costs; refuse costs of which only the promise is known."""
    cost: Any = getattr(what, "cost", None)
    if isinstance(what, Budget):
        cost = Cost(what, 0.0)
    if not isinstance(cost, Cost):
        raise ParameterError(f"{name} needs a Budget or a Stream, not {type(what).__name__}")
    if cost.leak is None:
        raise ParameterError(
            f"{name} needs known noise, but of this cost only the promise is known: {cost.budget!r}"
        )
    return cost
