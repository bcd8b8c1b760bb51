"""People: how many different ones so far or in each tick, and how many are inside now, from events
that name users."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from evercount._validate import IntArray, check_count, check_whole, require_fits
from evercount.errors import EventRefused, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import TOTAL, PowerQuery, is_replace, listed_events, public_names
from evercount.queries.publishing import Publishing
from evercount.queries.sensitivities import RowFormat

NO_KEY = ""  # stands for the key of a stream without keys
LONGEST_USER = 256

# the keys under which each user has been counted. As sensitive as the events.
KeysOfUsers = dict[str, list[str]]


class UserQuery(PowerQuery):
    """What queries share whose events name their users, and keys where there are some; one user may
    have any number."""

    in_place = True
    # whether users count anew in each tick: S and Δ₁ are then those of one tick
    each_tick: ClassVar[bool] = False
    refuses_by_itself: ClassVar[bool] = True
    _legal: Mapping[str, int]  # the keys that an event may name
    _keyed: bool  # whether an event is a pair (user, key), and not a user alone

    def __init__(self, keys: Sequence[str] | None) -> None:
        if keys is None:
            self._keys: tuple[str, ...] | None = None
        else:
            self._keys = public_names("key", keys)
        require_fits(
            len(self._keys or ()), "this query", "Use fewer keys, or group rare keys under one."
        )
        self._keyed = keys is not None

    @property
    def people(self) -> Self:
        return self

    @property
    @abstractmethod
    def order_matters(self) -> bool:
        """Whether the order of a user's events within a tick changes what is counted."""

    @abstractmethod
    def user_sensitivity(
        self,
        adjacency: Adjacency,
        period: bool = False,
        *,
        falling: bool = False,
        values: bool = False,
    ) -> float:
        """S for one user with any number of events.

        **Guarantee.** As for S of `Query`, with two streams as neighbours that differ in the events
        of one user (in one period). Tests:
        tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration and
        tests/queries/test_queries_occupancy.py::test_user_sensitivity_by_enumeration.
        """

    @abstractmethod
    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ for one user with any number of events."""

    def _pairs(self, events: Any) -> list[tuple[str, str]]:
        """Check the events of a tick; give them as pairs (user, key)."""
        pairs = []
        for number, event in enumerate(listed_events(events)):
            if not self._keyed:
                user = event
                key = NO_KEY
            elif isinstance(event, list | tuple) and len(event) == 2:
                user, key = event
            else:
                raise EventRefused(number, "must be a pair (user, key)")
            if not isinstance(user, str) or not 0 < len(user) <= LONGEST_USER:
                raise EventRefused(
                    number, f"has no user, which is a string of 1 to {LONGEST_USER} characters"
                )
            if not isinstance(key, str) or key not in self._legal:
                raise EventRefused(
                    number, f"has the key {key!r:.80}, which is not in the public list"
                )
            pairs.append((user, key))
        return pairs

    def users_of(self, events: Iterable[Any]) -> list[str]:
        return [user for user, _ in self._pairs(events)]

    def check_events(self, events: Iterable[Any]) -> None:
        self._pairs(events)

    def dump_state(self, state: Any) -> Any:
        return self.load_state(state)  # a copy: the state itself goes on changing


PER_KEY = {(False, False): 1, (True, False): 2, (False, True): 2, (True, True): 5}
"""S of one user for each key under which the user counts, by (replace, period)."""


class DistinctUsers(UserQuery):
    """How many different users have had an event so far; with `keys`, how many under each key.

    An event is a user (a text of 1 to 256 characters), or with keys a pair (user, key). A user
    counts once, at the first event; under at most `max_keys` keys, the first ones. Later events
    change nothing, so a user may have any number of events: with `Budget(..., unit="user")` no cap
    is needed, and the guarantee says so. A tick's events count in their order.

    Guarantee. Let c be the smaller of `max_keys` and the number of keys (1 without keys). One user,
    any number of events: S = c for add-remove, 2c for replace by another user's events. One user's
    events of one period (a budget with `period`): 2c and 5c, because who is gone now may count for
    the first time later. One event: S = 2 for add-remove (the first event is gone: −1 now, +1 at
    the next); replace: 2 without keys, 4 if every key counts (c is the number of keys), else 8.
    With `total` one more cell counts all users: user-level S grows by that of c = 1, event-level S
    by 2. Proof: `distinct_users.proof.md`. Assumption: one id per person. Tests:
    tests/queries/test_queries_distinct_users.py::test_event_sensitivity_by_enumeration and
    tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration.

    Args:
        keys: the public list of keys; None to count all users together.
        max_keys: under how many keys a user counts at most.
        total: with keys, whether all users together are counted too, as the first number.

    Raises:
        ParameterError: a parameter is not legal.

    >>> query = DistinctUsers()
    >>> row, state = query.encode(query.initial_state(), ["ann", "bob", "ann"])
    >>> row.tolist(), query.encode(state, ["bob", "cyd"])[0].tolist()
    ([2], [1])
    """

    name: ClassVar[str] = "distinct-users"
    cells = 0
    labels: tuple[str, ...] = ()
    monotone = True

    def __init__(
        self, keys: Sequence[str] | None = None, max_keys: int = 1, total: bool = False
    ) -> None:
        super().__init__(keys)
        self._legal = self._index = {key: cell for cell, key in enumerate(self._keys or (NO_KEY,))}
        self._most = check_count("max_keys", max_keys)
        if self._most > len(self._index):
            raise ParameterError(f"max_keys={max_keys} is more than the {len(self._index)} keys")
        if not isinstance(total, bool) or (total and (self._keys is None or TOTAL in self._keys)):
            raise ParameterError(
                f"total is true or false; it goes with keys, none of them called {TOTAL!r}"
            )
        self._total = total
        self.cells = len(self._index) + total
        self.labels = self._keys or ("users",)
        if total:
            self.labels = (TOTAL, *self.labels)

    @property
    def order_matters(self) -> bool:
        return self._most < len(self._index)

    @property
    def rows(self) -> RowFormat:
        keys = self._keys
        if keys is None:
            return RowFormat(("user",))
        return RowFormat(("user", "key"), list_keys=lambda: (keys, False))

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """S of the class. Δ₁ for one event is 2, and 4 under replace with keys; 2 more with
        `total`.

        **Guarantee.** Proof: `distinct_users.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        one = 2.0
        if is_replace(adjacency) and self._keys is not None:
            one = 4.0
            if self.order_matters and power == 2:
                one = 8.0
        return one + 2.0 * self._total

    def user_sensitivity(self, adjacency: Adjacency, period: bool = False, **on: bool) -> float:
        return float(PER_KEY[is_replace(adjacency), period] * (self._most + self._total))

    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ for one user with any number of events: c changes of 1, twice that under replace, c
        more in a period."""
        return float((is_replace(adjacency) + 1 + period) * (self._most + self._total))

    def initial_state(self) -> KeysOfUsers:
        return {}

    def encode(self, state: KeysOfUsers, events: Any) -> tuple[IntArray, KeysOfUsers]:
        pairs = self._pairs(events)
        row = np.zeros(self.cells, np.int64)
        for user, key in pairs:
            if user not in state:
                state[user] = []
                row[0] += self._total
            own_keys = state[user]
            if key not in own_keys and len(own_keys) < self._most:
                own_keys.append(key)
                row[self._index[key] + self._total] += 1
        return row, state

    def load_state(self, data: Any) -> KeysOfUsers:
        return {user: list(keys) for user, keys in data.items()}

    def with_keys(self, keys: Sequence[Any]) -> DistinctUsers:
        if self._keys is None:
            raise ParameterError(
                f"{self.name!r} counts all users together: it has no keys that others could join"
            )
        return type(self)(**{**self.parameters(), "keys": [*self._keys, *keys]})

    def parameters(self) -> dict[str, Any]:
        keys = None if self._keys is None else list(self._keys)
        return {"keys": keys, "max_keys": self._most, "total": self._total}


class ActiveUsers(DistinctUsers):
    """How many different users had an event in each tick: daily active users, and the like.

    An event is as for `DistinctUsers`. In a tick a user counts once, with keys under at most
    `max_keys` keys, the first ones. Published is the sum over all ticks so far; the view `per-tick`
    tells the users of each tick, with its exact error. With `Budget(..., unit="user")` a user may
    have any number of events; the budget says in how many ticks one user counts (`max_ticks`), or
    protects what a user does in one `period`.

    Guarantee. Let c be the smaller of `max_keys` and the number of keys (1 without keys). It has no
    memory, so each event changes its own tick. One user, any number of events: a tick changes by c
    for add-remove, 2c for replace, in squares; `engine/build.py::squared_norm` puts the ticks of a
    user together. One event: S = 1 without keys; with keys 1 for add-remove and 2 for replace if
    every key counts (c is the number of keys), else 2 and 8. Proof: `distinct_users.proof.md`,
    "Active users". Assumption: one id per person. Tests:
    tests/queries/test_queries_distinct_users.py::test_event_sensitivity_by_enumeration and
    tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration.

    Args:
        keys: the public list of keys; None to count all users together.
        max_keys: under how many keys of one tick a user counts at most.

    Raises:
        ParameterError: a parameter is not legal.

    >>> query = ActiveUsers()
    >>> [query.encode(None, tick)[0].tolist() for tick in (["ann", "bob", "ann"], ["bob"])]
    [[2], [1]]
    """

    name: ClassVar[str] = "active-users"
    in_place = False
    whole_ticks: ClassVar[bool] = True
    each_tick: ClassVar[bool] = True

    def __init__(self, keys: Sequence[str] | None = None, max_keys: int = 1) -> None:
        super().__init__(keys, max_keys)

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """S of the class. Δ₁ for one event is S where every key counts, else 2 and 4.

        **Guarantee.** Proof: `distinct_users.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        replaced = is_replace(adjacency)
        if self.order_matters and replaced:
            return 2.0 ** (power + 1)
        if self.order_matters:
            return 2.0
        if replaced and self._keys is not None:
            return 2.0
        return 1.0

    def user_sensitivity(self, adjacency: Adjacency, period: bool = False, **on: bool) -> float:
        return float(self._most * (1 + is_replace(adjacency)))

    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ of one tick for one user: c changes of 1, twice that under replace."""
        return self.user_sensitivity(adjacency)

    def initial_state(self) -> Any:
        return None

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        return super().encode({}, events)[0], state

    def load_state(self, data: Any) -> Any:
        return None

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in super().parameters().items() if name != "total"}


IN = "in"
OUT = "out"
NO_VIEWS = (
    "the number inside is not a sum over ticks; in Python, Releases.between has its change with "
    "its error"
)
Places = dict[str, dict[str, Any]]
"""`inside`: where everyone is who is inside; `events`: how many events each has had. As sensitive
as the events."""


def _histories(adjacency: Adjacency, period: bool) -> int:
    """Count the histories of one id that neighbours involve: the user's; that without one period;
    that of the id in their place."""
    return 1 + period + is_replace(adjacency)


class Occupancy(UserQuery):
    """How many people are inside after each tick; with `keys`, how many under each key.

    An event is a pair (user, where). `where` is "in" or "out"; with `keys` it is a key or "out". A
    person is where their last event says: another key moves them, and an event that says where they
    are already changes nothing. A tick's events count in their order. Nobody is inside before the
    first tick.

    With `max_events` = k a person's first k events count, and later ones are ignored: whoever is
    inside after k events stays inside. `Budget(..., unit="user")` then protects everything under
    one id, however many events that is. Without it events are protected, or users by noise on the
    numbers themselves (`direct`, which needs a horizon).

    Guarantee. Let a = 1 without keys or with one, else 2, and n = a·k − a + 1. One event, no cap:
    S = 2a for add-remove, 8a for replace. With a cap: 5a and 20a. One user: on factorizations whose
    Gram matrix falls S = n for add-remove, 4n − 2 for replace by another user's events; on others
    up to k² and 4k². The number inside changes by at most 1 (replace: a), squared, whatever k is.
    One period of a user: as for replace; replace by another id's events of that period: (√n + √(4n
    − 2))², on others 9k²; the number inside changes by at most 3 + a, squared. Proof:
    `occupancy.proof.md`. Assumption: one id per person. Tests:
    tests/queries/test_every_sensitivity.py::test_claims_by_enumeration and
    tests/queries/test_queries_occupancy.py::test_user_sensitivity_by_enumeration.

    Args:
        keys: the public list of places, none of them called "out"; None where inside is one place.
        max_events: how many events of a person count at most, over the whole stream; None for all.

    Raises:
        ParameterError: a parameter is not legal.

    >>> query = Occupancy(["ward a", "ward b"])
    >>> row, state = query.encode(query.initial_state(), [("ann", "ward a"), ("bob", "ward a")])
    >>> row.tolist(), query.encode(state, [("ann", "ward b"), ("bob", "out")])[0].tolist()
    ([2, 0], [-2, 1])
    """

    name: ClassVar[str] = "occupancy"
    cells = 0
    labels: tuple[str, ...] = ()
    order_matters = True
    publishing = Publishing(why_no_views=NO_VIEWS)
    # whoever is inside when a successor starts comes in again: old data
    starts_empty: ClassVar[bool] = False

    def __init__(self, keys: Sequence[str] | None = None, max_events: int | None = None) -> None:
        super().__init__(keys)
        if OUT in (self._keys or ()):
            raise ParameterError(f"a key cannot be called {OUT!r}: that is the event of leaving")
        self._index = {key: cell for cell, key in enumerate(self._keys or (IN,))}
        self._legal = {**self._index, OUT: -1}
        self._keyed = True
        self._most = max_events
        if max_events is not None:
            self._most = check_whole("max_events", max_events, 1, 1_000_000)
        self.cells = len(self._index)
        self.labels = self._keys or ("inside",)
        # how many cells one event changes at most: the a of the guarantee
        self._cells_per_event = min(2, self.cells)

    @property
    def rows(self) -> RowFormat:
        return RowFormat(
            ("user", "key"), list_keys=lambda: (tuple(self._legal), False), repeats=True
        )

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """S of the class. Δ₁ for one event is 2a, with a cap 3a; twice that under replace.

        **Guarantee.** Proof: `occupancy.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        each = 2 if self._most is None else 1 + 2**power
        if is_replace(adjacency):
            each *= 2**power
        return float(each * self._cells_per_event)

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float:
        """v² for one event: one person is elsewhere, under replace two are.

        **Guarantee.** Proof: `occupancy.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        people = 2 if is_replace(adjacency) else 1
        return float(self._cells_per_event * people**2)

    def user_sensitivity(
        self,
        adjacency: Adjacency,
        period: bool = False,
        *,
        falling: bool = False,
        values: bool = False,
    ) -> float:
        """S for one user with any number of events: see the class. Infinite without a cap, except
        on values.

        With `period` neighbours differ in what one user does in a period. The cap goes on counting
        over all of them, so these are two histories of that user; under replace the other id's
        history comes on top, which makes three.
        """
        histories = _histories(adjacency, period)
        bound = math.inf
        if values:
            bound = self._value_bound(histories)
        if self._most is None:
            return bound
        if falling:
            return min(bound, self._falling_bound(self._most, histories))
        return min(bound, self._general_bound(self._most, histories))

    def _value_bound(self, histories: int) -> float:
        """Bound the squared change of the number inside, whatever the cap is."""
        a = self._cells_per_event
        return {1: 1.0, 2: float(a), 3: 3.0 + a}[histories]

    def _falling_bound(self, most: int, histories: int) -> float:
        """Bound S for `most` events where the Gram matrix falls."""
        one = float(self._changes(most))
        two = 4 * one - 2
        three = one + two + 2 * math.sqrt(one * two)  # (√one + √two)²
        return {1: one, 2: two, 3: three}[histories]

    def _general_bound(self, most: int, histories: int) -> float:
        """Bound S for `most` events on every factorization."""
        entries = (most + 1) // 2
        exits = most // 2
        squares = entries**2 + exits**2
        if self._cells_per_event == 2:
            squares += exits**2 + ((most - 1) // 2) ** 2
        return float(squares * histories**2)

    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ for one user with any number of events: the number of changes of one history, times
        their number."""
        if self._most is None:
            raise ParameterError(
                "a person may come and go any number of times: give max_events, or a positive delta"
            )
        return float(self._changes(self._most) * _histories(adjacency, period))

    def _changes(self, events: int) -> int:
        """Count the changes by 1 that so many events of one user make at most: the first event
        changes one cell."""
        return self._cells_per_event * (events - 1) + 1

    def initial_state(self) -> Places:
        return {"inside": {}, "events": {}}

    def encode(self, state: Places, events: Any) -> tuple[IntArray, Places]:
        pairs = self._pairs(events)
        row = np.zeros(self.cells, np.int64)
        inside = state["inside"]
        event_counts = state["events"]
        for user, where in pairs:
            if self._most is not None:
                if event_counts.get(user, 0) >= self._most:
                    continue
                event_counts[user] = event_counts.get(user, 0) + 1
            before = inside.pop(user, None)
            if before is not None:
                row[self._index[before]] -= 1
            if where != OUT:
                inside[user] = where
                row[self._index[where]] += 1
        return row, state

    def load_state(self, data: Any) -> Places:
        return {"inside": dict(data["inside"]), "events": dict(data["events"])}

    def parameters(self) -> dict[str, Any]:
        keys = None if self._keys is None else list(self._keys)
        return {"keys": keys, "max_events": self._most}
