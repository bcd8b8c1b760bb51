"""Options that several commands share: budgets, horizons, queries."""

from __future__ import annotations

import json
from typing import Any

from evercount.errors import ParameterError


def parse_horizon(text: str) -> int | None:
    """A number of ticks (also 2^16 or 1e6), or "none" for a stream without end."""
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
    """KEY=VALUE pairs; values are JSON where they parse as JSON and text otherwise."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ParameterError(f"parameters are KEY=VALUE, got {item!r}")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found
