"""Events that were read elsewhere (by Spark, from a log): kept until their tick closes, one row for
a tick and batch.

Rows with names (keys that nobody listed, users that are counted) are then what the query reads as a
tick; names are texts of any length, and what else a row has are whole numbers. Of events of users
that are protected the cap keeps the first of each user by (time, declared order), whatever batches
they came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._validate import AnyArray, IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import StoreError
from evercount.queries import sensitivities
from evercount.queries.user_cap import last_turns
from evercount.store.commit_batches import user_hashes
from evercount.store.database import having, insert_rows, rows_of
from evercount.store.known_users import HASH, ManyUsers
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_events

PURPOSE = "named events"
Part = tuple[list[str], IntArray]  # names and numbers of some rows of one tick
# stored bytes that are read together when several ticks close at once; at least one tick is
BYTES_AT_A_TIME = 2**26


RECORD = np.dtype(
    [("user", HASH), ("time", "<i8"), ("order", "<i8"), ("cell", "<i8"), ("units", "<i8")]
)
"""What is kept of an event: the keyed hash of its user, never the user."""


@dataclass(frozen=True, eq=False)
class NamedEvents:
    """Rows of some ticks. Secret. Keys that nobody listed: `name` is the key, and its one number is
    how many events named it. Users that are counted: `name` is the user, and its numbers are the
    cell of the key (0 without keys), the time and the declared order."""

    tick: IntArray
    name: Sequence[str]
    numbers: IntArray  # shape (rows, numbers)

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Each tick and its rows as they are stored, sorted: the same rows have the same form,
        however they came."""
        for tick, here in by_tick(self.tick):
            names = [self.name[place] for place in here.tolist()]
            sorting = np.asarray(sorted(range(len(names)), key=names.__getitem__), np.int64)
            numbers = self.numbers[here][sorting]
            names = [names[place] for place in sorting.tolist()]
            same = np.fromiter((a == b for a, b in pairwise(names)), bool, len(names) - 1)
            if same.any():
                name = np.cumsum(np.r_[0, ~same])
                numbers = numbers[np.lexsort((*numbers.T[::-1], name))]
            yield tick, pack_rows(names, numbers)


def by_tick(tick: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each tick with the places of its entries, sorted once."""
    sorting = np.argsort(tick, kind="stable")
    ticks, starts = np.unique(tick[sorting], return_index=True)
    return (
        zip(ticks.tolist(), np.split(sorting, starts[1:]), strict=True) if len(ticks) else iter(())
    )


def pack_rows(names: Sequence[str], numbers: IntArray) -> bytes:
    """How many rows, the lengths of their names, the names, and the numbers column by column."""
    texts = [name.encode() for name in names]
    lengths = np.fromiter(map(len, texts), "<u4", len(texts))
    columns = np.ascontiguousarray(numbers.T, "<i8").tobytes()
    return len(texts).to_bytes(8, "little") + lengths.tobytes() + b"".join(texts) + columns


def unpack_rows(content: bytes) -> Part:
    """The inverse of `pack_rows`, for at least one row."""
    rows = int.from_bytes(content[:8], "little")
    lengths = np.frombuffer(content, "<u4", rows, 8)
    ends = (8 + 4 * rows + np.cumsum(lengths, dtype=np.int64)).tolist()
    begins = [8 + 4 * rows, *ends[:-1]]
    names = [content[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]
    left = np.frombuffer(content[ends[-1] :], "<i8")
    return names, left.reshape(-1, rows).T.astype(np.int64)


def as_tick(
    declaration: StreamDeclaration, parts: Sequence[Part], accepted: Sequence[Any] = ()
) -> Any:
    """What the query reads as a tick: rows of all batches, and events that were accepted one by
    one.

    **Guarantee.** It depends on the rows of the tick alone, never on how they were cut into
    batches; the order of a user's events is a function of these events. Proof:
    `queries/distinct_users.proof.md`, "Where rows have no order". Tests:
    tests/store/test_named_events.py and
    tests/contracts/test_same_table.py::test_keys_that_nobody_listed_and_persons_are_alike_in_every_door.
    """
    if not parts:
        return list(accepted)
    if declaration.query.discovery is not None:
        events = Counter[str](accepted)
        for names, numbers in parts:
            for key, number in zip(names, numbers[:, 0].tolist(), strict=True):
                events[key] += number
        return events
    rows: list[tuple[int, int, str, int]] = []
    for names, numbers in parts:
        cell, time, order = numbers.T.tolist()
        rows += zip(time, order, names, cell, strict=True)
    rows.sort()
    columns = sensitivities.rows_of(declaration.query)
    keyed, keys = columns.keyed, columns.keys[0] if columns.keyed else ()
    return [*accepted, *((name, keys[cell]) if keyed else name for _, _, name, cell in rows)]


def stored_parts(connection: Connection, live: LiveStream, ticks: range) -> dict[int, list[Part]]:
    found = dict[int, list[Part]]()
    for tick, sealed in rows_of(
        connection, counted_events, "tick", "sealed", stream=live.id, tick=ticks
    ):
        found.setdefault(tick, []).append(unpack_rows(live.unseal(sealed, PURPOSE, tick)))
    return found


def keep_rows(
    connection: Connection,
    live: LiveStream,
    query: str,
    batch: int,
    rows: Iterable[tuple[int, bytes]],
) -> None:
    for tick, parts in groupby(rows, key=lambda row: row[0]):
        content, *more = (content for _, content in parts)
        if more:  # late rows of several ticks
            opened = [unpack_rows(one) for one in (content, *more)]
            names = [name for some, _ in opened for name in some]
            content = pack_rows(names, np.concatenate([numbers for _, numbers in opened]))
        row = (live.id, tick, query, batch, live.seal(content, PURPOSE, tick))
        insert_rows(connection, counted_events, [row])


def ticks_at_a_time(connection: Connection, stream: int, ticks: range) -> int:
    """How many of the next ticks are read together, so that memory holds one tick or a bounded
    number of bytes."""
    table, total = counted_events, 0
    sizes = select(table.c.tick, func.sum(func.length(table.c.sealed))).where(
        having(table, stream=stream, tick=ticks)
    )
    for tick, size in connection.execute(sizes.group_by(table.c.tick).order_by(table.c.tick)):
        total += int(size)
        if total > BYTES_AT_A_TIME:
            return max(1, int(tick) - ticks.start)
    return len(ticks)


# -- events of users -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UserEvents:
    """Events with their users, one entry of each column for each event. Secret."""

    tick: IntArray
    user: Sequence[str]
    time: IntArray
    order: IntArray
    cell: IntArray
    units: IntArray
    # where `user` names each user once: the place there of each event's user
    place: IntArray | None = None
    keys: Sequence[str] = ()  # where they are not listed: each once; `cell` is the place among them

    def __len__(self) -> int:
        return len(self.tick)

    def stored(self, live: LiveStream) -> tuple[IntArray, AnyArray, list[str]]:
        """Ticks, events and keys as they are stored, in one order: the same events have the same
        form, however they came. Of one user and tick no event is kept that comes after more others
        than any cap leaves."""
        keys = sorted(self.keys)
        cell = self.cell
        if keys:
            at = {key: number for number, key in enumerate(keys)}
            cell = np.asarray([at[key] for key in self.keys], np.int64)[cell]
        names, place = self.user, self.place
        if place is None:
            known: dict[str, int] = {}
            place = np.fromiter(
                (known.setdefault(name, len(known)) for name in self.user), np.int64, len(self)
            )
            names = list(known)
        hashes = np.frombuffer(b"".join(user_hashes(live, names)), HASH)
        code = np.unique(hashes, return_inverse=True)[1][place]
        sorting = np.lexsort((code, self.tick))
        near = (self.tick[sorting][1:] == self.tick[sorting][:-1]) & (
            code[sorting][1:] == code[sorting][:-1]
        )
        several = np.r_[near, False] | np.r_[False, near]  # most users have one event in a tick
        part = sorting[several]
        columns = (self.units, cell, self.order, self.time, code, self.tick)
        sorting[several] = part[np.lexsort([column[part] for column in columns])]
        records = np.empty(len(self), RECORD)
        records["user"] = hashes[place[sorting]]
        for name, column in (
            ("time", self.time),
            ("order", self.order),
            ("cell", cell),
            ("units", self.units),
        ):
            records[name] = column[sorting]
        kept = _earlier(records, near) < min(
            filter(None, live.declaration.budget.caps[:2]), default=len(self)
        )
        return self.tick[sorting][kept], records[kept], keys


def _earlier(records: AnyArray, near: AnyArray) -> IntArray:
    """How many events of its user and tick come before the place of each event. `near`: which
    follow one of the same user and tick."""
    number = np.arange(len(records))
    same_place = near & np.logical_and.reduce(
        [records[name][1:] == records[name][:-1] for name in ("time", "order")]
    )
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
    """Keep events until their tick closes. `batch` is the name of the query and the number of the
    batch."""
    rows = []
    for one, here in by_tick(tick):
        content = with_keys(records[here], keys) if keys else records[here].tobytes()
        rows.append((live.id, one, *batch, live.seal(content, "user events", one)))
    insert_rows(connection, counted_events, rows)


def with_keys(records: AnyArray, keys: Sequence[str]) -> bytes:
    """The records after the keys that they count places of."""
    used, cell = np.unique(records["cell"], return_inverse=True)
    records = records.copy()
    records["cell"] = cell
    names = pack_rows([keys[place] for place in used.tolist()], np.empty((len(used), 0), np.int64))
    return len(names).to_bytes(8, "little") + names + records.tobytes()


def cap_ticks(
    connection: Connection, live: LiveStream, ticks: range
) -> tuple[dict[int, IntArray], dict[int, list[Part]], ManyUsers]:
    """What the next ticks add after the caps of users (where keys are not listed, each key's
    events), and the users.

    **Guarantee.** An event counts if no more events of its user stand at or before its (time,
    order) in its tick than the caps have room for after the earlier ticks of the period. It looks
    at the places of that user's events alone, never at their contents or at how they were cut into
    batches: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table.
    """
    users, totals, named = (
        ManyUsers(live.id, live.sealer),
        dict[int, IntArray](),
        dict[int, list[Part]](),
    )
    query, rule = live.declaration.query, live.declaration.user_caps
    assert rule is not None
    caps, filled = (
        rule.caps,
        set(rows_of(connection, counted_events, "tick", stream=live.id, tick=ticks).scalars()),
    )
    for tick in ticks:
        if tick > ticks.start and rule.forgets_after(tick - 1):
            users.forget()
        if tick not in filled:
            continue
        records, keys = _records(connection, live, tick)
        hashes, code = np.unique(records["user"], return_inverse=True)
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
        _, cell, total = sensitivities.rows_of(query).totals(
            at, cells.astype(np.int64), events, units
        )
        np.add.at(totals[tick], cell, total)
    if rule.forgets_after(ticks.stop - 1):
        users.forget()
    return totals, named, users


def _records(connection: Connection, live: LiveStream, tick: int) -> tuple[AnyArray, list[str]]:
    """The kept events of a tick, and where keys are not listed those that `cell` counts places
    of."""
    keyed = live.declaration.query.discovery is not None
    parts, known = [], dict[str, int]()
    for sealed in rows_of(
        connection, counted_events, "sealed", stream=live.id, tick=tick
    ).scalars():
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
