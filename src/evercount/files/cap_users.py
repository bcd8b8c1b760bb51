"""Caps per user and period over events that need not fit into memory: which events count, and how
many do not.

How many each cap would drop, month by month, is for the operator who chooses the caps, and is never
published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evercount._validate import AnyArray, IntArray, aligned
from evercount.declarations.declaration import StreamDeclaration
from evercount.files.event_sql import open_files, placed
from evercount.files.source import Source
from evercount.queries.user_cap import Caps, last_turns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# counted events and ticks of one user in the open period; 0 without a cap
UsedBefore = tuple[int, int]
# tick, cell, number of events and sum of units, by tick
Groups = tuple[IntArray, IntArray, IntArray, IntArray]
# about how many events one step looks at; all events of a user are in one step
EVENTS_OF_A_STEP = 1 << 20
MOST_STEPS = 1024
# up to so many groups are added up in an array that has a place for each possible one
MOST_SUMS = 1 << 22
# SQL: faster to sort by than a text; used only where no two users share it
NUMBER_OF_USER = "hash(who)"


@dataclass(frozen=True)
class UserRule:
    """Which events of the table `event` count. The table holds place (the tick, 1 or more for an
    event), who, number (`NUMBER_OF_USER`), us, cell and, with `ordered` and `valued`, o and units;
    its rows are in their order."""

    caps: Caps
    period_of: Callable[[int], int]
    ticks: range
    ordered: bool = False
    valued: bool = False

    def count(
        self, connection: DuckDBPyConnection, users: Mapping[str, UsedBefore]
    ) -> tuple[Groups, dict[str, UsedBefore]]:
        """Tick, cell, number of events and sum of units of each group of events that count; and the
        users of the period that is open after the ticks. `users` are those of the period in which
        the ticks begin.

        **Guarantee.** An event counts if its turn among its user's events of its tick is at most
        the room that the user has there, `Caps.rooms`: by (time, row), or with a declared order by
        (time, order), where events at one place share the last turn. Events that do not count for
        that take up room nevertheless. It looks at the places of that user's events of one period
        alone: `queries/user_cap.proof.md`, Lemma 1 and Order. Tests:
        tests/files/test_cap_users.py::test_caps_are_those_of_plain_python and
        tests/files/test_cap_users.py::test_a_shared_number_of_two_users_is_noticed.
        """
        if not self.ticks:
            return _added_up(*(np.empty(0, np.int64),) * 4), dict(users)
        begun, last, opened = map(
            self.period_of, (self.ticks.start, self.ticks.stop - 1, self.ticks.stop)
        )
        remembered = opened == last and not self.caps.within_a_tick
        periods = np.fromiter(map(self.period_of, self.ticks), np.int64, len(self.ticks))
        table = _Users.of(connection, users, len(self.ticks))
        found: list[Groups] = []
        known: list[IntArray] = []
        for rows in table.steps(["o"] * self.ordered + ["units"] * self.valued):
            counted, used = self._step(rows, table, periods, opened if remembered else None)
            units = rows["units"][counted] if self.valued else 0
            found.append(_added_up(rows["place"][counted], rows["cell"][counted], 1, units))
            known.append(used)
        groups = _added_up(*(np.concatenate(column) for column in zip(*found, strict=True)))
        return groups, {**(users if opened == begun else {}), **table.by_user(known)}

    def _step(
        self, rows: Mapping[str, AnyArray], table: _Users, periods: IntArray, opened: int | None
    ) -> tuple[AnyArray, IntArray]:
        """Whether each row counts; and number, events and ticks of each user of the period
        `opened`."""
        # a number leaves room for the tick
        key = rows["number"] | (rows["place"] - self.ticks.start).astype(np.uint64)
        sorting = np.argsort(key)
        key = key[sorting]
        first = _changes(key)
        came = np.diff(np.r_[first, len(key)])  # of each visit: one user in one tick
        who = key[first] >> table.free << table.free
        period = periods[(key[first] ^ who).astype(np.int64)]
        begins = _changes(who, period)
        length = np.diff(np.r_[begins, len(who)])
        events, ticks = table.before(who[begins], period[begins] == periods[0])
        count = _counted(self.caps, came, begins, events, ticks)
        counted = self._within(rows, sorting, came, count)
        if opened is None:
            return counted, np.empty((0, 3), np.int64)
        used = np.add.reduceat(count, begins) if len(begins) else begins
        now = [
            np.zeros_like(begins) if self.caps.events is None else events + used,
            np.zeros_like(begins),
        ]
        if self.caps.ticks is not None:
            now[1] = np.minimum(ticks + length, self.caps.ticks)
        changed = (period[begins] == opened) & ((now[0] != events) | (now[1] != ticks))
        return counted, np.stack([who[begins].view(np.int64), *now], axis=1)[changed]

    def _within(
        self, rows: Mapping[str, AnyArray], sorting: IntArray, came: IntArray, count: IntArray
    ) -> AnyArray:
        """Whether each row is among those of its visit that count. Only visits that have more are
        put in order."""
        counted = np.ones(len(sorting), bool)
        over = came > count
        if over.any():
            counted[sorting[np.repeat(over, came)]] = False
        partly = over & (count > 0)
        visit = np.repeat(np.flatnonzero(partly), came[partly])
        chosen = sorting[np.repeat(partly, came)]
        if self.ordered:
            turn = last_turns(visit, rows["us"][chosen], rows["o"][chosen])
            counted[chosen[turn <= count[visit]]] = True
        else:
            # a position is that of the row
            by_time = np.lexsort((chosen, rows["us"][chosen], visit))
            turn = np.arange(len(visit)) - np.repeat(
                np.cumsum(came[partly]) - came[partly], came[partly]
            )
            counted[chosen[by_time[turn < count[visit]]]] = True
        return counted


@dataclass(frozen=True)
class _Users:
    """The users of the events by number, and what they had used before."""

    connection: DuckDBPyConnection
    free: np.uint64  # how many of the lowest bits of a number are 0, so that a tick has room there
    known: AnyArray
    had: IntArray  # events and ticks of the known numbers, which are in order

    @classmethod
    def of(
        cls, connection: DuckDBPyConnection, users: Mapping[str, UsedBefore], ticks: int
    ) -> _Users:
        """Make the table `person`, and leave only the numbers of users in `event`."""
        free = ticks.bit_length()
        connection.execute(
            "CREATE TEMP TABLE earlier AS SELECT unnest(?::VARCHAR[]) AS who, unnest(?::BIGINT[]) "
            "AS events, unnest(?::BIGINT[]) AS ticks",
            [
                list(users),
                [events for events, _ in users.values()],
                [ticks for _, ticks in users.values()],
            ],
        )
        everybody = (
            "SELECT DISTINCT who FROM event WHERE place > 0"
            + " UNION SELECT who FROM earlier" * bool(users)
        )
        connection.execute(
            f"CREATE TEMP TABLE person AS SELECT who, {NUMBER_OF_USER} >> {free} << {free} AS "
            f"number FROM ({everybody})"
        )
        ((persons, numbers),) = connection.execute(
            "SELECT count(*), count(DISTINCT number) FROM person"
        ).fetchall()
        if persons != numbers:
            connection.execute(f"UPDATE person SET number = rowid << {free}")
            connection.execute(
                "UPDATE event SET number = person.number FROM person WHERE event.who = person.who "
                "AND place > 0"
            )
        connection.execute("ALTER TABLE event DROP who")
        before = connection.execute(
            "SELECT number, events, ticks FROM earlier JOIN person USING (who) ORDER BY number"
        ).fetchnumpy()
        had = np.stack([np.asarray(before[name], np.int64) for name in ("events", "ticks")], axis=1)
        return cls(connection, np.uint64(free), np.asarray(before["number"], np.uint64), had)

    def steps(self, more: list[str]) -> Iterator[dict[str, AnyArray]]:
        """The rows of some users at a time, in the order of the table."""
        ((rows,),) = self.connection.execute("SELECT count(*) FROM event").fetchall()
        steps = min(MOST_STEPS, 1 << (rows // EVENTS_OF_A_STEP).bit_length())
        columns = ", ".join(["number", "place", "cell", "us", *more])
        for step in range(steps):
            chosen = f"place > 0 AND (number >> {self.free}) & {steps - 1} = {step}"
            # `sql` takes half the time of `execute`, which hands over a chunk at a time
            found = self.connection.sql(f"SELECT {columns} FROM event WHERE {chosen}").fetchnumpy()
            rows = {name: np.asarray(column) for name, column in found.items()}
            yield {**rows, "number": rows["number"] >> self.free << self.free}

    def before(self, numbers: AnyArray, applies: AnyArray) -> tuple[IntArray, IntArray]:
        """Events and ticks that users had before; 0 where that does not apply or nothing is
        known."""
        had = np.zeros((len(numbers), 2), np.int64)
        if len(self.known):
            at = np.minimum(np.searchsorted(self.known, numbers), len(self.known) - 1)
            same = applies & (self.known[at] == numbers)
            had[same] = self.had[at[same]]
        return had[:, 0], had[:, 1]

    def by_user(self, used: list[IntArray]) -> dict[str, UsedBefore]:
        rows = np.concatenate([np.empty((0, 3), np.int64), *used])
        if not len(rows):
            return {}
        person = self.connection.execute(
            "SELECT number, who FROM person ORDER BY number"
        ).fetchnumpy()
        who = person["who"][
            np.searchsorted(np.asarray(person["number"]), rows[:, 0].view(np.uint64))
        ]
        return dict(
            zip(
                who.tolist(),
                zip(rows[:, 1].tolist(), rows[:, 2].tolist(), strict=True),
                strict=True,
            )
        )


def _counted(
    caps: Caps,
    came: IntArray,
    begins: IntArray,
    events: IntArray | int = 0,
    ticks: IntArray | int = 0,
) -> IntArray:
    """How many events of each visit count. `begins` says where the visits of a user in one period
    begin, and `events` and `ticks` what such a user had before."""
    length = np.diff(np.r_[begins, len(came)])
    each = came if caps.per_tick is None else np.minimum(came, caps.per_tick)
    sums = np.cumsum(each) - each
    had = sums + np.repeat(events - sums[begins], length)
    room = caps.rooms(had, np.arange(len(came)) + np.repeat(ticks - begins, length))
    return np.minimum(came, np.maximum(room, 0))


def _changes(*columns: AnyArray) -> IntArray:
    """Where a row differs from the one before; the first one does."""
    differs = np.zeros(len(columns[0]), bool)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def _added_up(
    place: AnyArray, cell: AnyArray, events: IntArray | int, units: AnyArray | int
) -> Groups:
    """Events and units of rows, or of groups, added up by place and cell, in this order."""
    if not len(place):
        return (np.empty(0, np.int64),) * 4
    cells, start = int(cell.max()) + 1, int(place.min())
    group = (place.astype(np.int64) - start) * cells + cell
    span = int(group.max()) + 1
    if span <= MOST_SUMS:
        names: AnyArray = np.arange(span)
    else:
        names, group = np.unique(group, return_inverse=True)
    sums = np.zeros((2, len(names)), np.int64)
    np.add.at(sums[0], group, events)
    np.add.at(sums[1], group, units)
    some = sums[0] > 0
    return names[some] // cells + start, names[some] % cells, sums[0][some], sums[1][some]


# tried besides those declared
PER_TICK, TICKS, EVENTS = (1, 2, 3, 5, 10), (1, 3, 7, 14, 30), (1, 3, 10, 30, 100)
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
    files: tuple[Source, ...], declaration: StreamDeclaration, first: int, stop: int, scratch: Path
) -> DroppedEvents:
    """What caps would drop of the events of ticks first … stop−1, each alone, and those of the
    declaration together. Users begin with nothing used at `first`. Test:
    tests/files/test_dropped_events.py."""
    budget, schedule = declaration.budget, declaration.schedule
    tried = {f"max_per_tick {most}": Caps(per_tick=most) for most in PER_TICK}
    if budget.period_ticks != 1:
        tried |= {
            f"max_ticks {most}": Caps(ticks=most)
            for most in TICKS
            if most < (budget.period_ticks or most + 1)
        }
        tried |= {f"max_events {most}": Caps(events=most) for most in EVENTS}
    if Caps.of(budget) != Caps():
        tried = {"as declared": Caps.of(budget), **tried}
    with open_files(files, declaration, scratch) as (connection, _):
        visits = connection.execute(
            "SELECT dense_rank() OVER (ORDER BY who) AS person, place, count(*) AS events FROM "
            f"({placed(files, declaration, first, stop)}) WHERE place > 0 GROUP BY who, place "
            "ORDER BY person, place"
        ).fetchnumpy()
    ticks, tick = np.unique(np.asarray(visits["place"], np.int64), return_inverse=True)
    named = [schedule.show(schedule.start_of(one))[:7] for one in ticks.tolist()]
    months, month = np.unique(np.asarray(named, str), return_inverse=True)
    period_of = getattr(declaration.user_caps, "period_of", lambda tick: 0)
    periods = np.fromiter(map(period_of, ticks.tolist()), np.int64, len(ticks))
    begins = _changes(np.asarray(visits["person"]), periods[tick])
    came = np.asarray(visits["events"], np.int64)

    def by_month(events: IntArray) -> list[int]:
        sums: list[int] = np.bincount(month[tick], events, len(months)).astype(np.int64).tolist()
        return sums

    dropped = {name: by_month(came - _counted(caps, came, begins)) for name, caps in tried.items()}
    return DroppedEvents(months.tolist(), by_month(came), dropped)
