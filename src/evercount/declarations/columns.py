"""Which column of a row holds what: for doors whose events are rows of a table (files, Spark)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, Strict, model_serializer

from evercount.declarations.table import table
from evercount.errors import ParameterError
from evercount.privacy import Budget
from evercount.queries import Query

Column = Annotated[str, Field(min_length=1)]
OptionalColumn = Annotated[Column | None, Field(description="the name of a column")]


@table("columns", "columns.")
class Columns:
    """The columns of an event table.

    >>> Columns("when", key="region").used
    ('when', 'region')
    >>> Columns("when", key=("region", "sex")).used
    ('when', 'region', 'sex')
    >>> Columns("when", levels=("state", "county")).used
    ('when', 'state', 'county')
    """

    time: Annotated[Column, Field(description="the name of the column that holds the time of an event")]
    key: Annotated[
        Column | Annotated[tuple[Column, ...], Strict(False), Field(min_length=2)] | None,
        Field(description="the name of a column, or a list of two or more"),
    ] = None
    value: OptionalColumn = None
    user: OptionalColumn = None
    levels: Annotated[
        tuple[Column, ...],
        Strict(False),
        Field(description='a list of columns such as ["state", "county"], from the top level down'),
    ] = ()
    order: OptionalColumn = None  # puts events of one user and time in order, where rows have none (Spark)

    def __post_init__(self) -> None:
        for what, names in (("key", self.key_columns), ("levels", self.levels)):
            if len(set(names)) < len(names):
                raise ParameterError(f"{what} must be different columns, got {', '.join(names)}")
        if self.order is not None and self.user is None:
            raise ParameterError("`order` requires `user`: it orders each user's events")

    @property
    def used(self) -> tuple[str, ...]:
        named = (self.time, *self.key_columns, *self.levels, self.value, self.user, self.order)
        return tuple(name for name in named if name is not None)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.key if isinstance(self.key, tuple) else () if self.key is None else (self.key,)

    def check_fit(self, query: Query, budget: Budget) -> None:
        """Refuse columns that the events of a query do not have, and miss none that they have."""
        rows = query.rows
        if rows is None:
            raise ParameterError(
                f"the events of {query.name!r} (edges, letters, your own) are not rows of a table: stream them in "
                "Python, or send them to a service"
            )
        for name, column in (("key", self.key), ("value", self.value), ("levels", self.levels or None)):
            if name in rows.columns and column is None:
                raise ParameterError(f"the query {query.name!r} needs the column of the {name}")
            if name not in rows.columns and column is not None:
                raise ParameterError(f"the query {query.name!r} has no {name}: omit its column")
        if len(self.levels) != rows.levels:
            raise ParameterError(
                f"events of {query.name!r} have {rows.levels} names, and levels has {len(self.levels)} columns"
            )
        if (self.user is not None) != (budget.unit == "user" or query.people is not None):
            raise ParameterError(
                "the column `user` is required by budgets of unit 'user' and by queries that count users, and refused "
                "elsewhere"
            )

    @model_serializer(mode="wrap")
    def _named(self, write: Any) -> dict[str, Any]:
        return {name: column for name, column in write(self).items() if column}


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
