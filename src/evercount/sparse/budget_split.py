"""How a sparse counter splits its budget: the search for the split with the least proved error, and
its counter.

Nothing here is random except the noise of `make_counter`, and nothing sees data.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from evercount._validate import (
    check_count,
    check_delta,
    check_name,
    check_positive,
    check_probability,
)
from evercount.errors import ParameterError
from evercount.factorizations import check_horizon, factorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import LARGEST_TICKS
from evercount.mechanisms import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.privacy.gaussian import round_down
from evercount.sparse.sparse_plan import (
    SparsePlan,
    endless_spread,
    fixed_spread,
    gaussian_radius,
    unit_radius,
    up_to_power,
)

# parts of ε for the partition that are tried; the counter has the rest
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
REFERENCE_TICKS = 2**20  # ticks at which ways of counting without a horizon are compared
METHODS = ("partition", "plain", "constant")
"""Ways of counting: a counter over private segments, a counter over ticks, and max_ones/2 without
any data."""


def plan_sparse(
    epsilon: float,
    horizon: int | None,
    delta: float = 0.0,
    max_ones: int | None = None,
    beta: float = 0.05,
    method: str | None = None,
) -> SparsePlan:
    """The way of counting with the least proved bound, and for a partition the best split of ε
    among a few hundred.

    Example:
        >>> # one event at most: 1/2 for ever is off by 1/2
        >>> plan_sparse(1.0, 1000, max_ones=1).method
        'constant'
        >>> plan_sparse(1.0, 2**20, max_ones=10**3).method
        'partition'
        >>> plan_sparse(1.0, 2**10, max_ones=10**4).method
        'plain'
    """
    epsilon = check_positive("epsilon", epsilon)
    T = check_horizon(horizon)
    delta = check_delta(delta, pure=True)
    beta = check_probability("beta", beta)
    if not 2.0**-30 <= epsilon <= 16:
        raise ParameterError(
            f"a sparse counter needs an epsilon between 2^-30 and 16, got {epsilon!r}"
        )
    s = None if max_ones is None else check_count("max_ones", max_ones)
    if s is not None and s > LARGEST_TICKS:
        raise ParameterError(
            f"max_ones must be at most 2^40, got {s}; with that many events use a plain Count"
        )
    if method is not None:
        check_name("method", method, METHODS)
    if method == "constant" and s is None:
        raise ParameterError("a constant needs max_ones: half of it is published for ever")
    return _plan_sparse(epsilon, T, delta, s, beta, method)


@lru_cache(maxsize=256)
def _plan_sparse(
    epsilon: float, T: int | None, delta: float, s: int | None, beta: float, method: str | None
) -> SparsePlan:
    if method == "partition":
        return _plan_partition(epsilon, T, delta, s, beta)
    if method == "plain":
        return _plan_without_partition(
            epsilon, T, delta, s, beta, method="plain", counter=_counter(T, delta)
        )
    if method == "constant":
        return _plan_without_partition(
            epsilon, T, delta, s, beta, method="constant", counter="none"
        )
    ticks = REFERENCE_TICKS if T is None else T
    # The order decides between equal bounds: the partition, then what needs less of the data.
    if s is None:
        ways: tuple[str, ...] = ("partition", "plain")
    else:
        ways = ("constant", "partition", "plain")
    if delta == 0 and T is not None and T > LARGEST_TICKS:
        ways = ways[:-1]  # pure counters over ticks end there
    plans = [_plan_sparse(epsilon, T, delta, s, beta, way) for way in ways]
    return min(plans, key=lambda plan: plan.bound(0 if s is None else s, ticks))


def _plan_without_partition(
    epsilon: float,
    T: int | None,
    delta: float,
    s: int | None,
    beta: float,
    *,
    method: str,
    counter: str,
) -> SparsePlan:
    """Plan a counter over ticks that has all of ε, or a constant, which has none."""
    return SparsePlan(
        epsilon=epsilon,
        delta=delta,
        horizon=T,
        max_ones=s,
        beta=beta,
        threshold_epsilon=0.0,
        tick_epsilon=0.0,
        counter_epsilon=epsilon if method == "plain" else 0.0,
        threshold=1,
        spread=0,
        segments=None,
        method=method,
        counter=counter,
    )


COUNTERS = {
    # (pure, endless)
    (True, True): "endless-bridge",
    (True, False): "bridge",
    (False, True): "anytime",
    (False, False): "balanced",
}


def _counter(horizon: int | None, delta: float) -> str:
    """Name the mechanism that counts so many segments or ticks."""
    return COUNTERS[delta == 0, horizon is None]


def _plan_partition(
    epsilon: float, T: int | None, delta: float, s: int | None, beta: float
) -> SparsePlan:
    def plan(share: float, segments: int | None, gap: int | None) -> SparsePlan:
        # one rate for thresholds and ticks: equal rates cost as much as the larger
        rate = epsilon_part(epsilon, share)
        if T is None:
            spread = endless_spread(rate, rate, segments, 1, beta)
        else:
            thresholds = T if segments is None else segments + 1
            spread = fixed_spread(rate, rate, thresholds, T, beta)
        return SparsePlan(
            epsilon=epsilon,
            delta=delta,
            horizon=T,
            max_ones=s,
            beta=beta,
            threshold_epsilon=rate,
            tick_epsilon=rate,
            counter_epsilon=round_down(Fraction(epsilon) - Fraction(rate)),
            threshold=spread + (spread if gap is None else gap),
            spread=spread,
            segments=segments,
            method="partition",
            counter=_counter(segments, delta),
        )

    if s is None:
        return plan(0.5, None, None)
    best: tuple[float, SparsePlan] | None = None
    gaps = sorted({max(1, round(g)) for g in np.geomspace(1, s + 1, 16)})
    for gap, share in product(gaps, SHARES):
        candidate = plan(share, max(1, s // gap), gap)
        offset = candidate.offset(REFERENCE_TICKS if T is None else T)
        if best is not None and offset >= best[0]:
            continue  # worse even if its counter had no error
        cost = offset + _planned_bound(candidate.counter_epsilon, delta, s // gap, beta / 3)
        if best is None or cost < best[0]:
            best = (cost, candidate)
    assert best is not None
    return best[1]


def _planned_bound(epsilon: float, delta: float, segments: int, beta: float) -> float:
    """Compute the bound of the counter that chooses the split: that of a power of 2 of segments, so
    that few are computed."""
    if segments == 0:
        return 0.0
    if delta > 0:
        return gaussian_radius(epsilon, delta, up_to_power(segments), beta)
    return unit_radius(up_to_power(segments), beta, False) / epsilon + 0.5


def epsilon_part(epsilon: float, share: float) -> float:
    """A share of ε cut to 20 bits, so that the parts add up without rounding."""
    mantissa, exponent = math.frexp(epsilon)
    return math.ldexp(math.floor(mantissa * share * 2**20), exponent - 20)


def sparse_against_plain(
    epsilon: float,
    horizons: tuple[int, ...] = (2**10, 2**14, 2**18, 2**22, 2**26),
    ones: tuple[int, ...] = (1, 10, 100, 1000, 10000),
    delta: float = 0.0,
    beta: float = 0.05,
) -> list[dict[str, Any]]:
    """One row per (horizon, ones): the bounds and whether the partition wins. The data of a
    chart."""
    # `constant` is the error of publishing ones/2 for ever, which needs no data: a counter must
    # beat that too.
    rows = []
    for T in horizons:
        plain = plan_sparse(epsilon, T, delta, None, beta, "plain").bound_without_promise(0)
        for s in (s for s in ones if s <= T):
            sparse = plan_sparse(epsilon, T, delta, s, beta, "partition").bound_without_promise()
            wins = sparse < min(plain, s / 2)
            rows.append(
                {
                    "horizon": T,
                    "ones": s,
                    "plain": plain,
                    "constant": s / 2,
                    "sparse": sparse,
                    "wins": wins,
                }
            )
    return rows


def make_counter(
    plan: SparsePlan, secret: Secret, dumped: dict[str, Any] | None = None, counters: int = 1
) -> Noise:
    """The noise of the counter over segments or ticks: of a pure mechanism, or Gaussian where delta
    is positive."""
    # Simulations ask for that of many counters at once.
    horizon = plan.segments
    if plan.method == "plain":
        horizon = plan.horizon
    if plan.delta == 0:
        tree = pure_factorization(plan.counter, horizon)
        epsilon = plan.counter_epsilon
        return build_pure(
            tree, cells=counters, grid=1.0, l1=1.0, epsilon=epsilon, secret=secret, dumped=dumped
        )
    engine = factorization(plan.counter, horizon)
    return build_noise(
        engine,
        cells=counters,
        grid=1.0,
        sensitivity=engine.column_norm,
        horizon=horizon,
        budget=Budget(plan.counter_epsilon, plan.delta),
        secret=None if dumped is not None else secret,
        dumped=dumped,
    )
