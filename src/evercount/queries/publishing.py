"""What a query publishes from its noisy running sums, how far the numbers are off, and the largest
of them.

Everything here is post-processing: it sees noisy sums and public parameters, never events.
Selection prefers numbers whose noise is large, so the interval of one number by itself fails for
selected ones: those of `TopKey` all hold at once, and the confidence of a key compares it with
every key that was not selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np

from evercount._validate import BoolArray, FloatArray, IntArray, check_count, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.tails import laplace_factor
from evercount.errors import ParameterError

ONE_TICK = (
    "keys of the day are chosen anew at each tick, so a key may be missing at some ticks and has "
    "no sum over several; "
    'for such sums declare a stream with the views that you need, for example ["per-tick", '
    '"last-7"]: its keys stay '
    "public"
)


Change = tuple[FloatArray, FloatArray]
"""What numbers gained, and its std in units of that of a cell's change: see
`Publishing.between`."""


@dataclass(frozen=True, eq=False)
class ErrorsFromSums:
    """Errors that follow from the noisy sums of a release, which it keeps; they are published and
    not private."""

    # from the sums (ticks, cells) and the published numbers (ticks, outputs) to the std of each
    # number over that of a cell, to first order
    scale: Callable[[FloatArray, FloatArray], FloatArray]
    # from numbers, sums, the errors of a cell at their ticks and a level to the ends (low, high)
    interval: Callable[[FloatArray, FloatArray, CellErrors, float], Limits]


@dataclass(frozen=True, eq=False)
class Publishing:
    """How noisy running sums become published numbers. The default: each sum is published as it
    is."""

    # from the 1-based tick of the first row and the noisy sums (ticks, cells) to the published
    # numbers (ticks, outputs); None where each sum is published as it is
    decode: Callable[[int, FloatArray], FloatArray] | None = None
    # ‖row‖₂ of the linear map for each output: std of an output = this × std of a cell
    norms: Callable[[], FloatArray | float] = lambda: 1.0
    # Σ|coefficients| of each output's row, or a bound of it; None: as `norms`
    rounding: Callable[[], FloatArray | float] | None = None
    # of some outputs of one tick, in units of a cell's variance; None: not known, unless sums are
    # published as they are
    covariance: Callable[[Sequence[int]], FloatArray] | None = None
    # what the running sums of each tick are multiplied with besides
    weights: Callable[[IntArray], FloatArray] | None = None
    whole: bool = False  # whether `decode` makes whole numbers of whole numbers
    # why differences of releases are no sums over ticks, and what to take; None where they are
    why_no_views: str | None = None
    # (change, weight) as `between`, where it is not a difference of published numbers
    change: Callable[[int, int, FloatArray, FloatArray], Change] | None = None
    kept: ErrorsFromSums | None = None  # where errors follow from the sums of a release
    # whether a release has the numbers of its own tick instead of running sums. Then there are
    # views of single ticks only
    own_ticks: bool = False
    # from the first cell of those that joined together to (norms, roundings) of the numbers from
    # them alone; None where each number is one cell's
    part: Callable[[int], tuple[FloatArray, FloatArray]] | None = None

    @property
    def as_they_are(self) -> bool:
        """Whether each published number is one noisy running sum, so that lower bounds for running
        sums hold for it."""
        return self.decode is None

    def check_views(self, prefix: str, width: int | None = 1) -> None:
        """Refuse views of so many ticks (None: all so far) where they have no meaning; `prefix`
        begins the message."""
        if self.why_no_views is not None:
            raise ParameterError(f"{prefix}{self.why_no_views}")
        if self.own_ticks and width != 1:
            raise ParameterError(f"{prefix}{ONE_TICK}")

    def roundings(self) -> FloatArray | float:
        """What a change of 1 in every cell can do to each output."""
        if self.rounding is None:
            return self.norms()
        return self.rounding()

    def of_cells(self, cells: range, outputs: int) -> tuple[FloatArray, FloatArray]:
        """(norms, roundings) of the published numbers from cells that joined together, as if the
        others were exact."""
        if self.part is not None:
            return self.part(cells.start)
        inside = np.isin(np.arange(outputs), cells).astype(np.float64)
        return np.asarray(inside * self.norms()), np.asarray(inside * self.roundings())

    def sum_weights(self, ticks: IntArray) -> FloatArray:
        """What the running sums of each tick are multiplied with before they are published."""
        if self.weights is None:
            return np.ones(len(ticks))
        return self.weights(ticks)

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> Change:
        """(change, weight): what is published for ticks earlier+1 … later, given the published
        numbers at both ends. `weight` × the std of a cell's change is the std of each output's
        change. ParameterError where published numbers do not tell."""
        if self.change is not None:
            return self.change(earlier, later, low, high)
        return high - low, np.ones(len(low)) * self.norms()

    def joint(self, outputs: Sequence[int]) -> FloatArray:
        """Covariance of some outputs of one tick, in units of a cell's variance: for comparisons of
        outputs."""
        if self.covariance is not None:
            return self.covariance(outputs)
        if not self.as_they_are:
            raise ParameterError(
                "these outputs cannot be compared: their covariance is not declared"
            )
        places = np.asarray(outputs)
        return np.asarray(places[:, np.newaxis] == places, dtype=np.float64)


SUMS = Publishing()  # each noisy running sum as it is


def divided(scale: IntArray) -> Publishing:
    """Publish each noisy running sum divided by its entry of `scale`."""

    def covariance(outputs: Sequence[int]) -> FloatArray:
        return np.asarray(SUMS.joint(outputs) / scale[np.asarray(outputs)] ** 2)

    return Publishing(
        lambda first_tick, noisy: noisy / scale,
        lambda: np.asarray(1 / scale),
        covariance=covariance,
    )


Limits = tuple[FloatArray, FloatArray]  # the lower and the upper ends of intervals


@dataclass(frozen=True, eq=False)
class CellErrors:
    """Noise of a cell, tick by tick. Cells have independent noise of the same law."""

    spread: FloatArray  # the size of the noise that quantiles are multiplied with, shape (ticks, 1)
    # what rounding of a cell can add at most, shape (ticks, 1), where the spread does not contain
    # it
    slack: FloatArray
    pure: bool  # whether the noise is a sum of Laplace numbers; else it is normal
    # half the distance of neighbouring numbers that a cell can publish, shape (ticks, 1), where the
    # slack does not contain it
    step: FloatArray | float = 0.0

    def factor(self, level: float, cells: int = 1) -> float:
        """How many spreads hold the noise of this number of cells at once, with probability at
        least `level`."""
        beta = 1 - check_probability("level", level)
        count = check_count("cells", cells)
        if self.pure:
            return laplace_factor(beta / count)
        return float(simultaneous_quantile(count, beta))

    def half(self, level: float, cells: int = 1) -> FloatArray:
        """Half-width, shape (ticks, 1), that holds for so many cells at once with probability at
        least `level`."""
        return self.factor(level, cells) * self.spread + self.slack + self.step

    def slack_of(self, norms: FloatArray | float, rounding: FloatArray | float) -> FloatArray:
        """What an interval of numbers that are combined from cells adds to quantile × norm ×
        spread.

        The slack of every cell adds up. The step does not: it is added once, for one of the
        coefficients.

        **Guarantee.** With it an interval holds at least as often as stated. Proof:
        `cell_errors.proof.md`. Assumption: a number that is combined from several cells has a
        coefficient of at most 1. Tests:
        tests/engine/test_rounded_intervals.py::test_intervals_of_rounded_counts_hold and
        tests/engine/test_rounded_intervals.py::test_every_output_has_a_coefficient_as_small_as_its_step.
        """
        return np.asarray(self.slack * rounding + self.step_of(norms, rounding))

    def step_of(self, norms: FloatArray | float, rounding: FloatArray | float) -> FloatArray:
        """The step of numbers that are combined from cells: that of the coefficient of one cell,
        else of at most 1."""
        one_cell = np.isclose(norms, rounding, rtol=1e-9, atol=0)
        return np.asarray(self.step * np.where(one_cell, norms, np.minimum(norms, 1.0)))

    def at(self, index: Any) -> Self:
        """The same errors of some ticks: `index` is one of the arrays' first axis, or of both."""
        step = self.step if isinstance(self.step, float) else self.step[index]
        return replace(self, spread=self.spread[index], slack=self.slack[index], step=step)


BISECTIONS = 60


def fieller_interval(
    above: FloatArray,
    below: FloatArray,
    normal: FloatArray,
    linear: FloatArray,
    low: float,
    high: float,
) -> Limits:
    """Compute the hull of all ratios r in [low, high] with |above − r·below| ≤ normal·√(1 + r²) +
    linear·(1 + |r|).

    **Guarantee.** If the noise of `above` and `below` is Z₀ and Z₁, and for the true ratio r the
    bound |Z₀ − r·Z₁| ≤ normal·√(1+r²) + linear·(1+|r|) holds with some probability, then r lies in
    the hull with at least that probability: above − r·below = Z₀ − r·Z₁. Nothing is approximated.
    Proof: `averages.proof.md`. Test:
    tests/queries/test_queries_averages.py::test_intervals_of_averages_per_event_hold.
    """

    def fits(ratio: FloatArray) -> BoolArray:
        """Tell which ratios the noise can explain."""
        bound = normal * np.sqrt(1 + ratio**2) + linear * (1 + np.abs(ratio))
        return np.asarray(bound - np.abs(above - ratio * below) >= 0)

    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.clip(np.where(below == 0, low, above / below), low, high)
    bottom = np.full_like(centre, low)
    top = np.full_like(centre, high)
    # on either side of the noisy ratio the bound less |above − r·below| is convex and starts above
    # 0: one change of sign at most
    centre_fits = fits(centre)
    start = np.where(~centre_fits & fits(top), top, centre)
    start = np.where(~centre_fits & fits(bottom), bottom, start)
    return _bisect(fits, start, bottom), _bisect(fits, start, top)


def _bisect(
    fits: Callable[[FloatArray], BoolArray], start: FloatArray, limit: FloatArray
) -> FloatArray:
    """Find the last ratio that fits on the way from `start`, which fits, to `limit`; step to the
    wide side."""
    good = start
    bad = limit
    for _ in range(BISECTIONS):
        middle = (good + bad) / 2
        fit = fits(middle)
        good = np.where(fit, middle, good)
        bad = np.where(fit, bad, middle)
    return np.where(fits(limit), limit, bad)


LARGEST_WEIGHT = 1000


def check_weights(
    weights: Any, number: int, what: str, least: int = 1, largest: int = LARGEST_WEIGHT
) -> tuple[int, ...]:
    """Check that there is one whole number for each of `number` levels, tables or lengths; by
    default 1 each."""
    if weights is None:
        return (1,) * number
    entries: Sequence[Any] | FloatArray = ()
    if isinstance(weights, Sequence | np.ndarray) and not isinstance(weights, str | bytes):
        entries = weights
    legal = all(isinstance(weight, Integral) and not isinstance(weight, bool) for weight in entries)
    legal = legal and all(least <= weight <= largest for weight in entries)
    if len(entries) != number or not legal:
        raise ParameterError(
            f"weights must be {number} whole numbers from {least} to {largest}, one for each "
            f"{what}, got {weights!r:.80}"
        )
    return tuple(map(int, entries))


class TopKey(NamedTuple):
    """A selected key.

    With probability ≥ level all published intervals of a release hold at once, whatever was
    selected. For every c, with probability ≥ c all keys of a release whose confidence is at least c
    belong to the true k largest (ties included).

    Attributes:
        key: The label.
        value: The published number.
        low: The lower end of its interval.
        high: The upper end of its interval.
        confidence: That the key belongs to the true k largest.
    """

    key: str
    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, eq=False)
class RankErrors:
    """Errors of the numbers to select from."""

    cells: CellErrors  # spread and slack of each number, shape (1, numbers)
    # over how many numbers intervals must hold at once: these, or those of all ticks where a
    # published number is the largest so far
    count: int
    # whether the noise of the numbers is independent, of the same law, and normal
    independent: bool


def top_keys(
    labels: list[str], values: FloatArray, errors: RankErrors, k: int, level: float
) -> list[TopKey]:
    """Select the k largest values, largest first; ties go to the earlier label.

    **Guarantee.** See `TopKey`. Proof: `histogram.proof.md`, "Selected keys". Tests:
    tests/queries/test_queries_top.py::test_selected_intervals_hold_at_once and
    tests/queries/test_queries_top.py::test_confident_keys_belong_to_the_top.
    """
    order = np.argsort(-values, kind="stable")
    return _with_intervals(labels, values, errors, order[:k], order[k:], level)


def _with_intervals(
    labels: list[str],
    values: FloatArray,
    errors: RankErrors,
    selection: IntArray,
    rest: IntArray,
    level: float,
) -> list[TopKey]:
    """Give the selected cells their intervals, and the confidence that each is larger than the
    rest."""
    halves = errors.cells.half(level, errors.count)[0]
    keys = []
    for cell in selection.tolist():
        value = float(values[cell])
        half = float(halves[cell])
        confidence = _confidence(values, errors, cell, rest)
        keys.append(TopKey(labels[cell], value, value - half, value + half, confidence))
    return keys


def _confidence(values: FloatArray, errors: RankErrors, cell: int, rest: IntArray) -> float:
    """Bound the probability that a cell is truly larger than all the rest."""
    if not len(rest):
        return 1.0
    spread = errors.cells.spread[0]
    slack = errors.cells.slack[0]
    if errors.independent:
        apart = float(values[cell] - values[rest].max()) - 2 * float(slack[cell])
        return 1 - range_tail(len(values), apart / float(spread[cell]))
    apart_by_rest = values[cell] - values[rest] - slack[cell] - slack[rest]
    gap = float((apart_by_rest / (spread[cell] + spread[rest])).min())
    return 1 - min(1.0, errors.count * _one_tail(gap, errors.cells.pure))


def supported_keys(
    labels: list[str], values: FloatArray, errors: RankErrors, threshold: float | None, level: float
) -> list[TopKey]:
    """Select all keys whose value passes the threshold, largest first; by default half the width of
    each key's own interval.

    **Guarantee.** With probability ≥ level every listed key has a true number above threshold −
    half, half being half the width of its interval; by default above 0, so it has truly occurred.
    Keys that are not listed count as 0. Proof: `histogram.proof.md`, "Selected keys": the intervals
    hold at once. Test: tests/queries/test_queries_top.py::test_supported_keys_have_occurred.
    """
    if threshold is None:
        least = errors.cells.half(level, errors.count)[0]
    else:
        least = threshold
    order = np.argsort(-values, kind="stable")
    supported = (values > least)[order]
    return _with_intervals(labels, values, errors, order[supported], order[~supported], level)


def range_tail(numbers: int, apart: float) -> float:
    """Compute P(largest − smallest > apart) for this number of independent standard normals.

    The integral n·∫φ(z)·(Φ(z) − Φ(z − apart))^(n−1) dz by the trapezoid rule, which is exact to
    about 1e-13 here; never less than 1e-12, and never more than the union bound over all pairs.
    """
    from scipy.special import ndtr

    if apart <= 0 or numbers < 2:
        return 1.0
    z = np.linspace(-9.0, 9.0 + apart, 4001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    inside = float(
        numbers * np.trapezoid(density * (ndtr(z) - ndtr(z - apart)) ** (numbers - 1), z)
    )
    pairs = numbers * (numbers - 1) * float(ndtr(-apart / math.sqrt(2)))
    return min(max(1 - inside, 1e-12), max(pairs, 1e-12), 1.0)


def _one_tail(spreads: float, pure: bool) -> float:
    """Bound P(|noise| > spreads) for one number: exact for normal noise; for sums of Laplace
    numbers the bound holds up to 0.2, and is 1 beyond."""
    from scipy.special import ndtr

    if spreads <= 0:
        return 1.0
    tail = 2 * float(ndtr(-spreads))
    if not pure:
        return tail
    tail = max(tail, math.exp(-math.sqrt(2) * spreads))
    if tail > 0.2:
        return 1.0
    return tail
