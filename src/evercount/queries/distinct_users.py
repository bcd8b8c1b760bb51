"""DistinctUsers: how many different people so far, overall or per key, however many events each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count, check_name
from evercount.errors import InputError, ParameterError
from evercount.queries.base import Adjacency, Query
from evercount.queries.histogram import Histogram

ADJACENCIES = ("add-remove", "replace")
ONLY = ""
"""The one key of a stream without keys."""
LONGEST_USER = 256

Seen = dict[str, list[str]]
"""The keys under which each user has been counted. As sensitive as the events."""


class DistinctUsers(Query):
    """How many different users have had an event so far; with `keys`, how many under each key.

    An event is a user (a text of 1 to 256 characters), or with keys a pair (user, key). A user counts once, at the
    first event; under at most `max_keys` keys, the first ones. Later events change nothing, so a user may have any
    number of events: with `Budget(..., unit="user")` no cap is needed, and the guarantee says so. A tick's events count
    in their order. In Python only: declarations (files, service) refuse it.

    Guarantee. Let c be the smaller of `max_keys` and the number of keys (1 without keys).
    One user, any number of events: S = c for add-remove, 2c for replace by another user's events.
    One event: S = 2 for add-remove (the first event is gone: −1 now, +1 at the next); replace: 2 without keys, 4 if
    every key counts (c is the number of keys), else 8. Proof: `distinct_users.proof.md`. Assumption: one id per person.
    Tests: tests/queries/test_queries_distinct_users.py::test_event_sensitivity_by_enumeration and
    tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration.

    Args:
        keys: the public list of keys; None to count all users together.
        max_keys: under how many keys a user counts at most.

    Raises:
        ParameterError: a parameter is not legal.

    >>> query = DistinctUsers()
    >>> row, state = query.encode(query.initial_state(), ["ann", "bob", "ann"])
    >>> row.tolist(), query.encode(state, ["bob", "cyd"])[0].tolist()
    ([2], [1])
    """

    name: ClassVar[str] = "distinct-users"
    names_users: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    def __init__(self, keys: Sequence[str] | None = None, max_keys: int = 1) -> None:
        self._keys: tuple[str, ...] | None = None
        if keys is not None:
            if isinstance(keys, int):
                raise ParameterError(f"keys must be a list of texts (or None), got {keys!r}")
            self._keys = tuple(Histogram(keys).labels)
        self._index = {key: cell for cell, key in enumerate(self._keys or (ONLY,))}
        self._most = check_count("max_keys", max_keys)
        if self._most > len(self._index):
            raise ParameterError(f"max_keys={max_keys} is more than the {len(self._index)} keys")

    @property
    def cells(self) -> int:
        """One for each key."""
        return len(self._index)

    @property
    def labels(self) -> tuple[str, ...]:
        """The keys."""
        return ("users",) if self._keys is None else self._keys

    @property
    def monotone(self) -> bool:
        """Users never leave."""
        return True

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S for one event: see the class."""
        check_name("adjacency", adjacency, ADJACENCIES)
        if adjacency == "add-remove" or self._keys is None:
            return 2.0
        return 4.0 if self._most == len(self._keys) else 8.0

    def user_sensitivity(self, adjacency: Adjacency) -> float:
        """S for one user with any number of events: see the class."""
        check_name("adjacency", adjacency, ADJACENCIES)
        return float(self._most if adjacency == "add-remove" else 2 * self._most)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """Δ₁ for one event: 2, and 4 under replace with keys.

        **Guarantee.** Proof: `distinct_users.proof.md`. Test:
        tests/queries/test_l1_sensitivity.py::test_distinct_users_reach_their_claim.
        """
        check_name("adjacency", adjacency, ADJACENCIES)
        return 2.0 if adjacency == "add-remove" or self._keys is None else 4.0

    def user_l1_sensitivity(self, adjacency: Adjacency) -> float:
        """Δ₁ for one user with any number of events: each change is 1, so it is the S of `user_sensitivity`."""
        return self.user_sensitivity(adjacency)

    def initial_state(self) -> Seen:
        """Nobody seen."""
        return {}

    def encode(self, state: Seen, events: Any) -> tuple[IntArray, Seen]:
        """New users of one tick; the state is changed in place after all events are checked."""
        if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
            raise InputError(
                f"a tick is a sequence of events, not {type(events).__name__}; for one event write [event]"
            )
        pairs = [self._checked(number, event) for number, event in enumerate(events)]
        row = np.zeros(self.cells, np.int64)
        for user, key in pairs:
            seen = state.setdefault(user, [])
            if key not in seen and len(seen) < self._most:
                seen.append(key)
                row[self._index[key]] += 1
        return row, state

    def _checked(self, number: int, event: Any) -> tuple[str, str]:
        where = f"event {number} of the tick (from 0)"
        if self._keys is None:
            user, key = event, ONLY
        elif isinstance(event, list | tuple) and len(event) == 2:
            user, key = event
        else:
            raise InputError(f"{where} must be a pair (user, key)")
        if not isinstance(user, str) or not 0 < len(user) <= LONGEST_USER:
            raise InputError(f"{where}: a user is a text of 1 to {LONGEST_USER} characters")
        if not isinstance(key, str) or key not in self._index:
            raise InputError(f"{where} has the key {key!r:.80}, which is not in the public list")
        return user, key

    def load_state(self, data: Any) -> Seen:
        """The inverse of `dump_state`."""
        return {user: list(keys) for user, keys in data.items()}

    def dump_state(self, state: Seen) -> Seen:
        """A copy: the state itself goes on changing."""
        return self.load_state(state)

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"keys": None if self._keys is None else list(self._keys), "max_keys": self._most}
