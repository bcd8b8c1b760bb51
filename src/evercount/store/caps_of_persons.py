"""What each person of a stream has used of the caps: read when needed, written with what changes
it.

The table `users` has a row for each person where a service counts a few events at a time
(`PersonCaps`), or blocks of many persons where totals are counted elsewhere (`CapBlocks`): a row of
its own for each of a million persons of a tick would take longer than to count their events. Each
of the two takes over what the other has left.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, select

from evercount._validate import AnyArray, IntArray
from evercount.queries.user_cap import NO_USE, Used
from evercount.store.database import in_parts, insert_rows, remove, replace_rows, rows_of
from evercount.store.schema import users
from evercount.store.sealing import Sealer

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream

RECORD = struct.Struct(">4q")
# the keyed hash of a user; arrays of them are compared as texts, and all have the same length
HASH = np.dtype("S32")
BLOCK = np.dtype([("user", HASH), ("used", "<i8", 4)])
# of the 32 bytes of a user, where ticks are revised: the number of the tick, then the hash
DAY_BYTES = 8
# the key of a block is a number below this in eight bytes; that of a user has 32 bytes
BLOCK_KEYS = 2**32


class CapBlock(NamedTuple):
    """Persons in the order of their hashes, with what each has used: a row of `Used`. `number` is
    None before it is written, and for persons that have rows of their own."""

    number: int | None
    user: AnyArray
    used: IntArray

    def under(self, newer: CapBlock) -> CapBlock:
        """Return both together; where they differ, `newer` is true."""
        # the first place of a person is in `newer`, if it has one there
        user, first = np.unique(np.concatenate([newer.user, self.user]), return_index=True)
        return CapBlock(None, user, np.concatenate([newer.used, self.used])[first])

    def find(self, wanted: AnyArray) -> IntArray:
        """Return the place of each hash, −1 for those that are not there."""
        if not len(self.user):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(self.user, wanted), len(self.user) - 1)
        return np.where(self.user[place] == wanted, place, -1)


class CapBlocks:
    """The caps of one stream for many persons at a time; what changed is kept apart until
    `write`."""

    def __init__(self, stream: int, sealer: Sealer) -> None:
        self._stream = stream
        self._sealer = sealer
        self._stored: list[CapBlock] | None = None
        self._fresh: list[CapBlock] = []
        self._forgot = False

    def read(self, connection: Connection, wanted: AnyArray) -> IntArray:
        if self._stored is None:
            self._stored = _read_blocks(connection, self._stream, self._sealer)
        used = np.zeros((len(wanted), len(NO_USE)), np.int64)
        missing = np.arange(len(wanted))
        for block in reversed((*self._stored, *self._fresh)):
            place = block.find(wanted[missing])
            matches = place >= 0
            used[missing[matches]] = block.used[place[matches]]
            missing = missing[~matches]
        return used

    def change(self, user: AnyArray, used: IntArray) -> None:
        """Take in what persons have used; `user` is sorted, and no two are equal."""
        self._fresh.append(CapBlock(None, user, used))

    def forget(self) -> None:
        """Let every person begin anew, as at the end of a period."""
        self._stored = []
        self._fresh = []
        self._forgot = True

    def write(self, connection: Connection) -> None:
        """Write what changed as one more block, with the blocks before it that are not much larger.
        So there are few blocks, and over time an entry is written again a few times, not with every
        tick."""
        stored = self._stored or []
        rows = bool(stored) and stored[0].number is None
        if self._forgot:
            remove(connection, users, stream=self._stream)
        if not self._fresh:
            return
        new = reduce(CapBlock.under, self._fresh)
        replaced: list[bytes] = []
        while stored and (rows or len(stored[-1].user) <= 2 * len(new.user)):
            block = stored.pop()
            new = block.under(new)
            if block.number is not None:
                replaced.append(_key(block.number))
        if rows:
            remove(connection, users, stream=self._stream)
        elif replaced:
            remove(connection, users, stream=self._stream, user=replaced)
        key = _key(1 + max((block.number or 0 for block in stored), default=0))
        content = np.empty(len(new.user), BLOCK)
        content["user"] = new.user
        content["used"] = new.used
        sealed = self._sealer.seal(content.tobytes(), "users", self._stream, 0, key)
        insert_rows(connection, users, [(self._stream, key, sealed)])


class PersonCaps:
    """The caps of one stream, by the keyed hash of a person; what changed is kept apart until
    `write`."""

    def __init__(self, stream: int, sealer: Sealer) -> None:
        self._stream = stream
        self._sealer = sealer
        self._used: dict[bytes, Used] = {}
        self._changed: set[bytes] = set()
        self._rows = False  # whether no person is in a block

    def read(self, connection: Connection, wanted: Collection[bytes]) -> dict[bytes, Used]:
        """Return what persons have used, in the transaction that writes: blocks become rows."""
        if not self._rows:
            _split_blocks(connection, self._stream, self._sealer)
            self._rows = True
        for part in in_parts([user for user in wanted if user not in self._used]):
            for row in rows_of(connection, users, "user", "sealed", stream=self._stream, user=part):
                user = bytes(row.user)
                self._used[user] = _open(self._sealer, self._stream, user, row.sealed)
        return {user: self._used.get(user, NO_USE) for user in wanted}

    def change(self, used: Mapping[bytes, Used]) -> None:
        self._used.update(used)
        self._changed.update(used)

    def write(self, connection: Connection) -> None:
        rows = [_row(self._sealer, self._stream, user, self._used[user]) for user in self._changed]
        replace_rows(connection, users, rows)


def forget_caps(connection: Connection, live: LiveStream, closing: range) -> None:
    """Forget what persons have used in a period, or for a revised tick, that ends with one of the
    ticks that are about to close.

    **Guarantee.** No cap looks at them any more. Test:
    tests/contracts/test_late_rules.py::test_every_interface_publishes_the_same_table.
    """
    caps = live.declaration.user_caps
    revise_for = live.declaration.revise_for
    assert caps is not None
    if any(map(caps.forgets_after, closing)):
        remove(connection, users, stream=live.id)
    elif revise_for is not None and closing.stop > revise_for:
        final = users.c.user < day_key(closing.stop - revise_for)
        connection.execute(delete(users).where((users.c.stream == live.id) & final))


def day_key(tick: int) -> bytes:
    """Return how the keys of persons for a revised tick begin; those of earlier ticks are
    smaller."""
    return (2**56 + tick).to_bytes(DAY_BYTES, "big")  # beyond the keys of blocks


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _row(sealer: Sealer, stream: int, user: bytes, used: Iterable[int]) -> tuple[int, bytes, bytes]:
    return stream, user, sealer.seal(RECORD.pack(*used), "user", stream, 0, user)


def _open(sealer: Sealer, stream: int, user: bytes, sealed: bytes) -> Used:
    return Used._make(RECORD.unpack(sealer.open(sealed, "user", stream, 0, user)))


def _read_blocks(
    connection: Connection, stream: int, sealer: Sealer, most: bytes | None = None
) -> list[CapBlock]:
    """Read the blocks of a stream in the order in which they were written; before them persons with
    rows of their own, if any. With `most`, only what has a smaller key."""
    where = users.c.stream == stream
    if most is not None:
        where &= users.c.user < most
    blocks = []
    entries = {}
    for key, sealed in connection.execute(
        select(users.c.user, users.c.sealed).where(where).order_by(users.c.user)
    ):
        key = bytes(key)
        if len(key) == HASH.itemsize:
            entries[key] = _open(sealer, stream, key, sealed)
            continue
        content = np.frombuffer(sealer.open(sealed, "users", stream, 0, key), BLOCK)
        user = np.ascontiguousarray(content["user"])
        blocks.append(CapBlock(int.from_bytes(key, "big"), user, content["used"].astype(np.int64)))
    if not entries:
        return blocks
    return [
        CapBlock(
            None, np.asarray(list(entries), HASH), np.asarray(list(entries.values()), np.int64)
        ),
        *blocks,
    ]


def _split_blocks(connection: Connection, stream: int, sealer: Sealer) -> None:
    """Replace the blocks of a stream by a row for each person."""
    blocks = [
        block
        for block in _read_blocks(connection, stream, sealer, _key(BLOCK_KEYS))
        if block.number is not None
    ]
    if not blocks:
        return
    whole = reduce(CapBlock.under, blocks)
    remove(connection, users, stream=stream)  # a stream has blocks or rows, never both
    hashes = np.ascontiguousarray(whole.user).view("V32").tolist()
    entries = zip(hashes, whole.used.tolist(), strict=True)
    insert_rows(connection, users, (_row(sealer, stream, user, used) for user, used in entries))
