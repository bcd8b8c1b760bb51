"""Release and Releases: published numbers with their exact errors, intervals, export and plot.

Everything here is computed from published numbers and public parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_number
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor
from evercount.engine import views
from evercount.engine.error_model import ErrorModel, coarse, interval_factor
from evercount.engine.simulated_bound import simulated_factor
from evercount.engine.table_exports import TableExports
from evercount.engine.views import View
from evercount.engine.write_table import TextTarget, write_csv, write_jsonl, write_parquet
from evercount.errors import ParameterError
from evercount.factorizations import tick_grid
from evercount.queries.base import Query, V_co
from evercount.queries.cell_errors import CellErrors
from evercount.queries.cuts.cut_graph import CutGraph, CutValue
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.top_keys import RankErrors, TopKey, supported_keys

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Release(Generic[V_co]):
    """What one tick publishes: `values` with one entry per output. Errors are computed when they are asked for."""

    def __init__(self, run: Releases[V_co], index: int) -> None:
        self._run = run
        self._index = index

    @property
    def tick(self) -> int:
        """The 1-based tick."""
        return self._run.first_tick + self._index

    @property
    def values(self) -> FloatArray:
        """The published numbers, one per output."""
        return np.asarray(self._run.rows[self._index], dtype=np.float64)

    @property
    def value(self) -> V_co:
        """The published number, or the array of them where the query has several outputs."""
        return cast(V_co, float(self.values[0]) if self.query.single else self.values)

    @property
    def std_all(self) -> FloatArray:
        """The exact std of each output (before post-processing)."""
        return np.asarray(self._run.std_all[self._index], dtype=np.float64)

    @property
    def std(self) -> V_co:
        """The std of `value`: a number, or one per output."""
        return cast(V_co, float(self.std_all[0]) if self.query.single else self.std_all)

    @property
    def labels(self) -> Sequence[str]:
        """One label per output."""
        return self._run.labels

    @property
    def noise(self) -> str:
        """The kind of noise: "exact", or "insecure-float" for simulation."""
        return self._run.noise

    @property
    def guarantee(self) -> str:
        """The guarantee of the whole stream in one sentence."""
        return self._run.guarantee

    @property
    def postprocessed(self) -> tuple[str, ...]:
        """The post-processing that was applied."""
        return self._run.postprocessed

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._run.query

    def interval(self, level: float = 0.95) -> tuple[V_co, V_co]:
        """(low, high) that holds the true number with probability at least `level`, for each output by itself.

        Post-processing to nonnegative or whole numbers keeps that true where the truth is such. A monotone release is
        the largest number so far, so its interval has to hold for all ticks at once and is wider. The interval of an
        average per event is not symmetric.
        """
        low, high = (side[0] for side in self._run.limits(level, self._index))
        ends = (float(low[0]), float(high[0])) if self.query.single else (low, high)
        return cast(tuple[V_co, V_co], ends)

    def half_widths(self, level: float = 0.95) -> FloatArray:
        """How far each output's interval reaches on either side; the larger side where they differ."""
        return np.asarray(self._run.half_widths(level, self._index)[0])

    def top(self, k: int | None = None, level: float = 0.95) -> list[TopKey]:
        """The k largest published numbers with their labels; k defaults to that of a `TopK`, else to 1.

        The intervals of all numbers hold at once with probability at least `level`, and so for selected ones;
        `confidence` is that the key belongs to the true k largest (`TopKey`).
        """
        return self.query.top(self.values, self._run.rank_errors(self._index), k, level)

    def supported(self, threshold: float | None = None, level: float = 0.95) -> list[TopKey]:
        """All labels whose published number passes a public threshold: the support filter for words and large keys.

        Most words of a large alphabet never occur, and their noise would drown the others. The default threshold is the
        interval's half-width over all outputs: then with probability at least `level` every label that is listed has
        truly occurred.

        Args:
            threshold: Least noisy number; None for the default.
            level: Probability that all intervals of this tick hold at once.

        Returns:
            The labels that pass, largest number first, with intervals as in `top`.
        """
        if threshold is not None:
            threshold = check_number("threshold", threshold)
        return supported_keys(list(self.labels), self.values, self._run.rank_errors(self._index), threshold, level)

    def consistent(self) -> FloatArray:
        """Published numbers moved to the nearest ones that are possible, for `DegreeHistogram` and `DegreeSequence`.

        They are post-processed, so `std` and `interval` do not apply; they are closer to the truth.
        """
        return self.query.consistent(self.values)

    def graph(self) -> CutGraph:
        """The released weighted graph of a `Cuts` stream."""
        if not isinstance(self.query, Cuts):
            raise ParameterError("only releases of Cuts are graphs")
        return self.query.graph(self.values, float(self.std_all[0]))

    def cut(self, S: Collection[int], P: Collection[int] | None = None) -> CutValue:
        """The weight between vertex sets S and P (default: all others) with its exact std, for `Cuts`."""
        return self.graph().cut(S, P)

    def __repr__(self) -> str:
        return f"Release(tick={self.tick}, outputs={len(self.values)}, noise={self.noise!r})"

    def __str__(self) -> str:
        shown = ", ".join(
            f"{label} {value:,.6g} ± {std:.3g}"
            for label, value, std in list(zip(self.labels, self.values, self.std_all, strict=True))[:8]
        )
        return f"tick {self.tick}: {shown}{' …' if len(self.values) > 8 else ''}"


class Releases(TableExports, Generic[V_co]):
    """What a run of ticks publishes. Behaves as a sequence of `Release`."""

    def __init__(
        self,
        first_tick: int,
        values: FloatArray,
        errors: ErrorModel,
        noise: str,
        guarantee: str,
        postprocessed: tuple[str, ...] = (),
        sums: FloatArray | None = None,
    ) -> None:
        self.first_tick = first_tick
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
        """One label per output."""
        return self._errors.query.labels

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
        """Lower and upper ends of the intervals of all ticks, or of one, shape (ticks, outputs)."""
        part = slice(None) if index is None else slice(index, index + 1)
        if self._sums is not None:
            spread, slack = (error[part, :1] for error in self._errors_all[1:])
            errors = CellErrors(spread, slack, self._errors.pure)
            return self.query.interval(self._values[part], self._sums[part], errors, level)
        half = self._symmetric(level, part)
        return self._values[part] - half, self._values[part] + half

    def half_widths(self, level: float, index: int | None = None) -> FloatArray:
        """How far the intervals reach on either side, shape (ticks, outputs); the larger side where they differ."""
        part = slice(None) if index is None else slice(index, index + 1)
        if self._sums is None:
            return self._symmetric(level, part)
        low, high = self.limits(level, index)
        return np.maximum(self._values[part] - low, high - self._values[part])

    def rank_errors(self, index: int) -> RankErrors:
        """The errors of one tick's numbers, as the selection of the largest needs them."""
        if self._sums is not None:
            raise ParameterError("an average per event is one number: there is nothing to select from")
        spread, slack = (error[index : index + 1] for error in self._errors_all[1:])
        if (
            "integer" in self.postprocessed and self.query.grid % 1
        ):  # rounding a published number moves it by 1/2 at most
            slack = slack + 0.5
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
        return np.asarray(factor * self._errors_all[1][part] + self._errors_all[2][part])

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
        """(low, high): each holds its true number with probability at least `level`; see `Release.interval`."""
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
        return self._squeeze(factors * spread + slack)

    def between(self, earlier: int, later: int) -> tuple[V_co, V_co]:
        """(value, std): what came in ticks earlier+1 … later, with its own exact error.

        Of sums and counts the sum over those ticks, of averages per tick their average, of graph statistics their
        change. Windows and averages per event are refused with the reason.
        """
        last = self.first_tick + len(self) - 1
        if not all(isinstance(tick, int | np.integer) for tick in (earlier, later)):
            raise ParameterError(f"between needs two whole ticks, got {earlier!r} and {later!r}")
        if not (earlier == 0 == self.first_tick - 1 or self.first_tick <= earlier) or not earlier <= later <= last:
            raise ParameterError(f"between needs {self.first_tick} ≤ earlier ≤ later ≤ {last}, got {earlier}, {later}")
        first = self.query.before_first()
        low, high = (self._values[tick - self.first_tick] if tick else first for tick in (earlier, later))
        value, weight = self.query.between(earlier, later, low, high)
        std = (self._errors.between(earlier, later) if later > earlier else 0.0) * weight
        both = (float(value[0]), float(std[0])) if self.query.single else (value, std)
        return cast(tuple[V_co, V_co], both)

    # -- views, at no further cost (engine/views.py) ------------------------------------------------------------

    def running(self) -> View:
        """The running totals as a view: to compare cells, or to read quantiles."""
        return views.running(self)

    def per_tick(self) -> View:
        """The events of each tick, with the exact error of each number."""
        return views.per_tick(self)

    def last(self, ticks: int) -> View:
        """The events of the last `ticks` ticks, at every tick that has as many before it."""
        return views.last_ticks(self, ticks)

    def spans(self, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
        """The events of ticks after+1 … until, for any spans: days, weeks, one number for all."""
        return views.spans(self, name, after, until)

    def _squeeze(self, array: FloatArray) -> FloatArray:
        return array[:, 0] if self.query.single else array

    # -- export -------------------------------------------------------------------------------------------------

    def table(self, level: float = 0.95) -> dict[str, npt.NDArray[Any]]:
        """Columns tick, cell, value, std, low, high: one row per tick and output.

        A column `noise` follows where it is not exact, and `postprocessed` where the numbers are.
        """
        outputs = len(self.labels)
        low, high = self.limits(level)
        return {
            "tick": np.repeat(self.ticks, outputs),
            "cell": np.tile(np.asarray(self.labels, dtype=object), len(self)),
            "value": self._values.ravel(),
            "std": np.ascontiguousarray(self.std_all).ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            **{name: np.full(self._values.size, text, dtype=object) for name, text in self._marks().items()},
        }

    def _marks(self) -> dict[str, str]:
        """What a reader of the numbers must know: noise that is not for publication, and post-processing."""
        marks = {} if self.noise == "exact" else {"noise": self.noise}
        return {**marks, "postprocessed": " ".join(self.postprocessed)} if self.postprocessed else marks

    def to_csv(self, target: TextTarget, level: float = 0.95) -> None:
        """Write `table` as CSV to a path or an open text file."""
        write_csv(self.table(level), target)

    def to_jsonl(self, target: TextTarget, level: float = 0.95) -> None:
        """Write `table` as one JSON object per line."""
        write_jsonl(self.table(level), target)

    def to_parquet(self, target: str | Path, level: float = 0.95) -> None:
        """Write `table` as Parquet, with the guarantee in the file's metadata."""
        metadata = {"evercount.guarantee": self.guarantee, "evercount.noise": self.noise}
        write_parquet(self.table(level), target, metadata)

    def to_numpy(self, target: str | Path) -> None:
        """Write ticks, values and std as a NumPy archive (.npz)."""
        arrays: dict[str, Any] = {"ticks": self.ticks, "values": self._values, "std": self.std_all, **self._marks()}
        np.savez(Path(target), labels=np.asarray(self.labels), **arrays)

    def plot(self, target: str | Path | Axes | None = None, level: float = 0.95, outputs: int = 8) -> Axes:
        """Values with their error band: into a file (PNG, SVG, PDF), given axes, or new axes that are returned."""
        from evercount.plotting import band_plot

        low, high = (side[:, :outputs] for side in self.limits(level))
        return band_plot(
            self.ticks, self._values[:, :outputs], low, high, self.labels[:outputs], self.caption(level), target
        )

    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        half = self.half_widths(level)
        return "Running totals", self.labels, self._values, self._values - half, self._values + half

    def caption(self, level: float = 0.95) -> str:
        """What a chart of these numbers must say."""
        kind = "" if self.noise == "exact" else f"; noise: {self.noise}, for simulation only"
        return f"band: {level:.0%} interval per number{kind}"
