"""What may be read from a store without its lock: releases, the ledger, whether all is well, and
backups."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._safe_files import open_private, refuse_link, sync_folder
from evercount._validate import FloatArray, IntArray
from evercount.declarations.schedule import format_utc
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import next_spans, view_table
from evercount.engine.add_keys import with_joined
from evercount.engine.build import RUNNING
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import RevisedErrors, newest_view
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.take_views import view_at
from evercount.engine.views import View
from evercount.engine.write_table import among, described, each_tick
from evercount.errors import EvercountError, StoreError
from evercount.store import schema
from evercount.store.database import (
    NAMED_AT_ONCE,
    Database,
    find,
    having,
    in_parts,
    parse_url,
    read_fact,
    rows_of,
    take_file_lock,
)
from evercount.store.open_stream import StoredStream
from evercount.store.rollback_guard import Head, HeadFile, Quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import describe_ledger, read_cap, read_spendings, retired_rows, states
from evercount.store.stored_releases import (
    NUMBERS_PER_TABLE,
    declared,
    find_stream,
    genesis,
    labels_of,
    last_link,
    link,
    public_keys_of,
    read_carried,
    read_hashes,
    read_joined,
    read_marks,
    read_shown,
    read_table,
    released_until,
    with_late_rules,
)

PROBE = b"evercount store"
TICKS_PER_PAGE = 200


class Reading:
    """The reading side of a store; safe from any number of threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._facts: dict[tuple[int, int], StreamFacts] = {}

    @classmethod
    def open(cls, place: str | Path) -> Reading:
        database = Database(place, write=False)
        try:
            database.read(schema.check_schema)
        except BaseException:
            database.close()
            raise
        return Reading(database)

    def close(self) -> None:
        self.database.close()

    # -- releases ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        with self.database.reading() as connection:
            return list(
                connection.execute(
                    select(schema.streams.c.name).order_by(schema.streams.c.id)
                ).scalars()
            )

    def read_releases(
        self,
        one: StoredStream,
        after: int = 0,
        limit: int = TICKS_PER_PAGE,
        until: int | None = None,
        cells: range | None = None,
    ) -> list[dict[str, Any]]:
        """What the stream shows at ticks after `after`: at most `limit` of them, none after
        `until`."""
        with self.database.reading() as connection:
            released = released_until(connection, one.id)
            labels = labels_of(connection, one)
            marks = read_marks(connection, one.id)
        if until is None or until > released:
            until = released
        outputs = range(len(labels))
        if cells is not None:
            outputs = outputs[cells.start : cells.stop]
        if not outputs:
            return []
        table, reached = self._read_page(one, after, limit, until, labels, outputs)
        hashes = self.database.read(read_hashes, one.id, after, reached)
        return described(with_marks(table, marks, one.declaration.main_view), format_utc, hashes)

    def release_tables(self, one: StoredStream, until: int) -> Iterator[ReleaseTable]:
        """All that the stream shows up to tick `until`, as tables of a bounded size; one at least.
        Each table is a read of its own: a slow reader holds no view of the database open. Releases
        never change, so the tables fit together."""
        with self.database.reading() as connection:
            labels = labels_of(connection, one)
            marks = read_marks(connection, one.id)
        declaration = one.declaration
        size = max(1, NUMBERS_PER_TABLE // len(labels))
        reached = 0
        while True:
            table, reached = self._read_page(one, reached, size, until, labels, range(len(labels)))
            # in the order in which every door publishes them
            if declaration.query.publishing.own_ticks:
                listed = len(declaration.query.labels)
                table = among(table, [*table.cells[:listed], *sorted(table.cells[listed:])])
            yield with_marks(table, marks, declaration.main_view)
            if reached >= until:
                return

    def _read_page(
        self,
        one: StoredStream,
        after: int,
        limit: int,
        until: int,
        labels: Sequence[str],
        cells: range,
    ) -> tuple[ReleaseTable, int]:
        """Read at most `limit` ticks, or spans of the view that is shown, after tick `after`;
        returns also the tick that was reached."""
        declaration = one.declaration
        name = declaration.main_view
        schedule = declaration.schedule
        if declaration.shows_releases:
            last = max(after, min(after + limit, until))
            return self.adder(one)(self.database.read(read_shown, one, after, last, cells)), last
        spans = next_spans(name, schedule, after, until, limit)
        view = self.view(one, name, spans, labels, cells)
        table = view_table(view, name, schedule, postprocess=declaration.view_postprocess)
        if len(spans[1]):
            until = int(spans[1][-1])
        return table, until

    def published(self, one: StoredStream, after: int, until: int, cells: range) -> ReleaseTable:
        """The stored numbers of some cells at ticks after+1 … until."""
        return self.database.read(read_table, one, after, until, cells)

    def marks(self, stream: int) -> tuple[TickMark, ...]:
        return self.database.read(read_marks, stream)

    def view(
        self,
        one: StoredStream,
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

    def facts_of(self, one: StoredStream) -> StreamFacts:
        """The public facts of a stream: its errors follow from them."""
        joined = self.database.read(read_joined, one.id)
        key = (one.id, len(joined))
        if key not in self._facts:
            self._facts[key] = with_joined(one.declaration.as_declared.build(replay=True), joined)
        return self._facts[key]

    def values_at(
        self, stream: int, ticks: Iterable[int], cells: Sequence[int]
    ) -> dict[int, FloatArray]:
        """What some cells published at some ticks: an array for each tick, in the order of `cells`.
        NaN where a tick did not publish a cell: a key that was not public yet."""
        table = schema.releases
        wanted = [int(tick) for tick in ticks if tick > 0]
        place = {cell: i for i, cell in enumerate(cells)}
        values = {tick: np.full(len(place), np.nan) for tick in wanted}
        columns = select(table.c.tick, table.c.cell, table.c.value)
        # too many to name them: read all cells between
        some: range | list[int] = list(place)
        if len(place) > NAMED_AT_ONCE:
            some = range(min(place), max(place) + 1)
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
            one = replace(one, declaration=with_late_rules(connection, one))
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
            one = StoredStream(stream, declared(row))
            tick = released_until(connection, stream)
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
        """Return whether nobody may read the history of a stream."""
        return False

    def adder(self, one: StoredStream) -> Callable[[ReleaseTable], ReleaseTable]:
        """Return what makes of stored running totals those that readers see."""
        carried = self.carried(one.id)
        if carried is None:
            return lambda table: table
        return partial(carried.add_to, errors=self.facts_of(one)._errors)

    def last_release(self) -> float | None:
        """When the last tick of any stream was closed, by the service's clock; None before the
        first."""
        with self.database.reading() as connection:
            moment = connection.execute(select(func.max(schema.ticks.c.closed))).scalar()
        if moment is None:
            return None
        return float(moment)

    # -- the ledger --------------------------------------------------------------------------------

    def ledger(self, public_only: bool = False) -> dict[str, Any]:
        """What each stream spends, and what streams of one unit spend together, exactly composed.
        With `public_only` streams that are not public are left out of the entries, the numbers and
        the totals."""
        with self.database.reading() as connection:
            lines = read_spendings(connection)
            cap = read_cap(connection)
        if not public_only:
            return {"covers": "all streams", **describe_ledger(lines, cap)}
        public_lines = [line for line in lines if line.public]
        return {"covers": "public streams", **describe_ledger(public_lines)}

    # -- whether all is well -----------------------------------------------------------------------

    def current_head(self) -> Head:
        """The last hash of every chain, what every stream spent, and which are retired, as the
        database has them."""
        with self.database.reading() as connection:
            rows = rows_of(connection, schema.streams).mappings().all()
            links = {row["name"]: last_link(connection, row) for row in rows}
            heads = {name: (tick, digest.hex()) for name, (tick, digest) in links.items()}
            spent = spent_of_streams(connection)
            retired = frozenset(retired_rows(connection))
            return Head(read_identity(connection), heads, spent, retired)

    def check_head(self, head: HeadFile) -> dict[str, Quarantine]:
        """The streams that are older in the database than in the head; StoreError where nothing can
        be compared."""
        content = head.read()
        with self.database.reading() as connection:
            return self._check_head(connection, head, content)

    def _check_head(
        self, connection: Connection, head: HeadFile, content: Head | None
    ) -> dict[str, Quarantine]:
        """Compare the chains of the database with the heads that `head` has read."""
        # a stream that has released nothing here may have released elsewhere: every stream needs
        # the head
        heads = content.streams if content else {}
        digests: dict[str, dict[int, str]] = {}
        for row in connection.execute(select(schema.streams)).mappings().all():
            tick = heads.get(row["name"], (0, ""))[0]
            digests[row["name"]] = {0: bytes(row["genesis"]).hex()}
            digest = find(connection, schema.ticks, "hash", stream=row["id"], tick=tick)
            if digest is not None:
                digests[row["name"]][tick] = bytes(digest).hex()
        return head.check(content, read_identity(connection), digests, retired_rows(connection))

    def verify(self, head: HeadFile | None = None) -> list[str]:
        """Recompute every chain in one view of the database; returns what is wrong, nothing when
        all is well.

        **Guarantee.** A store that a service writes to meanwhile is as well as one at rest: no
        false alarm. Test: `tests/store/test_store_views.py::test_a_live_store_verifies`.
        """
        try:
            content = head.read() if head is not None else None
        except StoreError as error:
            return [error.for_operator()]
        with self.database.reading() as connection:
            return list(self._verify(connection, head, content))

    def _verify(
        self, connection: Connection, head: HeadFile | None, content: Head | None
    ) -> Iterator[str]:
        """Yield what is wrong with the store, in one view of the database."""
        try:
            quarantined = {} if head is None else self._check_head(connection, head, content)
            yield from (
                f"{one.name}: {one.reason} (the head is at tick {one.tick})"
                for one in quarantined.values()
            )
        except StoreError as error:
            yield error.for_operator()
        if (
            self.database.sqlite
            and connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok"
        ):
            yield "SQLite's own integrity check fails"
        retired = retired_rows(connection)
        for row in (
            connection.execute(select(schema.streams).order_by(schema.streams.c.id))
            .mappings()
            .all()
        ):
            try:
                declaration = declared(row)
            except (EvercountError, ValueError) as error:
                yield f"{row['name']}: the declaration cannot be read: {error}"
                continue
            yield from self._verify_chain(connection, row, declaration, row["name"] in retired)
            cost = find(connection, schema.ledger, "cost", stream=row["id"])
            if cost is None:
                yield f"{row['name']}: the ledger lacks this stream"
            elif not states(cost, declaration):  # the chain covers the declaration
                yield (
                    f"{row['name']}: the ledger states another budget or time range than the "
                    "declaration"
                )

    def _verify_chain(
        self, connection: Connection, row: Any, declaration: Settled, retired: bool
    ) -> Iterator[str]:
        """Yield what is wrong with the chain of a stream, and with what is stored besides."""
        name = row["name"]
        previous = genesis(row["declaration"], row["start"])
        if previous != bytes(row["genesis"]):
            yield f"{name}: the declaration was changed after it was stored"
        one = StoredStream(row["id"], declaration)
        keys = public_keys_of(connection, row["id"])
        labels = labels_of(connection, one)
        width = declaration.query.outputs
        tick = 0
        for tick, places, numbers, digest in _chain(
            connection, one, max(1, NUMBERS_PER_TABLE // len(labels))
        ):
            if declaration.query.publishing.own_ticks:
                fresh = [labels[place] for place in places.tolist()]
                width = len(places)
            else:
                fresh = [label for label, since in keys if since == tick]
                width += len(fresh)
                if declaration.revise_for is not None:  # the ticks before, as far as there are some
                    width = min(tick, declaration.revise_for + 1) * declaration.query.outputs
            previous = link(previous, tick, numbers, fresh)
            if len(places) != width:
                yield f"{name}: the releases around tick {tick} are not complete"
                return
            if previous != digest:
                yield f"{name}: the release of tick {tick} was changed after it was stored"
                return
        if retired:
            tables = (schema.secrets, schema.states, schema.accumulators, schema.shards)
            if any(find(connection, one, "stream", stream=row["id"]) is not None for one in tables):
                yield f"{name}: the stream is retired, and its secret or its sums are still there"
            return
        state = find(connection, schema.states, "tick", stream=row["id"])
        if not state == tick == last_link(connection, row)[0]:
            yield f"{name}: the state is at another tick than the releases"

    def backup(self, target: Path) -> None:
        """A consistent copy of an SQLite store, also while a service writes. It holds raw sums and
        secrets."""
        file = self.database.file
        if file is None:
            raise StoreError(
                "a PostgreSQL store is copied with PostgreSQL's own tools, for example pg_dump"
            )
        try:
            # a link is refused as well
            os.close(open_private(target, os.O_CREAT | os.O_EXCL | os.O_RDWR))
        except FileExistsError:
            raise StoreError(f"{target} exists already: choose another file") from None
        except OSError as error:
            raise StoreError(f"{target} cannot be written: {error.strerror}") from None
        try:
            with (
                self.database.reading() as connection,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source: Any = connection.connection.dbapi_connection
                source.backup(copy)
        except StoreError:
            target.unlink(missing_ok=True)
            raise
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise StoreError(f"the copy failed ({type(error).__name__}): {error}") from None


def _chain(
    connection: Connection, one: StoredStream, size: int
) -> Iterator[tuple[int, IntArray, FloatArray, bytes | None]]:
    """Yield each tick of a stream: the places of its numbers, the numbers, and its hash. `size`
    ticks are read together."""
    after = 0
    while hashes := read_hashes(connection, one.id, after, after + size):
        table = read_table(connection, one, after, max(hashes))
        yield from (
            (tick, places, numbers, hashes.get(tick)) for tick, places, numbers in each_tick(table)
        )
        after = max(hashes)


def spent_of_streams(connection: Connection) -> dict[str, dict[str, Any]]:
    """What the head file keeps about the spending of each stream: its line of the ledger and its
    noise's identity."""
    table, names = schema.noise_identities, schema.streams
    query = select(names.c.name, table.c.identity).join(names, names.c.id == table.c.stream)
    identities = {row.name: bytes(row.identity).hex() for row in connection.execute(query)}
    return {
        line.stream: {"cost": line.cost.to_dict(), "identity": identities.get(line.stream, "")}
        for line in read_spendings(connection)
    }


def read_identity(connection: Connection) -> str:
    identity = read_fact(connection, "identity")
    if identity is None:
        raise StoreError("this database is not an evercount store")
    return identity


def open_sealer(connection: Connection, key: bytes | None) -> Sealer:
    """The sealer of a store, or StoreError where the key is not the one of the store."""
    sealer = Sealer(key, read_identity(connection))
    probe = bytes.fromhex(read_fact(connection, "probe") or "")
    encrypted = probe[:1] == b"\x01"
    if encrypted and not sealer.encrypted:
        raise StoreError(
            "the store is encrypted: give its key in EVERCOUNT_KEY_FILE or EVERCOUNT_KEY"
        )
    if sealer.encrypted and not encrypted:
        raise StoreError(
            "a key is given, but the store was created without encryption: omit the key, or start "
            "a new store with it"
        )
    if sealer.open(probe, "probe", 0) != PROBE:
        raise StoreError("the store's key is wrong")
    return sealer


def restore_copy(
    copy: Path, place: Path, head: Path | None = None
) -> tuple[Path | None, list[Quarantine]]:
    """Put a backup of an SQLite store in the place of the store at `place`, while nobody writes to
    it. Returns where the old database is kept, and the streams that cannot go on. The head file is
    not touched: it is what tells which streams have released since the copy was made."""
    refuse_link("the copy", copy)
    target = parse_url(place).database
    assert target is not None
    place = Path(target)
    fresh = place.with_name(f".{place.name}.restored")
    with contextlib.closing(Reading.open(copy)) as source:
        if wrong := source.verify():
            raise StoreError("the copy is damaged and was not restored", "; ".join(wrong))
        lock = take_file_lock(place)  # the database itself may be damaged: it is not opened
        try:
            quarantined = source.check_head(HeadFile(head or place.with_name(f"{place.name}.head")))
            fresh.unlink(missing_ok=True)
            source.backup(fresh)
            old = None
            if place.exists():
                old = _put_aside(place)
            fresh.replace(place)
            sync_folder(place)
        finally:
            os.close(lock)
    return old, list(quarantined.values())


def _put_aside(place: Path) -> Path:
    """Rename the database with its log, which holds its latest transactions; returns the new
    name."""
    aside = place.with_name(f"{place.name}.before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    if aside.exists():
        raise StoreError(f"{aside} exists already: wait a second and try again")
    for suffix in ("-wal", "-shm"):
        log = place.with_name(place.name + suffix)
        if log.exists():
            log.rename(aside.with_name(aside.name + suffix))
    return place.rename(aside)
