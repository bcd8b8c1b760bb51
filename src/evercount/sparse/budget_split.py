"""How a sparse counter splits its budget, and the error that this proves: thresholds, segments and their counter.

All constants come from `sparse_count.proof.md`; nothing here is random and nothing sees data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, cast, get_args

import numpy as np

from evercount._validate import check_count, check_delta, check_name, check_number, check_positive, stated
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations import check_horizon, factorization
from evercount.factorizations.laplace_base import LARGEST_TICKS, PureFactorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.calibrate import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure
from evercount.mechanisms.laplace_rates import node_rate
from evercount.noise import Secret
from evercount.noise.laplace_sampler import quantile
from evercount.privacy import Budget

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Parts of ε for the partition that are tried; the counter has the rest."""
LEANS = (0.3, 0.4, 0.5)
"""Parts of the partition's ε for the threshold that are tried under the rule "sum"; the ticks have the rest."""
PartitionRule = Literal["max", "sum"]
"""What the partition costs: the larger rate (new counters), or their sum (counters that began earlier)."""
COUNTERS = (2, 3, 5, 7, 9, 13, 19, 25)


def laplace_sum_radius(rate: float, weight: int, beta: float) -> float:
    """x with P(|X_1 + … + X_weight| ≥ x) ≤ beta for independent discrete Laplace numbers, by Chernoff's bound.

    Every λ in (0, rate) gives a valid x = (ln(2/β) + weight·ln E exp(λX))/λ; the least over a grid is returned.
    """
    if weight == 0:
        return 0.0
    share = np.linspace(0.01, 0.99, 99) * rate
    q = math.exp(-rate)
    # E exp(λX) = (1 − q)²/((1 − q·e^λ)(1 − q·e^−λ)); in differences of exponents, stable for small rates.
    log_mgf = 2 * np.log(-np.expm1(-rate)) - np.log(-np.expm1(share - rate)) - np.log1p(-q * np.exp(-share))
    return float(((math.log(2 / beta) + weight * log_mgf) / share).min()) * (1 + 1e-12)


def _most_weight(tree: DigitTree) -> int:
    return int(tree.weight([tree.worst_row()[0]])[0])


@lru_cache(maxsize=4096)
def pure_radius(epsilon: float, ticks: int, beta: float) -> tuple[float, str]:
    """(bound, name): the least simultaneous error bound of a pure tree over so many ticks, with chance 1 − beta."""
    trees = (DigitTree(ticks, base, balanced=base != 2) for base in COUNTERS)
    return min((tree_radius(tree, epsilon, beta), tree.name) for tree in trees)


def tree_radius(tree: DigitTree, epsilon: float, beta: float) -> float:
    """The simultaneous error bound of a count with this pure tree over its horizon, with chance 1 − beta."""
    assert tree.horizon is not None
    rate = node_rate(epsilon, 1.0, 1.0, tree.levels)
    return laplace_sum_radius(rate, _most_weight(tree), beta / tree.horizon)


@lru_cache(maxsize=1024)
def _named_radius(name: str, ticks: int, epsilon: float, beta: float) -> float:
    return _pure_radius(pure_factorization(name, ticks), epsilon, beta)


def _pure_radius(tree: PureFactorization, epsilon: float, beta: float) -> float:
    """The simultaneous bound of a count with this mechanism over its horizon, from its true coefficients."""
    assert tree.horizon is not None
    return simultaneous_radius(tree, epsilon, beta, tree.horizon)


@lru_cache(maxsize=4096)
def gaussian_radius(epsilon: float, delta: float, ticks: int, beta: float) -> float:
    """The simultaneous error bound of the Gaussian counter over so many ticks; half a unit for rounding included."""
    column, row = _norms(ticks)
    sigma = Budget(epsilon, delta).reserve(delta / 2**10).noise_multiplier() * column * (1 + 1e-9)
    return sigma * row * simultaneous_quantile(ticks, beta) + 0.5


@lru_cache(maxsize=1024)
def _norms(ticks: int) -> tuple[float, float]:
    engine = factorization(None, ticks)
    return engine.column_norm, engine.worst_row()[1]


@dataclass(frozen=True)
class SparsePlan:
    """The budget split and the proved error of a sparse counter.

    epsilon = `partition_epsilon` + `counter_epsilon`. A segment is closed when its count plus noise of rate
    `tick_epsilon` passes `threshold` plus noise of rate `threshold_epsilon`. `spread` is A of the proof: no noise of
    the partition exceeds it, with chance 1 − 2β/3. With `segments` (None: unknown) the counter serves that many; they
    suffice for at most `max_ones` ones.
    """

    epsilon: float
    delta: float
    horizon: int
    max_ones: int | None
    beta: float
    threshold_epsilon: float
    tick_epsilon: float
    counter_epsilon: float
    threshold: int
    spread: int
    segments: int | None
    rule: PartitionRule = "max"

    @property
    def partition_epsilon(self) -> float:
        """What the partition costs.

        **Guarantee.** max(threshold_epsilon, tick_epsilon): `sparse_count.proof.md`, theorem 1. Counters that began
        under the rule "sum" had more noise for their ε and keep it. Test:
        tests/sparse/test_sparse_count.py::test_partition_costs_the_larger_rate_by_exact_enumeration.
        """
        rates = (self.threshold_epsilon, self.tick_epsilon)
        return max(rates) if self.rule == "max" else sum(rates)

    def sentence(self) -> str:
        """The guarantee in one sentence."""
        return (
            f"All releases together are ({stated(self.epsilon)}, {stated(self.delta)})-differentially private for one "
            f"event more or less: {self.partition_epsilon:g} for the partition, {self.counter_epsilon:g} for the "
            "counter."
        )

    @property
    def offset(self) -> float:
        """What is added to the counter: the middle of what an open segment may hold."""
        return (self.threshold + self.spread) / 2

    def budgets(self) -> tuple[Budget, ...]:
        """What a ledger must be asked for: one pure budget, or the pure one of the partition and the counter's.

        They add up to (epsilon, delta) in exact arithmetic; `SparseCount.numeric_delta` belongs to the last one.
        """
        if self.delta == 0:
            return (Budget(self.epsilon, 0.0),)
        # Both parts were cut to 20 bits of epsilon, so that their sum is exact.
        return Budget(self.partition_epsilon, 0.0), Budget(self.counter_epsilon, self.delta)

    def counter(self) -> PureFactorization | None:
        """The pure tree over segments, or None where the counter is Gaussian."""
        if self.delta > 0:
            return None
        if self.segments is None:
            return HybridTree()
        return pure_factorization(_tree_name(self.counter_epsilon, self.segments, self.beta / 3), self.segments)

    def counter_bound(self, segments: int) -> float:
        """How far the counter is off, for all of its first `segments` releases, with chance 1 − β/3."""
        tree = self.counter()
        if segments == 0 or tree is None or tree.horizon is None:
            return self.planned_bound(segments)
        return min(
            self.planned_bound(segments), _named_radius(tree.name, tree.horizon, self.counter_epsilon, self.beta / 3)
        )

    def planned_bound(self, segments: int) -> float:
        """As `counter_bound`, by the wider tails that choose the split: they stay, so that snapshots can go on."""
        beta = self.beta / 3
        if segments == 0:
            return 0.0
        if self.segments is not None:
            if self.delta > 0:
                return gaussian_radius(self.counter_epsilon, self.delta, self.segments, beta)
            return pure_radius(self.counter_epsilon, self.segments, beta)[0]
        if self.delta > 0:
            engine = factorization("unbounded", None)
            noise = build_noise(
                "insecure-float",
                engine,
                cells=1,
                grid=1.0,
                squared_sensitivity=1.0,
                budget=Budget(self.counter_epsilon, self.delta),
                horizon=None,
                seed=0,
            )
            row = float(engine.row_norms([segments])[0])
            return noise.sigma * (1 + 1e-6) * row * simultaneous_quantile(segments, beta) + 0.5
        worst, hybrid = 0.0, HybridTree()
        for epoch in range(segments.bit_length()):
            tree = hybrid.tree(epoch)
            rate = node_rate(self.counter_epsilon, 1.0, 1.0, hybrid.node_share(epoch))
            inner = laplace_sum_radius(rate, _most_weight(tree), beta / (2 * segments))
            rate = node_rate(self.counter_epsilon, 1.0, 1.0, hybrid.total_share)
            outer = laplace_sum_radius(rate, epoch, beta / (2 * segments))
            worst = max(worst, inner + outer)
        return worst

    def bound(self, ones: int | None = None) -> float:
        """With chance 1 − β no release is farther than this from the truth while at most `ones` ones have come.

        `ones` defaults to `max_ones`. Proof: `sparse_count.proof.md`, theorem 2. Test:
        tests/sparse/test_sparse_count.py::test_errors_stay_within_the_bound.
        """
        ones = self.max_ones if ones is None else ones
        if ones is None:
            raise ParameterError("max_ones is unknown: say for how many ones the bound is wanted")
        return self.offset + self.counter_bound(_check_ones(ones) // (self.threshold - self.spread))


def _check_ones(ones: object) -> int:
    """A number of ones: as `check_count`, and 0."""
    return 0 if type(ones) is int and ones == 0 else check_count("ones", ones)


def _tree_name(epsilon: float, ticks: int, beta: float) -> str:
    return pure_radius(epsilon, ticks, beta)[1]


def _spread(threshold_epsilon: float, tick_epsilon: float, segments: int, horizon: int, beta: float) -> int:
    """A: |ρ_j| + |ν_t| stays within it for all segments and ticks, with chance 1 − 2β/3."""
    return quantile(threshold_epsilon, beta / 3 / segments) + quantile(tick_epsilon, beta / 3 / horizon)


def plan_sparse(
    epsilon: float,
    horizon: int,
    delta: float = 0.0,
    max_ones: int | None = None,
    beta: float = 0.05,
    rule: PartitionRule = "max",
) -> SparsePlan:
    """The split of ε with the least proved bound among a few hundred; without `max_ones`, a fixed one.

    `rule` is "sum" only for counters that began before the partition's cost was proved to be the larger rate.
    """
    epsilon = check_positive("epsilon", epsilon)
    if horizon is None:
        raise ParameterError("a sparse counter needs a known horizon; a generous one costs little (ln T)")
    T = check_horizon(horizon)
    assert T is not None
    delta = check_delta(delta, pure=True)
    beta = check_number("beta", beta)
    if not 0 < beta < 1:
        raise ParameterError(f"beta must lie between 0 and 1, got {beta!r}")
    if not 2.0**-30 <= epsilon <= 16:
        raise ParameterError(f"a sparse counter needs an epsilon between 2^-30 and 16, got {epsilon!r}")
    s = None if max_ones is None else check_count("max_ones", max_ones)
    if s is not None and s > LARGEST_TICKS:
        raise ParameterError(f"max_ones must be at most 2^40, got {s}; with that many events use a plain Count")
    return _plan_sparse(epsilon, T, delta, s, beta, check_rule(rule))


def check_rule(rule: str) -> PartitionRule:
    """The rule of that name, or a ParameterError."""
    check_name("rule for the cost of a partition", rule, get_args(PartitionRule))
    return cast(PartitionRule, rule)


def _splits(epsilon: float, rule: PartitionRule) -> list[tuple[tuple[float, float], float]]:
    """((threshold, tick), counter): the splits of ε that are tried. Equal rates cost no more than the larger one."""
    if rule == "max":
        return [((part, part), _rest(epsilon, part)) for part in (_below(epsilon, share) for share in SHARES)]
    pairs = [(_below(epsilon, share * lean), _below(epsilon, share * (1 - lean))) for share in SHARES for lean in LEANS]
    return [(parts, _rest(epsilon, *parts)) for parts in pairs]


@lru_cache(maxsize=256)
def _plan_sparse(epsilon: float, T: int, delta: float, s: int | None, beta: float, rule: PartitionRule) -> SparsePlan:
    if s is None:
        part = _below(epsilon, 0.5 if rule == "max" else 0.25)
        spread, rest = _spread(part, part, T, T, beta), _rest(epsilon, *((part,) if rule == "max" else (part, part)))
        return SparsePlan(epsilon, delta, T, None, beta, part, part, rest, 2 * spread, spread, None, rule)
    best: tuple[float, SparsePlan] | None = None
    gaps = sorted({max(1, round(g)) for g in np.geomspace(1, s + 1, 16)})
    for gap in gaps:
        segments = max(1, s // gap)
        for parts, rest in _splits(epsilon, rule):
            spread = _spread(*parts, segments + 1, T, beta)
            plan = SparsePlan(epsilon, delta, T, s, beta, *parts, rest, spread + gap, spread, segments, rule)
            if best is not None and plan.offset >= best[0]:
                continue  # its counter would have to be free
            cost = plan.offset + plan.planned_bound(s // gap)
            if best is None or cost < best[0]:
                best = (cost, plan)
    assert best is not None
    return best[1]


def _below(epsilon: float, share: float) -> float:
    """A share of ε cut to 20 bits, so that the parts add up without rounding."""
    mantissa, exponent = math.frexp(epsilon)
    return math.ldexp(math.floor(mantissa * share * 2**20), exponent - 20)


def _rest(epsilon: float, *parts: float) -> float:
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
    return _pure_radius(pure_factorization(name, horizon), epsilon, beta)


def sparse_against_plain(
    epsilon: float,
    horizons: tuple[int, ...] = (2**10, 2**14, 2**18, 2**22, 2**26),
    ones: tuple[int, ...] = (1, 10, 100, 1000, 10000),
    delta: float = 0.0,
    beta: float = 0.05,
) -> list[dict[str, Any]]:
    """One row per (horizon, ones): the bounds and whether the sparse counter wins. The data of a chart.

    `constant` is the error of publishing ones/2 for ever, which needs no data: a counter must beat that too.
    """
    rows = []
    for T in horizons:
        plain = plain_bound(epsilon, T, delta, beta)
        for s in ones:
            if s <= T:
                sparse = plan_sparse(epsilon, T, delta, s, beta).bound()
                wins = sparse < min(plain, s / 2)
                rows.append(
                    {"horizon": T, "ones": s, "plain": plain, "constant": s / 2, "sparse": sparse, "wins": wins}
                )
    return rows


def make_counter(plan: SparsePlan, secret: Secret, dumped: dict[str, Any] | None = None) -> Noise:
    """The noise of the counter over segments: a pure tree, or exact Gaussian noise where delta is positive."""
    tree = plan.counter()
    if tree is not None:
        return build_pure(
            "exact", tree, cells=1, grid=1.0, l1=1.0, epsilon=plan.counter_epsilon, secret=secret, dumped=dumped
        )
    return build_noise(
        "exact",
        factorization("unbounded" if plan.segments is None else None, plan.segments),
        cells=1,
        grid=1.0,
        squared_sensitivity=1.0,
        budget=Budget(plan.counter_epsilon, plan.delta),
        horizon=plan.segments,
        secret=None if dumped is not None else secret,
        dumped=dumped,
    )
