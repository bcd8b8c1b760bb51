"""Counting in Spark: rows of a DataFrame → events → what each tick adds to each cell, in the JVM.

What an event is, and which rows are none and why, is the rule of files (`files/event_sql.py`), most
of it by the same SQL. What Spark writes otherwise is here: how a column becomes a text, a number or
an instant. No expression depends on the session's time zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, Observation, Window, types
from pyspark.sql import functions as fn
from pyspark.sql.pandas.functions import arrow_udf

from evercount._validate import IntArray
from evercount.declarations import schedule as times
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.unit_periods import sql_period
from evercount.engine.arrivals import Arrivals, NamedRows, PersonEvents
from evercount.engine.close_ticks import TickTotals
from evercount.engine.write_table import parquet_modules
from evercount.errors import InputError
from evercount.files import event_sql
from evercount.files.event_sql import columns_of, is_keyed
from evercount.queries.sensitivities import rows_of
from evercount.spark.session import check_columns
from evercount.store.accept_totals import expected_parts

GROUP_COLUMNS = ("place", "cell", "events", "units")
NAMES_AT_A_TIME = 1_000_000  # rows with names that the driver reads together; at least one tick
TOO_FAR = max(event_sql.REASONS) + 1
BAD = {**event_sql.REASONS, TOO_FAR: "a time too many ticks ahead of the open one"}
VALUE_TEXT = r"[+-]?(\d+([.]\d*)?|[.]\d+)([eE][+-]?\d+)?"
# keys that are legal by their looks: `queries.discovered_keys`
USUAL_KEY = r"[!-~](?:[ -~]{0,198}[!-~])?"
WALL_TYPES = (types.StringType, types.TimestampNTZType, types.DateType)
NUMBER_TYPES = (types.IntegerType, types.LongType, types.FloatType, types.DoubleType)
KEY_TYPES = (types.StringType, types.ByteType, types.ShortType, types.IntegerType, types.LongType)
NO_TEXT = "CAST(NULL AS STRING)"
VALUES = ("double", VALUE_TEXT, [types.NumericType], "a value is a number")
ORDERS = ("long", event_sql.ORDER_PATTERN, KEY_TYPES, "an order is a whole number")


@contextmanager
def count_placed(rows: DataFrame, declaration: StreamDeclaration) -> Iterator[Arrivals]:
    """Add up rows of `place_events`, which may be a micro-batch of a stream of them. Spark keeps
    what rows with names come from until the block ends.

    **Guarantee.** One row adds to one cell of one tick, by its own time, key and value alone: the
    promise of `files.count_rows.count`, with the same rules. Test:
    tests/spark/test_count_events.py::test_spark_and_the_file_interface_agree_row_by_row.
    """
    brings_persons, brings_names = expected_parts(declaration)
    if brings_names:
        groups = named_groups(rows, declaration).persist()
        try:
            yield _count_named(groups, declaration)
        finally:
            groups.unpersist()
    elif brings_persons:
        yield _count_persons(with_legal_keys(rows, declaration), declaration)
    else:
        yield _count_groups(group_placed(rows), declaration)


def _count_groups(rows: DataFrame, declaration: StreamDeclaration) -> Arrivals:
    """Add up groups of events whose number and sum are all that counts."""
    groups = numbers(rows.toArrow(), *GROUP_COLUMNS)
    place, _, events, _ = groups
    reasons = {
        BAD[-int(reason)]: int(events[place == reason].sum())
        for reason in np.unique(place[place < 0])
    }
    totals = TickTotals.of(declaration.query.cells, *sums(declaration, groups))
    bad = sum(reasons.values())
    return Arrivals(totals, bad=bad, reasons=reasons, rows=int(events.sum()))


def sums(
    declaration: StreamDeclaration, groups: Sequence[IntArray]
) -> tuple[IntArray, IntArray, IntArray]:
    """Ticks, cells and totals of the groups that are events, in order."""
    place, cell, _, _ = groups
    order = np.lexsort((cell, place))
    order = order[place[order] > 0]
    return rows_of(declaration.query).totals(*(column[order] for column in groups))


def _count_persons(rows: DataFrame, declaration: StreamDeclaration) -> Arrivals:
    """Bring the events to the driver, and count bad rows on the way: one job."""
    sizes = Observation()
    place = fn.col("place")
    bad = [fn.count_if(place == -reason).alias(str(reason)) for reason in BAD]
    rows = rows.observe(sizes, fn.count(fn.lit(1)).alias("rows"), *bad)
    events = rows.where(place > 0).toArrow()
    counts = sizes.get
    persons, at = _distinct(events, "who")
    keys: Sequence[str] = ()
    if "k" in rows.columns:
        keys, cell = _distinct(events, "k")
    else:
        (cell,) = numbers(events, "cell")
    tick, time, order, units = numbers(events, "place", "us", "o", "units")
    reasons = {text: int(counts[str(reason)]) for reason, text in BAD.items()}
    reasons = {text: number for text, number in reasons.items() if number}
    return Arrivals(
        TickTotals.none(declaration.query.cells),
        persons=PersonEvents(tick, persons, time, order, cell, units, at, keys),
        bad=sum(reasons.values()),
        reasons=reasons,
        rows=int(counts["rows"]),
    )


def _count_named(groups: DataFrame, declaration: StreamDeclaration) -> Arrivals:
    """Bring rows with names to the driver some ticks at a time, in the order of ticks: one tick, or
    a bounded number."""
    sizes = (
        groups.groupBy("place")
        .agg(fn.count(fn.lit(1)).alias("groups"), fn.sum("events").alias("rows"))
        .collect()
    )
    reasons = {BAD[-row["place"]]: int(row["rows"]) for row in sizes if (row["place"] or 0) < 0}
    ticks = sorted((row["place"], row["groups"]) for row in sizes if (row["place"] or 0) > 0)
    return Arrivals(
        TickTotals.none(declaration.query.cells),
        rows_with_names=_parts(groups, ticks),
        bad=sum(reasons.values()),
        reasons=reasons,
        rows=sum(int(row["rows"]) for row in sizes),
    )


def _parts(groups: DataFrame, ticks: list[tuple[int, int]]) -> Iterator[NamedRows]:
    """Yield the rows of some ticks at a time; `ticks` are their numbers and sizes."""
    first = 0
    while first < len(ticks):
        size = ticks[first][1]
        stop = first + 1
        while stop < len(ticks) and size + ticks[stop][1] <= NAMES_AT_A_TIME:
            size += ticks[stop][1]
            stop += 1
        part = groups.where(fn.col("place").between(ticks[first][0], ticks[stop - 1][0])).toArrow()
        yield named_rows(part)
        first = stop


def named_rows(part: Any) -> NamedRows:
    """Turn rows of `named_groups`, as Arrow, into rows with names."""
    columns = [
        name for name in part.schema.names if name not in ("shard", "place", "name", "events")
    ]
    place, *more = numbers(part, "place", *columns)
    return NamedRows(place, part.column("name").to_pylist(), np.stack(more, axis=1))


def _distinct(table: Any, name: str) -> tuple[list[str], IntArray]:
    """Return the different texts of a column, and the place of each row's text among them."""
    column = table.column(name).combine_chunks().dictionary_encode()
    return column.dictionary.to_pylist(), np.asarray(column.indices, np.int64)


def numbers(table: Any, *names: str) -> list[IntArray]:
    """Columns of whole numbers, with 0 where there is none."""
    return [np.asarray(table.column(name).fill_null(0).to_numpy(), np.int64) for name in names]


def refuse_bad(reasons: Mapping[str, int]) -> None:
    """InputError that says how many rows are bad for each reason, if there are any."""
    if reasons:
        listed = "; ".join(f"{number} × {reason}" for reason, number in reasons.items())
        raise InputError(
            f"rows that are not events: {listed}. None were counted; fix the source, or leave "
            "such rows out with skip_bad (--skip-bad)"
        )


# -- from rows to groups ---------------------------------------------------------------------------


def group_events(
    events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None
) -> DataFrame:
    """One row for each (place, cell) with the number of its events and the sum of their values in
    grid units."""
    return group_placed(place_events(events, declaration, last, horizon))


def group_placed(rows: DataFrame) -> DataFrame:
    units = fn.coalesce(fn.sum("units"), fn.lit(0))
    return rows.groupBy("place", "cell").agg(
        fn.count(fn.lit(1)).alias("events"), units.cast("long").alias("units")
    )


def named_groups(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """One row for each (place, name): place, name, the numbers of `NamedRows`, and events, the
    number of rows. Persons that are counted have a row for each key; of several events in a
    tick the first one is taken."""
    number = fn.count(fn.lit(1)).alias("events")
    if declaration.query.people is None:
        groups = with_legal_keys(rows.groupBy("place", "k").agg(number), declaration)
        return groups.select(
            "place", fn.col("k").alias("name"), fn.col("events").alias("number"), "events"
        )
    good = fn.col("place") > 0
    if columns_of(declaration).order is None:  # then it does not matter
        rows = rows.withColumns({"us": fn.lit(0).cast("long"), "o": fn.lit(0).cast("long")})
    name, cell = (
        fn.when(good, fn.col(column)).alias(alias)
        for column, alias in (("who", "name"), ("cell", "cell"))
    )
    first = fn.min(fn.struct("us", "o")).alias("first")
    groups = rows.groupBy("place", name, cell).agg(first, number)
    return groups.select("place", "name", "cell", "first.us", "first.o", "events")


def named_history(
    events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None
) -> DataFrame:
    """`named_groups` of a whole table. Who is counted once and for all has the first row of each
    key only."""
    query = declaration.query
    if query.people is None and declaration.budget.unit == "user":
        capped = capped_groups(events, declaration, last, horizon)
        return capped.select(
            "place", fn.col("k").alias("name"), fn.col("events").alias("number"), "events"
        )
    groups = named_groups(place_events(events, declaration, last, horizon), declaration)
    if (
        query.people is None
        or query.people.each_tick
        or declaration.budget.caps != (None, None, None)
    ):
        return groups
    good = groups.where("place > 0")
    columns = ("place", "us", "o")
    first = good.groupBy("name", "cell").agg(
        fn.min(fn.struct(*columns)).alias("first"), fn.sum("events").alias("events")
    )
    return first.select("first.place", "name", "cell", "first.us", "first.o", "events").unionByName(
        groups.where("place IS NULL OR place <= 0")
    )


def capped_groups(
    events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None
) -> DataFrame:
    """As `group_events`, for what the caps leave of the events of each user, over a whole history.

    **Guarantee.** The rule of `named_events.cap_ticks` of the store, for all ticks at once. What
    earlier ticks of a period have used up is the sum of their events within `max_per_tick`: below
    `max_events` it is what they counted, above it no room is left either way. Proof:
    `queries/user_cap.proof.md`, Lemma 1. Test:
    tests/contracts/test_same_table.py::test_a_batch_of_spark_publishes_the_same_table.
    """
    budget = declaration.budget
    schedule = declaration.schedule
    most, each, ticks = budget.caps
    rows = with_legal_keys(place_events(events, declaration, last, horizon), declaration)
    until = schedule.start_of(min(last, horizon or last) + 1)
    rows = rows.withColumn("good", fn.col("place") > 0).withColumn(
        "period", fn.expr(sql_period(budget, schedule, "greatest(place, 1)", "div", until))
    )
    tick = Window.partitionBy("good", "who", "place").orderBy("us", "o")
    period = Window.partitionBy("good", "who", "period").orderBy("place")
    rows = rows.withColumns(
        {"turn": fn.count(fn.lit(1)).over(tick), "number": fn.row_number().over(tick)}
    )
    rules = []
    if each is not None:
        rules.append(f"turn <= {each}")
    if ticks is not None:
        rows = rows.withColumn("ticks", fn.dense_rank().over(period))
        rules.append(f"ticks <= {ticks}")
    if most is not None:
        within = fn.when(fn.col("number") <= (each or most), 1).otherwise(0)
        before = fn.sum(within).over(period.rangeBetween(Window.unboundedPreceding, -1))
        rows = rows.withColumn("before", fn.coalesce(before, fn.lit(0)))
        rules.append(f"turn <= {most} - before")
    within_caps = rows.where(f"NOT good OR ({' AND '.join(rules)})")
    cell = "k"
    if declaration.query.discovery is None:
        cell = "cell"
    place_cell = ("place", fn.when(fn.col("place") > 0, fn.col(cell)).alias(cell))
    return within_caps.groupBy(*place_cell).agg(
        fn.count(fn.lit(1)).alias("events"), fn.sum("units").alias("units")
    )


# -- from rows to events ---------------------------------------------------------------------------


def place_events(
    events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None
) -> DataFrame:
    """One row for each row of a table or of a stream: place, cell, units, and where users are named
    who, us and o.

    place is a tick, −reason for rows that are not events, NULL after the horizon. A row finds its
    cell by a join that every task does by itself: what is shuffled later has numbers, not texts.
    Keys that nobody listed are in k instead of cell. Nothing is filtered here: Spark would copy the
    expressions into the condition once for each use, which grows beyond all bounds for calendars
    with many clock changes.
    """
    columns = columns_of(declaration)
    schedule = declaration.schedule
    query = declaration.query
    # two days more than the last tick: wall times differ from instants by less, and Spark is slow
    # with long expressions
    until = schedule.start_of(min(last, horizon or last) + 1) + 2 * times.UNITS["d"]
    events = _typed(events)
    kind = check_columns(events, declaration)
    time = _column(columns.time)
    keys = [_key(events, name) for name in columns.levels or columns.key_columns]
    key = event_sql.key_sql(columns, keys, "octet_length") or NO_TEXT
    value = fn.lit(None).cast("double")
    if columns.value:
        value = _number(events, columns.value, *VALUES)
    who = NO_TEXT
    if columns.user:
        who = _key(events, columns.user)
    order = fn.lit(None).cast("long")
    if columns.order:
        order = _number(events, columns.order, *ORDERS)
    rows = events.select(
        time.alias("t"),
        *instants(time, kind, columns.time),
        fn.expr(key).alias("k"),
        value.alias("v"),
        fn.expr(who).alias("who"),
        order.alias("o"),
    )
    unlisted = query.discovery is not None
    if is_keyed(declaration) and not unlisted:
        pa, _ = parquet_modules()
        listed = list(rows_of(query).keys[0])
        table = pa.table({"k": listed, "listed": np.arange(len(listed))})
        rows = rows.join(fn.broadcast(rows.sparkSession.createDataFrame(table)), "k", "left")
    cell = "0"
    if not unlisted:
        cell = event_sql.cell_sql(declaration, "listed")
    rows = rows.withColumn("cell", fn.expr(cell).cast("long"))
    # step by step, so that Spark works each out once for each row and not for each use
    rows = rows.withColumns({name: within(fn.col(name)) for name in ("wall", "exact")})
    # the zone's clock changes are a long expression: it is left out where no time can be a wall
    # time
    us = "exact"
    if isinstance(kind, WALL_TYPES):
        us = f"coalesce(exact, {schedule.sql_instant('wall', until)})"
    units = event_sql.units_sql(declaration, "rint({})")
    rows = rows.withColumns({"us": fn.expr(us), "units": fn.expr(units).cast("long")})
    rows = rows.withColumn(
        "reason", fn.expr(event_sql.reason_sql(declaration, "false", "NOT is_valid_utf8(who)"))
    )
    place = fn.when(fn.col("reason") > 0, -fn.col("reason"))
    if horizon is not None:
        place = place.when(fn.col("us") >= schedule.start_of(horizon + 1), None)
    if horizon is None or last < horizon:
        place = place.when(fn.col("us") >= schedule.start_of(last + 1), -TOO_FAR)
    place = place.otherwise(fn.expr(schedule.sql_tick("us", "div", until)))
    more = ["k" if unlisted else "cell", "units"]
    if columns.user:
        more += ["who", "us", "o"]
    return rows.select(place.cast("long").alias("place"), *more)


def with_legal_keys(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """Rows whose k is the key as it is counted; a row whose key is not legal is not an event. The
    usual keys are told from others in the JVM. Others go through the rule itself in Python, on the
    executors: Java's Unicode has another version, and a key must be legal in every door or in
    none."""
    discovery = declaration.query.discovery
    k = fn.col("k")
    if discovery is None:
        return rows
    pa, _ = parquet_modules()

    def legal(keys: Any) -> Any:
        return pa.array(discovery.check_keys(keys.to_pylist()), pa.string())

    legal.__annotations__ = dict.fromkeys(("keys", "return"), pa.Array)  # Spark reads them as types
    check = arrow_udf(legal, "string")  # type: ignore[call-overload]
    short = fn.octet_length(k).between(1, event_sql.LONGEST_UNLISTED) & fn.is_valid_utf8(k)
    rows = rows.withColumn("k", fn.when(short, k)).withColumn("usual", matches(k, USUAL_KEY))
    other = check(fn.when(~fn.col("usual"), k))
    rows = rows.withColumn("k", fn.when(fn.col("usual"), k).otherwise(other))
    place = fn.col("place")
    bad = fn.when((place > 0) & fn.col("k").isNull(), fn.lit(-10).cast("long")).otherwise(place)
    return rows.withColumn("place", bad).drop("usual")


def _typed(events: DataFrame) -> DataFrame:
    """Let columns that hold nothing, and so have no type, be of texts."""
    untyped = [field.name for field in events.schema if isinstance(field.dataType, types.NullType)]
    if not untyped:
        return events
    return events.withColumns({name: _column(name).cast("string") for name in untyped})


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    return fn.col(_quoted(name))


def _is_text(events: DataFrame, name: str, legal: Any, what: str) -> bool:
    """Return whether a column has texts; InputError where its type is not legal."""
    kind = events.schema[name].dataType
    if not isinstance(kind, (types.StringType, *legal)):
        raise InputError(f"the column {name!r} is of type {kind.simpleString()}; {what}")
    return isinstance(kind, types.StringType)


def _key(events: DataFrame, name: str) -> str:
    """SQL: a key or a user as a text."""
    _is_text(events, name, KEY_TYPES, "a key is a string or a whole number")
    return f"CAST({_quoted(name)} AS STRING)"


def _number(events: DataFrame, name: str, kind: str, pattern: str, legal: Any, what: str) -> Column:
    """Read a column as numbers of a kind; of texts those that fit the pattern."""
    column = _column(name)
    if _is_text(events, name, legal, what):
        return fn.when(matches(column, pattern), column.try_cast(kind))
    return column.cast(kind)


# -- times -----------------------------------------------------------------------------------------


def instants(time: Column, kind: types.DataType, name: str) -> tuple[Column, Column]:
    """`wall` for a time without an offset, `exact` for one with it, in microseconds; NULL for what
    is not a time."""
    wall = exact = fn.lit(None).cast("long")
    seconds = fn.expr(event_sql.epoch_sql(_quoted(name), "rint({})"))
    if isinstance(kind, types.StringType):
        wall = fn.when(matches(time, times.WALL_PATTERN), _wall(time.try_cast("timestamp_ntz")))
        exact = fn.when(
            matches(time, times.INSTANT_PATTERN),
            fn.unix_micros(_spelled_out(time).try_cast("timestamp")),
        )
        exact = exact.when(matches(time, times.NUMBER_PATTERN), seconds)
    elif isinstance(kind, types.TimestampType):
        exact = fn.unix_micros(time)
    elif isinstance(kind, types.TimestampNTZType):
        wall = _wall(time)
    elif isinstance(kind, types.DateType):
        wall = fn.unix_date(time).cast("long") * times.UNITS["d"]
    elif isinstance(kind, NUMBER_TYPES):
        exact = seconds
    else:
        raise InputError(
            f"the column {name!r} is of type {kind.simpleString()}; a time is a TIMESTAMP, a DATE, "
            "a string in ISO 8601 or a number of seconds since 1970"
        )
    return wall.alias("wall"), exact.alias("exact")


def matches(text: Column, pattern: str) -> Column:
    return text.rlike(rf"\A(?:{pattern})\z")


def within(instant: Column) -> Column:
    """The instant, or NULL where it is farther away than any tick may be."""
    return fn.when(instant.between(-event_sql.FARTHEST, event_sql.FARTHEST), instant)


def _spelled_out(time: Column) -> Column:
    """Add seconds and `Z` to a text, which Spark's cast needs."""
    zulu = fn.regexp_replace(time, " UTC$", "Z")
    return fn.regexp_replace(zulu, r"^(.{10}[T ]\d\d:\d\d)(Z|[+-].*)$", "$1:00$2")


def _wall(moment: Column) -> Column:
    """Microseconds of a wall time. The difference of two times without a zone is the same in every
    session's zone."""
    # a literal from Python would be a time of the session's zone
    epoch = fn.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")
    return fn.call_function("div", moment - epoch, fn.lit(timedelta(microseconds=1)))
