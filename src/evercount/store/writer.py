"""Store: streams, events, ticks and releases that survive any crash."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, select

from evercount.engine.close_ticks import close_ticks
from evercount.engine.stream import Stream
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.errors import Conflict, EvercountError, StoreError, StreamStopped
from evercount.noise import random_bytes
from evercount.store import schema
from evercount.store.accept_totals import CountedBatch, CountedTicks, take_batch
from evercount.store.close_shards import Run, close_by_shards
from evercount.store.closing_ticks import ClosingTicks, counted_ticks, keep_left, make_ready, next_totals, place_given
from evercount.store.commit_batches import Group
from evercount.store.database import Database
from evercount.store.declare_stream import declare_stream
from evercount.store.known_users import forget_users
from evercount.store.load_streams import load_live, load_retired
from evercount.store.named_events import ticks_at_a_time
from evercount.store.open_stream import FILES, Accepted, Batch, EndedStream, LiveStream
from evercount.store.reader import PROBE, Reading, open_sealer
from evercount.store.rollback_guard import HeadFile, HeadKeeper, default_path, keep_lost_spending, quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import retired_rows
from evercount.store.stored_rows import Known

REMEMBER_SECONDS = 30 * 86400.0  # how long an idempotency key is remembered
FORGET_SECONDS = 60.0  # how often keys that are older are looked for
NUMBERS_PER_COMMIT = 50_000  # numbers that one transaction releases when missed ticks are closed together


class NoiseAhead:
    """Threads beside the writer draw the next noise of streams: no tick waits for it, and the numbers are the same."""

    def __init__(self) -> None:
        self._blocks = ThreadPoolExecutor(1, "evercount-noise")
        self._new_keys = ThreadPoolExecutor(4, "evercount-new-keys")  # they may take long, and others must not wait

    def draw_block(self, live: LiveStream) -> None:
        prepare = getattr(live.stream, "prepare", None)
        threads = self._new_keys if live.declaration.query.discovery is not None else self._blocks
        live.ahead = None if prepare is None or live.finished or live.cut is not None else threads.submit(prepare)

    def draw_new_keys(self, live: LiveStream) -> None:
        """Begin to draw the noise of the keys that the open tick has brought."""
        if live.declaration.query.discovery is None or (live.ahead is not None and not live.ahead.done()):
            return
        if live.looked_at < len(live.events):
            live.looked_at = len(live.events)
            live.ahead = self._new_keys.submit(live.stream.prepare, list(live.events))

    def under_way(self, live: LiveStream) -> Future[Any] | None:
        """What has to end before `close_ticks` of this stream is quick: noise that is drawn beside the writer. With
        very many new keys at a late tick it takes longer than clients of other streams may wait."""
        self.draw_new_keys(live)
        return None if live.ahead is None or live.ahead.done() else live.ahead

    def close(self) -> None:
        self._blocks.shutdown(cancel_futures=True)
        self._new_keys.shutdown(cancel_futures=True)


class Store(Reading):
    """The durable side of a service. One object per database writes; its methods are called from one thread.

    **Guarantee.** A batch whose `accept` returned is counted in exactly one tick (for its idempotency key: once within
    30 days). A tick is released at most once: its numbers, the state after it and the consumption of its accumulator
    are one transaction. After a crash the same tick is released with the same noise, because noise is a function of
    (secret, tick, cell). An older copy of the database is refused (`rollback_guard.py`). Assumptions: the disk keeps
    what it confirmed; one writer (`database.py`). Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_rollback.py`, `tests/store/test_store_lock.py`.
    """

    def __init__(self, place: str | Path, key: bytes | None = None, head: Path | None = None) -> None:
        super().__init__(Database(place))
        self.key = key
        self._forget_at = 0.0
        self.noise_ahead = NoiseAhead()
        try:
            self.head = HeadFile(head or default_path(self.database))
            self.head.check_folder()
            self._load()
        except BaseException:
            self.database.close()
            raise

    def _load(self) -> None:
        self.database.migrate()
        with self.database.transaction() as connection:
            if schema.read_fact(connection, "identity") is None:
                identity = random_bytes(16).hex()
                schema.write_fact(connection, "identity", identity)
                schema.write_fact(connection, "probe", Sealer(self.key, identity).seal(PROBE, "probe", 0).hex())
            self.sealer = open_sealer(connection, self.key)
        quarantined = self.check_head(self.head)
        keep_lost_spending(self, self.head, [one for one in quarantined.values() if one.lost])
        streams: dict[str, LiveStream] = {}
        ended: dict[str, EndedStream] = {}
        with self.database.reading() as connection:
            retired = retired_rows(connection)
            for row in connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings():
                name = row["name"]
                if name in retired:
                    ended[name] = load_retired(connection, row, retired[name], name in quarantined)
                    continue
                live = load_live(connection, row, self.sealer)
                if name in quarantined:
                    ended[name] = quarantine(live, quarantined[name])
                    continue
                streams[name] = live
                self.noise_ahead.draw_block(live)
        # at once: readers see the streams of before or of now, never a part of them
        self.streams, self.ended = streams, ended
        self._totals.clear()  # a history may be hidden now
        lost = frozenset(name for name, row in retired.items() if row["stream"] is None)
        self.heads = HeadKeeper(self.head, self, ended, lost)
        self.write_head()

    def recover(self) -> None:
        """After a failure: if the connection was lost, take the lock again; then load what is committed."""
        if self.database.lost:
            self.database.reconnect()
        self._load()

    def close(self) -> None:
        self.noise_ahead.close()
        for live in self.streams.values():
            live.stream.close()
        self.database.close()

    def write_head(self, released: LiveStream | None = None) -> None:
        """Write the head file: after every commit that releases (ticks of one stream), declares or retires."""
        self.heads.write(self.streams.values(), released)

    def name_is_spent(self, name: str) -> bool:
        """Whether a stream had this name that does not go on; no other stream may have it."""
        return name in self.ended or name in self.heads.lost

    # -- streams -----------------------------------------------------------------------------------------------------

    declare = declare_stream

    def open_history(self, name: str) -> LiveStream:
        """The operator says that the past of a stream is loaded, or that there is none: its ticks close from now on.

        **Guarantee.** Before this no tick of the stream is released; when it is called is the operator's public act,
        and no event has a say in it. Test: tests/service/test_service_history.py.
        """
        live = self.find(name)
        if live.waiting == FILES:
            raise Conflict(f"stream {name!r} is fed by `evercount release --db`, whose runs close its ticks")
        if live.waiting is not None:
            with self.database.transaction() as connection:
                schema.remove(connection, schema.waiting_streams, stream=live.id)
            live.waiting = None
        return live

    def find(self, name: str) -> LiveStream:
        """The stream of that name that can go on; StreamStopped if it is over, KeyError if there is none."""
        if self.name_is_spent(name):
            raise StreamStopped(f"stream {name!r} has ended and takes no events")
        return self.streams[name]

    # -- events ------------------------------------------------------------------------------------------------------

    def accept(self, batches: Sequence[Batch], now: float) -> list[Accepted | EvercountError]:
        """Commit batches together; each answer is what became of the batch. StoreError: none was committed."""
        try:
            with self.database.transaction() as connection:
                group = Group(self.streams, connection, now)
                answers = group.add_all(batches)
                group.write()
        except BaseException:
            for live in self.streams.values():  # they may have read events that are not committed
                live.encoder = None
            raise
        group.settle()
        for name in group.events:
            live = self.streams[name]
            if 2 * len(live.events) >= 3 * live.looked_at:  # all events are looked at again: not after every batch
                self.noise_ahead.draw_new_keys(live)
        return answers

    def accept_totals(self, name: str, batch: CountedBatch) -> bool:
        """Commit totals that were counted elsewhere; False if this batch was committed before."""
        live = self.find(name)
        with self.database.transaction() as connection:
            taken = take_batch(connection, live, batch)
        live.counted = True
        return taken

    # -- ticks -------------------------------------------------------------------------------------------------------

    def close_ticks(
        self,
        live: LiveStream,
        count: int,
        closed_at: float,
        describe: int | None = None,
        cells: int | None = None,
        run: Run | None = None,
    ) -> list[dict[str, Any]]:
        """Release the next ticks in one transaction; what is not committed did not happen. The shards of a stream that
        is cut are closed by `run`, None for this process (`close_shards.py`)."""
        if live.finished:
            raise live.over()
        if live.cut is not None:
            return self._describe(live, close_by_shards(self, live, count, closed_at, run), describe, cells)
        count = make_ready(self, live, count)
        count = min(count, max(1, NUMBERS_PER_COMMIT // len(live.labels)))
        if live.counted and live.declaration.remembers:
            with self.database.reading() as connection:
                count = ticks_at_a_time(connection, live.id, range(live.open_tick, live.open_tick + count))
        with self._closing(live) as closing:
            counted = counted_ticks(self, live, count)
            totals = next_totals(live, count, counted)
            tables = list(close_ticks(live.stream, totals, live.declaration.schedule.starts_of))
            with self.database.transaction() as connection:
                for table in tables:
                    closing.write(connection, live, table, closed_at)
                self._consume(connection, live, closing, counted)
        self.write_head(live)
        described = self._describe(live, count, describe, cells)
        self.noise_ahead.draw_block(live)  # last, so that the answer does not wait for it
        return described

    def close_given(
        self, live: LiveStream, given: TickTotals | TickEvents, closed_at: float, also: Callable[[Connection], object]
    ) -> None:
        """Release the next ticks from what was counted in files, in one transaction with what `also` writes.

        **Guarantee.** As `close_ticks`; and a run of files has happened whole or not at all. Test:
        tests/files/test_run_state.py::test_killed_at_every_step_into_a_store.
        """
        with self._closing(live) as closing, self.database.transaction() as connection:
            totals, left = place_given(connection, live, given)
            for table in close_ticks(live.stream, totals, live.declaration.schedule.starts_of):
                closing.write(connection, live, table, closed_at)
            self._consume(connection, live, closing, CountedTicks() if live.counted else None)
            keep_left(connection, live, live.stream.tick + 1, left)
            also(connection)
        self.write_head(live)

    @contextmanager
    def _closing(self, live: LiveStream) -> Iterator[ClosingTicks]:
        """Release ticks, and bring the live stream to what is committed, or back to what was before."""
        if live.ahead is not None:
            wait([live.ahead])  # what went wrong there goes wrong again below
        closing = ClosingTicks(live.head, live.labels)
        try:
            yield closing
        except BaseException as error:
            live.stream, live.encoder = Stream.restore(live.blob, live.declaration.period_of), None
            if isinstance(error, EvercountError) and not isinstance(error, StoreError):
                live.stopped = "the tick cannot be released; see the log of the service"
            raise
        live.blob, live.head, live.labels = closing.blob, closing.head, closing.labels
        live.totals, live.events, live.groups = np.zeros(live.stream.query.cells, np.int64), [], 0
        live.looked_at, live.encoder, live.closed = 0, None, live.stream.tick
        live.early = {tick for tick in live.early if tick > live.closed}

    def _describe(self, live: LiveStream, new: int, describe: int | None, cells: int | None) -> list[dict[str, Any]]:
        """What the last `describe` of the new ticks show, of the first `cells` cells."""
        ticks = new if describe is None else min(new, describe)
        part = None if cells is None else range(cells)
        return self.read_releases(live, live.closed - ticks, ticks, live.closed, part)

    def facts_of(self, one: Known) -> StreamFacts:
        live = self.streams.get(one.declaration.name)
        return super().facts_of(one) if live is None else live.stream

    def hides(self, name: str) -> bool:
        return name in self.ended and not self.ended[name].readable

    def _consume(
        self, connection: Connection, live: LiveStream, closing: ClosingTicks, counted: CountedTicks | None
    ) -> None:
        tick, closing.blob = live.stream.tick, live.stream.snapshot()
        live.write_state(connection, tick, closing.blob)
        live.write_totals(connection, tick + 1, np.zeros(live.stream.query.cells, np.int64))
        forget_users(connection, live, range(live.open_tick, tick + 1))
        if counted is not None:
            counted.write(connection, live, tick)
        if live.declaration.remembers:
            schema.remove(connection, schema.open_events, stream=live.id, tick=range(tick + 1))
        if time.monotonic() > self._forget_at:
            old = schema.batches.c.accepted < time.time() - REMEMBER_SECONDS
            connection.execute(delete(schema.batches).where(old))
            self._forget_at = time.monotonic() + FORGET_SECONDS
