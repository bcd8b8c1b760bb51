"""What may be read from a store without its lock: releases, declarations, the ledger, and whether all is well."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._arrays import FloatArray, IntArray
from evercount._safe_files import open_private
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import format_utc, instant_of
from evercount.declare.tick_marks import TickMark, with_marks
from evercount.declare.view_names import next_spans, view_table
from evercount.engine.add_keys import with_joined
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import RevisedErrors, by_day, newest_view
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.take_views import view_at
from evercount.engine.views import View
from evercount.errors import EvercountError, StoreError
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.join_keys import read_joined
from evercount.store.release_chain import genesis, link
from evercount.store.rollback_guard import Head, HeadFile, Quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import describe_ledger, read_cap, read_spendings, retired_rows, states
from evercount.store.tick_marks import read_marks

MOST_NAMED = 500
"""Ticks or cells that one statement names: databases limit their number."""
TICKS_PER_PAGE = 200
PROBE = b"evercount store"
NUMBERS_PER_TABLE = 50_000
"""Cells times ticks that are read at a time when all releases are read."""


class Reading:
    """The reading side of a store; safe from any number of threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._facts: dict[tuple[str, int], StreamFacts] = {}

    @classmethod
    def open(cls, place: str | Path) -> Reading:
        """Open for reading only, also while a service writes."""
        database = Database(place, write=False)
        try:
            with database.reading() as connection:
                schema.check_schema(connection)
        except BaseException:
            database.close()
            raise
        return Reading(database)

    def close(self) -> None:
        self.database.close()

    @staticmethod
    def check_probe(sealer: Sealer, stored: str) -> None:
        """Refuse a key that is not the key of this store."""
        encrypted = bytes.fromhex(stored)[:1] == b"\x01"
        if encrypted and not sealer.encrypted:
            raise StoreError("the store is encrypted: give its key by EVERCOUNT_KEY_FILE or EVERCOUNT_KEY")
        if sealer.encrypted and not encrypted:
            raise StoreError(
                "a key is given, but the store was created without encryption: omit the key, "
                "or start a new store with it"
            )
        if sealer.open(bytes.fromhex(stored), "probe", 0) != PROBE:
            raise StoreError("the store's key is wrong")

    # -- releases ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        with self.database.reading() as connection:
            return list(connection.execute(select(schema.streams.c.name).order_by(schema.streams.c.id)).scalars())

    def declaration(self, name: str) -> StreamDeclaration:
        with self.database.reading() as connection:
            return declared(_stream_row(connection, name))

    def labels(self, name: str) -> list[str]:
        with self.database.reading() as connection:
            row = _stream_row(connection, name)
            return list(self.labels_of(connection, row["id"], declared(row)))

    @staticmethod
    def labels_of(connection: Connection, stream: int, declaration: StreamDeclaration) -> Sequence[str]:
        """As `labels`, inside an open read transaction."""
        keys = _public_keys(connection, stream, declaration)
        first = declaration.declared_query.labels
        return [*first, *(label for label, _ in keys)] if keys else first

    def public_keys(self, stream: int, declaration: StreamDeclaration) -> list[tuple[str, int]]:
        """(key, tick since which it is public) of a stream whose keys nobody listed, in the order of their cells."""
        with self.database.reading() as connection:
            return _public_keys(connection, stream, declaration)

    def read_releases(
        self,
        stream: int,
        declaration: StreamDeclaration,
        after: int = 0,
        limit: int = TICKS_PER_PAGE,
        until: int | None = None,
        cells: range | None = None,
    ) -> list[dict[str, Any]]:
        """What the stream shows at ticks after `after`: at most `limit` of them, none after `until`."""
        name, schedule = declaration.shown, declaration.schedule
        with self.database.reading() as connection:
            released = _released(connection, stream)
            until = released if until is None else min(released, until)
            marks = read_marks(connection, stream)
            if declaration.shows_releases:
                return self._page(connection, stream, declaration, after, min(after + limit, until), cells, marks)
            labels = self.labels_of(connection, stream, declaration)
        outputs = range(len(labels)) if cells is None else range(len(labels))[cells.start : cells.stop]
        after_until = next_spans(name, schedule, after, until, limit)
        if not outputs or not len(after_until[1]):
            return []
        view = self.view(stream, declaration, name, after_until, labels, outputs)
        table = view_table(view, name, schedule, postprocess=declaration.view_postprocess)
        table = with_marks(table, marks, name)
        with self.database.reading() as connection:
            return table.described(format_utc, _hashes(connection, stream, after, int(table.ticks[-1])))

    def release_tables(self, stream: int, declaration: StreamDeclaration, until: int) -> Iterator[ReleaseTable]:
        """All that the stream shows up to tick `until`, as tables of a bounded size; one at least.

        Each table is a read of its own: a slow reader holds no view of the database open. Releases never change, so
        the tables fit together.
        """
        with self.database.reading() as connection:
            labels = self.labels_of(connection, stream, declaration)
            marks = read_marks(connection, stream)
        for table in self._unmarked(stream, declaration, until, labels):
            yield with_marks(table, marks, declaration.shown)

    def _unmarked(
        self, stream: int, declaration: StreamDeclaration, until: int, labels: Sequence[str]
    ) -> Iterator[ReleaseTable]:
        size = max(1, NUMBERS_PER_TABLE // len(labels))
        if not until:
            yield _no_ticks(declaration, labels)
        elif declaration.shows_releases:
            for after in range(0, until, size):
                with self.database.reading() as connection:
                    read = _tables if declaration.revise_for is None else _by_day
                    tables = read(connection, stream, declaration, after, min(after + size, until))
                if declaration.query.publishing.own_ticks:  # in the order in which every door publishes them
                    known = len(declaration.query.labels)
                    tables = [table.among([*table.cells[:known], *sorted(table.cells[known:])]) for table in tables]
                yield from tables
        else:
            name, schedule = declaration.shown, declaration.schedule
            spans = next_spans(name, schedule, 0, until, size)
            while True:
                view = self.view(stream, declaration, name, spans, labels, range(len(labels)))
                yield view_table(view, name, schedule, postprocess=declaration.view_postprocess)
                if not len(spans[1]) or spans[1][-1] >= until:
                    return
                spans = next_spans(name, schedule, int(spans[1][-1]), until, size)

    def published(
        self, stream: int, declaration: StreamDeclaration, after: int, until: int, cells: range
    ) -> ReleaseTable:
        """The stored numbers of some cells at ticks after+1 … until."""
        with self.database.reading() as connection:
            tables = _tables(connection, stream, declaration, after, until, cells)
            labels = _stored_labels(connection, stream, declaration)[cells.start : cells.stop]
        numbers = np.full((until - after, 4, len(labels)), np.nan)  # NaN where a key was not public
        for table in tables:
            numbers[table.ticks - after - 1, :, : len(table.cells)] = table.numbers
        starts = declaration.schedule.starts_of(after + 1, until - after)
        return ReleaseTable(np.arange(after + 1, until + 1), starts, labels, numbers)

    def marks(self, stream: int) -> tuple[TickMark, ...]:
        """What the operator says about the ticks of a stream."""
        with self.database.reading() as connection:
            return read_marks(connection, stream)

    def view(
        self,
        stream: int,
        declaration: StreamDeclaration,
        name: str,
        spans: tuple[IntArray, IntArray],
        labels: Sequence[str],
        outputs: Sequence[int],
    ) -> View:
        """A view over spans (after, until), from the numbers at their ends: no other tick is read."""
        values_at = partial(self.values_at, stream)
        facts = self.facts_of(declaration)
        if isinstance(facts.error_model, RevisedErrors):
            with self.database.reading() as connection:
                released = _released(connection, stream)
            stated = (facts.guarantee, facts.noise)
            return newest_view(facts.error_model, name, spans, outputs, values_at, released, *stated)
        return view_at(facts, labels, name, spans, outputs, values_at)

    def facts_of(self, declaration: StreamDeclaration) -> StreamFacts:
        """The public facts of a stream: its errors follow from them."""
        with self.database.reading() as connection:
            number = connection.execute(select(schema.streams.c.id).where(schema.streams.c.name == declaration.name))
            joined = read_joined(connection, number.scalar() or 0)
        known = (declaration.name, len(joined))
        if known not in self._facts:
            self._facts[known] = with_joined(declaration.as_declared.build(replay=True), joined)
        return self._facts[known]

    def _page(
        self,
        connection: Connection,
        stream: int,
        declaration: StreamDeclaration,
        after: int,
        last: int,
        cells: range | None = None,
        marks: Sequence[TickMark] | None = None,
    ) -> list[dict[str, Any]]:
        """The numbers of ticks after+1 … last, as one view of the database has them; with marks as readers see them."""
        hashes = _hashes(connection, stream, after, last)
        last = max(hashes, default=after)  # shards commit rows of a tick before the tick is released
        if declaration.revise_for is not None and marks is not None:
            tables = _by_day(connection, stream, declaration, after, last, cells)
        else:
            tables = _tables(connection, stream, declaration, after, last, cells)
        shown = [with_marks(table, marks or (), declaration.shown) for table in tables]
        return [release for table in shown for release in table.described(format_utc, hashes)]

    def values_at(self, stream: int, ticks: Iterable[int], cells: Sequence[int]) -> dict[int, FloatArray]:
        """What some cells published at some ticks: an array for each tick, in the order of `cells`.

        NaN where a tick did not publish a cell: a key that was not public yet.
        """
        table, wanted = schema.releases, [int(tick) for tick in ticks if tick > 0]
        place = {cell: i for i, cell in enumerate(cells)}
        values = {tick: np.full(len(place), np.nan) for tick in wanted}
        columns = select(table.c.tick, table.c.cell, table.c.value)
        # too many to name them: read all cells between
        some = (
            table.c.cell.between(min(place), max(place)) if len(place) > MOST_NAMED else table.c.cell.in_(list(place))
        )
        with self.database.reading() as connection:
            for start in range(0, len(wanted), MOST_NAMED):
                where = (table.c.stream == stream) & table.c.tick.in_(wanted[start : start + MOST_NAMED])
                rows = connection.execute(columns.where(where & some))
                for tick, cell, value in rows:
                    if cell in place:
                        values[tick][place[cell]] = value
        return values

    def tables_of(self, name: str) -> tuple[StreamDeclaration, Iterator[ReleaseTable]]:
        """The declaration of a stream, and all that it shows now."""
        with self.database.reading() as connection:
            row = _stream_row(connection, name)
            until = _released(connection, row["id"])
        return declared(row), self.release_tables(row["id"], declared(row), until)

    def all_releases(self, name: str) -> Iterator[dict[str, Any]]:
        """All that a stream shows when the first is taken, tick by tick."""
        with self.database.reading() as connection:
            row = _stream_row(connection, name)
            until = _released(connection, row["id"])
        after = 0
        while page := self.read_releases(row["id"], declared(row), after, until=until):
            yield from page
            after = page[-1]["tick"]

    def _all_releases(
        self, connection: Connection, row: Any, declaration: StreamDeclaration
    ) -> Iterator[dict[str, Any]]:
        """The stored numbers of all ticks, as one view of the database has them."""
        keys = len(_public_keys(connection, row["id"], declaration))
        size = max(1, NUMBERS_PER_TABLE // (declaration.query.outputs + keys))
        after = 0
        while page := self._page(connection, row["id"], declaration, after, after + size):
            yield from page
            after = page[-1]["tick"]

    def last_release(self) -> float | None:
        """When the last tick of any stream was closed, by the service's clock; None before the first."""
        with self.database.reading() as connection:
            moment = connection.execute(select(func.max(schema.ticks.c.closed))).scalar()
        return None if moment is None else float(moment)

    # -- the ledger ----------------------------------------------------------------------------------------------

    def ledger(self, public_only: bool = False) -> dict[str, Any]:
        """What each stream spends, and what streams of one unit spend together, exactly composed.

        With `public_only` streams that are not public are left out of the entries, the numbers and the totals.
        """
        with self.database.reading() as connection:
            lines = read_spendings(connection)
            cap = None if public_only else read_cap(connection)
        kept = [line for line in lines if line.public] if public_only else lines
        return {"covers": "public streams" if public_only else "all streams", **describe_ledger(kept, cap)}

    # -- whether all is well ---------------------------------------------------------------------------------------

    def current_head(self) -> Head:
        """The last hash of every chain, what every stream spent, and which are retired, as the database has them."""
        with self.database.reading() as connection:
            heads = {}
            for row in connection.execute(select(schema.streams)).mappings().all():
                table = schema.ticks
                query = select(table.c.tick, table.c.hash).where(table.c.stream == row["id"])
                last = connection.execute(query.order_by(table.c.tick.desc()).limit(1)).first()
                tick, digest = (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))
                heads[row["name"]] = (tick, digest.hex())
            return Head(
                read_identity(connection), heads, spent_of_streams(connection), frozenset(retired_rows(connection))
            )

    def check_head(self, head: HeadFile) -> dict[str, Quarantine]:
        """The streams that are older in the database than in the head; StoreError where nothing can be compared."""
        content = head.read()  # before the database: see HeadFile.check
        with self.database.reading() as connection:
            quarantined, newer = self._check_head(connection, head, content)
        if newer is not None:
            with self.database.reading() as connection:
                quarantined, _ = self._check_head(connection, head, newer)
        return quarantined

    def _check_head(
        self, connection: Connection, head: HeadFile, content: Head | None
    ) -> tuple[dict[str, Quarantine], Head | None]:
        """Compare one view with a head that was read before it.

        Where there was no head then and there is one now, it is returned: a new store has just written its first one,
        and a fresh view must be compared with it.
        """
        # a stream that has released nothing here may have released elsewhere: every stream needs the head
        declares = connection.execute(select(schema.streams.c.id).limit(1)).first() is not None
        if content is None and declares and (newer := head.read()) is not None:
            return {}, newer
        heads = content.streams if content else {}
        known: dict[str, dict[int, str]] = {}
        for row in connection.execute(select(schema.streams)).mappings().all():
            tick = heads.get(row["name"], (0, ""))[0]
            known[row["name"]] = {0: bytes(row["genesis"]).hex()}
            table = schema.ticks
            where = (table.c.stream == row["id"]) & (table.c.tick == tick)
            digest = connection.execute(select(table.c.hash).where(where)).scalar()
            if digest is not None:
                known[row["name"]][tick] = bytes(digest).hex()
        retired = {name: row["stream"] is not None for name, row in retired_rows(connection).items()}
        return head.check(content, read_identity(connection), known, declares, retired), None

    def verify(self, head: HeadFile | None = None) -> list[str]:
        """Recompute every chain in one view of the database; returns what is wrong, nothing when all is well.

        **Guarantee.** A store that a service writes to meanwhile is as well as one at rest: no false alarm. Test:
        `tests/store/test_store_views.py::test_a_live_store_verifies`.
        """
        try:
            content = head.read() if head is not None else None
        except StoreError as error:
            return [error.for_operator()]
        with self.database.reading() as connection:
            wrong, newer = self._verify(connection, head, content)
        if newer is not None:
            with self.database.reading() as connection:
                wrong, _ = self._verify(connection, head, newer)
        return wrong

    def _verify(
        self, connection: Connection, head: HeadFile | None, content: Head | None
    ) -> tuple[list[str], Head | None]:
        wrong: list[str] = []
        if head is not None:
            try:
                quarantined, newer = self._check_head(connection, head, content)
            except StoreError as error:
                wrong.append(error.for_operator())
            else:
                if newer is not None:
                    return [], newer
                wrong.extend(
                    f"{one.name}: {one.reason} (the head is at tick {one.tick})" for one in quarantined.values()
                )
        if self.database.sqlite and connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok":
            wrong.append("SQLite's own integrity check fails")
        retired = retired_rows(connection)
        for row in connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings().all():
            try:
                declaration = declared(row)
            except (EvercountError, ValueError) as error:
                wrong.append(f"{row['name']}: the declaration cannot be read: {error}")
                continue
            wrong.extend(self._verify_chain(connection, row, declaration, row["name"] in retired))
            wrong.extend(_verify_spending(connection, row, declaration))
        return wrong, None

    def _verify_chain(
        self, connection: Connection, row: Any, declaration: StreamDeclaration, retired: bool
    ) -> Iterator[str]:
        name, previous = row["name"], genesis(row["declaration"], row["start"])
        if previous != bytes(row["genesis"]):
            yield f"{name}: the declaration was changed after it was stored"
        tick, keys, width = 0, _public_keys(connection, row["id"], declaration), declaration.query.outputs
        labels = [*declaration.query.labels, *(label for label, _ in keys)] if keys else declaration.query.labels
        for release in self._all_releases(connection, row, declaration):
            tick += 1
            if declaration.query.publishing.own_ticks:
                places = [place for place, value in enumerate(release["values"]) if value is not None]
                fresh, width = [labels[place] for place in places], len(places)
            else:
                fresh = [label for label, since in keys if since == tick]
                width += len(fresh)
                if declaration.revise_for is not None:  # the ticks before, as far as there are some
                    width = min(tick, declaration.revise_for + 1) * declaration.query.outputs
                places = list(range(len(release["values"])))
            numbers = np.asarray([[release[part][i] for i in places] for part in ("values", "std", "low", "high")])
            previous = link(previous, release["tick"], numbers, fresh)
            if release["tick"] != tick or numbers.shape[1] != width:
                yield f"{name}: the releases around tick {tick} are not complete"
                return
            if previous.hex() != release["hash"]:
                yield f"{name}: the release of tick {tick} was changed after it was stored"
                return
        if retired:
            if _secrets_left(connection, row["id"]):
                yield f"{name}: the stream is retired, and its secret or its sums are still there"
            return
        state = connection.execute(select(schema.states.c.tick).where(schema.states.c.stream == row["id"])).scalar()
        chain = connection.execute(
            select(schema.ticks.c.tick)
            .where(schema.ticks.c.stream == row["id"])
            .order_by(schema.ticks.c.tick.desc())
            .limit(1)
        ).scalar()
        if not state == tick == (chain or 0):
            yield f"{name}: the state stands at another tick than the releases"

    def backup(self, target: Path) -> None:
        """A consistent copy of an SQLite store, also while a service writes. It holds raw sums and secrets."""
        file = self.database.file
        if file is None:
            raise StoreError("a PostgreSQL store is copied with PostgreSQL's own tools, for example pg_dump")
        try:
            os.close(open_private(target, os.O_CREAT | os.O_EXCL | os.O_RDWR))  # a link is refused as well
        except FileExistsError:
            raise StoreError(f"{target} exists already: choose another file") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from None
        try:
            with (
                contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise StoreError(f"the copy failed ({type(error).__name__}): {error}") from None


def _tables(
    connection: Connection,
    stream: int,
    declaration: StreamDeclaration,
    after: int,
    last: int,
    cells: range | None = None,
) -> list[ReleaseTable]:
    """The stored numbers of ticks after+1 … last: one table, or one for each tick where some rows are missing."""
    table = schema.releases
    labels = _stored_labels(connection, stream, declaration)
    columns = (table.c.tick, table.c.cell, table.c.value, table.c.std, table.c.low, table.c.high)
    where = (table.c.stream == stream) & (table.c.tick > after) & (table.c.tick <= last)
    if cells is not None:
        # each tick is looked up by itself, so that no other cell is read
        where = (table.c.stream == stream) & table.c.tick.in_(range(after + 1, last + 1))
        where &= (table.c.cell >= cells.start) & (table.c.cell < cells.stop)
        labels = labels[cells.start : cells.stop]
    query = select(*columns).where(where).order_by(table.c.tick, table.c.cell)
    rows = connection.execute(query).all()
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


def _stored_labels(connection: Connection, stream: int, declaration: StreamDeclaration) -> Sequence[str]:
    """One label for each number that the store has of a tick; of a stream whose ticks are revised, for each lag."""
    if declaration.revise_for is not None:
        return declaration.released_query.labels
    return Reading.labels_of(connection, stream, declaration)


def _by_day(
    connection: Connection,
    stream: int,
    declaration: StreamDeclaration,
    after: int,
    last: int,
    cells: range | None = None,
) -> list[ReleaseTable]:
    """The same of a stream whose ticks are revised, one row for each tick and each time it was published."""
    wide = declaration.released_query
    numbers = np.full((last - after, 4, wide.outputs), np.nan)
    for table in _tables(connection, stream, declaration, after, last):
        numbers[table.ticks - after - 1, :, : table.numbers.shape[2]] = table.numbers
    starts = declaration.schedule.starts_of
    table = ReleaseTable(np.arange(after + 1, last + 1), starts(after + 1, last - after), wide.labels, numbers)
    table = by_day(table, wide, starts)
    if cells is not None:
        part = slice(cells.start, cells.stop)
        table = replace(table, cells=table.cells[part], numbers=table.numbers[:, :, part])
    return [table]


def _no_ticks(declaration: StreamDeclaration, labels: Sequence[str]) -> ReleaseTable:
    starts = declaration.schedule.starts_of(1, 0)
    return ReleaseTable(np.empty(0, np.int64), starts, labels, np.empty((0, 4, len(labels))))


def _released(connection: Connection, stream: int) -> int:
    """The last tick that is released."""
    query = select(func.max(schema.ticks.c.tick)).where(schema.ticks.c.stream == stream)
    return int(connection.execute(query).scalar() or 0)


def _hashes(connection: Connection, stream: int, after: int, last: int) -> dict[int, bytes]:
    """The hashes of ticks after+1 … last, as far as they are released."""
    chain = schema.ticks
    where = (chain.c.stream == stream) & (chain.c.tick > after) & (chain.c.tick <= last)
    return {row.tick: bytes(row.hash) for row in connection.execute(select(chain).where(where))}


def _stream_row(connection: Connection, name: str) -> Any:
    row = connection.execute(select(schema.streams).where(schema.streams.c.name == name)).mappings().first()
    if row is None:
        raise StoreError(f"the store has no stream {name!r}")
    return row


def _public_keys(connection: Connection, stream: int, declaration: StreamDeclaration) -> list[tuple[str, int]]:
    """(key, tick since which it is public) of keys that nobody listed, or that joined, in the order of their cells."""
    table = schema.public_keys
    query = select(table.c.label, table.c.since).where(table.c.stream == stream).order_by(table.c.cell)
    return [(row.label, row.since) for row in connection.execute(query)]


def declared(row: Any) -> StreamDeclaration:
    """The declaration of a stored stream, with its start."""
    declaration = StreamDeclaration.from_dict(json.loads(row["declaration"]))
    return declaration.started(instant_of(row["start"]))


def _secrets_left(connection: Connection, stream: int) -> bool:
    """Whether the secret or the state of a stream is in the database."""
    tables = (schema.secrets, schema.states, schema.accumulators, schema.shards)
    return any(connection.execute(select(table.c.stream).where(table.c.stream == stream)).first() for table in tables)


def spent_of_streams(connection: Connection) -> dict[str, dict[str, Any]]:
    """What the head file keeps about the spending of each stream: its line of the ledger and its noise's identity."""
    table, names = schema.noise_identities, schema.streams
    query = select(names.c.name, table.c.identity).join(names, names.c.id == table.c.stream)
    identities = {row.name: bytes(row.identity).hex() for row in connection.execute(query)}
    return {
        line.stream: {**line.to_dict(), "identity": identities.get(line.stream, "")}
        for line in read_spendings(connection)
    }


def read_identity(connection: Connection) -> str:
    """The random name that the store got when it was created."""
    identity = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "identity")).scalar()
    if identity is None:
        raise StoreError("this database is not an evercount store")
    return str(identity)


def _verify_spending(connection: Connection, row: Any, declaration: StreamDeclaration) -> Iterator[str]:
    """Every stream must stand in the ledger with the budget of its declaration, which the chain covers."""
    table = schema.ledger
    entry = connection.execute(select(table).where(table.c.stream == row["id"])).mappings().first()
    if entry is None:
        yield f"{row['name']}: the ledger lacks this stream"
    elif not states(entry["cost"], declaration):
        yield f"{row['name']}: the ledger states another budget or time range than the declaration"
