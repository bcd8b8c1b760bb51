"""All neighbours of a small history, from the words of the guarantee (`guarantee_text.py`) and from
nothing else.

Neither a query nor a schedule of the program is asked: which day a row is of, which period a day
is of and what may stand in its place is worked out here once more, in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

from evercount.audit.lives.life import Event, History

STRANGER = "stranger"
"""An id that occurs nowhere else."""
HOUR = 3600
MOST_PLACES = 3  # events of one person whose contents are changed apart


@dataclass(frozen=True)
class Promise:
    """What is printed about one stream: its unit, adjacency and period, and who keeps to caps.

    Args:
        unit: "event" or "user".
        adjacency: "add-remove" or "replace".
        period: as printed, such as "1w" or 3 (ticks); None for all time.
        by_query: whether ids are part of what an event says, so that a neighbour has another id.
        tick: the length of a tick, such as "1h" or "1d".
        zone: the zone whose days count.
        start: when the first tick begins.
        late: what becomes of rows that reach the operator after their tick was released.
        contents: what a row can say: (key, value).
    """

    unit: str
    adjacency: str
    period: int | str | None
    by_query: bool
    tick: str
    zone: str
    start: int
    late: str
    contents: tuple[tuple[str, int], ...]

    def tick_of(self, at: int) -> int:
        """The number of the tick that an instant lies in; 0 or less before the start."""
        number, letter = int(self.tick[:-1]), self.tick[-1]
        if letter == "h":
            return (at - self.start) // (number * HOUR) + 1
        return self._days(at) // (number * {"d": 1, "w": 7}[letter]) + 1

    def period_of(self, at: int) -> int:
        """The number of the period that an instant is counted in."""
        if self.period is None:
            return 0
        tick = self.tick_of(at)
        if isinstance(self.period, int):
            return (tick - 1) // self.period
        days = int(self.period[:-1]) * {"d": 1, "w": 7}[self.period[-1]]
        return self._days(at) // days

    def _days(self, at: int) -> int:
        """Whole days on the wall between the start and an instant."""
        zone = ZoneInfo(self.zone)
        wall = datetime.fromtimestamp(at, zone).replace(tzinfo=None)
        begin = datetime.fromtimestamp(self.start, zone).replace(tzinfo=None)
        return (wall - begin) // timedelta(days=1)

    def comes_up(self, event: Event, closings: Sequence[tuple[int, int]]) -> int | None:
        """The instant for which an event comes up for counting; None if it is dropped.

        `closings`: when the operator released, and until when: (instant, end of the last tick).
        """
        done = [until for moment, until in closings if moment < event.seen]
        if not done or event.at >= max(done):
            return event.at
        if self.late == "revise":
            return event.at
        return max(done) if self.late == "next" else None


def neighbours(
    promise: Promise, history: History, closings: Sequence[tuple[int, int]] = ()
) -> Iterator[History]:
    """Every history that the promise calls a neighbour of this one; with many rows of one person,
    those in which all of them say the same, or one of them something else.

    **Guarantee.** Nothing that the sentence does not name: one event absent, or any other content
    in its place; everything that comes up for counting under one id in one period absent; each
    event under that id any other, at the same time and in the same order; or, where a query reads
    ids, anything under an id that occurs nowhere else. Test: tests/audit/test_lives.py.
    """
    if promise.unit == "event":
        yield from _of_events(promise, history)
        return
    for chosen in _of_one_id(promise, history, closings):
        rest = tuple(event for place, event in enumerate(history) if place not in chosen)
        if promise.adjacency == "add-remove":
            yield rest
        elif promise.by_query:
            yield from _elsewhere(promise, rest, [history[place] for place in chosen])
        else:
            yield from _in_their_places(promise, history, chosen)


def _of_events(promise: Promise, history: History) -> Iterator[History]:
    for place, event in enumerate(history):
        before, after = history[:place], history[place + 1 :]
        if promise.adjacency == "add-remove":
            yield (*before, *after)
            continue
        persons = {event.person}
        if promise.by_query:
            persons = {one.person for one in history} | {STRANGER}
        for (key, value), person in product(promise.contents, sorted(persons)):
            other = event._replace(key=key, value=value, person=person)
            if other != event:
                yield (*before, other, *after)


def _of_one_id(
    promise: Promise, history: History, closings: Sequence[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """The places of all that comes up for counting under one id in one period."""
    found: dict[tuple[str, int], list[int]] = {}
    for place, event in enumerate(history):
        counted_at = promise.comes_up(event, closings)
        if counted_at is None or counted_at < promise.start:
            continue
        found.setdefault((event.person, promise.period_of(counted_at)), []).append(place)
    return [tuple(places) for places in found.values()]


def _in_their_places(
    promise: Promise, history: History, chosen: Sequence[int]
) -> Iterator[History]:
    """Other contents at the same times, in the same order, under the same id."""
    alike = [[content] * len(chosen) for content in promise.contents]
    apart = [list(each) for each in product(promise.contents, repeat=min(len(chosen), MOST_PLACES))]
    for contents in (*alike, *apart):
        other = list(history)
        for place, (key, value) in zip(chosen, contents, strict=False):
            other[place] = history[place]._replace(key=key, value=value)
        if tuple(other) != history:
            yield tuple(other)


def _elsewhere(promise: Promise, rest: History, own: Sequence[Event]) -> Iterator[History]:
    """Nothing; all of it under another id; one row of it; or as much at the same times, with other
    contents."""
    yield rest
    moved = [event._replace(person=STRANGER) for event in own]
    choices = [moved, moved[:1], moved[-1:]]
    for key, value in promise.contents:
        choices.append([event._replace(key=key, value=value) for event in moved])
    for chosen in choices:
        yield tuple(sorted((*rest, *chosen)))


def promise_of(
    declared: Mapping[str, Any], start: int, contents: Sequence[tuple[str, int]], by_query: bool
) -> Promise:
    """What a stream of these declared fields prints, as plain words."""
    budget = declared["budget"]
    return Promise(
        budget["unit"],
        budget["adjacency"],
        budget.get("period"),
        by_query,
        declared["tick"],
        declared["zone"],
        start,
        declared.get("late", "drop"),
        tuple(contents),
    )
