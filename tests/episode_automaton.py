"""The search behind the tables of `evercount.queries.words`: a small automaton.

Whether a letter ends a minimal occurrence depends only on one bit per episode and per prefix of it:
"has its parent (the word without the last letter) a later start?". So a stream is a walk through
bit patterns, two neighbouring streams are a walk through pairs of them, and the largest change of a
group of episodes is found by visiting all reachable pairs. The episodes whose unchanged letters
form the same set are one group where that is small enough, else they are treated apart. See
`src/evercount/queries/episodes.proof.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from math import factorial

Word = tuple[int, ...]


@cache
def group_bound(longest: int, free: int, changed: int) -> int:
    """Bound of Σ(P²+N²) over the episodes of length ≤ `longest` whose unchanged letters form one
    set of size `free`. The letters 0 … changed−1 are the changed ones (x, and y), the next `free`
    are the others."""
    if free >= longest:
        return 0  # such an episode would have no changed letter in it
    if longest == 1:
        return changed
    if longest <= 3 or (longest == 4 and changed + free <= 2):
        lengths = range(2, longest + 1)
        words = [word for length in lengths for word in group(length, free, changed)]
        return group_bound(1, free, changed) + largest_change(words, 0, 1 if changed == 2 else None)
    return group_bound(longest - 1, free, changed) + own_bound(longest, free, changed)


@cache
def own_bound(length: int, free: int, changed: int) -> int:
    """As `group_bound`, for the episodes of exactly this length."""
    if length == 1:
        return changed if free == 0 else 0
    if length <= 3 or (length == 4 and changed + free <= 2):
        return largest_change(list(group(length, free, changed)), 0, 1 if changed == 2 else None)
    once, removed, replaced = apart(length)
    joint = _with_one_changed_letter(length, free) if length == 4 else factorial(free) * once[free]
    return changed * joint + factorial(free) * (removed[free] if changed == 1 else replaced[free])


def absolute_bound(lengths: Iterable[int], free: int, changed: int) -> int:
    """Bound of Σ(P+N) over the episodes of these lengths whose unchanged letters form one set of
    size `free`."""
    words = [word for length in lengths if length > 1 for word in group(length, free, changed)]
    single = changed if free == 0 and 1 in lengths else 0
    return single + (
        largest_change(words, 0, 1 if changed == 2 else None, absolute=True) if words else 0
    )


@cache
def _with_one_changed_letter(length: int, free: int) -> int:
    """Joint largest change of the episodes with one x; those with one y instead change apart, in
    the same way."""
    return largest_change([word for word in group(length, free, 1) if word.count(0) == 1], 0, None)


def group(length: int, free: int, changed: int) -> Iterator[Word]:
    others = set(range(changed, changed + free))
    for word in product(range(changed + free), repeat=length):
        if min(word) < changed and others <= set(word):
            yield word


@cache
def apart(length: int) -> tuple[tuple[int, ...], ...]:
    """Sums over episodes, each by itself, of the largest P²+N²; entry f: f other letters, in a
    fixed order of arrival. Three lists: episodes with one x (x removed); with several x (x
    removed); with several of x and y (x to y)."""
    once, removed, replaced = ([0] * length for _ in range(3))
    for word in _patterns(length):
        letters = max(word) + 1
        for x in range(letters):
            largest = largest_change([word], x, None)
            if word.count(x) == 1:
                once[letters - 1] += largest
            else:
                removed[letters - 1] += largest
                replaced[letters - 1] += 2 * largest  # the letter of the episode is x, or it is y
            for y in range(x):
                replaced[letters - 2] += 2 * largest_change([word], x, y)
    return tuple(once), tuple(removed), tuple(replaced)


def _patterns(length: int) -> Iterator[Word]:
    """Words up to a renaming of letters: each new letter takes the next number."""
    stack: list[Word] = [(0,)]
    while stack:
        word = stack.pop()
        if len(word) == length:
            yield word
        else:
            stack.extend((*word, letter) for letter in range(max(word) + 2))


class _Automaton:
    """All prefixes of some words, one bit for each of two letters or more: its parent has a later
    start than it."""

    def __init__(self, words: Iterable[Word]) -> None:
        prefixes = sorted(
            {word[:size] for word in words for size in range(2, len(word) + 1)}, key=len
        )
        self.bit = {prefix: number for number, prefix in enumerate(prefixes)}
        self.letters = sorted({letter for word in words for letter in word})
        self.after = cache(self._after)
        self._plans: dict[int, list[tuple[int, int, int]]] = {letter: [] for letter in self.letters}
        for prefix, number in self.bit.items():
            parent = self.bit.get(prefix[:-1], -1)
            for letter in self.letters:
                # 1: the prefix takes its parent's start; 2: the parent takes the start of its own
                # parent
                moves = (prefix[-1] == letter) + 2 * (prefix[-2] == letter)
                if moves:
                    self._plans[letter].append((number, parent, moves))

    def _after(self, state: int, letter: int) -> int:
        """The state after one more letter: Lemma 4."""
        after = state
        for number, parent, moves in self._plans[letter]:
            # a single letter always takes a new start, which is later than its old one
            parent_moved = moves & 2 and (parent < 0 or state >> parent & 1)
            if moves & 1:
                after &= ~(1 << number)
            if parent_moved:
                after |= 1 << number
        return after

    def reachable(self) -> set[int]:
        """All states of all streams; 0 is the state before the first letter."""
        states, stack = {0}, [0]
        while stack:
            state = stack.pop()
            for letter in self.letters:
                following = self.after(state, letter)
                if following not in states:
                    states.add(following)
                    stack.append(following)
        return states


def largest_change(words: list[Word], x: int | None, y: int | None, absolute: bool = False) -> int:
    """Largest Σ(P²+N²) over `words`, of two letters or more, when one letter x of the stream
    becomes y (None: nothing).

    With `absolute` the largest Σ(P+N).

    Every pair of states behind the changed letter is visited, with the gains and losses so far.
    Those of a word with one changed letter are 0 or 1 (Lemma 3), so that they are their own squares
    and only their number is kept.
    """
    automaton = _Automaton(words)
    x, y = (letter if letter in automaton.letters else None for letter in (x, y))
    simple = dict.fromkeys(automaton.letters, 0)
    others = dict.fromkeys(automaton.letters, 0)
    for word in words:
        kind = simple if absolute or sum(letter in (x, y) for letter in word) == 1 else others
        kind[word[-1]] |= 1 << automaton.bit[word]

    best: dict[tuple[int, int, int], int] = {}
    queue: deque[tuple[int, int, int]] = deque()

    def visit(
        one: int, other: int, first: int | None, second: int | None, packed: int, count: int
    ) -> None:
        """Both streams take their letter; a word's bit in the old state tells whether an occurrence
        ends here."""
        ends = (one & simple[first], one & others[first]) if first is not None else (0, 0)
        ends_other = (
            (other & simple[second], other & others[second]) if second is not None else (0, 0)
        )
        count += (ends[0] ^ ends_other[0]).bit_count()
        if ends[1] != ends_other[1]:
            packed += _spread(ends_other[1] & ~ends[1]) + (_spread(ends[1] & ~ends_other[1]) << 4)
        after = one if first is None else automaton.after(one, first)
        after_other = other if second is None else automaton.after(other, second)
        node = (after, after_other, packed)
        if best.get(node, -1) < count:
            best[node] = count
            queue.append(node)

    for state in automaton.reachable():
        visit(state, state, x, y, 0, 0)
    while queue:
        # first in, first out: a node is rarely reached again with a larger count
        node = queue.popleft()
        one, other, packed = node
        if one != other:  # equal states never differ again
            for letter in automaton.letters:
                visit(one, other, letter, letter, packed, best[node])
    return max(count + _squares(packed) for (_, _, packed), count in best.items())


@cache
def _spread(bits: int) -> int:
    """Bit i moved to the byte i: four binary digits for the gains of a word and four for its
    losses."""
    return sum(1 << 8 * number for number in range(bits.bit_length()) if bits >> number & 1)


def _squares(packed: int) -> int:
    return sum((packed >> place & 15) ** 2 for place in range(0, packed.bit_length(), 4))
