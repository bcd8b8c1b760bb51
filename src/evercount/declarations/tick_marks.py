"""What an operator says about ticks: notes, ticks that are missing, and keys that are not shown.

All of it is public text, or follows from what the operator does in public. Why gaps cost nothing:
`store/tick_marks.proof.md`. Hidden keys are counted and kept as before, and no reader sees them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from evercount._validate import FloatArray, check_public_text
from evercount.declarations.fields import table
from evercount.declarations.schedule import Schedule, parse_time, zone_named
from evercount.declarations.view_names import DAYS
from evercount.engine.build import RUNNING
from evercount.engine.release_table import ReleaseTable
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration

# what becomes of the events of a missing tick: nobody counts them, or the next tick does
DROP = "drop"
NEXT = "next"
LONGEST_NOTE = 500
MOST_NOTES = 10_000
FOR_EVER = 2**40  # the last tick of a key that is not shown again


@dataclass(frozen=True)
class TickMark:
    """A remark on the ticks from `first` to `last`."""

    first: int
    last: int
    text: str
    missing: str | None = None  # DROP or NEXT for ticks that are missing
    # the label of a key that is not shown at these ticks; then it is not a remark
    hides: str | None = None

    def holds(self, tick: int) -> bool:
        return self.first <= tick <= self.last

    @property
    def remark(self) -> str:
        if self.missing is None:
            return self.text
        return f"missing: {self.text}" if self.text else "missing"

    def to_list(self) -> list[Any]:
        """The fields in their order; `from_list` is the inverse."""
        return [self.first, self.last, self.text, self.missing, self.hides]

    @classmethod
    def from_list(cls, fields: Sequence[Any]) -> TickMark:
        first, last, text, missing, hides = fields
        return cls(first, last, text, missing, hides)

    def facts(self, schedule: Schedule) -> dict[str, Any]:
        facts: dict[str, Any] = {"first": self.first, "last": self.last}
        if not schedule.manual:
            facts["start"] = schedule.show(schedule.start_of(self.first))
            facts["end"] = schedule.show(schedule.start_of(self.last + 1))
        return {**facts, "text": self.text, "missing": self.missing}


@table("a note")
class NewMark:
    """A remark as the operator writes it."""

    first: Annotated[int | str, Field(description="the number of a tick, or a day or time in it")]
    last: Annotated[int | str | None, Field(description="as first; omit it for one tick")] = None
    text: Annotated[
        str, Field(description=f"a public text of at most {LONGEST_NOTE} characters")
    ] = ""
    missing: Annotated[Literal["drop", "next"] | None, Field(description="drop, next or null")] = (
        None
    )

    def on(self, schedule: Schedule) -> TickMark:
        first = tick_named(str(self.first), schedule)
        last = first if self.last is None else tick_named(str(self.last), schedule)
        return TickMark(first, last, self.text.strip(), self.missing)


def check_mark(declaration: StreamDeclaration, mark: TickMark, number: int) -> None:
    """Refuse a remark that is not about ticks of the stream, or not a text for the public; `number`
    are there."""
    horizon = declaration.horizon
    if not 1 <= mark.first <= mark.last <= (horizon or FOR_EVER):
        end = "" if horizon is None else f", the last {horizon}"
        raise ParameterError(
            f"the ticks {mark.first} to {mark.last} are not ticks of {declaration.name!r}: the "
            f"first is 1{end}"
        )
    if mark.text:
        check_public_text("the note", mark.text)
    elif mark.missing is None:
        raise ParameterError("a note needs text")
    if len(mark.text) > LONGEST_NOTE:
        raise ParameterError(f"a note has at most {LONGEST_NOTE} characters")
    if number >= MOST_NOTES:
        raise ParameterError(f"a stream has at most {MOST_NOTES:,} notes")


def tick_named(text: str, schedule: Schedule) -> int:
    """The tick that an operator names: its number, or a day or time in it.

    >>> days = Schedule.of("1d", "2026-01-01", "UTC")
    >>> tick_named("2026-01-03", days), tick_named("12", Schedule())
    (3, 12)
    """
    if text.isascii() and text.isdigit() and len(text) < 9:
        return int(text)
    if schedule.manual:
        raise ParameterError(
            f"{text!r:.40} is not the number of a tick, and this stream has no clock"
        )
    return schedule.tick_of(parse_time(text, zone_named(schedule.zone), "the tick"))


def missing_ticks(marks: Iterable[TickMark], ticks: range, kind: str | None = None) -> list[int]:
    """The ticks of a range that are missing, in order; with `kind`, those whose events it names."""
    missing: set[int] = set()
    for mark in marks:
        if mark.missing is not None and kind in (None, mark.missing):
            missing.update(range(max(mark.first, ticks.start), min(mark.last + 1, ticks.stop)))
    return sorted(missing)


def hidden_labels(marks: Iterable[TickMark], tick: int) -> list[str]:
    """The labels that are not shown at a tick."""
    return [mark.hides for mark in marks if mark.hides is not None and mark.holds(tick)]


def hide(marks: Sequence[TickMark], labels: Iterable[str], tick: int) -> tuple[TickMark, ...]:
    """The marks after which these labels are not shown from a tick on."""
    new = [TickMark(tick, FOR_EVER, "", None, label) for label in labels]
    return (*marks, *new)


def show_again(
    marks: Sequence[TickMark], labels: Collection[str], tick: int
) -> tuple[TickMark, ...]:
    """The marks after which these labels, if they are hidden, are shown from a tick on."""
    changed = []
    for mark in marks:
        ends = mark.hides in labels and mark.last == FOR_EVER
        if ends and mark.first >= tick:
            continue  # it was hidden at no released tick
        changed.append(replace(mark, last=tick - 1) if ends else mark)
    return tuple(changed)


def with_marks(shown: ReleaseTable, marks: Sequence[TickMark], view: str) -> ReleaseTable:
    """The table as readers see it: nothing in place of what is missing, and a remark next to what
    it is about.

    The number of a day or a week is shown unless all its ticks are missing. Other numbers, such as
    a total or the last seven days, are shown unless the tick at which they are released is missing.
    """
    if not marks:
        return shown
    numbers = shown.numbers.copy()
    _leave_out_hidden(shown, numbers, marks)
    remarks = [mark for mark in marks if mark.hides is None]
    if not remarks:
        return replace(shown, numbers=numbers)
    gaps = [mark for mark in remarks if mark.missing is not None]
    notes = []
    for place, tick in enumerate(shown.ticks.tolist()):
        begin = tick
        if shown.first is not None and view != RUNNING:
            begin = int(shown.first[place])
        span = range(begin, tick + 1)
        about = [mark for mark in remarks if mark.first < span.stop and span.start <= mark.last]
        notes.append("; ".join(dict.fromkeys(mark.remark for mark in about)))
        needed = range(tick, tick + 1)
        if shown.first is not None and view in DAYS:
            needed = span
        if gaps and len(missing_ticks(gaps, needed)) == len(needed):
            numbers[place] = np.nan
    return replace(shown, numbers=numbers, notes=notes)


def _leave_out_hidden(shown: ReleaseTable, numbers: FloatArray, marks: Sequence[TickMark]) -> None:
    """Put NaN where a key was not shown when its number was published."""
    places = {label: place for place, label in enumerate(shown.cells)}
    published = shown.ticks if shown.as_of is None else shown.as_of
    for mark in marks:
        if mark.hides is not None and mark.hides in places:
            at = (published >= mark.first) & (published <= mark.last)
            numbers[at, :, places[mark.hides]] = np.nan
