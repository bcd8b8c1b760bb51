"""A released graph: cuts with their exact error, bounds over all cuts at once, and estimates of extreme cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import comb, sqrt
from numbers import Integral
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import check_count, check_number
from evercount.bounds.normal_tails import simultaneous_quantile
from evercount.bounds.table1 import cuts_paper
from evercount.errors import MissingExtra, ParameterError

ENUMERATED = 16
"""Up to this many vertices the extreme cuts are found by trying all 2^(n−1) − 1 of them."""


@dataclass(frozen=True)
class CutValue:
    """The weight of one cut in the released graph and the standard deviation of its noise."""

    value: float
    std: float


@dataclass(frozen=True)
class CutEstimate:
    """An extreme cut of the released graph: one side of it, its value, and how it was found.

    `exact` says that no cut of the *released* graph is better. `std` is that of this cut had it been chosen without
    looking; it was chosen for being extreme, so its value tends to overstate: use `CutGraph.bound` for a guarantee.
    """

    side: tuple[int, ...]
    value: float
    std: float
    method: str
    exact: bool


@dataclass(frozen=True, eq=False)
class CutGraph:
    """The noisy weights of all pairs of vertices (u < v, lexicographic) and the noise's standard deviation of each."""

    vertices: int
    edges: FloatArray
    std: float

    def __post_init__(self) -> None:
        n = check_count("vertices", self.vertices)
        try:
            edges = np.array(self.edges, np.float64)  # a copy: what was released does not change
        except (TypeError, ValueError, OverflowError):
            raise ParameterError("edges must be the weights of all pairs, numbers in one row") from None
        if n < 2 or edges.shape != (n * (n - 1) // 2,):
            raise ParameterError(f"a graph on {n} vertices has {n * (n - 1) // 2} pairs, got shape {edges.shape}")
        if check_number("std", self.std) < 0:
            raise ParameterError(f"std must not be negative, got {self.std!r}")
        edges.setflags(write=False)
        object.__setattr__(self, "edges", edges)

    @cached_property
    def weights(self) -> FloatArray:
        """The symmetric matrix of the released weights; zero on the diagonal."""
        matrix = np.zeros((self.vertices, self.vertices))
        matrix[np.triu_indices(self.vertices, 1)] = self.edges
        return matrix + matrix.T

    # -- one cut, and all cuts -----------------------------------------------------------------------------------

    def cut(self, S: Collection[int], P: Collection[int] | None = None) -> CutValue:
        """Weight between the disjoint sets S and P (default: all other vertices), with its exact std."""
        first = self._side("S", S)
        second = self._side("P", set(range(self.vertices)) - set(first) if P is None else P)
        if set(first) & set(second):
            raise ParameterError(f"S and P must be disjoint, both have {sorted(set(first) & set(second))}")
        value = float(self.weights[np.ix_(first, second)].sum())
        return CutValue(value, self.std * sqrt(len(first) * len(second)))

    def bound(self, sizes: tuple[int, int], ticks: int = 1, beta: float = 0.05, every_size: bool = False) -> float:
        """With probability ≥ 1 − beta no cut of these sizes is off by more, at any of `ticks` ticks like this one.

        The noise of a cut is exactly normal; the union bound runs over all choices of S and P, and over ticks. With
        `every_size` the bounds for all sizes hold together. For ticks with another std the bound scales with it.

            Guarantee. ``cuts.proof.md``. Assumption: `std` is the exact std of every edge's noise, independent
            between edges. Test: tests/queries/test_queries_cuts.py::test_bound_covers_all_cuts_of_real_noise.
        """
        a, b = self._sizes(sizes)
        events = check_count("ticks", ticks) * _cuts_of_size(self.vertices, a, b)
        if every_size:
            events *= sum(self.vertices - 2 * small + 1 for small in range(1, self.vertices // 2 + 1))
        return self.std * sqrt(a * b) * simultaneous_quantile(events, check_number("beta", beta))

    def paper_bound(self, sizes: tuple[int, int], ticks: int, multiplier: float) -> float:
        """The paper's bound 3·C·|S|·Ψ(T)·√((|S|+|P|)·ln(|S|+|P|)·ln 6T), |S| ≤ |P|, claimed with probability 2/3.

        `multiplier` is its C_{ε,δ}. Quoted for comparison: its Ψ is too small, and nothing rests on it.
        """
        small, large = sorted(self._sizes(sizes))
        return cuts_paper(ticks, check_number("multiplier", multiplier), small, large)

    # -- extreme cuts --------------------------------------------------------------------------------------------

    def min_cut(self) -> CutEstimate:
        """The lightest cut into two sides: by enumeration, or Stoer–Wagner on the weights clipped at 0."""
        if self.vertices <= ENUMERATED:
            return self._enumerated(sparsity=False, largest=False)
        nx = _networkx()
        side = nx.stoer_wagner(_complete(np.maximum(self.weights, 0.0)))[1][0]
        exact = bool((self.edges >= 0).all())
        method = "Stoer-Wagner" if exact else "Stoer-Wagner on the weights clipped at 0"
        return self._estimate(side, method, exact)

    def max_cut(self, seed: int = 0) -> CutEstimate:
        """The heaviest cut into two sides: by enumeration, or one-exchange local search."""
        if self.vertices <= ENUMERATED:
            return self._enumerated(sparsity=False, largest=True)
        nx = _networkx()
        graph = _complete(self.weights)
        _, sides = nx.approximation.one_exchange(graph, weight="weight", seed=seed)
        return self._estimate(sides[0] or {0}, "one-exchange local search", False)

    def sparsest_cut(self) -> CutEstimate:
        """The cut with the least weight per pair, w(S, V∖S)/(|S|·|V∖S|): by enumeration, or a spectral sweep."""
        if self.vertices <= ENUMERATED:
            return self._enumerated(sparsity=True, largest=False)
        from scipy.linalg import eigh  # slow to import

        clipped = np.maximum(self.weights, 0.0)
        laplacian = np.diag(clipped.sum(axis=1)) - clipped
        fiedler = eigh(laplacian, subset_by_index=[1, 1])[1][:, 0]
        order = np.argsort(fiedler)
        prefixes = np.tril(np.ones((self.vertices - 1, self.vertices)))
        sides = np.empty_like(prefixes)
        sides[:, order] = prefixes
        return self._best(sides, True, False, "spectral sweep on the weights clipped at 0", False)

    def _enumerated(self, sparsity: bool, largest: bool) -> CutEstimate:
        numbers = np.arange(1, 2 ** (self.vertices - 1))  # the last vertex is always on the other side
        sides = (numbers[:, None] >> np.arange(self.vertices) & 1).astype(np.float64)
        return self._best(sides, sparsity, largest, "enumeration", True)

    def _best(self, sides: FloatArray, sparsity: bool, largest: bool, method: str, exact: bool) -> CutEstimate:
        """The best of the given sides (one row of zeros and ones each)."""
        values = ((sides @ self.weights) * (1 - sides)).sum(axis=1)
        sizes = sides.sum(axis=1)
        if sparsity:
            values = values / (sizes * (self.vertices - sizes))
        best = int(values.argmax() if largest else values.argmin())
        return self._estimate(np.flatnonzero(sides[best]).tolist(), method, exact, sparsity)

    def _estimate(self, side: Collection[int], method: str, exact: bool, sparsity: bool = False) -> CutEstimate:
        found = self.cut(side)
        pairs = len(side) * (self.vertices - len(side)) if sparsity else 1
        return CutEstimate(tuple(sorted(side)), found.value / pairs, found.std / pairs, method, exact)

    def _side(self, name: str, vertices: Collection[int]) -> list[int]:
        members = list(vertices) if isinstance(vertices, Iterable) else []
        whole = all(issubclass(type(v), Integral) and type(v) is not bool for v in members)
        side = sorted(map(int, set(members))) if whole else []
        if not side or len(side) != len(members) or not 0 <= side[0] <= side[-1] < self.vertices:
            raise ParameterError(f"{name} must hold distinct vertices in 0..{self.vertices - 1}, got {vertices!r}")
        return side

    def _sizes(self, sizes: tuple[int, int]) -> tuple[int, int]:
        try:
            a, b = sizes
        except (TypeError, ValueError):
            raise ParameterError(f"sizes must be those of the two sides, (|S|, |P|), got {sizes!r}") from None
        a, b = check_count("the size of a side", a), check_count("the size of a side", b)
        if a + b > self.vertices:
            raise ParameterError(f"disjoint sides of {a} and {b} vertices do not fit into {self.vertices}")
        return a, b


def _cuts_of_size(n: int, a: int, b: int) -> int:
    """Number of unordered pairs of disjoint sets of these sizes."""
    return comb(n, a) * comb(n - a, b) // (2 if a == b else 1)


def _networkx() -> Any:
    try:
        import networkx as nx
    except ImportError as error:
        raise MissingExtra("this cut of a graph of more than 16 vertices", "graphs") from error
    return nx


def _complete(weights: FloatArray) -> Any:
    """The complete graph with these weights: an edge of weight 0 keeps it connected."""
    graph = _networkx().Graph()
    n = len(weights)
    graph.add_weighted_edges_from((u, v, float(weights[u, v])) for u in range(n) for v in range(u + 1, n))
    return graph
