"""What several mechanisms about the same events cost together: Gaussian ones, pure ones, and both side by side.

Gaussian mechanisms add as μ² (Gaussian-DP), pure ones as ε, and the two kinds together by the exact profile of a
Gaussian mechanism beside randomised response. Proof: `composition.proof.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from evercount._validate import check_delta, check_number
from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget

_ROUNDING = 2.0**-49
"""Relative head-room of the few products that make a mixed δ (`composition.proof.md`, section 4)."""
_SLACK = 1e-11
"""What the largest μ leaves free of δ, which is more than the evaluation's own error."""
_LEAST_DELTA = 2.0**-1022
_ROUNDS = 64
"""Steps of the search for ε; each is a whole evaluation, and with numerical errors below δ/2 four are enough."""


@dataclass(frozen=True)
class Cost:
    """What one stream costs: its promise, and how much of its δ no noise pays for.

    A budget alone does not say how it is kept. Without `leak` the stream counts as its promise alone, which is true of
    every mechanism that keeps (ε, δ). With it the stream is Gaussian noise calibrated to δ less `leak`, and costs less
    next to others. `Stream.cost` knows it.

    Args:
        budget: The promise (ε, δ) of the whole stream.
        leak: The part of δ that pays for something other than noise (finite arithmetic, keys that appear), as
            `Stream.numeric_delta` states it; 0.0 for Gaussian noise and nothing else; None: not known.

    Raises:
        ParameterError: `leak` is negative, or leaves nothing of δ for the noise.

    **Guarantee.** A `Budget` in place of a cost is never charged less than a mechanism that keeps it can leak. Test:
    `tests/privacy/test_privacy_together.py::test_twenty_streams_that_list_keys`.

    >>> Cost(Budget(0.5, 1e-9), leak=0.0).mu > 0 == Cost(Budget(0.5, 1e-9)).mu
    True
    """

    budget: Budget
    leak: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise ParameterError(f"a cost is that of a Budget, not {type(self.budget).__name__}.")
        if self.leak is not None:
            object.__setattr__(self, "leak", check_number("leak", self.leak))
            if self.leak or not self.budget.pure:
                self.budget.reserve(self.leak)
        elif self.budget.pure:
            object.__setattr__(self, "leak", 0.0)

    @property
    def plain(self) -> bool:
        """Whether it adds up as (ε, δ): it is pure, or nothing is known but its promise."""
        return self.leak is None or self.budget.pure

    @property
    def mu(self) -> float:
        """μ of its Gaussian noise; 0.0 where it adds up as (ε, δ)."""
        if self.leak is None or self.budget.pure:
            return 0.0
        return (self.budget.reserve(self.leak) if self.leak else self.budget).mu

    def leak_at(self, epsilon: float) -> float:
        """What it leaks where it counts as its noise.

        Args:
            epsilon: The ε of all streams together; the leak costs (1 + e^ε)/(1 + e^own) as much there.

        Returns:
            The part of δ, rounded up.
        """
        return numeric_at(self.leak or 0.0, self.budget.epsilon, epsilon)


def as_cost(given: Cost | Budget) -> Cost:
    """The cost itself; a budget is its promise alone."""
    return given if isinstance(given, Cost) else Cost(given)


def compose(costs: Iterable[Cost | Budget], delta: float | None = None) -> Budget:
    """What streams about the same events promise together, if nobody chose them after seeing releases.

    `evercount release` and the service state this. The stated δ is the sum of the streams' δ (at most 1/2), and ε is
    the least that is proved for that δ. Why the sum: it is what each stream was allowed by itself, so nothing is traded
    that nobody agreed to; it is the δ of plain addition, so the stated ε shows directly what exact composition saves;
    and it does not depend on the order.

    Args:
        costs: `Stream.cost` of each stream; a `Budget` counts as its promise alone. One alone is its own promise.
        delta: Another δ at which the result is stated.

    Returns:
        The budget that all of them together keep, never above (Σε, Σδ) where no `delta` is given.

    Raises:
        ParameterError: no costs, costs about different units, deltas that add up to 1 or more and no proof of less, or
            a `delta` at which nothing is proved.

    **Guarantee.** All releases of all streams together are (epsilon, delta)-DP, also where inputs depend on earlier
    releases: `composition.proof.md`, section 5. Assumes that the streams themselves were chosen without looking at
    releases; where they were, a total that was fixed before holds (`Ledger`), and a number stated afterwards does not.
    Tests: `tests/privacy/test_privacy_together.py`, test_the_stated_promise_is_never_below_the_truth.

    >>> stream = Cost(Budget(0.5, 1e-9), leak=0.0)
    >>> both = compose([stream, stream])
    >>> round(both.epsilon, 4), both.delta
    (0.7013, 2e-09)
    >>> compose([Budget(0.5, 1e-9), Budget(0.5, 1e-9)]).epsilon
    1.0
    """
    parts = [as_cost(cost) for cost in costs]
    if not parts:
        raise ParameterError("compose needs at least one cost.")
    budgets = [part.budget for part in parts]
    for budget in budgets:
        check_same_unit(budgets[0], budget)
    if len(parts) == 1 and delta is None:
        return budgets[0]
    plain = round_up(sum((Fraction(budget.epsilon) for budget in budgets), Fraction(0)))
    summed = sum((Fraction(budget.delta) for budget in budgets), Fraction(0))
    # as people add them: 3 × 1e-9 = 3e-9
    usual = min(float(sum(Decimal(repr(budget.delta)) for budget in budgets)), 0.5)
    stated = usual if delta is None else check_delta(delta, pure=True)
    # a leak that would cost more than the whole δ of its stream: that stream counts as its promise alone
    promised = [part.leak is None or part.leak_at(plain) > part.budget.delta for part in parts]
    ways = {tuple(part.leak is None for part in parts), tuple(promised)}
    found = [one for one in (_least(parts, stated, way) for way in ways) if one is not None]
    exact = min(found, default=None)
    if delta is not None:
        if summed <= Fraction(stated):
            exact = plain if exact is None else min(exact, plain)
        if not exact:
            why = "nothing is proved" if exact is None else "they cost no epsilon"
            raise ParameterError(f"at delta={delta!r} {why} for these streams together: choose another delta.")
        return replace(budgets[0], epsilon=exact, delta=stated, calibration="tight")
    if exact is not None and (exact < plain or stated == 0.5):
        # ε = 0 is not a budget; the plain sum is above it and holds as well
        return replace(budgets[0], epsilon=exact or plain, delta=stated, calibration="tight")
    if round_up(summed) >= 1:
        raise ParameterError("the streams' deltas add up to 1 or more: together they promise nothing.")
    return replace(budgets[0], epsilon=plain, delta=round_up(summed), calibration="tight")


def _least(parts: Sequence[Cost], delta: float, promised: Sequence[bool]) -> float | None:
    """`least_epsilon` of all; those of `promised` count as ε of pure privacy and a leak of probability δ."""
    noise = [part for part, leaks in zip(parts, promised, strict=True) if not leaks]
    leaking = [part.budget for part, leaks in zip(parts, promised, strict=True) if leaks]
    pure = sum((Fraction(one.epsilon) for one in (*leaking, *(p.budget for p in noise if p.plain))), Fraction(0))
    left = round_down(Fraction(delta) - sum((Fraction(budget.delta) for budget in leaking), Fraction(0)))
    return least_epsilon(compose_mu(part.mu for part in noise), pure, left, noise)


def least_epsilon(mu: float, pure: Fraction, delta: float, leaking: Sequence[Cost] = ()) -> float | None:
    """The least ε ≥ `pure` with δ_mix(ε) + Σ leaks at ε ≤ `delta`, rounded up; None where there is none.

    **Guarantee.** With μ and `pure` of the ideal mechanisms the whole is (result, delta)-DP. The search rises from
    ε = 0 and never passes the least solution (`composition.proof.md`, section 5). Test:
    `tests/privacy/test_privacy_together.py::test_the_least_epsilon_is_the_least`.
    """
    epsilon = 0.0
    for _ in range(_ROUNDS):
        price = sum((Fraction(cost.leak_at(epsilon)) for cost in leaking), Fraction(0))
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


def largest_mu(epsilon: float, pure: Fraction, delta: float) -> float:
    """A μ that leaves a mixed δ of at most `delta` at ε: the largest, but for `_SLACK`."""
    high = gaussian.mu_of(epsilon, delta)
    if pure == 0:
        return high
    apart = round_down(Fraction(epsilon) - pure)
    low = gaussian.mu_of(apart, delta) if apart > 0 else delta  # δ(μ, 0) < μ
    while low < (middle := low + 0.5 * (high - low)) < high:
        fits = mixed_delta_upper(middle, pure, epsilon) * (1 + _SLACK) <= delta
        low, high = (middle, high) if fits else (low, middle)
    return low


def round_down(exact: Fraction) -> float:
    """The largest double that is not above."""
    near = float(exact)
    return near if Fraction(near) <= exact else math.nextafter(near, -math.inf)


def round_up(exact: Fraction) -> float:
    """The least double that is not below."""
    return -round_down(-exact)


def compose_mu(mus: Iterable[float]) -> float:
    """√Σμ²: several Gaussian mechanisms on the same data are exactly one of this μ (`gaussian.proof.md`, section 5)."""
    return math.hypot(*mus)


def check_same_unit(one: Budget, other: Budget) -> None:
    """Refuse to add budgets which protect different things."""
    if one.neighbours != other.neighbours:
        raise ParameterError(
            f"budgets compose only for the same adjacency, unit and period: {one.neighbours} and {other.neighbours} "
            "differ."
        )
