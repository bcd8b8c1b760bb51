"""Streams of a store that protect persons in weeks: what they cost together, and what a cap lets
pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import Budget, Cost, TimeRange
from evercount.service.runtime import Service
from evercount.store import BudgetCap, Store, StreamDeclaration, retire_stream, set_cap, spending
from evercount.store.spending import Spending, describe_ledger
from evercount.store.stream_life import explain, renew_stream
from served_service import ADMIN, HEADERS, HandClock, served

DAY = 86400.0
WEEKS = {
    "epsilon": 1.0,
    "delta": 0.0,
    "unit": "user",
    "max_per_tick": 1,
    "max_ticks": 1,
    "period": "1w",
}


def declared(name: str, day: int = 5, **change: Any) -> StreamDeclaration:
    """A stream that begins in January 1970: the 5th is a Monday."""
    table = {
        "name": name,
        "query": "count",
        "budget": WEEKS,
        "tick": "1d",
        "zone": "UTC",
        "views": ["per-tick"],
    }
    return StreamDeclaration.from_dict(
        {**table, "start": f"1970-01-{day:02d}", "horizon": 10, **change}
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "a.db")
    yield store
    store.close()


def totals(store: Store) -> list[tuple[float, int]]:
    return [(one["epsilon"], one["streams"]) for one in store.ledger()["totals"]]


def test_seven_weekdays_do_not_fit_into_one_cap(store: Store) -> None:
    """Somebody who comes on every day would be counted seven times in each week."""
    set_cap(store.database, BudgetCap(1.0, 0.0))
    store.declare(declared("monday"), 0.0)
    for day in range(6, 12):
        with pytest.raises(BudgetExceeded, match="begin at different times"):
            store.declare(declared(f"day-{day}", day), 0.0)
    assert totals(store) == [(1.0, 1)]
    set_cap(store.database, None)
    store.declare(declared("tuesday", 6), 0.0)
    (first, second) = store.ledger()["totals"]
    assert (first["names"], first["apart"], second["names"], second["apart"]) == (
        ["monday"],
        1,
        ["tuesday"],
        1,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"tick": "manual", "start": None, "zone": None, "budget": {**WEEKS, "period": 7}},
        {"zone": "Europe/Vienna"},
    ],
    ids=["by hand", "another clock"],
)
def test_periods_that_cannot_be_compared_do_not_fit_into_a_cap(
    store: Store, change: dict[str, Any]
) -> None:
    set_cap(store.database, BudgetCap(5.0, 0.0))
    store.declare(
        declared("one", budget={**WEEKS, "period": change.get("budget", WEEKS)["period"]}), 0.0
    )
    with pytest.raises(BudgetExceeded, match="cannot be stated"):
        store.declare(declared("two", **change), 0.0)
    assert list(store.streams) == ["one"]


def test_periods_of_other_lengths_are_other_units(store: Store) -> None:
    set_cap(store.database, BudgetCap(1.0, 0.0))
    store.declare(declared("days", budget={**WEEKS, "period": 7}), 0.0)
    store.declare(declared("hours", tick="1h", budget={**WEEKS, "period": 7}), 0.0)
    assert [one["apart"] for one in store.ledger()["totals"]] == [0, 0]


def test_a_renewal_that_cuts_a_week_does_not_fit_into_a_cap(store: Store) -> None:
    """The next stream has weeks of its own, and the cut one meets a part of its first."""
    store.declare(declared("flu"), 0.0)
    set_cap(store.database, BudgetCap(9.0, 0.0))
    with pytest.raises(BudgetExceeded, match="a part of one"):
        renew_stream(store, "flu", 0.0)
    assert list(store.streams) == ["flu"]
    set_cap(store.database, None)
    renew_stream(store, "flu", 0.0)
    assert totals(store) == [(1.0, 1), (1.0, 1)]


def test_a_renewal_after_whole_weeks_is_free(store: Store) -> None:
    set_cap(store.database, BudgetCap(1.0, 0.0))
    store.declare(declared("flu", horizon=14), 0.0)
    renew_stream(store, "flu", 0.0)
    assert totals(store) == [(1.0, 2)]


@pytest.mark.parametrize(("days", "whole"), [(3, False), (7, True)])
def test_a_successor_of_a_retired_stream_in_the_middle_of_a_week(
    store: Store, days: int, whole: bool
) -> None:
    """The stream ends with its last tick; of a week that it cuts no sum is stated."""
    live = store.declare(declared("one"), 0.0)
    now = (4 + days + 0.2) * DAY
    store.close_ticks(live, days, now)
    said = explain(store, "one", now, "two")
    assert ("Both together keep epsilon=1, delta=0." in said) == whole
    assert ("What both keep together is not stated" in said) != whole
    set_cap(store.database, BudgetCap(1.0, 0.0))
    if not whole:
        with pytest.raises(BudgetExceeded, match="a part of one"):
            retire_stream(store, "one", now, successor="two")
        assert list(store.streams) == ["one"], "nothing has changed"
        set_cap(store.database, None)
    retire_stream(store, "one", now, successor="two")
    assert totals(store) == ([(1.0, 2)] if whole else [(1.0, 1), (1.0, 1)])


def test_a_successor_that_overlaps_is_explained_without_a_number(store: Store) -> None:
    live = store.declare(declared("one"), 0.0)
    store.close_ticks(live, 5, 9 * DAY)
    said = explain(store, "one", 6.2 * DAY, "two")  # a clock that was set back
    assert "What both keep together is not stated: persons are protected in periods of 1w" in said


def test_a_retirement_over_http_obeys_the_cap(tmp_path: Path) -> None:
    store, clock = Store(tmp_path / "a.db"), HandClock(4 * DAY)
    service = Service(store, clock=clock, admin=ADMIN)
    service.declare([declared("one")])
    with served(service) as client:
        client.headers.update(HEADERS)
        clock.moment = 7 * DAY + 60
        service.writer.submit(service.writer.close_due).result()
        service.writer.submit(lambda: set_cap(store.database, BudgetCap(1.0, 0.0))).result()
        refused = client.delete("/v1/streams/one", params={"successor": "two"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "BudgetExceeded")
        assert client.get("/v1/streams/one").json()["state"] == "open"
        service.writer.submit(lambda: set_cap(store.database, None)).result()
        assert client.delete("/v1/streams/one", params={"successor": "two"}).status_code == 200
        totals = client.get("/v1/ledger").json()["totals"]
        shown = [(one["epsilon"], one["names"], one["apart"]) for one in totals]
        assert shown == [(1.0, ["one"], 1), (1.0, ["two"], 1)]
    store.close()


# -- brute force over what the ledger of a store states --------------------------------------------

Ranges = tuple[tuple[int, int], ...]
PERIOD, LAST = 3, 7


def lines(ranges: Ranges) -> list[Spending]:
    budget = Budget(1.0, 0.0, unit="user", max_events=1, period=PERIOD)
    return [
        Spending(
            str(number),
            Cost(budget, during=TimeRange(start, end, "1", f"{PERIOD} {start % PERIOD}")),
            False,
        )
        for number, (start, end) in enumerate(ranges)
    ]


def dearest_life(ranges: Ranges) -> int:
    """The most periods in which the streams count one person, with events in one whole period of
    one of them."""
    most = 0
    for start, end in ranges:
        for begin in range(start, end, PERIOD):
            seen = [
                {
                    (at - first) // PERIOD
                    for at in range(begin, begin + PERIOD)
                    if first <= at < last
                }
                for first, last in ranges
            ]
            most = max(most, sum(map(len, seen)))
    return most


def compare() -> None:
    """Of triples of ranges: each total is what the dearest person of its streams costs, and says
    how many streams it leaves out: those of which a part of a period meets one of its own."""
    apart = 0
    single = [(start, end) for start in range(LAST) for end in range(start + 1, LAST + 1)]
    for ranges in itertools.islice(itertools.product(single, repeat=3), 0, None, 5):
        named = set()
        for total in describe_ledger(lines(ranges))["totals"]:
            members = tuple(ranges[int(name)] for name in total["names"])
            others = [ranges[number] for number in range(3) if str(number) not in total["names"]]
            assert total["epsilon"] == dearest_life(members), (ranges, total)
            assert total["apart"] == len(others)
            assert all(
                any(meets_a_part(other, member) for member in members) for other in others
            ), (
                ranges,
                total,
            )
            apart += total["apart"]
            named |= set(total["names"])
        assert named == {"0", "1", "2"}
    assert apart > 0


def meets_a_part(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a whole period of one of two streams reaches into the other, which begins in it."""
    (begin, end), (later, _) = sorted((one, other))
    reach = begin + -(-(end - begin) // PERIOD) * PERIOD
    return (later - begin) % PERIOD != 0 and later < reach


def test_no_total_is_below_what_a_person_costs() -> None:
    compare()


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "periods": lambda patch: patch.setattr(
        spending, "check_periods", lambda costs, earlier=(): None
    ),
    "the streams that are apart": lambda patch: patch.setattr(
        Spending, "shares_unit", lambda line, other: False
    ),
    "the end that cuts a period": lambda patch: patch.setattr(
        TimeRange, "whole", property(lambda self: self)
    ),
    "that several can be added up": lambda patch: patch.setattr(
        spending, "groups_of", lambda lines: [[line] for line in lines]
    ),
    "that other periods meet these": lambda patch: patch.setattr(
        spending,
        "_fits",
        lambda line, group: line.cost.during.periods == group[0].cost.during.periods,
    ),
}


@pytest.mark.parametrize("forgotten", PLANTED)
def test_groups_that_forget_something_are_caught(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTED[forgotten](monkeypatch)
    with pytest.raises((AssertionError, ParameterError)):
        compare()
