"""Rollup: encoding, refusals, exact sensitivity by enumeration, published noise, errors against a
plain histogram."""

from __future__ import annotations

import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Histogram, Rollup, Stream
from evercount.audit.sensitivity import audit_sensitivity
from evercount.errors import InputError, ParameterError
from evercount.factorizations import factorization
from evercount.privacy import Adjacency
from evercount.queries import build_query
from evercount.queries.rollup import path_key
from independent_streams import noise_of, published, smooth_stream
from neighbouring_streams import all_neighbours, worst_pair

BUDGET = Budget(1.0, 1e-6)
PATHS = [("T", "I"), ("S", "G"), ("T", "K"), ("S", "L"), ("W", "W")]


def test_labels_and_order() -> None:
    query = Rollup(PATHS)
    assert query.labels == ("total", "T", "S", "W", "T / I", "T / K", "S / G", "S / L", "W / W")
    assert query.encode(None, [["T", "K"], ("W", "W"), ("T", "K")])[0].tolist() == [
        3,
        2,
        0,
        1,
        0,
        2,
        0,
        0,
        1,
    ]
    assert query.encode(None, [])[0].tolist() == [0] * 9
    other = Rollup(PATHS, weights=[0, 2, 1], unknown="other")
    assert other.labels[4] == "other"
    assert other.labels[-1] == "other / other"
    assert other.encode(None, [("T", "G"), ("other", "other"), ("S", "G")])[0].tolist() == [
        0,
        2,
        0,
        4,
        *[0, 0, 1, 0, 0, 2],
    ]
    assert Rollup([("a",), ("b",)]).labels == ("total", "a", "b")


def test_parameters_build_the_same_query() -> None:
    for query in (Rollup(PATHS), Rollup(PATHS, [1, 0, 5], "other")):
        assert build_query("rollup", query.parameters()) == query


@pytest.mark.parametrize(
    "bad",
    [
        {"paths": []},
        {"paths": "ab"},
        {"paths": ["ab", "cd"]},
        {"paths": [["a"]]},
        {"paths": [["a", "b"], ["c"]]},
        {"paths": [["a", "b"], ["a", "b"]]},
        {"paths": [["a", 1]]},
        {"paths": [["total"], ["b"]]},
        {"paths": [["a / b", "c"], ["a", "b / c"]]},
        {"paths": [["other"], ["b"]], "unknown": "other"},
        {"paths": [["e\u0301"], ["b"]]},
        {"paths": PATHS, "weights": [1, 1]},
        {"paths": PATHS, "weights": [1, 1, 0]},
        {"paths": PATHS, "weights": [1, 1, 1.5]},
        {"paths": PATHS, "weights": [1, 1, 1001]},
        {"paths": PATHS, "unknown": "drop"},
    ],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Rollup(**bad)


def test_other_is_the_last_leaf_as_row_keys_promise() -> None:
    query = Rollup([("b", "other"), ("a", "y")], unknown="other")
    keys, others = query.rows.keys
    assert others
    assert keys == [path_key(("b", "other")), path_key(("a", "y"))]
    assert query.labels[-1] == "other / other"
    with pytest.raises(ParameterError, match="taken by unknown paths"):
        Rollup([("other", "x"), ("b", "y")], unknown="other")


@pytest.mark.parametrize(
    "event", [("T", "?"), ("T",), "TI", ("T", 1), None, ("T", "I", "I"), {"T": "I"}]
)
def test_bad_events_are_named(event: Any) -> None:
    with pytest.raises(InputError, match=r"event 1 "):
        Rollup(PATHS).encode(None, [("T", "I"), event])


def test_totals_are_checked() -> None:
    query = Rollup(PATHS)
    with pytest.raises(InputError, match="between 0"):
        query.encode_totals([[-1] + [0] * 8])


SHAPES = [
    Rollup([("a",), ("b",)]),
    Rollup(PATHS[:4]),
    Rollup(PATHS[:3], [2, 0, 3]),
    Rollup([("only", "a"), ("only", "b"), ("only", "c")], [3, 5, 1]),
    Rollup([("a", "x")], [1, 2, 1], "other"),
]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", SHAPES, ids=repr)
def test_sensitivity_is_the_exact_maximum(query: Rollup, adjacency: Adjacency) -> None:
    """Every pair of neighbours over all leaves: the largest Σ(P²+N²) is S, so S can neither rise
    nor fall."""
    every = ["a", "b", "c", "x", "only", "T", "S", "I", "G", "K", "L"]
    names = ["a", "x", "other"] if query.parameters()["unknown"] == "other" else every
    known = [event for event in product(names, repeat=query.depth) if _legal(query, event)]
    worst = worst_pair(query, all_neighbours(known, 2, adjacency), exhaustive=True)
    assert worst.value == query.squared_sensitivity(adjacency)
    report = audit_sensitivity(query, np.eye(3), adjacency, 3)
    assert report.holds
    assert report.reached


def _legal(query: Rollup, event: tuple[str, ...]) -> bool:
    try:
        query.encode(None, [event])
    except InputError:
        return False
    return True


@pytest.mark.parametrize("claimed", [1, 2])
def test_a_claim_that_forgets_levels_is_beaten(claimed: int) -> None:
    """Planted bug: S of a histogram (1, or 2 under replace) instead of that of all levels."""
    adjacency: Adjacency = "add-remove" if claimed == 1 else "replace"
    assert not audit_sensitivity(Rollup(PATHS[:4]), np.eye(3), adjacency, 3, claimed=claimed).holds


def test_published_noise_has_the_stated_covariance() -> None:
    query = Rollup(PATHS, [1, 3, 2])
    stream = smooth_stream(query, BUDGET, 6, seed=0)
    noise = published(query, noise_of(stream, 4000, 6))
    cell = stream.sigma * factorization(None, 6).row_norms(np.arange(1, 7))
    for tick in (1, 6):
        wanted = query.publishing.joint(range(query.outputs)) * cell[tick - 1] ** 2
        found = noise[tick - 1].T @ noise[tick - 1] / 4000
        spread = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / 4000)
        assert np.all(np.abs(found - wanted) < 5 * spread)
        wrong = np.diag(np.diag(wanted))  # planted: outputs taken for independent
        assert not np.all(np.abs(found - wrong) < 5 * spread)
    assert np.allclose(stream.std([1, 6])[:, 0], cell[[0, 5]] * np.sqrt(query.tree.variances[0]))


def test_exact_noise_adds_up_at_every_tick_and_survives_a_snapshot() -> None:
    query = Rollup(PATHS, [1, 2, 1], "other")
    stream = Stream(query, BUDGET, 20)
    generator = np.random.default_rng(5)
    ticks = [[PATHS[i] for i in generator.integers(0, 5, 30)] for _ in range(20)]
    rows = list(stream.run(ticks[:12]).rows)
    blob = stream.snapshot()
    stream.close()
    again = Stream.restore(blob)
    rows += [again.step(tick).values for tick in ticks[12:]]
    x = dict(zip(query.labels, np.asarray(rows).T, strict=True))
    assert np.allclose(x["total"], x["T"] + x["S"] + x["W"] + x["other"], atol=1e-9)
    assert np.allclose(x["T"], x["T / I"] + x["T / K"], atol=1e-9)
    assert np.allclose(x["other"], x["other / other"], atol=1e-9)
    truth = np.cumsum([[len(tick)] for tick in ticks], axis=0)[:, 0]
    assert np.all(np.abs(x["total"] - truth) < 8 * again.std(np.arange(1, 21))[:, 0])


def test_national_total_of_400_counties() -> None:
    """At one budget the total has at most a fifth of the std that 400 counties of a histogram add
    up to."""
    paths = [(f"state {i % 16}", f"county {i}") for i in range(400)]
    query, plain = Rollup(paths), Histogram([f"county {i}" for i in range(400)])
    horizon = 365
    one, other = (smooth_stream(q, BUDGET, horizon, seed=1) for q in (query, plain))
    added = np.sqrt((other.std([horizon])[0] ** 2 * np.ones(400)).sum())
    assert one.std([horizon])[0, 0] <= added / 5
    counties = one.std([horizon])[0, -1] / other.std([horizon])[0, 0]
    assert counties < np.sqrt(3)  # and a county pays less than the three levels cost
    short, other = (smooth_stream(q, BUDGET, 4, seed=1) for q in (query, plain))
    total = published(query, noise_of(short, 200, 4))[-1, :, 0]
    assert total.std() <= noise_of(other, 200, 4)[-1].sum(axis=1).std() / 5


def test_weights_move_noise_between_levels() -> None:
    stds = []
    for weight in (1, 2, 4):
        query = Rollup(PATHS, [weight, 1, 1])
        stds.append(smooth_stream(query, BUDGET, 16, seed=0).std([16])[0])
    assert all(a[0] > b[0] for a, b in pairwise(stds))
    assert all(a[-1] < b[-1] for a, b in pairwise(stds))


def test_path_keys_are_injective() -> None:
    names = ["", "a", "1:a", "a1:b", "ä", ":", "12"]
    keys = [path_key(path) for path in product(names, repeat=2)]
    assert len(set(keys)) == len(keys)


def test_docs_state_what_the_example_prints() -> None:
    from counties import report

    found = report()
    text = " ".join(
        (Path(__file__).parents[2] / "docs" / "queries" / "groups.md").read_text("utf-8").split()
    )
    total = re.search(r"total: histogram / rollup = ([\d.]+)", found)
    county = re.search(r"county:  rollup / histogram = ([\d.]+)", found)
    assert total is not None
    assert county is not None
    assert f"{total[1]} times smaller std" in text
    assert f"a single county has a {county[1]} times larger one" in text
