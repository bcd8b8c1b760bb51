"""Releases: what a run of ticks publishes: numbers, intervals, views, export and plot. Errors: `run_errors.py`.

Everything here is computed from published numbers and public parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast, overload

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count
from evercount.engine import take_views
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.run_errors import RunErrors
from evercount.engine.table_exports import TableExports
from evercount.engine.tick_release import Release as Release
from evercount.engine.views import View
from evercount.errors import ParameterError
from evercount.queries.base import V_co

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Releases(RunErrors, TableExports, Generic[V_co]):
    """What a run of ticks publishes. Behaves as a sequence of `Release`.

    Args:
        first_tick: the 1-based tick of the first row.
        values: the published numbers, shape (ticks, outputs).
        errors: the public facts from which all errors follow.
        guarantee: the guarantee of the whole stream in one sentence.
        postprocessed: the post-processing that was applied.
        sums: the noisy sums behind the numbers, where the query keeps them.
        labels: where keys are discovered, those of all ticks; a number that a tick does not publish is NaN.

    >>> from evercount import Budget, Count, Stream
    >>> releases = Stream(Count(), Budget(1.0, 1e-6), 24).run([100, 50])
    >>> releases.ticks.tolist(), releases.std.round(1).tolist()
    ([1, 2], [6.8, 7.3])
    """

    @overload
    def __getitem__(self, index: int) -> Release[V_co]: ...

    @overload
    def __getitem__(self, index: slice) -> Releases[V_co]: ...

    def __getitem__(self, index: int | slice) -> Release[V_co] | Releases[V_co]:
        """The release of one tick, or those of consecutive ticks: `releases[-1]`, `releases[0:7]`."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ParameterError(
                    f"a part of a run is made of consecutive ticks, and the step is {step}: write releases[0:7], or "
                    "take numbers, as in releases.values[::7]"
                )
            part = slice(start, max(start, stop))
            sums = None if self._sums is None else self._sums[part]
            said = (self._errors, self.guarantee, self.postprocessed)
            return Releases(self.first_tick + start, self._values[part], *said, sums, self._labels)
        if not isinstance(index, int | np.integer):
            raise ParameterError(f"ticks have places, as in releases[0] or releases[-7:], got {index!r:.80}")
        if not -len(self) <= index < len(self):
            raise IndexError(f"the run has {len(self)} ticks, and releases[{index}] is not one of them")
        return Release(self, index % len(self))

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """The published numbers, as `values` has them."""
        return np.array(self.values, dtype=dtype)

    def __iter__(self) -> Iterator[Release[V_co]]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        last = self.first_tick + len(self) - 1
        shown = f"; the last: {self[-1]}" if len(self) else ""
        return f"Releases(ticks {self.first_tick} to {last}, {len(self.labels)} outputs, noise={self.noise!r}{shown})"

    # -- numbers ------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> Sequence[str]:
        """One label per output; where keys are discovered, of all that these ticks publish."""
        return self._errors.query.labels if self._labels is None else self._labels

    def _published(self, index: int) -> slice | IntArray:
        """The places of the outputs that one of the ticks publishes; the others of its row are NaN."""
        return slice(None) if self._labels is None else np.flatnonzero(~np.isnan(self._values[index]))

    @property
    def rows(self) -> FloatArray:
        """Published numbers, always (ticks, outputs)."""
        return self._values

    @property
    def values(self) -> FloatArray:
        """Published numbers: shape (ticks,) for one output, else (ticks, outputs)."""
        return self._squeeze(self._values)

    @property
    def std(self) -> FloatArray:
        """Std of `values`, same shape."""
        return self._squeeze(self.stds)

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`; see `Release.interval`.

        Args:
            level: The probability.

        Returns:
            The lower and the upper ends, each in the shape of `values`.
        """
        low, high = self._limits(level)
        return self._squeeze(low), self._squeeze(high)

    def between(self, first: int, stop: int) -> tuple[V_co, V_co]:
        """(value, std): what came in ticks first, …, stop − 1, as `range(first, stop)`, with its own exact error.

        Of sums and counts the sum over those ticks, of averages per tick their average, of graph statistics their
        change. Averages per event are refused with the reason.

        Args:
            first: The first of these ticks. What is before it must be known: a run that does not begin with tick 1
                has it from its second tick on.
            stop: The tick after the last of them.

        Returns:
            The value and its std: one number each, or arrays with one entry per output.

        Raises:
            ParameterError: The ticks do not fit this run, or the query does not tell what came between.
        """
        last = self.first_tick + len(self) - 1
        least = 1 if self.first_tick == 1 else self.first_tick + 1
        if not all(isinstance(tick, int | np.integer) for tick in (first, stop)):
            raise ParameterError(f"between needs two whole ticks, such as between(1, 8), got {first!r} and {stop!r}")
        if not least <= first <= stop <= last + 1:
            raise ParameterError(f"between needs {least} ≤ first ≤ stop ≤ {last + 1}, got {first}, {stop}")
        earlier, later = int(first) - 1, int(stop) - 1
        if self._errors.joined and later > earlier:
            view = take_views.spans(self, "between", [earlier], [later])
            return cast(tuple[V_co, V_co], (view.values[0], view.std[0]))
        none = np.zeros(self._values.shape[1])  # what would be published before the first tick, without noise
        empty = none if self.query.discovery else self.query.decode_run(1, np.zeros((1, self.query.cells)))[0]
        low, high = (self._values[tick - self.first_tick] if tick else empty for tick in (earlier, later))
        value, weight = self.query.publishing.between(earlier, later, low, high)
        std = weight * 0.0
        if later > earlier:
            std = weight * self._errors.difference_errors(np.asarray([earlier]), np.asarray([later]))[0][0, 0]
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
        if self.first_tick > 1:
            raise ParameterError("a view of running totals needs the releases from tick 1 on")
        return take_views.spans(self, "running total", np.zeros_like(self.ticks), self.ticks)

    def per_tick(self) -> View:
        """The events of each tick, with the exact error of each number.

        Returns:
            The view.

        Raises:
            ParameterError: The numbers were post-processed, or the query is not a sum over ticks.
        """
        own = self.query.publishing.own_ticks
        until = self.ticks if self.first_tick == 1 or own else self.ticks[1:]
        return take_views.spans(self, "per tick", until - 1, until)

    def last(self, ticks: int) -> View:
        """The events of the last `ticks` ticks, at every tick that has as many before it.

        Args:
            ticks: How many ticks.

        Returns:
            The view.

        Raises:
            ParameterError: As `per_tick`, or `ticks` is not a whole number of at least 1.
        """
        ticks = check_count("ticks", ticks)
        until = self.ticks[self.ticks >= ticks + (0 if self.first_tick == 1 else self.first_tick)]
        return take_views.spans(self, f"last {ticks} ticks", until - ticks, until)

    def spans(self, name: str, first: npt.ArrayLike, stop: npt.ArrayLike) -> View:
        """The events of ticks first, …, stop − 1, as `range(first, stop)`, for any spans: days, weeks, one for all.

        Args:
            name: What the view is called.
            first: For each span, its first tick.
            stop: For each span, the tick after its last one.

        Returns:
            The view, with a row for each span.

        Raises:
            ParameterError: As `per_tick`, or a span does not lie in this run.
        """
        begin, end = np.asarray(first), np.asarray(stop)
        if begin.dtype.kind + end.dtype.kind not in ("ii", "iu", "ui", "uu"):
            raise ParameterError(f'spans need whole ticks, such as spans("weeks", [1, 8], [8, 15]), got {first!r:.80}')
        return take_views.spans(self, name, begin - 1, end - 1)

    # -- export -------------------------------------------------------------------------------------------------

    def table(self, level: float = LEVEL, starts: Sequence[int] | None = None) -> ReleaseTable:
        numbers = [self._values, self.stds, *self._limits(level)]
        marks = self._marks() if starts is None else {}  # a stream with a schedule has a declaration that says it
        return table_of(self.ticks, starts, self.labels, numbers, marks=marks, guarantee=self.guarantee)

    def _marks(self) -> dict[str, str]:
        return {"postprocessed": " ".join(self.postprocessed)} if self.postprocessed else {}

    def to_numpy(self, target: str | Path) -> None:
        """Write ticks, values and std as a NumPy archive (.npz).

        Args:
            target: The path of the file.
        """
        arrays: dict[str, Any] = {"ticks": self.ticks, "values": self._values, "std": self.stds, **self._marks()}
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

        low, high = (side[:, :outputs] for side in self._limits(level))
        numbers, labels = (self._values[:, :outputs], low, high), self.labels[:outputs]
        return band_plot(self.ticks, *numbers, labels, target, level=level)

    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        if self._errors.query.quantiles is not None and self.first_tick == 1 and not self.postprocessed:
            return self.running()._chart(level)
        return ("running totals", self.labels, self._values, *self._limits(level))
