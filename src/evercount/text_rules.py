"""One rule for every text that people will read as a name: what you see is what it is."""

from __future__ import annotations

import unicodedata

from evercount.errors import ParameterError

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn")
"""Unicode categories without a visible shape of their own: controls (also bidirectional ones), surrogates, private and
unassigned characters."""


def check_public_text(what: str, text: str) -> str:
    """The text unchanged, or ParameterError if it could be read as another one.

    Args:
        what: What the text is, for the message.
        text: A name, key, label, description or the like.

    Returns:
        `text`.

    Raises:
        ParameterError: if it holds control, format, surrogate, private or unassigned characters, begins or ends with
            white space, or is not in the normal form NFC.

    >>> check_public_text("a key", "Köln 50667")
    'Köln 50667'
    >>> check_public_text("a key", "\\u202eevil")
    Traceback (most recent call last):
    evercount.errors.ParameterError: a key holds the hidden character U+202E (from 0: at 0): leave it out
    """
    if not isinstance(text, str):
        raise ParameterError(f"{what} must be a text, not {type(text).__name__}")
    for place, character in enumerate(text):
        if unicodedata.category(character) in HIDDEN:
            raise ParameterError(
                f"{what} holds the hidden character U+{ord(character):04X} (from 0: at {place}): leave it out"
            )
    if text != text.strip():
        raise ParameterError(f"{what} begins or ends with white space: leave it out")
    if not unicodedata.is_normalized("NFC", text):
        raise ParameterError(f"{what} is not in Unicode's normal form NFC and looks like another text: normalise it")
    return text
