"""Caps per user and period over events that need not fit into memory: which events count, and how
many do not.

How many each cap would drop, month by month, is for the operator who chooses the caps, and is never
published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evercount._validate import AnyArray, IntArray, aligned
from evercount.declarations.declaration import StreamDeclaration
from evercount.files.event_parts import NUMBER_OF_USER, EventPart, cut_by_user
from evercount.files.event_sql import open_files, placed
from evercount.files.source import Source, library
from evercount.queries.user_cap import Caps, last_turns

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# counted events and ticks of one user in the open period; 0 without a cap
UsedBefore = tuple[int, int]
# tick, cell, number of events and sum of units, by tick
Groups = tuple[IntArray, IntArray, IntArray, IntArray]
# up to so many groups are added up in an array that has a place for each possible one
MOST_SUMS = 1 << 22
# so many groups of several parts wait until they are added up
MOST_GROUPS = 1 << 19
# Arrow holds up to 2 GiB of text in one array
MOST_TEXT = 1 << 30
# visits are counted in an array that has a place for each possible one, if there are not many more
# of these than events
MOST_PLACES_PER_EVENT = 4


@dataclass(frozen=True)
class UserRule:
    """Which events count. They come in batches of Arrow in their order, with the columns number
    (`NUMBER_OF_USER`), place (the tick), cell and who; us unless they are `alike`; o and units with
    `ordered` and `valued`."""

    caps: Caps
    period_of: Callable[[int], int]
    ticks: range
    ordered: bool = False
    valued: bool = False
    alike: bool = False  # all events of a tick add the same to the same cell

    @property
    def timed(self) -> bool:
        """Whether it matters which events of a user and tick count, not only how many."""
        return not self.alike or self.ordered

    def count(
        self,
        connection: DuckDBPyConnection,
        batches: Iterable[Any],
        users: Mapping[str, UsedBefore],
        scratch: Path,
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
        remembered = None
        if opened == last and not self.caps.within_a_tick:
            remembered = opened
        periods = np.fromiter(map(self.period_of, self.ticks), np.int64, len(self.ticks))
        earlier = _EarlierUsers.of(connection, users)
        sums = _Sums()
        changed: dict[str, UsedBefore] = {}
        for part in cut_by_user(batches, scratch):
            events = _Events.of(part.table, self.ticks)
            had = earlier.of_part(part, events.names)
            visits, count, used = self._count_visits(events, had, periods, remembered)
            self._add(sums, events, visits, count)
            changed |= _by_name(events.names, used)
        inherited = {}
        if opened == begun:
            inherited = dict(users)
        return sums.groups(), inherited | changed

    def _count_visits(
        self, events: _Events, had: IntArray, periods: IntArray, opened: int | None
    ) -> tuple[_Visits, IntArray, IntArray]:
        """Say of each visit how many of its events count; and list number, events and ticks of each
        user whose use of the caps changes in the period `opened`."""
        visits = _Visits.of(events.user, events.offset, len(self.ticks))
        period = periods[visits.offset]
        begins = _changes(visits.user, period)
        applies = period[begins] == periods[0]
        before = np.where(applies[:, None], had[visits.user[begins]], 0)
        count = _counted(self.caps, visits.size, begins, before[:, 0], before[:, 1])
        if opened is None or not len(begins):
            return visits, count, np.empty((0, 3), np.int64)
        after = np.zeros_like(before)
        if self.caps.events is not None:
            after[:, 0] = before[:, 0] + np.add.reduceat(count, begins)
        if self.caps.ticks is not None:
            ticks = np.diff(np.r_[begins, len(visits.user)])
            after[:, 1] = np.minimum(before[:, 1] + ticks, self.caps.ticks)
        changed = (period[begins] == opened) & (after != before).any(axis=1)
        return visits, count, np.column_stack([visits.user[begins], after])[changed]

    def _add(self, sums: _Sums, events: _Events, visits: _Visits, count: IntArray) -> None:
        """Add up the events that count."""
        if not self.timed:
            places = visits.offset + self.ticks.start
            sums.add(_added_up(places, np.zeros_like(places), count, 0))
            return
        counted = self._chosen(events, visits, count)
        place = events.offset
        cell = events.column("cell")
        units: AnyArray | int = 0
        if self.valued:
            units = events.column("units")
        if not counted.all():
            place, cell = place[counted], cell[counted]
            units = units[counted] if isinstance(units, np.ndarray) else units
        sums.add(_added_up(place + self.ticks.start, cell, 1, units))

    def _chosen(self, events: _Events, visits: _Visits, count: IntArray) -> AnyArray:
        """Tell which events are among those of their visit that count. Only visits that have more
        are put in order."""
        over = visits.size > count
        if not over.any():
            return np.ones(len(visits.of_event), bool)
        counted = ~over[visits.of_event]
        partly = over & (count > 0)
        chosen = np.flatnonzero(partly[visits.of_event])
        visit = visits.of_event[chosen]
        us = events.column("us")[chosen]
        if self.ordered:
            turn = last_turns(visit, us, events.column("o")[chosen])
            counted[chosen[turn <= count[visit]]] = True
        else:
            by_time = sort_by_time(visit, us)
            size = visits.size[partly]
            turn = np.arange(len(visit)) - np.repeat(np.cumsum(size) - size, size)
            counted[chosen[by_time[turn < count[visit[by_time]]]]] = True
        return counted


@dataclass(frozen=True)
class _Events:
    """The events of some users, who are numbered; `offset` is the tick, from 0."""

    table: Any
    names: Any
    user: IntArray
    offset: IntArray

    @classmethod
    def of(cls, table: Any, ticks: range) -> _Events:
        who = table["who"]
        if who.nbytes < MOST_TEXT:  # one dictionary costs less than to unite those of many batches
            who = library("pyarrow").chunked_array([who.combine_chunks()])
        who = who.dictionary_encode().unify_dictionaries().combine_chunks()
        user = np.asarray(who.indices).astype(np.int64)
        offset = table["place"].to_numpy().astype(np.int64) - ticks.start
        return cls(table, who.dictionary, user, offset)

    def column(self, name: str) -> AnyArray:
        return np.asarray(self.table[name].to_numpy())


class _Visits(NamedTuple):
    """Users in ticks, in order; `size` is the number of events, and `of_event` the visit of
    each."""

    user: IntArray
    offset: IntArray
    size: IntArray
    of_event: IntArray

    @classmethod
    def of(cls, user: IntArray, offset: IntArray, ticks: int) -> _Visits:
        key = user * ticks + offset
        places = (int(user.max(initial=0)) + 1) * ticks
        if places <= MOST_PLACES_PER_EVENT * len(key):
            sizes = np.bincount(key, minlength=places)
            names = np.flatnonzero(sizes)
            size, of_event = sizes[names], (np.cumsum(sizes > 0) - 1)[key]
        else:
            names, of_event, size = np.unique(key, return_inverse=True, return_counts=True)
        return cls(names // ticks, names % ticks, size, of_event)


@dataclass(frozen=True)
class _EarlierUsers:
    """What users had used before."""

    table: Any  # who, number, events and ticks, in Arrow

    @classmethod
    def of(cls, connection: DuckDBPyConnection, users: Mapping[str, UsedBefore]) -> _EarlierUsers:
        arrow = library("pyarrow")
        used = np.array(list(users.values()), np.int64).reshape(-1, 2)
        columns = {"who": arrow.array(list(users), arrow.string())}
        earlier = arrow.table({**columns, "events": used[:, 0], "ticks": used[:, 1]})
        connection.register("earlier", earlier)
        numbered = connection.sql(f"SELECT *, {NUMBER_OF_USER} AS number FROM earlier")
        return cls(numbered.to_arrow_table())

    def of_part(self, part: EventPart, names: Any) -> IntArray:
        """Events and ticks of each of the users, 0 of those who had used nothing."""
        had = np.zeros((len(names), 2), np.int64)
        if not len(self.table):
            return had
        arrow = library("pyarrow")
        table = self.table.filter(arrow.array(part.holds(self.table["number"].to_numpy())))
        place = library("pyarrow.compute").index_in(names, value_set=table["who"])
        some = np.asarray(place.is_valid())
        at = np.asarray(place.drop_null())
        for column, name in enumerate(("events", "ticks")):
            had[some, column] = table[name].to_numpy()[at]
        return had


class _Sums:
    """Groups of several parts, added up before they become many."""

    def __init__(self) -> None:
        self._parts: list[Groups] = []
        self._length = 0

    def add(self, groups: Groups) -> None:
        self._parts.append(groups)
        self._length += len(groups[0])
        if self._length > max(MOST_GROUPS, 2 * len(self._parts[0][0])):
            self._parts = [self.groups()]
            self._length = len(self._parts[0][0])

    def groups(self) -> Groups:
        empty = (np.empty(0, np.int64),) * 4
        return _added_up(*map(np.concatenate, zip(empty, *self._parts, strict=True)))


def _by_name(names: Any, used: IntArray) -> dict[str, UsedBefore]:
    """Events and ticks of users by their names."""
    if not len(used):
        return {}
    who = names.take(library("pyarrow").array(used[:, 0])).to_pylist()
    return dict(zip(who, zip(used[:, 1].tolist(), used[:, 2].tolist(), strict=True), strict=True))


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


def sort_by_time(visit: IntArray, time: IntArray) -> IntArray:
    """Put events in the order of their visits and times; at one time the earlier row comes
    first."""
    since = time - time.min(initial=time.max(initial=0))
    bits = int(since.max(initial=0)).bit_length()
    if bits + int(visit.max(initial=0)).bit_length() > 63:
        return np.lexsort((time, visit))
    # to sort one number takes a tenth of the time of `lexsort`, but leaves equal ones in any order
    key = visit << bits | since
    order = np.argsort(key)
    key = key[order]
    same = key[1:] == key[:-1]
    if same.any():
        tied = np.flatnonzero(np.r_[False, same] | np.r_[same, False])
        rows = order[tied]
        order[tied] = rows[np.lexsort((rows, key[tied]))]
    return order


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
    number = _sum_by(group, events, len(names))
    units = _sum_by(group, units, len(names))
    some = number > 0
    return names[some] // cells + start, names[some] % cells, number[some], units[some]


def _sum_by(group: IntArray, values: AnyArray | int, groups: int) -> IntArray:
    """Add up the values of each group, in whole numbers."""
    if isinstance(values, int):
        if values == 0:
            return np.zeros(groups, np.int64)
        return np.bincount(group, minlength=groups) * values
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, group, values)
    return sums


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
