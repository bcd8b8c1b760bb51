"""Publishing: what a query publishes from its noisy running sums, and how far the published numbers are off.

Everything here is post-processing: it sees noisy sums and public parameters, never events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor
from evercount.errors import ParameterError

ONE_TICK = (
    "keys of the day are chosen anew at each tick, so a key may be missing at some ticks and has no sum over several; "
    'for such sums declare a stream with the views that you need, for example ["per-tick", "last-7"]: its keys stay '
    "public"
)


Change = tuple[FloatArray, FloatArray]
"""What numbers gained, and its std in units of that of a cell's change: see `Publishing.between`."""


@dataclass(frozen=True, eq=False)
class KeptSums:
    """Errors that follow from the noisy sums of a release, which it keeps; they are published and not private."""

    # from the sums (ticks, cells) and the published numbers (ticks, outputs) to the std of each number over that of a
    # cell, to first order
    scale: Callable[[FloatArray, FloatArray], FloatArray]
    # from numbers, sums, the errors of a cell at their ticks and a level to the ends (low, high)
    interval: Callable[[FloatArray, FloatArray, CellErrors, float], Limits]


@dataclass(frozen=True, eq=False)
class Publishing:
    """How noisy running sums become published numbers. The default: each sum is published as it is."""

    # from the 1-based tick of the first row and the noisy sums (ticks, cells) to the published numbers (ticks,
    # outputs); None where each sum is published as it is
    decode: Callable[[int, FloatArray], FloatArray] | None = None
    # ‖row‖₂ of the linear map for each output: std of an output = this × std of a cell
    norms: Callable[[], FloatArray | float] = lambda: 1.0
    # Σ|coefficients| of each output's row, or a bound of it; None: as `norms`
    rounding: Callable[[], FloatArray | float] | None = None
    # of some outputs of one tick, in units of a cell's variance; None: not known, unless sums are published as they are
    covariance: Callable[[Sequence[int]], FloatArray] | None = None
    # what the running sums of each tick are multiplied with besides
    weights: Callable[[IntArray], FloatArray] | None = None
    whole: bool = False  # whether `decode` makes whole numbers of whole numbers
    # why differences of releases are no sums over ticks, and what to take; None where they are
    no_views: str | None = None
    # (change, weight) as `between`, where it is not a difference of published numbers
    change: Callable[[int, int, FloatArray, FloatArray], Change] | None = None
    kept: KeptSums | None = None  # where errors follow from the sums of a release
    # whether a release has the numbers of its own tick instead of running sums. Then there are views of single ticks
    # only
    own_ticks: bool = False
    # from the first cell of those that joined together to (norms, roundings) of the numbers from them alone; None where
    # each number is one cell's
    part: Callable[[int], tuple[FloatArray, FloatArray]] | None = None

    @property
    def as_they_are(self) -> bool:
        """Whether each published number is one noisy running sum, so that lower bounds for running sums hold for it."""
        return self.decode is None

    def check_views(self, prefix: str, width: int | None = 1) -> None:
        """Refuse views of so many ticks (None: all so far) where they have no meaning; `prefix` begins the message."""
        if self.no_views is not None:
            raise ParameterError(f"{prefix}{self.no_views}")
        if self.own_ticks and width != 1:
            raise ParameterError(f"{prefix}{ONE_TICK}")

    def roundings(self) -> FloatArray | float:
        """What a change of 1 in every cell can do to each output."""
        return self.norms() if self.rounding is None else self.rounding()

    def of_cells(self, cells: range, outputs: int) -> tuple[FloatArray, FloatArray]:
        """(norms, roundings) of the published numbers from cells that joined together, as if the others were exact."""
        if self.part is not None:
            return self.part(cells.start)
        inside = np.isin(np.arange(outputs), cells).astype(np.float64)
        return np.asarray(inside * self.norms()), np.asarray(inside * self.roundings())

    def sum_weights(self, ticks: IntArray) -> FloatArray:
        """What the running sums of each tick are multiplied with before they are published."""
        return np.ones(len(ticks)) if self.weights is None else self.weights(ticks)

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> Change:
        """(change, weight): what is published for ticks earlier+1 … later, given the published numbers at both ends.
        `weight` × the std of a cell's change is the std of each output's change. ParameterError where published numbers
        do not tell."""
        if self.change is not None:
            return self.change(earlier, later, low, high)
        return high - low, np.ones(len(low)) * self.norms()

    def joint(self, outputs: Sequence[int]) -> FloatArray:
        """Covariance of some outputs of one tick, in units of a cell's variance: for comparisons of outputs."""
        if self.covariance is not None:
            return self.covariance(outputs)
        if not self.as_they_are:
            raise ParameterError("these outputs cannot be compared: their covariance is not declared")
        chosen = np.asarray(outputs)
        return np.asarray(chosen[:, np.newaxis] == chosen, dtype=np.float64)


SUMS = Publishing()  # each noisy running sum as it is


def divided(scale: IntArray) -> Publishing:
    """Each noisy running sum over its entry of `scale`."""

    def covariance(outputs: Sequence[int]) -> FloatArray:
        return np.asarray(SUMS.joint(outputs) / scale[np.asarray(outputs)] ** 2)

    return Publishing(lambda first_tick, noisy: noisy / scale, lambda: np.asarray(1 / scale), covariance=covariance)


Limits = tuple[FloatArray, FloatArray]  # the lower and the upper ends of intervals


@dataclass(frozen=True, eq=False)
class CellErrors:
    """Noise of a cell, tick by tick. Cells have independent noise of the same law."""

    spread: FloatArray  # the size of the noise that quantiles are multiplied with, shape (ticks, 1)
    slack: FloatArray  # what rounding of a cell can add at most, shape (ticks, 1), where the spread does not contain it
    pure: bool  # whether the noise is a sum of Laplace numbers; else it is normal
    # half the distance of neighbouring numbers that a cell can publish, shape (ticks, 1), where the slack does not
    # contain it
    step: FloatArray | float = 0.0

    def factor(self, level: float, cells: int = 1) -> float:
        """How many spreads hold the noise of this number of cells at once, with probability at least `level`."""
        beta, count = 1 - check_probability("level", level), check_count("cells", cells)
        return laplace_factor(beta / count) if self.pure else float(simultaneous_quantile(count, beta))

    def half(self, level: float, cells: int = 1) -> FloatArray:
        """Half-width, shape (ticks, 1), that holds for so many cells at once with probability at least `level`."""
        return self.factor(level, cells) * self.spread + self.slack + self.step

    def slack_of(self, norms: FloatArray | float, rounding: FloatArray | float) -> FloatArray:
        """What an interval of numbers that are combined from cells adds to quantile × norm × spread.

        The slack of every cell adds up. The step does not: it is added once, for one of the coefficients.

        **Guarantee.** With it an interval holds at least as often as stated. Proof: `cell_errors.proof.md`. Assumption:
        a number that is combined from several cells has a coefficient of at most 1. Tests:
        tests/engine/test_rounded_intervals.py::test_intervals_of_rounded_counts_hold and
        tests/engine/test_rounded_intervals.py::test_every_output_has_a_coefficient_as_small_as_its_step.
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
