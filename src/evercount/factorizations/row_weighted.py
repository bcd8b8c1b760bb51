"""The row-weighted family: R = diag(e)·Toep(f)·diag(1/n), L = M·R⁻¹, with every column of R of norm
at most 1.

    noise_t = noise_{t−1} + n_t·w_t,   w = Toep(g)·(z/e),   g = coefficients of 1/F

f are the coefficients of the rational filter F that runs, η = 1/e and n are public piecewise linear
weights, and n is a proved upper bound of the column norms (`row_weighted.proof.md`). Members:
`balanced`, `normalized`, `unbounded` and `anytime`. The paper's L = R = Toep(f), `square-root`, is
run by the same filter, without weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.factorizations.base import (
    NORM_ROUNDING_MARGIN,
    Factorization,
    State,
    check_horizon,
    check_known_horizon,
    counting_matrix,
    lower_toeplitz,
)
from evercount.factorizations.covariance import Covariance
from evercount.factorizations.filter_numbers import (
    FILTER_TICKS,
    BlockFilter,
    Exponentials,
    PiecewiseLinear,
    Rational,
    design,
    dyadic_knots,
    geometric,
    round_bits,
)

EVALUATION_ERROR = 2.0**-34
"""More than the relative rounding error of every sum in `bounded_columns` and of each of the three
parts of D_r."""
# blocks whose sums are looked at together, so that they stay in the processor's cache
_BLOCKS_AT_ONCE = 512
UNBOUNDED_FILTER_TICKS = 2**40
"""Ticks over which the filter of `unbounded` is close to the square root. Later it stays private,
with more error."""
UNBOUNDED_LAST_KNOT = 2**48  # tick after which the weights of `unbounded` are constant


@dataclass(frozen=True, eq=False)
class Weights:
    """The public parameters: the filter F, η (multiplies the filter's inputs) and n (multiplies its
    outputs)."""

    filter: Rational
    eta: PiecewiseLinear
    n: PiecewiseLinear

    @cached_property
    def covariance(self) -> Covariance:
        """Exact variances of the noise, shared by all that have these weights."""
        return Covariance(self.filter.inverse(), self.eta, self.n)


def bounded_columns(filter_: Rational, eta: PiecewiseLinear, endless: bool) -> PiecewiseLinear:
    """n with n_j ≥ ‖(e_{j+k}·f(k))_k‖₂ for every column j, piecewise linear on the knots of `eta`.

    Guarantee. The bound holds at every tick, not only at knots: `row_weighted.proof.md`, with the
    same letters. Test: test_columns_never_exceed_one compares with the dense matrix,
    test_planted_bound_is_caught shows that it can fail.
    """
    forward = filter_.forward()
    i, j = np.triu_indices(filter_.order)
    A = forward.weights[i] * forward.weights[j] * np.where(i == j, 1.0, 2.0)
    rates = forward.rates[i] + forward.rates[j]  # ρ_r = exp(−rates_r)
    head = 1.0 - float(np.sum(forward.weights)) ** 2

    phi = eta.values**-2.0
    lengths = np.diff(eta.knots)
    S = knot_sums(rates, phi, lengths, endless)
    root = np.sqrt(S @ A + phi * head)
    slack = safe = 0.0
    if len(lengths):
        above, safely = np.empty((2, len(lengths), len(rates)))
        for start in range(0, len(lengths), _BLOCKS_AT_ONCE):
            here = slice(start, start + _BLOCKS_AT_ONCE)
            knots = slice(start, start + _BLOCKS_AT_ONCE + 1)
            bow = np.minimum(1.0, (lengths[here, np.newaxis] * rates) ** 2 / 8)
            D, size = bow_terms(rates, phi[knots], lengths[here], S[knots])
            above[here] = np.where(D < 0, -D, 0.0) * bow
            # The same with every D_r at the lower end of what its rounding allows: no sign is taken
            # for granted.
            lowest = D - EVALUATION_ERROR * size
            safely[here] = np.where(lowest < 0, -lowest, 0.0) * bow
        slack, safe = (_largest_slack(root, part @ A, lengths) for part in (above, safely))
    values = root * np.sqrt(1 + slack) * (1 + NORM_ROUNDING_MARGIN)
    least = root * np.sqrt(1 + safe) * (1 + 4 * EVALUATION_ERROR)
    return PiecewiseLinear(eta.knots, round_bits(np.maximum(values, least), up=True))


def knot_sums(rates: FloatArray, phi: FloatArray, lengths: IntArray, endless: bool) -> FloatArray:
    """S_r at every knot, (knots, pairs): step 4 of the proof. Every term is positive."""
    sums = {int(length): _block_sums(rates, int(length)) for length in np.unique(lengths)}
    S = np.empty((len(phi), len(rates)), rates.dtype)
    S[-1] = phi[-1] / -np.expm1(-rates) if endless else phi[-1]
    for q in range(len(lengths) - 1, -1, -1):
        left, right, decay = sums[int(lengths[q])]
        S[q] = phi[q] * left + phi[q + 1] * right + decay * S[q + 1]
    return S


def bow_terms(
    rates: FloatArray, phi: FloatArray, lengths: IntArray, S: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """(D_r of every block, the size of its three parts): step 5 of the proof. D_r is known to
    EVALUATION_ERROR·size."""
    gap = -np.expm1(-rates)
    steepness = np.exp(-rates) / gap**2
    level = phi[1:, np.newaxis] / gap
    D = S[1:] - level - (np.diff(phi) / lengths)[:, np.newaxis] * steepness
    return D, S[1:] + level + ((phi[1:] + phi[:-1]) / lengths)[:, np.newaxis] * steepness


def _largest_slack(root: FloatArray, above_chord: FloatArray, lengths: IntArray) -> float:
    """The most by which N exceeds n² between knots, as a part of n²: step 6 of the proof."""
    s0 = root[:-1]
    s1 = root[1:]
    ratio = (s0 + s1) ** 2 / (4 * s0 * s1) - 1 + above_chord / np.minimum(s0, s1) ** 2
    return float(np.max(np.where(lengths > 1, ratio, 0.0)))


def _block_sums(rates: FloatArray, length: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(Σ(1−k/ℓ)ρ^k, Σ(k/ℓ)ρ^k, ρ^ℓ) over k < ℓ, ℓ a power of two, by doubling: every term is
    positive."""
    total = np.ones_like(rates)
    ramp = np.zeros_like(rates)
    half = 1
    while half < length:
        decay = np.exp(-rates * half)
        total, ramp = total * (1 + decay), ramp + decay * (ramp + half * total)
        half *= 2
    total = geometric(rates, np.asarray(float(length)))
    return total - ramp / length, ramp / length, np.exp(-rates * length)


def rows_fall(weights: Weights) -> bool:
    """Whether the rows of RᵀR are proved to fall from the diagonal on. The horizon must end at the
    last knot.

    Guarantee. True only if φ_{t+1}f(t+1)/(φ_t f(t)) ≤ n_{j+1}/n_j for all j ≤ t, which is enough:
    `row_weighted.proof.md`, "Falling rows", with the same letters. In a block both sides are at
    their worst at its end, so knots decide. Test:
    tests/queries/test_queries_matching.py::test_gram_matrices_fall.
    """
    if not weights.filter.order:
        return True  # RᵀR is diagonal
    lengths = np.diff(weights.n.knots)
    t = (weights.n.knots[1:] - 1).astype(np.float64)
    forward = weights.filter.forward()
    terms = np.exp(-np.multiply.outer(t, forward.rates)) * forward.weights
    # f(0) = 1 exceeds the sum of exponentials
    head = np.where(t == 0, 1 - forward.weights.sum(), 0.0)
    alpha = (terms @ weights.filter.pole_lack + head) / (terms.sum(axis=1) + head)
    slope = np.diff(weights.eta.values) / lengths
    x = slope / (weights.eta.values[1:] - slope)
    slope = np.diff(weights.n.values) / lengths
    drop = -slope / (weights.n.values[1:] - slope)
    fall = (alpha + x * (2 + x)) / (1 + x) ** 2
    safe = fall - NORM_ROUNDING_MARGIN * (alpha + np.abs(x) + np.abs(drop))
    return bool(np.all(drop <= np.minimum.accumulate(safe[::-1])[::-1]))


class Weighted(Factorization):
    """A member of the family, given by its public weights. See `Factorization` for the
    guarantee."""

    def __init__(self, weights: Weights, horizon: int | None) -> None:
        self.weights = weights
        self.horizon = horizon
        self.column_norm = 1.0
        self._inverse = weights.filter.inverse()
        self._filter = BlockFilter(self._inverse)

    @property
    def falling_gram(self) -> bool:
        return self.columns_fall or self.rows_fall

    @cached_property
    def columns_fall(self) -> bool:
        """Whether n never rises: then the columns of RᵀR fall away from the diagonal
        (`sensitivity.proof.md`)."""
        return bool(np.all(np.diff(self.weights.n.values) <= 0))

    @cached_property
    def rows_fall(self) -> bool:
        """Whether the rows of RᵀR are proved to fall from the diagonal on."""
        return self.horizon == int(self.weights.n.knots[-1]) + 1 and rows_fall(self.weights)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """Exact at the knots of the weights, to 1e-7 between them."""
        return np.sqrt(self.weights.covariance.variances(self._check_ticks(ticks)))

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(np.sqrt(self.weights.covariance.difference(earlier, later)))

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        return np.sqrt(self.weights.covariance.differences(*self._check_pairs(earlier, later)))

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        if len(later) < 2 or later.min() < later.max():
            return self.pair_norms(earlier, later)
        return np.asarray(np.sqrt(self.weights.covariance.differences_to(int(later[0]), earlier)))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        eta = self.weights.eta.at(0, size)
        n = self.weights.n.at(0, size)
        f = lower_toeplitz(self.weights.filter.forward().values(size))
        g = lower_toeplitz(self._inverse.values(size))
        return counting_matrix(size) @ (n[:, np.newaxis] * g * eta), f / eta[:, np.newaxis] / n

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros((self.weights.filter.order, cells)), np.zeros(cells)))

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The filter, and both weights as knots and values."""
        design = self.weights.filter
        eta = self.weights.eta
        n = self.weights.n
        weights = (
            np.asarray(part, np.float64)
            for weight in (eta, n)
            for part in (weight.knots, weight.values)
        )
        return (design.pole_lack, design.zero_lack, *weights)

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        stop = state.tick + ticks
        eta, n = (
            weight.at(state.tick, stop)[:, np.newaxis]
            for weight in (self.weights.eta, self.weights.n)
        )
        out = np.empty(z.shape)
        buffers, running = state.arrays
        for start in range(0, ticks, FILTER_TICKS):
            now = slice(start, start + FILTER_TICKS)
            steps, buffers = self._filter.apply(eta[now] * z[now], buffers)
            out[now] = running + np.cumsum(n[now] * steps, axis=0)
            running = out[now][-1].copy()
        return out, State(stop, (buffers, running))


class Balanced(Weighted):
    """e_t = (t+1+T/18)^0.27·(T−t+1)^0.28: the lowest maximum error known to us for a known horizon
    (the default).

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> engine = Balanced(2**16)
    >>> tick, norm = engine.worst_row()
    >>> round(norm * engine.column_norm, 3)  # `SquareRoot` has 4.596
    4.282
    """

    name = "balanced"
    _powers: ClassVar[tuple[float, float]] = 0.27, 0.28

    def __init__(self, horizon: int) -> None:
        T = check_known_horizon(horizon)
        super().__init__(_known_weights(T, *self._powers), T)


class Normalized(Balanced):
    """e = 1: the square root with its columns scaled to norm 1 (Henzinger, Kalinin and Upadhyay
    2025).

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> engine = Normalized(2**16)
    >>> tick, norm = engine.worst_row()
    >>> round(norm * engine.column_norm, 3)
    4.395
    """

    name = "normalized"
    _powers = 0.0, 0.0


class Unbounded(Weighted):
    """e_t = (1+t)^−0.3 and column norms over an endless future: one noise stream for ever, no
    horizon.

    Args:
        horizon: None, or a limit for the number of ticks, which does not lower the error.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50.

    >>> engine = Unbounded()
    >>> engine.row_norms([1, 10**3, 10**6]).round(2).tolist()
    [1.23, 3.7, 6.15]
    """

    name = "unbounded"
    _offset: ClassVar[int] = 1

    def __init__(self, horizon: int | None = None) -> None:
        super().__init__(_unbounded_weights(self._offset), check_horizon(horizon))


class Anytime(Unbounded):
    """As `Unbounded` with e_t = (4+t)^−0.3: 11 % more error at the first tick, and less from about
    the ninth on.

    >>> Anytime().row_norms([1, 10**3, 10**6]).round(2).tolist()
    [1.37, 3.67, 6.13]

    Args:
        horizon: None, or a limit for the number of ticks, which does not lower the error.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50.
    """

    name = "anytime"
    _offset = 4


class SquareRoot(Factorization):
    """L = Toep(F) and R = Toep(1/((1−z)F)): the paper's factorization up to a loss below 1e-6, in
    O(log T) memory.

    L·R = M holds exactly for every filter F; the norms are those of the filter that runs.

    Args:
        horizon: The number of ticks.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 2^50.

    >>> engine = SquareRoot(2**16)
    >>> tick, norm = engine.worst_row()
    >>> tick, round(norm * engine.column_norm, 4)
    (65536, 4.5964)
    """

    name = "square-root"
    falling_gram = True  # R is Toeplitz with falling coefficients

    def __init__(self, horizon: int) -> None:
        T = check_known_horizon(horizon)
        self.horizon = T
        self.filter = design(T)
        self._forward = self.filter.forward()
        right = self.filter.summed_inverse()
        self.column_norm = float(np.sqrt(right.squared_sums(np.asarray(float(T))))) * (
            1 + NORM_ROUNDING_MARGIN
        )
        self._blocks = BlockFilter(self._forward)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """A closed form in O(d²) for each tick."""
        t = self._check_ticks(ticks).astype(np.float64)
        return np.sqrt(self._forward.squared_sums(t))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The later row has new coefficients, and those of the earlier one are shifted."""
        earlier, later = self._check_pair(earlier, later)
        fresh = self._forward.squared_sums(np.asarray(float(later - earlier)))
        if not earlier or not self.filter.order:
            return float(np.sqrt(fresh))
        drop = self._forward.weights * np.expm1(-self._forward.rates * (later - earlier))
        head = float(np.exp(-self._forward.rates * (later - earlier)) @ self._forward.weights) - 1.0
        if later == earlier:
            return 0.0
        shifted = Exponentials(head, drop, self._forward.u)
        return float(np.sqrt(fresh + shifted.squared_sums(np.asarray(float(earlier)))))

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        left = lower_toeplitz(self._forward.values(size))
        return left, lower_toeplitz(self.filter.summed_inverse().values(size))

    def initial(self, cells: int = 1) -> State:
        return State(0, (np.zeros((self.filter.order, cells)),))

    def public_parameters(self) -> tuple[FloatArray, ...]:
        return self.filter.pole_lack, self.filter.zero_lack

    def block(self, state: State, z: FloatArray, ticks: int) -> tuple[FloatArray, State]:
        z = self._check_block(state, z, ticks)
        noise, buffers = self._blocks.apply(z, state.arrays[0])
        return noise, State(state.tick + ticks, (buffers,))


@lru_cache(maxsize=32)
def _known_weights(T: int, first: float, last: float) -> Weights:
    """Compute the weights for a horizon of T ticks."""
    knots = dyadic_knots(T - 1, mirrored=True)
    t = knots.astype(np.float64)
    eta = PiecewiseLinear(knots, round_bits((t + 1 + T / 18) ** -first * (T - t + 1) ** -last))
    return Weights(design(T), eta, bounded_columns(design(T), eta, endless=False))


@lru_cache(maxsize=2)
def _unbounded_weights(shift: int) -> Weights:
    """Compute the weights of a stream without a horizon."""
    filter_ = design(UNBOUNDED_FILTER_TICKS)
    knots = dyadic_knots(UNBOUNDED_LAST_KNOT, mirrored=False)
    eta = PiecewiseLinear(knots, round_bits((shift + knots.astype(np.float64)) ** 0.3))
    return Weights(filter_, eta, bounded_columns(filter_, eta, endless=True))
