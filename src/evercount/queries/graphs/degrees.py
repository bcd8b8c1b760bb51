"""Degrees of an edge stream: how many vertices reach a degree, and the whole histogram of degrees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from evercount._arrays import FloatArray
from evercount.queries.graphs.graph_query import GraphQuery, Reach, StreamKind, Tracker, _whole
from evercount.queries.memory_limit import require_fits


class _HighDegreeTracker(Tracker):
    __slots__ = ("degree", "tau")

    def __init__(self, tau: int) -> None:
        self.degree: defaultdict[int, int] = defaultdict(int)
        self.tau = tau

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        for vertex in (u, v):
            self.degree[vertex] += 1
            if self.degree[vertex] == self.tau:
                row[0] += 1

    def remove(self, u: int, v: int, row: list[int]) -> None:
        for vertex in (u, v):
            if self.degree[vertex] == self.tau:
                row[0] -= 1
            self.degree[vertex] -= 1


@dataclass(frozen=True, eq=False, repr=False)
class HighDegree(GraphQuery):
    """Number of vertices of degree at least `tau`.

    Guarantee: see GraphQuery. The paper's l2-sensitivity of the differences, √6, is too small: S is 8 (add-remove).
    """

    name: ClassVar[str] = "high-degree"

    tau: int = field(kw_only=True)

    def check(self) -> None:
        """Some vertex must be able to reach tau."""
        _whole("tau", self.tau, 1, self.degree_bound)

    def new_tracker(self) -> Tracker:
        """Degrees."""
        return _HighDegreeTracker(self.tau)

    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """Both ends of the edge may enter and leave."""
        return [_degree_reach(stream, self.tau, self.degree_bound)]

    def largest_value(self) -> int:
        """All vertices."""
        return self.vertices


class _DegreeTracker(Tracker):
    """Cell j counts the vertices of degree ≥ j + 1: one more edge at a vertex of degree j adds 1 to cell j."""

    __slots__ = ("degree",)

    def __init__(self) -> None:
        self.degree: defaultdict[int, int] = defaultdict(int)

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        for vertex in (u, v):
            row[self.degree[vertex]] += 1
            self.degree[vertex] += 1

    def remove(self, u: int, v: int, row: list[int]) -> None:
        for vertex in (u, v):
            self.degree[vertex] -= 1
            row[self.degree[vertex]] -= 1


@dataclass(frozen=True, eq=False, repr=False)
class DegreeHistogram(GraphQuery):
    """Number of vertices of degree 0, 1, …, D.

    The running sums are the numbers of vertices of degree ≥ 1, …, ≥ D; `decode` takes differences. That costs
    S = 8D − 4 where counting the degrees themselves would cost 24D − 16. Guarantee: see GraphQuery.
    """

    name: ClassVar[str] = "degree-histogram"
    needs_degree: ClassVar[bool] = True

    def check(self) -> None:
        """The cells must fit."""
        require_fits(self.degree_bound, "this histogram", "Choose a smaller max_degree, with enforce_degree=True.")

    def new_tracker(self) -> Tracker:
        """Degrees."""
        return _DegreeTracker()

    @property
    def cells(self) -> int:
        """One for each degree 1..D."""
        return self.degree_bound

    @property
    def outputs(self) -> int:
        """One for each degree 0..D."""
        return self.degree_bound + 1

    @property
    def labels(self) -> Sequence[str]:
        """The degrees."""
        return tuple(f"degree {number}" for number in range(self.outputs))

    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Differences of the numbers of vertices of degree ≥ 0 (public: all), ≥ 1, …, ≥ D."""
        at_least = super().decode_run(first_tick, noisy)
        return -np.diff(at_least, axis=1, prepend=float(self.vertices), append=0.0)

    def output_norms(self) -> FloatArray:
        """√2 for a difference of two sums, 1 at both ends."""
        norms = np.full(self.outputs, np.sqrt(2.0))
        norms[0] = norms[-1] = 1.0
        return norms

    def reach(self, stream: StreamKind) -> Sequence[Reach]:
        """As HighDegree, for every degree; only the first and the last differ from the rest."""
        top = self.degree_bound
        if top == 1:
            return [_degree_reach(stream, 1, 1)]
        inner = [_degree_reach(stream, 2, top, cells=top - 2)] if top > 2 else []
        return [_degree_reach(stream, 1, top), *inner, _degree_reach(stream, top, top)]

    def largest_value(self) -> int:
        """All vertices."""
        return self.vertices


def _degree_reach(stream: StreamKind, tau: int, top: int, cells: int = 1) -> Reach:
    """Reach of the number of vertices of degree ≥ tau when no degree exceeds `top`; proof, section 6.

    A vertex that loses one edge of the stream is counted differently exactly while its degree is at the edge of
    tau. It enters that time once and leaves it once; it enters with the changed update itself if tau is the first
    degree to pass, and never leaves it if tau is the last.
    """
    if stream in ("ignore-duplicates", "ignore-absent"):  # a later copy always ends it
        return Reach(2, 2, cells, swap=8 if tau == (top if stream == "ignore-absent" else 1) else 32)
    last = tau == (1 if stream == "delete" else top)
    first = tau == (top if stream == "delete" else 1)
    swap = 4 if first and last else 8 if first or last else 32
    return Reach(2, 0 if last else 2, cells, swap)
