"""Counting in Spark: rows of a DataFrame → what each tick adds to each cell, as one aggregation in the JVM.

The rules are those of the file door (`files/event_sql.py`): what is a time, which tick it belongs to, which rows are
bad and why. No expression depends on the session's time zone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, Observation, Window, types
from pyspark.sql import functions as fn

from evercount._arrays import IntArray
from evercount.declare.columns import Columns
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import UNITS
from evercount.declare.unit_periods import sql_period
from evercount.engine.tick_totals import TickTotals
from evercount.engine.write_table import parquet_modules
from evercount.errors import InputError, ParameterError
from evercount.files.event_sql import NO_ORDER, ORDER_PATTERN, REASONS, columns_of, is_keyed
from evercount.queries.capabilities import rows_of
from evercount.spark.check_source import check_columns
from evercount.spark.event_times import WALL_TYPES, instants, matches, within
from evercount.store.user_events import UserEvents

TOO_FAR = NO_ORDER + 1
BAD = {**REASONS, TOO_FAR: "a time too many ticks ahead of the open one"}
VALUE_TEXT = r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?"
GROUP_COLUMNS = ("place", "cell", "events", "units")
FEW_KEYS = 10_000
"""With more keys than this, they are looked up by a join instead of a table in the plan."""
KEY_TYPES = (types.StringType, types.ByteType, types.ShortType, types.IntegerType, types.LongType)


@dataclass(frozen=True, eq=False)
class CountedEvents:
    """What the rows of one DataFrame add up to. Secret."""

    totals: TickTotals
    users: UserEvents | None = None
    """The events themselves, where the budget protects users; `totals` are then empty."""
    bad: dict[str, int] = field(default_factory=dict)
    """The number of rows that are not events, for each reason."""
    rows: int = 0
    """All rows, the ignored ones too."""


def check_declaration(declaration: StreamDeclaration) -> None:
    """ParameterError for what Spark cannot serve; it needs no session."""
    columns = columns_of(declaration)
    if declaration.schedule.manual:
        raise ParameterError("Spark closes ticks by the clock: declare a tick such as 1h instead of 'manual'")
    if declaration.query.people is not None:
        raise ParameterError(
            f"{declaration.query.name!r} needs the users of all events, and Spark hands over totals: use `evercount "
            "release` or the service"
        )
    if declaration.query.discovery is not None:
        raise ParameterError(
            f"{declaration.query.name!r} needs the keys of all events, and Spark hands over totals of listed ones: use "
            "`evercount release` or the service"
        )
    if declaration.budget.unit == "user" and columns.order is None:
        raise ParameterError(
            "a budget of unit 'user' keeps the first events of each user, and rows of Spark come in no order: name a "
            "column of whole numbers that orders the events of one user at one time (columns.order), or use `evercount "
            "release`, which takes rows in the order of the file"
        )


def count_events(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> CountedEvents:
    """Add up the events of a DataFrame: rows of ticks after `last` are bad, rows after the horizon are ignored.

    **Guarantee.** One row adds to one cell of one tick, by its own time, key and value alone: the promise of
    `files.count_rows.count`, with the same rules. Test:
    tests/spark/test_count_events.py::test_spark_and_the_file_door_agree_row_by_row.
    """
    return count_placed(place_events(events, declaration, last, horizon), declaration)


def count_placed(rows: DataFrame, declaration: StreamDeclaration) -> CountedEvents:
    """Add up rows of `place_events`, which may be a micro-batch of a stream of them."""
    if declaration.budget.unit == "user":
        return _count_users(event_rows(rows, declaration), declaration)
    groups = group_placed(rows, declaration).toArrow()
    place, cell, events, units = (_numbers(groups, name) for name in GROUP_COLUMNS)
    bad = {BAD[-int(reason)]: int(events[place == reason].sum()) for reason in np.unique(place[place < 0])}
    order = np.lexsort((cell, place))
    order = order[place[order] > 0]
    tick, cell, total = rows_of(declaration.query).totals(place[order], cell[order], events[order], units[order])
    first, end = (int(tick[0]), int(tick[-1]) + 1) if len(tick) else (1, 1)
    return CountedEvents(
        TickTotals(first, end - first, declaration.query.cells, tick, cell, total), None, bad, int(events.sum())
    )


def _count_users(rows: DataFrame, declaration: StreamDeclaration) -> CountedEvents:
    """One job: the events go to the driver, and bad rows are counted on the way."""
    sizes, place = Observation(), fn.col("place")
    reasons = [fn.count_if(place == -reason).alias(str(reason)) for reason in BAD]
    rows = rows.observe(sizes, fn.count(fn.lit(1)).alias("rows"), *reasons)
    if "value" not in rows_of(declaration.query).columns:
        rows = rows.drop("units")
    events = rows.where(place > 0).toArrow()
    found = sizes.get
    who = events.column("who").combine_chunks().dictionary_encode()
    units = _numbers(events, "units") if "units" in rows.columns else np.zeros(len(events), np.int64)
    tick, time, order, cell = (_numbers(events, name) for name in ("place", "us", "o", "cell"))
    at = np.asarray(who.indices, np.int64)
    users = UserEvents(tick, who.dictionary.to_pylist(), time, order, cell, units, at)
    bad = {text: int(found[str(reason)]) for reason, text in BAD.items() if found[str(reason)]}
    none = np.empty(0, np.int64)
    return CountedEvents(TickTotals(1, 0, declaration.query.cells, none, none, none), users, bad, int(found["rows"]))


def _numbers(table: Any, name: str) -> IntArray:
    return np.asarray(table.column(name).fill_null(0).to_numpy(), np.int64)


def refuse_bad(bad: dict[str, int]) -> None:
    """InputError where rows are not events, with the reasons, for the operator."""
    if bad:
        reasons = "; ".join(f"{number} × {reason}" for reason, number in bad.items())
        raise InputError(
            f"rows that are not events: {reasons}. None were counted; fix the source, or leave such rows out with "
            "skip_bad (--skip-bad)"
        )


# -- from rows to groups ----------------------------------------------------------------------------------------------


def place_events(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each row of a table or of a stream: place, cell, units, and where users are named who, us and o.

    place is a tick, −reason for rows that are not events, NULL after the horizon. With many keys a row finds its cell
    by a join that every task does by itself: what is shuffled later has numbers, not texts.
    """
    rows = _placed(events, declaration, last, horizon)
    columns = rows_of(declaration.query)
    if columns.bins is None:
        if not is_keyed(declaration):
            rows = rows.withColumn("cell", fn.lit(0).cast("long"))
        elif len(columns.keys[0]) > FEW_KEYS:
            rows = _with_cell(rows.join(fn.broadcast(_cells(rows, columns.keys[0])), "k", "left"), declaration)
        else:
            slot, cell = key_lookup(columns.keys[0])
            rows = _with_cell(rows.withColumn("slot", slot).withColumn("cell", cell), declaration)
    return rows.drop("k", "slot")


def group_events(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each (place, cell) with the number of its events and the sum of their values in grid units."""
    return group_placed(place_events(events, declaration, last, horizon), declaration)


def group_placed(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """`group_events` of rows that have their place."""
    valued = "value" in rows_of(declaration.query).columns
    units = fn.coalesce(fn.sum("units"), fn.lit(0)) if valued else fn.lit(0)
    return rows.groupBy("place", "cell").agg(fn.count(fn.lit(1)).alias("events"), units.cast("long").alias("units"))


def _cells(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """The cell of each key."""
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
    second shuffle, and a row is compared with one key or two.
    """
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
    """One row for each placed row: place, cell, units, who, us and o; a row without user or order is not an event."""
    no_user = fn.when(fn.coalesce(fn.col("who"), fn.lit("")) == "", -8).when(fn.col("o").isNull(), -NO_ORDER)
    place = fn.when(fn.col("place") > 0, fn.coalesce(no_user, fn.col("place"))).otherwise(fn.col("place"))
    return rows.select(place.cast("long").alias("place"), "cell", "units", "who", "us", "o")


def capped_groups(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """As `group_events`, for what the caps leave of the events of each user, over a whole history.

    **Guarantee.** The rule of `store.user_events.cap_ticks`, for all ticks at once. What earlier ticks of a period have
    used up is the sum of their events within `max_per_tick`: below `max_events` it is what they counted, above it no
    room is left either way. Proof: `queries/user_cap.proof.md`, Lemma 1. Test:
    tests/contracts/test_same_table.py::test_a_batch_of_spark_publishes_the_same_table.
    """
    budget, schedule = declaration.budget, declaration.schedule
    most, each, ticks = budget.caps
    rows = event_rows(place_events(events, declaration, last, horizon), declaration)
    until = schedule.start_of(min(last, horizon or last) + 1)
    rows = rows.withColumn("good", fn.col("place") > 0).withColumn(
        "period", fn.expr(sql_period(budget, schedule, "greatest(place, 1)", "div", until))
    )
    tick = Window.partitionBy("good", "who", "place").orderBy("us", "o")
    period = Window.partitionBy("good", "who", "period").orderBy("place")
    rows = rows.withColumns({"turn": fn.count(fn.lit(1)).over(tick), "number": fn.row_number().over(tick)})
    rules = []
    if each is not None:
        rules.append(f"turn <= {each}")
    if ticks is not None:
        rows = rows.withColumn("came", fn.dense_rank().over(period))
        rules.append(f"came <= {ticks}")
    if most is not None:
        within = fn.when(fn.col("number") <= (each or most), 1).otherwise(0)
        before = fn.sum(within).over(period.rangeBetween(Window.unboundedPreceding, -1))
        rows = rows.withColumn("before", fn.coalesce(before, fn.lit(0)))
        rules.append(f"turn <= {most} - before")
    kept = rows.where(f"NOT good OR ({' AND '.join(rules)})")
    place_cell = ("place", fn.when(fn.col("place") > 0, fn.col("cell")).alias("cell"))
    return kept.groupBy(*place_cell).agg(fn.count(fn.lit(1)).alias("events"), fn.sum("units").alias("units"))


def _placed(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each row: place, k, units, and where users are named who, us and o; place is NULL after the horizon.

    Nothing is filtered here: Spark would copy the expressions into the condition once for each use, which grows
    beyond all bounds for calendars with many clock changes.
    """
    columns, schedule = columns_of(declaration), declaration.schedule
    # two days more than the last tick: wall times differ from instants by less, and Spark is slow with long expressions
    until = schedule.start_of(min(last, horizon or last) + 1) + 2 * UNITS["d"]
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


def _key(events: DataFrame, name: str) -> Column:
    kind = events.schema[name].dataType
    if not isinstance(kind, KEY_TYPES):
        raise InputError(f"the column {name!r} is of type {kind.simpleString()}; a key is a text or a whole number")
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
    kind = events.schema[name].dataType
    if isinstance(kind, types.StringType):
        return fn.when(matches(_column(name), VALUE_TEXT), _column(name).try_cast("double"))
    if not isinstance(kind, types.NumericType):
        raise InputError(f"the column {name!r} is of type {kind.simpleString()}; a value is a number")
    return _column(name).cast("double")


def _order(events: DataFrame, name: str) -> Column:
    kind = events.schema[name].dataType
    if isinstance(kind, types.StringType):
        return fn.when(matches(_column(name), ORDER_PATTERN), _column(name).try_cast("long"))
    if not isinstance(kind, KEY_TYPES):
        raise InputError(f"the column {name!r} is of type {kind.simpleString()}; an order is a whole number")
    return _column(name).cast("long")


def _units(declaration: StreamDeclaration) -> Column:
    if "value" not in rows_of(declaration.query).columns:
        return fn.lit(0).cast("long")
    lo, hi, grid = rows_of(declaration.query).values
    v = fn.col("v")  # half to even, as Sum rounds; a value outside its range is bad and has no units
    return fn.when((v >= fn.lit(lo)) & (v <= fn.lit(hi)), fn.rint(v / fn.lit(grid)).cast("long"))
