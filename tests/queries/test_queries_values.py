"""Values: how far graphs that differ in one update are apart, mixed streams, and the noise that is
made for that."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
from collections.abc import Callable
from functools import partial
from math import comb
from typing import Any

import networkx as nx
import numpy as np
import pytest

from evercount import Budget, Count, Secret, Stream
from evercount._validate import FloatArray
from evercount.audit.sensitivity import audit_sensitivity
from evercount.engine.build import choose_engine, sensitivity_on
from evercount.errors import InputError, ParameterError
from evercount.factorizations import Direct, factorization
from evercount.graphs import (
    Components,
    DegreeHistogram,
    DegreeSequence,
    Edges,
    HighDegree,
    KStars,
    Matching,
    MinCut,
    MinDegree,
    SpanningForest,
    Triangles,
)
from evercount.planning.compare import plan
from evercount.privacy import Adjacency
from evercount.queries.graphs.graph_query import GraphQuery
from independent_streams import smooth_stream
from product_internals import error_model, value_change_bound
from soak_cases import soak_except

pytestmark = pytest.mark.slow

ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace")
BUDGET = Budget(1.0, 1e-6)


def mixed_queries(n: int) -> list[GraphQuery]:
    return [
        Edges(n, "mixed"),
        Components(n, "mixed"),
        Matching(n, "mixed"),
        MinCut(n, "mixed"),
        MinDegree(n, "mixed"),
        DegreeSequence(n, "mixed"),
        HighDegree(n, "mixed", tau=1),
        HighDegree(n, "mixed", tau=2),
        DegreeHistogram(n, "mixed", max_degree=n - 1),
        Triangles(n, "mixed", max_degree=n - 1),
        KStars(n, "mixed", k=2, max_degree=n - 1),
    ]


def all_values(query: GraphQuery, n: int) -> FloatArray:
    """The cells of every graph on n vertices, by the bits of its edges; no noise, no start."""
    edges = list(itertools.combinations(range(n), 2))
    rows = []
    for graph in range(2 ** len(edges)):
        tick = [(*edge, 1) for place, edge in enumerate(edges) if graph >> place & 1]
        rows.append(query.encode(query.initial_state(), tick)[0])
    return np.asarray(rows, np.float64)


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize(
    "number", range(len(mixed_queries(5))), ids=lambda i: mixed_queries(5)[i].name
)
def test_all_graphs_that_differ_in_two_edges(number: int, n: int) -> None:
    """Every graph on n vertices and every pair of edges: the three claims hold, and are reached
    where they can be."""
    query = mixed_queries(n)[number]
    values, pairs = all_values(query, n), n * (n - 1) // 2
    reach, graphs = value_change_bound(query), np.arange(len(values))
    found = [0.0, 0.0, 0.0]
    for e in range(pairs):
        without = graphs[(graphs >> e & 1) == 0]
        found[0] = max(
            found[0], float(np.square(values[without | 1 << e] - values[without]).sum(axis=1).max())
        )
        for f in range(pairs):
            base = without[(without >> f & 1) == 0]
            if e != f:
                exchanged = values[base | 1 << e] - values[base | 1 << f]
                both = values[base | 1 << e | 1 << f] - values[base]
                found[1] = max(found[1], float(np.square(exchanged).sum(axis=1).max()))
                found[2] = max(found[2], float(np.square(both).sum(axis=1).max()))
    assert found[0] <= reach.one
    assert found[1] <= max(reach.one, reach.exchanged)
    assert found[2] <= reach.both
    assert found[0] == reach.one, "the claim for one edge cannot be lowered"
    if query.name in ("matching", "components", "min-degree", "edges", "high-degree") and n == 5:
        assert found[2] == reach.both or query.name == "high-degree"


@pytest.mark.parametrize("W", [1, 2, 3])
def test_spanning_forests_that_differ_in_two_edges(W: int) -> None:
    """All graphs on 4 vertices with random weights: one edge and two exchanged ones."""
    query, draw = SpanningForest(4, max_weight=W), random.Random(W)
    edges = list(itertools.combinations(range(4), 2))
    found = [0, 0]
    for _ in range(3000):
        chosen = [(*edge, draw.randint(1, W)) for edge in edges if draw.random() < 0.6]
        free = [edge for edge in edges if all(edge != other[:2] for other in chosen)]
        if len(free) < 2:
            continue
        e, f = ((*edge, draw.randint(1, W)) for edge in draw.sample(free, 2))
        base, one, two = (
            int(query.encode(query.initial_state(), tick)[0][0])
            for tick in (chosen, [*chosen, e], [*chosen, f])
        )
        found = [max(found[0], (one - base) ** 2), max(found[1], (one - two) ** 2)]
    assert found[0] == value_change_bound(query).one
    assert found[1] <= value_change_bound(query).exchanged


def neighbours_apart(query: GraphQuery, events: list[Any], length: int) -> dict[Adjacency, float]:
    """The largest Σ over cells of squared differences of values at a tick, over all pairs of
    streams."""
    ticks: list[list[Any]] = [[], *([event] for event in events)]
    # NaN: the stream is refused
    sums = np.full((*[len(ticks)] * length, length, query.cells), np.nan)

    def fill(begun: tuple[int, ...], state: Any, total: Any) -> None:
        """All streams that begin with these ticks."""
        kept = pickle.dumps(state)  # encoding changes it
        for number, tick in enumerate(ticks if len(begun) < length else []):
            try:
                row, after = query.encode(pickle.loads(kept), tick)
            except InputError:
                continue
            here = (*begun, number)
            sums[here][..., len(begun), :] = total + row
            fill(here, after, total + row)

    fill((), query.initial_state(), 0)
    sums[np.isnan(sums[..., -1, 0])] = np.nan
    removed = replaced = 0.0
    for place in range(length):
        moved = np.moveaxis(sums, place, 0)
        for mine, theirs in itertools.combinations(range(len(ticks)), 2):
            apart = float(np.nan_to_num(np.square(moved[theirs] - moved[mine]).sum(axis=-1)).max())
            replaced = max(replaced, apart)
            removed = removed if mine else max(removed, apart)
    return {"add-remove": removed, "replace": replaced}


@pytest.mark.parametrize(
    "number", range(len(mixed_queries(4))), ids=lambda i: mixed_queries(4)[i].name
)
def test_no_mixed_streams_beat_the_claim(number: int) -> None:
    """All streams of 3 updates on 4 vertices, from an empty start and from a public path."""
    for start in ((), ((0, 1), (1, 2), (2, 3))):
        query = mixed_queries(4)[number]
        query = type(query)(**{**query.parameters(), "initial_edges": start})
        events = [(u, v, sign) for u, v in ((0, 1), (0, 2), (1, 2), (2, 3)) for sign in (1, -1)]
        for adjacency, apart in neighbours_apart(query, events, 3).items():
            claimed = query.squared_value_sensitivity(adjacency)
            assert claimed is not None
            assert apart <= claimed


@pytest.mark.parametrize(
    "kind",
    soak_except(
        ["insert", "ignore-absent"], ["insert", "delete", "ignore-duplicates", "ignore-absent"]
    ),
)
def test_no_other_streams_beat_the_claim(kind: Any) -> None:
    path = [(0, 1), (0, 2), (1, 2), (2, 3), (0, 3)]
    start = {"initial_edges": path} if kind in ("delete", "ignore-absent") else {}
    bound = start or {"max_degree": 3}
    makers: list[Callable[[], GraphQuery]] = [
        lambda: Edges(4, kind, **start),
        lambda: Components(4, kind, **start),
        lambda: Matching(4, kind, **start),
        lambda: MinCut(4, kind, **start),
        lambda: MinDegree(4, kind, **start),
        lambda: DegreeSequence(4, kind, **start),
        lambda: HighDegree(4, kind, tau=2, **start),
        lambda: DegreeHistogram(4, kind, **bound),
        lambda: Triangles(4, kind, **bound),
        lambda: KStars(4, kind, k=2, **bound),
    ]
    for make in makers:
        query = make()
        for adjacency, apart in neighbours_apart(query, path, 4).items():
            claimed = query.squared_value_sensitivity(adjacency)
            assert claimed is not None
            assert apart <= claimed, query


def test_a_claim_that_is_too_small_is_caught() -> None:
    """Planted: the claim of add-remove for replace in a mixed stream."""
    query = Matching(4, "mixed", initial_edges=((0, 1),))
    events = [(u, v, sign) for u, v in ((0, 1), (2, 3)) for sign in (1, -1)]
    assert neighbours_apart(query, events, 2)["replace"] == 4 > value_change_bound(query).one


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", ["insert", "delete", "ignore-duplicates", "ignore-absent"])
def test_new_queries_keep_their_claims_for_increments(kind: Any, adjacency: Adjacency) -> None:
    """All streams of up to 3 updates; of 4 without a matrix in
    test_queries_graphs_sensitivity.py."""
    square = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]
    start = {"initial_edges": square} if kind in ("delete", "ignore-absent") else {}
    matrices = {
        name: factorization(name, 4).dense(4)[1] for name in ("balanced", "fresh", "direct")
    }
    for query in (
        MinDegree(4, kind, **start),
        MinCut(4, kind, **start),
        DegreeSequence(4, kind, **start),
    ):
        assert audit_sensitivity(query, matrices, adjacency, 4, steps=3, budget=20_000).holds
    projected = MinDegree(4, max_degree=2, enforce_degree=True)
    assert audit_sensitivity(projected, matrices, adjacency, 4, steps=3, budget=20_000).holds


# -- what the values are ---------------------------------------------------------------------------


def oracle(query: GraphQuery, graph: Any) -> list[float]:
    degrees = sorted((d for _, d in graph.degree), reverse=True)
    match query.name:
        case "min-cut":
            return [nx.edge_connectivity(graph) if nx.is_connected(graph) else 0]
        case "min-degree":
            return [degrees[-1]]
        case "degree-sequence":
            return [float(d) for d in degrees]
        case "matching":
            return [len(nx.max_weight_matching(graph, maxcardinality=True))]
        case "components":
            return [nx.number_connected_components(graph)]
        case "edges":
            return [graph.number_of_edges()]
        case "triangles":
            return [sum(nx.triangles(graph).values()) / 3]
        case "k-stars":
            return [sum(math.comb(d, 2) for d in degrees)]
        case "high-degree":
            return [sum(d >= query.parameters()["tau"] for d in degrees)]
        case "degree-histogram":
            return [float(sum(d == k for d in degrees)) for k in range(query.outputs)]
    raise AssertionError(query.name)


@pytest.mark.parametrize(
    "number", range(len(mixed_queries(7))), ids=lambda i: mixed_queries(7)[i].name
)
def test_mixed_streams_count_what_they_say(number: int) -> None:
    """Random insertions and deletions, also of edges that are there or not, with restarts from
    stored states."""
    draw = random.Random(number)
    query = mixed_queries(7)[number]
    query = type(query)(**{**query.parameters(), "initial_edges": [(0, 1), (2, 3)]})
    state, sums = query.initial_state(), np.zeros(query.cells)
    graph = nx.Graph([(0, 1), (2, 3)])
    graph.add_nodes_from(range(7))
    for _ in range(60):
        tick = []
        for _ in range(draw.randint(0, 4)):
            u, v = draw.sample(range(7), 2)
            sign = draw.choice((1, 1, -1))
            tick.append((u, v, sign))
            if sign > 0:
                graph.add_edge(u, v)
            elif graph.has_edge(u, v):
                graph.remove_edge(u, v)
        row, state = query.encode(state, tick)
        sums += row
        assert query.decode_run(1, np.atleast_2d(sums))[0].tolist() == oracle(query, graph)
        if draw.random() < 0.2:
            state = query.load_state(json.loads(json.dumps(query.dump_state(state))))


@pytest.mark.parametrize("kind", ["insert", "delete"])
def test_new_queries_count_what_they_say(kind: Any) -> None:
    draw = random.Random(3)
    edges = list(itertools.combinations(range(6), 2))
    start = {"initial_edges": edges} if kind == "delete" else {}
    for query in (
        MinCut(6, kind, **start),
        MinDegree(6, kind, **start),
        DegreeSequence(6, kind, **start),
    ):
        state, sums = query.initial_state(), np.zeros(query.cells)
        graph = nx.Graph(edges if start else [])
        graph.add_nodes_from(range(6))
        for edge in draw.sample(edges, len(edges)):
            graph.remove_edge(*edge) if start else graph.add_edge(*edge)
            row, state = query.encode(state, [edge])
            sums += row
            assert query.decode_run(1, np.atleast_2d(sums))[0].tolist() == oracle(query, graph)


def test_illegal_mixed_streams_are_refused() -> None:
    for event in ((0, 1), (0, 1, 2), (0, 1, 0), (0, 1, True), (0, 1, 1, 1)):
        with pytest.raises(InputError, match=r"insertion|whole numbers"):
            Matching(4, "mixed").encode(Matching(4, "mixed").initial_state(), [event])
    promised = DegreeHistogram(4, "mixed", max_degree=1, initial_edges=[(0, 1)])
    state = promised.initial_state()
    with pytest.raises(InputError, match="max_degree=1"):
        promised.encode(state, [(0, 2, 1)])
    assert promised.encode(state, [(0, 1, -1), (0, 2, 1)])[0].tolist() == [0]
    with pytest.raises(ParameterError, match="third number of a mixed stream is 1 or -1"):
        SpanningForest(4, "mixed", max_weight=2)
    with pytest.raises(ParameterError, match="only come"):
        Matching(4, "mixed", max_degree=2, enforce_degree=True)
    with pytest.raises(ParameterError, match=r"Promise a maximum\.$"):
        Triangles(4, "mixed")
    with pytest.raises(InputError, match="stream='mixed'"):
        Matching(4).encode(Matching(4).initial_state(), [(0, 1, -1)])


def test_a_mixed_degree_histogram_needs_no_promise() -> None:
    free, promised = DegreeHistogram(5, "mixed"), DegreeHistogram(5, "mixed", max_degree=4)
    assert free.outputs == 5
    for adjacency, v2 in (("add-remove", 4), ("replace", 16)):
        assert (
            free.squared_value_sensitivity(adjacency)
            == promised.squared_value_sensitivity(adjacency)
            == v2
        )
    star = [(0, v, 1) for v in range(1, 5)]
    assert free.encode(free.initial_state(), star)[0].tolist() == [5, 1, 1, 1]
    Stream(free, Budget(1.0, 1e-6, unit="user", max_events=2, adjacency="replace"), 4)
    with pytest.raises(ParameterError, match="max_degree"):
        DegreeHistogram(5)


# -- the noise -------------------------------------------------------------------------------------


def test_values_are_claimed_only_for_direct_noise() -> None:
    query = Matching(40)
    assert sensitivity_on(Direct(8), query, "add-remove") == 1
    assert sensitivity_on(factorization("balanced", 8), query, "add-remove") == 40
    assert sensitivity_on(Direct(8), Count(), "add-remove") == 1
    assert (
        sensitivity_on(Direct(8), Matching(40, max_degree=3, enforce_degree=True), "add-remove")
        == 800
    )
    mixed = Matching(40, "mixed")
    assert sensitivity_on(Direct(8), mixed, "replace") == 4
    with pytest.raises(ParameterError, match="direct"):
        sensitivity_on(factorization("balanced", 8), mixed, "add-remove")
    with pytest.raises(ParameterError, match="horizon"):
        Stream(mixed, BUDGET, None)


def test_few_ticks_choose_direct_and_many_do_not() -> None:
    query = Matching(1000)
    assert choose_engine(query, BUDGET, 50, None).name == "direct"
    assert choose_engine(query, BUDGET, 10**6, None).name == "balanced"
    assert choose_engine(Count(), BUDGET, 1, None).name == "balanced"
    assert choose_engine(query, BUDGET, 50, "balanced").name == "balanced"
    assert choose_engine(Matching(1000, "mixed"), BUDGET, 10**6, None).name == "direct"
    stream = smooth_stream(query, BUDGET, 50, seed=1)
    old = smooth_stream(query, BUDGET, 50, "balanced", seed=1)
    assert stream.sigma == pytest.approx(BUDGET.noise_multiplier() * math.sqrt(50), rel=1e-8)
    assert stream.std([50])[0, 0] < 0.12 * old.std([50])[0, 0]
    k = Budget(1.0, 1e-6, unit="user", max_events=3)
    assert smooth_stream(query, k, 50, seed=1).sigma == pytest.approx(3 * stream.sigma, rel=1e-8)


def test_plan_shows_direct_where_it_is_offered() -> None:
    rows = {row.name: row.worst_std for row in plan(BUDGET, 50, Matching(1000)).rows}
    assert rows["direct"] == min(rows.values())
    assert [row.name for row in plan(BUDGET, 50, Matching(1000, "mixed")).rows] == ["direct"]
    assert "direct" not in [row.name for row in plan(BUDGET, 50, Count()).rows]


@pytest.mark.parametrize("cells", [1, 60])
def test_direct_noise_is_independent_and_of_the_stated_size(cells: int) -> None:
    """2,000 numbers and more: mean, std and correlation of neighbouring ticks within 5 standard
    errors."""
    ticks = 2_000 // cells + 400
    query = MinDegree(60, "mixed") if cells == 1 else DegreeSequence(60, "mixed")
    stream = Stream(query, BUDGET, ticks, secret=Secret.from_hex("0c" * 32))
    releases = stream.run([[]] * ticks)
    z = releases.rows / releases.stds
    assert abs(z.mean()) < 5 / math.sqrt(z.size)
    assert abs(z.std() - 1) < 5 / math.sqrt(2 * z.size)
    assert abs((z[1:] * z[:-1]).mean()) < 5 / math.sqrt(z.size)
    apart, _ = error_model(releases).difference_errors(np.asarray([3]), np.asarray([9]))
    assert apart[0, 0] == pytest.approx(math.sqrt(2) * releases.stds[0, 0])


def test_snapshots_of_direct_streams_continue() -> None:
    query = Matching(6, "mixed")
    ticks = [[(0, 1, 1)], [(1, 2, 1), (0, 1, -1)], [], [(3, 4, 1)]] * 10
    secret = Secret.from_hex("0d" * 32)
    all_at_once = Stream(query, BUDGET, 40, secret=secret).run(ticks).values
    stream, values = Stream(query, BUDGET, 40, secret=secret), []
    for tick in ticks:
        values.append(stream.step(tick).value)
        stream = Stream.restore(stream.snapshot())
    assert values == all_at_once.tolist()


def test_consistent_degrees_are_possible_and_closer() -> None:
    """2,000 releases of a sparse graph of 300 vertices: never further off, and the L1 error at most
    a third."""
    rng = np.random.default_rng(2)
    n, top = 300, 40
    degrees = np.minimum(rng.poisson(6, n), top)
    histogram = np.bincount(degrees, minlength=top + 1).astype(float)
    at_least = np.cumsum(histogram[::-1])[::-1][1:]
    query, sequence = DegreeHistogram(n, max_degree=top), DegreeSequence(n)
    raw = tidy = 0.0
    for noise in rng.normal(0, 30, (2_000, top)):
        values = -np.diff(at_least + noise, prepend=float(n), append=0.0)
        found = query.consistent(values)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(n)
        back = np.cumsum(found[::-1])[::-1][1:]
        assert np.linalg.norm(back - at_least) <= np.linalg.norm(noise) + 1e-9
        assert np.abs(back - at_least).max() <= np.abs(noise).max() + 1e-9
        raw += np.abs(values - histogram).sum()
        tidy += np.abs(found - histogram).sum()
    assert tidy < raw / 3
    true = np.sort(degrees)[::-1].astype(float)
    noisy = true + rng.normal(0, 10, n)
    assert np.linalg.norm(sequence.consistent(noisy) - true) < np.linalg.norm(noisy - true) / 3
    release = Stream(query, BUDGET, 4).step([(0, 1)])
    assert release.consistent().sum() == pytest.approx(n)
    with pytest.raises(ParameterError, match="consistent"):
        Stream(Count(), BUDGET, 4).step(1).consistent()


def test_triangles_with_a_promise_per_edge() -> None:
    """All streams of up to 5 updates on 4 vertices: no neighbours that keep the promise beat the
    smaller claim."""
    query = Triangles(4, max_per_edge=1)
    edges = list(itertools.combinations(range(4), 2))
    for adjacency, apart in neighbours_apart(query, edges, 5).items():
        assert query.squared_sensitivity(adjacency) == (1 if adjacency == "add-remove" else 2)
        assert apart == query.squared_value_sensitivity(adjacency) == 1
    loose = neighbours_apart(Triangles(4, max_degree=3), edges, 5)
    assert set(loose.values()) == {4}, "without the promise the claim would be wrong"


def test_the_promise_per_edge_is_checked_before_anything_changes() -> None:
    query = Triangles(5, "mixed", max_per_edge=1)
    state = query.initial_state()
    assert query.encode(state, [(0, 1, 1), (1, 2, 1), (0, 2, 1)])[0].tolist() == [1]
    before = json.dumps(query.dump_state(state))
    for tick in ([(0, 3, 1), (1, 3, 1)], [(0, 3, 1), (2, 4, 1), (2, 3, 1)]):
        with pytest.raises(InputError, match="max_per_edge=1"):
            query.encode(state, tick)
        assert json.dumps(query.dump_state(state)) == before
    assert query.encode(state, [(0, 1, -1), (0, 3, 1), (2, 3, 1)])[0].tolist() == [0]
    for wrong in (
        {"stream": "delete", "initial_edges": [(0, 1)]},
        {"stream": "ignore-absent", "initial_edges": [(0, 1)]},
        {"max_degree": 2, "enforce_degree": True},
    ):
        for build in (Triangles, lambda n, **more: KStars(n, k=2, **more)):
            with pytest.raises(ParameterError, match="max_per_edge"):
                build(4, max_per_edge=1, **wrong)  # type: ignore[arg-type]


CAPPED: dict[str, Callable[..., GraphQuery]] = {
    "triangles": Triangles,
    "stars": partial(KStars, k=2),
}
K4 = list(itertools.combinations(range(4), 2))


@pytest.mark.parametrize("name", CAPPED)
def test_a_start_that_breaks_the_promise_per_edge_is_refused(name: str) -> None:
    """Each edge of K4 lies in 2 triangles and 4 stars: one deletion changes the count by as
    much."""
    build, per_edge = CAPPED[name], {"triangles": 2, "stars": 4}[name]
    for most in range(1, per_edge):
        with pytest.raises(
            ParameterError, match=f"initial_edges.*max_per_edge={most} {name}; promise a larger"
        ):
            build(4, "mixed", max_per_edge=most, initial_edges=K4)
    query = build(4, "mixed", max_per_edge=per_edge, initial_edges=K4)
    for adjacency, claim in (("add-remove", per_edge**2), ("replace", (2 * per_edge) ** 2)):
        assert query.squared_value_sensitivity(adjacency) == claim
        report = audit_sensitivity(query, np.eye(2), adjacency, 2)
        assert report.value is not None
        assert report.value.holds
    # a claim below K would be beaten
    assert audit_sensitivity(query, np.eye(2), "add-remove", 2).value.reached


@pytest.mark.parametrize("kind", ["insert", "ignore-duplicates", "mixed"])
@pytest.mark.parametrize("name", CAPPED)
def test_updates_that_break_the_promise_per_edge_are_refused(name: str, kind: str) -> None:
    """The update itself, or another edge that it brings into one subgraph more; nothing is changed
    by a refusal."""
    query = CAPPED[name](5, kind, max_per_edge=1)
    sign = (1,) if kind == "mixed" else ()
    first = [(0, 1), (1, 2), (0, 2)] if name == "triangles" else [(0, 1), (1, 2)]
    broken = [(0, 3), (1, 3)] if name == "triangles" else [(2, 3)]
    _, state = query.encode(query.initial_state(), [(*edge, *sign) for edge in first])
    before = json.dumps(query.dump_state(state))
    with pytest.raises(InputError, match=f"max_per_edge=1 {name}; promise a larger number"):
        query.encode(state, [(*edge, *sign) for edge in broken])
    assert json.dumps(query.dump_state(state)) == before


@pytest.mark.parametrize("name", CAPPED)
@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2", 2**60])
def test_promises_per_edge_that_are_no_numbers_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="max_per_edge must be a whole number"):
        CAPPED[name](4, max_per_edge=wrong)


@pytest.mark.parametrize("most", soak_except([1, 2], [1, 2, 3]))
def test_stars_with_a_promise_per_edge(most: int) -> None:
    """All streams of up to 5 updates on 4 vertices: no neighbours that keep the promise beat the
    smaller claim."""
    query = KStars(4, k=2, max_per_edge=most)
    edges = list(itertools.combinations(range(4), 2))
    for adjacency, apart in neighbours_apart(query, edges, 5).items():
        assert query.squared_sensitivity(adjacency) == most**2 * (
            1 if adjacency == "add-remove" else 2
        )
        assert apart == query.squared_value_sensitivity(adjacency) == most**2
    if most == 1:
        loose = neighbours_apart(KStars(4, k=2, max_degree=3), edges, 5)
        assert set(loose.values()) == {16}, "without the promise the claim would be wrong"


def test_the_promise_of_stars_holds_for_every_edge_and_refuses_nothing_else() -> None:
    """Random streams, k = 2 and 3: refused exactly where some edge of the whole graph lies in more
    than K stars."""
    rng = np.random.default_rng(3)
    refused = 0
    for k, most in ((2, 4), (3, 5)):
        query = KStars(9, "mixed", k=k, max_per_edge=most)
        state, graph = query.initial_state(), set()
        for _ in range(400):
            u, v = sorted(rng.choice(9, 2, replace=False).tolist())
            sign = -1 if (u, v) in graph and rng.random() < 0.7 else 1
            after = graph - {(u, v)} if sign < 0 else graph | {(u, v)}
            degree = np.bincount(
                np.asarray(sorted(after), np.int64).reshape(-1, 2).ravel(), minlength=9
            )
            stars = [
                comb(int(degree[a]) - 1, k - 1) + comb(int(degree[b]) - 1, k - 1) for a, b in after
            ]
            if max(stars, default=0) > most:
                with pytest.raises(InputError, match="stars"):
                    query.encode(state, [(u, v, sign)])
                refused += 1
                continue
            before = sum(
                comb(d, k) for d in np.bincount([x for e in graph for x in e], minlength=9).tolist()
            )
            row, state = query.encode(state, [(u, v, sign)])
            assert row.tolist() == [sum(comb(d, k) for d in degree.tolist()) - before]
            graph = after
    assert refused > 50


def test_stars_with_a_cap_bound_the_degree_too() -> None:
    """C(d − 1, k − 1) ≤ K: a vertex of degree 11 has edges in 10 2-stars."""
    assert KStars(2**20, k=2, max_per_edge=10).degree_bound == 11
    assert KStars(2**20, k=3, max_per_edge=10).degree_bound == 6
    assert "max_per_edge" not in KStars(9, k=2, max_degree=3).parameters()
    query = KStars(9, k=2, max_per_edge=3)
    assert type(query)(**query.parameters()) == query


def test_users_under_replace_where_nothing_is_promised() -> None:
    budget = Budget(1.0, 1e-6, adjacency="replace", unit="user", max_events=3)
    sigma = smooth_stream(Matching(6, "mixed"), budget, 16, seed=1).sigma
    assert sigma == pytest.approx(budget.noise_multiplier() * 2 * 3 * 4, rel=1e-8)
    with pytest.raises(ParameterError, match="mixed"):
        Stream(DegreeHistogram(6, "mixed", max_degree=3), budget, 16)


def test_rounding_of_a_degree_histogram_is_bounded_in_the_l1_norm() -> None:
    """Noise narrower than the grid: two cells may be rounded by half a unit each, in opposite
    directions.

    The slack of an interval is then half a unit times the ℓ1 norm of the output's row; its ℓ2 norm,
    √2, would not hold.
    """
    query = DegreeHistogram(6, max_degree=3)
    rows = query.decode_run(1, np.eye(3)) - query.decode_run(1, np.zeros((1, 3)))
    assert (
        query.publishing.roundings().tolist() == np.abs(rows).sum(axis=0).tolist() == [1, 2, 2, 1]
    )
    assert query.publishing.norms().tolist() == pytest.approx(np.linalg.norm(rows, axis=0).tolist())
