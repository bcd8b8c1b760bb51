"""Options that several commands share: parameters of queries."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from evercount._validate import strict_json
from evercount.errors import ParameterError

Missing = Annotated[
    str | None,
    typer.Option(
        help="The ticks are missing: nothing is released for them, and their events are dropped (drop) or "
        "counted in the tick after them (next)."
    ),
]


def parse_parameters(items: list[str]) -> dict[str, Any]:
    """The parameters of a query.



    >>> parse_parameters(["width=24", "method=periods", 'keys=["a", "b"]'])
    {'width': 24, 'method': 'periods', 'keys': ['a', 'b']}
    """
    parameters: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ParameterError(f"parameters are KEY=VALUE, got {item!r}")
        try:
            parameters[key] = strict_json(value)
        except json.JSONDecodeError:
            parameters[key] = value
        except ValueError as error:
            raise ParameterError(f"{item!r:.80}: {error}") from None
    return parameters
