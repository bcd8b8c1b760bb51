"""Events that were read elsewhere (by Spark, from a log): kept until their tick closes, one row for
a tick and batch.

Rows with names (keys that nobody listed, persons that are counted) are then what the query reads as
a tick; names are texts of any length, and what else a row has are whole numbers. Of events of
persons that are protected the cap keeps the first of each person by (time, declared order),
whatever batches they came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from evercount._validate import AnyArray, BoolArray, IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import NamedRows, PersonEvents
from evercount.errors import StoreError
from evercount.queries import sensitivities
from evercount.queries.user_cap import Caps, last_turns
from evercount.store.caps_of_persons import HASH, CapBlocks
from evercount.store.commit_batches import user_hashes
from evercount.store.database import having, insert_rows, rows_of
from evercount.store.open_stream import LiveStream
from evercount.store.schema import counted_events

PURPOSE = "named events"
Part = tuple[list[str], IntArray]  # names and numbers of some rows of one tick
# stored bytes that are read together when several ticks close at once; at least one tick is
BYTES_AT_A_TIME = 2**26


RECORD = np.dtype(
    [("user", HASH), ("time", "<i8"), ("order", "<i8"), ("cell", "<i8"), ("units", "<i8")]
)
"""What is kept of an event: the keyed hash of its person, never the id."""


def packed_ticks(rows: NamedRows) -> Iterator[tuple[int, bytes]]:
    """Yield each tick and its rows as they are stored, sorted: the same rows have the same form,
    however they came."""
    for tick, here in by_tick(rows.tick):
        names = [rows.name[place] for place in here.tolist()]
        sorting = np.asarray(sorted(range(len(names)), key=names.__getitem__), np.int64)
        numbers = rows.numbers[here][sorting]
        names = [names[place] for place in sorting.tolist()]
        same = np.fromiter((a == b for a, b in pairwise(names)), bool, len(names) - 1)
        if same.any():
            name = np.cumsum(np.r_[0, ~same])
            numbers = numbers[np.lexsort((*numbers.T[::-1], name))]
        yield tick, pack_rows(names, numbers)


def by_tick(tick: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Each tick with the places of its entries, sorted once."""
    sorting = np.argsort(tick, kind="stable")
    ticks, starts = np.unique(tick[sorting], return_index=True)
    if not len(ticks):
        return iter(())
    return zip(ticks.tolist(), np.split(sorting, starts[1:]), strict=True)


def pack_rows(names: Sequence[str], numbers: IntArray) -> bytes:
    """How many rows, the lengths of their names, the names, and the numbers column by column."""
    texts = [name.encode() for name in names]
    lengths = np.fromiter(map(len, texts), "<u4", len(texts))
    columns = np.ascontiguousarray(numbers.T, "<i8").tobytes()
    return len(texts).to_bytes(8, "little") + lengths.tobytes() + b"".join(texts) + columns


def unpack_rows(content: bytes) -> Part:
    """The inverse of `pack_rows`, for at least one row."""
    rows = int.from_bytes(content[:8], "little")
    lengths = np.frombuffer(content, "<u4", rows, 8)
    ends = (8 + 4 * rows + np.cumsum(lengths, dtype=np.int64)).tolist()
    begins = [8 + 4 * rows, *ends[:-1]]
    names = [content[begin:end].decode() for begin, end in zip(begins, ends, strict=True)]
    left = np.frombuffer(content[ends[-1] :], "<i8")
    return names, left.reshape(-1, rows).T.astype(np.int64)


def as_tick(
    declaration: StreamDeclaration, parts: Sequence[Part], accepted: Sequence[Any] = ()
) -> Any:
    """What the query reads as a tick: rows of all batches, and events that were accepted one by
    one.

    **Guarantee.** It depends on the rows of the tick alone, never on how they were cut into
    batches; the order of a user's events is a function of these events. Proof:
    `queries/distinct_users.proof.md`, "Where rows have no order". Tests:
    tests/store/test_named_events.py and
    tests/contracts/test_same_table.py::test_keys_that_nobody_listed_and_persons_are_alike_in_every_interface.
    """
    if not parts:
        return list(accepted)
    if declaration.query.discovery is not None:
        events = Counter[str](accepted)
        for names, numbers in parts:
            for key, number in zip(names, numbers[:, 0].tolist(), strict=True):
                events[key] += number
        return events
    rows: list[tuple[int, int, str, int]] = []
    for names, numbers in parts:
        cell, time, order = numbers.T.tolist()
        rows += zip(time, order, names, cell, strict=True)
    rows.sort()
    columns = sensitivities.rows_of(declaration.query)
    if not columns.keyed:
        return [*accepted, *(name for _, _, name, _ in rows)]
    keys = columns.keys[0]
    return [*accepted, *((name, keys[cell]) for _, _, name, cell in rows)]


def stored_parts(connection: Connection, live: LiveStream, ticks: range) -> dict[int, list[Part]]:
    """Read the rows with names that are kept for ticks."""
    parts = dict[int, list[Part]]()
    for tick, sealed in rows_of(
        connection, counted_events, "tick", "sealed", stream=live.id, tick=ticks
    ):
        parts.setdefault(tick, []).append(unpack_rows(live.unseal(sealed, PURPOSE, tick)))
    return parts


def keep_rows(
    connection: Connection,
    live: LiveStream,
    batch: tuple[str, int],
    rows: Iterable[tuple[int, bytes]],
) -> None:
    """Keep packed rows until their tick closes. `batch` is the name of the query and the number of
    the batch."""
    for tick, parts in groupby(rows, key=lambda row: row[0]):
        content, *more = (content for _, content in parts)
        if more:  # late rows of several ticks
            opened = [unpack_rows(one) for one in (content, *more)]
            names = [name for some, _ in opened for name in some]
            content = pack_rows(names, np.concatenate([numbers for _, numbers in opened]))
        row = (live.id, tick, *batch, live.seal(content, PURPOSE, tick))
        insert_rows(connection, counted_events, [row])


def ticks_at_a_time(connection: Connection, stream: int, ticks: range) -> int:
    """How many of the next ticks are read together, so that memory holds one tick or a bounded
    number of bytes."""
    table = counted_events
    total = 0
    sizes = select(table.c.tick, func.sum(func.length(table.c.sealed))).where(
        having(table, stream=stream, tick=ticks)
    )
    for tick, size in connection.execute(sizes.group_by(table.c.tick).order_by(table.c.tick)):
        total += int(size)
        if total > BYTES_AT_A_TIME:
            return max(1, int(tick) - ticks.start)
    return len(ticks)


# -- events of persons -----------------------------------------------------------------------------


def stored_records(live: LiveStream, events: PersonEvents) -> tuple[IntArray, AnyArray, list[str]]:
    """Return ticks, events and keys as they are stored, in one order: the same events have the same
    form, however they came. Of one person and tick no event is kept that comes after more others
    than any cap leaves."""
    cell, keys = _sorted_keys(events)
    persons, place = _distinct_persons(events)
    hashes = np.frombuffer(b"".join(user_hashes(live, persons)), HASH)
    code = np.unique(hashes, return_inverse=True)[1][place]
    sorting, near = _sorted_by_person(events, cell, code)
    records = np.empty(len(events), RECORD)
    records["user"] = hashes[place[sorting]]
    records["time"] = events.time[sorting]
    records["order"] = events.order[sorting]
    records["cell"] = cell[sorting]
    records["units"] = events.units[sorting]
    most = min(filter(None, live.declaration.budget.caps[:2]), default=len(events))
    within = _earlier(records, near) < most
    return events.tick[sorting][within], records[within], keys


def _sorted_keys(events: PersonEvents) -> tuple[IntArray, list[str]]:
    """Return the cells of events as places among their keys in order, and the keys."""
    keys = sorted(events.keys)
    if not keys:
        return events.cell, keys
    at = {key: number for number, key in enumerate(keys)}
    return np.asarray([at[key] for key in events.keys], np.int64)[events.cell], keys


def _distinct_persons(events: PersonEvents) -> tuple[Sequence[str], IntArray]:
    """Return each person once, and the place there of each event's person."""
    if events.place is not None:
        return events.person, events.place
    number: dict[str, int] = {}
    places = (number.setdefault(name, len(number)) for name in events.person)
    place = np.fromiter(places, np.int64, len(events))
    return list(number), place


def _sorted_by_person(
    events: PersonEvents, cell: IntArray, code: IntArray
) -> tuple[IntArray, BoolArray]:
    """Return the order by tick, person, time, order and content, and which places there have the
    tick and the person of the one before."""
    sorting = np.lexsort((code, events.tick))
    tick = events.tick[sorting]
    person = code[sorting]
    near = (tick[1:] == tick[:-1]) & (person[1:] == person[:-1])
    # most persons have one event in a tick
    several = (np.r_[near, False] | np.r_[False, near])[: len(sorting)]
    part = sorting[several]
    columns = (events.units, cell, events.order, events.time, code, events.tick)
    sorting[several] = part[np.lexsort([column[part] for column in columns])]
    return sorting, near


def _earlier(records: AnyArray, near: AnyArray) -> IntArray:
    """Count the events of the same person and tick before the place of each event. `near`: which
    follow one of the same person and tick."""
    number = np.arange(len(records))
    same_place = near & np.logical_and.reduce(
        [records[name][1:] == records[name][:-1] for name in ("time", "order")]
    )
    begins = np.r_[True, ~near][: len(records)]
    differs = np.r_[True, ~same_place][: len(records)]
    first = np.maximum.accumulate(np.where(begins, number, 0))
    return np.maximum.accumulate(np.where(differs, number, 0)) - first


def keep_events(
    connection: Connection,
    live: LiveStream,
    batch: tuple[str, int],
    tick: IntArray,
    records: AnyArray,
    keys: Sequence[str] = (),
) -> None:
    """Keep events until their tick closes. `batch` is the name of the query and the number of the
    batch."""
    rows = []
    for one, here in by_tick(tick):
        content = records[here].tobytes()
        if keys:
            content = with_keys(records[here], keys)
        rows.append((live.id, one, *batch, live.seal(content, "user events", one)))
    insert_rows(connection, counted_events, rows)


def with_keys(records: AnyArray, keys: Sequence[str]) -> bytes:
    """Pack records after the keys that they count places of."""
    used, cell = np.unique(records["cell"], return_inverse=True)
    records = records.copy()
    records["cell"] = cell
    names = pack_rows([keys[place] for place in used.tolist()], np.empty((len(used), 0), np.int64))
    return len(names).to_bytes(8, "little") + names + records.tobytes()


def cap_ticks(
    connection: Connection, live: LiveStream, ticks: range
) -> tuple[dict[int, IntArray], dict[int, list[Part]], CapBlocks]:
    """Return what the next ticks add after the caps of persons (where keys are not listed, each
    key's events), and what the persons have used then.

    **Guarantee.** An event counts if no more events of its person stand at or before its (time,
    order) in its tick than the caps have room for after the earlier ticks of the period. It looks
    at the places of that person's events alone, never at their contents or at how they were cut
    into batches: `queries/user_cap.proof.md`, Lemma 1. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/contracts/test_same_table.py::test_spark_publishes_the_same_table.
    """
    used = CapBlocks(live.id, live.sealer)
    totals = dict[int, IntArray]()
    named = dict[int, list[Part]]()
    query = live.declaration.query
    rule = live.declaration.user_caps
    assert rule is not None
    stored = rows_of(connection, counted_events, "tick", stream=live.id, tick=ticks)
    ticks_with_events = set(stored.scalars())
    for tick in ticks:
        if tick > ticks.start and rule.forgets_after(tick - 1):
            used.forget()
        if tick not in ticks_with_events:
            continue
        records, keys = _records(connection, live, tick)
        counted = _within_caps(connection, used, rule.caps, tick, records)
        cells, place = np.unique(counted["cell"], return_inverse=True)
        units = np.zeros(len(cells), np.int64)
        np.add.at(units, place, counted["units"])
        events = np.bincount(place, minlength=len(cells)).astype(np.int64)
        if query.discovery is not None:
            named[tick] = [([keys[cell] for cell in cells.tolist()], events[:, np.newaxis])]
            continue
        at = np.full(len(cells), tick, np.int64)
        totals[tick] = np.zeros(query.cells, np.int64)
        _, cell, total = sensitivities.rows_of(query).totals(
            at, cells.astype(np.int64), events, units
        )
        np.add.at(totals[tick], cell, total)
    if rule.forgets_after(ticks.stop - 1):
        used.forget()
    return totals, named, used


def _within_caps(
    connection: Connection, used: CapBlocks, caps: Caps, tick: int, records: AnyArray
) -> AnyArray:
    """Return the events of a tick for which the caps have room, and note what persons use up."""
    hashes, code = np.unique(records["user"], return_inverse=True)
    before = used.read(connection, hashes)
    room = caps.rooms(before[:, 0], before[:, 1])
    counted = np.minimum(room, np.bincount(code, minlength=len(hashes)))
    used.change(hashes, caps.afters(before, tick, counted))
    return records[last_turns(code, records["time"], records["order"]) <= room[code]]


def _records(connection: Connection, live: LiveStream, tick: int) -> tuple[AnyArray, list[str]]:
    """Read the kept events of a tick, and where keys are not listed those that `cell` counts places
    of."""
    keyed = live.declaration.query.discovery is not None
    parts = []
    number = dict[str, int]()
    for sealed in rows_of(
        connection, counted_events, "sealed", stream=live.id, tick=tick
    ).scalars():
        content = live.unseal(sealed, "user events", tick)
        begin = 0
        if keyed:
            begin = 8 + int.from_bytes(content[:8], "little")
        if (len(content) - begin) % RECORD.itemsize:
            raise StoreError(f"the kept events of stream {live.name!r} are damaged")
        records = np.frombuffer(content, RECORD, -1, begin).copy()
        if keyed:
            names, _ = unpack_rows(content[8:begin])
            place = np.asarray([number.setdefault(name, len(number)) for name in names], np.int64)
            records["cell"] = place[records["cell"]]
        parts.append(records)
    return np.concatenate(parts), list(number)
