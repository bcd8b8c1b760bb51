"""The releases of a store's streams, as pages, tables and views."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._arrays import FloatArray, IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import format_utc
from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import next_spans, view_table
from evercount.engine.add_keys import with_joined
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import RevisedErrors, newest_view
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.table_ticks import among, described
from evercount.engine.take_views import view_at
from evercount.engine.view_widths import RUNNING
from evercount.engine.views import View
from evercount.store import schema, stored_rows
from evercount.store.database import Database
from evercount.store.join_keys import read_joined
from evercount.store.stored_rows import Known, StoredStream, declared, read_hashes, released_until
from evercount.store.tick_marks import read_marks

MOST_NAMED = 500  # ticks or cells that one statement names: databases limit their number
TICKS_PER_PAGE = 200
NUMBERS_PER_TABLE = 50_000  # cells times ticks that are read at a time when all releases are read


class StoredReleases:
    """What streams of a store have released; safe from any number of threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._facts: dict[tuple[int, int], StreamFacts] = {}
        self._totals: dict[int, CarriedTotals] = {}

    def names(self) -> list[str]:
        with self.database.reading() as connection:
            return list(connection.execute(select(schema.streams.c.name).order_by(schema.streams.c.id)).scalars())

    def declaration(self, name: str) -> StreamDeclaration:
        with self.database.reading() as connection:
            return stored_rows.find_stream(connection, name).declaration

    def labels(self, name: str) -> list[str]:
        with self.database.reading() as connection:
            return list(stored_rows.labels_of(connection, stored_rows.find_stream(connection, name)))

    def public_keys(self, stream: int) -> list[tuple[str, int]]:
        """(key, tick since which it is public) of a stream whose keys nobody listed, in the order of their cells."""
        with self.database.reading() as connection:
            return stored_rows.public_keys_of(connection, stream)

    def read_releases(
        self,
        one: Known,
        after: int = 0,
        limit: int = TICKS_PER_PAGE,
        until: int | None = None,
        cells: range | None = None,
    ) -> list[dict[str, Any]]:
        """What the stream shows at ticks after `after`: at most `limit` of them, none after `until`."""
        declaration, name, schedule = one.declaration, one.declaration.shown, one.declaration.schedule
        with self.database.reading() as connection:
            released = released_until(connection, one.id)
            until = released if until is None else min(released, until)
            marks = read_marks(connection, one.id)
            if declaration.shows_releases:
                last, by_day = min(after + limit, until), declaration.revise_for is not None
                tables, hashes = self._page(connection, one, after, last, cells, by_day)
            else:
                labels = stored_rows.labels_of(connection, one)
        if declaration.shows_releases:
            add = self.adder(one)
            shown = (with_marks(add(table), marks, name) for table in tables)
            return [release for table in shown for release in described(table, format_utc, hashes)]
        outputs = range(len(labels)) if cells is None else range(len(labels))[cells.start : cells.stop]
        after_until = next_spans(name, schedule, after, until, limit)
        if not outputs or not len(after_until[1]):
            return []
        view = self.view(one, name, after_until, labels, outputs)
        table = view_table(view, name, schedule, postprocess=declaration.view_postprocess)
        table = with_marks(table, marks, name)
        with self.database.reading() as connection:
            return described(table, format_utc, read_hashes(connection, one.id, after, int(table.ticks[-1])))

    def release_tables(self, one: Known, until: int) -> Iterator[ReleaseTable]:
        """All that the stream shows up to tick `until`, as tables of a bounded size; one at least. Each table is a read
        of its own: a slow reader holds no view of the database open. Releases never change, so the tables fit
        together."""
        with self.database.reading() as connection:
            labels = stored_rows.labels_of(connection, one)
            marks = read_marks(connection, one.id)
        for table in self._unmarked(one, until, labels):
            yield with_marks(table, marks, one.declaration.shown)

    def _unmarked(self, one: Known, until: int, labels: Sequence[str]) -> Iterator[ReleaseTable]:
        declaration = one.declaration
        size = max(1, NUMBERS_PER_TABLE // len(labels))
        if not until:
            starts = declaration.schedule.starts_of(1, 0)
            yield ReleaseTable(np.empty(0, np.int64), starts, labels, np.empty((0, 4, len(labels))))
        elif declaration.shows_releases:
            add = self.adder(one)
            for after in range(0, until, size):
                with self.database.reading() as connection:
                    read = stored_rows.read_tables if declaration.revise_for is None else stored_rows.read_by_day
                    tables = read(connection, one, after, min(after + size, until))
                if declaration.query.publishing.own_ticks:  # in the order in which every door publishes them
                    known = len(declaration.query.labels)
                    tables = [among(table, [*table.cells[:known], *sorted(table.cells[known:])]) for table in tables]
                yield from map(add, tables)
        else:
            name, schedule = declaration.shown, declaration.schedule
            spans = next_spans(name, schedule, 0, until, size)
            while True:
                view = self.view(one, name, spans, labels, range(len(labels)))
                yield view_table(view, name, schedule, postprocess=declaration.view_postprocess)
                if not len(spans[1]) or spans[1][-1] >= until:
                    return
                spans = next_spans(name, schedule, int(spans[1][-1]), until, size)

    def published(self, one: Known, after: int, until: int, cells: range) -> ReleaseTable:
        """The stored numbers of some cells at ticks after+1 … until."""
        with self.database.reading() as connection:
            labels = stored_rows.stored_labels(connection, one)[cells.start : cells.stop]
            return stored_rows.read_whole(connection, one, after, until, labels, cells)

    def marks(self, stream: int) -> tuple[TickMark, ...]:
        with self.database.reading() as connection:
            return read_marks(connection, stream)

    def view(
        self, one: Known, name: str, spans: tuple[IntArray, IntArray], labels: Sequence[str], outputs: Sequence[int]
    ) -> View:
        """A view over spans (after, until), from the numbers at their ends: no other tick is read."""
        values_at = partial(self.values_at, one.id)
        facts = self.facts_of(one)
        if isinstance(facts._errors, RevisedErrors):
            with self.database.reading() as connection:
                released = released_until(connection, one.id)
            guarantee = facts.guarantee_by(one.declaration.tick)
            return newest_view(facts._errors, name, spans, outputs, values_at, released, guarantee)
        return view_at(facts, labels, name, spans, outputs, values_at)

    def facts_of(self, one: Known) -> StreamFacts:
        """The public facts of a stream: its errors follow from them."""
        with self.database.reading() as connection:
            joined = read_joined(connection, one.id)
        known = (one.id, len(joined))
        if known not in self._facts:
            self._facts[known] = with_joined(one.declaration.as_declared.build(replay=True), joined)
        return self._facts[known]

    def _page(
        self,
        connection: Connection,
        one: Known,
        after: int,
        last: int,
        cells: range | None = None,
        by_day: bool = False,
    ) -> tuple[list[ReleaseTable], dict[int, bytes]]:
        """The numbers of ticks after+1 … last and their hashes, as one view of the database has them."""
        hashes = read_hashes(connection, one.id, after, last)
        last = max(hashes, default=after)  # shards commit rows of a tick before the tick is released
        read = stored_rows.read_by_day if by_day else stored_rows.read_tables
        return read(connection, one, after, last, cells), hashes

    def values_at(self, stream: int, ticks: Iterable[int], cells: Sequence[int]) -> dict[int, FloatArray]:
        """What some cells published at some ticks: an array for each tick, in the order of `cells`. NaN where a tick
        did not publish a cell: a key that was not public yet."""
        table, wanted = schema.releases, [int(tick) for tick in ticks if tick > 0]
        place = {cell: i for i, cell in enumerate(cells)}
        values = {tick: np.full(len(place), np.nan) for tick in wanted}
        columns = select(table.c.tick, table.c.cell, table.c.value)
        # too many to name them: read all cells between
        some = range(min(place), max(place) + 1) if len(place) > MOST_NAMED else list(place)
        with self.database.reading() as connection:
            for start in range(0, len(wanted), MOST_NAMED):
                where = schema.having(table, stream=stream, tick=wanted[start : start + MOST_NAMED], cell=some)
                for tick, cell, value in connection.execute(columns.where(where)):
                    if cell in place:
                        values[tick][place[cell]] = value
        return values

    def tables_of(self, name: str) -> tuple[StoredStream, Iterator[ReleaseTable]]:
        with self.database.reading() as connection:
            one = stored_rows.find_stream(connection, name)
            until = released_until(connection, one.id)
        return one, self.release_tables(one, until)

    def all_releases(self, name: str) -> Iterator[dict[str, Any]]:
        """All that a stream shows when the first is taken, tick by tick."""
        with self.database.reading() as connection:
            one = stored_rows.find_stream(connection, name)
            until = released_until(connection, one.id)
        after = 0
        while page := self.read_releases(one, after, until=until):
            yield from page
            after = page[-1]["tick"]

    def chained_releases(self, connection: Connection, one: Known) -> Iterator[dict[str, Any]]:
        """The stored numbers of all ticks, as one view of the database has them."""
        keys = len(stored_rows.public_keys_of(connection, one.id))
        size = max(1, NUMBERS_PER_TABLE // (one.declaration.query.outputs + keys))
        after = 0
        while True:
            tables, hashes = self._page(connection, one, after, after + size)
            if not tables:
                return
            for table in tables:
                yield from described(table, format_utc, hashes)
            after = int(tables[-1].ticks[-1])

    # -- running totals that go on from another stream (`renew.py`) --------------------------------------------------

    def carried(self, stream: int) -> CarriedTotals | None:
        """The running totals that a stream goes on from; None where it starts at zero."""
        with self.database.reading() as connection:
            before = schema.read_fact(connection, stored_rows.carried_row(stream))
        return None if before is None else self.totals_at_end(int(before))

    def totals_at_end(self, stream: int) -> CarriedTotals:
        """The running totals that a stream has published last, on top of those that it goes on from itself. While it
        goes on, and where its history is hidden, they are NaN, so that no sum with them is shown. When it is over, they
        follow from what is committed and never change."""
        if (known := self._totals.get(stream)) is not None:
            return known
        before = self.carried(stream)
        with self.database.reading() as connection:
            row = connection.execute(select(schema.streams).where(schema.streams.c.id == stream)).mappings().one()
            gone = select(schema.retired.c.facts).where(schema.retired.c.name == row["name"])
            facts = json.loads(connection.execute(gone).scalar() or "{}")
            one, tick = StoredStream(stream, declared(row)), released_until(connection, stream)
            hidden = [mark for mark in read_marks(connection, stream) if mark.hides is not None]
        errors = self.facts_of(one)._errors
        labels = errors.query.labels
        table = self.published(one, max(tick - 1, 0), tick, range(len(labels)))
        values = with_marks(table, hidden, RUNNING).numbers[-1:, 0].sum(axis=0)  # of one tick, or zero
        totals = CarriedTotals.after(errors, tick, values, one.declaration.schedule.begin, before)
        over = tick == one.declaration.horizon or facts.get("until") is not None  # it is None after a quarantine
        if not over or not facts.get("readable", True) or self.hides(row["name"]):
            return replace(totals, numbers=np.vstack([np.full(len(labels), np.nan), totals.numbers[1:]]))
        self._totals[stream] = totals
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
        """When the last tick of any stream was closed, by the service's clock; None before the first."""
        with self.database.reading() as connection:
            moment = connection.execute(select(func.max(schema.ticks.c.closed))).scalar()
        return None if moment is None else float(moment)
