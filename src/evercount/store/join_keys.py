"""Keys that join a stream of a store: its new state and the list of what joined are one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, select, update

from evercount.engine.add_keys import label_of
from evercount.engine.stream import Stream
from evercount.errors import ParameterError, TooLarge
from evercount.store import schema
from evercount.store.saturation import Totals, pack_totals, unpack_totals
from evercount.store.tick_marks import read_marks, write_hidden

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store

FOR_EVER = 2**40  # the last tick of a key that is not shown again
Joined = list[tuple[int, list[Any]]]  # (the last tick before they joined, the keys) of each joining


def read_joined(connection: Connection, stream: int) -> Joined:
    """The keys that have joined a stream, in their order. They are public."""
    text = schema.read_fact(connection, _row(stream))
    listed = [] if text is None else json.loads(text)
    return [(after, [tuple(key) if isinstance(key, list) else key for key in keys]) for after, keys in listed]


def join_keys(store: Store, name: str, keys: Sequence[Any], most: int) -> list[str]:
    """Let keys join a stream from its open tick on; those that are there already are left alone.

    **Guarantee.** A crash leaves the stream as it was, or with the keys. Nothing is released or spent, and what open
    ticks have counted stays. Test: tests/store/test_store_join_keys.py::test_a_kill_leaves_all_or_nothing.

    Returns:
        The labels of the keys that have joined.
    """
    live = store.find(name)
    if live.cut is not None:
        raise ParameterError(f"the cells of {name!r} are cut into shards, which keys cannot join: declare a successor")
    known, after = set(live.stream.labels), live.stream.tick
    try:
        new = live.stream.add_new_keys(keys)
        query = live.stream.query
        if max(query.cells, query.outputs) > most:
            raise TooLarge(f"a stream of a store has at most {most:,} cells; with these keys it has more")
        blob = live.stream.snapshot()
        if new:
            with store.database.transaction() as connection:
                before, joining = read_joined(connection, live.id), [key for key in keys if label_of(key) not in known]
                schema.write_fact(connection, _row(live.id), json.dumps([*before, (after, joining)]))
                live.write_state(connection, after, blob)
                live.write_totals(connection, live.open_tick, _widened(live.totals, query.cells))
                _widen_counted(connection, live, query.cells)
    except BaseException:
        live.stream = Stream.restore(live.blob, live.declaration.period_of)
        raise
    again = {label_of(key) for key in keys} & {label for label, _, last in _hidden_of(live) if last == FOR_EVER}
    if again:
        _show(store, live, again)
    live.totals = _widened(live.totals, query.cells)
    live.blob, live.encoder, live.declaration = blob, None, live.declaration.with_query(query)
    return [*new, *sorted(again)]


def hide_keys(store: Store, name: str, labels: Sequence[str]) -> list[str]:
    """Show no numbers of these labels from the open tick on; `join_keys` shows them again.

    **Guarantee.** They are counted and stored as before, and no reader sees them: post-processing. Test:
    tests/store/test_store_join_keys.py::test_removed_keys_are_not_shown.
    """
    live = store.find(name)
    gone = {label for label, _, last in _hidden_of(live) if last == FOR_EVER}
    if unknown := [label for label in labels if label not in live.labels]:
        raise ParameterError(f"there is no key {', '.join(map(repr, unknown))} in the list of this stream")
    if live.declaration.query.discovery is not None:
        raise ParameterError("unlisted keys appear by themselves and cannot be removed")
    if not set(live.labels) - gone - set(labels):
        raise ParameterError("nothing would be left to show; end the stream instead")
    new = [label for label in labels if label not in gone]
    _write_hidden(store, live, [*_hidden_of(live), *((label, live.open_tick, FOR_EVER) for label in new)])
    return new


def _hidden_of(live: LiveStream) -> list[tuple[str, int, int]]:
    return [(one.hides, one.first, one.last) for one in live.marks if one.hides is not None]


def _show(store: Store, live: LiveStream, labels: Collection[str]) -> None:
    last = live.open_tick - 1
    ended = [(label, first, last if label in labels else until) for label, first, until in _hidden_of(live)]
    _write_hidden(store, live, [one for one in ended if one[1] <= one[2]])


def _write_hidden(store: Store, live: LiveStream, hidden: Sequence[tuple[str, int, int]]) -> None:
    with store.database.transaction() as connection:
        write_hidden(connection, live.id, hidden)
        live.marks = read_marks(connection, live.id)


def _widened(totals: Totals, cells: int) -> Totals:
    return np.concatenate([totals, np.zeros(cells - len(totals), totals.dtype)])


def _widen_counted(connection: Connection, live: LiveStream, cells: int) -> None:
    """Totals of open ticks that are stored have a place for each cell."""
    table, old = schema.counted_totals, len(live.totals)
    for row in connection.execute(select(table).where(table.c.stream == live.id)).mappings().all():
        totals = unpack_totals(live.unseal(row["sealed"], "counted", row["tick"]), old)
        sealed = live.seal(pack_totals(_widened(totals, cells)), "counted", row["tick"])
        where = schema.having(table, stream=live.id, tick=row["tick"])
        connection.execute(update(table).where(where).values(sealed=sealed))


def _row(stream: int) -> str:
    return f"joined {stream}"
