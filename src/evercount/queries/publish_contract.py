"""PublishContract: what a query publishes from its noisy running sums, and how far the published numbers are off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count
from evercount.errors import ParameterError
from evercount.queries.cell_errors import CellErrors
from evercount.queries.top_keys import RankErrors, TopKey, top_keys


class PublishContract(ABC):
    """How noisy running sums become published numbers. The default: each cell is published as it is.

    Everything here is post-processing: it sees noisy sums and public parameters, never events.
    """

    name: ClassVar[str]
    """The name by which commands, services and snapshots know the query."""

    @property
    @abstractmethod
    def cells(self) -> int:
        """Number of running sums that the engine keeps."""

    @property
    def grid(self) -> float:
        """The public unit of one increment (1 for counts); a power of two times a rational is best."""
        return 1.0

    @property
    def outputs(self) -> int:
        """How many numbers are published per tick."""
        return self.cells

    @property
    def single(self) -> bool:
        """Whether `Release.value` is one number; else it is an array, also where it has one entry.

        The type parameter of `Query` says the same: `Query[float]` or `Query[FloatArray]`.
        """
        return self.outputs == 1

    @property
    def labels(self) -> Sequence[str]:
        """One label per published number, public."""
        return ("count",) if self.outputs == 1 else tuple(map(str, range(self.outputs)))

    @property
    def monotone(self) -> bool:
        """Whether no published number can truly fall from one tick to the next."""
        return False

    def decode(self, tick: int, noisy: FloatArray) -> FloatArray:
        """Published numbers of one tick (shape ``(outputs,)``) from the noisy running sums (``(cells,)``).

        Post-processing only: it sees nothing of the data but `noisy`.

        Args:
            tick: The 1-based tick.
            noisy: The noisy running sums.

        Returns:
            The published numbers.
        """
        return noisy

    def sum_weights(self, ticks: IntArray) -> FloatArray:
        """What the running sums of each tick are multiplied with before they are published.

        Args:
            ticks: The 1-based ticks.

        Returns:
            One positive number for each tick.
        """
        return np.ones(len(ticks))

    def decode_run(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Published numbers of many ticks, shape (ticks, outputs).

        Args:
            first_tick: The 1-based tick of the first row.
            noisy: The noisy running sums, shape (ticks, cells).

        Returns:
            The published numbers.
        """
        if type(self).decode is PublishContract.decode:
            return noisy
        return np.stack([self.decode(first_tick + i, row) for i, row in enumerate(noisy)])

    @property
    def publishes_sums(self) -> bool:
        """Whether the published numbers are the noisy running sums themselves."""
        return type(self).decode_run is PublishContract.decode_run and type(self).decode is PublishContract.decode

    @property
    def publishes_whole_numbers(self) -> bool:
        """Whether noise in whole grid units gives whole published numbers: whole sums, published as they are."""
        return self.publishes_sums and self.grid % 1 == 0

    def output_norms(self) -> FloatArray | float:
        """‖row‖₂ of the linear map `decode` for each output: std of an output = this × std of a cell.

        Returns:
            One number for each output, or one for all.
        """
        return 1.0

    @property
    def keeps_sums(self) -> bool:
        """Whether a release keeps its noisy sums, which are published and not private, for the methods below."""
        return False

    def output_scale(self, sums: FloatArray, values: FloatArray) -> FloatArray:
        """Std of the published numbers over that of a cell, to first order, for queries that keep their sums.

        Args:
            sums: The noisy sums, shape (ticks, cells).
            values: The published numbers, shape (ticks, outputs).

        Returns:
            The ratios, in the shape of `values`.
        """
        raise NotImplementedError

    def interval(
        self, values: FloatArray, sums: FloatArray, errors: CellErrors, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """(low, high) of published `values`, shape (ticks, outputs), from the noisy `sums` of their ticks.

        Asked of queries that keep their sums; the intervals of all others follow from their stds.

        Args:
            values: The published numbers.
            sums: The noisy sums, shape (ticks, cells).
            errors: The errors of a cell at these ticks.
            level: The probability that an interval holds its true number.

        Returns:
            The lower and the upper ends, each in the shape of `values`.
        """
        raise NotImplementedError

    def before_first(self) -> FloatArray:
        """What would be published before the first tick, without noise; public.

        Returns:
            One number for each output.
        """
        return np.zeros(self.outputs)

    def between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(change, weight): what is published for ticks earlier+1 … later, given the published numbers at both ends.

        `weight` × the std of a cell's change is the std of each output's change.

        Args:
            earlier: The tick before the span; 0 for the time before the first tick.
            later: The last tick of the span.
            low: The published numbers of `earlier`.
            high: The published numbers of `later`.

        Returns:
            The change and the weight of each output.

        Raises:
            ParameterError: With the reason, where published numbers do not tell.
        """
        if not self.running_sums:
            raise ParameterError(f"{self.name!r} {self.no_views}")
        return high - low, np.ones(len(low)) * self.output_norms()

    def consistent(self, values: FloatArray) -> FloatArray:
        """The nearest values that real data could have at one tick; post-processing.

        Args:
            values: The published numbers of one tick.

        Returns:
            The nearest possible ones.

        Raises:
            ParameterError: Where the query has no such form.
        """
        raise ParameterError(
            f"{self.name!r} has no consistent form: only degree histograms and degree sequences have one"
        )

    def top(self, values: FloatArray, errors: RankErrors, k: int | None, level: float) -> list[TopKey]:
        """The k largest published numbers (1 by default) with intervals and confidences: see `TopKey`.

        Args:
            values: The published numbers of one tick.
            errors: Their errors.
            k: How many are asked for.
            level: The probability that all intervals hold at once.

        Returns:
            The largest numbers, the largest first.

        Raises:
            ParameterError: k is not a whole number of at least 1.
        """
        return top_keys(
            list(self.labels), values, errors, min(check_count("k", 1 if k is None else k), len(values)), level
        )

    def rounding_norms(self) -> FloatArray | float:
        """Σ|coefficients| of each output's row (or a bound of it): what a change of 1 in every cell can do to it.

        Returns:
            One number for each output, or one for all.
        """
        return self.output_norms()

    @property
    def publishes_cells(self) -> bool:
        """Whether each output is one cell as it is, so that lower bounds for running sums hold for it."""
        return type(self).decode_run is PublishContract.decode_run

    @property
    def running_sums(self) -> bool:
        """Whether an output is a fixed linear map of its tick's running sums: then differences of ticks have a meaning.

        Their exact error is that of a cell's difference times `output_norms`.
        """
        return type(self).decode_run is PublishContract.decode_run

    @property
    def no_views(self) -> str:
        """Where there are no `running_sums`: why there are no views per tick or of last ticks, and what to take."""
        return "is not a sum over ticks, so two releases do not tell what came between"

    def output_covariance(self, outputs: Sequence[int]) -> FloatArray:
        """Covariance of some outputs of one tick, in units of a cell's variance: for comparisons of outputs.

        Args:
            outputs: The numbers of the outputs, from 0.

        Returns:
            A square matrix with a row for each of them.

        Raises:
            ParameterError: The query does not declare it.
        """
        if type(self).decode is not PublishContract.decode or type(self).decode_run is not PublishContract.decode_run:
            raise ParameterError(f"outputs of {self.name!r} cannot be compared: their covariance is not declared")
        chosen = np.asarray(outputs)
        return np.asarray(chosen[:, np.newaxis] == chosen, dtype=np.float64)

    has_quantiles: ClassVar[bool] = False
    """Whether quantiles of a value can be read from its numbers: `norms_beside` and `read_quantile`."""

    def norms_beside(self, q: float) -> FloatArray:
        """For quantiles: std of (number below each edge) − q·(number of all), in units of a cell's std.

        Args:
            q: Which quantile, between 0 and 1.

        Returns:
            One number for each edge.

        Raises:
            ParameterError: The query has no quantiles.
        """
        raise ParameterError(f"{self.name!r} has no quantiles: they are read from a stream of 'quantiles'")

    def read_quantile(self, below: FloatArray, half: FloatArray, q: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile from numbers below edges and their half-widths.

        Args:
            below: The published numbers of values below each edge, shape (ticks, edges).
            half: Half-widths that hold for (number below an edge) − q·(number of all).
            q: Which quantile, between 0 and 1.

        Returns:
            The value and the ends of its interval, one of each for a tick.

        Raises:
            ParameterError: The query has no quantiles.
        """
        raise ParameterError(f"{self.name!r} has no quantiles: they are read from a stream of 'quantiles'")
