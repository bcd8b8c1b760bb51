"""Which column of a row holds what: for doors whose events are rows of a table (files, Spark)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from evercount.errors import ParameterError, UnknownName


@dataclass(frozen=True)
class Columns:
    """The columns of an event table.

    >>> Columns("when", key="region").used
    ('when', 'region')
    >>> Columns("when", key=("region", "sex")).used
    ('when', 'region', 'sex')
    >>> Columns("when", levels=("state", "county")).used
    ('when', 'state', 'county')
    """

    time: str
    key: str | tuple[str, ...] | None = None
    value: str | None = None
    user: str | None = None
    levels: tuple[str, ...] = ()
    order: str | None = None
    """Puts events of one user and one time in order, for doors that read rows in no order (Spark)."""

    def __post_init__(self) -> None:
        for what, names in (("key", self.key if isinstance(self.key, tuple) else ()), ("levels", self.levels)):
            if type(names) is not tuple or not all(isinstance(name, str) and name for name in names):
                raise ParameterError(f"{what} must be a list of columns, from the top level down, got {names!r:.80}")
            if len(set(names)) < len(names):
                raise ParameterError(f"{what} must be different columns, got {', '.join(names)}")
        if isinstance(self.key, tuple) and len(self.key) < 2:
            raise ParameterError(f"the columns of the key must be two or more names, got {self.key!r:.80}")
        for what, name in self._named().items():
            if isinstance(name, tuple):
                continue
            if (name is None and what == "time") or (name is not None and not (isinstance(name, str) and name)):
                raise ParameterError(f"the column of the {what} must be a name, got {name!r:.80}")
        if self.order is not None and self.user is None:
            raise ParameterError("`order` requires `user`: it orders each user's events")

    def _named(self) -> dict[str, str | tuple[str, ...] | None]:
        """The columns of each kind but the levels, in the order of `to_dict`."""
        return {"time": self.time, "key": self.key, "value": self.value, "user": self.user, "order": self.order}

    @property
    def used(self) -> tuple[str, ...]:
        named = (self.time, *self.key_columns, *self.levels, self.value, self.user, self.order)
        return tuple(name for name in named if name is not None)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.key if isinstance(self.key, tuple) else () if self.key is None else (self.key,)

    @classmethod
    def from_dict(cls, data: Any) -> Columns:
        """The columns of a table of names; the inverse of `to_dict`.

        >>> Columns.from_dict({"time": "when", "key": ["region", "sex"]}).key
        ('region', 'sex')
        """
        known = tuple(field.name for field in fields(cls))
        if not isinstance(data, dict):
            raise ParameterError('columns must be a table such as {time = "when", key = "region"}')
        for name in data:
            if name not in known:
                raise UnknownName("column", name, known)
        if "time" not in data:
            raise ParameterError("columns lacks time: name the column that holds the time of an event")
        key, levels = data.get("key"), data.get("levels", ())
        if not isinstance(levels, list | tuple):
            raise ParameterError(f'levels must be a list of columns such as ["state", "county"], got {levels!r:.80}')
        return cls(**{**data, "key": tuple(key) if isinstance(key, list) else key, "levels": tuple(levels)})

    def to_dict(self) -> dict[str, str | list[str]]:
        """The columns that are named.

        >>> Columns("when", key="region").to_dict()
        {'time': 'when', 'key': 'region'}
        """
        named = {name: list(column) if isinstance(column, tuple) else column for name, column in self._named().items()}
        table: dict[str, str | list[str]] = {name: column for name, column in named.items() if column is not None}
        return {**table, "levels": list(self.levels)} if self.levels else table


def combined_key(parts: Sequence[str]) -> str:
    """The one key of several columns: its parts as a line of a CSV.

    A part with a comma or a quotation mark is quoted, so different parts never make the same key. One part alone is the
    key itself.

    >>> combined_key(["Tyrol", "f"]), combined_key(["Hall, Tyrol", "f"])
    ('Tyrol,f', '"Hall, Tyrol",f')
    """
    if len(parts) == 1:
        return parts[0]
    return ",".join('"' + part.replace('"', '""') + '"' if "," in part or '"' in part else part for part in parts)
