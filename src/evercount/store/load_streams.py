"""Streams from their rows in the database, with secret, state and sums, or what is left of a retired one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from evercount.engine.stream import Stream
from evercount.errors import SnapshotError, StoreError
from evercount.noise import Secret
from evercount.store import schema
from evercount.store.accept_totals import has_totals
from evercount.store.close_shards import read_cut
from evercount.store.early_events import early_ticks
from evercount.store.open_stream import EndedStream, LiveStream
from evercount.store.saturation import unpack_totals
from evercount.store.sealing import Sealer
from evercount.store.spending import states
from evercount.store.stored_rows import StoredStream, declared, labels_of, last_link, released_until, with_late_rules
from evercount.store.tick_marks import read_marks


def load_live(connection: Connection, row: Any, sealer: Sealer) -> LiveStream:
    """The stream of a row of `streams`, as it was after its last commit; StoreError where its rows disagree."""
    number = row["id"]

    def row_of(table: Any) -> Any:
        stored = connection.execute(select(table).where(table.c.stream == number)).mappings().first()
        if stored is None:
            raise StoreError("the store is inconsistent: a stream's row is missing", f"{table.name} of {row['name']!r}")
        return stored

    stored = StoredStream(number, declared(row))
    declaration = with_late_rules(connection, stored)
    if not states(row_of(schema.ledger)["cost"], declaration):
        raise StoreError(
            "the ledger states another budget or time range than a stream was declared with", repr(row["name"])
        )
    state, sums = row_of(schema.states), row_of(schema.accumulators)
    secret = Secret.from_hex(sealer.open(row_of(schema.secrets)["sealed"], "secret", number).decode())
    blob = sealer.open(state["sealed"], "state", number, state["tick"])
    try:
        stream = Stream.restore(blob, declaration.period_of)
    except SnapshotError as error:
        raise StoreError("the state of a stream cannot be restored", f"{row['name']!r}: {error}") from None
    totals = sealer.open(sums["sealed"], "accumulator", number, sums["tick"])
    tick, head = last_link(connection, row)
    cut = read_cut(connection, number)
    stored_ticks = (stream.tick, state["tick"], sums["tick"] - 1)
    if stored_ticks != ((tick, tick, tick) if cut is None else (0, tick, cut.closing)):
        raise StoreError("a stream is inconsistent: its state, sums and releases disagree", f"stream {row['name']!r}")
    known, open_sums = declaration.with_query(stream.query), unpack_totals(totals, stream.query.cells)
    labels = labels_of(connection, stored)
    live = LiveStream(number, known, secret, sealer, stream, blob, head, open_sums, labels=labels, cut=cut)
    live.closed = tick
    where = schema.having(schema.open_events, stream=number, tick=live.open_tick)
    groups = select(schema.open_events.c.sealed).where(where).order_by(schema.open_events.c.number)
    for sealed in connection.execute(groups).scalars():
        live.events.extend(json.loads(live.unseal(sealed, "events", live.open_tick)))
        live.groups += 1
    live.counted = has_totals(connection, number)
    live.early, live.marks = early_ticks(connection, number), read_marks(connection, number)
    live.successor = schema.find(connection, schema.renewals, "successor", stream=number)
    live.follows = schema.find(connection, schema.renewals, "stream", successor=row["name"]) is not None
    live.waiting = schema.find(connection, schema.waiting_streams, "reason", stream=number)
    return live


def load_retired(connection: Connection, row: Any, retired: Mapping[str, Any], doubtful: bool) -> EndedStream:
    """The retired stream of a row of `streams`; where the history is `doubtful`, nobody reads it."""
    facts, stored = json.loads(retired["facts"]), StoredStream(row["id"], declared(row))
    return EndedStream(
        *stored,
        released_until(connection, stored.id),
        "retired",
        retired["reason"],
        facts["guarantee"],
        facts["noise"],
        facts["readable"] and not doubtful,
        retired["successor"],
        labels_of(connection, stored),
        read_marks(connection, stored.id),
    )
