"""Edges, triangles and k-stars of an edge stream, counted edge by edge."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import comb
from typing import Any, ClassVar, cast

from evercount._validate import check_whole
from evercount.errors import EvercountError, InputError, ParameterError
from evercount.queries.base import LARGEST_TOTAL
from evercount.queries.graphs.edge_rules import (
    ChangeBound,
    GraphState,
    ProjectedChange,
    StreamKind,
    TickUpdates,
    Tracker,
    Update,
    ValueChangeBound,
)
from evercount.queries.graphs.graph_query import GraphQuery


class _EdgeTracker(Tracker):
    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        row[0] += by


class Edges(GraphQuery[float]):
    """Number of edges. Guarantee: see GraphQuery; S = 1, or 2 where updates are ignored, both
    adjacencies.

    >>> Edges(3).encode(Edges(3).initial_state(), [(0, 1), (1, 2)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "edges"

    def _new_tracker(self) -> Tracker:
        return _EdgeTracker()

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """±1 once; where duplicates or absent edges are ignored a later copy takes it back."""
        again = stream in ("ignore-duplicates", "ignore-absent")
        # where the projection runs: two edges come instead, and a later copy takes e back
        falls = 2 + int(again)
        under_projection = ProjectedChange(rises=1, falls=falls, either=falls)
        return [
            ChangeBound(
                up=1, down=int(again), swap=1 + int(again), under_projection=under_projection
            )
        ]

    def _value_change_bound(self) -> ValueChangeBound:
        return ValueChangeBound.rising(1)

    def _largest_value(self) -> int:
        return comb(self.vertices, 2)


@dataclass(frozen=True, eq=False, repr=False)
class _SubgraphCount(GraphQuery[float]):
    """A count of small subgraphs, with an optional promise that no edge ever lies in more than
    `max_per_edge` of them. A tick after which, or within which, the promise is broken is
    refused."""

    subgraphs: ClassVar[str]  # what is counted, for messages

    max_per_edge: int | None = field(default=None, kw_only=True)

    @property
    def needs_degree(self) -> bool:  # type: ignore[override]
        """Unless subgraphs per edge are promised."""
        return self.max_per_edge is None

    @property
    @abstractmethod
    def _most_by_degree(self) -> int:
        """The most subgraphs that one edge can lie in where no degree exceeds D."""

    @property
    def most_per_edge(self) -> int:
        """K: the most subgraphs that one edge can lie in."""
        most = self._most_by_degree
        if self.max_per_edge is None:
            return most
        return min(most, self.max_per_edge)

    def _check(self) -> None:
        if self.max_per_edge is not None:
            check_whole("max_per_edge", self.max_per_edge, 1, LARGEST_TOTAL)
            if self.deletes or self.enforce_degree:
                raise ParameterError(
                    "max_per_edge is a promise about edges that come: omit it with deletions and "
                    "with enforce_degree"
                )
            # one deletion of a start that breaks the promise would change the count by more than K
            start = [(u, v, 1) for u, v in self.start_edges]
            self._check_promise(self._new_tracker(), start, ParameterError, "initial_edges: ")

    def read_tick(self, state: GraphState, events: Any) -> TickUpdates:
        """As `GraphQuery`; refuses a tick that brings an edge into more than K subgraphs."""
        read = super().read_tick(state, events)
        if self.max_per_edge is not None:
            self._check_promise(state.tracker, read.updates, InputError)
        return read

    def _check_promise(
        self,
        tracker: Tracker,
        updates: list[Update],
        refusal: type[EvercountError],
        where: str = "",
    ) -> None:
        """Try the updates on the tracker, look, and take them back."""
        done: list[Update] = []
        try:
            for u, v, sign in updates:
                tracker.change(u, v, sign, [0])
                done.append((u, v, sign))
                if sign > 0 and tracker.most_near(u, v) > cast(int, self.max_per_edge):
                    raise refusal(
                        f"{where}the edge {(u, v)} would bring an edge into more than "
                        f"max_per_edge={self.max_per_edge} {self.subgraphs}; promise a larger "
                        "number"
                    )
        finally:
            for u, v, sign in reversed(done):
                tracker.change(u, v, -sign, [0])

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """The share of one edge lies in 0..K and grows with the other edges; it falls again unless
        edges only come."""
        if stream == self.stream:
            most = self.most_per_edge
        else:
            most = self._most_by_degree
        down = most
        if stream == "insert":
            down = 0
        swap = None
        if stream in ("insert", "delete", "ignore-absent"):
            swap = 2 * most**2
        return [ChangeBound(up=most, down=down, swap=swap)]

    def _value_change_bound(self) -> ValueChangeBound:
        """One edge lies in at most K subgraphs."""
        return ValueChangeBound.rising(self.most_per_edge)


class _TriangleTracker(Tracker):
    """Adjacency sets: an edge lies in as many triangles as its ends have neighbours in common."""

    def __init__(self) -> None:
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        self.neighbours[u] ^= {v}  # it comes or goes
        self.neighbours[v] ^= {u}
        row[0] += by * len(self.neighbours[u] & self.neighbours[v])

    def most_near(self, u: int, v: int) -> int:
        third = self.neighbours[u] & self.neighbours[v]
        sides = product(third, (u, v))
        return max(
            [len(third), *(len(self.neighbours[w] & self.neighbours[end]) for w, end in sides)]
        )


class Triangles(_SubgraphCount):
    """Number of triangles.

    `max_per_edge` = K promises that no edge ever lies in more than K triangles: then K takes the
    place of D − 1, and no degree needs to be promised. An update that breaks the promise is
    refused. Guarantee: see GraphQuery; one edge lies in at most min(D − 1, K) triangles.

    Args:
        max_per_edge: the promise K; None for none.

    >>> Triangles(1000, max_per_edge=3).squared_sensitivity("add-remove")
    9.0
    """

    name: ClassVar[str] = "triangles"
    subgraphs: ClassVar[str] = "triangles"

    def _check(self) -> None:
        super()._check()
        if self.vertices < 3 or self.degree_bound < 2:
            raise ParameterError(
                f"no triangle can exist: {self.vertices} vertices, largest degree "
                f"{self.degree_bound}"
            )

    def _new_tracker(self) -> Tracker:
        return _TriangleTracker()

    @property
    def _most_by_degree(self) -> int:
        """The ends of an edge have at most D − 1 neighbours in common."""
        return self.degree_bound - 1

    def _largest_value(self) -> int:
        """Every vertex in C(D, 2) triangles, each counted at three vertices."""
        return self.vertices * comb(self.degree_bound, 2) // 3


class _StarTracker(Tracker):
    """Adjacency sets: a vertex of degree d is the centre of C(d, k) stars."""

    def __init__(self, gain: tuple[int, ...]) -> None:
        self.gain = gain
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        for vertex, other in ((u, v), (v, u)):
            self.neighbours[vertex] ^= {other}  # it comes or goes
            row[0] += by * self.gain[len(self.neighbours[vertex]) - (by > 0)]

    def most_near(self, u: int, v: int) -> int:
        # a further edge at u raises the number of every edge at u, most where the other end has the
        # largest degree
        around = self.neighbours
        return max(
            self.gain[len(around[end]) - 1]
            + max(self.gain[len(around[w]) - 1] for w in around[end])
            for end in (u, v)
        )


@dataclass(frozen=True, eq=False, repr=False)
class KStars(_SubgraphCount):
    """Number of k-stars, Σ over vertices of C(degree, k), k ≥ 2.

    `max_per_edge` = K promises that no edge ever lies in more than K stars, C(d_u − 1, k − 1) +
    C(d_v − 1, k − 1) for the degrees of its ends: then K takes the place of 2·C(D−1, k−1), and no
    degree needs to be promised. It is the smaller promise where vertices of high degree are not
    neighbours. An update that breaks it is refused. Guarantee: see GraphQuery; one edge lies in at
    most min(2·C(D−1, k−1), K) stars.

    Args:
        k: the number of edges of a star, at least 2.
        max_per_edge: the promise K; None for none.

    >>> KStars(1000, k=2, max_degree=20).squared_sensitivity("add-remove")
    1444.0
    >>> KStars(1000, k=2, max_per_edge=22).squared_sensitivity("add-remove")
    484.0
    """

    name: ClassVar[str] = "k-stars"
    subgraphs: ClassVar[str] = "stars"

    k: int = field(kw_only=True)

    def _check(self) -> None:
        check_whole("k", self.k, 2, self.vertices - 1)
        super()._check()
        if self.degree_bound < self.k:
            raise ParameterError(
                f"no {self.k}-star can exist: the largest degree is {self.degree_bound}, below k"
            )

    @cached_property
    def degree_bound(self) -> int:
        """As `GraphQuery`; and an edge at a vertex of degree d lies in at least C(d − 1, k − 1)
        stars."""
        bound = super().degree_bound
        if self.max_per_edge is None:
            return bound
        degree = min(self.k, bound)
        while degree < bound and comb(degree, self.k - 1) <= self.max_per_edge:
            degree += 1
        return degree

    def _new_tracker(self) -> Tracker:
        return _StarTracker(self._gain)

    @cached_property
    def _gain(self) -> tuple[int, ...]:
        return tuple(comb(degree, self.k - 1) for degree in range(self.degree_bound + 1))

    @property
    def _most_by_degree(self) -> int:
        """Each end of an edge has at most D − 1 other edges, of which a star takes k − 1."""
        return 2 * comb(self.degree_bound - 1, self.k - 1)

    def _largest_value(self) -> int:
        """Every vertex of degree D."""
        return self.vertices * comb(self.degree_bound, self.k)

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters().items()
        return {
            name: value for name, value in parameters if name != "max_per_edge" or value is not None
        }
