"""Cuts: sensitivity, illegal updates, exact errors, bounds over all cuts, and extreme cuts against
brute force."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import comb, log
from typing import Any

import networkx as nx
import numpy as np
import pytest
from scipy.stats import norm

from evercount import Budget, Stream
from evercount.audit.sensitivity import audit_sensitivity
from evercount.audit.universes import Universe, universe
from evercount.bounds.counting_error import cuts_paper
from evercount.bounds.tails import laplace_tail, simultaneous_quantile
from evercount.errors import InputError, ParameterError, TooLarge, UnknownName
from evercount.privacy import Adjacency
from evercount.queries.cuts.cut_graph import ENUMERATED, CutGraph, CutNoise, _chernoff
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.cuts.extreme_cuts import (
    candidate_cuts,
    least_by_size,
    objective,
    stoer_wagner_cuts,
)
from independent_streams import least_share, noise_of, smooth_stream
from soak_cases import soak_except

pytestmark = pytest.mark.slow


def random_graph(n: int, seed: int, low: float = -0.3) -> CutGraph:
    return CutGraph(n, np.random.default_rng(seed).uniform(low, 1.0, n * (n - 1) // 2), 0.5)


def sides(n: int) -> list[tuple[int, ...]]:
    """One side of every cut into two."""
    return [side for size in range(1, n) for side in itertools.combinations(range(n - 1), size)]


# -- the query -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "adjacency", "S"),
    [
        ("unit", "add-remove", 1),
        ("unit", "replace", 2),
        ("signed", "add-remove", 1),
        ("signed", "replace", 4),
    ],
)
def test_sensitivity_is_the_exact_maximum(weights: Any, adjacency: Adjacency, S: int) -> None:
    query = Cuts(3, weights, grid=0.5)
    levels = (0.0, 0.5, 1.0) if weights == "unit" else (-1.0, -0.5, 0.0, 0.5, 1.0)
    world = Universe(
        tuple((u, v, w) for u, v in itertools.combinations(range(3), 2) for w in levels)
    )
    report = audit_sensitivity(query, np.eye(2), adjacency, 2, world)
    assert report.exhaustive
    assert query.squared_sensitivity(adjacency) == S == report.norm
    assert report.holds


@pytest.mark.parametrize(("weights", "S"), [("unit", 1), ("signed", 4)])
def test_same_edge_replacement(weights: Any, S: int) -> None:
    query = Cuts(3, weights, swap="same edge")
    assert query.squared_sensitivity("replace") == S
    # one edge only: any edge is the same edge
    assert Cuts(2, weights).squared_sensitivity("replace") == S
    ends = (0.0, 1.0) if weights == "unit" else (-1.0, 1.0)
    same = audit_sensitivity(
        query, np.eye(2), "replace", 2, Universe(tuple((0, 1, w) for w in ends))
    )
    assert same.norm == S
    assert same.holds


@pytest.mark.parametrize(
    ("adjacency", "swap", "S"), [("replace", "any edge", 4), ("replace", "same edge", 4)]
)
def test_a_graph_without_negative_weights_has_no_smaller_sensitivity(
    adjacency: Adjacency, swap: Any, S: int
) -> None:
    """All pairs of streams of two ticks, both of which keep every weight of the graph at 0 or more
    at both ticks."""
    query = Cuts(3, "signed", grid=0.5, swap=swap)
    pairs = itertools.combinations(range(3), 2)
    updates = [(u, v, w) for u, v in pairs for w in (-1.0, -0.5, 0.5, 1.0)]
    largest = 0.0
    for first, one, other in itertools.product(updates, repeat=3):
        if swap == "same edge" and one[:2] != other[:2]:
            continue
        rows = [query.encode_run(None, [[first], [last]])[0] * query.grid for last in (one, other)]
        if all(np.all(np.cumsum(stream, axis=0) >= 0) for stream in rows):
            change = rows[0] - rows[1]
            parts = np.maximum(change, 0).sum(axis=0) ** 2 + np.maximum(-change, 0).sum(axis=0) ** 2
            largest = max(largest, float(parts.sum()))
    assert largest == S == query.squared_sensitivity(adjacency)


def test_the_same_edge_claim_fails_for_any_edge() -> None:
    query = Cuts(3, swap="same edge")
    assert audit_sensitivity(query, np.eye(2), "replace", 2).reached
    assert not audit_sensitivity(query, np.eye(2), "replace", 2, universe(Cuts(3))).holds


def test_running_sums_are_the_weights() -> None:
    query = Cuts(4, "signed", grid=2**-4)
    ticks = [[(0, 1, 1.0), (1, 0, -0.5)], [], [(3, 2, 0.25), (0, 1, 0.03)], [(1, 3, -1)]]
    rows, _ = query.encode_run(query.initial_state(), ticks)
    assert rows.dtype == np.int64
    graph = query.graph(rows.sum(axis=0) * query.grid, 0.0)
    expected = np.zeros((4, 4))
    for u, v, w in ((0, 1, 0.5), (2, 3, 0.25), (1, 3, -1.0)):  # 0.03 is rounded to 0
        expected[u, v] = expected[v, u] = w
    np.testing.assert_array_equal(graph.weights, expected)
    assert [query.labels[cell] for cell in np.flatnonzero(rows.sum(axis=0))] == [
        "0-1",
        "1-3",
        "2-3",
    ]


def test_rounding_stays_within_half_the_grid_and_the_range() -> None:
    query = Cuts(2, "signed", grid=2**-10)
    for weight in np.random.default_rng(1).uniform(-1, 1, 200):
        rounded = query.encode(None, [(0, 1, weight)])[0][0] * query.grid
        assert abs(rounded - weight) <= query.grid / 2
        assert abs(rounded) <= 1


@pytest.mark.parametrize("units", [3, 2047, 40_000, 2**20])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_weights_in_narrow_floats_stay_within_the_range(kind: Any, units: int) -> None:
    assert Cuts(2, grid=1 / units).encode(None, [(0, 1, kind(1))])[0].tolist() == [units]


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([(0, 1, 0.5), (0, 4, 1.0)], r"update 1 .*\(0, 4, 1\.0\).*0\.\.3"),
        ([(0.5, 1, 1)], r"0\.\.3"),
        ([(0, float("nan"), 1)], r"0\.\.3"),
        ([(2, 2, 1.0)], "update 0 .*self-loop"),
        ([(0, 1, 1.5)], r"outside \[0, 1\]"),
        ([(0, 1, -0.5)], r"outside \[0, 1\]"),
        ([(0, 1, float("nan"))], r"outside \[0, 1\]"),
        ([(0, 1)], "three numbers"),
        ([(0, 1, 1), (0, 1, "x")], "update 1 .*three numbers"),
        ([5], "three numbers"),
        ([(0, 1, 1), (0, 1, 10**400)], r"update 1 .*outside \[0, 1\]"),
        ([(10**400, 1, 1)], r"0\.\.3"),
        ([(0, 1, 1), ("0", "1", "0.5")], "update 1 .*three numbers"),
        ([(0, 1, "0.5")], "three numbers"),
        ([(0, 1, 1), (True, 2, 1)], "update 1 .*three numbers"),
        ([(0, 1, True)], "three numbers"),
        ([(0, 1, np.bool_(True))], "three numbers"),
        ([(0, 1, None)], "three numbers"),
        ([([0], 1, 1)], "three numbers"),
        ([(np.int64(0), 1, np.float32(0.5)), (0, 1, 1j)], "update 1 .*three numbers"),
        ("abc", "sequence of events"),
        (5, "sequence of events"),
    ],
)
def test_illegal_updates_are_refused(events: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cuts(4).encode(None, events)


def test_parameters() -> None:
    query = Cuts(5, "signed", 0.25, "same edge")
    assert Cuts(**json.loads(json.dumps(query.parameters()))) == query
    assert query.cells == len(query.labels) == 10
    with pytest.raises(TooLarge, match="GiB"):
        Cuts(10**6)
    with pytest.raises(TooLarge, match="vertices"):
        Cuts(10**400)
    for wrong in (0.3, 0.0, -1.0, 2.0):
        with pytest.raises(ParameterError, match="grid"):
            Cuts(4, grid=wrong)
    with pytest.raises(ParameterError, match="vertices"):
        Cuts(1)
    with pytest.raises(UnknownName, match="unit"):
        Cuts(4, "units")  # type: ignore[arg-type]


# -- the released graph ----------------------------------------------------------------------------


def test_cut_value_and_std() -> None:
    graph = random_graph(6, 1)
    S, P = [0, 4], [1, 2, 5]
    found = graph.cut(S, P)
    assert found.value == pytest.approx(sum(graph.weights[s, p] for s in S for p in P))
    assert found.std == pytest.approx(0.5 * np.sqrt(6))
    assert graph.cut(S).value == pytest.approx(graph.cut(S, [1, 2, 3, 5]).value)
    assert graph.cut(np.asarray(S), {np.int64(p) for p in P}) == found
    for wrong in (
        [],
        [0, 0],
        [0, 6],
        [-1],
        {"a"},
        5,
        {1.5},
        {1.0},
        [True],
        None,
        "12",
        [[1]],
        [0, "a"],
        [10**400],
    ):
        with pytest.raises(ParameterError, match="distinct vertices"):
            graph.cut(wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(ParameterError, match="distinct vertices"):
                graph.cut([3], wrong)  # type: ignore[arg-type]
    for sizes in (5, (1, 1, 1), (1,), None, "ab", (1, 1.0), (0, 1), (True, 1), (1, "1")):
        with pytest.raises(ParameterError, match="side"):
            graph.bound(sizes)  # type: ignore[arg-type]
    for level in ("a", None, 10**400, 0.0, 1.0):
        with pytest.raises(ParameterError, match="level"):
            graph.bound((1, 1), level=level)  # type: ignore[arg-type]
    for edges in ("a", None, [[1], [1, 2]], 10**400):
        with pytest.raises(ParameterError, match="pairs"):
            CutGraph(4, edges, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="disjoint"):
        graph.cut([0, 1], [1, 2])
    with pytest.raises(ParameterError, match="pairs"):
        CutGraph(4, np.zeros(5), 1.0)
    with pytest.raises(ValueError, match="read-only"):
        graph.edges[0] = 1.0


def test_std_of_a_cut_is_that_of_the_noise() -> None:
    """4,000 graphs of pure noise: the sample std of one cut is within 5 of its standard errors
    (1/√8000)."""
    noise = np.random.default_rng(5).normal(0, 2.0, (4_000, 15))
    values = [CutGraph(6, row, 2.0).cut([0, 1], [2, 3, 4]).value for row in noise]
    stated = CutGraph(6, noise[0], 2.0).cut([0, 1], [2, 3, 4]).std
    assert abs(np.std(values) / stated - 1) < 5 / np.sqrt(8_000)
    # and not that of 5 edges
    assert abs(np.std(values) / (stated * np.sqrt(6 / 5)) - 1) > 5 / np.sqrt(8_000)


def all_pairs(n: int, a: int, b: int) -> np.ndarray[Any, Any]:
    """Rows over the edges, one for every cut of sizes a and b."""
    place = {pair: k for k, pair in enumerate(itertools.combinations(range(n), 2))}
    rows = set()
    for S in itertools.combinations(range(n), a):
        for P in itertools.combinations(sorted(set(range(n)) - set(S)), b):
            row = [0] * len(place)
            for s, p in itertools.product(S, P):
                row[place[min(s, p), max(s, p)]] = 1
            rows.add(tuple(row))
    return np.array(sorted(rows), float)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (2, 2), (2, 4), (3, 3)])
def test_bound_covers_all_cuts_of_real_noise(sizes: tuple[int, int]) -> None:
    """It holds in ≥ 1 − β of 4,000 draws, up to 4 standard errors; a bound for one cut does not."""
    n, beta, draws = 6, 0.1, 4_000
    cuts = all_pairs(n, *sizes)
    noise = np.random.default_rng(11).normal(0, 3.0, (draws, n * (n - 1) // 2))
    worst = np.abs(noise @ cuts.T).max(axis=1)
    graph = CutGraph(n, noise[0], 3.0)
    allowed = beta + 4 * np.sqrt(beta * (1 - beta) / draws)
    assert (worst > graph.bound(sizes, level=1 - beta)).mean() <= allowed
    one_cut = 3.0 * np.sqrt(sizes[0] * sizes[1]) * norm.isf(beta / 2)
    assert (worst > one_cut).mean() > allowed


def test_bound_counts_the_cuts() -> None:
    graph = random_graph(6, 1)
    for a, b in ((1, 1), (1, 3), (2, 2), (2, 4), (3, 3)):
        number = len(all_pairs(6, a, b))
        expected = 0.5 * np.sqrt(a * b) * simultaneous_quantile(7 * number, 0.05)
        assert graph.bound((a, b), 7, 0.95) == pytest.approx(expected)
        classes = sum(1 for s in range(1, 6) for p in range(s, 6) if s + p <= 6)
        expected = 0.5 * np.sqrt(a * b) * simultaneous_quantile(7 * number * classes, 0.05)
        assert graph.bound((a, b), 7, 0.95, every_size=True) == pytest.approx(expected)
    with pytest.raises(ParameterError, match="do not fit"):
        graph.bound((3, 4))


def test_bound_for_a_number_of_cuts_beyond_the_doubles() -> None:
    n = 900
    graph = CutGraph(n, np.zeros(n * (n - 1) // 2), 1.0)
    z = graph.bound((450, 450), 2**20, 1 - 1e-6, every_size=True) / 450
    assert 30 < z < 40  # √(2 ln 2^900) = 35.3


def test_our_bound_is_below_the_papers() -> None:
    """With the paper's noise at T = 1024 (std C·c_T², one z) our bound for the same probability
    2/3."""
    multiplier, T = 19.285, 1024
    std = multiplier * (np.log(T - 0.25) + 0.5772156649 + np.log(16)) / np.pi
    graph = CutGraph(20, np.zeros(190), std)
    for sizes in ((1, 1), (1, 19), (5, 15), (10, 10)):
        assert graph.bound(sizes, T, 1 / 3, every_size=True) < cuts_paper(T, multiplier, *sizes)


# -- extreme cuts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_extreme_cuts_of_small_graphs_are_exact(n: int) -> None:
    for seed in range(5):
        graph = random_graph(n, seed)
        values = {side: graph.cut(side).value for side in sides(n)}
        sparse = {side: value / (len(side) * (n - len(side))) for side, value in values.items()}
        least, most, sparsest = graph.min_cut(), graph.max_cut(), graph.sparsest_cut()
        assert least.value == pytest.approx(min(values.values()))
        assert most.value == pytest.approx(max(values.values()))
        assert sparsest.value == pytest.approx(min(sparse.values()))
        assert least.exact
        assert least.method == "enumeration"
        assert graph.cut(least.side).value == pytest.approx(least.value)
        pairs = len(sparsest.side) * (n - len(sparsest.side))
        assert sparsest.std == pytest.approx(0.5 / np.sqrt(pairs))


def two_clusters(n: int, low: float) -> CutGraph:
    """Weights about 1 within the halves, about 0.05 between them."""
    rng = np.random.default_rng(3)
    half = n // 2
    weights = [
        (1.0 if (u < half) == (v < half) else 0.05) + rng.uniform(low, 0.02)
        for u, v in itertools.combinations(range(n), 2)
    ]
    return CutGraph(n, np.array(weights), 0.1)


def test_larger_graphs_name_their_method() -> None:
    n = ENUMERATED + 4
    graph = two_clusters(n, 0.0)
    least = graph.min_cut()
    assert (least.method, least.exact) == ("Stoer-Wagner", True)  # no weight is negative
    reference = nx.Graph()
    reference.add_weighted_edges_from(
        (u, v, graph.weights[u, v]) for u in range(n) for v in range(u)
    )
    assert least.value == pytest.approx(nx.stoer_wagner(reference)[0])
    sparsest = graph.sparsest_cut()
    assert not sparsest.exact
    assert "spectral" in sparsest.method
    assert set(sparsest.side) in ({*range(n // 2)}, {*range(n // 2, n)})
    most = graph.max_cut()
    assert not most.exact
    assert most.value == pytest.approx(graph.cut(most.side).value)
    assert most.value >= graph.edges.sum() / 2  # what a local optimum always reaches
    noisy = two_clusters(n, -0.2).min_cut()
    assert not noisy.exact
    assert "raw weights" in noisy.method


def test_stoer_wagner_against_networkx() -> None:
    for seed in range(20):
        weights = random_graph(12, seed, low=0.0).weights
        weights = np.where(weights < 0.6, 0.0, weights)
        reference = nx.Graph()
        reference.add_weighted_edges_from(
            (u, v, weights[u, v]) for u in range(12) for v in range(u)
        )
        found = objective(weights, stoer_wagner_cuts(weights), False).min()
        assert found == pytest.approx(nx.stoer_wagner(reference)[0])


def planted(
    n: int, inside: float, between: float, std: float, seed: int
) -> tuple[np.ndarray[Any, Any], CutGraph]:
    """True weights of two clusters, and a release of them."""
    half = n // 2
    true = np.array(
        [
            inside if (u < half) == (v < half) else between
            for u, v in itertools.combinations(range(n), 2)
        ]
    )
    return true, CutGraph(
        n, true + np.random.default_rng(seed).normal(0, std, len(true)), std, nonnegative=True
    )


@pytest.mark.parametrize("seed", range(10))
def test_min_cut_is_not_hidden_by_negative_weights(seed: int) -> None:
    """Two clusters of 20: the lightest cut of the clipped weights is heavier than the planted one,
    judged raw."""
    n = 40
    true, graph = planted(n, 50.0, 1.03, 20.0, seed)
    visible = graph.cut(range(n // 2))
    least = graph.min_cut()
    assert least.released <= visible.value + 1e-9
    assert least.low <= true.reshape(-1)[true == 1.03].sum() <= least.high
    clipped = objective(graph.weights, stoer_wagner_cuts(np.maximum(graph.weights, 0.0)), False)
    at = int(
        objective(
            np.maximum(graph.weights, 0.0), stoer_wagner_cuts(np.maximum(graph.weights, 0.0)), False
        ).argmin()
    )
    assert least.released <= clipped[at]
    assert graph.sparsest_cut().released <= visible.value / (n // 2) ** 2 + 1e-12


@pytest.mark.parametrize("sparsity", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_search_reaches_the_optimum_of_noise(sign: float, sparsity: bool) -> None:
    """Graphs of 12 vertices with weights of both signs: the search beyond 16 vertices, against all
    2047 cuts."""
    n, hits = 12, 0
    numbers = np.arange(1, 2 ** (n - 1))
    every = (numbers[:, None] >> np.arange(n) & 1).astype(float)
    for seed in range(50):
        weights = sign * random_graph(n, seed, low=-0.7).weights
        best = objective(weights, every, sparsity).min()
        found = objective(weights, candidate_cuts(weights, sparsity), sparsity).min()
        assert found >= best - 1e-9
        hits += bool(found <= best + 1e-9)
    assert hits >= 45


def test_no_cut_falls_below_its_size_bound() -> None:
    n = 11
    numbers = np.arange(1, 2 ** (n - 1))
    every = (numbers[:, None] >> np.arange(n) & 1).astype(float)
    small = np.minimum(every.sum(axis=1), n - every.sum(axis=1)).astype(int)
    for seed in range(30):
        weights = random_graph(n, seed, low=-1.0 if seed % 2 else -0.1).weights
        values = objective(weights, every, False)
        least = least_by_size(weights)
        reached = np.array([values[small == size].min() for size in range(1, n // 2 + 1)])
        assert (least <= reached + 1e-9).all()
        assert least[:2] == pytest.approx(reached[:2])


@pytest.mark.parametrize("n", [7, 18])
def test_extreme_cuts_are_covered(n: int) -> None:
    """Of 500 releases, or 120: intervals and error bars hold in ≥ 90 %; the single-cut std of a
    chosen cut does not."""
    draws, level, std = 500 if n <= ENUMERATED else 120, 0.9, 3.0
    true = np.abs(random_graph(n, 4).edges) * 2
    numbers = np.arange(1, 2 ** (n - 1))
    every = (numbers[:, None] >> np.arange(n) & 1).astype(float)
    exact = CutGraph(n, true, std)
    goals = {
        "min_cut": objective(exact.weights, every, False).min(),
        "max_cut": objective(exact.weights, every, False).max(),
    }
    goals["sparsest_cut"] = objective(exact.weights, every, True).min()
    noise = np.random.default_rng(n).normal(0, std, (draws, len(true)))
    least = least_share(level, draws)
    for name, goal in goals.items():
        covered = bars = naive = 0
        for row in noise:
            graph = CutGraph(n, true + row, std, nonnegative=True)
            estimate = getattr(graph, name)(level=level)
            covered += estimate.low <= goal <= estimate.high
            cut = exact.cut(estimate.side).value
            off = abs(
                estimate.released
                - (cut / len(estimate.side) / (n - len(estimate.side)) if "sparse" in name else cut)
            )
            bars += off <= estimate.error
            naive += off <= norm.isf((1 - level) / 2) * estimate.std
        assert covered / draws >= least
        assert bars / draws >= least
        # the planted mistake: an interval of a cut chosen without looking
        assert naive / draws < least


# -- Laplace noise ---------------------------------------------------------------------------------


def test_laplace_margins_are_above_the_exact_tails() -> None:
    """Both ways of `of_many` against the exact tail of equal Laplace numbers; normal tails are too
    short."""
    for numbers in (1, 2, 5, 40, 256):
        for cuts in (1, 10**3, 10**9):
            beta = 0.05 / cuts
            margin = CutNoise(1.0, laplace=1).of_many(numbers, cuts, 0.05)
            chernoff = _chernoff(numbers, log(2 / beta)) * numbers**0.5
            assert margin <= chernoff
            for width in (margin, chernoff):  # a number of std 1 has the scale 1/√2
                assert float(laplace_tail(numbers, width * 2**0.5)) <= beta * (1 + 1e-9)
    assert float(laplace_tail(1, CutNoise(1.0).of_many(1, 1000, 0.05) * 2**0.5)) > 0.05 / 1000
    normal, laplace = (
        CutNoise(1.0, laplace=kind).of_many(2500, comb(100, 50), 0.05) for kind in (None, 3)
    )
    assert normal < laplace < 1.03 * normal


@pytest.mark.parametrize("grid", soak_except([1.0], [1.0, 2.0**-10]))
def test_error_bars_hold_under_laplace_noise(grid: float) -> None:
    """8,000 releases with δ = 0: the bars hold in 99 % of them, those from normal tails in
    fewer."""
    level, draws = 0.99, 8_000
    stream = Stream(Cuts(2, grid=grid), Budget(1.0, 0.0), 1)
    normal = held = 0
    first = stream.step([(0, 1, 1.0)]).graph()
    assert first.noise is not None
    assert first.noise.laplace == 1
    scale = first.noise.spread / 2**0.5 / grid
    rng = np.random.default_rng(5)
    # discrete Laplace noise is a difference of two geometric numbers
    chance = -np.expm1(-1 / scale)
    drawn = np.unique(
        rng.geometric(chance, draws) - rng.geometric(chance, draws), return_counts=True
    )
    for number, times in zip(*drawn, strict=True):  # equal noise has equal bars
        noise = number * grid
        estimate = CutGraph(2, np.array([1.0 + noise]), first.std, True, first.noise).min_cut(
            level=level
        )
        held += times * (abs(noise) <= estimate.error and estimate.low <= 1.0 <= estimate.high)
        error = CutGraph(2, np.array([1.0 + noise]), first.std, True).min_cut(level=level).error
        normal += times * (abs(noise) <= error)
    least = level - 4 * np.sqrt(level * (1 - level) / draws)
    assert held / draws >= least
    assert normal / draws < least


def test_post_processed_weights_are_no_graph() -> None:
    stream = Stream(Cuts(3), Budget(1.0, 1e-6), 4, postprocess=["nonnegative"])
    with pytest.raises(ParameterError, match="post-processed"):
        stream.step([(0, 1, 1.0)]).graph()


@pytest.mark.parametrize("n", [2, 5])
def test_extreme_cuts_of_pure_streams_are_covered(n: int) -> None:
    """2,000 streams under δ = 0, level 0.99: extreme cuts, and bounds over all cuts; normal
    quantiles do not hold."""
    streams, level = 2_000, 0.99
    stream = smooth_stream(Cuts(n), Budget(0.5, 0.0), 8, "bridge", seed=1)
    released = stream.run([[]] * 8)[3].graph()
    noise = noise_of(stream, streams, 8)[3]
    least = least_share(level, streams)
    for name in ("min_cut", "max_cut", "sparsest_cut"):
        held = 0
        for row in noise:
            estimate = getattr(replace(released, edges=row, nonnegative=False), name)(level=level)
            held += estimate.low <= 0 <= estimate.high and abs(estimate.value) <= estimate.error
        assert held >= streams * least
    for sizes in {(1, 1), (1, n - 1)}:
        worst = np.abs(noise @ all_pairs(n, *sizes).T).max(axis=1)
        assert np.mean(worst <= released.bound(sizes, level=level)) >= least
    normal = replace(released, noise=None).bound((1, 1), level=level)
    assert np.mean(np.abs(noise).max(axis=1) <= normal) < least, "planted: the quantile of normals"
