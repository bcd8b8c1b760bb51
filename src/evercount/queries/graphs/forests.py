"""Spanning forests, connected components, matchings and smallest cuts of an edge stream, each kept
up to date.

What one update costs (n vertices, m edges): components, insertions: almost constant (union-find).
Spanning forest, insertions: O(n), a search of the tree path between the ends. Deletions of both:
nothing for an edge outside the forest, else O(n + m), a search of the cheapest edge that joins the
two halves again. Smallest cut: searched once per tick. Matching (Edmonds' blossom algorithm): at
worst one search of the graph per update. Its search forest is kept, so most insertions cost a look
at two labels; it is searched on only while two vertices are free, and only until the matching has
grown. Why that is enough: ``graphs.proof.md``, section 8.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from evercount._validate import check_whole, require_fits
from evercount.queries.cuts.extreme_cuts import objective, stoer_wagner_cuts
from evercount.queries.graphs.edge_rules import (
    ChangeBound,
    StreamKind,
    Tracker,
    UnionFind,
    ValueChangeBound,
)
from evercount.queries.graphs.graph_query import GraphQuery, OneStepQuery


class MatchingTracker(Tracker):
    """The graph, a maximum matching of it (`mate`), and the alternating forest that shows that it
    is maximum. Every free vertex is the root of a tree. Outer vertices are those that an
    alternating path of even length joins to their root; only their edges are searched."""

    def __init__(self) -> None:
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        self.mate: dict[int, int] = {}
        self.root: dict[int, int] = {}  # of a vertex in the forest: the free vertex of its tree
        self.members: dict[int, list[int]] = {}  # of a root: the vertices of its tree
        self.outer: set[int] = set()
        self.parent: dict[int, int] = {}
        """Of an inner vertex: the outer vertex that reached it; inside a blossom, the next vertex
        around it."""
        # of an outer vertex in a shrunken blossom: the blossom's base
        self.base: dict[int, int] = {}
        self.blossom: dict[int, list[int]] = {}  # of a base: the other vertices of its blossom
        self.waiting: deque[tuple[int, Collection[int]]] = deque()
        """Outer vertices, each with those of its neighbours that are still to be looked at.

        Vertices of felled trees wait here, too, with no neighbours: an outer vertex next to them
        may take them.
        """

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        if by > 0:
            row[0] += self._insert(u, v)
        else:
            row[0] += self._remove(u, v)

    def _insert(self, u: int, v: int) -> int:
        """Grow by one iff the new edge closes an augmenting path."""
        for vertex in (u, v):
            if not self.neighbours[vertex]:
                self._start(vertex)
        self.neighbours[u].add(v)
        self.neighbours[v].add(u)
        self.waiting += [(x, (y,)) for x, y in ((u, v), (v, u)) if x in self.outer]
        return int(self._search())

    def _remove(self, u: int, v: int) -> int:
        """Shrink by one iff the two ends of a matched edge cannot be matched anew."""
        self.neighbours[u].remove(v)
        self.neighbours[v].remove(u)
        if self.mate.get(u) == v:
            del self.mate[u], self.mate[v]
            if u in self.root:
                self._fell(self.root[u])
            for vertex in (u, v):
                if self.neighbours[vertex]:
                    self._start(vertex)
            return self._search() - 1
        if u in self.root and self.root[u] == self.root.get(v):  # the tree may rest on the edge
            self._fell(self.root[u])
        for vertex in (u, v):
            # it was free, and is alone in its tree
            if vertex in self.members and not self.neighbours[vertex]:
                self._fell(vertex)
        return 0

    def _start(self, vertex: int) -> None:
        """Make a free vertex with neighbours the root of a tree of its own."""
        self.members[vertex] = []
        self._enter(vertex, vertex)
        self._reach(vertex)

    def _enter(self, vertex: int, root: int) -> None:
        self.root[vertex] = root
        self.members[root].append(vertex)

    def _reach(self, vertex: int) -> None:
        """Make a vertex of the forest an outer one; its edges are to be searched."""
        self.outer.add(vertex)
        self.waiting.append((vertex, self.neighbours[vertex]))

    def _fell(self, *roots: int) -> None:
        """Forget these trees; what is left of the forest may grow into them, and a free root with
        neighbours starts again."""
        felled = [vertex for root in roots for vertex in self.members.pop(root)]
        for vertex in felled:
            del self.root[vertex]
            self.outer.discard(vertex)
            self.parent.pop(vertex, None)
            self.base.pop(vertex, None)
            self.blossom.pop(vertex, None)
        self.waiting += [(vertex, ()) for vertex in felled]
        for root in roots:
            if self.neighbours[root] and root not in self.mate:
                self._start(root)

    def _search(self) -> bool:
        """Follow the waiting edges until the matching grows; return whether it did."""
        if len(self.members) < 2:  # an augmenting path has two free ends, each of which is a root
            return False
        waiting = self.waiting
        outer = self.outer
        root = self.root
        mate = self.mate
        while waiting:
            x, neighbours = waiting.popleft()
            if not neighbours and x not in root:
                neighbours = (x,)
                x = next((other for other in self.neighbours[x] if other in outer), x)
            if x not in outer:  # its tree was felled, or no outer vertex is next to it
                continue
            for y in neighbours:
                if y not in self.neighbours[x]:  # the edge was removed while it waited
                    continue
                if y in outer:
                    if root[x] != root[y]:
                        self._augment(x, y)
                        return True  # one update lets it grow by one at most
                    if self.base.get(x, x) != self.base.get(y, y):
                        self._shrink(x, y)
                elif y not in root:
                    partner = mate[y]
                    self.parent[y] = x
                    self._enter(y, root[x])
                    self._enter(partner, root[x])
                    self._reach(partner)
        return False

    def _augment(self, x: int, y: int) -> None:
        """Match x and y, outer vertices of two trees, and turn the matching over on the ways to
        their roots."""
        roots = self.root[x], self.root[y]
        for vertex in (x, y):
            inner = self.mate.get(vertex)
            while inner is not None:
                above = self.parent[inner]
                following = self.mate.get(above)
                self.mate[inner] = above
                self.mate[above] = inner
                inner = following
        self.mate[x] = y
        self.mate[y] = x
        self._fell(*roots)

    def _shrink(self, x: int, y: int) -> None:
        """Shrink the odd cycle that the edge between the outer vertices x and y of one tree
        closes."""
        on_way = set(self._bases_upwards(x))
        top = next(base for base in self._bases_upwards(y) if base in on_way)
        absorbed: dict[int, None] = {}  # bases, in the order of the walk
        for start, child in ((x, y), (y, x)):
            vertex = start
            below = child
            while self.base.get(vertex, vertex) != top:
                partner = self.mate[vertex]
                absorbed[self.base.get(vertex, vertex)] = None
                absorbed[self.base.get(partner, partner)] = None
                self.parent[vertex] = below
                below = partner
                vertex = self.parent[partner]
        inside = self.blossom.setdefault(top, [])
        for old in absorbed:
            for vertex in (old, *self.blossom.pop(old, ())):
                inside.append(vertex)
                self.base[vertex] = top
                if vertex not in self.outer:
                    self._reach(vertex)

    def _bases_upwards(self, x: int) -> Iterator[int]:
        while True:
            x = self.base.get(x, x)
            yield x
            if x not in self.mate:
                return
            x = self.parent[self.mate[x]]


class _ForestTracker(Tracker):
    """Cost of a minimum spanning forest; with `components`, whose edges all weigh 1, the number of
    components instead. The whole graph is kept only if edges are to be removed."""

    def __init__(self, removals: bool, components: bool = False) -> None:
        self.components = components
        self.sign = -1 if components else 1
        self.tree: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.graph: defaultdict[int, dict[int, int]] | None = None
        if removals:
            self.graph = defaultdict(dict)
        self.sets = UnionFind()
        self.shrunk = False  # an edge has gone, so `sets` may be wrong

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        if by > 0:
            self._insert(u, v, by, row)
        else:
            self._remove(u, v, row)

    def _insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        if self.graph is not None:
            self.graph[u][v] = self.graph[v][u] = weight
        if self.shrunk:
            joins_trees = not {u, v} <= self._smaller_half(u, v)
        else:
            joins_trees = self.sets.join(u, v)
        if joins_trees:
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

    def _remove(self, u: int, v: int, row: list[int]) -> None:
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
        """Find weight and ends of the heaviest edge on the tree path from u to v, which must
        exist."""
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
        """Find the smaller of the trees of u and v; both are searched in step, so the larger is not
        walked through."""
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

    Where duplicates are ignored, the lighter of two copies of an edge counts: that is what a
    spanning forest of parallel edges does, and letting the first copy win would cost S = 2(2W−1)²
    instead of 2W². Guarantee: see GraphQuery.

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
        """The share of one edge lies in −(W − 1)..W; that of two edges is a difference of two such
        shares."""
        W = self.max_weight
        return ValueChangeBound(W**2, (2 * W - 1) ** 2, (2 * W) ** 2)

    def _largest_value(self) -> int:
        """A tree of the heaviest edges."""
        return (self.vertices - 1) * self.max_weight


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


def _forest_bound(stream: StreamKind, heaviest: int) -> ChangeBound:
    if stream == "ignore-absent":
        return ChangeBound(heaviest, heaviest)
    down = heaviest
    if stream == "delete":
        down -= 1
    return ChangeBound(heaviest, down, swap=2 * (2 * heaviest - 1) ** 2)


class Matching(OneStepQuery):
    """Size of a maximum matching.

    Guarantee: see GraphQuery. The effect of one edge can go and come back with every new pair, so S
    grows with the square of the largest matching m: 2m², or m² + (m−1)² for ``delete`` (m is public
    there). Coming and going take turns, so where the Gram matrix falls (all factorizations here) 2m
    is enough, or 4m − 6 for replace (m ≥ 3).

    >>> Matching(4).encode(Matching(4).initial_state(), [(0, 1), (2, 3)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "matching"
    short: ClassVar[StreamKind] = "delete"
    joined: ClassVar[tuple[StreamKind, ...]] = ("insert", "delete", "ignore-duplicates")

    def _new_tracker(self) -> Tracker:
        return MatchingTracker()

    def _largest_value(self) -> int:
        """Half of the vertices; for deletions the matching of the public start."""
        if self.deletes:
            return int(self.start_values[0])
        return self.vertices // 2


class _MinCutTracker(Tracker):
    """The matrix of edges; the cut is searched once per tick, and not while some vertex has no
    edge."""

    def __init__(self, vertices: int) -> None:
        self.matrix = np.zeros((vertices, vertices))
        self.value = 0

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        self.matrix[u, v] = self.matrix[v, u] = float(by > 0)

    def close_tick(self, row: list[int]) -> None:
        value = 0
        if self.matrix.any(axis=1).all():
            value = round(
                float(objective(self.matrix, stoer_wagner_cuts(self.matrix), False).min())
            )
        row[0] += value - self.value
        self.value = value


class MinCut(OneStepQuery):
    """The smallest number of edges whose removal disconnects the graph; 0 while it is not
    connected.

    A tick costs O(n³) operations on arrays (n = 100: tens of milliseconds), however many updates it
    holds. Guarantee: see GraphQuery. As for `Matching`, the share of one edge is 0 or 1 and may
    come and go.

    >>> MinCut(3).encode(MinCut(3).initial_state(), [(0, 1), (1, 2), (0, 2)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "min-cut"

    def _check(self) -> None:
        require_fits(self.vertices**2, "the matrix of this graph", "Use fewer vertices.")

    def _new_tracker(self) -> Tracker:
        return _MinCutTracker(self.vertices)
