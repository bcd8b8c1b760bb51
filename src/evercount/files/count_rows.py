"""Counting: rows of an event file → what each tick adds to each cell, in one scan by DuckDB.

The same SQL decides for counting and for the list of bad rows (`bad_rows.py`) whether a row is an event, so that a row
is either counted or bad, never both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._arrays import IntArray
from evercount.declare.columns import Columns
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import (
    EARLIEST_NUMBER,
    INSTANT_PATTERN,
    LATEST_NUMBER,
    NUMBER_PATTERN,
    SECOND,
    WALL_PATTERN,
)
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.errors import InputError, ParameterError
from evercount.files.cap_users import first_events
from evercount.files.source import LINE, Source, arrow, connect
from evercount.queries.distinct_users import LONGEST_USER

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_ORDER = 11
REASONS = {
    1: "no time",
    2: "not a time in ISO 8601, nor seconds since 1970",
    3: "a time that the zone's clock never showed (it was set forward)",
    4: "before the start of the stream",
    5: "a key that is not in the list of keys",
    6: "the value is not a number",
    7: "a value outside its range",
    8: "no user",
    9: "not a JSON object",
    10: "not a legal key: 1 to 200 characters, none of them invisible, no blanks at its ends",
    NO_ORDER: "no whole number to order by, of at most 18 digits",
}
NAIVE_TYPES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE")
AWARE_TYPES = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ", "TIMESTAMPTZ_NS")
NUMBER_TYPES = ("INTEGER", "UINTEGER", "BIGINT", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE")
WHOLE_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
ORDER_PATTERN = r"[+-]?[0-9]{1,18}"
FARTHEST = 2**61
"""Instants beyond this (in microseconds) are no times: sums with them could overflow."""
ROWS_OF_USERS_AT_A_TIME = 1 << 20
"""So many events are put in the order of their users at a time."""
USER_GROUPS = 256
"""Events are kept in so many groups, each with all events of its users."""
LONGEST_UNLISTED = 4 * 200
"""Bytes of a key that nobody listed; longer ones are not legal, and are not even looked at."""


@dataclass(frozen=True, eq=False)
class CountedRows:
    """What the rows of one run add up to. Secret."""

    totals: TickTotals | TickEvents
    bad: int = 0
    """The number of rows that are no events."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Events so far of each user that had one in this run."""


def columns_of(declaration: StreamDeclaration) -> Columns:
    """The columns of a declaration, which the doors that read tables need.

    Args:
        declaration: the stream.

    Returns:
        Its columns.

    Raises:
        ParameterError: it names none.
    """
    if declaration.columns is None:
        raise ParameterError(
            f"the declaration of {declaration.name!r} names no columns: add [stream.columns] with time and, where the "
            "query needs them, key, value and user"
        )
    return declaration.columns


Sources = Source | Sequence[Source]
"""One event file, or several whose rows are read one file after the other."""


def listed(sources: Sources) -> tuple[Source, ...]:
    """The files as a tuple."""
    return (sources,) if isinstance(sources, Source) else tuple(sources)


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
        there = ticks[tick - first]
        there[names[cell]] = there.get(names[cell], 0) + events
    return TickEvents(first, ticks)


SUMS = "count(*) AS events, coalesce(sum(units), 0)::BIGINT AS total"
Groups = tuple[IntArray, IntArray, IntArray, IntArray]
"""Tick, cell, number of events and sum of units of each group of rows, in the order of ticks."""


def _groups(
    connection: DuckDBPyConnection,
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
) -> tuple[Groups, int]:
    found = connection.execute(
        f"SELECT place, cell, {SUMS} FROM ({placed(files, declaration, first, stop)}) "
        "WHERE place IS NOT NULL GROUP BY place, cell ORDER BY place, cell"
    ).fetchnumpy()
    places = np.asarray(found["place"], np.int64)
    bad = int(np.asarray(found["events"])[places < 0].sum()) + unreadable(connection, files)
    parts = [tuple(np.asarray(found[name])[places > 0] for name in ("place", "cell", "events", "total"))]
    if late is not None and first < stop:
        more = connection.execute(
            f"SELECT {first} AS place, cell, {SUMS} FROM ({placed(late, declaration, 1, first)}) "
            "WHERE place > 0 GROUP BY cell ORDER BY cell"
        ).fetchnumpy()
        parts.insert(0, tuple(np.asarray(more[name]) for name in ("place", "cell", "events", "total")))
    tick, cell, events, units = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
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
    found = connection.execute(
        "SELECT place, who, cell FROM event WHERE place > 0 "
        f"QUALIFY row_number() OVER (PARTITION BY place, who, cell ORDER BY us{order}, n) = 1 "
        f"ORDER BY place, us{order}, n"
    ).fetchall()
    keys = declaration.query.row_keys[0] if keyed else ()
    ticks: list[list[Any]] = [[] for _ in range(first, stop)]
    for place, who, cell in found:
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
    """As `_groups`, for the first events of each user only.

    DuckDB keeps the events in a table, in the order of the files, and may spill it to disk. The users are divided into
    groups by a hash of their names; the events of a few groups at a time are put in order in memory.
    """
    order = _order_column(declaration)
    columns = f"place, cell, units, who, us{order}, (hash(who) % {USER_GROUPS})::UTINYINT AS part"
    connection.execute(
        f"CREATE TEMP TABLE event AS SELECT {columns} FROM ({placed(files, declaration, first, stop)}) "
        "WHERE place IS NOT NULL"
    )
    bad = _scalar(connection, "SELECT count(*) FROM event WHERE place < 0") + unreadable(connection, files)
    if late is not None and first < stop:  # the times of late rows lie before all others, so their place is no matter
        columns = columns.replace("place", str(first), 1)
        connection.execute(
            f"INSERT INTO event SELECT {columns} FROM ({placed(late, declaration, 1, first)}) WHERE place > 0"
        )
    rows = _scalar(connection, "SELECT count(*) FROM event")
    step = max(1, USER_GROUPS * ROWS_OF_USERS_AT_A_TIME // max(rows, 1))
    most = declaration.budget.max_events
    sums: list[Any] = []
    known: dict[str, int] = {}
    for part in range(0, USER_GROUPS, step):
        reader = connection.sql(
            f"SELECT who, us{order}, place, cell, units FROM event WHERE place > 0 AND part BETWEEN {part} AND "
            f"{part + step - 1}"
        ).to_arrow_reader(ROWS_OF_USERS_AT_A_TIME)
        found = first_events(reader, users, most, ROWS_OF_USERS_AT_A_TIME)
        if found is not None:
            kept, seen = found
            known |= seen
            sums.append(kept.group_by(["place", "cell"]).aggregate([([], "count_all"), ("units", "sum")]))
    if not sums:
        return (*(np.empty(0, np.int64) for _ in range(4)),), bad, known  # type: ignore[return-value]
    together = arrow().concat_tables(sums).sort_by([("place", "ascending"), ("cell", "ascending")])
    tick, cell, number, units = (
        together[name].to_numpy().astype(np.int64) for name in ("place", "cell", "count_all", "units_sum")
    )
    return (tick, cell, number, units), bad, known


def _order_column(declaration: StreamDeclaration) -> str:
    """SQL: the column of the declared order after that of the time, or nothing."""
    return ", o" if columns_of(declaration).order is not None else ""


# -- from a row to an event, in SQL -----------------------------------------------------------------------------------


def prepare(connection: DuckDBPyConnection, declaration: StreamDeclaration, files: tuple[Source, ...]) -> list[str]:
    """Make the keys a type of this connection: casting a text to it is the look-up of its cell.

    Args:
        connection: the connection.
        declaration: the stream with its keys. Where nobody listed them, they are the legal ones of the files.
        files: the rows.

    Returns:
        The key of each cell.
    """
    if not is_keyed(declaration):
        return []
    names = written = list(declaration.query.row_keys[0])
    if declaration.query.unlisted_keys:
        columns = columns_of(declaration)
        each = (f"SELECT k::VARCHAR AS k FROM ({row_fields(source, columns, False)})" for source in files)
        found = connection.execute(
            f"SELECT DISTINCT k FROM ({' UNION ALL '.join(each)}) WHERE strlen(k) BETWEEN 1 AND {LONGEST_UNLISTED}"
        ).fetchall()
        checked = declaration.query.check_keys([key for (key,) in found])
        pairs = [(key, name) for (key,), name in zip(found, checked, strict=True) if name is not None]
        written, names = [key for key, _ in pairs], [name for _, name in pairs]
    connection.execute("CREATE TEMP TABLE cell_name AS SELECT unnest(?::VARCHAR[]) AS name", [written])
    connection.execute("CREATE TYPE cell_key AS ENUM (SELECT name FROM cell_name ORDER BY rowid)")
    return names


def is_keyed(declaration: StreamDeclaration) -> bool:
    """Whether the cell of a row is found by its key or by its path of names."""
    return not {"key", "levels"}.isdisjoint(declaration.query.event_columns or ())


def _valued(declaration: StreamDeclaration) -> bool:
    return "value" in (declaration.query.event_columns or ())


def placed(
    sources: Sources, declaration: StreamDeclaration, first: int, stop: int, *, number: bool = False, extra: str = ""
) -> str:
    """SQL: one row per row of the files with `place`: its tick if in first … stop−1, NULL if another, −reason if bad.

    Columns: place, cell, units, who, us and o (the declared order). Of one file also n (the row's number) with
    `number`, and those of `extra`.

    Args:
        sources: the event files.
        declaration: what is counted.
        first: the first tick that is looked for.
        stop: the tick after the last one.
        number: whether rows are numbered.
        extra: further columns of the scan.

    Returns:
        A SELECT statement.

    Raises:
        InputError: the column of the time has a type that holds no times, or that of the order no whole numbers.
    """
    files = listed(sources)
    schedule = declaration.schedule
    low, high = schedule.start_of(first), schedule.start_of(stop)
    wanted = "".join(f"{name}, " for name in ["n"] * number + ([extra] if extra else []))
    return (
        f"SELECT {wanted}cell, units, who, us, o, CASE WHEN reason > 0 THEN -reason "
        f"WHEN us < {low} OR us >= {high} THEN NULL ELSE {schedule.sql_tick('us')} END AS place FROM ("
        f"SELECT *, {_reason(declaration)} AS reason FROM ("
        f"SELECT *, coalesce(exact, {schedule.sql_instant('wall')}) AS us, {_cell(declaration)} AS cell, "
        f"{_units(declaration)} AS units FROM ({_rows(files, declaration, number)})))"
    )


def _rows(files: tuple[Source, ...], declaration: StreamDeclaration, number: bool) -> str:
    """SQL: the columns of `_times` of all files; those of several in types that all formats share."""
    if len(files) == 1:
        return _times(files[0], declaration, number)
    shared = (
        "t::VARCHAR AS t, k::VARCHAR AS k, TRY_CAST(v AS DOUBLE) AS v, who::VARCHAR AS who, o::BIGINT AS o, unparsed, "
        "wall, exact"
    )
    return " UNION ALL ".join(f"SELECT {shared} FROM ({_times(source, declaration, False)})" for source in files)


def row_fields(source: Source, columns: Columns, number: bool) -> str:
    """SQL: the columns t, k, v, who and o, all rows in the order of the file."""
    keys = columns.key_columns
    several, joined = (columns.levels, _path) if columns.levels else (keys if len(keys) > 1 else (), _combined)
    names = {
        "t": columns.time,
        "k": keys[0] if keys else None,
        "v": columns.value,
        "who": columns.user,
        "o": columns.order,
    }
    if source.kind != "jsonl":
        parts = [f"{source.column(name)} AS {short}" if name else f"NULL AS {short}" for short, name in names.items()]
        if several:
            parts[1] = f"{joined([source.column(name) for name in several])} AS k"
        if columns.user and source.kind == "parquet":
            parts[3] = f"{source.column(columns.user)}::VARCHAR AS who"
        if columns.order:
            parts[4] = _order(source, columns.order, source.column(columns.order))
        chosen = ["row_number() OVER () AS n"] * number + ["*"] * (source.kind == "csv") + parts
        return f"SELECT {', '.join(chosen)} FROM {source.scan()}"
    used = {short: name for short, name in names.items() if name}
    used |= {f"k{place}": name for place, name in enumerate(several)}
    paths = ", ".join(_pointer(name) for name in used.values())
    parts = [f"f[{list(used).index(short) + 1}] AS {short}" if short in used else f"NULL AS {short}" for short in names]
    if several:
        first = list(used).index("k0") + 1
        parts[1] = f"{joined([f'f[{first + place}]' for place in range(len(several))])} AS k"
    if columns.value:  # a text that looks like a number is not one, and neither is true
        kind = f"json_type({LINE}, {_pointer(columns.value)})"
        parts[2] = f"CASE WHEN {kind} IN ('UBIGINT', 'BIGINT', 'DOUBLE') THEN {parts[2][:-5]} END AS v"
    if columns.order:
        parts[4] = _order(source, columns.order, parts[4][:-5])
    count_rows = "row_number() OVER () AS n, " if number else ""
    return (
        f"SELECT *, {', '.join(parts)} FROM (SELECT *, CASE WHEN json_valid({LINE}) THEN "
        f"json_extract_string({LINE}, [{paths}]) END AS f FROM (SELECT {count_rows}{LINE} FROM {source.scan()}) "
        f"WHERE trim({LINE}, ' \t\r') <> '')"
    )


def _combined(columns: list[str]) -> str:
    """SQL: the text of `declare.columns.combined_key`; NULL where a part is."""
    parts = (
        f"CASE WHEN contains({text}, ',') OR contains({text}, '\"') "
        f"THEN '\"' || replace({text}, '\"', '\"\"') || '\"' ELSE {text} END"
        for text in (f"{column}::VARCHAR" for column in columns)
    )
    return " || ',' || ".join(parts)


def _order(source: Source, name: str, column: str) -> str:
    """SQL: the declared order as a whole number, NULL where there is none."""
    kind = "VARCHAR" if source.kind == "jsonl" else source.type_of(name)
    if kind in WHOLE_TYPES:
        return f"{column}::BIGINT AS o"
    if kind != "VARCHAR":
        raise InputError(f"the column {name!r} of {source.name} is of type {kind}; an order is a whole number")
    return f"CASE WHEN regexp_full_match({column}, '{ORDER_PATTERN}') THEN TRY_CAST({column} AS BIGINT) END AS o"


def _pointer(name: str) -> str:
    """SQL: the JSON pointer (RFC 6901) of a field. In a JSONPath, * would be every field, and ü none."""
    return "'/" + name.replace("~", "~0").replace("/", "~1").replace("'", "''") + "'"


def _path(columns: list[str]) -> str:
    """SQL: the text of `queries.rollup.path_key`; NULL where a name is."""
    return " || ".join(f"strlen({column}::VARCHAR) || ':' || {column}::VARCHAR" for column in columns)


def _times(source: Source, declaration: StreamDeclaration, number: bool) -> str:
    """SQL: `wall` for a time without an offset, `exact` for one with it, both NULL for what is not a time.

    The rule of `declare.schedule.parse_instant`.
    """
    columns = columns_of(declaration)
    kind = source.type_of(columns.time)
    if kind == "VARCHAR":
        # The first two are the usual forms, told by their length, because a regular expression costs more than the
        # rest. strptime wants two digits per part; it would skip spaces, so the text must begin and end with a digit.
        # A cast to TIMESTAMP would drop an offset without a word, so it is used only where there can be none.
        plain = "strlen(t) = 19 AND t >= '0' AND substr(t, 17, 1) = ':' AND substr(t, 19, 1) >= '0'"
        zulu = "strlen(t) = 20 AND t >= '0' AND substr(t, 17, 1) = ':' AND suffix(t, 'Z')"
        wall = (
            f"CASE WHEN {plain} THEN epoch_us(try_strptime(t, ['%Y-%m-%dT%H:%M:%S', '%Y-%m-%d %H:%M:%S'])) "
            f"WHEN {zulu} THEN NULL "
            f"WHEN regexp_full_match(t, '{WALL_PATTERN}') THEN epoch_us(TRY_CAST(t AS TIMESTAMP)) END"
        )
        exact = (
            f"CASE WHEN {plain} THEN NULL "
            f"WHEN {zulu} THEN epoch_us(try_strptime(t, ['%Y-%m-%dT%H:%M:%SZ', '%Y-%m-%d %H:%M:%SZ'])) "
            f"WHEN regexp_full_match(t, '{INSTANT_PATTERN}') THEN epoch_us(TRY_CAST(t AS TIMESTAMPTZ)) "
            f"WHEN regexp_full_match(t, '{NUMBER_PATTERN}') THEN {_epoch('t')} END"
        )
    elif kind in AWARE_TYPES:
        wall, exact = "NULL::BIGINT", "epoch_us(TRY_CAST(t AS TIMESTAMPTZ))"
    elif kind in NAIVE_TYPES:
        wall, exact = "epoch_us(TRY_CAST(t AS TIMESTAMP))", "NULL::BIGINT"
    elif kind in NUMBER_TYPES:
        wall, exact = "NULL::BIGINT", _epoch("t")
    else:
        raise InputError(
            f"the column {columns.time!r} of {source.name} is of type {kind}; a time is a TIMESTAMP, a DATE, a text in "
            "ISO 8601 or a number of seconds since 1970"
        )
    inner = f"SELECT *, {wall} AS wall_any, {exact} AS exact_any FROM ({row_fields(source, columns, number)})"
    keep = "CASE WHEN {0}_any BETWEEN " + f"{-FARTHEST} AND {FARTHEST}" + " THEN {0}_any END AS {0}"
    unparsed = "f IS NULL" if source.kind == "jsonl" else "false"
    return f"SELECT *, {unparsed} AS unparsed, {keep.format('wall')}, {keep.format('exact')} FROM ({inner})"


def _epoch(column: str) -> str:
    """SQL: the instant of seconds since 1970, NULL where the number is none."""
    seconds = f"TRY_CAST({column} AS DOUBLE)"
    return (
        f"CASE WHEN {seconds} >= {EARLIEST_NUMBER} AND {seconds} < {LATEST_NUMBER} "
        f"THEN round_even({seconds} * {SECOND}, 0)::BIGINT END"
    )


def _cell(declaration: StreamDeclaration) -> str:
    if declaration.query.row_bins is not None:  # the arithmetic of Quantiles.leaves_of, in the same doubles
        low, width, bins = declaration.query.row_bins
        place = f"floor((TRY_CAST(v AS DOUBLE) - CAST({low!r} AS DOUBLE)) / CAST({width!r} AS DOUBLE))"
        return f"TRY_CAST(least(greatest({place}, 0), {bins - 1}) AS INTEGER)"
    if not is_keyed(declaration):
        return "0"
    keys, others = declaration.query.row_keys
    code = "enum_code(TRY_CAST(k::VARCHAR AS cell_key))::INTEGER"
    return f"coalesce({code}, {len(keys)})" if others else code


def _units(declaration: StreamDeclaration) -> str:
    if not _valued(declaration):
        return "0"
    # half to even, as Sum.units rounds
    grid = declaration.query.row_values[2]
    return f"TRY_CAST(round_even(TRY_CAST(v AS DOUBLE) / CAST({grid!r} AS DOUBLE), 0) AS BIGINT)"


def _reason(declaration: StreamDeclaration) -> str:
    """SQL: 0 for an event, else a key of REASONS."""
    rules = [
        "WHEN unparsed THEN 9",
        "WHEN t IS NULL THEN 1",
        "WHEN wall IS NULL AND exact IS NULL THEN 2",
        "WHEN us IS NULL THEN 3",
        f"WHEN us < {declaration.schedule.begin} THEN 4",
    ]
    if is_keyed(declaration) and not declaration.query.row_keys[1]:
        rules.append(f"WHEN cell IS NULL THEN {10 if declaration.query.unlisted_keys else 5}")
    if _valued(declaration):
        number = "TRY_CAST(v AS DOUBLE)"
        lo, hi, _ = declaration.query.row_values
        low, high = (f"CAST({bound!r} AS DOUBLE)" for bound in (lo, hi))
        rules.append(f"WHEN {number} IS NULL OR isnan({number}) THEN 6")
        rules.append(f"WHEN {number} < {low} OR {number} > {high} OR units IS NULL THEN 7")
    if columns_of(declaration).user is not None:
        rules.append("WHEN who IS NULL THEN 8")
    if declaration.query.names_users:
        rules.append(f"WHEN length(who) NOT BETWEEN 1 AND {LONGEST_USER} THEN 8")
    if columns_of(declaration).order is not None:
        rules.append(f"WHEN o IS NULL THEN {NO_ORDER}")
    return f"CASE {' '.join(rules)} ELSE 0 END"


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
    found = connection.execute(
        "SELECT line, file_path FROM reject_errors JOIN reject_scans USING (scan_id, file_id) "
        "WHERE (error_type::VARCHAR IN ('LINE SIZE OVER MAXIMUM', 'INVALID STATE') OR (error_type::VARCHAR = "
        "'UNQUOTED VALUE' AND contains(rtrim(csv_line, chr(10) || chr(13)), chr(10)))) ORDER BY ALL"
    ).fetchall()
    kinds = {str(source.path): source for source in files}
    for line, path in found:
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
