"""Substrings: the encoder against a plain count, the sensitivity by enumeration, the exact Δ²
against brute force."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from evercount import Budget, Stream
from evercount.errors import InputError, ParameterError, TooLarge
from evercount.queries.words import Substrings
from neighbouring_streams import ABSENT, all_neighbours, change_norm, worst_pair
from small_queries import exact_substring_sensitivity


def plain_count(text: list[str | None], word: str) -> int:
    k = len(word)
    return sum(text[i : i + k] == list(word) for i in range(len(text) - k + 1))


def square_root(ticks: int) -> np.ndarray:
    f = np.cumprod([1.0] + [(2 * k - 1) / (2 * k) for k in range(1, ticks)])
    return np.array([[f[i - j] if i >= j else 0.0 for j in range(ticks)] for i in range(ticks)])


# -- the encoder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_running_sums_are_plain_counts_whatever_the_ticks(seed: int) -> None:
    draw = random.Random(seed)
    text = [draw.choice(["a", "b", "c", None] if seed % 2 else ["a", "b", "c"]) for _ in range(40)]
    query = Substrings("abc", 3)
    state, total, at = query.initial_state(), np.zeros(query.cells, np.int64), 0
    while at < len(text):
        size = draw.choice([0, 1, 1, 1, 2, 5])
        row, state = query.encode(state, text[at : at + size])
        at, total = at + size, total + row
        state = json.loads(json.dumps(state))
        assert total.tolist() == [plain_count(text[:at], word) for word in query.labels]


@pytest.mark.parametrize("longest", [1, 2, 4])
def test_a_run_equals_its_ticks(longest: int) -> None:
    draw = random.Random(longest)
    ticks = [
        [draw.choice([0, 1, 2, None]) for _ in range(draw.choice([0, 1, 1, 3]))] for _ in range(30)
    ]
    query = Substrings(3, longest)
    state = query.encode(query.initial_state(), [2, 1])[1]
    rows, run_state = query.encode_run(list(state), ticks)
    for tick, row in zip(ticks, rows, strict=True):
        expected, state = query.encode(state, tick)
        assert row.tolist() == expected.tolist()
    assert run_state == state
    assert query.encode_run(state, [])[0].shape == (0, query.cells)


def test_labels_and_cells_agree() -> None:
    query = Substrings("xyz", 3)
    assert query.cells == 3 + 9 + 27 == len(query.labels)
    for cell, word in enumerate(query.labels):
        assert query.encode([], word)[0][cell] >= 1
    assert Substrings(26, 3).cells == 18_278
    assert Substrings(["up", "down"], 2).labels == (
        "up",
        "down",
        "up up",
        "up down",
        "down up",
        "down down",
    )


def test_a_bad_letter_is_named_and_changes_nothing() -> None:
    query = Substrings("ab", 3)
    state = query.encode(query.initial_state(), "ab")[1]
    before = list(state)
    for bad in ("abz", ["a", "b", 1], ["a", "b", ["a"]]):
        with pytest.raises(InputError, match="event 2"):
            query.encode(state, bad)
    with pytest.raises(InputError, match="item 1 of this run: event 0"):
        query.encode_run(state, ["a", "?"])
    with pytest.raises(InputError, match="event 1"):
        Substrings(2, 2).encode([], [1, True])
    for no_tick in (3, b"ab", {"a": 1}):
        with pytest.raises(InputError, match="sequence of events"):
            query.encode(state, no_tick)
    assert state == before


def test_bad_parameters() -> None:
    with pytest.raises(TooLarge, match="GiB"):
        Substrings(26, 12)
    with pytest.raises(TooLarge):
        Substrings(2, 10**9)
    for alphabet in ("aa", "", [], ["a", 3], 0, 2.5, True):
        with pytest.raises(ParameterError):
            Substrings(alphabet, 2)  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        Substrings("ab", 0)
    with pytest.raises(ParameterError):
        Substrings("ab", 2).squared_sensitivity("swap")  # type: ignore[arg-type]


def test_identity() -> None:
    for query in (Substrings("ab", 3), Substrings(5, 2)):
        assert Substrings(**json.loads(json.dumps(query.parameters()))) == query
    assert Substrings("ab", 3) != Substrings("ab", 2)


# -- sensitivity -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letters", "ticks", "longest"), [(1, 5, 3), (2, 5, 1), (2, 7, 2), (3, 5, 2), (2, 8, 3)]
)
def test_sensitivity_by_enumeration(letters: int, ticks: int, longest: int) -> None:
    query = Substrings(letters, longest)
    universe = list(range(letters))
    add_remove = query.squared_sensitivity("add-remove")
    # a removed letter that leaves its place empty attains S; one whose neighbours join stays below
    # it
    hole = worst_pair(query, all_neighbours(universe, ticks, "add-remove", noop=None)).value
    joined = worst_pair(query, all_neighbours(universe, ticks, "add-remove", noop=ABSENT)).value
    assert hole == add_remove == sum(k * k for k in range(1, longest + 1))
    assert joined <= add_remove
    if letters > 1:
        assert joined == sum(k * k - k + 1 for k in range(1, longest + 1))
        replace = worst_pair(query, all_neighbours(universe, ticks, "replace")).value
        assert (
            replace
            == query.squared_sensitivity("replace")
            == sum(k * k + k for k in range(1, longest + 1))
        )


@pytest.mark.parametrize("weights", [(1, 2, 5), (5, 2, 1)])
def test_weighted_sensitivity_by_enumeration(weights: tuple[int, ...]) -> None:
    """All streams of 6 letters over two, all neighbours: Σ w²(P²+N²) reaches the claim and never
    exceeds it."""
    query = Substrings(2, 3, weights)
    for adjacency in ("replace", "add-remove"):
        found = worst_pair(query, all_neighbours(range(2), 6, adjacency, noop=None)).value
        assert found == query.squared_sensitivity(adjacency)
    assert query.l1_sensitivity("replace") == sum(w * 2 * j for j, w in enumerate(weights, 1))


def test_weights_change_the_noise_and_not_the_counts() -> None:
    plain, weighted = Substrings("ab", 3), Substrings("ab", 3, (1, 1, 8))
    text = ["abba", "", "b", "aab"]
    state, rows = weighted.initial_state(), []
    for tick in text:
        row, state = weighted.encode(state, tick)
        rows.append(row)
    assert np.array_equal(rows, weighted.encode_run(weighted.initial_state(), text)[0])
    true = np.cumsum(plain.encode_run(plain.initial_state(), text)[0], axis=0)
    assert weighted.decode_run(1, np.cumsum(rows, axis=0).astype(float)).tolist() == true.tolist()
    assert type(weighted)(**weighted.parameters()) == weighted
    stream, old = (Stream(query, Budget(1.0, 1e-6), 4) for query in (weighted, plain))
    release, before = stream.run(text), old.run(text)
    assert release[-1].stds[-1] < 0.81 * before[-1].stds[-1]  # √(1 + 4 + 9·64)/8 against √14
    _, std = release.between(2, 5)
    assert std[-1] == pytest.approx(std[0] / 8, rel=0.05)


def test_holes_and_crowded_ticks_stay_below_the_sensitivity() -> None:
    query = Substrings(2, 2)
    for adjacency in ("add-remove", "replace"):
        with_holes = worst_pair(query, all_neighbours([0, 1, None], 5, adjacency)).value
        crowded = worst_pair(query, all_neighbours([0, 1], 3, adjacency, per_tick=2)).value
        assert max(with_holes, crowded) <= query.squared_sensitivity(adjacency)


def test_the_papers_value_is_beaten() -> None:
    """The paper claims ℓ² for neighbours that differ in one letter: 8 > 4 at ℓ=2; and 5 > 4 for a
    removed letter."""
    query = Substrings("ab", 2)
    assert worst_pair(query, all_neighbours("ab", 3, "replace")).value == 8 > 2**2
    assert worst_pair(query, all_neighbours("ab", 3, "add-remove", noop=None)).value == 5 > 2**2
    rows = [query.encode_run([], list(text))[0] for text in ("aaa", "aba")]
    assert change_norm(*rows) == 8


@pytest.mark.parametrize(
    ("letters", "ticks", "longest", "known"),
    [(2, 9, 2, 12.3429), (2, 9, 3, 27.1789), (2, 9, 4, 47.2094), (3, 7, 3, 24.5502)],
)
def test_exact_sensitivity_matches_brute_force(
    letters: int, ticks: int, longest: int, known: float
) -> None:
    query, R = Substrings(letters, longest), square_root(ticks)
    G = R.T @ R
    exact = exact_substring_sensitivity(query, G)
    assert exact == pytest.approx(known, abs=6e-5)
    assert exact <= G.max() * query.squared_sensitivity("replace")
    if (letters, longest) == (2, 2):
        found = worst_pair(query, all_neighbours(range(letters), ticks, "replace"), R=R).value
        assert found == pytest.approx(exact, rel=1e-12)
    # the pair that attains it: one letter of a constant stream, at the worst place
    rows = query.encode_run([], [[0]] * ticks)[0]
    best = 0.0
    for place in range(ticks):
        other = query.encode_run([], [[int(t == place)] for t in range(ticks)])[0]
        best = max(best, float(np.square(R @ (rows - other)).sum()))
    assert best == pytest.approx(exact, rel=1e-12)
