"""The error of one cell's noisy sum at some ticks, as queries need it to make intervals of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import check_count, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor

Limits = tuple[FloatArray, FloatArray]
"""The lower and the upper ends of intervals."""


@dataclass(frozen=True, eq=False)
class CellErrors:
    """Noise of a cell, tick by tick. Cells have independent noise of the same law.

    Attributes:
        spread: The size of the noise that quantiles are multiplied with, shape (ticks, 1).
        slack: What rounding of a cell can add at most, shape (ticks, 1), where the spread does not contain it.
        pure: Whether the noise is a sum of Laplace numbers; else it is normal.
        step: Half the distance of neighbouring numbers that a cell can publish, shape (ticks, 1), where the slack does
            not contain it.
    """

    spread: FloatArray
    slack: FloatArray
    pure: bool
    step: FloatArray | float = 0.0

    def factor(self, level: float, cells: int = 1) -> float:
        """How many spreads hold the noise of this number of cells at once, with probability at least `level`."""
        beta, count = 1 - check_probability("level", level), check_count("cells", cells)
        return laplace_factor(beta / count) if self.pure else float(simultaneous_quantile(count, beta))

    def half(self, level: float, cells: int = 1) -> FloatArray:
        """Half-width, shape (ticks, 1), that holds for this number of cells at once with probability at least `level`.

        >>> import numpy as np
        >>> one = CellErrors(np.ones((1, 1)), np.zeros((1, 1)), pure=False)
        >>> float(one.half(0.95)[0, 0].round(3)), float(one.half(0.95, 1000)[0, 0].round(3))
        (1.96, 4.056)
        """
        return self.factor(level, cells) * self.spread + self.slack + self.step

    def slack_of(self, norms: FloatArray | float, rounding: FloatArray | float) -> FloatArray:
        """What an interval of numbers that are combined from cells adds to quantile × norm × spread.

        The slack of every cell adds up. The step does not: it is added once, for one of the coefficients.

        **Guarantee.** With it an interval holds at least as often as stated. Proof: `cell_errors.proof.md`. Assumption:
        a number that is combined from several cells has a coefficient of at most 1. Tests:
        tests/engine/test_rounded_intervals.py::test_intervals_of_rounded_counts_hold and
        tests/engine/test_rounded_intervals.py::test_every_output_has_a_coefficient_as_small_as_its_step.

        >>> import numpy as np
        >>> wide = CellErrors(np.ones((1, 1)), np.zeros((1, 1)), pure=False, step=np.full((1, 1), 0.5))
        >>> wide.slack_of(np.asarray([1.0, 10.0, 0.25]), np.asarray([1.0, 100.0, 0.25])).tolist()
        [[0.5, 0.5, 0.125]]
        """
        return np.asarray(self.slack * rounding + self.step_of(norms, rounding))

    def step_of(self, norms: FloatArray | float, rounding: FloatArray | float) -> FloatArray:
        """The step of numbers that are combined from cells: that of the coefficient of one cell, else of at most 1."""
        one_cell = np.isclose(norms, rounding, rtol=1e-9, atol=0)
        return np.asarray(self.step * np.where(one_cell, norms, np.minimum(norms, 1.0)))

    def at(self, index: Any) -> Self:
        """The same errors of some ticks: `index` is one of the arrays' first axis, or of both."""
        step = self.step if isinstance(self.step, float) else self.step[index]
        return replace(self, spread=self.spread[index], slack=self.slack[index], step=step)


BISECTIONS = 60


def fieller_interval(
    above: FloatArray, below: FloatArray, normal: FloatArray, linear: FloatArray, low: float, high: float
) -> Limits:
    """The hull of all ratios r in [low, high] with |above − r·below| ≤ normal·√(1 + r²) + linear·(1 + |r|).

    **Guarantee.** If the noise of `above` and `below` is Z₀ and Z₁, and for the true ratio r the bound
    |Z₀ − r·Z₁| ≤ normal·√(1+r²) + linear·(1+|r|) holds with some probability, then r lies in the hull with at least
    that probability: above − r·below = Z₀ − r·Z₁. Nothing is approximated. Proof: `averages.proof.md`. Test:
    tests/queries/test_queries_averages.py::test_intervals_of_averages_per_event_hold.
    """

    def fits(ratio: FloatArray) -> FloatArray:
        return np.asarray(normal * np.sqrt(1 + ratio**2) + linear * (1 + np.abs(ratio)) - np.abs(above - ratio * below))

    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.clip(np.where(below == 0, low, above / below), low, high)
    bottom, top = np.full_like(centre, low), np.full_like(centre, high)
    inside_bottom, inside_top = fits(bottom) >= 0, fits(top) >= 0
    # on either side of the noisy ratio `fits` is convex and starts above 0: one change of sign at most
    start = np.where(fits(centre) >= 0, centre, np.where(inside_bottom, bottom, np.where(inside_top, top, centre)))
    ends = []
    for limit, limit_fits in ((bottom, inside_bottom), (top, inside_top)):
        good, bad = start, limit
        for _ in range(BISECTIONS):
            middle = (good + bad) / 2
            fit = fits(middle) >= 0
            good, bad = np.where(fit, middle, good), np.where(fit, bad, middle)
        ends.append(np.where(limit_fits, limit, bad))
    return ends[0], ends[1]
