"""The fields of a declaration: how each is read, written, described and refused, and which column
of a row holds what.

A table of a declaration is a frozen dataclass that pydantic checks. The types of its fields make
the TOML and JSON forms, the schema of the HTTP API and the refusals. A field's description
completes the sentence "FIELD must be …".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, Strict, ValidationError, model_serializer
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from evercount._validate import check_public_text
from evercount.errors import ParameterError, UnknownName
from evercount.privacy import Budget
from evercount.queries import QUERIES, Query, build_query

T = TypeVar("T")


def _summary(schema: dict[str, Any]) -> None:
    """Keep the first line of a docstring, which the HTTP API shows."""
    if "description" in schema:
        schema["description"] = schema["description"].partition("\n")[0]


CONFIG = ConfigDict(
    extra="forbid", strict=True, arbitrary_types_allowed=True, json_schema_extra=_summary
)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def table(what: str, path: str = "") -> Callable[[type[T]], type[T]]:
    """The decorator of a table that messages call `what`; `path` comes before the names of its
    fields."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, config=CONFIG)(cls)

        def checked(self: Any, /, *values: Any, **named: Any) -> None:
            try:
                made.__pydantic_validator__.validate_python(
                    ArgsKwargs(values, named), self_instance=self
                )
            except ValidationError as error:
                raise _refusal(error, what, path, made.__pydantic_fields__) from None

        made.__init__ = checked
        return made  # type: ignore[no-any-return]

    return decorate


def _refusal(error: ValidationError, what: str, path: str, fields: dict[str, Any]) -> Exception:
    """Make of what pydantic found one refusal for people. Unknown fields come first: a misspelt
    one is missing, too."""
    problems = error.errors(include_url=False)
    for one in problems:
        if one["type"] == "unexpected_keyword_argument":
            return UnknownName(f"field of {what}", one["loc"][0], fields)
    missing = [str(one["loc"][0]) for one in problems if one["type"] == "missing"]
    if missing:
        described = [_with_description(name, fields[name].description) for name in missing]
        return ParameterError(f"{what} lacks {' and '.join(described)}")
    first = problems[0]
    context = first.get("ctx", {})
    cause: Exception = context.get("error", error)
    name = str(first["loc"][0]) if first["loc"] else ""
    # a name that is not a text, such as half a surrogate pair
    if name not in fields and cause is error:
        return UnknownName(f"field of {what}", first["input"], fields)
    if isinstance(cause, ParameterError) or name not in fields:
        return cause
    if first["type"] == "literal_error":
        return UnknownName(path + name, first["input"], re.findall("'(.*?)'", context["expected"]))
    plain = (
        first["msg"]
        .removeprefix("Input should be ")
        .replace("valid integer", "whole number")
        .replace("valid ", "")
    )
    return ParameterError(
        f"{path}{name} must be {fields[name].description or plain}, got {first['input']!r:.80}"
    )


def _with_description(name: str, description: str | None) -> str:
    """Name a field, and say what it holds if that is described."""
    if description:
        return f"{name} ({description})"
    return name


@table("query", "query.")
class QueryTable:
    """What is asked of the stream."""

    name: Annotated[str, Field(description="the name of a query")]
    parameters: Annotated[dict[str, Any], Field(description="a table")] = field(
        default_factory=dict
    )

    def built(self) -> Query:
        """The query, with defaults under which no event is refused because of earlier ones."""
        parameters = self.parameters
        if self.name in QUERIES:
            parameters = QUERIES[self.name].quiet_parameters(parameters)
        try:
            return build_query(self.name, dict(parameters))
        except ParameterError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            # a parameter of a wrong type that a query's own checks did not foresee
            raise ParameterError(
                f"parameters of {self.name!r}: {type(error).__name__}: {error!s:.200}"
            ) from None


def _members(value: Any) -> dict[str, Any]:
    """Refuse what is not a table."""
    if not isinstance(value, dict):
        raise ValueError("not a table")  # the field's description says what it must be
    return value


def read_query(value: Any) -> Query:
    if isinstance(value, Query):
        return value
    if isinstance(value, str):
        return QueryTable(name=value).built()
    return QueryTable(**_members(value)).built()


BudgetTable = table("budget", "budget.")(Budget)  # strict, and with the names of the fields


COMPUTED = "period_ticks"  # the field of a budget that nobody declares: the schedule says it


def read_budget(value: Any) -> Budget:
    if type(value) is Budget:
        return value
    if COMPUTED in _members(value):
        raise UnknownName(
            "field of budget", COMPUTED, [name for name in budget_fields() if name != COMPUTED]
        )
    return Budget(**BudgetTable(**value).to_dict())


def declared_budget(budget: Budget) -> dict[str, Any]:
    return {name: value for name, value in budget.to_dict().items() if name != COMPUTED}


def budget_fields() -> dict[str, str]:
    """What each field of a budget is, from its docstring."""
    listed = (Budget.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", listed, re.M)
    return {name: " ".join(text.split()) for name, text in described}


def _public(description: str) -> str:
    """Check each line of a description; lines of several may be indented."""
    lines = description.split("\n")
    if len(lines) > 1:
        lines = [line.strip() for line in lines]
    for line in lines:
        if line:
            check_public_text("description:", line)
    return description


Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Description = Annotated[str, Field(max_length=2000), AfterValidator(_public)]
Names = Annotated[tuple[str, ...], Strict(False)]


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

    time: Annotated[
        Column, Field(description="the name of the column that holds the time of an event")
    ]
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
    # puts events of one user and time in order, where rows have none (Spark)
    order: OptionalColumn = None

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
        if isinstance(self.key, tuple):
            return self.key
        return () if self.key is None else (self.key,)

    def check_fit(self, query: Query, budget: Budget) -> None:
        """Refuse columns that the events of a query do not have, and miss none that they have."""
        rows = query.rows
        if rows is None:
            raise ParameterError(
                f"the events of {query.name!r} (edges, letters, your own) are not rows of a table: "
                "stream them in Python, or send them to a service"
            )
        for name, column in (
            ("key", self.key),
            ("value", self.value),
            ("levels", self.levels or None),
        ):
            if name in rows.columns and column is None:
                raise ParameterError(f"the query {query.name!r} needs the column `{name}`")
            if name not in rows.columns and column is not None:
                raise ParameterError(f"the query {query.name!r} takes no {name}: omit its column")
        if len(self.levels) != rows.levels:
            raise ParameterError(
                f"events of {query.name!r} have {rows.levels} names, and levels has "
                f"{len(self.levels)} columns"
            )
        if (self.user is not None) != (budget.unit == "user" or query.people is not None):
            raise ParameterError(
                "the column `user` is required by budgets of unit 'user' and by queries that count "
                "users, and refused elsewhere"
            )

    @model_serializer(mode="wrap")
    def _leave_out_empty(self, write: Any) -> dict[str, Any]:
        """Write only the columns that are named."""
        return {name: column for name, column in write(self).items() if column}


def combined_key(parts: Sequence[str]) -> str:
    """The one key of several columns: its parts as a line of a CSV.

    A part with a comma or a quotation mark is quoted, so different parts never make the same key.
    One part alone is the key itself.

    >>> combined_key(["Tyrol", "f"]), combined_key(["Hall, Tyrol", "f"])
    ('Tyrol,f', '"Hall, Tyrol",f')
    """
    if len(parts) == 1:
        return parts[0]
    return ",".join(map(_quoted, parts))


def _quoted(part: str) -> str:
    """Quote a part of a key as a CSV would, if it needs that."""
    if "," in part or '"' in part:
        return '"' + part.replace('"', '""') + '"'
    return part
