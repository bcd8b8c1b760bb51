"""Closing ticks: what the next ticks of a stream count, how they are written, and streams that are
cut into shards.

The next ticks count what came for them, but nothing where they are missing. What moves from a
missing tick to the one after it is written in the transaction that closes the missing tick, so a
crash neither loses it nor counts it twice.

The cells of a stream may be cut into shards. Each has a state of its own, closes its ticks and
commits them alone:

freeze (the ticks' totals) ─► close_shard, anywhere and any number of times ─► the chain: readers
see the ticks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, Row, select

from evercount._validate import FloatArray, IntArray
from evercount.declarations.tick_marks import NEXT, missing_ticks
from evercount.engine.cell_range import can_be_cut, cut_cells
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import TaskStream
from evercount.engine.write_table import among, each_tick
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.store import schema
from evercount.store.accept_totals import expected_parts
from evercount.store.caps_of_persons import CapBlocks, forget_caps
from evercount.store.commit_batches import PendingEvents, add_totals, read_early, stored_totals
from evercount.store.database import Database, change, find, having, insert_rows, remove, rows_of
from evercount.store.named_events import Part, as_tick, cap_ticks, stored_parts
from evercount.store.open_stream import (
    LiveStream,
    Totals,
    add_exactly,
    cut_total,
    unpack_totals,
)
from evercount.store.reader import open_sealer
from evercount.store.sealing import Sealer
from evercount.store.stored_releases import declared, link, read_numbers, release_rows

if TYPE_CHECKING:
    from evercount.store.writer import Store


ByTick = dict[int, Any]  # what each tick counts: exact sums, or events


@dataclass(frozen=True, eq=False)
class DueTicks:
    """What the next ticks count, and what moves from the last of them to the tick after it, which
    opens with that. Secret."""

    totals: TickTotals | TickEvents
    moved_sums: Totals
    moved_events: list[Any] = field(default_factory=list)
    elsewhere: bool = False  # whether the store may hold what was counted elsewhere for them
    caps: CapBlocks | None = None  # what persons of such events have used after them

    @classmethod
    def of(cls, live: LiveStream, ticks: range, counts: ByTick) -> DueTicks:
        """Nothing counts in a missing tick. Where its events move, they are the first ones of the
        next tick."""
        events = live.declaration.remembers
        moving = missing_ticks(live.marks, ticks, NEXT)
        for tick in missing_ticks(live.marks, ticks):
            moved = counts.pop(tick, None)
            if moved is None or tick not in moving:
                continue
            if tick + 1 in counts:
                add = _joined if events else add_exactly
                moved = add(moved, counts[tick + 1])
            counts[tick + 1] = moved
        moved = counts.pop(ticks.stop, None)
        if events:
            totals = TickEvents(ticks.start, [counts.get(tick, []) for tick in ticks])
            return cls(totals, no_sums(live), _listed(moved or []))
        rows = np.zeros((len(ticks), live.stream.query.cells), np.int64)
        for tick, row in counts.items():
            rows[tick - ticks.start] = cut_total(live.declaration.query, row)
        if moved is None:
            moved = no_sums(live)
        return cls(TickTotals.dense(ticks.start, rows), moved)

    @classmethod
    def stored(cls, connection: Connection, live: LiveStream, count: int) -> DueTicks:
        """The next ticks of what the store holds: the first with what was accepted, all with what
        was counted elsewhere."""
        ticks = range(live.open_tick, live.open_tick + count)
        totals: Mapping[int, Totals] = {}
        named: Mapping[int, Sequence[Part]] = {}
        caps = None
        if live.counted:
            totals, named, caps = _counted_elsewhere(connection, live, ticks)
        if live.declaration.remembers:
            counts: ByTick = {
                tick: as_tick(live.declaration, named.get(tick, ())) for tick in ticks[1:]
            }
            first = named.get(ticks.start, ())
            counts[ticks.start] = as_tick(live.declaration, first, live.events)
        else:
            counts = {**totals, ticks.start: live.totals}
            if ticks.start in totals:
                counts[ticks.start] = add_exactly(live.totals, totals[ticks.start])
        return replace(cls.of(live, ticks, counts), elsewhere=live.counted, caps=caps)

    @classmethod
    def given(cls, live: LiveStream, given: TickTotals | TickEvents) -> DueTicks:
        """The next ticks of what files hold, and of what moved to the first of them."""
        ticks = range(given.first_tick, given.first_tick + len(given))
        if isinstance(given, TickEvents):
            events: ByTick = dict(zip(ticks, given.ticks, strict=True))
            if live.events:
                events[ticks.start] = _joined(live.events, events.get(ticks.start, []))
            return cls.of(live, ticks, events)
        if not live.totals.any() and not missing_ticks(live.marks, ticks):
            return cls(given, no_sums(live))
        sums: ByTick = {
            tick: given.rows(tick, tick + 1)[0] for tick in np.unique(given.tick).tolist()
        }
        sums[ticks.start] = add_exactly(live.totals, sums.get(ticks.start, no_sums(live)))
        return cls.of(live, ticks, sums)

    def write(self, connection: Connection, live: LiveStream, last: int) -> None:
        """Keep what moves to the next tick and nothing else of these, in the transaction that
        counts them."""
        if live.declaration.budget.unit == "user":
            forget_caps(connection, live, range(live.open_tick, last + 1))
        if self.caps is not None:
            self.caps.write(connection)
        if self.elsewhere:
            _forget_counted(connection, live, last)
        live.write_totals(connection, last + 1, self.moved_sums)
        if live.declaration.remembers:
            remove(connection, schema.open_events, stream=live.id)
        if self.moved_events:
            live.write_events(connection, last + 1, 0, self.moved_events)


def _counted_elsewhere(
    connection: Connection, live: LiveStream, ticks: range
) -> tuple[Mapping[int, Totals], Mapping[int, Sequence[Part]], CapBlocks | None]:
    """Read what Spark or a log counted for ticks: exact sums, after the caps of persons; rows with
    names, for queries that read a tick as a whole; and what the persons have used then."""
    brings_persons, brings_names = expected_parts(live.declaration)
    if brings_names:
        return {}, stored_parts(connection, live, ticks), None
    if brings_persons:
        return cap_ticks(connection, live, ticks)
    return stored_totals(connection, live, ticks), {}, None


def _forget_counted(connection: Connection, live: LiveStream, last: int) -> None:
    """Delete what was counted elsewhere for the ticks up to `last`, in the transaction that
    releases them."""
    for table in (schema.counted_totals, schema.counted_events):
        remove(connection, table, stream=live.id, tick=range(last + 1))


def no_sums(live: LiveStream) -> IntArray:
    return np.zeros(live.stream.query.cells, np.int64)


def make_ready(store: Store, live: LiveStream, count: int) -> int:
    """Count the events that were kept for the first open tick; returns how many of the next `count`
    ticks can close now. A crash loses nothing and counts nothing twice: kept events are deleted in
    the transaction that counts them."""
    if live.shards is not None and live.frozen > live.closed:
        return count  # what they count is frozen
    tick = live.open_tick
    if tick in live.early:
        with store.database.transaction() as connection:
            pending = PendingEvents(live, connection)
            pending.count_early(read_early(connection, live, tick))
            pending.write()
            remove(connection, schema.early_events, stream=live.id, tick=tick)
        pending.settle()
        live.early.discard(tick)
    return min([count, *(one - tick for one in live.early)])


def _listed(events: Any) -> list[Any]:
    """List events one by one, also where they are numbers of events by key."""
    if isinstance(events, Mapping):
        return list(Counter(events).elements())
    return list(events)


def _joined(one: Any, other: Any) -> Any:
    """Join the events of two ticks to those of one: lists, or numbers of events by key."""
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return dict(Counter(one) + Counter(other))
    return [*one, *other]


@dataclass
class ClosingTicks:
    """Ticks on their way into the database: the chain and the labels after them."""

    head: bytes
    labels: Sequence[str]

    def written(
        self,
        connection: Connection,
        live: LiveStream,
        tables: Iterable[ReleaseTable],
        closed_at: float,
    ) -> Iterator[ReleaseTable]:
        """Write tables while somebody takes them."""
        for table in tables:
            self.write(connection, live, table, closed_at)
            yield table

    def write(
        self, connection: Connection, live: LiveStream, table: ReleaseTable, closed_at: float
    ) -> None:
        """Write released ticks and their links of the chain."""
        new_keys = self._new_keys(live, table)
        if new_keys:
            self.labels = [*self.labels, *(label for _, _, label, _ in new_keys)]
        own_ticks = live.declaration.query.publishing.own_ticks
        if own_ticks:
            table = among(table, self.labels)
        links: list[tuple[int, int, bytes, float]] = []
        for tick, places, numbers in each_tick(table):
            if own_ticks:
                named = [self.labels[place] for place in places.tolist()]
            else:
                named = [label for _, _, label, since in new_keys if since == tick]
            self.head = link(self.head, tick, numbers, named)
            links.append((live.id, tick, self.head, closed_at))
        insert_rows(connection, schema.releases, release_rows(live.id, table))
        insert_rows(connection, schema.ticks, links)
        insert_rows(connection, schema.public_keys, new_keys)

    def _new_keys(self, live: LiveStream, table: ReleaseTable) -> list[tuple[int, int, str, int]]:
        """Return rows of `schema.public_keys` for keys that these ticks publish for the first time,
        in the order of ticks."""
        fixed = live.declaration.query.discovery is None and len(table.cells) == len(self.labels)
        # a revised tick has its keys once for each lag
        if fixed or live.declaration.revise_for is not None:
            return []
        before = set(self.labels)
        public = ~np.isnan(table.numbers[:, 0])
        new = (place for place in range(public.shape[1]) if table.cells[place] not in before)
        first = sorted((int(np.argmax(public[:, place])), place) for place in new)
        return [
            (live.id, len(self.labels) + number, table.cells[place], int(table.ticks[row]))
            for number, (row, place) in enumerate(first)
        ]


NUMBERS_PER_COMMIT = 200_000  # numbers that one transaction of a shard releases
NUMBERS_FROZEN = 5_000_000  # totals that are frozen together


@dataclass(frozen=True)
class ShardWork:
    """What a process needs to know to close shards. Nothing of it is secret: it may travel with a
    job."""

    place: str  # the store: a file, or a URL without a password
    stream: int
    shards: int


Run = Callable[[ShardWork], None]  # closes all shards of a stream, in this process or in others


def read_shards(connection: Connection, stream: int) -> tuple[int | None, int]:
    """Return the number of shards of a stream, None for one that is whole, and its last frozen
    tick."""
    frozen = find(connection, schema.cut_streams, "closing", stream=stream)
    if frozen is None:
        return None, 0
    numbers = rows_of(connection, schema.shards, "number", stream=stream).all()
    return len(numbers), int(frozen)


# -- in the process that has the lock --------------------------------------------------------------


def cut_stream(store: Store, live: LiveStream, shards: int) -> None:
    """Cut the cells of a stream into shards, before its first tick; it may be cut in the same way
    already."""
    if live.shards is not None:
        if live.shards != shards:
            raise Conflict(
                f"stream {live.name!r} is kept in {live.shards} shards, each with its own state, "
                f"not in {shards}: give {live.shards} shards, or omit the number"
            )
        return
    if live.closed:
        raise Conflict(
            f"stream {live.name!r} began as a whole and cannot be cut now: omit the number of "
            "shards"
        )
    if not can_be_cut(live.declaration.released_query):
        raise ParameterError(
            f"the cells of {live.declaration.query.name!r} cannot be cut into shards"
        )
    with store.database.transaction() as connection:
        rows = []
        for number, part in enumerate(cut_cells(live.declaration.query.cells, shards)):
            shard_stream = live.declaration.build(secret=live.secret, part=part, task=True)
            blob = shard_stream.snapshot()
            shard_stream.close()
            sealed = _seal(live.sealer, blob, live.id, number, 0)
            rows.append((live.id, number, part.start, part.stop, 0, sealed))
        insert_rows(connection, schema.cut_streams, [(live.id, 0)])
        insert_rows(connection, schema.shards, rows)
    live.shards = shards


def close_by_shards(
    store: Store, live: LiveStream, shards: int, count: int, closed_at: float, run: Run | None
) -> None:
    """Release the next `count` ticks of a stream that is cut into shards. What an earlier call has
    begun is brought to its end instead: its ticks keep their totals."""
    if live.frozen == live.closed:
        _freeze(store, live, count)
    run = run or partial(close_here, store.key)
    run(ShardWork(shareable_place(store.database), live.id, shards))
    head = live.head
    links = []
    outputs = range(live.declaration.query.outputs)
    with store.database.transaction() as connection:
        late = find(connection, schema.shards, "number", stream=live.id, tick=range(live.frozen))
        if late is not None:
            raise StoreError(f"shard {late} has not closed tick {live.frozen}")
        for tick in range(live.closed + 1, live.frozen + 1):
            (numbers,) = read_numbers(connection, live.id, range(tick, tick + 1), outputs)
            head = link(head, tick, numbers)
            links.append((live.id, tick, head, closed_at))
        insert_rows(connection, schema.ticks, links)
        live.write_state(connection, live.frozen, live.blob)
        _forget_counted(connection, live, live.frozen)
    live.head = head
    live.closed = live.frozen
    store.write_head(live)


def _freeze(store: Store, live: LiveStream, count: int) -> None:
    """Store the totals of the next ticks for good: every call that closes these ticks uses the
    same."""
    if live.declaration.horizon is not None:
        count = min(count, live.declaration.horizon - live.closed)
    count = make_ready(store, live, min(count, max(1, NUMBERS_FROZEN // live.stream.query.cells)))
    last = live.closed + count
    with store.database.transaction() as connection:
        due = DueTicks.stored(connection, live, count)
        totals = due.totals
        assert isinstance(totals, TickTotals)
        due.write(connection, live, last)
        frozen = {tick: totals.rows(tick, tick + 1)[0] for tick in np.unique(totals.tick).tolist()}
        add_totals(connection, live, frozen)
        change(connection, schema.cut_streams, {"closing": last}, stream=live.id)
    live.totals = due.moved_sums
    live.frozen = last


# -- anywhere --------------------------------------------------------------------------------------


def close_here(key: bytes | None, work: ShardWork) -> None:
    """Close the shards one after the other in this process."""
    for number in range(work.shards):
        close_shard(work, number, key)


def close_shard(work: ShardWork, number: int, key: bytes | None) -> int:
    """Close the frozen ticks of one shard; returns how many this call committed. `key` is that of
    the store.

    **Guarantee.** The rows of the ticks and the state after them are one transaction. The totals
    are frozen before any shard closes, and noise is a function of (secret, declaration, tick,
    cell); so a repeated or speculative call computes the same bits. One that finds its ticks there
    when it commits compares them and accepts, or fails loudly. Tests:
    tests/store/test_close_shards.py::test_shards_publish_the_table_of_the_whole_stream,
    tests/store/test_close_shards.py::test_two_calls_at_once_commit_one_of_them and
    tests/store/test_close_shards.py::test_a_commit_that_finds_other_numbers_fails.
    """
    with closing(Database(work.place, helper=True)) as database:
        sealer = database.read(open_sealer, key)
        done = 0
        while ticks := _close_some(database, sealer, work.stream, number):
            done += ticks
        return done


def _close_some(database: Database, sealer: Sealer, stream: int, number: int) -> int:
    """Close a few ticks of a shard in one transaction; 0 when all frozen ones are closed."""
    with database.reading() as connection:
        shard = _shard(connection, stream, number)
        frozen = find(connection, schema.cut_streams, "closing", stream=stream)
        row = rows_of(connection, schema.streams, id=stream).mappings().one()
        part = range(shard.first, shard.stop)
        last = min(frozen, shard.tick + max(1, NUMBERS_PER_COMMIT // len(part)))
        ticks = range(shard.tick + 1, last + 1)
        if not ticks:
            return 0
        declaration = declared(row)
        totals = _frozen(connection, sealer, stream, ticks, declaration.query.cells)[
            :, part.start : part.stop
        ]
        blob = sealer.open(shard.sealed, "shard", stream, shard.tick, _name(number))
    shard_stream = TaskStream.restore(blob, declaration.period_of)
    (table,) = close_ticks(
        shard_stream,
        TickTotals.dense(ticks.start, totals),
        declaration.schedule.starts_of,
        numbers=totals.size or 1,
    )
    blob = shard_stream.snapshot()
    shard_stream.close()
    with database.transaction() as connection:
        current = _shard(connection, stream, number, lock=True)
        if current.tick >= last:
            _compare(connection, stream, ticks, part, table.numbers)
            return 0
        if current.tick != shard.tick:
            return len(ticks)  # another call has closed a part of them: look again
        insert_rows(connection, schema.releases, release_rows(stream, table, part.start))
        new = {"tick": last, "sealed": _seal(sealer, blob, stream, number, last)}
        change(connection, schema.shards, new, stream=stream, number=number)
    return len(ticks)


def _compare(
    connection: Connection, stream: int, ticks: range, part: range, numbers: FloatArray
) -> None:
    """StoreError if the committed numbers of ticks differ from these."""
    committed = read_numbers(connection, stream, ticks, part)
    # values and stds: the ends of intervals follow from them
    if not np.array_equal(committed[:, :2], numbers[:, :2]):
        raise StoreError(
            f"ticks {ticks[0]} to {ticks[-1]} of cells {part.start} to {part.stop - 1} were "
            "committed with other numbers: the store or this program was changed. Nothing more is "
            "released; verify the store"
        )


def _shard(connection: Connection, stream: int, number: int, lock: bool = False) -> Row[Any]:
    """Read the row of a shard; with `lock`, until the transaction ends nobody else changes it."""
    query = select(schema.shards).where(having(schema.shards, stream=stream, number=number))
    if lock:
        query = query.with_for_update()
    row = connection.execute(query).first()
    if row is None:
        raise StoreError(f"the store has no shard {number} of this stream")
    return row


def _frozen(
    connection: Connection, sealer: Sealer, stream: int, ticks: range, cells: int
) -> IntArray:
    """Read the frozen totals of ticks."""
    out = np.zeros((len(ticks), cells), np.int64)
    table = schema.counted_totals
    for tick, sealed in rows_of(connection, table, "tick", "sealed", stream=stream, tick=ticks):
        out[tick - ticks.start] = unpack_totals(sealer.open(sealed, "counted", stream, tick), cells)
    return out


def _seal(sealer: Sealer, blob: bytes, stream: int, number: int, tick: int) -> bytes:
    return sealer.seal(blob, "shard", stream, tick, _name(number))


def _name(number: int) -> bytes:
    return number.to_bytes(8, "big")


def shareable_place(database: Database) -> str:
    """Return where the store is, without a password."""
    return str(database.file or database.url._replace(password=None).render_as_string())
