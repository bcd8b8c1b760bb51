"""Events of users that were read elsewhere (by Spark): kept until their tick closes, and capped then.

The cap keeps the first events of each user by (time, declared order), whatever batches they came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from evercount._arrays import AnyArray, IntArray
from evercount.errors import StoreError
from evercount.queries.capabilities import rows_of
from evercount.queries.user_cap import last_turns
from evercount.store.commit_batches import user_hashes
from evercount.store.database import insert_rows
from evercount.store.known_users import HASH, ManyUsers, distinct_users
from evercount.store.named_events import Part, by_tick, pack_rows, unpack_rows
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_events, having

RECORD = np.dtype([("user", HASH), ("time", "<i8"), ("order", "<i8"), ("cell", "<i8"), ("units", "<i8")])
"""What is kept of an event: the keyed hash of its user, never the user."""


@dataclass(frozen=True, eq=False)
class UserEvents:
    """Events with their users, one entry of each column for each event. Secret."""

    tick: IntArray
    user: Sequence[str]
    time: IntArray
    order: IntArray
    cell: IntArray
    units: IntArray
    place: IntArray | None = None  # where `user` names each user once: the place there of each event's user
    keys: Sequence[str] = ()  # where they are not listed: each once; `cell` is the place among them

    def __len__(self) -> int:
        return len(self.tick)

    def stored(self, live: LiveStream) -> tuple[IntArray, AnyArray, list[str]]:
        """Ticks, events and keys as they are stored, in one order: the same events have the same form, however they
        came. Of one user and tick no event is kept that comes after more others than any cap leaves."""
        keys = sorted(self.keys)
        cell = self.cell
        if keys:
            at = {key: number for number, key in enumerate(keys)}
            cell = np.asarray([at[key] for key in self.keys], np.int64)[cell]
        names, place = self.user, self.place
        if place is None:
            known: dict[str, int] = {}
            place = np.fromiter((known.setdefault(name, len(known)) for name in self.user), np.int64, len(self))
            names = list(known)
        hashes = np.frombuffer(b"".join(user_hashes(live, names)), HASH)
        by_hash = np.argsort(hashes)
        rank = np.empty(len(hashes), np.int64)
        rank[by_hash] = np.arange(len(hashes))
        code = rank[place]
        sorting = np.lexsort((code, self.tick))
        near = (self.tick[sorting][1:] == self.tick[sorting][:-1]) & (code[sorting][1:] == code[sorting][:-1])
        several = np.r_[near, False] | np.r_[False, near]  # most users have one event in a tick
        part = sorting[several]
        columns = (self.units, cell, self.order, self.time, code, self.tick)
        sorting[several] = part[np.lexsort([column[part] for column in columns])]
        records = np.empty(len(self), RECORD)
        records["user"] = hashes[place[sorting]]
        for name, column in (("time", self.time), ("order", self.order), ("cell", cell), ("units", self.units)):
            records[name] = column[sorting]
        kept = _earlier(records, near) < min(filter(None, live.declaration.budget.caps[:2]), default=len(self))
        return self.tick[sorting][kept], records[kept], keys


def _earlier(records: AnyArray, near: AnyArray) -> IntArray:
    """How many events of its user and tick come before the place of each event. `near`: which follow one of the same
    user and tick."""
    number = np.arange(len(records))
    same_place = near & np.logical_and.reduce([records[name][1:] == records[name][:-1] for name in ("time", "order")])
    begins, differs = np.r_[True, ~near][: len(records)], np.r_[True, ~same_place][: len(records)]
    first = np.maximum.accumulate(np.where(begins, number, 0))
    return np.maximum.accumulate(np.where(differs, number, 0)) - first


def keep_events(
    connection: Connection,
    live: LiveStream,
    batch: tuple[str, int],
    tick: IntArray,
    records: AnyArray,
    keys: Sequence[str] = (),
) -> None:
    """Keep events until their tick closes. `batch` is the name of the query and the number of the batch."""
    rows = []
    for one, here in by_tick(tick):
        content = _with_keys(records[here], keys) if keys else records[here].tobytes()
        rows.append((live.id, one, *batch, live.seal(content, "user events", one)))
    insert_rows(connection, counted_events, rows)


def _with_keys(records: AnyArray, keys: Sequence[str]) -> bytes:
    """The records after the keys that they count places of."""
    used, cell = np.unique(records["cell"], return_inverse=True)
    records = records.copy()
    records["cell"] = cell
    names = pack_rows([keys[place] for place in used.tolist()], np.empty((len(used), 0), np.int64))
    return len(names).to_bytes(8, "little") + names + records.tobytes()


def cap_ticks(
    connection: Connection, live: LiveStream, ticks: range
) -> tuple[dict[int, IntArray], dict[int, list[Part]], ManyUsers]:
    """What the next ticks add after the caps of users (where keys are not listed, each key's events), and the users.

    **Guarantee.** An event counts if no more events of its user stand at or before its (time, order) in its tick than
    the caps have room for after the earlier ticks of the period. It looks at the places of that user's events alone,
    never at their contents or at how they were cut into batches: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table.
    """
    users, totals, named = ManyUsers(live.id, live.sealer), dict[int, IntArray](), dict[int, list[Part]]()
    query, rule = live.declaration.query, live.declaration.user_caps
    assert rule is not None
    caps, table = rule.caps, counted_events
    filled = set(connection.execute(select(table.c.tick).where(having(table, stream=live.id, tick=ticks))).scalars())
    for tick in ticks:
        if tick > ticks.start and rule.forgets_after(tick - 1):
            users.forget()
        if tick not in filled:
            continue
        records, keys = _records(connection, live, tick)
        first, code = distinct_users(records["user"])
        hashes = records["user"][first]
        before = users.read(connection, hashes)
        room = caps.rooms(before[:, 0], before[:, 1])
        kept = records[last_turns(code, records["time"], records["order"]) <= room[code]]
        cells, place = np.unique(kept["cell"], return_inverse=True)
        units = np.zeros(len(cells), np.int64)
        np.add.at(units, place, kept["units"])
        events = np.bincount(place, minlength=len(cells)).astype(np.int64)
        counted = np.minimum(room, np.bincount(code, minlength=len(hashes)))
        users.change(hashes, caps.afters(before, tick, counted))
        if query.discovery is not None:
            named[tick] = [([keys[cell] for cell in cells.tolist()], events[:, np.newaxis])]
            continue
        at = np.full(len(cells), tick, np.int64)
        totals[tick] = np.zeros(query.cells, np.int64)
        _, cell, total = rows_of(query).totals(at, cells.astype(np.int64), events, units)
        np.add.at(totals[tick], cell, total)
    if rule.forgets_after(ticks.stop - 1):
        users.forget()
    return totals, named, users


def _records(connection: Connection, live: LiveStream, tick: int) -> tuple[AnyArray, list[str]]:
    """The kept events of a tick, and where keys are not listed those that `cell` counts places of."""
    table, keyed = counted_events, live.declaration.query.discovery is not None
    parts, known = [], dict[str, int]()
    for sealed in connection.execute(select(table.c.sealed).where(having(table, stream=live.id, tick=tick))).scalars():
        content = live.unseal(sealed, "user events", tick)
        begin = 8 + int.from_bytes(content[:8], "little") if keyed else 0
        if (len(content) - begin) % RECORD.itemsize:
            raise StoreError(f"the kept events of stream {live.name!r} are damaged")
        records = np.frombuffer(content, RECORD, -1, begin).copy()
        if keyed:
            names, _ = unpack_rows(content[8:begin])
            place = np.asarray([known.setdefault(name, len(known)) for name in names], np.int64)
            records["cell"] = place[records["cell"]]
        parts.append(records)
    return np.concatenate(parts), list(known)
