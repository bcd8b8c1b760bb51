"""What the next ticks of a stream count when they close: what came for them, but nothing where they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Connection, delete

from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.store import schema
from evercount.store.accept_totals import CountedTicks
from evercount.store.commit_batches import Group
from evercount.store.early_events import add_totals, keep_early, stored_totals, take_early
from evercount.store.tick_marks import NEXT, missing_ticks

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store


def make_ready(store: Store, live: LiveStream, count: int) -> int:
    """Bring what was kept for the first open tick into it; returns how many of the next `count` ticks can close now.

    Each step is a transaction of its own, and nothing is lost or counted twice if the process is killed after any of
    them: kept events are deleted in the transaction that counts them, and so are sums that move.
    """
    if live.cut is not None and live.cut.closing > live.closed:
        return count  # what they count is frozen
    tick = live.open_tick
    if tick in live.early:
        with store.database.transaction() as connection:
            group = Group(store.streams, store.sealer, connection, 0.0)
            group.count_early(live, take_early(connection, live, store.sealer, tick))
            group.write()
        group.settle()
        live.early.discard(tick)
    ahead = range(tick, tick + count)
    moving = missing_ticks(live.marks, ahead, NEXT)
    if tick in moving:
        with store.database.transaction() as connection:
            _move_on(store, connection, live)
        live.counted, live.encoder = True, None
        if live.declaration.remembers:
            live.early |= {tick + 1} if live.events else set()
            live.events, live.groups = [], 0
        live.totals = np.zeros(live.stream.query.cells, np.int64)
    stops = [one for one in (*live.early, *moving) if tick < one]
    return min([count, *(one - tick for one in stops)])


def _move_on(store: Store, connection: Connection, live: LiveStream) -> None:
    """Move all that the first open tick has to the tick after it."""
    tick, sealer = live.open_tick, store.sealer
    if live.declaration.remembers:
        if live.events:
            keep_early(connection, live, sealer, {tick + 1: [(event, None) for event in live.events]})
        table = schema.open_events
        connection.execute(delete(table).where((table.c.stream == live.id) & (table.c.tick == tick)))
        return
    moved = live.totals.astype(object)
    counted = stored_totals(connection, live, sealer, [tick])
    if counted:
        moved = moved + counted[tick]
        rows = schema.counted_totals
        connection.execute(delete(rows).where((rows.c.stream == live.id) & (rows.c.tick == tick)))
    add_totals(connection, live, sealer, {tick + 1: moved})
    store.write_accumulator(connection, live, tick, np.zeros(live.stream.query.cells, np.int64))


def counted_ticks(store: Store, live: LiveStream, count: int) -> CountedTicks | None:
    """What was counted ahead or elsewhere for the next ticks."""
    if not live.counted:
        return None
    with store.database.reading() as connection:
        return CountedTicks.read(connection, live, store.sealer, range(live.open_tick, live.open_tick + count))


def next_totals(live: LiveStream, count: int, counted: CountedTicks | None) -> TickTotals | TickEvents:
    """The next ticks: the first with what was accepted, all with what was counted ahead; missing ones with nothing."""
    first = live.open_tick
    missing = missing_ticks(live.marks, range(first, first + count))
    if live.declaration.remembers:
        return TickEvents(first, [[] if first in missing else live.events, *([] for _ in range(count - 1))])
    rows = np.zeros((count, live.stream.query.cells), np.int64)
    rows[0] = live.closing_totals()
    for tick, totals in () if counted is None else counted.totals.items():
        rows[tick - first] = live.closing_totals(totals, first=tick == first)
    rows[[tick - first for tick in missing]] = 0
    return TickTotals.dense(first, rows)
