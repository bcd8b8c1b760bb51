"""The schedule of a stream: which tick an event belongs to, in any time zone, in Python and in SQL.

One grammar for all doors. A tick is

- of a **fixed length**: `500ms`, `10s`, `15m`, `1h`, `24h`; or
- a **calendar unit** of a time zone: `1d`, `1w` (and multiples). A day of the spring change has 23
  hours, one of the autumn change 25. A calendar unit needs a zone (`zone = "Europe/Vienna"`, or
  `"UTC"`); for 86,400 seconds sharp write `24h`; or
- **manual**: closed by hand.

Ticks are numbered from 1. All arithmetic is in whole microseconds. An instant is counted from
1970-01-01T00:00Z; a wall time is what a clock in the zone shows, written as the instant at which a
clock in UTC shows the same. A calendar tick begins at the first instant at which the wall clock
shows its start or a later time, so that ticks cover all time without gap or overlap.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from evercount.errors import ParameterError

MANUAL = "manual"
MILLISECOND = 1000
SECOND = 1_000_000
UNITS = {"ms": MILLISECOND, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND}
UNITS["w"] = 7 * UNITS["d"]
SHORTEST_TICK = 10 * MILLISECOND
LONGEST_TICK = 3660 * UNITS["d"]
YEAR = 366 * UNITS["d"]
# changes of the zone's offset are looked up this long after the start; the last one holds beyond
ZONE_YEARS = 100
EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = EPOCH.replace(tzinfo=UTC)
# a start lies between these, so that dates can say every tick, in any zone
FIRST_YEAR, LAST_YEAR = 1000, 9000
EARLIEST_NUMBER, LATEST_NUMBER = 10**8, 10**11
"""A number between these is seconds since 1970 (years 1973 to 5138). Smaller ones are more likely a
mistake (2026 is not a time), larger ones are milliseconds."""
TICK_TEXT = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d|w)")
# seconds since 1970; patterns are for Python and DuckDB
NUMBER_PATTERN = r"[0-9]{9,11}([.][0-9]{1,9})?"
_CLOCK_PATTERN = r"[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.][0-9]{1,9})?)?"
WALL_PATTERN = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}({_CLOCK_PATTERN})?"
"""A date, or a time without an offset. The day ends with 23:59: midnight belongs to the next day,
there is no 24:00."""
INSTANT_PATTERN = (
    rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}{_CLOCK_PATTERN}(Z| "
    r"UTC|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)"
)
"""A time with an offset."""
PLAIN_LINES = re.compile(
    r"([12][0-9]{3}(-[0-9]{2}){2}T([01][0-9]|2[0-3])(:[0-5][0-9]){2}([.][0-9]{1,6})?Z\n)+"
)
"""Lines of times in UTC, in the one form that most programs write."""
CLOCK_CHANGE = "in {} (clock change): write it with its offset, such as +01:00"
NUMBER_TEXT, TIME_TEXT = re.compile(NUMBER_PATTERN), re.compile(f"{WALL_PATTERN}|{INSTANT_PATTERN}")


@dataclass(frozen=True)
class Piece:
    """A stretch of constant offset: from the instant `since` on, wall = instant + `offset`."""

    since: int
    offset: int
    # the latest wall time shown before: a clock that is set back begins no tick again
    latest_wall: int


def parse_tick(text: Any) -> tuple[int, bool] | None:
    """The length of a tick, and whether it is one of the calendar; None for manual ones."""
    if text == MANUAL:
        return None
    length, unit = _read_length(
        text,
        least=SHORTEST_TICK,
        wrong=f"invalid tick length {text!r:.80}",
        right="500ms, 15m, 1h, 1d, 1w (10 ms to ten years), or 'manual'",
    )
    return length, unit in "dw"


def parse_length(text: Any, what: str) -> int:
    """The microseconds of a length of time such as 30s, 12h or 2d."""
    length, _ = _read_length(
        text,
        least=0,
        wrong=f"{what} {text!r:.40} is not a length of time",
        right="30s or 12h, up to ten years",
    )
    return length


def _read_length(text: Any, *, least: int, wrong: str, right: str) -> tuple[int, str]:
    """Read a whole number of a unit as microseconds, and the unit; refuse other texts."""
    match = TICK_TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    length = int(match[1]) * UNITS[match[2]] if match else -1
    if match is None or not least <= length <= LONGEST_TICK:
        raise ParameterError(
            f"{wrong}: write a whole number and ms, s, m, h, d or w, such as {right}"
        )
    return length, match[2]


def zone_named(name: Any) -> tzinfo:
    if isinstance(name, str) and name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ParameterError(
            f"unknown time zone {name!r:.80}: write a name such as Europe/Vienna or UTC "
            "(if all names are unknown: pip install tzdata)"
        ) from error


def microseconds(moment: datetime) -> int:
    """The instant of an aware datetime, or the wall time of a naive one, in microseconds."""
    if moment.tzinfo:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - EPOCH) // timedelta(microseconds=1)


def parse_instant(value: Any, zone: tzinfo, what: str) -> int:
    """The instant of one time, as parameters and events write it. One rule for all doors.

    A number from 10^8 to 10^11, or a text that is one, is seconds since 1970. Any other text is a
    date, or a date and a time of day from 00:00 to 23:59:59.999999999, with an offset, `Z` or
    ` UTC` at its end (the forms of ISO 8601 that `WALL_PATTERN` and `INSTANT_PATTERN` write down).
    Without an offset it is a wall time of `zone`; where the zone's clock showed it twice, the first
    time. Digits beyond the microsecond are cut off.
    """
    return _read_time(value, zone, what)[0]


def parse_plain_instants(values: Sequence[Any]) -> list[int | None] | None:
    """As `parse_instant` for each of many times that are all written in one of two plain forms;
    None for others.

    The forms are `2026-01-31T08:00:00Z`, with or without a fraction of the second down to
    microseconds, and seconds since 1970 as numbers: those of the programs that send large batches.
    Test: `tests/service/test_read_events.py::test_plain_times_are_read_as_single_ones`.
    """
    kinds = set(map(type, values))
    if kinds == {str}:
        lines = "\n".join([*values, ""])
        if lines.count("\n") != len(values) or not PLAIN_LINES.fullmatch(lines):
            return None
        try:
            return list(
                np.array(lines.replace("Z", "").split(), "datetime64[us]").view(int).tolist()
            )
        except ValueError:  # a day that its month does not have
            return None
    if (
        values
        and kinds <= {int, float}
        and min(values) >= EARLIEST_NUMBER
        and max(values) < LATEST_NUMBER
    ):
        return [round(value * SECOND) for value in values]
    return None


def parse_time(value: Any, zone: tzinfo, what: str) -> int:
    """As `parse_instant`, for a parameter: a wall time that happens twice is refused, too."""
    instant, twice = _read_time(value, zone, what)
    if twice:
        raise ParameterError(f"{what} {value!r:.80} happens twice {CLOCK_CHANGE.format(zone)}")
    return instant


def _read_time(value: Any, zone: tzinfo, what: str) -> tuple[int, bool]:
    """Find the first instant at which a clock of the zone shows the value, and whether it shows it
    twice."""
    refusal = ParameterError(
        f"{what} {value!r:.80} is not a time: write ISO 8601, such as 2026-01-31T08:00 or "
        "2026-01-31T08:00+01:00, or seconds since 1970"
    )
    if isinstance(value, str) and NUMBER_TEXT.fullmatch(value.strip()):
        value = float(value)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not EARLIEST_NUMBER <= value < LATEST_NUMBER:
                raise refusal
            return round(value * SECOND), False
        if isinstance(value, date):  # a datetime is one
            if isinstance(value, datetime):
                moment = value
            else:
                moment = datetime.combine(value, time())
        else:
            text = value.strip()
            if not TIME_TEXT.fullmatch(text):
                raise refusal
            moment = datetime.fromisoformat(text[:-4] + "Z" if text.endswith(" UTC") else text)
        if moment.tzinfo is not None:
            return microseconds(moment), False
        first, second = (microseconds(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
        exists = _moment(first).astimezone(zone).replace(tzinfo=None) == moment
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise refusal from None
    if not exists:
        raise ParameterError(f"{what} {value!r:.80} does not exist {CLOCK_CHANGE.format(zone)}")
    return first, second != first


def _moment(instant: int) -> datetime:
    """Make a datetime in UTC of an instant."""
    return _EPOCH_UTC + timedelta(microseconds=int(instant))


def instant_of(seconds: float) -> int:
    return round(seconds * SECOND)


def format_utc(instant: int) -> str:
    """ISO text in UTC; milliseconds and microseconds only where there are some."""
    if instant % MILLISECOND:
        finest = "microseconds"
    elif instant % SECOND:
        finest = "milliseconds"
    else:
        finest = "seconds"
    return _moment(instant).isoformat(timespec=finest).replace("+00:00", "Z")


@dataclass(frozen=True)
class Schedule:
    """Public ticks of one length from a public start.

    **Guarantee.** Which tick an event belongs to depends on its own time and on public parameters,
    never on other events. For every instant i ≥ start: start_of(tick_of(i)) ≤ i <
    start_of(tick_of(i) + 1). `sql_tick` computes `tick_of`. Tests:
    tests/declarations/test_schedule.py.

    >>> hours = Schedule.of("1h", "2026-01-31T08:00", "UTC")
    >>> hours.tick_of(hours.start_of(3)), hours.show(hours.start_of(3))
    (3, '2026-01-31T10:00:00+00:00')
    """

    tick: str = MANUAL
    start: int | None = None
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _ = zone_named(self.zone), self._length_and_kind  # both refuse what they cannot read
        first, last = (microseconds(datetime(year, 1, 1)) for year in (FIRST_YEAR, LAST_YEAR))
        if self.start is not None and not first <= self.start < last:
            raise ParameterError(f"start must lie between the years {FIRST_YEAR} and {LAST_YEAR}")

    @classmethod
    def of(cls, tick: str, start: Any, zone: str = "UTC") -> Schedule:
        return cls(
            tick, None if start is None else parse_time(start, zone_named(zone), "start"), zone
        )

    @cached_property
    def _length_and_kind(self) -> tuple[int, bool] | None:
        return parse_tick(self.tick)

    @property
    def manual(self) -> bool:
        return self._length_and_kind is None

    @property
    def calendar(self) -> bool:
        return self._length_and_kind is not None and self._length_and_kind[1]

    @property
    def length(self) -> int:
        """Microseconds of a tick (of a calendar tick: without clock changes)."""
        if self._length_and_kind is None:
            raise ParameterError("a manually clocked stream has no tick length")
        return self._length_and_kind[0]

    @property
    def divided(self) -> str:
        """How time is divided, in one text for all ways to write it: the length, and the zone of a
        calendar."""
        if self.manual:
            return MANUAL
        if self.calendar:
            return f"{self.length} {self.zone}"
        return str(self.length)

    def grid(self, length: int) -> str:
        """Pieces of this length from the start on, in one text for all starts that lie on the same
        pieces."""
        if self.calendar:
            return f"{length} {self.zone} {self._wall_start % length}"
        return f"{length} {self.begin % length}"

    @property
    def begin(self) -> int:
        if self.start is None:
            raise ParameterError("the schedule has no start yet")
        return self.start

    def with_start(self, now: int) -> Schedule:
        """The schedule with a start: where none was declared, now, back to a whole tick (whole
        second if manual)."""
        if self.start is not None:
            return self
        if not self.calendar:
            whole = SECOND if self.manual else self.length
            return replace(self, start=now // whole * whole)
        zone = zone_named(self.zone)
        today = _moment(now).astimezone(zone).date()
        if self.length % UNITS["w"] == 0:
            today -= timedelta(days=today.weekday())
        return replace(self, start=microseconds(datetime.combine(today, time(), zone)))

    def same_ticks(self, other: Schedule) -> bool:
        """Whether both divide time in the same way; an open start fits any."""
        same = self._length_and_kind == other._length_and_kind and self.zone == other.zone
        return same and len({self.start, other.start} - {None}) < 2

    def _scan(self, until: int) -> tuple[Piece, ...]:
        """Find the stretches of constant offset from two days before the start on: all that begin
        before an instant, or more."""
        years = min(1 << max(0, (until - self.begin) // YEAR).bit_length(), ZONE_YEARS)
        return _pieces(zone_named(self.zone), self.begin, years)

    def pieces(self, until: int | None = None) -> Sequence[Piece]:
        """The stretches that begin before an instant, or all."""
        if until is None:
            return list(self._scan(self.begin + ZONE_YEARS * YEAR))
        return [piece for piece in self._scan(until) if piece.since < until]

    @cached_property
    def _wall_start(self) -> int:
        return self._progress(self.begin)

    def _progress(self, instant: int) -> int:
        """The latest wall time shown up to an instant: it never goes back."""
        pieces = self._scan(instant)
        piece = pieces[max(0, bisect_right(pieces, instant, key=lambda piece: piece.since) - 1)]
        return max(instant + piece.offset, piece.latest_wall)

    # -- ticks -------------------------------------------------------------------------------------

    def tick_of(self, instant: int) -> int:
        """The 1-based tick that holds an instant; 0 or less before the start."""
        if self.calendar:
            return (self._progress(instant) - self._wall_start) // self.length + 1
        return (instant - self.begin) // self.length + 1

    def start_of(self, tick: int) -> int:
        if not self.calendar:
            return self.begin + (tick - 1) * self.length
        wall = self._wall_start + (tick - 1) * self.length
        pieces = self._scan(wall + 2 * UNITS["d"])  # no offset is that large
        # the first piece by whose end the clock has shown this time or a later one
        piece = pieces[
            bisect_left(pieces, wall, 1, key=lambda following: following.latest_wall) - 1
        ]
        return max(piece.since, wall - piece.offset, self.begin)

    def starts_of(self, first: int, ticks: int) -> list[int] | None:
        """The first instants of `ticks` ticks from `first` on; None for manual ones."""
        if self.manual:
            return None
        return [self.start_of(tick) for tick in range(first, first + ticks)]

    @property
    def arrow_zone(self) -> str:
        if zone_named(self.zone) is UTC:
            return "UTC"
        return self.zone

    def show(self, instant: int) -> str:
        try:
            return _moment(instant).astimezone(zone_named(self.zone)).isoformat()
        except OverflowError as error:
            raise ParameterError(
                "a tick lies beyond the year 9999: use a shorter tick or horizon"
            ) from error

    def show_tick_before(self) -> str:
        """The wall time at which a tick before the first one would begin."""
        if self.calendar:
            return (EPOCH + timedelta(microseconds=self._wall_start - self.length)).isoformat()
        return self.show(self.begin - self.length)

    # -- the same in SQL ---------------------------------------------------------------------------

    def sql_instant(self, wall: str, until: int | None = None) -> str:
        """SQL: the instant of a wall time; the first where the clock was set back, NULL where it
        was set forward. Clock changes from the instant `until` on are left out. Results beyond
        `until` are then only known to be later."""
        pieces = self.pieces(until)
        bounds: list[int] = []
        leaves = [f"{wall} - ({pieces[0].offset})"]
        for before, piece in pairwise(pieces):
            bounds.append(piece.since + before.offset)
            if piece.offset > before.offset:
                leaves.append("NULL")
                bounds.append(piece.since + piece.offset)
            leaves.append(f"{wall} - ({piece.offset})")
        return _choose(wall, bounds, leaves)

    def sql_tick(self, instant: str, division: str = "//", until: int | None = None) -> str:
        """SQL: the 1-based tick of an instant from the start to `until`; `division` is that of
        whole numbers."""
        if not self.calendar:
            return f"({instant} - ({self.begin})) {division} {self.length} + 1"
        pieces = self.pieces(until)
        leaves = [
            f"greatest({instant} + ({piece.offset}), {piece.latest_wall})" for piece in pieces
        ]
        progress = _choose(instant, [piece.since for piece in pieces[1:]], leaves)
        return f"({progress} - ({self._wall_start})) {division} {self.length} + 1"


# an offset is looked up for every day: all schedules with one zone and start share them
@lru_cache(maxsize=1024)
def _pieces(zone: tzinfo, begin: int, years: int) -> tuple[Piece, ...]:
    """Find the stretches of constant offset from two days before `begin` on, for at least `years`
    years. They are the first ones of those of all `ZONE_YEARS`, whatever `years` is: the same days
    are looked at."""
    day = UNITS["d"]
    # no wall time before the first year
    low = max(begin - 2 * day, microseconds(datetime(1, 1, 2)))
    # no wall time of any zone overflows
    last = min(begin + ZONE_YEARS * YEAR, microseconds(datetime(9998, 1, 1)))
    high = min(begin + years * YEAR, last)
    pieces = [Piece(low, _offset(zone, low), -(2**62))]
    at = high if zone is UTC else low
    # dates, because they are quick: 36,525 days
    here = _moment(at).replace(tzinfo=zone)
    one_day = timedelta(days=1)
    shift = zone.fromutc(here).utcoffset()
    while at < high:
        ahead = min(at + day, last)
        if ahead < last:
            here = here + one_day
        else:
            here = _moment(last).replace(tzinfo=zone)
        if zone.fromutc(here).utcoffset() != shift:
            ahead = _change(zone, at, ahead)
            before = pieces[-1]
            latest_wall = max(before.latest_wall, ahead + before.offset - 1)
            pieces.append(Piece(ahead, _offset(zone, ahead), latest_wall))
            here = _moment(ahead).replace(tzinfo=zone)
            shift = zone.fromutc(here).utcoffset()
        at = ahead
    return tuple(pieces)


def _offset(zone: tzinfo, instant: int) -> int:
    """Look up the offset of a zone at an instant, in microseconds."""
    shift = _moment(instant).astimezone(zone).utcoffset()
    assert shift is not None  # an aware datetime has an offset
    return shift // timedelta(microseconds=1)


def _change(zone: tzinfo, low: int, high: int) -> int:
    """Find the first whole second in (low, high] whose offset is not that of `low`; offsets change
    at whole seconds."""
    before = _offset(zone, low)
    seconds = range(low // SECOND + 1, -(-high // SECOND))
    place = bisect_left(seconds, True, key=lambda second: _offset(zone, second * SECOND) != before)
    return (seconds.start + place) * SECOND


def _choose(value: str, bounds: Sequence[int], leaves: Sequence[str]) -> str:
    """Write SQL for leaves[i] where i bounds are ≤ value: a balanced tree, so that a century costs
    eight comparisons."""
    if not bounds:
        return leaves[0]
    middle = len(bounds) // 2
    below = _choose(value, bounds[:middle], leaves[: middle + 1])
    above = _choose(value, bounds[middle + 1 :], leaves[middle + 1 :])
    return f"CASE WHEN {value} < {bounds[middle]} THEN {below} ELSE {above} END"
