"""Edge streams and the base of all graph queries: what is legal, which edges count, how far one update reaches.

Four kinds of stream over a public vertex set 0..n-1:

- ``insert``: the graph starts empty, every update inserts a new edge;
- ``delete``: the graph starts as the public `initial_edges`, every update deletes an edge that is there;
- ``ignore-duplicates``: as ``insert``, but an edge may come again and then changes nothing (with weights: the
  lighter of parallel edges counts);
- ``ignore-absent``: as ``delete``, but an update may name an edge that is not there and then changes nothing.
- ``mixed``: every update (u, v, 1) inserts an edge and (u, v, -1) deletes it, in any order; an update that changes
  nothing is legal. Only the noise of `direct` fits it, which needs a horizon.

The first two refuse an update that does not fit the edges before it, which tells its sender about those. The others
never do; the service takes them unless a declaration asks for refusals.

A tick holds any number of updates, also none. Its increment is f(graph after) − f(graph before); `decode` adds
f(start), which is public.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import inf
from operator import index
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_name
from evercount.errors import EventRefused, InputError, ParameterError, SnapshotError, TooLarge
from evercount.privacy import Budget
from evercount.queries.base import LARGEST_TOTAL, Adjacency, Query, V_co
from evercount.queries.graphs.reach import Reach, ValueReach, alternating_sensitivity

StreamKind = Literal["insert", "delete", "ignore-duplicates", "ignore-absent", "mixed"]
Edge = tuple[int, int]
Update = tuple[int, int, int]
"""Smaller vertex, larger vertex, weight (1 where edges have none; the sign in mixed streams)."""


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


@dataclass(frozen=True, eq=False, repr=False)
class GraphQuery(Query[V_co]):
    """Base of the graph queries: validation, projection, increments, the public start and S.

    `max_degree` promises that no vertex ever has more edges; an update that breaks the promise is refused. With
    `enforce_degree` no degree needs to be promised: an edge counts only if both its ends have had fewer than
    `max_degree` arrivals before, whether those counted or not. What the stream kind promises is still promised: new
    edges for ``insert``, edges that are there for ``delete``. With ``ignore-duplicates`` and `enforce_degree`, or with
    ``ignore-absent``, nothing is promised at all: whether an update is refused depends on that update alone
    (tests/queries/test_queries_graphs.py::test_nothing_needs_to_be_promised). A deletion-only stream starts from
    public edges, so its maximum degree is known; there `enforce_degree` drops public edges before the first tick. A
    mixed stream may start from public edges, too.

    Whoever sends an update to an ``insert`` or ``delete`` stream and sees it refused learns of another one. Test:
    tests/queries/test_queries_graphs.py::test_which_streams_never_refuse_an_update_because_of_others.

        Guarantee. Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency) for streams that differ in one update.
        add-remove: the update is absent in one of them. replace: it is another legal update there, or absent. The
        values of a tick differ by at most squared_value_sensitivity(adjacency), also in mixed streams.
        Proof: ``graphs.proof.md``. Assumption: the stream kind and, without `enforce_degree`, the degree promise
        hold in both streams. Tests: ``test_no_neighbours_beat_the_claim`` and ``test_claims_are_reached``
        in tests/queries/test_queries_graphs_sensitivity.py; for values tests/queries/test_queries_values.py.
    """

    vertices: int
    stream: StreamKind = "insert"
    max_degree: int | None = None
    enforce_degree: bool = False
    initial_edges: Sequence[Sequence[int]] = ()

    needs_degree: ClassVar[bool] = False
    in_place: ClassVar[bool] = True
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _whole("vertices", self.vertices, 2, 2**31)
        check_name("kind of edge stream", self.stream, get_args(StreamKind))
        if not isinstance(self.enforce_degree, bool):
            raise ParameterError(f"enforce_degree must be True or False, got {self.enforce_degree!r}")
        if self.max_degree is not None:
            _whole("max_degree", self.max_degree, 1, self.vertices - 1)
        elif self.enforce_degree:
            raise ParameterError("enforce_degree needs max_degree: say which degree is to be enforced")
        if self.stream == "mixed" and (self.enforce_degree or self.weight_limit is not None):
            raise ParameterError(
                "a mixed stream has no enforced degrees and no weights: promise max_degree, or use another stream"
            )
        if self.max_degree is None and self.needs_degree and not self.deletes:
            raise ParameterError(
                f"{type(self).__name__} needs max_degree: one edge changes it by an amount that grows with the degree. "
                "Promise a maximum, or add enforce_degree=True to have it enforced."
            )
        try:
            object.__setattr__(self, "initial_edges", tuple(tuple(edge) for edge in self.initial_edges))
        except TypeError:
            raise ParameterError(f"initial_edges must be a sequence of edges, got {self.initial_edges!r}") from None
        if self.stream != "mixed" and self.deletes != bool(self.initial_edges):
            raise ParameterError(
                "initial_edges is the public start of a deletion-only stream: give it there and only there "
                f"(stream={self.stream!r}, {'some' if len(self.initial_edges) else 'no'} initial edges)"
            )
        self.check()
        _ = self._start  # refuses initial edges that are not legal
        if self.largest_value() > LARGEST_TOTAL:
            raise TooLarge(f"{self!r} can reach {self.largest_value():.3g}, beyond the largest exact sum 2**53")

    @property
    def deletes(self) -> bool:
        """Whether edges only go, from a public start."""
        return self.stream in ("delete", "ignore-absent")

    # -- what a subclass says ----------------------------------------------------------------------------------

    @abstractmethod
    def new_tracker(self) -> Tracker:
        """A tracker of the empty graph."""

    @abstractmethod
    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """How far one update of such a stream reaches, cell by cell, when the degree is promised."""

    @abstractmethod
    def value_reach(self) -> ValueReach:
        """How far the values of two graphs are apart that differ in one edge, or in two."""

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

    @classmethod
    def quiet_parameters(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """See `Query`: duplicates and absent edges are ignored and a degree is enforced, unless said otherwise."""
        quiet = dict(parameters)
        quiet.setdefault("stream", "ignore-absent" if quiet.get("initial_edges") else "ignore-duplicates")
        if quiet.get("max_degree") is not None and quiet["stream"] in ("insert", "ignore-duplicates"):
            quiet.setdefault("enforce_degree", True)
        return quiet

    def check_budget(self, budget: Budget) -> None:
        """See `Query`: changing a user's edges one by one may pass through streams that the promises exclude."""
        promised = self.stream != "mixed" or self.max_degree is not None
        if promised and budget.unit == "user" and budget.adjacency == "replace":
            raise ParameterError(
                "graph streams protect users under adjacency='add-remove' only; under 'replace' use stream='mixed' "
                "without max_degree, which promises nothing"
            )

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S: see the Guarantee of the class."""
        check_name("adjacency", adjacency, get_args(Adjacency))
        if self.stream == "mixed":  # an edge may come and go for ever
            return inf
        parts = self.reach(self.stream)
        if not self.enforce_degree or self.deletes:
            return float(sum(part.squared(adjacency) for part in parts))
        inserted = self.reach("insert")
        return float(sum(part.squared(adjacency, edge) for part, edge in zip(parts, inserted, strict=True)))

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float | None:
        """See `Query`; proof: ``graphs.proof.md``, section 10. Not offered where the projection runs."""
        check_name("adjacency", adjacency, get_args(Adjacency))
        if self.enforce_degree and not self.deletes:
            return None
        reach = self.value_reach()
        if adjacency == "add-remove":
            return float(reach.one)
        return float(max(reach.one, reach.exchanged, reach.both if self.stream == "mixed" else 0))

    def alternating_sensitivity(self, most: int, adjacency: Adjacency) -> float | None:
        """`falling_sensitivity` of a number in 0..most that one edge changes by 0 or 1, at any time."""
        if self.stream == "mixed" or (self.enforce_degree and not self.deletes):
            return None
        return alternating_sensitivity(most, adjacency)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """See `Query`.

        **Guarantee.** Σ_cells (P + N) is at most this for the neighbours of the class. Proof: ``graphs.proof.md``,
        section 13. Test: tests/queries/test_l1_sensitivity.py::test_no_graph_neighbours_beat_the_claim.

        Raises:
            ParameterError: In a mixed stream nothing bounds it.
        """
        check_name("adjacency", adjacency, get_args(Adjacency))
        if self.stream == "mixed":
            raise ParameterError(
                "in a mixed stream one event can change the increments again and again, so it has no l1 sensitivity, "
                "which pure privacy (delta=0) needs; choose a small positive delta and a horizon"
            )
        parts = self.reach(self.stream)
        if not self.enforce_degree or self.deletes:
            return float(sum(part.absolute(adjacency) for part in parts))
        inserted = self.reach("insert")
        return float(sum(part.absolute(adjacency, edge) for part, edge in zip(parts, inserted, strict=True)))

    @property
    def degree_bound(self) -> int:
        """The degree that no vertex exceeds: promised, enforced, or seen in the public start."""
        if self.deletes:
            return max(1, self._start[2])
        return self.max_degree if self.max_degree is not None else self.vertices - 1

    def initial_state(self) -> GraphState:
        """The start graph, tracked."""
        edges, dropped, _ = self._start
        load: dict[int, int] = {}
        if self.stream == "mixed" and self.max_degree is not None:
            for u, v in edges:
                load[u], load[v] = load.get(u, 0) + 1, load.get(v, 0) + 1
        return self._build(edges, dropped, load)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, GraphState]:
        """The change of every cell by the updates of one tick, (u, v) or (u, v, weight) each."""
        updates, dropped, load = self._read(state, events)
        row = [0] * self.cells
        tracker = state.tracker
        if self.stream == "mixed":
            for u, v, sign in updates:
                if sign > 0:
                    state.edges[u, v] = 1
                    tracker.insert(u, v, 1, row)
                else:
                    del state.edges[u, v]
                    tracker.remove(u, v, row)
            state.load.update(load)
        elif self.deletes:
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
        tracker.close_tick(row)
        return np.array(row, np.int64), state

    def decode(self, tick: int, noisy: FloatArray) -> FloatArray:
        """One row of `decode_run`."""
        return self.decode_run(tick, noisy[np.newaxis]).ravel()

    def before_first(self) -> FloatArray:
        """See `Query`: the start graph."""
        return self.decode(0, np.zeros(self.cells))

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """See `Query`: the change of the statistic; `decode` is linear up to the public start."""
        return high - low, np.ones(self.outputs) * self.output_norms()

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
        tracker.close_tick(row)
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
        tracker.close_tick(row)
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
        if self.stream == "mixed":
            return self._read_mixed(state, events)
        inserts, limit = not self.deletes, self.max_degree
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
                    if self.stream == "ignore-absent":
                        continue
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

    def check_events(self, events: Iterable[Any]) -> None:
        """See `Query`: vertices, loops and weights. Which edges are there is not looked at."""
        weighted = not self.deletes and self.weight_limit is not None
        for number, event in enumerate(events):
            self._parse(number, event, weighted, signed=self.stream == "mixed")

    def _read_mixed(self, state: GraphState, events: Iterable[Any]) -> tuple[list[Update], list[Edge], dict[int, int]]:
        """As `_read`: the insertions and deletions of a mixed tick that change something, with their signs."""
        updates: list[Update] = []
        there: dict[Edge, bool] = {}
        load: dict[int, int] = {}
        for number, event in enumerate(events):
            u, v, sign = self._parse(number, event, weighted=False, signed=True)
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
        return updates, [], load

    def _parse(self, number: int, event: Any, weighted: bool, signed: bool = False) -> Update:
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
            raise _refusal(number, event, "carries a weight where none belongs; give (u, v)")
        return (u, v, weight) if u < v else (v, u, weight)


def _refusal(number: int, event: Any, reason: str) -> EventRefused:
    return EventRefused(number, f"is {event!r:.80} and {reason}", "update")


def _whole(name: str, value: object, least: int, largest: int) -> None:
    """Refuse a parameter that is not a whole number in least..largest."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= largest:
        raise ParameterError(f"{name} must be a whole number in {least}..{largest}, got {value!r}")
