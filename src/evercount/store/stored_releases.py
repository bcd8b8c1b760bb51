"""What the tables of a store hold of a stream: its declaration, keys and marks, its numbers, and
the hash chain of its ticks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._validate import FloatArray
from evercount.declarations.schedule import instant_of
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import by_day
from evercount.errors import StoreError
from evercount.store import schema
from evercount.store.database import (
    NAMED_AT_ONCE,
    having,
    read_fact,
    rows_of,
    write_fact,
)
from evercount.store.open_stream import StoredStream

# numbers that are read at a time when many are read
NUMBERS_PER_TABLE = 50_000


def read_marks(connection: Connection, stream: int) -> tuple[TickMark, ...]:
    rows = rows_of(connection, schema.tick_marks, order="number", stream=stream).mappings()
    marks = [TickMark(row["first"], row["last"], row["text"], row["missing"]) for row in rows]
    hidden = json.loads(read_fact(connection, f"hidden {stream}") or "[]")
    return (*marks, *(TickMark(first, last, "", None, label) for label, first, last in hidden))


def read_numbers(connection: Connection, stream: int, ticks: range, cells: range) -> FloatArray:
    """Value, std, low and high of cells at ticks, shape (ticks, 4, cells). NaN where a tick did not
    publish a cell: a key that was not public yet."""
    table = schema.releases
    columns = (table.c.tick, table.c.cell, table.c.value, table.c.std, table.c.low, table.c.high)
    # a few ticks are looked up one by one, so that no other cell is read
    named = list(ticks) if len(ticks) <= NAMED_AT_ONCE else ticks
    where = having(table, stream=stream, tick=named, cell=cells)
    rows = [tuple(row) for row in connection.execute(select(*columns).where(where))]
    stored = np.asarray(rows, np.float64).reshape(len(rows), len(columns))
    numbers = np.full((len(ticks), 4, len(cells)), np.nan)
    tick, cell = stored[:, :2].astype(np.int64).T
    numbers[tick - ticks.start, :, cell - cells.start] = stored[:, 2:]
    return numbers


def read_table(
    connection: Connection, one: StoredStream, after: int, last: int, cells: range | None = None
) -> ReleaseTable:
    """The stored numbers of ticks after+1 … last. There is one label for each number that the store
    has of a tick; of a stream whose ticks are revised, for each lag."""
    declaration = one.declaration
    ticks = range(after + 1, last + 1)
    if declaration.revise_for is not None:
        labels = declaration.released_query.labels
    else:
        labels = labels_of(connection, one)
    places = range(len(labels))
    if cells is not None:
        places = places[cells.start : cells.stop]
    cells = places
    numbers = read_numbers(connection, one.id, ticks, cells)
    starts = declaration.schedule.starts_of(after + 1, len(ticks))
    return ReleaseTable(
        np.asarray(ticks, np.int64), starts, labels[cells.start : cells.stop], numbers
    )


def read_shown(
    connection: Connection, one: StoredStream, after: int, last: int, cells: range | None = None
) -> ReleaseTable:
    """The same; of a stream whose ticks are revised, one row for each tick and each time it was
    published."""
    if one.declaration.revise_for is None:
        return read_table(connection, one, after, last, cells)
    wide = one.declaration.released_query
    table = by_day(
        read_table(connection, one, after, last), wide, one.declaration.schedule.starts_of
    )
    if cells is None:
        return table
    part = slice(cells.start, cells.stop)
    return replace(table, cells=table.cells[part], numbers=table.numbers[:, :, part])


def release_rows(
    stream: int, table: ReleaseTable, first_cell: int = 0
) -> Iterator[tuple[Any, ...]]:
    """The rows of `schema.releases`: stream, tick, cell, value, std, low, high; none for keys that
    are not public."""
    row, cell = np.nonzero(~np.isnan(table.numbers[:, 0]))
    numbers = (table.numbers[row, part, cell].tolist() for part in range(4))
    return zip(repeat(stream), table.ticks[row].tolist(), (cell + first_cell).tolist(), *numbers)


def genesis(declaration: str, start: float) -> bytes:
    """The hash before the first tick: it binds the chain to the declaration."""
    return hashlib.blake2b(
        f"{declaration}|{start.hex()}".encode(), digest_size=32, person=b"evercount.genes"
    ).digest()


def link(previous: bytes, tick: int, numbers: FloatArray, fresh: Sequence[str] = ()) -> bytes:
    """The hash of one released tick; `numbers` has the rows value, std, low and high, and a column
    for each output.

    `fresh` are the keys that became public at this tick, where nobody listed them; of keys of the
    day, the labels of all numbers.

    **Guarantee.** Two chains with the same hash at a tick released the same numbers up to and
    including it, in the same order and under the same keys, if BLAKE2b is collision-resistant.
    Test: `tests/store/test_store_chain.py::test_any_change_changes_the_hash`.
    """
    digest = hashlib.blake2b(previous, digest_size=32, person=b"evercount.link")
    digest.update(tick.to_bytes(8, "big") + numbers.shape[1].to_bytes(8, "big"))
    digest.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
    for label in fresh:
        digest.update(len(label.encode()).to_bytes(8, "big") + label.encode())
    return digest.digest()


def last_link(connection: Connection, row: Any) -> tuple[int, bytes]:
    """The last tick of the chain of a row of `streams`, and its hash."""
    chain = schema.ticks
    query = select(chain.c.tick, chain.c.hash).where(chain.c.stream == row["id"])
    last = connection.execute(query.order_by(chain.c.tick.desc()).limit(1)).first()
    if last is None:
        return 0, bytes(row["genesis"])
    return last.tick, bytes(last.hash)


def released_until(connection: Connection, stream: int) -> int:
    query = select(func.max(schema.ticks.c.tick)).where(schema.ticks.c.stream == stream)
    return int(connection.execute(query).scalar() or 0)


def read_hashes(connection: Connection, stream: int, after: int, last: int) -> dict[int, bytes]:
    """The hashes of ticks after+1 … last, as far as they are released."""
    rows = rows_of(connection, schema.ticks, stream=stream, tick=range(after + 1, last + 1))
    return {row.tick: bytes(row.hash) for row in rows}


def find_stream(connection: Connection, name: str) -> StoredStream:
    row = rows_of(connection, schema.streams, name=name).mappings().first()
    if row is None:
        raise StoreError(f"the store has no stream {name!r}")
    return StoredStream(row["id"], declared(row))


def public_keys_of(connection: Connection, stream: int) -> list[tuple[str, int]]:
    """(key, tick since which it is public) of keys that nobody listed, or that joined, in the order
    of their cells."""
    rows = rows_of(connection, schema.public_keys, order="cell", stream=stream)
    return [(row.label, row.since) for row in rows]


def declared(row: Any) -> Settled:
    """The declaration of a row of `streams`."""
    written = json.loads(row["declaration"])
    if written.get("factorization") is None:
        raise StoreError(
            f"stream {row['name']!r} of the store was declared by a version of evercount that did "
            "not name its noise, and this one does not read it: go on with that version"
        )
    return Settled.from_dict(written).started(instant_of(row["start"]))


def with_late_rules(connection: Connection, one: StoredStream) -> Settled:
    """The declaration of a stream, which the chain covers, with the rule for late events that holds
    now."""
    text = read_fact(connection, f"late {one.id}")
    if text is None:
        return one.declaration
    return one.declaration.with_rules(**json.loads(text))


def labels_of(connection: Connection, one: StoredStream) -> Sequence[str]:
    """What the cells of a stream are called, those included that became public or joined later."""
    keys = public_keys_of(connection, one.id)
    first = one.declaration.declared_query.labels
    if not keys:
        return first
    return [*first, *(label for label, _ in keys)]


Joined = list[tuple[int, list[Any]]]  # (the last tick before they joined, the keys) of each joining


def read_joined(connection: Connection, stream: int) -> Joined:
    """The keys that have joined a stream, in their order. They are public."""
    text = read_fact(connection, f"joined {stream}")
    listed = json.loads(text or "[]")
    return [
        (after, [tuple(key) if isinstance(key, list) else key for key in keys])
        for after, keys in listed
    ]


def write_carried(connection: Connection, stream: int, totals: CarriedTotals) -> None:
    """Keep the running totals that a stream goes on from, of streams that this store never had."""
    data = totals.to_dict() | {"numbers": totals.numbers.tolist()}
    write_fact(connection, f"carried {stream}", json.dumps(data))


def read_carried(connection: Connection, stream: int) -> CarriedTotals | None:
    text = read_fact(connection, f"carried {stream}")
    if text is None:
        return None
    data = json.loads(text)
    return CarriedTotals.load(data | {"numbers": np.asarray(data["numbers"], np.float64)})


def read_values(connection: Connection, stream: int, ticks: range, cells: int) -> FloatArray:
    """The published numbers of the first cells at some ticks, shape (ticks, cells): no errors.

    It reads what is needed and no more. NaN for a key that was not public yet.
    """
    table = schema.releases
    values = np.full((len(ticks), cells), np.nan)
    if not len(ticks):
        return values
    columns = select(table.c.tick, table.c.cell, table.c.value)
    chosen = columns.where(having(table, stream=stream, tick=ticks))
    for part in connection.execute(chosen).partitions(NUMBERS_PER_TABLE):
        rows = np.asarray([tuple(row) for row in part], np.float64)
        tick, cell = rows[:, :2].astype(np.int64).T
        values[tick - ticks.start, cell] = rows[:, 2]
    return values
