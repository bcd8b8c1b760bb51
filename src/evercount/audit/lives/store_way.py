"""Lives of a service: events as JSON bodies, ticks closed by the clock, and what an operator does
to a store, in SQLite or PostgreSQL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from evercount.audit.lives.file_way import fast_folder
from evercount.audit.lives.life import Event, History, Life, Step
from evercount.audit.lives.record import Record, Statement, record_stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.declarations.tick_marks import TickMark
from evercount.errors import EvercountError
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Accepted, BudgetCap, LiveStream, Store, retire_stream, set_cap
from evercount.store.stored_releases import read_values
from evercount.store.stream_life import (
    hide_keys,
    join_keys,
    last_of_renewals,
    mark_ticks,
    renew_stream,
)

HOUR = 3600


class StoreLife:
    """One world of a life in a store."""

    def __init__(
        self, life: Life, history: History, secret: Secret, folder: Path, place: str | None = None
    ) -> None:
        self.life = life
        self.history = sorted(history, key=lambda event: event.seen)
        self.secret = secret
        self.folder = folder
        self.place = place or str(folder / "a.db")
        self.store = Store(self.place)
        self.record = Record()
        self.now = 0
        self.sent = 0
        self.numbers: dict[str, int] = {}
        self.shards: int | None = None
        self.renews = False

    def run(self) -> Record:
        if self.life.total is not None:
            set_cap(self.store.database, BudgetCap(*self.life.total))
        try:
            self._tell("declare", lambda: self._declare(self.life.declaration))
            for step in self.life.steps:
                self._tell(step.name, partial(self._do, step))
            self._state()
        finally:
            self.store.close()
        return self.record

    def _tell(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except EvercountError as error:
            self.record.public.append((what, type(error).__name__, str(error)))

    def _declare(self, fields: Any) -> None:
        declaration = StreamDeclaration.from_dict({**fields, "public": True})
        begin = declaration.schedule.begin / SECOND
        self.store.declare(declaration, self.now or begin, self.secret, shards=self.shards)

    def _do(self, step: Step) -> None:
        name, argument = self.life.declaration["name"], step.argument
        operations: dict[str, Callable[[], object]] = {
            "release": lambda: self._advance(argument),
            "restart": self._reopen,
            "renew": self._begin_to_renew,
            "second": lambda: self._declare({**self.life.declaration, **argument}),
            "join": lambda: join_keys(self.store, self._newest(name).name, argument),
            "hide": lambda: hide_keys(self.store, self._newest(name).name, argument),
            "note": lambda: self._mark(TickMark(argument, argument, "a note")),
            "missing": lambda: self._mark(TickMark(argument[0], argument[0], "", argument[1])),
            "retire": lambda: retire_stream(self.store, self._newest(name).name, max(self.now, 1)),
            "shards": lambda: self._cut(argument),
            "backup": self._back_up,
            "old copy": self._restore_copy,
        }
        operations[step.name]()

    def _begin_to_renew(self) -> None:
        self.renews = True
        self._renew()

    def _mark(self, mark: TickMark) -> None:
        mark_ticks(self.store, self.life.declaration["name"], mark)

    def _cut(self, shards: int) -> None:
        self.shards = shards
        self._declare(self.life.declaration)

    def _back_up(self) -> None:
        copy = self.folder / "copy.db"
        copy.unlink(missing_ok=True)
        self.store.backup(copy)

    def _newest(self, name: str) -> LiveStream:
        return last_of_renewals(self.store, name)

    def _reopen(self) -> None:
        self.store.close()
        self.store = Store(self.place)

    def _restore_copy(self) -> None:
        copy = self.folder / "copy.db"
        if not copy.exists():
            return
        self._read()
        self.store.close()
        try:
            shutil.copyfile(copy, self.place)
            for suffix in ("-wal", "-shm"):
                Path(f"{self.place}{suffix}").unlink(missing_ok=True)
        finally:
            self.store = Store(self.place)

    # -- the clock ---------------------------------------------------------------------------------

    def _advance(self, until: int) -> None:
        """Let the clock go on: events come in their order, and ticks close as soon as they are
        over."""
        schedule = StreamDeclaration.from_dict(dict(self.life.declaration)).schedule
        begin = schedule.begin // SECOND
        for hour in range(max(self.now, begin) // HOUR * HOUR, until + 1, HOUR):
            self.now = max(self.now, hour)
            self._close_due()
            while self.sent < len(self.history) and self.history[self.sent].seen < hour + HOUR:
                self._send(self.history[self.sent])
                self.sent += 1
        self._read()

    def _close_due(self) -> None:
        if self.renews:
            self._renew()
        for live in [*self.store.streams.values()]:
            due = live.due(self.now)
            if due:
                self._tell("close", partial(self._close, live, due))

    def _close(self, live: LiveStream, due: int) -> None:
        while due > 0:
            before = live.closed
            self.store.close_ticks(live, due, self.now)
            due -= live.closed - before

    def _renew(self) -> None:
        newest = self._newest(self.life.declaration["name"])
        schedule, horizon = newest.declaration.schedule, newest.declaration.horizon
        if horizon is None or self.now * SECOND < schedule.start_of(horizon):
            return
        self._tell("renew", lambda: self._renewed(newest))

    def _renewed(self, newest: LiveStream) -> None:
        renew_stream(self.store, newest.name, max(self.now, 1))

    def _send(self, event: Event) -> None:
        for live in [*self.store.streams.values()]:
            if live.finished or event.at * SECOND < live.declaration.schedule.begin:
                continue
            if live.successor is None or event.at * SECOND < (live.declaration.during.end or 0):  # type: ignore[union-attr]
                self._send_to(live, event)

    def _send_to(self, live: LiveStream, event: Event) -> None:
        declaration = live.declaration
        body: dict[str, Any] = {"time": event.at}
        query = declaration.query
        if query.people is not None or declaration.budget.unit == "user":
            body["user"] = event.person
        columns = () if query.rows is None else query.rows.columns
        if "key" in columns:
            body["key"] = event.key
        if "value" in columns:
            body["value"] = event.value
        batch = read_batch(declaration, json.dumps([body]).encode())
        (answer,) = self.store.accept([batch], self.now)
        if not isinstance(answer, Accepted):
            # what a sender is told is not for readers
            assert isinstance(answer, EvercountError)

    # -- what is published -------------------------------------------------------------------------

    def _read(self) -> None:
        for live in self.store.streams.values():
            self._keep(live)

    def _keep(self, live: LiveStream) -> None:
        ticks = range(1, live.closed + 1)
        width = max(len(live.labels), len(live.stream.labels))
        values = self.store.database.read(read_values, live.id, ticks, width)
        stream = live.stream
        if live.shards is not None:
            stream = live.declaration.build(secret=live.secret, replay=True)
        one = record_stream(stream, live.declaration, values, None, [])
        ends = [live.declaration.schedule.start_of(tick + 1) // SECOND for tick in ticks]
        one.closings = [(end, end) for end in ends]
        place = self.numbers.setdefault(one.identity, len(self.record.streams))
        for tick, row in enumerate(values.tolist(), 1):
            for cell, number in enumerate(row):
                self.record.shown.append((("stream", one.identity, tick, cell), number))
        if place == len(self.record.streams):
            self.record.streams.append(one)
        elif len(values) >= len(self.record.streams[place].values):
            self.record.streams[place] = one
        for page in self.store.read_releases(live, 0):
            row = {**page, "values": None, "low": None, "high": None, "hash": None}
            self.record.public.append(json.dumps(row, sort_keys=True, default=str))

    def _state(self) -> None:
        self._read()
        for number, one in enumerate(self.record.streams):
            budget = one.cost.budget
            statement = Statement(budget.epsilon, budget.delta, (number,), "its guarantee")
            self.record.statements.append(statement)
        rows = self.store.ledger()["totals"]
        every = tuple(range(len(self.record.streams)))
        if len(rows) == 1 and rows[0]["streams"] == len(every):
            total = rows[0]
            self.record.statements.append(
                Statement(total["epsilon"], total["delta"], every, "the ledger of the store")
            )
        self.record.public.append(json.dumps(rows, sort_keys=True, default=str))


def in_store(life: Life, history: History, secret: Secret) -> Record:
    with fast_folder() as folder:
        return StoreLife(life, history, secret, Path(folder)).run()
