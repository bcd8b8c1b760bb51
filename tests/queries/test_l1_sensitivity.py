"""Δ₁: stated values, refusals, and δ = 0 works for every query. `test_every_sensitivity.py`
enumerates the claims."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from evercount import Budget, DistinctUsers, Quantiles, Rollup, Stream
from evercount.errors import ParameterError
from evercount.graphs import Components, DegreeHistogram, Edges, HighDegree, Matching, Triangles
from evercount.privacy import Adjacency
from evercount.queries import Cuts, Marginals
from evercount.queries.base import Query
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.prefix import PrefixQuery
from evercount.words import Episodes, Substrings
from independent_streams import smooth_stream

ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace")


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


def test_prefix_query_from_its_s() -> None:
    """Vectors in units of the grid with Σ change² ≤ S: no l1 norm beats the claim, and one cell
    reaches it."""
    for cells, grid, squared in ((1, 1.0, 9.0), (3, 0.5, 2.0), (40, 1.0, 2.0), (2, 1.0, 50.0)):
        query = PrefixQuery(
            lambda events, cells=cells: [0] * cells, cells, {"replace": squared}, grid=grid
        )
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
    stream = smooth_stream(query, Budget(1.0, 0.0), 8, seed=1)
    release = stream.step(tick)
    assert np.isfinite(release.values).all()
    assert (release.stds > 0).all()
