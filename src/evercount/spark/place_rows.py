"""From rows of a DataFrame to events in Spark: the tick and the cell of each row, or the reason why it is no event.

The rules are those of the file door (`files/event_sql.py`): what is a time, which tick it belongs to, which rows are
bad and why. No expression depends on the session's time zone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf

from evercount.declarations import schedule as times
from evercount.declarations.columns import Columns
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.write_table import parquet_modules
from evercount.errors import InputError
from evercount.files.event_sql import FARTHEST, LONGEST_UNLISTED, NO_ORDER, ORDER_PATTERN, REASONS, columns_of, is_keyed
from evercount.queries.capabilities import rows_of
from evercount.queries.distinct_users import LONGEST_USER
from evercount.spark.check_source import check_columns

TOO_FAR = NO_ORDER + 1
BAD = {**REASONS, TOO_FAR: "a time too many ticks ahead of the open one"}
VALUE_TEXT = r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?"
USUAL_KEY = r"[!-~](?:[ -~]{0,198}[!-~])?"  # keys that are legal by their looks: `queries.discovered_keys`
FEW_KEYS = 10_000  # with more keys than this, they are looked up by a join instead of a table in the plan
WALL_TYPES = (types.StringType, types.TimestampNTZType, types.DateType)
NUMBER_TYPES = (types.IntegerType, types.LongType, types.FloatType, types.DoubleType)
KEY_TYPES = (types.StringType, types.ByteType, types.ShortType, types.IntegerType, types.LongType)


def place_events(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each row of a table or of a stream: place, cell, units, and where users are named who, us and o.

    place is a tick, −reason for rows that are not events, NULL after the horizon. With many keys a row finds its cell
    by a join that every task does by itself: what is shuffled later has numbers, not texts. Keys that nobody listed
    are in k instead of cell.
    """
    rows = _placed(events, declaration, last, horizon)
    columns = rows_of(declaration.query)
    if declaration.query.discovery is not None:
        return rows
    if columns.bins is None:
        if not is_keyed(declaration):
            rows = rows.withColumn("cell", fn.lit(0).cast("long"))
        elif len(columns.keys[0]) > FEW_KEYS:
            rows = _with_cell(rows.join(fn.broadcast(_cells(rows, columns.keys[0])), "k", "left"), declaration)
        else:
            slot, cell = key_lookup(columns.keys[0])
            rows = _with_cell(rows.withColumn("slot", slot).withColumn("cell", cell), declaration)
    return rows.drop("k", "slot")


def _cells(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    pa, _ = parquet_modules()
    return rows.sparkSession.createDataFrame(
        pa.table({"k": pa.array(list(names), pa.string()), "cell": np.arange(len(names))})
    )


def _with_cell(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """Rows whose cell is NULL for an unknown key: by the declared rule they count as others or are no events."""
    keys, others = rows_of(declaration.query).keys
    place, cell = fn.col("place"), fn.col("cell")
    if others:
        return rows.withColumn("cell", fn.when(place > 0, fn.coalesce(cell, fn.lit(len(keys)).cast("long"))))
    placed = fn.when((place > 0) & cell.isNull(), fn.lit(-5).cast("long")).otherwise(place)
    return rows.withColumns({"place": placed, "cell": fn.when(place > 0, cell)})


def key_lookup(keys: Sequence[str]) -> tuple[Column, Column]:
    """A hash table of the keys in expressions: `slot` from the column k, and from both the cell, or NULL for others.
    Each slot has a candidate cell in the first array, and in the next ones the others of the same slot: no join, no
    second shuffle, and a row is compared with one key or two."""
    slots = 1 << (4 * len(keys) - 1).bit_length()
    arrays: list[list[int | None]] = []
    for cell, key in enumerate(keys):
        slot = zlib.crc32(key.encode()) % slots
        free = next((array for array in arrays if array[slot] is None), None)
        if free is None:
            free = [None] * slots
            arrays.append(free)
        free[slot] = cell
    texts = _constant(list(keys), "string")
    lookup = fn.lit(None).cast("long")
    for array in reversed(arrays):
        candidate = fn.get(_constant(array, "int"), fn.col("slot"))
        same_key = fn.get(texts, candidate) == fn.col("k")
        lookup = fn.when(same_key, candidate.cast("long")).otherwise(lookup)
    hashed = fn.crc32(fn.col("k").cast("binary")).bitwiseAND(fn.lit(slots - 1))
    return hashed.cast("int"), lookup


def _constant(values: Sequence[Any], kind: str) -> Column:
    """An array of constants by one call: a call for each of them would take longer than to count a million rows."""
    return fn.from_json(fn.lit(json.dumps(values)), f"array<{kind}>")


def event_rows(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """One row for each placed row: place, cell or k, units, who, us and o; a row without user or order is no event."""
    cell = "cell"
    if declaration.query.discovery is not None:
        rows, cell = with_legal_keys(rows, declaration), "k"
    who, place = fn.col("who"), fn.col("place")
    nobody = fn.coalesce(who, fn.lit("")) == ""
    if declaration.query.people is not None:
        nobody |= fn.length(who) > LONGEST_USER
    reason = fn.when(nobody | ~fn.is_valid_utf8(who), -8)
    if columns_of(declaration).order is not None:
        reason = reason.when(fn.col("o").isNull(), -NO_ORDER)
    placed = fn.when(place > 0, fn.coalesce(reason, place)).otherwise(place)
    return rows.select(placed.cast("long").alias("place"), cell, "units", "who", "us", "o")


def with_legal_keys(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """Rows whose k is the key as it is counted; a row whose key is not legal is no event. The usual keys are told from
    others in the JVM. Others go through the rule itself in Python, on the executors: Java's Unicode has another
    version, and a key must be legal in every door or in none."""
    found, k = declaration.query.discovery, fn.col("k")
    assert found is not None
    pa, _ = parquet_modules()

    def legal(keys: Any) -> Any:
        return pa.array(found.check_keys(keys.to_pylist()), pa.string())

    legal.__annotations__ = dict.fromkeys(("keys", "return"), pa.Array)  # Spark reads them as types
    check = arrow_udf(legal, "string")  # type: ignore[call-overload]
    short = fn.octet_length(k).between(1, LONGEST_UNLISTED) & fn.is_valid_utf8(k)
    rows = rows.withColumn("k", fn.when(short, k)).withColumn("usual", matches(k, USUAL_KEY))
    other = check(fn.when(~fn.col("usual"), k))
    rows = rows.withColumn("k", fn.when(fn.col("usual"), k).otherwise(other))
    place = fn.col("place")
    bad = fn.when((place > 0) & fn.col("k").isNull(), fn.lit(-10).cast("long")).otherwise(place)
    return rows.withColumn("place", bad).drop("usual")


def _placed(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each row: place, k, units, and where users are named who, us and o; place is NULL after the horizon.
    Nothing is filtered here: Spark would copy the expressions into the condition once for each use, which grows beyond
    all bounds for calendars with many clock changes."""
    columns, schedule = columns_of(declaration), declaration.schedule
    # two days more than the last tick: wall times differ from instants by less, and Spark is slow with long expressions
    until = schedule.start_of(min(last, horizon or last) + 1) + 2 * times.UNITS["d"]
    kind = check_columns(events, declaration)
    time = _column(columns.time)
    rows = events.select(
        time.isNull().alias("no_time"),
        *instants(time, kind, columns.time),
        _key_or_path(events, columns).alias("k"),
        (_value(events, columns.value) if columns.value else fn.lit(None).cast("double")).alias("v"),
        (_key(events, columns.user) if columns.user else fn.lit(None).cast("string")).alias("who"),
        (_order(events, columns.order) if columns.order else fn.lit(None).cast("long")).alias("o"),
    )
    # by name, so that Spark works a time out once for each row and not for each use
    rows = rows.withColumns({name: within(fn.col(name)) for name in ("wall", "exact")})
    # the zone's clock changes are a long expression: it is left out where no time can be a wall time
    us = f"coalesce(exact, {schedule.sql_instant('wall', until)})" if isinstance(kind, WALL_TYPES) else "exact"
    rows = rows.withColumn("us", fn.expr(us)).withColumn("units", _units(declaration))
    reason = fn.when(fn.col("no_time"), 1).when(fn.col("wall").isNull() & fn.col("exact").isNull(), 2)
    reason = reason.when(fn.col("us").isNull(), 3).when(fn.col("us") < fn.lit(schedule.begin), 4)
    if columns.value:
        lo, hi, _ = rows_of(declaration.query).values
        v = fn.col("v")
        reason = reason.when(v.isNull() | fn.isnan(v), 6)
        reason = reason.when((v < fn.lit(lo)) | (v > fn.lit(hi)), 7)
    ends: list[tuple[int, int | None]] = [(horizon, None)] if horizon is not None else []
    if horizon is None or last < horizon:
        ends.append((last, -TOO_FAR))
    place = fn.when(reason.isNotNull(), -reason)
    for tick, answer in ends:
        place = place.when(fn.col("us") >= fn.lit(schedule.start_of(tick + 1)), fn.lit(answer).cast("long"))
    place = place.otherwise(fn.expr(schedule.sql_tick("us", "div", until)))
    chosen: list[Any] = ["k", "units", *(["who", "us", "o"] * bool(columns.user))]
    if (bins := rows_of(declaration.query).bins) is not None:
        chosen.append(_bin(*bins).alias("cell"))
    return rows.select(place.cast("long").alias("place"), *chosen)


def _key_or_path(events: DataFrame, columns: Columns) -> Column:
    """The key, or for a query with levels the text of `queries.rollup.path_key`; NULL where a name is."""
    if columns.levels:
        names = [_key(events, name) for name in columns.levels]
        parts = [part for name in names for part in (fn.octet_length(name).cast("string"), fn.lit(":"), name)]
        return fn.concat(*parts)
    return _keys(events, columns.key_columns) if columns.key else fn.lit(None).cast("string")


def _bin(low: float, width: float, bins: int) -> Column:
    """The bin of a value: the arithmetic of `Quantiles.leaves_of`, in the same doubles; NULL where there is none."""
    v = fn.col("v")
    place = fn.floor((v - fn.lit(low)) / fn.lit(width))
    return fn.when(~fn.isnan(v), fn.least(fn.greatest(place, fn.lit(0)), fn.lit(bins - 1)).cast("long"))


def _column(name: str) -> Column:
    return fn.col("`" + name.replace("`", "``") + "`")


def _is_text(events: DataFrame, name: str, legal: Any, what: str) -> bool:
    """Whether a column has texts; InputError where its type is not legal."""
    kind = events.schema[name].dataType
    if not isinstance(kind, (types.StringType, *legal)):
        raise InputError(f"the column {name!r} is of type {kind.simpleString()}; {what}")
    return isinstance(kind, types.StringType)


def _key(events: DataFrame, name: str) -> Column:
    _is_text(events, name, KEY_TYPES, "a key is a text or a whole number")
    return _column(name).cast("string")


def _keys(events: DataFrame, names: tuple[str, ...]) -> Column:
    """The key of one column, or of several: `combined_key`."""
    parts = [_key(events, name) for name in names]
    if len(parts) == 1:
        return parts[0]
    shown = []
    for part in parts:
        quoted = fn.concat(fn.lit('"'), fn.replace(part, fn.lit('"'), fn.lit('""')), fn.lit('"'))
        shown.append(fn.when(part.contains(",") | part.contains('"'), quoted).otherwise(part))
    missing = fn.lit(None).cast("string")
    return fn.when(fn.concat(*parts).isNull(), missing).otherwise(fn.concat_ws(",", *shown))


def _value(events: DataFrame, name: str) -> Column:
    if _is_text(events, name, [types.NumericType], "a value is a number"):
        return fn.when(matches(_column(name), VALUE_TEXT), _column(name).try_cast("double"))
    return _column(name).cast("double")


def _order(events: DataFrame, name: str) -> Column:
    if _is_text(events, name, KEY_TYPES, "an order is a whole number"):
        return fn.when(matches(_column(name), ORDER_PATTERN), _column(name).try_cast("long"))
    return _column(name).cast("long")


def _units(declaration: StreamDeclaration) -> Column:
    if "value" not in rows_of(declaration.query).columns:
        return fn.lit(0).cast("long")
    lo, hi, grid = rows_of(declaration.query).values
    v = fn.col("v")  # half to even, as Sum rounds; a value outside its range is bad and has no units
    return fn.when((v >= fn.lit(lo)) & (v <= fn.lit(hi)), fn.rint(v / fn.lit(grid)).cast("long"))


# -- times ------------------------------------------------------------------------------------------------------------


def instants(time: Column, kind: types.DataType, name: str) -> tuple[Column, Column]:
    """`wall` for a time without an offset, `exact` for one with it, in microseconds; NULL for what is not a time."""
    none = fn.lit(None).cast("long")
    wall, exact = none, none
    if isinstance(kind, types.StringType):
        wall = fn.when(matches(time, times.WALL_PATTERN), _wall(time.try_cast("timestamp_ntz")))
        exact = fn.when(matches(time, times.INSTANT_PATTERN), fn.unix_micros(_spelled_out(time).try_cast("timestamp")))
        exact = exact.when(matches(time, times.NUMBER_PATTERN), _epoch(time.try_cast("double")))
    elif isinstance(kind, types.TimestampType):
        exact = fn.unix_micros(time)
    elif isinstance(kind, types.TimestampNTZType):
        wall = _wall(time)
    elif isinstance(kind, types.DateType):
        wall = fn.unix_date(time).cast("long") * times.UNITS["d"]
    elif isinstance(kind, NUMBER_TYPES):
        exact = _epoch(time.cast("double"))
    else:
        raise InputError(
            f"the column {name!r} is of type {kind.simpleString()}; a time is a TIMESTAMP, a DATE, a text in ISO 8601 "
            "or a number of seconds since 1970"
        )
    return wall.alias("wall"), exact.alias("exact")


def matches(text: Column, pattern: str) -> Column:
    return text.rlike(rf"\A(?:{pattern})\z")


def within(instant: Column) -> Column:
    """The instant, or NULL where it is farther away than any tick may be."""
    return fn.when(instant.between(-FARTHEST, FARTHEST), instant)


def _spelled_out(time: Column) -> Column:
    """The text with seconds and `Z`, which Spark's cast needs."""
    zulu = fn.regexp_replace(time, " UTC$", "Z")
    return fn.regexp_replace(zulu, r"^(.{10}[T ]\d\d:\d\d)(Z|[+-].*)$", "$1:00$2")


def _wall(moment: Column) -> Column:
    """Microseconds of a wall time. The difference of two times without a zone is the same in every session's zone."""
    epoch = fn.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")  # a literal from Python would be a time of the session's zone
    return fn.call_function("div", moment - epoch, fn.lit(timedelta(microseconds=1)))


def _epoch(seconds: Column) -> Column:
    """The instant of seconds since 1970, NULL where the number is none."""
    within = (seconds >= fn.lit(times.EARLIEST_NUMBER)) & (seconds < fn.lit(times.LATEST_NUMBER))
    return fn.when(within, fn.rint(seconds * times.SECOND).cast("long"))
