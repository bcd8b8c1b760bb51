"""Spanning forests, connected components, matchings and smallest cuts of an edge stream, each kept up to date.

What one update costs (n vertices, m edges): components, insertions: almost constant (union-find). Spanning forest,
insertions: O(n), a search of the tree path between the ends. Deletions of both: nothing for an edge outside the
forest, else O(n + m), a search of the cheapest edge that joins the two halves again. Matching: see
`maximum_matching`; at worst one search of a component per update. Smallest cut: searched once per tick.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from evercount._validate import check_whole, require_fits
from evercount.queries.base import Adjacency
from evercount.queries.cuts.extreme_cuts import objective, stoer_wagner_cuts
from evercount.queries.graphs.change_bounds import ChangeBound, ValueChangeBound, alternating_bound
from evercount.queries.graphs.edge_rules import SignedTracker, StreamKind, Tracker, UnionFind
from evercount.queries.graphs.graph_query import GraphQuery, OneStepQuery
from evercount.queries.graphs.maximum_matching import MatchingTracker


class _ForestTracker(Tracker):
    """Cost of a minimum spanning forest; with `components`, whose edges all weigh 1, the number of components instead.
    The whole graph is kept only if edges are to be removed."""

    __slots__ = ("components", "graph", "sets", "shrunk", "sign", "tree")

    def __init__(self, removals: bool, components: bool = False) -> None:
        self.components, self.sign = components, -1 if components else 1
        self.tree: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.graph: defaultdict[int, dict[int, int]] | None = defaultdict(dict) if removals else None
        self.sets = UnionFind()
        self.shrunk = False  # an edge has gone, so `sets` may be wrong

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        if self.graph is not None:
            self.graph[u][v] = self.graph[v][u] = weight
        if not {u, v} <= self._smaller_half(u, v) if self.shrunk else self.sets.join(u, v):
            self._link(u, v, weight)
            row[0] += self.sign * weight
            return
        if self.components:  # no edge of the forest is heavier
            return
        heaviest, x, y = self._heaviest_on_path(u, v)
        if weight < heaviest:
            self._cut(x, y)
            self._link(u, v, weight)
            row[0] += self.sign * (weight - heaviest)

    def remove(self, u: int, v: int, row: list[int]) -> None:
        assert self.graph is not None, "built without removals"
        self.shrunk = True
        weight = self.graph[u].pop(v)
        del self.graph[v][u]
        if v not in self.tree[u]:
            return
        self._cut(u, v)
        half = self._smaller_half(u, v)
        crossing = [(w, x, y) for x in half for y, w in self.graph[x].items() if y not in half]
        row[0] -= self.sign * weight
        if crossing:
            cheapest, x, y = min(crossing)
            self._link(x, y, cheapest)
            row[0] += self.sign * cheapest

    def _link(self, u: int, v: int, weight: int) -> None:
        self.tree[u][v] = self.tree[v][u] = weight

    def _cut(self, u: int, v: int) -> None:
        del self.tree[u][v], self.tree[v][u]

    def _heaviest_on_path(self, u: int, v: int) -> tuple[int, int, int]:
        """Weight and ends of the heaviest edge on the tree path from u to v, which must exist."""
        best = {u: (0, u, u)}
        stack = [u]
        while v not in best:
            x = stack.pop()
            above = best[x]
            for y, weight in self.tree[x].items():
                if y not in best:
                    best[y] = max(above, (weight, x, y))
                    stack.append(y)
        return best[v]

    def _smaller_half(self, u: int, v: int) -> set[int]:
        """The smaller of the trees of u and v; both are searched in step, so the larger is not walked through."""
        seen: list[set[int]] = [{u}, {v}]
        stacks = [[u], [v]]
        while True:
            for side in (0, 1):
                if not stacks[side]:
                    return seen[side]
                x = stacks[side].pop()
                for y in self.tree[x]:
                    if y not in seen[side]:
                        seen[side].add(y)
                        stacks[side].append(y)


@dataclass(frozen=True, eq=False, repr=False)
class SpanningForest(GraphQuery[float]):
    """Cost of a minimum spanning forest; weights are whole numbers 1..max_weight.

    Where duplicates are ignored, the lighter of two copies of an edge counts: that is what a spanning forest of
    parallel edges does, and letting the first copy win would cost S = 2(2W−1)² instead of 2W².
    Guarantee: see GraphQuery.

    Args:
        max_weight: the largest weight W of an edge.

    >>> SpanningForest(4, max_weight=3).squared_sensitivity("add-remove")
    18.0
    """

    name: ClassVar[str] = "spanning-forest"

    max_weight: int = field(kw_only=True)

    def _check(self) -> None:
        check_whole("max_weight", self.max_weight, 1, 2**31)

    @property
    def weight_limit(self) -> int | None:
        return self.max_weight

    def _new_tracker(self) -> Tracker:
        return _ForestTracker(removals=self.deletes)

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """An edge costs up to W, then replaces a cheaper and cheaper other edge."""
        return [_forest_bound(stream, self.max_weight)]

    def _value_change_bound(self) -> ValueChangeBound:
        """The share of one edge lies in −(W − 1)..W; that of two edges is a difference of two such shares."""
        W = self.max_weight
        return ValueChangeBound(W**2, (2 * W - 1) ** 2, (2 * W) ** 2)

    def _largest_value(self) -> int:
        """A tree of the heaviest edges."""
        return (self.vertices - 1) * self.max_weight


@dataclass(frozen=True, eq=False, repr=False)
class Components(GraphQuery[float]):
    """Number of connected components; starts at the number of vertices. Guarantee: see GraphQuery.

    >>> Components(4).encode(Components(4).initial_state(), [(0, 1), (1, 2)])[0].tolist()
    [-2]
    """

    name: ClassVar[str] = "components"

    def _new_tracker(self) -> Tracker:
        return _ForestTracker(removals=self.deletes or self.stream == "mixed", components=True)

    def _empty_value(self) -> int:
        return self.vertices

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """The number of vertices minus the cost of a forest of weights 1."""
        return [_forest_bound(stream, 1)]

    def _value_change_bound(self) -> ValueChangeBound:
        return ValueChangeBound.rising(1)

    def _largest_value(self) -> int:
        return self.vertices


def _forest_bound(stream: StreamKind, heaviest: int) -> ChangeBound:
    if stream == "ignore-absent":
        return ChangeBound(heaviest, heaviest)
    down = heaviest - 1 if stream == "delete" else heaviest
    return ChangeBound(heaviest, down, swap=2 * (2 * heaviest - 1) ** 2)


@dataclass(frozen=True, eq=False, repr=False)
class Matching(GraphQuery[float]):
    """Size of a maximum matching.

    Guarantee: see GraphQuery. The effect of one edge can go and come back with every new pair, so S grows with
    the square of the largest matching m: 2m², or m² + (m−1)² for ``delete`` (m is public there). Coming and going take
    turns, so where the Gram matrix falls (all factorizations here) 2m is enough, or 4m − 6 for replace (m ≥ 3).

    >>> Matching(4).encode(Matching(4).initial_state(), [(0, 1), (2, 3)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "matching"

    def _new_tracker(self) -> Tracker:
        return MatchingTracker()

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """The size only rises, or only falls, and never exceeds m."""
        most = self._largest_value()
        if stream == "delete":
            return [ChangeBound(most, most - 1, swap=most**2 + (most - 1) ** 2)]
        return [alternating_bound(most)]

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """Proof: ``graphs.proof.md``, section 8."""
        most = self._largest_value()
        if adjacency == "add-remove" and self.stream == "delete":
            return float(2 * most - 1)
        general = self._alternating_sensitivity(most, adjacency)
        if general is None or adjacency == "add-remove" or self.stream == "ignore-absent":
            return general
        return float(max(2 * most - (self.stream == "delete"), 4 * most - 6))

    def _value_change_bound(self) -> ValueChangeBound:
        return ValueChangeBound.rising(1)

    def _largest_value(self) -> int:
        """Half of the vertices; for deletions the matching of the public start."""
        return int(self.start_values[0]) if self.deletes else self.vertices // 2


class _MinCutTracker(SignedTracker):
    """The matrix of edges; the cut is searched once per tick, and not while some vertex has no edge."""

    __slots__ = ("matrix", "value")

    def __init__(self, vertices: int) -> None:
        self.matrix = np.zeros((vertices, vertices))
        self.value = 0

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        self.matrix[u, v] = self.matrix[v, u] = float(by > 0)

    def close_tick(self, row: list[int]) -> None:
        value = 0
        if self.matrix.any(axis=1).all():
            value = round(float(objective(self.matrix, stoer_wagner_cuts(self.matrix), False).min()))
        row[0] += value - self.value
        self.value = value


@dataclass(frozen=True, eq=False, repr=False)
class MinCut(OneStepQuery):
    """The smallest number of edges whose removal disconnects the graph; 0 while it is not connected.

    A tick costs O(n³) operations on arrays (n = 100: tens of milliseconds), however many updates it holds.
    Guarantee: see GraphQuery. As for `Matching`, the share of one edge is 0 or 1 and may come and go.

    >>> MinCut(3).encode(MinCut(3).initial_state(), [(0, 1), (1, 2), (0, 2)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "min-cut"

    def _check(self) -> None:
        require_fits(self.vertices**2, "the matrix of this graph", "Use fewer vertices.")

    def _new_tracker(self) -> Tracker:
        return _MinCutTracker(self.vertices)
