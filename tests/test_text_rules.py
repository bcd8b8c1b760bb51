"""The one rule for public texts, at every interface that takes one."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from evercount import Histogram, TopK
from evercount._validate import LONGEST, check_public_text, csv_text, displayable, escaped, fault
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import ParameterError
from evercount.queries import PrefixQuery, build_query
from evercount.words import Substrings

COMPOSED = "café"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)
DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
BAD = {
    "empty": "",
    "long": "x" * (LONGEST + 1),
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "nul": "a\0b",
    "delete": "a\x7f",
    "next line": "a\x85b",
    "line separator": "a\u2028b",
    "zero width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "surrogate": "a\ud800",
    "private use": "a\ue000",
    "unassigned": "a\u0378",
    "leading blank": " a",
    "trailing blank": "a ",
    "no-break blank": "a\u00a0",
    "decomposed": DECOMPOSED,
    "mark first": "\u0301a",
    **{f"U+{code:04X}": f"{chr(code)}evil" for code in DIRECTIONS},
}
GOOD = [
    "a",
    "North West",
    COMPOSED,
    "東京",
    "Ελλάδα",
    "x" * LONGEST,
    "a/b:c|d\\e",
    "😀",
    "हिन्दी",
    "other than this",
]


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        check_public_text("the key", BAD[name])
    assert str(caught.value).isascii(), "the text is shown escaped"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", GOOD)
def test_what_is_taken(text: str) -> None:
    assert check_public_text("the key", text) == text == displayable(text)
    assert fault(text) is None


def test_no_character_that_steers_the_display_is_taken() -> None:
    """All of Unicode: every accepted character is visible or a blank inside, and has no text
    direction of its own."""
    for code in range(0x110000):
        if fault(f"a{chr(code)}a") is None:
            assert unicodedata.category(chr(code))[0] != "C", hex(code)
            assert unicodedata.bidirectional(chr(code)) not in {
                "LRE",
                "RLE",
                "LRO",
                "RLO",
                "PDF",
                "LRI",
                "RLI",
                "FSI",
            }


@pytest.mark.parametrize("name", BAD)
def test_every_interface_refuses(name: str, tmp_path: Path) -> None:
    text = BAD[name]
    budget = {"epsilon": 1, "delta": 1e-9}
    table = {
        "name": "x",
        "query": {"name": "histogram", "parameters": {"keys": ["a", text]}},
        "budget": budget,
    }
    interfaces: list[Any] = [
        lambda: Histogram(["a", text]),
        lambda: TopK(["a", text]),
        lambda: Substrings(["a", text], 2),
        lambda: PrefixQuery(lambda events: [0, 0], 2, {"replace": 1}, labels=["a", text]),
        lambda: build_query("histogram", {"keys": ["a", text]}),
        lambda: StreamDeclaration.from_dict(table),
    ]
    for interface in interfaces:
        with pytest.raises(ParameterError):
            interface()


@pytest.mark.parametrize("name", ["escape", "U+202E", "zero width", "decomposed"])
def test_descriptions_obey_the_rule_line_by_line(name: str) -> None:
    table = {"name": "x", "query": "count", "budget": {"epsilon": 1, "delta": 1e-9}}
    with pytest.raises(ParameterError, match="description"):
        StreamDeclaration.from_dict({**table, "description": f"first line\n{BAD[name]}"})
    assert (
        StreamDeclaration.from_dict({**table, "description": "one\n\n  two"}).description
        == "one\n\n  two"
    )


def test_a_blank_is_a_letter() -> None:
    assert Substrings("ab ", 1).labels == ("a", "b", " ")


def test_twins_in_events_are_unknown_keys() -> None:
    histogram = Histogram([COMPOSED], unknown="other")
    assert histogram.encode(None, [COMPOSED, DECOMPOSED])[0].tolist() == [1, 1]


def test_words_of_legal_letters_that_look_like_another_text_are_shown_escaped() -> None:
    """Two letters of Hangul join to one syllable: their word is not in composed form."""
    first, second = "\u1100", "\u1161"
    labels = Substrings([first, second], 2).labels
    assert r"\u1100\u1161" in labels
    assert first + second not in labels


def test_escapes_are_plain() -> None:
    assert escaped("\u202eevil\x1b") == r"\u202eevil\x1b"


@pytest.mark.parametrize(
    "label", ["=1+1", "+43 1", "-5", "@here", "'quoted'", "north", "a=b", "5-6", "'=x"]
)
def test_labels_in_csv_run_nothing_and_can_be_read_back(label: str) -> None:
    written = csv_text(label)
    assert written[0] not in "=+-@"
    assert written.removeprefix("'") == label
