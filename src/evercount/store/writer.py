"""Store, the one writer of a database, and WatchedStore, the same store as another process shows
it.

What `Store` has confirmed survives any crash. Nothing can be changed through a `WatchedStore`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sqlalchemy import Connection, delete

from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.errors import Conflict, EvercountError, ParameterError, StoreError, StreamStopped
from evercount.noise import Secret, random_bytes
from evercount.store import schema
from evercount.store.accept_totals import SourceBatch, take_batch
from evercount.store.closing_ticks import ClosingTicks, DueTicks, Run, close_by_shards, make_ready
from evercount.store.commit_batches import GroupCommit
from evercount.store.database import Database, read_fact, remove, rows_of, write_fact
from evercount.store.declare_stream import declare_stream, load_live, load_retired
from evercount.store.named_events import ticks_at_a_time
from evercount.store.open_stream import FILES, Accepted, Batch, LiveStream, StoredStream
from evercount.store.reader import PROBE, Reading, open_sealer, read_identity
from evercount.store.rollback_guard import (
    HeadFile,
    HeadWriter,
    default_path,
    keep_lost_spending,
    quarantine,
)
from evercount.store.sealing import Sealer
from evercount.store.spending import retired_rows
from evercount.store.stored_releases import (
    declared,
    labels_of,
    read_marks,
    released_until,
    with_late_rules,
)

REMEMBER_SECONDS = 30 * 86400.0  # how long an idempotency key is remembered
FORGET_SECONDS = 60.0  # how often keys that are older are looked for
# numbers that one transaction releases when missed ticks are closed together
NUMBERS_PER_COMMIT = 50_000


def exhaust(tables: Iterable[ReleaseTable]) -> None:
    """Release tables that nobody else is waiting for."""
    for _ in tables:
        pass


class NoiseAhead:
    """Threads that draw the next noise of streams: no tick waits for it, and the numbers are the
    same."""

    def __init__(self) -> None:
        self._blocks = ThreadPoolExecutor(1, "evercount-noise")
        # they may take long, and others must not wait
        self._new_keys = ThreadPoolExecutor(4, "evercount-new-keys")

    def draw_block(self, live: LiveStream) -> None:
        """Begin to draw the noise of the next ticks."""
        live.ahead = None
        if live.finished or live.shards is not None:
            return
        threads = self._blocks
        if live.declaration.query.discovery is not None:
            threads = self._new_keys
        live.ahead = threads.submit(live.stream.prepare)

    def draw_new_keys(self, live: LiveStream) -> None:
        """Begin to draw the noise of the keys that the open tick has brought."""
        if live.declaration.query.discovery is None or (
            live.ahead is not None and not live.ahead.done()
        ):
            return
        if live.looked_at < len(live.events):
            live.looked_at = len(live.events)
            live.ahead = self._new_keys.submit(live.stream.prepare, list(live.events))

    def pending_noise(self, live: LiveStream) -> Future[Any] | None:
        """Noise that is being drawn outside the writer, if any: until it is there `close_ticks` of
        this stream is not quick. With very many new keys at a late tick it takes longer than
        clients of other streams may wait."""
        self.draw_new_keys(live)
        if live.ahead is None or live.ahead.done():
            return None
        return live.ahead

    def close(self) -> None:
        self._blocks.shutdown(cancel_futures=True)
        self._new_keys.shutdown(cancel_futures=True)


class Store(Reading):
    """The durable side of a service. One object per database writes; its methods are called from
    one thread.

    **Guarantee.** A batch whose `accept` returned is counted in exactly one tick (for its
    idempotency key: once within 30 days). A tick is released at most once: its numbers, the state
    after it and the consumption of its accumulator are one transaction. After a crash the same tick
    is released with the same noise, because noise is a function of (secret, tick, cell). An older
    copy of the database is refused (`rollback_guard.py`). Assumptions: the disk keeps what it
    confirmed; one writer (`database.py`). Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_rollback.py`, `tests/store/test_store_lock.py`.
    """

    def __init__(
        self, place: str | Path, key: bytes | None = None, head: Path | None = None
    ) -> None:
        super().__init__(Database(place))
        self.key = key
        self._forget_at = 0.0
        self.noise_ahead = NoiseAhead()
        try:
            self.head = HeadFile(head or default_path(self.database))
            self._load()
            self.database.keep_others_out()
            self.head.keep_others_out()
        except BaseException:
            self.database.close()
            raise

    def _load(self) -> None:
        """Bring memory to what the database holds; streams that must not go on are in `ended`."""
        self.database.migrate()
        with self.database.transaction() as connection:
            if read_fact(connection, "identity") is None:
                identity = random_bytes(16).hex()
                write_fact(connection, "identity", identity)
                write_fact(
                    connection, "probe", Sealer(self.key, identity).seal(PROBE, "probe", 0).hex()
                )
            self.sealer = open_sealer(connection, self.key)
        quarantined = self.check_head(self.head)
        keep_lost_spending(self, self.head, [one for one in quarantined.values() if one.lost])
        streams: dict[str, LiveStream] = {}
        ended: dict[str, StoredStream] = {}
        with self.database.reading() as connection:
            retired = retired_rows(connection)
            for row in rows_of(connection, schema.streams, order="id").mappings():
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
        self.streams = streams
        self.ended = ended
        lost = frozenset(name for name, row in retired.items() if row["stream"] is None)
        self.heads = HeadWriter(self.head, self, ended, lost)
        self.write_head()

    def recover(self) -> None:
        """After a failure: if the connection was lost, take the lock again; then load what is
        committed."""
        if self.database.lost:
            self.database.reconnect()
        self._load()

    def close(self) -> None:
        self.noise_ahead.close()
        for live in self.streams.values():
            live.stream.close()
        self.database.close()

    def write_head(self, released: LiveStream | None = None) -> None:
        """Write the head file: after every commit that releases (ticks of one stream), declares or
        retires."""
        self.heads.write(self.streams.values(), released)

    def name_is_spent(self, name: str) -> bool:
        """Whether a stream had this name that does not go on; no other stream may have it."""
        return name in self.ended or name in self.heads.lost

    # -- streams -----------------------------------------------------------------------------------

    declare = declare_stream

    def open_history(self, name: str) -> LiveStream:
        """The operator says that the past of a stream is loaded, or that there is none: its ticks
        close from now on.

        **Guarantee.** Before this no tick of the stream is released; when it is called is the
        operator's public act, and no event has a say in it. Test:
        tests/service/test_service_history.py.
        """
        live = self.find(name)
        if live.waiting == FILES:
            raise Conflict(
                f"stream {name!r} is fed by `evercount release --db`, whose runs close its ticks"
            )
        if live.waiting is not None:
            with self.database.transaction() as connection:
                remove(connection, schema.waiting_streams, stream=live.id)
            live.waiting = None
        return live

    def find_any(self, name: str) -> StoredStream:
        stream = self.streams.get(name) or self.ended.get(name)
        if stream is None:
            raise ParameterError(f"the store has no stream {name!r}")
        return stream

    def find(self, name: str) -> LiveStream:
        """The stream of that name that can go on; StreamStopped if it is over."""
        live = None
        if name not in self.heads.lost:
            live = self.find_any(name).live
        if live is None:
            raise StreamStopped(f"stream {name!r} has ended and takes no events")
        return live

    # -- events ------------------------------------------------------------------------------------

    def accept(self, batches: Sequence[Batch], now: float) -> list[Accepted | EvercountError]:
        """Commit batches together; each answer is what became of the batch. StoreError: none was
        committed."""
        try:
            with self.database.transaction() as connection:
                group = GroupCommit(self.streams, connection, now)
                answers = group.add_all(batches)
                group.write()
        except BaseException:
            for live in self.streams.values():  # they may have read events that are not committed
                live.encoder = None
            raise
        for pending in group.pending.values():
            pending.settle()
            live = pending.live
            # all events are looked at again: not after every batch
            if 2 * len(live.events) >= 3 * live.looked_at:
                self.noise_ahead.draw_new_keys(live)
        return answers

    def accept_totals(self, name: str, batch: SourceBatch, arrivals: Arrivals) -> bool:
        """Commit what was counted elsewhere; False if this batch was committed before."""
        live = self.find(name)
        with self.database.transaction() as connection:
            new = take_batch(connection, live, batch, arrivals)
        live.counted = True
        return new

    # -- ticks -------------------------------------------------------------------------------------

    def close_ticks(
        self, live: LiveStream, count: int, closed_at: float, run: Run | None = None
    ) -> None:
        """Release as many of the next ticks as belong into one transaction; what is not committed
        did not happen. The shards of a stream that is cut are closed by `run`, None for this
        process (`closing_ticks.py`)."""
        if live.finished:
            raise live.over()
        if live.shards is not None:
            close_by_shards(self, live, live.shards, count, closed_at, run)
            return
        count = min(make_ready(self, live, count), max(1, NUMBERS_PER_COMMIT // len(live.labels)))
        if live.counted and live.declaration.remembers:
            count = self.database.read(
                ticks_at_a_time, live.id, range(live.open_tick, live.open_tick + count)
            )
        self._release(live, closed_at, lambda connection: DueTicks.stored(connection, live, count))
        self.noise_ahead.draw_block(live)

    def close_given(
        self,
        live: LiveStream,
        given: TickTotals | TickEvents,
        closed_at: float,
        publish: Callable[[Iterator[ReleaseTable]], object],
        also: Callable[[Connection], object],
    ) -> None:
        """Release the next ticks from what was counted in files, in one transaction with what
        `also` writes. `publish` is given the released tables one by one, before the commit.

        **Guarantee.** As `close_ticks`; and a run of files has happened whole or not at all. Test:
        tests/files/test_run_state.py::test_killed_at_every_step_into_a_store.
        """
        live.check_not_moving()
        self._release(live, closed_at, lambda _: DueTicks.given(live, given), publish, also)

    def _release(
        self,
        live: LiveStream,
        closed_at: float,
        read: Callable[[Connection], DueTicks],
        publish: Callable[[Iterator[ReleaseTable]], object] = exhaust,
        also: Callable[[Connection], object] | None = None,
    ) -> None:
        """Release ticks, and bring the live stream to what is committed, or back to what was
        before."""
        if live.ahead is not None:
            wait([live.ahead])  # what went wrong there goes wrong again below
        closing = ClosingTicks(live.head, live.labels)
        try:
            with self.database.transaction() as connection:
                due = read(connection)
                starts = live.declaration.schedule.starts_of
                tables = close_ticks(live.stream, due.totals, starts)
                publish(closing.written(connection, live, tables, closed_at))
                blob = live.stream.snapshot()
                live.write_state(connection, live.stream.tick, blob)
                due.write(connection, live, live.stream.tick)
                self._forget_batches(connection)
                if also is not None:
                    also(connection)
        except BaseException as error:
            live.stream = Stream.restore(live.blob, live.declaration.period_of)
            live.encoder = None
            if isinstance(error, EvercountError) and not isinstance(error, StoreError):
                live.stopped = "the tick cannot be released; see the log of the service"
            raise
        live.take_over(blob, closing.head, closing.labels, due.moved_sums, due.moved_events)
        self.write_head(live)

    def hides(self, name: str) -> bool:
        return name in self.ended and not self.ended[name].readable

    def _forget_batches(self, connection: Connection) -> None:
        if time.monotonic() > self._forget_at:
            old = schema.batches.c.accepted < time.time() - REMEMBER_SECONDS
            connection.execute(delete(schema.batches).where(old))
            self._forget_at = time.monotonic() + FORGET_SECONDS


class WatchedStore(Store):
    """Streams, declarations and releases of a store without its lock and without its key.

    Every method of `Store` that writes fails, because the database is open for reading only. `look`
    brings what the writer has released since.

    **Guarantee.** A history that differs from the one that the head file names is not shown. Test:
    `tests/service/test_service_hidden_history.py::test_no_route_shows_it`.
    """

    def __init__(self, place: str | Path, head: Path | None = None) -> None:
        Reading.__init__(self, Database(place, write=False))
        self.key = None
        self.noise_ahead = NoiseAhead()
        self.streams: dict[str, LiveStream] = {}
        self.ended: dict[str, StoredStream] = {}
        try:
            self.database.read(schema.check_schema)
            self.sealer = Sealer(None, self.database.read(read_identity))
            self.head = HeadFile(head or default_path(self.database))
            self._hidden = {}
            if self.head.read() is not None:
                differing = self.check_head(self.head)
                self._hidden = {name: why for name, why in differing.items() if not why.readable}
            self.look()
        except BaseException:
            self.database.close()
            raise

    def declare(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreError("this store was opened for reading only")

    def look(self) -> list[str]:
        """The names of streams that have released something since the last look."""
        news = []
        with self.database.reading() as connection:
            retired = retired_rows(connection)
            waiting = {
                one.stream: one.reason for one in rows_of(connection, schema.waiting_streams)
            }
            for row in rows_of(connection, schema.streams, order="id").mappings().all():
                name = row["name"]
                number = row["id"]
                if name in retired:
                    self.ended[name] = load_retired(connection, row, retired[name], False)
                    self.streams.pop(name, None)
                if name in self.ended:
                    continue
                new = name not in self.streams
                tick = released_until(connection, number)
                live = _watched(row, tick, self.sealer) if new else self.streams[name]
                if new and name in self._hidden:
                    self.ended[name] = quarantine(live, self._hidden[name])
                    continue
                live.declaration = with_late_rules(connection, live)
                live.marks = read_marks(connection, number)
                live.waiting = waiting.get(number)
                if not new and live.closed < tick:
                    news.append(name)
                if new or live.closed < tick:
                    live.labels = labels_of(connection, live)
                    live.closed = tick
                self.streams[name] = live
        return news


def _watched(row: Any, tick: int, sealer: Sealer) -> LiveStream:
    """Make a stream that gives public facts only: its secret is not the one of the stream, and it
    is never stepped."""
    declaration = declared(row)
    secret = Secret.generate()
    stream = declaration.build(secret=secret, inherited_caps={})
    return LiveStream(
        row["id"],
        declaration,
        tick,
        secret=secret,
        sealer=sealer,
        stream=stream,
        blob=b"",
        head=bytes(row["genesis"]),
        totals=np.zeros(stream.query.cells, np.int64),
    )
