"""release_stream: a streaming DataFrame → totals in the store → due ticks released, exactly once.

One round reads all that the source has (`availableNow`), micro-batch after micro-batch, and then
closes the ticks that had ended when the round began. So a tick is closed only after everything that
the source held at its end was counted, also after days without a run, and quiet ticks are closed
like all others. Spark keeps no state: which tick is open, closed or late is decided by the
declaration alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter, time
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import inheritable_thread_target

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import instant_of
from evercount.errors import Conflict, EvercountError, InputError, ParameterError, StoreError
from evercount.files.lake_table import append_new, open_lake
from evercount.spark.count_events import count_placed, place_events, refuse_bad
from evercount.spark.session import (
    check_declaration,
    check_pandas,
    check_parquet_times,
    check_source,
    first_line,
)
from evercount.store import Store, key_from_environment
from evercount.store.accept_totals import FedStream, SourceBatch
from evercount.store.closing_ticks import Run, ShardWork, close_shard

Clock = Callable[[], int]  # the instant now, in microseconds since 1970


@dataclass(frozen=True)
class StreamOutcome:
    """What one round has done. Public, but for the bad rows.

    Args:
        ticks: the released ticks.
        batches: the number of new micro-batches.
        finished: whether the stream has ended.
        bad: rows that were left out.

    >>> len(StreamOutcome(range(1, 25), batches=2, finished=False).ticks)
    24
    """

    ticks: range  # the ticks that were released
    batches: int  # micro-batches that were new to the store
    finished: bool  # whether the horizon is reached
    bad: dict[str, int] = field(default_factory=dict)  # for each reason; for the operator only


def append_released(store: Store, name: str, lake: str) -> int:
    """Append what a stream shows to a Delta or Iceberg table that lacks it:
    `files/lake_table.py`."""
    stored, tables = store.tables_of(name)
    return append_new(
        lake, name, tables, stored.declaration.schedule, store.streams[name].guarantee
    )


def release_stream(
    events: DataFrame,
    declaration: StreamDeclaration,
    store: Store | str | Path,
    checkpoint: str,
    *,
    clock: Clock = lambda: instant_of(time()),
    shards: int | None = None,
    skip_bad: bool = False,
    new_checkpoint: bool = False,
    lake: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> StreamOutcome:
    """Count all that the source has now, then release the ticks that have ended.

    Args:
        events: a streaming DataFrame with the columns of the declaration. A reader of files must
            have the option maxFileAge, and give times in texts (JSON, CSV) as string.
        declaration: the stream, the same as for every other interface.
        store: an open store, or its place: an SQLite file or a PostgreSQL URL.
        checkpoint: the folder in which Spark keeps what it has read. One checkpoint serves one
            stream.
        clock: the instant now.
        shards: into how many ranges the cells of a new stream are cut; executors then close them,
            each by itself. The numbers are the same for any. None: the driver closes the ticks, or
            what the store knows of the stream.
        skip_bad: whether rows that are not events are left out instead of refused.
        new_checkpoint: whether a checkpoint may be new although the store was fed from another one
            before. Say so only if the source holds no event that was counted already.
        lake: a Delta or Iceberg table, delta:FOLDER or iceberg:FOLDER/namespace.table, that gets
            every released tick once: what it lacks is appended after the round, with what an
            earlier round could not append.
        say: called with a line for each micro-batch and for the round. They count rows exactly, so
            they are for the operator and not for publication.

    Returns:
        What was released.

    **Guarantee.** The ticks are released by the same engine as by every other interface, each once
    (`store/writer.py`), and every event is counted once: Spark delivers a micro-batch again under
    the same number until it is committed, and the store counts a number once
    (`store/accept_totals.py`). A checkpoint with batches that the store lacks is refused before a
    tick closes. Assumption: the source gives the same events for the same offsets; where it does
    not, the digests differ and the batch is refused. Tests:
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table,
    tests/spark/test_stream_faults.py::test_a_driver_that_is_killed_loses_nothing and
    tests/spark/test_stream_release.py::test_a_checkpoint_ahead_of_the_store_is_refused_before_a_tick_closes.

    Raises:
        ParameterError: a parameter is outside its domain.
        InputError: rows are not events, a column is missing, Spark would shift times, or the source
            cannot be read.
        StoreError: the store or the checkpoint does not belong to this stream.
    """
    check_declaration(declaration)
    if not events.isStreaming:
        raise ParameterError(
            "release_stream takes a streaming DataFrame; a table goes to release_batch"
        )
    if type(events).__module__.startswith("pyspark.sql.connect"):
        raise ParameterError(
            "a session of Spark Connect runs the function for each micro-batch on its server, and "
            "the store is open here: use a session of the driver itself (`evercount spark` or "
            "spark-submit). release_batch takes both"
        )
    check_source(events, declaration)
    if lake is not None:
        open_lake(lake)  # fails now, and not after a round, if there can be no such table
    now = clock()
    with (
        nullcontext(store)
        if isinstance(store, Store)
        else closing(Store(store, key_from_environment())) as opened
    ):
        fed = FedStream(opened, declaration, now, shards)
        if fed.live.shards is not None:
            fed.run = executors_of(events.sparkSession, opened)
        round_ = _Round(fed, checkpoint, skip_bad, new_checkpoint, say)
        if not fed.finished:
            round_.check_checkpoint(events.sparkSession)
            round_.read(events)
        ticks = fed.close_due(now)
        if lake is not None:
            append_released(opened, declaration.name, lake)
        what = "no tick has ended"
        if ticks:
            what = f"ticks {ticks[0]} to {ticks[-1]} released"
        say(f"{what}; {fed.due(clock())} behind the clock")
        return StreamOutcome(ticks, round_.batches, fed.finished, dict(round_.bad))


class _Round:
    """One streaming query that reads all there is."""

    def __init__(
        self,
        fed: FedStream,
        checkpoint: str,
        skip_bad: bool,
        new_checkpoint: bool,
        say: Callable[[str], None],
    ) -> None:
        self.fed = fed
        self.checkpoint = checkpoint.rstrip("/")
        self.skip_bad = skip_bad
        self.new_checkpoint = new_checkpoint
        self.say = say
        self.batches = 0
        self.bad: Counter[str] = Counter()
        self.query: Future[str] = Future()  # the id that the checkpoint gives its query
        self.failure: BaseException | None = None
        self.over = False
        self.storing = Lock()

    def check_checkpoint(self, session: SparkSession) -> None:
        """Refuse a checkpoint that would give old events again, or has batches that the store
        lacks."""
        last_batches = self.fed.last_batches()
        query, coming = read_checkpoint(session, self.checkpoint)
        if last_batches and query not in last_batches and not self.new_checkpoint:
            lost = f"{self.checkpoint} is another one"
            if query is None:
                lost = f"there is none at {self.checkpoint}"
            raise Conflict(
                f"stream {self.fed.declaration.name!r} was fed from a checkpoint before, and "
                f"{lost}: the source would give all its events again, and the store cannot tell "
                "them from new ones. Put the old checkpoint back; or, if the source holds new "
                "events only, say so with new_checkpoint (--new-checkpoint)"
            )
        counted = last_batches.get(query or "", -1) + 1
        if coming > counted:
            has = "none of its batches"
            if counted:
                has = f"{counted} batches of it"
            raise Conflict(
                f"the checkpoint {self.checkpoint} is ahead of the store: Spark continues with "
                f"batch {coming}, and stream {self.fed.declaration.name!r} has counted {has}, so "
                "events would be lost. Put back the store and the stream that belong to the "
                "checkpoint, or start with a new checkpoint"
            )

    def read(self, events: DataFrame) -> None:
        """Count all that the source has now. Every row gets its place in the streaming query: that
        is planned once. Another thread waits for Spark: one that is interrupted in a call of the
        JVM cannot stop the query."""
        declaration = self.fed.declaration
        placed = place_events(events, declaration, self.fed.last_tick, declaration.horizon)
        inheritable = inheritable_thread_target(events.sparkSession)
        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(inheritable(lambda: self._start(events, placed)))
            try:
                pool.submit(started.result().awaitTermination).result()
            except (PySparkException, Py4JError) as error:
                failure = self.failure
                if failure is not None and not isinstance(failure, (PySparkException, Py4JError)):
                    raise failure from (None if isinstance(failure, EvercountError) else error)
                raise InputError(
                    f"the source cannot be read: {first_line(failure or error)}"
                ) from error
            except BaseException:  # Ctrl-C
                with self.storing:
                    self.over = True
                started.result().stop()
                raise

    def _start(self, events: DataFrame, placed: DataFrame) -> StreamingQuery:
        """Start the streaming query; it ends when it has read all that the source has now."""

        def take(batch: DataFrame, number: int) -> None:
            try:
                if self.fed.declaration.schedule.zone != "UTC":
                    check_parquet_times(events, self.fed.declaration, batch.inputFiles())
                self._count(batch, number)
            except BaseException as error:
                self.failure = error
                raise

        query = (
            placed.writeStream.foreachBatch(take)
            .queryName(f"evercount {self.fed.declaration.name}")
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        self.query.set_result(str(query.id))
        return query

    def _count(self, batch: DataFrame, number: int) -> None:
        """Commit what a micro-batch holds; refuse it for bad rows, and after an interruption."""
        begin = perf_counter()
        with count_placed(batch, self.fed.declaration) as arrivals:
            if not self.skip_bad:
                refuse_bad(arrivals.reasons)
            with self.storing:
                if self.over:
                    raise InputError("the round was interrupted")
                micro_batch = SourceBatch(self.query.result(), number, self.new_checkpoint)
                if self.fed.accept(micro_batch, arrivals):
                    self.batches += 1
                    self.bad.update(arrivals.reasons)
        speed = arrivals.rows / (perf_counter() - begin)
        self.say(f"micro-batch {number}: {arrivals.rows} rows, {speed:.0f} rows/s")


def read_checkpoint(session: SparkSession, folder: str) -> tuple[str | None, int]:
    """The id of the checkpoint's query, None where there is none, and the number of the first batch
    that will come. Spark gives the newest planned batch again if it is not committed; all before it
    are over. It plans a batch after it has committed the one before, so a folder `commits` that was
    lost or is older counts for nothing here."""
    jvm: Any = session._jvm
    state: Any = session._jsparkSession.sessionState()
    try:
        root = jvm.org.apache.hadoop.fs.Path(folder)
        files = root.getFileSystem(state.newHadoopConf())

        def newest(name: str) -> int:
            path = jvm.org.apache.hadoop.fs.Path(root, name)
            if not files.exists(path):
                return -1
            names = [one.getPath().getName() for one in files.listStatus(path)]
            return max((int(name) for name in names if name.isdecimal()), default=-1)

        metadata = jvm.org.apache.hadoop.fs.Path(root, "metadata")
        query = None
        if files.exists(metadata):
            with closing(files.open(metadata)) as stream:
                query = str(json.loads(stream.readAllBytes())["id"])
        return query, max(newest("commits") + 1, newest("offsets"))
    except (ValueError, KeyError, TypeError, Py4JError) as error:
        raise StoreError(f"the checkpoint {folder} cannot be read: {first_line(error)}") from None


def executors_of(session: SparkSession, store: Store) -> Run:
    """What closes the shards of a stream of this store on the executors of a session, each by
    itself. The store's key and the password of a database are taken from the executor's own
    environment; they never travel."""
    check_pandas()
    if store.database.url.password is not None:
        raise ParameterError(
            "executors open the store themselves, and its password must not travel with a job: "
            "leave it out of the address, and give it to the driver and every executor by "
            "PGPASSWORD or a .pgpass file"
        )

    def run(work: ShardWork) -> None:
        # a partition, and so a task, for each
        numbers = session.range(0, work.shards, 1, work.shards)
        try:
            numbers.mapInPandas(partial(_close, work), "shard long, ticks long").collect()
        except PySparkException as error:
            raise StoreError(f"a shard could not be closed: {first_line(error)}") from error

    return run


def _close(work: ShardWork, frames: Iterator[Any]) -> Iterator[Any]:
    """On an executor: close the shards of these rows."""
    key = key_from_environment()
    for frame in frames:
        ticks = [close_shard(work, int(number), key) for number in frame["id"]]
        yield frame.rename(columns={"id": "shard"}).assign(ticks=ticks)
