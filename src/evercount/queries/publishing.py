"""Publishing: what a query publishes from its noisy running sums, and how far the published numbers are off.

Everything here is post-processing: it sees noisy sums and public parameters, never events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.queries.cell_errors import CellErrors, Limits

ONE_TICK = (
    "keys of the day are chosen anew at each tick, so a key may be missing at some ticks and has no sum over several; "
    'for such sums declare a stream with the views that you need, for example ["per-tick", "last-7"]: its keys stay '
    "public"
)


Change = tuple[FloatArray, FloatArray]
"""What numbers gained, and its std in units of that of a cell's change: see `Publishing.between`."""


@dataclass(frozen=True, eq=False)
class KeptSums:
    """Errors that follow from the noisy sums of a release, which it keeps; they are published and not private.

    Args:
        scale: from the sums (ticks, cells) and the published numbers (ticks, outputs) to the std of each number over
            that of a cell, to first order.
        interval: from numbers, sums, the errors of a cell at their ticks and a level to the ends (low, high).
    """

    scale: Callable[[FloatArray, FloatArray], FloatArray]
    interval: Callable[[FloatArray, FloatArray, CellErrors, float], Limits]


@dataclass(frozen=True, eq=False)
class Publishing:
    """How noisy running sums become published numbers. The default: each sum is published as it is.

    Args:
        decode: from the 1-based tick of the first row and the noisy sums (ticks, cells) to the published numbers
            (ticks, outputs); None where each sum is published as it is.
        norms: ‖row‖₂ of the linear map for each output: std of an output = this × std of a cell.
        rounding: Σ|coefficients| of each output's row, or a bound of it; None: as `norms`.
        covariance: of some outputs of one tick, in units of a cell's variance; None: not known, unless sums are
            published as they are.
        weights: what the running sums of each tick are multiplied with besides.
        whole: whether `decode` makes whole numbers of whole numbers.
        no_views: why differences of releases are no sums over ticks, and what to take; None where they are.
        change: (change, weight) as `between`, where it is not a difference of published numbers.
        kept: where errors follow from the sums of a release.
        part: from the first cell of those that joined together to (norms, roundings) of the numbers from them alone;
            None where each number is one cell's.
        own_ticks: whether a release has the numbers of its own tick instead of running sums. Then there are views of
            single ticks only.

    >>> Publishing().as_they_are, Publishing(decode=lambda tick, noisy: noisy / 2, norms=lambda: 0.5).as_they_are
    (True, False)
    """

    decode: Callable[[int, FloatArray], FloatArray] | None = None
    norms: Callable[[], FloatArray | float] = lambda: 1.0
    rounding: Callable[[], FloatArray | float] | None = None
    covariance: Callable[[Sequence[int]], FloatArray] | None = None
    weights: Callable[[IntArray], FloatArray] | None = None
    whole: bool = False
    no_views: str | None = None
    change: Callable[[int, int, FloatArray, FloatArray], Change] | None = None
    kept: KeptSums | None = None
    own_ticks: bool = False
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

        `weight` × the std of a cell's change is the std of each output's change. ParameterError where published
        numbers do not tell.
        """
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


SUMS = Publishing()
"""Each noisy running sum as it is."""


def divided(scale: IntArray) -> Publishing:
    """Each noisy running sum over its entry of `scale`."""

    def covariance(outputs: Sequence[int]) -> FloatArray:
        return np.asarray(SUMS.joint(outputs) / scale[np.asarray(outputs)] ** 2)

    return Publishing(lambda first_tick, noisy: noisy / scale, lambda: np.asarray(1 / scale), covariance=covariance)
