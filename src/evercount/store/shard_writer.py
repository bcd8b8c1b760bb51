"""The store's side of shards: cut a stream, freeze the totals of its next ticks, and publish what the shards closed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import insert, update

from evercount.engine.cell_range import can_be_cut
from evercount.engine.tick_totals import TickTotals
from evercount.errors import ParameterError
from evercount.store import schema
from evercount.store.accept_totals import CountedTicks
from evercount.store.close_shards import (
    CutStream,
    Run,
    ShardWork,
    close_here,
    new_shards,
    read_numbers,
    refuse_open_shards,
    refuse_other_cut,
    shareable_place,
)
from evercount.store.closing_ticks import counted_ticks, make_ready, next_totals
from evercount.store.database import insert_rows
from evercount.store.known_users import forget_users
from evercount.store.release_chain import link
from evercount.store.saturation import pack_totals

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store

NUMBERS_FROZEN = 5_000_000
"""Totals that are frozen together."""


def cut_stream(store: Store, live: LiveStream, shards: int) -> None:
    """Cut the cells of a stream into shards, before its first tick; it may be cut in the same way already."""
    refuse_other_cut(live.name, live.cut, shards, live.closed)
    if live.cut is not None:
        return
    if not can_be_cut(live.declaration.released_query):
        raise ParameterError(f"the cells of {live.declaration.query.name!r} cannot be cut into shards")
    with store.database.transaction() as connection:
        new_shards(connection, live.id, live.declaration, live.secret, store.sealer, shards)
    live.cut = CutStream(shards, 0)


def close_by_shards(store: Store, live: LiveStream, count: int, closed_at: float, run: Run | None = None) -> int:
    """Release the next `count` ticks of a stream that is cut into shards; returns how many were released.

    What an earlier call has begun is brought to its end instead: its ticks keep their totals.
    """
    cut = live.cut
    assert cut is not None
    if cut.closing == live.closed:
        _freeze(store, live, cut, count)
    (run or partial(close_here, store.key))(ShardWork(shareable_place(store.database), live.id, cut.shards))
    head, links = live.head, []
    outputs = range(live.declaration.query.outputs)
    with store.database.transaction() as connection:
        refuse_open_shards(connection, live.id, cut.closing)
        for tick in range(live.closed + 1, cut.closing + 1):
            numbers = read_numbers(connection, live.id, tick, outputs)
            head = link(head, tick, numbers)
            links.append((live.id, tick, head, closed_at))
        insert_rows(connection, schema.ticks, links)
        store.write_state(connection, live, cut.closing, live.blob)
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
            sealed = store.sealer.seal(pack_totals(totals.rows(tick, tick + 1)[0]), "counted", live.id, tick)
            connection.execute(insert(schema.counted_totals).values(stream=live.id, tick=tick, sealed=sealed))
        store.write_accumulator(connection, live, last + 1, zeros)
        table = schema.cut_streams
        connection.execute(update(table).where(table.c.stream == live.id).values(closing=last))
    live.totals, cut.closing = zeros, last
