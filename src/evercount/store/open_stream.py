"""One stream of a store: what everybody may know of it (StoredStream), and with what its writer has
in hand (LiveStream), which is always equal to what is committed.

The sums of its open tick are added exactly, and cut once, at a public number, when the tick closes:
`saturation.proof.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection

from evercount._validate import IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND, format_utc, instant_of
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark
from evercount.engine.stream import Stream
from evercount.errors import (
    Conflict,
    EventRefused,
    HorizonReached,
    InputError,
    StoreError,
    StreamStopped,
    TooEarly,
)
from evercount.noise import Secret
from evercount.privacy import successor_text
from evercount.queries import Query
from evercount.store import schema
from evercount.store.database import change, insert_rows
from evercount.store.open_encoder import ENCODER_FAULTS, OF_REQUEST, UNREADABLE, OpenEncoder
from evercount.store.sealing import Sealer

MOST_PER_REQUEST = 2**40  # grid units that one request may add to a cell
MOST_PER_TICK = 2**52  # grid units of a cell, in size, that a tick releases at most
# sums below this, in size, stay int64: adding a request or another such sum cannot overflow
NARROW = 2**61
WIDE_BYTES = 16

# int64, or Python integers (dtype object) where int64 would not hold the sum
Totals = npt.NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Events of one request, read and checked one by one. `row` is their sum per cell for queries
    without a memory (None for the others). `users` and `times` are None where no event needs them.
    `sender` keeps the idempotency keys of different senders apart."""

    stream: str
    payloads: list[Any]
    row: IntArray | None = None
    users: list[str] | None = None
    times: list[int | None] | None = None  # Instants; None for an event without a time of its own
    key: str | None = None
    body: bytes = b""
    sender: bytes = b""

    @property
    def size(self) -> int:
        return len(self.payloads)


@dataclass(frozen=True)
class Accepted:
    """The answer to a batch: how many events it held, and the tick that counts those without a time
    of their own."""

    accepted: int
    tick: int
    late: int = 0
    """Events whose tick was closed. What becomes of them is declared; caps of persons are not told
    here, because these depend on what others sent."""
    # whether the batch had come before: nothing was counted again
    repeated: bool = field(default=False, compare=False)


# what a stream waits for: its past, or runs of `evercount release`
HISTORY = "history"
FILES = "files"


Ending = Literal["retired", "quarantined"]


# (open tick that counts them, how many ticks ago their own is) → the places of events in a batch
Places = dict[tuple[int, int], list[int]]


@dataclass(eq=False)
class StoredStream:
    """A stream of a store, as everybody may know it. Of one that has ended nothing else is in the
    memory of a process: no secret, no state and no sums."""

    id: int
    declaration: Settled
    closed: int = 0  # the last tick that is released and committed
    # one label per number that a tick publishes, as of the last tick that is committed
    labels: Sequence[str] = ()
    marks: Sequence[TickMark] = ()  # what the operator says about its ticks
    # the stream that goes on when the horizon ends or it was retired, if there is one
    # (`stream_life.py`)
    successor: str | None = None
    ending: Ending | None = None  # how it ended, if it never releases again
    reason: str = ""
    stated_guarantee: str | None = None  # of one that has ended, as it was then
    readable: bool = True  # not if its history differs from the published one

    def __post_init__(self) -> None:
        if not self.readable:  # keys that became public in a hidden history are a part of it
            self.labels = tuple(self.declaration.query.labels)

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def guarantee(self) -> str:
        assert self.stated_guarantee is not None  # a live stream has its own
        return self.stated_guarantee

    @property
    def live(self) -> LiveStream | None:
        """The stream with what its writer has in hand; None where it has ended."""
        return None


@dataclass(eq=False, kw_only=True)
class LiveStream(StoredStream):
    """A stream under its writer's hands. Only the store changes it, and only after a commit."""

    secret: Secret
    sealer: Sealer
    stream: Stream
    blob: bytes
    head: bytes
    totals: Totals  # the exact sums of the open tick
    events: list[Any] = field(default_factory=list)
    # for queries with a memory, after `events`. None: it has to be built
    encoder: OpenEncoder | None = None
    groups: int = 0  # how many groups of open events are stored for the open tick
    ahead: Future[Any] | None = None  # noise of the next ticks that is being drawn already
    # how many of `events` were looked at for new keys, whose noise is drawn while the tick is open
    looked_at: int = 0
    # whether the store may hold totals of open ticks that were counted elsewhere
    counted: bool = False
    # where its cells are cut into shards, their number; `stream` then stays before the first tick,
    # for public facts
    shards: int | None = None
    # the last tick whose totals are frozen for the shards: released, or being closed by them
    frozen: int = 0
    # what the stream waits for, while the clock closes none of its ticks: HISTORY or FILES
    waiting: str | None = None
    # later ticks whose events are kept as they came (`commit_batches.py`)
    early: set[int] = field(default_factory=set)
    # whether it goes on for another stream: events before its start were that one's, and late
    follows: bool = False
    moving: str | None = None  # the state file that it is moving to
    stopped: str | None = None  # why the stream cannot go on, when it cannot

    @property
    def live(self) -> LiveStream:
        return self

    @property
    def guarantee(self) -> str:
        return self.stream.guarantee_by(self.declaration.tick)

    @property
    def open_tick(self) -> int:
        if self.shards is not None:
            return self.frozen + 1
        return self.closed + 1  # `stream` is ahead of `closed` during a commit

    @property
    def finished(self) -> bool:
        return self.declaration.horizon is not None and self.closed >= self.declaration.horizon

    @property
    def clocked(self) -> bool:
        """Whether the clock closes its ticks: not where they are closed by hand, and not while it
        waits or is over."""
        return not (
            self.declaration.schedule.manual or self.finished or self.stopped or self.waiting
        )

    def due(self, now: float) -> int:
        """How many ticks may close by the clock and are not released; 0 if the clock moved
        backwards."""
        if not self.clocked:
            return 0
        return max(0, self.declaration.ended(instant_of(now)) - self.closed)

    def next_end(self) -> float | None:
        """When the open tick closes; None for manual clocks and streams that wait or are over."""
        if not self.clocked:
            return None
        return self.declaration.closes(self.open_tick) / SECOND

    def end(self, ending: Ending, reason: str, readable: bool = True) -> StoredStream:
        """Return what is left of it when it never releases again: all that could release is
        dropped."""
        ended = StoredStream(
            self.id,
            self.declaration,
            self.closed,
            self.labels,
            ending=ending,
            reason=reason,
            stated_guarantee=self.guarantee,
            readable=readable,
        )
        if ending == "retired":
            ended.marks = self.marks
        self.stream.close()
        return ended

    def over(self) -> HorizonReached:
        """The refusal of anything beyond the horizon, with what the next stream would cost."""
        assert self.declaration.horizon is not None
        return HorizonReached(self.declaration.horizon, successor_text(self.stream.cost))

    def check_running(self) -> None:
        if self.stopped:
            raise StreamStopped(f"stream {self.name!r} is stopped: {self.stopped}")
        if self.waiting == FILES:
            raise Conflict(
                f"stream {self.name!r} is fed by `evercount release --db`, which counts files: it "
                "takes no events here"
            )

    def check_not_moving(self) -> None:
        """Refuse to go on with a stream that another place may have by now."""
        if self.moving is not None:
            raise StoreError(
                f"stream {self.name!r} of the store is moving to the state file {self.moving}: "
                "finish that with `state` and without `db`, or, if that file is lost, retire the "
                "stream"
            )

    def check_open(self, now: float) -> None:
        self.check_running()
        if self.finished:
            raise self.over()
        schedule = self.declaration.schedule
        if not schedule.manual and instant_of(now) < schedule.begin:
            raise TooEarly(
                f"the stream starts at {format_utc(schedule.begin)}: send the events then"
            )

    def last_open(self, now: float) -> int:
        """The last tick that takes events: a later one than the first open one while ticks are held
        open."""
        if not self.waiting and not self.declaration.waits:
            return self.open_tick
        newest = self.declaration.schedule.tick_of(instant_of(now))
        if self.declaration.horizon is not None:
            newest = min(newest, self.declaration.horizon)
        return max(self.open_tick, newest)

    def place(self, times: list[int | None] | None, size: int, now: float) -> tuple[Places, int]:
        """The tick of each event, in the order of ticks, and how many events are late. Late ones
        follow the declared rule, and may have no place; those of the future refuse the batch. An
        event before the start of the stream is not legal, as in every door. One without a time
        counts in the last open tick."""
        first = self.open_tick
        last = self.last_open(now)
        if times is None:
            return {(last, 0): list(range(size))}, 0
        schedule = self.declaration.schedule
        if schedule.manual:
            raise InputError(
                "the stream has a manual clock: omit 'time'; events count in the open tick"
            )
        if first == last and self._all_within(times, first):
            return {(first, 0): list(range(size))}, 0
        begin = schedule.begin
        end = schedule.start_of(last + 1)
        places: Places = {}
        late = 0
        for number, moment in enumerate(times):
            tick = last
            if moment is not None:
                if not begin <= moment < end:
                    self._check_time(number, moment, end)
                    late += 1  # of the stream before this one
                    continue
                tick = schedule.tick_of(moment)
            late += tick < first
            if tick >= first:
                places.setdefault((tick, 0), []).append(number)
            elif self.declaration.late == "next":
                places.setdefault((first, 0), []).append(number)
            elif first - tick <= (self.declaration.revise_for or 0):
                places.setdefault((first, first - tick), []).append(number)
        return dict(sorted(places.items())), late

    def _all_within(self, times: list[int | None], tick: int) -> bool:
        """Return whether some events have times, all of them in one tick."""
        schedule = self.declaration.schedule
        moments = [moment for moment in times if moment is not None]
        if not moments:
            return False
        return schedule.start_of(tick) <= min(moments) and max(moments) < schedule.start_of(
            tick + 1
        )

    def _check_time(self, number: int, moment: int, end: int) -> None:
        """Refuse the time of an event after the open ticks, or before the start of the stream,
        unless that was the time of the stream before it."""
        if moment >= end:
            raise TooEarly(
                f"event {number} (from 0) has the time {format_utc(moment)}, after the end of "
                f"the open tick at {format_utc(end)}: send it when its tick has begun"
            )
        if not self.follows:
            begin = format_utc(self.declaration.schedule.begin)
            raise InputError(
                f"event {number} (from 0) has the time {format_utc(moment)}, before the start "
                f"of the stream at {begin}"
            )

    def encode(self, payloads: list[Any], lag: int = 0, row: IntArray | None = None) -> IntArray:
        """What events add to the cells of the stream, for the tick that is `lag` ticks ago; `row`:
        to the query's."""
        if row is None:
            row = encode_events(self.declaration, payloads)
        if self.declaration.revise_for is None:
            return row
        wide = np.zeros(self.stream.query.cells, np.int64)
        wide[lag * len(row) : (lag + 1) * len(row)] = row
        return wide

    def offer(self, events: list[Any], places: list[int], pending: list[Any]) -> None:
        """Refuse events that the encoder would refuse at the end of the tick, numbered as in their
        request. `pending` are events of the same transaction that were taken already. Accepted
        events are remembered by `encoder`; a caller that cannot commit them forgets it
        (`encoder = None`)."""
        # `read_request` has checked all there is to check
        if self.declaration.query.refuses_by_itself:
            return
        if self.encoder is None:
            self.encoder = OpenEncoder(
                self.declaration.query, self.stream._state.encoder, [*self.events, *pending]
            )
        try:
            self.encoder.take(events, places)
        except InputError:
            raise
        except BaseException as error:
            self.encoder = None
            if isinstance(error, ENCODER_FAULTS):
                raise InputError(UNREADABLE) from None
            raise

    def seal(self, value: bytes, purpose: str, tick: int = 0, extra: bytes = b"") -> bytes:
        return self.sealer.seal(value, purpose, self.id, tick, extra)

    def unseal(self, stored: bytes, purpose: str, tick: int = 0, extra: bytes = b"") -> bytes:
        return self.sealer.open(stored, purpose, self.id, tick, extra)

    def take_over(
        self, blob: bytes, head: bytes, labels: Sequence[str], totals: Totals, events: list[Any]
    ) -> None:
        """Take over what was committed with the ticks up to that of `stream`. The next tick opens
        with these totals and events, which have moved to it."""
        self.blob = blob
        self.head = head
        self.labels = labels
        self.totals = totals
        self.events = events
        self.groups = int(bool(events))
        self.looked_at = 0
        self.encoder = None
        self.closed = self.stream.tick

    def pack_totals(self, totals: Totals, tick: int) -> bytes:
        return self.seal(pack_totals(totals), "accumulator", tick)

    def write_state(self, connection: Connection, tick: int, blob: bytes) -> None:
        new = {"tick": tick, "sealed": self.seal(blob, "state", tick)}
        change(connection, schema.states, new, stream=self.id)

    def write_totals(self, connection: Connection, tick: int, totals: Totals) -> None:
        new = {"tick": tick, "sealed": self.pack_totals(totals, tick)}
        change(connection, schema.accumulators, new, stream=self.id)

    def write_events(
        self, connection: Connection, tick: int, number: int, events: list[Any]
    ) -> None:
        row = (self.id, tick, number, self.seal(json.dumps(events).encode(), "events", tick))
        insert_rows(connection, schema.open_events, [row])


def read_request(declaration: StreamDeclaration, payloads: list[Any]) -> IntArray | None:
    """Refuse a request for what it holds itself; its sum per cell where the query has no memory.

    **Guarantee.** The answer depends on the declaration and on these events only: never on the open
    tick. Test: tests/service/test_service_neighbours.py::test_neighbours_look_alike_from_outside.
    """
    try:
        if declaration.remembers:
            declaration.query.check_events(payloads)
            return None
        row = encode_events(declaration, payloads)
    except EventRefused as error:
        raise error.numbered(error.number, OF_REQUEST) from None
    except InputError:
        raise
    except ENCODER_FAULTS:
        raise InputError(UNREADABLE) from None
    check_request(declaration.query, row)
    return row


def encode_events(declaration: StreamDeclaration, payloads: list[Any]) -> IntArray:
    """The sum per cell of single events of a query without memory, each checked by the query
    itself."""
    query = declaration.query
    if query.event_number is not None:
        return np.asarray(
            [count_events(payloads, declaration.budget.unit == "user")], dtype=np.int64
        )
    return query.encode(None, payloads)[0]


def count_events(payloads: list[Any], single: bool) -> int:
    """The number of events that a batch for a count stands for: each item is a whole number (0 or 1
    per user)."""
    most = 1 if single else 2**40
    for number, item in enumerate(payloads):
        if type(item) is not int or not 0 <= item <= most:
            wanted = "0 or 1" if single else "a whole number of events, from 0 to 2^40"
            raise InputError(f"event {number} (from 0) must be {wanted}, got {item!r:.40}")
    return sum(payloads)


def tick_limit(query: Query) -> int:
    """The public number at which the sum of a tick is cut: 2^52, or the declared
    `most_per_tick`."""
    number = query.event_number
    if number is None or number.most is None:
        return MOST_PER_TICK
    return min(number.most, MOST_PER_TICK)


def check_request(query: Query, row: IntArray) -> None:
    """Refuse a request that alone adds more to a cell than any request may; only this request is
    looked at."""
    most = min(tick_limit(query), MOST_PER_REQUEST)
    if row.size and (int(row.max()) > most or int(row.min()) < -most):
        raise InputError(
            f"one request adds at most {most} grid units to a cell: split it, if the events are "
            "real"
        )


def add_exactly(totals: Totals, row: IntArray) -> Totals:
    if totals.dtype != object and totals.size:
        if int(totals.max()) < NARROW and int(totals.min()) > -NARROW:
            return np.asarray(totals + row)
        totals = totals.astype(object)
    return np.asarray(totals + row.astype(object))


def cut_total(query: Query, totals: Totals) -> IntArray:
    """What a closing tick releases of its exact sums.

    **Guarantee.** Per cell 1-Lipschitz and monotone in the exact sum, and independent of the order
    and grouping of the requests; so S, the l1 sensitivity and the user-level factor of the query
    stay true. Proof: `saturation.proof.md`. Tests:
    tests/store/test_store_saturation.py::test_the_cut_never_widens_a_change,
    tests/store/test_store_saturation.py::test_order_and_grouping_do_not_matter.
    """
    most = tick_limit(query)
    # arrays of Python integers are cut one by one
    return np.clip(totals, -most, most).astype(np.int64)


def pack_totals(totals: Totals) -> bytes:
    """8 bytes per cell, or 16 where int64 would not do."""
    if totals.dtype != object:
        return totals.astype("<i8").tobytes()
    return b"".join(int(number).to_bytes(WIDE_BYTES, "little", signed=True) for number in totals)


def unpack_totals(data: bytes, cells: int) -> Totals:
    """The inverse of `pack_totals`; the length tells which form it is."""
    if len(data) != WIDE_BYTES * cells:
        return np.frombuffer(data, dtype="<i8").astype(np.int64)
    parts = (data[at : at + WIDE_BYTES] for at in range(0, len(data), WIDE_BYTES))
    return np.asarray([int.from_bytes(part, "little", signed=True) for part in parts], dtype=object)
