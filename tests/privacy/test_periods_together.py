"""Persons in periods: what several streams cost together, by brute force over ranges, phases and
lives.

A person has events at any instants of one whole period of one of the streams. Each stream is pure
and counts one event of a person in each of its own periods, counted from its own start, which is
what a cap anew in each period does: so a person costs ε of a stream for each of its periods with an
event in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from evercount import Count, Stream
from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import (
    Budget,
    Cost,
    Ledger,
    TimeRange,
    composition,
    successor_text,
    time_range,
)
from evercount.privacy.composition import check_periods, compose, costs_more
from product_internals import true_totals

LAST = 8  # instants
EPSILONS = (1.0, 0.5, 0.25)  # sums of these are exact


def cost(period: int, start: int, end: int, epsilon: float = 1.0) -> Cost:
    budget = Budget(epsilon, 0.0, unit="user", max_events=1, period=period)
    return Cost(budget, during=TimeRange(start, end, "1", f"{period} {start % period}"))


@cache
def units(period: int, start: int, end: int) -> tuple[range, ...]:
    """The whole periods that begin in a range, also where the range ends before they do."""
    return tuple(range(begin, begin + period) for begin in range(start, end, period))


def counted(period: int, start: int, end: int, life: Sequence[int]) -> set[int]:
    """The instants at which a stream counts a person: the first event of each of its periods."""
    first: dict[int, int] = {}
    for instant in sorted(life):
        if start <= instant < end:
            first.setdefault((instant - start) // period, instant)
    return set(first.values())


Ranges = tuple[tuple[int, int], ...]


@cache
def dearest_life(period: int, ranges: Ranges) -> float:
    """What the dearest unit costs: events at any instants of one whole period of one of the
    streams, next to a further event of the same person at any other instant, or none."""
    most = 0.0
    for unit in {one for start, end in ranges for one in units(period, start, end)}:
        outside = [(), *((instant,) for instant in range(LAST + period) if instant not in unit)]
        for number in range(1, period + 1):
            for inside, others in itertools.product(itertools.combinations(unit, number), outside):
                spent = sum(
                    epsilon
                    * len(
                        counted(period, start, end, (*inside, *others))
                        ^ counted(period, start, end, others)
                    )
                    for epsilon, (start, end) in zip(EPSILONS, ranges, strict=False)
                )
                most = max(most, spent)
    return most


def meets_a_part(period: int, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a whole period of one of two streams reaches into the other, which begins in it."""
    (begin, end), (later, _) = sorted((one, other))
    reach = begin + -(-(end - begin) // period) * period
    return (later - begin) % period != 0 and later < reach


def all_ranges(most: int) -> Iterator[tuple[int, Ranges]]:
    for period in (2, 3):
        single = [(start, end) for start in range(LAST) for end in range(start + 1, LAST + 1)]
        for streams in range(1, most + 1):
            chosen = itertools.product(single, repeat=streams)
            if streams == 3:  # every seventh: 7 is no divisor of their number
                chosen = itertools.islice(chosen, 0, None, 7)
            for ranges in chosen:
                yield period, ranges


def compare(most: int = 2) -> None:
    """What is stated is what the dearest unit costs; what is refused has a period of one stream
    that meets two of another, or a part of one."""
    refused = 0
    for period, ranges in all_ranges(most):
        costs = [
            cost(period, start, end, e) for e, (start, end) in zip(EPSILONS, ranges, strict=False)
        ]
        truth = dearest_life(period, ranges)
        try:
            check_periods(costs)
        except ParameterError:
            refused += 1
            pairs = itertools.combinations(ranges, 2)
            assert any(meets_a_part(period, *pair) for pair in pairs), (period, ranges)
            continue
        stated = compose(costs).epsilon
        assert stated == truth, (period, ranges, stated, truth)
        if len(costs) == 2:
            assert costs_more(*costs) == (truth > max(EPSILONS[:2])), (period, ranges)
    assert refused > 0


def test_no_person_costs_more_than_is_stated() -> None:
    """And nobody is charged for what no person costs: pairs and some triples of all ranges of eight
    instants."""
    compare(3)


def charged_once(one: TimeRange, other: TimeRange) -> bool:
    """The rule of before: streams over disjoint ranges, wherever their periods begin."""
    return one.periods == other.periods or not (one.holds(other.start) or other.holds(one.start))


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the end that cuts a period": lambda patch: patch.setattr(
        TimeRange, "whole", property(lambda self: self)
    ),
    "a part of a period": lambda patch: patch.setattr(composition, "share_periods", charged_once),
    "when periods begin": lambda patch: patch.setattr(
        composition, "share_periods", lambda one, other: True
    ),
    "periods": lambda patch: patch.setattr(
        composition, "check_periods", lambda costs, earlier=(): None
    ),
    "that a period goes on to its end": lambda patch: patch.setattr(
        time_range.Grid, "next_border", lambda grid, instant: instant
    ),
    "that a stream goes on": lambda patch: patch.setattr(
        TimeRange, "holds", lambda self, at: at == self.start
    ),
}


@pytest.mark.parametrize("forgotten", PLANTED)
def test_rules_that_forget_something_are_caught(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forgotten == "periods":
        monkeypatch.setitem(globals(), "check_periods", lambda costs: None)
    PLANTED[forgotten](monkeypatch)
    with pytest.raises(AssertionError):
        compare()


@pytest.mark.parametrize("period", [2, 3])
def test_a_ledger_admits_what_the_dearest_life_costs(period: int) -> None:
    """A total of just that admits both streams, and one of a little less does not; others are
    refused."""
    for ranges in itertools.product(
        [(0, 5), (0, 6), (2, 7), (5, 8), (6, 8), (7, 8), (1, 3)], repeat=2
    ):
        costs = [
            cost(period, start, end, e) for e, (start, end) in zip(EPSILONS, ranges, strict=False)
        ]
        truth = dearest_life(period, ranges)
        comparable = True
        try:
            check_periods(costs)
        except ParameterError:
            comparable = False
        for total, fits in ((truth, True), (truth * 0.999, truth == 0)):
            ledger = Ledger(Budget(total, 0.0, unit="user", period=period))
            try:
                for number, one in enumerate(costs):
                    ledger.spend(f"{number}", one)
            except BudgetExceeded:
                assert not fits
            except ParameterError:
                assert not comparable
            else:
                assert fits
                assert comparable


def test_a_period_that_a_renewal_cuts() -> None:
    """A horizon of two days, periods of three: a unit is what a person does in the first three.

    Without it the second stream counts what the person does on the fourth day, which had no place
    under the cap: it changes twice, and both together cost 3ε. Nothing states 2ε.
    """
    budget = Budget(1.0, 0.0, unit="user", max_events=1, period=3)
    costs, changed = [], 0
    for start in (0, 2):
        during = TimeRange(start, start + 2, "1", f"3 {start % 3}")
        sums = []
        for life in (range(4), [3]):
            with Stream(Count(), budget, 2, during=during) as stream:
                days = range(start, start + 2)
                totals = []
                for day in days:
                    stream.step(None, users=["ann"] if day in life else [])
                    totals.append(int(true_totals(stream)[0]))
                sums.append(totals)
                cost_of_stream = stream.cost
        costs.append(cost_of_stream)
        (a1, a2), (b1, b2) = sums
        changed += abs(a1 - b1) + abs((a2 - a1) - (b2 - b1))
    assert changed == 3
    with pytest.raises(ParameterError, match="a part of one"):
        compose(costs)
    with pytest.raises(ParameterError, match="a part of one"):
        spend_all(Ledger(Budget(9.0, 0.0, unit="user", period=3)), costs)


def spend_all(ledger: Ledger, costs: Sequence[Cost]) -> None:
    for number, one in enumerate(costs):
        ledger.spend(str(number), one)


def test_renewals_that_cut_weeks_are_not_added_up() -> None:
    """Weeks of the calendar are the same in both streams, and cost two; weeks that are counted from
    each start are not."""
    ledger = Ledger(Budget(9.0, 0.0, unit="user", period=7))
    ledger.spend("first", cost(7, 0, 10))
    with pytest.raises(ParameterError, match="a part of one"):
        ledger.spend("next", cost(7, 10, 20))
    ledger.spend("later", cost(7, 14, 20))
    assert compose([cost(7, 0, 10), cost(7, 15, 20)]).epsilon == 1.0


def undeclared(during: TimeRange | None = None) -> Cost:
    return Cost(Budget(1.0, 0.0, unit="user", max_events=1, period=2), during=during)


def test_streams_that_do_not_say_when_periods_begin_are_not_added_up() -> None:
    """Two streams begun one tick apart: a period of the first meets two of the second, 3 and not
    2."""
    assert dearest_of_two_begun_apart() == 3.0
    by_hand = TimeRange(0, None, "manual")
    for second in (undeclared(), undeclared(by_hand), undeclared(TimeRange(0, 8, "1", "2 0"))):
        with pytest.raises(
            ParameterError, match="nothing says that those of these streams begin at the same times"
        ):
            compose([undeclared(), second])
        ledger = Ledger(Budget(9.0, 0.0, unit="user", period=2))
        ledger.spend("first", undeclared())
        with pytest.raises(ParameterError, match="TimeRange"):
            ledger.spend("second", second)
        with pytest.raises(ParameterError, match="TimeRange"):
            ledger.remaining(during=second.during)
        assert len(ledger.entries) == 1
    words = TimeRange(0, None, "manual", "weeks from Monday")
    assert compose([undeclared(words), undeclared(words)]).epsilon == 2.0
    ledger = Ledger(Budget(2.0, 0.0, unit="user", period=2))
    spend_all(ledger, [undeclared(words), undeclared(words)])
    with pytest.raises(ParameterError, match="begin at different times"):
        compose([undeclared(words), undeclared(TimeRange(0, None, "manual", "weeks from Tuesday"))])


def dearest_of_two_begun_apart() -> float:
    return max(
        len(counted(2, 0, 8, life)) + len(counted(2, 1, 8, life))
        for unit in (*units(2, 0, 8), *units(2, 1, 8))
        for number in (1, 2)
        for life in itertools.combinations(unit, number)
    )


def test_ledgers_from_before_still_say_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that were made before periods were compared: the sentence states no number that may
    be false."""
    ledger = Ledger(Budget(2.0, 0.0, unit="user", period=2))
    with monkeypatch.context() as patch:
        patch.setattr("evercount.privacy.ledger.check_periods", lambda costs, earlier=(): None)
        spend_all(ledger, [undeclared(), undeclared()])
    assert ledger.sentence().startswith("2 streams, whose periods begin at different times")
    with pytest.raises(ParameterError, match="nothing says"):
        ledger.spend("third", undeclared())


def test_periods_of_other_lengths_and_clocks_are_not_added_up() -> None:
    budget = Budget(1.0, 0.0, unit="user", max_events=1, period=7)
    for text in ("14 0", "7 Europe/Vienna 0", "7 UTC 0", "weeks"):
        with pytest.raises(ParameterError, match="not equally long"):
            compose(
                Cost(budget, during=TimeRange(at, at + 7, "1", one))
                for at, one in ((0, "7 0"), (70, text))
            )
    with pytest.raises(ParameterError, match="counted from the start"):
        TimeRange(3, 10, "1", "7 0")


def test_what_is_said_of_a_successor() -> None:
    """A horizon that cuts a week: no sum for what starts at its end, nothing more for what starts
    with a later week."""
    cut, whole = cost(7, 0, 10), cost(7, 0, 14)
    said = successor_text(cut)
    assert "starts at this end, in the middle of a period" in said
    assert "what both cost together is not stated" in said
    assert "a whole number of periods after this start costs nothing more" in said
    with pytest.raises(ParameterError, match="a part of one"):
        compose([cut, cost(7, 10, 20)])
    assert compose([cut, cost(7, 14, 20)]).epsilon == 1.0
    assert successor_text(whole).startswith(
        "A new stream that starts at this end or later and a whole number"
    )
    assert compose([whole, cost(7, 14, 20)]).epsilon == 1.0
    assert "begin at the same times as these" in successor_text(undeclared())
    assert "epsilon=2, delta=0" in successor_text(undeclared())
