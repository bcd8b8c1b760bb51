"""TimeRange: the instants whose events a stream counts, and which streams one protected unit can be
in at once.

Streams over disjoint ranges cost the largest of their costs, not the sum, where every unit lies in
one range: `composition.proof.md`, section 8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from evercount.errors import ParameterError
from evercount.privacy.budget import Budget
from evercount.privacy.guarantee_text import MANUAL

GRID_TEXT = re.compile(r"([1-9][0-9]*) (?:(\S+) )?([0-9]+)")
_EPOCH = datetime(1970, 1, 1)


class Grid(NamedTuple):
    """Periods that follow each other without gaps, as `TimeRange.periods` writes them:
    `Schedule.grid`."""

    length: int
    zone: str | None  # of a calendar, in which lengths are those that a clock on the wall shows
    phase: int

    @classmethod
    def of(cls, periods: str) -> Grid | None:
        """Read the text; None for one of another form."""
        parts = GRID_TEXT.fullmatch(periods)
        if parts is None:
            return None
        return cls(int(parts[1]), parts[2], int(parts[3]))

    @property
    def clock(self) -> tuple[int, str | None]:
        """What two grids share whose periods are of one length, wherever they begin."""
        return self.length, self.zone

    def next_border(self, instant: int) -> int | None:
        """The first instant, from this one on, at which a period begins; None where the calendar is
        over.

        **Guarantee.** Never too early. Test:
        `tests/declarations/test_unit_periods.py::test_the_last_period_ends_where_the_calendar_says`.
        """
        if self.zone is None:
            return instant + (self.phase - instant) % self.length
        try:
            zone = UTC if self.zone.upper() in ("UTC", "Z") else ZoneInfo(self.zone)
            before = _shown(instant - 1, zone)
            wall = _shown(instant, zone)
            begun = (wall - self.phase) // self.length - (before - self.phase) // self.length
            # also where the clock skips the border
            if begun > 0 and _first_instant(wall, zone) >= instant:
                return instant
            wall += (self.phase - wall) % self.length
            # the clock has shown this time before
            while (border := _first_instant(wall, zone)) < instant:
                wall += self.length
        except (OverflowError, ValueError, OSError, KeyError):  # no such date, or no such zone
            return None
        return border


def _shown(instant: int, zone: tzinfo) -> int:
    """The time that clocks of the zone show."""
    moment = (_EPOCH + timedelta(microseconds=instant)).replace(tzinfo=UTC).astimezone(zone)
    return (moment.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)


def _first_instant(wall: int, zone: tzinfo) -> int:
    """The first instant at which clocks of the zone show a time."""
    moment = (_EPOCH + timedelta(microseconds=wall)).replace(tzinfo=zone)
    return (moment.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True)
class TimeRange:
    """The instants from `start` to before `end`, and how a stream divides them. A declaration gives
    it to its stream.

    Args:
        start: the first instant, in microseconds since 1970.
        end: the first instant after it; None for a stream without end.
        ticks: the length of a tick in microseconds and, where it follows a calendar, the zone; or
            "manual".
        periods: where persons are protected period by period, which periods these are: their
            length, their zone and where they begin. Empty elsewhere.
        chain: where each stream starts with what persons have used of their caps in the stream
            before it, a name for all these streams together. Empty elsewhere. Only for streams that
            `engine/carried_caps.py` lets in.

    Raises:
        ParameterError: a range that ends before it starts, or fields of another type.

    >>> year = TimeRange(0, 365 * 86_400_000_000, "86400000000")
    >>> year.key
    [0, '86400000000']
    """

    start: int
    end: int | None
    ticks: str
    periods: str = ""
    chain: str = ""

    def __post_init__(self) -> None:
        whole = [self.start] if self.end is None else [self.start, self.end]
        if any(
            isinstance(one, bool) or not isinstance(one, int) for one in whole
        ) or whole != sorted(set(whole)):
            raise ParameterError(
                f"a time range goes from a start to a later end, got {self.start!r} to {self.end!r}"
            )
        texts = (self.ticks, self.periods, self.chain)
        if not all(isinstance(text, str) for text in texts) or not self.ticks:
            raise ParameterError(f"ticks, periods and chain are strings, got {texts!r}")
        grid = Grid.of(self.periods)
        if (
            grid is not None
            and grid.zone is None
            and self.ticks != MANUAL
            and (self.start - grid.phase) % grid.length
        ):
            raise ParameterError(
                f"periods are counted from the start {self.start} on, and {self.periods!r} are not"
            )

    @property
    def key(self) -> list[Any]:
        """What belongs to the key of the noise: all that decides what is counted of a person's
        events.

        The end is left out: the horizon says it in ticks, and a change in the rules of a zone may
        move it while the stream runs. Names of zones stand for themselves, whatever the database of
        zones says of them.
        """
        if self.chain:
            return [self.start, self.ticks, self.periods, self.chain]
        if self.periods:
            return [self.start, self.ticks, self.periods]
        return [self.start, self.ticks]

    def holds(self, instant: int) -> bool:
        """Whether the stream counts the events of this instant.

        Args:
            instant: microseconds since 1970.

        Returns:
            Whether it lies in the range.
        """
        return self.start <= instant and (self.end is None or instant < self.end)

    @property
    def whole(self) -> TimeRange:
        """The range until the last period that begins in it is over: later than its own end where
        that cuts a period.

        >>> [TimeRange(0, end, "1", periods="7 0").whole.end for end in (10, 14)]
        [14, 14]
        """
        if not self.periods or self.end is None:
            return self
        grid = Grid.of(self.periods)
        if grid is None:
            return replace(self, end=None)
        return replace(self, end=grid.next_border(self.end))

    @classmethod
    def from_list(cls, fields: Any) -> TimeRange:
        """The inverse of `to_list`.

        Args:
            fields: What `to_list` returned.

        Returns:
            The range.

        Raises:
            ValueError: The fields are too few.
        """
        start, end, ticks, periods, *rest = fields
        chain = rest[0] if rest else ""
        return cls(start, end, ticks, periods, chain)

    def to_list(self) -> list[Any]:
        """JSON-serialisable; `from_list` is the inverse.

        Returns:
            The fields, in order.
        """
        fields = [self.start, self.end, self.ticks, self.periods]
        if self.chain:
            fields.append(self.chain)
        return fields


def lies_in_one_range(budget: Budget) -> bool:
    """Whether one protected unit has all its events in one of two disjoint ranges. An event has,
    and so has what a person does within one period, if the ranges are `whole`. A person has not:
    they come back next year (with the caps of a chain of streams that costs no more, see
    `composition.overlaps_of`)."""
    return budget.unit == "event" or budget.period is not None


def share_periods(one: TimeRange | None, other: TimeRange | None) -> bool:
    """Whether each period that begins in one of two ranges is a whole period of the other, or does
    not meet it.

    A period that a stream meets in part only may cost it twice: without the first half of what a
    person does, the second half may come under the cap.

    **Guarantee.** It never says so of ranges where a period meets two, or a part of one:
    `composition.proof.md`, section 8, "Periods". Nothing is known without a range, or without a
    text that says which periods they are. Tests:
    `tests/privacy/test_periods_together.py::test_no_person_costs_more_than_is_stated`,
    `tests/privacy/test_periods_together.py::test_a_period_that_a_renewal_cuts`.

    >>> monday, tuesday = (TimeRange(day, 100 + day, "1", f"7 {day}") for day in (0, 1))
    >>> share_periods(monday, tuesday), share_periods(monday, TimeRange(103, 110, "1", "7 5"))
    (False, False)
    >>> share_periods(monday, TimeRange(105, 112, "1", "7 0"))
    True
    >>> share_periods(monday, TimeRange(106, 113, "1", "7 1"))
    True
    """
    if one is None or other is None or not one.periods or not other.periods:
        return False
    if one.periods == other.periods:
        return True
    grids = Grid.of(one.periods), Grid.of(other.periods)
    if grids[0] is None or grids[1] is None or MANUAL in (one.ticks, other.ticks):
        return False
    overlap = one.whole.holds(other.start) or other.whole.holds(one.start)
    return grids[0].clock == grids[1].clock and not overlap


def largest_overlaps(ranges: Iterable[TimeRange | None]) -> list[frozenset[int]]:
    """The largest sets of streams that one instant meets, by their numbers; None meets every
    instant.

    **Guarantee.** For every instant the streams whose range holds it are in one of the sets. Test:
    `tests/privacy/test_successors.py::test_every_instant_is_in_a_set`.

    >>> early, late = TimeRange(0, 10, "1"), TimeRange(10, 20, "1")
    >>> largest_overlaps([early, late, None, TimeRange(5, None, "1")])
    [frozenset({0, 2, 3}), frozenset({1, 2, 3})]
    """
    streams = list(ranges)
    starts = sorted({one.start for one in streams if one is not None}) or [0]
    sets = [
        frozenset(number for number, one in enumerate(streams) if one is None or one.holds(at))
        for at in starts
    ]
    return [one for one, following in pairwise([*sets, frozenset()]) if not one <= following]
