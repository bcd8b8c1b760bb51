"""What the operator says about ticks: notes, and ticks that are missing. Public text.

Why gaps cost nothing: `store/tick_marks.proof.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from evercount.declarations.schedule import Schedule, parse_time, zone_named
from evercount.declarations.table import table
from evercount.declarations.view_names import DAYS
from evercount.engine.release_table import ReleaseTable
from evercount.engine.view_widths import RUNNING
from evercount.errors import ParameterError
from evercount.text_rules import check_public_text

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration

LONGEST_NOTE = 500
MOST_MARKS = 10_000
DROP, NEXT = "drop", "next"  # what becomes of the events of a missing tick: nobody counts them, or the next tick does


@dataclass(frozen=True)
class TickMark:
    """A remark on the ticks from `first` to `last`."""

    first: int
    last: int
    text: str
    missing: str | None = None  # DROP or NEXT for ticks that are missing
    hides: str | None = None  # the label of a key that is not shown at these ticks; then it is no remark

    def holds(self, tick: int) -> bool:
        return self.first <= tick <= self.last

    @property
    def shown(self) -> str:
        return self.text if self.missing is None else f"missing: {self.text}" if self.text else "missing"

    def facts(self, schedule: Schedule) -> dict[str, Any]:
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
        first = tick_named(str(self.first), schedule)
        last = first if self.last is None else tick_named(str(self.last), schedule)
        return TickMark(first, last, self.text.strip(), self.missing)


def check_mark(declaration: StreamDeclaration, mark: TickMark, number: int) -> None:
    """Refuse a remark that is not about ticks of the stream, or not a text for the public; `number` are there."""
    horizon = declaration.horizon
    if not 1 <= mark.first <= mark.last <= (horizon or 2**40):
        raise ParameterError(
            f"the ticks {mark.first} to {mark.last} are not ticks of {declaration.name!r}: the first is 1"
            + ("" if horizon is None else f", the last {horizon}")
        )
    if mark.text:
        check_public_text("the note", mark.text)
    elif mark.missing is None:
        raise ParameterError("a note needs a text")
    if len(mark.text) > LONGEST_NOTE:
        raise ParameterError(f"a note has at most {LONGEST_NOTE} characters")
    if number >= MOST_MARKS:
        raise ParameterError(f"a stream has at most {MOST_MARKS} notes")


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
    ranges = [one for one in marks if one.missing is not None and kind in (None, one.missing)]
    inside = (range(max(one.first, ticks.start), min(one.last + 1, ticks.stop)) for one in ranges)
    return sorted({tick for part in inside for tick in part})


def with_marks(shown: ReleaseTable, marks: Sequence[TickMark], view: str) -> ReleaseTable:
    """The table as readers see it: nothing in place of what is missing, and a remark beside what it is about. A number
    of several ticks is shown where one of them is there, unless it is released at a missing one: a total or the last
    seven days have a number at the next tick. A week has not, so its number is shown."""
    shown = _without_hidden(shown, [one for one in marks if one.hides is not None])
    marks = [one for one in marks if one.hides is None]
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


def _without_hidden(shown: ReleaseTable, hidden: Sequence[TickMark]) -> ReleaseTable:
    """The table without numbers of keys that were removed when these were published."""
    places = {label: place for place, label in enumerate(shown.cells)}
    inside = [one for one in hidden if one.hides in places]
    if not inside:
        return shown
    numbers, ticks = shown.numbers.copy(), shown.ticks if shown.as_of is None else shown.as_of
    for one in inside:
        numbers[(ticks >= one.first) & (ticks <= one.last), :, places[str(one.hides)]] = np.nan
    return replace(shown, numbers=numbers)
