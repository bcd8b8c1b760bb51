"""The periods in which persons are protected, where they are lengths of the calendar: counted from
the stream's start.

An event's period is that of the tick that counts it, so every period must consist of whole ticks.
"""

from __future__ import annotations

from dataclasses import replace

from evercount.declarations.schedule import UNITS, Schedule, parse_time, zone_named
from evercount.engine.user_counting import PeriodOf
from evercount.errors import ParameterError
from evercount.privacy import Budget

# a start for schedules that have none yet, to find out how long their periods are
STAND_IN = "2001-01-01"


def with_period_ticks(budget: Budget, schedule: Schedule) -> Budget:
    """The budget with the most ticks that a period of the calendar has; refused where a tick would
    be cut.

    **Guarantee.** Every period consists of whole ticks, and none has more than `period_ticks`.
    Test: tests/declarations/test_unit_periods.py::test_periods_are_whole_ticks_and_none_is_longer.
    """
    if not isinstance(budget.period, str):
        return budget
    if schedule.manual:
        raise ParameterError(
            f"period={budget.period!r} follows the calendar, and this stream's ticks are closed by "
            "hand: give the period as a number of ticks, or declare a tick such as 1d"
        )
    if schedule.start is None:
        schedule = replace(schedule, start=parse_time(STAND_IN, zone_named(schedule.zone), "start"))
    periods = _periods(budget.period, schedule)
    cut = ParameterError(
        f"ticks of {schedule.tick} cut periods of {budget.period} in {schedule.zone}: choose ticks "
        "that fit a whole number of times into a period (and into the shifts of the clock), such "
        "as 1h or 1d, or another period"
    )
    if schedule.calendar:
        if periods.length % schedule.length:
            raise cut
        return replace(budget, period_ticks=periods.length // schedule.length)
    if UNITS["d"] % schedule.length and periods.length % schedule.length:
        raise cut
    longest = 0
    for number in {1} | {
        periods.tick_of(piece.since) + more for piece in periods.pieces() for more in (-1, 0, 1)
    }:
        first = periods.start_of(max(number, 1))
        last = periods.start_of(max(number, 1) + 1)
        if (first - schedule.begin) % schedule.length or (last - schedule.begin) % schedule.length:
            raise cut
        longest = max(longest, (last - first) // schedule.length)
    return replace(budget, period_ticks=longest)


def period_of(budget: Budget, schedule: Schedule) -> PeriodOf | None:
    """From a tick to the number of its period, where that is a length of the calendar."""
    if not isinstance(budget.period, str):
        return None
    periods = _periods(budget.period, schedule)
    if schedule.calendar:
        ticks = periods.length // schedule.length
        return lambda tick: (tick - 1) // ticks
    return lambda tick: periods.tick_of(schedule.start_of(tick)) - 1


def periods_named(budget: Budget, schedule: Schedule) -> str:
    """Which periods persons are protected in: the same text for streams whose periods are the same.

    Empty where there are none, or where no clock says when they begin.

    **Guarantee.** Two streams have the same text only if each period of one that lies after both
    starts is a period of the other. Test:
    tests/declarations/test_unit_periods.py::test_periods_with_one_name_are_the_same.
    """
    if budget.period is None or schedule.manual:
        return ""
    if isinstance(budget.period, str):
        periods = _periods(budget.period, schedule)
        return periods.grid(periods.length)
    return schedule.grid(budget.period * schedule.length)


def sql_period(
    budget: Budget, schedule: Schedule, tick: str, division: str = "//", until: int | None = None
) -> str:
    """SQL: the number of the period of a tick that begins before the instant `until`; 0 where there
    are no periods. `division` is the dialect's whole division. Test:
    tests/declarations/test_unit_periods.py::test_periods_in_sql_are_those_of_python."""
    if budget.period is None:
        return "0"
    length = budget.period
    if isinstance(length, str):
        periods = _periods(length, schedule)
        if not schedule.calendar:
            begin = f"(({tick}) - 1) * CAST({schedule.length} AS BIGINT) + ({schedule.begin})"
            return f"({periods.sql_tick(f'({begin})', division, until)} - 1)"
        length = periods.length // schedule.length
    return f"((({tick}) - 1) {division} {length})"


def _periods(period: str, schedule: Schedule) -> Schedule:
    return Schedule(period, schedule.begin, schedule.zone)
