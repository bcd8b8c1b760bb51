"""Life: one declaration, the rows that a table gets, and what the operator does, as plain data.

A life can be printed, made smaller and run again: nothing in it is an object of the program under
attack. Instants are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A row: when it happened, whose it is, what it says, and when it reaches the operator."""

    at: int
    person: str
    key: str = "a"
    value: int = 1
    arrives: int = 0

    @property
    def seen(self) -> int:
        """The instant from which on the operator has the row."""
        return max(self.at, self.arrives)


History = tuple[Event, ...]


class Step(NamedTuple):
    """Something that the operator does, by name (`OPERATIONS`)."""

    name: str
    argument: Any = None


OPERATIONS = {
    "release": "release all ticks that have ended by an instant",
    "steps": "the same, tick by tick",
    "restart": "stop, and go on from what is stored",
    "renew": "from now on, go on with a new stream where a horizon ends",
    "second": "declare a second stream over the same rows, on the same secret",
    "join": "let keys join",
    "hide": "show a key no more",
    "note": "write a note on a tick",
    "missing": "declare a tick missing",
    "move": "give the stream another home: a store for a state file, or back",
    "kill": "the next run dies in the middle",
    "output": "name another state for the output that is published",
    "new noise": "start again with new noise over the same rows",
    "retire": "retire the stream",
    "backup": "copy the store",
    "old copy": "put the copy in the place of the store",
    "shards": "cut the stream into shards",
    "again": "give the last command once more",
}


@dataclass(frozen=True)
class Life:
    """A life of one stream or several.

    Args:
        way: the way in, by name (`ways.py`).
        declaration: the fields of the first stream, as `StreamDeclaration.from_dict` takes them.
        history: the rows.
        steps: what the operator does, in this order.
        total: (ε, δ) of a ledger or of the cap of a store; None without one.
        seed: what its secret follows from.
    """

    way: str
    declaration: Mapping[str, Any]
    history: History
    steps: tuple[Step, ...]
    total: tuple[float, float] | None = None
    seed: str = ""

    def with_history(self, history: History) -> Life:
        return replace(self, history=history)

    def declare(self, **fields: Any) -> Life:
        """The same life of another declaration."""
        return replace(self, declaration={**self.declaration, **fields})

    @property
    def operations(self) -> frozenset[str]:
        return frozenset(step.name for step in self.steps)

    @property
    def features(self) -> frozenset[str]:
        """What is special about the declaration and the rows, for the coverage of the generator."""
        declared = self.declaration
        budget = declared["budget"]
        query = declared["query"]
        found = {
            f"query {query['name']}",
            f"unit {budget['unit']}",
            f"adjacency {budget['adjacency']}",
            f"way {self.way}",
            f"late {declared.get('late', 'drop')}",
            "delta 0" if not budget["delta"] else "delta above 0",
        }
        for name in ("period", "max_events", "max_per_tick", "max_ticks"):
            if budget.get(name) is not None:
                found.add(name)
        for name in ("views", "factorization", "carry_caps", "wait", "postprocess"):
            if declared.get(name):
                found.add(name)
        if declared.get("zone") != "UTC":
            found.add("zone with clock changes")
        if self.total is not None:
            found.add("ledger or cap")
        if len({event.person for event in self.history}) > 1:
            found.add("several persons")
        if declared["horizon"] is None:
            found.add("no horizon")
        return frozenset(found)
