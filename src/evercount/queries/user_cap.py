"""The user as the protected unit: at most k events per user over the whole stream, and what that does to S.

Two streams are user-level neighbours when they differ in the events of one user only: under add-remove all of that
user's events are absent in one of them; under replace each of that user's events is, at its own place and under the
same user, any other legal event. S then grows by k² (`Budget.scale_sensitivity`; proof: `user_cap.proof.md`, Theorem
3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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

    `events` are pairs (user, event), the user a string. Kept events come back in their order, without the user. The
    excess is dropped whatever it contains: the rule looks at one user's own order only, never at other users or at
    what an event says.

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
        pairs.append((user, event))
    kept = []
    changes: UserState = {}
    for user, event in pairs:
        seen = changes.get(user, state.get(user, 0))
        if seen < limit:
            changes[user] = seen + 1
            kept.append(event)
    return kept, changes
