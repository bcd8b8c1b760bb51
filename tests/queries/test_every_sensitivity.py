"""Every query of the registry: no small neighbours beat its sensitivities, and what is reached of
each is stated.

Claims: `S` for increments, `l1` for δ = 0, `value` for noise on values, `falling` for S where the
Gram matrix falls. A case says nothing about a claim that is reached: lower it by one unit, and it
is beaten. `loose` holds the largest change found where that is less than the claim. Graph queries
of all stream kinds, with and without projection, are enumerated in
`test_queries_graphs_sensitivity.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.audit.sensitivity import ClaimCheck, SensitivityReport, audit_sensitivity, gram_falls
from evercount.audit.universes import Universe, universe
from evercount.errors import ParameterError
from evercount.factorizations import factorization
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
from evercount.privacy import Adjacency, Budget
from evercount.queries import QUERIES
from evercount.queries.base import Query
from evercount.queries.counts import Average, Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.discovered_keys import DiscoveredKeys
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.histogram import Histogram, TopK
from evercount.queries.marginals import Marginals
from evercount.queries.people import ActiveUsers, DistinctUsers, Occupancy
from evercount.queries.quantiles import Quantiles
from evercount.queries.rollup import Rollup
from evercount.queries.words import Episodes, Substrings, WordQuery
from neighbouring_streams import change_norm
from queries.test_queries_graphs_sensitivity import STAR_PAIR, TWO_TRIANGLES, shifted
from small_queries import small

ADJACENCIES: tuple[Adjacency, ...] = ("add-remove", "replace")
CLAIMS = ("S", "l1", "value", "falling")
FACTORIZATIONS = ("balanced", "fresh")
AB = ["a", "b"]
TREE = [("a", "x"), ("a", "y"), ("b", "z")]


# -- what is tried ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FullTicks(Universe):
    """Ticks of up to `most` events of another universe, in every order; neighbours differ in one
    event of a tick.

    Each tick is one "event" here, so nothing rests on ticks that can be split.
    """

    of: Universe = field(default_factory=lambda: Universe(()))

    @classmethod
    def up_to(cls, of: Universe, most: int) -> FullTicks:
        contents = chain.from_iterable(
            product(of.events, repeat=size) for size in range(most, -1, -1)
        )
        return cls(
            tuple(contents), absent=(), merge=False, tick=lambda step: of.tick(step[0]), of=of
        )

    def alternatives(self, event: Any, adjacency: str) -> list[tuple[Any, ...]]:
        changed = [
            (*event[:place], *step, *event[place + 1 :])
            for place, one in enumerate(event)
            for step in self.of.alternatives(one, adjacency)
        ]
        return [(content,) for content in dict.fromkeys(changed) if content != event]


@dataclass(frozen=True)
class Case:
    """A query, the streams that are tried, and the largest changes found where they stay below the
    claim.

    `pairs` are the ticks of longer neighbouring streams under replace that are tried as well.
    """

    query: Query
    steps: int
    world: Universe | None = None
    loose: Mapping[tuple[str, str], float] = field(default_factory=dict)
    pairs: Sequence[tuple[Sequence[Any], Sequence[Any]]] = ()

    def __str__(self) -> str:
        return f"{self.query!r}{' full ticks' if isinstance(self.world, FullTicks) else ''}"

    def audit(self, adjacency: Adjacency, changed: int = 1) -> SensitivityReport:
        matrices = {
            name: factorization(name, self.steps).dense(self.steps)[1] for name in FACTORIZATIONS
        }
        return audit_sensitivity(
            self.query, matrices, adjacency, self.steps, self.world, budget=60_000, changed=changed
        )


def claims(case: Case, adjacency: Adjacency) -> dict[str, ClaimCheck]:
    """What the query declares, each next to the largest change of all pairs."""
    report = case.audit(adjacency)
    assert report.exhaustive
    assert report.pairs >= 6
    known = {"S": report.claims[0], "l1": report.l1, "value": report.value}
    known |= {f"S on {finding.factorization}": finding for finding in report.findings}
    smaller = case.query.falling_sensitivity(adjacency)
    if smaller is not None:
        matrices = {
            name: factorization(name, case.steps).dense(case.steps)[1] for name in FACTORIZATIONS
        }
        assert all(gram_falls(R) for R in matrices.values())
        most = max(
            f.found / float(np.square(matrices[f.factorization]).sum(axis=0).max())
            for f in report.findings
        )
        known["falling"] = ClaimCheck(most, smaller, None)
    declared = {
        name: claim
        for name, claim in known.items()
        if claim is not None and claim.claimed != np.inf
    }
    for pair in case.pairs if adjacency == "replace" else ():
        change = encoded(case.query, pair[0]) - encoded(case.query, pair[1])
        more = {
            "S": change_norm(change, np.zeros_like(change)),
            "l1": float(np.abs(change).sum()),
            "value": float(np.square(change.cumsum(axis=0)).sum(axis=1).max()),
            "falling": float(np.square(change).sum()),
        }
        for name in set(more) & set(declared):
            declared[name] = ClaimCheck(
                max(declared[name].found, more[name]), declared[name].claimed, None
            )
    return declared


def encoded(query: Query, ticks: Sequence[Any]) -> Any:
    return query.encode_run(query.initial_state(), ticks)[0]


def words(query: WordQuery, steps: int, holes: bool = True, **loose: float) -> Case:
    """All texts of so many letters; without `holes` no other letter is absent than the changed
    one."""
    letters = tuple(query.parameters()["alphabet"])
    world = None if holes else Universe(letters, absent=((None,), ()), merge=False)
    return Case(query, steps, world, parted(loose))


def parted(loose: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """`removed_S` stands for S under add-remove, `replaced_l1` for Δ₁ under replace."""
    kinds = {"removed": "add-remove", "replaced": "replace"}
    return {(kinds[name.split("_")[0]], name.split("_")[1]): found for name, found in loose.items()}


DEGREES = ("high-degree", "degree-histogram")
AFTER = [[(0, 2), (1, 3), (5, 7), (6, 8)], [(0, 4), (1, 4)]]
TURNS = tuple([[(5, 9), (6, 9)], [edge], *AFTER] for edge in ((0, 1), (5, 6)))
"""Replaced edges whose ends pass every degree in turn, in ticks of several edges."""


def reached(query: GraphQuery, edge: Any, rest: Sequence[Any], **loose: float) -> Case:
    """All orders of the edge and the others; and the edge replaced by its image in a copy on six
    other vertices."""
    both = [[update] for update in (*rest, *shifted(list(rest)))]
    world = Universe((edge, *rest), replace_by_absent=True, distinct=True)
    pair = ([[edge], *both], [shifted([edge]), *both])
    return Case(
        query,
        len(rest) + 1,
        world,
        parted(loose),
        (pair, TURNS) if query.name in DEGREES else (pair,),
    )


def users(query: Query) -> FullTicks:
    """Two users, and all their events of a tick: up to two."""
    return FullTicks.up_to(Universe(universe(query).events), 2)


def swapped(one: str, other: str, *rest: str, first: Sequence[str] = ()) -> list[tuple[Any, Any]]:
    """Two streams of users and keys that differ in one event: after the ticks `first`, before the
    ticks `rest`."""
    ticks = [
        [[tuple(event) for event in tick.split()] for tick in (*first, event, *rest)]
        for event in (one, other)
    ]
    return [(ticks[0], ticks[1])]


def moved(here: str, there: str) -> list[tuple[Any, Any]]:
    """One user does not come here, the other goes there instead, and with a cap of 3 their last
    events differ."""
    around = [("u", there), ("v", here)]
    later = [around, [("u", here), ("v", there)]]
    return [([around, [("u", here)], *later], [around, [("v", there)], *later])]


PATH = ((0, 1), (1, 2))
COUNTS = [
    Case(Count(), 3),
    Case(Sum(-1, 3, 0.5), 3),
    Case(Sum(2, 5), 3),
    Case(Average(1, 4, 0.5), 3),
    Case(Average(1, 4, 0.5, per="event"), 3),
    Case(Average(0, 1, per="event"), 3),
    Case(small("prefix"), 3, Universe((0, 1, 2))),
]
KEYS = [
    Case(Histogram(3), 3),
    Case(Histogram(3, 2), 3),
    Case(Histogram(4, 2), 2),
    Case(Histogram(2, 2, removals=True), 2),
    Case(Histogram(3, weights={"1": 3, "2": 2}), 3),
    Case(Histogram(4, 2, weights={"0": 2, "3": 5}), 2),
    Case(Histogram(2, 1, removals=True, weights={"1": 3}), 3),
    Case(Histogram(["a"], unknown="other", added=["b"]), 3, Universe(("a", "b", "c"))),
    Case(TopK(["a", "b", "c"], k=2), 3),
    Case(TopK(["a", "b", "c", "d"], k=2, max_keys_per_event=2), 2),
    Case(TopK(AB, k=1, unknown="other"), 3, Universe(("a", "b", "c"))),
    Case(DiscoveredKeys(), 3),
    Case(Rollup(TREE), 3),
    Case(Rollup(TREE, [1, 3, 2]), 3),
    Case(Rollup([("a",), ("b",)], [0, 1], "other"), 3),
    Case(Rollup(TREE, [2, 0, 1], added=[[("b", "w")]]), 3, Universe((*TREE, ("b", "w")))),
    Case(Rollup([("only", "a"), ("only", "b")], unknown="refuse"), 3),
    Case(Marginals([AB, ["c", "d"]]), 3),
    Case(Marginals([AB, ["x", "y"]], [[], [0], [0, 1]], [2, 1, 3]), 3),
    Case(Marginals([["only"], ["x", "y"]]), 3),
    Case(Quantiles(0, 4, bins=4), 3),
    Case(Quantiles(0, 4, 4, [1, 2, 1]), 3),
    Case(Cuts(3), 3),
    Case(Cuts(3, "signed"), 3),
    Case(Cuts(3, swap="same edge"), 3),
    Case(Cuts(3, "signed", swap="same edge"), 3),
    Case(Cuts(2), 3),
]
WINDOWS = []
PEOPLE = [
    Case(DistinctUsers(), 4),
    Case(DistinctUsers(AB), 4),
    Case(DistinctUsers(AB, 2), 4),
    Case(DistinctUsers(AB, total=True), 4),
    Case(DistinctUsers(AB, 2, total=True), 4),
    Case(DistinctUsers(["a", "b", "c"], 2), 3, pairs=swapped("ua", "vc", "ub", "uc", "vb", "va")),
    *(Case(query, 2, users(query)) for query in (DistinctUsers(AB), DistinctUsers(AB, 2))),
    Case(ActiveUsers(), 4),
    Case(ActiveUsers(AB), 2, users(ActiveUsers(AB)), pairs=swapped("ua ub va", "vb ub va")),
    Case(ActiveUsers(AB, 2), 2, users(ActiveUsers(AB, 2))),
    Case(Occupancy(), 4),
    Case(Occupancy(["a"]), 4),
    Case(Occupancy(AB), 4, pairs=moved("a", "b")),
    Case(Occupancy(AB), 2, users(Occupancy(AB)), pairs=moved("a", "b")),
    Case(Occupancy(max_events=3), 4, pairs=moved("in", "out")),
    Case(Occupancy(AB, max_events=3), 4, pairs=moved("a", "b")),
]
WORDS = [
    words(Substrings("ab", 1), 2),
    words(Substrings("ab", 2), 3),
    words(Substrings("abc", 2), 3),
    words(Substrings("ab", 3), 5),
    words(Substrings("ab", 2, (1, 3)), 3),
    words(Substrings("ab", 3, (2, 1, 3)), 5),
    # one letter: no other word is gained
    words(Substrings("a", 2), 3, removed_l1=3, replaced_S=5, replaced_l1=3),
    Case(Substrings("ab", 2), 2, FullTicks.up_to(universe(Substrings("ab", 2)), 2)),
    words(Episodes("ab", 1), 2),
    words(Episodes("ab", 2), 3),
    words(Episodes("abc", 2), 5),
    words(Episodes("ab", 3), 9, holes=False),
    words(Episodes("ab", 2, (1, 3)), 3),
    words(Episodes("ab", 3, (2, 1, 3)), 9, holes=False),
    Case(Episodes("ab", 2), 2, FullTicks.up_to(universe(Episodes("ab", 2)), 2)),
]
K4_BUT_ONE = list(combinations(range(4), 2))[1:]
SHORT: dict[str, float] = {f"removed_{claim}": 1 for claim in ("S", "l1", "falling")}
SHORT |= {"replaced_S": 18, "replaced_l1": 6}
"""Three edges do little to a smallest degree or cut: `test_all_orders_of_all_edges` reaches the
claims with ten."""


def least(
    edges: list[Any], around: list[Any], *rest: list[Any], first: Sequence[Any] = ()
) -> tuple[Any, Any]:
    """Two streams that differ in the first edge of a tick, which changes the smallest degree or cut
    in turns."""
    one, other = ([*([first] if first else []), [edge, *around], *rest] for edge in edges)
    return one, other


GRAPHS = [
    Case(Edges(4), 3),
    Case(Edges(4, "mixed", initial_edges=PATH), 2),
    Case(Components(4), 3),
    Case(Components(4, "mixed", initial_edges=PATH), 2),
    Case(SpanningForest(3, "ignore-duplicates", max_weight=2), 4),
    Case(Matching(4), 4),
    Case(Matching(4, "mixed", initial_edges=PATH), 2),
    Case(HighDegree(4, tau=1), 4),
    reached(HighDegree(12, tau=2), (0, 1), STAR_PAIR),
    Case(HighDegree(4, "mixed", tau=1, initial_edges=[(2, 3)]), 2),
    reached(DegreeHistogram(12, max_degree=3), (0, 1), STAR_PAIR),
    Case(DegreeHistogram(4, "mixed", initial_edges=[(2, 3)]), 2),
    reached(Triangles(12, max_degree=3), (0, 1), TWO_TRIANGLES),
    reached(Triangles(12, max_per_edge=1), (0, 1), TWO_TRIANGLES[:2]),
    Case(Triangles(4, "mixed", max_degree=3, initial_edges=K4_BUT_ONE), 2),
    reached(KStars(12, k=2, max_degree=3), (0, 1), STAR_PAIR),
    reached(KStars(12, k=2, max_per_edge=3), (0, 1), STAR_PAIR[:3]),
    Case(KStars(4, "mixed", k=2, max_degree=3, initial_edges=K4_BUT_ONE), 2),
    Case(MinDegree(3, "mixed", initial_edges=PATH), 2),
    Case(
        MinDegree(5),
        3,
        None,
        parted(SHORT),
        [
            least(
                [(2, 4), (0, 3)],
                [(1, 3)],
                [(2, 3), (0, 2)],
                [(1, 4), (3, 4)],
                [(0, 1), (0, 4)],
                [(1, 2)],
            )
        ],
    ),
    Case(MinCut(3, "mixed", initial_edges=PATH), 2),
    Case(
        MinCut(5),
        3,
        None,
        parted(dict.fromkeys(SHORT, 0) | {"removed_value": 0, "replaced_S": 18, "replaced_l1": 6}),
        [
            least(
                [(0, 2), (3, 4)],
                [(1, 3)],
                [(0, 1), (0, 3)],
                [(1, 2), (2, 3)],
                [(1, 4)],
                first=[(0, 4), (2, 4)],
            )
        ],
    ),
    Case(DegreeSequence(4, "mixed", initial_edges=PATH), 2),
    Case(
        DegreeSequence(4),
        4,
        None,
        parted({"removed_S": 16, "removed_l1": 10, "replaced_S": 16, "replaced_l1": 10}),
    ),
]
CASES = [*COUNTS, *KEYS, *WINDOWS, *PEOPLE, *WORDS, *GRAPHS]


ELSEWHERE = {
    (name, adjacency, claim): "test_all_orders_of_all_edges"
    for name in ("min-degree", "min-cut")
    for adjacency in ADJACENCIES
    for claim in ("S", "l1", "falling")
    if (adjacency, claim) != ("replace", "falling")
}
"""Claims that no case here reaches, and the test that does."""

LOOSE = {
    ("degree-sequence", adjacency, claim): "one bound for all places"
    for adjacency in ADJACENCIES
    for claim in ("S", "l1")
}
"""Claims that nothing reaches, and why; `test_all_orders_of_all_edges` states how near it comes."""


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_claims_by_enumeration(case: Case, adjacency: Adjacency) -> None:
    for name, claim in claims(case, adjacency).items():
        assert claim.holds, (name, claim)
        if name in CLAIMS:
            assert claim.found == pytest.approx(
                case.loose.get((adjacency, name), claim.claimed), rel=1e-9
            ), name


def declared(query: Query, adjacency: Adjacency) -> Iterator[str]:
    """The names of the finite claims that a query makes."""
    if query.squared_sensitivity(adjacency) != np.inf:
        yield "S"
        if type(query).l1_sensitivity is not Query.l1_sensitivity:
            yield "l1"
    if query.squared_value_sensitivity(adjacency) is not None:
        yield "value"
    if query.falling_sensitivity(adjacency) is not None:
        yield "falling"


Key = tuple[str, str, str]


def survey(cases: Sequence[Case]) -> tuple[set[Key], set[Key]]:
    """(query, adjacency, claim) of all claims that are enumerated, and of those that are
    reached."""
    made: set[Key] = set()
    met: set[Key] = set()
    for case, adjacency in product(cases, ADJACENCIES):
        for claim in declared(case.query, adjacency):
            made.add((case.query.name, adjacency, claim))
            if (adjacency, claim) not in case.loose:
                met.add((case.query.name, adjacency, claim))
    return made, met


def test_every_claim_of_every_query_is_enumerated_and_reached_or_said_to_be_loose() -> None:
    """A new query of the registry, or a claim that nothing reaches, fails here until it has a case
    or a reason."""
    made, met = survey(CASES)
    assert {name for name, _, _ in made} == set(QUERIES)
    assert all((name, adjacency, "S") in made for name in QUERIES for adjacency in ADJACENCIES)
    assert made - met == set(ELSEWHERE) | set(LOOSE)
    assert not set(ELSEWHERE) & set(LOOSE)
    text = (Path(__file__).parent / "test_queries_graphs_sensitivity.py").read_text(
        encoding="utf-8"
    )
    assert all(f"def {test}(" in text for test in ELSEWHERE.values())
    without, _ = survey([case for case in CASES if case.query.name != "cuts"])
    # planted: a query that has been forgotten is missed
    assert {name for name, _, _ in made - without} == {"cuts"}


def cheapest(name: str, adjacency: Adjacency, claim: str) -> Case:
    """The case of the fewest streams that reaches a claim."""
    cases = [
        case
        for case in CASES
        if case.query.name == name
        and claim in declared(case.query, adjacency)
        and (adjacency, claim) not in case.loose
    ]
    return min(cases, key=streams)


def streams(case: Case) -> int:
    """About how many streams a case has."""
    events = () if case.query.name == "prefix" else universe(case.query).events
    return len(events if case.world is None else case.world.events) ** case.steps


METHODS = {
    "S": "squared_sensitivity",
    "l1": "l1_sensitivity",
    "value": "squared_value_sensitivity",
    "falling": "falling_sensitivity",
}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", QUERIES)
def test_a_claim_that_is_one_unit_smaller_is_beaten(
    name: str, adjacency: Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted in the query itself, all claims of a case at once: the same check must find each of
    them."""
    kinds = {
        claim
        for case in CASES
        if case.query.name == name
        for claim in declared(case.query, adjacency)
    }
    kinds -= {claim for claim in kinds if (name, adjacency, claim) in {**ELSEWHERE, **LOOSE}}
    cheap = {claim: cheapest(name, adjacency, claim) for claim in sorted(kinds)}
    for case in {id(case): case for case in cheap.values()}.values():
        here = [claim for claim, one in cheap.items() if one is case]
        right = {claim: getattr(case.query, METHODS[claim])(adjacency) for claim in here}
        with monkeypatch.context() as planted:
            for claim in here:
                less = right[claim] - (case.query.grid if claim == "l1" else case.query.grid**2)
                planted.setattr(
                    type(case.query), METHODS[claim], lambda self, adjacency, less=less: less
                )
            found = claims(case, adjacency)
        assert not any(found[claim].holds for claim in here), found


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", [name for name in QUERIES if small(name).people is None])
def test_users_of_two_events_stay_below_twice_the_changes(name: str, adjacency: Adjacency) -> None:
    """All streams that differ in two events, against 4·S, 2·Δ₁ and 4·v².

    Under replace a graph stream of users must be mixed, without a promise about degrees: the others
    are refused. Where events name users, these have claims of their own:
    `test_user_sensitivity_by_enumeration`.
    """
    cases = [
        case for case in CASES if case.query.name == name and not isinstance(case.world, FullTicks)
    ]
    graphs = [case for case in cases if isinstance(case.query, GraphQuery)]
    if graphs and adjacency == "replace":
        cases = [
            case
            for case in graphs
            if case.query.stream == "mixed" and case.query.max_degree is None
        ]
        for case in graphs:
            if case not in cases:
                with pytest.raises(ParameterError, match="add-remove"):
                    case.query.check_budget(
                        Budget(1.0, 1e-6, adjacency="replace", unit="user", max_events=2)
                    )
    assert cases or graphs
    for case in sorted(cases, key=streams)[:2]:
        report = case.audit(adjacency, changed=2)
        assert report.exhaustive
        assert report.changed == 2
        assert 4 * case.query.squared_sensitivity(adjacency) == report.S
        assert report.holds, report.summary()
