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
from typing import Any

import numpy as np
from sqlalchemy import Connection

from evercount._validate import IntArray
from evercount.errors import Conflict, EvercountError, InputError, StoreError, StreamStopped
from evercount.queries.user_cap import Caps, Used, cap_per_user
from evercount.store import schema
from evercount.store.caps_of_persons import DAY_BYTES, PersonCaps, day_key
from evercount.store.database import in_parts, insert_rows, replace_rows, rows_of
from evercount.store.open_stream import (
    Accepted,
    Batch,
    LiveStream,
    Places,
    Totals,
    add_exactly,
    pack_totals,
    unpack_totals,
)
from evercount.store.schema import counted_totals, early_events

# an event of a later tick, and its person, where persons are protected
EarlyEvent = tuple[Any, str | None]


class PendingEvents:
    """What the batches of one commit add to a stream, kept apart from it until the commit."""

    def __init__(self, live: LiveStream, connection: Connection) -> None:
        self.live = live
        self.connection = connection
        self.totals = live.totals
        self.events = list[Any]()
        self.caps: PersonCaps | None = None  # where persons are protected
        self.ahead: dict[int, Totals] = {}
        # what later ticks get: sums, and events as they came
        self.early: dict[int, list[EarlyEvent]] = {}

    def count(self, batch: Batch, places: Places) -> None:
        """Take in the events of a batch, tick by tick. What can refuse the batch comes before
        anything is changed."""
        live = self.live
        later = any(tick > live.open_tick for tick, _ in places)
        if later and live.declaration.remembers and not live.declaration.query.refuses_by_itself:
            raise InputError(
                f"events of {live.declaration.query.name!r} are read in the order of their ticks: "
                "this stream takes those of the first open tick only"
            )
        self._count_open(batch, places.get((live.open_tick, 0), []))
        for (tick, lag), some in places.items():
            if tick > live.open_tick:
                self._keep_for_later(batch, some, tick)
            elif lag:
                self._count_open(batch, some, lag)

    def count_early(self, events: list[EarlyEvent]) -> None:
        """Take in events that were kept for the first open tick."""
        # queries of people read them from the events, which then have none beside them
        named = [user for _, user in events if user is not None]
        batch = Batch(self.live.name, [event for event, _ in events], users=named or None)
        self._count_open(batch, list(range(batch.size)))

    def _keep_for_later(self, batch: Batch, places: list[int], tick: int) -> None:
        """Keep the events at these places for a tick after the first open one: their sum, or as
        they came where they do not simply add up."""
        events = [batch.payloads[place] for place in places]
        if self.live.declaration.remembers or batch.users is not None:
            users: list[str | None] = [None] * len(places)
            if batch.users is not None:
                users = [batch.users[place] for place in places]
            self.early.setdefault(tick, []).extend(zip(events, users, strict=True))
            return
        row: Totals = self.live.encode(events)
        if tick in self.ahead:
            row = add_exactly(self.ahead[tick], row)
        self.ahead[tick] = row

    def _count_open(self, batch: Batch, places: list[int], lag: int = 0) -> None:
        """Take the events at these places of a batch into the first open tick; of a revised stream
        for one `lag` ago."""
        live = self.live
        used_after: dict[bytes, Used] = {}
        if batch.users is not None:
            users = [batch.users[place] for place in places]
            places, used_after = self._within_caps(users, places, lag)
        events = [batch.payloads[place] for place in places]
        if live.declaration.remembers:
            live.offer(events, places, self.events)
            self.events.extend(events)
        elif places:
            # the sum of the whole batch was made when it was read
            row = batch.row if len(events) == batch.size else None
            self.totals = add_exactly(self.totals, live.encode(events, lag, row))
        if self.caps is not None:
            self.caps.change(used_after)

    def _within_caps(
        self, users: list[str], places: list[int], lag: int
    ) -> tuple[list[int], dict[bytes, Used]]:
        """Return the places for which the caps of their persons have room, and what the persons
        have used then."""
        live = self.live
        names = list(set(users))
        hashes = dict(zip(names, user_hashes(live, names, lag), strict=True))
        self.caps = self.caps or PersonCaps(live.id, live.sealer)
        stored = self.caps.read(self.connection, hashes.values())
        before = {user: stored[hashed] for user, hashed in hashes.items()}
        caps = Caps.of(live.declaration.budget)
        events = zip(users, places, strict=True)
        places, changes = cap_per_user(events, caps, before, live.open_tick)
        return places, {hashes[user]: used for user, used in changes.items()}

    def write(self) -> None:
        """Write what was taken in, inside the transaction that commits it."""
        connection = self.connection
        live = self.live
        if self.totals is not live.totals:
            live.write_totals(connection, live.open_tick, self.totals)
        if self.events:
            live.write_events(connection, live.open_tick, live.groups, self.events)
        add_totals(connection, live, self.ahead)
        keep_early(connection, live, self.early)
        if self.caps is not None:
            self.caps.write(connection)

    def settle(self) -> None:
        """Bring the live stream to what the database holds after the commit."""
        self.live.totals = self.totals
        self.live.events.extend(self.events)
        self.live.groups += bool(self.events)
        self.live.counted |= bool(self.ahead)
        self.live.early.update(self.early)


class GroupCommit:
    """Batches that are committed together.

    **Guarantee.** The answers of `add_all` go out after the commit (`Store.accept`), and the commit
    holds for each batch what it adds together with its idempotency key: after any crash a batch is
    on the disk with its key, or neither is, and then nobody was answered. Many batches share one
    wait for the disk; none is answered before it. A batch that comes again is found among the
    earlier ones: the stored ones, which were read inside the same transaction of the one writer,
    and those of its own commit. Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_streams.py`.
    """

    def __init__(self, streams: dict[str, LiveStream], connection: Connection, now: float) -> None:
        self.streams = streams
        self.connection = connection
        self.now = now
        self.pending: dict[str, PendingEvents] = {}
        # (stream, idempotency key) → the digest of the body, and the answer
        self.earlier_batches: dict[tuple[int, bytes], tuple[bytes, Accepted]] = {}
        self.new_batches: list[tuple[int, bytes]] = []  # those of this commit

    def add_all(self, batches: Sequence[Batch]) -> list[Accepted | EvercountError]:
        """Add batches one after the other; returns an answer to each, which is the error if the
        batch is refused."""
        marks = [keyed(self.streams.get(batch.stream), batch) for batch in batches]
        # one statement, however many batches there are
        for stream in {mark[0] for mark in marks if mark is not None}:
            wanted = {mark[1] for mark in marks if mark is not None and mark[0] == stream}
            for row in rows_of(self.connection, schema.batches, stream=stream, key=wanted):
                answer = Accepted(row.size, row.tick)
                self.earlier_batches[stream, bytes(row.key)] = bytes(row.digest), answer
        return [self._add(batch, mark) for batch, mark in zip(batches, marks, strict=True)]

    def _add(
        self, batch: Batch, mark: tuple[int, bytes, bytes] | None
    ) -> Accepted | EvercountError:
        """Take one batch in, or say why not; a refused batch leaves nothing behind."""
        try:
            live = self.streams.get(batch.stream)
            if live is None:
                raise StreamStopped(f"stream {batch.stream!r} has ended and takes no events")
            if mark is not None and mark[:2] in self.earlier_batches:
                digest, answer = self.earlier_batches[mark[:2]]
                if digest != mark[2]:
                    raise Conflict(
                        "this Idempotency-Key was used for another batch: use a new key for new "
                        "events",
                        events=answer.accepted,
                    )
                return Accepted(batch.size, answer.tick, repeated=True)
            live.check_open(self.now)
            places, late = live.place(batch.times, batch.size, self.now)
            pending = self.pending.setdefault(live.name, PendingEvents(live, self.connection))
            pending.count(batch, places)
        except EvercountError as error:
            return error
        answer = Accepted(batch.size, live.last_open(self.now), late)
        if mark is not None:
            self.earlier_batches[mark[:2]] = mark[2], answer
            self.new_batches.append(mark[:2])
        return answer

    def write(self) -> None:
        """Write all batches, with their keys, inside the transaction that commits them."""
        now = time.time()
        rows = []
        for stream, key in self.new_batches:
            digest, answer = self.earlier_batches[stream, key]
            rows.append((stream, key, digest, answer.tick, now, answer.accepted))
        insert_rows(self.connection, schema.batches, rows)
        for pending in self.pending.values():
            pending.write()


def keyed(live: LiveStream | None, batch: Batch) -> tuple[int, bytes, bytes] | None:
    """Return the stream, and keyed hashes of a batch's idempotency key, with its sender, and of its
    body: they tell a retry from a change. None for a batch without a key."""
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
    """Return keyed hashes of the ids of persons: an id itself is never stored. Where ticks are
    revised, of persons for the tick that is `lag` ticks ago: they begin with its number."""
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
    """Read the sums of open ticks that lie in the database until the ticks close."""
    sums = dict[int, Totals]()
    cells = live.stream.query.cells
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
    connection: Connection, live: LiveStream, events: Mapping[int, Iterable[EarlyEvent]]
) -> None:
    """Keep events of later ticks as they came."""
    for tick, some in events.items():
        number = len(rows_of(connection, early_events, "number", stream=live.id, tick=tick).all())
        sealed = live.seal(json.dumps(list(some)).encode(), "early", tick)
        insert_rows(connection, early_events, [(live.id, tick, number, sealed)])


def read_early(connection: Connection, live: LiveStream, tick: int) -> list[EarlyEvent]:
    """Read the kept events of a tick in the order in which they came."""
    rows = rows_of(connection, early_events, "sealed", order="number", stream=live.id, tick=tick)
    return [
        (event, user)
        for one in rows.scalars()
        for event, user in json.loads(live.unseal(one, "early", tick))
    ]
