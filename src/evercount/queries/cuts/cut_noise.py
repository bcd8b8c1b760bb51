"""The noise of a cut: a sum of the noises of its edges, normal or Laplace, and how far it can be off."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, log, log1p, sqrt

from evercount.bounds.laplace_tails import laplace_factor
from evercount.bounds.normal_tails import interval_quantile, simultaneous_quantile

EXACT_NUMBERS = 256
"""Tails of up to this many Laplace numbers are computed; of more, Chernoff's bound is close and much quicker."""
EXACT_EXPONENT = 600.0
"""Probabilities below e^−600 are outside of what doubles can sum."""


@dataclass(frozen=True)
class CutNoise:
    """The noise of one released weight. Weights have independent noise of the same law; a cut sums `pairs` of them."""

    spread: float
    """The std; of discrete noise, that of the continuous noise of the same rate."""
    slack: float = 0.0
    """What rounding adds to every weight at most, where the spread does not contain it."""
    step: float = 0.0
    """What the grid of published numbers adds to a sum, once."""
    laplace: int | None = None
    """How many equal Laplace numbers have a sum with tails as heavy (`bounds/laplace_tails.py`); None: normal noise."""

    def of_one(self, pairs: int, beta: float) -> float:
        """Half-width that the noise of one cut, chosen without looking, leaves with probability at most beta."""
        laplace = self.laplace
        return self._width(interval_quantile(beta) if laplace is None else laplace_factor(beta, laplace * pairs), pairs)

    def of_many(self, pairs: int, cuts: int, beta: float) -> float:
        """Half-width that none of this number of cuts leaves, with probability at least 1 − beta.

        **Guarantee.** A union bound over normal tails, Laplace tails, or Chernoff's bound of them. Proof:
        `cuts.proof.md`, "Laplace noise". Assumption: as for the class. Tests:
        tests/queries/test_queries_cuts.py::test_laplace_margins_are_above_the_exact_tails and
        tests/queries/test_queries_cuts.py::test_error_bars_hold_under_laplace_noise.
        """
        if self.laplace is None:
            return self._width(simultaneous_quantile(cuts, beta), pairs)
        numbers, exponent = self.laplace * pairs, log(cuts) - log(beta)
        if numbers <= EXACT_NUMBERS and exponent < EXACT_EXPONENT:
            return self._width(laplace_factor(exp(-exponent), numbers), pairs)
        return self._width(_chernoff(numbers, log(2) + exponent), pairs)

    def _width(self, factor: float, pairs: int) -> float:
        return factor * self.spread * sqrt(pairs) + self.slack * pairs + self.step


@lru_cache(maxsize=4096)
def _chernoff(numbers: int, exponent: float) -> float:
    """a with P(S > a·std) ≤ exp(−exponent) for a sum S of equal Laplace numbers; rounded up.

    For scale 1, P(S > y) ≤ exp(−u·y)·(1 − u²)^(−numbers), smallest at u = (√(numbers² + y²) − numbers)/y.
    """
    low, high = 0.0, exponent + sqrt(2 * numbers * exponent) + 1.0
    while _rate(numbers, high) < exponent:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _rate(numbers, middle) < exponent else (low, middle)
    return high * (1 + 1e-9) / sqrt(2 * numbers)


def _rate(numbers: int, y: float) -> float:
    """u·y + numbers·ln(1 − u²) at its largest."""
    u = y / (sqrt(numbers * numbers + y * y) + numbers)
    return u * y + numbers * log1p(-u * u)
