"""What a graph query remembers: the edges that count, and a tracker of its function of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

Edge = tuple[int, int]
"""Smaller vertex, larger vertex."""


class Tracker(ABC):
    """One function of a graph, kept up to date edge by edge; changes are added to `row`, one entry per cell."""

    @abstractmethod
    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        """Add the edge and its effect."""

    @abstractmethod
    def remove(self, u: int, v: int, row: list[int]) -> None:
        """Take the edge away and add the effect of that."""

    def close_tick(self, row: list[int]) -> None:  # noqa: B027 - doing nothing is right for most
        """Add effects that are computed once per tick."""


@dataclass(slots=True)
class GraphState:
    """The encoder's memory: the edges that count, those projected away, and the load of every vertex."""

    tracker: Tracker
    edges: dict[Edge, int] = field(default_factory=dict)
    dropped: set[Edge] = field(default_factory=set)
    load: dict[int, int] = field(default_factory=dict)
    """Arrivals at a vertex when the degree is enforced, else its degree; only kept if there is a maximum."""


class UnionFind:
    """Sets of vertices that are joined and never split; every vertex starts alone."""

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
