"""The cells of all words of length ≤ ℓ over an alphabet, and the reading of letters: for substrings and episodes.

The word a_1 … a_k (letters numbered 0 … U−1) has the cell  offset_k + Σ a_i·U^(k−i),  offset_k = U + … + U^(k−1): a
base-U numeral behind all shorter words. So no table of words is kept, and appending a letter is one multiply-add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, require_fits
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.queries.base import Query, check_distinct
from evercount.queries.key_weights import check_weights
from evercount.queries.publishing import SUMS, Publishing, divided
from evercount.text_rules import check_public_text, shown

HOLE = -1
"""The code of None: a position that holds no letter."""
LARGEST_WEIGHT = 2**16


class WordQuery(Query[FloatArray]):
    """A query with one cell for every word of at most `max_length` letters.

    The alphabet is a string, a list of distinct strings, or a number of letters 0 … U−1. `weights`, one whole number
    for each length 1 … ℓ, says how the noise is shared among the lengths: an occurrence of a word of length j adds
    weights[j−1] to its cell, and what is published is divided by that again. So counts of length j have the std of a
    cell over weights[j−1]. A large last weight is right where only long words matter.
    """

    splits: ClassVar[bool] = True
    single = False
    monotone = True

    def __init__(self, alphabet: Sequence[str] | int, max_length: int, weights: Sequence[int] | None = None) -> None:
        self._longest = check_count("max_length", max_length)
        self._letters: tuple[str, ...] | None
        if isinstance(alphabet, Integral):
            self._letters, self._size = None, check_count("the number of letters", alphabet)
        else:
            self._letters = _checked_alphabet(alphabet)
            self._size = len(self._letters)
        self._offsets = [0]
        for length in range(1, self._longest + 1):
            self._offsets.append(self._offsets[-1] + self._size**length)
            # inside the loop, so that an absurd length is refused before its power is computed
            require_fits(
                self._offsets[-1],
                f"max_length={self._longest}: the set of words of up to {length} letters over {self._size} letters",
                "Use a smaller alphabet or shorter words.",
            )
        largest = LARGEST_WEIGHT
        self.weights = None if weights is None else check_weights(weights, self._longest, "length", largest=largest)

    @property
    def cells(self) -> int:
        return self._offsets[-1]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """All words in the order of their cells; letters of several characters are joined by a blank."""
        names = tuple(map(str, range(self._size))) if self._letters is None else self._letters
        join = ("" if all(len(name) == 1 for name in names) else " ").join
        words = tuple(join(word) for k in range(1, self._longest + 1) for word in product(names, repeat=k))
        return words if all(map(str.isascii, names)) else tuple(map(shown, words))

    def cell(self, word: Iterable[Any]) -> int:
        """The cell of one word."""
        codes = self._read(word)
        if not 1 <= len(codes) <= self._longest or HOLE in codes:
            raise InputError(f"a word has 1 to {self._longest} letters of the alphabet")
        number = 0
        for code in codes:
            number = number * self._size + code
        return self._offsets[len(codes) - 1] + number

    @cached_property
    def _index(self) -> dict[Any, int]:
        names: Iterable[Any] = range(self._size) if self._letters is None else self._letters
        return {**{letter: code for code, letter in enumerate(names)}, None: HOLE}

    def _read(self, events: Any) -> list[int]:
        """The letters of a tick as codes, None as HOLE; an InputError names the first event that is not a letter."""
        if isinstance(events, bytes | Mapping) or not isinstance(events, Iterable):
            raise InputError(f"a tick is a string or a sequence of letters, not {type(events).__name__}")
        listed = events.tolist() if isinstance(events, np.ndarray) else list(events)
        try:
            codes = list(map(self._index.__getitem__, listed))
        except (KeyError, TypeError):
            number = next(i for i, letter in enumerate(listed) if not self._is_letter(letter))
            raise self._no_letter(number, listed[number]) from None
        if self._letters is None and not set(map(type, listed)) <= {int, type(None)}:
            # True == 1 and 1.0 == 1 would pass the lookup
            for number, letter in enumerate(listed):
                if isinstance(letter, bool) or not isinstance(letter, Integral | None):
                    raise self._no_letter(number, letter)
        return codes

    def _is_letter(self, letter: Any) -> bool:
        try:
            return letter in self._index
        except TypeError:
            return False

    def _no_letter(self, number: int, letter: Any) -> EventRefused:
        remedy = "add it to the alphabet, or pass None for a position without a letter"
        return EventRefused(number, f"is {letter!r:.80}, which is not a letter of the alphabet; {remedy}")

    @cached_property
    def _scale(self) -> IntArray:
        """What one occurrence of the word of each cell adds to it."""
        return np.repeat(np.asarray(self.weights or (1,) * self._longest, np.int64), np.diff(self._offsets))

    def _weighted(self, increments: IntArray) -> IntArray:
        """Occurrences in the units of the cells, in place; shape (…, cells)."""
        if self.weights is not None:
            increments *= self._scale
        return increments

    @cached_property
    def publishing(self) -> Publishing:
        return SUMS if self.weights is None else divided(self._scale)

    def check_events(self, events: Iterable[Any]) -> None:
        self._read(events)

    def parameters(self) -> dict[str, Any]:
        own = {"alphabet": self._size if self._letters is None else list(self._letters), "max_length": self._longest}
        return own if self.weights is None else own | {"weights": list(self.weights)}


def _checked_alphabet(alphabet: Any) -> tuple[str, ...]:
    if isinstance(alphabet, bytes) or not isinstance(alphabet, Iterable):
        raise ParameterError(f"alphabet must be a string, a list of strings or a number, not {alphabet!r:.80}.")
    letters = tuple(alphabet)
    wrong = [letter for letter in letters if not isinstance(letter, str) or not letter]
    if not letters or wrong:
        raise ParameterError(f"letters must be non-empty strings, at least one; got {wrong[:1]!r:.80}.")
    check_distinct("letters", letters)
    for letter in letters:
        if letter != " ":  # texts have blanks between their words
            check_public_text("the letter", letter)
    return letters
