"""Checks of arguments and of public texts that all packages share. Each raises a ParameterError
that names the value.

Public texts are keys, labels and letters that are printed, plotted and compared by eye. Two of them
that look alike must not be two keys, and none may change how its neighbours are displayed. So a
public text is in Unicode's composed form (NFC) and holds no character that is invisible or steers
the display. Events are never changed to fit: an event's key that is not exactly in the list (its
decomposed twin, say) is an unknown key.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal, localcontext
from numbers import Integral, Real
from types import NoneType
from typing import Any, NoReturn, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from evercount.errors import ParameterError, TooLarge, UnknownName

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
UIntArray: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ObjectArray: TypeAlias = npt.NDArray[np.object_]
AnyArray: TypeAlias = npt.NDArray[Any]


def check_kind(what: str, value: object, kinds: Any, example: str) -> None:
    """Refuse a value of another type, with one that works."""
    if not isinstance(value, kinds):
        raise wrong_kind(what, value, kinds, example)


def wrong_kind(what: str, value: object, kinds: Any, example: str) -> ParameterError:
    """The refusal of a value of another type. It may be a secret, so only its type is named."""
    return ParameterError(
        f"{what} must be a {_kind_names(kinds)}, e.g. {example}, got {type(value).__name__}"
    )


def _kind_names(kinds: Any) -> str:
    """Name a type, or those of a union; None needs no name."""
    types = get_args(kinds) or (kinds,)
    return " or ".join(one.__name__ for one in types if one is not NoneType)


def check_number(what: str, value: object) -> float:
    """`value` as a finite float; booleans, strings and anything else that is not a real number are
    refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{what} must be a number, got {value!r} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ParameterError(f"{what} must be finite, got {value!r}")
    return number


def check_positive(what: str, value: object) -> float:
    """`value` as a finite float above zero."""
    number = check_number(what, value)
    if number <= 0:
        raise ParameterError(f"{what} must be above 0, got {value!r}")
    return number


def check_delta(value: object, *, pure: bool = False) -> float:
    """`value` as a float strictly between 0 and 1; with `pure`, 0 is allowed too."""
    number = check_number("delta", value)
    if number == 0:
        if pure:
            return 0.0
        raise ParameterError(
            "delta=0 is pure differential privacy, which Gaussian noise cannot give; only pure "
            "mechanisms offer it. Choose a small positive delta, for example 1e-10."
        )
    if not 0 < number < 1:
        allowed = "between 0 and 1, both excluded"
        if pure:
            allowed = "0 (pure privacy) or more and below 1"
        raise ParameterError(f"delta must be {allowed}, got {value!r}")
    if number < 2.0**-1022:
        raise ParameterError(
            f"delta={value!r} is below the normal doubles (2.3e-308): it cannot be computed with "
            "safely."
        )
    return number


def check_count(what: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`; booleans and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ParameterError(f"{what} must be a whole number of at least {least}, got {value!r}")
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
        raise ParameterError(f"{what} must lie between 0 and 1, both excluded, got {value!r}")
    return number


def chance_outside(level: object) -> float:
    """1 − level, the β of theorems, in decimals: 0.05 where binary floats have
    0.050000000000000044.

    >>> chance_outside(0.95), chance_outside(0.999999)
    (0.05, 1e-06)
    """
    return float(1 - Decimal(repr(check_probability("level", level))))


def check_name(kind: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a name that is not in the list; the error suggests the closest one."""
    if not isinstance(value, str) or value not in known:
        raise UnknownName(kind, value, known)


def stated(number: float) -> str:
    """A number of a privacy promise in up to six digits, rounded up: the printed promise must hold
    too."""
    with localcontext(prec=6, rounding=ROUND_CEILING):
        return f"{float(+Decimal(repr(float(number)))):g}"


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members; ValueError where a name occurs twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise ValueError(f"the member {twice[:40]!r} occurs twice in one object")
    return members


_STRICT = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_constant)


def strict_json(text: str) -> Any:
    """JSON from outside, or ValueError: without NaN, and without a member that occurs twice, of
    which two readers could take different ones."""
    return _STRICT.decode(text)


BYTES_PER_CELL = 512
"""What a running stream keeps per cell, rounded up: sum, increment, release, label, encoder, noise
buffers."""


def require_fits(cells: int, what: str, remedy: str) -> None:
    """Raise TooLarge when `cells` cells need more than half of the machine's memory."""
    need = cells * BYTES_PER_CELL
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > have // 2:
        raise TooLarge(
            f"{what} has {cells:,} cells and would need about {need / 2**30:,.1f} GiB; half of "
            f"this machine's memory is {have / 2**31:,.1f} GiB. {remedy}"
        )


_RUN = frozenset("=+-@'")
LONGEST = 2000  # characters of one public text
REFUSED = {
    "Cc": "a control character",
    "Cf": "an invisible or text-direction character",
    "Cs": "half of a surrogate pair",
    "Co": "a private-use character",
    "Cn": "a code point without a character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
"""Unicode categories that a public text may not hold."""


def check_public_text(what: str, text: str) -> str:
    r"""`text` unchanged, or the reason why it cannot be a public text.

    **Guarantee.** Accepted texts that are canonically equivalent are equal, and none holds a
    character of the categories in `REFUSED`, to which all text-direction controls belong.
    Look-alikes of different scripts (Latin and Cyrillic "a") are different texts. Test:
    tests/test_text_rules.py::test_what_is_refused.

    >>> check_public_text("the key", "café")
    'café'
    >>> check_public_text("the key", "\u202eevil")
    Traceback (most recent call last):
    evercount.errors.ParameterError: the key '\u202eevil' holds U+202E, an invisible or ...
    """
    if not isinstance(text, str):
        raise ParameterError(f"{what} must be a string, got {type(text).__name__}")
    if (wrong := fault(text)) is not None:
        raise ParameterError(f"{what} {escaped(text[:80], quote=True)} {wrong}")
    return text


def csv_text(text: str) -> str:
    """A label as a CSV file holds it: with ' before =, +, -, @ and ', so that no spreadsheet runs
    it as a formula. Without its first character, where that is ', it is the label again. Test:
    tests/test_text_rules.py::test_labels_in_csv_run_nothing_and_can_be_read_back."""
    if text[:1] in _RUN:
        return f"'{text}"
    return text


def aligned(rows: Sequence[Sequence[str]], left: int = 0, gap: int = 2) -> list[str]:
    """Lines with columns of one width each, `gap` apart; the first `left` columns begin at their
    left.

    >>> aligned([["noise", "std"], ["fresh", "1.4"]], left=1)
    ['noise  std', 'fresh  1.4']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if place < left else str.rjust for place in range(len(widths))]
    return [
        (" " * gap).join(
            side(text, width) for side, text, width in zip(sides, row, widths, strict=True)
        )
        for row in rows
    ]


def fault(text: str) -> str | None:
    """What is wrong with a public text and how to fix it; None where nothing is."""
    if not text:
        return "is empty: write at least one character"
    if (
        text.isascii()
        and text.isprintable()
        and text[0] != " " != text[-1]
        and len(text) <= LONGEST
    ):
        return None
    if len(text) > LONGEST:
        return f"is longer than {LONGEST} characters: shorten it"
    for character in text:
        kind = unicodedata.category(character)
        if kind in REFUSED:
            return f"holds U+{ord(character):04X}, {REFUSED[kind]}: remove it"
    return _fault_of_form(text)


def _fault_of_form(text: str) -> str | None:
    """What is wrong with the ends of a public text, or with how it is composed."""
    if unicodedata.category(text[0]).startswith("M"):
        return (
            "begins with a combining mark, which joins the text before it: begin with another "
            "character"
        )
    if text != text.strip():
        return "begins or ends with white space: remove it"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in composed form (NFC), so another text looks the same: write it in NFC"
    return None


def displayable(text: str) -> str:
    """A text as it may be displayed: itself, or escaped where it breaks the rule, as a word of
    legal letters may."""
    if fault(text) is None:
        return text
    return escaped(text)


def escaped(text: str, *, quote: bool = False) -> str:
    r"""The text in printable ASCII, with \x, \u and \U escapes for all else."""
    quoted = ascii(text)
    if quote:
        return quoted
    return quoted[1:-1]


def finite(data: Any) -> Any:
    """The same data with None where a number is not finite: JSON has no other."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
