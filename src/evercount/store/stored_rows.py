"""What the tables of a store hold of a stream: its declaration, its keys, and its ticks with their hash chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._arrays import FloatArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import instant_of
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import by_day
from evercount.engine.table_ticks import each_tick
from evercount.errors import StoreError
from evercount.store import schema
from evercount.store.open_stream import AnyStream


class StoredStream(NamedTuple):
    """A stream as its row in the database describes it."""

    id: int
    declaration: StreamDeclaration


Known = AnyStream | StoredStream


def read_tables(
    connection: Connection, one: Known, after: int, last: int, cells: range | None = None
) -> list[ReleaseTable]:
    """The stored numbers of ticks after+1 … last: one table, or one for each tick where some rows are missing."""
    table, declaration = schema.releases, one.declaration
    labels = stored_labels(connection, one)
    columns = (table.c.tick, table.c.cell, table.c.value, table.c.std, table.c.low, table.c.high)
    where = schema.having(table, stream=one.id, tick=range(after + 1, last + 1))
    if cells is not None:
        # each tick is looked up by itself, so that no other cell is read
        where = schema.having(table, stream=one.id, tick=list(range(after + 1, last + 1)), cell=cells)
        labels = labels[cells.start : cells.stop]
    rows = connection.execute(select(*columns).where(where).order_by(table.c.tick, table.c.cell)).all()
    if not rows:
        return []
    stored = np.asarray([tuple(row) for row in rows], dtype=np.float64)
    ticks, sizes = np.unique(stored[:, 0].astype(np.int64), return_counts=True)
    starts = declaration.schedule.starts_of
    if declaration.query.publishing.own_ticks:  # any of the keys may be missing at a tick
        numbers = np.full((last - after, 4, len(labels)), np.nan)
        row, cell = stored[:, 0].astype(np.int64) - after - 1, stored[:, 1].astype(np.int64)
        numbers[row, :, cell - (0 if cells is None else cells.start)] = stored[:, 2:]
        return [ReleaseTable(np.arange(after + 1, last + 1), starts(after + 1, last - after), labels, numbers)]
    if (sizes == sizes[0]).all() and ticks[-1] - ticks[0] + 1 == len(ticks):
        numbers = stored[:, 2:].reshape(len(ticks), sizes[0], 4).transpose(0, 2, 1)
        return [ReleaseTable(ticks, starts(int(ticks[0]), len(ticks)), labels[: sizes[0]], numbers)]
    parts = np.split(stored[:, 2:], np.cumsum(sizes)[:-1])
    return [
        ReleaseTable(np.asarray([tick]), starts(tick, 1), labels[: len(part)], part.T[np.newaxis])
        for tick, part in zip(ticks.tolist(), parts, strict=True)
    ]


def read_whole(
    connection: Connection, one: Known, after: int, last: int, labels: Sequence[str], cells: range | None = None
) -> ReleaseTable:
    """One table of ticks after+1 … last, NaN where a key was not public."""
    numbers = np.full((last - after, 4, len(labels)), np.nan)
    for table in read_tables(connection, one, after, last, cells):
        numbers[table.ticks - after - 1, :, : len(table.cells)] = table.numbers
    starts = one.declaration.schedule.starts_of(after + 1, last - after)
    return ReleaseTable(np.arange(after + 1, last + 1), starts, labels, numbers)


def stored_labels(connection: Connection, one: Known) -> Sequence[str]:
    """One label for each number that the store has of a tick; of a stream whose ticks are revised, for each lag."""
    revised = one.declaration.revise_for is not None
    return one.declaration.released_query.labels if revised else labels_of(connection, one)


def read_by_day(
    connection: Connection, one: Known, after: int, last: int, cells: range | None = None
) -> list[ReleaseTable]:
    """The same of a stream whose ticks are revised, one row for each tick and each time it was published."""
    wide = one.declaration.released_query
    table = read_whole(connection, one, after, last, wide.labels)
    table = by_day(table, wide, one.declaration.schedule.starts_of)
    if cells is not None:
        part = slice(cells.start, cells.stop)
        table = replace(table, cells=table.cells[part], numbers=table.numbers[:, :, part])
    return [table]


def read_numbers(connection: Connection, stream: int, tick: int, cells: range) -> FloatArray:
    """Value, std, low and high of cells of a tick, shape (4, cells)."""
    table, where = schema.releases, schema.having(schema.releases, stream=stream, tick=tick, cell=cells)
    columns = (table.c.value, table.c.std, table.c.low, table.c.high)
    rows = connection.execute(select(*columns).where(where).order_by(table.c.cell)).all()
    return np.asarray([tuple(row) for row in rows], np.float64).reshape(len(rows), len(columns)).T


def release_rows(stream: int, table: ReleaseTable, first_cell: int = 0) -> Iterator[tuple[Any, ...]]:
    """The rows of `schema.releases`: stream, tick, cell, value, std, low, high; none for keys that are not public."""
    if np.isnan(table.numbers).any():
        return (
            (stream, tick, cell, *row)
            for tick, places, numbers in each_tick(table)
            for cell, row in zip((places + first_cell).tolist(), numbers.T.tolist(), strict=True)
        )
    ticks, parts, cells = table.numbers.shape
    return zip(
        [stream] * (ticks * cells),
        np.repeat(table.ticks, cells).tolist(),
        list(range(first_cell, first_cell + cells)) * ticks,
        *(table.numbers[:, part].ravel().tolist() for part in range(parts)),
        strict=True,
    )


def genesis(declaration: str, start: float) -> bytes:
    """The hash before the first tick: it binds the chain to the declaration."""
    return hashlib.blake2b(f"{declaration}|{start.hex()}".encode(), digest_size=32, person=b"evercount.genes").digest()


def link(previous: bytes, tick: int, numbers: FloatArray, fresh: Sequence[str] = ()) -> bytes:
    """The hash of one released tick; `numbers` has the rows value, std, low and high, and a column for each output.

    `fresh` are the keys that became public at this tick, where nobody listed them; of keys of the day, the labels of
    all numbers.

    **Guarantee.** Two chains with the same hash at a tick released the same numbers up to and including it, in the same
    order and under the same keys, if BLAKE2b is collision-resistant. Test:
    `tests/store/test_store_chain.py::test_any_change_changes_the_hash`.
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
    return (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))


def released_until(connection: Connection, stream: int) -> int:
    query = select(func.max(schema.ticks.c.tick)).where(schema.ticks.c.stream == stream)
    return int(connection.execute(query).scalar() or 0)


def read_hashes(connection: Connection, stream: int, after: int, last: int) -> dict[int, bytes]:
    """The hashes of ticks after+1 … last, as far as they are released."""
    where = schema.having(schema.ticks, stream=stream, tick=range(after + 1, last + 1))
    return {row.tick: bytes(row.hash) for row in connection.execute(select(schema.ticks).where(where))}


def carried_row(stream: int) -> str:
    """The row of `meta` that names the stream whose last running totals this one goes on from."""
    return f"totals {stream}"


def find_stream(connection: Connection, name: str) -> StoredStream:
    row = connection.execute(select(schema.streams).where(schema.streams.c.name == name)).mappings().first()
    if row is None:
        raise StoreError(f"the store has no stream {name!r}")
    return StoredStream(row["id"], declared(row))


def public_keys_of(connection: Connection, stream: int) -> list[tuple[str, int]]:
    """(key, tick since which it is public) of keys that nobody listed, or that joined, in the order of their cells."""
    table = schema.public_keys
    query = select(table.c.label, table.c.since).where(table.c.stream == stream).order_by(table.c.cell)
    return [(row.label, row.since) for row in connection.execute(query)]


def declared(row: Any) -> StreamDeclaration:
    return StreamDeclaration.from_dict(json.loads(row["declaration"])).started(instant_of(row["start"]))


def with_late_rules(connection: Connection, one: Known) -> StreamDeclaration:
    """The declaration of a stream, which the chain covers, with the rule for late events that holds now."""
    text = schema.read_fact(connection, late_rules(one.id))
    return one.declaration if text is None else one.declaration.with_rules(**json.loads(text))


def late_rules(stream: int) -> str:
    """The key of the rule for late events, where it was changed after the stream was declared."""
    return f"late {stream}"


def labels_of(connection: Connection, one: Known) -> Sequence[str]:
    """What the cells of a stream are called, those included that became public or joined later."""
    keys = public_keys_of(connection, one.id)
    first = one.declaration.declared_query.labels
    return [*first, *(label for label, _ in keys)] if keys else first
