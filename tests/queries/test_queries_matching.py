"""Matchings: changes that take turns cost less where the Gram matrix falls away from its
diagonal."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count
from evercount._validate import FloatArray, IntArray
from evercount.audit.sensitivity import audit_sensitivity, gram_falls
from evercount.engine.build import sensitivity_on
from evercount.factorizations import FACTORIZATIONS, Factorization, Fresh, factorization
from evercount.factorizations.filter_numbers import PiecewiseLinear, design, dyadic_knots
from evercount.factorizations.row_weighted import Weighted, Weights, bounded_columns, rows_fall
from evercount.graphs import DegreeHistogram, HighDegree, Matching
from evercount.privacy import Adjacency
from evercount.queries.graphs.edge_rules import StreamKind
from independent_streams import smooth_stream
from soak_cases import soak_except

pytestmark = pytest.mark.slow

NAMES = tuple(FACTORIZATIONS)
SQUARE = [(0, 1), (1, 2), (2, 3), (0, 3)]
ALL_EDGES = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
SIDES: tuple[Adjacency, ...] = ("add-remove", "replace")
KINDS: tuple[StreamKind, ...] = ("insert", "delete", "ignore-duplicates", "ignore-absent")


def claim(sums: FloatArray) -> FloatArray:
    """What the proof allows, in units of c², for each row of running sums."""
    d = np.diff(sums, axis=1, prepend=0.0)
    one_sided = (sums.min(axis=1) >= 0) | (sums.max(axis=1) <= 0)
    most = np.maximum(np.maximum(d, 0).sum(axis=1), np.maximum(-d, 0).sum(axis=1))
    return np.asarray(np.where(one_sided, np.abs(d).sum(axis=1), 4 * most - 2))


def excess(R: FloatArray, sums: FloatArray) -> float:
    """The largest ‖R d‖²/c² − claim."""
    d = np.diff(sums, axis=1, prepend=0.0)
    return float(
        (np.square(d @ R.T).sum(axis=1) / np.square(R).sum(axis=0).max() - claim(sums)).max()
    )


def all_sums(ticks: int) -> FloatArray:
    """Every sequence of running sums in {−1, 0, 1}, but the one that stays at 0."""
    sums = np.array(list(product((-1.0, 0.0, 1.0), repeat=ticks)))
    return np.asarray(sums[np.abs(sums).sum(axis=1) > 0])


@pytest.mark.parametrize("name", NAMES)
def test_every_short_sequence_of_turns(name: str) -> None:
    """All 3^9 sequences in 9 ticks, also at the end and spread over a longer horizon."""
    sums = all_sums(9)
    for horizon, ticks in [
        (9, range(9)),
        (60, range(51, 60)),
        (60, (0, 1, 3, 7, 15, 30, 45, 55, 59)),
    ]:
        R = factorization(name, horizon).dense(horizon)[1][:, list(ticks)]
        assert excess(R, sums) <= 1e-9


def test_turns_cost_more_where_the_gram_matrix_does_not_fall() -> None:
    R = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert not gram_falls(R)
    assert excess(R, np.array([[1.0, 0.0, 1.0]])) == pytest.approx(2.0)
    assert excess(np.eye(4), all_sums(4)) == pytest.approx(0.0), "the claim is not too large"


@pytest.mark.parametrize("name", NAMES)
def test_gram_matrices_fall(name: str) -> None:
    # a search of its own for each T
    for T in (1, 2, 3, 5, 8, 17, 64, 200, *([700] if name != "optimal" else [])):
        kind = factorization(name, T)
        assert kind.falling_gram, T
        assert gram_falls(kind.dense(T)[1]), T


@pytest.mark.parametrize(
    "T", soak_except([4096, 2**31, 2**50], [4096, 10**6, 2**31, 10**12, 2**50])
)
def test_long_horizons_are_certified(T: int) -> None:
    assert all(factorization(name, T).falling_gram for name in NAMES if name != "optimal")


def test_every_short_horizon_is_certified() -> None:
    assert all(
        factorization("balanced", T).falling_gram for T in (*range(1, 101), 199, 200, 365, 400)
    )


def no_term_grows(weights: Weights, T: int) -> bool:
    """The condition of `rows_fall`, tick by tick."""
    psi = weights.filter.forward().values(T) / weights.eta.at(0, T) ** 2
    n = weights.n.at(0, T)
    growth = np.maximum.accumulate((psi[1:] / psi[:-1])[::-1])[::-1]
    return bool(np.all(growth <= n[1:] / n[:-1]))


def test_certificate_is_never_wrong() -> None:
    """Random weights, smooth and rough: some Gram matrices fall and some do not; none of these is
    certified."""
    rng = np.random.default_rng(5)
    seen, same = set(), 0
    for roughness in (0.0, 0.01, 0.1, 1.0) * 100:
        T = int(rng.integers(3, 80))
        knots = dyadic_knots(T - 1, mirrored=True)
        rise, fall = rng.uniform(-1.5, 1.5, 2)
        smooth = (knots + 1 + rng.uniform(0, T / 4)) ** rise * (T - knots + 1.0) ** fall
        eta = PiecewiseLinear(knots, smooth * np.exp(roughness * rng.standard_normal(len(knots))))
        weights = Weights(design(T), eta, bounded_columns(design(T), eta, endless=False))
        kind = Weighted(weights, T)
        seen.add((kind.falling_gram, gram_falls(kind.dense(T)[1])))
        same += rows_fall(weights) == no_term_grows(weights, T)  # every tick is a knot here
    assert (True, False) not in seen
    assert {(True, True), (False, False)} <= seen
    assert same == 400


def test_certificate_covers_the_ticks_between_knots() -> None:
    seen = set()
    rng = np.random.default_rng(6)
    for _ in range(40):
        T = int(rng.integers(2000, 6000))
        knots = dyadic_knots(T - 1, mirrored=True)
        rise, fall = rng.uniform(0, 0.6, 2)
        eta = PiecewiseLinear(knots, (knots + 1 + T / 18) ** -rise * (T - knots + 1.0) ** -fall)
        weights = Weights(design(T), eta, bounded_columns(design(T), eta, endless=False))
        seen.add((rows_fall(weights), no_term_grows(weights, T)))
    assert (True, False) not in seen
    assert {(True, True), (False, False)} <= seen


class Unproved(Fresh):
    """A factorization of which nobody has proved how its Gram matrix falls."""

    falling_gram = Factorization.falling_gram


def test_nothing_is_promised_by_default() -> None:
    assert not Unproved(8).falling_gram


# -- the query -------------------------------------------------------------------------------------


def matching(kind: StreamKind, edges: list[tuple[int, int]] = ALL_EDGES) -> Matching:
    return Matching(4, kind, initial_edges=edges if kind in ("delete", "ignore-absent") else ())


@pytest.mark.parametrize(
    ("kind", "adjacency"),
    soak_except(
        [("insert", "add-remove"), ("insert", "replace"), ("ignore-absent", "replace")],
        product(KINDS, SIDES),
    ),
)
def test_no_neighbours_beat_the_smaller_claim(kind: StreamKind, adjacency: Adjacency) -> None:
    """All streams of up to 4 updates of 4 vertices in 5 ticks, for every factorization."""
    query = matching(kind)
    S = query.falling_sensitivity(adjacency)
    assert S is not None
    assert query.squared_sensitivity(adjacency) > S
    matrices = {name: factorization(name, 5).dense(5)[1] for name in NAMES}
    report = audit_sensitivity(query, matrices, adjacency, 5, steps=4, budget=100_000)
    assert report.exhaustive
    assert report.holds
    for finding in report.findings:
        assert finding.claimed == pytest.approx(
            np.square(matrices[finding.factorization]).sum(axis=0).max() * S
        )


REACHED: list[tuple[Any, Any, Adjacency, int]] = [
    (matching("insert"), SQUARE, "add-remove", 4),
    (matching("ignore-duplicates"), SQUARE, "add-remove", 4),
    (matching("delete", SQUARE), [(0, 1), (0, 3), (2, 3), (1, 2)], "add-remove", 3),
]


@pytest.mark.parametrize(("query", "stream", "adjacency", "expected"), REACHED, ids=str)
def test_smaller_claims_are_reached(
    query: Matching, stream: Any, adjacency: Adjacency, expected: int
) -> None:
    assert query.falling_sensitivity(adjacency) == expected
    rows = []
    for ticks in ([[edge] for edge in stream], [[], *([edge] for edge in stream[1:])]):
        rows.append(query.encode_run(query.initial_state(), ticks)[0])
    assert float(np.square(rows[0] - rows[1]).sum()) == expected


def test_the_smaller_claim_for_replaced_edges_is_reached() -> None:
    """4m − 6 = 10 for 8 vertices, by the identity: the edges 0-6 and 0-2 take turns over four
    ticks."""
    query = Matching(8)
    rest = [[(3, 6), (1, 5), (1, 4)], [(3, 4), (2, 7)], [(1, 7), (4, 5)]]
    rows = [encoded_run(query, [[edge, (1, 2)], *rest]) for edge in ((0, 6), (0, 2))]
    assert sorted(np.abs(rows[0] - rows[1]).ravel().tolist()) == [1, 1, 2, 2]
    assert np.square(rows[0] - rows[1]).sum() == 10 == query.falling_sensitivity("replace")
    assert query.squared_sensitivity("replace") == 32


def encoded_run(query: Matching, ticks: list[list[tuple[int, int]]]) -> IntArray:
    return query.encode_run(query.initial_state(), ticks)[0]


@pytest.mark.parametrize(
    ("kind", "adjacency"), soak_except([("insert", "replace")], product(KINDS, SIDES))
)
def test_no_larger_matchings_that_a_search_finds_beat_the_smaller_claim(
    kind: StreamKind, adjacency: Adjacency
) -> None:
    edges = [(u, v) for u in range(6) for v in range(u)]
    query = Matching(6, kind, initial_edges=edges if kind in ("delete", "ignore-absent") else ())
    S = query.falling_sensitivity(adjacency)
    assert S is not None
    matrices = {
        name: factorization(name, 12).dense(12)[1] for name in ("balanced", "unbounded", "fresh")
    }
    assert audit_sensitivity(query, matrices, adjacency, 12, steps=8, budget=2000, seed=1).holds


def matching_sizes(edges: list[tuple[int, int]]) -> IntArray:
    """The size of a maximum matching of every graph (edges as bits): with its first edge, or
    without."""
    sizes = np.zeros(1 << len(edges), np.int64)
    # graphs whose first edge is this one, from those of later edges
    for number in reversed(range(len(edges))):
        graphs = np.arange(1 << number, 1 << len(edges), 2 << number)
        apart = sum(
            1 << other for other, edge in enumerate(edges) if not {*edge} & {*edges[number]}
        )
        sizes[graphs] = np.maximum(sizes[graphs ^ 1 << number], 1 + sizes[graphs & apart])
    return sizes


@pytest.mark.parametrize("other", [(0, 2), (2, 3)])
def test_shares_of_matchings_take_turns_on_all_graphs(other: tuple[int, int]) -> None:
    """All 2^15 graphs on 6 vertices, all orders of their edges: Σ|d| is at most 2m − 2 = 4 for
    replace, and reached."""
    edges = list(combinations(range(6), 2))
    sizes, graphs = matching_sizes(edges), np.arange(1 << len(edges))
    assert sizes[-1] == 3
    one, two = (sizes[graphs | 1 << edges.index(edge)] - sizes for edge in ((0, 1), other))
    difference, count = one - two, np.bitwise_count(graphs)
    changes = np.abs(difference)  # the update comes at this graph
    for size in range(1, len(edges) + 1):
        here = graphs[count == size]
        for number in range(len(edges)):
            grown = here[here >> number & 1 == 1]
            before = grown ^ 1 << number
            rises = sizes[grown] > sizes[before]
            # the lemma: shares fall only where the matching grows, and rise only where not
            for share in (one, two):
                assert np.all(
                    np.where(rises, share[grown] <= share[before], share[grown] >= share[before])
                )
            turned = changes[before] + np.abs(difference[grown] - difference[before])
            changes[grown] = np.maximum(changes[grown], turned)
    assert changes.max() == 4


# -- degrees ---------------------------------------------------------------------------------------


def test_degrees_take_turns() -> None:
    """24 instead of 32 for replace, and reached by the identity; for an edge that goes nothing is
    gained."""
    query = HighDegree(10, tau=2, max_degree=3)
    assert query.falling_sensitivity("replace") == 24 < query.squared_sensitivity("replace") == 32
    assert query.falling_sensitivity("add-remove") is None
    away = [[(0, 1)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    rows = [query.encode_run(query.initial_state(), ticks)[0] for ticks in (away, [[], *away[1:]])]
    assert np.square(rows[0] - rows[1]).sum() == 8 == query.squared_sensitivity("add-remove")
    # ends 0, 1 enter tau = 2 with their next edges; ends 5, 6 have one edge each before, and leave
    # with their next ones
    rest = [[(0, 2), (1, 3), (5, 7), (6, 8)], [(0, 4), (1, 4)]]
    rows = []
    for edge in ((0, 1), (5, 6)):
        ticks = [[(5, 9), (6, 9)], [edge], *rest]
        rows.append(query.encode_run(query.initial_state(), ticks)[0])
    assert (rows[0] - rows[1]).ravel().tolist() == [0, -2, 4, -2]
    assert np.square(rows[0] - rows[1]).sum() == 24


@pytest.mark.parametrize(
    ("kind", "enforced"),
    soak_except([("insert", True)], product(["insert", "ignore-duplicates"], [False, True])),
)
def test_no_neighbours_beat_the_smaller_claim_about_degrees(
    kind: StreamKind, enforced: bool
) -> None:
    """A search over streams of 10 updates on 8 vertices; the claim that is tested is the one that
    streams use."""
    matrices = {
        name: factorization(name, 5).dense(5)[1] for name in ("balanced", "unbounded", "fresh")
    }
    for query in (
        HighDegree(8, kind, tau=2, max_degree=3, enforce_degree=enforced),
        HighDegree(8, kind, tau=1, max_degree=2, enforce_degree=enforced),
        DegreeHistogram(8, kind, max_degree=2, enforce_degree=enforced),
    ):
        smaller = query.falling_sensitivity("replace")
        assert smaller is not None
        assert smaller <= query.squared_sensitivity("replace")
        report = audit_sensitivity(query, matrices, "replace", 5, steps=10, budget=1500, seed=3)
        assert report.holds, report.summary()


def test_the_audit_tests_the_claim_that_streams_use() -> None:
    identity = {"fresh": np.eye(5)}
    assert audit_sensitivity(
        matching("insert"), identity, "add-remove", 5, steps=4, claimed=4
    ).holds
    assert not audit_sensitivity(
        matching("insert"), identity, "add-remove", 5, steps=4, claimed=3
    ).holds
    rising = np.array([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    assert (
        audit_sensitivity(matching("insert"), rising, "add-remove", 4, steps=4).findings[0].claimed
        == 8
    )


def test_smaller_claim_is_used_only_where_it_is_proved() -> None:
    query = Matching(40)
    assert sensitivity_on(factorization("balanced", 8), query, "add-remove") == 40
    assert sensitivity_on(factorization("balanced", 8), query, "replace") == 74
    assert (
        sensitivity_on(Unproved(8), query, "add-remove")
        == query.squared_sensitivity("add-remove")
        == 800
    )
    projected = Matching(40, max_degree=3, enforce_degree=True)
    assert sensitivity_on(factorization("balanced", 8), projected, "add-remove") == 800
    assert sensitivity_on(factorization("balanced", 8), Count(), "replace") == 1


@pytest.mark.parametrize(
    "budget", [Budget(1.0, 1e-6), Budget(1.0, 1e-6, unit="user", max_events=3)], ids=str
)
def test_streams_are_calibrated_to_the_smaller_claim(budget: Budget) -> None:
    for horizon in (64, None):
        name = None if horizon is None else "balanced"
        stream = smooth_stream(Matching(40), budget, horizon, name, seed=1)
        expected = (
            budget.noise_multiplier()
            * (budget.max_events or 1)
            * np.sqrt(40)
            * stream.factorization.column_norm
        )
        assert stream.sigma == pytest.approx(expected, rel=1e-9)
