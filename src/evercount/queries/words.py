"""Running counts of words in a stream of letters: of every substring, and of the minimal occurrences of every episode.

The word a_1 … a_k (letters numbered 0 … U−1) has the cell  offset_k + Σ a_i·U^(k−i),  offset_k = U + … + U^(k−1): a
base-U numeral behind all shorter words. So no table of words is kept, and appending a letter is one multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import product
from numbers import Integral
from operator import gt
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, require_fits
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.queries.base import Adjacency, Query, check_distinct, is_replace
from evercount.queries.episode_sensitivity import episode_absolute, episode_sensitivity
from evercount.queries.key_weights import check_weights
from evercount.queries.publishing import SUMS, Publishing, divided
from evercount.text_rules import check_public_text, shown

HOLE = -1  # the code of None: a position that holds no letter
LARGEST_WEIGHT = 2**16


class WordQuery(Query[FloatArray]):
    """A query with one cell for every word of at most `max_length` letters.

    The alphabet is a string, a list of distinct strings, or a number of letters 0 … U−1. `weights`, one whole number
    for each length 1 … ℓ, says how the noise is shared among the lengths: an occurrence of a word of length j adds
    weights[j−1] to its cell, and what is published is divided by that again. So counts of length j have the std of a
    cell over weights[j−1]. A large last weight is right where only long words matter.
    """

    splits: ClassVar[bool] = True
    cells = 0
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
        self.cells, most = self._offsets[-1], LARGEST_WEIGHT
        self.weights = None if weights is None else check_weights(weights, self._longest, "length", largest=most)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """All words in the order of their cells; letters of several characters are joined by a blank."""
        names = tuple(map(str, range(self._size))) if self._letters is None else self._letters
        join = ("" if all(len(name) == 1 for name in names) else " ").join
        words = tuple(join(word) for k in range(1, self._longest + 1) for word in product(names, repeat=k))
        return words if all(map(str.isascii, names)) else tuple(map(shown, words))

    @cached_property
    def _index(self) -> dict[Any, int]:
        names: Iterable[Any] = range(self._size) if self._letters is None else self._letters
        return {**{letter: code for code, letter in enumerate(names)}, None: HOLE}

    def _read(self, events: Any) -> list[int]:
        """The letters of a tick as codes, None as HOLE; an InputError names the first event that is not a letter."""
        if isinstance(events, bytes | Mapping) or not isinstance(events, Iterable):
            raise InputError(f"a tick is a string or a sequence of letters, not {type(events).__name__}")
        listed = events.tolist() if isinstance(events, np.ndarray) else list(events)
        legal: list[type] = [type(None), int if self._letters is None else str]
        if set(map(type, listed)) <= set(legal):  # True == 1 and 1.0 == 1 would pass the lookup
            with suppress(KeyError):
                return list(map(self._index.__getitem__, listed))
        for number, letter in enumerate(listed):
            named = isinstance(letter, Integral | None if self._letters is None else str | None)
            if not named or isinstance(letter, bool) or letter not in self._index:
                wrong = f"is {letter!r:.80}, which is not a letter of the alphabet"
                remedy = "add it to the alphabet, or pass None for a position without a letter"
                raise EventRefused(number, f"{wrong}; {remedy}")
        return list(map(self._index.__getitem__, listed))

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


class Substrings(WordQuery):
    """How often each word of at most `max_length` letters has appeared as a substring.

    A tick is a string or a sequence of letters, usually one; the stream is all letters in order, and a substring may
    run over several ticks. It counts at the tick of its last letter. An empty tick adds nothing and separates
    nothing. None is a position without a letter: it matches nothing, and no substring runs over it.

    Guarantee. S = ℓ(ℓ+1)(2ℓ+1)/6 (add-remove), ℓ(ℓ+1)(ℓ+2)/3 (replace); with `weights` w it is Σ_j w_j²·j² and
    Σ_j w_j²·(j² + j), in the units of the cells. Under add-remove a removed letter may leave a None in its place, or
    vanish so that its neighbours join; S covers both (the first attains it). Under
    replace a letter becomes another letter or None. Proof: `substrings.proof.md`. Tests:
    tests/queries/test_queries_substrings.py::test_sensitivity_by_enumeration and
    tests/queries/test_queries_substrings.py::test_weighted_sensitivity_by_enumeration.

    Args:
        alphabet: the letters, single characters, or their number.
        max_length: the longest word, in letters.
        weights: what one occurrence of a word of each length adds to its cell; see `WordQuery`. None for 1.

    Raises:
        ParameterError: the alphabet or the length is not legal.
        TooLarge: the words do not fit the memory.

    >>> query = Substrings("ab", 2)
    >>> dict(zip(query.labels, query.encode(query.initial_state(), "aba")[0].tolist()))
    {'a': 2, 'b': 1, 'aa': 0, 'ab': 1, 'ba': 1, 'bb': 0}
    >>> trigrams = Substrings("ab", 3, weights=(1, 1, 8))
    >>> noise = trigrams.squared_sensitivity("add-remove") ** 0.5 * trigrams.publishing.norms()
    >>> round(float(noise[-1]), 2), round(Substrings("ab", 3).squared_sensitivity("add-remove") ** 0.5, 2)
    (3.01, 3.74)
    """

    name: ClassVar[str] = "substrings"

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of `substrings.proof.md`; attained as soon as the stream is 2ℓ−1 letters long (replace: U ≥ 2)."""
        replaced = is_replace(adjacency)
        return float(sum(weight**2 * (j * j + replaced * j) for j, weight in self._by_length()))

    def _by_length(self) -> Iterator[tuple[int, int]]:
        return enumerate(self.weights or (1,) * self._longest, 1)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """Of each length j, j windows are lost, and j − 1 (add-remove) or j (replace) others gained.

        **Guarantee.** Proof: `substrings.proof.md`, proposition 5. Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        replaced = is_replace(adjacency)
        return float(sum(weight * (2 * j - 1 + replaced) for j, weight in self._by_length()))

    # -- from events to increments -----------------------------------------------------------------------------

    def initial_state(self) -> list[int]:
        """The last ℓ−1 letters as codes, oldest first; none yet."""
        return []

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        new = self._read(events)
        increments = np.zeros(self.cells, np.int64)
        if len(new) == 1:  # the usual tick, without the cost of small arrays
            tail = [*state, new[0]]
            number, power = 0, 1
            for length, code in enumerate(reversed(tail)):
                if code == HOLE:
                    break
                number += code * power
                power *= self._size
                increments[self._offsets[length] + number] = 1
        else:
            increments += np.bincount(self._cells_of(state, new), minlength=self.cells)
        keep = self._longest - 1
        return self._weighted(increments), [*state, *new][-keep:] if keep else []

    def _cells_of(self, state: list[int], new: list[int]) -> IntArray:
        """The cells of all substrings that end in `new`."""
        text = np.asarray([*state, *new], dtype=np.int64)
        before, total = len(state), len(state) + len(new)
        number = np.zeros(total, np.int64)
        no_hole = np.ones(total, np.bool_)
        cells = [np.empty(0, np.int64)]
        power = 1
        for length in range(1, min(self._longest, total) + 1):
            # entry i of `number`: the word of this length that ends at letter i
            back = text[: total - length + 1]
            number[length - 1 :] += back * power
            no_hole[length - 1 :] &= back != HOLE
            power *= self._size
            first = max(before, length - 1)
            ends = first + np.flatnonzero(no_hole[first:])
            cells.append(self._offsets[length - 1] + number[ends])
        return np.concatenate(cells)


class Episodes(WordQuery):
    """How many minimal occurrences each episode (a word of at most `max_length` letters) has had.

    An occurrence of an episode is a subsequence of the stream that equals it. It is minimal when no occurrence
    lies in a shorter part of the interval that it spans. It counts at the tick of its last letter. A tick is a
    string or a sequence of letters, usually one; the stream is all letters in order. None is a position without a
    letter and changes nothing. All episodes are released: to hide rare ones, apply a threshold to the noisy counts.

    Guarantee. S is a sum over groups of episodes of the largest change of each group, found by an automaton when the
    query is built. It equals the true maximum in all cases that were enumerated (ℓ ≤ 3; U = 2, ℓ = 4); longer
    episodes are grouped less, and the longest take a bound by types of letters, which is looser. Under add-remove a
    removed letter is absent: whether its place stays or not makes no difference. Under replace it becomes another
    letter or None. Proof: `episodes.proof.md`. Tests:
    tests/queries/test_queries_episodes.py::test_sensitivity_by_enumeration and
    tests/queries/test_queries_episodes.py::test_weighted_sensitivity_by_enumeration.

    Args:
        alphabet: the letters, single characters, or their number.
        max_length: the longest episode, in letters.
        weights: what one occurrence of a word of each length adds to its cell; see `WordQuery`. None for 1.

    Raises:
        ParameterError: the alphabet or the length is not legal.
        TooLarge: the episodes do not fit the memory.

    >>> query = Episodes("ab", 2)
    >>> query.labels
    ('a', 'b', 'aa', 'ab', 'ba', 'bb')
    """

    name: ClassVar[str] = "episodes"

    def __init__(self, alphabet: Sequence[str] | int, max_length: int, weights: Sequence[int] | None = None) -> None:
        super().__init__(alphabet, max_length, weights)
        self._sensitivity = [self._largest_change(episode_sensitivity, replaced) for replaced in (False, True)]

    def _largest_change(self, bound: Callable[..., int], replaced: bool) -> float:
        return float(bound(self._size, self._longest, replaced, self.weights))

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self._sensitivity[is_replace(adjacency)]

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """By the automaton for episodes of up to 3 letters.

        **Guarantee.** Proof: `episodes.proof.md`, "Pure privacy". Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        return self._largest_change(episode_absolute, is_replace(adjacency))

    # -- from events to increments -----------------------------------------------------------------------------

    def initial_state(self) -> dict[str, Any]:
        """Number of letters so far, and per episode the place (from 1) where its latest occurrence starts; 0: none."""
        return {"letters": 0, "starts": [0] * self.cells}

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """Increments of one tick of any number of letters; the old state stays as it was.

        A letter a ends a minimal occurrence of e′a exactly when the latest occurrence of e′ starts after the latest
        one of e′a. One letter touches U^(k−1) episodes of each length k.
        """
        new = self._read(events)
        increments = np.zeros(self.cells, np.int64)
        letters, starts = state["letters"], list(state["starts"])
        size, offsets = self._size, self._offsets
        for letter in new:
            letters += 1
            if letter == HOLE:
                continue
            for length in range(self._longest, 1, -1):  # longest first: e′ must still be as before this letter
                ending = slice(offsets[length - 1] + letter, offsets[length], size)
                prefixes = starts[offsets[length - 2] : offsets[length - 1]]
                increments[ending] += np.fromiter(map(gt, prefixes, starts[ending]), np.bool_, len(prefixes))
                starts[ending] = prefixes
            starts[letter] = letters
            increments[letter] += 1
        return self._weighted(increments), {"letters": letters, "starts": starts}
