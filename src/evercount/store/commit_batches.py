"""Batches that one transaction commits, with their idempotency keys and the caps of their users.

Events may be early: of open ticks after the first one, while ticks are held open after their end.
Where events simply add up, the sums of later ticks are kept next to those that were counted
elsewhere. Events of persons, whose caps go tick by tick, and events that a query reads as a whole
tick are kept as they came; they are counted when their tick is the first open one
(`closing_ticks.make_ready`), as if they had come then.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sqlalchemy import Connection

from evercount._validate import IntArray
from evercount.errors import Conflict, EvercountError, InputError, StoreError, StreamStopped
from evercount.queries.user_cap import Caps, UserState, cap_per_user
from evercount.store import schema
from evercount.store.caps_of_persons import DAY_BYTES, PersonCaps, day_key
from evercount.store.database import in_parts, insert_rows, replace_rows, rows_of
from evercount.store.open_stream import (
    Accepted,
    Batch,
    LiveStream,
    Placed,
    Totals,
    add_exactly,
    pack_totals,
    unpack_totals,
)
from evercount.store.schema import counted_totals, early_events

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream

Kept = tuple[Any, str | None]  # an event and its user, where users are protected


class Pending:
    """What the batches of one commit add to a stream, kept apart from it until the commit."""

    def __init__(self, live: LiveStream, connection: Connection) -> None:
        self.live, self.connection = live, connection
        self.totals, self.events = live.totals, list[Any]()
        self.users: PersonCaps | None = None  # where users are protected
        self.ahead: dict[int, Totals] = {}
        # what later ticks get: sums, and events as they came
        self.early: dict[int, list[Kept]] = {}

    def count(self, batch: Batch, placed: Placed) -> None:
        """Take in the events of a batch, tick by tick. What can refuse the batch comes before
        anything is changed."""
        live = self.live
        later = {tick: places for tick, places in placed.ticks.items() if tick > live.open_tick}
        if later and live.declaration.remembers and not live.declaration.query.refuses_by_itself:
            raise InputError(
                f"events of {live.declaration.query.name!r} are read in the order of their ticks: "
                "this stream takes those of the first open tick only"
            )
        adds_up = not live.declaration.remembers and batch.users is None
        self._count_open(batch, placed.ticks.get(live.open_tick, []))
        for lag, places in placed.revised.items():
            self._count_open(batch, places, lag)
        for tick, places in later.items():
            events = [batch.payloads[place] for place in places]
            if adds_up:
                row = live.encode(events)
                self.ahead[tick] = add_exactly(self.ahead[tick], row) if tick in self.ahead else row
            else:
                users = [None if batch.users is None else batch.users[place] for place in places]
                self.early.setdefault(tick, []).extend(zip(events, users, strict=True))

    def count_early(self, kept: list[Kept]) -> None:
        users = (
            None
            if self.live.declaration.user_caps is None
            else [user for _, user in kept if user is not None]
        )
        batch = Batch(self.live.name, [event for event, _ in kept], users=users)
        self._count_open(batch, list(range(batch.size)))

    def _count_open(self, batch: Batch, places: list[int], lag: int = 0) -> None:
        """The events at these places of a batch, into the first open tick; of a revised stream for
        one `lag` ago."""
        live, changes, hashes = self.live, UserState(), dict[str, bytes]()
        if batch.users is not None:
            users = [batch.users[place] for place in places]
            names = list(set(users))
            hashes = dict(zip(names, user_hashes(live, names, lag), strict=True))
            self.users = self.users or PersonCaps(live.id, live.sealer)
            seen = self.users.read(self.connection, hashes.values())
            before = {user: seen[hashed] for user, hashed in hashes.items()}
            caps = Caps.of(live.declaration.budget)
            places, changes = cap_per_user(
                zip(users, places, strict=True), caps, before, live.open_tick
            )
        kept = [batch.payloads[place] for place in places]
        if live.declaration.remembers:
            live.offer(kept, places, self.events)
            self.events.extend(kept)
        elif places:
            row = live.encode(kept, lag, batch.row if len(kept) == batch.size else None)
            self.totals = add_exactly(self.totals, row)
        if self.users is not None:
            self.users.change({hashes[user]: used for user, used in changes.items()})

    def write(self) -> None:
        connection, live = self.connection, self.live
        if self.totals is not live.totals:
            live.write_totals(connection, live.open_tick, self.totals)
        if self.events:
            live.write_events(connection, live.open_tick, live.groups, self.events)
        add_totals(connection, live, self.ahead)
        keep_early(connection, live, self.early)
        if self.users is not None:
            self.users.write(connection)

    def settle(self) -> None:
        """After the commit: bring the live stream to what the database holds now."""
        self.live.totals = self.totals
        self.live.events.extend(self.events)
        self.live.groups += bool(self.events)
        self.live.counted |= bool(self.ahead)
        self.live.early.update(self.early)


class Group:
    """Batches that are committed together.

    **Guarantee.** The answers of `add_all` go out after the commit (`Store.accept`), and the commit
    holds for each batch what it adds together with its idempotency key: after any crash a batch is
    on the disk with its key, or neither is, and then nobody was answered. Many batches share one
    wait for the disk; none is answered before it. A batch that comes again is found among those of
    before (`known`): the stored ones, which were read inside the same transaction of the one
    writer, and those of its own commit. Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_streams.py`.
    """

    def __init__(self, streams: dict[str, LiveStream], connection: Connection, now: float) -> None:
        self.streams, self.connection, self.now = streams, connection, now
        self.pending: dict[str, Pending] = {}
        self.known: dict[tuple[int, bytes], Known] = {}  # by (stream, idempotency key)
        self.fresh: list[tuple[int, bytes, Known]] = []  # what this commit adds to them

    def add_all(self, batches: Sequence[Batch]) -> list[Accepted | EvercountError]:
        """Add batches one after the other; returns an answer to each, which is the error if the
        batch is refused."""
        marks = [keyed(self.streams.get(batch.stream), batch) for batch in batches]
        # one statement, however many batches there are
        for stream in {mark[0] for mark in marks if mark is not None}:
            wanted = {mark[1] for mark in marks if mark is not None and mark[0] == stream}
            for row in rows_of(self.connection, schema.batches, stream=stream, key=wanted):
                self.known[stream, bytes(row.key)] = Known(bytes(row.digest), row.tick, row.size)
        return [self._add(batch, mark) for batch, mark in zip(batches, marks, strict=True)]

    def _add(
        self, batch: Batch, mark: tuple[int, bytes, bytes] | None
    ) -> Accepted | EvercountError:
        """Take one batch in, or say why not; a refused batch leaves nothing behind."""
        try:
            live = self.streams.get(batch.stream)
            if live is None:
                raise StreamStopped(f"stream {batch.stream!r} has ended and takes no events")
            earlier = None if mark is None else self.known.get(mark[:2])
            if mark is not None and earlier is not None:
                if earlier.digest != mark[2]:
                    reused = (
                        "this Idempotency-Key was used for another batch: use a new key for new "
                        "events"
                    )
                    raise Conflict(reused, events=earlier.size)
                return Accepted(batch.size, earlier.tick, repeated=True)
            live.check_open(self.now)
            placed = live.place(batch.times, batch.size, self.now)
            self.pending.setdefault(live.name, Pending(live, self.connection)).count(batch, placed)
        except EvercountError as error:
            return error
        tick = live.last_open(self.now)
        if mark is not None:
            stream, key, digest = mark
            self.known[stream, key] = known = Known(digest, tick, batch.size)
            self.fresh.append((stream, key, known))
        return Accepted(batch.size, tick, placed.late)

    def write(self) -> None:
        now = time.time()
        rows = (
            (stream, key, one.digest, one.tick, now, one.size) for stream, key, one in self.fresh
        )
        insert_rows(self.connection, schema.batches, rows)
        for pending in self.pending.values():
            pending.write()


class Known(NamedTuple):
    """A batch that was taken in, as its idempotency key remembers it."""

    digest: bytes
    tick: int
    size: int


def keyed(live: LiveStream | None, batch: Batch) -> tuple[int, bytes, bytes] | None:
    """The stream, and keyed hashes of a batch's idempotency key, with its sender, and of its body:
    they tell a retry from a change. None for a batch without a key."""
    if live is None or batch.key is None:
        return None
    secret = bytes.fromhex(live.secret.derive("evercount/store/batches").hex())
    name = hashlib.blake2b(
        batch.key.encode(), digest_size=32, key=secret, person=b"evercount.key"
    ).digest()
    key = hashlib.blake2b(
        name + batch.sender, digest_size=32, key=secret, person=b"evercount.sender"
    ).digest()
    return (
        live.id,
        key,
        hashlib.blake2b(batch.body, digest_size=32, key=secret, person=b"evercount.body").digest(),
    )


def user_hashes(live: LiveStream, users: Iterable[str], lag: int = 0) -> list[bytes]:
    """Keyed hashes of the ids of users: an id itself is never stored. Where ticks are revised, of
    users for the tick that is `lag` ticks ago: they begin with its number."""
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


def add_totals(
    connection: Connection, live: LiveStream, rows: Mapping[int, IntArray | Totals]
) -> None:
    """Add sums to those of open ticks, which lie in the database until the ticks close."""
    stored = stored_totals(connection, live, list(rows))
    zeros = np.zeros(live.stream.query.cells, np.int64)
    new = []
    for tick, row in rows.items():
        sums = pack_totals(add_exactly(stored.get(tick, zeros), row))
        new.append((live.id, tick, live.seal(sums, "counted", tick)))
    replace_rows(connection, counted_totals, new)


def stored_totals(
    connection: Connection, live: LiveStream, ticks: Sequence[int]
) -> dict[int, Totals]:
    sums, cells = dict[int, Totals](), live.stream.query.cells
    for part in in_parts(list(ticks)):
        for tick, sealed in rows_of(
            connection, counted_totals, "tick", "sealed", stream=live.id, tick=part
        ):
            totals = unpack_totals(live.unseal(sealed, "counted", tick), cells)
            if len(totals) != cells:
                raise StoreError(f"the totals of stream {live.name!r} do not belong to its query")
            sums[tick] = totals
    return sums


def keep_early(
    connection: Connection, live: LiveStream, events: Mapping[int, Iterable[Kept]]
) -> None:
    for tick, kept in events.items():
        number = len(rows_of(connection, early_events, "number", stream=live.id, tick=tick).all())
        sealed = live.seal(json.dumps(list(kept)).encode(), "early", tick)
        insert_rows(connection, early_events, [(live.id, tick, number, sealed)])


def read_early(connection: Connection, live: LiveStream, tick: int) -> list[Kept]:
    """The kept events of a tick in the order in which they came."""
    kept = rows_of(connection, early_events, "sealed", order="number", stream=live.id, tick=tick)
    return [
        (event, user)
        for one in kept.scalars()
        for event, user in json.loads(live.unseal(one, "early", tick))
    ]
