"""What may be read from a store without its lock: releases, declarations, the ledger, and whether all is well."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from evercount._safe_files import open_private
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import EvercountError, StoreError
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.release_chain import genesis, link
from evercount.store.rollback_guard import Head, HeadFile, Quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import describe_ledger, read_cap, read_spendings, retired_rows, states
from evercount.store.stored_releases import StoredReleases
from evercount.store.stored_rows import StoredStream, declared, last_link, public_keys_of

PROBE = b"evercount store"


class Reading(StoredReleases):
    """The reading side of a store; safe from any number of threads."""

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
                tick, digest = last_link(connection, row)
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
        tick, keys, width = 0, public_keys_of(connection, row["id"]), declaration.query.outputs
        labels = [*declaration.query.labels, *(label for label, _ in keys)] if keys else declaration.query.labels
        for release in self.chained_releases(connection, StoredStream(row["id"], declaration)):
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
            tables = (schema.secrets, schema.states, schema.accumulators, schema.shards)
            left = (connection.execute(select(one.c.stream).where(one.c.stream == row["id"])).first() for one in tables)
            if any(left):
                yield f"{name}: the stream is retired, and its secret or its sums are still there"
            return
        state = connection.execute(select(schema.states.c.tick).where(schema.states.c.stream == row["id"])).scalar()
        if not state == tick == last_link(connection, row)[0]:
            yield f"{name}: the state is at another tick than the releases"

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
    identity = schema.read_fact(connection, "identity")
    if identity is None:
        raise StoreError("this database is not an evercount store")
    return identity


def _verify_spending(connection: Connection, row: Any, declaration: StreamDeclaration) -> Iterator[str]:
    """Every stream must stand in the ledger with the budget of its declaration, which the chain covers."""
    table = schema.ledger
    entry = connection.execute(select(table).where(table.c.stream == row["id"])).mappings().first()
    if entry is None:
        yield f"{row['name']}: the ledger lacks this stream"
    elif not states(entry["cost"], declaration):
        yield f"{row['name']}: the ledger states another budget or time range than the declaration"
