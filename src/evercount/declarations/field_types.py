"""The types of a declaration's fields: how each is read, written and described."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Strict

from evercount.declarations.schedule import MANUAL, TICK_TEXT
from evercount.declarations.table import table
from evercount.declarations.view_names import QUANTILE
from evercount.engine.build import POSTPROCESSES
from evercount.engine.view_widths import LAST, PER_TICK, RUNNING
from evercount.errors import ParameterError, UnknownName
from evercount.privacy import Budget
from evercount.queries import QUERIES, Query, build_query
from evercount.text_rules import check_public_text


@table("query", "query.")
class QueryTable:
    """What is asked of the stream."""

    name: Annotated[str, Field(description="the name of a query")]
    parameters: Annotated[dict[str, Any], Field(description="a table")] = field(default_factory=dict)

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
            raise ParameterError(f"parameters of {self.name!r}: {type(error).__name__}: {error!s:.200}") from None


def _members(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not a table")  # the field's description says what it must be
    return value


def read_query(value: Any) -> Query:
    if isinstance(value, Query):
        return value
    return QueryTable(**({"name": value} if isinstance(value, str) else _members(value))).built()


BudgetTable = table("budget", "budget.")(Budget)  # strict, and with the names of the fields


COMPUTED = "period_ticks"  # the field of a budget that nobody declares: the schedule says it


def read_budget(value: Any) -> Budget:
    if type(value) is Budget:
        return value
    if COMPUTED in _members(value):
        raise UnknownName("field of budget", COMPUTED, [name for name in budget_fields() if name != COMPUTED])
    return Budget(**BudgetTable(**value).to_dict())


def declared_budget(budget: Budget) -> dict[str, Any]:
    return {name: value for name, value in budget.to_dict().items() if name != COMPUTED}


def budget_fields() -> dict[str, str]:
    """What each field of a budget is, from its docstring."""
    listed = (Budget.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", listed, re.M)
    return {name: " ".join(text.split()) for name, text in found}


def _public(description: str) -> str:
    lines = description.split("\n")
    for line in lines if len(lines) == 1 else map(str.strip, lines):  # lines may be indented
        if line:
            check_public_text("description:", line)
    return description


def like(pattern: str) -> Any:
    """For the schema alone: the checks that follow know the nearest right name."""
    return Field(json_schema_extra={"pattern": f"^({pattern})$"})


SUMS = f"{RUNNING}|{PER_TICK}|{LAST.pattern}"
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Description = Annotated[str, Field(max_length=2000), AfterValidator(_public)]
Length = Annotated[str, like(TICK_TEXT.pattern)]
Tick = Annotated[str, like(f"{MANUAL}|{TICK_TEXT.pattern}")]
Sums = Annotated[tuple[Annotated[str, like(SUMS)], ...], Strict(False)]
Views = Annotated[tuple[Annotated[str, like(f"{SUMS}|per-day|per-week|{QUANTILE.pattern}")], ...], Strict(False)]
Postprocess = Annotated[tuple[Annotated[str, like("|".join(POSTPROCESSES))], ...], Strict(False)]
