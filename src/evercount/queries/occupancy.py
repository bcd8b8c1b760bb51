"""How many are inside now (patients in wards, subscribers, visitors), from events of coming, moving and leaving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count
from evercount.errors import ParameterError
from evercount.queries.base import Adjacency, is_replace
from evercount.queries.capabilities import Rows
from evercount.queries.distinct_users import UserQuery
from evercount.queries.publishing import Publishing

IN, OUT = "in", "out"
MOST_EVENTS = 1_000_000
PUBLISHED = Publishing(
    no_views="the number inside is not a sum over ticks; in Python, Releases.between has its change with its error"
)

Places = dict[str, dict[str, Any]]
"""`inside`: where everyone is who is inside; `events`: how many events each has had. As sensitive as the events."""


class Occupancy(UserQuery):
    """How many people are inside after each tick; with `keys`, how many under each key.

    An event is a pair (user, where). `where` is "in" or "out"; with `keys` it is a key or "out". A person is where
    their last event says: another key moves them, and an event that says where they are already changes nothing. A
    tick's events count in their order. Nobody is inside before the first tick.

    With `max_events` = k a person's first k events count, and later ones are ignored: whoever is inside after k events
    stays inside. `Budget(..., unit="user")` then protects everything under one id, however many events that is.
    Without it events are protected, or users by noise on the numbers themselves (`direct`, which needs a horizon).

    Guarantee. Let a = 1 without keys or with one, else 2, and n = a·k − a + 1.
    One event, no cap: S = 2a for add-remove, 8a for replace. With a cap: 5a and 20a.
    One user: on factorizations whose Gram matrix falls S = n for add-remove, 4n − 2 for replace by another user's
    events; on others up to k² and 4k². The number inside changes by at most 1 (replace: a), squared, whatever k is.
    Proof: `occupancy.proof.md`. Assumption: one id per person. Tests:
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
    publishing = PUBLISHED
    starts_empty: ClassVar[bool] = False  # whoever is inside when a successor starts comes in again: old data

    def __init__(self, keys: Sequence[str] | None = None, max_events: int | None = None) -> None:
        super().__init__(keys)
        if OUT in (self._keys or ()):
            raise ParameterError(f"a key cannot be called {OUT!r}: that is the event of leaving")
        self._index = {key: cell for cell, key in enumerate(self._keys or (IN,))}
        self._legal, self._keyed = {**self._index, OUT: -1}, True
        self._most = None if max_events is None else check_count("max_events", max_events)
        if self._most is not None and self._most > MOST_EVENTS:
            raise ParameterError(f"max_events is at most {MOST_EVENTS}, got {max_events}")
        self.cells, self.labels = len(self._index), self._keys or ("inside",)
        self._touched = min(2, self.cells)

    @property
    def rows(self) -> Rows:
        return Rows(("user", "key"), list_keys=lambda: (tuple(self._legal), False), repeats=True)

    # -- one event -----------------------------------------------------------------------------------------------------

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return float((2 if self._most is None else 5) * self._touched * (4 if is_replace(adjacency) else 1))

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """Δ₁ for one event: 2a, with a cap 3a; twice that under replace.

        **Guarantee.** Proof: `occupancy.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        return float((2 if self._most is None else 3) * self._touched * (2 if is_replace(adjacency) else 1))

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float:
        """v² for one event: one person is elsewhere, under replace two are.

        **Guarantee.** Proof: `occupancy.proof.md`. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        return float(self._touched * (4 if is_replace(adjacency) else 1))

    # -- one user ------------------------------------------------------------------------------------------------------

    def user_sensitivity(
        self, adjacency: Adjacency, period: bool = False, *, falling: bool = False, values: bool = False
    ) -> float:
        """S for one user with any number of events: see the class. Infinite without a cap, except on values.

        With `period` neighbours differ in what one user does in a period. The cap goes on counting over all of them, so
        these are any two histories of one user: as costly as a user in place of another.
        """
        replaced = is_replace(adjacency) or period
        found = [math.inf]
        if values:
            found.append(self._touched if replaced else 1)
        if self._most is not None and falling:
            changes = self._changes(self._most)
            found.append(4 * changes - 2 if replaced else changes)
        elif self._most is not None:
            half, rest = (self._most + 1) // 2, self._most // 2
            moves = rest**2 + ((self._most - 1) // 2) ** 2 if self._touched == 2 else 0
            found.append((half**2 + rest**2 + moves) * (4 if replaced else 1))
        return float(min(found))

    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ for one user with any number of events: the number of changes, twice that under replace or in a period."""
        replaced = is_replace(adjacency) or period
        if self._most is None:
            raise ParameterError("a person may come and go any number of times: give max_events, or a positive delta")
        return float(self._changes(self._most) * (2 if replaced else 1))

    def _changes(self, events: int) -> int:
        """How many cells so many events of one user change at most, each time by 1: the first event changes one."""
        return self._touched * events - self._touched + 1

    # -- from events to increments -------------------------------------------------------------------------------------

    def initial_state(self) -> Places:
        return {"inside": {}, "events": {}}

    def encode(self, state: Places, events: Any) -> tuple[IntArray, Places]:
        pairs = self._pairs(events)
        row = np.zeros(self.cells, np.int64)
        inside, seen = state["inside"], state["events"]
        for user, where in pairs:
            if self._most is not None:
                if seen.get(user, 0) >= self._most:
                    continue
                seen[user] = seen.get(user, 0) + 1
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
        return {"keys": None if self._keys is None else list(self._keys), "max_events": self._most}
