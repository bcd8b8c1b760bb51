"""What may be read from a store without its lock: releases, declarations, the ledger, and whether all is well."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from evercount._safe_files import open_private
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import format_utc, instant_of
from evercount.engine.release_table import ReleaseTable
from evercount.errors import EvercountError, StoreError
from evercount.privacy import Budget
from evercount.privacy.composition import spent_together
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.release_chain import genesis, link
from evercount.store.rollback_guard import HeadFile, Heads
from evercount.store.sealing import Sealer

PAGE = 200
PROBE = b"evercount store"


class Reading:
    """The reading side of a store; safe from any number of threads."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, place: str | Path) -> Reading:
        """Open for reading only, also while a service writes."""
        return Reading(Database(place, write=False))

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    @staticmethod
    def check_probe(sealer: Sealer, stored: str) -> None:
        """Whether the key is the key of this store."""
        encrypted = bytes.fromhex(stored)[:1] == b"\x01"
        if encrypted and not sealer.encrypted:
            raise StoreError("the store is encrypted: give its key by EVERCOUNT_KEY_FILE or EVERCOUNT_KEY")
        if sealer.encrypted and not encrypted:
            raise StoreError(
                "a key is given, but the store was made without encryption: leave the key away, "
                "or start a new store with it"
            )
        if sealer.open(bytes.fromhex(stored), "probe", 0) != PROBE:
            raise StoreError("the store's key is wrong")

    # -- releases ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All streams in the order of their declaration."""
        with self.database.reading() as connection:
            return list(connection.execute(select(schema.streams.c.name).order_by(schema.streams.c.id)).scalars())

    def declaration(self, name: str) -> StreamDeclaration:
        """What was declared."""
        with self.database.reading() as connection:
            return declared(_stream_row(connection, name))

    def read_releases(
        self,
        stream: int,
        declaration: StreamDeclaration,
        after: int = 0,
        limit: int = PAGE,
        until: int | None = None,
    ) -> list[dict[str, Any]]:
        """The releases of ticks after+1 … after+limit (and at most `until`), in order."""
        last = after + limit if until is None else min(after + limit, until)
        with self.database.reading() as connection:
            return self._page(connection, stream, declaration, after, last)

    def _page(
        self, connection: Connection, stream: int, declaration: StreamDeclaration, after: int, last: int
    ) -> list[dict[str, Any]]:
        """The releases of ticks after+1 … last, as one view of the database has them."""
        table, chain = schema.releases, schema.ticks
        where = (chain.c.stream == stream) & (chain.c.tick > after) & (chain.c.tick <= last)
        hashes = {row.tick: bytes(row.hash) for row in connection.execute(select(chain).where(where))}
        last = max(hashes, default=after)  # shards commit rows of a tick before the tick is released
        where = (table.c.stream == stream) & (table.c.tick > after) & (table.c.tick <= last)
        columns = (table.c.tick, table.c.value, table.c.std, table.c.low, table.c.high)
        rows: dict[int, list[tuple[float, ...]]] = {}
        for tick, *numbers in connection.execute(select(*columns).where(where).order_by(table.c.tick, table.c.cell)):
            rows.setdefault(tick, []).append(tuple(numbers))
        described = []
        for tick, cells in rows.items():
            starts = declaration.schedule.starts_of(tick, 1)
            one = ReleaseTable(tick, starts, declaration.query.labels, np.asarray(cells).T[np.newaxis])
            described += one.described(format_utc, hashes)
        return described

    def all_releases(self, name: str) -> Iterator[dict[str, Any]]:
        """Every release of a stream, as of the moment of the first one; the view is held until the last was taken."""
        with self.database.reading() as connection:
            row = _stream_row(connection, name)
            yield from self._all_releases(connection, row, declared(row))

    def _all_releases(
        self, connection: Connection, row: Any, declaration: StreamDeclaration
    ) -> Iterator[dict[str, Any]]:
        size = max(1, 50_000 // declaration.query.outputs)
        after = 0
        while page := self._page(connection, row["id"], declaration, after, after + size):
            yield from page
            after = page[-1]["tick"]

    # -- the ledger ----------------------------------------------------------------------------------------------

    def ledger(self, public_only: bool = False) -> dict[str, Any]:
        """What each stream spends, and what streams of one unit spend together, exactly composed.

        With `public_only` streams that are not public are left out of the entries, the numbers and the totals.
        """
        table, names = schema.ledger, schema.streams
        query = (
            select(table.c.budget, table.c.mu, table.c.numeric_delta, names.c.name, names.c.declaration)
            .join(names, names.c.id == table.c.stream)
            .order_by(table.c.sequence)
        )
        with self.database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        entries, groups = [], dict[tuple[Any, ...], list[tuple[Budget, float]]]()
        for row in rows:
            if public_only and not json.loads(row["declaration"])["public"]:
                continue
            budget = Budget.from_dict(json.loads(row["budget"]))
            entries.append({"stream": row["name"], "mu": row["mu"], **budget.to_dict()})
            groups.setdefault((budget.adjacency, budget.unit, budget.max_events), []).append(
                (budget, row["numeric_delta"])
            )
        totals = []
        for (adjacency, unit, most), budgets in groups.items():
            whole = spent_together(budgets)
            totals.append(
                {
                    "adjacency": adjacency,
                    "unit": unit,
                    "max_events": most,
                    "streams": len(budgets),
                    "epsilon": whole.epsilon,
                    "delta": whole.delta,
                }
            )
        return {"covers": "public streams" if public_only else "all streams", "entries": entries, "totals": totals}

    # -- whether all is well ---------------------------------------------------------------------------------------

    def current_heads(self) -> tuple[str, Heads]:
        """(identity of the store, the last hash of every chain), as the database has them."""
        with self.database.reading() as connection:
            heads = {}
            for row in connection.execute(select(schema.streams)).mappings().all():
                table = schema.ticks
                query = select(table.c.tick, table.c.hash).where(table.c.stream == row["id"])
                last = connection.execute(query.order_by(table.c.tick.desc()).limit(1)).first()
                tick, digest = (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))
                heads[row["name"]] = (tick, digest.hex())
            return store_identity(connection), heads

    def check_head(self, head: HeadFile) -> None:
        """Refuse a database that is older than its head."""
        found = head.read()  # before the database: see HeadFile.check
        with self.database.reading() as connection:
            newer = self._check_head(connection, head, found)
        if newer is not None:
            with self.database.reading() as connection:
                self._check_head(connection, head, newer)

    def _check_head(
        self, connection: Connection, head: HeadFile, found: tuple[str, Heads] | None
    ) -> tuple[str, Heads] | None:
        """Compare one view with a head that was read before it.

        Where there was no head then and there is one now, it is returned: a new store has just written its first one,
        and a fresh view must be compared with it.
        """
        released = connection.execute(select(schema.ticks.c.tick).limit(1)).first() is not None
        if found is None and released and (newer := head.read()) is not None:
            return newer
        heads = found[1] if found else {}
        known: dict[str, dict[int, str]] = {}
        for row in connection.execute(select(schema.streams)).mappings().all():
            tick = heads.get(row["name"], (0, ""))[0]
            known[row["name"]] = {0: bytes(row["genesis"]).hex()}
            table = schema.ticks
            where = (table.c.stream == row["id"]) & (table.c.tick == tick)
            digest = connection.execute(select(table.c.hash).where(where)).scalar()
            if digest is not None:
                known[row["name"]][tick] = bytes(digest).hex()
        head.check(found, store_identity(connection), known, released)
        return None

    def verify(self, head: HeadFile | None = None) -> list[str]:
        """Recompute every chain in one view of the database; returns what is wrong, nothing when all is well.

        **Guarantee.** A store that a service writes to meanwhile is as well as one at rest: no false alarm. Test:
        `tests/store/test_store_views.py::test_a_live_store_verifies`.
        """
        try:
            found = head.read() if head is not None else None
        except StoreError as error:
            return [error.for_operator()]
        with self.database.reading() as connection:
            wrong, newer = self._verify(connection, head, found)
        if newer is not None:
            with self.database.reading() as connection:
                wrong, _ = self._verify(connection, head, newer)
        return wrong

    def _verify(
        self, connection: Connection, head: HeadFile | None, found: tuple[str, Heads] | None
    ) -> tuple[list[str], tuple[str, Heads] | None]:
        wrong: list[str] = []
        if head is not None:
            try:
                newer = self._check_head(connection, head, found)
            except StoreError as error:
                wrong.append(error.for_operator())
            else:
                if newer is not None:
                    return [], newer
        if self.database.sqlite and connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok":
            wrong.append("SQLite's own integrity check fails")
        for row in connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings().all():
            try:
                declaration = declared(row)
            except (EvercountError, ValueError) as error:
                wrong.append(f"{row['name']}: the declaration cannot be read: {error}")
                continue
            wrong.extend(self._verify_chain(connection, row, declaration))
            wrong.extend(_verify_spending(connection, row, declaration))
        return wrong, None

    def _verify_chain(self, connection: Connection, row: Any, declaration: StreamDeclaration) -> Iterator[str]:
        name, previous = row["name"], genesis(row["declaration"], row["start"])
        if previous != bytes(row["genesis"]):
            yield f"{name}: the declaration was changed after it was made"
        tick = 0
        for release in self._all_releases(connection, row, declaration):
            tick += 1
            numbers = np.asarray([release[part] for part in ("values", "std", "low", "high")])
            previous = link(previous, release["tick"], numbers)
            if release["tick"] != tick or numbers.shape[1] != declaration.query.outputs:
                yield f"{name}: the releases around tick {tick} are not complete"
                return
            if previous.hex() != release["hash"]:
                yield f"{name}: the release of tick {tick} was changed after it was made"
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


def _stream_row(connection: Connection, name: str) -> Any:
    """The stored row of a stream."""
    found = connection.execute(select(schema.streams).where(schema.streams.c.name == name)).mappings().first()
    if found is None:
        raise StoreError(f"the store has no stream {name!r}")
    return found


def declared(row: Any) -> StreamDeclaration:
    """The declaration of a stored stream, with its start."""
    declaration = StreamDeclaration.from_dict(json.loads(row["declaration"]), stored=True)
    return declaration.started(instant_of(row["start"]))


def store_identity(connection: Connection) -> str:
    """The random name that the store got when it was made."""
    found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "identity")).scalar()
    if found is None:
        raise StoreError("this database is not an evercount store")
    return str(found)


def _verify_spending(connection: Connection, row: Any, declaration: StreamDeclaration) -> Iterator[str]:
    """Every stream must stand in the ledger with the budget of its declaration, which the chain covers."""
    table = schema.ledger
    found = connection.execute(select(table).where(table.c.stream == row["id"])).mappings().first()
    if found is None:
        yield f"{row['name']}: the ledger lacks this stream"
    elif json.loads(found["budget"]) != declaration.budget.to_dict():
        yield f"{row['name']}: the ledger states another budget than the declaration"
