"""What came for open ticks after the first one: events that are early, while ticks are held open after their end.

Where events simply add up, their sums are kept by tick, beside those that were counted elsewhere. Events of persons,
whose caps go tick by tick, and events that a query reads as a whole tick are kept as they came; they are counted when
their tick is the first open one (`Store.ready`), as if they had come then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, bindparam, func, insert, select, update

from evercount._arrays import IntArray
from evercount.errors import StoreError
from evercount.store.database import insert_rows
from evercount.store.saturation import Totals, add_exactly, pack_totals, unpack_totals
from evercount.store.schema import counted_totals, early_events, having, remove

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream

PART = 200  # ticks that are read with one statement
Kept = tuple[Any, str | None]  # an event and its user, where users are protected


def add_totals(connection: Connection, live: LiveStream, rows: Mapping[int, IntArray | Totals]) -> None:
    """Add sums to those of open ticks, which lie in the database until the ticks close."""
    stored = stored_totals(connection, live, list(rows))
    zeros = np.zeros(live.stream.query.cells, np.int64)
    fresh, changed = [], []
    for tick, row in rows.items():
        sums = pack_totals(add_exactly(stored.get(tick, zeros), row))
        sealed = live.seal(sums, "counted", tick)
        if tick in stored:
            changed.append({"at": tick, "sealed": sealed})
        else:
            fresh.append((live.id, tick, sealed))
    if changed:
        where = (counted_totals.c.stream == live.id) & (counted_totals.c.tick == bindparam("at"))
        connection.execute(update(counted_totals).where(where).values(sealed=bindparam("sealed")), changed)
    insert_rows(connection, counted_totals, fresh)


def stored_totals(connection: Connection, live: LiveStream, ticks: Sequence[int]) -> dict[int, Totals]:
    sums, table, cells = dict[int, Totals](), counted_totals, live.stream.query.cells
    for start in range(0, len(ticks), PART):
        where = having(table, stream=live.id, tick=list(ticks[start : start + PART]))
        for tick, sealed in connection.execute(select(table.c.tick, table.c.sealed).where(where)):
            totals = unpack_totals(live.unseal(sealed, "counted", tick), cells)
            if len(totals) != cells:
                raise StoreError(f"the totals of stream {live.name!r} do not belong to its query")
            sums[tick] = totals
    return sums


def keep_early(connection: Connection, live: LiveStream, events: Mapping[int, Iterable[Kept]]) -> None:
    table, rows = early_events, []
    for tick, kept in events.items():
        last = select(func.coalesce(func.max(table.c.number), -1)).where(having(table, stream=live.id, tick=tick))
        number = int(connection.execute(last).scalar_one())
        sealed = live.seal(json.dumps(list(kept)).encode(), "early", tick)
        rows.append({"stream": live.id, "tick": tick, "number": number + 1, "sealed": sealed})
    if rows:
        connection.execute(insert(table), rows)


def take_early(connection: Connection, live: LiveStream, tick: int) -> list[Kept]:
    """The kept events of a tick in the order in which they came; they are kept no longer."""
    table = early_events
    kept = select(table.c.sealed).where(having(table, stream=live.id, tick=tick)).order_by(table.c.number)
    sealed = connection.execute(kept).scalars().all()
    remove(connection, table, stream=live.id, tick=tick)
    return [(event, user) for one in sealed for event, user in json.loads(live.unseal(one, "early", tick))]


def early_ticks(connection: Connection, stream: int) -> set[int]:
    table = early_events
    return set(connection.execute(select(table.c.tick).where(table.c.stream == stream).distinct()).scalars())
