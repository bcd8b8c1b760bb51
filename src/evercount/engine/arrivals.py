"""Arrivals: what was counted in files, by Spark or from a log, on its way to its ticks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evercount._validate import IntArray
from evercount.engine.close_ticks import TickEvents, TickTotals


@dataclass(frozen=True, eq=False)
class PersonEvents:
    """Events of persons whose caps apply when the tick closes, one entry of each column for each
    event. Secret."""

    tick: IntArray
    person: Sequence[str]
    time: IntArray
    order: IntArray
    cell: IntArray
    units: IntArray
    # where `person` names each person once: the place there of each event's person
    place: IntArray | None = None
    keys: Sequence[str] = ()  # where they are not listed: each once; `cell` is the place among them

    def __len__(self) -> int:
        return len(self.tick)


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows of some ticks. Secret. Keys that nobody listed: `name` is the key, and its one number is
    how many events named it. Persons that are counted: `name` is the person, and its numbers are
    the cell of the key (0 without keys), the time and the declared order."""

    tick: IntArray
    name: Sequence[str]
    numbers: IntArray  # shape (rows, numbers)


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What some rows, messages or requests add up to. Secret.

    What cannot be added up before its tick closes is in `persons` or `rows_with_names`, and
    `totals` are then empty (`store.accept_totals.expected_parts` says which stream brings what).
    """

    totals: TickTotals | TickEvents
    persons: PersonEvents | None = None  # where the budget protects persons
    rows_with_names: Iterable[NamedRows] | None = None
    """Where persons are counted, or keys are not listed and no persons protected. The parts are in
    the order of ticks, share none, and are read once: memory holds one of them."""
    bad: int = 0  # the number of rows that are not events
    reasons: Mapping[str, int] = field(default_factory=dict)  # of the bad rows, where known
    rows: int = 0  # all rows that were read, the ignored ones too, where somebody counts them
    caps_used: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """For files: counted events and ticks of each person in the period that is open afterwards."""
