"""Events of users that were read elsewhere (by Spark): kept until their tick closes, and capped then.

The cap keeps the first events of each user by (time, declared order), whatever batches they came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from sqlalchemy import Connection, delete, insert, select

from evercount._arrays import AnyArray, IntArray
from evercount.errors import StoreError
from evercount.queries.capabilities import rows_of
from evercount.queries.user_cap import last_turns
from evercount.store.commit_batches import user_hash
from evercount.store.known_users import KnownUsers
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_events
from evercount.store.sealing import Sealer

HASH = np.dtype("V32")
COLUMNS = (("user", HASH), ("time", "<i8"), ("order", "<i8"), ("cell", "<i8"), ("units", "<i8"))
"""What is kept of an event: the keyed hash of its user, never the user."""
RECORD = np.dtype(list(COLUMNS))


@dataclass(frozen=True, eq=False)
class UserEvents:
    """Events with their users, one entry of each column for each event. Secret."""

    tick: IntArray
    user: Sequence[str]
    time: IntArray
    order: IntArray
    cell: IntArray
    units: IntArray

    def __len__(self) -> int:
        return len(self.tick)

    def hashed(self, live: LiveStream) -> AnyArray:
        """The events as they are stored, in the given order, with the users' hashes in place of their names."""
        names, place = np.unique(np.asarray(self.user, dtype=object), return_inverse=True)
        hashes = np.frombuffer(b"".join(user_hash(live, name) for name in names), HASH)
        records = np.empty(len(self), RECORD)
        records["user"] = hashes[place]
        records["time"], records["order"] = self.time, self.order
        records["cell"], records["units"] = self.cell, self.units
        return records


def in_one_order(tick: IntArray, records: AnyArray) -> IntArray:
    """The positions that sort the events: the same events have the same sorted form, however they were given."""
    keys = [records[name] for name in ("units", "cell", "order", "time")]
    return np.lexsort((*keys, _codes(records["user"]), tick))


def keep_events(
    connection: Connection, live: LiveStream, sealer: Sealer, query: str, batch: int, tick: IntArray, records: AnyArray
) -> None:
    rows = []
    for one in np.unique(tick).tolist():
        sealed = sealer.seal(records[tick == one].tobytes(), "user events", live.id, one)
        rows.append({"stream": live.id, "tick": one, "query": query, "batch": batch, "sealed": sealed})
    if rows:
        connection.execute(insert(counted_events), rows)


@dataclass(eq=False)
class CappedTicks:
    """What the kept events of some ticks add after the cap, and the users whose number of events changes."""

    totals: dict[int, IntArray] = field(default_factory=dict)
    users: KnownUsers | None = None

    def write(self, connection: Connection, live: LiveStream, tick: int) -> None:
        """Write the users' numbers and delete the events up to `tick`, in the transaction that releases them."""
        if self.users is not None:
            self.users.write(connection)
        connection.execute(
            delete(counted_events).where((counted_events.c.stream == live.id) & (counted_events.c.tick <= tick))
        )


def cap_ticks(connection: Connection, live: LiveStream, sealer: Sealer, ticks: range) -> CappedTicks:
    """Apply the caps of users to the next ticks, in order.

    **Guarantee.** An event counts if no more events of its user stand at or before its (time, order) in its tick than
    the caps have room for after the earlier ticks of the period. It looks at the places of that user's events alone,
    never at their contents or at how they were cut into batches: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table.
    """
    capped = CappedTicks(users=KnownUsers(live.id, sealer))
    assert capped.users is not None
    query, rule = live.declaration.query, live.declaration.user_caps
    assert rule is not None
    caps, filled = rule.caps, set(_ticks_with_events(connection, live, ticks))
    for tick in ticks:
        if tick > ticks.start and rule.forgets_after(tick - 1):
            capped.users.forget()
        if tick not in filled:
            continue
        records = _records(connection, live, sealer, tick)
        code = _codes(records["user"])
        names = [bytes(user) for user in records["user"][np.unique(code, return_index=True)[1]]]
        seen = capped.users.read(connection, names)
        before = np.asarray([seen[name] for name in names], np.int64).reshape(-1, 4)
        room = caps.rooms(before[:, 0], before[:, 1])
        kept = records[last_turns(code, records["time"], records["order"]) <= room[code]]
        cells, place = np.unique(kept["cell"], return_inverse=True)
        units = np.zeros(len(cells), np.int64)
        np.add.at(units, place, kept["units"])
        events = np.bincount(place, minlength=len(cells)).astype(np.int64)
        at = np.full(len(cells), tick, np.int64)
        row = np.zeros(query.cells, np.int64)
        _, cell, total = rows_of(query).totals(at, cells.astype(np.int64), events, units)
        np.add.at(row, cell, total)
        capped.totals[tick] = row
        counted = np.minimum(room, np.bincount(code, minlength=len(names))).tolist()
        capped.users.change(
            {name: caps.after(seen[name], tick, number) for name, number in zip(names, counted, strict=True)}
        )
    if rule.forgets_after(ticks.stop - 1):
        capped.users.forget()
    return capped


def _codes(users: AnyArray) -> IntArray:
    return np.unique(np.ascontiguousarray(users).view("S32"), return_inverse=True)[1].reshape(-1)


def _ticks_with_events(connection: Connection, live: LiveStream, ticks: range) -> list[int]:
    table = counted_events
    where = (table.c.stream == live.id) & (table.c.tick >= ticks.start) & (table.c.tick < ticks.stop)
    return list(connection.execute(select(table.c.tick).where(where).distinct().order_by(table.c.tick)).scalars())


def _records(connection: Connection, live: LiveStream, sealer: Sealer, tick: int) -> AnyArray:
    table = counted_events
    where = (table.c.stream == live.id) & (table.c.tick == tick)
    parts = [
        sealer.open(sealed, "user events", live.id, tick)
        for sealed in connection.execute(select(table.c.sealed).where(where)).scalars()
    ]
    if any(len(part) % RECORD.itemsize for part in parts):
        raise StoreError(f"the kept events of stream {live.name!r} are damaged")
    return np.frombuffer(b"".join(parts), RECORD)
