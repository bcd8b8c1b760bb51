"""How far a published number may be off: exact stds of all queries, and the factors that make intervals of them.

Everything here is computed from public parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import continuous_std, equal_numbers, laplace_factor
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_base import PureFactorization
from evercount.factorizations.laplace_trees import DigitTree
from evercount.queries.base import Query
from evercount.queries.cell_errors import CellErrors

POINTS_PER_OCTAVE = 16
"""Errors of windows are exact at this many ticks in each doubling of the distance from a jump, a cubic between."""


@dataclass(frozen=True, eq=False)
class ErrorModel:
    """The public facts from which every error bar follows.

    `sigma` is the std of z in real units; a rounded release adds the variance grid²/12 of its rounding. `outputs` is
    how many numbers a tick of the whole stream has, where the query is a part of it.
    """

    query: Query
    factorization: Factorization
    sigma: float
    rounded: bool
    outputs: int = 0
    _norm_at: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _next: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = field(default_factory=dict, init=False, repr=False)

    @property
    def width(self) -> int:
        """How many numbers a tick of the whole stream has."""
        return self.outputs or self.query.outputs

    def norms(self, ticks: IntArray) -> FloatArray:
        """Std of one cell's published number over σ, at each 1-based tick."""
        terms = self.query.combination(ticks)
        if len(terms) == 1 and self.query.restart is None:
            at, weights = terms[0]
            return np.asarray(np.abs(weights) * self.factorization.row_norms(at))
        key = ticks
        horizon = self.factorization.horizon
        jumps: tuple[int, ...] = (self.query.memory, *(() if horizon is None else (horizon,)))
        if self.query.restart is not None:  # after the first period only the place inside the period matters
            period = self.query.restart
            key = np.where(ticks <= period, ticks, period + 1 + (ticks - 1) % period)
            jumps = (period - 1, period, 2 * period - 1)
        distinct, where = np.unique(key, return_inverse=True)
        return np.asarray([self._between_jumps(int(tick), jumps) for tick in distinct])[where]

    def _between_jumps(self, tick: int, jumps: tuple[int, ...]) -> float:
        """The norm at one tick, a function of the tick alone: exact near a jump, else by a cubic through exact ones."""
        low = max((jump + 1 for jump in jumps if jump < tick), default=1)
        high = min((jump for jump in jumps if jump >= tick), default=None)
        distance = tick - low if high is None else min(tick - low, high - tick)
        spacing = 1 << max(0, (distance // POINTS_PER_OCTAVE).bit_length() - 1)
        if spacing == 1:
            return self._exact(tick)
        first = max(low, low + (tick - low) // spacing * spacing - spacing)
        if high is not None:
            first = min(first, high - 3 * spacing)
        nodes = [first + i * spacing for i in range(4)]
        total = 0.0
        for i, node in enumerate(nodes):  # Lagrange's form
            weight = self._exact(node)
            for j, other in enumerate(nodes):
                weight *= (tick - other) / (node - other) if i != j else 1.0
            total += weight
        return total

    def _exact(self, tick: int) -> float:
        if tick not in self._norm_at:
            self._norm_at[tick] = self._combined(tick)
        return self._norm_at[tick]

    def _combined(self, tick: int) -> float:
        """√Var of Σ weight·noise over the terms of one tick, from row and difference norms."""
        period = self.query.restart
        groups: dict[int, list[tuple[int, float]]] = {}
        for at, weights in self.query.combination(np.asarray([tick])):
            t, weight = int(at[0]), float(weights[0])
            if t > 0 and weight != 0:
                number, offset = (0, t) if period is None else ((t - 1) // period, (t - 1) % period + 1)
                groups.setdefault(number, []).append((offset, weight))
        return float(np.sqrt(sum(self._variance(group) for group in groups.values())))

    def _variance(self, terms: list[tuple[int, float]]) -> float:
        offsets = [t for t, _ in terms]
        weights = np.asarray([w for _, w in terms])
        own = self.factorization.row_norms(np.asarray(offsets)) ** 2
        covariance = np.diag(own)
        for i, s in enumerate(offsets):
            for j in range(i):
                apart = self.factorization.difference_norm(*sorted((s, offsets[j]))) ** 2
                covariance[i, j] = covariance[j, i] = (own[i] + own[j] - apart) / 2
        return max(float(weights @ covariance @ weights), 0.0)

    def std(self, ticks: npt.ArrayLike) -> FloatArray:
        """Std of the published numbers, shape (ticks, outputs or 1)."""
        return self.errors(ticks)[0]

    def errors(self, ticks: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(std, spread, slack), each (ticks, outputs or 1): an interval's half-width is quantile·spread + slack.

        Where the noise is wider than the grid, rounding acts as independent noise of variance grid²/12 and is part of
        the spread; half the distance of neighbouring published numbers is the slack. Below that rounding is not normal,
        and its largest possible size is the slack. Pure noise is discrete: its std is exact, its spread is that of
        continuous noise, and half a unit is added (`laplace_tails.continuous_std`). A bridge whose noise is wider than
        the grid is rounded too.

        **Guarantee.** An interval of this half-width holds its true number with at least the probability of the
        quantile. Proof: `queries/cell_errors.proof.md`. Assumption: that of `CellErrors.slack_of`. Test:
        tests/engine/test_rounded_intervals.py::test_intervals_of_rounded_counts_hold.
        """
        at = np.asarray(ticks)
        if at.size == 1 and at.dtype.kind in "iu" and (ready := self._next.get(int(at.flat[0]))):
            return ready
        std, cell = self.cell_errors(ticks)
        norms, most = np.atleast_1d(self.query.output_norms()), np.atleast_1d(self.query.rounding_norms())
        return std * norms, cell.spread * norms, cell.slack_of(norms, most)

    def prepare(self, tick: int) -> None:
        """Compute the errors of this tick now, so that asking for them is quick; only those of one tick are kept."""
        if tick not in self._next:
            errors = self.errors([tick])
            for part in errors:
                part.flags.writeable = False  # everyone who asks gets the same arrays
            self._next.clear()
            self._next[tick] = errors

    def cell_errors(self, ticks: npt.ArrayLike) -> tuple[FloatArray, CellErrors]:
        """(std, errors) of one cell's published number, each array (ticks, 1)."""
        at = np.atleast_1d(np.asarray(ticks))
        if at.dtype.kind not in "iu" and at.size:
            raise ParameterError(f"ticks must be whole numbers, got {at.dtype} data")
        at = at.astype(np.int64)
        horizon = self.factorization.horizon if self.query.restart is None else None
        if at.size and (at.min() < 1 or (horizon is not None and at.max() > horizon)):
            raise ParameterError(f"ticks must lie in 1..{horizon or '…'}, got {int(at.min())}..{int(at.max())}")
        weights = [np.where(t > 0, np.abs(w), 0.0) for t, w in self.query.combination(at)]
        if self.pure:
            variance, plain, _ = self._laplace(at)
            return self._discrete(variance, plain, weights)
        return self._with_rounding(self.sigma * self.norms(at), weights)

    def _with_rounding(self, noise: FloatArray, weights: list[FloatArray]) -> tuple[FloatArray, CellErrors]:
        """(std, errors) of Σ weight × running sum of one cell, from the std of its normal noise."""
        grid = self.query.grid
        if not self.rounded:
            return _as_column(noise), CellErrors(_as_column(noise), _as_column(np.zeros(len(noise))), pure=False)
        std = np.sqrt(noise**2 + grid**2 / 12 * sum(w**2 for w in weights))
        narrow = noise < grid
        spread, slack = np.where(narrow, noise, std), np.where(narrow, grid / 2 * sum(weights), 0.0)
        step = np.where(narrow, 0.0, grid / 2 * np.max(weights, axis=0))
        return _as_column(std), CellErrors(_as_column(spread), _as_column(slack), pure=False, step=_as_column(step))

    def _discrete(
        self, variance: FloatArray, plain: FloatArray, weights: list[FloatArray]
    ) -> tuple[FloatArray, CellErrors]:
        """The same for discrete Laplace noise, from its exact variance and that of continuous noise."""
        grid = self.query.grid
        if self.rounded:
            variance = variance + grid**2 / 12 * sum(w**2 for w in weights)
        slack = grid / 2 * np.sum(weights, axis=0)
        return _as_column(np.sqrt(variance)), CellErrors(_as_column(np.sqrt(plain)), _as_column(slack), pure=True)

    def difference_errors(self, earlier: IntArray, later: IntArray) -> tuple[FloatArray, CellErrors]:
        """(std, errors) of the difference of one cell's running sums at pairs of ticks (0: before the first)."""
        if not self.query.running_sums:
            raise ParameterError(f"{self.query.name!r} {self.query.no_views}")
        pairs = np.stack([earlier, later], axis=1)
        distinct, where = np.unique(pairs, axis=0, return_inverse=True)
        norms = np.asarray([self.factorization.difference_norm(int(a), int(b)) for a, b in distinct])
        noise = self.sigma * (norms[where.reshape(-1)] if len(norms) else np.zeros(len(pairs)))
        weights = [np.ones(len(pairs)), np.where(earlier > 0, 1.0, 0.0)]
        if self.pure:
            return self._discrete(noise**2, noise**2 * self._continuous, weights)
        return self._with_rounding(noise, weights)

    @property
    def _continuous(self) -> float:
        """Variance of continuous Laplace noise over that of the discrete noise of a digit tree; 1 for other trees."""
        if not isinstance(self.factorization, DigitTree):
            return 1.0
        return float((continuous_std(self.sigma / self.query.grid) * self.query.grid / self.sigma) ** 2)

    @property
    def difference_tails(self) -> int | None:
        """As `equal_numbers`, for differences: they have no common bound, so they count as one Laplace number."""
        return 1 if self.pure else None

    def _laplace(self, ticks: IntArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """(exact variance, that of continuous noise, equal Laplace numbers with tails as heavy) of one cell."""
        tree = self.factorization
        assert isinstance(tree, PureFactorization)
        terms = self.query.combination(ticks)
        if len(terms) > 1:  # numbers of a difference have no common bound here: as heavy as a single one
            variance = (self.sigma * self.norms(ticks)) ** 2
            return variance, variance * self._continuous, np.ones(len(ticks), np.int64)
        at, factor = terms[0]
        exact, plain, largest = tree.laplace_errors(at, self.full_rate)
        scale = (factor * self.query.grid) ** 2
        return exact * scale, plain * scale, equal_numbers(plain, largest)

    @property
    def full_rate(self) -> float:
        """The rate, per grid unit, of Laplace noise that has all of ε."""
        assert isinstance(self.factorization, PureFactorization)
        return self.factorization.full_rate(self.sigma / self.query.grid)

    def equal_numbers(self, ticks: IntArray) -> list[int | None]:
        """Per tick, how many equal Laplace numbers have a sum with tails as heavy as the noise; None: normal noise."""
        if not self.pure:
            return [None] * len(ticks)
        return list(map(int, self._laplace(np.asarray(ticks))[2]))

    @property
    def pure(self) -> bool:
        """Whether the noise is Laplace on a tree (δ = 0)."""
        return isinstance(self.factorization, PureFactorization)

    def between(self, earlier: int, later: int) -> float:
        """Std of the difference of one cell's running sums at two ticks (0: before the first)."""
        if self.query.restart is not None:
            raise ParameterError("a window has no running count to take differences of")
        variance = (self.sigma * self.factorization.difference_norm(earlier, later)) ** 2
        return float(np.sqrt(variance + (self.query.grid**2 / 12 * ((earlier > 0) + 1) if self.rounded else 0.0)))


def _as_column(numbers: FloatArray) -> FloatArray:
    return np.asarray(numbers)[:, np.newaxis]


def interval_factor(level: float, postprocessed: tuple[str, ...], numbers: int, weight: int | None = None) -> float:
    """How many standard deviations an interval needs on either side: of one number, or of the largest of `numbers`.

    `weight` is that of `ErrorModel.equal_numbers`.
    """
    single = normal_quantile(level)
    many = "monotone" in postprocessed
    if weight is not None:
        return laplace_factor((1 - level) / (coarse(numbers) if many else 1), weight)
    return float(simultaneous_quantile(coarse(numbers), 1 - level)) if many else single


def coarse(number: int) -> int:
    """The number, at least 1, rounded up to three bits: long runs then have few different factors, 0.6 % wider."""
    size = 1 << max(int(number).bit_length() - 3, 0)
    return max(-(-int(number) // size) * size, 1)


def normal_quantile(level: float) -> float:
    """How many standard deviations hold a fraction `level` of a normal, both sides."""
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise ParameterError(f"level must lie between 0 and 1, got {level!r}")
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2))
