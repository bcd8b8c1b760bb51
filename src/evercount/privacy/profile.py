"""exact_privacy_profile: every (ε, δ) that one mechanism keeps, from one of the two numbers."""

from __future__ import annotations

import math
from typing import Protocol

from evercount._validate import check_number
from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import Cost

MOST_STEPS = 200


class Costed(Protocol):
    """A stream: it knows what it costs."""

    @property
    def cost(self) -> Cost:
        """Its budget, and how much of δ no noise pays for."""


def exact_privacy_profile(what: Budget | Costed, *, epsilon: float | None = None, delta: float | None = None) -> float:
    """The least δ at an ε, or the least ε at a δ, of the noise that a budget buys or a stream has.

    **Guarantee.** Of Gaussian noise it is δ(μ, ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) with the noise's own μ = Δ/σ,
    rounded up by at most the error of its evaluation (`gaussian.proof.md`, 1 and 3): the exact profile of neighbours
    that use the sensitivity up, and an upper bound for all. For a stream the price of finite arithmetic is added:
    (1 + e^ε)·β, which the stream states at its own ε. Of a pure budget it is (e^ε₀ − e^ε)/(e^ε₀ + 1) for ε < ε₀: no
    mechanism that is ε₀-DP reveals more, and discrete Laplace noise on one number does reveal that much. Tests:
    tests/privacy/test_privacy_profile.py::test_gaussian_profile_is_the_integral and
    tests/privacy/test_privacy_profile.py::test_pure_profile_is_that_of_the_discrete_laplace_law.

    Args:
        what: A budget, for ideal noise that spends it, or a `Stream`.
        epsilon: Asks for δ at this ε ≥ 0.
        delta: Asks for ε at this δ, from 0 (pure budgets only) to below 1.

    Returns:
        The δ, or the ε.

    Raises:
        ParameterError: Not exactly one of the two is given, or it is outside its range, or a stream's price of finite
            arithmetic alone exceeds this δ.

    >>> exact_privacy_profile(Budget(1.0, 1e-6), epsilon=1.0) <= 1e-6
    True
    >>> round(exact_privacy_profile(Budget(1.0, 1e-6), delta=1e-9), 3)
    1.318
    >>> round(exact_privacy_profile(Budget(1.0, 0.0), epsilon=0.5), 4)
    0.2876
    """
    if (epsilon is None) == (delta is None):
        raise ParameterError("give epsilon, to learn delta, or delta, to learn epsilon: one of them")
    cost = Cost(what, 0.0) if isinstance(what, Budget) else getattr(what, "cost", None)
    if not isinstance(cost, Cost):
        raise ParameterError(f"a privacy profile is that of a Budget or a Stream, not of {type(what).__name__}")
    if epsilon is not None:
        asked = check_number("epsilon", epsilon)
        if not 0 <= asked < math.inf:
            raise ParameterError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")
        return _delta_at(cost, asked)
    assert delta is not None
    asked = check_number("delta", delta)
    if not (0 <= asked < 1 and (asked > 0 or cost.budget.pure)):
        raise ParameterError(f"delta must lie between 0 and 1, got {delta!r}; 0 is for pure budgets")
    return _epsilon_at(cost, asked)


def _delta_at(cost: Cost, epsilon: float) -> float:
    budget = cost.budget
    if budget.pure:
        if epsilon >= budget.epsilon:
            return 0.0
        # (e^ε₀ − e^ε)/(e^ε₀ + 1) without large powers
        exact = -math.expm1(epsilon - budget.epsilon) / (1 + math.exp(-budget.epsilon))
        return min(1.0, exact * (1 + 2.0**-50))
    return min(1.0, (gaussian.delta_upper(_mu(cost), epsilon) + _price(cost, epsilon)) * (1 + 2.0**-52))


def _epsilon_at(cost: Cost, delta: float) -> float:
    budget = cost.budget
    if budget.pure:
        # e^ε = e^ε₀ − δ·(e^ε₀ + 1)
        inside = 1 - delta * (1 + math.exp(-budget.epsilon))
        return 0.0 if inside <= 0 else max(0.0, (budget.epsilon + math.log(inside)) * (1 + 2.0**-50) + 2.0**-50)
    epsilon = 0.0
    for _ in range(MOST_STEPS):  # the price grows with ε, and ε with the price
        left = delta - _price(cost, epsilon)
        if left <= 0:
            raise ParameterError(f"finite arithmetic alone costs more than delta={delta!r} here: ask for a larger one")
        again = gaussian.epsilon_of(_mu(cost), left * (1 - 2.0**-50))
        if again <= epsilon:
            return epsilon
        epsilon = again * (1 + 2.0**-50)
    raise ParameterError(f"finite arithmetic costs nearly all of delta={delta!r} here: ask for a larger one")


def _mu(cost: Cost) -> float:
    """That of the noise: a stream's is calibrated to what the leak leaves of δ."""
    return (cost.budget.reserve(cost.leak) if cost.leak else cost.budget).mu


def _price(cost: Cost, epsilon: float) -> float:
    """What finite arithmetic costs at another ε: (1 + e^ε)·β, never less than what is stated."""
    if not cost.leak:
        return 0.0
    more = epsilon - cost.budget.epsilon
    return cost.leak if more <= 0 else min(1.0, cost.leak * math.exp(min(more, 700.0)))
