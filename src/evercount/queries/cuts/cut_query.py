"""A synthetic weighted graph that keeps the weights of all cuts: one running sum for each pair of
vertices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from evercount._validate import (
    FloatArray,
    IntArray,
    check_count,
    check_name,
    check_positive,
    require_fits,
)
from evercount.errors import EventRefused, ParameterError, TooLarge
from evercount.privacy import Adjacency
from evercount.queries.base import PowerQuery, is_replace, listed_events
from evercount.queries.cuts.cut_graph import CutGraph, CutNoise

MOST_VERTICES = 2**31

Weights = Literal["unit", "signed"]
Swap = Literal["any edge", "same edge"]


@dataclass(frozen=True, eq=False, repr=False)
class Cuts(PowerQuery[FloatArray]):
    """The weights of all edges of a graph on vertices 0..n−1; an update (u, v, w) adds w to the
    edge between u and v.

    ``weights="unit"`` allows w in [0, 1], ``"signed"`` allows [−1, 1]. A weight is rounded to the
    nearest multiple of the public `grid`, so each update may be off by grid/2. A tick is a sequence
    of updates, possibly empty.

        Guarantee. add-remove: S = 1. replace, ``swap="any edge"``: the update becomes any other
        legal update or none; S = 2 for unit weights, 4 for signed ones. ``swap="same edge"``: only
        its weight may change; S = 1 and 4. Proof: ``cuts.proof.md``. Assumption: an update is what
        one person contributes. Test:
        tests/queries/test_queries_cuts.py::test_sensitivity_is_the_exact_maximum.

    Args:
        vertices: the number of vertices n.
        weights: which weights are legal, "unit" or "signed".
        grid: the public unit that weights are rounded to.
        swap: what may become of an update under `replace`: "any edge" or "same edge".

    Raises:
        ParameterError: a parameter is not legal.
        TooLarge: the edges do not fit the memory.

    >>> Cuts(4).cells
    6
    """

    name: ClassVar[str] = "cuts"
    single = False

    vertices: int
    weights: Weights = "unit"
    grid: float = 2.0**-10
    swap: Swap = "any edge"

    def __post_init__(self) -> None:
        object.__setattr__(self, "vertices", check_count("vertices", self.vertices, least=2))
        if self.vertices > MOST_VERTICES:
            raise TooLarge(
                f"a graph of that many vertices has too many pairs: use at most {MOST_VERTICES} "
                "vertices"
            )
        check_name("range of weights", self.weights, get_args(Weights))
        check_name("swap", self.swap, get_args(Swap))
        units = 1 / check_positive("grid", self.grid)
        if units != round(units) or units > 2**20:
            raise ParameterError(
                f"grid must be 1/k for a whole number k up to 2**20, got {self.grid!r}"
            )
        require_fits(self.cells, f"a graph on {self.vertices} vertices", "Use fewer vertices.")

    @property
    def cells(self) -> int:
        return self.vertices * (self.vertices - 1) // 2

    @cached_property
    def labels(self) -> Sequence[str]:
        return tuple(f"{u}-{v}" for u in range(self.vertices) for v in range(u + 1, self.vertices))

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """An update changes one edge by at most 1, and another update instead a second one as well.

        **Guarantee.** Proof: `cuts.proof.md`, "Pure privacy". Test:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration.
        """
        if not is_replace(adjacency):
            return 1.0
        # whether it may become one of another edge
        elsewhere = self.swap == "any edge" and self.vertices > 2
        if self.weights == "signed":
            return 2.0**power
        return 1.0 + elsewhere

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        increments = np.zeros(self.cells, np.int64)
        for number, update in enumerate(listed_events(events)):
            cell, units = self._read(number, update)
            increments[cell] += units
        return increments, state

    @property
    def cuts(self) -> Self:
        return self

    def graph(self, noisy: FloatArray, std: float, noise: CutNoise | None = None) -> CutGraph:
        """The released graph of one tick: `noisy` as published, `std` the standard deviation of one
        edge."""
        return CutGraph(self.vertices, noisy, std, nonnegative=self.weights == "unit", noise=noise)

    def _read(self, number: int, update: Any) -> tuple[int, int]:
        """Find the cell of an update, and its weight in grid units."""
        n = self.vertices
        least = -1 if self.weights == "signed" else 0
        try:
            u, v, weight = update
        except (TypeError, ValueError):
            u = v = weight = None
        if not all(
            isinstance(part, Real) and not isinstance(part, bool) for part in (u, v, weight)
        ):
            wrong = "not (u, v, weight), three numbers"
        elif not all(0 <= end < n and end == int(end) for end in (u, v)):
            wrong = f"has a vertex outside 0..{n - 1}"
        elif u == v:
            wrong = "is a self-loop; only edges between two vertices are legal"
        elif not least <= weight <= 1:
            wrong = f"has a weight outside [{least}, 1]"
        else:
            low = int(min(u, v))
            high = int(max(u, v))
            return low * n - low * (low + 1) // 2 + high - low - 1, round(float(weight) / self.grid)
        raise EventRefused(number, f"is {update!r:.80} and {wrong}", "update")
