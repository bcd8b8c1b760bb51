"""Totals that were counted elsewhere (by Spark, from a log): accepted once for each batch, kept
until ticks close.

A batch is named by (query, batch): the id of the streaming query, which its checkpoint keeps, and
the batch's number.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._validate import AnyArray, BoolArray, IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND, UNITS
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, ParameterError
from evercount.queries.sensitivities import rows_of
from evercount.store import named_events as events
from evercount.store.commit_batches import add_totals
from evercount.store.database import find, insert_rows, read_fact, remove, write_fact
from evercount.store.named_events import by_tick
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_batches

if TYPE_CHECKING:
    from evercount.store.closing_ticks import Run
    from evercount.store.writer import Store

REMEMBERED = 10_000  # batches of a query whose digests are kept
# how far ahead of the open tick an event may lie: in ticks, and in microseconds
MOST_AHEAD = 100_000
LONGEST_AHEAD = 5 * 366 * UNITS["d"]


@dataclass(frozen=True)
class SourceBatch:
    """Which batch of a source some arrivals are."""

    query: str
    number: int  # from 0 on without a gap
    # the caller promises that a new query brings no event that another has brought
    fresh: bool = False
    # where the source goes on after this batch, for a source that does not remember it
    position: bytes | None = None


def take_batch(
    connection: Connection, live: LiveStream, batch: SourceBatch, arrivals: Arrivals
) -> bool:
    """Add a batch to the open ticks inside the open transaction; False if it was added before.

    **Guarantee.** A batch is added once: its name and its totals are one transaction. A batch that
    comes again must be equal (by a keyed digest) or it is refused; so is a gap in the numbers, and,
    unless `fresh`, another query after the first: its checkpoint was deleted, and it would count
    all events again. A checkpoint stands at one place, so its query feeds one stream. Where the
    store keeps the position, it does so for each stream, and one log feeds many. Totals of closed
    ticks follow the declared rule for late events. Tests: tests/store/test_accept_totals.py,
    tests/consume/test_consume_log.py::test_one_log_feeds_two_streams_and_each_counts_every_message_once.
    """
    parts = (arrivals.persons is not None, arrivals.rows_with_names is not None)
    if parts != expected_parts(live.declaration):
        raise ParameterError(
            "events go with their users where the budget protects users, with their names where "
            "keys are not listed or users are counted, and nowhere else"
        )
    assert isinstance(arrivals.totals, TickTotals)
    batch_key = {"stream": live.id, "query": batch.query, "batch": batch.number}
    earlier_digest = find(connection, counted_batches, "digest", **batch_key)
    persons = None
    if arrivals.persons is not None:
        persons = events.stored_records(live, arrivals.persons)
    digest = _digest(live, arrivals.totals, persons)
    parts_by_tick = map(events.packed_ticks, arrivals.rows_with_names or ())
    packed = _hashed(digest, chain.from_iterable(parts_by_tick))
    if earlier_digest is not None:
        for _ in packed:
            pass
        if bytes(earlier_digest) != digest.digest():
            raise Conflict(
                f"batch {batch.number} was counted before with other events: the source does not "
                "give the same batch again, or the checkpoint is an older copy. Nothing was "
                "counted; put the newest checkpoint back"
            )
        return False
    _check_next(connection, live, batch)
    live.check_running()
    name = (batch.query, batch.number)
    if persons is not None:
        ticks, records, keys = persons
        tick, counted = _place(live, ticks)
        events.keep_events(connection, live, name, tick[counted], records[counted], keys)
    events.keep_rows(connection, live, name, _placed(live, packed))
    _add(connection, live, arrivals.totals)
    insert_rows(connection, counted_batches, [(live.id, *name, digest.digest(), time.time())])
    if batch.position is not None:
        sealed = live.seal(batch.position, "position", 0, batch.query.encode()).hex()
        write_fact(connection, f"at {live.id} {batch.query}", sealed)
    forgotten = range(batch.number - REMEMBERED)
    remove(connection, counted_batches, stream=live.id, query=batch.query, batch=forgotten)
    return True


def expected_parts(declaration: StreamDeclaration) -> tuple[bool, bool]:
    """Return whether arrivals of a stream bring events of persons, and rows with names."""
    query = declaration.query
    protects_persons = declaration.budget.unit == "user"
    if query.people is not None:
        return False, True
    return protects_persons, query.discovery is not None and not protects_persons


def _hashed(
    digest: hashlib.blake2b, rows: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Pass on the rows of ticks, and add each to the digest of its batch."""
    for tick, content in rows:
        digest.update(tick.to_bytes(8, "little") + len(content).to_bytes(8, "little"))
        digest.update(content)
        yield tick, content


def _placed(live: LiveStream, rows: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Give the rows of each tick to the tick that counts them; leave out those of none."""
    for tick, content in rows:
        (at,), (counted,) = _place(live, np.asarray([tick]))
        if counted:
            yield int(at), content


def last_batches(connection: Connection, stream: int) -> dict[str, int]:
    """Return the number of the last batch of each query that feeds a stream."""
    table = counted_batches
    rows = connection.execute(
        select(table.c.query, func.max(table.c.batch))
        .where(table.c.stream == stream)
        .group_by(table.c.query)
    )
    return {query: int(batch) for query, batch in rows}


def _check_next(connection: Connection, live: LiveStream, batch: SourceBatch) -> None:
    """Refuse a batch that does not follow the last one of its query, or whose query is new."""
    if batch.position is None and _feeds_another(connection, live, batch.query):
        raise Conflict(
            "the checkpoint belongs to another stream of this store: every stream needs its own"
        )
    last = last_batches(connection, live.id)
    if batch.query not in last and last and not batch.fresh:
        raise Conflict(
            f"stream {live.name!r} was fed from another checkpoint or log, and this one is new to "
            "it: events that were counted already would count again. Put the old checkpoint back, "
            "or name the old log; or, if this one holds new events only, say so with "
            "new_checkpoint (--new-checkpoint, or --new-log)"
        )
    expected = last.get(batch.query, -1) + 1
    if batch.number > expected:
        raise Conflict(
            f"batch {batch.number} comes where the store expects {expected}: the checkpoint is "
            "ahead of the store, so events would be lost. Put back the store that belongs to the "
            "checkpoint, or start with a new checkpoint"
        )
    if batch.number < expected:
        raise Conflict(
            f"batch {batch.number} is older than the store remembers: put the newest checkpoint "
            "back"
        )


def _feeds_another(connection: Connection, live: LiveStream, query: str) -> bool:
    """Return whether batches of this query were counted for another stream."""
    table = counted_batches
    others = (table.c.query == query) & (table.c.stream != live.id)
    return connection.execute(select(table.c.stream).where(others).limit(1)).first() is not None


def _add(connection: Connection, live: LiveStream, totals: TickTotals) -> None:
    """Add totals to the stored ones, late ones by the declared rule."""
    tick, counted = _place(live, totals.tick)
    cell = totals.cell
    if live.declaration.revise_for is not None:  # the cells of that day
        cell = cell + np.maximum(tick - totals.tick, 0) * live.declaration.query.cells
    cell = cell[counted]
    total = totals.total[counted]
    rows = {}
    for one, here in by_tick(tick[counted]):
        rows[one] = np.zeros(live.stream.query.cells, np.int64)
        np.add.at(rows[one], cell[here], total[here])
    add_totals(connection, live, rows)


def _place(live: LiveStream, tick: IntArray) -> tuple[IntArray, BoolArray]:
    """For each given tick: the tick that counts its events by the rule for late ones, and whether
    they are counted."""
    late = tick < live.open_tick
    counted = np.ones(len(tick), bool)
    if live.declaration.late == "drop":
        counted &= ~late
    elif live.declaration.revise_for is not None:
        counted &= live.open_tick - tick <= live.declaration.revise_for
    tick = np.where(late, live.open_tick, tick)
    horizon = live.declaration.horizon
    if horizon is not None:
        counted &= tick <= horizon
    return tick, counted


def _digest(
    live: LiveStream, totals: TickTotals, persons: tuple[IntArray, AnyArray, list[str]] | None
) -> hashlib.blake2b:
    """Begin the keyed hash of what a batch holds, without its rows with names: it tells a
    repetition from a change and nothing else."""
    secret = bytes.fromhex(live.secret.derive("evercount/store/counted").hex())
    digest = hashlib.blake2b(digest_size=32, key=secret, person=b"evercount.counts")
    order = np.lexsort((totals.cell, totals.tick))
    for column in (totals.tick, totals.cell, totals.total):
        digest.update(len(column).to_bytes(8, "little") + column[order].astype("<i8").tobytes())
    if persons is not None:
        ticks, records, keys = persons
        digest.update(ticks.astype("<i8").tobytes() + records.tobytes())
        if keys:
            digest.update(events.pack_rows(keys, np.empty((len(keys), 0), np.int64)))
    return digest


def check_fed(declaration: StreamDeclaration, source: str) -> None:
    """ParameterError for streams that need more than a source hands over of their events."""
    query = declaration.query
    budget = declaration.budget
    if declaration.schedule.manual:
        raise ParameterError(
            f"{source} closes ticks by the clock: declare a tick such as 1h instead of 'manual'"
        )
    named = query.people is not None or query.discovery is not None or budget.unit == "user"
    if declaration.revise_for is not None and named:
        raise ParameterError(
            f"late = 'revise' counts an event by how late it came, and what {source} hands over of "
            "persons and names does not say that: use `evercount release` or the service"
        )
    if query.people is not None and rows_of(query).repeats:
        raise ParameterError(
            f"{query.name!r} follows each user from event to event, so every event must be there "
            f"in its order when its tick closes; {source} hands over what each user did in a tick "
            "at most once: use `evercount release` or the service"
        )
    if query.people is not None and budget.caps[:2] != (None, None):
        raise ParameterError(
            f"{query.name!r} counts a user once, however many events there are, and {source} hands "
            "over each user once a tick: omit max_events and max_per_tick (max_ticks and period "
            "are supported), or use `evercount release`"
        )


class FedStream:
    """One declared stream of a store; instants are in microseconds since 1970."""

    def __init__(
        self, store: Store, declaration: StreamDeclaration, now: int, shards: int | None = None
    ) -> None:
        self.store = store
        self.live = store.declare(declaration, now / SECOND, shards=shards)
        self.declaration = self.live.declaration  # with the start that the store knows
        # what closes the shards of a stream that is cut; None: this process
        self.run: Run | None = None

    @property
    def last_tick(self) -> int:
        """The last tick that may have events now: every tick ahead of the open one has totals in
        the store."""
        schedule = self.declaration.schedule
        closed = self.live.closed
        farthest = schedule.tick_of(schedule.start_of(closed + 1) + LONGEST_AHEAD)
        return max(closed + 1, min(closed + MOST_AHEAD, farthest))

    @property
    def finished(self) -> bool:
        return self.live.finished

    def last_batches(self) -> dict[str, int]:
        return self.store.database.read(last_batches, self.live.id)

    def position(self, source: str) -> bytes | None:
        """The position that came with the last batch of a source; None where it has none."""
        sealed = self.store.database.read(read_fact, f"at {self.live.id} {source}")
        if sealed is None:
            return None
        return self.live.unseal(bytes.fromhex(sealed), "position", 0, source.encode())

    def accept(self, batch: SourceBatch, arrivals: Arrivals) -> bool:
        """Commit what a batch holds; False if it was committed before. See
        `store.accept_totals`."""
        return self.store.accept_totals(self.live.name, batch, arrivals)

    def due(self, now: int) -> int:
        self.live.check_running()
        return self.live.due(now / SECOND)

    def close_due(self, now: int, wait: int = 0) -> range:
        """Release the ticks that have ended, and waited for `wait` or as long as is declared;
        returns them."""
        now -= max(0, wait - self.declaration.waits)
        first = self.live.closed + 1
        while (count := self.due(now)) > 0:
            self.store.close_ticks(self.live, count, now / SECOND, self.run)
        return range(first, self.live.closed + 1)
