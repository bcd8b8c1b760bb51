"""Counting: rows of an event file → what each tick adds to each cell, in one scan by DuckDB.

The same SQL decides for counting and for the list of bad rows (`bad_rows.py`) whether a row is an event, so that a row
is either counted or bad, never both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._arrays import IntArray
from evercount.declare.columns import Columns
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import EARLIEST_NUMBER, LATEST_NUMBER, SECOND
from evercount.engine.tick_totals import TickTotals
from evercount.errors import InputError, ParameterError
from evercount.files.source import LINE, Source, connect

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

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
    10: "no whole number to order by, of at most 18 digits",
}
NAIVE = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.]\d{1,9})?)?)?"
AWARE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.]\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?| UTC)"
NUMBER = r"[0-9]{9,11}([.][0-9]{1,9})?"
NAIVE_TYPES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE")
AWARE_TYPES = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ", "TIMESTAMPTZ_NS")
NUMBER_TYPES = ("INTEGER", "UINTEGER", "BIGINT", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE")
WHOLE_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
ORDER = r"[+-]?[0-9]{1,18}"
FARTHEST = 2**61


@dataclass(frozen=True, eq=False)
class CountedRows:
    """What the rows of one run add up to. Secret."""

    totals: TickTotals
    bad: int = 0
    """The number of rows that are no events."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Events so far of each user that had one in this run."""


def columns_of(declaration: StreamDeclaration) -> Columns:
    """The columns of a declaration, which the doors that read tables need."""
    if declaration.columns is None:
        raise ParameterError(
            f"the declaration of {declaration.name!r} names no columns: add [stream.columns] with time and, where the "
            "query needs them, key, value and user"
        )
    return declaration.columns


def count(
    source: Source,
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    scratch: Path,
    *,
    late: Source | None = None,
    users: Mapping[str, int] | None = None,
) -> CountedRows:
    """Add up the events of ticks first … stop−1 (1-based); rows of other ticks are checked and left alone.

    `late` holds the rows that the run before has not seen: those in ticks before `first` are counted in `first`.
    `users` are the events that each user has had in earlier runs.

    **Guarantee.** One event adds to one cell of one tick: 1 for counts and histograms, a value in [lo, hi] rounded to
    the grid for sums; this is the promise that `Query.encode_totals` asks for. Where it is added depends on the event
    and on public facts only (its own time, key and value; with `late`, the run in which its row was first there). With
    a user column, the events of a user beyond the first `max_events` by (time, row), or by (time, order) where an order
    is declared, are left out, which looks at that user's events only: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/files/test_count_rows.py, against plain Python.
    """
    source.require(*columns_of(declaration).used)
    with connect(scratch) as connection:
        prepare(connection, declaration)
        try:
            if columns_of(declaration).user is None:
                groups, bad = _groups(connection, source, declaration, first, stop, late)
                known: Mapping[str, int] = {}
            else:
                groups, bad, known = _capped(connection, source, declaration, first, stop, late, users or {})
        except _database_error() as error:
            raise InputError(f"{source.name} cannot be read: {_first_line(error)}") from error
    query = declaration.query
    totals = TickTotals(first, stop - first, query.cells, *query.totals_of_rows(*groups))
    return CountedRows(totals, bad, known)


SUMS = "count(*) AS events, coalesce(sum(units), 0)::BIGINT AS total"
Groups = tuple[IntArray, IntArray, IntArray, IntArray]
"""Tick, cell, number of events and sum of units of each group of rows, in the order of ticks."""


def _groups(
    connection: DuckDBPyConnection,
    source: Source,
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
) -> tuple[Groups, int]:
    found = connection.execute(
        f"SELECT place, cell, {SUMS} FROM ({placed(source, declaration, first, stop)}) "
        "WHERE place IS NOT NULL GROUP BY place, cell ORDER BY place, cell"
    ).fetchnumpy()
    places = np.asarray(found["place"], np.int64)
    bad = int(np.asarray(found["events"])[places < 0].sum()) + unreadable(connection, source)
    parts = [tuple(np.asarray(found[name])[places > 0] for name in ("place", "cell", "events", "total"))]
    if late is not None and first < stop:
        more = connection.execute(
            f"SELECT {first} AS place, cell, {SUMS} FROM ({placed(late, declaration, 1, first)}) "
            "WHERE place > 0 GROUP BY cell ORDER BY cell"
        ).fetchnumpy()
        parts.insert(0, tuple(np.asarray(more[name]) for name in ("place", "cell", "events", "total")))
    tick, cell, events, units = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
    return (tick, cell, events, units), bad


def _capped(
    connection: DuckDBPyConnection,
    source: Source,
    declaration: StreamDeclaration,
    first: int,
    stop: int,
    late: Source | None,
    users: Mapping[str, int],
) -> tuple[Groups, int, dict[str, int]]:
    """As `_groups`, for the first events of each user only. Events are kept in a table, which may spill to disk.

    Rows are told apart by their number, so that no two have one turn. With a declared order two events of a user may
    have one time and one order: they have one turn, the last of theirs (`user_cap.proof.md`, Lemma 1).
    """
    ordered = columns_of(declaration).order is not None
    n, turn = ("o AS n", "count(*)") if ordered else ("n", "row_number()")
    connection.execute(
        f"CREATE TEMP TABLE event AS SELECT place, cell, units, who, us, {n} "
        f"FROM ({placed(source, declaration, first, stop, number=True)}) WHERE place IS NOT NULL"
    )
    bad = _scalar(connection, "SELECT count(*) FROM event WHERE place < 0") + unreadable(connection, source)
    if late is not None and first < stop:  # the times of late rows lie before all others: (us, n) orders both
        connection.execute(
            f"INSERT INTO event SELECT {first}, cell, units, who, us, {n} "
            f"FROM ({placed(late, declaration, 1, first, number=True)}) WHERE place > 0"
        )
    connection.execute("CREATE TEMP TABLE past (who VARCHAR, seen BIGINT)")
    if users:
        names, seen = zip(*users.items(), strict=True)
        connection.execute("INSERT INTO past SELECT unnest(?), unnest(?)", [list(names), list(seen)])
    most = declaration.budget.max_events
    # Most users stay below the cap: only the events of the others have to be put in order.
    connection.execute(
        "CREATE TEMP TABLE person AS SELECT who, count(*) AS events, coalesce(any_value(seen), 0) AS seen "
        "FROM event LEFT JOIN past USING (who) WHERE place > 0 GROUP BY who"
    )
    connection.execute(
        "CREATE TEMP TABLE last_event AS SELECT who, max_by(us, turn) AS us, max_by(n, turn) AS n "
        f"FROM (SELECT who, us, n, {turn} OVER (PARTITION BY who ORDER BY us, n) AS turn, seen "
        "FROM event JOIN person USING (who) "
        f"WHERE place > 0 AND events + seen > {most} AND seen < {most}) WHERE turn + seen <= {most} GROUP BY who"
    )
    found = connection.execute(
        f"SELECT place, cell, {SUMS} FROM event JOIN person USING (who) LEFT JOIN last_event AS l USING (who) "
        f"WHERE place > 0 AND (events + seen <= {most} OR event.us < l.us OR (event.us = l.us AND event.n <= l.n)) "
        "GROUP BY place, cell ORDER BY place, cell"
    ).fetchnumpy()
    changed = connection.execute(f"SELECT who, least(events + seen, {most}) FROM person WHERE seen < {most}").fetchall()
    tick, cell, events, units = (np.asarray(found[name], np.int64) for name in ("place", "cell", "events", "total"))
    return (tick, cell, events, units), bad, dict(changed)


# -- from a row to an event, in SQL -----------------------------------------------------------------------------------


def prepare(connection: DuckDBPyConnection, declaration: StreamDeclaration) -> None:
    """The public keys as a type: casting a text to it is the look-up of its cell."""
    if is_keyed(declaration):
        keys, _ = declaration.query.row_keys
        connection.execute("CREATE TEMP TABLE cell_name AS SELECT unnest(?) AS name", [list(keys)])
        connection.execute("CREATE TYPE cell_key AS ENUM (SELECT name FROM cell_name ORDER BY rowid)")


def is_keyed(declaration: StreamDeclaration) -> bool:
    """Whether the cell of a row is found by its key or by its path of names."""
    return not {"key", "levels"}.isdisjoint(declaration.query.event_columns or ())


def _valued(declaration: StreamDeclaration) -> bool:
    return "value" in (declaration.query.event_columns or ())


def placed(
    source: Source, declaration: StreamDeclaration, first: int, stop: int, *, number: bool = False, extra: str = ""
) -> str:
    """SQL: one row per row of the file with `place`: its tick if in first … stop−1, NULL if another, −reason if bad.

    Columns: place, cell, units, who, us, with `number` also n (the row's number) and o (the declared order), and those
    of `extra`.
    """
    schedule = declaration.schedule
    low, high = schedule.start_of(first), schedule.start_of(stop)
    wanted = "".join(f"{name}, " for name in (["n", "o"] if number else []) + ([extra] if extra else []))
    return (
        f"SELECT {wanted}cell, units, who, us, CASE WHEN reason > 0 THEN -reason "
        f"WHEN us < {low} OR us >= {high} THEN NULL ELSE {schedule.sql_tick('us')} END AS place FROM ("
        f"SELECT *, {_reason(source, declaration)} AS reason FROM ("
        f"SELECT *, coalesce(exact, {schedule.sql_instant('wall')}) AS us, {_cell(declaration)} AS cell, "
        f"{_units(declaration)} AS units FROM ({_times(source, declaration, number)})))"
    )


def _fields(source: Source, columns: Columns, number: bool) -> str:
    """SQL: the columns t, k, v, who and o, all rows in the order of the file."""
    names = {"t": columns.time, "k": columns.key, "v": columns.value, "who": columns.user, "o": columns.order}
    if source.kind != "jsonl":
        parts = [f"{source.column(name)} AS {short}" if name else f"NULL AS {short}" for short, name in names.items()]
        if columns.levels:
            parts[1] = f"{_path([source.column(name) for name in columns.levels])} AS k"
        if columns.user and source.kind == "parquet":
            parts[3] = f"{source.column(columns.user)}::VARCHAR AS who"
        if columns.order:
            parts[4] = _order(source, columns.order, source.column(columns.order))
        chosen = ["row_number() OVER () AS n"] * number + ["*"] * (source.kind == "csv") + parts
        return f"SELECT {', '.join(chosen)} FROM {source.scan()}"
    used = {short: name for short, name in names.items() if name}
    used |= {f"k{level}": name for level, name in enumerate(columns.levels)}
    paths = ", ".join(_pointer(name) for name in used.values())
    parts = [f"f[{list(used).index(short) + 1}] AS {short}" if short in used else f"NULL AS {short}" for short in names]
    if columns.levels:
        first = list(used).index("k0") + 1
        parts[1] = f"{_path([f'f[{first + level}]' for level in range(len(columns.levels))])} AS k"
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


def _order(source: Source, name: str, column: str) -> str:
    """SQL: the declared order as a whole number, NULL where there is none."""
    kind = "VARCHAR" if source.kind == "jsonl" else source.type_of(name)
    if kind in WHOLE_TYPES:
        return f"{column}::BIGINT AS o"
    if kind != "VARCHAR":
        raise InputError(f"the column {name!r} of {source.name} is of type {kind}; an order is a whole number")
    return f"CASE WHEN regexp_full_match({column}, '{ORDER}') THEN TRY_CAST({column} AS BIGINT) END AS o"


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
        # rest. A cast to TIMESTAMP would drop an offset without a word, so it is used only where there can be none.
        wall = (
            "CASE WHEN strlen(t) = 19 AND substr(t, 17, 1) = ':' THEN epoch_us(TRY_CAST(t AS TIMESTAMP)) "
            "WHEN strlen(t) = 20 AND suffix(t, 'Z') THEN NULL "
            f"WHEN regexp_full_match(t, '{NAIVE}') THEN epoch_us(TRY_CAST(t AS TIMESTAMP)) END"
        )
        exact = (
            "CASE WHEN strlen(t) = 19 AND substr(t, 17, 1) = ':' THEN NULL "
            "WHEN strlen(t) = 20 AND suffix(t, 'Z') AND substr(t, 17, 1) = ':' "
            "THEN epoch_us(TRY_CAST(t AS TIMESTAMPTZ)) "
            f"WHEN regexp_full_match(t, '{AWARE}') THEN epoch_us(TRY_CAST(t AS TIMESTAMPTZ)) "
            f"WHEN regexp_full_match(t, '{NUMBER}') THEN {_epoch('t')} END"
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
    inner = f"SELECT *, {wall} AS wall_any, {exact} AS exact_any FROM ({_fields(source, columns, number)})"
    keep = "CASE WHEN {0}_any BETWEEN " + f"{-FARTHEST} AND {FARTHEST}" + " THEN {0}_any END AS {0}"
    return f"SELECT *, {keep.format('wall')}, {keep.format('exact')} FROM ({inner})"


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


def _reason(source: Source, declaration: StreamDeclaration) -> str:
    """SQL: 0 for an event, else a key of REASONS."""
    rules = ["WHEN f IS NULL THEN 9"] if source.kind == "jsonl" else []
    rules += [
        "WHEN t IS NULL THEN 1",
        "WHEN wall IS NULL AND exact IS NULL THEN 2",
        "WHEN us IS NULL THEN 3",
        f"WHEN us < {declaration.schedule.begin} THEN 4",
    ]
    if is_keyed(declaration) and not declaration.query.row_keys[1]:
        rules.append("WHEN cell IS NULL THEN 5")
    if _valued(declaration):
        number = "TRY_CAST(v AS DOUBLE)"
        lo, hi, _ = declaration.query.row_values
        low, high = (f"CAST({bound!r} AS DOUBLE)" for bound in (lo, hi))
        rules.append(f"WHEN {number} IS NULL OR isnan({number}) THEN 6")
        rules.append(f"WHEN {number} < {low} OR {number} > {high} OR units IS NULL THEN 7")
    if columns_of(declaration).user is not None:
        rules.append("WHEN who IS NULL THEN 8")
    if columns_of(declaration).order is not None:
        rules.append("WHEN o IS NULL THEN 10")
    return f"CASE {' '.join(rules)} ELSE 0 END"


def unreadable(connection: DuckDBPyConnection, source: Source) -> int:
    """How many lines of the last scan could not be taken apart; refused if it is not certain what follows them."""
    if source.kind == "parquet":
        return 0
    if source.kind == "csv":
        found = connection.execute(
            "SELECT min(line) FROM reject_errors "
            "WHERE error_type::VARCHAR IN ('LINE SIZE OVER MAXIMUM', 'INVALID STATE') OR"
            " (error_type::VARCHAR = 'UNQUOTED VALUE' AND contains(rtrim(csv_line, chr(10) || chr(13)), chr(10)))"
        ).fetchone()
        if found is not None and found[0] is not None:
            raise InputError(
                f"{source.name}: about line {found[0]} a quote is opened and never closed, so that it is not certain "
                "where the next row begins; mend that line (--skip-bad cannot help)"
            )
    return _scalar(connection, "SELECT count(DISTINCT line_byte_position) FROM reject_errors")


def _scalar(connection: DuckDBPyConnection, sql: str) -> int:
    row: Any = connection.execute(sql).fetchone()
    return int(row[0])


def _database_error() -> type[Exception]:
    import duckdb

    return duckdb.Error


def _first_line(error: Exception) -> str:
    """What DuckDB says, without the rows that it may quote after the first line."""
    return str(error).splitlines()[0][:200]
