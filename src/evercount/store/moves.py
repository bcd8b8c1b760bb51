"""A stream moves between a state file and a store. It is in one place at any moment: the place that
it leaves refuses to go on before the other one has it (`files/move_stream.py` says in which order).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, insert, select

from evercount.declarations.schedule import SECOND
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.errors import Conflict, TooLarge
from evercount.noise import Secret
from evercount.privacy import Cost
from evercount.store import schema
from evercount.store.closing_ticks import ClosingTicks
from evercount.store.database import find, write_fact
from evercount.store.declare_stream import MOST_CELLS, load_live, refuse_twin
from evercount.store.open_stream import FILES, LiveStream
from evercount.store.spending import Spending, refuse_beyond_cap
from evercount.store.stored_releases import genesis, write_carried
from evercount.store.stream_life import retire_moved

if TYPE_CHECKING:
    from evercount.store.writer import Store


@dataclass(frozen=True, eq=False)
class MovingStream:
    """A stream on its way into a store, with all that it has released. Secret."""

    declaration: Settled
    stream: Stream
    tables: Iterable[ReleaseTable]
    joined: Sequence[tuple[int, Sequence[Any]]]
    marks: Sequence[TickMark]
    # what earlier streams over the same events cost, which no store has
    earlier: Sequence[Cost]
    # the running totals that it goes on from
    carried: CarriedTotals | None = None


def check_adoption(store: Store, name: str, moving: MovingStream) -> Spending:
    """Refuse a stream that this store cannot take; return its line of the ledger."""
    stream = moving.stream
    if max(stream.query.cells, stream.query.outputs) > MOST_CELLS:
        raise TooLarge(f"a stream of a store has at most {MOST_CELLS:,} cells; this one has more")
    refuse_twin(store, bytes.fromhex(stream.identity))
    line = Spending(name, stream.cost, moving.declaration.public)
    refuse_beyond_cap(store.database, line, earlier=moving.earlier)
    return line


def adopt_stream(
    store: Store, name: str, moving: MovingStream, keep: Callable[[Connection, LiveStream], object]
) -> LiveStream:
    """Take a stream that runs over files feed into a store, in one transaction with `keep`.

    **Guarantee.** The store then has the same noise, the same released numbers and the same ticks,
    and its ledger states what the stream and those before it spend. A twin is refused, and so is
    what goes beyond the cap. Test: tests/files/test_move_stream.py
    ::test_a_moved_stream_goes_on_as_if_it_had_stayed.
    """
    stream, declaration = moving.stream, moving.declaration.named(name)
    line = check_adoption(store, name, moving)
    identity = bytes.fromhex(stream.identity)
    text, start = declaration.canonical(), declaration.schedule.begin / SECOND
    head, secret, now = genesis(text, start), Secret.generate(), time.time()
    first_labels = declaration.declared_query.labels
    with store.database.transaction() as connection:
        row = {"name": name, "declaration": text, "start": start, "created": now, "genesis": head}
        number = connection.execute(
            insert(schema.streams).values(**row).returning(schema.streams.c.id)
        ).scalar_one()
        blob = stream.snapshot()
        totals = np.zeros(stream.query.cells, np.int64)
        live = LiveStream(
            number,
            declaration,
            labels=first_labels,
            secret=secret,
            sealer=store.sealer,
            stream=stream,
            blob=blob,
            head=head,
            totals=totals,
        )
        for table, values in (
            (schema.secrets, {"sealed": live.seal(secret.hex().encode(), "secret")}),
            (schema.noise_identities, {"identity": identity}),
            (schema.states, {"tick": stream.tick, "sealed": live.seal(blob, "state", stream.tick)}),
            (
                schema.accumulators,
                {"tick": stream.tick + 1, "sealed": live.pack_totals(totals, stream.tick + 1)},
            ),
            (schema.ledger, {"cost": json.dumps(line.cost.to_dict()), "spent": now}),
            (schema.waiting_streams, {"reason": FILES}),
        ):
            connection.execute(insert(table).values(stream=number, **values))
        first = [moving.declaration.chain_name, moving.declaration.first_begin]
        write_fact(connection, f"first {number}", json.dumps(first))
        if moving.joined:
            write_fact(connection, f"joined {number}", json.dumps(moving.joined))
        closing = ClosingTicks(head, first_labels)
        for released in moving.tables:
            closing.write(connection, live, released, now)
        _write_marks(connection, number, moving.marks, now)
        before = _write_earlier(connection, name, moving.earlier, now)
        if moving.carried is not None:
            write_carried(connection, number, moving.carried)
        keep(connection, live)
    with store.database.reading() as connection:
        stored = select(schema.streams).where(schema.streams.c.id == number)
        live = load_live(connection, connection.execute(stored).mappings().one(), store.sealer)
    store.streams[name] = live
    store.heads.spend(line, identity)
    for spending in before:
        store.heads.spend_elsewhere(spending)
    store.write_head()
    return live


def _write_marks(
    connection: Connection, stream: int, marks: Sequence[TickMark], now: float
) -> None:
    remarks = [mark for mark in marks if mark.hides is None]
    for number, mark in enumerate(remarks):
        row = {"stream": stream, "number": number, "made": now}
        text = {"first": mark.first, "last": mark.last, "missing": mark.missing, "text": mark.text}
        connection.execute(insert(schema.tick_marks).values(**row, **text))
    hidden = [(mark.hides, mark.first, mark.last) for mark in marks if mark.hides is not None]
    if hidden:
        write_fact(connection, f"hidden {stream}", json.dumps(hidden))


def _write_earlier(
    connection: Connection, name: str, earlier: Sequence[Cost], now: float
) -> list[Spending]:
    """Write lines of the ledger for streams that this store never had, and return them."""
    taken = set(connection.execute(select(schema.retired.c.name)).scalars())
    names = (f"{name[:50]}.before-{number}" for number in count(1))
    free = (one for one in names if one not in taken)
    lines = [Spending(next(free), cost, public=False, retired=True) for cost in earlier]
    for line in lines:
        row = {"name": line.stream, "moment": now}
        facts = json.dumps({"cost": line.cost.to_dict()})
        reason = "it was kept in a state file and is over"
        connection.execute(insert(schema.retired).values(**row, reason=reason, facts=facts))
    return lines


def begin_to_leave(store: Store, live: LiveStream, place: str) -> None:
    """Say where a stream is moving. From now on it releases nothing here; the same call again
    changes nothing."""
    if live.waiting != FILES:
        raise Conflict(
            f"stream {live.name!r} of the store takes events through a service: only streams that "
            "runs over files feed can be kept in a state file"
        )
    if live.moving not in (None, place):
        live.check_not_moving()
    with store.database.transaction() as connection:
        write_fact(connection, f"moving {live.id}", place)
    live.moving = place


def finish_leaving(store: Store, identity: str, place: str) -> None:
    """End a stream here that is in a state file now, if that has not happened yet. Its history
    stays readable; its secret and its sums go."""
    for live in list(store.streams.values()):
        own = store.database.read(find, schema.noise_identities, "identity", stream=live.id)
        if own is not None and own.hex() == identity and live.moving == place:
            retire_moved(store, live, f"it goes on in the state file {place}")
