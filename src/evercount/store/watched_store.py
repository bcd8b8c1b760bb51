"""WatchedStore: a store that another process writes to, as a service shows it. Nothing can be changed through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sqlalchemy import func, select

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.stream_facts import StreamFacts
from evercount.errors import StoreError
from evercount.noise import Secret
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.load_streams import load_retired
from evercount.store.open_stream import EndedStream, LiveStream
from evercount.store.reader import Reading, read_identity
from evercount.store.rollback_guard import HeadFile, default_path, quarantine
from evercount.store.sealing import Sealer
from evercount.store.spending import retired_rows
from evercount.store.stored_releases import TICKS_PER_PAGE
from evercount.store.stored_rows import Known, StoredStream, declared, with_late_rules
from evercount.store.tick_marks import read_marks
from evercount.store.writer import NoiseAhead, Store


class WatchedStore(Store):
    """Streams, declarations and releases of a store without its lock and without its key.

    Every method of `Store` that writes fails, because the database is open for reading only. `look` brings what the
    writer has released since.

    **Guarantee.** A history that differs from the one that the head file names is not shown. Test:
    `tests/service/test_service_hidden_history.py::test_no_route_shows_it`.
    """

    def __init__(self, place: str | Path, head: Path | None = None) -> None:
        Reading.__init__(self, Database(place, write=False))
        self.key = None
        self.noise_ahead = NoiseAhead()
        self.streams: dict[str, LiveStream] = {}
        self.ended: dict[str, EndedStream] = {}
        try:
            with self.database.reading() as connection:
                identity = read_identity(connection)
                schema.check_schema(connection)
            self.sealer = Sealer(None, identity)
            self.head = HeadFile(head or default_path(self.database))
            differing = {} if self.head.read() is None else self.check_head(self.head)
            self._hidden = {name: why for name, why in differing.items() if not why.readable}
            self.look()
        except BaseException:
            self.database.close()
            raise

    def recover(self) -> None:
        """Nothing to do: this process keeps nothing that a failure could spoil."""

    def declare(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreError("this store was opened for reading only")

    def facts_of(self, one: Known) -> StreamFacts:
        """From what is stored: keys may have joined since the stream was seen first."""
        return Reading.facts_of(self, one)

    def look(self, cells: range | None = None) -> list[tuple[str, list[dict[str, Any]]]]:
        """Streams and releases that are new since the last look: (name of the stream, releases of these cells)."""
        with self.database.reading() as connection:
            rows = connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings().all()
            last = select(schema.ticks.c.stream, func.max(schema.ticks.c.tick)).group_by(schema.ticks.c.stream)
            released = {stream: int(tick) for stream, tick in connection.execute(last)}
            retired = retired_rows(connection)
            waiting = {row.stream: row.reason for row in connection.execute(select(schema.waiting_streams))}
            declarations, marks = {}, {row["id"]: read_marks(connection, row["id"]) for row in rows}
            for row in rows:
                known = self.streams.get(row["name"])
                stored = StoredStream(row["id"], declared(row)) if known is None else known
                declarations[row["id"]] = with_late_rules(connection, stored)
                if row["name"] in retired:
                    self.ended[row["name"]] = load_retired(connection, row, retired[row["name"]], False)
                    self.streams.pop(row["name"], None)
        news = []
        for row in rows:
            if row["name"] in retired or row["name"] in self.ended:
                continue
            live = self.streams.get(row["name"])
            tick = released.get(row["id"], 0)
            if live is None:
                live = _watched(row, declarations[row["id"]], tick, self.sealer)
                if live.name in self._hidden:
                    self.ended[live.name] = quarantine(live, self._hidden[live.name])
                    continue
                live.labels, live.waiting = self._labels_at(live, tick), waiting.get(live.id)
                live.marks = marks[live.id]
                self.streams[live.name] = live
                continue
            live.waiting, live.declaration = waiting.get(live.id), declarations[live.id]
            live.marks = marks[live.id]
            while live.closed < tick:
                page = self.read_releases(live, live.closed, TICKS_PER_PAGE, tick, cells)
                reached = page[-1]["tick"] if len(page) >= TICKS_PER_PAGE else tick
                live.labels, live.closed = self._labels_at(live, reached), reached
                news.append((live.name, page))
        return news

    def _labels_at(self, live: LiveStream, tick: int) -> Sequence[str]:
        """One label per number that this tick published; all keys of the tick are stored with it."""
        keys = self.public_keys(live.id)
        declared_labels = live.declaration.query.labels
        return [*declared_labels, *(key for key, since in keys if since <= tick)] if keys else declared_labels


def _watched(row: Any, declaration: StreamDeclaration, tick: int, sealer: Sealer) -> LiveStream:
    """A stream that gives public facts only: its secret is not the one of the stream, and it is never stepped."""
    secret = Secret.generate()
    stream = declaration.build(secret=secret)
    totals = np.zeros(stream.query.cells, np.int64)
    live = LiveStream(row["id"], declaration, secret, sealer, stream, b"", bytes(row["genesis"]), totals)
    live.closed = tick
    return live
