"""Totals that were counted elsewhere (by Spark): accepted once for each batch, kept until their ticks close.

A batch is named by (query, batch): the id of the streaming query, which its checkpoint keeps, and the batch's number.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from evercount.engine.tick_totals import TickTotals
from evercount.errors import Conflict, StoreError, StreamStopped
from evercount.store.open_stream import LiveStream
from evercount.store.saturation import Totals, add_exactly, pack_totals, unpack_totals
from evercount.store.schema import counted_batches, counted_totals
from evercount.store.sealing import Sealer

REMEMBERED = 10_000
"""Batches of a query whose digests are kept."""
PART = 200
"""Ticks that are read with one statement."""


@dataclass(frozen=True)
class CountedBatch:
    """One batch of totals.

    Args:
        query: the id of the streaming query.
        batch: its number, from 0 on without a gap.
        totals: what the events add; of any ticks.
        fresh: whether the query may be one that the store does not know although it knows another. The caller
            promises that it brings no event that the other has brought.
    """

    query: str
    batch: int
    totals: TickTotals
    fresh: bool = False


def take_batch(connection: Connection, live: LiveStream, sealer: Sealer, one: CountedBatch) -> bool:
    """Add a batch to the open ticks inside the open transaction; False if it was added before.

    **Guarantee.** A batch is added once: its name and its totals are one transaction. A batch that comes again must be
    equal (by a keyed digest) or it is refused; so is a gap in the numbers, a query of another stream, and, unless
    `fresh`, another query after the first: its checkpoint was deleted, and it would count all events again. Totals of
    closed ticks follow the declared rule for late events. Tests: tests/store/test_accept_totals.py.

    Raises:
        Conflict: the batch is not the one that the store knows, or cannot come next.
    """
    digest = _digest(live, one)
    known = _known(connection, live, one)
    if known is not None:
        if known != digest:
            raise Conflict(
                f"batch {one.batch} was counted before with other events: the source does not give the same batch "
                "again, or the checkpoint is an older copy. Nothing was counted; put the newest checkpoint back"
            )
        return False
    _check_next(connection, live, one)
    if live.stopped:
        raise StreamStopped(f"stream {live.name!r} is stopped: {live.stopped}")
    _add(connection, live, sealer, one.totals)
    connection.execute(
        insert(counted_batches).values(
            stream=live.id, query=one.query, batch=one.batch, digest=digest, accepted=time.time()
        )
    )
    table = counted_batches
    old = (table.c.stream == live.id) & (table.c.query == one.query) & (table.c.batch < one.batch - REMEMBERED)
    connection.execute(delete(table).where(old))
    return True


def last_batches(connection: Connection, stream: int) -> dict[str, int]:
    """The last batch of each query that a stream has counted."""
    table = counted_batches
    rows = connection.execute(
        select(table.c.query, func.max(table.c.batch)).where(table.c.stream == stream).group_by(table.c.query)
    )
    return {query: int(batch) for query, batch in rows}


def has_totals(connection: Connection, stream: int) -> bool:
    """Whether totals of open ticks are stored."""
    return (
        connection.execute(select(counted_totals.c.tick).where(counted_totals.c.stream == stream)).first() is not None
    )


def forget_counted(connection: Connection, live: LiveStream, tick: int) -> None:
    """Remove the totals of ticks up to `tick`: they are released."""
    connection.execute(
        delete(counted_totals).where((counted_totals.c.stream == live.id) & (counted_totals.c.tick <= tick))
    )


def _known(connection: Connection, live: LiveStream, one: CountedBatch) -> bytes | None:
    table = counted_batches
    where = (table.c.stream == live.id) & (table.c.query == one.query) & (table.c.batch == one.batch)
    found = connection.execute(select(table.c.digest).where(where)).scalar()
    return None if found is None else bytes(found)


def _check_next(connection: Connection, live: LiveStream, one: CountedBatch) -> None:
    """Refuse a batch that is not the next one of the query."""
    table = counted_batches
    other = connection.execute(
        select(table.c.stream).where((table.c.query == one.query) & (table.c.stream != live.id)).limit(1)
    ).first()
    if other is not None:
        raise Conflict("the checkpoint belongs to another stream of this store: every stream needs one of its own")
    last = last_batches(connection, live.id)
    if one.query not in last and last and not one.fresh:
        raise Conflict(
            f"stream {live.name!r} was fed from another checkpoint, and this one is new: the source would give all its "
            "events again, and the store cannot tell them from new ones. Put the old checkpoint back; or, if the "
            "source holds new events only, say so with new_checkpoint (--new-checkpoint)"
        )
    expected = last.get(one.query, -1) + 1
    if one.batch != expected:
        raise Conflict(
            f"batch {one.batch} comes where the store expects {expected}: the checkpoint is ahead of the store, so "
            "events would be lost. Put back the store that belongs to the checkpoint, or start with a new checkpoint"
            if one.batch > expected
            else f"batch {one.batch} is older than the store remembers: put the newest checkpoint back"
        )


def _add(connection: Connection, live: LiveStream, sealer: Sealer, totals: TickTotals) -> None:
    """Add totals to the stored ones, late ones by the declared rule."""
    tick, cell, total = totals.tick, totals.cell, totals.total
    late = tick < live.open_tick
    if live.declaration.late == "next":
        tick = np.where(late, live.open_tick, tick)
    else:
        tick, cell, total = tick[~late], cell[~late], total[~late]
    horizon = live.declaration.horizon
    if horizon is not None:
        inside = tick <= horizon
        tick, cell, total = tick[inside], cell[inside], total[inside]
    wanted = np.unique(tick).tolist()
    stored = stored_totals(connection, live, sealer, wanted)
    cells = live.stream.query.cells
    zeros = np.zeros(cells, np.int64)
    fresh = []
    for one in wanted:
        here = tick == one
        row = np.zeros(cells, np.int64)
        np.add.at(row, cell[here], total[here])
        sums = pack_totals(add_exactly(stored.get(one, zeros), row))
        sealed = sealer.seal(sums, "counted", live.id, one)
        if one in stored:
            where = (counted_totals.c.stream == live.id) & (counted_totals.c.tick == one)
            connection.execute(update(counted_totals).where(where).values(sealed=sealed))
        else:
            fresh.append({"stream": live.id, "tick": one, "sealed": sealed})
    if fresh:
        connection.execute(insert(counted_totals), fresh)


def stored_totals(connection: Connection, live: LiveStream, sealer: Sealer, ticks: Sequence[int]) -> dict[int, Totals]:
    """The exact sums that were counted for these ticks, where there are any."""
    found: dict[int, Totals] = {}
    cells = live.stream.query.cells
    table = counted_totals
    for start in range(0, len(ticks), PART):
        part = list(ticks[start : start + PART])
        rows = connection.execute(
            select(table.c.tick, table.c.sealed).where((table.c.stream == live.id) & table.c.tick.in_(part))
        )
        for tick, sealed in rows:
            totals = unpack_totals(sealer.open(sealed, "counted", live.id, tick), cells)
            if len(totals) != cells:
                raise StoreError(f"the totals of stream {live.name!r} do not belong to its query")
            found[tick] = totals
    return found


def _digest(live: LiveStream, one: CountedBatch) -> bytes:
    """A keyed hash of the totals: it tells a repetition from a change and nothing else."""
    secret = bytes.fromhex(live.secret.derive("evercount/store/counted").hex())
    digest = hashlib.blake2b(digest_size=32, key=secret, person=b"evercount.counts")
    order = np.lexsort((one.totals.cell, one.totals.tick))
    for column in (one.totals.tick, one.totals.cell, one.totals.total):
        digest.update(len(column).to_bytes(8, "little") + column[order].astype("<i8").tobytes())
    return digest.digest()
