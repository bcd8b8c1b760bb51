"""Graph queries count what they say, refuse what is illegal without changing, and continue from
stored states."""

from __future__ import annotations

import copy
import itertools
import json
import random
from math import comb
from typing import Any

import networkx as nx
import numpy as np
import pytest

from evercount.errors import (
    EventRefused,
    InputError,
    ParameterError,
    SnapshotError,
    TooLarge,
    UnknownName,
)
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
from evercount.queries.graphs.forests import MatchingTracker
from evercount.queries.graphs.graph_query import GraphQuery

KINDS = ("insert", "delete", "ignore-duplicates", "ignore-absent")
DELETING = ("delete", "ignore-absent")
MAKERS: dict[str, tuple[type[GraphQuery], dict[str, Any]]] = {
    "edges": (Edges, {}),
    "triangles": (Triangles, {}),
    "k-stars": (KStars, {"k": 2}),
    "degree-histogram": (DegreeHistogram, {}),
    "high-degree": (HighDegree, {"tau": 2}),
    "spanning-forest": (SpanningForest, {"max_weight": 4}),
    "components": (Components, {}),
    "matching": (Matching, {}),
}


def make(name: str, n: int, kind: str, start: Any = (), **more: Any) -> GraphQuery:
    maker, arguments = MAKERS[name]
    if kind in DELETING:
        more["initial_edges"] = start
    elif maker.needs_degree:
        more.setdefault("max_degree", n - 1)
    return maker(n, stream=kind, **arguments, **more)  # type: ignore[arg-type]


def oracle(query: GraphQuery, edges: dict[tuple[int, int], int]) -> list[float]:
    """The published numbers, from scratch, by networkx."""
    graph = nx.Graph()
    graph.add_nodes_from(range(query.vertices))
    graph.add_weighted_edges_from((u, v, w) for (u, v), w in edges.items())
    degrees = [degree for _, degree in graph.degree()]
    match query:
        case Edges():
            return [graph.number_of_edges()]
        case Triangles():
            return [sum(nx.triangles(graph).values()) / 3]
        case KStars():
            return [sum(comb(degree, query.k) for degree in degrees)]
        case HighDegree():
            return [sum(degree >= query.tau for degree in degrees)]
        case DegreeHistogram():
            return [degrees.count(degree) for degree in range(query.outputs)]
        case Components():
            return [nx.number_connected_components(graph)]
        case Matching():
            return [len(nx.max_weight_matching(graph, maxcardinality=True))]
        case SpanningForest():
            return [
                sum(part["weight"] for _, _, part in nx.minimum_spanning_edges(graph, data=True))
            ]
        case _:
            raise AssertionError(query)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MAKERS)
def test_increments_match_networkx(name: str, kind: str) -> None:
    draw = random.Random(f"{name} {kind}")
    weighted = name == "spanning-forest"
    for _ in range(6):
        n = draw.randint(5, 10)
        pairs = list(itertools.combinations(range(n), 2))
        present: dict[tuple[int, int], int] = {}
        if kind in DELETING:
            present = {
                pair: draw.randint(1, 4) if weighted else 1 for pair in draw.sample(pairs, 2 * n)
            }
            order = draw.sample(list(present), len(present))
            if kind == "ignore-absent":
                order = [draw.choice(pairs) for _ in range(3 * len(pairs))]
        elif kind == "insert":
            order = draw.sample(pairs, len(pairs))
        else:
            order = [draw.choice(pairs) for _ in range(40)]
        query = make(name, n, kind, [(*e, w) if weighted else e for e, w in present.items()])
        state, sums = query.initial_state(), np.zeros(query.cells)
        assert query.decode_run(0, np.atleast_2d(sums))[0].tolist() == oracle(query, present)
        while order:
            tick = []
            for u, v in [order.pop() for _ in range(min(draw.randint(0, 3), len(order)))]:
                update: tuple[int, ...] = (u, v) if draw.random() < 0.5 else (v, u)
                if kind in DELETING:
                    gone = present.pop((u, v), None)
                    assert gone or kind == "ignore-absent"
                else:
                    weight = draw.randint(1, 4) if weighted else 1
                    present[u, v] = min(weight, present.get((u, v), weight))
                    update = (*update, weight) if weighted else update
                tick.append(update)
            row, state = query.encode(state, tick)
            assert row.dtype == np.int64
            sums += row
            assert query.decode_run(1, np.atleast_2d(sums))[0].tolist() == oracle(query, present)
            if draw.random() < 0.2:
                state = query.load_state(json.loads(json.dumps(query.dump_state(state))))


@pytest.mark.parametrize("seed", range(60))
def test_matching_stays_maximum_while_edges_come_and_go(seed: int) -> None:
    """Random updates, also repeated removals of what was just inserted; after each one the matching
    is legal."""
    draw = random.Random(seed)
    n, removals = draw.choice([5, 6, 8, 10, 14]), draw.choice([0.0, 0.2, 0.45])
    tracker, graph, row = MatchingTracker(), nx.Graph(), [0]
    for _ in range(60):
        edges = sorted(graph.edges)
        if edges and draw.random() < removals:
            u, v = edges[draw.randrange(len(edges))]
            graph.remove_edge(u, v)
            tracker.change(u, v, -1, row)
        else:
            u, v = sorted(draw.sample(range(n), 2))
            if graph.has_edge(u, v):
                continue
            graph.add_edge(u, v)
            tracker.change(u, v, 1, row)
        assert (
            row[0]
            == len(nx.max_weight_matching(graph, maxcardinality=True))
            == len(tracker.mate) // 2
        )
        assert all(tracker.mate[b] == a and graph.has_edge(a, b) for a, b in tracker.mate.items())


def test_matching_stays_maximum_through_blossoms() -> None:
    """Sparse graphs with many odd cycles, where a search without blossoms goes wrong."""
    draw = random.Random(7)
    for _ in range(25):
        n = draw.choice((9, 13, 17))
        ring = [(i, (i + 1) % n) for i in range(n)] + [(i, (i + 2) % n) for i in range(0, n, 3)]
        edges = {tuple(sorted(edge)) for edge in ring} | {
            (u, v) for u, v in itertools.combinations(range(n), 2) if draw.random() < 0.06
        }
        order = draw.sample(sorted(edges), len(edges))
        growing, size = Matching(n), 0
        state, graph = growing.initial_state(), nx.Graph()
        for edge in order:
            row, state = growing.encode(state, [edge])
            size += int(row[0])
            graph.add_edge(*edge)
            assert size == len(nx.max_weight_matching(graph, maxcardinality=True))
        shrinking = Matching(n, "delete", initial_edges=order)
        state, size = shrinking.initial_state(), int(shrinking.start_values[0])
        for edge in draw.sample(order, len(order)):
            row, state = shrinking.encode(state, [edge])
            size += int(row[0])
            graph.remove_edge(*edge)
            assert size == len(nx.max_weight_matching(graph, maxcardinality=True))


def test_projection_keeps_by_arrivals() -> None:
    query = Edges(5, max_degree=1, enforce_degree=True)
    state = query.initial_state()
    kept = []
    # 1-2 is dropped but is an arrival at 2, and so on
    for edge in [(0, 1), (1, 2), (2, 3), (3, 4)]:
        row, state = query.encode(state, [edge])
        kept.append(int(row[0]))
    assert kept == [1, 0, 0, 0]
    with pytest.raises(InputError, match="second time"):
        query.encode(state, [(2, 1)])  # a dropped edge is known all the same


def test_projection_survives_a_stored_state() -> None:
    query = DegreeHistogram(6, max_degree=2, enforce_degree=True)
    pairs = list(itertools.combinations(range(6), 2))
    state, stored = query.initial_state(), query.initial_state()
    for edge in pairs:
        one, state = query.encode(state, [edge])
        other, stored = query.encode(
            query.load_state(json.loads(json.dumps(query.dump_state(stored)))), [edge]
        )
        assert one.tolist() == other.tolist()
    assert (
        max(len([e for e, weight in state.edges.items() if weight and v in e]) for v in range(6))
        <= 2
    )


def test_a_degree_is_enforced_where_edges_only_come() -> None:
    for kind, start in (("delete", [(0, 1)]), ("ignore-absent", [(0, 1)]), ("mixed", [])):
        with pytest.raises(ParameterError, match="only come"):
            Edges(4, kind, max_degree=2, enforce_degree=True, initial_edges=start)  # type: ignore[arg-type]


BAD_UPDATES = [
    ("insert", [(1, 2), (0, 5)], r"update 1 .*\(0, 5\).*0\.\.4"),
    ("insert", [(-1, 2)], r"0\.\.4"),
    ("insert", [(0, 3), (2, 2)], "update 1 .*self-loop"),
    ("insert", [(3, 4), (4, 3)], "update 1 .*second time"),
    ("insert", [(0, 1), (1, 0)], "second time"),
    ("insert", [(0, 1, 1)], "weight where none"),
    ("insert", [(0,)], "not an update"),
    ("insert", ["ab"], "not an update"),
    ("insert", [(0, 1.5)], "not an update"),
    ("insert", [7], "not an update"),
    ("insert", [(True, 2)], "not an update"),
    ("insert", [(0, True)], "not an update"),
    ("insert", 7, "sequence of events"),
    ("insert", [(0, 2), (0, 3), (0, 4)], r"update 2 .*max_degree=3"),
    ("ignore-duplicates", [(0, 2), (0, 2), (0, 3), (0, 4)], r"update 3 .*max_degree=3"),
    ("delete", [(2, 3)], "not there"),
    ("delete", [(0, 2), (2, 0)], "update 1 .*not there"),
]


@pytest.mark.parametrize(("kind", "events", "message"), BAD_UPDATES)
def test_illegal_updates_change_nothing(kind: str, events: Any, message: str) -> None:
    start = [(0, 1), (0, 2), (1, 2)]
    for name in ("triangles", "degree-histogram", "k-stars"):
        query = make(name, 5, kind, start, max_degree=3)
        state = query.initial_state()
        if kind != "delete":
            _, state = query.encode(state, [(1, 0)])
        before, twin = query.dump_state(state), copy.deepcopy(state)
        with pytest.raises(InputError, match=message):
            query.encode(state, events)
        assert query.dump_state(state) == before
        after = [(0, 2), (1, 2)]
        assert query.encode(state, after)[0].tolist() == query.encode(twin, after)[0].tolist()


@pytest.mark.parametrize(
    "update", [(0, 1), (0, 1, 0), (0, 1, 5), (0, 1, 1.0), (0, 1, 1, 1), (0, 1, True)]
)
def test_illegal_weights_change_nothing(update: tuple[Any, ...]) -> None:
    query = SpanningForest(3, max_weight=4)
    state = query.initial_state()
    with pytest.raises(InputError, match="weight"):
        query.encode(state, [(1, 2, 2), update])
    assert query.dump_state(state) == query.dump_state(query.initial_state())


def test_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="needs max_degree"):
        Triangles(10)
    with pytest.raises(ParameterError, match="enforce_degree needs"):
        Edges(10, enforce_degree=True)
    with pytest.raises(ParameterError, match="public start"):
        Edges(10, "delete")
    with pytest.raises(ParameterError, match="public start"):
        Edges(10, initial_edges=[(0, 1)])
    with pytest.raises(UnknownName, match="insert"):
        Edges(10, "inserts")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="twice"):
        Edges(3, "delete", initial_edges=[(0, 1), (1, 0)])
    starts = (
        5,
        [5],
        [(0, 0)],
        [(0, 1), (0, 5)],
        ["ab"],
        [(0, 1.0)],
        [(0, True)],
        [(0,)],
        [(0, 1, 1)],
        [None],
        "ab",
    )
    for start in starts:
        with pytest.raises(ParameterError, match="initial_edges"):
            Edges(5, "delete", initial_edges=start)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="initial_edges"):
        SpanningForest(5, "delete", initial_edges=[(0, 1, 9)], max_weight=4)
    assert Edges(5, "delete", initial_edges=iter([(0, 1)])).initial_edges == ((0, 1),)  # type: ignore[arg-type]
    for flag in ("no", "", 0, 1, None):
        with pytest.raises(ParameterError, match="True or False"):
            Edges(5, max_degree=2, enforce_degree=flag)  # type: ignore[arg-type]
    for kind in (np.asarray([1, 2]), None, ["insert"]):
        with pytest.raises(UnknownName, match="insert"):
            Edges(5, kind)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="exceeds max_degree=1"):
        HighDegree(3, "delete", 1, initial_edges=[(0, 1), (1, 2)], tau=1)
    with pytest.raises(ParameterError, match="no triangle"):
        Triangles(10, max_degree=1)
    with pytest.raises(ParameterError, match="no 4-star"):
        KStars(10, k=4, max_degree=3)
    for wrong in (0, 1, 2.0, True, 2**40):
        with pytest.raises(ParameterError, match="vertices"):
            Edges(wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="tau"):
        HighDegree(5, tau=5)
    with pytest.raises(UnknownName, match="adjacency"):
        Edges(4).squared_sensitivity("swap")  # type: ignore[arg-type]
    with pytest.raises(SnapshotError, match="not a stored state"):
        Edges(4).load_state({"edges": 3})


@pytest.mark.parametrize(
    ("stream", "sign", "remedy"),
    [("insert", (), " or use enforce_degree=True"), ("mixed", (1,), "")],
)
def test_the_remedy_for_a_degree_that_is_too_large_is_a_legal_one(
    stream: Any, sign: Any, remedy: str
) -> None:
    query = Edges(4, stream, max_degree=1)
    with pytest.raises(InputError, match=f"max_degree=1; promise more{remedy}$"):
        query.encode(query.initial_state(), [(0, 1, *sign), (0, 2, *sign)])


def test_what_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(TooLarge, match="GiB"):
        DegreeHistogram(2**31, max_degree=2**31 - 1)
    with pytest.raises(TooLarge, match=r"2\*\*53"):
        KStars(10**6, k=8, max_degree=10**4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MAKERS)
def test_parameters_rebuild_the_query(name: str, kind: str) -> None:
    start = [(0, 1, 2), (0, 2, 1), (1, 2, 1)]
    if name != "spanning-forest":
        start = [edge[:2] for edge in start]  # type: ignore[misc]
    query = make(name, 5, kind, start)
    again = type(query)(**json.loads(json.dumps(query.parameters())))
    assert again == query
    assert hash(again) == hash(query)
    assert query != Edges(4)
    assert len(query.labels) == query.outputs
    noisy = np.arange(query.cells, dtype=float)
    published = query.decode_run(1, np.stack([noisy, noisy + 1]))
    assert published.shape == (2, query.outputs)
    assert query.decode_run(1, np.atleast_2d(noisy))[0].tolist() == published[0].tolist()


def test_output_norms_are_those_of_the_decoder() -> None:
    query = DegreeHistogram(9, max_degree=4)
    columns = (query.decode_run(1, np.eye(4)) - query.decode_run(1, np.zeros((1, 4)))).T
    np.testing.assert_allclose(np.linalg.norm(columns, axis=1), query.publishing.norms())


def test_numpy_updates_are_read() -> None:
    row, state = Edges(4).encode(Edges(4).initial_state(), np.array([[0, 1], [3, 2]]))
    assert row.tolist() == [2]
    assert json.dumps(Edges(4).dump_state(state))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("enforced", [False, True])
def test_which_streams_never_refuse_an_update_because_of_others(name: str, enforced: bool) -> None:
    """ignore-duplicates takes every legal update in any order; insert refuses one that came before,
    enforced or not."""
    if not enforced and MAKERS[name][0].needs_degree:
        with pytest.raises(ParameterError, match="max_degree"):
            MAKERS[name][0](6, stream="ignore-duplicates", **MAKERS[name][1])
        return
    degree = {"max_degree": 2, "enforce_degree": True} if enforced else {}
    rng = random.Random(5)
    pairs = list(itertools.combinations(range(6), 2))
    ends = [
        (u, v, rng.randint(1, 4)) if name == "spanning-forest" else (u, v)
        for u, v in rng.choices(pairs, k=200)
    ]
    query = make(name, 6, "ignore-duplicates", **degree)
    state = query.initial_state()
    for update in ends:
        _, state = query.encode(state, [update])
    strict = make(name, 6, "insert", **degree)
    _, state = strict.encode(strict.initial_state(), ends[:1])
    with pytest.raises(InputError, match="second time"):
        strict.encode(state, ends[:1])


PROMISED = ("insert", "delete")


def anything(name: str, kind: str, draw: random.Random) -> tuple[GraphQuery, list[Any]]:
    """A query with an enforced degree, and updates of which only the form is legal."""
    n = 6
    pairs = list(itertools.combinations(range(n), 2))
    weighted = name == "spanning-forest"
    start = [(*pair, draw.randint(1, 4)) if weighted else pair for pair in draw.sample(pairs, 9)]
    query = make(
        name,
        n,
        kind,
        start,
        **({} if kind in DELETING else {"max_degree": 3, "enforce_degree": True}),
    )
    updates: list[Any] = [draw.choice(pairs) for _ in range(60)]
    if weighted and kind not in DELETING:
        updates = [(*pair, draw.randint(1, 4)) for pair in updates]
    return query, updates


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_needs_to_be_promised(name: str, kind: str) -> None:
    """With an enforced degree and an ignoring kind no update is refused because of others; the
    others do refuse."""
    query, updates = anything(name, kind, random.Random(f"{name} {kind} anything"))
    query.check_events(updates)
    state = query.initial_state()
    if kind in PROMISED:
        with pytest.raises(EventRefused):
            query.encode(state, updates)
    else:
        query.encode(state, updates)


@pytest.mark.parametrize("kind", ["ignore-duplicates", "ignore-absent"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_tick_can_be_encoded_in_parts(name: str, kind: str) -> None:
    """The claim of `Query.splits`: increments add up, the last state is the same."""
    draw = random.Random(f"{name} {kind} parts")
    query, updates = anything(name, kind, draw)
    assert query.splits
    at_once, whole_state = query.encode(query.initial_state(), updates)
    state, total = query.initial_state(), np.zeros(query.cells, np.int64)
    rest = list(updates)
    while rest:
        size = draw.randint(1, 7)
        row, state = query.encode(state, rest[:size])
        total, rest = total + row, rest[size:]
    assert total.tolist() == at_once.tolist()
    assert query.dump_state(state) == query.dump_state(whole_state)


def test_a_refusal_names_the_place_of_the_update() -> None:
    with pytest.raises(EventRefused) as caught:
        Edges(4).check_events([(0, 1), (0, 1), (2, 2)])
    assert caught.value.number == 2
    assert str(caught.value.numbered(9, "of this request")).startswith(
        "update 9 of this request (from 0) is (2, 2)"
    )
