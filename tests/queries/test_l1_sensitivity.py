"""Δ₁ of every query: no neighbours of small streams beat it, most are reached, and δ = 0 works for all of them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from evercount import ActiveUsers, Budget, DistinctUsers, Episodes, Marginals, Quantiles, Rollup, Stream, Substrings
from evercount.audit.pair_search import PairSearch as _Search
from evercount.audit.universes import universe
from evercount.errors import ParameterError
from evercount.queries import Cuts
from evercount.queries.base import Adjacency, Query
from evercount.queries.graphs import (
    Components,
    DegreeHistogram,
    DegreeSequence,
    Edges,
    GraphQuery,
    HighDegree,
    Matching,
    MinCut,
    MinDegree,
    Triangles,
)
from evercount.queries.prefix import PrefixQuery
from queries.test_queries_graphs_sensitivity import DELETING, EVERY, K4, KINDS

ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace")
ORDERED: list[GraphQuery] = [
    query(4, kind, **({"initial_edges": K4} if kind in DELETING else {}))
    for query in (DegreeSequence, MinDegree, MinCut)
    for kind in KINDS
]
ORDERED += [
    query(4, kind, max_degree=2, enforce_degree=True)
    for query in (DegreeSequence, MinDegree)
    for kind in ("insert", "ignore-duplicates")
]


class Absolute(_Search):
    """The search of `audit_sensitivity` for the largest Σ |change of increments|."""

    most = 0

    def _offer(self, stream: Any, neighbour: Any, rows: np.ndarray, changed: np.ndarray) -> None:
        self.pairs += 1
        self.most = max(self.most, int(np.abs(rows - changed).sum()))


def largest_change(query: Query, adjacency: Adjacency, steps: int) -> float:
    """Over all pairs of neighbours with so many events, one in each tick: then the least cancels."""
    search = Absolute(query, universe(query), adjacency, steps, steps, {"I": np.eye(steps)}, random.Random(0))
    assert search.enumerate(400_000, None)
    assert search.pairs > 15
    return search.most * query.grid


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("query", [*EVERY, *ORDERED], ids=repr)
def test_no_graph_neighbours_beat_the_claim(query: GraphQuery, adjacency: Adjacency) -> None:
    """All streams of up to 4 updates on 4 vertices (3 where edges have weights)."""
    assert largest_change(query, adjacency, 4) <= query.l1_sensitivity(adjacency)


@pytest.mark.parametrize(
    ("query", "claim"),
    [
        (Edges(4), 1),
        (Components(4), 2),
        (HighDegree(5, tau=2), 4),
        (Triangles(5, max_degree=3), 2),
        (DegreeHistogram(5, max_degree=3), 10),
        (Matching(6), 6),
        (Edges(4, "ignore-duplicates"), 2),
    ],
    ids=repr,
)
def test_stated_values(query: GraphQuery, claim: int) -> None:
    assert query.l1_sensitivity("add-remove") == claim
    assert query.l1_sensitivity("replace") >= claim


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_mixed_streams_are_refused_under_pure_privacy(adjacency: Adjacency) -> None:
    """An edge that comes and goes changes increments for ever: one event has no l1 sensitivity."""
    query = Edges(4, "mixed")
    with pytest.raises(ParameterError, match="l1 sensitivity"):
        query.l1_sensitivity(adjacency)
    with pytest.raises(ParameterError, match="l1 sensitivity"):
        Stream(query, Budget(1.0, 0.0, adjacency=adjacency), 8)


@pytest.mark.parametrize("query", [Edges(4), Components(4), HighDegree(4, tau=2)], ids=repr)
def test_some_claims_are_reached(query: GraphQuery) -> None:
    assert largest_change(query, "add-remove", 4) >= query.l1_sensitivity("add-remove") - 1


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("kind", "letters", "longest", "steps"),
    [("s", 2, 2, 6), ("s", 3, 2, 5), ("s", 2, 3, 6), ("e", 2, 2, 6), ("e", 3, 2, 5), ("e", 2, 3, 6)],
)
def test_words_by_enumeration(kind: str, letters: int, longest: int, steps: int, adjacency: Adjacency) -> None:
    """None beat the claim, and short streams come within 40 % of it."""
    query: Query = Substrings(letters, longest) if kind == "s" else Episodes(letters, longest)
    found, claim = largest_change(query, adjacency, steps), query.l1_sensitivity(adjacency)
    assert found <= claim
    assert found >= claim * 0.6
    assert claim**2 >= query.squared_sensitivity(adjacency)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    "query",
    [
        Rollup([("a", "x"), ("a", "y"), ("b", "z")], [1, 3, 2]),
        Rollup([("only", "a"), ("only", "b")], unknown="refuse"),
        Rollup([("a",), ("b",)], [0, 1], "other"),
        Quantiles(0, 4, 4, [1, 2, 1]),
        Marginals([["a", "b"], ["x", "y"]], [[], [0], [0, 1]], [2, 1, 3]),
        Marginals([["only"], ["x", "y"]]),
    ],
    ids=repr,
)
def test_trees_and_tables_reach_their_claim(query: Query, adjacency: Adjacency) -> None:
    """Δ₁ is the exact maximum over all streams of three events, so it can neither rise nor fall."""
    assert largest_change(query, adjacency, 3) == query.l1_sensitivity(adjacency)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("query", "steps"),
    [
        (DistinctUsers(), 5),
        (DistinctUsers(["a", "b"]), 4),
        (DistinctUsers(["a", "b"], 2), 4),
        (DistinctUsers(["a", "b"], total=True), 4),
    ],
    ids=repr,
)
def test_distinct_users_reach_their_claim(query: Query, steps: int, adjacency: Adjacency) -> None:
    assert largest_change(query, adjacency, steps) == query.l1_sensitivity(adjacency)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("query", [ActiveUsers(1), ActiveUsers(1, ["a", "b"]), ActiveUsers(2, ["a", "b"], 2)], ids=repr)
def test_no_active_users_beat_their_claim(query: Query, adjacency: Adjacency) -> None:
    found, claim = largest_change(query, adjacency, 4), query.l1_sensitivity(adjacency)
    assert found <= claim
    if query in (ActiveUsers(1), ActiveUsers(1, ["a", "b"])):
        assert found == claim


@pytest.mark.parametrize("weights", ["unit", "signed"])
@pytest.mark.parametrize("swap", ["any edge", "same edge"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_cuts_by_enumeration(weights: Any, swap: Any, adjacency: Adjacency) -> None:
    query = Cuts(3, weights=weights, swap=swap)
    ends = (-1.0, 0.0, 1.0) if weights == "signed" else (0.0, 1.0)
    updates = [(u, v, w) for u, v in itertools.combinations(range(3), 2) for w in ends]
    vectors = {update: query.encode(None, [update])[0] * query.grid for update in updates}
    largest = max(np.abs(vector).sum() for vector in vectors.values())
    if adjacency == "replace":
        pairs = [(a, b) for a in updates for b in updates if swap == "any edge" or a[:2] == b[:2]]
        largest = max(np.abs(vectors[a] - vectors[b]).sum() for a, b in pairs)
    assert query.l1_sensitivity(adjacency) == pytest.approx(largest)


def test_prefix_query_from_its_s() -> None:
    """Vectors in units of the grid with Σ change² ≤ S: no l1 norm beats the claim, and one cell reaches it."""
    for cells, grid, squared in ((1, 1.0, 9.0), (3, 0.5, 2.0), (40, 1.0, 2.0), (2, 1.0, 50.0)):
        query = PrefixQuery(lambda events, cells=cells: [0] * cells, cells, {"replace": squared}, grid=grid)
        claim = query.l1_sensitivity("replace")
        reach = int(np.sqrt(squared) / grid)
        for change in itertools.product(range(-reach, reach + 1), repeat=min(cells, 3)):
            if sum(x * x for x in change) * grid**2 <= squared:
                assert sum(map(abs, change)) * grid <= claim
    with pytest.raises(Exception, match="declares no sensitivity"):
        query.l1_sensitivity("add-remove")


@pytest.mark.parametrize(
    ("query", "tick"),
    [
        (Substrings("ab", 2), "ab"),
        (Episodes("ab", 2), "ba"),
        (Edges(4), [(0, 1)]),
        (DegreeHistogram(4, max_degree=2), [(0, 1)]),
        (Matching(4), [(0, 1)]),
        (Cuts(3), [(0, 1, 1.0)]),
        (PrefixQuery(len, 1, {"add-remove": 1.0}), [1, 2]),
        (Rollup([("a", "x"), ("a", "y")]), [("a", "x")]),
        (Quantiles(0, 4, 4), [1.5]),
        (Marginals([["a", "b"], ["x", "y"]]), [("a", "y")]),
        (DistinctUsers(["a", "b"]), [("ann", "b")]),
    ],
    ids=repr,
)
def test_every_query_runs_with_delta_zero(query: Query, tick: Any) -> None:
    encode = (lambda events: [len(events)]) if isinstance(query, PrefixQuery) else None
    if encode is not None:
        query = PrefixQuery(encode, 1, {"add-remove": 1.0})
    stream = Stream(query, Budget(1.0, 0.0), 8, noise="insecure-float", seed=1)
    assert stream.factorization.name == "bridge"
    release = stream.step(tick)
    assert np.isfinite(release.values).all()
    assert (release.std_all > 0).all()
