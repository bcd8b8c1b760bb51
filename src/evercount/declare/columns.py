"""Which column of a row holds what: for doors whose events are rows of a table (files, Spark)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from evercount.errors import ParameterError, UnknownName


@dataclass(frozen=True)
class Columns:
    """The columns of an event table.

    Args:
        time: when the event happened.
        key: the key, for queries that count per key.
        value: the number, for queries that add values up.
        user: whose event it is, where the budget protects users.
        order: a whole number that puts events of one user and one time in order, such as a sequence number. Doors that
            read rows in no order (Spark) need it.
        levels: one column for each level of a rollup, from the top.

    >>> Columns("when", key="region").used
    ('when', 'region')
    >>> Columns("when", levels=("state", "county")).used
    ('when', 'state', 'county')
    """

    time: str
    key: str | None = None
    value: str | None = None
    user: str | None = None
    levels: tuple[str, ...] = ()
    order: str | None = None

    def __post_init__(self) -> None:
        if type(self.levels) is not tuple or not all(isinstance(name, str) and name for name in self.levels):
            raise ParameterError(f"levels must be a list of columns, from the top level down, got {self.levels!r:.80}")
        if len(set(self.levels)) < len(self.levels):
            raise ParameterError(f"levels must be different columns, got {', '.join(self.levels)}")
        for what, name in self._named().items():
            if (name is None and what == "time") or (name is not None and not (isinstance(name, str) and name)):
                raise ParameterError(f"the column of the {what} must be a name, got {name!r:.80}")
        if self.order is not None and self.user is None:
            raise ParameterError("a column of the order goes with a column of the user: it orders each user's events")

    def _named(self) -> dict[str, str | None]:
        """The columns that are one name."""
        return {"time": self.time, "key": self.key, "value": self.value, "user": self.user, "order": self.order}

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        named = (self.time, self.key, *self.levels, self.value, self.user, self.order)
        return tuple(name for name in named if name is not None)

    @classmethod
    def from_dict(cls, data: Any) -> Columns:
        """The inverse of `to_dict`; ParameterError names what is wrong."""
        known = tuple(field.name for field in fields(cls))
        if not isinstance(data, dict):
            raise ParameterError('columns must be a table such as {time = "when", key = "region"}')
        for name in data:
            if name not in known:
                raise UnknownName("column", name, known)
        if "time" not in data:
            raise ParameterError("columns lacks time: name the column that holds the time of an event")
        levels = data.get("levels", ())
        if not isinstance(levels, list | tuple):
            raise ParameterError(f'levels must be a list of columns such as ["state", "county"], got {levels!r:.80}')
        return cls(**{**data, "levels": tuple(levels)})

    def to_dict(self) -> dict[str, str | list[str]]:
        """The columns that are named."""
        found: dict[str, str | list[str]] = {n: column for n, column in self._named().items() if column is not None}
        return {**found, "levels": list(self.levels)} if self.levels else found
