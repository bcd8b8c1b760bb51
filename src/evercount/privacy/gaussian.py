"""The privacy of one Gaussian mechanism: convert between δ, ε and μ = Δ/σ, always rounding to the
private side.

A Gaussian mechanism with sensitivity Δ and noise std σ is exactly μ-Gaussian-DP with μ = Δ/σ, and
satisfies (ε, δ)-DP if and only if δ(μ, ε) ≤ δ, where

    δ(μ, ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)      (Balle and Wang 2018; Dong, Roth and Su 2019)

With u = ε/μ, h = μ/2, a = h − u and the Mills ratio m(x) = (1 − Φ(x))/φ(x) the identity φ(a) = e^ε
φ(−h − u) gives

    δ = φ(a)·D,   D = m(u−h) − m(u+h) = ∫₀^∞ 2 sinh(h s) e^{−u s − s²/2} ds

so e^ε never appears. For small h the difference of the two m would cancel, and the integral, whose
integrand is positive, is used. `gaussian.proof.md` derives this and bounds the float error that the
rounding must cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from evercount._validate import check_delta, check_positive
from evercount.errors import ParameterError

Calibration = Literal["tight", "classic", "paper"]

_MACHINE_EPSILON = 2.0**-52
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# up to this h the two Mills ratios are too close, and the integral is used
_SMALLEST_H_BY_MILLS = 0.5
_FARTHEST = 1e6  # beyond this many standard deviations δ is taken as 0
_QUADRATURE_NODES = 64  # Gauss-Legendre points of the integral


class _Evaluated(NamedTuple):
    """log δ and a bound on its absolute error (so a bound on the relative error of δ)."""

    log_delta: float
    error: float


@cache
def _legendre() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Nodes and weights of Gauss–Legendre quadrature on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_QUADRATURE_NODES)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _mills(x: float) -> float:
    """Compute the Mills ratio (1 − Φ(x))/φ(x)."""
    from scipy.special import erfcx  # imported here: it takes longer than all the rest of start-up

    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def _evaluate(mu: float, epsilon: float) -> _Evaluated:
    """Log δ(μ, ε) with its error bound; see `gaussian.proof.md` for every term of the bound."""
    u = epsilon / mu
    h = mu / 2
    a = h - u
    if u == math.inf or -a > _FARTHEST + 4 * _MACHINE_EPSILON * u:
        return _Evaluated(-math.inf, 0.0)  # δ < exp(−a²/2) is far below the smallest double
    cancellation = 1.0
    if h <= _SMALLEST_H_BY_MILLS:
        nodes, weights = _legendre()
        upper = min(10.5, 60.0 / u) if u > 0 else 10.5  # the integrand is negligible beyond
        s = upper * nodes
        difference = upper * float(
            np.dot(weights, 2.0 * np.sinh(h * s) * np.exp(-s * (u + 0.5 * s)))
        )
        log_delta = -0.5 * a * a - _HALF_LOG_2PI + math.log(difference)
    elif a <= 0:
        first = _mills(-a)
        second = _mills(u + h)
        difference = first - second
        cancellation = (first + second) / difference
        log_delta = -0.5 * a * a - _HALF_LOG_2PI + math.log(difference)
    else:  # here Φ(a) ≥ 1/2, and the Mills ratio at −a could overflow
        loss = math.exp(-0.5 * a * a - _HALF_LOG_2PI) * _mills(u + h)
        gain = 0.5 * math.erfc(-a / math.sqrt(2))
        cancellation = (gain + loss) / (gain - loss)
        log_delta = math.log(gain - loss)
    spread = (1.0 + abs(a)) * (u + h)
    error = _MACHINE_EPSILON * (64.0 * cancellation + 4.0 * (a * a + spread) + 4.0 * abs(log_delta))
    return _Evaluated(min(log_delta, 0.0), error)


def _surely(mu: float, epsilon: float, log_delta: float, errors: int) -> bool:
    """Whether δ(μ, ε) is not larger, even if its evaluation errs by so many times its error
    bound."""
    evaluated = _evaluate(mu, epsilon)
    return evaluated.log_delta + errors * evaluated.error <= log_delta


def delta_of(mu: float, epsilon: float) -> float:
    """δ(μ, ε), the smallest δ of the Gaussian mechanism with Δ/σ = `mu`; the nearest value. Stable
    for δ down to the smallest normal double (2e-308); below that it returns 0.0. To claim privacy,
    use `delta_upper`."""
    return math.exp(_evaluate(check_positive("mu", mu), _at_least_zero(epsilon)).log_delta)


def delta_upper(mu: float, epsilon: float) -> float:
    """An upper bound of δ(μ, ε) that includes the float error of its own evaluation.

    **Guarantee.** The true δ(μ, ε) is not larger than the result (`gaussian.proof.md`, section 3).
    Assumes that `erfcx`, `erfc` and `exp` are accurate to 8 units in the last place. Test:
    `tests/privacy/test_privacy_gaussian.py::test_delta_upper_is_an_upper_bound`.
    """
    evaluated = _evaluate(check_positive("mu", mu), _at_least_zero(epsilon))
    return min(1.0, math.nextafter(math.exp(evaluated.log_delta + evaluated.error), 1.0))


@lru_cache(maxsize=1024, typed=True)  # typed: True == 1.0, but True must be refused
def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ = Δ/σ that (ε, δ)-DP allows, rounded to the private side.

    **Guarantee.** δ(mu_of(ε, δ), ε) ≤ δ in exact arithmetic: after the root search the result is
    stepped down until the evaluated δ plus *twice* its error bound is below δ (`gaussian.proof.md`,
    section 4). The second half of the margin is there so that a ledger which adds up parts is not
    refused for a rounding error. Any ε > 0 and any δ in (0, 1) that is a normal double. Test:
    `tests/privacy/test_privacy_gaussian.py::test_mu_of_is_on_the_private_side`.

    >>> round(mu_of(epsilon=0.5, delta=1e-10), 5)
    0.08744
    """
    epsilon = check_positive("epsilon", epsilon)
    target = math.log(check_delta(delta))

    def excess(log_mu: float) -> float:
        return _evaluate(math.exp(log_mu), epsilon).log_delta - target

    # δ(μ, ε) ≤ 2Φ(μ/2) − 1 < μ, so μ = δ is private for every ε. The upper end grows until it is
    # not private.
    low = target - 1.0
    high = math.log(math.sqrt(2 * epsilon) + 1.0)
    while excess(high) <= 0:
        high += 1.0
    mu = math.exp(_root(excess, low, high))
    step = 4 * _MACHINE_EPSILON
    while not _surely(mu, epsilon, target, 2):
        mu *= 1 - step
        step *= 2
    return mu


@lru_cache(maxsize=1024, typed=True)  # typed: True == 1.0, but True must be refused
def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(μ, ε) ≤ δ, rounded up; 0.0 when δ alone already covers the
    mechanism.

    **Guarantee.** The mechanism with Δ/σ = `mu` is (epsilon_of(mu, delta), delta)-DP; the margin is
    that of `delta_upper`. Test:
    `tests/privacy/test_privacy_gaussian.py::test_epsilon_of_is_on_the_private_side`.
    """
    mu = check_positive("mu", mu)
    target = math.log(check_delta(delta))

    if _surely(mu, 0.0, target, 1):
        return 0.0

    def excess(epsilon: float) -> float:
        return _evaluate(mu, epsilon).log_delta - target

    # δ(μ, ε) ≤ Φ(−(ε/μ − μ/2)) ≤ exp(−(ε/μ − μ/2)²/2), which is ≤ δ at the upper end; + 1.0 covers
    # rounding.
    high = mu * (mu / 2 + math.sqrt(-2 * target) + 1.0)
    epsilon = _root(excess, 0.0, high) if excess(0.0) > 0 else math.ulp(0.0)
    step = 4 * _MACHINE_EPSILON
    while not _surely(mu, epsilon, target, 1):
        epsilon += max(step * high, math.ulp(epsilon))
        step *= 2
    return epsilon


def multiplier(calibration: Calibration, epsilon: float, delta: float) -> float:
    """σ/Δ under a calibration. "tight": 1/`mu_of`, rounded up. The others are proved for ε < 1
    only: "classic" is √(2 ln(1.25/δ))/ε (Dwork and Roth 2014, Theorem A.1), "paper" is C_{ε,δ} =
    (2/ε)√(4/9 + ln(√(2/π)/δ)), about 1.7 times larger than needed.

    **Guarantee.** Not smaller than the tight multiplier at the same (ε, δ): checked at every call.
    Test: `tests/privacy/test_privacy_gaussian.py::test_classic_and_paper_are_never_below_tight`.
    """
    mu = mu_of(epsilon, delta)
    if calibration == "tight":
        return round_up(1 / Fraction(mu))
    if epsilon >= 1:
        raise ParameterError(
            f"calibration {calibration!r} is proved for epsilon < 1 only, and epsilon is "
            f"{epsilon!r}. Use calibration='tight', which holds for every epsilon and adds less "
            "noise."
        )
    if calibration == "classic":
        ratio = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    else:
        ratio = 2 / epsilon * math.sqrt(4 / 9 + math.log(math.sqrt(2 / math.pi) / delta))
    if ratio * mu < 1:
        raise ParameterError(
            f"calibration {calibration!r} would add too little noise for epsilon={epsilon!r}, "
            f"delta={delta!r}. Use calibration='tight'."
        )
    return ratio


def round_down(exact: Fraction) -> float:
    """The largest double that is not above."""
    near = float(exact)
    if Fraction(near) <= exact:
        return near
    return math.nextafter(near, -math.inf)


def round_up(exact: Fraction) -> float:
    """The least double that is not below."""
    return -round_down(-exact)


def root_down(square: Fraction) -> float:
    """The largest double whose square is not above, but for one or two units in the last place."""
    root = math.sqrt(round_down(square))
    while Fraction(root) ** 2 > square:
        root = math.nextafter(root, 0.0)
    return root


def _at_least_zero(epsilon: float) -> float:
    """Check an ε that may be 0."""
    if epsilon == 0:
        return 0.0
    return check_positive("epsilon", epsilon)


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where `excess` changes sign, on the side where it is ≤ 0. The caller then steps further, to
    cover rounding. Bisection, because it needs no smoothness and ends at neighbouring doubles after
    about 60 evaluations."""
    low_is_negative = excess(low) <= 0
    while low < (middle := low + 0.5 * (high - low)) < high and high - low > _MACHINE_EPSILON * abs(
        middle
    ):
        if (excess(middle) <= 0) == low_is_negative:
            low = middle
        else:
            high = middle
    return low if low_is_negative else high
