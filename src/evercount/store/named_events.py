"""Events with names that were read elsewhere (by Spark): keys that nobody listed, and users that are counted.

They are kept until their tick closes, one sealed row for each tick and batch, and are then what the query reads as a
tick. Names are texts of any length; what else a row has are whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._arrays import IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.queries.capabilities import rows_of
from evercount.store.database import insert_rows
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_events, having

PURPOSE = "named events"
Part = tuple[list[str], IntArray]  # names and numbers of some rows of one tick
BYTES_AT_A_TIME = 2**26  # stored bytes that are read together when several ticks close at once; at least one tick is


@dataclass(frozen=True, eq=False)
class NamedEvents:
    """Rows of some ticks. Secret. Keys that nobody listed: `name` is the key, and its one number is how many events
    named it. Users that are counted: `name` is the user, and its numbers are the cell of the key (0 without keys), the
    time and the declared order."""

    tick: IntArray
    name: Sequence[str]
    numbers: IntArray  # shape (rows, numbers)

    def each_tick(self) -> Iterator[tuple[int, list[str], IntArray]]:
        """The rows of each tick, sorted: the same rows have the same form, however they came."""
        for tick, here in by_tick(self.tick):
            names = [self.name[place] for place in here.tolist()]
            sorting = np.asarray(sorted(range(len(names)), key=names.__getitem__), np.int64)
            numbers = self.numbers[here][sorting]
            names = [names[place] for place in sorting.tolist()]
            same = np.fromiter((a == b for a, b in pairwise(names)), bool, len(names) - 1)
            if same.any():
                name = np.cumsum(np.r_[0, ~same])
                numbers = numbers[np.lexsort((*numbers.T[::-1], name))]
            yield tick, names, numbers


def by_tick(tick: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each tick with the places of its entries, sorted once."""
    sorting = np.argsort(tick, kind="stable")
    ticks, starts = np.unique(tick[sorting], return_index=True)
    return zip(ticks.tolist(), np.split(sorting, starts[1:]), strict=True) if len(ticks) else iter(())


def packed_ticks(parts: Iterable[NamedEvents]) -> Iterator[tuple[int, bytes]]:
    """Each tick and its rows as they are stored; the parts are in the order of ticks, and share none."""
    for part in parts:
        for tick, names, numbers in part.each_tick():
            yield tick, pack_rows(names, numbers)


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


def as_tick(declaration: StreamDeclaration, parts: Sequence[Part], accepted: Sequence[Any] = ()) -> Any:
    """What the query reads as a tick: rows of all batches, and events that were accepted one by one.

    **Guarantee.** It depends on the rows of the tick alone, never on how they were cut into batches; the order of a
    user's events is a function of these events. Proof: `queries/distinct_users.proof.md`, "Where rows have no order".
    Tests: tests/store/test_named_events.py and
    tests/contracts/test_same_table.py::test_keys_that_nobody_listed_and_persons_are_alike_in_every_door.
    """
    if not parts:
        return list(accepted)
    if declaration.query.discovery is not None:
        return add_keys(accepted, *(zip(names, numbers[:, 0].tolist(), strict=True) for names, numbers in parts))
    rows: list[tuple[int, int, str, int]] = []
    for names, numbers in parts:
        cell, time, order = numbers.T.tolist()
        rows += zip(time, order, names, cell, strict=True)
    rows.sort()
    keyed = rows_of(declaration.query).keyed
    keys = rows_of(declaration.query).keys[0] if keyed else ()
    return [*accepted, *((name, keys[cell]) if keyed else name for _, _, name, cell in rows)]


def add_keys(keys: Iterable[str], *counts: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    total: dict[str, int] = {}
    for some in (((key, 1) for key in keys), *counts):
        for key, number in some:
            total[key] = total.get(key, 0) + number
    return total


def stored_parts(connection: Connection, live: LiveStream, ticks: range) -> dict[int, list[Part]]:
    table, found = counted_events, dict[int, list[Part]]()
    where = having(table, stream=live.id, tick=ticks)
    for tick, sealed in connection.execute(select(table.c.tick, table.c.sealed).where(where)):
        found.setdefault(tick, []).append(unpack_rows(live.unseal(sealed, PURPOSE, tick)))
    return found


def keep_rows(
    connection: Connection, live: LiveStream, query: str, batch: int, rows: Iterable[tuple[int, bytes]]
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
    """How many of the next ticks are read together, so that memory holds one tick or a bounded number of bytes."""
    table, total = counted_events, 0
    sizes = select(table.c.tick, func.sum(func.length(table.c.sealed))).where(having(table, stream=stream, tick=ticks))
    for tick, size in connection.execute(sizes.group_by(table.c.tick).order_by(table.c.tick)):
        total += int(size)
        if total > BYTES_AT_A_TIME:
            return max(1, int(tick) - ticks.start)
    return len(ticks)
