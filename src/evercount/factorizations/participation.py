"""What a unit costs that touches several ticks: B with ‖R·D‖² ≤ s²·B where at most q rows of D are
not 0.

Every row of D has norm at most s. Entries of G = RᵀR on one diagonal are all that is needed, and
the row-weighted family and `square-root` have them as sums of exponentials.
`participation.proof.md` has the same letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from evercount._validate import FloatArray, IntArray, check_count
from evercount.factorizations.base import Factorization
from evercount.factorizations.blend import Blend
from evercount.factorizations.dense import Dense
from evercount.factorizations.filter_numbers import Exponentials, PiecewiseLinear, geometric
from evercount.factorizations.independent import Direct, Fresh
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.factorizations.row_weighted import (
    EVALUATION_ERROR,
    SquareRoot,
    Weighted,
    Weights,
    bow_terms,
    knot_sums,
)
from evercount.factorizations.trees import BinaryTree, Honaker, HonakerFull

Diagonals = Callable[[int], FloatArray]
Bounds = Callable[[int, int | None], float]

ROUNDING_MARGIN = 1e-8
"""B is raised by this fraction: far more than the relative rounding error of its positive sums."""
MOST_TICKS = 2**16
"""Up to so many ticks, q diagonals of G are computed; above, they are bounded between knots."""
MOST_ENTRIES = 2**25
"""They also are bounded if they have more entries than this."""
SINGLE_LAGS = 64
"""Distances that are bounded one by one between knots; larger ones together, in ranges of 1/64 of
their size."""
LONGEST_SIGNED = 32
"""Periods of more ticks are bounded by the magnitudes of G."""
SPLIT = 4
"""Blocks between knots of a known horizon are cut into this many: bounds are then looser by about
0.1 %."""


def participation(factorization: Factorization, q: int, period: int | None = None) -> float:
    """B with ‖R·D‖_F² ≤ s²·B for every D that has at most q rows other than 0, all of norm at most
    s.

    Args:
        factorization: M = L·R.
        q: The most ticks that one unit touches.
        period: Where a unit's ticks lie within this many consecutive ones. None: anywhere.

    Returns:
        B, at most q²·column_norm². Noise of std multiplier·s·√B is private for such units.

    Raises:
        ParameterError: q or the period is not a whole number of at least 1.

    **Guarantee.** As the first line says, for all sets of at most q ticks (within `period`
    consecutive ones). Proof: `participation.proof.md`. Tests:
    tests/factorizations/test_participation.py:: test_no_set_of_ticks_costs_more (all sets),
    ::test_rows_are_not_columns (the form for rows where only columns fall), and
    tests/factorizations/ test_blend.py::test_periods_cost_no_more_than_claimed_with_taps (changes
    of any sign).

    >>> from evercount.factorizations import Balanced
    >>> [round(participation(Balanced(365), q), 1) for q in (1, 7, 30)]
    [1.0, 39.3, 601.6]
    """
    q = check_count("q", q)
    span = None if period is None else check_count("period", period)
    horizon = factorization.horizon
    if horizon is not None:
        q = min(q, horizon)
        span = horizon if q == horizon else span and min(span, horizon)
    q = q if span is None else min(q, span)
    largest = float(q) ** 2 * factorization.column_norm**2
    return min(largest, _largest_sum(factorization, q, span) * (1 + ROUNDING_MARGIN))


def participation_of_two(factorization: Factorization, q: int, period: int | None = None) -> float:
    """B with ‖R·(A − A′)‖_F² ≤ 2s²·B where A and A′ have no negative entries: one unit in the place
    of another.

    Args:
        factorization: M = L·R.
        q: The most ticks that each of the two units touches.
        period: Where the ticks of both lie within this many consecutive ones. None: anywhere.

    Returns:
        B: that of one unit where G has no negative entries.

    Raises:
        ParameterError: As `participation`.

    **Guarantee.** As the first line says, for A and A′ with at most q rows each other than 0, all
    of norm at most s. Proof: `participation.proof.md`, "Two units". Test:
    tests/engine/test_unit_noise.py::test_users_of_each_tick_where_ticks_repel.
    """
    one = participation(factorization, q, period)
    if not isinstance(factorization, Dense):
        return one  # `Factorization` guarantees G ≥ 0
    repelled = _largest_product(factorization.gram_error - factorization.gram, q, period)
    rows_of_both = participation(factorization, 2 * q, period)
    return min(2 * one, one + repelled * (1 + ROUNDING_MARGIN), rows_of_both)


def _largest_product(bound: FloatArray, q: int, period: int | None) -> float:
    """A bound of Σ_{i∈J, j∈J′} of the entries above 0, for two sets of q ticks within the
    period."""
    entries = np.maximum(bound, 0.0)
    if period is not None:
        entries = np.triu(np.tril(entries, period - 1), 1 - period)
    rows = np.sort(entries, axis=1)[:, -q:].sum(axis=1)
    return float(np.sort(rows)[-q:].sum())


def _closed_sum(factorization: Factorization, q: int) -> float | None:
    """Compute the largest sum where there is a formula for it."""
    match factorization:
        case Fresh():
            return float(q)
        case Direct(horizon=int(horizon)):
            # Σ_{m<q} (2m+1)·(T−m): the first q ticks
            return float(horizon * q * q - q * (q - 1) * (4 * q + 1) // 6)
        case BinaryTree(horizon=int(horizon)) | Honaker(horizon=int(horizon)):
            return _tree_sum(q, horizon.bit_length())
        case HonakerFull(height=height):
            return _tree_sum(q, height + 1)
    return None


def _family_sum(member: SquareRoot | Weighted, q: int, period: int | None) -> float:
    """Bound the largest sum from diagonals of G, or for long horizons from bounds of them."""
    T = member.horizon
    family = Family.of(member)
    if T is not None and T <= MOST_TICKS and T * max(q, period or 0) <= MOST_ENTRIES:
        return _exact_sum(
            family.diagonals(),
            lambda *lags: family.over(*lags),
            T,
            q,
            period,
            *family.falls,
        )
    return _bounded_sum(family.over, q, any(family.falls))


def _is_short_and_weighted(factorization: Factorization) -> bool:
    """Whether it is a blend whose columns have different norms, and T × T matrices are small."""
    return (
        isinstance(factorization, Blend)
        and factorization.horizon is not None
        and factorization.horizon <= LARGEST_OPTIMAL_HORIZON
        and bool(factorization.filter.weights)
    )


def _largest_sum(factorization: Factorization, q: int, period: int | None) -> float:
    """Bound Σ_{i,j∈J} |G_ij| over all sets J of q ticks within the period."""
    closed = _closed_sum(factorization, q)
    if closed is not None:
        return closed
    # columns of different norms: below, as any matrix
    uneven = _is_short_and_weighted(factorization)
    if isinstance(factorization, SquareRoot | Weighted) and not uneven:
        return _family_sum(factorization, q, period)
    T = factorization.horizon
    if T is None or T > LARGEST_OPTIMAL_HORIZON:
        return math.inf
    if isinstance(factorization, Dense):
        gram = factorization.gram
        error = factorization.gram_error
        by_size = gram_sum(np.abs(gram) + error, q, period)
        return min(by_size, signed_sum(gram, q, period) + (period or 0) ** 2 * error)
    R = factorization.dense()[1]
    return gram_sum(np.abs(R.T @ R), q, period)


def _tree_sum(q: int, levels: int) -> float:
    """Σ_nodes |node ∩ J|² of a binary tree: on each level largest where the nodes are full, one
    after the other."""
    return float(
        sum((q >> level << 2 * level) + (q % (1 << level)) ** 2 for level in range(levels))
    )


def gram_sum(gram: FloatArray, q: int, period: int | None = None) -> float:
    """The bound for any |G|: each column is raised to fall away from the diagonal, or each row
    (proof, 2 and 3)."""
    q = min(q, len(gram))
    return min(_in_order(gram, q), _in_order(gram[::-1, ::-1], q), dense_sum(gram, q, period))


def signed_sum(gram: FloatArray, q: int, period: int | None) -> float:
    """The bound for units of one short period where G has negative entries, which no unit can all
    use (proof, 4)."""
    if period is None or period > LONGEST_SIGNED:
        return math.inf
    return float(signed_costs(gram, q, period)[0].max())


def signed_costs(gram: FloatArray, q: int, period: int) -> tuple[FloatArray, FloatArray]:
    """(the bound of units within each `period` consecutive ticks, its gradient in the block of G of
    these ticks)."""
    ticks = np.arange(len(gram) - period + 1)[:, None] + np.arange(period)
    blocks = gram[ticks[:, :, None], ticks[:, None, :]]
    cost = np.maximum(blocks, 0.0).sum(axis=(1, 2))
    gradient = np.ones_like(blocks)
    signed = (blocks < 0).any(axis=(1, 2))
    values, vectors = np.linalg.eigh(np.minimum(blocks[signed], 0.0))
    cost[signed] += q * values[:, -1]
    gradient[signed] = np.where(
        blocks[signed] < 0, q * vectors[:, :, None, -1] * vectors[:, None, :, -1], 1.0
    )
    return cost, gradient


def _in_order(gram: FloatArray, q: int) -> float:
    """The largest Σ_b F_{b−1}(t_b) over ticks t_1 < … < t_q, for columns that are raised to fall
    (proof, 3)."""
    raised = np.maximum.accumulate(np.triu(gram, 1), axis=0)
    form = np.diagonal(gram).copy()
    best = form.copy()
    for m in range(1, q):
        form[m:] += 2 * np.diagonal(raised, m)
        best = np.append(-np.inf, form[1:] + np.maximum.accumulate(best)[:-1])
    return float(best.max())


def dense_sum(
    gram: FloatArray,
    q: int,
    period: int | None = None,
    *,
    rows: bool = False,
    columns: bool = False,
) -> float:
    """The bound for a matrix |G| whose rows or columns are known to fall from the diagonal on."""
    T = len(gram)

    def over(start: int, _: int | None) -> float:
        return float(gram[np.triu_indices(T, start)].max(initial=0.0))

    return _exact_sum(lambda lag: np.diagonal(gram, lag), over, T, min(q, T), period, rows, columns)


def _exact_sum(
    diagonal: Diagonals, over: Bounds, T: int, q: int, period: int | None, rows: bool, columns: bool
) -> float:
    """The least of U_q for rows, U_q for columns, the bound by distances and the largest sum over
    an interval.

    `diagonal(d)` has G(i, i+d) for all i, `over(d, None)` bounds all entries at distance d or more.
    """
    last = max(q, period or 0)
    forms = np.zeros((2, T))  # F_m of rows and of columns
    sums = np.zeros(2)
    largest = np.zeros(q)
    interval = np.zeros(T)
    for lag in range(last):
        entries = diagonal(lag) * (2.0 if lag else 1.0)
        forms[0, : T - lag] += entries
        forms[1, lag:] += entries
        if lag < q:
            sums += forms.max(axis=1)
            largest[lag] = entries.max() / (2.0 if lag else 1.0)
        if period is not None:
            shift = period - 1 - lag
            interval[: T - shift] += forms[0, shift:]
    falling = rows or columns
    candidates = [
        _by_distance(
            np.arange(q), largest, 0.0 if falling else _later(diagonal, over, largest, T), q
        )
    ]
    candidates += [float(form) for form, holds in zip(sums, (rows, columns), strict=True) if holds]
    if period is not None:
        candidates.append(float(interval.max()))
    return min(candidates)


def _later(diagonal: Diagonals, over: Bounds, largest: FloatArray, T: int) -> float:
    """A bound of all entries at distance q or more, from bounds and, where these are large, from
    diagonals."""
    lag = len(largest)
    seen = 0.0
    rest = 0.0
    while lag < T and (rest := over(lag, None)) > max(seen, float(largest[-1])):
        stop = min(T, 2 * lag)
        seen = max(seen, *(float(diagonal(one).max()) for one in range(lag, stop)))
        lag = stop
        rest = 0.0
    return max(seen, rest)


def _by_distance(
    starts: Sequence[int] | IntArray, largest: Sequence[float] | FloatArray, later: float, q: int
) -> float:
    """q·g(0) + 2·Σ(q−d)·g(d), with g(d) the largest entry at distance d or more; `largest` are
    those from each start to before the next one, `later` of those from q on."""
    g = np.maximum.accumulate(np.append(largest, later)[::-1])[::-1]
    d = np.asarray([*starts, q], dtype=np.float64)
    # twice the sum of q − d over a range of distances
    counts = np.diff(d) * (2 * q - d[:-1] - d[1:] + 1)
    counts[0] = q
    return float(counts @ g[:-1])


@dataclass(frozen=True, eq=False)
class Family:
    """R = diag(1/η)·Toep(f)·diag(1/n) with f(k) = head·[k = 0] + Σ weight_a·λ_a^k, all of it ≥ 0.

    G(j−d, j) = Σ_a λ_a^d·V_a(j)/(n_{j−d}·n_j) for d ≥ 1, and G(j, j) = (Σ_a V_a(j) +
    head·φ_j)/n_j².
    """

    f: Exponentials
    head: float
    eta: PiecewiseLinear
    n: PiecewiseLinear
    horizon: int | None
    falls: tuple[bool, bool]
    """Whether rows, and whether columns, are proved to fall."""

    @classmethod
    def of(cls, member: Weighted | SquareRoot) -> Family:
        """The numbers of a member; `square-root` is the one without a head."""
        if isinstance(member, SquareRoot):
            one = PiecewiseLinear(np.zeros(1, dtype=np.int64), np.ones(1))
            return cls(member.filter.summed_inverse(), 0.0, one, one, member.horizon, (True, True))
        filter_ = member.weights.filter
        eta = member.weights.eta
        n = member.weights.n
        head = float(np.prod((1 - filter_.zero_lack) / (1 - filter_.pole_lack)))
        falls = member.rows_fall, member.columns_fall
        if member.horizon is None:
            return _endless_family(member.weights, head, falls)
        return cls(filter_.forward(), head, eta, n, member.horizon, falls)

    def diagonals(self) -> Diagonals:
        """From d to all G(i, i+d), in O(T·order) each."""
        assert self.horizon is not None
        T = self.horizon
        phi = self.eta.at(0, T) ** -2.0
        n = self.n.at(0, T)
        V = np.empty((T, len(self.f.weights)))
        for a, weight in enumerate(self.f.weights):
            # Σ_k φ_{j+k}·ρ^k for each ρ = λ_a·λ_b, by doubling: every term is positive
            rates = self.f.rates[a] + self.f.rates
            S = np.repeat(phi[:, None], len(self.f.weights), axis=1)
            half = 1
            while half < T:
                S[:-half] += np.exp(-rates * half) * S[half:]
                half *= 2
            V[:, a] = weight * (S @ self.f.weights + self.head * phi)
        scaled = V / n[:, None]

        def diagonal(lag: int) -> FloatArray:
            if not lag:
                return np.asarray((V.sum(axis=1) + self.head * phi) / n**2)
            return np.asarray(scaled[lag:] @ np.exp(-self.f.rates * lag) / n[: T - lag])

        return diagonal

    @cached_property
    def over(self) -> Bounds:
        """A bound of all entries at distances from a first to a last one (None: and beyond)."""
        if self.head or self.horizon is None:
            return _Blocks(self).over
        horizon = self.horizon  # `square-root`
        return lambda start, _: _toeplitz_lag(self.f, horizon, start)


@lru_cache(maxsize=4)
def _endless_family(weights: Weights, head: float, falls: tuple[bool, bool]) -> Family:
    """One for all streams without a horizon that have these weights: their blocks take half a
    second."""
    return Family(weights.filter.forward(), head, weights.eta, weights.n, None, falls)


class _Blocks:
    """Bounds of V (upper) and of n (lower) on blocks between knots; the last one is the time from
    the last knot on.

    A block of one tick is that tick alone. Weights are constant after the last knot. A limit to the
    ticks of an endless factorization is ignored here.
    """

    def __init__(self, family: Family) -> None:
        endless = self.endless = family.horizon != int(family.eta.knots[-1]) + 1
        knots = self.knots = family.eta.knots if endless else _split(family.eta.knots)
        f = family.f
        self.rates = family.f.rates
        lengths = np.diff(knots)
        wide = np.append(lengths > 1, False)
        eta, n = (np.interp(knots, line.knots, line.values) for line in (family.eta, family.n))
        phi = eta**-2.0
        a, b = np.triu_indices(len(f.weights))
        rates = f.rates[a] + f.rates[b]
        S = knot_sums(rates, phi, lengths, endless)
        if len(lengths):
            D, size = bow_terms(rates, phi, lengths, S)
            lowest = D - EVALUATION_ERROR * size
            bow = np.where(lowest < 0, -lowest, 0.0) * np.minimum(
                1.0, (lengths[:, None] * rates) ** 2 / 8
            )
            S[:-1] = np.where(wide[:-1, None], np.maximum(S[:-1], S[1:]) + bow, S[:-1])
        phi = np.where(wide, np.maximum(phi, np.append(phi[1:], 0.0)), phi)
        low = np.where(wide, np.minimum(n, np.append(n[1:], math.inf)), n)
        V = np.repeat(family.head * phi[:, None], len(f.weights), axis=1)
        np.add.at(V.T, a, (S * f.weights[b]).T)
        np.add.at(V.T, b, (S * np.where(a == b, 0.0, f.weights[a])).T)
        V *= f.weights
        self.V = V / low[:, None]
        """(blocks, order): the largest V_a over the smallest n."""
        self.diagonal = (V.sum(axis=1) + family.head * phi) / low**2
        """(blocks,): the largest Σ_a V_a + head·φ over the smallest n."""
        self.n = [n]
        """Level k has the least n of 2^k knots from each one on."""
        while (step := 1 << len(self.n) - 1) * 2 <= len(n):
            self.n.append(np.minimum(self.n[-1][:-step], self.n[-1][step:]))

    def over(self, start: int, stop: int | None) -> float:
        """A bound of all entries at distances from `start` to `stop` (None: and beyond)."""
        if start == 0:
            diagonal = float(self.diagonal.max())
            if stop == 0:
                return diagonal
            return max(diagonal, self.over(1, stop))
        ends = np.append(self.knots[1:] - 1, self.knots[-1])
        reach = ends >= start
        if self.endless:
            reach[-1] = True
        if not reach.any():
            return 0.0
        numerator = self.V[reach] @ np.exp(-self.rates * start)
        first = np.zeros(int(reach.sum()), np.int64)
        if stop is not None:
            first = np.maximum(
                np.searchsorted(self.knots, self.knots[reach] - stop, side="right") - 1, 0
            )
        last = np.searchsorted(self.knots, np.maximum(ends[reach] - start, 0), side="left")
        if self.endless:  # columns from the last knot on
            last[-1] = len(self.knots) - 1
        return float((numerator / self._least(first, last)).max())

    def _least(self, first: IntArray, last: IntArray) -> FloatArray:
        """The least n over knots first … last."""
        level = np.log2(last - first + 1).astype(np.int64)
        result = np.empty(len(first))
        for one in np.unique(level).tolist():
            here = level == one
            table = self.n[one]
            result[here] = np.minimum(table[first[here]], table[last[here] + 1 - (1 << one)])
        return result


def _split(knots: IntArray) -> IntArray:
    """Every block cut into SPLIT parts where it is that long; lengths stay powers of two."""
    lengths = np.diff(knots)
    parts = np.minimum(lengths, SPLIT)
    inside = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(knots[:-1], parts) + inside * np.repeat(
        lengths // np.maximum(parts, 1), parts
    )
    return np.append(starts, knots[-1])


def _bounded_sum(over: Bounds, q: int, falling: bool) -> float:
    """The bound by distances from bounds over ranges of distances: for long or endless streams."""
    starts = [*range(min(q, SINGLE_LAGS))]
    while (at := starts[-1] + max(1, starts[-1] // SINGLE_LAGS)) < q:
        starts.append(at)
    stops = [*starts[1:], q]
    largest = [over(start, stop - 1) for start, stop in zip(starts, stops, strict=True)]
    at = q
    later = 0.0 if falling else over(q, None)
    while later > largest[-1]:
        stop = at + max(1, at // 4)
        largest[-1] = max(largest[-1], over(at, stop - 1))
        at = stop
        later = over(stop, None)
    return _by_distance(starts, largest, later, q)


def _toeplitz_lag(f: Exponentials, T: int, lag: int) -> float:
    """Σ_{k<T−d} f(k)·f(k+d), the largest entry of TᵀT at distance d for T = Toep(f), f falling and
    Σ weights = f(0)."""
    if lag >= T:
        return 0.0
    rates = np.add.outer(f.rates, f.rates)
    sums = geometric(rates, np.asarray(float(T - lag)))
    return float((f.weights * np.exp(-f.rates * lag)) @ sums @ f.weights)
