"""release_stream: a streaming DataFrame → totals in the store → due ticks released, exactly once.

One round reads all that the source has (`availableNow`), micro-batch after micro-batch, and then closes the ticks that
had ended when the round began. So a tick is closed only after everything that the source held at its end was counted,
also after days without a run, and quiet ticks are closed like all others. Spark keeps no state: which tick is open,
closed or late is decided by the declaration alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import SECOND, UNITS
from evercount.errors import EvercountError, InputError, ParameterError, StoreError
from evercount.spark.count_events import check_declaration, count_placed, place_events, refuse_bad
from evercount.spark.failures import first_line
from evercount.spark.progress import Progress
from evercount.spark.store_door import StoreDoor
from evercount.store import Store
from evercount.store.accept_totals import CountedBatch

MOST_AHEAD, LONGEST_AHEAD = 100_000, 5 * 366 * UNITS["d"]
"""Ticks and microseconds ahead of the open tick that a row may lie in: every such tick has totals in the store."""
Clock = Callable[[], int]
"""The instant now, in microseconds since 1970."""


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

    ticks: range
    """The ticks that were released."""
    batches: int
    """Micro-batches that were new to the store."""
    finished: bool
    """Whether the horizon is reached."""
    bad: dict[str, int] = field(default_factory=dict)
    """Rows that were left out, for each reason. For the operator only."""


def wall_clock() -> int:
    """The computer's clock."""
    return round(time() * SECOND)


def release_stream(
    events: DataFrame,
    declaration: StreamDeclaration,
    store: Store | str | Path,
    checkpoint: str,
    *,
    clock: Clock = wall_clock,
    wait: int = 0,
    shards: int | None = None,
    skip_bad: bool = False,
    new_checkpoint: bool = False,
    progress: Progress | None = None,
) -> StreamOutcome:
    """Count all that the source has now, then release the ticks that have ended.

    Args:
        events: a streaming DataFrame with the columns of the declaration.
        declaration: the stream, the same as for every other door.
        store: an open store, or its place: an SQLite file or a PostgreSQL URL.
        checkpoint: the folder in which Spark keeps what it has read. One checkpoint serves one stream.
        clock: the instant now.
        wait: how many microseconds after its end a tick is closed, for sources that deliver late.
        shards: into how many ranges the cells of a new stream are cut; executors then close them, each by itself. The
            numbers are the same for any. None: the driver closes the ticks, or what the store knows of the stream.
        skip_bad: whether rows that are no events are left out instead of refused.
        new_checkpoint: whether a checkpoint may be new although the store was fed from another one before. Say so
            only if the source holds no event that was counted already.
        progress: is told what happens.

    Returns:
        What was released.

    **Guarantee.** The ticks are released by the same engine as through every other door, each once
    (`store/writer.py`), and every event is counted once: Spark delivers a micro-batch again under the same number
    until it is committed, and the store counts a number once (`store/accept_totals.py`). Assumption: the source gives
    the same events for the same offsets; where it does not, the digests differ and the batch is refused. Tests:
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table and
    tests/spark/test_stream_faults.py::test_a_driver_that_is_killed_loses_nothing.

    Raises:
        ParameterError: a parameter is outside its domain.
        InputError: rows are no events, or the source cannot be read.
        StoreError: the store or the checkpoint does not belong to this stream.
    """
    check_declaration(declaration)
    if not events.isStreaming:
        raise ParameterError("release_stream takes a streaming DataFrame; a table goes to release_batch")
    if isinstance(wait, bool) or not isinstance(wait, int) or wait < 0:
        raise ParameterError(f"wait must be a number of microseconds of at least 0, got {wait!r}")
    if type(events).__module__.startswith("pyspark.sql.connect"):
        raise ParameterError(
            "a session of Spark Connect runs the function for each micro-batch on its server, and the store is open "
            "here: use a session of the driver itself (`evercount spark` or spark-submit). release_batch takes both"
        )
    now = clock()
    with StoreDoor(store, declaration, now, shards, events.sparkSession) as door:
        round_ = _Round(door, checkpoint, skip_bad, new_checkpoint, progress)
        if not door.finished:
            round_.check_checkpoint(events.sparkSession)
            with _listening(events.sparkSession, progress):
                round_.read(events)
        ticks = door.close_due(now - wait)
        if progress is not None:
            progress.closed(ticks, door.due(clock()))
        return StreamOutcome(ticks, round_.batches, door.finished, round_.bad)


class _Round:
    """One streaming query that reads all there is."""

    def __init__(
        self, door: StoreDoor, checkpoint: str, skip_bad: bool, new_checkpoint: bool, progress: Progress | None
    ) -> None:
        self.door, self.checkpoint = door, checkpoint.rstrip("/")
        self.skip_bad, self.new_checkpoint, self.progress = skip_bad, new_checkpoint, progress
        self.batches = 0
        self.bad: dict[str, int] = {}
        self.query: Future[str] = Future()
        """The id that the checkpoint gives its query."""
        self.failure: BaseException | None = None

    def check_checkpoint(self, session: SparkSession) -> None:
        """Refuse before anything is read what the store would refuse anyway."""
        known = self.door.queries
        if not known or self.new_checkpoint:
            return
        query_id = _query_id(session, self.checkpoint)
        if query_id not in known:
            lost = f"there is none at {self.checkpoint}" if query_id is None else f"{self.checkpoint} is another one"
            raise StoreError(
                f"stream {self.door.declaration.name!r} was fed from a checkpoint before, and {lost}: the source would "
                "give all its events again, and the store cannot tell them from new ones. Put the old checkpoint back; "
                "or, if the source holds new events only, say so with new_checkpoint (--new-checkpoint)"
            )

    def read(self, events: DataFrame) -> None:
        """Count all that the source has now. Every row gets its place in the streaming query: that is planned once."""
        declaration = self.door.declaration
        placed = place_events(events, declaration, self._last_tick(), declaration.horizon)
        try:
            query = (
                placed.writeStream.foreachBatch(self._take)
                .queryName(f"evercount {declaration.name}")
                .option("checkpointLocation", self.checkpoint)
                .trigger(availableNow=True)
                .start()
            )
            self.query.set_result(str(query.id))
            query.awaitTermination()
        except PySparkException as error:
            if isinstance(self.failure, EvercountError):
                raise self.failure from None
            if self.failure is not None:
                raise self.failure from error
            raise InputError(f"the source cannot be read: {first_line(error)}") from error

    def _take(self, batch: DataFrame, number: int) -> None:
        try:
            self._count(batch, number)
        except BaseException as error:
            self.failure = error
            raise

    def _count(self, batch: DataFrame, number: int) -> None:
        door = self.door
        counted = count_placed(batch, door.declaration)
        if not self.skip_bad:
            refuse_bad(counted.bad)
        if door.accept(CountedBatch(self.query.result(), number, counted.totals, self.new_checkpoint, counted.users)):
            self.batches += 1
            for reason, rows in counted.bad.items():
                self.bad[reason] = self.bad.get(reason, 0) + rows

    def _last_tick(self) -> int:
        """The last tick that may have events now."""
        schedule, closed = self.door.declaration.schedule, self.door.closed
        return max(
            closed + 1, min(closed + MOST_AHEAD, schedule.tick_of(schedule.start_of(closed + 1) + LONGEST_AHEAD))
        )


def _query_id(session: SparkSession, checkpoint: str) -> str | None:
    """The id that Spark gave the query of a checkpoint; None where there is no checkpoint yet."""
    try:
        lines = session.read.text(f"{checkpoint}/metadata").collect()
        return str(json.loads("".join(row["value"] for row in lines))["id"])
    except AnalysisException:
        return None
    except (ValueError, KeyError, TypeError, PySparkException) as error:
        raise StoreError(f"the checkpoint {checkpoint} cannot be read: {first_line(error)}") from None


@contextmanager
def _listening(session: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Spark tells `progress` about every micro-batch."""
    if progress is None:
        yield
        return
    session.streams.addListener(progress)
    try:
        yield
    finally:
        session.streams.removeListener(progress)
