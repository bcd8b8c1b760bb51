"""The least variance that noise for a single number can have, whatever its law: what every other
bound begins with.

Noise Z is (ε, δ)-private for a shift by 1 if P(Z ∈ S) ≤ e^ε·P(Z ± 1 ∈ S) + δ for all sets S. Linear
programming duality says how little variance that leaves. At δ = 0 it is that of the discrete
Laplace law; for δ > 0 every pair of public numbers (μ, V) that passes a check of one quadratic
function gives a bound, and the best pair is searched.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np

from evercount._validate import check_positive
from evercount.errors import ParameterError

LEAST_EPSILON = 1e-4
"""Below it the bound is that of this ε: a smaller one promises more, and needs no less noise."""
SAFE = 1 - 1e-9
"""What is taken off a bound that is computed in doubles."""
_ROUNDS = 60


@lru_cache(maxsize=256)
def least_variance(epsilon: float, delta: float = 0.0) -> float:
    """A variance that no (ε, δ)-private noise for a shift by 1 is below, of any law and on any
    lattice or none.

    **Guarantee.** For δ = 0 it is attained, by discrete Laplace noise; for δ > 0 it is rounded
    down. Proof: `least_variance.proof.md`. Tests:
    tests/bounds/test_least_variance.py::test_no_noise_that_a_program_finds_has_less and
    tests/bounds/test_least_variance.py::test_the_bound_is_nearly_attained.

    Args:
        epsilon: ε of the promise.
        delta: δ of the promise, from 0 up to 1.

    Returns:
        The variance.

    Raises:
        ParameterError: There is no such promise.

    >>> round(least_variance(1.0) ** 0.5, 3), round(least_variance(1.0, 1e-6) ** 0.5, 3)
    (1.357, 1.357)
    """
    check_positive("epsilon", epsilon)
    if not 0 <= delta < 1:
        raise ParameterError(f"delta must be at least 0 and less than 1, got {delta!r}")
    if delta == 0:
        return _discrete_laplace(epsilon)
    return _Dual(max(epsilon, LEAST_EPSILON)).bound(delta)


def _discrete_laplace(epsilon: float) -> float:
    """2e^−ε/(1 − e^−ε)², the variance of the discrete Laplace law."""
    return 1 / (2 * math.sinh(min(epsilon, 1000.0) / 2) ** 2)


class _Dual:
    """Pairs (μ, V) for one ε, with the sums that the check needs."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon
        self.growth = math.expm1(min(epsilon, 700.0))
        self.most = _discrete_laplace(epsilon)
        steps = np.arange(max(8, math.ceil(60 / epsilon)) + 1)
        decay = np.exp(-epsilon * steps)
        self.decay = decay
        decay = np.where(steps > 0, decay, 0.0)
        self.sums = np.cumsum([decay, decay * steps, decay * steps**2], axis=1)

    def bound(self, delta: float) -> float:
        """The largest V − 2μδ that the search finds."""
        reach = len(self.decay) - 3
        low = -30.0
        high = math.log(reach**2 / self.growth)
        for _ in range(_ROUNDS):  # the value is concave in μ, so it has one hill
            left = low + (high - low) * 0.382
            right = low + (high - low) * 0.618
            if self.value(left, delta) < self.value(right, delta):
                low = left
            else:
                high = right
        return max(0.0, self.value((low + high) / 2, delta) * SAFE)

    def value(self, log_cap: float, delta: float) -> float:
        """V − 2μδ for the largest V that passes with this μ."""
        cap = math.exp(log_cap)
        low = 0.0
        high = self.most
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            if self.passes(cap, middle):
                low = middle
            else:
                high = middle
        return low - 2 * cap * delta

    def passes(self, cap: float, variance: float) -> bool:
        """Whether x² + a(x) + a(−x) ≥ V for |x| ≤ ½, and a(−½) ≥ 0."""
        end = math.sqrt(variance + self.growth * cap)
        if end > len(self.decay) - 2:
            return False
        if self.edge(cap, variance, end) < 0:
            return False
        part = end - math.floor(end)
        places = sorted({0.0, 0.5, min(part, 0.5), min(1 - part, 0.5)})
        return all(
            self.least(cap, variance, end, one, other) >= variance
            for one, other in pairwise(places)
        )

    def edge(self, cap: float, variance: float, end: float) -> float:
        """a(−½), the least value of a."""
        number = max(0, math.ceil(end + 0.5) - 1)
        total, first, second = self.sums[:, number].tolist()
        return float(cap * float(self.decay[number]) + second - first + (0.25 - variance) * total)

    def least(self, cap: float, variance: float, end: float, low: float, high: float) -> float:
        """The least x² + a(x) + a(−x) over low ≤ x ≤ high, where both numbers of steps are
        constant."""
        middle = (low + high) / 2
        right = max(0, math.ceil(end - middle) - 1)
        left = max(0, math.ceil(end + middle) - 1)
        total_r, first_r, second_r = self.sums[:, right].tolist()
        total_l, first_l, second_l = self.sums[:, left].tolist()
        square = 1 + total_r + total_l
        slope = 2 * (first_r - first_l)
        rest = cap * float(self.decay[right] + self.decay[left])
        rest += second_r + second_l - variance * (total_r + total_l)
        at = min(max(-slope / (2 * square), low), high)
        return float(square * at**2 + slope * at + rest)
