"""LiveStream: one declared stream in the memory of its writer, always equal to what is committed."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evercount._arrays import IntArray
from evercount.declare.declaration import Declaration, format_time
from evercount.engine.stream import Stream
from evercount.errors import HorizonReached, InputError, StoreError
from evercount.noise import Secret
from evercount.queries.counts import Count
from evercount.store.sealing import Sealer


class TooEarly(InputError):
    """An event's time lies in a tick that has not begun; the same batch is welcome later."""


class Conflict(StoreError):
    """A name or an idempotency key was used before for something else."""


@dataclass(frozen=True)
class Batch:
    """Events of one request, read and checked one by one.

    `row` is their sum per cell for queries without a memory (None for the others). `users` and `times` are None where
    no event needs them.
    """

    stream: str
    payloads: list[Any]
    row: IntArray | None = None
    users: list[str] | None = None
    times: list[float] | None = None
    key: str | None = None
    body: bytes = b""

    @property
    def size(self) -> int:
        """How many events the request holds."""
        return len(self.payloads)


@dataclass(frozen=True)
class Accepted:
    """The answer to a batch: how many events it held, and the tick that counts them."""

    accepted: int
    tick: int


@dataclass(eq=False)
class LiveStream:
    """A stream under its writer's hands. Only the store changes it, and only after a commit."""

    id: int
    declaration: Declaration
    start: float
    secret: Secret
    stream: Stream
    blob: bytes
    head: bytes
    totals: IntArray
    events: list[Any] = field(default_factory=list)
    groups: int = 0
    """How many groups of open events are stored for the open tick."""
    ahead: Future[Any] | None = None
    """Noise of the next ticks that is being drawn already."""
    counted: bool = False
    """Whether the store may hold totals of open ticks that were counted elsewhere."""
    stopped: str | None = None
    """Why the stream cannot go on, when it cannot."""

    @property
    def name(self) -> str:
        """As declared."""
        return self.declaration.name

    @property
    def closed(self) -> int:
        """How many ticks are released."""
        return self.stream.tick

    @property
    def open_tick(self) -> int:
        """The tick that takes events now."""
        return self.stream.tick + 1

    @property
    def finished(self) -> bool:
        """Whether the horizon is reached."""
        return self.declaration.horizon is not None and self.closed >= self.declaration.horizon

    def due(self, now: float) -> int:
        """How many ticks the clock has ended and the stream has not released; a clock that went back ends none."""
        if self.declaration.seconds is None or self.finished or self.stopped:
            return 0
        ended = self.declaration.tick_at(now, self.start) - 1
        if self.declaration.horizon is not None:
            ended = min(ended, self.declaration.horizon)
        return max(0, ended - self.closed)

    def next_end(self) -> float | None:
        """When the open tick ends; None for manual clocks and streams that are over."""
        if self.declaration.seconds is None or self.finished or self.stopped:
            return None
        return self.declaration.tick_start(self.open_tick + 1, self.start)

    def check_open(self, now: float) -> None:
        """Refuse events that no tick could take."""
        if self.stopped:
            raise StoreError(f"stream {self.name!r} is stopped: {self.stopped}")
        if self.finished:
            assert self.declaration.horizon is not None
            raise HorizonReached(self.declaration.horizon)
        if self.declaration.seconds is not None and now < self.start:
            raise TooEarly(f"the stream starts at {format_time(self.start)}: send the events then")

    def on_time(self, times: list[float]) -> list[bool]:
        """For each event whether it is counted: late ones follow the declared rule, early ones refuse the batch."""
        if self.declaration.seconds is None:
            raise InputError("the stream has a manual clock: events have no 'time', they count in the open tick")
        begin = self.declaration.tick_start(self.open_tick, self.start)
        end = self.declaration.tick_start(self.open_tick + 1, self.start)
        assert begin is not None
        assert end is not None
        for number, moment in enumerate(times):
            if moment >= end:
                raise TooEarly(
                    f"event {number} (from 0) has the time {format_time(moment)}, after the end of the open tick at "
                    f"{format_time(end)}: send it when its tick has begun"
                )
        if self.declaration.late == "next":
            return [True] * len(times)
        return [not moment < begin for moment in times]  # an event without a time (NaN) is never late

    def encode(self, payloads: list[Any]) -> IntArray:
        """The sum per cell of events of a query without memory."""
        return encode_events(self.declaration, payloads)

    def check_totals(self, totals: IntArray) -> None:
        """Refuse what the query could not take at the end of the tick."""
        query = self.declaration.query
        most = query.max_per_tick if isinstance(query, Count) else None
        if most is not None and int(totals[0]) > most:
            raise InputError("the tick would hold more events than the declared max_per_tick")
        if np.abs(totals).max(initial=0) >= 2**52:
            raise InputError("the sum of a tick would pass 2^52 grid units")

    def try_events(self, events: list[Any]) -> None:
        """Refuse events that the encoder would refuse at the end of the tick; nothing is changed."""
        query = self.declaration.query
        state = query.load_state(query.dump_state(self.stream._encoder))
        try:
            query.encode(state, events)
        except InputError:
            raise
        except (TypeError, ValueError, OverflowError, IndexError, KeyError, AttributeError):
            raise InputError("the batch holds an event that the stream's query cannot read") from None

    def pack_totals(self, sealer: Sealer, totals: IntArray, tick: int) -> bytes:
        """The accumulator as it is stored."""
        return sealer.seal(totals.astype("<i8").tobytes(), "accumulator", self.id, tick)


def encode_events(declaration: Declaration, payloads: list[Any]) -> IntArray:
    """The sum per cell of single events of a query without memory, each checked by the query itself."""
    query = declaration.query
    if isinstance(query, Count):
        return np.asarray([count_events(payloads, declaration.budget.unit == "user")], dtype=np.int64)
    return query.encode(None, payloads)[0]


def count_events(payloads: list[Any], single: bool) -> int:
    """The number of events that a batch for a count stands for: each item is a whole number (0 or 1 per user)."""
    total = 0
    most = 1 if single else 2**40
    for number, item in enumerate(payloads):
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= most:
            wanted = "0 or 1" if single else "a whole number of events, from 0 to 2^40"
            raise InputError(f"event {number} (from 0) must be {wanted}, got {item!r:.40}")
        total += item
    return total
