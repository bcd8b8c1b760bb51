"""What readers are shown of a stream's releases: views by name, such as per-tick, last-24, per-day,
per-week and quantile-0.5."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.declarations.schedule import UNITS, Schedule, microseconds, zone_named
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
        needed = needed_after(stream, name, schedule, last + 1)
        rows = rows[max(0, len(rows) - (last - needed)) :]


def needed_after(stream: Stream, name: str, schedule: Schedule, tick: int) -> int:
    """The tick after which a view of `tick` and later ones needs the published numbers."""
    if name == RUNNING or stream.query.publishing.own_ticks or stream.revise_for is not None:
        return tick - 1
    needed = _begin(name, schedule, tick)
    if stream.thresholds is not None:
        needed = needed // stream.thresholds.every * stream.thresholds.every
    return max(needed, 1) - 1


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
