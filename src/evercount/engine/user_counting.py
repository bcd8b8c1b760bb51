"""How a stream accounts for users: every tick names them, or the caller promises the cap, and the guarantee says so."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from evercount.engine.derived_query import Revisions
from evercount.errors import InputError, ParameterError
from evercount.privacy import Budget, Enforced, guarantee_text
from evercount.privacy.guarantee_text import MANUAL
from evercount.queries.base import Query
from evercount.queries.user_cap import Caps, Used, UserState, cap_per_user

Counting = Literal["events", "named", "capped", "by query", "by door"]
"""How a stream accounts for users, in this order: events are protected and users play no part; every event names its
user; the caller promises the cap; the query reads users from the events and needs no cap; files, the store or Spark
have capped what they count."""
Capped = bool | Literal["by door"]
"""Whether the events of a tick are capped already: True is the caller's promise, "by door" is `close_ticks`."""


def choose_counting(
    budget: Budget, before: Counting | None, named: bool, capped: Capped, query: Query | None = None
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
    if capped is True and isinstance(query, Revisions):
        raise ParameterError("name the users of a revised stream, lag by lag: it keeps their caps day by day")
    if query is not None and query.people is not None:
        if named or capped:
            raise ParameterError("the events of this query are their users: leave users and capped out")
        return "by query"
    if named and capped:
        raise ParameterError("give users, and the stream counts their events; or capped=True if you have done so")
    if before is not None and named != (before == "named"):
        raise ParameterError(
            "this stream "
            + ("names users" if before == "named" else "does not name users")
            + " from its first tick on, so every tick must do the same: the caps look at earlier ticks"
        )
    if named:
        return "named"
    if capped:
        return "by door" if capped == "by door" and before != "capped" else "capped"
    raise ParameterError(
        "the budget protects users, so every tick names them: step(events, users=...), run(ticks, users=...). Or count "
        "no more of each user than the budget's caps yourself and say so with capped=True; the guarantee will say that "
        "you promised it"
    )


class UserChanges(NamedTuple):
    """What some ticks change in the state of users."""

    users: Mapping[str, Used] = {}  # the users whose entry changes
    forget: bool = False  # whether all other users are forgotten, because a period is over


Users = Sequence[Iterable[Any]]  # tick by tick, the user of each event
CappedTicks = tuple[Sequence[Any], UserChanges]  # the ticks without events beyond the caps of users
PeriodOf = Callable[[int], int]  # from a tick to the number of its period


@dataclass(frozen=True, eq=False)
class UserCaps:
    """Drops what is beyond the caps of users, tick by tick, and forgets users when their period is over."""

    query: Query
    caps: Caps
    period_of: PeriodOf

    @classmethod
    def of(
        cls, query: Query, budget: Budget, period_of: PeriodOf | None, revise_for: int | None = None
    ) -> UserCaps | None:
        """None where the budget protects events."""
        if budget.unit != "user":
            return None
        if revise_for is not None:
            return DayCaps(query, Caps.of(budget), lambda tick: 0, revise_for + 1)
        return UserCaps(query, Caps.of(budget), period_of or _counted_periods(budget))

    @property
    def reads_users(self) -> bool:
        """Whether users are read from the events, and capped."""
        return self.query.people is not None and self.caps != Caps()

    def forgets_after(self, tick: int) -> bool:
        """Whether no cap looks back beyond this tick: a period ends with it, or caps look at one tick only."""
        return self.caps.within_a_tick or self.period_of(tick + 1) != self.period_of(tick)

    def cap(self, ticks: Sequence[Any], users: Users | None, first_tick: int, known: UserState) -> CappedTicks:
        """The ticks from `first_tick` on without events beyond their user's caps; `users` name the user of each event.

        **Guarantee.** Whether an event counts depends on the places of its own user's events in its own period alone.
        `known` is that of the period of `first_tick`. Test:
        tests/engine/test_user_counting.py::test_caps_are_those_of_plain_python.
        """
        kept: list[Any] = []
        changes, forget = UserState(), False
        for number, events in enumerate(ticks):
            tick = first_tick + number
            names = self._users_of(events) if users is None else list(users[number])
            before = changes if forget else ChainMap(changes, known)
            left, fresh = self._cap_tick(events, names, tick, before)
            kept.append(left)
            changes |= fresh
            if self.forgets_after(tick):
                changes, forget = UserState(), True
        return kept, UserChanges(changes, forget)

    def _users_of(self, events: Any) -> list[str]:
        assert self.query.people is not None
        return self.query.people.users_of(events)

    def _cap_tick(
        self, events: Any, users: Sequence[str], tick: int, state: Mapping[str, Used]
    ) -> tuple[Any, UserState]:
        """The tick without events beyond their user's caps; where a tick is a number, how many of value 1 are left."""
        counting = self.query.event_number is not None
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
        kept, changes = cap_per_user(zip(users, listed, strict=True), self.caps, state, tick)
        return (sum(int(event) for event in kept) if counting else kept), changes


@dataclass(frozen=True, eq=False)
class DayCaps(UserCaps):
    """The caps of a stream whose days are revised: what comes for one day, over all its lags, shares them. A tick is a
    list of lags, and so are its users. A user is known by day and name until the last lag of the day."""

    lags: int = 1

    def forgets_after(self, tick: int) -> bool:
        return self.caps.within_a_tick

    def cap(self, ticks: Sequence[Any], users: Users | None, first_tick: int, known: UserState) -> CappedTicks:
        """As `UserCaps.cap`, day by day.

        **Guarantee.** Whether an event counts depends on the places of its own user's events for its own day alone, and
        what a user has used of the caps of a day is known until its last lag is closed: `revisions.proof.md`, Theorem
        2. Tests: tests/engine/test_revisions.py::test_no_persons_beat_one_day, ::test_caps_that_forget_are_caught.
        """
        assert users is not None
        kept: list[Any] = []
        open_days = UserState(known)
        for tick, (parts, names) in enumerate(zip(ticks, users, strict=True), first_tick):
            listed = list(names)
            if len(parts) != len(listed):
                raise InputError("users of a revised stream are named lag by lag, as its events are: a list of lists")
            left = []
            for lag, (events, people) in enumerate(zip(parts, listed, strict=True)):
                day = [day_user(tick - lag, user) for user in people]
                one, fresh = self._cap_tick(events, day, tick, open_days)
                left.append(one)
                open_days |= fresh
            kept.append(left)
            open_days = UserState() if self.caps.within_a_tick else users_after(open_days, tick, self.lags)
        return kept, UserChanges(open_days, forget=True)


def day_user(day: int, user: str) -> str:
    return f"{day} {user}" if isinstance(user, str) and user else user


T = TypeVar("T")


def users_after(known: Mapping[str, T], tick: int, lags: int) -> dict[str, T]:
    """The users of days that are revised after `tick`."""
    return {name: used for name, used in known.items() if int(name.partition(" ")[0]) + lags - 1 > tick}


def _counted_periods(budget: Budget) -> PeriodOf:
    if budget.period is None:
        return lambda tick: 0
    if isinstance(budget.period, str):
        raise ParameterError(
            f"period={budget.period!r} follows a calendar, which a stream without a schedule does not have: give the "
            "period as a number of ticks, or declare the stream with a schedule"
        )
    length = budget.period
    return lambda tick: (tick - 1) // length


def check_users(ticks: Sequence[Any], users: Sequence[Any]) -> None:
    if len(ticks) != len(users) or any(isinstance(people, str | bytes) for people in users):
        raise InputError(f"users name the users of each of the {len(ticks)} ticks: a sequence of texts for each tick")


def enforced_by(query: Query, counting: Counting | None) -> Enforced:
    """Who keeps to the cap of users; evercount, unless the caller has promised it or the query needs none."""
    if isinstance(query, Revisions):
        return "revised"
    if query.people is not None:
        return "query"
    return "caller" if counting == "capped" else "evercount"


@lru_cache(maxsize=256)
def guarantee_sentence(budget: Budget, enforced: Enforced, replay: bool, tick: str = MANUAL) -> str:
    """What all releases of a stream promise, and whether they may be published at all."""
    sentence = guarantee_text(budget, enforced, tick).sentence
    if replay:
        sentence += " This is a replay of another stream's noise: do not publish."
    return sentence
