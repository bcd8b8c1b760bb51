"""A maximum matching of a general graph, kept maximum while edges come and go (Edmonds' blossom search).

Why one or two searches from known vertices are enough: ``graphs.proof.md``, section 8.
"""

from __future__ import annotations

from collections import defaultdict, deque

from evercount.queries.graphs.graph_query import Tracker


class MatchingTracker(Tracker):
    """The graph, a maximum matching of it (`mate`), and its changes in size."""

    __slots__ = ("limit", "mate", "neighbours")

    def __init__(self, vertices: int) -> None:
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        self.mate: dict[int, int] = {}
        self.limit = vertices - vertices % 2

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        """Grow by one iff some maximum matching of the old graph leaves both u and v free."""
        if len(self.mate) < self.limit and self._free(u, v):
            self._match(u, v)
            row[0] += 1
        self.neighbours[u].add(v)
        self.neighbours[v].add(u)

    def remove(self, u: int, v: int, row: list[int]) -> None:
        """Shrink by one iff neither end of a matched edge can be matched anew."""
        self.neighbours[u].remove(v)
        self.neighbours[v].remove(u)
        if self.mate.get(u) == v:
            del self.mate[u], self.mate[v]
            if not (self._augment(u, set()) or self._augment(v, set())):
                row[0] -= 1

    def _match(self, u: int, v: int) -> None:
        self.mate[u], self.mate[v] = v, u

    def _free(self, u: int, v: int) -> bool:
        """Change the matching, not its size, so that u and v are free; if that cannot be, leave it maximum."""
        away: set[int] = set()
        for vertex in (u, v):
            away.add(vertex)
            partner = self.mate.get(vertex)
            if partner is None:
                continue
            del self.mate[vertex], self.mate[partner]
            if not self._augment(partner, away):
                self._match(vertex, partner)
                return False
        return True

    def _augment(self, root: int, away: set[int]) -> bool:
        """Search an augmenting path from the free vertex root that avoids `away`; flip it if there is one."""
        parent: dict[int, int] = {}  # of an inner vertex: the outer vertex that reached it
        base: dict[int, int] = {}  # of a vertex in a shrunken blossom: the blossom's base
        outer = {root}
        queue = deque([root])
        while queue:
            x = queue.popleft()
            for y in self.neighbours[x]:
                if y in away or self.mate.get(x) == y or base.get(x, x) == base.get(y, y):
                    continue
                partner = self.mate.get(y)
                if y in outer:
                    self._shrink(x, y, parent, base, outer, queue)
                elif y not in parent:
                    parent[y] = x
                    if partner is None:
                        self._flip(y, parent)
                        return True
                    outer.add(partner)
                    queue.append(partner)
        return False

    def _shrink(
        self, x: int, y: int, parent: dict[int, int], base: dict[int, int], outer: set[int], queue: deque[int]
    ) -> None:
        """Shrink the odd cycle that the edge between the outer vertices x and y closes."""
        top = self._common_base(x, y, parent, base)
        blossom: set[int] = set()
        for start, child in ((x, y), (y, x)):
            vertex, below = start, child
            while base.get(vertex, vertex) != top:
                partner = self.mate[vertex]
                blossom.update((base.get(vertex, vertex), base.get(partner, partner)))
                parent[vertex] = below
                below, vertex = partner, parent[partner]
        for vertex in [*parent, *outer]:
            if base.get(vertex, vertex) in blossom:
                base[vertex] = top
                if vertex not in outer:
                    outer.add(vertex)
                    queue.append(vertex)

    def _common_base(self, x: int, y: int, parent: dict[int, int], base: dict[int, int]) -> int:
        """The first base on the way from y to the root that lies on the way from x to the root."""
        on_way = set()
        while True:
            x = base.get(x, x)
            on_way.add(x)
            if x not in self.mate:
                break
            x = parent[self.mate[x]]
        while True:
            y = base.get(y, y)
            if y in on_way:
                return y
            y = parent[self.mate[y]]

    def _flip(self, end: int, parent: dict[int, int]) -> None:
        vertex: int | None = end
        while vertex is not None:
            x = parent[vertex]
            following = self.mate.get(x)
            self._match(vertex, x)
            vertex = following
