"""What a stream checks in a tick before it counts: who the users of its events are, and whether it
is a retry.

Users: caps are kept here, where ticks name users, and so is the rule for handing caps on to the
next stream. Events: data frames become what queries take, and a fingerprint tells a retry of the
last tick from an attempt to change the past.
"""

from __future__ import annotations

import hashlib
import json
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from evercount.errors import AlreadyReleased, InputError, ParameterError
from evercount.factorizations import Dense, Factorization
from evercount.factorizations.independent import Fresh
from evercount.factorizations.participation import participation
from evercount.privacy import Budget
from evercount.queries.base import Query, is_replace
from evercount.queries.user_cap import Caps, Used, UserState, cap_per_user


def plain_events(events: Any) -> Any:
    """The events of a tick as the queries take them; only data frames, Arrow arrays and tables of
    texts are changed. A frame with one column is that column; one with more is a tuple for each
    row, in the order of its columns. The libraries are known by the methods of their classes: none
    is imported."""
    if isinstance(events, np.ndarray):
        texts = events.ndim == 2 and events.dtype.kind in "UO"
        return [tuple(row) for row in events.tolist()] if texts else events
    kind = type(events)
    if not _foreign(kind):
        return events
    if hasattr(kind, "itertuples"):  # pandas, whose missing values have several names
        rows = list(
            events.astype(object).where(events.notna(), None).itertuples(index=False, name=None)
        )
    elif hasattr(kind, "notna"):  # a column of pandas
        numbers = isinstance(events.dtype, np.dtype) and events.dtype.kind != "O"
        return events if numbers else events.astype(object).where(events.notna(), None).tolist()
    elif hasattr(kind, "iter_rows"):  # Polars
        rows = events.rows()
    elif hasattr(kind, "itercolumns"):  # a table of Arrow
        rows = list(zip(*(column.to_pylist() for column in events.itercolumns()), strict=True))
    else:
        return events.to_pylist()
    return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows


def plain_ticks(ticks: Iterable[Any]) -> Iterable[Any]:
    kind = type(ticks)
    if _foreign(kind) and (hasattr(kind, "itertuples") or hasattr(kind, "iter_rows")):
        raise InputError(
            "a run is a sequence of ticks, and this is one data frame: give one for each tick. "
            "Which tick a row belongs to must follow from public times, as in "
            "evercount.release(frame, time=…, every=…, epsilon=…)"
        )
    listed = plain_events(ticks)
    if isinstance(listed, list | tuple) and any(
        _foreign(kind) or kind is np.ndarray for kind in set(map(type, listed))
    ):
        return [plain_events(tick) for tick in listed]
    return listed if isinstance(listed, Iterable) else ticks


def _foreign(kind: type[Any]) -> bool:
    pandas = hasattr(kind, "itertuples") or hasattr(kind, "notna")
    return pandas or hasattr(kind, "to_pylist") or hasattr(kind, "iter_rows")


R = TypeVar("R")  # what a step releases


# types of values that cannot change and hold no others
SCALARS = frozenset({int, float, str, bool, type(None)})


class Seen:
    """The events of the last tick, as far as a retry needs them: a hash, as their owner may change
    them later. What is copied much quicker than it is hashed is kept as a copy, and hashed on
    demand."""

    def __init__(self, events: Any = None, *, digest: str | None = None) -> None:
        if digest is not None:
            self.digest = digest
        elif type(events) is list and SCALARS.issuperset(map(type, events)):
            self._kept: Any = tuple(events)
        elif isinstance(events, np.ndarray):
            self._kept = deepcopy(events)
        else:
            self.digest = fingerprint(events)

    @cached_property
    def digest(self) -> str:
        return fingerprint(self._kept)


def check_tick(tick: object) -> None:
    if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
        raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")


def read_again(last_tick: int, last: tuple[Seen, R] | None, tick: int, seen: Seen) -> R:
    """What the last step released, where it is asked again for the same tick with the same
    events."""
    if tick == last_tick and last is not None and last[0].digest == seen.digest:
        return last[1]
    if tick > last_tick:
        raise InputError(f"tick {tick} is out of turn: the next tick is {last_tick + 1}")
    raise AlreadyReleased(
        f"tick {tick} is already released and cannot be released again with other events: the "
        "difference of two releases with the same noise would reveal them. Late events belong to "
        "the next tick."
    )


def fingerprint(events: Any) -> str:
    """A digest of a tick's events, to tell a retry from an attempt to change the past. It stays
    inside the stream."""
    if not isinstance(events, np.ndarray) or events.dtype.kind not in "biuf":
        return hashlib.sha256(json.dumps(_canonical(events)).encode()).hexdigest()
    digest = hashlib.sha256(f"{events.dtype.str}{events.shape}".encode())
    digest.update(np.ascontiguousarray(events).data)
    return digest.hexdigest()


def _canonical(value: Any) -> Any:
    """The same JSON for the same events, in any process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _canonical(value.tolist())
    if isinstance(value, Mapping):
        return [
            "mapping",
            sorted(([_canonical(k), _canonical(v)] for k, v in value.items()), key=repr),
        ]
    if isinstance(value, set | frozenset):
        return ["set", sorted((_canonical(item) for item in value), key=repr)]
    if isinstance(value, Iterable):
        return [_canonical(item) for item in value]
    return repr(value)


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
        self, ticks: Sequence[Any], users: Users | None, first_tick: int, known: UserState
    ) -> CappedTicks:
        """The ticks from `first_tick` on without events beyond their user's caps; `users` name the
        user of each event.

        **Guarantee.** Whether an event counts depends on the places of its own user's events in its
        own period alone. `known` is that of the period of `first_tick`. Test:
        tests/engine/test_user_counting.py::test_caps_are_those_of_plain_python.
        """
        kept: list[Any] = []
        changes, forget = UserState(), False
        if users is None:
            assert self.query.people is not None  # users are read from the events
            users = list(map(self.query.people.users_of, ticks))
        for tick, (events, names) in enumerate(zip(ticks, users, strict=True), first_tick):
            before = changes if forget else ChainMap(changes, known)
            left, fresh = self._cap_tick(events, list(names), tick, before)
            kept.append(left)
            changes |= fresh
            if self.forgets_after(tick):
                changes, forget = UserState(), True
        return kept, UserChanges(changes, forget)

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
        kept, changes = cap_per_user(zip(users, listed, strict=True), self.caps, state, tick)
        return (sum(int(event) for event in kept) if counting else kept), changes


@dataclass(frozen=True, eq=False)
class DayCaps(UserCaps):
    """The caps of a stream whose days are revised: what comes for one day, over all its lags,
    shares them. A tick is a list of lags, and so are its users. A user is known by day and name
    until the last lag of the day."""

    lags: int = 1

    def forgets_after(self, tick: int) -> bool:
        return self.caps.within_a_tick

    def cap(
        self, ticks: Sequence[Any], users: Users | None, first_tick: int, known: UserState
    ) -> CappedTicks:
        """As `UserCaps.cap`, day by day.

        **Guarantee.** Whether an event counts depends on the places of its own user's events for
        its own day alone, and what a user has used of the caps of a day is known until its last lag
        is closed: `revisions.proof.md`, Theorem 2. Tests:
        tests/engine/test_revisions.py::test_no_persons_beat_one_day,
        ::test_caps_that_forget_are_caught.
        """
        assert users is not None
        kept: list[Any] = []
        open_days = UserState(known)
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
            kept.append(left)
            open_days = (
                UserState() if self.caps.within_a_tick else users_after(open_days, tick, self.lags)
            )
        return kept, UserChanges(open_days, forget=True)


def day_user(day: int, user: str) -> str:
    return f"{day} {user}" if isinstance(user, str) and user else user


T = TypeVar("T")


def users_after(known: Mapping[str, T], tick: int, lags: int) -> dict[str, T]:
    """The users of days that are revised after `tick`."""
    return {
        name: used for name, used in known.items() if int(name.partition(" ")[0]) + lags - 1 > tick
    }


def _counted_periods(budget: Budget) -> PeriodOf:
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
    if len(ticks) != len(users) or any(isinstance(people, str | bytes) for people in users):
        raise InputError(
            f"users name the users of each of the {len(ticks)} ticks: a sequence of strings for "
            "each tick"
        )


def _repels(engine: Factorization) -> bool:
    """Whether a change of one tick is larger where another tick changes the other way."""
    return isinstance(engine, Dense) and bool(engine.gram.min() < 0)


MOST_TICKS = 1024  # ticks of a person, each of which is looked at


def check_hands_on(
    engine: Factorization, query: Query, budget: Budget, horizon: int | None
) -> None:
    """Refuse, with the reason, a stream of persons that may not be in a chain of streams
    (`TimeRange.chain`).

    **Guarantee.** A person who uses a part of its caps in a stream that is accepted here costs at
    most that part of μ², or of ε: `privacy/composition.proof.md`, section 8, "Caps that are handed
    on". Test: tests/engine/test_carried_caps.py::test_parts_of_the_caps_cost_parts_of_the_promise.
    """
    events, per_tick, ticks = budget.caps
    if budget.unit != "user" or budget.period is not None:
        raise ParameterError(
            "caps are carried over only for persons without a period; else renewals cost nothing "
            "more"
        )
    if (
        not query.memoryless
        or query.discovery is not None
        or (query.people and not query.people.each_tick)
    ):
        raise ParameterError(
            f"{query.name!r} remembers more about persons than their caps, so budgets add up"
        )
    if ticks is None or events is not None:
        if events is None or per_tick is not None or ticks is not None:
            raise ParameterError(
                "caps are carried over as max_ticks (with max_per_tick), or as max_events alone"
            )
        return  # n of k events cost (n/k)² of what k cost
    if horizon is not None and ticks > horizon:
        raise ParameterError(
            f"max_ticks={ticks} is more than the {horizon} ticks of the stream, so it caps nothing"
        )
    if budget.pure or isinstance(engine, Fresh):
        return  # l1 norms, and ticks with noise of their own, add up
    if ticks > MOST_TICKS:
        raise ParameterError(f"caps of more than {MOST_TICKS} ticks are not carried over")
    if query.people is not None and is_replace(budget.adjacency) and _repels(engine):
        raise ParameterError(
            f"with {engine.name!r} a person in the place of another costs more: choose 'fresh'"
        )
    span = budget.touched(horizon).span
    whole = participation(engine, ticks, span)
    if any(participation(engine, part, span) * ticks > whole * part for part in range(1, ticks)):
        raise ParameterError(
            f"with {engine.name!r} some ticks of a person cost more than their share: choose "
            "'fresh'"
        )
