"""Which share of events the caps of users drop, month by month: for the operator who chooses them, never published."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.unit_periods import sql_period
from evercount.files.event_sql import Sources, columns_of, listed, placed, prepare
from evercount.files.source import connect
from evercount.text_rules import aligned

PER_TICK, TICKS, EVENTS = (1, 2, 3, 5, 10), (1, 3, 7, 14, 30), (1, 3, 10, 30, 100)  # tried besides those declared
Three = tuple[int | None, int | None, int | None]  # the most events, events of a tick, and ticks, as `Budget.caps`
WARNING = "For you alone: these shares are exact and reveal the data. Do not publish them."


@dataclass(frozen=True)
class DroppedEvents:
    """Events of each month and how many of them each cap drops. As sensitive as the events.

    Args:
        months: The months, as texts such as 2026-03.
        events: The events of each month.
        dropped: For each cap, in words, the events of each month that it drops.
    """

    months: list[str]
    events: list[int]
    dropped: dict[str, list[int]]

    def __str__(self) -> str:
        """A table of shares: months from left to right, all of them last."""
        rows = [["share of events dropped", *self.months, "all"]]
        for name, numbers in self.dropped.items():
            pairs = [*zip(numbers, self.events, strict=True), (sum(numbers), sum(self.events))]
            rows.append([name, *(f"{gone / whole:.1%}" if whole else "-" for gone, whole in pairs)])
        return "\n".join([WARNING, *aligned(rows)])


def dropped_events(
    sources: Sources, declaration: StreamDeclaration, first: int, stop: int, scratch: Path
) -> DroppedEvents:
    """What caps would drop of the events of ticks first … stop−1, each alone, and those of the declaration together.
    Users begin with nothing used at `first`. Test: tests/files/test_dropped_events.py."""
    files, budget, schedule = listed(sources), declaration.budget, declaration.schedule
    for source in files:
        source.require(*columns_of(declaration).used)
    most, each, ticks = budget.caps
    caps: dict[str, Three] = {f"max_per_tick {m}": (None, m, None) for m in PER_TICK}
    if budget.period_ticks != 1:
        caps |= {f"max_ticks {k}": (None, None, k) for k in TICKS if k < (budget.period_ticks or k + 1)}
        caps |= {f"max_events {n}": (n, None, None) for n in EVENTS}
    if any(cap is not None for cap in budget.caps):
        caps = {"as declared": (most, each, ticks)} | caps
    period = sql_period(budget, schedule, "place", until=schedule.start_of(stop))
    kept = ", ".join(f"sum(n - {_kept(*cap)})::BIGINT" for cap in caps.values())
    before = ", ".join(
        f"coalesce(sum({_at_most(m)}) OVER (PARTITION BY who, period ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING "
        f"AND 1 PRECEDING), 0) AS {_before(m)}"
        for m in sorted({cap[1] for cap in caps.values()}, key=str)
    )
    with connect(scratch, files) as connection:
        prepare(connection, declaration, files)
        rows = connection.execute(
            f"SELECT place, sum(n)::BIGINT, {kept} FROM (SELECT *, row_number() OVER (PARTITION BY who, period ORDER "
            f"BY place) AS turn, {before} FROM (SELECT who, place, {period} AS period, count(*) AS n FROM "
            f"({placed(files, declaration, first, stop)}) WHERE place > 0 GROUP BY ALL)) GROUP BY place ORDER BY place"
        ).fetchall()
    events: Counter[str] = Counter()
    dropped = {name: Counter[str]() for name in caps}
    for place, number, *gone in rows:
        month = schedule.show(schedule.start_of(place))[:7]
        events[month] += number
        for name, one in zip(caps, gone, strict=True):
            dropped[name][month] += one
    months = sorted(events)
    return DroppedEvents(
        months,
        [events[month] for month in months],
        {name: [counts[month] for month in months] for name, counts in dropped.items()},
    )


def _at_most(per_tick: int | None) -> str:
    return "n" if per_tick is None else f"least(n, {per_tick})"


def _before(per_tick: int | None) -> str:
    return f"before_{per_tick or 'all'}"


def _kept(most: int | None, per_tick: int | None, ticks: int | None) -> str:
    """SQL: how many of a user's n events of a tick count (`queries/user_cap.py`)."""
    kept = _at_most(per_tick)
    if most is not None:
        kept = f"greatest(0, least({kept}, {most} - {_before(per_tick)}))"
    return kept if ticks is None else f"CASE WHEN turn <= {ticks} THEN {kept} ELSE 0 END"
