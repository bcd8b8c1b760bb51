"""Which events count: the caps of users are kept here, where ticks name users."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from evercount.errors import InputError, ParameterError
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.user_cap import Caps, Used, UserState, cap_per_user


class UserChanges(NamedTuple):
    """What some ticks change in the state of users."""

    users: Mapping[str, Used] = {}  # the users whose entry changes
    forget: bool = False  # whether all other users are forgotten, because a period is over


Users = Sequence[Iterable[Any]]  # tick by tick, the user of each event
CappedTicks = tuple[Sequence[Any], UserChanges]  # the ticks without events beyond the caps of users
PeriodOf = Callable[[int], int]  # from a tick to the number of its period


@dataclass(frozen=True, eq=False)
class UserCaps:
    """Drops what is beyond the caps of users, tick by tick, and forgets users when their period is
    over."""

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

    def forgets_after(self, tick: int) -> bool:
        """Whether no cap looks back beyond this tick: a period ends with it, or caps look at one
        tick only."""
        return self.caps.within_a_tick or self.period_of(tick + 1) != self.period_of(tick)

    def cap(
        self, ticks: Sequence[Any], users: Users | None, first_tick: int, earlier: UserState
    ) -> CappedTicks:
        """The ticks from `first_tick` on without events beyond their user's caps; `users` name the
        user of each event.

        **Guarantee.** Whether an event counts depends on the places of its own user's events in its
        own period alone. `earlier` is what users have used in the period of `first_tick`, before
        it. Test: tests/engine/test_user_counting.py::test_caps_are_those_of_plain_python.
        """
        counted: list[Any] = []
        changes = UserState()
        forget = False
        if users is None:
            assert self.query.people is not None  # users are read from the events
            users = list(map(self.query.people.users_of, ticks))
        for tick, (events, names) in enumerate(zip(ticks, users, strict=True), first_tick):
            before: Mapping[str, Used] = changes if forget else ChainMap(changes, earlier)
            left, fresh = self._cap_tick(events, list(names), tick, before)
            counted.append(left)
            changes |= fresh
            if self.forgets_after(tick):
                changes = UserState()
                forget = True
        return counted, UserChanges(changes, forget)

    def _cap_tick(
        self, events: Any, users: Sequence[str], tick: int, state: Mapping[str, Used]
    ) -> tuple[Any, UserState]:
        """The tick without events beyond their user's caps; where a tick is a number, how many of
        value 1 are left."""
        counting = self.query.event_number is not None
        if events is None and counting:
            listed: list[Any] = [1] * len(users)
        elif isinstance(events, Iterable):
            listed = list(events)
        else:
            raise InputError("with users, a tick is a sequence of events, one for each user named")
        if len(listed) != len(users):
            raise InputError(
                f"{len(listed)} events but {len(users)} users: there must be one user for each "
                "event"
            )
        if counting and any(isinstance(event, str) or event not in (0, 1) for event in listed):
            raise InputError(
                "with users, each event of a count is 1 (or 0); omit events to count them all"
            )
        left, changes = cap_per_user(zip(users, listed, strict=True), self.caps, state, tick)
        if counting:
            return sum(int(event) for event in left), changes
        return left, changes


@dataclass(frozen=True, eq=False)
class DayCaps(UserCaps):
    """The caps of a stream whose days are revised: what comes for one day, over all its lags,
    shares them. A tick is a list of lags, and so are its users. A user is known by day and name
    until the last lag of the day."""

    lags: int = 1

    def forgets_after(self, tick: int) -> bool:
        return self.caps.within_a_tick

    def cap(
        self, ticks: Sequence[Any], users: Users | None, first_tick: int, earlier: UserState
    ) -> CappedTicks:
        """As `UserCaps.cap`, day by day.

        **Guarantee.** Whether an event counts depends on the places of its own user's events for
        its own day alone, and what a user has used of the caps of a day is known until its last lag
        is closed: `revisions.proof.md`, Theorem 2. Tests:
        tests/engine/test_revisions.py::test_no_persons_beat_one_day,
        ::test_caps_that_forget_are_caught.
        """
        assert users is not None
        counted: list[Any] = []
        open_days = UserState(earlier)
        for tick, (parts, names) in enumerate(zip(ticks, users, strict=True), first_tick):
            listed = list(names)
            if len(parts) != len(listed):
                raise InputError(
                    "users of a revised stream are named lag by lag, as its events are: a list of "
                    "lists"
                )
            left = []
            for lag, (events, people) in enumerate(zip(parts, listed, strict=True)):
                day = [day_user(tick - lag, user) for user in people]
                one, fresh = self._cap_tick(events, day, tick, open_days)
                left.append(one)
                open_days |= fresh
            counted.append(left)
            if self.caps.within_a_tick:
                open_days = UserState()
            else:
                open_days = users_after(open_days, tick, self.lags)
        return counted, UserChanges(open_days, forget=True)


def day_user(day: int, user: str) -> str:
    """Name a user on a day, as caps of a revised stream are kept day by day."""
    if isinstance(user, str) and user:
        return f"{day} {user}"
    return user


T = TypeVar("T")


def users_after(users: Mapping[str, T], tick: int, lags: int) -> dict[str, T]:
    """Keep the users of days that are revised after `tick`."""
    return {
        name: used for name, used in users.items() if int(name.partition(" ")[0]) + lags - 1 > tick
    }


def _counted_periods(budget: Budget) -> PeriodOf:
    """Count periods of as many ticks as the budget says; a calendar needs a schedule."""
    if budget.period is None:
        return lambda tick: 0
    if isinstance(budget.period, str):
        raise ParameterError(
            f"period={budget.period!r} follows a calendar, which a stream without a schedule does "
            "not have: give the period as a number of ticks, or declare the stream with a schedule"
        )
    length = budget.period
    return lambda tick: (tick - 1) // length


def check_users(ticks: Sequence[Any], users: Sequence[Any]) -> None:
    """Refuse users that are not named tick by tick."""
    if len(ticks) != len(users) or any(isinstance(people, str | bytes) for people in users):
        raise InputError(
            f"users name the users of each of the {len(ticks)} ticks: a sequence of strings for "
            "each tick"
        )
