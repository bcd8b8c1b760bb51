"""Options that several commands share: budgets, horizons, queries."""

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


def parse_horizon(text: str) -> int | None:
    """The horizon that a text writes.



    >>> parse_horizon("2^16"), parse_horizon("1e6"), parse_horizon("none")
    (65536, 1000000, None)
    """
    if text.strip().lower() in ("none", "unbounded", "inf"):
        return None
    try:
        if "^" in text:
            base, power = text.split("^")
            return int(int(base) ** int(power))
        number = float(text) if "e" in text.lower() else int(text)
    except ValueError as error:
        raise ParameterError(f"horizon must be a number of ticks such as 65536, 2^16 or none, got {text!r}") from error
    if number != int(number):
        raise ParameterError(f"horizon must be a whole number of ticks, got {text}")
    return int(number)


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


def unit_of(
    unit: str | None,
    max_events: int | None,
    max_per_tick: int | None,
    max_ticks: int | None,
    period: str | None,
    *,
    user: bool = False,
) -> dict[str, Any]:
    """The fields of a budget that say whom it protects; a cap, a period or a column of users means users.

    >>> unit_of(None, None, 2, None, "7"), unit_of(None, None, None, None, None)
    ({'unit': 'user', 'max_per_tick': 2, 'period': 7}, {'unit': 'event'})
    """
    caps: dict[str, Any] = {"max_events": max_events, "max_per_tick": max_per_tick, "max_ticks": max_ticks}
    caps["period"] = int(period) if period is not None and period.isdecimal() else period
    given = {name: value for name, value in caps.items() if value is not None}
    return {"unit": unit or ("user" if user or given else "event"), **given}
