"""What each user of a stream has used of the caps: read when asked for, written with what changes it."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, update

from evercount.queries.user_cap import NOTHING, Used
from evercount.store.schema import users
from evercount.store.sealing import Sealer

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream

RECORD = struct.Struct(">4q")
PART = 500
"""Users that are read with one statement."""


class KnownUsers:
    """The entries of one stream, by the keyed hash of a user; what changed is kept apart until `write`."""

    def __init__(self, stream: int, sealer: Sealer) -> None:
        self._stream, self._sealer = stream, sealer
        self._used: dict[bytes, Used] = {}
        self._stored: set[bytes] = set()
        self._changed: set[bytes] = set()
        self._forgot = False

    def read(self, connection: Connection, wanted: Collection[bytes]) -> dict[bytes, Used]:
        unread = [] if self._forgot else [user for user in wanted if user not in self._used]
        for start in range(0, len(unread), PART):
            part = unread[start : start + PART]
            query = select(users.c.user, users.c.sealed).where(
                (users.c.stream == self._stream) & users.c.user.in_(part)
            )
            for row in connection.execute(query):
                user = bytes(row.user)
                record = self._sealer.open(row.sealed, "user", self._stream, 0, user)
                self._used[user] = Used(*RECORD.unpack(record))
                self._stored.add(user)
        return {user: self._used.get(user, NOTHING) for user in wanted}

    def change(self, used: Mapping[bytes, Used]) -> None:
        self._used.update(used)
        self._changed.update(used)

    def forget(self) -> None:
        """Forget everybody, because a period is over."""
        self._used, self._stored, self._changed, self._forgot = {}, set(), set(), True

    def write(self, connection: Connection) -> None:
        if self._forgot:
            connection.execute(delete(users).where(users.c.stream == self._stream))
        fresh = []
        for user in self._changed:
            sealed = self._sealer.seal(RECORD.pack(*self._used[user]), "user", self._stream, 0, user)
            if user in self._stored:
                where = (users.c.stream == self._stream) & (users.c.user == user)
                connection.execute(update(users).where(where).values(sealed=sealed))
            else:
                fresh.append({"stream": self._stream, "user": user, "sealed": sealed})
        if fresh:
            connection.execute(insert(users), fresh)


def forget_users(connection: Connection, live: LiveStream, closing: range) -> None:
    """Forget the users of a period that ends with one of the ticks that are about to close."""
    caps = live.declaration.user_caps
    if caps is not None and any(map(caps.forgets_after, closing)):
        connection.execute(delete(users).where(users.c.stream == live.id))
