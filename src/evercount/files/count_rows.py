"""Counting: rows of an event file → what each tick adds to each cell, in one scan by DuckDB.

The same SQL decides for counting and for the list of bad rows (`rejects.py`) whether a row is an event, so that a row
is either counted or bad, never both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count
from evercount.declare.schedule import Clock
from evercount.errors import InputError, ParameterError, UnknownName
from evercount.files.source import LINE, Source, connect
from evercount.queries import Count, Histogram, Sum
from evercount.queries.base import LARGEST_TOTAL, Query

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

QUERIES = ("count", "histogram", "sum")
LATE_RULES = ("drop", "next")
REASONS = {
    1: "no time",
    2: "not a time in ISO 8601",
    3: "a time that the zone's clock never showed (it was set forward)",
    4: "before --start",
    5: "a key that is not in --keys",
    6: "the value is not a number",
    7: "a value outside --lo … --hi",
    8: "no user",
    9: "not a JSON object",
}
NAIVE = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.]\d{1,9})?)?)?"
AWARE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.]\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)"
NAIVE_TYPES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE")
AWARE_TYPES = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ", "TIMESTAMPTZ_NS")
FARTHEST = 2**61


@dataclass(frozen=True)
class Spec:
    """What is counted: public, and the same for all runs of one stream."""

    clock: Clock
    time: str
    query: str = "count"
    key: str | None = None
    keys: tuple[str, ...] = ()
    unknown: Literal["refuse", "other"] = "refuse"
    value: str | None = None
    lo: float = 0.0
    hi: float = 1.0
    grid: float = 1.0
    user: str | None = None
    max_events: int = 1
    late: Literal["drop", "next"] = "drop"

    def __post_init__(self) -> None:
        if self.query not in QUERIES:
            raise UnknownName("query", self.query, QUERIES)
        if self.late not in LATE_RULES:
            raise UnknownName("rule for late rows", self.late, LATE_RULES)
        if (self.query == "histogram") != (self.key is not None):
            raise ParameterError("--query histogram goes with --key and --keys, and they go with no other query")
        if (self.query == "sum") != (self.value is not None):
            raise ParameterError("--query sum goes with --value, --lo and --hi, and they go with no other query")
        check_count("max_events", self.max_events)
        if max(abs(self.lo), abs(self.hi)) / self.grid >= LARGEST_TOTAL:
            raise ParameterError(f"--lo and --hi must lie below 2^53 grids of {self.grid:g}: use a coarser --grid")
        _ = self.built  # refuse now what the query refuses

    @cached_property
    def built(self) -> Query:
        """The query of the engine."""
        if self.query == "histogram":
            return Histogram(self.keys, unknown=self.unknown)
        return Count() if self.query == "count" else Sum(self.lo, self.hi, self.grid)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the file must have."""
        return tuple(name for name in (self.time, self.key, self.value, self.user) if name is not None)


@dataclass(frozen=True, eq=False)
class Counts:
    """What the ticks of one run add up to: `totals[i]` for tick `ticks[i]` (0-based) and cell `cells[i]`. Secret."""

    ticks: IntArray
    cells: IntArray
    totals: IntArray
    bad: int = 0
    users: Mapping[str, int] = field(default_factory=dict)
    """Events so far of each user that had one in this run."""

    def row(self, tick: int, cells: int) -> IntArray:
        """The increments of one tick; `ticks` is in order."""
        part = slice(np.searchsorted(self.ticks, tick), np.searchsorted(self.ticks, tick, side="right"))
        increments = np.zeros(cells, np.int64)
        np.add.at(increments, self.cells[part], self.totals[part])
        return increments


def count(
    source: Source,
    spec: Spec,
    first: int,
    last: int,
    scratch: Path,
    *,
    late: Source | None = None,
    users: Mapping[str, int] | None = None,
) -> Counts:
    """Add up the events of ticks first … last−1 (0-based); rows of other ticks are checked and left alone.

    `late` holds the rows that the run before has not seen: those in ticks before `first` are counted in `first`.
    `users` are the events that each user has had in earlier runs.

    Guarantee. One event adds to one cell of one tick: 1 for counts and histograms, a value in [lo, hi] rounded to the
    grid for sums; this is the promise that `Query.encode_totals` asks for. Where it is added depends on the event and
    on public facts only (its own time, key and value; with `late`, the run in which its row was first there). With a
    user column, the events of a user beyond the first `max_events` by (tick, time, row) are left out, which looks at
    that user's events only: `queries/user_cap.proof.md`, Lemma 1. Tests: tests/files/test_count_rows.py, against plain
    Python.
    """
    source.require(*spec.columns)
    with connect(scratch) as connection:
        prepare(connection, spec)
        try:
            if spec.user is None:
                return _plain(connection, source, spec, first, last, late)
            return _capped(connection, source, spec, first, last, late, users or {})
        except _database_error() as error:
            raise InputError(f"{source.name} cannot be read: {_first_line(error)}") from error


def _plain(
    connection: DuckDBPyConnection, source: Source, spec: Spec, first: int, last: int, late: Source | None
) -> Counts:
    amount = "sum(units)::BIGINT" if spec.query == "sum" else "count(*)"
    found = connection.execute(
        f"SELECT place, cell, {amount} AS total, count(*) AS events FROM ({placed(source, spec, first, last)}) "
        "WHERE place IS NOT NULL GROUP BY place, cell ORDER BY place, cell"
    ).fetchnumpy()
    places = np.asarray(found["place"], np.int64)
    bad = int(np.asarray(found["events"])[places < 0].sum()) + unreadable(connection, source)
    parts = [{name: np.asarray(found[name])[places >= 0] for name in ("place", "cell", "total")}]
    if late is not None and first < last:
        more = connection.execute(
            f"SELECT {first} AS place, cell, {amount} AS total FROM ({placed(late, spec, 0, first)}) "
            "WHERE place >= 0 GROUP BY cell ORDER BY cell"
        ).fetchnumpy()
        parts.insert(0, {name: np.asarray(more[name]) for name in ("place", "cell", "total")})
    ticks, cells, totals = (
        np.concatenate([np.asarray(part[name], np.int64) for part in parts]) for name in ("place", "cell", "total")
    )
    return Counts(ticks, cells, totals, bad)


def _capped(
    connection: DuckDBPyConnection,
    source: Source,
    spec: Spec,
    first: int,
    last: int,
    late: Source | None,
    users: Mapping[str, int],
) -> Counts:
    """As `_plain`, for the first events of each user only. Events are kept in a table, which may spill to disk."""
    connection.execute(
        "CREATE TEMP TABLE event AS SELECT place, cell, units, who, us, 1 AS part, n "
        f"FROM ({placed(source, spec, first, last, number=True)}) WHERE place IS NOT NULL"
    )
    bad = _scalar(connection, "SELECT count(*) FROM event WHERE place < 0") + unreadable(connection, source)
    if late is not None and first < last:
        connection.execute(
            f"INSERT INTO event SELECT {first}, cell, units, who, us, 2, n "
            f"FROM ({placed(late, spec, 0, first, number=True)}) WHERE place >= 0"
        )
    connection.execute("CREATE TEMP TABLE past (who VARCHAR, seen BIGINT)")
    if users:
        names, seen = zip(*users.items(), strict=True)
        connection.execute("INSERT INTO past SELECT unnest(?), unnest(?)", [list(names), list(seen)])
    amount = "sum(units)::BIGINT" if spec.query == "sum" else "count(*)"
    connection.execute(
        "CREATE TEMP TABLE kept AS SELECT place, cell, units, who, coalesce(seen, 0) AS seen FROM "
        "(SELECT *, row_number() OVER (PARTITION BY who ORDER BY place, us, part, n) AS turn FROM event "
        f"WHERE place >= 0) LEFT JOIN past USING (who) WHERE turn + coalesce(seen, 0) <= {spec.max_events}"
    )
    found = connection.execute(
        f"SELECT place, cell, {amount} AS total FROM kept GROUP BY place, cell ORDER BY place, cell"
    ).fetchnumpy()
    changed = connection.execute("SELECT who, any_value(seen) + count(*) FROM kept GROUP BY who").fetchall()
    ticks, cells, totals = (np.asarray(found[name], np.int64) for name in ("place", "cell", "total"))
    return Counts(ticks, cells, totals, bad, dict(changed))


# -- from a row to an event, in SQL -----------------------------------------------------------------------------------


def prepare(connection: DuckDBPyConnection, spec: Spec) -> None:
    """The public keys as a type: casting a text to it is the look-up of its cell."""
    if spec.query == "histogram":
        connection.execute("CREATE TEMP TABLE cell_name AS SELECT unnest(?) AS name", [list(spec.keys)])
        connection.execute("CREATE TYPE cell_key AS ENUM (SELECT name FROM cell_name ORDER BY rowid)")


def placed(source: Source, spec: Spec, first: int, last: int, *, number: bool = False, extra: str = "") -> str:
    """SQL: one row per row of the file with `place`: its tick if in first … last−1, NULL if another, −reason if bad.

    Columns: place, cell, units, who, us, with `number` also n (the row's number), and those of `extra`.
    """
    low, high = spec.clock.start_of(first), spec.clock.start_of(last)
    start = spec.clock.start
    wanted = "".join(f"{name}, " for name in (["n"] if number else []) + ([extra] if extra else []))
    return (
        f"SELECT {wanted}cell, units, who, us, CASE WHEN reason > 0 THEN -reason "
        f"WHEN us < {low} OR us >= {high} THEN NULL ELSE {spec.clock.sql_tick('us')} END AS place FROM ("
        f"SELECT *, {_reason(source, spec, start)} AS reason FROM ("
        f"SELECT *, coalesce(exact, {spec.clock.sql_instant('wall')}) AS us, {_cell(spec)} AS cell, "
        f"{_units(spec)} AS units FROM ({_times(source, spec, number)})))"
    )


def _fields(source: Source, spec: Spec, number: bool) -> str:
    """SQL: the columns t, k, v and who, all rows in the order of the file."""
    names = {"t": spec.time, "k": spec.key, "v": spec.value, "who": spec.user}
    if source.kind != "jsonl":
        parts = [f"{source.column(name)} AS {short}" if name else f"NULL AS {short}" for short, name in names.items()]
        if spec.user and source.kind == "parquet":
            parts[3] = f"{source.column(spec.user)}::VARCHAR AS who"
        columns = ["row_number() OVER () AS n"] * number + ["*"] * (source.kind == "csv") + parts
        return f"SELECT {', '.join(columns)} FROM {source.scan()}"
    used = {short: name for short, name in names.items() if name}
    paths = ", ".join(_pointer(name) for name in used.values())
    parts = [f"f[{list(used).index(short) + 1}] AS {short}" if short in used else f"NULL AS {short}" for short in names]
    count_rows = "row_number() OVER () AS n, " if number else ""
    return (
        f"SELECT *, {', '.join(parts)} FROM (SELECT *, CASE WHEN json_valid({LINE}) THEN "
        f"json_extract_string({LINE}, [{paths}]) END AS f FROM (SELECT {count_rows}{LINE} FROM {source.scan()}) "
        f"WHERE trim({LINE}, ' \t\r') <> '')"
    )


def _pointer(name: str) -> str:
    """SQL: the JSON pointer (RFC 6901) of a field. In a JSONPath, * would be every field, and ü none."""
    return "'/" + name.replace("~", "~0").replace("/", "~1").replace("'", "''") + "'"


def _times(source: Source, spec: Spec, number: bool) -> str:
    """SQL: `wall` for a time without an offset, `exact` for one with it, both NULL for what is not a time."""
    kind = source.type_of(spec.time)
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
            f"WHEN regexp_full_match(t, '{AWARE}') THEN epoch_us(TRY_CAST(t AS TIMESTAMPTZ)) END"
        )
    elif kind in AWARE_TYPES:
        wall, exact = "NULL::BIGINT", "epoch_us(TRY_CAST(t AS TIMESTAMPTZ))"
    elif kind in NAIVE_TYPES:
        wall, exact = "epoch_us(TRY_CAST(t AS TIMESTAMP))", "NULL::BIGINT"
    else:
        raise InputError(
            f"the column {spec.time!r} of {source.name} is of type {kind}; a time is a TIMESTAMP, a DATE or a text in "
            "ISO 8601"
        )
    inner = f"SELECT *, {wall} AS wall_any, {exact} AS exact_any FROM ({_fields(source, spec, number)})"
    keep = "CASE WHEN {0}_any BETWEEN " + f"{-FARTHEST} AND {FARTHEST}" + " THEN {0}_any END AS {0}"
    return f"SELECT *, {keep.format('wall')}, {keep.format('exact')} FROM ({inner})"


def _cell(spec: Spec) -> str:
    if spec.query != "histogram":
        return "0"
    code = "enum_code(TRY_CAST(k::VARCHAR AS cell_key))::INTEGER"
    return f"coalesce({code}, {len(spec.keys)})" if spec.unknown == "other" else code


def _units(spec: Spec) -> str:
    if spec.query != "sum":
        return "1"
    # half to even, as Sum.units rounds
    return f"TRY_CAST(round_even(TRY_CAST(v AS DOUBLE) / CAST({spec.grid!r} AS DOUBLE), 0) AS BIGINT)"


def _reason(source: Source, spec: Spec, start: int) -> str:
    """SQL: 0 for an event, else a key of REASONS."""
    rules = ["WHEN f IS NULL THEN 9"] if source.kind == "jsonl" else []
    rules += [
        "WHEN t IS NULL THEN 1",
        "WHEN wall IS NULL AND exact IS NULL THEN 2",
        "WHEN us IS NULL THEN 3",
        f"WHEN us < {start} THEN 4",
    ]
    if spec.query == "histogram" and spec.unknown == "refuse":
        rules.append("WHEN cell IS NULL THEN 5")
    if spec.query == "sum":
        number = "TRY_CAST(v AS DOUBLE)"
        low, high = (f"CAST({bound!r} AS DOUBLE)" for bound in (spec.lo, spec.hi))
        rules.append(f"WHEN {number} IS NULL OR isnan({number}) THEN 6")
        rules.append(f"WHEN {number} < {low} OR {number} > {high} OR units IS NULL THEN 7")
    if spec.user is not None:
        rules.append("WHEN who IS NULL THEN 8")
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
