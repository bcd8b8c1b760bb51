"""What the next ticks of a stream count when they close: what came for them, but nothing where they are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection

from evercount.declarations.tick_marks import DROP, NEXT, missing_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.table_ticks import among, each_tick
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.store import schema
from evercount.store.accept_totals import CountedTicks
from evercount.store.commit_batches import Group
from evercount.store.database import insert_rows
from evercount.store.early_events import add_totals, keep_early, stored_totals, take_early
from evercount.store.named_events import as_tick
from evercount.store.saturation import Totals
from evercount.store.stored_rows import link, release_rows

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store


def make_ready(store: Store, live: LiveStream, count: int) -> int:
    """Bring what was kept for the first open tick into it; returns how many of the next `count` ticks can close now.
    Each step is a transaction of its own, and nothing is lost or counted twice if the process is killed after any of
    them: kept events are deleted in the transaction that counts them, and so are sums that move."""
    if live.cut is not None and live.cut.closing > live.closed:
        return count  # what they count is frozen
    tick = live.open_tick
    if tick in live.early:
        with store.database.transaction() as connection:
            group = Group(store.streams, connection, 0.0)
            group.count_early(live, take_early(connection, live, tick))
            group.write()
        group.settle()
        live.early.discard(tick)
    ahead = range(tick, tick + count)
    moving = missing_ticks(live.marks, ahead, NEXT)
    if tick in moving:
        with store.database.transaction() as connection:
            _move_on(connection, live)
        live.counted, live.encoder = live.counted or not live.declaration.remembers, None
        live.events, live.groups = [], 0
        live.totals = np.zeros(live.stream.query.cells, np.int64)
    stops = [one for one in (*live.early, *moving) if tick < one]
    return min([count, *(one - tick for one in stops)])


def _move_on(connection: Connection, live: LiveStream) -> None:
    """Move all that the first open tick has to the tick after it."""
    tick = live.open_tick
    if live.declaration.remembers:
        events = live.events
        if live.counted:
            counted = CountedTicks.read(connection, live, range(tick, tick + 1))
            events = _listed(as_tick(live.declaration, counted.named.get(tick, ()), live.events))
            counted.write(connection, live, tick)
        if events:
            keep_early(connection, live, {tick + 1: [(event, None) for event in events]})
            live.early.add(tick + 1)
        schema.remove(connection, schema.open_events, stream=live.id, tick=tick)
        return
    moved = live.totals.astype(object)
    ahead = stored_totals(connection, live, [tick])
    if ahead:
        moved = moved + ahead[tick]
        schema.remove(connection, schema.counted_totals, stream=live.id, tick=tick)
    add_totals(connection, live, {tick + 1: moved})
    live.write_totals(connection, tick, np.zeros(live.stream.query.cells, np.int64))


def counted_ticks(store: Store, live: LiveStream, count: int) -> CountedTicks | None:
    if not live.counted:
        return None
    with store.database.reading() as connection:
        return CountedTicks.read(connection, live, range(live.open_tick, live.open_tick + count))


def next_totals(live: LiveStream, count: int, counted: CountedTicks | None) -> TickTotals | TickEvents:
    """The next ticks: the first with what was accepted, all with what was counted ahead; missing ones with nothing."""
    first = live.open_tick
    missing = missing_ticks(live.marks, range(first, first + count))
    if live.declaration.remembers:
        named = {} if counted is None else counted.named
        accepted = [live.events, *([] for _ in range(count - 1))]
        events = (as_tick(live.declaration, named.get(tick, ()), one) for tick, one in enumerate(accepted, first))
        return TickEvents(first, [[] if tick in missing else one for tick, one in enumerate(events, first)])
    rows = np.zeros((count, live.stream.query.cells), np.int64)
    rows[0] = live.closing_totals()
    for tick, totals in () if counted is None else counted.totals.items():
        rows[tick - first] = live.closing_totals(totals, first=tick == first)
    rows[[tick - first for tick in missing]] = 0
    return TickTotals.dense(first, rows)


def place_given(
    connection: Connection, live: LiveStream, given: TickTotals | TickEvents
) -> tuple[TickTotals | TickEvents, Totals | list[Any] | None]:
    """What the next ticks count of what files hold and of what moved to the first of them; what moves beyond them."""
    first, stop = given.first_tick, given.first_tick + len(given)
    ticks = range(first, stop)
    moves, drops = (set(missing_ticks(live.marks, ticks, kind)) for kind in (NEXT, DROP))
    if isinstance(given, TickEvents):
        events = [*given.ticks, []]
        if first in live.early and given.ticks:
            events[0] = _joined([event for event, _ in take_early(connection, live, first)], events[0])
        for one in ticks:
            if one in moves:
                events[one + 1 - first] = _joined(events[one - first], events[one + 1 - first])
            if one in moves | drops:
                events[one - first] = []
        left = events.pop()
        return TickEvents(first, events), _listed(left) or None
    moved = stored_totals(connection, live, [first]) if live.counted else {}
    if not (moved or moves or drops):
        return given, None
    tick, cell, total = given.tick, given.cell, given.total
    if moved:
        cells = np.flatnonzero(moved[first])
        tick, cell = np.r_[np.full(len(cells), first), tick], np.r_[cells, cell]
        total = np.r_[moved[first][cells].astype(np.int64), total]
    for one in ticks:
        tick = np.where(tick == one, one + 1 if one in moves else 0, tick) if one in moves | drops else tick
    inside, beyond = (tick > 0) & (tick < stop), tick == stop
    left = None
    if beyond.any():
        left = np.zeros(given.cells, np.int64)
        np.add.at(left, cell[beyond], total[beyond])
    return TickTotals(first, len(given), given.cells, tick[inside], cell[inside], total[inside]), left


def _listed(events: Any) -> list[Any]:
    """Events one by one, also where they are numbers of events by key."""
    return list(Counter(events).elements() if isinstance(events, Mapping) else events)


def _joined(one: Any, other: Any) -> Any:
    """The events of two ticks as those of one: lists, or numbers of events by key."""
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return dict(Counter(one) + Counter(other))
    return [*one, *other]


def keep_left(connection: Connection, live: LiveStream, tick: int, left: Totals | list[Any] | None) -> None:
    if isinstance(left, list):
        keep_early(connection, live, {tick: [(event, None) for event in left]})
        live.early.add(tick)
    elif left is not None:
        add_totals(connection, live, {tick: left})
        live.counted = True


@dataclass
class ClosingTicks:
    """Ticks on their way into the database: the chain and the labels after them, and the state."""

    head: bytes
    labels: Sequence[str]
    blob: bytes = b""

    def write(self, connection: Connection, live: LiveStream, table: ReleaseTable, closed_at: float) -> None:
        links: list[tuple[int, int, bytes, float]] = []
        keys = self._new_keys(live, table)
        self.labels = [*self.labels, *(label for _, _, label, _ in keys)] if keys else self.labels
        own_ticks = live.declaration.query.publishing.own_ticks
        if own_ticks:
            table = among(table, self.labels)
        for tick, places, numbers in each_tick(table):
            if own_ticks:
                named = [self.labels[place] for place in places.tolist()]
            else:
                named = [label for _, _, label, since in keys if since == tick]
            self.head = link(self.head, tick, numbers, named)
            links.append((live.id, tick, self.head, closed_at))
        insert_rows(connection, schema.releases, release_rows(live.id, table))
        insert_rows(connection, schema.ticks, links)
        insert_rows(connection, schema.public_keys, keys)

    def _new_keys(self, live: LiveStream, table: ReleaseTable) -> list[tuple[int, int, str, int]]:
        """Rows of `schema.public_keys` for keys that these ticks publish for the first time, in the order of ticks."""
        fixed = live.declaration.query.discovery is None and len(table.cells) == len(self.labels)
        if fixed or live.declaration.revise_for is not None:  # a revised tick has its keys once for each lag
            return []
        known, public = set(self.labels), ~np.isnan(table.numbers[:, 0])
        new = (place for place in range(public.shape[1]) if table.cells[place] not in known)
        first = sorted((int(np.argmax(public[:, place])), place) for place in new)
        return [
            (live.id, len(self.labels) + number, table.cells[place], int(table.ticks[row]))
            for number, (row, place) in enumerate(first)
        ]
