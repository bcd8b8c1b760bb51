"""Borders of periods where clocks jump, and what a time range refuses: planted bugs had survived
here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evercount.errors import ParameterError
from evercount.privacy.time_range import Grid, TimeRange, share_periods

DAY = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micro(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def daily(phase: int) -> Grid:
    return Grid(DAY, "Europe/Vienna", phase)


def test_just_after_a_border_comes_the_next_one() -> None:
    midnight = micro("2026-05-04T00:00+02:00")
    assert daily(0).next_border(midnight) == midnight
    assert daily(0).next_border(midnight + 1) == midnight + DAY
    assert daily(0).next_border(midnight - 1) == midnight


@pytest.mark.parametrize("minutes", [120, 150, 179])
def test_a_border_that_the_clock_skips_is_where_it_jumps(minutes: int) -> None:
    """From 02:00 clocks jump to 03:00: a day that begins in between begins with the jump."""
    jump = micro("2026-03-29T03:00+02:00")
    assert daily(minutes * 60_000_000).next_border(jump) == jump
    before = daily(minutes * 60_000_000).next_border(jump - 1)
    assert before is not None
    assert before >= jump


def test_a_border_that_the_clock_shows_twice_is_the_first_one() -> None:
    """At 03:00 clocks go back to 02:00: 02:30 comes twice, and the day begins once."""
    first = micro("2026-10-25T02:30+02:00")
    grid = daily(150 * 60_000_000)
    assert grid.next_border(first) == first
    second = first + DAY // 24
    assert (
        grid.next_border(second) == grid.next_border(first + 1) == micro("2026-10-26T02:30+01:00")
    )


@pytest.mark.parametrize(
    "fields",
    [
        (0, 1, ""),
        (0, 1, 5),
        (0, 1, "1", 5),
        (0, 1, "1", "", 5),
        (1, 1, "1"),
        (2, 1, "1"),
        (True, 5, "1"),
        (0, 1.5, "1"),
        (1, 9, "1", "7 0"),
    ],
)
def test_fields_that_make_no_range_are_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ParameterError):
        TimeRange(*fields)


def test_periods_may_begin_elsewhere_by_hand_or_on_a_calendar() -> None:
    assert TimeRange(1, 9, "manual", "7 0").periods == "7 0"
    assert TimeRange(1, 9, "1", "7 UTC 0").periods == "7 UTC 0"
    assert TimeRange(8, 9, "1", "7 1").periods == "7 1"


def test_streams_of_one_grid_share_their_periods_wherever_they_overlap() -> None:
    """Said too seldom, this costs people's budget and protects nobody."""
    one, other = TimeRange(0, 100, "1", "7 0"), TimeRange(7, 90, "1", "7 0")
    assert share_periods(one, other)
    assert share_periods(other, one)
    assert not share_periods(one, TimeRange(1, 90, "1", "7 1"))
    assert not share_periods(one, None)
    assert not share_periods(TimeRange(0, 100, "1"), TimeRange(0, 100, "1"))
