"""Running counts of words in a stream of letters: of every substring, and of the minimal
occurrences of every episode.

The word a_1 … a_k (letters numbered 0 … U−1) has the cell offset_k + Σ a_i·U^(k−i), offset_k = U +
… + U^(k−1): a base-U numeral behind all shorter words. So no table of words is kept, and appending
a letter is one multiply-add.

How far counts of episodes can change comes from two tables that a search found (the tests repeat
it), and from a bound for longer episodes. Episodes with a changed letter are sorted by the set of
their other letters, and groups alike up to a renaming are counted, so the alphabet may be large.
Longer episodes take lemma 7 of `episodes.proof.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import product
from math import comb
from numbers import Integral
from operator import gt
from typing import Any, ClassVar

import numpy as np

from evercount._validate import FloatArray, IntArray, check_count, displayable, require_fits
from evercount.errors import EventRefused
from evercount.privacy import Adjacency
from evercount.queries.base import PowerQuery, is_replace, listed_events, public_names
from evercount.queries.publishing import SUMS, Publishing, check_weights, divided

HOLE = -1  # the code of None: a position that holds no letter
LARGEST_WEIGHT = 2**16


class WordQuery(PowerQuery[FloatArray]):
    """A query with one cell for every word of at most `max_length` letters.

    The alphabet is a string, a list of distinct strings, or a number of letters 0 … U−1. `weights`,
    one whole number for each length 1 … ℓ, says how the noise is shared among the lengths: an
    occurrence of a word of length j adds weights[j−1] to its cell, and what is published is divided
    by that again. So counts of length j have the std of a cell over weights[j−1]. A large last
    weight is right where only long words matter.
    """

    splits: ClassVar[bool] = True
    cells = 0
    single = False
    monotone = True

    def __init__(
        self, alphabet: Sequence[str] | int, max_length: int, weights: Sequence[int] | None = None
    ) -> None:
        self._longest = check_count("max_length", max_length)
        self._letters: tuple[str, ...] | None
        if isinstance(alphabet, Integral):
            self._letters = None
            self._size = check_count("the number of letters", alphabet)
        else:
            if isinstance(alphabet, str):
                alphabet = list(alphabet)
            self._letters = public_names("letter", alphabet, (" ",))
            self._size = len(self._letters)
        self._offsets = [0]
        for length in range(1, self._longest + 1):
            self._offsets.append(self._offsets[-1] + self._size**length)
            # inside the loop, so that an absurd length is refused before its power is computed
            require_fits(
                self._offsets[-1],
                f"max_length={self._longest}: the set of words of up to {length} letters over "
                f"{self._size} letters",
                "Use a smaller alphabet or shorter words.",
            )
        self.cells = self._offsets[-1]
        self.weights = None
        if weights is not None:
            self.weights = check_weights(weights, self._longest, "length", largest=LARGEST_WEIGHT)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """All words in the order of their cells; letters of several characters are joined by a
        blank."""
        names = self._letters
        if names is None:
            names = tuple(map(str, range(self._size)))
        separator = ""
        if not all(len(name) == 1 for name in names):
            separator = " "
        words = tuple(
            separator.join(word)
            for length in range(1, self._longest + 1)
            for word in product(names, repeat=length)
        )
        if all(map(str.isascii, names)):
            return words
        return tuple(map(displayable, words))

    @cached_property
    def _index(self) -> dict[Any, int]:
        names: Iterable[Any] = range(self._size)
        if self._letters is not None:
            names = self._letters
        return {**{letter: code for code, letter in enumerate(names)}, None: HOLE}

    def _read(self, events: Any) -> list[int]:
        """Read the letters of a tick as codes, None as HOLE; an InputError names the first event
        that is not a letter."""
        letter_type: type = Integral if self._letters is None else str
        if not isinstance(events, str):
            events = listed_events(events)
        codes = []
        for number, letter in enumerate(events):
            possible = letter is None or isinstance(letter, letter_type)
            if not possible or isinstance(letter, bool) or letter not in self._index:
                raise EventRefused(
                    number,
                    f"is {letter!r:.80}, which is not a letter of the alphabet; add it to the "
                    "alphabet, or pass None for a position without a letter",
                )
            codes.append(self._index[letter])
        return codes

    @cached_property
    def _scale(self) -> IntArray:
        """What one occurrence of the word of each cell adds to it."""
        return np.repeat(
            np.asarray(self.weights or (1,) * self._longest, np.int64), np.diff(self._offsets)
        )

    @cached_property
    def publishing(self) -> Publishing:
        if self.weights is None:
            return SUMS
        return divided(self._scale)

    def check_events(self, events: Iterable[Any]) -> None:
        self._read(events)

    def parameters(self) -> dict[str, Any]:
        own = {
            "alphabet": self._size if self._letters is None else list(self._letters),
            "max_length": self._longest,
        }
        if self.weights is None:
            return own
        return own | {"weights": list(self.weights)}


class Substrings(WordQuery):
    """How often each word of at most `max_length` letters has appeared as a substring.

    A tick is a string or a sequence of letters, usually one; the stream is all letters in order,
    and a substring may run over several ticks. It counts at the tick of its last letter. An empty
    tick adds nothing and separates nothing. None is a position without a letter: it matches
    nothing, and no substring runs over it.

    Guarantee. S = ℓ(ℓ+1)(2ℓ+1)/6 (add-remove), ℓ(ℓ+1)(ℓ+2)/3 (replace); with `weights` w it is Σ_j
    w_j²·j² and Σ_j w_j²·(j² + j), in the units of the cells. Under add-remove a removed letter may
    leave a None in its place, or vanish so that its neighbours join; S covers both (the first
    attains it). Under replace a letter becomes another letter or None. Proof:
    `substrings.proof.md`. Tests:
    tests/queries/test_queries_substrings.py::test_sensitivity_by_enumeration and
    tests/queries/test_queries_substrings.py::test_weighted_sensitivity_by_enumeration.

    Args:
        alphabet: the letters, single characters, or their number.
        max_length: the longest word, in letters.
        weights: what one occurrence of a word of each length adds to its cell; see `WordQuery`.
            None for 1.

    Raises:
        ParameterError: the alphabet or the length is not legal.
        TooLarge: the words do not fit the memory.

    >>> query = Substrings("ab", 2)
    >>> dict(zip(query.labels, query.encode(query.initial_state(), "aba")[0].tolist()))
    {'a': 2, 'b': 1, 'aa': 0, 'ab': 1, 'ba': 1, 'bb': 0}
    >>> trigrams = Substrings("ab", 3, weights=(1, 1, 8))
    >>> noise = trigrams.squared_sensitivity("add-remove") ** 0.5 * trigrams.publishing.norms()
    >>> plain = Substrings("ab", 3).squared_sensitivity("add-remove") ** 0.5
    >>> round(float(noise[-1]), 2), round(plain, 2)
    (3.01, 3.74)
    """

    name: ClassVar[str] = "substrings"

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """S is attained as soon as the stream is 2ℓ−1 letters long (replace: U ≥ 2). For Δ₁ each
        length j loses j windows and gains j − 1 others (add-remove) or j (replace).

        **Guarantee.** Proof: `substrings.proof.md`, for Δ₁ proposition 5. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        replaced = is_replace(adjacency)
        weighted = enumerate(self.weights or (1,) * self._longest, 1)
        if power == 1:
            return float(sum(weight * (2 * j - 1 + replaced) for j, weight in weighted))
        return float(sum(weight**2 * (j * j + replaced * j) for j, weight in weighted))

    # -- from events to increments -----------------------------------------------------------------

    def initial_state(self) -> list[int]:
        """The last ℓ−1 letters as codes, oldest first; none yet."""
        return []

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        tail = list(state)
        cells = []
        for code in self._read(events):
            tail = [*tail, code][-self._longest :]
            number = 0
            power = 1
            for offset, letter in zip(self._offsets, reversed(tail), strict=False):
                if letter == HOLE:
                    break
                number += letter * power
                power *= self._size
                cells.append(offset + number)
        increments = np.bincount(np.asarray(cells, np.intp), minlength=self.cells) * self._scale
        if len(tail) == self._longest:
            tail = tail[1:]
        return increments, tail


class Episodes(WordQuery):
    """How many minimal occurrences each episode (a word of at most `max_length` letters) has had.

    An occurrence of an episode is a subsequence of the stream that equals it. It is minimal when no
    occurrence lies in a shorter part of the interval that it spans. It counts at the tick of its
    last letter. A tick is a string or a sequence of letters, usually one; the stream is all letters
    in order. None is a position without a letter and changes nothing. All episodes are released: to
    hide rare ones, apply a threshold to the noisy counts.

    Guarantee. S is a sum over groups of episodes of the largest change of each group, found by an
    automaton. It equals the true maximum in all cases that were enumerated (ℓ ≤ 3; U = 2, ℓ = 4);
    longer episodes are grouped less, and the longest (8 letters or more) take a bound by types of
    letters, which is looser. Under add-remove a removed letter is absent: whether its place stays
    or not makes no difference. Under replace it becomes another letter or None. Proof:
    `episodes.proof.md`. Tests:
    tests/queries/test_queries_episodes.py::test_sensitivity_by_enumeration and
    tests/queries/test_queries_episodes.py::test_weighted_sensitivity_by_enumeration.

    Args:
        alphabet: the letters, single characters, or their number.
        max_length: the longest episode, in letters.
        weights: what one occurrence of a word of each length adds to its cell; see `WordQuery`.
            None for 1.

    Raises:
        ParameterError: the alphabet or the length is not legal.
        TooLarge: the episodes do not fit the memory.

    >>> query = Episodes("ab", 2)
    >>> query.labels
    ('a', 'b', 'aa', 'ab', 'ba', 'bb')
    """

    name: ClassVar[str] = "episodes"

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        return float(
            episode_sensitivity(
                self._size, self._longest, is_replace(adjacency), self.weights, power
            )
        )

    # -- from events to increments -----------------------------------------------------------------

    def initial_state(self) -> dict[str, Any]:
        """Number of letters so far, and per episode the place (from 1) where its latest occurrence
        starts; 0: none."""
        return {"letters": 0, "starts": [0] * self.cells}

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """Increments of one tick of any number of letters; the old state stays as it was.

        A letter a ends a minimal occurrence of e′a exactly when the latest occurrence of e′ starts
        after the latest one of e′a. One letter touches U^(k−1) episodes of each length k.
        """
        new = self._read(events)
        increments = np.zeros(self.cells, np.int64)
        letters = state["letters"]
        starts = list(state["starts"])
        size = self._size
        offsets = self._offsets
        for letter in new:
            letters += 1
            if letter == HOLE:
                continue
            # longest first: e′ must still be as before this letter
            for length in range(self._longest, 1, -1):
                ending = slice(offsets[length - 1] + letter, offsets[length], size)
                prefixes = starts[offsets[length - 2] : offsets[length - 1]]
                increments[ending] += np.fromiter(
                    map(gt, prefixes, starts[ending]), np.bool_, len(prefixes)
                )
                starts[ending] = prefixes
            starts[letter] = letters
            increments[letter] += 1
        return increments * self._scale, {"letters": letters, "starts": starts}


Bounds = tuple[tuple[int, ...], ...]

EACH_LENGTH: dict[tuple[int, int], Bounds] = {
    (1, 1): ((1,), (1, 2), (1, 6, 7)),
    (1, 2): ((2,), (4, 4), (10, 20, 14)),
    (2, 1): (
        *((1,), (1, 2), (1, 6, 7), (1, 22, 58, 31), (1, 92, 394, 504, 216)),
        *((1, 259, 1882, 4284, 3960, 1320), (1, 700, 8178, 29496, 46656, 33960, 9360)),
    ),
    (2, 2): (
        *((2,), (4, 4), (12, 22, 14), (35, 216, 236, 62), (178, 1048, 2148, 1680, 432)),
        *(
            (492, 4598, 14860, 20304, 12240, 2640),
            (1328, 18928, 90984, 192252, 199824, 99600, 18720),
        ),
    ),
}
"""From the power p and the number of changed letters to bounds of Σ(P^p + N^p): one row for each
length from 1, one number in it for each number of unchanged letters from 0. Test:
tests/queries/test_queries_episodes.py::test_the_tables_are_what_the_search_finds."""

ALL_LENGTHS: dict[tuple[int, int], Bounds] = {
    (1, 1): ((1,), (2, 2), (3, 8, 7)),
    (1, 2): ((2,), (6, 4), (16, 24, 14)),
    (2, 1): ((1,), (2, 2), (3, 8, 7), (4, 30, 65, 31)),
    (2, 2): ((2,), (6, 4), (18, 26, 14), (53, 242, 250, 62)),
}
"""As `EACH_LENGTH`, over the episodes of up to that length together."""


def episode_sensitivity(
    letters: int, longest: int, replace: bool, weights: Sequence[int] | None = None, power: int = 2
) -> int:
    """An upper bound of Σ_cells (P²+N²) for all episodes of length ≤ `longest` over `letters`
    letters.

    With power 1 that of Σ_cells (P+N), for pure privacy.

    Guarantee. Theorem 6 of `episodes.proof.md`, and its section "Pure privacy". Tests:
    tests/queries/test_queries_episodes.py::test_sensitivity_by_enumeration,
    ::test_known_maxima_are_met, ::test_automaton_matches_single_episodes and
    ::test_weighted_sensitivity_by_enumeration, and
    tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
    """
    # a replaced letter may also become none, and with one letter nothing else
    changes = [1]
    if replace and letters > 1:
        changes = [1, 2]
    return max(_largest_change(letters, longest, changed, weights, power) for changed in changes)


def _largest_change(
    letters: int, longest: int, changed: int, weights: Sequence[int] | None, power: int
) -> int:
    lengths = [one_length(letters, length, changed, power) for length in range(1, longest + 1)]
    together = ALL_LENGTHS[power, changed][:longest]
    total = _over_groups(letters, changed, together[-1]) + sum(lengths[len(together) :])
    if weights is None:
        return total
    by_length = sum(weight**power * bound for weight, bound in zip(weights, lengths, strict=True))
    return int(min(total * max(weights) ** power, by_length))


def one_length(letters: int, length: int, changed: int, power: int = 2) -> int:
    """The bound over the episodes of exactly this length."""
    rows = EACH_LENGTH[power, changed]
    if length <= len(rows):
        return _over_groups(letters, changed, rows[length - 1])
    if power == 2:
        return by_types(letters, length, changed)
    return 2 * changed * length * int(letters ** (length - 1))


def _over_groups(letters: int, changed: int, row: Sequence[int]) -> int:
    """Add up the bounds of all groups, which differ in their unchanged letters."""
    return sum(comb(letters - changed, free) * bound for free, bound in enumerate(row))


# -- long episodes: Lemma 7 ------------------------------------------------------------------------

Pairs = tuple[tuple[int, int], ...]
# for the levels −1, 0 and 1: the largest (rises, falls) of walks that end there
Levels = tuple[Pairs, Pairs, Pairs]
START: Levels = ((), ((0, 0),), ())


@cache
def by_types(letters: int, length: int, changed: int) -> int:
    """Lemma 7, summed over all episodes of one length: letters x have level 1 or 0, y −1 or 0, all
    others 0."""
    states = {(START, 0): 1}
    for _ in range(length):
        following: dict[tuple[Levels, int], int] = {}
        for (levels, others), number in states.items():
            for kind in (0, 1) if changed == 1 else (0, 1, -1):
                key = (_visit(levels, kind), others + (kind == 0))
                following[key] = following.get(key, 0) + number
        states = following
    return sum(
        number
        * (letters - changed) ** others
        * max(up**2 + down**2 for pairs in levels for up, down in pairs)
        for (levels, others), number in states.items()
    )


@cache
def _visit(levels: Levels, kind: int) -> Levels:
    """Extend all walks: they may skip the next letter of the episode, or visit it at one of its
    levels."""
    after = list(levels)
    for target in {kind, 0}:
        pairs = set(levels[target + 1])
        for level in {-1, 0, 1} - {target}:
            pairs |= {
                (up + (target > level), down + (target < level)) for up, down in levels[level + 1]
            }
        largest: list[tuple[int, int]] = []
        for pair in sorted(pairs, reverse=True):
            if not largest or pair[1] > largest[-1][1]:
                largest.append(pair)
        after[target + 1] = tuple(largest)
    return after[0], after[1], after[2]
