"""release_batch: a DataFrame of events → released rows, one vectorised run for each shard of
cells."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from time import time
from typing import Any

import numpy as np
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from evercount._validate import check_count
from evercount.declarations.cautions import declared_text
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import instant_of
from evercount.declarations.settle import Settled, settle
from evercount.declarations.view_names import shown_tables
from evercount.engine.cell_range import can_be_cut, cut_cells
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.engine.write_table import arrow_schema, arrow_table, parquet_modules
from evercount.errors import InputError, ParameterError, StoreError
from evercount.noise import random_bytes
from evercount.privacy import Ledger
from evercount.spark import count_events as counting
from evercount.spark.session import (
    check_declaration,
    check_pandas,
    check_parquet_times,
    check_source,
    first_line,
    proof_of,
    run_secret,
)
from evercount.store.named_events import Part, as_tick, by_tick

SCHEMA = "tick bigint, start string, cell string, value double, std double, low double, high double"
# cells of one shard where the caller does not say how many shards there are
CELLS_OF_A_SHARD = 20_000
MODES = ("error", "errorifexists", "append", "overwrite")
EVENTS_OF_A_BLOCK = 100_000  # rows with names, and ticks, that are released together


@dataclass(frozen=True)
class BatchOutcome:
    """What a batch run has done: public, but for the bad rows.

    Args:
        ticks: the number of released ticks.
        shards: the number of ranges of cells.
        run: the public name of the run.
        guarantee: the guarantee of the run in one sentence.
        bad: rows that were left out.
        table: the released rows, where nothing was written.

    >>> BatchOutcome(24, 1, "c0ffee", "...", {"no time": 2}).bad
    {'no time': 2}
    """

    ticks: int  # ticks 1 … ticks were released
    shards: int
    # the random public name of the run: with the operator's secret it gives the noise again, for an
    # audit
    run: str
    guarantee: str
    bad: dict[str, int]  # rows that were left out, for each reason. For the operator only.
    table: DataFrame | None = None  # the released rows, where nothing was written


@dataclass(frozen=True)
class ShardJob:
    """What an executor needs to know to release one shard; nothing of it is secret."""

    canonical: str  # the declaration
    ticks: int
    shards: int
    run: str
    proof: str

    @cached_property
    def declaration(self) -> Settled:
        return Settled.from_dict(json.loads(self.canonical))


def release_batch(
    events: DataFrame,
    declaration: StreamDeclaration,
    out: str | None = None,
    *,
    format: str = "parquet",  # noqa: A002 - the word of Spark's writer
    mode: str = "error",
    options: Mapping[str, str] | None = None,
    until: int | None = None,
    shards: int | None = None,
    skip_bad: bool = False,
    run: str | None = None,
    ledger: Ledger | None = None,
) -> BatchOutcome:
    """Release all ticks of a table of events at once, with one row per tick and cell.

    Args:
        events: a DataFrame that is not streaming, with the columns of the declaration.
        declaration: the stream; its start must be declared.
        out: the folder that is written, or what else the format takes as a path; None for a
            DataFrame, which the outcome then has as `table`.
        format: any format of Spark's writer.
        mode: "error", "append" or "overwrite", as for Spark's writer.
        options: of Spark's writer, such as {"compression": "zstd"}.
        until: ticks that have ended by this instant (microseconds since 1970) are released; None
            for now.
        shards: into how many ranges the cells are cut; each is one task. The numbers are the same
            for any.
        skip_bad: whether rows that are not events are left out instead of refused.
        run: the name of the run; None for a random one. For audits and tests: a name serves one
            table of events only.
        ledger: where the run is entered before it releases anything; a run that does not fit is
            refused before it counts.

    Returns:
        What was released, with the guarantee.

    **Guarantee.** What one run publishes is what one `Stream` of the declaration publishes, so its
    guarantee holds. Ticks are chosen by the clock, not by the data. A repeated or speculative task
    computes the same bits, and Spark commits one of them. Every run is a release of its own with
    independent noise (`session.py`): the budgets of several runs over the same events add up
    (`ledger`). Tests:
    tests/contracts/test_same_table.py::test_a_batch_of_spark_publishes_the_same_table and
    tests/spark/test_batch_release.py::test_shards_do_not_change_a_bit.

    Raises:
        ParameterError: a parameter is outside its domain, or there is no secret in the environment.
        InputError: a column is missing, rows are not events and may not be skipped, or Spark would
            shift their times.
        StoreError: `out` exists, with mode "error", or cannot be written.
        BudgetExceeded: the ledger has not enough left.
    """
    _check_arguments(events, declaration, mode)
    if until is None:
        until = instant_of(time())
    ticks = declaration.ended(until)
    if ticks < 1:
        first = declaration.schedule.show(declaration.closes(1))
        raise ParameterError(f"no tick has ended: the first one ends at {first}")
    shards = _shards(declaration, shards)
    run = run or random_bytes(16).hex()
    check_source(events, declaration)
    check_parquet_times(events, declaration)
    if out is not None and mode.startswith("error"):
        _refuse_existing(events.sparkSession, out)
    declaration = settle(declaration)  # once, for all tasks
    entry = f"{declaration.name} {run}"
    cost = declaration.build(secret=run_secret(run), replay=True).cost
    if ledger is not None:
        ledger.check(entry, cost)
    job = ShardJob(declaration.canonical(), ticks, shards, run, proof_of(run_secret(run)))
    guarantee = declared_text(declaration).sentence
    groups = _grouped(events, declaration, ticks).persist()
    try:
        bad = _bad_rows(groups)
        if not skip_bad:
            counting.refuse_bad(bad)
        if ledger is not None:
            ledger.spend(entry, cost)
        released = _release(_partitioned(groups, declaration, shards), declaration, job)
        marked = released.withMetadata(
            "value", {"evercount.guarantee": guarantee, "evercount.run": run}
        )
        table = None
        if out is None:
            # once and for all: a plan that ran again over other events would give the same noise
            # to other counts
            table = marked.localCheckpoint()
        else:
            marked.write.format(format).mode(mode).options(**(options or {})).save(out)
    except AnalysisException as error:
        raise StoreError(f"{out or 'the table'} cannot be written: {first_line(error)}") from None
    except PySparkException as error:
        raise InputError(f"the job failed: {first_line(error)}") from error
    finally:
        groups.unpersist()
    return BatchOutcome(ticks, shards, run, guarantee, bad, table)


def _check_arguments(events: DataFrame, declaration: StreamDeclaration, mode: str) -> None:
    """ParameterError for what a batch cannot release, before anything is read."""
    check_declaration(declaration)
    if declaration.revise_for is not None:
        raise ParameterError(
            "a batch publishes each tick once: late = 'revise' is for release_stream"
        )
    check_pandas()
    if mode not in MODES:
        raise ParameterError(
            f"mode {mode!r:.40} is not one of {', '.join(MODES)} (Spark's 'ignore' would spend a "
            "budget and write nothing)"
        )
    if declaration.schedule.start is None:
        raise ParameterError("release_batch needs the start of the stream: declare it")
    if events.isStreaming:
        raise ParameterError(
            "release_batch takes a table; a streaming DataFrame goes to release_stream"
        )


def _has_names(declaration: StreamDeclaration) -> bool:
    """Return whether the query reads ticks as a whole, by the names in their rows."""
    return declaration.query.people is not None or declaration.query.discovery is not None


def _grouped(events: DataFrame, declaration: StreamDeclaration, ticks: int) -> DataFrame:
    """Group the events of the ticks as far as their query lets them be added up."""
    if _has_names(declaration):
        return counting.named_history(events, declaration, ticks, ticks)
    if declaration.budget.unit == "user":
        return counting.capped_groups(events, declaration, ticks, ticks)
    return counting.group_events(events, declaration, ticks, ticks)


def _release(groups: DataFrame, declaration: StreamDeclaration, job: ShardJob) -> DataFrame:
    """Release partitioned groups, each partition on an executor."""
    if _has_names(declaration):
        ordered = groups.sortWithinPartitions("place")
        return ordered.mapInArrow(partial(_release_named, job), SCHEMA)
    return groups.mapInArrow(partial(_release_shards, job), SCHEMA)


def _bad_rows(groups: DataFrame) -> dict[str, int]:
    """Count the rows that are not events, for each reason."""
    bad = groups.where("place < 0").groupBy("place").agg(fn.sum("events").alias("events"))
    return {counting.BAD[-row["place"]]: row["events"] for row in bad.collect()}


def _refuse_existing(session: SparkSession, out: str) -> None:
    """Refuse a place that exists: Spark itself would say so after the events were counted and the
    budget spent."""
    try:
        session.read.format("binaryFile").load(out)
    except AnalysisException:  # nothing is there
        return
    raise StoreError(
        f"{out} cannot be written: it exists. Name another folder, or choose what happens to it "
        "(mode)"
    )


def _shards(declaration: StreamDeclaration, shards: int | None) -> int:
    """Return the number of shards: at most one per cell, and one where cells are published
    together."""
    query = declaration.query
    if shards is not None:
        check_count("shards", shards)
    if not can_be_cut(query):
        return 1
    return min(query.cells, shards or -(-query.cells // CELLS_OF_A_SHARD))


def _partitioned(groups: DataFrame, declaration: StreamDeclaration, shards: int) -> DataFrame:
    """Give each group its shard, and each shard a partition; every shard has at least one row, of
    no tick."""
    # the inverse of `cut_cells`: the largest number whose range begins at or before the cell
    shard = fn.expr(f"CAST(((cell + 1) * {shards} - 1) div {declaration.query.cells} AS INT)")
    counted = groups.where("place > 0").withColumn("shard", shard if shards > 1 else fn.lit(0))
    silent = groups.sparkSession.range(shards).select(
        fn.col("id").cast("int").alias("shard"),
        fn.lit(0).cast("long").alias("place"),
        *(fn.lit(None).cast(kind).alias(name) for name, kind in groups.dtypes if name != "place"),
    )
    return counted.unionByName(silent).repartitionById(shards, "shard")


# -- on an executor --------------------------------------------------------------------------------


def _release_named(job: ShardJob, batches: Iterator[Any]) -> Iterator[Any]:
    """Release the rows of a query that reads ticks as a whole. Memory holds the rows of a tick, or
    some more."""
    return _released(job, _blocks(_ticks_of(job.declaration, batches, job.ticks)))


def _ticks_of(declaration: StreamDeclaration, batches: Iterable[Any], last: int) -> Iterator[Any]:
    """Yield what the query reads as each tick, up to the last one."""
    tick = 1
    parts = list[Part]()
    for batch in batches:
        rows = counting.named_rows(batch)
        for one, here in by_tick(rows.tick):  # sorted, so that the rows of a tick are neighbours
            while 0 < tick < one:
                yield as_tick(declaration, parts)
                tick += 1
                parts = []
            if one:
                parts.append((list(rows.name[here[0] : here[-1] + 1]), rows.numbers[here]))
    while tick <= last:
        yield as_tick(declaration, parts)
        tick += 1
        parts = []


def _blocks(ticks: Iterable[Any]) -> Iterator[TickEvents]:
    """Join ticks to blocks of a bounded size."""
    first = 1
    block = list[Any]()
    size = 0
    for tick in ticks:
        block.append(tick)
        size += 1 + len(tick)
        if size >= EVENTS_OF_A_BLOCK:
            yield TickEvents(first, block)
            first += len(block)
            block = []
            size = 0
    if block:
        yield TickEvents(first, block)


def _released(
    job: ShardJob, blocks: Iterable[TickTotals | TickEvents], part: range | None = None
) -> Iterator[Any]:
    """Release the blocks by a stream of these cells; yields what it shows, in tables of a bounded
    size, as Arrow."""
    declaration = job.declaration
    secret = run_secret(job.run)
    if proof_of(secret) != job.proof:
        raise ParameterError(
            "this executor and the driver have different secrets: give both the same"
        )
    stream = declaration.build(secret=secret, part=part, task=True)
    schedule = declaration.schedule
    before = np.empty((0, len(stream.labels)))
    made = declaration.view_postprocess
    try:
        closed = (
            table for block in blocks for table in close_ticks(stream, block, schedule.starts_of)
        )
        for table in shown_tables(stream, closed, declaration.main_view, schedule, before, made):
            yield from arrow_table(
                table, arrow_schema(table, None, {}, texts=True), schedule.show
            ).to_batches()
    finally:
        stream.close()


def _release_shards(job: ShardJob, batches: Iterator[Any]) -> Iterator[Any]:
    """Release the shards whose groups are in a partition."""
    pa, _ = parquet_modules()
    received = list(batches)
    if not received:
        return
    shard, *groups = counting.numbers(
        pa.Table.from_batches(received), "shard", *counting.GROUP_COLUMNS
    )
    every = job.declaration.query.cells
    for number in np.unique(shard).tolist():
        tick, cell, total = counting.sums(
            job.declaration, [column[shard == number] for column in groups]
        )
        part = None
        own_cells = range(every)
        if job.shards > 1:
            part = own_cells = cut_cells(every, job.shards)[number]
        totals = TickTotals(1, job.ticks, len(own_cells), tick, cell - own_cells.start, total)
        yield from _released(job, [totals], part)
