"""Edge streams: which updates are legal, which edges count, what is kept of them, and how much one
update changes.

Five kinds of stream over a public vertex set 0..n-1:

- ``insert``: the graph starts empty, every update inserts a new edge;
- ``delete``: the graph starts as the public `initial_edges`, every update deletes an edge that is
  there;
- ``ignore-duplicates``: as ``insert``, but an edge may come again and then changes nothing (with
  weights: the lighter of parallel edges counts);
- ``ignore-absent``: as ``delete``, but an update may name an edge that is not there and then
  changes nothing.
- ``mixed``: every update (u, v, 1) inserts an edge and (u, v, -1) deletes it, in any order; an
  update that changes nothing is legal. Only the noise of `direct` fits it, which needs a horizon.

The first two refuse an update that does not fit the edges before it, which tells its sender about
those. The others never do; the service takes them unless a declaration asks for refusals.

`ChangeBound` says how much one update changes the increments over all ticks, `ValueChangeBound` the
values of one tick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from operator import index
from typing import Any, Literal, NamedTuple

from evercount.errors import EventRefused, InputError, ParameterError
from evercount.queries.base import listed_events


@dataclass(frozen=True)
class ProjectedChange:
    """What one update changes in a cell where the stable projection runs: rises and falls for
    add-remove. For replace both sums are at most `either`."""

    rises: int
    falls: int
    either: int


@dataclass(frozen=True)
class ChangeBound:
    """What one update changes in each of `cells` cells: rises sum to ≤ up, falls to ≤ down (or vice
    versa). `swap` bounds P² + N² when one update is replaced by another or by none; None stands for
    the general 2(up + down)². `ceiling` is the range of a function that only rises or only falls:
    then P, N ≤ ceiling. `under_projection` holds where the stable projection runs; None stands for
    its general rule, which reads a `swap` of 2M² as P, N ≤ M."""

    up: int
    down: int
    cells: int = 1
    swap: int | None = None
    ceiling: int | None = None
    under_projection: ProjectedChange | None = None

    def bound(self, power: int, replaced: bool, projected: ChangeBound | None = None) -> int:
        """Bound on Σ (P² + N²) over these cells, or for the power 1 on Σ (P + N); see
        ``graphs.proof.md``, sections 2 to 4, and 13. `projected` is the bound of an inserted edge
        where the stable projection runs."""
        if projected is not None:
            bound: int = sum(part**power for part in self._project(replaced, projected))
        elif not replaced:
            bound = self.up**power + self.down**power
        elif self.swap is None:
            bound = 2 * (self.up + self.down) ** power
        elif power == 2:
            bound = self.swap
        else:
            bound = min(2 * (self.up + self.down) ** power, isqrt(2 * self.swap))
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling**power)
        return self.cells * bound

    def _project(self, replaced: bool, edge: ChangeBound) -> tuple[int, int]:
        """Bound rises and falls under projection: of one arrival less, one kept edge goes and two
        may come."""
        if self.under_projection is not None:
            if replaced:
                return (self.under_projection.either,) * 2
            return (self.under_projection.rises, self.under_projection.falls)
        if not replaced:
            return self.up + 2 * edge.down, self.down + 2 * edge.up
        if self.swap is None:
            own = self.up + self.down
        else:
            own = isqrt(self.swap // 2)
        return (own + 2 * (edge.up + edge.down),) * 2


@dataclass(frozen=True)
class ValueChangeBound:
    """How far values of graphs that differ in one or two edges are apart: squared, summed over
    cells. `one`: Y and Y + e. `exchanged`: Y + e and Y + f. `both`: Y − f and Y + e, with e and f
    different edges."""

    one: int
    exchanged: int
    both: int

    @classmethod
    def rising(cls, step: int) -> ValueChangeBound:
        """Of one number that every further edge raises (or lowers) by 0 to `step`."""
        return cls(step**2, step**2, (2 * step) ** 2)


def alternating_bound(most: int, cells: int = 1) -> ChangeBound:
    """Of numbers that only rise, or only fall, between 0 and `most`, and that one edge may change
    at any time."""
    return ChangeBound(most, most, cells, swap=2 * most**2, ceiling=most)


StreamKind = Literal["insert", "delete", "ignore-duplicates", "ignore-absent", "mixed"]
# smaller vertex, larger vertex, weight: 1 where edges have none, -1 where the edge goes
Update = tuple[int, int, int]


class TickUpdates(NamedTuple):
    """What the updates of one tick change."""

    # the updates that count; of weight 0 where an enforced degree drops the edge
    updates: list[Update]
    load: dict[int, int]  # the new loads of vertices (`GraphState.load`)


@dataclass(frozen=True, eq=False, repr=False)
class EdgeRules:
    """What is legal in an edge stream, and which edges count."""

    vertices: int
    stream: StreamKind = "insert"
    max_degree: int | None = None
    enforce_degree: bool = False
    initial_edges: Sequence[Sequence[int]] = ()

    @property
    def weight_limit(self) -> int | None:
        """Largest legal weight, or None where edges have no weight."""
        return None

    @property
    def deletes(self) -> bool:
        """Whether edges only go, from a public start."""
        return self.stream in ("delete", "ignore-absent")

    @cached_property
    def start_edges(self) -> dict[Edge, int]:
        """The public start with its weights; ParameterError where an edge is not legal."""
        edges: dict[Edge, int] = {}
        degree: Counter[int] = Counter()
        for number, event in enumerate(self.initial_edges):
            try:
                u, v, weight = self.parse(number, event, start=True)
            except InputError as error:
                raise ParameterError(f"initial_edges: {error}") from error
            if (u, v) in edges:
                raise ParameterError(
                    f"initial_edges: edge {number}, {tuple(event)!r}, occurs twice"
                )
            edges[u, v] = weight
            degree.update((u, v))
            if self.max_degree is not None and max(degree[u], degree[v]) > self.max_degree:
                raise ParameterError(
                    f"initial_edges: edge {number}, {tuple(event)!r}, exceeds "
                    f"max_degree={self.max_degree}; promise more, or omit max_degree where edges "
                    "only go (the start is public)"
                )
        return edges

    def read_tick(self, state: GraphState, events: Any) -> TickUpdates:
        """Validate the updates of a tick. Changes nothing."""
        updates: list[Update] = []
        # edges that this tick has changed: as in `GraphState.edges`, None if gone
        now: dict[Edge, int | None] = {}
        load: dict[int, int] = {}
        limit = None if self.deletes else self.max_degree
        for number, event in enumerate(listed_events(events)):
            u, v, weight = self.parse(number, event)
            old = now.get((u, v), state.edges.get((u, v)))
            comes = weight > 0 and old is None
            goes = weight < 0 and old is not None
            if self.stream == "insert" and not comes:
                again = "inserts an edge for the second time; omit it or use ignore-duplicates"
                raise _refusal(number, event, again)
            if self.stream == "delete" and not goes:
                raise _refusal(number, event, "deletes an edge that is not there; omit it")
            full = False
            if limit is not None and (comes or goes or self.enforce_degree):
                for vertex in (u, v):
                    before = load.get(vertex, state.load.get(vertex, 0))
                    full = full or (weight > 0 and before >= limit)
                    load[vertex] = before + (1 if weight > 0 else -1)
            if full and not self.enforce_degree:
                enforce = ""
                if self.stream != "mixed":
                    enforce = " or use enforce_degree=True"
                raise _refusal(number, event, f"exceeds max_degree={limit}; promise more{enforce}")
            # only there it matters whether the edge comes again
            if full and self.stream != "insert":
                continue
            if comes or goes or (old is not None and 0 < weight < old):
                updates.append((u, v, 0 if full else weight))
                now[u, v] = None if goes else updates[-1][2]
        return TickUpdates(updates, load)

    def parse(self, number: int, event: Any, start: bool = False) -> Update:
        """Read one update, or one edge of the public start, as (smaller vertex, larger vertex,
        weight)."""
        signed = self.stream == "mixed" and not start
        goes = self.deletes and not start
        largest = None if goes else self.weight_limit
        try:
            u, v, *rest = event
            # not 1 and 0
            if isinstance(u, bool) or isinstance(v, bool) or (rest and isinstance(rest[0], bool)):
                raise TypeError
            u = index(u)
            v = index(v)
            weight = 1
            if rest:
                weight = index(rest[0])
        except (TypeError, ValueError) as error:
            form = _form_of_updates(signed, largest)
            raise _refusal(
                number, event, f"is not an update; give {form}, whole numbers"
            ) from error
        if not (0 <= u < self.vertices and 0 <= v < self.vertices):
            raise _refusal(number, event, f"has a vertex outside 0..{self.vertices - 1}")
        if u == v:
            raise _refusal(
                number, event, "is a self-loop; only edges between two vertices are legal"
            )
        problem = _problem_of_weight(rest, weight, signed, largest)
        if problem:
            raise _refusal(number, event, problem)
        if goes:
            weight = -1
        return (min(u, v), max(u, v), weight)


def _problem_of_weight(rest: Sequence[Any], weight: int, signed: bool, largest: int | None) -> str:
    """Say what is wrong with what follows the two vertices of an update; nothing if it is legal."""
    if signed:
        if len(rest) != 1 or weight not in (-1, 1):
            return "needs (u, v, 1) for an insertion or (u, v, -1) for a deletion"
    elif largest is not None:
        if len(rest) > 1 or (not rest and largest > 1) or not 1 <= weight <= largest:
            return f"needs (u, v, weight) with a weight in 1..{largest}"
    elif rest and weight in (-1, 1):
        return (
            "carries a weight where none belongs; give (u, v); where edges come and go, use "
            "stream='mixed'"
        )
    elif rest:
        return "carries a weight where none belongs; give (u, v)"
    return ""


def _form_of_updates(signed: bool, largest: int | None) -> str:
    """Say how an update is written."""
    if signed:
        return "(u, v, 1) or (u, v, -1)"
    if largest is None:
        return "(u, v)"
    return "(u, v, weight)"


def _refusal(number: int, event: Any, reason: str) -> EventRefused:
    """Make the error that refuses an update."""
    return EventRefused(number, f"is {event!r:.80} and {reason}", "update")


Edge = tuple[int, int]  # smaller vertex, larger vertex


class Tracker(ABC):
    """One function of a graph, kept up to date edge by edge; changes are added to `row`, one entry
    per cell."""

    @abstractmethod
    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        """Add the edge with the weight `by`, or take it away (-1), with the effect of that."""

    def most_near(self, u: int, v: int) -> int:
        """Of a count of subgraphs: the most that u-v, or an edge whose number u-v can have raised,
        lies in."""
        raise NotImplementedError

    def close_tick(self, row: list[int]) -> None:  # noqa: B027 - doing nothing is right for most
        """Add effects that are computed once per tick."""


@dataclass(slots=True)
class GraphState:
    """The encoder's memory: the edges that are there, and the load of every vertex."""

    tracker: Tracker
    edges: dict[Edge, int]  # with their weights; 0 where an enforced degree drops the edge
    load: dict[int, int]
    """Arrivals at a vertex when the degree is enforced, else its degree; only kept if there is a
    maximum."""


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
        u = self.find(u)
        v = self.find(v)
        if u == v:
            return False
        self.parent[max(u, v)] = min(u, v)
        return True
