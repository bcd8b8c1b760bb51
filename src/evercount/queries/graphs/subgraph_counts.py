"""Edges, triangles and k-stars of an edge stream, counted edge by edge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb
from typing import ClassVar

from evercount.errors import ParameterError
from evercount.queries.graphs.graph_query import GraphQuery, StreamKind, Tracker, _whole
from evercount.queries.graphs.reach import Reach, ValueReach


class _EdgeTracker(Tracker):
    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        row[0] += 1

    def remove(self, u: int, v: int, row: list[int]) -> None:
        row[0] -= 1


@dataclass(frozen=True, eq=False, repr=False)
class Edges(GraphQuery):
    """Number of edges. Guarantee: see GraphQuery; S = 1, or 2 where duplicates are ignored, both adjacencies."""

    name: ClassVar[str] = "edges"

    def new_tracker(self) -> Tracker:
        """A counter."""
        return _EdgeTracker()

    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """±1 once; where duplicates are ignored a later copy takes it back."""
        again = stream == "ignore-duplicates"
        return [Reach(1, int(again), swap=2 if again else 1)]

    def value_reach(self) -> ValueReach:
        """One edge is one."""
        return ValueReach.rising(1)

    def largest_value(self) -> int:
        """All pairs."""
        return comb(self.vertices, 2)


class _TriangleTracker(Tracker):
    """Adjacency sets: an edge closes as many triangles as its ends have neighbours in common."""

    __slots__ = ("neighbours",)

    def __init__(self) -> None:
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        at_u, at_v = self.neighbours[u], self.neighbours[v]
        row[0] += len(at_u & at_v)
        at_u.add(v)
        at_v.add(u)

    def remove(self, u: int, v: int, row: list[int]) -> None:
        at_u, at_v = self.neighbours[u], self.neighbours[v]
        at_u.remove(v)
        at_v.remove(u)
        row[0] -= len(at_u & at_v)


@dataclass(frozen=True, eq=False, repr=False)
class Triangles(GraphQuery):
    """Number of triangles. Guarantee: see GraphQuery; one edge lies in at most D − 1 triangles."""

    name: ClassVar[str] = "triangles"
    needs_degree: ClassVar[bool] = True

    def check(self) -> None:
        """A triangle needs three vertices, and degree 2."""
        if self.vertices < 3 or self.degree_bound < 2:
            raise ParameterError(
                "no triangle can exist: it needs 3 vertices of degree 2, got "
                f"vertices={self.vertices}, largest degree {self.degree_bound}"
            )

    def new_tracker(self) -> Tracker:
        """Adjacency sets."""
        return _TriangleTracker()

    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """Rises by at most D − 1, and falls again unless edges only come."""
        return [_rising_reach(stream, self.degree_bound - 1)]

    def value_reach(self) -> ValueReach:
        """One edge lies in at most D − 1 triangles."""
        return ValueReach.rising(self.degree_bound - 1)

    def largest_value(self) -> int:
        """Every vertex in C(D, 2) triangles, each counted at three vertices."""
        return self.vertices * comb(self.degree_bound, 2) // 3


class _StarTracker(Tracker):
    """Degrees: a vertex of degree d is the centre of C(d, k) stars."""

    __slots__ = ("degree", "gain")

    def __init__(self, gain: tuple[int, ...]) -> None:
        self.degree: defaultdict[int, int] = defaultdict(int)
        self.gain = gain

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        for vertex in (u, v):
            row[0] += self.gain[self.degree[vertex]]
            self.degree[vertex] += 1

    def remove(self, u: int, v: int, row: list[int]) -> None:
        for vertex in (u, v):
            self.degree[vertex] -= 1
            row[0] -= self.gain[self.degree[vertex]]


@dataclass(frozen=True, eq=False, repr=False)
class KStars(GraphQuery):
    """Number of k-stars, Σ over vertices of C(degree, k), k ≥ 2.

    Guarantee: see GraphQuery; one edge lies in at most K = 2·C(D−1, k−1) stars.
    """

    name: ClassVar[str] = "k-stars"
    needs_degree: ClassVar[bool] = True

    k: int = field(kw_only=True)

    def check(self) -> None:
        """A star of k edges needs degree k."""
        _whole("k", self.k, 2, self.vertices - 1)
        if self.degree_bound < self.k:
            raise ParameterError(
                f"no {self.k}-star can exist: the largest degree is {self.degree_bound}, it must be at least k"
            )

    def new_tracker(self) -> Tracker:
        """Degrees, and how many stars one more edge adds."""
        return _StarTracker(self._gain)

    @cached_property
    def _gain(self) -> tuple[int, ...]:
        return tuple(comb(degree, self.k - 1) for degree in range(self.degree_bound + 1))

    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """Rises by at most K, and falls again unless edges only come."""
        return [_rising_reach(stream, 2 * comb(self.degree_bound - 1, self.k - 1))]

    def value_reach(self) -> ValueReach:
        """One edge lies in at most K stars."""
        return ValueReach.rising(2 * comb(self.degree_bound - 1, self.k - 1))

    def largest_value(self) -> int:
        """Every vertex of degree D."""
        return self.vertices * comb(self.degree_bound, self.k)


def _rising_reach(stream: StreamKind, most: int) -> Reach:
    """Reach of a count in which the share of one edge lies in 0..most and grows with the other edges."""
    if stream == "insert":
        return Reach(most, 0, swap=2 * most**2)
    if stream == "delete":
        return Reach(most, most, swap=2 * most**2)
    return Reach(most, most)
