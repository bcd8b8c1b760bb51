"""Edge streams: which updates are legal, and which edges count.

Five kinds of stream over a public vertex set 0..n-1:

- ``insert``: the graph starts empty, every update inserts a new edge;
- ``delete``: the graph starts as the public `initial_edges`, every update deletes an edge that is there;
- ``ignore-duplicates``: as ``insert``, but an edge may come again and then changes nothing (with weights: the
  lighter of parallel edges counts);
- ``ignore-absent``: as ``delete``, but an update may name an edge that is not there and then changes nothing.
- ``mixed``: every update (u, v, 1) inserts an edge and (u, v, -1) deletes it, in any order; an update that changes
  nothing is legal. Only the noise of `direct` fits it, which needs a horizon.

The first two refuse an update that does not fit the edges before it, which tells its sender about those. The others
never do; the service takes them unless a declaration asks for refusals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, Literal, NamedTuple, cast

from evercount.errors import EventRefused, InputError, ParameterError

StreamKind = Literal["insert", "delete", "ignore-duplicates", "ignore-absent", "mixed"]
Update = tuple[int, int, int]  # smaller vertex, larger vertex, weight: 1 where edges have none, -1 where the edge goes


class StartGraph(NamedTuple):
    """The public graph before the first tick."""

    edges: dict[Edge, int]  # the edges that count, with their weights
    dropped: set[Edge]  # edges that an enforced degree drops
    largest_degree: int


class TickUpdates(NamedTuple):
    """What the updates of one tick change."""

    updates: list[Update]  # the updates that count
    dropped: list[Edge]  # edges that an enforced degree drops, or dropped edges that go
    load: dict[int, int]  # the new loads of vertices (`GraphState.load`)


@dataclass(frozen=True)
class EdgeRules:
    """What is legal in an edge stream, and which edges count."""

    vertices: int
    stream: StreamKind
    max_degree: int | None
    enforce_degree: bool
    weight_limit: int | None

    @property
    def deletes(self) -> bool:
        """Whether edges only go, from a public start."""
        return self.stream in ("delete", "ignore-absent")

    def read_start(self, initial_edges: Sequence[Sequence[int]]) -> StartGraph:
        """The public start; ParameterError where an edge is not legal."""
        edges: dict[Edge, int] = {}
        dropped: set[Edge] = set()
        degree: dict[int, int] = {}
        for number, event in enumerate(initial_edges):
            try:
                u, v, weight = self.parse(number, event, weighted=self.weight_limit is not None)
            except InputError as error:
                raise ParameterError(f"initial_edges: {error}") from error
            if (u, v) in edges or (u, v) in dropped:
                raise ParameterError(f"initial_edges: edge {number}, {tuple(event)!r}, is there twice")
            full = self.max_degree is not None and max(degree.get(u, 0), degree.get(v, 0)) >= self.max_degree
            if full and not self.enforce_degree:
                raise ParameterError(
                    f"initial_edges: edge {number}, {tuple(event)!r}, exceeds max_degree={self.max_degree}; leave "
                    "max_degree out (the start is public), or add enforce_degree=True to drop such edges"
                )
            if full:
                dropped.add((u, v))
                continue
            edges[u, v] = weight
            degree[u] = degree.get(u, 0) + 1
            degree[v] = degree.get(v, 0) + 1
        return StartGraph(edges, dropped, max(degree.values(), default=0))

    def read_tick(self, state: GraphState, events: Any) -> TickUpdates:
        """Validate the updates of a tick. Changes nothing."""
        if not isinstance(events, Iterable):
            raise InputError(f"a tick is a sequence of updates, got {events!r}: give [] for a quiet tick")
        if self.stream == "mixed":
            return self._read_mixed(state, events)
        inserts, limit = not self.deletes, self.max_degree
        weighted = inserts and self.weight_limit is not None
        updates: list[Update] = []
        dropped: list[Edge] = []
        fresh: dict[Edge, int] = {}
        load: dict[int, int] = {}
        for number, event in enumerate(events):
            u, v, weight = self.parse(number, event, weighted)
            edge = (u, v)
            if not inserts:
                if edge in fresh or not (edge in state.edges or edge in state.dropped):
                    if self.stream == "ignore-absent":
                        continue
                    raise _refusal(number, event, "deletes an edge that is not there; leave it out")
                fresh[edge] = weight
                if edge in state.edges:
                    updates.append((u, v, -1))
                else:
                    dropped.append(edge)
                continue
            old = fresh[edge] if edge in fresh else state.edges.get(edge)
            known = old is not None or edge in state.dropped
            if known and self.stream == "insert":
                raise _refusal(
                    number, event, "inserts an edge for the second time; leave it out or use ignore-duplicates"
                )
            counts = not known or (old is not None and weight < old)
            if limit is not None and (self.enforce_degree or not known):
                at_u = load[u] if u in load else state.load.get(u, 0)
                at_v = load[v] if v in load else state.load.get(v, 0)
                full = at_u >= limit or at_v >= limit
                if full and not self.enforce_degree:
                    raise _refusal(
                        number, event, f"exceeds max_degree={limit}; promise more or use enforce_degree=True"
                    )
                load[u], load[v] = at_u + 1, at_v + 1
                if full:
                    if self.stream == "insert":
                        dropped.append(edge)
                        fresh[edge] = weight
                    continue
            if counts:
                fresh[edge] = weight
                updates.append((u, v, weight))
        return TickUpdates(updates, dropped, load)

    def _read_mixed(self, state: GraphState, events: Iterable[Any]) -> TickUpdates:
        """As `read_tick`: the insertions and deletions of a mixed tick that change something, with their signs."""
        updates: list[Update] = []
        there: dict[Edge, bool] = {}
        load: dict[int, int] = {}
        for number, event in enumerate(events):
            u, v, sign = self.parse(number, event, weighted=False, signed=True)
            if there.get((u, v), (u, v) in state.edges) == (sign > 0):
                continue
            there[u, v] = sign > 0
            updates.append((u, v, sign))
            if self.max_degree is None:
                continue
            for vertex in (u, v):
                load[vertex] = load.get(vertex, state.load.get(vertex, 0)) + sign
                if load[vertex] > self.max_degree:
                    raise _refusal(number, event, f"exceeds max_degree={self.max_degree}; promise a larger one")
        return TickUpdates(updates, [], load)

    def parse(self, number: int, event: Any, weighted: bool, signed: bool = False) -> Update:
        """One update as (smaller vertex, larger vertex, weight)."""
        try:
            u, v, *rest = event
            if isinstance(u, bool) or isinstance(v, bool) or (rest and isinstance(rest[0], bool)):  # not 1 and 0
                raise TypeError
            u, v = index(u), index(v)
            weight = index(rest[0]) if rest else 1
        except (TypeError, ValueError) as error:
            form = "(u, v, 1) or (u, v, -1)" if signed else "(u, v, weight)" if weighted else "(u, v)"
            raise _refusal(number, event, f"is not an update; give {form}, whole numbers") from error
        if not (0 <= u < self.vertices and 0 <= v < self.vertices):
            raise _refusal(number, event, f"has a vertex outside 0..{self.vertices - 1}")
        if u == v:
            raise _refusal(number, event, "is a self-loop; only edges between two vertices are legal")
        if signed:
            if len(rest) != 1 or weight not in (-1, 1):
                raise _refusal(number, event, "needs (u, v, 1) for an insertion or (u, v, -1) for a deletion")
            return (u, v, weight) if u < v else (v, u, weight)
        if weighted:
            largest = cast(int, self.weight_limit)
            if len(rest) > 1 or (not rest and largest > 1):
                raise _refusal(number, event, f"needs (u, v, weight) with a weight in 1..{largest}")
            if not 1 <= weight <= largest:
                raise _refusal(number, event, f"has a weight outside 1..{largest}")
        elif rest:
            signs = "; a stream where edges come and go has stream='mixed'" if weight in (-1, 1) else ""
            raise _refusal(number, event, f"carries a weight where none belongs; give (u, v){signs}")
        return (u, v, weight) if u < v else (v, u, weight)


def _refusal(number: int, event: Any, reason: str) -> EventRefused:
    return EventRefused(number, f"is {event!r:.80} and {reason}", "update")


Edge = tuple[int, int]  # smaller vertex, larger vertex


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


class SignedTracker(Tracker):
    """A tracker to which an edge that goes is one that comes, with the other sign."""

    @abstractmethod
    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        """Add the edge (1) or take it away (-1), with the effect of that."""

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        self.change(u, v, 1, row)

    def remove(self, u: int, v: int, row: list[int]) -> None:
        self.change(u, v, -1, row)


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
