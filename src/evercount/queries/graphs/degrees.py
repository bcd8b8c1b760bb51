"""Degrees of an edge stream: the number of vertices of at least some degree, and the histogram of
degrees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import ClassVar

import numpy as np

from evercount._validate import FloatArray, check_whole, require_fits
from evercount.privacy import Adjacency
from evercount.queries.base import V_co
from evercount.queries.graphs.edge_rules import (
    ChangeBound,
    ProjectedChange,
    StreamKind,
    Tracker,
    ValueChangeBound,
    alternating_bound,
)
from evercount.queries.graphs.graph_query import GraphQuery, OneStepQuery
from evercount.queries.publishing import Publishing


def _falling(values: FloatArray) -> FloatArray:
    """Project values on the nearest sequence that falls."""
    # imported here: it takes longer than all the rest of start-up
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values, increasing=False).x)


class _DegreeTracker(Tracker):
    """Cell j counts the vertices of degree ≥ first + j."""

    def __init__(self, first: int) -> None:
        self.degree: defaultdict[int, int] = defaultdict(int)
        self.first = first

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        for vertex in (u, v):
            self.degree[vertex] += by
            passed = self.degree[vertex] + (by < 0) - self.first
            if 0 <= passed < len(row):
                row[passed] += by


@dataclass(frozen=True, eq=False, repr=False)
class HighDegree(GraphQuery[float]):
    """Number of vertices of degree at least `tau`.

    Guarantee: see GraphQuery. The paper's l2-sensitivity of the differences, √6, is too small: S is
    8 (add-remove).

    Args:
        tau: the least degree that counts.

    >>> HighDegree(3, tau=1).encode(HighDegree(3, tau=1).initial_state(), [(0, 1)])[0].tolist()
    [2]
    """

    name: ClassVar[str] = "high-degree"

    tau: int = field(kw_only=True)

    def _check(self) -> None:
        check_whole("tau", self.tau, 1, self.degree_bound)

    def _new_tracker(self) -> Tracker:
        return _DegreeTracker(self.tau)

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """Both ends of the edge may enter and leave."""
        return [_degree_bound(stream, self.tau, self.degree_bound)]

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """Proof: ``graphs.proof.md``, section 6. An edge that is added or removed gains nothing."""
        if adjacency == "replace":
            return _turns(self, [(self.tau, 1)])
        return None

    def _value_change_bound(self) -> ValueChangeBound:
        """Both ends of an edge may pass tau."""
        return ValueChangeBound.rising(2)


class DegreeHistogram(GraphQuery[FloatArray]):
    """Number of vertices of degree 0, 1, …, D.

    The running sums are the numbers of vertices of degree ≥ 1, …, ≥ D; `decode` takes differences.
    That costs S = 8D − 4 where counting the degrees themselves would cost 24D − 16. Guarantee: see
    GraphQuery. In a mixed stream values are bounded whatever the degree: without `max_degree` all
    degrees up to vertices − 1 are published.

    >>> DegreeHistogram(100, max_degree=3).labels
    ('degree 0', 'degree 1', 'degree 2', 'degree 3')
    """

    name: ClassVar[str] = "degree-histogram"
    single = False

    @property
    def needs_degree(self) -> bool:  # type: ignore[override]
        """Not in a mixed stream, where only values must be bounded."""
        return self.stream != "mixed"

    def _check(self) -> None:
        require_fits(
            self.degree_bound,
            "this histogram",
            "Choose a smaller max_degree, with enforce_degree=True.",
        )

    def _new_tracker(self) -> Tracker:
        return _DegreeTracker(1)

    @property
    def cells(self) -> int:
        return self.degree_bound

    @property
    def outputs(self) -> int:
        return self.degree_bound + 1

    @property
    def labels(self) -> Sequence[str]:
        return tuple(f"degree {number}" for number in range(self.outputs))

    @property
    def publishing(self) -> Publishing:
        return replace(super().publishing, norms=self._norms, rounding=self._rounding)

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        at_least = super()._decode(first_tick, noisy)
        return -np.diff(at_least, axis=1, prepend=float(self.vertices), append=0.0)

    def _norms(self) -> FloatArray:
        """√2 for a difference of two sums, 1 at both ends."""
        norms = np.full(self.outputs, np.sqrt(2.0))
        norms[0] = norms[-1] = 1.0
        return norms

    def _rounding(self) -> FloatArray:
        """2 for a difference of two sums, each of which may be rounded by half a unit; 1 at both
        ends."""
        return np.asarray(np.round(self._norms() ** 2))

    def consistent(self, values: FloatArray) -> FloatArray:
        """Numbers of vertices that are nonnegative and add up to all vertices.

        The numbers of vertices of degree ≥ 1, …, ≥ D have independent noise and truly fall: the
        nearest falling numbers in [0, n] are their maximum-likelihood estimate, and no further from
        the truth in ℓ2 and in the largest error.

        >>> DegreeHistogram(10, max_degree=2).consistent(np.array([7.0, 5.0, -2.0])).tolist()
        [7.0, 3.0, 0.0]
        """
        at_least = np.cumsum(values[::-1])[::-1][1:]
        falling = np.clip(_falling(at_least), 0.0, self.vertices)
        return np.asarray(-np.diff(falling, prepend=float(self.vertices), append=0.0)) + 0.0

    @property
    def _taus(self) -> Sequence[tuple[int, int]]:
        """The degrees that are counted, with the number of cells like each: only the first and the
        last differ."""
        top = self.degree_bound
        if top > 1:
            return [(1, 1), (2, top - 2), (top, 1)]
        return [(1, 1)]

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """As HighDegree, for every degree."""
        return [_degree_bound(stream, tau, self.degree_bound, cells) for tau, cells in self._taus]

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """Proof: ``graphs.proof.md``, section 6. An edge that is added or removed gains nothing."""
        if adjacency == "replace":
            return _turns(self, self._taus)
        return None

    def _value_change_bound(self) -> ValueChangeBound:
        """Each end of an edge moves one cell by 1; in the worst case all ends move the same
        cell."""
        return ValueChangeBound(4, 8, 16)


class _SequenceTracker(Tracker):
    """Cell i is the (first+i+1)-th largest degree; `at_least[d]` vertices have degree ≥ d."""

    def __init__(self, vertices: int, first: int = 0) -> None:
        self.degree: defaultdict[int, int] = defaultdict(int)
        self.at_least: defaultdict[int, int] = defaultdict(int, {0: vertices})
        self.first = first

    def change(self, u: int, v: int, by: int, row: list[int]) -> None:
        for vertex in (u, v):
            self.degree[vertex] += by
            passed = self.degree[vertex] + (by < 0)
            place = self.at_least[passed] - (by < 0) - self.first
            if place >= 0:
                row[place] += by
            self.at_least[passed] += by


class MinDegree(OneStepQuery):
    """The smallest degree of a vertex; 0 as long as some vertex has no edge.

    Guarantee: see GraphQuery. As for `Matching`, the share of one edge is 0 or 1 and may come and
    go.

    >>> MinDegree(3).squared_value_sensitivity("add-remove")
    1.0
    """

    name: ClassVar[str] = "min-degree"

    def _new_tracker(self) -> Tracker:
        return _SequenceTracker(self.vertices, first=self.vertices - 1)


class DegreeSequence(GraphQuery[FloatArray]):
    """The degrees of all vertices, largest first, without names. It needs the noise of `direct` to
    be of use.

    Guarantee: see GraphQuery. One edge moves two places of the sequence by one each: v² = 2.

    >>> DegreeSequence(3).squared_value_sensitivity("add-remove")
    2.0
    """

    name: ClassVar[str] = "degree-sequence"
    single = False

    def _check(self) -> None:
        require_fits(self.vertices, "this sequence", "Use fewer vertices.")

    def _new_tracker(self) -> Tracker:
        return _SequenceTracker(self.vertices)

    @property
    def cells(self) -> int:
        return self.vertices

    @property
    def labels(self) -> Sequence[str]:
        return tuple(f"degree of place {number}" for number in range(1, self.vertices + 1))

    def _change_bounds(self, stream: StreamKind) -> Sequence[ChangeBound]:
        """Each place only rises, or only falls, and never exceeds the largest degree."""
        return [alternating_bound(self.degree_bound, self.vertices)]

    def consistent(self, values: FloatArray) -> FloatArray:
        """The nearest falling sequence in [0, D]; no further from the truth."""
        return np.asarray(np.clip(_falling(values), 0.0, self.degree_bound))

    def _value_change_bound(self) -> ValueChangeBound:
        """Two different places by one each; of two edges in one direction, one place by two and two
        by one at worst."""
        return ValueChangeBound(2, 4, 6)

    def _largest_value(self) -> int:
        return self.degree_bound


SWAP_BY_FIXED_ENDS = {2: 4, 1: 8, 0: 32}
"""P² + N² of a replaced update at most, by how many ends of the time in which a vertex is counted
differently are fixed: it begins with the update itself, or it never ends."""


def _degree_bound(stream: StreamKind, tau: int, top: int, cells: int = 1) -> ChangeBound:
    """Bound what one update changes in the number of vertices of degree ≥ tau, where no degree
    exceeds `top`; proof, section 6.

    A vertex that loses one edge of the stream is counted differently exactly while its degree is at
    the edge of tau. It enters that time once and leaves it once; it enters with the changed update
    itself if tau is the first degree to pass, and never leaves it if tau is the last.
    """
    first_degree = 1
    last_degree = top
    if stream in ("delete", "ignore-absent"):  # degrees only fall
        first_degree = top
        last_degree = 1
    enters_at_once = tau == first_degree
    never_leaves = tau == last_degree
    if stream in ("ignore-duplicates", "ignore-absent"):  # a later copy always ends the time
        never_leaves = False
    return ChangeBound(
        up=2,
        down=0 if never_leaves else 2,
        cells=cells,
        swap=SWAP_BY_FIXED_ENDS[enters_at_once + never_leaves],
        under_projection=_projected_degree_change(tau, top),
    )


def _projected_degree_change(tau: int, top: int) -> ProjectedChange:
    """Bound the change of the same number where the projection runs: two other vertices, those of
    the edges that come, are counted differently, too."""
    rises = 2 if tau == top else 4
    ends = 2 if tau == 1 else 4
    return ProjectedChange(rises=rises, falls=4, either=rises + ends)


def _turns(query: GraphQuery[V_co], taus: Sequence[tuple[int, int]]) -> float | None:
    """Bound S for replace where the Gram matrix falls, from pairs (tau, number of cells that are
    alike); proof, section 6.

    The ends of the old and of the new edge are taken in pairs, one of each. A pair changes a cell
    by −1, 0 or 1 at any time. Its rises and its falls sum to 2 at most, or to 1 where tau is the
    first or the last degree.
    """
    if query.stream == "mixed":
        return None
    total = 0
    top = query.degree_bound
    for tau, cells in taus:
        bound = _degree_bound(query.stream, tau, top)
        each = min(bound.bound(2, True), 24)
        if query.enforce_degree:  # two pairs of ends, two of vertices of edges that come
            ends = 2 if tau == 1 else 6
            others = 2 if tau == top else 6
            each = 4 * (ends + others) + isqrt(64 * ends * others - 1) + 1
        total += cells * each
    return float(total)
