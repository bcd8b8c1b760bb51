"""Store: streams, events, ticks and releases that survive whatever is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, insert, select, update

from evercount.declare.declaration import Declaration
from evercount.engine.release import Releases
from evercount.engine.stream import Stream
from evercount.errors import EvercountError, HorizonReached, ParameterError, SnapshotError, StoreError
from evercount.noise import Secret, random_bytes
from evercount.store import schema
from evercount.store.accept_totals import CountedBatch, counted_rows, forget_counted, has_totals, take_batch
from evercount.store.commit_batches import Group
from evercount.store.database import Database
from evercount.store.open_stream import Accepted, Batch, Conflict, LiveStream
from evercount.store.reader import LEVEL, PROBE, Reading
from evercount.store.release_chain import genesis, link
from evercount.store.rollback_guard import HeadFile, default_path
from evercount.store.sealing import Sealer

REMEMBER_SECONDS = 30 * 86400.0
"""How long an idempotency key is remembered."""
MOST_MISSED = 100_000
"""Ticks that a newly declared stream may have missed already."""
COLUMNS = ("value", "std", "low", "high")
LARGEST = 1e300
"""What stands for an error that has no bound."""
CHUNK_TICKS = 256
"""Ticks that one transaction releases. The engine states errors of so few ticks exactly, as it does tick by tick."""
CHUNK_NUMBERS = 50_000
"""Numbers that one transaction releases when missed ticks are closed together."""


class Store(Reading):
    """The durable side of a service. One object per database writes; its methods are called from one thread.

    **Guarantee.** A batch whose `accept` returned is counted in exactly one tick (for its idempotency key: once within
    30 days). A tick is released at most once: its numbers, the state after it and the consumption of its accumulator
    are one transaction. After a crash the same tick is released with the same noise, because noise is a function of
    (secret, tick, cell). An older copy of the database is refused (`rollback_guard.py`). Assumptions: the disk keeps
    what it confirmed; one writer (`database.py`). Tests: `tests/service/test_service_fire.py`,
    `tests/store/test_store_rollback.py`, `tests/store/test_store_lock.py`.
    """

    def __init__(
        self, place: str | Path, key: bytes | None = None, head: Path | None = None, noise: str = "exact"
    ) -> None:
        super().__init__(Database(place))
        self.noise = noise
        self._key = key
        self._helper = ThreadPoolExecutor(1, "evercount-noise")
        try:
            self.head = HeadFile(head or default_path(self.database))
            self._load()
        except BaseException:
            self.database.close()
            raise

    def _load(self) -> None:
        schema.migrate(self.database.connection())
        with self.database.transaction() as connection:
            self.identity = self._identity(connection)
            self.sealer = self._sealer(connection, self._key)
        self.check_head(self.head)
        self.streams: dict[str, LiveStream] = {}
        with self.database.reading() as connection:
            for row in connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings():
                live = self._restore(connection, row)
                self.streams[live.name] = live
                self._draw_ahead(live)
        self._write_head()

    def recover(self) -> None:
        """After a failure: if the connection was lost, take the lock again; then load what is committed."""
        if self.database.lost:
            self.database.reconnect()
        self._load()

    def close(self) -> None:
        """Give the lock back."""
        self._helper.shutdown(cancel_futures=True)
        for live in self.streams.values():
            live.stream.close()
        self.database.close()

    def _identity(self, connection: Connection) -> str:
        found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "identity")).scalar()
        if found is None:
            found = random_bytes(16).hex()
            connection.execute(insert(schema.meta).values(key="identity", value=found))
        return str(found)

    def _sealer(self, connection: Connection, key: bytes | None) -> Sealer:
        sealer = Sealer(key, self.identity)
        found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == "probe")).scalar()
        if found is None:
            probe = sealer.seal(PROBE, "probe", 0).hex()
            connection.execute(insert(schema.meta).values(key="probe", value=probe))
        else:
            self.check_probe(sealer, found)
        return sealer

    def _write_head(self) -> None:
        self.head.write(self.identity, {live.name: (live.closed, live.head.hex()) for live in self.streams.values()})

    # -- streams -----------------------------------------------------------------------------------------------------

    def declare(self, declaration: Declaration, now: float, secret: Secret | None = None) -> LiveStream:
        """The stream of this declaration: a new one, or the existing one if it was declared in the same way."""
        known = self.streams.get(declaration.name)
        if known is not None:
            if known.declaration.same_as(declaration, known.start):
                return known
            raise Conflict(
                f"stream {declaration.name!r} is declared in another way, and a declared stream is immutable: its "
                "noise is calibrated to its declaration. Declare a new stream under another name (its budget adds to "
                "this one)"
            )
        secret = secret or Secret.generate()
        start = declaration.first_moment(now)
        if declaration.seconds is not None and declaration.tick_at(now, start) > MOST_MISSED:
            raise ParameterError(f"start lies more than {MOST_MISSED} ticks in the past: start the stream later")
        if self.noise == "exact":
            stream = declaration.build(secret=secret)
        else:
            stream = declaration.build(self.noise, seed=int(secret.derive("seed").hex()[:15], 16))
        text = declaration.canonical()
        head = genesis(text, start)
        blob = stream.snapshot()
        totals = np.zeros(stream.query.cells, np.int64)
        with self.database.transaction() as connection:
            number = connection.execute(
                insert(schema.streams)
                .values(name=declaration.name, declaration=text, start=start, created=time.time(), genesis=head)
                .returning(schema.streams.c.id)
            ).scalar_one()
            live = LiveStream(number, declaration, start, secret, stream, blob, head, totals)
            hidden = self.sealer.seal(secret.hex().encode(), "secret", number)
            connection.execute(insert(schema.secrets).values(stream=number, sealed=hidden))
            connection.execute(
                insert(schema.states).values(stream=number, tick=0, sealed=self.sealer.seal(blob, "state", number))
            )
            connection.execute(
                insert(schema.accumulators).values(
                    stream=number, tick=1, sealed=live.pack_totals(self.sealer, totals, 1)
                )
            )
            connection.execute(
                insert(schema.ledger).values(
                    stream=number,
                    budget=json.dumps(declaration.budget.to_dict()),
                    mu=0.0 if declaration.budget.pure else declaration.budget.mu,  # a pure stream spends ε alone
                    numeric_delta=stream.numeric_delta,
                    spent=time.time(),
                )
            )
        self.streams[declaration.name] = live
        self._write_head()
        self._draw_ahead(live)
        return live

    def find(self, name: str) -> LiveStream:
        """The stream of that name, or KeyError."""
        return self.streams[name]

    def _restore(self, connection: Connection, row: Any) -> LiveStream:
        number = row["id"]

        def one(table: Any) -> Any:
            return connection.execute(select(table).where(table.c.stream == number)).mappings().one()

        declaration = Declaration.from_dict(json.loads(row["declaration"]), stored=True)
        state, sums = one(schema.states), one(schema.accumulators)
        secret = Secret.from_hex(self.sealer.open(one(schema.secrets)["sealed"], "secret", number).decode())
        blob = self.sealer.open(state["sealed"], "state", number, state["tick"])
        try:
            stream = Stream.restore(blob)
        except SnapshotError as error:
            raise StoreError(f"the state of stream {row['name']!r} cannot be restored: {error}") from None
        totals = self.sealer.open(sums["sealed"], "accumulator", number, sums["tick"])
        last = connection.execute(
            select(schema.ticks.c.tick, schema.ticks.c.hash)
            .where(schema.ticks.c.stream == number)
            .order_by(schema.ticks.c.tick.desc())
            .limit(1)
        ).first()
        tick, head = (last.tick, bytes(last.hash)) if last else (0, bytes(row["genesis"]))
        if not stream.tick == state["tick"] == tick == sums["tick"] - 1:
            raise StoreError(f"stream {row['name']!r} is not in one piece: its state, sums and releases disagree")
        live = LiveStream(
            number,
            declaration,
            row["start"],
            secret,
            stream,
            blob,
            head,
            np.frombuffer(totals, dtype="<i8").astype(np.int64),
        )
        table = schema.open_events
        where = (table.c.stream == number) & (table.c.tick == live.open_tick)
        for group in connection.execute(select(table).where(where).order_by(table.c.number)).mappings():
            live.events.extend(json.loads(self.sealer.open(group["sealed"], "events", number, live.open_tick)))
            live.groups += 1
        live.counted = has_totals(connection, number)
        return live

    # -- events ------------------------------------------------------------------------------------------------------

    def accept(self, batches: Sequence[Batch], now: float) -> list[Accepted | EvercountError]:
        """Commit batches together; each answer is what became of the batch. StoreError: none was committed."""
        with self.database.transaction() as connection:
            group = Group(self.streams, self.sealer, connection, now)
            answers = [group.add(batch) for batch in batches]
            group.write()
        group.settle()
        return answers

    def accept_totals(self, name: str, batch: CountedBatch) -> bool:
        """Commit totals that were counted elsewhere; False if this batch was committed before."""
        live = self.streams[name]
        with self.database.transaction() as connection:
            taken = take_batch(connection, live, self.sealer, batch)
        live.counted = True
        return taken

    # -- ticks -------------------------------------------------------------------------------------------------------

    def close_ticks(self, live: LiveStream, count: int, closed_at: float) -> list[dict[str, Any]]:
        """Release the next `count` ticks in one transaction; what is not committed did not happen."""
        if live.finished:
            assert live.declaration.horizon is not None
            raise HorizonReached(live.declaration.horizon)
        count = min(count, CHUNK_TICKS, max(1, CHUNK_NUMBERS // live.stream.query.outputs))
        first, head = live.open_tick, live.head
        if live.ahead is not None:
            wait([live.ahead])  # what went wrong there goes wrong again below
        try:
            numbers, links = [], list[dict[str, Any]]()
            for tick, release in enumerate(self._step(live, count), first):
                low, high = release.interval(LEVEL)
                parts = (release.values, release.std_all, np.atleast_1d(low), np.atleast_1d(high))
                # SQLite keeps no negative zero, and JSON no infinity
                found = np.clip(np.stack(parts), -LARGEST, LARGEST) + 0.0
                head = link(head, tick, found)
                numbers.append((tick, found))
                links.append({"stream": live.id, "tick": tick, "hash": head, "closed": closed_at})
            blob = live.stream.snapshot()
            zeros = np.zeros_like(live.totals)
            with self.database.transaction() as connection:
                connection.execute(
                    insert(schema.releases),
                    [
                        {"stream": live.id, "tick": tick, "cell": cell} | dict(zip(COLUMNS, column, strict=True))
                        for tick, found in numbers
                        for cell, column in enumerate(found.T.tolist())
                    ],
                )
                connection.execute(insert(schema.ticks), links)
                self._consume(connection, live, first + count - 1, blob, zeros, closed_at)
        except BaseException as error:
            live.stream = Stream.restore(live.blob)
            if isinstance(error, EvercountError) and not isinstance(error, StoreError):
                live.stopped = "the tick cannot be released; see the log of the service"
            raise
        live.blob, live.head, live.totals, live.events, live.groups = blob, head, zeros, [], 0
        self._write_head()
        self._draw_ahead(live)
        return [
            self.describe_release(live.declaration, live.start, tick, found, item["hash"])
            for (tick, found), item in zip(numbers, links, strict=True)
        ]

    def _step(self, live: LiveStream, count: int) -> Releases:
        """The next ticks: the first with what was accepted, all with what was counted elsewhere."""
        capped = live.declaration.budget.unit == "user"  # `commit_batches` has counted every user's events
        if live.declaration.remembers:
            return live.stream.run([live.events, *([] for _ in range(count - 1))], capped=capped)
        totals = np.zeros((count, live.stream.query.cells), np.int64)
        if live.counted:
            with self.database.reading() as connection:
                totals = counted_rows(connection, live, self.sealer, count)
        totals[0] += live.totals
        return live.stream.run_totals(totals, capped=capped)

    def _draw_ahead(self, live: LiveStream) -> None:
        """Draw the next block of noise beside the writer, so that no tick waits for it; the numbers are the same."""
        prepare = getattr(live.stream, "prepare", None)
        live.ahead = None if prepare is None or live.finished else self._helper.submit(prepare)

    def _consume(
        self, connection: Connection, live: LiveStream, tick: int, blob: bytes, zeros: Any, now: float
    ) -> None:
        connection.execute(
            update(schema.states)
            .where(schema.states.c.stream == live.id)
            .values(tick=tick, sealed=self.sealer.seal(blob, "state", live.id, tick))
        )
        connection.execute(
            update(schema.accumulators)
            .where(schema.accumulators.c.stream == live.id)
            .values(tick=tick + 1, sealed=live.pack_totals(self.sealer, zeros, tick + 1))
        )
        if live.counted:
            forget_counted(connection, live, tick)
        if live.declaration.remembers:
            table = schema.open_events
            connection.execute(delete(table).where((table.c.stream == live.id) & (table.c.tick <= tick)))
        connection.execute(delete(schema.batches).where(schema.batches.c.accepted < time.time() - REMEMBER_SECONDS))
