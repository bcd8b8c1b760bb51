"""Plans of sparse counters of the first form: digit trees over segments. Kept so that their snapshots go on.

Proof: `sparse_count.proof.md`, theorems 1 and 2. Counters of this form are restored and no longer built.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from evercount.bounds import simultaneous_quantile
from evercount.factorizations.laplace_base import PureFactorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.laplace_rates import node_rate
from evercount.sparse.budget_split import candidate_splits, epsilon_part, epsilon_rest
from evercount.sparse.sparse_plan import (
    FIRST,
    SparsePlan,
    anytime_sigma,
    fixed_spread,
    gaussian_radius,
    named_radius,
)

COUNTERS = (2, 3, 5, 7, 9, 13, 19, 25)
"""Bases of the digit trees that were compared."""


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
def _digit_radius(epsilon: float, ticks: int, beta: float) -> tuple[float, str]:
    """(bound, name): the least simultaneous error bound of a digit tree over these ticks, with chance 1 − beta."""
    bounds = []
    for base in COUNTERS:
        tree = DigitTree(ticks, base, balanced=base != 2)
        rate = node_rate(epsilon, 1.0, 1.0, tree.levels)
        bounds.append((laplace_sum_radius(rate, _most_weight(tree), beta / ticks), tree.name))
    return min(bounds)


def first_counter(plan: SparsePlan) -> PureFactorization | None:
    """The pure tree over segments, or None where the counter is Gaussian."""
    if plan.delta > 0:
        return None
    if plan.segments is None:
        return HybridTree()
    return pure_factorization(_digit_radius(plan.counter_epsilon, plan.segments, plan.beta / 3)[1], plan.segments)


def first_counter_bound(plan: SparsePlan, segments: int) -> float:
    """How far the counter is off, for all of its first `segments` releases, with chance 1 − β/3."""
    tree = first_counter(plan)
    planned = _planned_bound(plan, segments)
    if segments == 0 or tree is None or tree.horizon is None:
        return planned
    return min(planned, named_radius(tree.name, tree.horizon, plan.counter_epsilon, plan.beta / 3))


def _planned_bound(plan: SparsePlan, segments: int) -> float:
    """As `first_counter_bound`, by the wider tails that chose the split."""
    beta = plan.beta / 3
    if segments == 0:
        return 0.0
    if plan.segments is not None:
        if plan.delta > 0:
            return gaussian_radius(plan.counter_epsilon, plan.delta, plan.segments, beta)
        return _digit_radius(plan.counter_epsilon, plan.segments, beta)[0]
    if plan.delta > 0:
        sigma, engine = anytime_sigma("unbounded", plan.counter_epsilon, plan.delta)
        row = float(engine.row_norms([segments])[0])
        return sigma * (1 + 1e-6) * row * simultaneous_quantile(segments, beta) + 0.5
    worst, hybrid = 0.0, HybridTree()
    for epoch in range(segments.bit_length()):
        tree = hybrid.tree(epoch)
        rate = node_rate(plan.counter_epsilon, 1.0, 1.0, hybrid.node_share(epoch))
        inner = laplace_sum_radius(rate, _most_weight(tree), beta / (2 * segments))
        rate = node_rate(plan.counter_epsilon, 1.0, 1.0, hybrid.total_share)
        outer = laplace_sum_radius(rate, epoch, beta / (2 * segments))
        worst = max(worst, inner + outer)
    return worst


@lru_cache(maxsize=256)
def first_plan(epsilon: float, T: int, delta: float, s: int | None, beta: float) -> SparsePlan:
    """The plan that a counter of the first form was built with."""
    if s is None:
        parts = (epsilon_part(epsilon, 0.25), epsilon_part(epsilon, 0.25))
        spread = fixed_spread(*parts, T, T, beta)
        rest = epsilon_rest(epsilon, *parts)
        return SparsePlan(epsilon, delta, T, None, beta, *parts, rest, 2 * spread, spread, None, counter=FIRST)
    best: tuple[float, SparsePlan] | None = None
    for gap, parts in candidate_splits(epsilon, s):
        segments = max(1, s // gap)
        spread = fixed_spread(*parts, segments + 1, T, beta)
        rest = epsilon_rest(epsilon, *parts)
        plan = SparsePlan(epsilon, delta, T, s, beta, *parts, rest, spread + gap, spread, segments, counter=FIRST)
        if best is not None and plan.offset(T) >= best[0]:
            continue  # worse even if its counter had no error
        cost = plan.offset(T) + _planned_bound(plan, s // gap)
        if best is None or cost < best[0]:
            best = (cost, plan)
    assert best is not None
    return best[1]
