"""The user as the protected unit: how much is counted of one user id, and how the rest is dropped.

Two streams are user-level neighbours when they differ in the events of one user only (counted
within one period, where the budget has periods): under add-remove all of these are absent in one of
them; under replace each of them is, at its own place and under the same user, any other legal
event. What that does to the noise: `engine/build.py::squared_norm`; proof: `user_cap.proof.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evercount._validate import IntArray
from evercount.errors import EventRefused
from evercount.privacy import Budget


class Used(NamedTuple):
    """What one user has used of the caps, in one period. As sensitive as the events: keep it where
    they are kept."""

    events: int = 0  # events that were counted
    ticks: int = 0  # ticks in which an event came
    tick: int = 0  # the last of them
    here: int = 0  # events that were counted in it


NO_USE = Used()
# what each user has used in the period of the last tick; JSON-serialisable
UserState = dict[str, Used]


@dataclass(frozen=True)
class Caps:
    """What is counted of one user id in one period: three numbers, None where there is no such
    cap."""

    events: int | None = None
    per_tick: int | None = None
    ticks: int | None = None

    @classmethod
    def of(cls, budget: Budget) -> Caps:
        return cls(*budget.caps)

    @property
    def within_a_tick(self) -> bool:
        """Whether no cap looks at earlier ticks, so that users are forgotten when a tick closes."""
        return self.events is None and self.ticks is None

    def room(self, used: Used, tick: int) -> int | None:
        """How many more events count in `tick`; None for any number."""
        here = used.here
        ticks = used.ticks
        if used.tick != tick:
            here = 0
            ticks += 1
        if self.ticks is not None and ticks > self.ticks:
            return 0
        rooms = []
        if self.events is not None:
            rooms.append(self.events - used.events)
        if self.per_tick is not None:
            rooms.append(self.per_tick - here)
        return min(rooms, default=None)

    def after(self, used: Used, tick: int, counted: Any) -> Used:
        """The user after events came in `tick`, `counted` of them counted. What no cap looks at
        stays 0."""
        events = ticks = last_tick = here = 0
        if self.events is not None:
            events = used.events + counted
        if self.ticks is not None:
            ticks = used.ticks + (used.tick != tick)
            last_tick = tick
        if self.per_tick is not None:
            here = used.here * (used.tick == tick) + counted
            last_tick = tick
        return Used(events, ticks, last_tick, here)

    def rooms(self, events: IntArray, ticks: IntArray) -> IntArray:
        """As `room`, for many users in a tick that has just begun: their counted events and their
        ticks before it."""
        room = np.full(len(events), np.iinfo(np.int64).max)
        if self.per_tick is not None:
            room = np.minimum(room, self.per_tick)
        if self.events is not None:
            room = np.minimum(room, self.events - events)
        if self.ticks is None:
            return room
        return np.where(ticks < self.ticks, room, 0)

    def afters(self, used: IntArray, tick: int, counted: IntArray) -> IntArray:
        """As `after`, for many users: one row of `Used` for each."""
        events, ticks, last_tick, here = used.T
        before = Used(events=events, ticks=ticks, tick=last_tick, here=here)
        after = np.zeros_like(used)
        for column, values in enumerate(self.after(before, tick, counted)):
            after[:, column] = values
        return after


def cap_per_user(
    events: Iterable[tuple[str, Any]], caps: Caps, state: Mapping[str, Used], tick: int
) -> tuple[list[Any], UserState]:
    """The events of one tick, or of a part of one, without those beyond their user's caps.

    `events` are pairs (user, event), the user a string that is not empty. The events that count
    come back in their order, without the user. The excess is dropped whatever it contains: the rule
    looks at one user's own order only, never at other users or at what an event says.

    `state` is read, not changed; it is that of the tick's period, so empty where a period begins.
    The second result holds the users whose entry changes: commit the tick with
    ``state.update(changes)`` once everything else has accepted it.

    Guarantee. After the caps, user-level neighbours differ by at most `Budget.touched`, at the same
    places. Proof: `user_cap.proof.md`, Lemma 1. Assumption: a user id belongs to one person, and
    each person has one. Test:
    tests/queries/test_user_cap.py::test_neighbours_differ_by_what_is_touched.
    """
    counted = []
    changes: UserState = {}
    for number, (user, event) in enumerate(events):
        # 7 and "7" would be one user before a snapshot and two after it
        if not isinstance(user, str):
            raise EventRefused(
                number, f"has a user that must be a string, got {type(user).__name__}"
            )
        if not user:
            raise EventRefused(number, "has an empty user, which names nobody: omit it")
        used = changes.get(user) or state.get(user, NO_USE)
        room = caps.room(used, tick)
        counts = room is None or room > 0
        after = caps.after(used, tick, int(counts))
        if after != used:
            changes[user] = after
        if counts:
            counted.append(event)
    return counted, changes


def last_turns(user: IntArray, time: IntArray, order: IntArray) -> IntArray:
    """For each event how many events of its user stand at or before its (time, order).

    **Guarantee.** At most k events of a user have a turn of at most k, and the turn of an event
    depends on the places of its own user's events alone: `user_cap.proof.md`, Order. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/files/test_cap_users.py::test_caps_are_those_of_plain_python.
    """
    if not len(user):
        return np.empty(0, np.int64)
    sorting = np.lexsort((order, time, user))
    who = user[sorting]
    when = time[sorting]
    nth = order[sorting]
    number = np.arange(len(sorting))
    same_user = np.r_[False, who[1:] == who[:-1]]
    same_place = np.r_[same_user[1:] & (when[1:] == when[:-1]) & (nth[1:] == nth[:-1]), False]
    first = np.maximum.accumulate(np.where(same_user, 0, number))
    # of those at one place
    last = np.minimum.accumulate(np.where(same_place, len(sorting), number)[::-1])[::-1]
    turns = np.empty(len(sorting), np.int64)
    turns[sorting] = last - first + 1
    return turns
