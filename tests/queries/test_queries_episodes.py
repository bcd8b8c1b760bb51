"""Episodes: the streaming update against the definition, the automaton against enumeration and known polynomials."""

from __future__ import annotations

import json
import random
from itertools import combinations, product
from math import perm
from typing import Any

import numpy as np
import pytest

from evercount.audit.neighbours import all_neighbours, change_norm, random_neighbours, worst_pair
from evercount.errors import InputError, TooLarge
from evercount.queries.episode_sensitivity import (
    LONGEST_EXACT,
    _apart,
    _group,
    _group_bound,
    episode_sensitivity,
    largest_change,
)
from evercount.queries.episodes import Episodes


def minimal_occurrences(text: str, episode: str) -> set[tuple[int, int]]:
    """The definition, word by word: intervals of occurrences that contain no other such interval."""
    spans = {
        (places[0], places[-1])
        for places in combinations(range(len(text)), len(episode))
        if all(text[i] == letter for i, letter in zip(places, episode, strict=True))
    }
    return {(a, b) for a, b in spans if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)}


# -- the encoder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alphabet", "longest", "ticks"), [("ab", 4, 7), ("abc", 3, 5)])
def test_streaming_update_is_the_definition_on_all_short_streams(alphabet: str, longest: int, ticks: int) -> None:
    query = Episodes(alphabet, longest)
    for letters in product(alphabet, repeat=ticks):
        rows = query.encode_run(query.initial_state(), letters)[0]
        text = "".join(letters)
        for cell, episode in enumerate(query.labels):
            ends = {b for _, b in minimal_occurrences(text, episode)}
            assert rows[:, cell].tolist() == [int(t in ends) for t in range(ticks)]


@pytest.mark.parametrize("seed", range(4))
def test_ticks_of_any_size_add_up(seed: int) -> None:
    draw = random.Random(seed)
    query = Episodes("abc", 3)
    text = "".join(draw.choice("abc") for _ in range(14))
    state, total, at = query.initial_state(), np.zeros(query.cells, np.int64), 0
    while at < len(text):
        size = draw.choice([0, 1, 2, 4])
        row, state = query.encode(state, [None, *text[at : at + size]] if seed % 2 else text[at : at + size])
        state, at, total = json.loads(json.dumps(state)), at + size, total + row
        assert total.tolist() == [len(minimal_occurrences(text[:at], e)) for e in query.labels]


def test_a_bad_letter_is_named_and_changes_nothing() -> None:
    query = Episodes("ab", 3)
    state = query.encode(query.initial_state(), "abba")[1]
    before = json.dumps(state)
    with pytest.raises(InputError, match="event 3"):
        query.encode(state, "abaz")
    with pytest.raises(InputError, match="item 2 of this run: event 1"):
        query.encode_run(state, ["a", "b", "a?"])
    assert json.dumps(state) == before
    query.encode(state, "ab")
    assert json.dumps(state) == before


def test_sizes_and_identity() -> None:
    with pytest.raises(TooLarge, match="GiB"):
        Episodes(26, 9)
    query = Episodes(["x", "y"], 3)
    assert query.cells == len(query.labels) == 14
    assert query.labels[query.cell("xyx")] == "xyx"
    assert Episodes(**json.loads(json.dumps(query.parameters()))) == query


# -- sensitivity -----------------------------------------------------------------------------------------------

# Enumerated independently of this code: (U, ℓ) → largest Σ(P²+N²), replace and add-remove.
KNOWN = {(2, 2): (6, 4), (2, 3): (18, 11), (2, 4): (53, 34), (3, 2): (10, 6), (3, 3): (44, 26), (4, 2): (14, 8)}

# Terms of single lengths as polynomials in U, derived independently of this code.
REMOVED = {
    2: lambda U: 3 * U - 2,
    3: lambda U: 5 * U**2 - 6 * U + 2,
    4: lambda U: 7 * U**3 - 8 * U**2 + 6 * U - 4,
    5: lambda U: 9 * U**4 - 6 * U**3 + 8 * U**2 - 25 * U + 15,
    6: lambda U: 11 * U**5 - U**3 - 43 * U**2 + 54 * U - 20,
}
REPLACED = {
    2: lambda U: 6 * U - 6,
    3: lambda U: 10 * U**2 - 8 * U - 4,
    4: lambda U: 14 * U**3 + 2 * U**2 - 58 * U + 56,
    5: lambda U: 18 * U**4 + 28 * U**3 - 168 * U**2 + 186 * U - 34,
    6: lambda U: 22 * U**5 + 70 * U**4 - 346 * U**3 + 424 * U**2 - 140 * U + 20,
}


def apart_term(letters: int, length: int, replace: bool) -> int:
    """Σ over all episodes of one length of the largest change of each by itself."""
    once, removed, replaced = _apart(length)
    if replace:
        return sum(perm(letters - 2, f) * (2 * once[f] + replaced[f]) for f in range(length))
    return sum(perm(letters - 1, f) * (once[f] + removed[f]) for f in range(length))


@pytest.mark.parametrize("length", range(2, 7))
def test_automaton_gives_the_known_polynomials(length: int) -> None:
    assert length <= LONGEST_EXACT
    for letters in (2, 3, 4, 7, 26):
        assert apart_term(letters, length, replace=False) == REMOVED[length](letters)
        assert apart_term(letters, length, replace=True) == REPLACED[length](letters)


def test_groups_are_never_looser_than_the_known_polynomials() -> None:
    for letters in (2, 3, 5, 26):
        removed, replaced = 1, 2
        for longest in range(2, 7):
            removed, replaced = removed + REMOVED[longest](letters), replaced + REPLACED[longest](letters)
            assert episode_sensitivity(letters, longest, replace=False) < removed
            assert episode_sensitivity(letters, longest, replace=True) < replaced


def test_splitting_a_group_only_loosens() -> None:
    """Length 5 is bounded apart from the shorter ones; the group of all lengths together is smaller."""
    words = [word for length in range(2, 6) for word in _group(length, 1, 1)]
    assert largest_change(words, 0, None) == 100 <= _group_bound(5, 1, 1) == 122


@pytest.mark.parametrize(("letters", "longest", "ticks"), [(1, 3, 7), (2, 1, 4), (2, 2, 8), (3, 2, 6), (2, 3, 9)])
def test_sensitivity_by_enumeration(letters: int, longest: int, ticks: int) -> None:
    query = Episodes(letters, longest)
    for column, adjacency in enumerate(("replace", "add-remove")):
        found = worst_pair(query, all_neighbours(range(letters), ticks, adjacency)).value
        assert found <= query.squared_sensitivity(adjacency)
        if (letters, longest) in KNOWN:
            assert found <= KNOWN[letters, longest][column]
        if letters > 1:  # exact, and attained in so few ticks
            assert found == query.squared_sensitivity(adjacency)


def test_known_maxima_are_met() -> None:
    for (letters, longest), (replace, removed) in KNOWN.items():
        query = Episodes(letters, longest)
        assert query.squared_sensitivity("add-remove") == removed
        assert query.squared_sensitivity("replace") == replace


def test_random_search_does_not_beat_longer_episodes() -> None:
    for letters, longest, ticks in ((3, 3, 14), (2, 4, 16), (2, 7, 16)):
        query = Episodes(letters, longest)
        for adjacency in ("add-remove", "replace"):
            pairs = random_neighbours(range(letters), ticks, adjacency, 300, seed=3)
            worst = worst_pair(query, pairs).value
            assert 0 < worst <= query.squared_sensitivity(adjacency)


@pytest.mark.parametrize("episode", [(0, 1), (0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1, 0), (0, 1, 2)])
def test_automaton_matches_single_episodes(episode: tuple[int, ...]) -> None:
    """The automaton is exact for each episode by itself: short streams attain it and none beats it."""
    letters = max(episode) + 1
    query = Episodes(letters, len(episode))
    cell, ticks = query.cell(episode), 8 if letters <= 2 else 7
    best: dict[tuple[Any, Any], float] = {}
    cache: dict[Any, Any] = {}

    def column(stream: Any) -> Any:
        if stream not in cache:
            cache[stream] = query.encode_run(query.initial_state(), stream)[0][:, [cell]]
        return cache[stream]

    for adjacency in ("add-remove", "replace"):
        for one, other in all_neighbours(range(letters), ticks, adjacency):
            place = next(t for t in range(ticks) if one[t] != other[t])
            pair = (one[place][0], other[place][0] if other[place] else None)
            best[pair] = max(best.get(pair, 0.0), change_norm(column(one), column(other)))
    assert best == {(x, y): largest_change([episode], x, y) for x, y in best}


def test_closed_form_is_above_the_automaton_and_is_used_for_long_episodes() -> None:
    def closed(letters: int, k: int, changed: int) -> int:
        # Σ over all words of 2m², m = number of letters among the changed ones
        return sum(2 * sum(letter < changed for letter in word) ** 2 for word in product(range(letters), repeat=k))

    for letters in (2, 3):
        for k in (2, 3, 4, 5):
            assert apart_term(letters, k, replace=False) <= closed(letters, k, 1)
            assert apart_term(letters, k, replace=True) <= closed(letters, k, 2)
    for changed, replace in ((1, False), (2, True)):
        longer = episode_sensitivity(2, 7, replace) - episode_sensitivity(2, 6, replace)
        assert longer == closed(2, 7, changed)


def test_the_papers_value_is_not_beaten_where_checked() -> None:
    """4ℓ·U^(ℓ−1) is not too small here; ours is below it and is proved."""
    for (letters, longest), (replace, _) in KNOWN.items():
        assert (
            replace
            <= Episodes(letters, longest).squared_sensitivity("replace")
            <= 4 * longest * letters ** (longest - 1)
        )
