"""What the tables of a store hold of a stream, and its releases as pages, tables and views.

First the rows: the declaration, keys and marks of a stream, its numbers, and the hash chain of its
ticks. Then `StoredReleases`, which reads them for everyone who shows releases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._validate import FloatArray, IntArray
from evercount.declarations.schedule import format_utc, instant_of
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import next_spans, view_table
from evercount.engine.add_keys import with_joined
from evercount.engine.build import RUNNING
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import RevisedErrors, by_day, newest_view
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.take_views import view_at
from evercount.engine.views import CarriedTotals, View
from evercount.engine.write_table import among, described
from evercount.errors import StoreError
from evercount.store import schema
from evercount.store.database import (
    NAMED_AT_ONCE,
    Database,
    find,
    having,
    in_parts,
    read_fact,
    rows_of,
    write_fact,
)
from evercount.store.open_stream import AnyStream

TICKS_PER_PAGE = 200
NUMBERS_PER_TABLE = 50_000  # cells times ticks that are read at a time when all releases are read


def read_marks(connection: Connection, stream: int) -> tuple[TickMark, ...]:
    rows = rows_of(connection, schema.tick_marks, order="number", stream=stream).mappings()
    said = [TickMark(row["first"], row["last"], row["text"], row["missing"]) for row in rows]
    hidden = json.loads(read_fact(connection, f"hidden {stream}") or "[]")
    return (*said, *(TickMark(first, last, "", None, label) for label, first, last in hidden))


class StoredStream(NamedTuple):
    """A stream as its row in the database describes it."""

    id: int
    declaration: Settled


Known = AnyStream | StoredStream


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
    connection: Connection, one: Known, after: int, last: int, cells: range | None = None
) -> ReleaseTable:
    """The stored numbers of ticks after+1 … last. There is one label for each number that the store
    has of a tick; of a stream whose ticks are revised, for each lag."""
    declaration, ticks = one.declaration, range(after + 1, last + 1)
    revised = declaration.revise_for is not None
    labels = declaration.released_query.labels if revised else labels_of(connection, one)
    cells = range(len(labels)) if cells is None else range(len(labels))[cells.start : cells.stop]
    numbers = read_numbers(connection, one.id, ticks, cells)
    starts = declaration.schedule.starts_of(after + 1, len(ticks))
    return ReleaseTable(
        np.asarray(ticks, np.int64), starts, labels[cells.start : cells.stop], numbers
    )


def read_shown(
    connection: Connection, one: Known, after: int, last: int, cells: range | None = None
) -> ReleaseTable:
    """The same; of a stream whose ticks are revised, one row for each tick and each time it was
    published."""
    if one.declaration.revise_for is None:
        return read_table(connection, one, after, last, cells)
    wide = one.declaration.released_query
    table = by_day(
        read_table(connection, one, after, last), wide, one.declaration.schedule.starts_of
    )
    part = slice(None) if cells is None else slice(cells.start, cells.stop)
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
    return (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))


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
    return Settled.from_dict(json.loads(row["declaration"])).started(instant_of(row["start"]))


def with_late_rules(connection: Connection, one: Known) -> Settled:
    """The declaration of a stream, which the chain covers, with the rule for late events that holds
    now."""
    text = read_fact(connection, f"late {one.id}")
    return one.declaration if text is None else one.declaration.with_rules(**json.loads(text))


def labels_of(connection: Connection, one: Known) -> Sequence[str]:
    """What the cells of a stream are called, those included that became public or joined later."""
    keys = public_keys_of(connection, one.id)
    first = one.declaration.declared_query.labels
    return [*first, *(label for label, _ in keys)] if keys else first


Joined = list[tuple[int, list[Any]]]  # (the last tick before they joined, the keys) of each joining


def read_joined(connection: Connection, stream: int) -> Joined:
    """The keys that have joined a stream, in their order. They are public."""
    text = read_fact(connection, f"joined {stream}")
    listed = [] if text is None else json.loads(text)
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


class StoredReleases:
    """What streams of a store have released; safe from any number of threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._facts: dict[tuple[int, int], StreamFacts] = {}

    def names(self) -> list[str]:
        with self.database.reading() as connection:
            return list(
                connection.execute(
                    select(schema.streams.c.name).order_by(schema.streams.c.id)
                ).scalars()
            )

    def read_releases(
        self,
        one: Known,
        after: int = 0,
        limit: int = TICKS_PER_PAGE,
        until: int | None = None,
        cells: range | None = None,
    ) -> list[dict[str, Any]]:
        """What the stream shows at ticks after `after`: at most `limit` of them, none after
        `until`."""
        with self.database.reading() as connection:
            released, labels = released_until(connection, one.id), labels_of(connection, one)
            marks = read_marks(connection, one.id)
        until = released if until is None else min(released, until)
        outputs = (
            range(len(labels)) if cells is None else range(len(labels))[cells.start : cells.stop]
        )
        if not outputs:
            return []
        table, reached = self._read_page(one, after, limit, until, labels, outputs)
        hashes = self.database.read(read_hashes, one.id, after, reached)
        return described(with_marks(table, marks, one.declaration.main_view), format_utc, hashes)

    def release_tables(self, one: Known, until: int) -> Iterator[ReleaseTable]:
        """All that the stream shows up to tick `until`, as tables of a bounded size; one at least.
        Each table is a read of its own: a slow reader holds no view of the database open. Releases
        never change, so the tables fit together."""
        with self.database.reading() as connection:
            labels, marks = labels_of(connection, one), read_marks(connection, one.id)
        declaration, size, reached = one.declaration, max(1, NUMBERS_PER_TABLE // len(labels)), 0
        while True:
            table, reached = self._read_page(one, reached, size, until, labels, range(len(labels)))
            # in the order in which every door publishes them
            if declaration.query.publishing.own_ticks:
                known = len(declaration.query.labels)
                table = among(table, [*table.cells[:known], *sorted(table.cells[known:])])
            yield with_marks(table, marks, declaration.main_view)
            if reached >= until:
                return

    def _read_page(
        self, one: Known, after: int, limit: int, until: int, labels: Sequence[str], cells: range
    ) -> tuple[ReleaseTable, int]:
        """At most `limit` ticks, or spans of the view that is shown, after tick `after`; the tick
        that was reached."""
        declaration, name, schedule = (
            one.declaration,
            one.declaration.main_view,
            one.declaration.schedule,
        )
        if declaration.shows_releases:
            last = max(after, min(after + limit, until))
            return self.adder(one)(self.database.read(read_shown, one, after, last, cells)), last
        spans = next_spans(name, schedule, after, until, limit)
        view = self.view(one, name, spans, labels, cells)
        table = view_table(view, name, schedule, postprocess=declaration.view_postprocess)
        return table, int(spans[1][-1]) if len(spans[1]) else until

    def published(self, one: Known, after: int, until: int, cells: range) -> ReleaseTable:
        """The stored numbers of some cells at ticks after+1 … until."""
        return self.database.read(read_table, one, after, until, cells)

    def marks(self, stream: int) -> tuple[TickMark, ...]:
        return self.database.read(read_marks, stream)

    def view(
        self,
        one: Known,
        name: str,
        spans: tuple[IntArray, IntArray],
        labels: Sequence[str],
        outputs: Sequence[int],
    ) -> View:
        """A view over spans (after, until), from the numbers at their ends: no other tick is
        read."""
        values_at = partial(self.values_at, one.id)
        facts = self.facts_of(one)
        if isinstance(facts._errors, RevisedErrors):
            released = self.database.read(released_until, one.id)
            guarantee = facts.guarantee_by(one.declaration.tick)
            return newest_view(facts._errors, name, spans, outputs, values_at, released, guarantee)
        return view_at(facts, labels, name, spans, outputs, values_at)

    def facts_of(self, one: Known) -> StreamFacts:
        """The public facts of a stream: its errors follow from them."""
        joined = self.database.read(read_joined, one.id)
        known = (one.id, len(joined))
        if known not in self._facts:
            self._facts[known] = with_joined(one.declaration.as_declared.build(replay=True), joined)
        return self._facts[known]

    def values_at(
        self, stream: int, ticks: Iterable[int], cells: Sequence[int]
    ) -> dict[int, FloatArray]:
        """What some cells published at some ticks: an array for each tick, in the order of `cells`.
        NaN where a tick did not publish a cell: a key that was not public yet."""
        table, wanted = schema.releases, [int(tick) for tick in ticks if tick > 0]
        place = {cell: i for i, cell in enumerate(cells)}
        values = {tick: np.full(len(place), np.nan) for tick in wanted}
        columns = select(table.c.tick, table.c.cell, table.c.value)
        # too many to name them: read all cells between
        some = range(min(place), max(place) + 1) if len(place) > NAMED_AT_ONCE else list(place)
        with self.database.reading() as connection:
            for part in in_parts(wanted):
                where = having(table, stream=stream, tick=part, cell=some)
                for tick, cell, value in connection.execute(columns.where(where)):
                    if cell in place:
                        values[tick][place[cell]] = value
        return values

    def tables_of(self, name: str) -> tuple[StoredStream, Iterator[ReleaseTable]]:
        with self.database.reading() as connection:
            one = find_stream(connection, name)
            one = one._replace(declaration=with_late_rules(connection, one))
            until = released_until(connection, one.id)
        return one, self.release_tables(one, until)

    # -- running totals that go on from another stream (`stream_life.py`) --------------------------

    def carried(self, stream: int) -> CarriedTotals | None:
        """The running totals that a stream goes on from; None where it starts at zero."""
        before = self.database.read(read_fact, f"totals {stream}")
        if before is not None:
            return self.totals_at_end(int(before))
        return self.database.read(read_carried, stream)

    def totals_at_end(self, stream: int) -> CarriedTotals:
        """The running totals that a stream has published last, on top of those that it goes on from
        itself. While it goes on, and where its history is hidden, they are NaN, so that no sum with
        them is shown. When it is over, they follow from what is committed and never change."""
        before = self.carried(stream)
        with self.database.reading() as connection:
            row = rows_of(connection, schema.streams, id=stream).mappings().one()
            facts = json.loads(find(connection, schema.retired, "facts", name=row["name"]) or "{}")
            one, tick = StoredStream(stream, declared(row)), released_until(connection, stream)
            hidden = [mark for mark in read_marks(connection, stream) if mark.hides is not None]
        errors = self.facts_of(one)._errors
        labels = errors.query.labels
        table = self.published(one, max(tick - 1, 0), tick, range(len(labels)))
        # of one tick, or zero
        values = with_marks(table, hidden, RUNNING).numbers[-1:, 0].sum(axis=0)
        totals = CarriedTotals.after(errors, tick, values, one.declaration.schedule.begin, before)
        # it is None after a quarantine
        over = tick == one.declaration.horizon or facts.get("until") is not None
        if not over or not facts.get("readable", True) or self.hides(row["name"]):
            return replace(
                totals, numbers=np.vstack([np.full(len(labels), np.nan), totals.numbers[1:]])
            )
        return totals

    def hides(self, name: str) -> bool:
        """Whether nobody may read the history of a stream."""
        return False

    def adder(self, one: Known) -> Callable[[ReleaseTable], ReleaseTable]:
        """What makes running totals as readers see them of those that are stored."""
        carried = self.carried(one.id)
        if carried is None:
            return lambda table: table
        return partial(carried.add_to, errors=self.facts_of(one)._errors)

    def last_release(self) -> float | None:
        """When the last tick of any stream was closed, by the service's clock; None before the
        first."""
        with self.database.reading() as connection:
            moment = connection.execute(select(func.max(schema.ticks.c.closed))).scalar()
        return None if moment is None else float(moment)
