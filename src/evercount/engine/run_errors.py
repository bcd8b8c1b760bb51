"""RunErrors: how far the published numbers of a run of ticks are off. `Releases` adds views, tables and charts.

Everything here is computed from published numbers and public parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor
from evercount.engine.error_model import ErrorModel, coarse, interval_factor
from evercount.errors import ParameterError
from evercount.factorizations import tick_grid
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise.simulation import insecure_generator, insecure_secret
from evercount.queries.base import Query
from evercount.queries.publishing import CellErrors, KeptSums
from evercount.queries.top_keys import RankErrors


class RunErrors:
    """The errors of consecutive ticks, computed when they are asked for; `Releases` describes the arguments."""

    def __init__(
        self,
        first_tick: int,
        values: FloatArray,
        errors: ErrorModel,
        guarantee: str,
        postprocessed: tuple[str, ...] = (),
        sums: FloatArray | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self.first_tick, self.guarantee, self.postprocessed = first_tick, guarantee, postprocessed
        self._values, self._errors, self._sums, self._labels = values, errors, sums, labels

    def __len__(self) -> int:
        return len(self._values)

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._errors.query

    @property
    def _kept(self) -> KeptSums | None:
        return self.query.publishing.kept

    @property
    def ticks(self) -> IntArray:
        """The 1-based ticks."""
        return np.arange(self.first_tick, self.first_tick + len(self))

    @cached_property
    def _errors_all(self) -> Sequence[FloatArray]:
        """(std, spread, slack), each (ticks, outputs)."""
        shape = self._values.shape
        if not len(self):
            return [np.empty(shape)] * 3
        errors = list(self._errors.errors(self.ticks))
        if self._sums is not None and self._kept is not None:
            errors[0] = errors[0][:, :1] * self._kept.scale(self._sums, self._values)
        if self._looks_back:  # the largest number so far has the largest error so far
            before = [part.max(axis=0) for part in self._errors.errors(tick_grid(self.first_tick))]
            pairs = zip(errors, before, strict=True)
            errors = [np.maximum.accumulate(np.maximum(part, most), axis=0) for part, most in pairs]
        return [np.broadcast_to(part, shape) for part in errors]

    @cached_property
    def _cells(self) -> CellErrors:
        """The errors of one cell at every tick, for queries that make intervals of their own."""
        return self._errors.cell_errors(self.ticks)[1]

    @property
    def stds(self) -> FloatArray:
        """Std before post-processing (monotone: the largest so far), always (ticks, outputs)."""
        return self._errors_all[0]

    def _limits(self, level: float, index: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends of the intervals of all ticks, or of one, shape (ticks, outputs)."""
        part = slice(None) if index is None else slice(index, index + 1)
        if self._sums is not None and self._kept is not None:
            errors = self._cells.at(part)
            return self._kept.interval(self._values[part], self._sums[part], errors, level)
        half = self._symmetric(level, part)
        return self._values[part] - half, self._values[part] + half

    def _evidence(self, places: IntArray) -> FloatArray:
        """How clearly each discovered key is above its threshold at some ticks, in stds."""
        assert self._sums is not None
        return self._sums[places]

    def _cell_errors(self, index: int) -> CellErrors:
        """The errors of one cell at one tick, each of shape (1, 1)."""
        return self._cells.at(slice(index, index + 1))

    def _rank_errors(self, index: int) -> RankErrors:
        """The errors of one tick's numbers, as the selection of the largest needs them."""
        if self._sums is not None:
            raise ParameterError(
                "there is nothing to select: every discovered key has passed a threshold already"
                if self.query.discovery is not None
                else "there is nothing to select from: an average per event is one number"
            )
        spread, slack = (error[index : index + 1] for error in self._errors_all[1:])
        slack = slack + self._rounding
        outputs = self._values.shape[1]
        alike = self.query.outputs == self.query.cells and bool(np.all(self.query.publishing.norms() == 1.0))
        return RankErrors(
            CellErrors(spread, slack, self._errors.pure),
            coarse((self.first_tick + index) * outputs) if self._looks_back else outputs,
            independent=alike and not self._looks_back and not self._errors.pure,
        )

    def _symmetric(self, level: float, part: slice) -> FloatArray:
        ticks = self.ticks[part]
        if (half := self._errors.half_widths(level)) is not None:
            return np.tile(half, (len(ticks), 1))
        counts = [coarse(int(tick) * self._errors.width) for tick in ticks] if self._looks_back else [1] * len(ticks)
        pairs = list(zip(counts, self._equal_numbers(ticks), strict=True))
        factors = {pair: interval_factor(level, self.postprocessed, *pair) for pair in set(pairs)}
        factor = np.asarray([factors[pair] for pair in pairs]).reshape(-1, 1)
        if self._errors.joined:
            factor = self._errors.with_joined(level, factor, ticks, self._errors.parts)
        return np.asarray(factor * self._errors_all[1][part] + self._errors_all[2][part] + self._rounding)

    @property
    def _rounding(self) -> float:
        """How far post-processing to whole numbers can move a number: not at all where all numbers are whole before."""
        return 0.5 if "integer" in self.postprocessed and not self.query.publishes_whole_numbers else 0.0

    def _equal_numbers(self, ticks: IntArray) -> list[int | None]:
        """See `ErrorModel.equal_numbers`; where a number is the largest so far, the heaviest tails so far."""
        if self._looks_back and self._errors.pure:
            return [1] * len(ticks)
        return self._errors.equal_numbers(ticks)

    @property
    def _looks_back(self) -> bool:
        """Whether a number is the largest so far, so that its error is that of all ticks before."""
        return "monotone" in self.postprocessed

    def bound(self, level: float = 0.95, method: str = "union") -> FloatArray:
        """Half-widths that hold for all ticks and outputs of this run at once with probability `level`.

        "union" takes exact tails (normal, or of sums of Laplace numbers) and a union bound. "simulate" takes the
        quantile of the largest normalised error over 4000 simulated runs (its upper 99.9 % confidence limit). The noise
        is correlated, so it is smaller; it is never larger than the union bound.

        Args:
            level: the probability that all numbers are inside.
            method: "union", or "simulate" for one running sum of up to 2^17 ticks from the first one.

        Returns:
            The half-widths, of the shape of `values`.

        Raises:
            ParameterError: the level or the method is not legal, or the method does not fit this run.
        """
        beta = 1 - check_probability("level", level)
        if method not in ("union", "simulate"):
            raise ParameterError(f"method must be 'union' or 'simulate', got {method!r}")
        if self._sums is not None:
            raise ParameterError("bound() is unavailable for ratios: their error depends on how many events come")
        last = self.first_tick + len(self) - 1
        numbers = max(last * self._values.shape[1] if self._looks_back else self._values.size, 1)
        factors = np.full((len(self), 1), float(simultaneous_quantile(numbers, beta)))
        if self._errors.pure:
            weights = [1] * len(self) if self._errors.joined else self._equal_numbers(self.ticks)
            factors = np.asarray([laplace_factor(beta / numbers, weight or 1) for weight in weights]).reshape(-1, 1)
        _, spread, slack = self._errors_all
        if method == "simulate":
            if self.first_tick != 1 or self.postprocessed:
                raise ParameterError("method='simulate' is for runs from tick 1 on without post-processing")
            top = factors.max(initial=0.0)
            shape = factors / top
            factors = min(top, simulated_factor(self._errors, len(self), spread, slack, shape, beta)) * shape
        return self._squeeze(factors * spread + slack + self._rounding)

    def _squeeze(self, array: FloatArray) -> FloatArray:
        return array[:, 0] if self.query.single else array


SIMULATED_RUNS = 4000
RUNS_AT_A_TIME = 100
LONGEST_SIMULATION = 2**17  # the largest number of ticks: memory and time grow with it
SEED = 0x5EED  # public, so that a bound is a function of public parameters alone


def simulated_factor(
    errors: ErrorModel, ticks: int, spread: FloatArray, slack: FloatArray, shape: FloatArray, beta: float
) -> float:
    """The smallest q, up to simulation, with P(|error| ≤ q·shape·spread + slack at all ticks) ≥ 1 − beta. It is the
    upper 99.9 % confidence limit over `SIMULATED_RUNS` runs; infinite where beta is too small for these."""
    query = errors.query
    mixed = errors.pure and query.cells != 1  # a combination of Laplace numbers of several cells has other tails
    if query.outputs != 1 or mixed or not 0 < ticks <= LONGEST_SIMULATION:
        raise ParameterError("method='simulate' is for one running sum, from tick 1 on, up to 2^17 ticks; use 'union'")
    simulated = _laplace_errors(errors, ticks, spread, slack) if errors.pure else _normal_errors(errors, ticks)
    largest = [np.max(error / shape, axis=0) for error in simulated]
    ordered = np.sort(np.concatenate(largest))
    rank = int(np.ceil(SIMULATED_RUNS * (1 - beta) + 3.1 * np.sqrt(SIMULATED_RUNS * beta * (1 - beta))))
    return max(float(ordered[rank]), 0.0) if rank < SIMULATED_RUNS else float("inf")


def _laplace_errors(errors: ErrorModel, ticks: int, spread: FloatArray, slack: FloatArray) -> Iterator[FloatArray]:
    """(|error| − slack)/spread of discrete Laplace noise, shape (ticks, runs), until all runs are simulated."""
    scale = float(np.atleast_1d(errors.query.publishing.norms())[0]) * errors.query.grid
    for number in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        noise = build_pure(
            errors.factorization,
            cells=RUNS_AT_A_TIME,  # cells have independent noise of one law: each stands for a run
            grid=1.0,
            l1=1.0,
            epsilon=errors.full_rate,
            secret=insecure_secret(SEED + number),
        )
        yield (np.abs(noise.stream.take(ticks)) * scale - slack) / spread


def _normal_errors(errors: ErrorModel, ticks: int) -> Iterator[FloatArray]:
    """|noise| over its std, shape (ticks, runs), until all runs are simulated; slack is rounding and comes on top."""
    factorization = errors.factorization
    norms = factorization.row_norms(np.arange(1, ticks + 1))[:, np.newaxis]
    source, draws = insecure_generator(SEED), factorization.draws(0, ticks)
    for _ in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        normals = source.standard_normal((draws, RUNS_AT_A_TIME))
        yield np.abs(factorization.block(factorization.initial(RUNS_AT_A_TIME), normals, ticks)[0]) / norms
