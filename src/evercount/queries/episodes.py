"""Running counts of the minimal occurrences of every episode of length ≤ ℓ in a stream of letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import gt
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import IntArray
from evercount.queries.base import Adjacency, is_replace
from evercount.queries.episode_sensitivity import episode_absolute, episode_sensitivity
from evercount.queries.word_cells import HOLE, WordQuery


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
        """S of `episodes.proof.md`."""
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
