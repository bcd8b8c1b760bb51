"""A maximum matching of a general graph, kept maximum while edges come and go (Edmonds' blossom algorithm).

The search forest is kept between updates, so most insertions cost a look at two labels. It is searched on only where a
component has two free vertices, and only until the matching has grown. Why that is enough: ``graphs.proof.md``,
section 8.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator

from evercount.queries.graphs.edge_rules import Edge, Tracker, UnionFind


class MatchingTracker(Tracker):
    """The graph, a maximum matching of it (`mate`), and the alternating forest that shows that it is maximum. Every
    free vertex is the root of a tree. Outer vertices are those that an alternating path of even length joins to their
    root; only their edges are searched. Components are those of all edges that ever came."""

    __slots__ = (
        "base",
        "blossom",
        "components",
        "free",
        "mate",
        "members",
        "neighbours",
        "outer",
        "parent",
        "root",
        "used",
        "waiting",
    )

    def __init__(self) -> None:
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        self.mate: dict[int, int] = {}
        self.root: dict[int, int] = {}  # of a vertex in the forest: the free vertex of its tree
        self.members: dict[int, list[int]] = {}  # of a root: the vertices of its tree
        self.outer: set[int] = set()
        self.parent: dict[int, int] = {}
        """Of an inner vertex: the outer vertex that reached it; inside a blossom, the next vertex around it."""
        self.base: dict[int, int] = {}  # of an outer vertex in a shrunken blossom: the blossom's base
        self.blossom: dict[int, list[int]] = {}  # of a base: the other vertices of its blossom
        self.used: set[Edge] = set()  # edges that the forest rests on: without one of them its tree is searched again
        self.components = UnionFind()
        self.free: dict[int, int] = {}  # of a component: the number of its free vertices
        self.waiting: dict[int, deque[tuple[int, Collection[int]]]] = {}
        """Of a component: outer vertices, each with those of its neighbours that are still to be looked at.

        Vertices of felled trees wait here, too, with no neighbours: an outer vertex next to them may take them.
        """

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        """Grow by one iff the new edge closes an augmenting path."""
        for vertex in (u, v):
            if not self.neighbours[vertex]:
                self.waiting.setdefault(self.components.find(vertex), deque())
                self._plant(vertex)
        self._join(u, v)
        self.neighbours[u].add(v)
        self.neighbours[v].add(u)
        self.waiting[self.components.find(u)] += [(x, (y,)) for x, y in ((u, v), (v, u)) if x in self.outer]
        row[0] += self._search(u)

    def remove(self, u: int, v: int, row: list[int]) -> None:
        """Shrink by one iff the two ends of a matched edge cannot be matched anew."""
        self.neighbours[u].remove(v)
        self.neighbours[v].remove(u)
        if self.mate.get(u) == v:
            del self.mate[u], self.mate[v]
            if u in self.root:
                self._fell(self.root[u])
            for vertex in (u, v):
                if self.neighbours[vertex]:
                    self._plant(vertex)
            row[0] += self._search(u) - 1
            return
        if _edge(u, v) in self.used:
            self.used.discard(_edge(u, v))
            if u in self.root and self.root[u] == self.root.get(v):
                self._fell(self.root[u])
        for vertex in (u, v):
            if not self.neighbours[vertex]:  # it was free, and alone in its tree
                self._fell(vertex, free=False)
                self.free[self.components.find(vertex)] -= 1

    def _join(self, u: int, v: int) -> None:
        one, two = self.components.find(u), self.components.find(v)
        if self.components.join(one, two):
            free = self.free.pop(one, 0) + self.free.pop(two, 0)
            less, more = sorted((self.waiting.pop(one), self.waiting.pop(two)), key=len)
            more += less
            joined = self.components.find(one)
            self.free[joined], self.waiting[joined] = free, more

    # -- the forest ---------------------------------------------------------------------------------------------------

    def _plant(self, vertex: int) -> None:
        """Make a free vertex with neighbours the root of a tree of its own."""
        component = self.components.find(vertex)
        self.free[component] = self.free.get(component, 0) + 1
        self._start(vertex)

    def _start(self, vertex: int) -> None:
        self.members[vertex] = []
        self._enter(vertex, vertex)
        self._reach(vertex)

    def _enter(self, vertex: int, root: int) -> None:
        self.root[vertex] = root
        self.members[root].append(vertex)

    def _reach(self, vertex: int) -> None:
        """Make a vertex of the forest an outer one; its edges are to be searched."""
        self.outer.add(vertex)
        self.waiting[self.components.find(vertex)].append((vertex, self.neighbours[vertex]))

    def _fell(self, *roots: int, free: bool = True) -> None:
        """Forget these trees; what is left of the forest may grow into them, and a free root starts again."""
        felled = [vertex for root in roots for vertex in self.members.pop(root)]
        for vertex in felled:
            del self.root[vertex]
            self.outer.discard(vertex)
            self.parent.pop(vertex, None)
            self.base.pop(vertex, None)
            self.blossom.pop(vertex, None)
        self.waiting[self.components.find(roots[0])] += [(vertex, ()) for vertex in felled]
        for root in roots:
            if free and root not in self.mate:
                self._start(root)

    def _search(self, vertex: int) -> bool:
        """Follow the waiting edges of this vertex's component until the matching grows; whether it did."""
        component = self.components.find(vertex)
        if self.free.get(component, 0) < 2:  # an augmenting path has two free ends
            return False
        waiting, outer, root, mate = self.waiting[component], self.outer, self.root, self.mate
        while waiting:
            x, seen = waiting.popleft()
            if not seen and x not in root:
                x, seen = next((other for other in self.neighbours[x] if other in outer), x), (x,)
            if x not in outer:  # its tree was felled, or no outer vertex is next to it
                continue
            for y in seen:
                if y not in self.neighbours[x]:  # the edge was removed while it waited
                    continue
                if y in outer:
                    if root[x] != root[y]:
                        self._augment(x, y)
                        self.free[component] -= 2
                        return True  # one update lets it grow by one at most
                    if self.base.get(x, x) != self.base.get(y, y):
                        self._shrink(x, y)
                elif y not in root:
                    partner = mate[y]
                    self.parent[y] = x
                    self.used.add(_edge(x, y))
                    self._enter(y, root[x])
                    self._enter(partner, root[x])
                    self._reach(partner)
        return False

    def _augment(self, x: int, y: int) -> None:
        """Match x and y, outer vertices of two trees, and turn the matching over on the ways to their roots."""
        roots = self.root[x], self.root[y]
        for vertex in (x, y):
            inner = self.mate.get(vertex)
            while inner is not None:
                above = self.parent[inner]
                following = self.mate.get(above)
                self._match(inner, above)
                inner = following
        self._match(x, y)
        self._fell(*roots)

    def _match(self, u: int, v: int) -> None:
        self.mate[u], self.mate[v] = v, u

    def _shrink(self, x: int, y: int) -> None:
        """Shrink the odd cycle that the edge between the outer vertices x and y of one tree closes."""
        on_way = set(self._bases_upwards(x))
        top = next(base for base in self._bases_upwards(y) if base in on_way)
        self.used.add(_edge(x, y))
        absorbed: dict[int, None] = {}  # bases, in the order of the walk
        for start, child in ((x, y), (y, x)):
            vertex, below = start, child
            while self.base.get(vertex, vertex) != top:
                partner = self.mate[vertex]
                absorbed[self.base.get(vertex, vertex)] = None
                absorbed[self.base.get(partner, partner)] = None
                self.parent[vertex] = below
                below, vertex = partner, self.parent[partner]
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


def _edge(u: int, v: int) -> Edge:
    return (u, v) if u < v else (v, u)
