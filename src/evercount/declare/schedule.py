"""Clocks: from the time of an event to the tick it belongs to, in any time zone, in Python and in SQL.

All arithmetic is in whole microseconds. An instant is counted from 1970-01-01T00:00Z; a wall time is what a clock in
the zone shows, written as the instant at which a clock in UTC shows the same.

Ticks of seconds, minutes and hours have a fixed length. Ticks of days and weeks follow the calendar of the zone: a tick
begins at the first instant at which the wall clock shows its start or a later time. So a day of the spring change has
23 hours and one of the autumn change 25, and the ticks cover all time without gap or overlap.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from evercount.errors import ParameterError

SECOND = 1_000_000
UNITS = {"s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND, "w": 7 * 86400 * SECOND}
LONGEST = 3660 * UNITS["d"]
REACH = 100 * 366 * UNITS["d"]
"""Changes of the zone's offset are looked up for so long after the start; the last one holds beyond."""
EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Piece:
    """A stretch of constant offset: from the instant `since` on, wall = instant + `offset`.

    `reached` is the latest wall time that was shown before: a wall clock that was set back does not begin ticks again.
    """

    since: int
    offset: int
    reached: int


def parse_every(text: str) -> tuple[int, bool]:
    """(microseconds, calendar): the tick length of a text such as 15m, 1h, 1d or 1w."""
    match = re.fullmatch(r"([0-9]{1,9})\s*([smhdw])", text.strip())
    length = int(match[1]) * UNITS[match[2]] if match else 0
    if match is None or not 0 < length <= LONGEST:
        raise ParameterError(
            f"the tick length {text!r} is not one: write a whole number and s, m, h, d or w, such as 15m, 1h, 1d, 1w "
            "(at most ten years)"
        )
    return length, match[2] in "dw"


def zone_named(name: str) -> tzinfo:
    """The time zone of that name, or ParameterError."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ParameterError(
            f"unknown time zone {name!r}: write a name such as Europe/Vienna or UTC "
            "(if all names are unknown: pip install tzdata)"
        ) from error


def microseconds(moment: datetime) -> int:
    """The instant of an aware datetime, or the wall time of a naive one, in microseconds."""
    naive = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return (naive - EPOCH) // timedelta(microseconds=1)


def parse_time(text: str, zone: tzinfo, what: str) -> int:
    """The instant of an ISO 8601 text; without an offset it is a wall time of `zone`, which must be one instant."""
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is not None:
            return microseconds(moment)
        early, late = moment.replace(tzinfo=zone, fold=0), moment.replace(tzinfo=zone, fold=1)
        first, second = microseconds(early), microseconds(late)
    except (ValueError, OverflowError) as error:
        raise ParameterError(
            f"{what} {text!r} is not a time: write ISO 8601, such as 2026-01-31T08:00 or 2026-01-31T08:00+01:00"
        ) from error
    if first != second:
        shown = early.astimezone(UTC).astimezone(zone).replace(tzinfo=None)
        happens = "happens twice" if shown == moment else "does not exist"
        raise ParameterError(
            f"{what} {text!r} {happens} in {zone} (clock change): write it with its offset, such as {text}+01:00"
        )
    return first


@dataclass(frozen=True)
class Clock:
    """Public ticks of one length from a public start.

    Guarantee. Which tick an event belongs to depends on its own time and on public parameters, never on other events.
    For every instant t ≥ start: start_of(tick_of(t)) ≤ t < start_of(tick_of(t) + 1). `sql_tick` computes `tick_of`.
    Tests: tests/declare/test_schedule.py.
    """

    start: int
    length: int
    calendar: bool
    zone: str = "UTC"

    @classmethod
    def of(cls, every: str, start: str, zone: str = "UTC") -> Clock:
        """The clock of `--every`, `--start` and `--tz`."""
        length, calendar = parse_every(every)
        return cls(parse_time(start, zone_named(zone), "--start"), length, calendar, zone)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Stretches of constant offset from two days before the start on."""
        zone = zone_named(self.zone)
        day = UNITS["d"]
        low = self.start - 2 * day
        # one year below datetime's last, so that no wall time of any zone overflows
        high = min(self.start + REACH, microseconds(datetime(9998, 1, 1)))
        pieces = [Piece(low, _offset(zone, low), -(2**62))]
        at = low
        while at < high:
            ahead = min(at + day, high)
            if _offset(zone, ahead) != pieces[-1].offset:
                since = _change(zone, at, ahead)
                before = pieces[-1]
                reached = max(before.reached, since + before.offset - 1)
                pieces.append(Piece(since, _offset(zone, since), reached))
                at = since
            else:
                at = ahead
        return tuple(pieces)

    @property
    def _wall_start(self) -> int:
        return self._progress(self.start)

    def _piece(self, instant: int) -> Piece:
        return self.pieces[max(0, bisect_right(self.pieces, instant, key=lambda piece: piece.since) - 1)]

    def _progress(self, instant: int) -> int:
        """The latest wall time shown up to an instant: it never goes back."""
        piece = self._piece(instant)
        return max(instant + piece.offset, piece.reached)

    # -- ticks --------------------------------------------------------------------------------------------------------

    def tick_of(self, instant: int) -> int:
        """How many ticks have ended by an instant: the 0-based tick that it belongs to; negative before the start."""
        if self.calendar:
            return (self._progress(instant) - self._wall_start) // self.length
        return (instant - self.start) // self.length

    def start_of(self, tick: int) -> int:
        """The first instant of a 0-based tick."""
        if not self.calendar:
            return self.start + tick * self.length
        wall = self._wall_start + tick * self.length
        for piece, following in zip(self.pieces, (*self.pieces[1:], None), strict=True):
            instant = max(piece.since, wall - piece.offset)
            if following is None or instant < following.since:
                return max(instant, self.start)
        raise AssertionError("the last piece has no end")

    def label(self, tick: int) -> str:
        """The start of a 0-based tick, as ISO 8601 with the zone's offset."""
        return self.show(self.start_of(tick))

    def show(self, instant: int) -> str:
        """An instant, as ISO 8601 with the zone's offset."""
        try:
            moment = EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=instant)
            return moment.astimezone(zone_named(self.zone)).isoformat()
        except OverflowError as error:
            raise ParameterError("a tick lies beyond the year 9999: use a shorter tick or horizon") from error

    # -- the same in SQL ----------------------------------------------------------------------------------------------

    def sql_instant(self, wall: str) -> str:
        """SQL: the instant of a wall time; the first where the clock was set back, NULL where it was set forward."""
        bounds: list[int] = []
        leaves = [f"{wall} - ({self.pieces[0].offset})"]
        for before, piece in zip(self.pieces, self.pieces[1:], strict=False):
            bounds.append(piece.since + before.offset)
            if piece.offset > before.offset:
                leaves.append("NULL")
                bounds.append(piece.since + piece.offset)
            leaves.append(f"{wall} - ({piece.offset})")
        return _choose(wall, bounds, leaves)

    def sql_tick(self, instant: str) -> str:
        """SQL: the 0-based tick of an instant at or after the start."""
        if not self.calendar:
            return f"({instant} - ({self.start})) // {self.length}"
        leaves = [f"greatest({instant} + ({piece.offset}), {piece.reached})" for piece in self.pieces]
        progress = _choose(instant, [piece.since for piece in self.pieces[1:]], leaves)
        return f"({progress} - ({self._wall_start})) // {self.length}"


def _offset(zone: tzinfo, instant: int) -> int:
    moment = (EPOCH + timedelta(microseconds=instant)).replace(tzinfo=UTC)
    shift = moment.astimezone(zone).utcoffset()
    assert shift is not None  # an aware datetime has an offset
    return shift // timedelta(microseconds=1)


def _change(zone: tzinfo, low: int, high: int) -> int:
    """The first whole second in (low, high] whose offset is not that of `low`; offsets change at whole seconds."""
    before = _offset(zone, low)
    low, high = low // SECOND, -(-high // SECOND)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle * SECOND) == before:
            low = middle
        else:
            high = middle
    return high * SECOND


def _choose(value: str, bounds: Sequence[int], leaves: Sequence[str]) -> str:
    """SQL: leaves[i] where i bounds are ≤ value; a balanced tree, so that a century costs eight comparisons."""
    if not bounds:
        return leaves[0]
    middle = len(bounds) // 2
    below = _choose(value, bounds[:middle], leaves[: middle + 1])
    above = _choose(value, bounds[middle + 1 :], leaves[middle + 1 :])
    return f"CASE WHEN {value} < {bounds[middle]} THEN {below} ELSE {above} END"
