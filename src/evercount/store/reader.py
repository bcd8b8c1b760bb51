"""What may be read from a store without its lock: releases, the ledger, whether all is well, and
backups."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from evercount._safe_files import open_private, refuse_link, sync_folder
from evercount._validate import FloatArray, IntArray
from evercount.declarations.settle import Settled
from evercount.engine.write_table import each_tick
from evercount.errors import EvercountError, StoreError
from evercount.store import schema
from evercount.store.database import Database, find, parse_url, read_fact, rows_of, take_file_lock
from evercount.store.rollback_guard import Head, HeadFile, Quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import describe_ledger, read_cap, read_spendings, retired_rows, states
from evercount.store.stored_releases import (
    NUMBERS_PER_TABLE,
    StoredReleases,
    StoredStream,
    declared,
    genesis,
    labels_of,
    last_link,
    link,
    public_keys_of,
    read_hashes,
    read_table,
)

PROBE = b"evercount store"


class Reading(StoredReleases):
    """The reading side of a store; safe from any number of threads."""

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

    # -- the ledger --------------------------------------------------------------------------------

    def ledger(self, public_only: bool = False) -> dict[str, Any]:
        """What each stream spends, and what streams of one unit spend together, exactly composed.
        With `public_only` streams that are not public are left out of the entries, the numbers and
        the totals."""
        with self.database.reading() as connection:
            lines = read_spendings(connection)
            cap = None if public_only else read_cap(connection)
        kept = [line for line in lines if line.public] if public_only else lines
        return {
            "covers": "public streams" if public_only else "all streams",
            **describe_ledger(kept, cap),
        }

    # -- whether all is well -----------------------------------------------------------------------

    def current_head(self) -> Head:
        """The last hash of every chain, what every stream spent, and which are retired, as the
        database has them."""
        with self.database.reading() as connection:
            rows = rows_of(connection, schema.streams).mappings().all()
            links = {row["name"]: last_link(connection, row) for row in rows}
            heads = {name: (tick, digest.hex()) for name, (tick, digest) in links.items()}
            spent, retired = spent_of_streams(connection), frozenset(retired_rows(connection))
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
        # a stream that has released nothing here may have released elsewhere: every stream needs
        # the head
        heads = content.streams if content else {}
        known: dict[str, dict[int, str]] = {}
        for row in connection.execute(select(schema.streams)).mappings().all():
            tick = heads.get(row["name"], (0, ""))[0]
            known[row["name"]] = {0: bytes(row["genesis"]).hex()}
            digest = find(connection, schema.ticks, "hash", stream=row["id"], tick=tick)
            if digest is not None:
                known[row["name"]][tick] = bytes(digest).hex()
        return head.check(content, read_identity(connection), known, retired_rows(connection))

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
        name, previous = row["name"], genesis(row["declaration"], row["start"])
        if previous != bytes(row["genesis"]):
            yield f"{name}: the declaration was changed after it was stored"
        one, keys = StoredStream(row["id"], declaration), public_keys_of(connection, row["id"])
        labels, width, tick = labels_of(connection, one), declaration.query.outputs, 0
        for tick, places, numbers, digest in _chain(
            connection, one, max(1, NUMBERS_PER_TABLE // len(labels))
        ):
            if declaration.query.publishing.own_ticks:
                fresh, width = [labels[place] for place in places.tolist()], len(places)
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
    """Each tick of a stream: the places of its numbers, the numbers, and its hash. `size` ticks are
    read together."""
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
    sealer, probe = (
        Sealer(key, read_identity(connection)),
        bytes.fromhex(read_fact(connection, "probe") or ""),
    )
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
            kept = _put_aside(place) if place.exists() else None
            fresh.replace(place)
            sync_folder(place)
        finally:
            os.close(lock)
    return kept, list(quarantined.values())


def _put_aside(place: Path) -> Path:
    """Rename the database with its log, which holds its latest transactions. The new name."""
    kept = place.with_name(f"{place.name}.before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    if kept.exists():
        raise StoreError(f"{kept} exists already: wait a second and try again")
    for suffix in ("-wal", "-shm"):
        log = place.with_name(place.name + suffix)
        if log.exists():
            log.rename(kept.with_name(kept.name + suffix))
    return place.rename(kept)
