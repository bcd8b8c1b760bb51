"""Streams over disjoint time ranges: the best strategy, computed exactly, against what is stated
for all of them.

Small mechanisms with finitely many outputs. Whoever attacks sees every release and decides tick by
tick whether the one event that differs comes now. The best decisions are computed backwards over
the tree of all outputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import Budget, Cost, Ledger, TimeRange, compose, gaussian, successor_text
from evercount.privacy.composition import numeric_at
from evercount.privacy.time_range import largest_overlaps

Law = Callable[[tuple[int, ...], tuple[int, ...]], float]
"""The probability of the outputs so far, given the events of the ticks so far."""
YEAR = 365 * 86_400_000_000
SIZE = 5
"""Outputs of a mechanism that adds noise: numbers modulo this."""


@dataclass(frozen=True)
class Mechanism:
    law: Law
    outputs: int
    ticks: range


def noisy(weights: tuple[float, ...], running: bool) -> Law:
    """Fresh noise on each tick's number, modulo SIZE; `running`: what is shown adds up, so old
    noise stays in it."""
    total = sum(weights)

    def law(events: tuple[int, ...], seen: tuple[int, ...]) -> float:
        chance, before = 1.0, 0
        for event, shown in zip(events, seen, strict=True):
            chance *= weights[(shown - before - event) % SIZE] / total
            before = shown if running else 0
        return chance

    return law


def laplace(epsilon: float) -> tuple[float, ...]:
    return tuple(math.exp(-epsilon * min(n, SIZE - n)) for n in range(SIZE))


def normal(std: float) -> tuple[float, ...]:
    return tuple(math.exp(-0.5 * (min(n, SIZE - n) / std) ** 2) for n in range(SIZE))


def two_nodes(epsilon: float) -> Law:
    """A tree of two ticks: the first event is in two nodes, each with half of ε."""
    one = noisy(laplace(epsilon / 2), running=False)
    return lambda events, seen: one(tuple(itertools.accumulate(events)), seen)


def coin(delta: float) -> Law:
    """It shows a coin of chance δ at its first tick, and then shows every event if the coin says
    so: (0, δ)-DP."""

    def law(events: tuple[int, ...], seen: tuple[int, ...]) -> float:
        first = delta if seen[0] else 1 - delta
        rest = zip(events[1:], seen[1:], strict=True)
        return first * math.prod(float(shown == (event and seen[0])) for event, shown in rest)

    return law


def threshold(delta: float) -> Law:
    """An event is shown with the chance δ, from noise that nobody has seen before it: (0, δ)-DP."""
    shown = {(1, 1): delta, (1, 0): 1 - delta, (0, 0): 1.0, (0, 1): 0.0}
    return lambda events, seen: math.prod(shown[pair] for pair in zip(events, seen, strict=True))


def best_gain(
    mechanisms: list[Mechanism], epsilon: float, most: int = 1, period: int | None = None
) -> float:
    """The largest P(H) − e^ε·P′(H) that a strategy of at most so many events reaches, in either
    direction.

    `period`: all events that differ are in one period of so many ticks.
    """
    last = max(one.ticks.stop for one in mechanisms)
    factor = math.exp(epsilon)

    def chances(
        events: tuple[int, ...], seen: list[tuple[int, ...]], tick: int
    ) -> tuple[float, float]:
        """With the events and without, over the streams that are over after this tick or still
        run."""
        pair = [1.0, 1.0]
        for one, shown in zip(mechanisms, seen, strict=True):
            inside = events[one.ticks.start : min(one.ticks.stop, tick)]
            pair[0] *= one.law(inside, shown) if inside else 1.0
            pair[1] *= one.law((0,) * len(inside), shown) if inside else 1.0
        return pair[0], pair[1]

    def value(tick: int, events: tuple[int, ...], seen: list[tuple[int, ...]], sign: int) -> float:
        if tick == last:
            given, without = chances(events, seen, tick)
            return max(0.0, given - factor * without if sign > 0 else without - factor * given)
        running = [number for number, one in enumerate(mechanisms) if tick in one.ticks]
        there = [number for number, event in enumerate(events) if event]
        together = period is None or not there or there[0] // period == tick // period
        choices = (0, 1) if len(there) < most and running and together else (0,)
        found = 0.0
        for event in choices:
            total = 0.0
            for outputs in itertools.product(
                *(range(mechanisms[number].outputs) for number in running)
            ):
                after = list(seen)
                for number, output in zip(running, outputs, strict=True):
                    after[number] = (*after[number], output)
                then = (*events, event)
                if any(chances(then, after, tick + 1)):
                    total += value(tick + 1, then, after, sign)
            found = max(found, total)
        return found

    return max(value(0, (), [()] * len(mechanisms), sign) for sign in (1, -1))


def years(*laws: tuple[Law, int], ticks: int = 2) -> list[Mechanism]:
    """One after the other."""
    return [
        Mechanism(law, size, range(n * ticks, (n + 1) * ticks))
        for n, (law, size) in enumerate(laws)
    ]


def at(first: int, last: int | None = None) -> TimeRange:
    return TimeRange(first, first + 2 if last is None else last, "1")


PURE = (0.4, 0.7)


@pytest.mark.parametrize(
    "law", [lambda e: noisy(laplace(e), False), lambda e: noisy(laplace(e), True), two_nodes]
)
def test_no_strategy_beats_the_stated_total(law: Callable[[float], Law]) -> None:
    """Pure streams: the larger ε holds against every strategy, and no smaller one does."""
    streams = years(*((law(epsilon), SIZE) for epsilon in PURE))
    stated = compose(Cost(Budget(epsilon, 0.0), during=at(2 * n)) for n, epsilon in enumerate(PURE))
    assert (stated.epsilon, stated.delta) == (0.7, 0.0)
    assert best_gain(streams, stated.epsilon) < 1e-12
    assert best_gain(streams, 0.98 * stated.epsilon) > 1e-4


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_profiles_of_noise_are_maxima(running: bool, epsilon: float) -> None:
    """Not the budgets: at each ε the larger δ of the two, also where the first stream has shown
    part of its noise."""
    laws = [(noisy(normal(0.8), running), SIZE), (noisy(laplace(0.9), running), SIZE)]
    alone = [best_gain(years(one), epsilon) for one in laws]
    assert best_gain(years(*laws), epsilon) == pytest.approx(max(alone), abs=1e-12)
    assert epsilon < 1.0 or alone[1] < 1e-12 < alone[0], "which of them is the larger depends on ε"


def test_streams_over_the_same_time_add_up_within_it() -> None:
    """One stream over both years, one in each: the sum within a year, the larger year in all."""
    spans = [(0.3, range(2)), (0.4, range(1)), (0.6, range(1, 2))]
    streams = [Mechanism(noisy(laplace(epsilon), False), SIZE, ticks) for epsilon, ticks in spans]
    stated = compose(Cost(Budget(e, 0.0), during=at(ticks.start, ticks.stop)) for e, ticks in spans)
    assert stated.epsilon == pytest.approx(0.9, abs=1e-12)
    assert best_gain(streams, stated.epsilon) < 1e-12
    assert best_gain(streams, 0.98 * stated.epsilon) > 1e-4
    wrong = max(0.3, 0.4, 0.6)  # planted: the largest stream
    assert best_gain(streams, wrong) > 0.01


def test_promises_of_which_nothing_else_is_known_add_their_delta() -> None:
    """Whoever waits for a coin that has come up reaches 2δ − δ²; the largest δ would be a lie."""
    delta = 0.05
    gain = best_gain(years((coin(delta), 2), (coin(delta), 2)), 0.5)
    assert gain == pytest.approx(2 * delta - delta**2)
    stated = compose(Cost(Budget(0.5, delta), during=at(2 * n)) for n in range(2))
    assert (stated.epsilon, stated.delta) == (0.5, 2 * delta)
    ledger = Ledger(Budget(0.5, delta))
    ledger.spend("one", Cost(Budget(0.5, delta), during=at(0)))
    with pytest.raises(BudgetExceeded):
        ledger.spend("two", Cost(Budget(0.5, delta), during=at(2)))


def test_thresholds_of_unseen_noise_do_not_add_up() -> None:
    """A key's noise is shown only after the event: there is nothing to wait for. Finite arithmetic
    adds up."""
    delta = 0.05
    assert best_gain(years((threshold(delta), 2), (threshold(delta), 2)), 0.5) == pytest.approx(
        delta
    )
    budget = Budget(1.0, 1e-6)
    seen, unseen = ([Cost(budget, 4e-7, at(2 * n), part) for n in range(2)] for part in (0.0, 4e-7))
    assert compose(unseen).epsilon == pytest.approx(1.0, abs=1e-9)
    assert compose(unseen).delta == 1e-6
    assert (compose(seen).epsilon, compose(seen).delta) == pytest.approx((1.0, 1.4e-6))
    mu, within = budget.reserve(4e-7).mu, compose(seen, delta=1e-6).epsilon

    def spent(epsilon: float) -> float:
        return gaussian.delta_of(mu, epsilon) + 2 * numeric_at(4e-7, 1.0, epsilon)

    assert spent(within * 0.9999) > 1e-6 >= spent(within) * (1 - 1e-9)


def test_persons_who_come_back_cost_the_sum() -> None:
    """The counterexample: somebody who is in both years, at (1, 1e-6) each, is protected by 1.40
    and not by 1."""
    streams = years((noisy(laplace(0.4), False), SIZE), (noisy(laplace(0.4), False), SIZE), ticks=1)
    assert best_gain(streams, 0.4, most=2) > 0.05, "events in both years: more than the larger ε"
    assert best_gain(streams, 0.8, most=2) < 1e-12
    person = Budget(1.0, 1e-6, unit="user", max_events=3)
    costs = [Cost(person, 0.0, at(2 * n)) for n in range(2)]
    both = compose(costs)
    assert (round(both.epsilon, 2), both.delta) == (1.4, 2e-6)
    mu = math.sqrt(2) * person.mu
    assert gaussian.delta_of(mu, 1.0) > 10 * 2e-6, (
        "what a person in both years really loses at ε = 1"
    )
    assert gaussian.delta_of(mu, both.epsilon * 0.999) > 2e-6
    ledger = Ledger(person)
    ledger.spend("first", costs[0])
    with pytest.raises(BudgetExceeded):
        ledger.spend("second", costs[1])


def test_caps_that_are_handed_on_cost_the_largest() -> None:
    """At most two events of a person in both years together, each with half of ε: nobody gains more
    than the larger."""
    streams = years(*((noisy(laplace(epsilon / 2), False), SIZE) for epsilon in PURE))
    spans = [TimeRange(2 * n, 2 * n + 2, "1", chain="visits") for n in range(2)]
    budgets = [Budget(epsilon, 0.0, unit="user", max_events=2) for epsilon in PURE]
    costs = [Cost(budget, during=span) for budget, span in zip(budgets, spans, strict=True)]
    assert compose(costs).epsilon == 0.7
    assert best_gain(streams, 0.7, most=2) < 1e-12
    assert best_gain(streams, 0.98 * 0.7, most=2) > 1e-4
    assert best_gain(streams, 0.7, most=3) > 1e-3, "planted: caps that begin anew"
    person = Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=30)
    decade = [
        Cost(person, 1e-28, TimeRange(n * YEAR, (n + 1) * YEAR, "1", chain="visits"))
        for n in range(10)
    ]
    assert (round(compose(decade).epsilon, 9), compose(decade).delta) == (1.0, 1e-6)
    ledger = Ledger(person)
    for number, cost in enumerate(decade):
        ledger.spend(f"year {number}", cost)
    with pytest.raises(BudgetExceeded):
        ledger.spend("next to them", Cost(Budget(0.1, 0.0, unit="user", max_events=1)))
    assert TimeRange(*decade[0].during.to_list()) == decade[0].during  # type: ignore[union-attr]


def test_two_chains_add_up() -> None:
    """Whoever is in both has used up nothing of the other's caps; so are other caps, and other
    noise."""
    person = Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=30)
    first = Cost(person, 0.0, TimeRange(0, YEAR, "1", chain="visits"))
    for budget, chain in (
        (person, "stays"),
        (person, ""),
        (Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=31), "visits"),
        (Budget(1.0, 0.0, unit="user", max_per_tick=1, max_ticks=30), "visits"),
    ):
        second = Cost(budget, 0.0, TimeRange(YEAR, 2 * YEAR, "1", chain=chain))
        assert compose([first, second]).epsilon > 1.39
        ledger = Ledger(person)
        ledger.spend("first", first)
        with pytest.raises(BudgetExceeded):
            ledger.spend("second", second)
    unknown = [
        Cost(person, None, TimeRange(n * YEAR, (n + 1) * YEAR, "1", chain="visits"))
        for n in range(2)
    ]
    assert compose(unknown).epsilon == 2.0, "of promises nothing is known but that they add up"
    later = Cost(person, 0.0, TimeRange(YEAR, 2 * YEAR, "1", chain="visits"))
    assert compose([first, later, Cost(person, 0.0)]).epsilon == pytest.approx(
        compose([first, Cost(person, 0.0)]).epsilon
    )


def test_what_a_person_does_in_one_period_costs_the_largest() -> None:
    """At most two events of a person in a period of two ticks, each tick with half of ε; each year
    is one period."""
    streams = years(*((noisy(laplace(epsilon / 2), False), SIZE) for epsilon in PURE))
    budgets = [Budget(epsilon, 0.0, unit="user", max_events=2, period=2) for epsilon in PURE]
    spans = [TimeRange(2 * n, 2 * n + 2, "1", "2 0") for n in range(2)]
    stated = compose(Cost(budget, during=span) for budget, span in zip(budgets, spans, strict=True))
    assert (stated.epsilon, stated.delta) == (0.7, 0.0)
    assert best_gain(streams, 0.7, most=2, period=2) < 1e-12
    assert best_gain(streams, 0.98 * 0.7, most=2, period=2) > 1e-4
    assert best_gain(streams, 0.7, most=3) > 1e-3, (
        "planted: a third event of the same person, in the other year"
    )


def test_periods_that_begin_at_different_times_do_not_add_up() -> None:
    budget = Budget(1.0, 1e-6, unit="user", max_events=3, period=7)
    monday, tuesday = (Cost(budget, 0.0, TimeRange(n, 100 + n, "1", f"7 {n}")) for n in range(2))
    with pytest.raises(ParameterError, match="whole number of periods apart"):
        compose([monday, tuesday])
    ledger = Ledger(Budget(2.0, 1e-5, unit="user", period=7, max_events=3))
    ledger.spend("monday", monday)
    with pytest.raises(ParameterError, match="whole number of periods apart"):
        ledger.spend("tuesday", tuesday)
    ledger.spend("next", Cost(budget, 0.0, TimeRange(700, 800, "1", "7 0")))
    assert "a whole number of periods after this start costs nothing more" in successor_text(monday)
    with pytest.raises(ParameterError, match="unit and period"):
        compose([monday, Cost(Budget(1.0, 1e-6, unit="user", max_events=3), 0.0)])


def test_ten_years_cost_one() -> None:
    """Event level, (1, 1e-6) each: (1, 1e-6) for all of them; an eleventh stream over one of the
    years is refused."""
    budget = Budget(1.0, 1e-6)
    costs = [
        Cost(budget, 1e-28, TimeRange(n * YEAR, (n + 1) * YEAR, "86400000000")) for n in range(10)
    ]
    total = compose(costs)
    assert total.delta == 1e-6
    assert 1 - 1e-9 < total.epsilon <= 1.0
    ledger = Ledger(budget)
    for number, cost in enumerate(costs):
        assert ledger.remaining(during=cost.during) == Cost(budget, 0.0, cost.during)
        ledger.spend(f"year {number}", cost)
    assert ledger.remaining() is None
    with pytest.raises(BudgetExceeded, match="Nothing is left"):
        ledger.spend("again", Cost(Budget(0.1, 0.0), during=costs[3].during))
    with pytest.raises(BudgetExceeded):
        ledger.spend("no range", Cost(Budget(0.1, 0.0)))
    pure = Ledger(Budget(1.0, 0.0))
    for number, cost in enumerate(costs):
        pure.spend(f"year {number}", Cost(Budget(1.0, 0.0), during=cost.during))


def test_the_largest_budget_is_not_an_order() -> None:
    """(1, 0) and (0.5, 1e-6) in two years: neither budget covers both, (1, 1e-6) does."""
    pure, noise = Cost(Budget(1.0, 0.0), during=at(0)), Cost(Budget(0.5, 1e-6), 0.0, at(2))
    together = compose([pure, noise])
    assert (together.epsilon, together.delta) == (1.0, 1e-6)
    assert gaussian.delta_of(noise.mu, 1.0) > 0
    for total, fits in (
        (Budget(1.0, 1e-6), True),
        (Budget(0.5, 1e-6), False),
        (Budget(1.0, 0.0), False),
    ):
        ledger = Ledger(total)

        def both(ledger: Ledger = ledger) -> None:
            ledger.spend("pure", pure)
            ledger.spend("noise", noise)

        if fits:
            both()
        else:
            with pytest.raises(BudgetExceeded):
                both()


def test_within_a_year_the_parts_of_a_total_hold() -> None:
    """Two streams in each of three years: every year has its own rest, and leaks are taken from all
    years."""
    total = Budget(1.0, 1e-6)
    ledger = Ledger(total)
    for year in range(3):
        span = at(2 * year)
        ledger.spend(f"first {year}", Cost(Budget(0.5, 1e-7), 1e-9, span))
        rest = ledger.remaining(during=span)
        assert rest is not None
        assert rest.mu > 0
        ledger.spend(f"second {year}", rest)
        assert ledger.remaining(during=span) is None or ledger.remaining(during=span).mu < 1e-3  # type: ignore[union-attr]
    for number in range(1000):  # leaks of other years use up what all share
        try:
            ledger.spend(f"leak {number}", Cost(Budget(0.1, 1e-7), 5e-8, at(100 + 2 * number)))
        except BudgetExceeded:
            break
    assert 0 < number < 10


def test_streams_without_a_range_meet_every_instant() -> None:
    budget = Budget(0.5, 0.0)
    manual = TimeRange(0, None, "manual")
    for costs in (
        [Cost(budget), Cost(budget, during=at(0))],
        [Cost(budget, during=manual), Cost(budget, during=at(0))],
    ):
        assert compose(costs).epsilon == 1.0


ranges = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 12), st.one_of(st.none(), st.integers(1, 6))).map(
        lambda pair: TimeRange(pair[0], None if pair[1] is None else pair[0] + pair[1], "1")
    ),
)


@given(st.lists(ranges, min_size=1, max_size=7))
def test_every_instant_is_in_a_set(known: list[TimeRange | None]) -> None:
    def meeting(instant: int) -> frozenset[int]:
        return frozenset(
            number
            for number, one in enumerate(known)
            if one is None or (one.start <= instant and (one.end is None or instant < one.end))
        )

    sets = largest_overlaps(known)
    instants = {meeting(instant) for instant in range(-1, 25)}
    assert all(any(found <= one for one in sets) for found in instants)
    assert set(sets) <= instants
    assert not any(one < other for one in sets for other in sets)


def test_the_text() -> None:
    """At the horizon: nothing more for events, the sum for persons and where no clock says when
    events are."""
    event = Cost(Budget(1.0, 1e-6), 0.0, at(0))
    assert successor_text(event) == (
        "A new stream that starts at this end or later costs nothing more: each event is in only "
        "one of the two, and both together keep epsilon=1, delta=1e-06."
    )
    person = Cost(Budget(1.0, 1e-6, unit="user"), 0.0, at(0))
    assert (
        "counts the same persons again: both together keep epsilon=1.40326, delta=2e-06."
        in successor_text(person)
    )
    assert "may count the same events again" in successor_text(Cost(Budget(1.0, 0.0)))
    assert "epsilon=2, delta=0." in successor_text(Cost(Budget(1.0, 0.0)))


def test_bad_ranges_are_refused() -> None:
    for bad in ((1, 1), (2, 1), (0.5, None), (True, 3)):
        with pytest.raises(ParameterError, match="start to a later end"):
            TimeRange(*bad, "1")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="TimeRange"):
        Cost(Budget(1.0, 0.0), during=(0, 1))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="unseen"):
        Cost(Budget(1.0, 1e-6), 1e-9, None, 1e-8)
    kept = Cost(Budget(1.0, 1e-6), 1e-9, at(5), 1e-10)
    assert Cost.from_dict(kept.to_dict()) == kept
    with pytest.raises(ParameterError, match="a cost is a mapping"):
        Cost.from_dict({"budget": {}})
