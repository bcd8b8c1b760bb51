"""SparsePlan: the parameters of a sparse counter and the error that they prove, from the bounds of
its parts.

All constants come from `sparse_count.proof.md`; nothing here is random and nothing sees data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from evercount._validate import check_count, stated
from evercount.bounds import simultaneous_quantile
from evercount.bounds.tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations import factorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.mechanisms.calibrate import SIGMA_TOLERANCE
from evercount.noise.laplace_sampler import quantile
from evercount.privacy import Budget


@lru_cache(maxsize=1024)
def named_radius(name: str, ticks: int, epsilon: float, beta: float) -> float:
    """The simultaneous bound of a count with this pure mechanism over its horizon, from its true
    coefficients."""
    return simultaneous_radius(pure_factorization(name, ticks), epsilon, beta, ticks)


@lru_cache(maxsize=1024)
def unit_radius(ticks: int, beta: float, endless: bool) -> float:
    """As `named_radius` for ε = 1 and the default mechanism, less the half unit: it scales with
    1/ε."""
    horizon = None if endless else ticks
    return simultaneous_radius(pure_factorization(None, horizon), 1.0, beta, ticks) - 0.5


def up_to_power(ticks: int) -> int:
    """The least power of 2 that is at least `ticks`: so bounds are computed for few different
    lengths."""
    return 1 << (ticks - 1).bit_length()


@lru_cache(maxsize=4096)
def gaussian_radius(epsilon: float, delta: float, ticks: int, beta: float) -> float:
    """The simultaneous error bound of the Gaussian counter over these ticks; half a unit for
    rounding included."""
    column, row = _norms(ticks)
    sigma = Budget(epsilon, delta).reserve(delta / 2**10).noise_multiplier() * column * (1 + 1e-9)
    return sigma * row * simultaneous_quantile(ticks, beta) + 0.5


@lru_cache(maxsize=1024)
def _norms(ticks: int) -> tuple[float, float]:
    engine = factorization(None, ticks)
    return engine.column_norm, engine.worst_row()[1]


@lru_cache(maxsize=4096)
def endless_radius(epsilon: float, delta: float, ticks: int, beta: float) -> float:
    """The simultaneous error bound of the counter without a horizon over its first ticks."""
    ticks = up_to_power(ticks)
    if delta == 0:
        return unit_radius(ticks, beta, True) / epsilon + 0.5
    engine = factorization("anytime", None)
    sigma = Budget(epsilon, delta).noise_multiplier() * (engine.column_norm * (1 + SIGMA_TOLERANCE))
    return (
        sigma
        * (1 + 1e-6)
        * float(engine.row_norms([ticks])[0])
        * simultaneous_quantile(ticks, beta)
        + 0.5
    )


@dataclass(frozen=True)
class SparsePlan:
    """The way of counting, the budget split and the proved error of a sparse counter.

    epsilon = `partition_epsilon` + `counter_epsilon`. By `method` "partition" a segment is closed
    when its count plus noise passes `threshold_at` plus noise. `spread_at` is A of the proof: no
    noise of the partition exceeds it, with chance 1 − 2β/3. With `segments` (None: unknown) the
    counter serves that many; they suffice for at most `max_ones` ones. With a horizon `threshold`
    and `spread` hold for all ticks, without one they are those of tick 1. By "plain" all of ε pays
    for a counter over ticks, and by "constant" nothing is spent.

    Attributes:
        epsilon: The whole ε.
        delta: The whole δ.
        horizon: The number of ticks, or None.
        max_ones: The promised largest number of events, or None.
        beta: The chance that the stated bounds may fail, 1 − level: the letter of the proof.
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

        **Guarantee.** max(threshold_epsilon, tick_epsilon): `sparse_count.proof.md`, theorem 1.
        Test:
        tests/sparse/test_sparse_count.py::test_partition_costs_the_larger_rate_by_exact_enumeration.
        """
        return max(self.threshold_epsilon, self.tick_epsilon)

    def sentence(self) -> str:
        """The guarantee in one sentence.

        Returns:
            The sentence.
        """
        if self.method == "constant":
            return "Nothing is released but max_ones/2, which no event changes: no budget is spent."
        promise = Budget(self.epsilon, self.delta).sentence()
        if self.method == "plain":
            return promise
        parts = (
            f"{stated(self.partition_epsilon)} for the partition and "
            f"{stated(self.counter_epsilon)} for the counter"
        )
        return f"{promise} Of epsilon, {parts}."

    def spread_at(self, tick: int) -> int:
        """A of the proof at a tick; without a horizon it grows with the logarithm of the tick.

        Args:
            tick: The 1-based tick.

        Returns:
            A.
        """
        if self.horizon is not None or self.method != "partition":
            return self.spread
        return endless_spread(
            self.threshold_epsilon, self.tick_epsilon, self.segments, tick, self.beta
        )

    def threshold_at(self, tick: int) -> int:
        """The threshold at a tick; a closed segment holds at least A fewer events than that (the
        gap).

        Args:
            tick: The 1-based tick.

        Returns:
            The threshold before its noise.
        """
        spread = self.spread_at(tick)
        if self.max_ones is None:
            return 2 * spread
        return spread + self.gap

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
        """What a ledger must be asked for: one pure budget, or the pure one of the partition and
        the counter's.

        They add up to (epsilon, delta) in exact arithmetic; `SparseCount.numeric_delta` belongs to
        the last one. A constant costs nothing, and there is nothing to ask for.

        Returns:
            No budget, one or two.
        """
        if self.method == "constant":
            return ()
        if self.delta == 0 or self.method == "plain":
            return (Budget(self.epsilon, self.delta),)
        # Both parts were cut to 20 bits of epsilon, so that their sum is exact.
        return Budget(self.partition_epsilon, 0.0), Budget(self.counter_epsilon, self.delta)

    def counter_bound(self, releases: int) -> float:
        """How far the counter is off, for all of its first releases, with chance 1 − β/3 (plain
        counters: 1 − β).

        Where the number of releases has no public limit, they hold for all numbers of releases at
        once: the number of closed segments depends on the data and on noise.

        Args:
            releases: How many releases of the counter.

        Returns:
            The bound.

        **Guarantee.** With that chance no release r of the counter is off by more than the bound of
        r. Proof: `sparse_count.proof.md`, "The number of events unknown". Test:
        tests/sparse/test_sparse_count.py::test_bounds_of_all_numbers_of_segments_hold_together.
        """
        if releases == 0 or self.method == "constant":
            return 0.0
        if self.method == "plain":
            horizon = self.horizon
            beta = self.beta
        else:
            horizon = self.segments
            beta = self.beta / 3
        if horizon is None:
            doubling = (releases - 1).bit_length()
            chance = beta / ((doubling + 1) * (doubling + 2))
            return endless_radius(self.counter_epsilon, self.delta, releases, chance)
        if self.delta > 0:
            return gaussian_radius(self.counter_epsilon, self.delta, horizon, beta)
        return named_radius(self.counter, horizon, self.counter_epsilon, beta)

    def bound(self, ones: int | None = None, ticks: int | None = None) -> float:
        """With chance 1 − β no release is farther than this from the truth while at most `ones`
        ones have come.

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
        if self.max_ones is None:
            return wide
        if ones is not None and ones > self.max_ones:
            raise ParameterError(
                f"at most {self.max_ones} ones were promised: there is no bound for {ones}"
            )
        # releases are the middle of what is possible in 0 … max_ones
        return min(wide, self.max_ones / 2)

    def bound_without_promise(self, ones: int | None = None, ticks: int | None = None) -> float:
        """As `bound`, from the noise alone: not from the promise that the count lies in 0 …
        max_ones.

        Args:
            ones: As `bound`.
            ticks: As `bound`.

        Returns:
            The bound.

        Raises:
            ParameterError: As `bound`.
        """
        if ones is None:
            ones = self.max_ones
        if ones is None:
            raise ParameterError("max_ones is unknown: say for how many ones the bound is wanted")
        ones = check_count("ones", ones, 0)
        if self.method == "constant":
            assert self.max_ones is not None
            return self.max_ones / 2
        if ticks is None:
            ticks = self.horizon
        if ticks is None:
            raise ParameterError("there is no horizon: say for how many ticks the bound is wanted")
        ticks = check_count("ticks", ticks)
        releases = ticks
        if self.method != "plain":
            releases = ones // self.gap
        return self.counter_bound(releases) + self.offset(ticks)


def fixed_spread(
    threshold_epsilon: float, tick_epsilon: float, segments: int, horizon: int, beta: float
) -> int:
    """A: |ρ_j| + |ν_t| stays within it for all segments and ticks, with chance 1 − 2β/3."""
    return quantile(threshold_epsilon, beta / 3 / segments) + quantile(
        tick_epsilon, beta / 3 / horizon
    )


def endless_spread(
    threshold_epsilon: float, tick_epsilon: float, segments: int | None, tick: int, beta: float
) -> int:
    """As `fixed_spread` for ticks without end: doubling d gives its 2^d ticks together β/3/((d +
    1)(d + 2))."""
    doubling = tick.bit_length() - 1
    chance = beta / 3 / ((doubling + 1) * (doubling + 2) << doubling)
    if segments is None:
        segment_chance = chance
    else:
        segment_chance = beta / 3 / (segments + 1)
    return _quantile(threshold_epsilon, segment_chance) + _quantile(tick_epsilon, chance)


_quantile = lru_cache(maxsize=1024)(quantile)
