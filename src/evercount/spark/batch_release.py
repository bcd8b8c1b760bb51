"""release_batch: a DataFrame of events → released rows in Parquet, one vectorised run for each shard of cells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

import numpy as np
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from evercount._arrays import IntArray
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import SECOND
from evercount.declare.view_names import shown_tables
from evercount.engine.cell_range import can_be_cut, cut_cells
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import LEVEL
from evercount.engine.tick_totals import TickTotals
from evercount.engine.write_table import arrow_schema, arrow_table, parquet_modules
from evercount.errors import InputError, ParameterError, StoreError
from evercount.noise import Secret
from evercount.privacy import Ledger, guarantee_text
from evercount.queries.capabilities import rows_of
from evercount.spark.check_source import check_parquet_times, check_source
from evercount.spark.count_events import BAD, GROUP_COLUMNS, capped_groups, check_declaration, group_events, refuse_bad
from evercount.spark.failures import first_line
from evercount.spark.run_secret import new_run, proof_of, run_secret
from evercount.spark.session import check_pandas

SCHEMA = "tick bigint, start string, cell string, value double, std double, low double, high double"
CELLS_OF_A_SHARD = 20_000
"""Cells of one shard where the caller does not say how many shards there are."""


@dataclass(frozen=True)
class BatchOutcome:
    """What a batch run has done: public, but for the bad rows.

    Args:
        ticks: the number of released ticks.
        shards: the number of ranges of cells.
        run: the public name of the run.
        guarantee: the guarantee of the run in one sentence.
        bad: rows that were left out.

    >>> BatchOutcome(24, 1, "c0ffee", "...", {"no time": 2}).bad
    {'no time': 2}
    """

    ticks: int
    """Ticks 1 … ticks were released."""
    shards: int
    run: str
    """The random public name of the run: with the operator's secret it gives the noise again, for an audit."""
    guarantee: str
    bad: dict[str, int]
    """Rows that were left out, for each reason. For the operator only."""


@dataclass(frozen=True)
class ShardJob:
    """What an executor needs to know to release one shard; nothing of it is secret."""

    declaration: str
    ticks: int
    shards: int
    run: str
    proof: str
    level: float


def release_batch(
    events: DataFrame,
    declaration: StreamDeclaration,
    out: str,
    *,
    until: int | None = None,
    shards: int | None = None,
    skip_bad: bool = False,
    level: float = LEVEL,
    run: str | None = None,
    ledger: Ledger | None = None,
) -> BatchOutcome:
    """Release all ticks of a table of events at once, as Parquet with one row per tick and cell.

    Args:
        events: a DataFrame that is not streaming, with the columns of the declaration.
        declaration: the stream; its start must be declared.
        out: the folder of the Parquet files; it must not exist.
        until: ticks that have ended by this instant (microseconds since 1970) are released; None for now.
        shards: into how many ranges the cells are cut; each is one task. The numbers are the same for any.
        skip_bad: whether rows that are not events are left out instead of refused.
        level: the level of the intervals.
        run: the name of the run; None for a random one. For audits and tests: a name serves one table of events only.
        ledger: where the run is entered before it releases anything; a run that does not fit is refused before it
            counts.

    Returns:
        What was released, with the guarantee.

    **Guarantee.** What one run publishes is what one `Stream` of the declaration publishes, so its guarantee holds.
    Ticks are chosen by the clock, not by the data. A repeated or speculative task computes the same bits, and Spark
    commits one of them. Every run is a release of its own with independent noise (`run_secret.py`): the budgets of
    several runs over the same events add up (`ledger`). Tests:
    tests/contracts/test_same_table.py::test_a_batch_of_spark_publishes_the_same_table and
    tests/spark/test_batch_release.py::test_shards_do_not_change_a_bit.

    Raises:
        ParameterError: a parameter is outside its domain, or there is no secret in the environment.
        InputError: a column is missing, rows are not events and may not be skipped, or Spark would shift their times.
        StoreError: `out` exists or cannot be written.
        BudgetExceeded: the ledger has not enough left.
    """
    check_declaration(declaration)
    check_pandas()
    if declaration.schedule.start is None:
        raise ParameterError("release_batch needs the start of the stream: declare it")
    if events.isStreaming:
        raise ParameterError("release_batch takes a table; a streaming DataFrame goes to release_stream")
    ticks = _ticks(declaration, round(time() * SECOND) if until is None else until)
    shards = _shards(declaration, shards)
    run = run or new_run()
    check_source(events, declaration)
    check_parquet_times(events, declaration)
    entry = f"{declaration.name} {run}"
    cost = declaration.build(secret=run_secret(run), replay=True).cost
    if ledger is not None:
        ledger.check(entry, cost)
    job = ShardJob(declaration.canonical(), ticks, shards, run, proof_of(run_secret(run)), level)
    capped = declaration.budget.unit == "user"
    guarantee = guarantee_text(declaration.budget).sentence
    grouped = capped_groups if capped else group_events
    groups = grouped(events, declaration, ticks, ticks).persist()
    try:
        bad = {BAD[-row["place"]]: row["events"] for row in groups.where("place < 0").collect()}
        if not skip_bad:
            refuse_bad(bad)
        if ledger is not None:
            ledger.spend(entry, cost, "release_batch")
        released = _sharded(groups, declaration, shards).mapInArrow(partial(_release_shards, job), SCHEMA)
        marked = released.withMetadata("value", {"evercount.guarantee": guarantee, "evercount.run": run})
        marked.write.mode("error").parquet(out)
    except AnalysisException as error:
        raise StoreError(f"{out} cannot be written: {first_line(error)}") from None
    except PySparkException as error:
        raise InputError(f"the job failed: {first_line(error)}") from error
    finally:
        groups.unpersist()
    return BatchOutcome(ticks, shards, run, guarantee, bad)


def _ticks(declaration: StreamDeclaration, until: int) -> int:
    """How many ticks have ended."""
    schedule = declaration.schedule
    ended = schedule.tick_of(until) - 1
    if declaration.horizon is not None:
        ended = min(ended, declaration.horizon)
    if ended < 1:
        raise ParameterError(f"no tick has ended: the first one ends at {schedule.show(schedule.start_of(2))}")
    return ended


def _shards(declaration: StreamDeclaration, shards: int | None) -> int:
    """The number of shards: at most one per cell, and one where cells are published together."""
    query = declaration.query
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ParameterError(f"shards must be a whole number of at least 1, got {shards!r}")
    if not can_be_cut(query):
        return 1
    return min(query.cells, shards or -(-query.cells // CELLS_OF_A_SHARD))


def _sharded(groups: DataFrame, declaration: StreamDeclaration, shards: int) -> DataFrame:
    """The groups with their shard, one partition for each shard; every shard has at least one row."""
    cells = declaration.query.cells
    # the inverse of `cut_cells`: the largest number whose range begins at or before the cell
    shard = fn.expr(f"CAST(((cell + 1) * {shards} - 1) div {cells} AS INT)") if shards > 1 else fn.lit(0)
    counted = groups.where("place > 0").select(shard.alias("shard"), *GROUP_COLUMNS)
    silent = groups.sparkSession.range(shards).select(
        fn.col("id").cast("int").alias("shard"), *(fn.lit(None).cast("long").alias(name) for name in GROUP_COLUMNS)
    )
    return counted.union(silent).repartitionById(shards, "shard")


# -- on an executor ---------------------------------------------------------------------------------------------------


def _release_shards(job: ShardJob, batches: Iterator[Any]) -> Iterator[Any]:
    """The released rows of all shards of a partition."""
    pa, _ = parquet_modules()
    received = list(batches)
    if not received:
        return
    rows = dict(zip(("shard", *GROUP_COLUMNS), pa.Table.from_batches(received).columns, strict=True))
    shard = rows["shard"].to_numpy()
    counted = np.asarray(rows["place"].is_valid().to_numpy(), bool)
    groups = [np.asarray(rows[name].fill_null(0).to_numpy(), np.int64) for name in GROUP_COLUMNS]
    declaration = StreamDeclaration.from_dict(json.loads(job.declaration))
    secret = run_secret(job.run)
    if proof_of(secret) != job.proof:
        raise ParameterError("this executor has another secret than the driver: give both the same")
    for number in np.unique(shard).tolist():
        chosen = counted & (shard == number)
        yield from _release_shard(job, declaration, secret, number, [column[chosen] for column in groups])


def _release_shard(
    job: ShardJob, declaration: StreamDeclaration, secret: Secret, number: int, groups: list[IntArray]
) -> Iterator[Any]:
    """All ticks of one shard, in tables of a bounded size."""
    order = np.lexsort((groups[1], groups[0]))
    tick, cell, total = rows_of(declaration.query).totals(*(column[order] for column in groups))
    part = cut_cells(declaration.query.cells, job.shards)[number] if job.shards > 1 else None
    cells, first = (declaration.query.cells, 0) if part is None else (len(part), part.start)
    totals = TickTotals(1, job.ticks, cells, tick, cell - first, total)
    stream, schedule = declaration.build(secret=secret, part=part), declaration.schedule
    try:
        closed = close_ticks(stream, totals, schedule.starts_of, level=job.level)
        before = np.empty((0, len(stream.labels)))
        made = declaration.view_postprocess
        for table in shown_tables(stream, closed, declaration.shown, schedule, before, job.level, made):
            yield from arrow_table(table, arrow_schema(table, None, {}), schedule.show).to_batches()
    finally:
        stream.close()
