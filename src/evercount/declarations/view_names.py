"""What readers are shown of a stream's releases: its views, and what the operator says about ticks.

Views are named (per-tick, last-24, per-day, per-week, quantile-0.5). The operator writes notes on
ticks, and says which ticks are missing: public text. Why gaps cost nothing:
`store/tick_marks.proof.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from evercount._validate import FloatArray, IntArray, check_public_text
from evercount.declarations.fields import table
from evercount.declarations.schedule import UNITS, Schedule, microseconds, parse_time, zone_named
from evercount.engine import take_views
from evercount.engine.build import LAST, PER_TICK, RUNNING, Names, view_width
from evercount.engine.release import Releases
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.revisions import by_day
from evercount.engine.stream import Stream
from evercount.engine.views import View
from evercount.engine.write_table import postprocess_table
from evercount.errors import ParameterError, UnknownName
from evercount.queries.base import Query

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration

NAMES = ("per-tick", "last-24", "per-day", "per-week", "running", "quantile-0.5")
QUANTILE = re.compile(r"quantile-(0\.[0-9]{1,6})")
DAYS = {"per-day": 1, "per-week": 7}


def check_views(
    names: Any, query: Query, schedule: Schedule | None, postprocess: Names = ()
) -> Names:
    """The names, each once; refused where this stream cannot have such a view.

    >>> from evercount import Count
    >>> check_views(["per-tick", "last-7"], Count(), None)
    ('per-tick', 'last-7')
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ParameterError(
            f'views must be a list of names such as ["per-day", "last-24"], got {names!r:.80}'
        )
    views = tuple(dict.fromkeys(names))
    for name in views:
        if not _is_view(name):
            raise UnknownName("view", name, NAMES)
        width = 1 if _is_of_one_tick(name, schedule) else None
        query.publishing.check_views(f"view {name!r}: ", width)
        if postprocess:
            raise ParameterError(
                f"view {name!r}: the error of differences of post-processed numbers is not known; "
                "declare the stream with its views: then these are post-processed instead of the "
                "running totals"
            )
        if QUANTILE.fullmatch(name) and query.quantiles is None:
            raise ParameterError(
                f"view {name!r} is for the query 'quantiles', and this one is {query.name!r}"
            )
        if name in DAYS and schedule is not None:
            if schedule.manual:
                raise ParameterError(
                    f"view {name!r} needs ticks by the clock: a manual stream has no days"
                )
            if schedule.length > DAYS[name] * UNITS["d"]:
                raise ParameterError(
                    f"view {name!r}: a tick of {schedule.tick} is longer than that"
                )
    return views


def _is_view(name: Any) -> bool:
    """Whether this is the name of a view, of any query."""
    if not isinstance(name, str):
        return False
    return bool(name in NAMES or LAST.fullmatch(name) or QUANTILE.fullmatch(name))


def _is_of_one_tick(name: str, schedule: Schedule | None) -> bool:
    """Whether each number of a view is that of one tick, as a day is where ticks are days."""
    if name == PER_TICK:
        return True
    if schedule is None or schedule.manual:
        return False
    return noise_views([name], schedule) == (PER_TICK,)


def view_table(view: View, name: str, schedule: Schedule, postprocess: Names = ()) -> ReleaseTable:
    """A view of this name as a table, with the times of the schedule. A quantile has no std.

    A day (a week, from Monday) holds the ticks that begin in it, by the clock of the schedule's
    zone. It is shown once the first tick of the next one would begin, so no number of it changes
    later. Days and weeks are shown whole: one that began before the stream is left out, and so is
    one that the stream does not see the end of. A key that joined in the middle of a span has no
    number for that span (`take_views.joined_within`).

    **Guarantee.** Post-processing of published numbers; which rows there are depends on the
    schedule, the released ticks and the ticks at which keys joined alone. Tests:
    tests/declarations/test_view_names.py ::test_days_and_weeks_follow_the_calendar,
    ::test_parts_of_weeks_are_left_out.
    """
    match = QUANTILE.fullmatch(name)
    begin = view.last if match or name == RUNNING else view.first
    starts = None
    if not schedule.manual:
        starts = [schedule.start_of(tick) for tick in begin.tolist()]
    if match is None:
        table = postprocess_table(
            view.table(LEVEL, starts), postprocess, counts=view._errors.query.monotone
        )
    else:
        value, low, high = (part[:, np.newaxis] for part in view.quantile(float(match[1]), LEVEL))
        table = table_of(
            view.last, starts, (match[1],), [value, np.full_like(value, np.nan), low, high], begin
        )
    newest = view._errors.newest(view.last)
    if newest is None:
        return table
    return replace(table, as_of=newest[0], left=newest[1])


def all_of_view(
    releases: Releases, name: str, schedule: Schedule, postprocess: Names = ()
) -> ReleaseTable:
    """A view of all releases from the first tick on; running totals are the published numbers as
    they are."""
    if name == RUNNING and releases.query.lags == 1:
        return releases.table(LEVEL, schedule.starts_of(1, len(releases)))
    spans = take_views.spans(releases, name, *view_spans(name, schedule, 0, len(releases)))
    return view_table(spans, name, schedule, postprocess)


def shown_tables(
    stream: Stream,
    tables: Iterable[ReleaseTable],
    name: str,
    schedule: Schedule,
    before: FloatArray,
    postprocess: Names = (),
) -> Iterator[ReleaseTable]:
    """One view of ticks while they are released: for each table of `close_ticks`, that of the spans
    which end in it. `before` has all that the stream published before, shape (ticks, cells). Of
    that and of the tables only the rows that later spans need are kept."""
    if stream.revise_for is not None:
        for table in tables:
            yield by_day(table, stream.query, schedule.starts_of)
        return
    if name == RUNNING or stream.query.publishing.own_ticks:  # the published numbers as they are
        yield from tables
        return
    rows = before
    for table in tables:
        rows = stack_rows(rows, table.numbers[:, 0])
        last = stream.tick
        spans = view_spans(name, schedule, last - len(table.ticks), last)
        view = take_views.spans(stream.read_back(rows, last - len(rows) + 1), name, *spans)
        yield view_table(view, name, schedule, postprocess)
        needed = _begin(name, schedule, last + 1)
        if stream.thresholds is not None:
            needed = needed // stream.thresholds.every * stream.thresholds.every
        rows = rows[max(0, len(rows) - (last - max(needed, 1) + 1)) :]


def stack_rows(*parts: FloatArray) -> FloatArray:
    """Published numbers of later ticks below those of earlier ones, NaN where a key was not public
    yet."""
    width = max(part.shape[1] for part in parts)
    more = [((0, 0), (0, width - part.shape[1])) for part in parts]
    return np.concatenate(
        [np.pad(*one, constant_values=np.nan) for one in zip(parts, more, strict=True)]
    )


def noise_views(views: Iterable[str], schedule: Schedule) -> Names:
    """What the noise of a stream with these views is chosen for: sums over ticks.

    A day or a week counts as the most ticks that it can have: in a zone whose clock changes, 25
    hours and 7 days and an hour. Quantiles are read from running totals.

    >>> noise_views(["per-day", "quantile-0.5"], Schedule("1h", 0, "Europe/Vienna"))
    ('last-25', 'running')
    >>> noise_views(["per-day", "per-week"], Schedule("1d", 0, "Europe/Vienna"))
    ('per-tick', 'last-7')
    """
    names = []
    for name in views:
        if name in DAYS:
            ticks = most_ticks(name, schedule)
            name = PER_TICK if ticks == 1 else f"last-{ticks}"
        names.append(RUNNING if QUANTILE.fullmatch(name) else name)
    return tuple(dict.fromkeys(names))


def most_ticks(name: str, schedule: Schedule) -> int:
    """The most ticks that lie between the ends of two spans."""
    if name not in DAYS:
        return 1
    longer = 0  # a day of the autumn change has an hour more
    if not schedule.calendar and zone_named(schedule.zone) is not UTC:
        longer = UNITS["h"]
    return -(-(DAYS[name] * UNITS["d"] + longer) // schedule.length)


def view_spans(
    name: str, schedule: Schedule, behind: int, released: int
) -> tuple[IntArray, IntArray]:
    """(after, until) of the whole spans of a view that end after tick `behind`, and by tick
    `released`."""
    if name in DAYS:
        return _calendar_spans(DAYS[name], schedule, behind, released)
    width = _width(name)
    until = np.arange(max(behind + 1, width or 1), released + 1, dtype=np.int64)
    if width is None:
        return np.zeros_like(until), until
    return until - width, until


def _calendar_spans(
    days: int, schedule: Schedule, behind: int, released: int
) -> tuple[IntArray, IntArray]:
    """As `view_spans`, of days (1) or weeks (7): go back from the newest that is over."""
    newest = 0
    if released:
        newest = _first_tick_of_period(schedule, released + 1, days) - 1
    ends = [newest]
    while ends[-1] > behind:
        ends.append(_first_tick_of_period(schedule, ends[-1], days) - 1)
    if len(ends) > 1 and ends[-1] == 0 and not _begins_whole(schedule, days):
        ends.pop()
    edges = np.asarray(ends[::-1], np.int64)
    return edges[:-1], edges[1:]


def newest_spans(
    name: str, schedule: Schedule, released: int, most: int
) -> tuple[IntArray, IntArray]:
    after, until = view_spans(
        name, schedule, max(0, released - (most + 1) * most_ticks(name, schedule)), released
    )
    return after[-most:], until[-most:]


def next_spans(
    name: str, schedule: Schedule, behind: int, released: int, most: int
) -> tuple[IntArray, IntArray]:
    last = max(behind, _width(name) or 1) + (most + 1) * most_ticks(name, schedule)
    after, until = view_spans(name, schedule, behind, min(last, released))
    return after[:most], until[:most]


def _width(name: str) -> int | None:
    """The ticks that a view adds up; None for all so far, quantiles, and days and weeks, whose
    ticks vary."""
    if QUANTILE.fullmatch(name) or name in DAYS:
        return None
    return view_width(name)


def _begin(name: str, schedule: Schedule, tick: int) -> int:
    """Find the tick after which the first span begins that ends with `tick` or later."""
    if name in DAYS:
        return _first_tick_of_period(schedule, tick, DAYS[name]) - 1
    width = _width(name)
    if width is None:
        return 0
    return max(0, tick - width)


def _first_tick_of_period(schedule: Schedule, tick: int, days: int) -> int:
    """Find the first tick that begins in the same day or week as a tick does."""
    period = _period_of(schedule, tick, days)
    midnight = microseconds(datetime.combine(period, time(), tzinfo=zone_named(schedule.zone)))
    first = 1
    if midnight > schedule.begin:
        first = min(schedule.tick_of(midnight), tick)
    # the tick of midnight may have begun before it, and the clock may skip midnight
    while _period_of(schedule, first, days) < period:
        first += 1
    while first > 1 and _period_of(schedule, first - 1, days) == period:
        first -= 1
    return first


def _begins_whole(schedule: Schedule, days: int) -> bool:
    """Whether all ticks of the first day or week are ticks of the stream: none would begin in it
    before the first."""
    day_before = date.fromisoformat(schedule.show_tick_before()[:10])
    return _first_day(day_before, days) < _period_of(schedule, 1, days)


def _period_of(schedule: Schedule, tick: int, days: int) -> date:
    """Name the day or week in which a tick begins by its first day."""
    start = schedule.show(schedule.start_of(tick))
    return _first_day(date.fromisoformat(start[:10]), days)


def _first_day(day: date, days: int) -> date:
    """Go back to the Monday of a week; a day is its own first day."""
    if days == 1:
        return day
    return day - timedelta(days=day.weekday())


def offered_views(query: Query, schedule: Schedule, postprocess: Names) -> Names:
    offered: list[str] = []
    for name in NAMES:
        if name == RUNNING:  # every stream has it
            continue
        with suppress(ParameterError):
            offered += check_views([name], query, schedule, postprocess)
    return tuple(offered)


# -- what the operator says about ticks ------------------------------------------------------------

# what becomes of the events of a missing tick: nobody counts them, or the next tick does
DROP, NEXT = "drop", "next"
LONGEST_NOTE, MOST_NOTES = 500, 10_000


@dataclass(frozen=True)
class TickMark:
    """A remark on the ticks from `first` to `last`."""

    first: int
    last: int
    text: str
    missing: str | None = None  # DROP or NEXT for ticks that are missing
    # the label of a key that is not shown at these ticks; then it is not a remark
    hides: str | None = None

    def holds(self, tick: int) -> bool:
        return self.first <= tick <= self.last

    @property
    def remark(self) -> str:
        return (
            self.text
            if self.missing is None
            else f"missing: {self.text}"
            if self.text
            else "missing"
        )

    def facts(self, schedule: Schedule) -> dict[str, Any]:
        since = {} if schedule.manual else {"start": schedule.show(schedule.start_of(self.first))}
        until = {} if schedule.manual else {"end": schedule.show(schedule.start_of(self.last + 1))}
        return {
            "first": self.first,
            "last": self.last,
            **since,
            **until,
            "text": self.text,
            "missing": self.missing,
        }


@table("a note")
class NewMark:
    """A remark as the operator writes it."""

    first: Annotated[int | str, Field(description="the number of a tick, or a day or time in it")]
    last: Annotated[int | str | None, Field(description="as first; omit it for one tick")] = None
    text: Annotated[
        str, Field(description=f"a public text of at most {LONGEST_NOTE} characters")
    ] = ""
    missing: Annotated[Literal["drop", "next"] | None, Field(description="drop, next or null")] = (
        None
    )

    def on(self, schedule: Schedule) -> TickMark:
        first = tick_named(str(self.first), schedule)
        last = first if self.last is None else tick_named(str(self.last), schedule)
        return TickMark(first, last, self.text.strip(), self.missing)


def check_mark(declaration: StreamDeclaration, mark: TickMark, number: int) -> None:
    """Refuse a remark that is not about ticks of the stream, or not a text for the public; `number`
    are there."""
    horizon = declaration.horizon
    if not 1 <= mark.first <= mark.last <= (horizon or 2**40):
        raise ParameterError(
            (
                f"the ticks {mark.first} to {mark.last} are not ticks of {declaration.name!r}: the "
                "first is 1"
            )
            + ("" if horizon is None else f", the last {horizon}")
        )
    if mark.text:
        check_public_text("the note", mark.text)
    elif mark.missing is None:
        raise ParameterError("a note needs text")
    if len(mark.text) > LONGEST_NOTE:
        raise ParameterError(f"a note has at most {LONGEST_NOTE} characters")
    if number >= MOST_NOTES:
        raise ParameterError(f"a stream has at most {MOST_NOTES:,} notes")


def tick_named(text: str, schedule: Schedule) -> int:
    """The tick that an operator names: its number, or a day or time in it.

    >>> days = Schedule.of("1d", "2026-01-01", "UTC")
    >>> tick_named("2026-01-03", days), tick_named("12", Schedule())
    (3, 12)
    """
    if text.isascii() and text.isdigit() and len(text) < 9:
        return int(text)
    if schedule.manual:
        raise ParameterError(
            f"{text!r:.40} is not the number of a tick, and this stream has no clock"
        )
    return schedule.tick_of(parse_time(text, zone_named(schedule.zone), "the tick"))


def missing_ticks(marks: Iterable[TickMark], ticks: range, kind: str | None = None) -> list[int]:
    ranges = [one for one in marks if one.missing is not None and kind in (None, one.missing)]
    inside = (range(max(one.first, ticks.start), min(one.last + 1, ticks.stop)) for one in ranges)
    return sorted({tick for part in inside for tick in part})


def with_marks(shown: ReleaseTable, marks: Sequence[TickMark], view: str) -> ReleaseTable:
    """The table as readers see it: nothing in place of what is missing, and a remark next to what
    it is about. A number of several ticks is shown where one of them is there, unless it is
    released at a missing one: a total or the last seven days have a number at the next tick. A week
    has not, so its number is shown."""
    if not marks:
        return shown
    numbers, notes = shown.numbers.copy(), []
    places = {label: place for place, label in enumerate(shown.cells)}
    published = shown.ticks if shown.as_of is None else shown.as_of
    for one in marks:
        # a key that was removed when they were published
        if one.hides is not None and one.hides in places:
            numbers[(published >= one.first) & (published <= one.last), :, places[one.hides]] = (
                np.nan
            )
    marks = [one for one in marks if one.hides is None]
    if not marks:
        return replace(shown, numbers=numbers)
    gaps = [one for one in marks if one.missing is not None]
    for place, tick in enumerate(shown.ticks.tolist()):
        alone = shown.first is None or view not in DAYS
        span = range(
            tick if shown.first is None or view == RUNNING else int(shown.first[place]), tick + 1
        )
        about = [one for one in marks if one.first < span.stop and span.start <= one.last]
        notes.append("; ".join(dict.fromkeys(one.remark for one in about)))
        if gaps and (
            any(one.holds(tick) for one in gaps)
            if alone
            else len(missing_ticks(gaps, span)) == len(span)
        ):
            numbers[place] = np.nan
    return replace(shown, numbers=numbers, notes=notes)
