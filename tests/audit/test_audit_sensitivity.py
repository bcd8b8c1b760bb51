"""The sensitivity audit finds what is there: known maxima, the paper's wrong values, planted
mistakes; nothing else."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from evercount._validate import FloatArray, IntArray
from evercount.audit.sensitivity import SensitivityReport, audit_sensitivity
from evercount.audit.universes import Universe, universe
from evercount.errors import ParameterError, TooLarge, UnknownName
from evercount.graphs import (
    Components,
    DegreeHistogram,
    Edges,
    HighDegree,
    KStars,
    Matching,
    SpanningForest,
    Triangles,
)
from evercount.privacy import Adjacency
from evercount.queries.base import Query
from evercount.queries.counts import Average, Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.discovered_keys import DiscoveredKeys
from evercount.queries.histogram import Histogram
from evercount.queries.marginals import Marginals
from evercount.queries.people import ActiveUsers, DistinctUsers
from evercount.queries.quantiles import Quantiles
from evercount.queries.rollup import Rollup
from evercount.queries.words import Episodes, Substrings
from neighbouring_streams import all_neighbours, change_norm, factored_norm
from small_queries import exact_substring_sensitivity

ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace")


def square_root(T: int) -> FloatArray:
    f = [1.0]
    for k in range(1, T):
        f.append(f[-1] * (2 * k - 1) / (2 * k))
    return np.array([[f[i - j] if i >= j else 0.0 for j in range(T)] for i in range(T)])


def normalized(T: int) -> FloatArray:
    R = square_root(T)
    return R / np.linalg.norm(R, axis=0)


def fenwick(T: int) -> FloatArray:
    """Node i covers the ticks (i − lowbit(i), i], counted from 1."""
    nodes = range(1, T + 1)
    return np.array([[float(i - (i & -i) < t <= i) for t in range(1, T + 1)] for i in nodes])


def every_factorization(T: int) -> dict[str, FloatArray]:
    return {
        "square-root": square_root(T),
        "normalized": normalized(T),
        "binary-tree": fenwick(T),
        "identity": np.eye(T),
    }


K4 = list(itertools.combinations(range(4), 2))
DELETED: dict[str, Any] = {"stream": "delete", "initial_edges": K4}
IGNORED: dict[str, Any] = {"stream": "ignore-duplicates"}
GRAPHS: list[Query] = [
    Edges(3, **IGNORED),
    Triangles(4, max_degree=3),
    Triangles(4, **DELETED),
    KStars(4, k=2, max_degree=3),
    DegreeHistogram(4, **DELETED),
    DegreeHistogram(4, max_degree=2, enforce_degree=True),
    HighDegree(4, tau=1),
    HighDegree(3, tau=2, **IGNORED),
    SpanningForest(3, max_weight=2),
    Components(4),
    Components(4, **DELETED),
    Matching(4),
    Matching(3, **IGNORED),
]
TEXTS: list[Query] = [
    Count(),
    Sum(-1, 3, 0.5),
    Average(1, 4, 0.5, per="event"),
    Histogram(3),
    Histogram(3, max_keys_per_event=2),
    Histogram(2, max_keys_per_event=2, removals=True),
    Substrings("ab", 2),
    Episodes("ab", 2),
    Cuts(3),
    Cuts(3, "signed"),
]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("query", [*GRAPHS, *TEXTS], ids=repr)
def test_no_factorization_beats_the_claim(query: Query, adjacency: Adjacency) -> None:
    steps = 3 if isinstance(query, Histogram | Cuts) else 4
    report = audit_sensitivity(
        query, every_factorization(4), adjacency, 4, steps=steps, budget=30_000
    )
    assert report.exhaustive
    assert report.holds, report.summary()
    assert [finding.factorization for finding in report.findings] == list(every_factorization(4))
    assert all(finding.nonnegative_gram and finding.found > 0 for finding in report.findings)


@pytest.mark.parametrize(
    ("query", "adjacency", "paper", "true"),
    [
        (HighDegree(4, tau=1), "add-remove", 6, 8),  # the l2-sensitivity of the difference sequence
        (Histogram(3), "replace", 1, 2),  # b
        (Substrings("ab", 1), "replace", 1, 2),  # ℓ²
        (Substrings("ab", 2), "add-remove", 4, 5),
        (Substrings("ab", 2), "replace", 4, 8),
    ],
    ids=repr,
)
def test_the_papers_values_are_beaten(
    query: Query, adjacency: Adjacency, paper: int, true: int
) -> None:
    report = audit_sensitivity(query, np.eye(3), adjacency, 3, claimed=paper)
    assert not report.holds
    # not only the contract: a real ‖R(X−X′)‖² exceeds the claim
    assert not report.findings[0].holds
    assert report.norm == true
    assert "BEATEN" in report.summary()
    assert audit_sensitivity(query, np.eye(3), adjacency, 3).holds


def test_high_degree_beats_the_paper_for_the_square_root_as_well() -> None:
    """One tick raises both ends, a late one lowers both: ‖R d‖²/c² tends to 8 as the ticks move
    apart."""
    T = 1024
    R = square_root(T)
    d = np.zeros(T)
    d[0], d[-200] = 2, -2
    assert ((R @ d) ** 2).sum() > 6 * (R**2).sum(axis=0).max()
    world = Universe(events=((0, 1), (0, 2), (1, 3)), replace_by_absent=True)
    report = audit_sensitivity(HighDegree(4, tau=1), R, "add-remove", T, world, steps=3, claimed=6)
    assert not report.exhaustive  # the placements in so many ticks are sampled
    assert not report.holds


@pytest.mark.parametrize(
    ("letters", "ticks", "length", "known"),
    [("ab", 9, 2, 12.3429), ("ab", 9, 3, 27.1789), ("abc", 6, 2, None)],
)
def test_known_maxima_of_substrings(
    letters: str, ticks: int, length: int, known: float | None
) -> None:
    """Values found by independent brute force, one letter per tick; next to them the query's own
    exact formula."""
    R = square_root(ticks)
    query = Substrings(letters, length)
    world = Universe(events=tuple(letters), absent=((None,),), merge=False)
    report = audit_sensitivity(query, R, "replace", ticks, world)
    assert report.exhaustive
    if known is not None:
        assert report.findings[0].found == pytest.approx(known, abs=5e-5)
    exact = exact_substring_sensitivity(query, R.T @ R)
    assert report.findings[0].found == pytest.approx(exact)


@pytest.mark.parametrize(
    "query", [Triangles(4, max_degree=3), Substrings("ab", 2), Cuts(3, "signed")], ids=repr
)
def test_beaten_pair_can_be_replayed(query: Query) -> None:
    """The reported streams, encoded anew tick by tick, give the reported value."""
    matrices = every_factorization(3)
    report = audit_sensitivity(query, matrices, "replace", 3, claimed=0.25)
    assert not report.holds
    for finding in report.findings:
        assert finding.pair is not None
        rows = [query.encode_run(query.initial_state(), stream)[0] for stream in finding.pair]
        found = factored_norm(matrices[finding.factorization], rows[0], rows[1], query.grid)
        assert found == pytest.approx(finding.found)


@pytest.mark.parametrize("query", [*GRAPHS, *TEXTS], ids=repr)
def test_increments_of_a_tick_are_sums_over_its_steps(query: Query) -> None:
    """What `Universe.merge` relies on."""
    world = universe(query)
    assert world.merge
    events = list(world.events[::2][:3])
    one, _ = query.encode(query.initial_state(), world.tick(events))
    rows, _ = query.encode_run(query.initial_state(), [world.tick([event]) for event in events])
    assert one.tolist() == rows.sum(axis=0).tolist()
    quiet, _ = query.encode_run(
        query.initial_state(), [world.tick(part) for event in events for part in ([event], [])]
    )
    assert not quiet[1::2].any()
    assert quiet[::2].tolist() == rows.tolist()


class Understated(Query):
    """Planted mistake: an event moves its own cell now and a second cell three ticks later, and S
    says 1."""

    name = "understated"

    @property
    def cells(self) -> int:
        return 2

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return 1.0 if adjacency == "add-remove" else 2.0

    def initial_state(self) -> list[int]:
        return [0, 0, 0]

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        new = sum(events)
        return np.array([new, state[0]]), [*state[1:], new]

    def parameters(self) -> dict[str, Any]:
        return {}


def test_planted_understatement_is_caught() -> None:
    world = Universe(events=(0, 1), merge=False)
    short = audit_sensitivity(Understated(), np.eye(3), "add-remove", 3, world)
    assert short.exhaustive
    assert short.holds  # three ticks are too few to see it: an audit proves what it tried, no more
    long = audit_sensitivity(Understated(), np.eye(5), "add-remove", 5, world)
    assert not long.holds
    assert long.norm == 2


def test_random_search_finds_what_enumeration_cannot_reach() -> None:
    query = HighDegree(9, tau=2)
    report = audit_sensitivity(query, np.eye(4), "add-remove", 4, steps=6, budget=1_000, seed=3)
    assert not report.exhaustive
    assert report.pairs == 1_000
    assert report.holds
    assert report.norm > 6
    again = audit_sensitivity(query, np.eye(4), "add-remove", 4, steps=6, budget=1_000, seed=3)
    assert again == report  # the same seed, the same search
    assert not audit_sensitivity(
        query, np.eye(4), "add-remove", 4, steps=6, budget=1_000, seed=3, claimed=6
    ).holds


@pytest.mark.parametrize(
    ("query", "changed"),
    [
        *itertools.product([Substrings("ab", 2), Sum(-1, 2), Histogram(2)], [1, 2]),
        (Matching(4, **IGNORED), 1),
        # of four vertices there are thirty times as many pairs of streams
        (Matching(3, **IGNORED), 2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_search_finds_what_plain_loops_find(
    query: Query, adjacency: Adjacency, changed: int
) -> None:
    """All streams of three events, one in a tick: Σ(P²+N²), Σ|change| and values, by two
    programs."""
    events = universe(query).events
    world = Universe(events, merge=False)
    report = audit_sensitivity(query, np.eye(3), adjacency, 3, world, changed=changed)
    found = [0.0, 0.0, 0.0]
    for pair in all_neighbours(events, 3, adjacency, changed=changed):
        one, other = (
            query.encode_run(query.initial_state(), list(map(list, s)))[0] * query.grid
            for s in pair
        )
        apart = one - other
        values = np.square(apart.cumsum(axis=0)).sum(axis=1).max()
        found = np.maximum(found, [change_norm(one, other), np.abs(apart).sum(), values]).tolist()
    assert report.exhaustive
    assert report.norm == found[0]
    assert report.l1 is not None
    assert report.l1.found == found[1]
    assert report.value is None or report.value.found == found[2]
    assert report.holds


@pytest.mark.parametrize(
    "name", ["squared_sensitivity", "l1_sensitivity", "squared_value_sensitivity"]
)
def test_each_claim_that_is_too_small_is_beaten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted, one after the other: the report does not hold, and names the streams."""
    query = Edges(4)
    assert audit_sensitivity(query, np.eye(2), "replace", 2).holds
    monkeypatch.setattr(Edges, name, lambda self, adjacency: 0.5)
    report = audit_sensitivity(query, np.eye(2), "replace", 2)
    assert not report.holds
    assert "BEATEN" in report.summary()
    assert all(claim.pair is not None for claim in report.claims if not claim.holds)


def test_negative_gram_matrix_is_named() -> None:
    R = np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]])
    report = audit_sensitivity(Components(3), R, "add-remove", 3)
    assert not report.findings[0].nonnegative_gram
    assert "negative entries" in report.summary()
    assert not report.holds  # +1 and −1 next to each other add up here


def test_progress_reaches_the_end() -> None:
    for budget in (100_000, 300):
        seen: list[tuple[int, int]] = []

        def record(done: int, total: int, seen: list[tuple[int, int]] = seen) -> None:
            seen.append((done, total))

        audit_sensitivity(Edges(4), np.eye(3), "replace", 3, budget=budget, progress=record)
        assert seen
        assert seen[-1][0] == seen[-1][1]
        assert seen == sorted(seen)


def test_reports_are_values() -> None:
    report = audit_sensitivity(Edges(3), {"R0": np.eye(2), "R1": square_root(2)}, "add-remove", 2)
    assert isinstance(report, SensitivityReport)
    assert [finding.factorization for finding in report.findings] == ["R0", "R1"]
    assert report.reached
    assert "the claim holds" in report.summary()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.norm = 0.0  # type: ignore[misc]


def test_requests_are_checked() -> None:
    with pytest.raises(UnknownName, match="add-remove"):
        audit_sensitivity(Edges(3), np.eye(2), "swap", 2)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="at least 3 columns"):
        audit_sensitivity(Edges(3), np.eye(2), "replace", 3)
    with pytest.raises(ParameterError, match="at least 1"):
        audit_sensitivity(Edges(3), np.eye(2), "replace", 2, budget=0)
    with pytest.raises(ParameterError, match="changed events are from 1"):
        audit_sensitivity(Edges(3), np.eye(2), "replace", 2, changed=3)
    with pytest.raises(ParameterError, match="no universe of events"):
        audit_sensitivity(Understated(), np.eye(2), "replace", 2)
    with pytest.raises(ParameterError, match="every step is a tick"):
        audit_sensitivity(
            Understated(), np.eye(2), "replace", 2, Universe((0, 1), merge=False), steps=3
        )
    with pytest.raises(TooLarge, match="fewer vertices"):
        universe(Edges(10_000))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_active_users_are_attacked_under_both_adjacencies(adjacency: Adjacency) -> None:
    """One user in place of another changes a tick only where the same user has another event in
    it."""
    report = audit_sensitivity(ActiveUsers(), {"identity": np.eye(4)}, adjacency, 4)
    assert report.findings[0].found == 1.0
    assert report.holds


OPERATORS: list[tuple[Query, float]] = [
    (DiscoveredKeys(), 2.0),
    (Rollup([["a", "b"], ["a", "c"], ["d", "e"]]), 4.0),
    (Marginals([["a", "b"], ["c", "d"]]), 6.0),
    (DistinctUsers(), 2.0),
    (DistinctUsers(keys=["a", "b"], max_keys=2), 4.0),
    (Quantiles(0, 4, bins=4), 4.0),
]


@pytest.mark.parametrize(("query", "replaced"), OPERATORS, ids=repr)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_keys_trees_tables_people_and_quantiles_attain_their_claim(
    query: Query, replaced: float, adjacency: Adjacency
) -> None:
    """The audit finds the whole claim, so a smaller one would be caught; one that is planted is."""
    claim = query.squared_sensitivity(adjacency)
    assert claim == replaced or adjacency == "add-remove"
    report = audit_sensitivity(query, {"identity": np.eye(3)}, adjacency, 3)
    assert report.findings[0].found == claim
    assert report.holds
    assert not audit_sensitivity(
        query, {"identity": np.eye(3)}, adjacency, 3, claimed=claim / 1.01
    ).holds
