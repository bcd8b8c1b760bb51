"""What several mechanisms about the same events cost together: Gaussian ones, pure ones, and both
side by side.

Gaussian mechanisms add as μ² (Gaussian-DP), pure ones as ε, and the two kinds together by the exact
profile of a Gaussian mechanism next to randomised response. Those over disjoint time ranges cost
the largest of their profiles where every protected unit lies in one range. Proof:
`composition.proof.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from evercount._validate import check_delta, check_number
from evercount.errors import ParameterError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.gaussian import round_down, round_up
from evercount.privacy.guarantee_text import MANUAL
from evercount.privacy.time_range import (
    TimeRange,
    largest_overlaps,
    lies_in_one_range,
    share_periods,
)

# relative head-room of the few products that make a mixed δ (`composition.proof.md`, section 4)
_ROUNDING = 2.0**-49
LEAST_DELTA = 2.0**-1022
_ROUNDS = 64  # steps of the search for ε; with numerical errors below δ/2 four are enough


@dataclass(frozen=True)
class Cost:
    """What one stream costs: its promise, and how much of its δ no noise pays for.

    Without `leak` the stream counts as its promise alone, which is true of every mechanism that
    keeps (ε, δ). With it the stream is Gaussian noise calibrated to δ less `leak`, and costs less
    next to others. `Stream.cost` knows it.

    Args:
        budget: The promise (ε, δ) of the whole stream.
        leak: The part of δ that pays for something other than noise (finite arithmetic, keys that
            appear), as `Stream.numeric_delta` states it; 0.0 for Gaussian noise and nothing else;
            None: not known.
        during: The time range whose events the stream counts. None: not known, so that it may meet
            every event. Only for streams that start without data and have noise of their own (a
            declared one has: the range is part of the key of its noise).
        unseen: The part of `leak` that depends on noise of which nothing was shown before the
            events that it protects: thresholds of keys that nobody listed. Over disjoint ranges it
            is not added up.

    Raises:
        ParameterError: `leak` is negative, or leaves nothing of δ for the noise; `unseen` is more
            than `leak`.

    **Guarantee.** A `Budget` in place of a cost is never charged less than a mechanism that keeps
    it can leak. Test: `tests/privacy/test_privacy_together.py::test_twenty_streams_that_list_keys`.

    >>> Cost(Budget(0.5, 1e-9), leak=0.0).mu > 0 == Cost(Budget(0.5, 1e-9)).mu
    True
    """

    budget: Budget
    leak: float | None = None
    during: TimeRange | None = None
    unseen: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise ParameterError(f"a cost needs a Budget, got {type(self.budget).__name__}")
        if self.during is not None and not isinstance(self.during, TimeRange):
            raise ParameterError(
                f"the time range of a cost must be a TimeRange, got {type(self.during).__name__}"
            )
        if self.leak is not None:
            object.__setattr__(self, "leak", check_number("leak", self.leak))
            if self.leak or not self.budget.pure:
                self.budget.reserve(self.leak)
        elif self.budget.pure:
            object.__setattr__(self, "leak", 0.0)
        if not 0 <= check_number("unseen", self.unseen) <= (self.leak or 0.0):
            raise ParameterError(f"unseen is a part of the leak {self.leak!r}, got {self.unseen!r}")

    @property
    def span(self) -> TimeRange | None:
        """The range outside of which it costs a unit nothing but `outside_at`; None: every unit may
        be in it.

        **Guarantee.** Never a range where one unit can have events in two disjoint ones (a person
        without a period, unless streams hand on the caps; a person in a period that the end of
        `during` cuts), nor where no clock says which events are counted. Tests:
        `tests/privacy/test_successors.py::test_persons_who_come_back_cost_the_sum` and
        `tests/privacy/test_periods_together.py::test_no_person_costs_more_than_is_stated`.
        """
        if self.during is None or self.during.ticks == MANUAL:
            return None
        if self.chain or lies_in_one_range(self.budget):
            return self.during.whole
        return None

    @property
    def chain(self) -> str:
        """The streams that share the caps of their persons, by name; empty where a unit lies in one
        range anyway."""
        if self.during is None or self.leak is None or self.unseen:
            return ""
        if lies_in_one_range(self.budget):
            return ""
        return self.during.chain

    @property
    def plain(self) -> bool:
        """Whether it adds up as (ε, δ): it is pure, or nothing is known but its promise."""
        return self.leak is None or self.budget.pure

    @property
    def mu(self) -> float:
        """μ of its Gaussian noise; 0.0 where it adds up as (ε, δ)."""
        if self.plain:
            return 0.0
        if self.leak:
            return self.budget.reserve(self.leak).mu
        return self.budget.mu

    def leak_at(self, epsilon: float) -> float:
        """What it leaks where it counts as its noise.

        Args:
            epsilon: The ε of all streams together; the leak costs (1 + e^ε)/(1 + e^own) as much
                there.

        Returns:
            The part of δ, rounded up.
        """
        return numeric_at(self.leak or 0.0, self.budget.epsilon, epsilon)

    def outside_at(self, epsilon: float) -> float:
        """What it costs units outside its range: the chance that it goes wrong where somebody can
        wait for that.

        Args:
            epsilon: The ε of all streams together, as in `leak_at`.

        Returns:
            The part of δ, rounded up; all of δ where nothing is known but the promise.
        """
        if self.leak is None:
            return self.budget.delta
        early = round_up(Fraction(self.leak) - Fraction(self.unseen))
        return numeric_at(early, self.budget.epsilon, epsilon)

    def to_dict(self) -> dict[str, Any]:
        """The fields, JSON-serialisable; `from_dict` is the inverse.

        Returns:
            The fields by name.
        """
        during = None if self.during is None else self.during.to_list()
        return {
            "budget": self.budget.to_dict(),
            "leak": self.leak,
            "during": during,
            "unseen": self.unseen,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Cost:
        """The cost of `to_dict`.

        Args:
            data: A result of `to_dict`.

        Returns:
            The cost.

        Raises:
            ParameterError: The fields are not those of a cost.
        """
        if not isinstance(data, dict) or set(data) != {"budget", "leak", "during", "unseen"}:
            raise ParameterError("a cost is a mapping of budget, leak, during and unseen.")
        during = None
        if data["during"] is not None:
            during = TimeRange.from_list(data["during"])
        return cls(Budget.from_dict(data["budget"]), data["leak"], during, data["unseen"])


def as_cost(given: Cost | Budget) -> Cost:
    """The cost itself; a budget is its promise alone."""
    if isinstance(given, Cost):
        return given
    return Cost(given)


def compose(costs: Iterable[Cost | Budget], delta: float | None = None) -> Budget:
    """What streams about the same events promise together, if they were not chosen after seeing
    releases.

    The stated δ is the sum of the streams' δ (at most 1/2), as plain addition has it, so that the
    stated ε shows what exact composition saves; ε is the least that is proved for that δ. Of
    streams with time ranges only those that meet one instant add up, and the largest over all
    instants is stated.

    Args:
        costs: `Stream.cost` of each stream; a `Budget` counts as its promise alone. One alone is
            its own promise.
        delta: Another δ at which the result is stated.

    Returns:
        The budget that all of them together keep, never above (Σε, Σδ) where no `delta` is given.

    Raises:
        ParameterError: no costs, costs about different units, or about persons in periods of which
            one may meet two of another stream; deltas that add up to 1 or more and no proof of
            less, or a `delta` at which nothing is proved.

    **Guarantee.** All releases of all streams together are (epsilon, delta)-DP, even where inputs
    depend on earlier releases: `composition.proof.md`, sections 5 and 8. Assumes that the streams
    themselves were chosen without looking at releases; where they were, a total that was fixed
    before holds (`Ledger`), and a number stated afterwards does not. Tests:
    `tests/privacy/test_privacy_together.py`, test_the_stated_promise_is_never_below_the_truth, and
    `tests/privacy/test_successors.py`, test_no_strategy_beats_the_stated_total.

    >>> stream = Cost(Budget(0.5, 1e-9), leak=0.0)
    >>> both = compose([stream, stream])
    >>> round(both.epsilon, 4), both.delta
    (0.7013, 2e-09)
    >>> compose([Budget(0.5, 1e-9), Budget(0.5, 1e-9)]).epsilon
    1.0
    >>> first, second = TimeRange(0, 10, "1"), TimeRange(10, 20, "1")
    >>> early, late = Cost(Budget(0.5, 0.0), during=first), Cost(Budget(0.3, 0.0), during=second)
    >>> compose([early, late]).epsilon
    0.5
    """
    parts = [as_cost(cost) for cost in costs]
    if not parts:
        raise ParameterError("compose needs at least one cost.")
    check_one_unit(parts)
    check_periods(parts)
    first = parts[0].budget
    if len(parts) == 1 and delta is None:
        return first
    overlaps = overlaps_of(parts)
    usual = min(float(max(_as_people_add(overlap) for overlap in overlaps)), 0.5)
    stated = usual if delta is None else check_delta(delta, pure=True)
    sums = [_sums(overlap) for overlap in overlaps]
    plain = max(one for one, _ in sums)
    summed = max(both for _, both in sums)
    epsilons = [
        _exact(overlap, stated, most, delta is not None and both <= Fraction(stated))
        for overlap, (most, both) in zip(overlaps, sums, strict=True)
    ]
    exact = None
    if None not in epsilons:
        exact = max(epsilon for epsilon in epsilons if epsilon is not None)
    if delta is not None:
        if not exact:
            why = "nothing is proved" if exact is None else "they cost no epsilon"
            raise ParameterError(
                f"at delta={delta!r} {why} for these streams together: choose another delta."
            )
        return replace(first, epsilon=exact, delta=stated, calibration="tight")
    if exact is not None and (exact <= plain or stated == 0.5):
        # ε = 0 is not a budget; the plain sum is above it and holds as well
        return replace(first, epsilon=exact or plain, delta=stated, calibration="tight")
    if round_up(summed) >= 1:
        raise ParameterError(
            "the streams' deltas add up to 1 or more: together they promise nothing."
        )
    return replace(first, epsilon=plain, delta=round_up(summed), calibration="tight")


class Overlap(NamedTuple):
    """The streams that one instant meets, and all others; both in their order."""

    inside: tuple[Cost, ...]
    outside: tuple[Cost, ...]

    def price_outside(self, epsilon: float) -> Fraction:
        """What the others cost a unit at this instant."""
        return sum((Fraction(cost.outside_at(epsilon)) for cost in self.outside), Fraction(0))


def overlaps_of(costs: Sequence[Cost]) -> list[Overlap]:
    """Where streams meet: of all instants those with the largest sets of streams.

    **Guarantee.** What one person costs over a chain of streams that hand on their caps is at most
    what the dearest of them costs, next to all others (`composition.proof.md`, section 8, "Caps
    that are handed on"). That needs one chain, of one kind of noise and with the same caps; else
    its streams meet everything. Tests:
    `tests/privacy/test_successors.py::test_caps_that_are_handed_on_cost_the_largest` and
    `tests/privacy/test_successors.py::test_two_chains_add_up`.
    """
    chains = {(cost.chain, cost.budget.pure, cost.budget.caps) for cost in costs if cost.chain}
    spans = [cost.span if len(chains) < 2 or not cost.chain else None for cost in costs]
    every = list(enumerate(costs))
    return [
        Overlap(
            tuple(cost for n, cost in every if n in inside),
            tuple(cost for n, cost in every if n not in inside),
        )
        for inside in largest_overlaps(spans)
    ]


def _as_people_add(overlap: Overlap) -> Decimal:
    """Σδ in decimals: 3 × 1e-9 = 3e-9. Promises of which nothing else is known count wherever they
    are."""
    counted = [*overlap.inside, *(cost for cost in overlap.outside if cost.leak is None)]
    return sum((Decimal(repr(cost.budget.delta)) for cost in counted), Decimal(0))


def _sums(overlap: Overlap) -> tuple[float, Fraction]:
    """Plain addition: (Σε, Σδ)."""
    plain = round_up(sum((Fraction(cost.budget.epsilon) for cost in overlap.inside), Fraction(0)))
    summed = sum((Fraction(cost.budget.delta) for cost in overlap.inside), Fraction(0))
    return plain, summed + overlap.price_outside(plain)


def _exact(overlap: Overlap, delta: float, plain: float, added: bool) -> float | None:
    """The least ε at δ for one overlap, by the profiles; where plain addition is within δ
    (`added`), also by that."""
    promise_only = [cost.leak is None for cost in overlap.inside]
    # where a leak would cost more than the stream's δ, it counts as its promise alone (in a chain
    # promises add up)
    cheaper_as_promise = [
        cost.leak is None or (cost.leak_at(plain) > cost.budget.delta and not cost.chain)
        for cost in overlap.inside
    ]
    epsilons = [_least(overlap, delta, promise_only)]
    if cheaper_as_promise != promise_only:
        epsilons.append(_least(overlap, delta, cheaper_as_promise))
    if added:
        epsilons.append(plain)
    return min((epsilon for epsilon in epsilons if epsilon is not None), default=None)


def _least(overlap: Overlap, delta: float, promised: Sequence[bool]) -> float | None:
    """Compute `least_epsilon` of one overlap; the streams of `promised` count as ε of pure privacy
    and a leak of probability δ."""
    noise = [part for part, leaks in zip(overlap.inside, promised, strict=True) if not leaks]
    leaking = [part.budget for part, leaks in zip(overlap.inside, promised, strict=True) if leaks]
    pure = sum(
        (Fraction(one.epsilon) for one in (*leaking, *(p.budget for p in noise if p.plain))),
        Fraction(0),
    )
    left = round_down(
        Fraction(delta) - sum((Fraction(budget.delta) for budget in leaking), Fraction(0))
    )
    # together they are exactly one of this μ: `gaussian.proof.md`, 5
    mu = math.hypot(*(part.mu for part in noise))
    return least_epsilon(mu, pure, left, Overlap(tuple(noise), overlap.outside))


def least_epsilon(mu: float, pure: Fraction, delta: float, leaking: Overlap) -> float | None:
    """The least ε ≥ `pure` with δ_mix(ε) + Σ leaks at ε ≤ `delta`, rounded up; None where there is
    none.

    **Guarantee.** With μ and `pure` of the ideal mechanisms the whole is (result, delta)-DP. The
    search rises from ε = 0 and never passes the least solution (`composition.proof.md`, section 5).
    Test: `tests/privacy/test_privacy_together.py::test_the_least_epsilon_is_the_least`.
    """
    epsilon = 0.0
    for _ in range(_ROUNDS):
        price = sum(
            (Fraction(cost.leak_at(epsilon)) for cost in leaking.inside),
            leaking.price_outside(epsilon),
        )
        left = round_down(Fraction(delta) - price)
        needed = LEAST_DELTA if mu else 0.0
        if left < needed:
            return None
        following = epsilon_of(mu, pure, left)
        if following <= epsilon:
            return following
        epsilon = following
    return None


def numeric_at(numeric: float, own: float, epsilon: float) -> float:
    """A numerical δ that was computed at the ε `own`, restated at a larger `epsilon`: (1 +
    e^ε)/(1 + e^own) as much. Rounded up; never less than it was
    (`mechanisms/exact/exact_noise.proof.md`, theorem)."""
    if not numeric or epsilon <= own:
        return numeric
    # without overflow
    ratio = math.exp(min(epsilon - own, 700.0)) * (1 + math.exp(-epsilon)) / (1 + math.exp(-own))
    return min(1.0, numeric * ratio * (1 + 1e-12))


def mixed_delta_upper(mu: float, pure: Fraction, epsilon: float) -> float:
    """A bound of δ(ε) of a Gaussian mechanism of that μ (0.0: none) together with a pure one of
    ε_p = `pure` ≤ ε.

    **Guarantee.** Not below p·δ(μ, ε − ε_p) + (1 − p)·δ(μ, ε + ε_p), p = 1/(1 + e^−ε_p), which is
    the exact δ where the pure mechanism is randomised response (`composition.proof.md`, sections 2
    and 4). Test: `tests/privacy/test_privacy_ledger.py::test_mixed_profile_against_oracle`.
    """
    if not 0 <= pure <= Fraction(epsilon):
        raise ParameterError(
            f"the pure part must lie between 0 and epsilon={epsilon!r}, not at {float(pure)!r}."
        )
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
    # The upper end is ε of both parts added up, which holds by itself: mixed δ(ε_p + ε_g) ≤ δ(μ,
    # ε_g).
    low = round_up(pure)
    high = round_up(pure + Fraction(gaussian.epsilon_of(mu, delta)))
    if mixed_delta_upper(mu, pure, low) <= delta:
        return low
    while low < (middle := low + 0.5 * (high - low)) < high:
        if mixed_delta_upper(mu, pure, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def check_one_unit(costs: Sequence[Cost]) -> None:
    """Refuse to add costs about different units. Caps may differ, since each holds for a whole
    unit."""
    units = {cost.budget.neighbours: None for cost in costs}
    if len(units) > 1:
        differ = f"{' and '.join(map(str, units))} differ"
        raise ParameterError(
            f"budgets compose only for the same adjacency, unit and period: {differ}."
        )


def check_periods(costs: Iterable[Cost], earlier: Iterable[Cost] = ()) -> None:
    """Refuse to add costs of persons in periods where one period of a stream may meet two of
    another one. With `earlier` only those are compared that are new next to these.

    **Guarantee.** What this lets pass costs a person at most what `overlaps_of` says
    (`composition.proof.md`, section 8, "Periods"). Test:
    `tests/privacy/test_periods_together.py::test_no_person_costs_more_than_is_stated`.
    """
    by_periods: dict[str, list[Cost]] = {}
    for cost in earlier:
        if cost.budget.period is not None:
            by_periods.setdefault(_periods_of(cost), []).append(cost)
    for cost in costs:
        if cost.budget.period is None:
            continue
        own = _periods_of(cost)
        others = [
            other
            for periods, group in by_periods.items()
            if not own or periods != own
            for other in group
        ]
        if not all(share_periods(cost.during, other.during) for other in others):
            raise ParameterError(_why_apart(cost, others))
        by_periods.setdefault(own, []).append(cost)


def _periods_of(cost: Cost) -> str:
    """The text that says which periods persons are protected in; empty where nothing does."""
    if cost.during is None:
        return ""
    return cost.during.periods


def _why_apart(cost: Cost, others: Sequence[Cost]) -> str:
    """Say why costs of persons in periods cannot be added up, and what to do."""
    if not all(map(_periods_of, (cost, *others))):
        return (
            f"persons are protected in periods of {cost.budget.period}, and nothing says that "
            "those of these streams begin at the same times: else one period of a stream meets two "
            "of another one. Declare the streams with a start and ticks by the clock, or say which "
            "periods they are, in the same words for each stream whose periods begin at the same "
            "times: during=TimeRange(0, None, 'manual', 'weeks from Monday')"
        )
    return (
        f"persons are protected in periods of {cost.budget.period} that begin at different times, "
        "or are not equally long: one of a stream meets two of another one, or a part of one. They "
        "can be added only if their starts are a whole number of periods apart, or if one stream "
        "begins after the last period of the other is over."
    )


def costs_more(cost: Cost, following: Cost) -> bool:
    """Whether one protected unit can be in both streams, so that both together cost more than one
    of them. Files, stores, Spark and Python ask this, or `compose` itself, before they call a
    successor free.

    **Guarantee.** Where this says no, both together cost each unit what the dearer one does, but
    for what `Cost.outside_at` adds: `composition.proof.md`, section 8. Test:
    `tests/privacy/test_periods_together.py::test_no_person_costs_more_than_is_stated`.
    """
    try:
        check_periods([cost, following])
    except ParameterError:
        return True
    return any(len(overlap.inside) > 1 for overlap in overlaps_of([cost, following]))
