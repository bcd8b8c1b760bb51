"""Group: batches that one transaction commits, with their idempotency keys and the caps of their users.

Events may be early: of open ticks after the first one, while ticks are held open after their end. Where events simply
add up, the sums of later ticks are kept next to those that were counted elsewhere. Events of persons, whose caps go
tick by tick, and events that a query reads as a whole tick are kept as they came; they are counted when their tick is
the first open one (`closing_ticks.make_ready`), as if they had come then.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, func, insert, select

from evercount._validate import IntArray
from evercount.errors import Conflict, EvercountError, InputError, StoreError, StreamStopped
from evercount.queries.user_cap import Caps, UserState, cap_per_user
from evercount.store import schema
from evercount.store.database import insert_rows, replace_rows
from evercount.store.known_users import DAY_BYTES, KnownUsers, day_key
from evercount.store.open_stream import Accepted, Batch, LiveStream, Placed
from evercount.store.saturation import Totals, add_exactly, pack_totals, unpack_totals
from evercount.store.schema import counted_totals, early_events, having, rows_of

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream

TICKS_AT_A_TIME = 200  # ticks that are read with one statement
Kept = tuple[Any, str | None]  # an event and its user, where users are protected


class Group:
    """Batches that are committed together: what they add, kept apart from the live streams until the commit.

    **Guarantee.** The answers of `add_all` go out after the commit (`Store.accept`), and the commit holds for each
    batch what it adds together with its idempotency key: after any crash a batch is on the disk with its key, or
    neither is, and then nobody was answered. Many batches share one wait for the disk; none is answered before it. A
    batch that comes again is found among those of before (`known`): the stored ones, which were read inside the same
    transaction of the one writer, and those of its own commit. Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_streams.py`.
    """

    def __init__(self, streams: dict[str, LiveStream], connection: Connection, now: float) -> None:
        self.streams, self.connection, self.now = streams, connection, now
        self.totals: dict[str, Totals] = {}
        self.events: dict[str, list[Any]] = {}
        self.users: dict[int, KnownUsers] = {}
        self.ahead: dict[str, dict[int, Totals]] = {}
        self.early: dict[str, dict[int, list[Kept]]] = {}  # what later ticks get: sums, and events as they came
        self.known: dict[tuple[int, bytes], Known] = {}  # by (stream, idempotency key)
        self.fresh: list[tuple[int, bytes, Known]] = []  # what this commit adds to them

    def add_all(self, batches: Sequence[Batch]) -> list[Accepted | EvercountError]:
        """Add batches one after the other; returns an answer to each, which is the error if the batch is refused."""
        marks = [keyed(self.streams.get(batch.stream), batch) for batch in batches]
        for stream in {mark[0] for mark in marks if mark is not None}:  # one statement, however many batches there are
            wanted = {mark[1] for mark in marks if mark is not None and mark[0] == stream}
            for row in schema.rows_of(self.connection, schema.batches, stream=stream, key=wanted):
                self.known[stream, bytes(row.key)] = Known(bytes(row.digest), row.tick, row.size)
        return [self._add(batch, mark) for batch, mark in zip(batches, marks, strict=True)]

    def _add(self, batch: Batch, mark: tuple[int, bytes, bytes] | None) -> Accepted | EvercountError:
        """Take one batch in, or say why not; a refused batch leaves nothing behind."""
        try:
            live = self.streams.get(batch.stream)
            if live is None:
                raise StreamStopped(f"stream {batch.stream!r} has ended and takes no events")
            earlier = None if mark is None else self.known.get(mark[:2])
            if mark is not None and earlier is not None:
                if earlier.digest != mark[2]:
                    reused = "this Idempotency-Key was used for another batch: take a new key for new events"
                    raise Conflict(reused, events=earlier.size)
                return Accepted(batch.size, earlier.tick, repeated=True)
            live.check_open(self.now)
            placed = live.place(batch.times, batch.size, self.now)
            self._count(live, batch, placed)
        except EvercountError as error:
            return error
        tick = live.last_open(self.now)
        if mark is not None:
            stream, key, digest = mark
            self.known[stream, key] = known = Known(digest, tick, batch.size)
            self.fresh.append((stream, key, known))
        return Accepted(batch.size, tick, placed.late)

    def _count(self, live: LiveStream, batch: Batch, placed: Placed) -> None:
        """Take in the events of a batch, tick by tick. What can refuse the batch comes before anything is changed."""
        later = {tick: places for tick, places in placed.ticks.items() if tick > live.open_tick}
        if later and live.declaration.remembers and not live.declaration.query.refuses_by_itself:
            raise InputError(
                f"events of {live.declaration.query.name!r} are read in the order of their ticks: this stream takes "
                "those of the first open tick only"
            )
        adds_up = not live.declaration.remembers and batch.users is None
        self._count_open(live, batch, placed.ticks.get(live.open_tick, []))
        for lag, places in placed.revised.items():
            self._count_open(live, batch, places, lag)
        for tick, places in later.items():
            events = [batch.payloads[place] for place in places]
            if adds_up:
                sums, row = self.ahead.setdefault(live.name, {}), live.encode(events)
                sums[tick] = add_exactly(sums[tick], row) if tick in sums else row
            else:
                users = [None if batch.users is None else batch.users[place] for place in places]
                kept = self.early.setdefault(live.name, {}).setdefault(tick, [])
                kept.extend(zip(events, users, strict=True))

    def count_early(self, live: LiveStream, kept: list[Kept]) -> None:
        users = None if live.declaration.user_caps is None else [user for _, user in kept if user is not None]
        batch = Batch(live.name, [event for event, _ in kept], users=users)
        self._count_open(live, batch, list(range(batch.size)))

    def _count_open(self, live: LiveStream, batch: Batch, places: list[int], lag: int = 0) -> None:
        """The events at these places of a batch, into the first open tick; of a revised stream for one `lag` ago."""
        changes: UserState = {}
        if batch.users is not None:
            users = [batch.users[place] for place in places]
            before = self._used_by(live, users, lag)
            caps = Caps.of(live.declaration.budget)
            places, changes = cap_per_user(zip(users, places, strict=True), caps, before, live.open_tick)
        kept = [batch.payloads[place] for place in places]
        if live.declaration.remembers:
            pending = self.events.setdefault(live.name, [])
            live.offer(kept, places, pending)
            pending.extend(kept)
        elif places:
            row = live.encode(kept, lag, batch.row if len(kept) == batch.size else None)
            self.totals[live.name] = add_exactly(self.totals.get(live.name, live.totals), row)
        if changes:
            self._known(live).change(dict(zip(user_hashes(live, changes, lag), changes.values(), strict=True)))

    def _used_by(self, live: LiveStream, users: list[str], lag: int) -> UserState:
        names = list(set(users))
        hashes = dict(zip(names, user_hashes(live, names, lag), strict=True))
        seen = self._known(live).read(self.connection, set(hashes.values()))
        return {user: seen[hashed] for user, hashed in hashes.items()}

    def _known(self, live: LiveStream) -> KnownUsers:
        return self.users.setdefault(live.id, KnownUsers(live.id, live.sealer))

    def write(self) -> None:
        now = time.time()
        rows = ((stream, key, one.digest, one.tick, now, one.size) for stream, key, one in self.fresh)
        insert_rows(self.connection, schema.batches, rows)
        for name, totals in self.totals.items():
            self.streams[name].write_totals(self.connection, self.streams[name].open_tick, totals)
        for name, events in self.events.items():
            live = self.streams[name]
            if events:
                live.write_events(self.connection, live.open_tick, live.groups, events)
        for name, sums in self.ahead.items():
            add_totals(self.connection, self.streams[name], sums)
        for name, kept in self.early.items():
            keep_early(self.connection, self.streams[name], kept)
        for known in self.users.values():
            known.write(self.connection)

    def settle(self) -> None:
        """After the commit: bring the live streams to what the database holds now."""
        for name, totals in self.totals.items():
            self.streams[name].totals = totals
        for name, events in self.events.items():
            self.streams[name].events.extend(events)
            self.streams[name].groups += bool(events)
        for name in self.ahead:
            self.streams[name].counted = True
        for name, kept in self.early.items():
            self.streams[name].early.update(kept)


class Known(NamedTuple):
    """A batch that was taken in, as its idempotency key remembers it."""

    digest: bytes
    tick: int
    size: int


def keyed(live: LiveStream | None, batch: Batch) -> tuple[int, bytes, bytes] | None:
    """The stream, and keyed hashes of a batch's idempotency key, with its sender, and of its body: they tell a retry
    from a change. None for a batch without a key."""
    if live is None or batch.key is None:
        return None
    secret = bytes.fromhex(live.secret.derive("evercount/store/batches").hex())
    name = hashlib.blake2b(batch.key.encode(), digest_size=32, key=secret, person=b"evercount.key").digest()
    key = hashlib.blake2b(name + batch.sender, digest_size=32, key=secret, person=b"evercount.sender").digest()
    return live.id, key, hashlib.blake2b(batch.body, digest_size=32, key=secret, person=b"evercount.body").digest()


def user_hashes(live: LiveStream, users: Iterable[str], lag: int = 0) -> list[bytes]:
    """Keyed hashes of the ids of users: an id itself is never stored. Where ticks are revised, of users for the tick
    that is `lag` ticks ago: they begin with its number."""
    secret = bytes.fromhex(live.secret.derive("evercount/store/users").hex())
    keyed = hashlib.blake2b(digest_size=32, key=secret, person=b"evercount.user")
    hashes = []
    for user in users:
        one = keyed.copy()
        one.update(user.encode())
        hashes.append(one.digest())
    if live.declaration.revise_for is not None:
        return [day_key(live.open_tick - lag) + one[DAY_BYTES:] for one in hashes]
    return hashes


def add_totals(connection: Connection, live: LiveStream, rows: Mapping[int, IntArray | Totals]) -> None:
    """Add sums to those of open ticks, which lie in the database until the ticks close."""
    stored = stored_totals(connection, live, list(rows))
    zeros = np.zeros(live.stream.query.cells, np.int64)
    new = []
    for tick, row in rows.items():
        sums = pack_totals(add_exactly(stored.get(tick, zeros), row))
        new.append((live.id, tick, live.seal(sums, "counted", tick)))
    replace_rows(connection, counted_totals, new)


def stored_totals(connection: Connection, live: LiveStream, ticks: Sequence[int]) -> dict[int, Totals]:
    sums, cells = dict[int, Totals](), live.stream.query.cells
    for start in range(0, len(ticks), TICKS_AT_A_TIME):
        part = list(ticks[start : start + TICKS_AT_A_TIME])
        for tick, sealed in rows_of(connection, counted_totals, "tick", "sealed", stream=live.id, tick=part):
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


def read_early(connection: Connection, live: LiveStream, tick: int) -> list[Kept]:
    """The kept events of a tick in the order in which they came."""
    kept = rows_of(connection, early_events, "sealed", order="number", stream=live.id, tick=tick)
    return [(event, user) for one in kept.scalars() for event, user in json.loads(live.unseal(one, "early", tick))]
