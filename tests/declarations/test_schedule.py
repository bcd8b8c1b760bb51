"""Ticks and time zones: the clock against datetime arithmetic, in Python and in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from evercount.declarations import schedule
from evercount.declarations.schedule import (
    EPOCH,
    UNITS,
    Schedule,
    microseconds,
    parse_tick,
    parse_time,
)
from evercount.errors import ParameterError
from wrapped_functions import wrap

HOUR, DAY = UNITS["h"], UNITS["d"]
ZONES = [
    "UTC",
    "Europe/Vienna",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Asia/Kathmandu",
]


def instant(text: str) -> int:
    return microseconds(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", (500_000, False)),
        ("15m", (900_000_000, False)),
        ("1h", (HOUR, False)),
        ("24h", (DAY, False)),
        ("1d", (DAY, True)),
        ("2w", (14 * DAY, True)),
        ("manual", None),
    ],
)
def test_durations(text: str, expected: tuple[int, bool] | None) -> None:
    assert parse_tick(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0h", "-1h", "1.5h", "1y", "h", "1", "999999999w", "1h30m", "5ms", None, 7]
)
def test_durations_that_are_none(text: object) -> None:
    with pytest.raises(ParameterError, match="tick length"):
        parse_tick(text)


def test_times_that_are_not_one_instant_are_refused() -> None:
    vienna = ZoneInfo("Europe/Vienna")
    with pytest.raises(ParameterError, match="does not exist"):
        parse_time("2026-03-29T02:30", vienna, "--start")
    with pytest.raises(ParameterError, match="happens twice"):
        parse_time("2026-10-25T02:30", vienna, "--start")
    assert parse_time("2026-10-25T02:30+01:00", vienna, "--start") == instant(
        "2026-10-25T01:30+00:00"
    )
    assert parse_time("2026-07-01", vienna, "--start") == instant("2026-06-30T22:00+00:00")
    for text in (
        "yesterday",
        "2026-13-01",
        "2026",
        "1767225600000",
        "",
        123,
        True,
        None,
        float("nan"),
    ):
        with pytest.raises(ParameterError, match="ISO 8601"):
            parse_time(text, vienna, "--end")
    with pytest.raises(ParameterError, match="time zone"):
        Schedule.of("1h", "2026-01-01", "Europe/Vienn")


@pytest.mark.parametrize("zone", ZONES)
def test_days_follow_the_calendar(zone: str) -> None:
    """Every local midnight of four years begins a tick, and nothing else does."""
    clock = Schedule.of("1d", "2025-01-01T00:00", zone)
    tz = ZoneInfo(zone)
    for day in range(4 * 365):
        date = (datetime(2025, 1, 1) + timedelta(days=day)).date()
        start = clock.start_of(day + 1)
        shown = datetime.fromtimestamp(start / 1e6, tz)
        before = datetime.fromtimestamp(start / 1e6 - 1, tz)
        assert shown.date() == date
        assert before.date() < date
        assert clock.tick_of(start) == day + 1
        assert clock.tick_of(start - 1) == day


def test_a_day_of_a_clock_change_has_23_or_25_hours() -> None:
    clock = Schedule.of("1d", "2026-03-28", "Europe/Vienna")
    assert clock.start_of(3) - clock.start_of(2) == 23 * HOUR
    clock = Schedule.of("1d", "2026-10-24", "Europe/Vienna")
    assert clock.start_of(3) - clock.start_of(2) == 25 * HOUR
    hours = Schedule.of("24h", "2026-10-24", "Europe/Vienna")
    assert hours.start_of(3) - hours.start_of(2) == 24 * HOUR
    assert clock.show(clock.start_of(3)) == "2026-10-26T00:00:00+01:00"


@pytest.mark.parametrize("start", ["2026-03-28T02:30", "2026-10-24T02:30"])
def test_a_boundary_inside_a_clock_change(start: str) -> None:
    """02:30 does not exist or happens twice on the second day: one boundary all the same, and time
    never goes back."""
    clock = Schedule.of("1d", start, "Europe/Vienna")
    instants = np.arange(clock.start, clock.start + 4 * DAY, UNITS["m"])
    ticks = np.asarray([clock.tick_of(int(t)) for t in instants])
    assert set(np.diff(ticks)) == {0, 1}
    for tick in range(1, 5):
        first = int(instants[np.argmax(ticks == tick)])
        assert clock.start_of(tick) == first
    wall = datetime.fromtimestamp(clock.start_of(2) / 1e6, ZoneInfo("Europe/Vienna")).strftime(
        "%H:%M %z"
    )
    assert wall == ("03:00 +0200" if "03-28" in start else "02:30 +0200")


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["15m", "1h", "1d", "1w"])
def test_sql_is_the_same_clock(zone: str, every: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    clock = Schedule.of(every, "2026-01-05T00:00", zone)
    generator = np.random.default_rng(7)
    near = [p.since + k for p in clock.pieces()[1:8] for k in (-HOUR, -1, 0, 1, HOUR - 1, HOUR)]
    instants = np.concatenate([generator.integers(clock.start, clock.start + 900 * DAY, 500), near])
    instants = np.asarray([t for t in instants if t >= clock.start], dtype=np.int64)
    got = (
        duckdb.connect()
        .execute(f"SELECT {clock.sql_tick('t')} FROM (SELECT unnest(?) AS t)", [instants.tolist()])
        .fetchall()
    )
    assert [row[0] for row in got] == [clock.tick_of(int(t)) for t in instants]


@pytest.mark.parametrize("zone", ZONES)
def test_wall_times_in_sql(zone: str) -> None:
    """Against zoneinfo: fold=0, and NULL exactly where a round trip shows another wall time."""
    duckdb = pytest.importorskip("duckdb")
    clock = Schedule.of("1h", "2026-01-05T00:00+00:00", zone)
    tz = ZoneInfo(zone)
    changes = [
        p.since + p.offset + k * UNITS["m"]
        for p in clock.pieces()[1:9]
        for k in range(-150, 151, 7)
    ]
    walls = [*changes, *range(clock.start, clock.start + 700 * DAY, 5 * HOUR + 1)]
    expected = []
    for wall in walls:
        naive = EPOCH + timedelta(microseconds=wall)
        back = naive.replace(tzinfo=tz).astimezone(UTC)
        same = back.astimezone(tz).replace(tzinfo=None) == naive
        expected.append(microseconds(back) if same else None)
    got = (
        duckdb.connect()
        .execute(f"SELECT {clock.sql_instant('w')} FROM (SELECT unnest(?) AS w)", [walls])
        .fetchall()
    )
    assert [row[0] for row in got] == expected
    assert (None in expected) == (len(clock.pieces()) > 1)


@pytest.mark.parametrize("zone", ZONES)
def test_a_tick_looks_up_the_years_that_it_needs(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was asked before: the changes that are known are the first ones of a century."""
    looked_up: list[int] = []
    clock = Schedule.of("1d", "2026-01-05T00:00", zone)
    century = tuple(clock.pieces())
    wrap(
        monkeypatch,
        schedule,
        "_offset",
        lambda offset, tz, at: looked_up.append(at) or offset(tz, at),
    )
    pieces = schedule._pieces
    pieces.cache_clear()
    for years in (0, 1, 5, 40):
        moment = clock.begin + years * 365 * DAY + HOUR
        tick = clock.tick_of(moment)
        assert clock.start_of(tick) <= moment < clock.start_of(tick + 1)
        assert len(looked_up) < 2 * 366 * (4 * years + 2)  # each doubling begins anew
        known = clock.pieces(moment)
        assert tuple(known) == century[: len(known)]
        looked_up.clear()
        pieces.cache_clear()
