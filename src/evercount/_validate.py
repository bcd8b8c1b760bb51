"""Checks of arguments that all rooms share. Each returns the checked value or raises a ParameterError that names it."""

from __future__ import annotations

import json
import math
import os
from decimal import ROUND_CEILING, Decimal, localcontext
from numbers import Integral, Real
from typing import Any, NoReturn

from evercount.errors import ParameterError, TooLarge, UnknownName


def check_number(what: str, value: object) -> float:
    """`value` as a finite float; booleans, strings and anything else that is not a real number are refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{what} must be a number, not {value!r} ({type(value).__name__}).")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(f"{what} must be finite, not {value!r}.")
    return number


def check_positive(what: str, value: object) -> float:
    """`value` as a finite float above zero."""
    number = check_number(what, value)
    if number <= 0:
        raise ParameterError(f"{what} must be above 0, not {value!r}.")
    return number


def check_delta(value: object, *, pure: bool = False) -> float:
    """`value` as a float strictly between 0 and 1; with `pure`, 0 is allowed too."""
    number = check_number("delta", value)
    if number == 0:
        if pure:
            return 0.0
        refuse_pure_privacy()
    if not 0 < number < 1:
        allowed = "0 (pure privacy) or more and below 1" if pure else "between 0 and 1, both excluded"
        raise ParameterError(f"delta must be {allowed}, not {value!r}.")
    if number < 2.0**-1022:
        raise ParameterError(
            f"delta={value!r} is below the normal doubles (2.3e-308): it cannot be computed with safely."
        )
    return number


def refuse_pure_privacy() -> None:
    """Refuse δ = 0. A budget may have it, but no Gaussian noise gives it."""
    raise ParameterError(
        "delta=0 is pure differential privacy, which Gaussian noise cannot give; only pure mechanisms "
        "offer it. Choose a small positive delta, for example 1e-10."
    )


def check_count(what: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`; booleans and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ParameterError(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def check_whole(what: str, value: object, least: int, largest: int) -> int:
    """`value` as an int in least..largest; booleans and fractions are refused."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise ParameterError(f"{what} must be a whole number in {least}..{largest}, got {value!r}")
    return value


def check_probability(what: str, value: object) -> float:
    """`value` as a float strictly between 0 and 1."""
    number = check_positive(what, value)
    if number >= 1:
        raise ParameterError(f"{what} must lie between 0 and 1, both excluded, not {value!r}.")
    return number


def chance_outside(level: object) -> float:
    """1 − level, the β of theorems, in decimals: 0.05 where binary floats have 0.050000000000000044.

    >>> chance_outside(0.95), chance_outside(0.999999)
    (0.05, 1e-06)
    """
    return float(1 - Decimal(repr(check_probability("level", level))))


def check_name(kind: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a name that is not in the list; the error suggests the closest one."""
    if not isinstance(value, str) or value not in known:
        raise UnknownName(kind, value, known)


def stated(number: float) -> str:
    """A number of a privacy promise in up to six digits, rounded up: the printed promise must hold too."""
    with localcontext(prec=6, rounding=ROUND_CEILING):
        return f"{float(+Decimal(repr(float(number)))):g}"


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise ValueError(f"the member {twice[:40]!r} occurs twice in one object")
    return members


_STRICT = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant)


def strict_json(text: str) -> Any:
    """JSON from outside, or ValueError: without NaN, and without a member that occurs twice, of which two readers could
    take different ones."""
    return _STRICT.decode(text)


BYTES_PER_CELL = 512
"""What a running stream keeps per cell, rounded up: sum, increment, release, label, encoder, noise buffers."""


def machine_memory() -> int:
    """Bytes of physical memory, or 8 GiB where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30


def require_fits(cells: int, what: str, remedy: str) -> None:
    """Raise TooLarge when `cells` cells need more than half of the machine's memory."""
    need, have = cells * BYTES_PER_CELL, machine_memory()
    if need > have // 2:
        raise TooLarge(
            f"{what} has {cells:,} cells and would need about {need / 2**30:,.1f} GiB; half of this machine's "
            f"memory is {have / 2**31:,.1f} GiB. {remedy}"
        )
