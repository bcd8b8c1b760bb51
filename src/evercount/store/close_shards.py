"""Streams whose cells are cut into shards: each shard has a state of its own, closes its ticks and commits them alone.

freeze (the ticks' totals) ─► close_shard, anywhere and any number of times ─► the chain: readers see the ticks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, insert, select, update

from evercount._arrays import FloatArray, IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.cell_range import cut_cells
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.table_ticks import each_tick
from evercount.engine.tick_totals import TickTotals
from evercount.errors import Conflict, StoreError
from evercount.noise import Secret
from evercount.store import schema
from evercount.store.database import Database, insert_rows
from evercount.store.reader import Reading, read_identity
from evercount.store.saturation import unpack_totals
from evercount.store.sealing import Sealer
from evercount.store.stored_rows import declared

NUMBERS_PER_COMMIT = 200_000
"""Numbers that one transaction of a shard releases."""


@dataclass(eq=False)
class CutStream:
    """The number of shards of a stream, and how far its ticks are frozen."""

    shards: int
    closing: int
    """The last tick whose totals are frozen: released, or being closed by the shards."""


@dataclass(frozen=True)
class ShardWork:
    """What a process needs to know to close shards. Nothing of it is secret: it may travel with a job."""

    place: str
    """The store: a file, or a URL without a password."""
    stream: int
    shards: int


Run = Callable[[ShardWork], None]
"""Closes all shards of a stream, in this process or in others."""


def new_shards(
    connection: Connection, stream: int, declaration: StreamDeclaration, secret: Secret, sealer: Sealer, shards: int
) -> None:
    rows = []
    for number, part in enumerate(cut_cells(declaration.query.cells, shards)):
        shard_stream = declaration.build(secret=secret, part=part)
        blob = shard_stream.snapshot()
        shard_stream.close()
        row = {"stream": stream, "number": number, "first": part.start, "stop": part.stop, "tick": 0}
        rows.append({**row, "sealed": _seal(sealer, blob, stream, number, 0)})
    connection.execute(insert(schema.cut_streams).values(stream=stream, closing=0))
    connection.execute(insert(schema.shards), rows)


def read_cut(connection: Connection, stream: int) -> CutStream | None:
    """How a stream is cut; None if it has no shards."""
    table = schema.cut_streams
    closing = connection.execute(select(table.c.closing).where(table.c.stream == stream)).scalar()
    if closing is None:
        return None
    numbers = connection.execute(select(schema.shards.c.number).where(schema.shards.c.stream == stream)).all()
    return CutStream(len(numbers), int(closing))


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
            sealer = _sealer(connection, key)
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
        closing = connection.execute(
            select(schema.cut_streams.c.closing).where(schema.cut_streams.c.stream == stream)
        ).scalar_one()
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
        place = (schema.shards.c.stream == stream) & (schema.shards.c.number == number)
        sealed = _seal(sealer, blob, stream, number, last)
        connection.execute(update(schema.shards).where(place).values(tick=last, sealed=sealed))
    return len(ticks)


def release_rows(stream: int, table: ReleaseTable, first_cell: int = 0) -> Iterator[tuple[Any, ...]]:
    """The rows of `schema.releases`: stream, tick, cell, value, std, low, high; none for keys that are not public."""
    if np.isnan(table.numbers).any():
        return (
            (stream, tick, cell, *row)
            for tick, places, numbers in each_tick(table)
            for cell, row in zip((places + first_cell).tolist(), numbers.T.tolist(), strict=True)
        )
    ticks, parts, cells = table.numbers.shape
    return zip(
        [stream] * (ticks * cells),
        np.repeat(table.ticks, cells).tolist(),
        list(range(first_cell, first_cell + cells)) * ticks,
        *(table.numbers[:, part].ravel().tolist() for part in range(parts)),
        strict=True,
    )


def read_numbers(connection: Connection, stream: int, tick: int, cells: range) -> FloatArray:
    """Value, std, low and high of cells of a tick, shape (4, cells)."""
    table = schema.releases
    where = (table.c.stream == stream) & (table.c.tick == tick) & table.c.cell.between(cells.start, cells.stop - 1)
    columns = (table.c.value, table.c.std, table.c.low, table.c.high)
    rows = connection.execute(select(*columns).where(where).order_by(table.c.cell)).all()
    return np.asarray([tuple(row) for row in rows], np.float64).reshape(len(rows), len(columns)).T


def _compare(connection: Connection, stream: int, ticks: range, part: range, numbers: FloatArray) -> None:
    for tick, ours in zip(ticks, numbers, strict=True):
        kept = read_numbers(connection, stream, tick, part)
        if not np.array_equal(kept[:2], ours[:2]):  # values and stds: the ends of intervals follow from them
            raise StoreError(
                f"tick {tick} of cells {part.start} to {part.stop - 1} was committed with other numbers: the store or "
                "this program was changed. Nothing more is released; verify the store"
            )


def refuse_open_shards(connection: Connection, stream: int, tick: int) -> None:
    """Refuse to publish a tick that a shard has not closed."""
    table = schema.shards
    late = connection.execute(
        select(table.c.number).where((table.c.stream == stream) & (table.c.tick < tick)).order_by(table.c.number)
    ).first()
    if late is not None:
        raise StoreError(f"shard {late.number} has not closed tick {tick}")


def refuse_other_cut(name: str, cut: CutStream | None, shards: int, released: int) -> None:
    """Refuse another number of shards than a stream has, or shards for one that began without them."""
    if cut is not None and cut.shards != shards:
        raise Conflict(
            f"stream {name!r} is kept in {cut.shards} shards, each with its own state, not in "
            f"{shards}: say {cut.shards}, or leave the number out"
        )
    if cut is None and released:
        raise Conflict(f"stream {name!r} began as a whole and cannot be cut now: leave the number of shards out")


def _shard(connection: Connection, stream: int, number: int, lock: bool = False) -> Row[Any]:
    table = schema.shards
    query = select(table).where((table.c.stream == stream) & (table.c.number == number))
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise StoreError(f"the store has no shard {number} of this stream")
    return row


def _frozen(connection: Connection, sealer: Sealer, stream: int, ticks: range, cells: int) -> IntArray:
    """The totals of frozen ticks, shape (ticks, cells)."""
    table, out = schema.counted_totals, np.zeros((len(ticks), cells), np.int64)
    where = (table.c.stream == stream) & table.c.tick.between(ticks.start, ticks.stop - 1)
    for tick, sealed in connection.execute(select(table.c.tick, table.c.sealed).where(where)):
        out[tick - ticks.start] = unpack_totals(sealer.open(sealed, "counted", stream, tick), cells)
    return out


def _sealer(connection: Connection, key: bytes | None) -> Sealer:
    sealer = Sealer(key, read_identity(connection))
    probe = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "probe")).scalar_one()
    Reading.check_probe(sealer, probe)
    return sealer


def _seal(sealer: Sealer, blob: bytes, stream: int, number: int, tick: int) -> bytes:
    return sealer.seal(blob, "shard", stream, tick, _name(number))


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")


def shareable_place(database: Database) -> str:
    """Where the store is, without a password."""
    return str(database.file or database.url._replace(password=None).render_as_string())
