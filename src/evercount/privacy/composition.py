"""What several mechanisms about the same events cost together: Gaussian ones, pure ones, and both side by side.

Gaussian mechanisms add as μ² (Gaussian-DP), pure ones as ε, and the two kinds together by the exact profile of a
Gaussian mechanism beside randomised response. Proof: `composition.proof.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from evercount._validate import check_delta
from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget

_ROUNDING = 2.0**-49
"""Relative head-room of the few products that make a mixed δ (`composition.proof.md`, section 4)."""
_SLACK = 1e-11
"""What the largest μ or ε leaves free of δ, so that spending it is never refused for a rounding error."""
_LEAST_DELTA = 2.0**-1022
_ROUNDS = 64
"""Steps of the search for ε; each is a whole evaluation, and with numerical errors below δ/2 four are enough."""


def spent_together(entries: Sequence[tuple[Budget, float]]) -> Budget:
    """What streams about the same events promise together, each given with its numerical δ.

    `evercount release` and the service both use this rule. The stated δ is the sum of the streams' δ (at most 1/2), and
    ε is the least that is proved for that δ. Why the sum: it is what each stream was allowed by itself, so nothing is
    traded that nobody agreed to; it is the δ of plain addition, so the stated ε shows directly what exact composition
    saves; and it does not depend on the order.

    Args:
        entries: (budget, numeric δ) of each stream: the promise of the whole stream, and the part of its δ that pays
            for finite arithmetic, as `Stream.numeric_delta` states it. One entry alone is its own promise.

    Returns:
        The budget of all of them, never above (Σε, Σδ).

    Raises:
        ParameterError: no entries, entries about different units, or deltas that add up to 1 or more and no proof of
            less.

    **Guarantee.** All releases of all entries together are (epsilon, delta)-DP: `composition.proof.md`, section 5.
    Assumes that each stream is pure where its δ is 0, else Gaussian and calibrated to δ less the numerical δ. Tests:
    `tests/privacy/test_privacy_together.py`, test_the_stated_promise_is_never_below_the_truth.

    >>> both = spent_together([(Budget(0.5, 1e-9), 0.0), (Budget(0.5, 1e-9), 0.0)])
    >>> both.epsilon < 1.0, both.delta == 2e-9
    (True, True)
    """
    if not entries:
        raise ParameterError("spent_together needs at least one budget.")
    budgets = [budget for budget, _ in entries]
    for budget in budgets:
        check_same_unit(budgets[0], budget)
    if len(budgets) == 1:
        return budgets[0]
    plain = round_up(sum((Fraction(budget.epsilon) for budget in budgets), Fraction(0)))
    summed = round_up(sum((Fraction(budget.delta) for budget in budgets), Fraction(0)))
    delta = min(
        float(sum(Decimal(repr(budget.delta)) for budget in budgets)), 0.5
    )  # as people add them: 3 × 1e-9 = 3e-9
    # a numerical δ that would cost more than the whole δ of its stream: that stream counts as its promise alone
    promised = [numeric_at(numeric, budget.epsilon, plain) > budget.delta for budget, numeric in entries]
    found = [_least(entries, delta, promised)] if any(promised) else []
    exact = min(
        (one for one in [_least(entries, delta, [False] * len(entries)), *found] if one is not None), default=None
    )
    if exact is not None and (exact < plain or delta == 0.5):
        # ε = 0 is no budget; the plain sum is above it and holds as well
        return replace(budgets[0], epsilon=exact or plain, delta=delta, calibration="tight")
    if summed >= 1:
        raise ParameterError("the streams' deltas add up to 1 or more: together they promise nothing.")
    return replace(budgets[0], epsilon=plain, delta=summed, calibration="tight")


def _least(entries: Sequence[tuple[Budget, float]], delta: float, promised: Sequence[bool]) -> float | None:
    """`least_epsilon` of all; those of `promised` count as ε of pure privacy and a leak of probability δ."""
    exact = [entry for entry, leaks in zip(entries, promised, strict=True) if not leaks]
    leaking = [budget for (budget, _), leaks in zip(entries, promised, strict=True) if leaks]
    ideal = [budget.reserve(numeric) if numeric else budget for budget, numeric in exact]
    pure = pure_sum(ideal) + sum((Fraction(budget.epsilon) for budget in leaking), Fraction(0))
    left = round_down(Fraction(delta) - sum((Fraction(budget.delta) for budget in leaking), Fraction(0)))
    return least_epsilon(
        compose_mu(map(spent_mu, ideal)), pure, left, [(numeric, budget.epsilon) for budget, numeric in exact]
    )


def least_epsilon(
    mu: float, pure: Fraction, delta: float, numerics: Sequence[tuple[float, float]] = ()
) -> float | None:
    """The least ε ≥ `pure` with δ_mix(ε) + Σ numerical δ at ε ≤ `delta`, rounded up; None where there is none.

    `numerics` are (numerical δ, the ε that it was computed at). The core of `spent_together` and of `Ledger`.

    **Guarantee.** With μ and `pure` of the ideal mechanisms the whole is (result, delta)-DP. The search rises from
    ε = 0 and never passes the least solution (`composition.proof.md`, section 5). Test:
    `tests/privacy/test_privacy_together.py::test_the_least_epsilon_is_the_least`.
    """
    epsilon = 0.0
    for _ in range(_ROUNDS):
        price = sum((Fraction(numeric_at(numeric, own, epsilon)) for numeric, own in numerics), Fraction(0))
        left = round_down(Fraction(delta) - price)
        if left < (_LEAST_DELTA if mu else 0.0):
            return None
        following = epsilon_of(mu, pure, left)
        if following <= epsilon:
            return following
        epsilon = following
    return None


def numeric_at(numeric: float, own: float, epsilon: float) -> float:
    """A numerical δ that was computed at the ε `own`, restated at a larger `epsilon`: (1 + e^ε)/(1 + e^own) as much.

    Rounded up; never less than it was (`mechanisms/exact/exact_noise.proof.md`, theorem).
    """
    if not numeric or epsilon <= own:
        return numeric
    ratio = math.exp(min(epsilon - own, 700.0)) * (1 + math.exp(-epsilon)) / (1 + math.exp(-own))  # without overflow
    return min(1.0, numeric * ratio * (1 + 1e-12))


def compose(budgets: Iterable[Budget], delta: float | None = None) -> Budget:
    """What several streams about the same events cost together, stated at `delta` (default: the largest of theirs).

    All parts must name the same adjacency and unit.

    **Guarantee.** The joint release is (result.epsilon, result.delta)-DP: `composed_epsilon`. Tests:
    `tests/privacy/test_privacy_ledger.py::test_compose_against_oracle`, `test_compose_takes_pure_budgets`.

    Args:
        budgets: what each stream promises.
        delta: the δ at which the result is stated; None for the largest of theirs.

    Returns:
        The budget that all of them together keep.

    Raises:
        ParameterError: there is no budget, they protect different things, or δ is not legal.

    >>> round(compose([Budget(0.5, 1e-9), Budget(0.5, 1e-9)]).epsilon, 4)
    0.7176
    """
    parts = list(budgets)
    if not parts:
        raise ParameterError("compose needs at least one budget.")
    delta = max(part.delta for part in parts) if delta is None else delta
    epsilon = composed_epsilon(parts, delta)
    if epsilon == 0:
        raise ParameterError(f"at delta={delta!r} these budgets cost no epsilon together: choose a smaller delta.")
    return replace(parts[0], epsilon=epsilon, delta=float(delta), calibration="tight")


def composed_epsilon(budgets: Iterable[Budget], delta: float) -> float:
    """The least ε ≥ Σε of the pure budgets at which all of them together are (ε, delta)-DP, rounded up.

    **Guarantee.** As that of `Ledger`, without numerical error. delta=0 is legal where all budgets are pure. Test:
    `tests/privacy/test_privacy_ledger.py::test_composed_epsilon`.
    """
    parts = list(budgets)
    if not parts:
        raise ParameterError("composed_epsilon needs at least one budget.")
    for part in parts:
        check_same_unit(parts[0], part)
    mu = compose_mu(spent_mu(part) for part in parts)
    return epsilon_of(mu, pure_sum(parts), check_delta(delta, pure=mu == 0))


def mixed_delta_upper(mu: float, pure: Fraction, epsilon: float) -> float:
    """An upper bound of δ(ε) of a Gaussian mechanism of that μ (0.0: none) beside a pure one of ε_p = `pure` ≤ ε.

    **Guarantee.** Not below p·δ(μ, ε − ε_p) + (1 − p)·δ(μ, ε + ε_p), p = 1/(1 + e^−ε_p), which is the exact δ where the
    pure mechanism is randomised response (`composition.proof.md`, sections 2 and 4). Test:
    `tests/privacy/test_privacy_ledger.py::test_mixed_profile_against_oracle`.
    """
    if not 0 <= pure <= Fraction(epsilon):
        raise ParameterError(f"the pure part must lie between 0 and epsilon={epsilon!r}, not at {float(pure)!r}.")
    if mu == 0:
        return 0.0
    if pure == 0:
        return gaussian.delta_upper(mu, epsilon)
    near = gaussian.delta_upper(mu, round_down(Fraction(epsilon) - pure))
    far = gaussian.delta_upper(mu, round_down(Fraction(epsilon) + pure))
    share = min(1.0, (1 + _ROUNDING) / (1 + math.exp(-round_up(pure))))
    return min(1.0, math.nextafter((share * near + (1 - share) * far) * (1 + _ROUNDING), 1.0))


def epsilon_of(mu: float, pure: Fraction, delta: float) -> float:
    """The least ε ≥ `pure` with a mixed δ of at most `delta`, rounded up."""
    if mu == 0:
        return round_up(pure)
    if pure == 0:
        return gaussian.epsilon_of(mu, delta)
    # The upper end is ε of both parts added up, which holds by itself: mixed δ(ε_p + ε_g) ≤ δ(μ, ε_g).
    low, high = round_up(pure), round_up(pure + Fraction(gaussian.epsilon_of(mu, delta)))
    if mixed_delta_upper(mu, pure, low) <= delta:
        return low
    while low < (middle := low + 0.5 * (high - low)) < high:
        low, high = (low, middle) if mixed_delta_upper(mu, pure, middle) <= delta else (middle, high)
    return high


def largest_mu(total: Budget, pure: Fraction, delta: float) -> float:
    """A μ that leaves a mixed δ of at most `delta` at the total's ε: the largest, but for `_SLACK`."""
    high = gaussian.mu_of(total.epsilon, delta)
    if pure == 0:
        return high
    apart = round_down(Fraction(total.epsilon) - pure)
    low = gaussian.mu_of(apart, delta) if apart > 0 else delta  # δ(μ, 0) < μ
    while low < (middle := low + 0.5 * (high - low)) < high:
        fits = mixed_delta_upper(middle, pure, total.epsilon) * (1 + _SLACK) <= delta
        low, high = (middle, high) if fits else (low, middle)
    return low


def largest_pure(total: Budget, mu: float, pure: Fraction, delta: float) -> Fraction:
    """The largest Σε of pure entries that fits beside μ, but for `_SLACK`; at least `pure`, which fits."""
    high = Fraction(total.epsilon)
    if mu == 0:
        return high
    low, top = round_up(pure), total.epsilon
    if Fraction(low) >= high:
        return pure
    while low < (middle := low + 0.5 * (top - low)) < top:
        fits = mixed_delta_upper(mu, Fraction(middle), total.epsilon) * (1 + _SLACK) <= delta
        low, top = (middle, top) if fits else (low, middle)
    return Fraction(low)


def spent_mu(budget: Budget) -> float:
    """μ of a Gaussian budget; 0.0 for a pure one, which spends ε alone."""
    return 0.0 if budget.pure else budget.mu


def pure_sum(budgets: Iterable[Budget]) -> Fraction:
    """Σε of the pure ones, exact."""
    return sum((Fraction(budget.epsilon) for budget in budgets if budget.pure), Fraction(0))


def round_down(exact: Fraction) -> float:
    """The largest double that is not above."""
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, -math.inf)


def round_up(exact: Fraction) -> float:
    """The least double that is not below."""
    return -round_down(-exact)


def compose_mu(mus: Iterable[float]) -> float:
    """√Σμ²: several Gaussian mechanisms on the same data, one after the other, are exactly one of this μ."""
    return math.hypot(*mus)


def check_same_unit(one: Budget, other: Budget) -> None:
    """Refuse to add budgets which protect different things."""
    first = (one.adjacency, one.unit, one.max_events)
    second = (other.adjacency, other.unit, other.max_events)
    if first != second:
        raise ParameterError(
            f"budgets compose only for the same adjacency, unit and max_events: {first} and {second} differ."
        )
