"""What the operator says about ticks: notes, and ticks that are missing. Public text; proof: `tick_marks.proof.md`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from sqlalchemy import Connection, insert, select

from evercount.declare.schedule import Schedule, parse_time, zone_named
from evercount.declare.table import table
from evercount.declare.view_names import DAYS
from evercount.engine.release_table import ReleaseTable
from evercount.engine.view_widths import RUNNING
from evercount.errors import AlreadyReleased, Conflict, ParameterError
from evercount.store import schema
from evercount.text_rules import check_public_text

if TYPE_CHECKING:
    from evercount.store.writer import Store

LONGEST_NOTE = 500
MOST_MARKS = 10_000
DROP, NEXT = "drop", "next"
"""What becomes of the events of a missing tick: nobody counts them, or the next tick does."""


@dataclass(frozen=True)
class TickMark:
    """A remark on the ticks from `first` to `last`."""

    first: int
    last: int
    text: str
    missing: str | None = None
    """DROP or NEXT for ticks that are missing."""

    def holds(self, tick: int) -> bool:
        return self.first <= tick <= self.last

    @property
    def shown(self) -> str:
        """The remark as readers see it."""
        if self.missing is None:
            return self.text
        return f"missing: {self.text}" if self.text else "missing"

    def facts(self, schedule: Schedule) -> dict[str, Any]:
        """The remark for programs."""
        since = {} if schedule.manual else {"start": schedule.show(schedule.start_of(self.first))}
        until = {} if schedule.manual else {"end": schedule.show(schedule.start_of(self.last + 1))}
        return {"first": self.first, "last": self.last, **since, **until, "text": self.text, "missing": self.missing}


@table("a note")
class NewMark:
    """A remark as the operator writes it."""

    first: Annotated[int | str, Field(description="the number of a tick, or a day or time in it")]
    last: Annotated[int | str | None, Field(description="as first; omit it for one tick")] = None
    text: Annotated[str, Field(description="a public text")] = ""
    missing: Annotated[Literal["drop", "next"] | None, Field(description="drop, next or null")] = None

    def on(self, schedule: Schedule) -> TickMark:
        """The remark on the ticks of a schedule."""
        first = tick_named(str(self.first), schedule)
        last = first if self.last is None else tick_named(str(self.last), schedule)
        return TickMark(first, last, self.text.strip(), self.missing)


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


def tick_named(text: str, schedule: Schedule) -> int:
    """The tick that an operator names: its number, or a day or time in it.

    >>> tick_named("2026-01-03", Schedule.of("1d", "2026-01-01", "UTC")), tick_named("12", Schedule())
    (3, 12)
    """
    if text.isascii() and text.isdigit() and len(text) < 9:
        return int(text)
    if schedule.manual:
        raise ParameterError(f"{text!r:.40} is not the number of a tick, and this stream has no clock")
    return schedule.tick_of(parse_time(text, zone_named(schedule.zone), "the tick"))


def missing_ticks(marks: Iterable[TickMark], ticks: range, kind: str | None = None) -> list[int]:
    """Which of some ticks are missing, of one kind or of both."""
    ranges = [one for one in marks if one.missing is not None and kind in (None, one.missing)]
    inside = (range(max(one.first, ticks.start), min(one.last + 1, ticks.stop)) for one in ranges)
    return sorted({tick for part in inside for tick in part})


def with_marks(shown: ReleaseTable, marks: Sequence[TickMark], view: str) -> ReleaseTable:
    """The table as readers see it: nothing in place of what is missing, and a remark beside what it is about.

    A number of several ticks is shown where one of them is there, unless it is released at a missing one: a total or
    the last seven days have a number at the next tick. A week has not, so its number is shown.
    """
    if not marks:
        return shown
    numbers, notes = shown.numbers, []
    gaps = [one for one in marks if one.missing is not None]
    for place, tick in enumerate(shown.ticks.tolist()):
        alone = shown.first is None or view not in DAYS
        span = range(tick if shown.first is None or view == RUNNING else int(shown.first[place]), tick + 1)
        about = [one for one in marks if one.first < span.stop and span.start <= one.last]
        notes.append("; ".join(dict.fromkeys(one.shown for one in about)))
        if gaps and (any(one.holds(tick) for one in gaps) if alone else len(missing_ticks(gaps, span)) == len(span)):
            if numbers is shown.numbers:
                numbers = numbers.copy()
            numbers[place] = np.nan
    return replace(shown, numbers=numbers, notes=notes)
