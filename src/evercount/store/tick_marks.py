"""The operator's remarks on ticks in a store. Proof: `tick_marks.proof.md`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from evercount.declarations.tick_marks import NEXT, TickMark, check_mark
from evercount.errors import AlreadyReleased, Conflict, ParameterError
from evercount.store import schema

if TYPE_CHECKING:
    from evercount.store.writer import Store


def read_marks(connection: Connection, stream: int) -> tuple[TickMark, ...]:
    marks = schema.tick_marks
    rows = connection.execute(select(marks).where(marks.c.stream == stream).order_by(marks.c.number)).mappings()
    said = [TickMark(row["first"], row["last"], row["text"], row["missing"]) for row in rows]
    hidden = json.loads(schema.read_fact(connection, f"hidden {stream}") or "[]")
    return (*said, *(TickMark(first, last, "", None, label) for label, first, last in hidden))


def write_hidden(connection: Connection, stream: int, hidden: Sequence[tuple[str, int, int]]) -> None:
    """(label, first, last tick) of keys that are not shown."""
    schema.write_fact(connection, f"hidden {stream}", json.dumps(hidden))


def mark_ticks(store: Store, name: str, mark: TickMark) -> TickMark:
    """Keep a remark of the operator; for missing ticks before any of them closes.

    **Guarantee.** What a missing tick counts is fixed before the tick closes, by an act that is public; its events are
    dropped, or counted once, in the next tick: `tick_marks.proof.md`. Tests:
    `tests/store/test_tick_marks.py::test_neighbours_stay_neighbours`, ::test_missing_ticks_count_nothing.
    """
    live, known = store.streams.get(name), store.streams.get(name) or store.ended.get(name)
    if known is None:
        raise ParameterError(f"the store has no stream {name!r}")
    check_mark(known.declaration, mark, len(known.marks))
    if mark in known.marks:
        return mark  # a retry
    if mark.missing is not None:
        if known.declaration.revise_for is not None:
            raise ParameterError("a tick that is revised cannot be missing: its events may still come. Write a note")
        if live is None or mark.first < live.open_tick:
            raise AlreadyReleased(
                f"tick {mark.first} of {name!r} is closed, and what is released stays released: write a note on it; "
                "only ticks that are still open can be declared missing"
            )
        if any(one.missing and one.first <= mark.last and mark.first <= one.last for one in known.marks):
            raise Conflict("some of these ticks are declared missing already: name the others only")
        if mark.missing == NEXT and live.declaration.budget.unit == "user":
            raise ParameterError(
                "events of persons are capped tick by tick, so those of a missing tick cannot move to another one: "
                "drop them"
            )
    with store.database.transaction() as connection:
        row = {"stream": known.id, "number": len(known.marks), "made": time.time()}
        said = {"first": mark.first, "last": mark.last, "missing": mark.missing, "text": mark.text}
        connection.execute(insert(schema.tick_marks).values(**row, **said))
    if live is not None:
        live.marks = (*live.marks, mark)
    else:
        store.ended[name] = replace(store.ended[name], marks=(*known.marks, mark))
    return mark
