"""The user as the protected unit: at most k events per user over the whole stream, and what that does to S.

Two streams are user-level neighbours when they differ in the events of one user only: under add-remove all of that
user's events are absent in one of them; under replace each of that user's events is, at its own place and under the
same user, any other legal event. S then grows by k² (`Budget.scale_sensitivity`; proof: `user_cap.proof.md`, Theorem
3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count
from evercount.errors import InputError

UserState = dict[str, int]
"""Events seen so far per user, capped; JSON-serialisable. As sensitive as the events: keep it where they are kept."""


def initial_users() -> UserState:
    """The state before the first tick."""
    return {}


def cap_per_user(
    events: Iterable[tuple[str, Any]], max_events: int, state: Mapping[str, int]
) -> tuple[list[Any], UserState]:
    """The events of one tick without those beyond each user's first `max_events` of the whole stream.

    `events` are pairs (user, event), the user a string that is not empty. Kept events come back in their order, without
    the user. The excess is dropped whatever it contains: the rule looks at one user's own order only, never at other
    users or at what an event says.

    `state` is read, not changed. The second result holds the users whose entry changes: commit the tick with
    ``state.update(changes)`` once everything else has accepted it.

    Guarantee. User-level neighbours are at most `max_events` single-event changes apart after the cap. Proof:
    `user_cap.proof.md`, Lemma 1. Assumption: a user id belongs to one person, and each person has one. Test:
    tests/queries/test_user_cap.py::test_capped_user_neighbours_differ_in_at_most_k_events.
    """
    limit = check_count("max_events", max_events)
    pairs = []
    for number, pair in enumerate(events):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"event {number} of the tick (from 0) must be a pair (user, event)")
        user, event = pair
        if not isinstance(user, str):
            # 7 and "7" would be one user before a snapshot and two after it
            raise InputError(
                f"event {number} of the tick (from 0): the user must be a string, not {type(user).__name__}"
            )
        if not user:
            raise InputError(f"event {number} of the tick (from 0): the user is empty, and names nobody: leave it out")
        pairs.append((user, event))
    kept = []
    changes: UserState = {}
    for user, event in pairs:
        seen = changes.get(user, state.get(user, 0))
        if seen < limit:
            changes[user] = seen + 1
            kept.append(event)
    return kept, changes


def last_turns(user: IntArray, time: IntArray, order: IntArray) -> IntArray:
    """For each event how many events of its user stand at or before its (time, order).

    Args:
        user: a number for each user.
        time: when the event happened.
        order: the declared order of events of one user and one time.

    Returns:
        The turn of each event, from 1. Events of a user at one (time, order) have the turn of the last of them.

    **Guarantee.** At most k events of a user have a turn of at most k, and the turn of an event depends on the places
    of its own user's events alone: `user_cap.proof.md`, Order. Tests:
    tests/store/test_user_events.py::test_the_cap_is_that_of_plain_python and
    tests/files/test_cap_users.py::test_a_declared_order_is_that_of_plain_python.

    >>> last_turns(np.array([0, 0, 0, 1]), np.array([5, 5, 4, 5]), np.array([1, 1, 9, 1])).tolist()
    [3, 3, 1, 1]
    """
    if not len(user):
        return np.empty(0, np.int64)
    sorting = np.lexsort((order, time, user))
    who, when, nth = user[sorting], time[sorting], order[sorting]
    number = np.arange(len(sorting))
    same_user = np.r_[False, who[1:] == who[:-1]]
    same_place = np.r_[same_user[1:] & (when[1:] == when[:-1]) & (nth[1:] == nth[:-1]), False]
    first = np.maximum.accumulate(np.where(same_user, 0, number))
    last = np.minimum.accumulate(np.where(same_place, len(sorting), number)[::-1])[::-1]  # of those at one place
    turns = np.empty(len(sorting), np.int64)
    turns[sorting] = last - first + 1
    return turns
