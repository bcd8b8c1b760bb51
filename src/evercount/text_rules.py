"""One rule for public texts: keys, labels and letters that are printed, plotted and compared by eye.

Two texts that look alike must not be two keys, and no text may change how its neighbours are displayed. So a public
text is in Unicode's composed form (NFC) and holds no character that is invisible or steers the display. Events are
never changed to fit: an event's key that is not exactly in the list (its decomposed twin, say) is an unknown key.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from evercount.errors import ParameterError

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

    **Guarantee.** Accepted texts that are canonically equivalent are equal, and none holds a character of the
    categories in `REFUSED`, to which all text-direction controls belong. Look-alikes of different scripts (Latin and
    Cyrillic "a") are different texts. Test: tests/test_text_rules.py::test_what_is_refused.

    >>> check_public_text("the key", "café")
    'café'
    >>> check_public_text("the key", "\u202eevil")
    Traceback (most recent call last):
    evercount.errors.ParameterError: the key '\u202eevil' holds U+202E, an invisible or text-direction character: ...
    """
    if not isinstance(text, str):
        raise ParameterError(f"{what} must be a text, not {type(text).__name__}")
    if (wrong := fault(text)) is not None:
        raise ParameterError(f"{what} {escaped(text[:80], quote=True)} {wrong}")
    return text


def csv_text(text: str) -> str:
    """A label as a CSV file holds it: with ' before =, +, -, @ and ', so that no spreadsheet runs it as a formula.
    Without its first character, where that is ', it is the label again. Test:
    tests/test_text_rules.py::test_labels_in_csv_run_nothing_and_can_be_read_back."""
    return f"'{text}" if text[:1] in _RUN else text


def aligned(rows: Sequence[Sequence[str]], left: int = 0, gap: int = 2) -> list[str]:
    """Lines with columns of one width each, `gap` apart; the first `left` columns begin at their left.

    >>> aligned([["noise", "std"], ["fresh", "1.4"]], left=1)
    ['noise  std', 'fresh  1.4']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * gap).join(
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def fault(text: str) -> str | None:
    """What is wrong with a public text and how to fix it; None where nothing is."""
    if not text:
        return "is empty: write at least one character"
    if text.isascii() and text.isprintable() and text[0] != " " != text[-1] and len(text) <= LONGEST:
        return None
    if len(text) > LONGEST:
        return f"is longer than {LONGEST} characters: shorten it"
    for character in text:
        kind = unicodedata.category(character)
        if kind in REFUSED:
            return f"holds U+{ord(character):04X}, {REFUSED[kind]}: leave it out"
    if unicodedata.category(text[0]).startswith("M"):
        return "begins with a combining mark, which joins the text before it: begin with another character"
    if text != text.strip():
        return "begins or ends with white space: leave it out"
    if not unicodedata.is_normalized("NFC", text):
        return "is not in composed form (NFC), so another text looks the same: write it in NFC"
    return None


def shown(text: str) -> str:
    """A text as it may be displayed: itself, or escaped where it breaks the rule, as a word of legal letters may."""
    return text if fault(text) is None else escaped(text)


def escaped(text: str, *, quote: bool = False) -> str:
    r"""The text in printable ASCII, with \x, \u and \U escapes for all else."""
    written = ascii(text)
    return written if quote else written[1:-1]


def finite(data: Any) -> Any:
    """The same data with None where a number is not finite: JSON has no other."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
