"""Running counts of every substring of length ≤ ℓ of a stream of letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import IntArray
from evercount.queries.base import Adjacency, is_replace
from evercount.queries.word_cells import HOLE, WordQuery


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
        """(length, weight of its words)."""
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
