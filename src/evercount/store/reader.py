"""What may be read from a store without its lock: releases, declarations, the ledger, and whether all is well."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select

from evercount._arrays import FloatArray
from evercount.declare.declaration import Declaration, format_time
from evercount.errors import EvercountError, StoreError
from evercount.privacy import Budget
from evercount.privacy.composition import composed_epsilon
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.release_chain import genesis, link
from evercount.store.rollback_guard import HeadFile
from evercount.store.sealing import Sealer

LEVEL = 0.95
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

    def stream_row(self, name: str) -> Any:
        """The stored row of a stream."""
        with self.database.reading() as connection:
            found = connection.execute(select(schema.streams).where(schema.streams.c.name == name)).mappings().first()
        if found is None:
            raise StoreError(f"the store has no stream {name!r}")
        return found

    def names(self) -> list[str]:
        """All streams in the order of their declaration."""
        with self.database.reading() as connection:
            return list(connection.execute(select(schema.streams.c.name).order_by(schema.streams.c.id)).scalars())

    def declaration(self, name: str) -> Declaration:
        """What was declared."""
        return Declaration.from_dict(json.loads(self.stream_row(name)["declaration"]))

    def read_releases(
        self,
        stream: int,
        declaration: Declaration,
        start: float,
        after: int = 0,
        limit: int = PAGE,
        until: int | None = None,
    ) -> list[dict[str, Any]]:
        """The releases of ticks after+1 … after+limit (and at most `until`), in order."""
        last = after + limit if until is None else min(after + limit, until)
        table, chain = schema.releases, schema.ticks
        with self.database.reading() as connection:
            where = (chain.c.stream == stream) & (chain.c.tick > after) & (chain.c.tick <= last)
            hashes = {row.tick: bytes(row.hash) for row in connection.execute(select(chain).where(where))}
            where = (table.c.stream == stream) & (table.c.tick > after) & (table.c.tick <= last)
            columns = (table.c.tick, table.c.value, table.c.std, table.c.low, table.c.high)
            rows: dict[int, list[tuple[float, ...]]] = {}
            for tick, *numbers in connection.execute(
                select(*columns).where(where).order_by(table.c.tick, table.c.cell)
            ):
                rows.setdefault(tick, []).append(tuple(numbers))
        made = []
        for tick, cells in rows.items():
            found = np.asarray(cells, dtype=np.float64).T
            made.append(self.describe_release(declaration, start, tick, found, hashes.get(tick, b"")))
        return made

    def describe_release(
        self, declaration: Declaration, start: float, tick: int, numbers: FloatArray, digest: bytes
    ) -> dict[str, Any]:
        """One release as everybody gets it; `numbers` has the rows value, std, low and high."""
        begin = declaration.tick_start(tick, start)
        return {
            "tick": tick,
            "start": None if begin is None else format_time(begin),
            **{name: row.tolist() for name, row in zip(("values", "std", "low", "high"), numbers, strict=True)},
            "hash": digest.hex(),
        }

    def all_releases(self, name: str) -> Iterator[dict[str, Any]]:
        """Every release of a stream, in pages."""
        row = self.stream_row(name)
        declaration = Declaration.from_dict(json.loads(row["declaration"]))
        after = 0
        while page := self.read_releases(row["id"], declaration, row["start"], after, self._page(declaration)):
            yield from page
            after = page[-1]["tick"]

    def _page(self, declaration: Declaration) -> int:
        return max(1, 50_000 // declaration.query.outputs)

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
            whole = composed(budgets)
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

    def known_hashes(self, heads: dict[str, tuple[int, str]]) -> tuple[dict[str, dict[int, str]], bool]:
        """The database's hashes at the ticks that a head names, and whether anything was released."""
        known: dict[str, dict[int, str]] = {}
        with self.database.reading() as connection:
            released = connection.execute(select(schema.ticks.c.tick).limit(1)).first() is not None
            for row in connection.execute(select(schema.streams)).mappings().all():
                tick = heads.get(row["name"], (0, ""))[0]
                known[row["name"]] = {0: bytes(row["genesis"]).hex()}
                table = schema.ticks
                where = (table.c.stream == row["id"]) & (table.c.tick == tick)
                found = connection.execute(select(table.c.hash).where(where)).scalar()
                if found is not None:
                    known[row["name"]][tick] = bytes(found).hex()
        return known, released

    def current_heads(self) -> dict[str, tuple[int, str]]:
        """The last hash of every chain, as the database has it."""
        heads = {}
        with self.database.reading() as connection:
            for row in connection.execute(select(schema.streams)).mappings().all():
                table = schema.ticks
                query = select(table.c.tick, table.c.hash).where(table.c.stream == row["id"])
                last = connection.execute(query.order_by(table.c.tick.desc()).limit(1)).first()
                tick, digest = (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))
                heads[row["name"]] = (tick, digest.hex())
        return heads

    def store_identity(self) -> str:
        """The random name that the store got when it was made."""
        with self.database.reading() as connection:
            found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "identity")).scalar()
        if found is None:
            raise StoreError("this database is not an evercount store")
        return str(found)

    def check_head(self, head: HeadFile) -> None:
        """Refuse a database that is older than its head."""
        found = head.read()
        known, released = self.known_hashes(found[1] if found else {})
        head.check(self.store_identity(), known, released)

    def verify(self, head: HeadFile | None = None) -> list[str]:
        """Recompute every chain; returns what is wrong, nothing when all is well."""
        wrong: list[str] = []
        if self.database.sqlite:
            with self.database.reading() as connection:
                answer = connection.exec_driver_sql("PRAGMA integrity_check").scalar()
            if answer != "ok":
                wrong.append("SQLite's own integrity check fails")
        if head is not None:
            try:
                self.check_head(head)
            except StoreError as error:
                wrong.append(str(error))
        for name in self.names():
            row = self.stream_row(name)
            try:
                declaration = Declaration.from_dict(json.loads(row["declaration"]))
            except EvercountError as error:
                wrong.append(f"{name}: the declaration cannot be read: {error}")
                continue
            wrong.extend(self._verify_chain(name, row, declaration))
        return wrong

    def _verify_chain(self, name: str, row: Any, declaration: Declaration) -> Iterator[str]:
        previous = genesis(row["declaration"], row["start"])
        if previous != bytes(row["genesis"]):
            yield f"{name}: the declaration was changed after it was made"
        tick = 0
        for release in self.all_releases(name):
            tick += 1
            numbers = np.asarray([release[name] for name in ("values", "std", "low", "high")])
            previous = link(previous, release["tick"], numbers)
            if release["tick"] != tick or numbers.shape[1] != declaration.query.outputs:
                yield f"{name}: the releases around tick {tick} are not complete"
                return
            if previous.hex() != release["hash"]:
                yield f"{name}: the release of tick {tick} was changed after it was made"
                return
        with self.database.reading() as connection:
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
        if target.exists():
            raise StoreError(f"{target} exists already: choose another file")
        target.touch(mode=0o600)
        try:
            with (
                contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as source,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
        except sqlite3.Error as error:
            target.unlink(missing_ok=True)
            raise StoreError(f"the copy failed ({type(error).__name__}): {error}") from None


def composed(entries: list[tuple[Budget, float]]) -> Budget:
    """What streams about the same events spend together, each given with its numeric δ.

    **Guarantee.** All releases of all entries are (epsilon, delta)-DP, delta being the sum of theirs. The ideal
    mechanisms compose (Gaussian and pure ones, `privacy/composition.proof.md`) at 7/8 of that δ; the rest pays for
    finite arithmetic, whose price grows with 1 + e^ε. Where it would not suffice, ε is the plain sum. Pure streams
    alone are exact and have no δ. Test: `tests/store/test_store_ledger.py::test_the_total_is_honest`.
    """
    budgets = [budget for budget, _ in entries]
    if len(budgets) == 1:
        return budgets[0]
    summed = math.fsum(budget.delta for budget in budgets) * (1 + 1e-15)
    delta = min(summed, 0.5)
    plain = math.fsum(budget.epsilon for budget in budgets) * (1 + 1e-15)
    exact = composed_epsilon(budgets, delta * 7 / 8)
    price = math.fsum(numeric * (1 + math.exp(min(exact, 700.0))) / 2 for _, numeric in entries)
    if price <= delta / 8 and (exact < plain or summed > delta):
        return replace(budgets[0], epsilon=exact or plain, delta=delta, calibration="tight")
    if summed >= 1:
        raise StoreError("the streams' deltas add up to 1 or more: together they promise nothing")
    return replace(budgets[0], epsilon=plain, delta=summed, calibration="tight")
