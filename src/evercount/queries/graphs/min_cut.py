"""The smallest number of edges whose removal disconnects the graph (edge connectivity)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evercount._validate import require_fits
from evercount.queries.cuts.extreme_cuts import objective, stoer_wagner_cuts
from evercount.queries.graphs.graph_query import OneStepQuery
from evercount.queries.graphs.graph_state import Tracker


class _MinCutTracker(Tracker):
    """The matrix of edges; the cut is searched once per tick, and not while some vertex has no edge."""

    __slots__ = ("matrix", "value")

    def __init__(self, vertices: int) -> None:
        self.matrix = np.zeros((vertices, vertices))
        self.value = 0

    def insert(self, u: int, v: int, weight: int, row: list[int]) -> None:
        self.matrix[u, v] = self.matrix[v, u] = 1.0

    def remove(self, u: int, v: int, row: list[int]) -> None:
        self.matrix[u, v] = self.matrix[v, u] = 0.0

    def close_tick(self, row: list[int]) -> None:
        value = 0
        if self.matrix.any(axis=1).all():
            value = round(float(objective(self.matrix, stoer_wagner_cuts(self.matrix), False).min()))
        row[0] += value - self.value
        self.value = value


@dataclass(frozen=True, eq=False, repr=False)
class MinCut(OneStepQuery):
    """Edges of the smallest cut of the graph; 0 while it is not connected.

    A tick costs O(n³) operations on arrays (n = 100: tens of milliseconds), however many updates it holds.
    Guarantee: see GraphQuery. As for `Matching`, the share of one edge is 0 or 1 and may come and go.

    >>> MinCut(3).encode(MinCut(3).initial_state(), [(0, 1), (1, 2), (0, 2)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "min-cut"

    def _check(self) -> None:
        require_fits(self.vertices**2, "the matrix of this graph", "Use fewer vertices.")

    def _new_tracker(self) -> Tracker:
        return _MinCutTracker(self.vertices)
