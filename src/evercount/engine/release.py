"""Releases: what a run of ticks publishes, with exact errors, intervals, export and plot.

Everything here is computed from published numbers and public parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor
from evercount.engine import take_views
from evercount.engine.error_model import ErrorModel, coarse, interval_factor
from evercount.engine.simulated_bound import simulated_factor
from evercount.engine.table_exports import TableExports
from evercount.engine.tick_release import Release
from evercount.engine.views import View
from evercount.engine.write_table import TextTarget, write_csv, write_jsonl, write_parquet
from evercount.errors import ParameterError
from evercount.factorizations import tick_grid
from evercount.queries.base import Query, V_co
from evercount.queries.cell_errors import CellErrors
from evercount.queries.top_keys import RankErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["Release", "Releases"]


class Releases(TableExports, Generic[V_co]):
    """What a run of ticks publishes. Behaves as a sequence of `Release`.

    Args:
        first_tick: the 1-based tick of the first row.
        values: the published numbers, shape (ticks, outputs).
        errors: the public facts from which all errors follow.
        noise: the kind of noise.
        guarantee: the guarantee of the whole stream in one sentence.
        postprocessed: the post-processing that was applied.
        sums: the noisy sums behind the numbers, where the query keeps them.
        growth: where keys are discovered, the labels of the last tick and how many of them each tick publishes.

    >>> from evercount import Budget, Count, Stream
    >>> releases = Stream(Count(), Budget(1.0, 1e-6), 24, noise="insecure-float", seed=1).run([100, 50])
    >>> releases.values.round(1).tolist(), releases.std.round(1).tolist()
    ([107.6, 163.4], [6.8, 7.3])
    """

    def __init__(
        self,
        first_tick: int,
        values: FloatArray,
        errors: ErrorModel,
        noise: str,
        guarantee: str,
        postprocessed: tuple[str, ...] = (),
        sums: FloatArray | None = None,
        growth: tuple[Sequence[str], IntArray] | None = None,
    ) -> None:
        self.first_tick = first_tick
        self._growth = growth  # labels of the last tick, and how many of them each tick publishes
        self._values = values
        self._errors = errors
        self._sums = sums
        self._parts: tuple[FloatArray, FloatArray, FloatArray] | None = None
        self.noise = noise
        self.guarantee = guarantee
        self.postprocessed = postprocessed

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Release[V_co]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return Release(self, index % len(self))

    def __iter__(self) -> Iterator[Release[V_co]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        last = self.first_tick + len(self) - 1
        return f"Releases(ticks {self.first_tick}..{last}, {len(self.labels)} outputs, noise={self.noise!r})"

    # -- numbers ------------------------------------------------------------------------------------------------

    @property
    def error_model(self) -> ErrorModel:
        """The public facts from which all errors follow."""
        return self._errors

    @property
    def labels(self) -> Sequence[str]:
        """One label per output; where keys are discovered, of the last tick."""
        return self._errors.query.labels if self._growth is None else self._growth[0]

    def width(self, index: int) -> int:
        """How many numbers one of the ticks publishes; the rest of its row is NaN.

        Args:
            index: The place of the tick in this run, from 0.

        Returns:
            The number of numbers.
        """
        return self._values.shape[1] if self._growth is None else int(self._growth[1][index])

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._errors.query

    @property
    def rows(self) -> FloatArray:
        """Published numbers, always (ticks, outputs)."""
        return self._values

    @property
    def ticks(self) -> IntArray:
        """The 1-based ticks."""
        return np.arange(self.first_tick, self.first_tick + len(self))

    @property
    def values(self) -> FloatArray:
        """Published numbers: shape (ticks,) for one output, else (ticks, outputs)."""
        return self._squeeze(self._values)

    @property
    def _errors_all(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(std, spread, slack), each (ticks, outputs); computed when first asked for."""
        if self._parts is None:
            shape = self._values.shape
            if not len(self):
                return np.empty(shape), np.empty(shape), np.empty(shape)
            std, spread, slack = self._errors.errors(self.ticks)
            if self._sums is not None:  # spread and slack stay those of a cell
                std = std[:, :1] * self.query.output_scale(self._sums, self._values)
            if self._looks_back:  # the largest number so far has the largest error so far
                before = [part.max(axis=0) for part in self._errors.errors(tick_grid(self.first_tick))]
                std, spread, slack = (
                    np.maximum.accumulate(np.maximum(part, most), axis=0)
                    for part, most in zip((std, spread, slack), before, strict=True)
                )
            a, b, c = (np.broadcast_to(part, shape) for part in (std, spread, slack))
            self._parts = (a, b, c)
        return self._parts

    @property
    def std_all(self) -> FloatArray:
        """Std before post-processing (monotone: the largest so far), always (ticks, outputs)."""
        return self._errors_all[0]

    def limits(self, level: float, index: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends of the intervals of all ticks, or of one, shape (ticks, outputs).

        Args:
            level: The probability that an interval holds its true number.
            index: The place of one tick in this run, from 0; None for all.

        Returns:
            The lower ends and the upper ends.
        """
        part = slice(None) if index is None else slice(index, index + 1)
        if self._sums is not None:
            spread, slack = (error[part, :1] for error in self._errors_all[1:])
            errors = CellErrors(spread, slack, self._errors.pure)
            return self.query.interval(self._values[part], self._sums[part], errors, level)
        half = self._symmetric(level, part)
        return self._values[part] - half, self._values[part] + half

    def half_widths(self, level: float, index: int | None = None) -> FloatArray:
        """Half-widths of the intervals, shape (ticks, outputs); the larger side where they differ.

        Args:
            level: The probability that an interval holds its true number.
            index: The place of one tick in this run, from 0; None for all.

        Returns:
            The half-widths.
        """
        part = slice(None) if index is None else slice(index, index + 1)
        if self._sums is None:
            return self._symmetric(level, part)
        low, high = self.limits(level, index)
        return np.maximum(self._values[part] - low, high - self._values[part])

    def evidence(self, places: IntArray) -> FloatArray:
        """How clearly each discovered key is above its threshold at some ticks, in stds.

        Args:
            places: The places of the ticks in this run, from 0.

        Returns:
            One row for each tick, one number for each output.
        """
        assert self._sums is not None
        return self._sums[places]

    def cell_errors(self, index: int) -> CellErrors:
        """The errors of one cell at one tick.

        Args:
            index: The place of the tick in this run, from 0.

        Returns:
            The errors, each of shape (1, 1).
        """
        spread, slack = (error[index : index + 1, :1] for error in self._errors_all[1:])
        return CellErrors(spread, slack, self._errors.pure)

    def rank_errors(self, index: int) -> RankErrors:
        """The errors of one tick's numbers, as the selection of the largest needs them.

        Args:
            index: The place of the tick in this run, from 0.

        Returns:
            The errors.

        Raises:
            ParameterError: The query publishes nothing to select from.
        """
        if self._sums is not None:
            raise ParameterError(
                "there is nothing to select from: an average per event is one number, and every discovered key has "
                "passed a threshold already"
            )
        spread, slack = (error[index : index + 1] for error in self._errors_all[1:])
        slack = slack + self._rounding
        outputs = self._values.shape[1]
        alike = self.query.outputs == self.query.cells and bool(np.all(self.query.output_norms() == 1.0))
        return RankErrors(
            CellErrors(spread, slack, self._errors.pure),
            coarse((self.first_tick + index) * outputs) if self._looks_back else outputs,
            independent=alike and not self._looks_back and not self._errors.pure,
        )

    def _symmetric(self, level: float, part: slice) -> FloatArray:
        ticks = self.ticks[part]
        counts = [coarse(int(tick) * self._errors.width) for tick in ticks] if self._looks_back else [1] * len(ticks)
        pairs = list(zip(counts, self._equal_numbers(ticks), strict=True))
        factors = {pair: interval_factor(level, self.postprocessed, *pair) for pair in set(pairs)}
        factor = np.asarray([factors[pair] for pair in pairs]).reshape(-1, 1)
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

    @property
    def std(self) -> FloatArray:
        """Std of `values`, same shape."""
        return self._squeeze(self.std_all)

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`; see `Release.interval`.

        Args:
            level: The probability.

        Returns:
            The lower and the upper ends, each in the shape of `values`.
        """
        low, high = self.limits(level)
        return self._squeeze(low), self._squeeze(high)

    def bound(self, beta: float = 0.05, method: str = "union") -> FloatArray:
        """Half-widths that hold for all ticks and outputs of this run at once with probability 1 − beta.

        "union" takes exact tails (normal, or of sums of Laplace numbers) and a union bound. "simulate" takes the
        quantile of the largest normalised error over 4000 simulated runs (its upper 99.9 % confidence limit). The noise
        is correlated, so it is smaller; it is never larger than the union bound.

        Args:
            beta: the probability that some number is outside.
            method: "union", or "simulate" for one running sum of up to 2^17 ticks from the first one.

        Returns:
            The half-widths, of the shape of `values`.

        Raises:
            ParameterError: beta or the method is not legal, or the method does not fit this run.
        """
        if not isinstance(beta, int | float) or not 0 < beta < 1:
            raise ParameterError(f"beta must lie between 0 and 1, got {beta!r}")
        if method not in ("union", "simulate"):
            raise ParameterError(f"method must be 'union' or 'simulate', got {method!r}")
        if self._sums is not None:
            raise ParameterError("a ratio has no error that is known before: no bound for all ticks is offered")
        last = self.first_tick + len(self) - 1
        numbers = max(last * self._values.shape[1] if self._looks_back else self._values.size, 1)
        factors = np.full((len(self), 1), float(simultaneous_quantile(numbers, beta)))
        if self._errors.pure:
            weights = self._equal_numbers(self.ticks)
            factors = np.asarray([laplace_factor(beta / numbers, weight or 1) for weight in weights]).reshape(-1, 1)
        _, spread, slack = self._errors_all
        if method == "simulate":
            if self.first_tick != 1 or self.postprocessed:
                raise ParameterError("method='simulate' is for runs from tick 1 on without post-processing")
            top = factors.max(initial=0.0)
            shape = factors / top
            factors = min(top, simulated_factor(self._errors, len(self), spread, slack, shape, beta)) * shape
        return self._squeeze(factors * spread + slack + self._rounding)

    def between(self, earlier: int, later: int) -> tuple[V_co, V_co]:
        """(value, std): what came in ticks earlier+1 … later, with its own exact error.

        Of sums and counts the sum over those ticks, of averages per tick their average, of graph statistics their
        change. Windows and averages per event are refused with the reason.

        Args:
            earlier: A tick of this run; 0 for the time before the first tick, where the run begins with tick 1.
            later: A tick of this run that is not before `earlier`.

        Returns:
            The value and its std: one number each, or arrays with one entry per output.

        Raises:
            ParameterError: The ticks do not fit this run, or the query does not tell what came between.
        """
        last = self.first_tick + len(self) - 1
        if not all(isinstance(tick, int | np.integer) for tick in (earlier, later)):
            raise ParameterError(f"between needs two whole ticks, got {earlier!r} and {later!r}")
        if not (earlier == 0 == self.first_tick - 1 or self.first_tick <= earlier) or not earlier <= later <= last:
            raise ParameterError(f"between needs {self.first_tick} ≤ earlier ≤ later ≤ {last}, got {earlier}, {later}")
        first = self.query.before_first() if self._growth is None else np.zeros(self._values.shape[1])
        low, high = (self._values[tick - self.first_tick] if tick else first for tick in (earlier, later))
        value, weight = self.query.between(earlier, later, low, high)
        std = (self._errors.between(earlier, later) if later > earlier else 0.0) * weight
        both = (float(value[0]), float(std[0])) if self.query.single else (value, std)
        return cast(tuple[V_co, V_co], both)

    # -- views, at no further cost (engine/take_views.py) ------------------------------------------------------------

    def running(self) -> View:
        """The running totals as a view: to compare cells, or to read quantiles.

        Returns:
            The view.

        Raises:
            ParameterError: As `per_tick`, or this run does not begin with tick 1.
        """
        return take_views.running(self)

    def per_tick(self) -> View:
        """The events of each tick, with the exact error of each number.

        Returns:
            The view.

        Raises:
            ParameterError: The numbers were post-processed, or the query is not a sum over ticks.
        """
        return take_views.per_tick(self)

    def last(self, ticks: int) -> View:
        """The events of the last `ticks` ticks, at every tick that has as many before it.

        Args:
            ticks: How many ticks.

        Returns:
            The view.

        Raises:
            ParameterError: As `per_tick`, or `ticks` is not a whole number of at least 1.
        """
        return take_views.last_ticks(self, ticks)

    def spans(self, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
        """The events of ticks after+1 … until, for any spans: days, weeks, one number for all.

        Args:
            name: What the view is called.
            after: For each span, the tick before its first one.
            until: For each span, its last tick.

        Returns:
            The view, with a row for each span.

        Raises:
            ParameterError: As `per_tick`, or a span does not lie in this run.
        """
        return take_views.spans(self, name, after, until)

    def _squeeze(self, array: FloatArray) -> FloatArray:
        return array[:, 0] if self.query.single else array

    # -- export -------------------------------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> dict[str, npt.NDArray[Any]]:
        """Columns tick, cell, value, std, low, high: one row per tick and output.

        A column `noise` follows where it is not exact, and `postprocessed` where the numbers are.

        Args:
            level: The probability of the intervals low … high.

        Returns:
            The columns by name.
        """
        outputs = len(self.labels)
        low, high = self.limits(level)
        columns = {
            "tick": np.repeat(self.ticks, outputs),
            "cell": np.tile(np.asarray(self.labels, dtype=object), len(self)),
            "value": self._values.ravel(),
            "std": np.ascontiguousarray(self.std_all).ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            **{name: np.full(self._values.size, text, dtype=object) for name, text in self._marks().items()},
        }
        if self._growth is None:
            return columns
        public = ~np.isnan(columns["value"])  # a key has no row before it is public
        return {name: column[public] for name, column in columns.items()}

    def _marks(self) -> dict[str, str]:
        """What a reader of the numbers must know: noise that is not for publication, and post-processing."""
        marks = {} if self.noise == "exact" else {"noise": self.noise}
        return {**marks, "postprocessed": " ".join(self.postprocessed)} if self.postprocessed else marks

    def to_csv(self, target: TextTarget, level: float = 0.95) -> None:
        """Write `table` as CSV to a path or an open text file.

        Args:
            target: A path or an open text file.
            level: The probability of the intervals.
        """
        write_csv(self.table(level), target)

    def to_jsonl(self, target: TextTarget, level: float = 0.95) -> None:
        """Write `table` as one JSON object per line.

        Args:
            target: A path or an open text file.
            level: The probability of the intervals.
        """
        write_jsonl(self.table(level), target)

    def to_parquet(self, target: str | Path, level: float = 0.95) -> None:
        """Write `table` as Parquet, with the guarantee in the file's metadata.

        Args:
            target: The path of the file.
            level: The probability of the intervals.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        metadata = {"evercount.guarantee": self.guarantee, "evercount.noise": self.noise}
        write_parquet(self.table(level), target, metadata)

    def to_numpy(self, target: str | Path) -> None:
        """Write ticks, values and std as a NumPy archive (.npz).

        Args:
            target: The path of the file.
        """
        arrays: dict[str, Any] = {"ticks": self.ticks, "values": self._values, "std": self.std_all, **self._marks()}
        np.savez(Path(target), labels=np.asarray(self.labels), **arrays)

    def plot(self, target: str | Path | Axes | None = None, level: float = 0.95, outputs: int = 8) -> Axes:
        """Values with their error band: into a file (PNG, SVG, PDF), given axes, or new axes that are returned.

        Args:
            target: A path, axes, or None for new axes.
            level: The probability of the intervals in the band.
            outputs: How many outputs are drawn at most.

        Returns:
            The axes.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        from evercount.plotting import band_plot

        low, high = (side[:, :outputs] for side in self.limits(level))
        return band_plot(
            self.ticks, self._values[:, :outputs], low, high, self.labels[:outputs], self.caption(level), target
        )

    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        if self._errors.query.has_quantiles and self.first_tick == 1 and not self.postprocessed:
            return self.running()._chart(level)
        return ("running totals", self.labels, self._values, *self.limits(level))

    def caption(self, level: float = 0.95) -> str:
        """What a chart of these numbers must say.

        Args:
            level: The probability of the intervals in the band.

        Returns:
            One line of text.
        """
        kind = "" if self.noise == "exact" else f"; noise: {self.noise}, for simulation only"
        return f"band: {level:.0%} interval per number{kind}"
