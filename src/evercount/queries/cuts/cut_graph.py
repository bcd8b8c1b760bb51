"""A released graph: cuts with their exact error, bounds over all cuts at once, and estimates of
extreme cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb, exp, inf, log, log1p, sqrt
from numbers import Integral

import numpy as np

from evercount._validate import (
    FloatArray,
    chance_outside,
    check_count,
    check_number,
    check_probability,
)
from evercount.bounds.tails import interval_quantile, laplace_factor, simultaneous_quantile
from evercount.errors import ParameterError
from evercount.queries.cuts.extreme_cuts import candidate_cuts, least_by_size, objective

ENUMERATED = 16  # up to this many vertices all 2^(n−1) − 1 cuts are tried


@dataclass(frozen=True)
class CutValue:
    """The weight of one cut in the released graph and the standard deviation of its noise.

    Attributes:
        value: The weight.
        std: The standard deviation.
    """

    value: float
    std: float


@dataclass(frozen=True)
class CutEstimate:
    """An extreme cut of the released graph, and what it says about the true graph.

    The lightest cut of a noisy graph is the one whose noise is lowest, so its released weight lies
    below the true one, far below where there are many vertices. Where the value is all that is
    asked for, `MinCut` has far less noise.

    Attributes:
        side: The vertices on one side.
        value: The extreme weight (per pair of vertices across it for the sparsest cut), in [low,
            high].
        released: Weight of this cut in the released graph; below 0 even where no true weight is.
        std: Standard deviation of `released`, had the cut been chosen without looking.
        error: With probability ≥ `level` the true weight of this cut is within `error` of
            `released`, although the cut was chosen after looking at the noise.
        low: With probability ≥ `level` the extreme cut of the *true* graph has its weight in [low,
            high].
        high: With probability ≥ `level` the extreme cut of the *true* graph has its weight in [low,
            high].
        level: The probability of these two statements, each by itself.
        method: How the cut was searched.
        exact: Whether no cut of the *released* graph is better.
    """

    side: tuple[int, ...]
    value: float
    released: float
    std: float
    error: float
    low: float
    high: float
    level: float
    method: str
    exact: bool


@dataclass(frozen=True, eq=False)
class CutGraph:
    """The noisy weights of all pairs of vertices (u < v, lexicographic) and the noise's standard
    deviation of each.

    `nonnegative` says that no true weight is below 0; it sharpens the lower ends of `CutEstimate`.

    Args:
        vertices: The number of vertices, at least 2.
        edges: The released weights, one for each pair.
        std: The standard deviation of the noise of one weight.
        nonnegative: Whether no true weight is below 0.
        noise: Its tails; normal with this std where it is left out.

    Raises:
        ParameterError: The weights do not fit the number of vertices, or std is negative.
    """

    vertices: int
    edges: FloatArray
    std: float
    nonnegative: bool = False
    noise: CutNoise | None = None

    def __post_init__(self) -> None:
        n = check_count("vertices", self.vertices)
        try:
            edges = np.array(self.edges, np.float64)  # a copy: what was released does not change
        except (TypeError, ValueError, OverflowError):
            raise ParameterError(
                "edges must be the weights of all pairs, numbers in one row"
            ) from None
        if n < 2 or edges.shape != (n * (n - 1) // 2,):
            raise ParameterError(
                f"a graph on {n} vertices has {n * (n - 1) // 2} pairs, got shape {edges.shape}"
            )
        if check_number("std", self.std) < 0:
            raise ParameterError(f"std must not be negative, got {self.std!r}")
        edges.setflags(write=False)
        object.__setattr__(self, "edges", edges)

    @property
    def _noise(self) -> CutNoise:
        return self.noise or CutNoise(self.std)

    @cached_property
    def weights(self) -> FloatArray:
        """The symmetric matrix of the released weights; zero on the diagonal."""
        matrix = np.zeros((self.vertices, self.vertices))
        matrix[np.triu_indices(self.vertices, 1)] = self.edges
        return matrix + matrix.T

    # -- one cut, and all cuts ---------------------------------------------------------------------

    def cut(self, S: Collection[int], P: Collection[int] | None = None) -> CutValue:
        """Weight between the disjoint sets S and P (default: all other vertices), with its exact
        std.

        Args:
            S: Vertices, by their numbers from 0.
            P: Vertices that are not in S; None for all others.

        Returns:
            The weight and its std.

        Raises:
            ParameterError: A set is empty, the sets overlap, or a vertex does not exist.
        """
        first = self._side("S", S)
        if P is None:
            P = set(range(self.vertices)) - set(first)
        second = self._side("P", P)
        common = sorted(set(first) & set(second))
        if common:
            raise ParameterError(f"S and P must be disjoint, both contain {common}")
        value = float(self.weights[np.ix_(first, second)].sum())
        return CutValue(value, self.std * sqrt(len(first) * len(second)))

    def bound(
        self, sizes: tuple[int, int], ticks: int = 1, level: float = 0.95, every_size: bool = False
    ) -> float:
        """With probability ≥ `level` no cut of these sizes is off by more, at any of `ticks` ticks
        like this one.

        The union bound runs over all choices of S and P, and over ticks, with the tails of `noise`:
        exact normal ones, or Chernoff's bound for Laplace noise (δ = 0). With `every_size` the
        bounds for all sizes hold together. For ticks with another std the bound scales with it.

            Guarantee. ``cuts.proof.md``. Assumption: `noise` is that of every edge, independent
            between edges. Tests:
            tests/queries/test_queries_cuts.py::test_bound_covers_all_cuts_of_real_noise and
            tests/queries/test_queries_cuts.py::test_error_bars_hold_under_laplace_noise.

        Args:
            sizes: The numbers of vertices in S and in P.
            ticks: Over how many ticks the bound holds.
            level: The probability that it holds.
            every_size: Whether the bounds for all sizes hold together.

        Returns:
            The bound.

        Raises:
            ParameterError: An argument is outside its range.
        """
        a, b = self._sizes(sizes)
        events = check_count("ticks", ticks) * _cuts_of_size(self.vertices, a, b)
        if every_size:
            events *= sum(
                self.vertices - 2 * small + 1 for small in range(1, self.vertices // 2 + 1)
            )
        return self._noise.of_many(a * b, events, chance_outside(level))

    # -- extreme cuts ------------------------------------------------------------------------------

    def min_cut(self, *, level: float = 0.95) -> CutEstimate:
        """The lightest cut into two sides, with an interval for the lightest cut of the true graph.

        Which cut it is costs a lot of noise. If you only want its weight, declare `MinCut` instead.

        Up to 16 vertices all cuts are tried. Beyond, the best of Stoer–Wagner, spectral sweeps and
        local search, all judged by raw released weights (`extreme_cuts`).

        Args:
            level: Probability that the interval and the error bar hold, each by itself.

        Returns:
            The cut, its weight, its error bar and the interval.

        Raises:
            ParameterError: the level is not between 0 and 1.

        >>> graph = CutGraph(4, np.array([5.0, 0.5, 0.1, 0.2, 0.4, 6.0]), std=0.1)
        >>> graph.min_cut().side
        (0, 1)
        """
        return self._extreme(1.0, False, level)

    def max_cut(self, *, level: float = 0.95) -> CutEstimate:
        """The heaviest cut into two sides, searched and stated as `min_cut`.

        Args:
            level: Probability that the interval and the error bar hold, each by itself.

        Returns:
            The cut, its weight, its error bar and the interval.

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        return self._extreme(-1.0, False, level)

    def sparsest_cut(self, *, level: float = 0.95) -> CutEstimate:
        """The cut with the least weight per pair, w(S, V∖S)/(|S|·|V∖S|), searched and stated as
        `min_cut`.

        Args:
            level: Probability that the interval and the error bar hold, each by itself.

        Returns:
            The cut, its weight per pair, its error bar and the interval.

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        return self._extreme(1.0, True, level)

    def _extreme(self, sign: float, sparsity: bool, level: float) -> CutEstimate:
        """Search the cut with the smallest sign × weight.

        Guarantee. With probability ≥ level the true extreme value lies in [low, high], and with
        probability ≥ level the true value of the returned cut is within `error` of its released
        one. Proof: ``cuts.proof.md``, "Extreme cuts". Assumption: as for `bound`. Test:
        tests/queries/test_queries_cuts.py::test_extreme_cuts_are_covered.
        """
        n = self.vertices
        beta = 1.0 - check_probability("level", level)
        weights = sign * self.weights
        sizes = np.arange(1, n // 2 + 1)
        pairs = sizes * (n - sizes)
        scale = np.ones(len(pairs))
        if sparsity:
            scale = 1 / pairs
        if n <= ENUMERATED:
            numbers = np.arange(1, 2 ** (n - 1))  # the last vertex is always on the other side
            sides = (numbers[:, None] >> np.arange(n) & 1).astype(np.float64)
            exact = True
            method = "enumeration"
        else:
            exact = sign > 0 and not sparsity and bool((self.edges >= 0).all())
            if exact:
                method = "Stoer-Wagner"
            else:
                method = "Stoer-Wagner, spectral sweeps and local search on the raw weights"
            sides = candidate_cuts(weights, sparsity)
        values = objective(weights, sides, sparsity)
        small = np.minimum(sides.sum(axis=1), n - sides.sum(axis=1)).astype(np.int64)
        if n <= ENUMERATED:
            least = np.asarray([values[small == size].min() for size in sizes])
        else:
            least = least_by_size(weights)
            if sparsity:
                least = least / pairs
        # the true extreme cut does not depend on the noise, so one tail is enough; the chosen one
        # does
        one = scale * [self._noise.of_one(number, beta) for number in pairs.tolist()]
        low = float((least - one).min())
        margins = scale * [
            self._noise.of_many(a * (n - a), len(sizes) * _cuts_of_size(n, a, n - a), beta)
            for a in sizes.tolist()
        ]
        high = float((values + margins[small - 1]).min())
        best = int(values.argmin())
        floor = 0.0 if self.nonnegative else -inf
        low, high = (max(end, floor) for end in sorted((sign * low, sign * high)))
        size = int(small[best])
        released = sign * float(values[best])
        return CutEstimate(
            side=tuple(np.flatnonzero(sides[best]).tolist()),
            value=min(max(released, low), high),
            released=released,
            std=self.std * sqrt(pairs[size - 1]) * float(scale[size - 1]),
            error=float(margins[size - 1]),
            low=low,
            high=high,
            level=level,
            method=method,
            exact=exact,
        )

    def _side(self, name: str, vertices: Collection[int]) -> list[int]:
        members: list[int] = []
        if isinstance(vertices, Iterable):
            members = list(vertices)
        side: list[int] = []
        if all(issubclass(type(v), Integral) and type(v) is not bool for v in members):
            side = sorted(map(int, set(members)))
        if not side or len(side) != len(members) or not 0 <= side[0] <= side[-1] < self.vertices:
            raise ParameterError(
                f"{name} must hold distinct vertices in 0..{self.vertices - 1}, got {vertices!r}"
            )
        return side

    def _sizes(self, sizes: tuple[int, int]) -> tuple[int, int]:
        try:
            a, b = sizes
        except (TypeError, ValueError):
            raise ParameterError(
                f"sizes must be those of the two sides, (|S|, |P|), got {sizes!r}"
            ) from None
        a = check_count("the size of a side", a)
        b = check_count("the size of a side", b)
        if a + b > self.vertices:
            raise ParameterError(
                f"disjoint sides of {a} and {b} vertices do not fit into {self.vertices}"
            )
        return a, b


def _cuts_of_size(n: int, a: int, b: int) -> int:
    """Count the unordered pairs of disjoint sets of these sizes."""
    ordered = comb(n, a) * comb(n - a, b)
    if a == b:
        return ordered // 2
    return ordered


EXACT_NUMBERS = 256
"""Tails of up to this many Laplace numbers are computed; of more, Chernoff's bound is close and
much quicker."""
EXACT_EXPONENT = 600.0  # probabilities below e^−600 are outside of what doubles can sum


@dataclass(frozen=True)
class CutNoise:
    """The noise of one released weight. Weights have independent noise of the same law; a cut sums
    `pairs` of them."""

    spread: float  # the std; of discrete noise, that of the continuous noise of the same rate
    # what rounding adds to every weight at most, where the spread does not contain it
    slack: float = 0.0
    step: float = 0.0  # what the grid of published numbers adds to a sum, once
    laplace: int | None = None
    """How many equal Laplace numbers have a sum with tails as heavy (`bounds/tails.py`); None:
    normal noise."""

    def of_one(self, pairs: int, beta: float) -> float:
        """Half-width that the noise of one cut, chosen without looking, leaves with probability at
        most beta."""
        if self.laplace is None:
            return self._width(interval_quantile(beta), pairs)
        return self._width(laplace_factor(beta, self.laplace * pairs), pairs)

    def of_many(self, pairs: int, cuts: int, beta: float) -> float:
        """Half-width that none of this number of cuts leaves, with probability at least 1 − beta.

        **Guarantee.** A union bound over normal tails, Laplace tails, or Chernoff's bound of them.
        Proof: `cuts.proof.md`, "Laplace noise". Assumption: as for the class. Tests:
        tests/queries/test_queries_cuts.py::test_laplace_margins_are_above_the_exact_tails and
        tests/queries/test_queries_cuts.py::test_error_bars_hold_under_laplace_noise.
        """
        if self.laplace is None:
            return self._width(simultaneous_quantile(cuts, beta), pairs)
        numbers = self.laplace * pairs
        exponent = log(cuts) - log(beta)
        if numbers <= EXACT_NUMBERS and exponent < EXACT_EXPONENT:
            return self._width(laplace_factor(exp(-exponent), numbers), pairs)
        return self._width(_chernoff(numbers, log(2) + exponent), pairs)

    def _width(self, factor: float, pairs: int) -> float:
        return factor * self.spread * sqrt(pairs) + self.slack * pairs + self.step


@lru_cache(maxsize=4096)
def _chernoff(numbers: int, exponent: float) -> float:
    """Find a with P(S > a·std) ≤ exp(−exponent) for a sum S of equal Laplace numbers; rounded up.
    For scale 1, P(S > y) ≤ exp(−u·y)·(1 − u²)^(−numbers), smallest at u = (√(numbers² + y²) −
    numbers)/y."""
    low = 0.0
    high = exponent + sqrt(2 * numbers * exponent) + 1.0
    while _rate(numbers, high) < exponent:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if _rate(numbers, middle) < exponent:
            low = middle
        else:
            high = middle
    return high * (1 + 1e-9) / sqrt(2 * numbers)


def _rate(numbers: int, y: float) -> float:
    """Maximise u·y + numbers·ln(1 − u²) over u."""
    u = y / (sqrt(numbers * numbers + y * y) + numbers)
    return u * y + numbers * log1p(-u * u)
