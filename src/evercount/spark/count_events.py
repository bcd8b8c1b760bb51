"""Counting in Spark: rows of a DataFrame → what each tick adds to each cell, as one aggregation in the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as fn

from evercount._arrays import IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.unit_periods import sql_period
from evercount.engine.tick_totals import TickTotals
from evercount.errors import InputError, ParameterError
from evercount.files.event_sql import columns_of
from evercount.queries.capabilities import rows_of
from evercount.spark.place_rows import BAD, event_rows, place_events, with_legal_keys
from evercount.store.accept_totals import Counted, check_fed
from evercount.store.named_events import NamedEvents, UserEvents

GROUP_COLUMNS = ("place", "cell", "events", "units")
NAMES_AT_A_TIME = 1_000_000  # rows with names that the driver reads together; at least one tick


@dataclass(frozen=True, eq=False)
class CountedEvents(Counted):
    """What the rows of one DataFrame add up to. Secret."""

    kept: DataFrame | None = None  # what `named` comes from; Spark keeps it until `forget`
    bad: dict[str, int] = field(default_factory=dict)  # the number of rows that are not events, for each reason
    rows: int = 0  # all rows, the ignored ones too

    def forget(self) -> None:
        if self.kept is not None:
            self.kept.unpersist()


def check_declaration(declaration: StreamDeclaration) -> None:
    """ParameterError for what Spark cannot serve; it needs no session."""
    columns, people, name = columns_of(declaration), declaration.query.people, declaration.query.name
    check_fed(declaration, "Spark")
    needs, instead = "", ""
    if people is not None and people.order_matters:
        needs, instead = f"{name!r} counts each user under the first keys", "count users under all keys (max_keys), "
    elif people is None and declaration.budget.unit == "user":
        needs = "a budget of unit 'user' keeps the first events of each user"
    if needs and columns.order is None:
        raise ParameterError(
            f"{needs}, and Spark's rows have no order: name a column of whole numbers that orders the events of "
            f"one user at one time (columns.order), {instead}or use `evercount release`, which takes rows in the order "
            "of the file"
        )


def count_placed(rows: DataFrame, declaration: StreamDeclaration) -> CountedEvents:
    """Add up rows of `place_events`, which may be a micro-batch of a stream of them.

    **Guarantee.** One row adds to one cell of one tick, by its own time, key and value alone: the promise of
    `files.count_rows.count`, with the same rules. Test:
    tests/spark/test_count_events.py::test_spark_and_the_file_door_agree_row_by_row.
    """
    if has_names(declaration):
        return _count_named(named_groups(rows, declaration), declaration)
    if declaration.budget.unit == "user":
        return _count_users(event_rows(rows, declaration), declaration)
    groups = group_placed(rows, declaration).toArrow()
    place, cell, events, units = (_numbers(groups, name) for name in GROUP_COLUMNS)
    bad = {BAD[-int(reason)]: int(events[place == reason].sum()) for reason in np.unique(place[place < 0])}
    order = np.lexsort((cell, place))
    order = order[place[order] > 0]
    tick, cell, total = rows_of(declaration.query).totals(place[order], cell[order], events[order], units[order])
    totals = TickTotals.of(declaration.query.cells, tick, cell, total)
    return CountedEvents(totals, bad=bad, rows=int(events.sum()))


def _count_users(rows: DataFrame, declaration: StreamDeclaration) -> CountedEvents:
    """One job: the events go to the driver, and bad rows are counted on the way."""
    sizes, place = Observation(), fn.col("place")
    reasons = [fn.count_if(place == -reason).alias(str(reason)) for reason in BAD]
    rows = rows.observe(sizes, fn.count(fn.lit(1)).alias("rows"), *reasons)
    if "value" not in rows_of(declaration.query).columns:
        rows = rows.drop("units")
    events = rows.where(place > 0).toArrow()
    found = sizes.get
    names, at = _distinct(events, "who")
    keys: Sequence[str] = ()
    if "k" in rows.columns:
        keys, cell = _distinct(events, "k")
    else:
        cell = _numbers(events, "cell")
    units = _numbers(events, "units") if "units" in rows.columns else np.zeros(len(events), np.int64)
    tick, time, order = (_numbers(events, name) for name in ("place", "us", "o"))
    users = UserEvents(tick, names, time, order, cell, units, at, keys)
    bad = {text: int(found[str(reason)]) for reason, text in BAD.items() if found[str(reason)]}
    return CountedEvents(TickTotals.none(declaration.query.cells), users, bad=bad, rows=int(found["rows"]))


def _count_named(groups: DataFrame, declaration: StreamDeclaration) -> CountedEvents:
    """Rows with names go to the driver some ticks at a time, in the order of ticks: one tick, or a bounded number."""
    groups = groups.persist()
    sizes = groups.groupBy("place").agg(fn.count(fn.lit(1)).alias("groups"), fn.sum("events").alias("rows")).collect()
    bad = {BAD[-row["place"]]: int(row["rows"]) for row in sizes if (row["place"] or 0) < 0}
    ticks = sorted((row["place"], row["groups"]) for row in sizes if (row["place"] or 0) > 0)
    rows = sum(int(row["rows"]) for row in sizes)
    return CountedEvents(TickTotals.none(declaration.query.cells), None, _parts(groups, ticks), groups, bad, rows)


def _parts(groups: DataFrame, ticks: list[tuple[int, int]]) -> Iterator[NamedEvents]:
    first = 0
    while first < len(ticks):
        stop, size = first + 1, ticks[first][1]
        while stop < len(ticks) and size + ticks[stop][1] <= NAMES_AT_A_TIME:
            size, stop = size + ticks[stop][1], stop + 1
        part = groups.where(fn.col("place").between(ticks[first][0], ticks[stop - 1][0])).toArrow()
        yield named_rows(part)
        first = stop


def named_rows(part: Any) -> NamedEvents:
    columns = [name for name in part.schema.names if name not in ("place", "name", "events")]
    numbers = np.stack([_numbers(part, name) for name in columns], axis=1)
    return NamedEvents(_numbers(part, "place"), part.column("name").to_pylist(), numbers)


def _distinct(table: Any, name: str) -> tuple[list[str], IntArray]:
    """The different texts of a column, and the place of each row's text among them."""
    column = table.column(name).combine_chunks().dictionary_encode()
    return column.dictionary.to_pylist(), np.asarray(column.indices, np.int64)


def _numbers(table: Any, name: str) -> IntArray:
    return np.asarray(table.column(name).fill_null(0).to_numpy(), np.int64)


def refuse_bad(bad: dict[str, int]) -> None:
    if bad:
        reasons = "; ".join(f"{number} × {reason}" for reason, number in bad.items())
        raise InputError(
            f"rows that are not events: {reasons}. None were counted; fix the source, or leave such rows out with "
            "skip_bad (--skip-bad)"
        )


# -- from rows to groups ----------------------------------------------------------------------------------------------


def group_events(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """One row for each (place, cell) with the number of its events and the sum of their values in grid units."""
    return group_placed(place_events(events, declaration, last, horizon), declaration)


def group_placed(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    valued = "value" in rows_of(declaration.query).columns
    units = fn.coalesce(fn.sum("units"), fn.lit(0)) if valued else fn.lit(0)
    return rows.groupBy("place", "cell").agg(fn.count(fn.lit(1)).alias("events"), units.cast("long").alias("units"))


def has_names(declaration: StreamDeclaration) -> bool:
    """Whether Spark hands over rows with names: keys that nobody listed, without caps of users, or counted users."""
    query = declaration.query
    return query.people is not None or (query.discovery is not None and declaration.budget.unit != "user")


def named_groups(rows: DataFrame, declaration: StreamDeclaration) -> DataFrame:
    """One row for each (place, name): place, name, the numbers of `NamedEvents`, and events, the number of rows. Users
    that are counted have a row for each key; of several events in a tick the first one is taken."""
    number = fn.count(fn.lit(1)).alias("events")
    if declaration.query.people is None:
        groups = with_legal_keys(rows.groupBy("place", "k").agg(number), declaration)
        return groups.select("place", fn.col("k").alias("name"), fn.col("events").alias("number"), "events")
    rows, good = event_rows(rows, declaration), fn.col("place") > 0
    if columns_of(declaration).order is None:  # then it does not matter
        rows = rows.withColumns({"us": fn.lit(0).cast("long"), "o": fn.lit(0).cast("long")})
    name, cell = (fn.when(good, fn.col(column)).alias(alias) for column, alias in (("who", "name"), ("cell", "cell")))
    first = fn.min(fn.struct("us", "o")).alias("first")
    groups = rows.groupBy("place", name, cell).agg(first, number)
    return groups.select("place", "name", "cell", "first.us", "first.o", "events")


def named_history(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """`named_groups` of a whole table. Who is counted once and for all has the first row of each key only."""
    query = declaration.query
    if query.people is None and declaration.budget.unit == "user":
        capped = capped_groups(events, declaration, last, horizon)
        return capped.select("place", fn.col("k").alias("name"), fn.col("events").alias("number"), "events")
    groups = named_groups(place_events(events, declaration, last, horizon), declaration)
    if query.people is None or query.people.each_tick or declaration.budget.caps != (None, None, None):
        return groups
    good, columns = groups.where("place > 0"), ("place", "us", "o")
    first = good.groupBy("name", "cell").agg(
        fn.min(fn.struct(*columns)).alias("first"), fn.sum("events").alias("events")
    )
    return first.select("first.place", "name", "cell", "first.us", "first.o", "events").unionByName(
        groups.where("place IS NULL OR place <= 0")
    )


def capped_groups(events: DataFrame, declaration: StreamDeclaration, last: int, horizon: int | None) -> DataFrame:
    """As `group_events`, for what the caps leave of the events of each user, over a whole history.

    **Guarantee.** The rule of `named_events.cap_ticks` of the store, for all ticks at once. What earlier ticks of a
    period have used up is the sum of their events within `max_per_tick`: below `max_events` it is what they counted,
    above it no room is left either way. Proof: `queries/user_cap.proof.md`, Lemma 1. Test:
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
    cell = "cell" if declaration.query.discovery is None else "k"
    place_cell = ("place", fn.when(fn.col("place") > 0, fn.col(cell)).alias(cell))
    return kept.groupBy(*place_cell).agg(fn.count(fn.lit(1)).alias("events"), fn.sum("units").alias("units"))
