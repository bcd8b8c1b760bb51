"""How a sparse counter splits its budget, and the error that this proves: thresholds, segments and their counter.

All constants come from `sparse_count.proof.md`; nothing here is random and nothing sees data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from evercount._validate import check_count, check_delta, check_number, check_positive, stated
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations import Factorization, check_horizon, factorization
from evercount.factorizations.laplace_base import LARGEST_TICKS
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.mechanisms.calibrate import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from evercount.noise.laplace_sampler import quantile
from evercount.privacy import Budget

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Parts of ε for the partition that are tried; the counter has the rest."""
LEANS = (0.3, 0.4, 0.5)
"""Parts of the partition's ε for the threshold, for counters of the first form; the ticks had the rest."""
REFERENCE_TICKS = 2**20
"""Ticks at which ways of counting without a horizon are compared."""
METHODS = ("partition", "plain", "constant")
"""Ways of counting: a counter over private segments, a counter over ticks, and max_ones/2 without any data."""
FIRST = "first"
"""`SparsePlan.counter` of counters that began before this field existed: see `first_plans.py`."""


@lru_cache(maxsize=1024)
def named_radius(name: str, ticks: int, epsilon: float, beta: float) -> float:
    """The simultaneous bound of a count with this pure mechanism over its horizon, from its true coefficients."""
    return simultaneous_radius(pure_factorization(name, ticks), epsilon, beta, ticks)


@lru_cache(maxsize=1024)
def _unit_radius(ticks: int, beta: float, endless: bool) -> float:
    """As `named_radius` for ε = 1 and the default mechanism, less the half unit: it scales with 1/ε."""
    return simultaneous_radius(pure_factorization(None, None if endless else ticks), 1.0, beta, ticks) - 0.5


def _up_to_power(ticks: int) -> int:
    """The least power of 2 that is not below: bounds of few different lengths are computed."""
    return 1 << (ticks - 1).bit_length()


@lru_cache(maxsize=4096)
def gaussian_radius(epsilon: float, delta: float, ticks: int, beta: float) -> float:
    """The simultaneous error bound of the Gaussian counter over these ticks; half a unit for rounding included."""
    column, row = _norms(ticks)
    sigma = Budget(epsilon, delta).reserve(delta / 2**10).noise_multiplier() * column * (1 + 1e-9)
    return sigma * row * simultaneous_quantile(ticks, beta) + 0.5


@lru_cache(maxsize=1024)
def _norms(ticks: int) -> tuple[float, float]:
    engine = factorization(None, ticks)
    return engine.column_norm, engine.worst_row()[1]


@lru_cache(maxsize=256)
def anytime_sigma(name: str, epsilon: float, delta: float) -> tuple[float, Factorization]:
    """(σ, factorisation) of Gaussian noise without a horizon."""
    engine = factorization(name, None)
    noise = build_noise(
        "insecure-float",
        engine,
        cells=1,
        grid=1.0,
        squared_sensitivity=1.0,
        budget=Budget(epsilon, delta),
        horizon=None,
        seed=0,
    )
    return noise.sigma, engine


@lru_cache(maxsize=4096)
def endless_radius(epsilon: float, delta: float, ticks: int, beta: float) -> float:
    """The simultaneous error bound of the counter without a horizon over its first ticks."""
    ticks = _up_to_power(ticks)
    if delta == 0:
        return _unit_radius(ticks, beta, True) / epsilon + 0.5
    sigma, engine = anytime_sigma("anytime", epsilon, delta)
    return sigma * (1 + 1e-6) * float(engine.row_norms([ticks])[0]) * simultaneous_quantile(ticks, beta) + 0.5


@dataclass(frozen=True)
class SparsePlan:
    """The way of counting, the budget split and the proved error of a sparse counter.

    epsilon = `partition_epsilon` + `counter_epsilon`. By `method` "partition" a segment is closed when
    its count plus noise passes `threshold_at` plus noise. `spread_at` is A of the proof: no noise of the partition
    exceeds it, with chance 1 − 2β/3. With `segments` (None: unknown) the counter serves that many; they suffice for at
    most `max_ones` ones. With a horizon `threshold` and `spread` hold for all ticks, without one they are those of tick
    1. By "plain" all of ε pays for a counter over ticks, and by "constant" nothing is spent.

    Attributes:
        epsilon: The whole ε.
        delta: The whole δ.
        horizon: The number of ticks, or None.
        max_ones: The promised largest number of events, or None.
        beta: The chance that the stated bounds may fail.
        threshold_epsilon: The rate of the noise of thresholds.
        tick_epsilon: The rate of the noise of ticks.
        counter_epsilon: The ε of the counter.
        threshold: The threshold of a segment before its noise.
        spread: A of the proof.
        segments: How many segments the counter serves, or None.
        method: "partition", "plain" or "constant".
        counter: The mechanism of the counter.
    """

    epsilon: float
    delta: float
    horizon: int | None
    max_ones: int | None
    beta: float
    threshold_epsilon: float
    tick_epsilon: float
    counter_epsilon: float
    threshold: int
    spread: int
    segments: int | None
    method: str = "partition"
    counter: str = "bridge"

    @property
    def partition_epsilon(self) -> float:
        """What the partition costs.

        **Guarantee.** max(threshold_epsilon, tick_epsilon): `sparse_count.proof.md`, theorem 1. Counters of the first
        form reserved the sum, had more noise for it and keep it. Test:
        tests/sparse/test_sparse_count.py::test_partition_costs_the_larger_rate_by_exact_enumeration.
        """
        rates = (self.threshold_epsilon, self.tick_epsilon)
        return sum(rates) if self.counter == FIRST else max(rates)

    def sentence(self) -> str:
        """The guarantee in one sentence.

        Returns:
            The sentence.
        """
        if self.method == "constant":
            return "Nothing is released but max_ones/2, which no event changes: no budget is spent."
        promise = (
            f"All releases together are ({stated(self.epsilon)}, {stated(self.delta)})-differentially private for one "
            "event more or less"
        )
        if self.method == "plain":
            return promise + "."
        return f"{promise}: {self.partition_epsilon:g} for the partition, {self.counter_epsilon:g} for the counter."

    # -- the partition ---------------------------------------------------------------------------------------------

    def spread_at(self, tick: int) -> int:
        """A of the proof at a tick; without a horizon it grows with the logarithm of the tick.

        Args:
            tick: The 1-based tick.

        Returns:
            A.
        """
        if self.horizon is not None or self.method != "partition":
            return self.spread
        return _endless_spread(self.threshold_epsilon, self.tick_epsilon, self.segments, tick, self.beta)

    def threshold_at(self, tick: int) -> int:
        """The threshold of a tick: what a closed segment holds at least (the gap) is A less.

        Args:
            tick: The 1-based tick.

        Returns:
            The threshold before its noise.
        """
        spread = self.spread_at(tick)
        return 2 * spread if self.max_ones is None else spread + self.gap

    @property
    def gap(self) -> int:
        """The events that a closed segment holds at least."""
        return self.threshold - self.spread

    def offset(self, tick: int) -> float:
        """What is added to the counter: the middle of what an open segment may hold.

        Args:
            tick: The 1-based tick.

        Returns:
            The number that is added.
        """
        if self.method != "partition":
            return 0.0
        return (self.threshold_at(tick) + self.spread_at(tick)) / 2

    def budgets(self) -> tuple[Budget, ...]:
        """What a ledger must be asked for: one pure budget, or the pure one of the partition and the counter's.

        They add up to (epsilon, delta) in exact arithmetic; `SparseCount.numeric_delta` belongs to the last one. A
        constant costs nothing, and there is nothing to ask for.

        Returns:
            No budget, one or two.
        """
        if self.method == "constant":
            return ()
        if self.delta == 0 or self.method == "plain":
            return (Budget(self.epsilon, self.delta),)
        # Both parts were cut to 20 bits of epsilon, so that their sum is exact.
        return Budget(self.partition_epsilon, 0.0), Budget(self.counter_epsilon, self.delta)

    # -- errors ----------------------------------------------------------------------------------------------------

    def counter_bound(self, releases: int, together: bool = True) -> float:
        """How far the counter is off, for all of its first releases, with chance 1 − β/3 (plain counters: 1 − β).

        Where the number of releases has no public limit, they hold for all numbers of releases at once: the number of
        closed segments depends on the data and on noise.

        Args:
            releases: How many releases of the counter.
            together: Whether they hold at once; False for counters that began when they held for one number each.

        Returns:
            The bound.

        **Guarantee.** With that chance no release r of the counter is off by more than the bound of r. Proof:
        `sparse_count.proof.md`, "The number of events unknown". Test:
        tests/sparse/test_sparse_count.py::test_bounds_of_all_numbers_of_segments_hold_together.
        """
        if self.counter == FIRST:
            from evercount.sparse.first_plans import first_counter_bound

            return first_counter_bound(self, releases)
        if releases == 0 or self.method == "constant":
            return 0.0
        served, beta = (self.horizon, self.beta) if self.method == "plain" else (self.segments, self.beta / 3)
        if served is None:
            doubling = (releases - 1).bit_length()
            chance = beta / ((doubling + 1) * (doubling + 2)) if together else beta
            return endless_radius(self.counter_epsilon, self.delta, releases, chance)
        if self.delta > 0:
            return gaussian_radius(self.counter_epsilon, self.delta, served, beta)
        return named_radius(self.counter, served, self.counter_epsilon, beta)

    def bound(self, ones: int | None = None, ticks: int | None = None) -> float:
        """With chance 1 − β no release is farther than this from the truth while at most `ones` ones have come.

        Args:
            ones: The number of events; `max_ones` by default.
            ticks: The number of ticks; the horizon by default.

        Returns:
            The bound.

        Raises:
            ParameterError: `max_ones` or the horizon is unknown, and `ones` or `ticks` is missing.

        Proof: `sparse_count.proof.md`, theorem 2. Test:
        tests/sparse/test_sparse_count.py::test_errors_stay_within_the_bound.
        """
        wide = self.bound_without_promise(ones, ticks)
        if self.max_ones is None or self.counter == FIRST:
            return wide
        if ones is not None and ones > self.max_ones:
            raise ParameterError(f"at most {self.max_ones} ones were promised: there is no bound for {ones}")
        return min(wide, self.max_ones / 2)  # releases are the middle of what is possible in 0 … max_ones

    def bound_without_promise(self, ones: int | None = None, ticks: int | None = None) -> float:
        """As `bound`, from the noise alone: not from the promise that the count lies in 0 … max_ones.

        Args:
            ones: As `bound`.
            ticks: As `bound`.

        Returns:
            The bound.

        Raises:
            ParameterError: As `bound`.
        """
        ones = self.max_ones if ones is None else ones
        if ones is None:
            raise ParameterError("max_ones is unknown: say for how many ones the bound is wanted")
        ones = _check_ones(ones)
        if self.method == "constant":
            assert self.max_ones is not None
            return self.max_ones / 2
        ticks = self.horizon if ticks is None else ticks
        if ticks is None:
            raise ParameterError("there is no horizon: say for how many ticks the bound is wanted")
        ticks = check_count("ticks", ticks)
        return self.counter_bound(ticks if self.method == "plain" else ones // self.gap) + self.offset(ticks)


def _check_ones(ones: object) -> int:
    """A number of ones: as `check_count`, and 0."""
    return 0 if type(ones) is int and ones == 0 else check_count("ones", ones)


def fixed_spread(threshold_epsilon: float, tick_epsilon: float, segments: int, horizon: int, beta: float) -> int:
    """A: |ρ_j| + |ν_t| stays within it for all segments and ticks, with chance 1 − 2β/3."""
    return quantile(threshold_epsilon, beta / 3 / segments) + quantile(tick_epsilon, beta / 3 / horizon)


def _endless_spread(threshold_epsilon: float, tick_epsilon: float, segments: int | None, tick: int, beta: float) -> int:
    """As `fixed_spread` for ticks without end: doubling d gives its 2^d ticks together β/3/((d + 1)(d + 2))."""
    doubling = tick.bit_length() - 1
    chance = beta / 3 / ((doubling + 1) * (doubling + 2) << doubling)
    segment_chance = chance if segments is None else beta / 3 / (segments + 1)
    return _quantile(threshold_epsilon, segment_chance) + _quantile(tick_epsilon, chance)


_quantile = lru_cache(maxsize=1024)(quantile)


def plan_sparse(
    epsilon: float,
    horizon: int | None,
    delta: float = 0.0,
    max_ones: int | None = None,
    beta: float = 0.05,
    method: str | None = None,
) -> SparsePlan:
    """The way of counting with the least proved bound, and for a partition the best split of ε among a few hundred.

    Args:
        epsilon: The whole budget, from 2^−30 to 16.
        horizon: The number of ticks, or None: then thresholds grow with the logarithm of the tick, and ways of counting
            are compared at 2^20 ticks.
        delta: 0 for pure privacy.
        max_ones: A public promise about the number of events; None where there is none.
        beta: The chance that bounds may fail.
        method: One of `METHODS`; None takes the one of the least bound. Without `max_ones` that is the partition,
            unless the plain counter is better even before any event.

    Raises:
        ParameterError: An argument is out of its range, or a constant is asked for without `max_ones`.

    Example:
        >>> plan_sparse(1.0, 1000, max_ones=1).method  # one event at most: 1/2 for ever is off by 1/2
        'constant'
        >>> plan_sparse(1.0, 2**20, max_ones=10**3).method
        'partition'
        >>> plan_sparse(1.0, 2**10, max_ones=10**4).method
        'plain'
    """
    epsilon = check_positive("epsilon", epsilon)
    T = check_horizon(horizon, unbounded=True)
    delta = check_delta(delta, pure=True)
    beta = check_number("beta", beta)
    if not 0 < beta < 1:
        raise ParameterError(f"beta must lie between 0 and 1, got {beta!r}")
    if not 2.0**-30 <= epsilon <= 16:
        raise ParameterError(f"a sparse counter needs an epsilon between 2^-30 and 16, got {epsilon!r}")
    s = None if max_ones is None else check_count("max_ones", max_ones)
    if s is not None and s > LARGEST_TICKS:
        raise ParameterError(f"max_ones must be at most 2^40, got {s}; with that many events use a plain Count")
    if method is not None and not (isinstance(method, str) and method in METHODS):
        raise ParameterError(f"method must be one of {', '.join(METHODS)} or None, got {method!r}")
    if method == "constant" and s is None:
        raise ParameterError("a constant needs max_ones: half of it is published for ever")
    return _plan_sparse(epsilon, T, delta, s, beta, method)


@lru_cache(maxsize=256)
def _plan_sparse(
    epsilon: float, T: int | None, delta: float, s: int | None, beta: float, method: str | None
) -> SparsePlan:
    if method == "partition":
        return _plan_partition(epsilon, T, delta, s, beta)
    nothing = (0.0, 0.0)
    if method == "plain":
        return SparsePlan(epsilon, delta, T, s, beta, *nothing, epsilon, 1, 0, None, "plain", _counter(T, delta))
    if method == "constant":
        return SparsePlan(epsilon, delta, T, s, beta, *nothing, 0.0, 1, 0, None, "constant", "none")
    ticks = REFERENCE_TICKS if T is None else T
    # The order decides between equal bounds: the partition, then what needs less of the data.
    ways: tuple[str, ...] = ("partition", "plain") if s is None else ("constant", "partition", "plain")
    if delta == 0 and T is not None and T > LARGEST_TICKS:
        ways = ways[:-1]  # pure counters over ticks end there
    plans = [_plan_sparse(epsilon, T, delta, s, beta, way) for way in ways]
    return min(plans, key=lambda plan: plan.bound(0 if s is None else s, ticks))


def _counter(served: int | None, delta: float) -> str:
    """The factorisation of the counter over this many segments or ticks."""
    if delta == 0:
        return "endless-bridge" if served is None else "bridge"
    return "anytime" if served is None else "balanced"


def _plan_partition(epsilon: float, T: int | None, delta: float, s: int | None, beta: float) -> SparsePlan:
    def plan(parts: tuple[float, float], segments: int | None, gap: int | None) -> SparsePlan:
        if T is None:
            spread = _endless_spread(*parts, segments, 1, beta)
        else:
            spread = fixed_spread(*parts, T if segments is None else segments + 1, T, beta)
        rest, threshold = epsilon_rest(epsilon, max(parts)), spread + (spread if gap is None else gap)
        counter = _counter(segments, delta)
        return SparsePlan(epsilon, delta, T, s, beta, *parts, rest, threshold, spread, segments, "partition", counter)

    if s is None:
        return plan((epsilon_part(epsilon, 0.5), epsilon_part(epsilon, 0.5)), None, None)
    best: tuple[float, SparsePlan] | None = None
    for gap, parts in equal_splits(epsilon, s):
        tried = plan(parts, max(1, s // gap), gap)
        offset = tried.offset(REFERENCE_TICKS if T is None else T)
        if best is not None and offset >= best[0]:
            continue  # its counter would have to be free
        cost = offset + _planned_bound(tried.counter_epsilon, delta, s // gap, beta / 3)
        if best is None or cost < best[0]:
            best = (cost, tried)
    assert best is not None
    return best[1]


def _planned_bound(epsilon: float, delta: float, segments: int, beta: float) -> float:
    """The bound of the counter that chooses the split: that of a power of 2 of segments, so that few are computed."""
    if segments == 0:
        return 0.0
    if delta > 0:
        return gaussian_radius(epsilon, delta, _up_to_power(segments), beta)
    return _unit_radius(_up_to_power(segments), beta, False) / epsilon + 0.5


def _gaps(ones: int) -> list[int]:
    """Numbers of events of a closed segment that are tried."""
    return sorted({max(1, round(g)) for g in np.geomspace(1, ones + 1, 16)})


def equal_splits(epsilon: float, ones: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """(gap, (ε of thresholds, ε of ticks)) of all splits that are tried: equal rates cost as much as the larger one."""
    for gap in _gaps(ones):
        for share in SHARES:
            yield gap, (epsilon_part(epsilon, share), epsilon_part(epsilon, share))


def candidate_splits(epsilon: float, ones: int) -> Iterator[tuple[int, tuple[float, float]]]:
    """As `equal_splits`, for counters of the first form, which reserved the sum of both rates."""
    for gap in _gaps(ones):
        for share in SHARES:
            for lean in LEANS:
                yield gap, (epsilon_part(epsilon, share * lean), epsilon_part(epsilon, share * (1 - lean)))


def epsilon_part(epsilon: float, share: float) -> float:
    """A share of ε cut to 20 bits, so that the parts add up without rounding."""
    mantissa, exponent = math.frexp(epsilon)
    return math.ldexp(math.floor(mantissa * share * 2**20), exponent - 20)


def epsilon_rest(epsilon: float, *parts: float) -> float:
    """ε minus the parts, never more than what is left in exact arithmetic."""
    exact = Fraction(epsilon) - sum((Fraction(part) for part in parts), Fraction(0))
    rest = float(exact)
    return rest if Fraction(rest) <= exact else math.nextafter(rest, 0.0)


def plain_bound(epsilon: float, horizon: int, delta: float = 0.0, beta: float = 0.05, name: str | None = None) -> float:
    """The simultaneous bound of the counter without partition, by the same tails: what a sparse counter must beat.

    `name` is the pure mechanism where δ = 0; by default the one of a new stream.
    """
    if delta > 0:
        return gaussian_radius(epsilon, delta, horizon, beta)
    return named_radius("bridge" if name is None else name, horizon, epsilon, beta)


def sparse_against_plain(
    epsilon: float,
    horizons: tuple[int, ...] = (2**10, 2**14, 2**18, 2**22, 2**26),
    ones: tuple[int, ...] = (1, 10, 100, 1000, 10000),
    delta: float = 0.0,
    beta: float = 0.05,
) -> list[dict[str, Any]]:
    """One row per (horizon, ones): the bounds and whether the partition wins. The data of a chart.

    `constant` is the error of publishing ones/2 for ever, which needs no data: a counter must beat that too.
    """
    rows = []
    for T in horizons:
        plain = plain_bound(epsilon, T, delta, beta)
        for s in ones:
            if s <= T:
                sparse = plan_sparse(epsilon, T, delta, s, beta, "partition").bound_without_promise()
                wins = sparse < min(plain, s / 2)
                rows.append(
                    {"horizon": T, "ones": s, "plain": plain, "constant": s / 2, "sparse": sparse, "wins": wins}
                )
    return rows


def make_counter(plan: SparsePlan, secret: Secret, dumped: dict[str, Any] | None = None) -> Noise:
    """The noise of the counter over segments or ticks: of a pure mechanism, or Gaussian where delta is positive."""
    served = plan.horizon if plan.method == "plain" else plan.segments
    if plan.delta == 0:
        if plan.counter == FIRST:
            from evercount.sparse.first_plans import first_counter

            tree = first_counter(plan)
            assert tree is not None
        else:
            tree = pure_factorization(plan.counter, served)
        return build_pure(
            "exact", tree, cells=1, grid=1.0, l1=1.0, epsilon=plan.counter_epsilon, secret=secret, dumped=dumped
        )
    name = ("unbounded" if served is None else None) if plan.counter == FIRST else plan.counter
    return build_noise(
        "exact",
        factorization(name, served),
        cells=1,
        grid=1.0,
        squared_sensitivity=1.0,
        budget=Budget(plan.counter_epsilon, plan.delta),
        horizon=served,
        secret=None if dumped is not None else secret,
        dumped=dumped,
    )
