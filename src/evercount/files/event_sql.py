"""From a row to an event, in SQL: its time, its tick, its cell, its units, or the reason why it is
none.

The same SQL decides for counting (`count_rows.py`) and for the list of bad rows (`bad_rows.py`)
whether a row is an event, so that a row is either counted or bad, never both. What both DuckDB and
Spark understand is at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evercount.declarations import schedule as times
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.errors import InputError, ParameterError
from evercount.files.source import LINE, Source, connect, library, quoted
from evercount.queries.counts import NOT_WHOLE
from evercount.queries.people import LONGEST_USER
from evercount.queries.sensitivities import rows_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_ORDER, FRACTION = 11, 12
REASONS = {
    1: "no time",
    2: "not a time in ISO 8601, nor seconds since 1970",
    3: "a time that the zone's clock never showed (it was set forward)",
    4: "before the start of the stream",
    5: "a key that is not in the list of keys",
    6: "the value is not a number",
    7: "a value outside its range",
    8: "no user: a string or a whole number",
    9: "not a JSON object, or one that repeats a field",
    10: "not a legal key: 1 to 200 characters, none of them invisible, no blanks at its ends",
    NO_ORDER: "no order: a whole number of at most 18 digits",
    FRACTION: f"the value {NOT_WHOLE}",
}
NAIVE_TYPES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE")
AWARE_TYPES = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ", "TIMESTAMPTZ_NS")
NUMBER_TYPES = ("INTEGER", "UINTEGER", "BIGINT", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE")
INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
# Of JSON: a text that looks like a number is not one, and neither is true.
VALUE_TYPES = "'UBIGINT', 'BIGINT', 'DOUBLE'"
USER_TYPES = "'VARCHAR', 'UBIGINT', 'BIGINT'"
ORDER_PATTERN = r"[+-]?[0-9]{1,18}"
YEAR_1000, YEAR_10000 = -30_610_224_000 * times.SECOND, 253_402_300_800 * times.SECOND - 1
# instants beyond this (in microseconds) are no times: sums with them could overflow
FARTHEST = 2**61
# of DuckDB
CODE, WHOLE = "enum_code(TRY_CAST(k::VARCHAR AS cell_key))::INTEGER", "round_even({}, 0)"
INVALID_STATE = "state machine reached an invalid state"  # DuckDB about line ends of several kinds
# bytes of a key that nobody listed; longer ones are not legal, and are not even looked at
LONGEST_UNLISTED = 4 * 200


def columns_of(declaration: StreamDeclaration) -> Columns:
    if declaration.columns is None:
        raise ParameterError(
            f"the declaration of {declaration.name!r} names no columns: add [stream.columns] with "
            "time and, where the query needs them, key, value and user"
        )
    return declaration.columns


def prepare(
    connection: DuckDBPyConnection, declaration: StreamDeclaration, files: tuple[Source, ...]
) -> list[str]:
    """The key of each cell, made a type of this connection: casting a text to it is the look-up of
    its cell. Keys that nobody listed are the legal ones of the files."""
    if not is_keyed(declaration):
        return []
    names = written = list(rows_of(declaration.query).keys[0])
    if (found := declaration.query.discovery) is not None:
        columns = columns_of(declaration)
        each = (
            f"SELECT k::VARCHAR AS k FROM ({row_fields(source, columns, False)})"
            for source in files
        )
        distinct = connection.execute(
            f"SELECT DISTINCT k FROM ({' UNION ALL '.join(each)}) WHERE strlen(k) BETWEEN 1 AND "
            f"{LONGEST_UNLISTED}"
        ).fetchall()
        checked = found.check_keys([key for (key,) in distinct])
        pairs = [
            (key, name) for (key,), name in zip(distinct, checked, strict=True) if name is not None
        ]
        written, names = [key for key, _ in pairs], [name for _, name in pairs]
    connection.execute(
        "CREATE TEMP TABLE cell_name AS SELECT unnest(?::VARCHAR[]) AS name", [written]
    )
    connection.execute("CREATE TYPE cell_key AS ENUM (SELECT name FROM cell_name ORDER BY rowid)")
    return names


@contextmanager
def open_files(
    files: tuple[Source, ...], declaration: StreamDeclaration, scratch: Path
) -> Iterator[tuple[DuckDBPyConnection, list[str]]]:
    """DuckDB for files that have the columns of a declaration, with the key of each cell
    (`prepare`). What it cannot read is an InputError."""
    for source in files:
        source.require(*columns_of(declaration).used)
    try:
        with connect(scratch, files) as connection:
            yield connection, prepare(connection, declaration, files)
    except library("duckdb").Error as error:
        names = ", ".join(source.name for source in files[:3]) + (", …" if len(files) > 3 else "")
        reason = str(error).splitlines()[0]  # the others may quote rows
        if INVALID_STATE in reason:
            raise InputError(
                f"{names} cannot be read: a carriage return stands alone, and other lines end "
                "otherwise. Make all lines end in LF or CR LF, as `dos2unix` and `mac2unix` do"
            ) from error
        raise InputError(f"{names} cannot be read: {reason:.200}") from error


def is_keyed(declaration: StreamDeclaration) -> bool:
    return rows_of(declaration.query).keyed


def is_valued(declaration: StreamDeclaration) -> bool:
    return "value" in rows_of(declaration.query).columns


def placed(
    files: tuple[Source, ...], declaration: StreamDeclaration, first: int, stop: int, more: str = ""
) -> str:
    """SQL: one row per row of the files with `place`: its tick if in first … stop−1, NULL if
    another, −reason if bad. Columns: place, cell, units, who, us and o (the declared order), and of
    one file `more`: n, which is the row's number, `digest` (`Source.row_digest`), and others of the
    row."""
    wanted = f"{more}, " if more else ""
    schedule = declaration.schedule
    low, high = schedule.start_of(first), schedule.start_of(stop)
    return (
        f"SELECT {wanted}cell, units, who, us, o, CASE WHEN reason > 0 THEN -reason WHEN us < "
        f"{low} OR us >= {high} THEN NULL ELSE {schedule.sql_tick('us', until=high)} END AS place "
        "FROM ("
        f"SELECT *, {reason_sql(declaration, 'unparsed')} AS reason FROM ("
        f"SELECT *, coalesce(exact, {schedule.sql_instant('wall')}) AS us, "
        f"{cell_sql(declaration, CODE)} AS cell, {units_sql(declaration, WHOLE)} AS units FROM "
        f"({_rows(files, declaration, bool(more))})))"
    )


def _rows(files: tuple[Source, ...], declaration: StreamDeclaration, number: bool) -> str:
    """SQL: the columns of `_times` of all files; those of several in types that all formats
    share."""
    if len(files) == 1:
        return _times(files[0], declaration, number)
    shared = (
        "t::VARCHAR AS t, k::VARCHAR AS k, TRY_CAST(v AS DOUBLE) AS v, who::VARCHAR AS who, "
        "o::BIGINT AS o, unparsed, wall, exact"
    )
    return " UNION ALL ".join(
        f"SELECT {shared} FROM ({_times(source, declaration, False)})" for source in files
    )


def row_fields(source: Source, columns: Columns, number: bool) -> str:
    """SQL: the columns t, k, v, who and o, all rows in the order of the file."""
    lines = source.json_lines
    used = columns.used

    def at(name: str, types: str = "") -> str:
        if not lines:
            return source.column(name)
        text = f"f[{used.index(name) + 1}]"
        kind = f"json_type({LINE}, {_pointer(name)})"
        return (
            f"CASE WHEN f IS NULL THEN NULL WHEN {kind} IN ({types}) THEN {text} END"
            if types
            else text
        )

    keys = columns.levels or columns.key_columns
    parts = [at(name) for name in keys]
    if len(parts) > 1 or columns.levels:
        parts = [f"{text}::VARCHAR" for text in parts]
    user = None
    if columns.user is not None:
        user = at(columns.user, USER_TYPES) if lines else user_text(source, columns.user)
    fields = [
        (at(columns.time), "t"),
        (key_sql(columns, parts), "k"),
        (columns.value and at(columns.value, VALUE_TYPES), "v"),
        (user, "who"),
        (columns.order and _order(source, columns.order, at(columns.order)), "o"),
    ]
    chosen = ", ".join(f"{expression or 'NULL'} AS {name}" for expression, name in fields)
    numbered = f"row_number() OVER () AS n, {source.row_digest()} AS digest, " if number else ""
    numbered_lines = f"SELECT {numbered}{LINE} FROM {source.scan()}"
    if not lines:
        rest = "*, " if source.kind == "csv" else ""
        return f"SELECT {numbered}{rest}{chosen} FROM {source.scan()}"
    # A list of keys is compared with the usual one first: to look for repeated ones costs more than
    # the rest. Only a line without keys may be blank, and blank ones are skipped; to trim every
    # line would cost as much again.
    usual = " AND ".join(
        f"keys[{place}] = {quoted(name)}" for place, name in enumerate(source.columns, 1)
    )
    usual = f"len(keys) = {len(source.columns)} AND {usual or 'true'}"
    once = f"CASE WHEN {usual} THEN true ELSE list_unique(keys) = len(keys) END"
    texts = f"json_extract_string({LINE}, [{', '.join(map(_pointer, used))}])"
    lines_of = (
        f"SELECT *, CASE WHEN json_valid({LINE}) THEN json_keys({LINE}) END AS keys FROM "
        f"({numbered_lines})"
    )
    return (
        f"SELECT * EXCLUDE keys, {chosen} FROM (SELECT *, CASE WHEN {once} THEN {texts} END AS f "
        f"FROM ({lines_of}) WHERE keys IS NOT NULL OR trim({LINE}, ' \t\r') <> '')"
    )


def key_sql(columns: Columns, texts: list[str], length: str = "strlen") -> str | None:
    """SQL: the key of a row from the texts of its columns, NULL where one is; `combined_key`, or
    with levels `queries.rollup.path_key`. `length` is the function for the number of bytes."""
    if columns.levels:
        return " || ".join(f"{length}({text}) || ':' || {text}" for text in texts)
    if len(texts) < 2:
        return "".join(texts) or None
    parts = (
        f"CASE WHEN contains({text}, ',') OR contains({text}, '\"') "
        f"THEN '\"' || replace({text}, '\"', '\"\"') || '\"' ELSE {text} END"
        for text in texts
    )
    return " || ',' || ".join(parts)


def user_text(source: Source, name: str) -> str:
    """SQL: the text of a user in a CSV or Parquet file.

    **Guarantee.** A text or a whole number has one spelling. Other numbers have several (7.0 in one
    file is 7.00 in the next, and 7 where it was a whole number), and each would be a user with
    events of its own: they are refused. In JSON lines such a row has no user. A line end in quotes
    is LF however it is written, so that the line ends of other rows do not matter
    (`source.with_one_line_end`). Tests:
    tests/files/test_cap_users.py::test_a_number_has_one_spelling_as_a_user and
    tests/files/test_line_ends.py::test_one_row_changes_no_other.
    """
    kind = source.type_of(name)
    if kind.startswith(("FLOAT", "DOUBLE", "DECIMAL")):
        raise InputError(
            f"the column {name!r} of {source.name} is of type {kind}; a user is a string or a "
            "whole number: 7 and 7.0 would be two users. Cast the column (pandas turns integer "
            "columns with missing values into floats)"
        )
    text = f"{source.column(name)}::VARCHAR"
    if source.kind == "csv" and source.crlf != "none":
        return f"replace({text}, chr(13) || chr(10), chr(10))"
    return text


def _order(source: Source, name: str, column: str) -> str:
    """SQL: the declared order as a whole number, NULL where there is none."""
    kind = source.type_of(name)
    if kind in INTEGER_TYPES:
        return f"{column}::BIGINT"
    if kind != "VARCHAR":
        raise InputError(
            f"the column {name!r} of {source.name} is of type {kind}; an order is a whole number"
        )
    return (
        f"CASE WHEN regexp_full_match({column}, '{ORDER_PATTERN}') THEN TRY_CAST({column} AS "
        "BIGINT) END"
    )


def _pointer(name: str) -> str:
    """SQL: the JSON pointer (RFC 6901) of a field. In a JSONPath, * would be every field, and ü
    none."""
    return quoted("/" + name.replace("~", "~0").replace("/", "~1"))


def _times(source: Source, declaration: StreamDeclaration, number: bool) -> str:
    """SQL: `wall` for a time without an offset, `exact` for one with it, both NULL for what is not
    a time. The rule of `declare.schedule.parse_instant`."""
    columns = columns_of(declaration)
    kind = source.type_of(columns.time)
    fields = row_fields(source, columns, number)
    if kind == "VARCHAR":
        # The usual forms are told by their length, because a regular expression costs more than the
        # rest; what has the length and is not of the form goes to the regular expressions. strptime
        # takes one or two digits per part and spaces at both ends. With a digit at both ends and a
        # year of four digits, the length leaves two digits to every other part. It takes several
        # spaces for one as well, so a space in the place of T becomes a T first. A cast to
        # TIMESTAMP would drop an offset without a word, so it is used only where there can be none.
        usual = (
            f"{_usual('strlen(t) = 19', '')} AS usual_wall, "
            f"""{_usual("strlen(t) = 20 AND suffix(t, 'Z')", "Z")} AS usual_exact"""
        )
        wall = (
            "CASE WHEN usual_wall IS NOT NULL THEN usual_wall WHEN usual_exact IS NOT NULL THEN "
            f"NULL WHEN regexp_full_match(t, '{times.WALL_PATTERN}') THEN epoch_us(TRY_CAST(t AS "
            "TIMESTAMP)) END"
        )
        exact = (
            "CASE WHEN usual_exact IS NOT NULL THEN usual_exact WHEN usual_wall IS NOT NULL THEN "
            f"NULL WHEN regexp_full_match(t, '{times.INSTANT_PATTERN}') THEN epoch_us(TRY_CAST(t "
            f"AS TIMESTAMPTZ)) WHEN regexp_full_match(t, '{times.NUMBER_PATTERN}') THEN "
            f"{epoch_sql('t', WHOLE)} END"
        )
        fields = f"SELECT *, {usual} FROM ({fields})"
    elif kind in AWARE_TYPES:
        wall, exact = "NULL::BIGINT", "epoch_us(TRY_CAST(t AS TIMESTAMPTZ))"
    elif kind in NAIVE_TYPES:
        wall, exact = "epoch_us(TRY_CAST(t AS TIMESTAMP))", "NULL::BIGINT"
    elif kind in NUMBER_TYPES:
        wall, exact = "NULL::BIGINT", epoch_sql("t", WHOLE)
    else:
        raise InputError(
            f"the column {columns.time!r} of {source.name} is of type {kind}; a time is a "
            "TIMESTAMP, a DATE, a string in ISO 8601 or a number of seconds since 1970"
        )
    inner = f"SELECT *, {wall} AS wall_any, {exact} AS exact_any FROM ({fields})"
    keep = "CASE WHEN {0}_any BETWEEN " + f"{-FARTHEST} AND {FARTHEST}" + " THEN {0}_any END AS {0}"
    unparsed = "f IS NULL" if source.json_lines else "false"
    return (
        f"SELECT *, {unparsed} AS unparsed, {keep.format('wall')}, {keep.format('exact')} FROM "
        f"({inner})"
    )


def _usual(condition: str, zone: str) -> str:
    """SQL: the instant of a time in the usual form, NULL where the text does not fulfil the
    condition or has another form."""
    form = f"'%Y-%m-%dT%H:%M:%S{zone}'"
    spaced = f"CASE WHEN contains(t, ' ') THEN try_strptime(replace(t, ' ', 'T'), {form}) END"
    parsed = f"coalesce(try_strptime(t, {form}), {spaced})"
    instant = (
        f"CASE WHEN {condition} AND t >= '0' AND substr(t, 19, 1) >= '0' THEN epoch_us({parsed}) "
        "END"
    )
    return f"CASE WHEN {instant} BETWEEN {YEAR_1000} AND {YEAR_10000} THEN {instant} END"


# -- the same in DuckDB and in Spark ---------------------------------------------------------------


def cell_sql(declaration: StreamDeclaration, code: str) -> str:
    """SQL: the cell of a row; `code` is the place of its key in the list, NULL where it is not
    there."""
    rows = rows_of(declaration.query)
    if rows.bins is not None:  # the arithmetic of Quantiles.leaves_of, in the same doubles
        low, width, bins = rows.bins
        place = (
            f"floor((TRY_CAST(v AS DOUBLE) - CAST({low!r} AS DOUBLE)) / CAST({width!r} AS DOUBLE))"
        )
        return f"TRY_CAST(least(greatest({place}, 0), {bins - 1}) AS INTEGER)"
    if not is_keyed(declaration):
        return "0"
    keys, others = rows.keys
    return f"coalesce({code}, {len(keys)})" if others else code


def units_sql(declaration: StreamDeclaration, whole: str) -> str:
    """SQL: a value in units of the grid, as `Sum` takes it: `whole` is what rounds half to even."""
    if not is_valued(declaration):
        return "0"
    rows = rows_of(declaration.query)
    number = "TRY_CAST(v AS DOUBLE)"
    units = whole.format(f"{number} / CAST({rows.values[2]!r} AS DOUBLE)")
    legal = _in_range_sql(declaration)
    if rows.whole:
        legal += f" AND {units} = {number}"
    return f"CASE WHEN {legal} THEN TRY_CAST({units} AS BIGINT) END"


def _in_range_sql(declaration: StreamDeclaration) -> str:
    low, high, _ = rows_of(declaration.query).values
    return f"TRY_CAST(v AS DOUBLE) BETWEEN CAST({low!r} AS DOUBLE) AND CAST({high!r} AS DOUBLE)"


def reason_sql(declaration: StreamDeclaration, unparsed: str, nobody: str = "false") -> str:
    """SQL: 0 for an event, else a key of REASONS. `nobody` is what makes a user none, besides the
    rules of all."""
    rules = [
        f"WHEN {unparsed} THEN 9",
        "WHEN t IS NULL THEN 1",
        "WHEN wall IS NULL AND exact IS NULL THEN 2",
        "WHEN us IS NULL THEN 3",
        f"WHEN us < {declaration.first_begin} THEN 4",
    ]
    if is_keyed(declaration) and not rows_of(declaration.query).keys[1]:
        rules.append(
            f"WHEN cell IS NULL THEN {10 if declaration.query.discovery is not None else 5}"
        )
    if is_valued(declaration):
        number = "TRY_CAST(v AS DOUBLE)"
        rules.append(f"WHEN {number} IS NULL OR isnan({number}) THEN 6")
        rules.append(f"WHEN units IS NULL AND {_in_range_sql(declaration)} THEN {FRACTION}")
        rules.append("WHEN units IS NULL THEN 7")
    if columns_of(declaration).user is not None:
        # a CSV cannot tell empty from missing
        rules.append(f"WHEN coalesce(who, '') = '' OR {nobody} THEN 8")
    if declaration.query.people is not None:
        rules.append(f"WHEN length(who) > {LONGEST_USER} THEN 8")
    if columns_of(declaration).order is not None:
        rules.append(f"WHEN o IS NULL THEN {NO_ORDER}")
    return f"CASE {' '.join(rules)} ELSE 0 END"


def epoch_sql(column: str, whole: str) -> str:
    """SQL: the instant of seconds since 1970, NULL where the number is none."""
    seconds = f"TRY_CAST({column} AS DOUBLE)"
    return (
        f"CASE WHEN {seconds} >= {times.EARLIEST_NUMBER} AND {seconds} < {times.LATEST_NUMBER} "
        f"THEN CAST({whole.format(f'{seconds} * {times.SECOND}')} AS BIGINT) END"
    )
