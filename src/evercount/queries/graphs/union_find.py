"""Disjoint sets of vertices that are joined and never split."""

from __future__ import annotations


class UnionFind:
    """Sets of vertices; every vertex starts alone."""

    __slots__ = ("parent",)

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}

    def find(self, vertex: int) -> int:
        """The vertex that stands for the set of this one."""
        parent = self.parent
        while (above := parent.get(vertex, vertex)) != vertex:
            parent[vertex] = parent.get(above, above)  # path halving
            vertex = parent[vertex]
        return vertex

    def join(self, u: int, v: int) -> bool:
        """Join the two sets; True if they were two."""
        u, v = self.find(u), self.find(v)
        if u == v:
            return False
        self.parent[max(u, v)] = min(u, v)
        return True
