"""The base of all graph queries: increments of a function of a growing graph, and how much one
update changes them.

The kinds of edge streams are described in `edge_rules.py`. A tick holds any number of updates, also
none. Its increment is f(graph after) − f(graph before); what is published adds f(start), which is
public.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from math import inf
from typing import Any, ClassVar, get_args

import numpy as np

from evercount._validate import FloatArray, IntArray, check_kind, check_name, check_whole
from evercount.errors import ParameterError, SnapshotError, TooLarge
from evercount.privacy import Adjacency, Budget
from evercount.queries.base import LARGEST_TOTAL, PowerQuery, V_co, is_replace
from evercount.queries.graphs.edge_rules import (
    ChangeBound,
    Edge,
    EdgeRules,
    GraphState,
    StreamKind,
    Tracker,
    ValueChangeBound,
    alternating_bound,
)
from evercount.queries.publishing import Publishing

NO_VIEWS = (
    "a statistic of a graph is not a sum over ticks; in Python, Releases.between has its change "
    "with its error"
)


@dataclass(frozen=True, eq=False, repr=False)
class GraphQuery(EdgeRules, PowerQuery[V_co]):
    """Base of the graph queries: validation, projection, increments, the public start and S.

    `max_degree` promises that no vertex ever has more edges; an update that breaks the promise is
    refused. With `enforce_degree` no degree needs to be promised: an edge counts only if both its
    ends have had fewer than `max_degree` arrivals before, whether those counted or not. What the
    stream kind promises is still promised: new edges for ``insert``, edges that are there for
    ``delete``. With ``ignore-duplicates`` and `enforce_degree`, or with ``ignore-absent``, nothing
    is promised at all: whether an update is refused depends on that update alone
    (tests/queries/test_queries_graphs.py::test_nothing_needs_to_be_promised). A deletion-only
    stream starts from public edges, so its maximum degree is known. A mixed stream may start from
    public edges, too.

    Anyone who sends an update to an ``insert`` or ``delete`` stream and sees it refused learns of
    another one. Test:
    tests/queries/test_queries_graphs.py::test_which_streams_never_refuse_an_update_because_of_others.

        Guarantee. Σ_cells (P² + N²) ≤ squared_sensitivity(adjacency) for streams that differ in one
        update. add-remove: the update is absent in one of them. replace: it is another legal update
        there, or absent. The values of a tick differ by at most
        squared_value_sensitivity(adjacency), also in mixed streams. Proof: ``graphs.proof.md``.
        Assumption: the stream kind and, without `enforce_degree`, the degree promise hold in both
        streams. Tests: ``test_no_neighbours_beat_the_claim`` and ``test_claims_are_reached`` in
        tests/queries/test_queries_graphs_sensitivity.py; for values
        tests/queries/test_queries_values.py.

    Args:
        vertices: the number of vertices; they are 0..vertices−1.
        stream: the kind of edge stream (`edge_rules.py`).
        max_degree: the largest degree of a vertex, promised or enforced; None for no limit.
        enforce_degree: whether edges beyond `max_degree` are dropped, and not refused.
        initial_edges: the public start graph, for streams that delete.

    Raises:
        ParameterError: parameters that do not fit each other.
        TooLarge: the statistic could pass 2**53.
    """

    needs_degree: ClassVar[bool] = False
    in_place = True
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("vertices", self.vertices, 2, 2**31)
        check_name("kind of edge stream", self.stream, get_args(StreamKind))
        check_kind("enforce_degree", self.enforce_degree, bool, "True or False")
        if self.max_degree is not None:
            check_whole("max_degree", self.max_degree, 1, self.vertices - 1)
        elif self.enforce_degree:
            raise ParameterError("enforce_degree needs max_degree: give the degree to be enforced")
        mixed = self.stream == "mixed"
        if self.enforce_degree and (mixed or self.deletes):
            raise ParameterError(
                "a degree is enforced where edges only come: omit enforce_degree, and promise "
                "max_degree where edges come and go (where they only go, the start is public)"
            )
        if mixed and self.weight_limit is not None:
            raise ParameterError(
                f"{type(self).__name__} has weights, and the third number of a mixed stream is 1 "
                "or -1: use stream='insert' or stream='ignore-duplicates'"
            )
        if self.needs_degree and self.max_degree is None and not self.deletes:
            remedy = "Promise a maximum"
            if not mixed:
                remedy += ", or add enforce_degree=True to have it enforced"
            raise ParameterError(
                f"{type(self).__name__} needs max_degree: one edge changes it by an amount that "
                f"grows with the degree. {remedy}."
            )
        try:
            object.__setattr__(
                self, "initial_edges", tuple(tuple(edge) for edge in self.initial_edges)
            )
        except TypeError:
            raise ParameterError(
                f"initial_edges must be a sequence of edges, got {self.initial_edges!r}"
            ) from None
        if self.stream != "mixed" and self.deletes != bool(self.initial_edges):
            amount = "some" if len(self.initial_edges) else "no"
            raise ParameterError(
                "initial_edges is the public start of a deletion-only stream: give it there and "
                f"only there (stream={self.stream!r}, {amount} initial edges)"
            )
        self._check()
        _ = self.start_edges  # refuses initial edges that are not legal
        if self._largest_value() > LARGEST_TOTAL:
            raise TooLarge(
                f"{self!r} can reach {self._largest_value():.3g}, beyond the largest exact sum "
                "2**53"
            )

    # -- what a subclass says ----------------------------------------------------------------------

    @abstractmethod
    def _new_tracker(self) -> Tracker:
        """Make a tracker of the empty graph."""

    @abstractmethod
    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """Bound what one update of such a stream changes, cell by cell, when the degree is
        promised."""

    @abstractmethod
    def _value_change_bound(self) -> ValueChangeBound:
        """Bound how far the values of two graphs are apart that differ in one edge, or in two."""

    def _largest_value(self) -> int:
        """Give a number that the function never exceeds."""
        return self.vertices

    def _check(self) -> None:
        """Validate the parameters that only this query has."""

    def _empty_value(self) -> int:
        """Evaluate the function of the graph without edges."""
        return 0

    # -- the contract ------------------------------------------------------------------------------

    @property
    def cells(self) -> int:
        return 1

    @classmethod
    def quiet_parameters(cls, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Duplicates and absent edges are ignored and a degree is enforced, unless said
        otherwise."""
        quiet = dict(parameters)
        stream = "ignore-duplicates"
        if quiet.get("initial_edges"):
            stream = "ignore-absent"
        quiet.setdefault("stream", stream)
        edges_only_come = quiet["stream"] in ("insert", "ignore-duplicates")
        if edges_only_come and quiet.get("max_degree") is not None:
            quiet.setdefault("enforce_degree", True)
        return quiet

    def check_budget(self, budget: Budget) -> None:
        """Changing a user's edges one by one may pass through streams that the promises exclude."""
        promised = self.stream != "mixed" or self.max_degree is not None
        if promised and budget.unit == "user" and budget.adjacency == "replace":
            raise ParameterError(
                "graph streams protect users under adjacency='add-remove' only; under 'replace' "
                "use stream='mixed' without max_degree, which promises nothing"
            )

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """**Guarantee.** Σ_cells (P² + N²), or Σ_cells (P + N), is at most this for the neighbours
        of the class. Proof: ``graphs.proof.md``, for the power 1 section 13. Test:
        tests/queries/test_queries_graphs_sensitivity.py::test_no_neighbours_beat_the_claim.

        Raises:
            ParameterError: In a mixed stream nothing bounds Σ_cells (P + N).
        """
        replaced = is_replace(adjacency)
        if self.stream == "mixed":  # an edge may come and go for ever
            if power == 2:
                return inf
            raise ParameterError(
                "in a mixed stream one event can change the increments again and again, so it has "
                "no l1 sensitivity, which pure privacy (delta=0) needs; choose a small positive "
                "delta and a horizon"
            )
        bounds = self._change_bounds(self.stream)
        if not self.enforce_degree:
            return float(sum(bound.bound(power, replaced) for bound in bounds))
        insertions = self._change_bounds("insert")
        return float(
            sum(
                bound.bound(power, replaced, insertion)
                for bound, insertion in zip(bounds, insertions, strict=True)
            )
        )

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float | None:
        """Proof: ``graphs.proof.md``, section 10. Not offered where the projection runs."""
        replaced = is_replace(adjacency)
        if self.enforce_degree:
            return None
        bound = self._value_change_bound()
        if not replaced:
            return float(bound.one)
        if self.stream == "mixed":
            return float(max(bound.one, bound.exchanged, bound.both))
        return float(max(bound.one, bound.exchanged))

    @cached_property
    def degree_bound(self) -> int:
        """The degree that no vertex exceeds: promised, enforced, or seen in the public start."""
        if self.deletes:
            return max(Counter(chain.from_iterable(self.start_edges)).values())
        if self.max_degree is not None:
            return self.max_degree
        return self.vertices - 1

    def initial_state(self) -> GraphState:
        degree = Counter(chain.from_iterable(self.start_edges))
        load = {}
        if self.stream == "mixed" and self.max_degree is not None:
            load = dict(degree)
        return GraphState(self._tracked(self.start_edges)[0], dict(self.start_edges), load)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, GraphState]:
        updates, load = self.read_tick(state, events)
        row = [0] * self.cells
        for u, v, weight in updates:
            if weight < 0:
                del state.edges[u, v]
            else:
                state.edges[u, v] = weight
            if weight:
                state.tracker.change(u, v, weight, row)
        state.tracker.close_tick(row)
        state.load.update(load)
        return np.array(row, np.int64), state

    @property
    def publishing(self) -> Publishing:
        return Publishing(self._decode, whole=True, why_no_views=NO_VIEWS)

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        return noisy + self.start_values

    @cached_property
    def start_values(self) -> FloatArray:
        """f(start graph), one entry per cell; public."""
        return np.array(self._tracked(self.start_edges)[1], np.float64)

    def _tracked(self, edges: dict[Edge, int]) -> tuple[Tracker, list[int]]:
        """Make a tracker of these edges; evaluate f of them."""
        tracker = self._new_tracker()
        row = [self._empty_value()] * self.cells
        for (u, v), weight in edges.items():
            if weight:
                tracker.change(u, v, weight, row)
        tracker.close_tick(row)
        return tracker, row

    def parameters(self) -> dict[str, Any]:
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return values | {"initial_edges": [list(edge) for edge in self.initial_edges]}

    def dump_state(self, state: GraphState) -> dict[str, Any]:
        return {
            "edges": [[u, v, weight] for (u, v), weight in state.edges.items() if weight],
            "dropped": sorted([u, v] for (u, v), weight in state.edges.items() if not weight),
            "load": sorted(map(list, state.load.items())),
        }

    def load_state(self, data: Any) -> GraphState:
        try:
            edges = {(int(u), int(v)): int(weight) for u, v, weight in data["edges"]}
            edges |= {(int(u), int(v)): 0 for u, v in data["dropped"]}
            load = {int(vertex): int(number) for vertex, number in data["load"]}
        except (TypeError, ValueError, KeyError) as error:
            raise SnapshotError(f"this is not a stored state of {self.name}: {error}") from error
        return GraphState(self._tracked(edges)[0], edges, load)

    def check_events(self, events: Iterable[Any]) -> None:
        for number, event in enumerate(events):
            self.parse(number, event)


class OneStepQuery(GraphQuery[float]):
    """A number that only rises, or only falls, and that one edge changes by one at most. The share
    of one edge is 0 or 1 and may come and go with later edges.

    **Guarantee.** Proof: ``graphs.proof.md``, sections 8 and 11. Tests:
    tests/queries/test_queries_values.py::test_new_queries_keep_their_claims_for_increments and
    tests/queries/test_queries_matching.py::test_no_neighbours_beat_the_smaller_claim.
    """

    short: ClassVar[StreamKind] = "insert"
    """The kind of stream in which a stream without one of its edges stays below the largest
    value."""
    joined: ClassVar[tuple[StreamKind, ...]] = ("insert",)
    """In which under replace the shares of both edges are never as far apart as those of two single
    edges."""

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        most = self._largest_value()
        if stream == self.short:
            return [ChangeBound(most, most - 1, swap=most**2 + (most - 1) ** 2, ceiling=most)]
        return [alternating_bound(most)]

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        if self.stream == "mixed" or self.enforce_degree:
            return None
        most = self._largest_value()
        once = 2 * most - (self.stream == self.short)
        if adjacency == "add-remove":
            return float(once)
        return float(max(once, 4 * most - (6 if self.stream in self.joined else 2)))

    def _value_change_bound(self) -> ValueChangeBound:
        return ValueChangeBound.rising(1)

    def _largest_value(self) -> int:
        return self.degree_bound
