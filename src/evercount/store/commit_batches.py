"""Group: batches that one transaction commits, with their idempotency keys and the caps of their users."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, update

from evercount.errors import Conflict, EvercountError, StreamStopped
from evercount.queries.user_cap import Caps, UserState, cap_per_user
from evercount.store import schema
from evercount.store.database import insert_rows
from evercount.store.known_users import KnownUsers
from evercount.store.open_stream import Accepted, Batch, LiveStream
from evercount.store.saturation import Totals, add_exactly
from evercount.store.sealing import Sealer


class Group:
    """Batches that are committed together: what they add, kept beside the live streams until the commit.

    **Guarantee.** The answers of `add_all` go out after the commit (`Store.accept`), and the commit holds for each
    batch what it adds together with its idempotency key: after any crash a batch is on the disk with its key, or
    neither is, and then nobody was answered. Many batches share one wait for the disk; none is answered before it. A
    batch that comes again is found among the batches of its own commit (`keys`) or among the stored ones (`known`),
    which were read inside the same transaction of the one writer. Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_streams.py`.
    """

    def __init__(self, streams: dict[str, LiveStream], sealer: Sealer, connection: Connection, now: float) -> None:
        self.streams, self.sealer, self.connection, self.now = streams, sealer, connection, now
        self.totals: dict[str, Totals] = {}
        self.events: dict[str, list[Any]] = {}
        self.users: dict[int, KnownUsers] = {}
        self.keys: dict[tuple[int, bytes], tuple[bytes, int]] = {}
        """(stream, idempotency key) → (digest, tick) of the batches that were taken in; `known`: of stored ones."""
        self.known: dict[tuple[int, bytes], tuple[bytes, int]] = {}

    def add_all(self, batches: Sequence[Batch]) -> list[Accepted | EvercountError]:
        """Add batches one after the other; returns an answer to each, which is the error if the batch is refused."""
        marks = [self._mark(batch) for batch in batches]
        self._read_known([mark for mark in marks if mark is not None])
        return [self._add(batch, mark) for batch, mark in zip(batches, marks, strict=True)]

    def _mark(self, batch: Batch) -> Mark | None:
        live = self.streams.get(batch.stream)
        return None if live is None or batch.key is None else Mark.of(live, batch)

    def _read_known(self, marks: Sequence[Mark]) -> None:
        """Which idempotency keys are stored already: one statement for each stream, however many batches there are."""
        table = schema.batches
        for stream in {mark.stream for mark in marks}:
            wanted = {mark.key for mark in marks if mark.stream == stream}
            where = (table.c.stream == stream) & table.c.key.in_(wanted)
            for row in self.connection.execute(select(table.c.key, table.c.digest, table.c.tick).where(where)):
                self.known[stream, bytes(row.key)] = (bytes(row.digest), row.tick)

    def _add(self, batch: Batch, mark: Mark | None) -> Accepted | EvercountError:
        """Take one batch in, or say why not; a refused batch leaves nothing behind."""
        try:
            live = self.streams.get(batch.stream)
            if live is None:
                raise StreamStopped(f"stream {batch.stream!r} is over and takes no events")
            earlier = None if mark is None else self._earlier(mark)
            if earlier is not None:
                return Accepted(batch.size, earlier)
            live.check_open(self.now)
            self._count(live, batch)
        except EvercountError as error:
            return error
        if mark is not None:
            self.keys[live.id, mark.key] = (mark.digest, live.open_tick)
        return Accepted(batch.size, live.open_tick)

    def _earlier(self, mark: Mark) -> int | None:
        """The tick that has counted the same batch; None where none has."""
        earlier = self.keys.get((mark.stream, mark.key)) or self.known.get((mark.stream, mark.key))
        if earlier is None:
            return None
        if earlier[0] != mark.digest:
            raise Conflict("this Idempotency-Key was used for another batch: take a new key for new events")
        return earlier[1]

    def _count(self, live: LiveStream, batch: Batch) -> None:
        places = list(range(batch.size))
        changes: UserState = {}
        if batch.times is not None:
            counted = live.on_time(batch.times)
            places = [place for place in places if counted[place]]
        if batch.users is not None:
            users = [batch.users[place] for place in places]
            before = self._used_by(live, users)
            caps = Caps.of(live.declaration.budget)
            places, changes = cap_per_user(zip(users, places, strict=True), caps, before, live.open_tick)
        kept = [batch.payloads[place] for place in places]
        if live.declaration.remembers:
            pending = self.events.setdefault(live.name, [])
            live.offer(kept, places, pending)
            pending.extend(kept)
        else:
            row = batch.row if len(kept) == batch.size and batch.row is not None else live.encode(kept)
            self.totals[live.name] = add_exactly(self.totals.get(live.name, live.totals), row)
        if changes:
            self._known(live).change(dict(zip(user_hashes(live, changes), changes.values(), strict=True)))

    def _used_by(self, live: LiveStream, users: list[str]) -> UserState:
        names = list(set(users))
        hashes = dict(zip(names, user_hashes(live, names), strict=True))
        seen = self._known(live).read(self.connection, set(hashes.values()))
        return {user: seen[hashed] for user, hashed in hashes.items()}

    def _known(self, live: LiveStream) -> KnownUsers:
        return self.users.setdefault(live.id, KnownUsers(live.id, self.sealer))

    def write(self) -> None:
        now = time.time()
        if self.keys:
            rows = ((stream, key, digest, tick, now) for (stream, key), (digest, tick) in self.keys.items())
            insert_rows(self.connection, schema.batches, rows)
        for name, totals in self.totals.items():
            live = self.streams[name]
            sealed = live.pack_totals(self.sealer, totals, live.open_tick)
            where = schema.accumulators.c.stream == live.id
            self.connection.execute(update(schema.accumulators).where(where).values(sealed=sealed))
        for name, events in self.events.items():
            if not events:
                continue
            live = self.streams[name]
            sealed = self.sealer.seal(json.dumps(events).encode(), "events", live.id, live.open_tick)
            row = {"stream": live.id, "tick": live.open_tick, "number": live.groups, "sealed": sealed}
            self.connection.execute(insert(schema.open_events), [row])
        for known in self.users.values():
            known.write(self.connection)

    def settle(self) -> None:
        """After the commit: bring the live streams to what the database holds now."""
        for name, totals in self.totals.items():
            self.streams[name].totals = totals
        for name, events in self.events.items():
            if not events:
                continue
            live = self.streams[name]
            live.events.extend(events)
            live.groups += 1


@dataclass(frozen=True)
class Mark:
    """Keyed hashes of a batch's idempotency key, with its sender, and of its body: they tell a retry from a change."""

    stream: int
    key: bytes
    digest: bytes

    @classmethod
    def of(cls, live: LiveStream, batch: Batch) -> Mark:
        assert batch.key is not None
        secret = bytes.fromhex(live.secret.derive("evercount/store/batches").hex())
        name = hashlib.blake2b(batch.key.encode(), digest_size=32, key=secret, person=b"evercount.key").digest()
        key = hashlib.blake2b(name + batch.sender, digest_size=32, key=secret, person=b"evercount.sender").digest()
        digest = hashlib.blake2b(batch.body, digest_size=32, key=secret, person=b"evercount.body").digest()
        return cls(live.id, key, digest)


def user_hashes(live: LiveStream, users: Iterable[str]) -> list[bytes]:
    """Keyed hashes of the ids of users: an id itself is never stored."""
    secret = bytes.fromhex(live.secret.derive("evercount/store/users").hex())
    keyed = hashlib.blake2b(digest_size=32, key=secret, person=b"evercount.user")
    hashes = []
    for user in users:
        one = keyed.copy()
        one.update(user.encode())
        hashes.append(one.digest())
    return hashes
