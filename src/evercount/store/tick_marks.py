"""The operator's remarks on ticks in a store. Proof: `tick_marks.proof.md`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from evercount.declare.tick_marks import NEXT, TickMark
from evercount.errors import AlreadyReleased, Conflict, ParameterError
from evercount.store import schema
from evercount.text_rules import check_public_text

if TYPE_CHECKING:
    from evercount.store.writer import Store

LONGEST_NOTE = 500
MOST_MARKS = 10_000


def read_marks(connection: Connection, stream: int) -> tuple[TickMark, ...]:
    """The remarks of a stream, in the order in which they were made."""
    marks = schema.tick_marks
    rows = connection.execute(select(marks).where(marks.c.stream == stream).order_by(marks.c.number)).mappings()
    return tuple(TickMark(row["first"], row["last"], row["text"], row["missing"]) for row in rows)


def mark_ticks(store: Store, name: str, mark: TickMark) -> TickMark:
    """Keep a remark of the operator; for missing ticks before any of them closes.

    **Guarantee.** What a missing tick counts is fixed before the tick closes, by an act that is public; its events are
    dropped, or counted once, in the next tick: `tick_marks.proof.md`. Tests:
    `tests/store/test_tick_marks.py::test_neighbours_stay_neighbours`, ::test_missing_ticks_count_nothing.
    """
    live, known = store.streams.get(name), store.streams.get(name) or store.ended.get(name)
    if known is None:
        raise ParameterError(f"the store has no stream {name!r}")
    horizon = known.declaration.horizon
    if not 1 <= mark.first <= mark.last <= (horizon or 2**40):
        raise ParameterError(
            f"the ticks {mark.first} to {mark.last} are not ticks of {name!r}: the first is 1"
            + ("" if horizon is None else f", the last {horizon}")
        )
    if mark.text:
        check_public_text("the note", mark.text)
    elif mark.missing is None:
        raise ParameterError("a note needs a text")
    if len(mark.text) > LONGEST_NOTE:
        raise ParameterError(f"a note has at most {LONGEST_NOTE} characters")
    if len(known.marks) >= MOST_MARKS:
        raise ParameterError(f"a stream has at most {MOST_MARKS} notes")
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
        connection.execute(
            insert(schema.tick_marks).values(
                stream=known.id,
                number=len(known.marks),
                first=mark.first,
                last=mark.last,
                missing=mark.missing,
                text=mark.text,
                made=time.time(),
            )
        )
    if live is not None:
        live.marks = (*live.marks, mark)
    else:
        store.ended[name] = replace(store.ended[name], marks=(*known.marks, mark))
    return mark
