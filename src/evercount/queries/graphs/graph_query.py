"""Edge streams and the base of all graph queries: what is legal, which edges count, how far one update reaches.

Three kinds of stream over a public vertex set 0..n-1:

- ``insert``: the graph starts empty, every update inserts a new edge;
- ``delete``: the graph starts as the public `initial_edges`, every update deletes an edge that is there;
- ``ignore-duplicates``: as ``insert``, but an edge may come again and then changes nothing (with weights: the
  lighter of parallel edges counts).

A tick holds any number of updates, also none. Its increment is f(graph after) − f(graph before); `decode` adds
f(start), which is public.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import isqrt
from operator import index
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_name
from evercount.errors import InputError, ParameterError, SnapshotError, TooLarge
from evercount.queries.base import LARGEST_TOTAL, Adjacency, Query

StreamKind = Literal["insert", "delete", "ignore-duplicates"]
Edge = tuple[int, int]
Update = tuple[int, int, int]
"""Smaller vertex, larger vertex, weight (1 where edges have none)."""


class Tracker(ABC):
    """One function of a graph, kept up to date edge by edge; changes are added to `row`, one entry per cell."""

    @abstractmethod
    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        """Add the edge and its effect."""

    @abstractmethod
    def remove(self, u: int, v: int, row: list[int]) -> None:
        """Take the edge away and add the effect of that."""


@dataclass(frozen=True)
class Reach:
    """How far one update reaches in each of `cells` cells: rises sum to ≤ up, falls to ≤ down (or vice versa).

    `swap` bounds P² + N² when one update is replaced by another or by none; None stands for the general
    2(up + down)². `ceiling` is the range of a function that only rises or only falls: then P, N ≤ ceiling.
    """

    up: int
    down: int
    cells: int = 1
    swap: int | None = None
    ceiling: int | None = None

    def squared(self, adjacency: Adjacency, projected: Reach | None = None) -> int:
        """Bound on Σ (P² + N²) over these cells; see ``graphs.proof.md``, sections 2 to 4.

        `projected` is the reach of an inserted edge where the stable projection runs.
        """
        up, down = self.up, self.down
        if projected is not None:  # one arrival less: one kept edge goes, at most two come, for good
            up, down = up + 2 * projected.down, down + 2 * projected.up
        if adjacency == "add-remove":
            bound = up**2 + down**2
        elif self.swap is not None and projected is None:
            bound = self.swap
        else:
            bound = 2 * (up + down) ** 2
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling**2)
        return self.cells * bound

    def absolute(self, adjacency: Adjacency, projected: Reach | None = None) -> int:
        """Bound on Σ (P + N) over these cells; see ``graphs.proof.md``, section 10."""
        bound = self.up + self.down
        if projected is not None:
            bound += 2 * (projected.up + projected.down)
        if adjacency == "replace":
            bound *= 2
            if self.swap is not None and projected is None:
                bound = min(bound, isqrt(2 * self.swap))
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling)
        return self.cells * bound


@dataclass(slots=True)
class GraphState:
    """The encoder's memory: the edges that count, those projected away, and the load of every vertex."""

    tracker: Tracker
    edges: dict[Edge, int] = field(default_factory=dict)
    dropped: set[Edge] = field(default_factory=set)
    load: dict[int, int] = field(default_factory=dict)
    """Arrivals at a vertex when the degree is enforced, else its degree; only kept if there is a maximum."""


@dataclass(frozen=True, eq=False, repr=False)
class GraphQuery(Query):
    """Base of the graph queries: validation, projection, increments, the public start and S.

    `max_degree` promises that no vertex ever has more edges; an update that breaks the promise is refused. With
    `enforce_degree` nothing needs to be promised: an edge counts only if both its ends have had fewer than
    `max_degree` arrivals before, whether those counted or not. A deletion-only stream starts from public edges, so
    its maximum degree is known; there `enforce_degree` drops public edges before the first tick.

        Guarantee. Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency) for streams that differ in one update.
        add-remove: the update is absent in one of them. replace: it is another legal update there, or absent.
        Proof: ``graphs.proof.md``. Assumption: the stream kind and, without `enforce_degree`, the degree promise
        hold in both streams. Tests: ``test_no_neighbours_beat_the_claim`` and ``test_claims_are_reached``
        in tests/queries/test_queries_graphs_sensitivity.py.
    """

    vertices: int
    stream: StreamKind = "insert"
    max_degree: int | None = None
    enforce_degree: bool = False
    initial_edges: Sequence[Sequence[int]] = ()

    needs_degree: ClassVar[bool] = False
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _whole("vertices", self.vertices, 2, 2**31)
        check_name("kind of edge stream", self.stream, get_args(StreamKind))
        if not isinstance(self.enforce_degree, bool):
            raise ParameterError(f"enforce_degree must be True or False, got {self.enforce_degree!r}")
        if self.max_degree is not None:
            _whole("max_degree", self.max_degree, 1, self.vertices - 1)
        elif self.enforce_degree:
            raise ParameterError("enforce_degree needs max_degree: say which degree is to be enforced")
        elif self.needs_degree and self.stream != "delete":
            raise ParameterError(
                f"{type(self).__name__} needs max_degree: one edge changes it by an amount that grows with the degree. "
                "Promise a maximum, or add enforce_degree=True to have it enforced."
            )
        try:
            object.__setattr__(self, "initial_edges", tuple(tuple(edge) for edge in self.initial_edges))
        except TypeError:
            raise ParameterError(f"initial_edges must be a sequence of edges, got {self.initial_edges!r}") from None
        if (self.stream == "delete") != bool(self.initial_edges):
            raise ParameterError(
                "initial_edges is the public start of a deletion-only stream: give it there and only there "
                f"(stream={self.stream!r}, {'some' if len(self.initial_edges) else 'no'} initial edges)"
            )
        self.check()
        _ = self._start  # refuses initial edges that are not legal
        if self.largest_value() > LARGEST_TOTAL:
            raise TooLarge(f"{self!r} can reach {self.largest_value():.3g}, beyond the largest exact sum 2**53")

    # -- what a subclass says ----------------------------------------------------------------------------------

    @abstractmethod
    def new_tracker(self) -> Tracker:
        """A tracker of the empty graph."""

    @abstractmethod
    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """How far one update of such a stream reaches, cell by cell, when the degree is promised."""

    @abstractmethod
    def largest_value(self) -> int:
        """A number that the function never exceeds."""

    def check(self) -> None:
        """Validate the parameters that only this query has."""

    def empty_value(self) -> int:
        """The function of the graph without edges."""
        return 0

    @property
    def weight_limit(self) -> int | None:
        """Largest legal weight, or None where edges have no weight."""
        return None

    # -- the contract ------------------------------------------------------------------------------------------

    @property
    def cells(self) -> int:
        """One running sum, unless a subclass says otherwise."""
        return 1

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S: see the Guarantee of the class."""
        check_name("adjacency", adjacency, get_args(Adjacency))
        parts = self.reach(self.stream)
        if not self.enforce_degree or self.stream == "delete":
            return float(sum(part.squared(adjacency) for part in parts))
        inserted = self.reach("insert")
        return float(sum(part.squared(adjacency, edge) for part, edge in zip(parts, inserted, strict=True)))

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """See `Query`.

        **Guarantee.** Σ_cells (P + N) is at most this for the neighbours of the class. Proof: ``graphs.proof.md``,
        section 10. Test: tests/queries/test_l1_sensitivity.py::test_no_graph_neighbours_beat_the_claim.
        """
        check_name("adjacency", adjacency, get_args(Adjacency))
        parts = self.reach(self.stream)
        if not self.enforce_degree or self.stream == "delete":
            return float(sum(part.absolute(adjacency) for part in parts))
        inserted = self.reach("insert")
        return float(sum(part.absolute(adjacency, edge) for part, edge in zip(parts, inserted, strict=True)))

    @property
    def degree_bound(self) -> int:
        """The degree that no vertex exceeds: promised, enforced, or seen in the public start."""
        if self.stream == "delete":
            return max(1, self._start[2])
        return self.max_degree if self.max_degree is not None else self.vertices - 1

    def initial_state(self) -> GraphState:
        """The start graph, tracked."""
        edges, dropped, _ = self._start
        return self._build(edges, dropped, {})

    def encode(self, state: Any, events: Any) -> tuple[IntArray, GraphState]:
        """The change of every cell by the updates of one tick, (u, v) or (u, v, weight) each."""
        updates, dropped, load = self._read(state, events)
        row = [0] * self.cells
        tracker = state.tracker
        if self.stream == "delete":
            for u, v, _ in updates:
                del state.edges[u, v]
                tracker.remove(u, v, row)
            state.dropped.difference_update(dropped)
        else:
            for u, v, weight in updates:
                state.edges[u, v] = weight
                tracker.insert(u, v, weight, row)
            state.dropped.update(dropped)
            state.load.update(load)
        return np.array(row, np.int64), state

    def decode(self, tick: int, noisy: FloatArray) -> FloatArray:
        """One row of `decode_run`."""
        return self.decode_run(tick, noisy[np.newaxis]).ravel()

    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Add the public value of the start graph."""
        return noisy + self.start_values

    @cached_property
    def start_values(self) -> FloatArray:
        """f(start graph), one entry per cell; public."""
        row = [self.empty_value()] * self.cells
        tracker = self.new_tracker()
        for (u, v), weight in self._start[0].items():
            tracker.insert(u, v, weight, row)
        return np.array(row, np.float64)

    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return values | {"initial_edges": [list(edge) for edge in self.initial_edges]}

    def dump_state(self, state: GraphState) -> dict[str, Any]:
        """The state as JSON; what can be rebuilt from the edges is left out."""
        return {
            "edges": [[u, v, weight] for (u, v), weight in state.edges.items()],
            "dropped": sorted(map(list, state.dropped)),
            "load": sorted(map(list, state.load.items())),
        }

    def load_state(self, data: Any) -> GraphState:
        """The state that `dump_state` wrote: it continues with the same increments."""
        try:
            edges = {(int(u), int(v)): int(weight) for u, v, weight in data["edges"]}
            dropped = {(int(u), int(v)) for u, v in data["dropped"]}
            load = {int(vertex): int(number) for vertex, number in data["load"]}
        except (TypeError, ValueError, KeyError) as error:
            raise SnapshotError(f"this is not a stored state of {self.name}: {error}") from error
        return self._build(edges, dropped, load)

    # -- reading updates ---------------------------------------------------------------------------------------

    def _build(self, edges: dict[Edge, int], dropped: set[Edge], load: dict[int, int]) -> GraphState:
        tracker, row = self.new_tracker(), [0] * self.cells
        for (u, v), weight in edges.items():
            tracker.insert(u, v, weight, row)
        return GraphState(tracker, dict(edges), set(dropped), dict(load))

    @cached_property
    def _start(self) -> tuple[dict[Edge, int], set[Edge], int]:
        """The public start: edges that count, edges projected away, largest degree."""
        edges: dict[Edge, int] = {}
        dropped: set[Edge] = set()
        degree: dict[int, int] = {}
        for number, event in enumerate(self.initial_edges):
            try:
                u, v, weight = self._parse(number, event, weighted=self.weight_limit is not None)
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
        return edges, dropped, max(degree.values(), default=0)

    def _read(self, state: GraphState, events: Any) -> tuple[list[Update], list[Edge], dict[int, int]]:
        """Validate a tick; give the updates that count, the edges dropped and the new loads. Changes nothing."""
        if not isinstance(events, Iterable):
            raise InputError(f"a tick is a sequence of updates, got {events!r}: give [] for a quiet tick")
        inserts, limit = self.stream != "delete", self.max_degree
        weighted = inserts and self.weight_limit is not None
        updates: list[Update] = []
        dropped: list[Edge] = []
        fresh: dict[Edge, int] = {}
        load: dict[int, int] = {}
        for number, event in enumerate(events):
            u, v, weight = self._parse(number, event, weighted)
            edge = (u, v)
            if not inserts:
                if edge in fresh or not (edge in state.edges or edge in state.dropped):
                    raise _refusal(number, event, "deletes an edge that is not there; leave it out")
                fresh[edge] = weight
                if edge in state.edges:
                    updates.append((u, v, weight))
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
                        number, event, f"exceeds max_degree={limit}; promise a larger one or use enforce_degree=True"
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
        return updates, dropped, load

    def _parse(self, number: int, event: Any, weighted: bool) -> Update:
        """One update as (smaller vertex, larger vertex, weight)."""
        try:
            u, v, *rest = event
            if isinstance(u, bool) or isinstance(v, bool) or (rest and isinstance(rest[0], bool)):  # not 1 and 0
                raise TypeError
            u, v = index(u), index(v)
            weight = index(rest[0]) if rest else 1
        except (TypeError, ValueError) as error:
            raise _refusal(number, event, "is not an update; give (u, v) or (u, v, weight), whole numbers") from error
        if not (0 <= u < self.vertices and 0 <= v < self.vertices):
            raise _refusal(number, event, f"has a vertex outside 0..{self.vertices - 1}")
        if u == v:
            raise _refusal(number, event, "is a self-loop; only edges between two vertices are legal")
        if weighted:
            largest = cast(int, self.weight_limit)
            if len(rest) > 1 or (not rest and largest > 1):
                raise _refusal(number, event, f"needs (u, v, weight) with a weight in 1..{largest}")
            if not 1 <= weight <= largest:
                raise _refusal(number, event, f"has a weight outside 1..{largest}")
        elif rest:
            raise _refusal(number, event, "carries a weight where none belongs; give (u, v)")
        return (u, v, weight) if u < v else (v, u, weight)


def _refusal(number: int, event: Any, reason: str) -> InputError:
    return InputError(f"update {number} of this tick, {event!r}, {reason}")


def _whole(name: str, value: object, least: int, largest: int) -> None:
    """Refuse a parameter that is not a whole number in least..largest."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise ParameterError(f"{name} must be a whole number in {least}..{largest}, got {value!r}")
