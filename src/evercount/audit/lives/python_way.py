"""Lives from Python: `declaration.build`, `Stream.run`, snapshots, and a `Ledger`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.lives.life import Event, History, Life, Step
from evercount.audit.lives.record import Record, Statement, record_stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.declarations.settle import Settled, settle
from evercount.engine.stream import Stream
from evercount.errors import EvercountError, ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget, Ledger, compose
from evercount.queries.base import Query


def contents_of(event: Event, query: Query[Any]) -> Any:
    """What a query reads of a row."""
    if query.people is not None:
        return (event.person, event.key) if query.people._keyed else event.person
    rows = query.rows
    if rows is not None and "value" in rows.columns:
        return event.value
    return event.key


@lru_cache(maxsize=4096)
def settled(fields: str) -> Settled:
    """A declaration, written as JSON, with its noise: it is the same in all worlds."""
    return settle(StreamDeclaration.from_dict(json.loads(fields)))


@dataclass
class _Living:
    """A stream that is under way, and what it has published."""

    declared: StreamDeclaration
    stream: Stream[Any]
    rows: list[FloatArray] = field(default_factory=list)
    low: list[FloatArray] = field(default_factory=list)
    high: list[FloatArray] = field(default_factory=list)
    closings: list[tuple[int, int]] = field(default_factory=list)
    follows: int | None = None  # the number of the stream that goes on for it

    @property
    def complete(self) -> bool:
        return self.declared.horizon is not None and self.stream.tick >= self.declared.horizon


class PythonLife:
    """One world of a life from Python."""

    def __init__(self, life: Life, history: History, secret: Secret) -> None:
        self.life = life
        self.history = history
        self.secret = secret
        self.record = Record()
        self.streams: list[_Living] = []
        self.renews = False
        self.ledger: Ledger | None = None
        if life.total is not None:
            budget = StreamDeclaration.from_dict(dict(life.declaration)).budget
            epsilon, delta = life.total
            total = replace(budget, epsilon=epsilon, delta=delta, calibration="tight")
            caps = dict.fromkeys(("max_events", "max_per_tick", "max_ticks"))
            self.ledger = Ledger(Budget.from_dict({**total.to_dict(), **caps}))

    def run(self) -> Record:
        """Do all steps; what is refused is a public fact."""
        try:
            self._tell("declare", lambda: self._declare(self.life.declaration))
            for step in self.life.steps:
                self._tell(step.name, partial(self._do, step))
            self._finish()
        finally:
            for one in self.streams:
                one.stream.close()
        return self.record

    def _tell(self, what: str, do: Callable[[], None]) -> None:
        try:
            do()
        except EvercountError as error:
            self.record.public.append((what, type(error).__name__, str(error)))

    def _do(self, step: Step) -> None:
        match step.name:
            case "release" | "steps":
                self._release(step.argument, singly=step.name == "steps")
            case "restart":
                self._restart()
            case "renew":
                self.renews = True
            case "second":
                self._declare({**self.life.declaration, **step.argument})
            case "join":
                for one in self.streams:
                    if not one.complete:
                        one.stream.add_keys(step.argument)
            case _:
                raise ParameterError(f"{step.name!r} is no operation from Python")

    def _declare(self, fields: Any) -> None:
        self._begin(settled(json.dumps(fields)))

    def _begin(self, declared: StreamDeclaration) -> None:
        if any(_same(declared, other.declared) for other in self.streams):
            # the same noise over the same rows: operators must avoid that (docs/security.md)
            raise ParameterError("an equal declaration is on this secret already")
        # the others may live in processes that this one cannot see
        stream = declared.build(secret=self.secret, ledger=self.ledger, task=bool(self.streams))
        self.streams.append(_Living(declared, stream))

    def _restart(self) -> None:
        for one in self.streams:
            blob = one.stream.snapshot()
            one.stream.close()
            one.stream = type(one.stream).restore(blob, one.declared.period_of)

    def _release(self, until: int, *, singly: bool) -> None:
        number = 0
        while number < len(self.streams):
            one = self.streams[number]
            last = one.declared.ended(until * SECOND)
            if last > one.stream.tick:
                self._release_ticks(one, last, singly)
                end = one.declared.schedule.start_of(last + 1) // SECOND
                one.closings.append((until, end))
            if self.renews and one.complete and one.follows is None:
                one.follows = len(self.streams)
                self._begin(one.declared.renewed())
            number += 1

    def _release_ticks(self, one: _Living, last: int, singly: bool) -> None:
        ticks = range(one.stream.tick + 1, last + 1)
        chosen: dict[int, list[Event]] = {tick: [] for tick in ticks}
        schedule = one.declared.schedule
        for event in self.history:
            if event.at * SECOND >= schedule.begin:
                tick = schedule.tick_of(event.at * SECOND)
                if tick in chosen:
                    chosen[tick].append(event)
        groups = [[tick] for tick in ticks] if singly else [list(ticks)]
        for group in groups:
            self._run(one, [chosen[tick] for tick in group])

    def _run(self, one: _Living, ticks: list[list[Event]]) -> None:
        query = one.stream.query
        tapped: list[FloatArray] = []
        events: list[Any] = [[contents_of(event, query) for event in tick] for tick in ticks]
        users = None
        if one.declared.budget.unit == "user" and query.people is None:
            users = [[event.person for event in tick] for tick in ticks]
        if query.event_number is not None:
            events = [len(tick) if users is None else None for tick in ticks]
        released = one.stream.run(events, users)
        values = released.values.reshape(len(ticks), -1)
        tapped.append(values)
        one.rows.append(values)
        low, high = released.interval()
        one.low.append(np.asarray(low).reshape(len(ticks), -1))
        one.high.append(np.asarray(high).reshape(len(ticks), -1))

    def _finish(self) -> None:
        for one in self.streams:
            values, low, high = map(_stacked, (one.rows, one.low, one.high))
            self.record.streams.append(
                record_stream(one.stream, one.declared, values, (low, high), one.closings)
            )
        self._state()

    def _state(self) -> None:
        costs = [one.stream.cost for one in self.streams]
        record = self.record
        for number, cost in enumerate(costs):
            budget = cost.budget
            record.statements.append(
                Statement(budget.epsilon, budget.delta, (number,), "its guarantee")
            )
        every = tuple(range(len(costs)))
        if self.ledger is not None and costs:
            total = self.ledger.total
            record.statements.append(
                Statement(total.epsilon, total.delta, every, "the total of the ledger")
            )
        if len(costs) > 1:
            try:
                together = compose(costs)
            except ParameterError as error:
                record.public.append(("together", str(error)))
                return
            record.statements.append(
                Statement(together.epsilon, together.delta, every, "what all keep together")
            )


def _same(one: StreamDeclaration, other: StreamDeclaration) -> bool:
    """Whether two declarations count the same ticks of the same rows in the same way."""
    mine, theirs = ({**each.to_dict(), **_IN_NO_KEY} for each in (one, other))
    return mine == theirs


_IN_NO_KEY = dict.fromkeys(
    ("name", "description", "late", "wait", "public", "views", "postprocess", "noise_for"), None
)


def _stacked(parts: list[FloatArray]) -> FloatArray:
    """Rows under each other; cells that joined have no number before."""
    if not parts:
        return np.empty((0, 0))
    width = max(part.shape[1] for part in parts)
    rows = np.full((sum(map(len, parts)), width), np.nan)
    at = 0
    for part in parts:
        rows[at : at + len(part), : part.shape[1]] = part
        at += len(part)
    return rows
