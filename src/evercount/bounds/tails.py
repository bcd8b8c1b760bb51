"""Tails of normal numbers and of sums of Laplace numbers: for intervals, bounds for all ticks,
plans, sparse counters.

A normal quantile would be too small: a single Laplace number leaves ±1.96 std with probability 6.3
%, not 5 %. A sum of numbers with different scales has tails between those of a normal and of one
Laplace number. Let V be its variance and m its largest scale: then n = ⌊V/(2m²)⌋ equal Laplace
numbers of the same variance, or a normal one, leave every interval at least as often
(`heaviest_tail`), and those tails are known in closed form. For equal scales n is their number.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_probability
from evercount.errors import ParameterError
from evercount.factorizations.laplace_choice import EndlessBridge, WindowTree
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, PureFactorization


def _quantile(log_count: float, beta: float) -> float:
    """The smallest a with count·2·(1−Φ(a)) ≤ β, rounded up. The count is given by its logarithm: it
    may be huge."""
    # imported here: it takes longer than all the rest of start-up
    from scipy.special import log_ndtr, ndtri_exp

    target = math.log(beta) - math.log(2) - log_count
    a = -float(ndtri_exp(target))
    # The logarithms are wrong by a few units in the last place at most. Step up until the claim
    # holds despite that.
    slack = 8 * 2.0**-52 * (1 + abs(target) + log_count)
    step = 2.0**-52 * max(a, 1.0)
    while float(log_ndtr(-a)) + slack > target:
        a += step
        step *= 2
    return a


def interval_quantile(beta: float) -> float:
    """The a with 2·(1−Φ(a)) = β: one tick's error stays within a·std with probability 1 − β.

    Args:
        beta: The probability of a larger error.

    Returns:
        a, rounded up.

    Raises:
        ParameterError: `beta` is not strictly between 0 and 1.

    >>> round(interval_quantile(0.05), 3)
    1.96
    """
    return _quantile(0.0, check_probability("beta", beta))


def simultaneous_quantile(ticks: int, beta: float) -> float:
    """The smallest a with ticks·2·(1−Φ(a)) ≤ β, rounded up; exact normal tails, stable for any
    number of ticks.

    **Guarantee.** If each of `ticks` errors is normal with mean 0, then with probability at least 1
    − β all of them are within a times their own std, whatever their correlation (union bound).
    Test: `tests/bounds/test_normal_tails.py::test_simultaneous_quantile_against_high_precision`.

    Args:
        ticks: The number of errors that must hold together.
        beta: The probability that any of them is larger.

    Returns:
        a, rounded up.

    Raises:
        ParameterError: `ticks` is not a whole number of at least 1, or `beta` is not strictly
            between 0 and 1.

    >>> round(simultaneous_quantile(65536, 0.05), 3)
    4.945
    """
    return _quantile(math.log(check_count("ticks", ticks)), check_probability("beta", beta))


def simultaneous_closed_form(ticks: int, beta: float) -> float:
    """√(2 ln(ticks/β)), an upper bound of `simultaneous_quantile`, because 2·(1−Φ(a)) ≤
    exp(−a²/2)."""
    return math.sqrt(
        2 * (math.log(check_count("ticks", ticks)) - math.log(check_probability("beta", beta)))
    )


def simultaneous_paper_proof(ticks: int, beta: float) -> float:
    """√2·ln(2·ticks/β), the factor in the paper's proof of Theorem 2."""
    # The square root around the logarithm is missing.
    return math.sqrt(2) * math.log(
        2 * check_count("ticks", ticks) / check_probability("beta", beta)
    )


def simultaneous_paper_two_thirds(ticks: int) -> float:
    """√ln(6·ticks), the paper's factor for probability 2/3. Its tail bound with β = 1/3 gives √(2
    ln(6·ticks))."""
    return math.sqrt(math.log(6 * check_count("ticks", ticks)))


def simultaneous_quantile_of_log(log_count: float, beta: float) -> float:
    """`simultaneous_quantile` for a number of errors too large to write down, given by its natural
    logarithm."""
    if not 0 <= log_count < math.inf:
        raise ParameterError(f"log_count must be a finite number of at least 0, got {log_count!r}")
    return _quantile(float(log_count), check_probability("beta", beta))


ALL_TICKS = 1 << 20
"""Bounds for all ticks look at each of them up to this many; beyond, all are taken to be as bad as
the worst."""
RARE = 1e-12
"""Chances below this per tick are left to a plain union over ticks: `endless_tails.py` has no tails
that far out."""
# sums of more numbers are treated as this many: the quantile only falls with their number
_NORMAL = 4096
_DIGITS = 6  # binary digits of a number of summands that a half width is computed for
_TICKS_AT_ONCE = 1 << 16
_GROUPS_PER_E = 1000  # ticks whose stds agree to 0.1 % count as ticks of the larger std


def laplace_tail(weight: int, x: npt.ArrayLike) -> FloatArray:
    """P(|S| > x) for the sum S of `weight` independent Laplace numbers of scale 1."""
    # |S| is a gamma variable of shape weight − j with probability C(weight−1+j, j)/2^(weight−1+j),
    # j = 0 … weight−1.
    from scipy.special import gammaincc, gammaln

    j = np.arange(weight)
    n = weight - 1 + j
    chance = np.exp(gammaln(n + 1) - gammaln(j + 1) - gammaln(weight) - n * math.log(2))
    return np.asarray(gammaincc(weight - j, np.asarray(x)[..., None]) @ chance)


@lru_cache(maxsize=4096)
def laplace_quantile(weight: int, beta: float) -> float:
    """a with P(|S| > a·std) = beta for a sum of `weight` independent Laplace numbers; rounded
    up."""
    check_probability("beta", beta)
    if weight == 1:
        return -math.log(beta) / math.sqrt(2) * (1 + 1e-12)
    weight = min(weight, _NORMAL)
    std = math.sqrt(2 * weight)
    low = 0.0
    high = (math.log(2 / beta) + 2) * 2 + 10
    for _ in range(60):
        middle = (low + high) / 2
        if laplace_tail(weight, middle * std) > beta:
            low = middle
        else:
            high = middle
    return high


def continuous_std(std: float) -> float:
    """The std of the continuous Laplace number of the same rate as the discrete one of this std.

    Intervals are made of it: a·√W times it, plus half a unit, holds a sum of W discrete numbers at
    least as often as a·std holds the continuous sum. For a std far below 1 the discrete one says
    little about the tails. Proof, for all W and mixed rates: `laplace_tails.proof.md`. Test:
    tests/bounds/test_laplace_tails.py::test_discrete_sums_of_mixed_rates_never_leave_more_often.
    """
    above = 1 / std**2
    rate = math.log1p(above + math.sqrt(above * (above + 2)))  # cosh(rate) = 1 + 1/std²
    return math.sqrt(2) / rate


def heaviest_tail(weight: int, stds: npt.ArrayLike) -> FloatArray:
    """The largest P(|S| > stds·std) of sums S of independent Laplace numbers with n = `weight` or
    more.

    n is that of the module's docstring. The larger of the tails of n equal numbers and of a normal
    one; for n = 1 also that of two numbers, which is the largest of the three between 1.677 and
    1.685 stds.

    **Guarantee.** An upper bound for all scales and every half width. Proof:
    `laplace_tails.proof.md`, which says what of it is computed. Tests:
    tests/bounds/test_heaviest_tails.py::test_no_sum_leaves_more_often,
    tests/bounds/test_heaviest_tails.py::test_crossings_of_equal_parts.
    """
    from scipy.special import erfc

    x = np.asarray(stds, np.float64)
    equal = [laplace_tail(n, x * math.sqrt(2 * n)) for n in {weight, max(weight, 2)}]
    return np.asarray(np.maximum.reduce([*equal, erfc(x / math.sqrt(2))]))


def laplace_factor(beta: float, weight: int = 1) -> float:
    """A half width in stds at which `heaviest_tail` is at most β: enough for sums of Laplace
    numbers with n = `weight`.

    From 64 numbers on n is taken a little smaller, which is enough for n and more: else the running
    totals of a stream of fresh noise would ask for thousands of quantiles. Test:
    tests/bounds/test_laplace_tails.py::test_factors_of_many_numbers_are_few_and_never_too_small.
    """
    step = 1 << max(0, weight.bit_length() - _DIGITS)
    return _factor(beta, weight // step * step)


def _factor(beta: float, weight: int) -> float:
    """The table's where it is for this β: SciPy, and the quantiles of a year of fresh noise, take
    half a second."""
    table = usual_factors()
    if beta == table.beta and weight in table.laplace:
        return table.laplace[weight]
    return computed_factor(beta, weight)


@dataclass(frozen=True)
class UsualFactors:
    """The factors of the intervals of published tables: of a normal number, and of Laplace numbers
    by their weight."""

    level: float
    beta: float
    normal: float
    laplace: dict[int, float]


@lru_cache(maxsize=1)
def usual_factors() -> UsualFactors:
    """`usual_factors.json`, printed by `benchmarks/usual_factors.py`: it is what is computed, to
    the last digit."""
    numbers = json.loads(Path(__file__).with_name("usual_factors.json").read_text(encoding="utf-8"))
    laplace = {int(weight): factor for weight, factor in numbers["laplace"].items()}
    return UsualFactors(numbers["level"], numbers["beta"], numbers["normal"], laplace)


@lru_cache(maxsize=4096)
def computed_factor(beta: float, weight: int) -> float:
    """`laplace_factor` without the table; `weight` has at most `_DIGITS` binary digits."""
    return max(
        laplace_quantile(weight, beta),
        laplace_quantile(max(weight, 2), beta),
        interval_quantile(beta),
    )


def equal_numbers(variance: FloatArray, largest: FloatArray) -> IntArray:
    """n of the module's docstring, from continuous variances and largest scales."""
    ratio = variance / (2 * np.maximum(largest, 1e-300) ** 2)
    return np.asarray(np.clip(np.floor(ratio * (1 + 1e-9)), 1, _NORMAL), dtype=np.int64)


def simultaneous_radius(
    tree: PureFactorization, rate: float, beta: float, ticks: int, outputs: int = 1
) -> float:
    """h with P(|noise| > h at any of the first `ticks` ticks, in any of `outputs` equal outputs) ≤
    beta, in grid units.

    A union bound over the tail of each tick, from its own coefficients, plus half a unit as the
    noise is discrete. For an endless bridge, given the totals that its ticks share
    (`endless_tails.py`). `rate` is that of a node that has all of ε.
    """
    check_probability("beta", beta)
    if isinstance(tree, EndlessBridge) and ticks <= ALL_TICKS and beta / outputs >= ticks * RARE:
        # it needs the tails of this module
        from evercount.bounds.endless_tails import endless_radius

        return endless_radius(tree.integers, beta / outputs, ticks) / rate + 0.5
    return _radius(tree, beta, ticks, outputs) / rate + 0.5


@lru_cache(maxsize=256)
def _radius(tree: PureFactorization, beta: float, ticks: int, outputs: int) -> float:
    """The half width for continuous noise of rate 1; that of another rate is this over the rate."""
    std, weight, count = _groups(tree, ticks)
    return _union_radius(std, weight, count * float(outputs), beta)


def _groups(tree: PureFactorization, ticks: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """(std at rate 1, equal numbers, number of ticks) of groups of ticks that together are all of
    them."""
    if isinstance(tree, DigitTree) and not isinstance(tree, WindowTree):
        part = tree if tree.horizon == ticks else DigitTree(ticks, tree.base)
        counts = part.weight_counts()
        weight = np.flatnonzero(counts)
        return (
            math.sqrt(2) * tree.levels * np.sqrt(weight),
            weight,
            counts[weight].astype(np.float64),
        )
    if ticks > ALL_TICKS and not isinstance(tree, HybridTree):
        _, variance, largest = tree.laplace_errors(tree.suspects(ticks), 1.0)
        fewest = equal_numbers(variance, largest).min(keepdims=True)
        return np.sqrt(variance.max(keepdims=True)), fewest, np.asarray([float(ticks)])
    at = np.arange(1, min(ticks, ALL_TICKS) + 1)
    each = np.ones(min(ticks, ALL_TICKS))
    if ticks > ALL_TICKS:  # errors of the hybrid only grow: the latest ticks stand for all
        at = np.unique(np.linspace(ticks // 2, ticks, ALL_TICKS).astype(np.int64))
        each = np.full(len(at), ticks / len(at))
    keys: list[IntArray] = []
    ticks_of: list[FloatArray] = []
    for start in range(0, len(at), _TICKS_AT_ONCE):
        here = slice(start, start + _TICKS_AT_ONCE)
        _, variance, largest = tree.laplace_errors(at[here], 1.0)
        size = np.ceil(np.log(variance) * (_GROUPS_PER_E / 2)).astype(np.int64)
        key, where = np.unique(
            size * (2 * _NORMAL) + equal_numbers(variance, largest), return_inverse=True
        )
        keys.append(key)
        ticks_of.append(np.bincount(where, weights=each[here]).astype(np.float64))
    key, where = np.unique(np.concatenate(keys), return_inverse=True)
    number = np.bincount(where, weights=np.concatenate(ticks_of)).astype(np.float64)
    return np.exp(key // (2 * _NORMAL) / _GROUPS_PER_E), np.asarray(key % (2 * _NORMAL)), number


def _union_radius(std: FloatArray, weight: IntArray, count: FloatArray, beta: float) -> float:
    """The least h with Σ count·P(|S| > h) ≤ beta, S of these stds and numbers of equal Laplace
    numbers; rounded up."""
    rows = [(int(w), std[weight == w], count[weight == w]) for w in np.unique(weight)]

    def chance(h: float) -> float:
        return sum(float(n @ heaviest_tail(w, h / s)) for w, s, n in rows)

    low = 0.0
    high = float(std.max()) * laplace_quantile(1, min(beta / float(count.sum()), 0.5))
    while chance(high) > beta:
        low = high
        high = 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if chance(middle) > beta:
            low = middle
        else:
            high = middle
    return high
