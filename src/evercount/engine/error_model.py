"""How far a published number may be off: exact stds of all queries, and the factors that make
intervals of them.

Everything here is computed from public parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evercount._validate import BoolArray, FloatArray, IntArray, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.tails import continuous_std, equal_numbers, laplace_factor, usual_factors
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_trees import DigitTree, PureFactorization
from evercount.factorizations.terrace import Terrace
from evercount.queries.base import Query
from evercount.queries.publishing import CellErrors


class JoinedCells(NamedTuple):
    """Cells that joined together."""

    after: int  # the last tick before they joined
    cells: int  # the first of them
    outputs: int  # the first number that is published because of them


class Part(NamedTuple):
    """What cells that joined together contribute to the error of each column, in units of a
    cell's."""

    after: int
    norms: FloatArray
    rounding: FloatArray


class SpanErrors(NamedTuple):
    """Errors of numbers over spans, each (spans, columns): half a width is quantile·spread +
    slack + step."""

    std: FloatArray
    spread: FloatArray
    slack: FloatArray
    step: FloatArray


class TickErrors(NamedTuple):
    """Errors of the numbers of ticks, each (ticks, outputs or 1): half a width is
    quantile·spread + slack."""

    std: FloatArray
    spread: FloatArray
    slack: FloatArray


BLOCK = 1024  # ticks

CellStd = tuple[FloatArray, CellErrors]  # the std of one cell and its errors, each array (ticks, 1)


@dataclass(frozen=True, eq=False)
class ErrorModel:
    """The public facts from which every error bar follows. `sigma` is the std of z in real units; a
    rounded release adds the variance of its rounding, grid²/12 or near it
    (`Factorization.rounding_variance`). `outputs` is how many numbers a tick of the whole stream
    has, where the query is a part of it. `joined` are the cells that joined later: their noise is
    that since they joined."""

    query: Query
    factorization: Factorization
    sigma: float
    rounded: bool
    outputs: int = 0
    joined: tuple[JoinedCells, ...] = ()
    _next: dict[int, TickErrors] = field(default_factory=dict, init=False, repr=False)
    # by full blocks of ticks
    _worst: dict[int, IntArray] = field(default_factory=dict, init=False, repr=False)

    @property
    def width(self) -> int:
        return self.outputs or self.query.outputs

    def norms(self, ticks: IntArray) -> FloatArray:
        """Std of one cell's published number over σ, at each 1-based tick."""
        if self.query.publishing.own_ticks:  # noise is fresh
            return np.ones(len(ticks))
        return np.asarray(
            self.query.publishing.sum_weights(ticks) * self.factorization.row_norms(ticks)
        )

    def std(self, ticks: npt.ArrayLike, width: int | None = None) -> FloatArray:
        """Std of the published numbers, or of those of the last `width` ticks, shape (ticks,
        outputs or 1)."""
        if width is None:
            return self.errors(ticks).std
        self.query.publishing.check_views("", width)
        at = np.atleast_1d(np.asarray(ticks))
        return self.span_errors(np.maximum(at - width, 0), at, self.parts).std

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What the cells of each joining contribute to the published numbers; those of the start
        come first."""
        published = self.query.publishing
        if not self.joined:
            return (
                Part(0, np.atleast_1d(published.norms()), np.atleast_1d(published.roundings())),
            )
        firsts = [0, *(one.cells for one in self.joined), self.query.cells]
        of_cells = [
            published.of_cells(range(*ends), self.query.outputs) for ends in pairwise(firsts)
        ]
        after = [0, *(one.after for one in self.joined)]
        return tuple(
            Part(tick, norms, rounding)
            for tick, (norms, rounding) in zip(after, of_cells, strict=True)
        )

    def with_joined(self, weights: IntArray, until: IntArray, parts: tuple[Part, ...]) -> IntArray:
        """`equal_numbers` of columns over spans, given those of cells of the start, (spans, 1).
        Laplace noise of cells that joined is a difference, or next to other noise: its tails are at
        most those of one number."""
        for part in parts[1:]:
            later = (until > part.after)[:, np.newaxis] & (part.norms > 0)
            weights = np.where(later, np.minimum(weights, 1), weights)
        return weights

    def span_errors(self, after: IntArray, until: IntArray, parts: tuple[Part, ...]) -> SpanErrors:
        """The errors of columns over spans of ticks after+1 … until. A cell counts nothing before
        it joined.

        **Guarantee.** Cells that joined after tick a have the noise n(t) − n(a), so over a span
        that of max(after, a) … until; cells of different joinings are independent. Test:
        tests/engine/test_add_keys.py::test_errors_of_joined_cells_are_exact.
        """
        self.query.publishing.check_views("")
        each = []
        for part in parts:
            late = until > part.after
            std, cell = self.difference_errors(np.maximum(after, part.after)[late], until[late])
            norms = _of_spans(part.norms, late)
            rounding = _of_spans(part.rounding, late)
            spread_out = partial(_spread_out, late, columns=part.norms.shape[-1])
            each.append(
                SpanErrors(
                    std=spread_out(std * norms),
                    spread=spread_out(cell.spread * norms),
                    slack=spread_out(cell.slack * rounding),
                    step=spread_out(cell.step_of(norms, rounding)),
                )
            )
        return add_errors(each)

    def errors(self, ticks: npt.ArrayLike) -> TickErrors:
        """The errors of the published numbers at these ticks.

        Where the noise is wider than the grid, rounding acts as independent noise of variance
        grid²/12 and is part of the spread; half the distance of neighbouring published numbers is
        the slack. Below that rounding is not normal, and its largest possible size is the slack.
        Pure noise is discrete: its std is exact, its spread is that of continuous noise, and half a
        unit is added. A bridge whose noise is wider than the grid is rounded too.

        **Guarantee.** An interval of this half-width holds its true number with at least the
        probability of the quantile. Proof: `queries/cell_errors.proof.md`. Assumption: that of
        `CellErrors.slack_of`. Test:
        tests/engine/test_rounded_intervals.py::test_intervals_of_rounded_counts_hold.
        """
        at = np.asarray(ticks)
        if at.size == 1 and at.dtype.kind in "iu" and (ready := self._next.get(int(at.flat[0]))):
            return ready
        std, cell = self.cell_errors(ticks)
        first, *later = self.parts
        std = std * first.norms
        spread = cell.spread * first.norms
        slack = cell.slack_of(first.norms, first.rounding)
        if not later:
            return TickErrors(std, spread, slack)
        start = SpanErrors(std, spread, slack, step=np.zeros_like(std))
        at = np.atleast_1d(at)
        std, spread, slack, step = add_errors(
            [start, self.span_errors(np.zeros_like(at), at, tuple(later))]
        )
        return TickErrors(std, spread, slack + step)

    def prepare(self, tick: int) -> None:
        """Compute the errors of this tick now, so that asking for them is quick; only those of one
        tick are kept."""
        if tick not in self._next:
            errors = self.errors([tick])
            for part in errors:
                part.flags.writeable = False  # everyone who asks gets the same arrays
            self._next.clear()
            self._next[tick] = errors

    def cell_errors(self, ticks: npt.ArrayLike) -> CellStd:
        """(std, errors) of one cell's published number, each array (ticks, 1)."""
        at = whole_ticks(ticks, self.factorization.horizon)
        published = self.query.publishing
        before = at - 1 if published.own_ticks else np.zeros_like(at)
        weights = published.sum_weights(at)
        if self.pure:
            variance, plain, _ = self._laplace(at)
        else:
            variance = plain = (self.sigma * self.norms(at)) ** 2
        return self._of_cell(variance, plain, weights, before, at)

    def worst_ticks(self, last: int) -> IntArray:
        """Those of the ticks 1 … last, at least 1, at which the std of a cell or a part of its
        interval is largest.

        No tick is left out: the std of a tree jumps. What was found for the ticks of full blocks is
        kept.
        """
        blocks = last // BLOCK
        for block in range(len(self._worst), blocks):
            self._worst[block + 1] = self._worst_of(block, (block + 1) * BLOCK)
        return self._worst_of(blocks, last)

    def _worst_of(self, blocks: int, last: int) -> IntArray:
        """Find the worst ticks, from those of so many full blocks on."""
        rest = np.arange(blocks * BLOCK + 1, last + 1)
        ticks = rest
        if blocks:
            ticks = np.concatenate([self._worst[blocks], rest])
        std, cell = self.cell_errors(ticks)
        return np.unique(
            [ticks[np.argmax(side)] for side in (std, cell.spread, cell.slack, cell.step)]
        )

    def _of_cell(
        self,
        variance: FloatArray,
        plain: FloatArray,
        weights: FloatArray,
        earlier: IntArray,
        later: IntArray,
    ) -> CellStd:
        """(std, errors) of weight × (the noise at `later` less that at `earlier`), from its exact
        variance before it is rounded; `plain` is that of continuous noise. A sum of discrete
        Laplace numbers needs half a unit once, however many they are; rounded numbers need it
        each."""
        grid = self.query.grid
        half = self.query.grid / 2 * weights
        roundings = self.factorization.roundings(earlier, later)
        std = np.sqrt(variance)
        if self.rounded:
            added = self.factorization.rounding_variance(earlier, later)
            std = np.sqrt(variance + grid**2 * weights**2 * added)
        spread = np.sqrt(plain)
        slack = half * (roundings if self.rounded else 1)
        step = np.zeros(len(std))
        if not self.pure:
            narrow = (spread < grid) & self.rounded
            spread = np.where(narrow, spread, std)
            slack = np.where(narrow, slack, 0.0)
            step = np.where(narrow, 0.0, half * self.rounded)
        std, spread, slack, step = (side[:, np.newaxis] for side in (std, spread, slack, step))
        return std, CellErrors(spread, slack, self.pure, step)

    def difference_errors(self, earlier: IntArray, later: IntArray) -> CellStd:
        """(std, errors) of the difference of one cell's running sums at pairs of ticks (0: before
        the first)."""
        pairs = np.stack([earlier, later], axis=1)
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
        variance, plain = (side[where.reshape(-1)] for side in self._of_differences(*distinct.T))
        return self._of_cell(variance, plain, np.ones(len(pairs)), earlier, later)

    def _of_differences(self, earlier: IntArray, later: IntArray) -> tuple[FloatArray, FloatArray]:
        """(exact variance, that of continuous noise) of the difference of one cell's sums, before
        it is rounded."""
        tree = self.factorization
        square = self.query.grid**2
        if isinstance(tree, PureFactorization) and not isinstance(tree, DigitTree):
            exact, plain = tree.difference_errors(earlier, later, self.full_rate)
            return square * exact, square * plain
        variance = (self.sigma * tree.pair_norms(earlier, later)) ** 2
        return variance, variance * self._continuous

    @property
    def _continuous(self) -> float:
        """Variance of continuous Laplace noise over that of the discrete noise of a digit tree; 1
        for other noise."""
        if not isinstance(self.factorization, DigitTree):
            return 1.0
        return float(
            (continuous_std(self.sigma / self.query.grid) * self.query.grid / self.sigma) ** 2
        )

    def newest(self, last: IntArray) -> tuple[IntArray, IntArray] | None:
        """Where days are revised: the tick as of which each number is, and how often it will still
        be revised."""
        return None

    def equal_differences(self, earlier: IntArray, later: IntArray) -> IntArray:
        """`equal_numbers` of the difference at each pair of ticks. In a digit tree it is a sum of
        as many equal numbers as nodes lie between, and a terrace knows its coefficients; elsewhere
        the numbers of a difference have no common bound, and its tails are at most those of one. A
        sum since the first tick is what a release has."""
        tree = self.factorization
        if isinstance(tree, DigitTree):
            return np.maximum(tree.apart(earlier, later), 1)[:, np.newaxis]
        if isinstance(tree, Terrace):
            _, plain, largest = tree.span_errors(earlier, later, 1.0)
            return equal_numbers(plain, largest)[:, np.newaxis]
        numbers = np.full((len(later), 1), int(self.pure))
        whole = (earlier == 0) & (later > 0)
        if self.pure and whole.any():
            numbers[whole, 0] = self._laplace(later[whole])[2]
        return numbers

    def _laplace(self, ticks: IntArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """(exact variance, that of continuous noise, equal Laplace numbers with tails as heavy) of
        one cell."""
        tree = self.factorization
        assert isinstance(tree, PureFactorization)
        exact, plain, largest = tree.laplace_errors(ticks, self.full_rate)
        scale = (self.query.publishing.sum_weights(ticks) * self.query.grid) ** 2
        return exact * scale, plain * scale, equal_numbers(plain, largest)

    @property
    def full_rate(self) -> float:
        """The rate, per grid unit, of Laplace noise that has all of ε."""
        assert isinstance(self.factorization, PureFactorization)
        return self.factorization.full_rate(self.sigma / self.query.grid)

    def equal_numbers(self, ticks: IntArray) -> IntArray:
        """How many equal Laplace numbers have a sum with tails as heavy as the noise, shape (ticks,
        outputs or 1); 0: normal noise."""
        if self.pure:
            return self._laplace(ticks)[2][:, np.newaxis]
        return np.zeros((len(ticks), 1), int)

    @property
    def pure(self) -> bool:
        """Whether the noise is Laplace on a tree (δ = 0)."""
        return isinstance(self.factorization, PureFactorization)

    def unrounded_std(self, ticks: IntArray) -> FloatArray:
        """Std of one cell's noise before it is rounded, in grid units, at each tick."""
        return np.asarray(self.sigma / self.query.grid * self.norms(ticks))


def add_errors(each: Sequence[SpanErrors]) -> SpanErrors:
    """The errors of sums of independent numbers."""
    if len(each) == 1:
        return each[0]
    std, spread, slack, step = (np.stack(side) for side in zip(*each, strict=True))
    return SpanErrors(
        std=np.sqrt((std**2).sum(axis=0)),
        spread=np.sqrt((spread**2).sum(axis=0)),
        slack=slack.sum(axis=0),
        step=step.sum(axis=0),
    )


def _of_spans(side: FloatArray, chosen: BoolArray) -> FloatArray:
    """Take the rows of some spans, of what may be the same for all of them."""
    if side.ndim == 1:
        return side
    return np.asarray(side[chosen])


def _spread_out(places: BoolArray, rows: FloatArray, columns: int) -> FloatArray:
    """Put the rows of some spans among those of all spans; the others have zeros."""
    whole = np.zeros((len(places), columns))
    whole[places] = rows
    return whole


def whole_ticks(ticks: npt.ArrayLike, horizon: int | None) -> IntArray:
    """Ticks as a row of whole numbers, or ParameterError where they are none or not in
    1..horizon."""
    at = np.atleast_1d(np.asarray(ticks))
    if at.ndim != 1 or (at.size and at.dtype.kind not in "iu"):
        raise ParameterError(
            f"ticks are a list of whole numbers, got an array of {at.dtype} and shape {at.shape}"
        )
    if at.size and (at.min() < 1 or (horizon is not None and at.max() > horizon)):
        raise ParameterError(
            f"ticks must lie in 1..{horizon or '…'}, got {int(at.min())}..{int(at.max())}"
        )
    return at.astype(np.int64)


def interval_factor(level: float, weight: int, largest_of: int = 0) -> float:
    """How many standard deviations an interval needs on either side: of one number, or of the
    largest of so many. `weight` is that of `ErrorModel.equal_numbers`."""
    check_probability("level", level)
    if weight:
        return laplace_factor((1 - level) / coarse(largest_of), weight)
    if largest_of:
        return float(simultaneous_quantile(coarse(largest_of), 1 - level))
    return normal_quantile(level)


def interval_factors(level: float, weights: IntArray, largest_of: npt.ArrayLike = 0) -> FloatArray:
    """`interval_factor` for each weight, computed once for each that occurs."""
    pairs = list(
        zip(
            *(side.ravel().tolist() for side in np.broadcast_arrays(weights, largest_of)),
            strict=True,
        )
    )
    factors = {pair: interval_factor(level, *pair) for pair in set(pairs)}
    return np.asarray([factors[pair] for pair in pairs]).reshape(weights.shape)


def coarse(number: int) -> int:
    """The number, at least 1, rounded up to three bits: long runs then have few different factors,
    0.6 % wider."""
    size = 1 << max(int(number).bit_length() - 3, 0)
    return max(-(-int(number) // size) * size, 1)


def normal_quantile(level: float) -> float:
    """How many standard deviations hold a fraction `level` of a normal, both sides."""
    check_probability("level", level)
    usual = usual_factors()
    if level == usual.level:
        return usual.normal
    return computed_normal(level)


def computed_normal(level: float) -> float:
    """`normal_quantile` without the table."""
    from scipy.special import ndtri  # it takes longer than a release of some rows

    return float(ndtri(0.5 + level / 2))
