"""Histogram and TopK: encoding, refusals, exact sensitivity by enumeration."""

from __future__ import annotations

import json
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from evercount import Budget
from evercount.errors import InputError, ParameterError, TooLarge
from evercount.queries.histogram import Histogram, TopK
from independent_streams import smooth_stream
from neighbouring_streams import all_neighbours, worst_pair


def counts(query: Histogram, events: Any) -> list[int]:
    return query.encode(None, events)[0].tolist()


# -- the encoder -----------------------------------------------------------------------------------


def test_named_keys() -> None:
    query = Histogram(["north", "south", "east"])
    assert query.cells == 3
    assert query.labels == ("north", "south", "east")
    assert counts(query, ["south", "north", "south"]) == [1, 2, 0]
    assert counts(query, []) == [0, 0, 0]
    assert counts(query, np.array(["east", "east"])) == [0, 0, 2]
    assert counts(query, [{"south"}, "south", ()]) == [0, 2, 0]


def test_numbered_keys() -> None:
    query = Histogram(4, max_keys_per_event=2)
    assert query.labels == ("0", "1", "2", "3")
    for events in ([3, 1, 3], np.array([3, 1, 3]), np.array([3, 1, 3], np.uint8), iter([3, 1, 3])):
        assert counts(query, events) == [0, 1, 0, 2]
    assert counts(query, [(0, 1), {1, 2}, 3, frozenset()]) == [1, 2, 1, 1]
    assert counts(query, np.array([[0, 1], [1, 2]])) == [1, 2, 1, 0]


def test_fast_and_slow_path_agree() -> None:
    rng = np.random.default_rng(1)
    for unknown in ("refuse", "other"):
        named = Histogram([f"k{i}" for i in range(50)], unknown=unknown)
        numbered = Histogram(50, unknown=unknown)
        keys = rng.integers(0, 50 if unknown == "refuse" else 60, 400)
        expected = np.bincount(np.minimum(keys, 50), minlength=named.cells)[: named.cells].tolist()
        assert counts(named, [f"k{i}" for i in keys]) == expected
        assert counts(named, [(f"k{i}",) for i in keys]) == expected
        assert counts(numbered, keys) == counts(numbered, keys.tolist()) == expected
        assert counts(numbered, [(int(i),) for i in keys]) == expected


def test_collections_agree_with_one_by_one() -> None:
    rng = np.random.default_rng(2)
    for unknown, removals in product(("refuse", "other"), (False, True)):
        query = Histogram(6, 3, removals, unknown)
        top = 6 if unknown == "refuse" else 9
        events = [tuple(rng.permutation(top)[: rng.integers(0, 4)].tolist()) for _ in range(200)]
        expected = np.zeros(query.cells, int)
        for event in events:
            for cell in {min(key, 6) for key in event}:
                expected[cell] += 1
        assert (
            counts(query, events)
            == counts(query, list(map(frozenset, events)))
            == expected.tolist()
        )
        assert counts(query, [np.array(event, int) for event in events]) == expected.tolist()


def test_removals() -> None:
    query = Histogram(["a", "b", "c"], max_keys_per_event=2, removals=True)
    assert counts(query, [{"a": -1, "b": 1}, "a", ["a", "c"], {"b": -1}]) == [1, 0, 1]
    for sign in (0, 2, True, 1.0, "1"):
        with pytest.raises(InputError, match=r"event 0 .*sign"):
            counts(query, [{"a": sign}])


def test_unknown_keys_are_never_dropped() -> None:
    with pytest.raises(InputError, match=r"event 1 .*'z'"):
        counts(Histogram(["a", "b"]), ["a", "z"])
    with pytest.raises(InputError, match=r"event 2 .*9"):
        counts(Histogram(3), [0, 1, 9])
    other = Histogram(["a", "b"], max_keys_per_event=3, unknown="other")
    assert other.labels == ("a", "b", "other")
    assert counts(other, ["a", "z", "q"]) == [1, 0, 2]
    # one event changes `other` by one, however many strange keys it names
    assert counts(other, [{"y", "z", "a"}]) == [1, 0, 1]
    assert counts(Histogram(2, unknown="other"), [0, -1, 2, 10**30]) == [1, 0, 3]
    assert counts(Histogram(2, unknown="other"), np.array([0, -1, 2])) == [1, 0, 2]
    signed = Histogram(["a"], max_keys_per_event=2, removals=True, unknown="other")
    assert counts(signed, [{"y": -1, "z": -1}]) == [0, -1]
    assert counts(signed, [{"y": -1, "z": 1}]) == [0, 0]


@pytest.mark.parametrize(
    ("events", "match"),
    [
        ([0, (0, 1, 2)], "event 1 .*more than 2"),
        ([(1, 1)], "event 0 .*twice"),
        ([0, 1, "0"], "event 2"),
        ([0, 1.5], "event 1"),
        ([0, None], "event 1"),
        ([True], "event 0"),
        ([[True]], "event 0"),
        ([[[0]]], "event 0"),
        ([{0: 1}], "event 0 .*removals"),
        ("01", r"\[event\]"),
        (7, r"\[event\]"),
        ({0: 1}, r"\[event\]"),
        (np.array([0.0, 1.0]), "event 0"),
    ],
)
def test_bad_events_are_named(events: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        counts(Histogram(3, max_keys_per_event=2), events)


def test_counts_of_a_whole_tick() -> None:
    query = Histogram(3)
    given = np.array([2, 0, 5], np.int32)
    out = query.encode_totals([given])[0]
    assert out.dtype == np.int64
    assert out.tolist() == [2, 0, 5]
    out[0] = 9
    assert given[0] == 2
    assert Histogram(3, removals=True).encode_totals([[-1, 0, 2]])[0].tolist() == [-1, 0, 2]
    wrong: list[Any] = [
        [1, 2],
        [[1, 2, 3]],
        [1.0, 2.0, 3.0],
        [1, -1, 0],
        [2**60, 0, 0],
        [True, False, True],
    ]
    for bad in wrong:
        with pytest.raises(InputError):
            query.encode_totals([bad])
    with pytest.raises(InputError):
        query.encode_totals([np.array([2**63 + 1, 0, 0], np.uint64)])


def test_bad_parameters() -> None:
    with pytest.raises(TooLarge, match="GiB"):
        Histogram(10**12)
    bad: list[dict[str, Any]] = [
        {"keys": 0},
        {"keys": True},
        {"keys": []},
        {"keys": "abc"},
        {"keys": ["a", "a"]},
        {"keys": ["a", 1]},
        {"keys": ["a", "other"], "unknown": "other"},
        {"keys": 3, "max_keys_per_event": 4},
        {"keys": 3, "max_keys_per_event": 0},
        {"keys": 3, "unknown": "drop"},
        {"keys": 3, "removals": 1},
    ]
    for arguments in bad:
        with pytest.raises(ParameterError):
            Histogram(**arguments)
    assert Histogram(10**6).cells == 10**6


def test_identity() -> None:
    weighted = Histogram(["a", "b"], 2, True, "other", {"other": 3, "b": 2, "a": 1})
    for query in (
        Histogram(["a", "b"], 2, True, "other"),
        weighted,
        Histogram(5),
        TopK(["a", "b", "c"], 2),
    ):
        again = type(query)(**json.loads(json.dumps(query.parameters())))
        assert again == query
        assert hash(again) == hash(query)
    assert Histogram(5) != TopK(5, 1)


# -- sensitivity -----------------------------------------------------------------------------------


def universe(keys: int, most: int, removals: bool) -> list[Any]:
    subsets = [c for size in range(most + 1) for c in combinations(range(keys), size)]
    if not removals:
        return list(subsets)
    return [
        dict(zip(c, signs, strict=True))
        for c in subsets
        for signs in product((-1, 1), repeat=len(c))
    ]


@pytest.mark.parametrize("removals", [False, True])
@pytest.mark.parametrize(("keys", "most", "unknown"),
                         [(1, 1, "refuse"), (3, 1, "refuse"), (3, 2, "refuse"),
                                                       (4, 2, "refuse"), (2, 2, "other"),
                                                       (1, 2, "other")])  # fmt: skip
def test_sensitivity_is_the_exact_maximum(
    keys: int, most: int, unknown: Any, removals: bool
) -> None:
    query = Histogram(keys, most, removals, unknown)
    # with `other`, two strange keys: the events may name both
    events = universe(keys + 2 * (unknown == "other"), most, removals)
    for adjacency in ("add-remove", "replace"):
        found = worst_pair(query, all_neighbours(events, 1, adjacency, per_tick=1)).value
        assert found == query.squared_sensitivity(adjacency)


def test_the_papers_value_is_beaten() -> None:
    """The paper claims b for neighbours whose vectors differ at one tick."""
    assert worst_pair(Histogram(3), all_neighbours([0, 1, 2], 2, "replace")).value == 2 > 1
    signed = Histogram(2, removals=True)
    assert (
        worst_pair(signed, all_neighbours([{0: 1}, {0: -1}, {1: 1}], 2, "replace")).value == 4 > 1
    )


# -- weights ---------------------------------------------------------------------------------------


def test_a_key_of_three_times_the_weight_has_a_third_of_the_noise() -> None:
    query = Histogram(["a", "b", "c"], weights={"a": 3, "c": 2})
    assert counts(query, ["a", "b", "a", "c"]) == [6, 1, 2]
    for budget in (Budget(1.0, 1e-6), Budget(1.0, 0.0)):
        plain = smooth_stream(Histogram(["a", "b", "c"]), budget, 50, seed=1)
        stream = smooth_stream(query, budget, 50, seed=1)
        one, std = plain.std([50])[0, 0], stream.std([50])[0]
        assert std == pytest.approx(one * np.array([1, 3, 1.5]), rel=0.05)  # rounding is finer
        release = stream.step(["a"] * 500 + ["b"] * 500)
        assert np.all(np.abs(release.value - [500, 500, 0]) < 6 * release.std)
    assert (
        Histogram(["a", "b"], weights={"a": 1}).parameters() == Histogram(["a", "b"]).parameters()
    )


@pytest.mark.parametrize(
    "weights", [{"d": 2}, {"a": 0}, {"a": 1001}, {"a": 1.5}, [1, 2], {"other": 2}]
)
def test_bad_weights(weights: Any) -> None:
    with pytest.raises(ParameterError, match="weight"):
        Histogram(["a", "b"], weights=weights)


def test_totals_without_their_weights_are_refused() -> None:
    query = Histogram(["a", "b"], weights={"a": 3})
    assert query.encode_totals([[6, 1]])[0].tolist() == [6, 1]
    with pytest.raises(InputError, match="times its weight"):
        query.encode_totals([[2, 1]])


def test_planted_weights_are_caught() -> None:
    """S without the weights, the mean of the weights², and that of one key where an event moves
    between two."""
    query = Histogram(3, weights={"0": 2, "1": 3})
    plain = Histogram(3)
    found = {
        adjacency: worst_pair(query, all_neighbours([0, 1, 2], 1, adjacency)).value
        for adjacency in ("add-remove", "replace")
    }
    assert found == {"add-remove": 9, "replace": 13}
    assert found["add-remove"] > max(plain.squared_sensitivity("add-remove"), (1 + 4 + 9) / 3)
    assert found["replace"] > query.squared_sensitivity("add-remove")
