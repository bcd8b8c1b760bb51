"""The names of views (per-tick, last-24, per-day, per-week, quantile-0.5) and what they show of a stream's releases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import compress
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.declare.schedule import Schedule, microseconds, zone_named
from evercount.engine.release import Releases
from evercount.engine.view_widths import LAST, PER_TICK, RUNNING
from evercount.engine.views import View
from evercount.errors import ParameterError, UnknownName
from evercount.queries.base import Query

NAMES = ("per-tick", "last-24", "per-day", "per-week", "running", "quantile-0.5")
QUANTILE = re.compile(r"quantile-(0\.[0-9]{1,6})")
DAY = 86_400 * 10**6
HOUR = DAY // 24
COLUMNS = ("first", "last", "start", "cell", "value", "std", "low", "high")
"""Of a view's table: its first and last tick, when the first one begins, and the numbers."""


def check_views(
    names: Any, query: Query, schedule: Schedule | None, postprocess: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The names, each once; refused where this stream cannot have such a view.

    >>> from evercount import Count
    >>> check_views(["per-tick", "last-7"], Count(), None)
    ('per-tick', 'last-7')
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ParameterError(f'views must be a list of names such as ["per-day", "last-24"], got {names!r:.80}')
    given = tuple(dict.fromkeys(names))
    for name in given:
        known = isinstance(name, str) and (name in NAMES or LAST.fullmatch(name) or QUANTILE.fullmatch(name))
        if not known:
            raise UnknownName("view", name, NAMES)
        timed = None if schedule is None or schedule.manual else schedule
        one = name == PER_TICK or (timed is not None and noise_views([name], timed) == (PER_TICK,))
        query.publishing.check_views(f"view {name!r}: ", 1 if one else None)
        if postprocess:
            raise ParameterError(
                f"view {name!r}: the error of differences of post-processed numbers is not known; declare the stream "
                "without postprocess, and post-process the view"
            )
        if QUANTILE.fullmatch(name) and query.quantiles is None:
            raise ParameterError(f"view {name!r} is for the query 'quantiles', and this one is {query.name!r}")
        if name in ("per-day", "per-week") and schedule is not None:
            if schedule.manual:
                raise ParameterError(f"view {name!r} needs ticks by the clock: a manual stream has no days")
            if schedule.length > (DAY if name == "per-day" else 7 * DAY):
                raise ParameterError(f"view {name!r}: a tick of {schedule.tick} is longer than that")
    return given


@dataclass(frozen=True, eq=False)
class ViewTable:
    """A view as rows, ready to be written: the columns of COLUMNS. A quantile has no std (None)."""

    name: str
    columns: dict[str, list[Any]]
    guarantee: str

    def __len__(self) -> int:
        return len(self.columns["value"])


def show_view(releases: Releases, name: str, schedule: Schedule, level: float = 0.95) -> ViewTable:
    """One view of the releases of a stream from its first tick on.

    A day (a week, from Monday) holds the ticks that begin in it, by the clock of the schedule's zone. It is shown once
    the first tick of the next one would begin, so no number of it changes later.

    **Guarantee.** Post-processing of published numbers; which rows there are depends on the released ticks alone. Test:
    tests/declare/test_view_names.py::test_days_and_weeks_follow_the_calendar.
    """
    check_views([name], releases.query, schedule, releases.postprocessed)
    if (match := QUANTILE.fullmatch(name)) is not None:
        view = releases.running()
        value, low, high = view.quantile(float(match[1]), level)
        cells: tuple[str, ...] = (match[1],)
        numbers = {"value": value, "std": None, "low": low, "high": high}
        first, last = view.last, view.last
    else:
        view = _view(releases, name, schedule)
        bounds = view.interval(level)
        cells, first, last = view.cells, view.first, view.last
        numbers = {"value": view.values, "std": view.std, "low": bounds[0], "high": bounds[1]}
    width, rows = len(cells), len(first) * len(cells)
    starts = ["" if schedule.manual else schedule.show(schedule.start_of(int(tick))) for tick in first]
    known = ~np.isnan(np.asarray(numbers["value"])).ravel()  # a discovered key has no row before it is public
    columns: dict[str, list[Any]] = {
        "first": np.repeat(first, width).tolist(),
        "last": np.repeat(last, width).tolist(),
        "start": [start for start in starts for _ in range(width)],
        "cell": list(cells) * len(first),
        **{key: [None] * rows if part is None else _plain(part) for key, part in numbers.items()},
    }
    if not known.all():
        columns = {key: list(compress(column, known)) for key, column in columns.items()}
    return ViewTable(name, columns, releases.guarantee)


def _plain(numbers: FloatArray) -> list[float]:
    plain: list[float] = (np.asarray(numbers).ravel() + 0.0).tolist()  # no negative zero
    return plain


def _view(releases: Releases, name: str, schedule: Schedule) -> View:
    if name == PER_TICK:
        return releases.per_tick()
    if name == RUNNING:
        return releases.running()
    if (match := LAST.fullmatch(name)) is not None:
        return releases.last(int(match[1]))
    after, until = periods(schedule, len(releases), 1 if name == "per-day" else 7)
    return releases.spans(name, after, until)


def noise_views(views: Iterable[str], schedule: Schedule) -> tuple[str, ...]:
    """What the noise of a stream with these views is chosen for: sums over ticks.

    A day or a week counts as the most ticks that it can have: in a zone whose clock changes, 25 hours and 7 days and an
    hour. Quantiles are read from running totals.

    >>> noise_views(["per-day", "quantile-0.5"], Schedule("1h", 0, "Europe/Vienna"))
    ('last-25', 'running')
    >>> noise_views(["per-day", "per-week"], Schedule("1d", 0, "Europe/Vienna"))
    ('per-tick', 'last-7')
    """
    names = []
    for name in views:
        days = {"per-day": 1, "per-week": 7}.get(name)
        if days is not None:
            longer = 0 if schedule.calendar or zone_named(schedule.zone) is UTC else HOUR
            ticks = -(-(days * DAY + longer) // schedule.length)
            name = PER_TICK if ticks == 1 else f"last-{ticks}"
        names.append(RUNNING if QUANTILE.fullmatch(name) else name)
    return tuple(dict.fromkeys(names))


def periods(schedule: Schedule, ticks: int, days: int, most: int | None = None) -> tuple[IntArray, IntArray]:
    """(after, until) of the days (days=1) or weeks (days=7) that are complete after `ticks` ticks; the last `most`."""
    spans: list[tuple[int, int]] = []
    end = _first_tick(schedule, ticks + 1, days) - 1 if ticks else 0
    while end > 0 and (most is None or len(spans) < most):
        first = _first_tick(schedule, end, days)
        spans.append((first - 1, end))
        end = first - 1
    after, until = (np.asarray([span[i] for span in reversed(spans)], np.int64) for i in (0, 1))
    return after, until


def _first_tick(schedule: Schedule, tick: int, days: int) -> int:
    """The first tick that begins in the same day or week as this one."""
    period = _period(schedule, tick, days)
    midnight = datetime.fromordinal(period).replace(tzinfo=zone_named(schedule.zone))
    instant = microseconds(midnight)
    first = 1 if instant <= schedule.begin else min(schedule.tick_of(instant), tick)
    # the tick of midnight may have begun before it, and the clock may skip midnight
    while _period(schedule, first, days) < period:
        first += 1
    while first > 1 and _period(schedule, first - 1, days) == period:
        first -= 1
    return first


def _period(schedule: Schedule, tick: int, days: int) -> int:
    """The number of the day or week in which a tick begins."""
    day = date.fromisoformat(schedule.show(schedule.start_of(tick))[:10])
    return (day if days == 1 else day - timedelta(days=day.weekday())).toordinal()


def view_spans(name: str, schedule: Schedule, ticks: int, most: int) -> tuple[IntArray, IntArray]:
    """(after, until) of the last spans of a view, at most `most`, after `ticks` released ticks."""
    if name in ("per-day", "per-week"):
        return periods(schedule, ticks, 1 if name == "per-day" else 7, most)
    match = LAST.fullmatch(name)
    width = int(match[1]) if match else 1
    until = np.arange(max(width, ticks - most + 1), ticks + 1, dtype=np.int64)
    return (until - width if name == "per-tick" or match else np.zeros_like(until)), until


def offered_views(query: Query, schedule: Schedule, postprocess: tuple[str, ...]) -> tuple[str, ...]:
    offered: list[str] = []
    for name in NAMES:
        if name == RUNNING:  # every stream has it
            continue
        with suppress(ParameterError):
            offered += check_views([name], query, schedule, postprocess)
    return tuple(offered)
