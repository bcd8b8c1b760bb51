"""Counting: rows of an event file → what each tick adds to each cell, in one scan by DuckDB.

`event_sql.py` says what event a row is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._arrays import IntArray
from evercount.declare.declaration import StreamDeclaration
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.errors import InputError
from evercount.files.cap_users import first_events
from evercount.files.event_sql import Sources, columns_of, is_keyed, is_valued, listed, placed, prepare
from evercount.files.source import Source, connect

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True, eq=False)
class CountedRows:
    """What the rows of one run add up to. Secret."""

    totals: TickTotals | TickEvents
    bad: int = 0
    """The number of rows that are no events."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Events so far of each user that had one in this run."""


def count(
    sources: Sources,
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    scratch: Path,
    *,
    late: Source | None = None,
    users: Mapping[str, int] | None = None,
) -> CountedRows:
    """Add up the events of ticks first … stop−1 (1-based); rows of other ticks are checked and left alone.

    Args:
        sources: the event files.
        declaration: what is counted, per which ticks.
        first: the first tick to count.
        stop: the tick after the last one to count.
        scratch: a private folder for what does not fit into memory.
        late: the rows that the run before has not seen: those in ticks before `first` are counted in `first`.
        users: the events that each user has had in earlier runs.

    Returns:
        What each tick adds to each cell, the number of bad rows, and the users' new numbers of events.

    Raises:
        InputError: a column is missing, or a file cannot be read.

    **Guarantee.** One event adds to one cell of one tick: 1 for counts and histograms, a value in [lo, hi] rounded to
    the grid for sums; this is the promise that `Query.encode_totals` asks for. Where it is added depends on the event
    and on public facts only (its own time, key and value; with `late`, the run in which its row was first there). With
    a user column, the events of a user beyond the first `max_events` by (time, row), or by (time, order) where an order
    is declared, are left out, which looks at that user's events only: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/files/test_count_rows.py, against plain Python.
    """
    files = listed(sources)
    for source in files:
        source.require(*columns_of(declaration).used)
    with connect(scratch) as connection:
        try:
            names = prepare(connection, declaration, files)
            if declaration.query.names_users:
                return CountedRows(*_users_by_tick(connection, files, declaration, first, stop, late))
            if columns_of(declaration).user is None:
                groups, bad = _groups(connection, files, declaration, first, stop, late)
                known: Mapping[str, int] = {}
            else:
                groups, bad, known = _capped(connection, files, declaration, first, stop, late, users or {})
        except _database_error() as error:
            which = ", ".join(source.name for source in files[:3]) + (", …" if len(files) > 3 else "")
            raise InputError(f"{which} cannot be read: {_first_line(error)}") from error
    query = declaration.query
    if query.unlisted_keys:
        return CountedRows(_by_name(first, stop, groups, names), bad, known)
    totals = TickTotals(first, stop - first, query.cells, *query.totals_of_rows(*groups))
    return CountedRows(totals, bad, known)


def _by_name(first: int, stop: int, groups: Groups, names: Sequence[str]) -> TickEvents:
    """Groups of rows as mappings from key to number of events, one for each tick."""
    ticks: list[dict[str, int]] = [{} for _ in range(stop - first)]
    for tick, cell, events in zip(*(column.tolist() for column in groups[:3]), strict=True):
        counts = ticks[tick - first]
        counts[names[cell]] = counts.get(names[cell], 0) + events
    return TickEvents(first, ticks)


Groups = tuple[IntArray, IntArray, IntArray, IntArray]
"""Tick, cell, number of events and sum of units of each group of rows, in the order of ticks."""


def _grouped(connection: DuckDBPyConnection, rows: str, valued: bool) -> Groups:
    """The rows of a SELECT with place, cell and units, added up by place and cell; rows without a place left out."""
    # Without a condition in SQL: DuckDB would compute the place of every row twice, for the condition and for itself.
    units = "sum(units)::BIGINT" if valued else "0::BIGINT"
    groups = connection.execute(
        f"SELECT place, cell, count(*) AS events, {units} AS total FROM ({rows}) GROUP BY place, cell "
        "ORDER BY place, cell"
    ).fetchnumpy()
    has_place = ~np.ma.getmaskarray(groups["place"])
    # bad rows may have no cell and no units: they are counted, and nothing else is read of them
    tick, cell, events, total = (
        np.ma.filled(groups[name][has_place], 0).astype(np.int64) for name in ("place", "cell", "events", "total")
    )
    return tick, cell, events, total


def _groups(
    connection: DuckDBPyConnection,
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
) -> tuple[Groups, int]:
    """The events of each tick and cell, and the number of bad rows."""
    valued = is_valued(declaration)
    tick, cell, events, units = _grouped(connection, placed(files, declaration, first, stop), valued)
    bad = int(events[tick < 0].sum()) + unreadable(connection, files)
    parts = [tuple(column[tick > 0] for column in (tick, cell, events, units))]
    if late is not None and first < stop:
        rows = f"SELECT {first} AS place, cell, units FROM ({placed(late, declaration, 1, first)}) WHERE place > 0"
        parts.insert(0, _grouped(connection, rows, valued))
    tick, cell, events, units = (np.concatenate(column) for column in zip(*parts, strict=True))
    return (tick, cell, events, units), bad


def _users_by_tick(
    connection: DuckDBPyConnection,
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
) -> tuple[TickEvents, int]:
    """The first event of each user (and key) in each tick, in order, for queries that count users; and bad rows.

    Later events of the same user and key in the same tick change nothing, so they are left out here.
    """
    keyed = is_keyed(declaration)
    order = _order_column(declaration)
    connection.execute(
        f"CREATE TEMP TABLE event AS SELECT place, cell, who, us{order}, n "
        f"FROM ({placed(files, declaration, first, stop, number=True)}) WHERE place IS NOT NULL"
    )
    bad = _scalar(connection, "SELECT count(*) FROM event WHERE place < 0") + unreadable(connection, files)
    if late is not None and first < stop:
        connection.execute(
            f"INSERT INTO event SELECT {first}, cell, who, us{order}, n "
            f"FROM ({placed(late, declaration, 1, first, number=True)}) WHERE place > 0"
        )
    rows = connection.execute(
        "SELECT place, who, cell FROM event WHERE place > 0 "
        f"QUALIFY row_number() OVER (PARTITION BY place, who, cell ORDER BY us{order}, n) = 1 "
        f"ORDER BY place, us{order}, n"
    ).fetchall()
    keys = declaration.query.row_keys[0] if keyed else ()
    ticks: list[list[Any]] = [[] for _ in range(first, stop)]
    for place, who, cell in rows:
        ticks[place - first].append((who, keys[cell]) if keyed else who)
    return TickEvents(first, ticks), bad


def _capped(
    connection: DuckDBPyConnection,
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
    users: Mapping[str, int],
) -> tuple[Groups, int, dict[str, int]]:
    """As `_groups`, for the first events of each user only; and how many each of these users has had by now.

    DuckDB keeps the events in a table, in the order of the files, and may spill it to disk.
    """
    order = _order_column(declaration)
    valued = is_valued(declaration)
    small = "INTEGER" if stop < 2**31 else "BIGINT"
    units = ", units" if valued else ""
    connection.execute(
        f"CREATE TEMP TABLE event AS SELECT place::{small} AS place, cell{units}, who, us{order} "
        f"FROM ({placed(files, declaration, first, stop)}) WHERE place IS NOT NULL"
    )
    bad = _scalar(connection, "SELECT count(*) FROM event WHERE place < 0") + unreadable(connection, files)
    if late is not None and first < stop:  # the times of late rows lie before all others, so their row is no matter
        connection.execute(
            f"INSERT INTO event SELECT {first}, cell{units}, who, us{order} "
            f"FROM ({placed(late, declaration, 1, first)}) WHERE place > 0"
        )
    counted, known = first_events(connection, users, declaration.budget.max_events, ordered=bool(order))
    return _grouped(connection, f"SELECT place, cell{units} FROM ({counted})", valued), bad, known


def _order_column(declaration: StreamDeclaration) -> str:
    """SQL: the column of the declared order after that of the time, or nothing."""
    return ", o" if columns_of(declaration).order is not None else ""


def unreadable(connection: DuckDBPyConnection, sources: Sources) -> int:
    """The number of lines of the last scan that could not be taken apart.

    Args:
        connection: the connection that has scanned.
        sources: what it has scanned.

    Returns:
        The number of lines.

    Raises:
        InputError: after such a line it is not certain where the next row begins.
    """
    files = listed(sources)
    if all(source.kind == "parquet" for source in files):
        return 0
    errors = connection.execute(
        "SELECT line, file_path FROM reject_errors JOIN reject_scans USING (scan_id, file_id) "
        "WHERE (error_type::VARCHAR IN ('LINE SIZE OVER MAXIMUM', 'INVALID STATE') OR (error_type::VARCHAR = "
        "'UNQUOTED VALUE' AND contains(rtrim(csv_line, chr(10) || chr(13)), chr(10)))) ORDER BY ALL"
    ).fetchall()
    kinds = {str(source.path): source for source in files}
    for line, path in errors:
        if kinds.get(path, files[0]).kind == "csv":
            raise InputError(
                f"{kinds.get(path, files[0]).name}: about line {line} a quote is opened and never closed, so that it "
                "is not certain where the next row begins; mend that line (--skip-bad cannot help)"
            )
    return _scalar(connection, "SELECT count(DISTINCT (scan_id, file_id, line_byte_position)) FROM reject_errors")


def _scalar(connection: DuckDBPyConnection, sql: str) -> int:
    ((number,),) = connection.execute(sql).fetchall()
    return int(number)


def _database_error() -> type[Exception]:
    import duckdb

    return duckdb.Error


def _first_line(error: Exception) -> str:
    """What DuckDB says, without the rows that it may quote after the first line."""
    return str(error).splitlines()[0][:200]
