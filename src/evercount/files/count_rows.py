"""Counting: rows of an event file → what each tick adds to each cell, in one scan by DuckDB.

`event_sql.py` says what event a row is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evercount._validate import IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickEvents, TickTotals
from evercount.engine.user_counting import users_after
from evercount.errors import InputError
from evercount.files.cap_users import Groups, UsedBefore, UserRule
from evercount.files.event_parts import NUMBER_OF_USER, read_batches
from evercount.files.event_sql import columns_of, is_keyed, is_valued, open_files, placed
from evercount.files.source import Source, library
from evercount.queries.key_counts import CountedKeys
from evercount.queries.sensitivities import rows_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# up to so many keys × ticks are counted in an array
MOST_PLACES = 1 << 24
TOO_LONG = "LINE SIZE OVER MAXIMUM"


def count(
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    scratch: Path,
    *,
    late: tuple[Source, ...] = (),
    users: Mapping[str, UsedBefore] | None = None,
    reading: StreamDeclaration | None = None,
) -> Arrivals:
    """Add up the events of ticks first … stop−1 (1-based); rows of other ticks are checked and left
    alone.

    `late` holds the rows that the run before has not seen: those in ticks before `first` are
    counted in `first`; of a stream whose ticks are revised, for their own tick, if it is still
    revised. `users` are those of the run before: what each has used of the caps in the period of
    `first`. `reading` is the declaration with keys that join later: their rows are legal, and left
    out before anything is counted.

    **Guarantee.** One event adds to one cell of one tick: 1 for counts and histograms, a value in
    [lo, hi] rounded to the grid for sums; this is the promise that `Query.encode_totals` asks for.
    Where it is added depends on the event and on public facts only (its own time, key and value;
    with `late`, the run in which its row was first there). With a user column, events beyond the
    caps of their user and period are left out, which looks at that user's events only:
    `cap_users.py`. Tests: tests/files/test_count_rows.py, against plain Python.
    """
    query = declaration.query
    with open_files(files, reading or declaration, scratch) as (connection, names):
        readable = reading or declaration
        scan = _Scan(connection, files, declaration, first, stop, late, readable, scratch)
        if query.people is not None:
            events, bad = scan.persons_by_tick()
            return Arrivals(events, bad=bad)
        if scan.counts_keys_densely(len(names)):
            events, bad = scan.keys_by_tick(names)
            return Arrivals(events, bad=bad)
        if columns_of(declaration).user is None:
            groups, bad, caps_used = scan.groups()
        else:
            groups, bad, caps_used = scan.capped(users or {})
    totals: TickTotals | TickEvents
    if query.discovery is not None:
        totals = _by_name(first, stop, groups, names)
    else:
        totals = revised_totals(declaration, first, stop, *rows_of(query).totals(*groups))
    return Arrivals(totals, bad=bad, caps_used=caps_used)


def revised_totals(
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    tick: IntArray,
    cell: IntArray,
    total: IntArray,
) -> TickTotals:
    """Totals of ticks first … stop−1; those of earlier ticks are late, and count for their own in
    `first`.

    **Guarantee.** An event counts for its own tick at one lag, that of the tick that is open when
    it comes, or not at all: `engine/revisions.proof.md`. Test:
    tests/files/test_late_files.py::test_files_are_revised_as_the_library_does.
    """
    cells = declaration.query.cells
    lags = (declaration.revise_for or 0) + 1
    lag = np.maximum(first - tick, 0)
    counted = lag < lags
    arrival = np.maximum(tick, first)[counted]
    wide = (cell + lag * cells)[counted]
    return TickTotals(first, stop - first, cells * lags, arrival, wide, total[counted])


def _by_name(first: int, stop: int, groups: Groups, names: Sequence[str]) -> TickEvents:
    """The events of each tick by the names of their keys."""
    tick, cell, events = groups[:3]
    keys = _SortedKeys.of(names)
    ticks = []
    edges = np.searchsorted(tick, np.arange(first, stop + 1))
    for begin, end in pairwise(edges.tolist()):
        sums = np.zeros(len(keys.names), np.int64)
        np.add.at(sums, keys.place[cell[begin:end]], events[begin:end])
        ticks.append(keys.counted(sums))
    return TickEvents(first, ticks)


class _SortedKeys(NamedTuple):
    """The keys of cells, each once; `place` is where the key of each cell stands. Two cells are of
    one key if their texts have the same composed form."""

    names: list[str]
    place: IntArray

    @classmethod
    def of(cls, names: Sequence[str]) -> _SortedKeys:
        """The keys of cells by their names."""
        unique = sorted(set(names))
        place_of = {name: place for place, name in enumerate(unique)}
        return cls(unique, np.fromiter(map(place_of.__getitem__, names), np.int64, len(names)))

    def counted(self, sums: IntArray) -> CountedKeys:
        """The keys of a tick from the number of events of each."""
        places = np.flatnonzero(sums)
        return CountedKeys(self.names, places.astype(np.int32), sums[places])


@dataclass(frozen=True)
class _Scan:
    connection: DuckDBPyConnection
    files: tuple[Source, ...]
    declaration: StreamDeclaration
    first: int
    stop: int
    late: tuple[Source, ...]
    reading: StreamDeclaration
    scratch: Path

    def _placed(self, files: tuple[Source, ...], first: int, stop: int) -> str:
        """SQL: the events of some ticks, as `placed`; without those of keys that have not joined
        yet.

        **Guarantee.** Which events are left out follows from their own keys and ticks, so
        neighbours stay neighbours. Test:
        tests/files/test_join_at_a_date.py::test_keys_join_at_a_date_as_in_two_runs.
        """
        rows = placed(files, self.reading, first, stop)
        if self.reading is self.declaration:
            return rows
        keys = len(rows_of(self.declaration.query).keys[0])
        return f"SELECT * FROM ({rows}) WHERE NOT coalesce(place > 0 AND cell >= {keys}, false)"

    def groups(self) -> tuple[Groups, int, dict[str, UsedBefore]]:
        """The events of each tick and cell, the number of bad rows, and no users."""
        tick, cell, events, units = self._added_up(self._placed(self.files, self.first, self.stop))
        bad = int(events[tick < 0].sum()) + unreadable(self.connection, self.files)
        parts = [tuple(column[tick > 0] for column in (tick, cell, events, units))]
        if late := self._late_rows():
            place = f"{self.first} AS place"
            if self.declaration.revise_for:
                place = "place"
            parts.insert(
                0, self._added_up(f"SELECT {place}, cell, units FROM ({late}) WHERE place > 0")
            )
        tick, cell, events, units = (np.concatenate(column) for column in zip(*parts, strict=True))
        return (tick, cell, events, units), bad, {}

    def capped(self, users: Mapping[str, UsedBefore]) -> tuple[Groups, int, dict[str, UsedBefore]]:
        """As `groups`, for what the caps of users leave; and the users of the period that is open
        afterwards."""
        caps = self.declaration.user_caps
        revise_for = self.declaration.revise_for
        assert caps is not None
        ticks = range(max(1, self.first - (revise_for or 0)), self.stop)
        rule = UserRule(
            caps.caps,
            caps.period_of,
            ticks,
            ordered=bool(self._order),
            valued=bool(self._units),
            alike=not rows_of(self.declaration.query).columns,
        )
        events = _LegalEvents(self.connection, self.files, self._event_queries(rule.timed))
        groups, caps_used = rule.count(self.connection, events, users, self.scratch)
        if revise_for is not None:
            caps_used = users_after(caps_used, self.stop - 1, revise_for + 1)
        return groups, events.bad, caps_used

    def counts_keys_densely(self, keys: int) -> bool:
        """Whether unlisted keys are counted in an array that has a place for each key and tick."""
        declaration = self.declaration
        return (
            declaration.query.discovery is not None
            and columns_of(declaration).user is None
            and declaration.revise_for is None
            and keys * (self.stop - self.first) <= MOST_PLACES
        )

    def keys_by_tick(self, names: Sequence[str]) -> tuple[TickEvents, int]:
        """The events of each tick by their keys, and bad rows. To group many keys in many ticks,
        DuckDB needs ten times as long and all the memory that it may have."""
        keys = _SortedKeys.of(names)
        sums = np.zeros((self.stop - self.first, len(keys.names)), np.int64)
        events = _LegalEvents(self.connection, self.files, self._by_arrival("cell"))
        for batch in events:
            tick = np.asarray(batch["place"]).astype(np.int64) - self.first
            place = keys.place[np.asarray(batch["cell"])]
            np.add.at(sums.reshape(-1), tick * len(keys.names) + place, 1)
        ticks = [keys.counted(row) for row in sums]
        return TickEvents(self.first, ticks), events.bad

    def _event_queries(self, timed: bool) -> list[str]:
        """SQL: the events of the ticks and the bad rows, in their order; and the late ones."""
        time = ""
        if timed:
            time = ", us"
        columns = f"cell{self._units}, who{time}{self._order}, {NUMBER_OF_USER} AS number"
        return self._by_arrival(columns)

    def persons_by_tick(self) -> tuple[TickEvents, int]:
        """The events of each tick in order, for queries that name users; and bad rows. Unless the
        query says that they matter, later events of the same user and key in the same tick are left
        out."""
        bad = self._make_table()
        columns = rows_of(self.declaration.query)
        first_only = (
            f"QUALIFY row_number() OVER (PARTITION BY place, who, cell ORDER BY us{self._order}, "
            "rowid) = 1 "
        )
        if columns.repeats:
            first_only = ""
        rows = self.connection.execute(
            f"SELECT place, who, cell FROM event WHERE place > 0 {first_only}"
            f"ORDER BY place, us{self._order}, rowid"
        ).fetchall()
        keys = None
        if is_keyed(self.declaration):
            keys = columns.keys[0]
        ticks: list[list[Any]] = [[] for _ in range(self.first, self.stop)]
        for place, who, cell in rows:
            ticks[place - self.first].append(who if keys is None else (who, keys[cell]))
        return TickEvents(self.first, ticks), bad

    @property
    def _order(self) -> str:
        """SQL: the column of the declared order after that of the time, or nothing."""
        if columns_of(self.declaration).order is None:
            return ""
        return ", o"

    @property
    def _units(self) -> str:
        """SQL: the column of grid units after another one, or nothing."""
        if not is_valued(self.declaration):
            return ""
        return ", units"

    def _late_rows(self) -> str:
        """SQL: the late rows, whose place is their own tick; nothing where there are none."""
        if not self.late or self.first >= self.stop:
            return ""
        return self._placed(self.late, 1, self.first)

    def _make_table(self) -> int:
        """Make the table `event`, which DuckDB may spill to disk: rows in the order of the files.
        Returns bad rows."""
        rows, *late = self._by_arrival(f"cell{self._units}, who, us{self._order}")
        self.connection.execute(f"CREATE TEMP TABLE event AS {rows}")
        ((bad,),) = self.connection.execute("SELECT count(*) FROM event WHERE place < 0").fetchall()
        bad += unreadable(self.connection, self.files)
        for select in late:
            self.connection.execute(f"INSERT INTO event {select}")
        return int(bad)

    def _by_arrival(self, columns: str) -> list[str]:
        """SQL: place and columns of the rows of the ticks, bad ones included, in the order of the
        files; and those of the late rows. The times of these lie before all others, so where they
        stand does not matter."""
        # of a revised stream, the events of a user for each tick have caps of their own, and a run
        # counts them at once
        revise_for = self.declaration.revise_for
        by_day = ""
        if revise_for is not None:
            by_day = "SELECT * REPLACE (place || ' ' || who AS who) FROM "
        whole = "BIGINT"
        if self.stop < 2**31:
            whole = "INTEGER"
        queries = [
            f"SELECT place::{whole} AS place, {columns} FROM "
            f"({by_day}({self._placed(self.files, self.first, self.stop)})) WHERE place IS NOT "
            "NULL"
        ]
        if late := self._late_rows():
            place = str(self.first)
            oldest = 1
            if revise_for is not None:
                place = "late.place"
                oldest = max(1, self.first - revise_for)
            queries.append(
                f"SELECT {place}::{whole} AS place, {columns} FROM ({by_day}({late})) AS late "
                f"WHERE late.place >= {oldest}"
            )
        return queries

    def _added_up(self, rows: str) -> Groups:
        """The rows of a SELECT with place, cell and units, added up by place and cell; without a
        place left out."""
        # Without a condition in SQL: DuckDB would compute the place of every row twice, for the
        # condition and itself.
        units = "0::BIGINT"
        if self._units:
            units = "sum(units)::BIGINT"
        groups = self.connection.execute(
            f"SELECT place, cell, count(*) AS events, {units} AS total FROM ({rows}) GROUP BY "
            "place, cell ORDER BY place, cell"
        ).fetchnumpy()
        has_place = ~np.ma.getmaskarray(groups["place"])
        # bad rows may have no cell and no units: they are counted, and nothing else is read of them
        tick, cell, events, total = (
            np.ma.filled(groups[name][has_place], 0).astype(np.int64)
            for name in ("place", "cell", "events", "total")
        )
        return tick, cell, events, total


@dataclass
class _LegalEvents:
    """The events of files and of late rows, in batches; `bad` counts the other rows of the
    files."""

    connection: DuckDBPyConnection
    files: tuple[Source, ...]
    queries: Sequence[str]
    bad: int = 0

    def __iter__(self) -> Iterator[Any]:
        rows, *late = self.queries
        for batch in read_batches(self.connection, rows):
            legal = np.asarray(batch["place"]) > 0
            if not legal.all():
                self.bad += int(np.count_nonzero(~legal))
                batch = batch.filter(library("pyarrow").array(legal))
            yield batch
        self.bad += unreadable(self.connection, self.files)
        for query in late:
            yield from read_batches(self.connection, query)


def unreadable(connection: DuckDBPyConnection, files: tuple[Source, ...]) -> int:
    """The number of lines of the last scan that could not be parsed. InputError where it is not
    certain after such a line where the next row begins."""
    if all(source.typed for source in files):
        return 0
    errors = connection.execute(
        "SELECT line, file_path, error_type::VARCHAR FROM reject_errors JOIN reject_scans USING "
        f"(scan_id, file_id) WHERE (error_type::VARCHAR IN ('{TOO_LONG}', 'INVALID STATE') OR "
        "(error_type::VARCHAR = 'UNQUOTED VALUE' AND contains(rtrim(csv_line, chr(10) || chr(13)), "
        "chr(10)))) ORDER BY ALL"
    ).fetchall()
    by_path = {str(source.path.absolute()): source for source in files}
    for line, path, kind in errors:
        source = by_path.get(path, files[0])
        if source.kind == "csv":
            what = "a quote is opened and never closed"
            if kind == TOO_LONG:
                what = "a row is longer than 2,000,000 bytes (is a quote never closed?)"
            raise InputError(
                f"{source.name}: about line {line} {what}, so nobody can tell where the next row "
                "begins; fix that line (`skip_bad` cannot help)"
            )
    # Keys that nobody listed are read by a scan of their own, which has listed the same lines.
    ((number,),) = connection.execute(
        "SELECT count(DISTINCT (file_path, line_byte_position)) FROM reject_errors "
        "JOIN reject_scans USING (scan_id, file_id)"
    ).fetchall()
    return int(number)
