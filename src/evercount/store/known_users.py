"""How many events each user of a stream has had: read when asked for, written with what changes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, insert, select, update

from evercount.store.schema import users
from evercount.store.sealing import Sealer

PART = 500
"""Users that are read with one statement."""


class KnownUsers:
    """The numbers of one stream, by the keyed hash of a user; what changed is kept apart until `write`."""

    def __init__(self, stream: int, sealer: Sealer) -> None:
        self._stream, self._sealer = stream, sealer
        self._events: dict[bytes, int] = {}
        self._stored: set[bytes] = set()
        self._changed: set[bytes] = set()

    def read(self, connection: Connection, wanted: Collection[bytes]) -> dict[bytes, int]:
        unread = [user for user in wanted if user not in self._events]
        for start in range(0, len(unread), PART):
            part = unread[start : start + PART]
            query = select(users.c.user, users.c.sealed).where(
                (users.c.stream == self._stream) & users.c.user.in_(part)
            )
            for row in connection.execute(query):
                user = bytes(row.user)
                number = int.from_bytes(self._sealer.open(row.sealed, "user", self._stream, 0, user), "big")
                self._events[user] = number
                self._stored.add(user)
        return {user: self._events.get(user, 0) for user in wanted}

    def change(self, events: Mapping[bytes, int]) -> None:
        self._events.update(events)
        self._changed.update(events)

    def write(self, connection: Connection) -> None:
        fresh = []
        for user in self._changed:
            sealed = self._sealer.seal(self._events[user].to_bytes(8, "big"), "user", self._stream, 0, user)
            if user in self._stored:
                where = (users.c.stream == self._stream) & (users.c.user == user)
                connection.execute(update(users).where(where).values(sealed=sealed))
            else:
                fresh.append({"stream": self._stream, "user": user, "sealed": sealed})
        if fresh:
            connection.execute(insert(users), fresh)
