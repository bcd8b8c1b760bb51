"""Streams whose cells are cut into shards: each shard has a state of its own, closes its ticks and commits them alone.

freeze (the ticks' totals) ─► close_shard, anywhere and any number of times ─► the chain: readers see the ticks
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, Row, insert, select, update

from evercount._arrays import FloatArray, IntArray
from evercount.engine.close_ticks import close_ticks
from evercount.engine.derived_query import can_be_cut, cut_cells
from evercount.engine.stream import Stream
from evercount.engine.tick_totals import TickTotals
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.store import schema
from evercount.store.accept_totals import CountedTicks
from evercount.store.closing_ticks import counted_ticks, make_ready, next_totals
from evercount.store.database import Database, insert_rows
from evercount.store.known_users import forget_users
from evercount.store.open_stream import CutStream, LiveStream
from evercount.store.reader import open_sealer
from evercount.store.saturation import pack_totals, unpack_totals
from evercount.store.sealing import Sealer
from evercount.store.stored_rows import declared, link, read_numbers, release_rows

if TYPE_CHECKING:
    from evercount.store.writer import Store

NUMBERS_PER_COMMIT = 200_000  # numbers that one transaction of a shard releases
NUMBERS_FROZEN = 5_000_000  # totals that are frozen together


@dataclass(frozen=True)
class ShardWork:
    """What a process needs to know to close shards. Nothing of it is secret: it may travel with a job."""

    place: str  # the store: a file, or a URL without a password
    stream: int
    shards: int


Run = Callable[[ShardWork], None]  # closes all shards of a stream, in this process or in others


def read_cut(connection: Connection, stream: int) -> CutStream | None:
    closing = schema.find(connection, schema.cut_streams, "closing", stream=stream)
    numbers = connection.execute(select(schema.shards.c.number).where(schema.shards.c.stream == stream)).all()
    return None if closing is None else CutStream(len(numbers), int(closing))


# -- in the process that has the lock ---------------------------------------------------------------------------------


def cut_stream(store: Store, live: LiveStream, shards: int) -> None:
    """Cut the cells of a stream into shards, before its first tick; it may be cut in the same way already."""
    if (cut := live.cut) is not None:
        if cut.shards != shards:
            raise Conflict(
                f"stream {live.name!r} is kept in {cut.shards} shards, each with its own state, not in "
                f"{shards}: say {cut.shards}, or leave the number out"
            )
        return
    if live.closed:
        raise Conflict(f"stream {live.name!r} began as a whole and cannot be cut now: leave the number of shards out")
    if not can_be_cut(live.declaration.released_query):
        raise ParameterError(f"the cells of {live.declaration.query.name!r} cannot be cut into shards")
    with store.database.transaction() as connection:
        rows = []
        for number, part in enumerate(cut_cells(live.declaration.query.cells, shards)):
            shard_stream = live.declaration.build(secret=live.secret, part=part)
            blob = shard_stream.snapshot()
            shard_stream.close()
            row = {"stream": live.id, "number": number, "first": part.start, "stop": part.stop, "tick": 0}
            rows.append({**row, "sealed": _seal(live.sealer, blob, live.id, number, 0)})
        connection.execute(insert(schema.cut_streams).values(stream=live.id, closing=0))
        connection.execute(insert(schema.shards), rows)
    live.cut = CutStream(shards, 0)


def close_by_shards(store: Store, live: LiveStream, count: int, closed_at: float, run: Run | None = None) -> int:
    """Release the next `count` ticks of a stream that is cut into shards; returns how many were released. What an
    earlier call has begun is brought to its end instead: its ticks keep their totals."""
    cut = live.cut
    assert cut is not None
    if cut.closing == live.closed:
        _freeze(store, live, cut, count)
    (run or partial(close_here, store.key))(ShardWork(shareable_place(store.database), live.id, cut.shards))
    head, links = live.head, []
    outputs = range(live.declaration.query.outputs)
    with store.database.transaction() as connection:
        late = schema.find(connection, schema.shards, "number", stream=live.id, tick=range(cut.closing))
        if late is not None:
            raise StoreError(f"shard {late} has not closed tick {cut.closing}")
        for tick in range(live.closed + 1, cut.closing + 1):
            head = link(head, tick, read_numbers(connection, live.id, tick, outputs))
            links.append((live.id, tick, head, closed_at))
        insert_rows(connection, schema.ticks, links)
        live.write_state(connection, cut.closing, live.blob)
        CountedTicks().write(connection, live, cut.closing)
    live.head, live.closed = head, cut.closing
    store.write_head(live)
    return len(links)


def _freeze(store: Store, live: LiveStream, cut: CutStream, count: int) -> None:
    """Store the totals of the next ticks for good: every call that closes these ticks uses the same."""
    if live.declaration.horizon is not None:
        count = min(count, live.declaration.horizon - live.closed)
    count = make_ready(store, live, min(count, max(1, NUMBERS_FROZEN // live.stream.query.cells)))
    last = live.closed + count
    counted = counted_ticks(store, live, count)
    totals = next_totals(live, count, counted)
    assert isinstance(totals, TickTotals)
    zeros = np.zeros(live.stream.query.cells, np.int64)
    with store.database.transaction() as connection:
        forget_users(connection, live, range(live.open_tick, last + 1))
        (counted or CountedTicks()).write(connection, live, last)
        for tick in np.unique(totals.tick).tolist():
            sealed = live.seal(pack_totals(totals.rows(tick, tick + 1)[0]), "counted", tick)
            connection.execute(insert(schema.counted_totals).values(stream=live.id, tick=tick, sealed=sealed))
        live.write_totals(connection, last + 1, zeros)
        place = schema.having(schema.cut_streams, stream=live.id)
        connection.execute(update(schema.cut_streams).where(place).values(closing=last))
    live.totals, cut.closing = zeros, last


# -- anywhere ---------------------------------------------------------------------------------------------------------


def close_here(key: bytes | None, work: ShardWork) -> None:
    for number in range(work.shards):
        close_shard(work, number, key)


def close_shard(work: ShardWork, number: int, key: bytes | None) -> int:
    """Close the frozen ticks of one shard; returns how many this call committed. `key` is that of the store.

    **Guarantee.** The rows of the ticks and the state after them are one transaction. The totals are frozen before any
    shard closes, and noise is a function of (secret, declaration, tick, cell); so a repeated or speculative call
    computes the same bits. One that finds its ticks there when it commits compares them and accepts, or fails loudly.
    Tests: tests/store/test_close_shards.py::test_shards_publish_the_table_of_the_whole_stream,
    tests/store/test_close_shards.py::test_two_calls_at_once_commit_one_of_them and
    tests/store/test_close_shards.py::test_a_commit_that_finds_other_numbers_fails.
    """
    database = Database(work.place, helper=True)
    try:
        with database.reading() as connection:
            sealer = open_sealer(connection, key)
        done = 0
        while ticks := _close_some(database, sealer, work.stream, number):
            done += ticks
        return done
    finally:
        database.close()


def _close_some(database: Database, sealer: Sealer, stream: int, number: int) -> int:
    """Close a few ticks of a shard in one transaction; 0 when all frozen ones are closed."""
    with database.reading() as connection:
        shard = _shard(connection, stream, number)
        closing = schema.find(connection, schema.cut_streams, "closing", stream=stream)
        row = connection.execute(select(schema.streams).where(schema.streams.c.id == stream)).mappings().one()
        part = range(shard.first, shard.stop)
        last = min(closing, shard.tick + max(1, NUMBERS_PER_COMMIT // len(part)))
        ticks = range(shard.tick + 1, last + 1)
        if not ticks:
            return 0
        declaration = declared(row)
        totals = _frozen(connection, sealer, stream, ticks, declaration.query.cells)[:, part.start : part.stop]
        blob = sealer.open(shard.sealed, "shard", stream, shard.tick, _name(number))
    shard_stream = Stream.restore(blob, declaration.period_of)
    (table,) = close_ticks(
        shard_stream, TickTotals.dense(ticks.start, totals), declaration.schedule.starts_of, numbers=totals.size or 1
    )
    blob = shard_stream.snapshot()
    shard_stream.close()
    with database.transaction() as connection:
        current = _shard(connection, stream, number, lock=True)
        if current.tick >= last:
            _compare(connection, stream, ticks, part, table.numbers)
            return 0
        if current.tick != shard.tick:
            return len(ticks)  # another call has closed a part of them: look again
        insert_rows(connection, schema.releases, release_rows(stream, table, part.start))
        place = schema.having(schema.shards, stream=stream, number=number)
        sealed = _seal(sealer, blob, stream, number, last)
        connection.execute(update(schema.shards).where(place).values(tick=last, sealed=sealed))
    return len(ticks)


def _compare(connection: Connection, stream: int, ticks: range, part: range, numbers: FloatArray) -> None:
    for tick, ours in zip(ticks, numbers, strict=True):
        kept = read_numbers(connection, stream, tick, part)
        if not np.array_equal(kept[:2], ours[:2]):  # values and stds: the ends of intervals follow from them
            raise StoreError(
                f"tick {tick} of cells {part.start} to {part.stop - 1} was committed with other numbers: the store or "
                "this program was changed. Nothing more is released; verify the store"
            )


def _shard(connection: Connection, stream: int, number: int, lock: bool = False) -> Row[Any]:
    query = select(schema.shards).where(schema.having(schema.shards, stream=stream, number=number))
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise StoreError(f"the store has no shard {number} of this stream")
    return row


def _frozen(connection: Connection, sealer: Sealer, stream: int, ticks: range, cells: int) -> IntArray:
    table, out = schema.counted_totals, np.zeros((len(ticks), cells), np.int64)
    where = schema.having(table, stream=stream, tick=ticks)
    for tick, sealed in connection.execute(select(table.c.tick, table.c.sealed).where(where)):
        out[tick - ticks.start] = unpack_totals(sealer.open(sealed, "counted", stream, tick), cells)
    return out


def _seal(sealer: Sealer, blob: bytes, stream: int, number: int, tick: int) -> bytes:
    return sealer.seal(blob, "shard", stream, tick, _name(number))


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")


def shareable_place(database: Database) -> str:
    """Where the store is, without a password."""
    return str(database.file or database.url._replace(password=None).render_as_string())
