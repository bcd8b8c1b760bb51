"""Periods of persons that are lengths of the calendar: whole ticks, and none longer than the noise
was made for."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from evercount import Budget, Count
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.declarations.unit_periods import (
    period_of,
    periods_named,
    sql_period,
    with_period_ticks,
)
from evercount.engine.user_counting import UserCaps
from evercount.errors import ParameterError
from evercount.privacy import TimeRange

VIENNA = "Europe/Vienna"


def unit(period: Any) -> Budget:
    return Budget(1.0, 1e-6, unit="user", max_per_tick=1, period=period)


@pytest.mark.parametrize(
    ("tick", "period", "zone", "start", "ticks"),
    [
        ("1h", "1d", VIENNA, "2026-01-01", 25),
        pytest.param("15m", "1d", VIENNA, "2026-03-28", 100, marks=pytest.mark.soak),
        pytest.param("1h", "1w", VIENNA, "2026-01-05", 169, marks=pytest.mark.soak),
        ("1d", "1w", VIENNA, "2026-01-05", 7),
        ("1d", "4w", "UTC", "2026-01-01", 28),
        ("24h", "1d", "UTC", "2026-01-01", 1),
        ("30m", "1d", "Australia/Lord_Howe", "2026-01-01", 49),
    ],
)
def test_periods_are_whole_ticks_and_none_is_longer(
    tick: str, period: str, zone: str, start: str, ticks: int
) -> None:
    """Over a year: the number grows by one at ticks that begin a period of the calendar, and is
    constant between."""
    schedule = Schedule.of(tick, start, zone)
    budget = with_period_ticks(unit(period), schedule)
    assert budget.period_ticks == ticks
    numbered, periods = period_of(budget, schedule), Schedule.of(period, start, zone)
    assert numbered is not None
    last = schedule.tick_of(periods.start_of(periods.tick_of(schedule.begin + 366 * 86400 * 10**6)))
    seen: dict[int, int] = {}
    for one in range(1, last):
        number = numbered(one)
        seen[number] = seen.get(number, 0) + 1
        assert (
            periods.tick_of(schedule.start_of(one))
            == periods.tick_of(schedule.start_of(one + 1) - 1)
            == number + 1
        )
    assert max(seen.values()) == ticks
    assert list(seen) == list(range(len(seen)))


@pytest.mark.parametrize(
    ("tick", "period", "zone"),
    [
        ("5h", "1d", "UTC"),
        ("24h", "1d", VIENNA),
        ("1h", "1d", "Australia/Lord_Howe"),
        ("2d", "1w", "UTC"),
        ("1w", "1d", "UTC"),
    ],
)
def test_ticks_that_cut_a_period_are_refused(tick: str, period: str, zone: str) -> None:
    for start in ("2026-01-01", None):
        with pytest.raises(ParameterError, match="cut periods"):
            with_period_ticks(unit(period), Schedule.of(tick, start, zone))


def test_manual_ticks_have_no_calendar() -> None:
    with pytest.raises(ParameterError, match="closed by hand"):
        with_period_ticks(unit("1d"), Schedule())
    assert with_period_ticks(unit(7), Schedule()).period_ticks == 7


def test_a_declaration_finds_the_length_itself() -> None:
    """Nobody may write it there, and it is not part of what is stored."""
    table: dict[str, Any] = {
        "name": "x",
        "query": "count",
        "budget": {"epsilon": 1, "delta": 1e-6, "unit": "user", "max_per_tick": 1, "period": "1d"},
        "tick": "1h",
        "zone": VIENNA,
        "start": "2026-01-01",
    }
    declared = StreamDeclaration.from_dict(table)
    with pytest.raises(ParameterError, match="period_ticks"):
        StreamDeclaration.from_dict({**table, "budget": {**table["budget"], "period_ticks": 1}})
    assert declared.budget.period_ticks == 25
    assert "period_ticks" not in declared.to_dict()["budget"]
    assert StreamDeclaration.from_dict(declared.to_dict()) == declared
    assert declared.build().budget.touched().ticks == 25
    assert declared.with_schedule(replace(declared.schedule, start=None)).budget.period_ticks == 25


def test_periods_with_one_name_are_the_same() -> None:
    """Over clock changes: equal texts mean equal borders after both starts."""
    schedules = [
        (Schedule.of(tick, start, zone), period)
        for tick in ("1d", "1h")
        for start in ("2026-01-05", "2026-01-12", "2026-03-30", "2026-03-31", "2026-07-06")
        for zone in ("Europe/Vienna", "UTC")
        for period in ("1d", "1w", 7, 24)
    ]
    named = [
        (
            periods_named(Budget(1.0, 1e-6, unit="user", max_events=1, period=period), schedule),
            schedule,
            period,
        )
        for schedule, period in schedules
    ]
    since = Schedule.of("1d", "2026-08-01").begin

    def borders(schedule: Schedule, period: int | str) -> set[int]:
        divided = (
            schedule if isinstance(period, int) else Schedule(period, schedule.begin, schedule.zone)
        )
        step = period if isinstance(period, int) else 1
        first = divided.tick_of(since) // step
        starts = {divided.start_of(1 + (first + number) * step) for number in range(-1, 60)}
        return {start for start in starts if since <= start < since + 20 * 86_400_000_000}

    for (one, *first), (other, *second) in itertools.combinations(named, 2):
        if one == other:
            assert borders(*first) == borders(*second), (first, second)
    assert periods_named(Budget(1.0, 1e-6), schedules[0][0]) == ""
    assert len({name for name, *_ in named}) > 5


@pytest.mark.parametrize(
    ("tick", "start", "zone"),
    [
        ("1h", "2026-10-24", "Europe/Vienna"),
        ("1h", "2026-03-27", "Europe/Vienna"),
        ("1d", "2026-03-27", "Europe/Vienna"),
        ("6h", "2026-10-24T12:00:00Z", "UTC"),
    ],
)
def test_periods_in_sql_are_those_of_python(tick: str, start: str, zone: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    schedule = Schedule.of(tick, start, zone)
    for period in ("1d", "1w", 3):
        budget = Budget(1.0, 1e-9, unit="user", max_per_tick=1, period=period)
        caps = UserCaps.of(Count(), budget, period_of(budget, schedule))
        assert caps is not None
        sql = sql_period(budget, schedule, "place", until=schedule.start_of(2001))
        rows = duckdb.connect().execute(
            f"SELECT {sql} FROM (SELECT unnest(range(1, 2001))::INTEGER AS place)"
        )
        assert [number for (number,) in rows.fetchall()] == [
            caps.period_of(one) for one in range(1, 2001)
        ]
    assert sql_period(Budget(1.0, 1e-9, unit="user", max_events=1), schedule, "place") == "0"


@pytest.mark.parametrize("period", ["1d", "1w"])
@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("UTC", "2026-01-01"),
        (VIENNA, "2026-01-01T05:00"),
        # the clock skips midnight in March and shows it twice in November
        ("America/Havana", "2026-01-01"),
        ("Africa/Cairo", "2026-01-01"),
        ("Australia/Lord_Howe", "2026-01-01"),
        ("Pacific/Apia", "2011-06-01"),  # 30 December was left out
    ],
)
def test_the_last_period_ends_where_the_calendar_says(period: str, zone: str, start: str) -> None:
    """`TimeRange.whole`, which knows the text alone, against the schedule, at every hour of a
    year."""
    hours, periods = Schedule.of("30m", start, zone), Schedule.of(period, start, zone)
    named = periods_named(unit(period), hours)
    later = 0
    for horizon in range(1, 366 * 48):
        end = hours.start_of(horizon + 1)
        whole = TimeRange(hours.begin, end, hours.divided, named).whole.end
        assert whole == periods.start_of(periods.tick_of(end - 1) + 1), horizon
        later += whole > end
    assert later > 0
    far = TimeRange(hours.begin, 10**18, hours.divided, named)
    assert far.whole.end is None, "no calendar reaches so far: it has no end"
