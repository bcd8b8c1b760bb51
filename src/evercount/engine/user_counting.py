"""How a stream accounts for users: every tick names them, or the caller promises the cap, and the guarantee says so."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from evercount.errors import InputError, ParameterError
from evercount.privacy import Budget, Enforced, guarantee_text
from evercount.queries.base import Query
from evercount.queries.user_cap import UserState, cap_per_user

Counting = Literal["events", "named", "capped", "by query", "by door"]
"""How a stream accounts for users, in this order: events are protected and users play no part; every event names its
user; the caller promises the cap; the query reads users from the events and needs no cap; files, the store or Spark
have capped what they count."""
Capped = bool | Literal["by door"]
"""Whether the events of a tick are capped already: True is the caller's promise, "by door" is `close_ticks`."""


def choose_counting(
    budget: Budget, before: Counting | None, named: bool, capped: Capped, names_users: bool = False
) -> Counting:
    """How a tick accounts for users; ParameterError where that does not fit the budget, or the ticks `before` it.

    **Guarantee.** A tick of a user-level stream names its users, or the caller has promised the cap and every release
    states that. Test:
    tests/engine/test_user_counting.py::test_a_user_level_tick_names_users_or_promises_the_cap.
    """
    if budget.unit != "user":
        if named or capped:
            raise ParameterError("users are given but the budget protects events; use Budget(..., unit='user')")
        return "events"
    if names_users:
        if named or capped:
            raise ParameterError("the events of this query are their users: leave users and capped out")
        return "by query"
    if named and capped:
        raise ParameterError("give users, and the stream counts their events; or capped=True if you have done so")
    if before is not None and named != (before == "named"):
        raise ParameterError(
            "this stream "
            + ("names users" if before == "named" else "does not name users")
            + " from its first tick on, so every tick must do the same: the cap counts events of the whole stream"
        )
    if named:
        return "named"
    if capped:
        return "by door" if capped == "by door" and before != "capped" else "capped"
    raise ParameterError(
        "the budget protects users, so every tick names them: step(events, users=...), run(ticks, users=...). Or count "
        f"at most {budget.max_events} of each user's events yourself and say so with capped=True; the guarantee will "
        "say that you promised it"
    )


def cap_tick(
    query: Query, events: Any, users: Sequence[str], most: int, state: Mapping[str, int]
) -> tuple[Any, UserState]:
    """The tick without events beyond their user's cap; where a tick is a number, how many of value 1 are left."""
    counting = query.event_number is not None
    if events is None and counting:
        listed: list[Any] = [1] * len(users)
    elif isinstance(events, Iterable):
        listed = list(events)
    else:
        raise InputError("with users, a tick is a sequence of events, one for each user named")
    if len(listed) != len(users):
        raise InputError(f"{len(listed)} events but {len(users)} users: there must be one user for each event")
    if counting and any(isinstance(event, str) or event not in (0, 1) for event in listed):
        raise InputError("with users, each event of a count is 1 (or 0); leave events out to count them all")
    kept, changes = cap_per_user(zip(users, listed, strict=True), most, state)
    return (sum(int(event) for event in kept) if counting else kept), changes


def cap_run(
    query: Query, ticks: Iterable[Any], users: Iterable[Iterable[str]], most: int, state: UserState
) -> tuple[list[Any], UserState]:
    """The ticks of a run without events beyond their user's cap, and the users whose number of events changes."""
    listed, named = list(ticks), list(users)
    if len(listed) != len(named) or any(isinstance(people, str | bytes) for people in named):
        raise InputError(f"users name the users of each of the {len(listed)} ticks: a sequence of texts for each tick")
    kept: list[Any] = []
    changes: UserState = {}
    for events, people in zip(listed, named, strict=True):
        tick, fresh = cap_tick(query, events, list(people), most, ChainMap(changes, state))
        kept.append(tick)
        changes |= fresh
    return kept, changes


def enforced_by(query: Query, counting: Counting | None) -> Enforced:
    """Who keeps to the cap of users; evercount, unless the caller has promised it or the query needs none."""
    if query.people is not None:
        return "query"
    return "caller" if counting == "capped" else "evercount"


@lru_cache(maxsize=256)
def guarantee_sentence(budget: Budget, enforced: Enforced, replay: bool, noise: str) -> str:
    """What all releases of a stream promise, and whether they may be published at all."""
    sentence = guarantee_text(budget, enforced).sentence
    if replay:
        sentence += " This is a replay of another stream's noise: do not publish."
    if noise != "exact":
        sentence += f" Noise: {noise}; this holds for real-number arithmetic only: do not publish."
    return sentence
