"""Releases: what a run of ticks publishes: numbers, their errors and intervals, views, and a table.

Everything here is computed from published numbers and public parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, cast, overload

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.tails import laplace_factor
from evercount.engine import take_views
from evercount.engine.error_model import ErrorModel, coarse, interval_factors
from evercount.engine.release_table import LEVEL, Exports, ReleaseTable, table_of
from evercount.engine.simulated_noise import simulated_factor
from evercount.engine.tick_release import Release as Release
from evercount.engine.views import View
from evercount.errors import ParameterError
from evercount.queries.base import Query, V_co
from evercount.queries.publishing import CellErrors, RankErrors


class Releases(Exports, Generic[V_co]):
    """What a run of ticks publishes. Behaves as a sequence of `Release`.

    Args:
        first_tick: the 1-based tick of the first row.
        values: the published numbers, shape (ticks, outputs).
        errors: the public facts from which all errors follow.
        guarantee: the guarantee of the whole stream in one sentence.
        postprocessed: the post-processing that was applied.
        sums: the noisy sums behind the numbers, where the query keeps them.
        labels: where keys are discovered, those of all ticks; a number that a tick does not publish
            is NaN.

    >>> from evercount import Budget, Count, Stream
    >>> releases = Stream(Count(), Budget(1.0, 1e-6), 24).run([100, 50])
    >>> releases.ticks.tolist(), releases.std.round(1).tolist()
    ([1, 2], [2.7, 3.7])
    """

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
        self.first_tick = first_tick
        self.guarantee = guarantee
        self.postprocessed = postprocessed
        self._values = values
        self._errors = errors
        self._sums = sums
        self._labels = labels

    @overload
    def __getitem__(self, index: int) -> Release[V_co]: ...

    @overload
    def __getitem__(self, index: slice) -> Releases[V_co]: ...

    def __getitem__(self, index: int | slice) -> Release[V_co] | Releases[V_co]:
        """The release of one tick, or those of consecutive ticks: `releases[-1]`,
        `releases[0:7]`."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ParameterError(
                    f"a part of a run is made of consecutive ticks, and the step is {step}: write "
                    "releases[0:7], or take numbers, as in releases.values[::7]"
                )
            part = slice(start, max(start, stop))
            sums = None if self._sums is None else self._sums[part]
            chosen = Releases(
                self.first_tick + start,
                self._values[part],
                self._errors,
                self.guarantee,
                self.postprocessed,
                sums,
                self._labels,
            )
            # known better from the whole run
            if "_errors_all" in vars(self) or (self._looks_back and len(self) > 1):
                chosen._errors_all = [side[part] for side in self._errors_all]
            return chosen
        if not isinstance(index, int | np.integer):
            raise ParameterError(
                f"releases are numbered, as in releases[0] or releases[-7:], got {index!r:.80}"
            )
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"the run has {len(self)} ticks, and releases[{index}] is not one of them"
            )
        place = index % len(self)
        return Release(self[place : place + 1])

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """The published numbers, as `values` has them."""
        return np.array(self.values, dtype=dtype)

    def __iter__(self) -> Iterator[Release[V_co]]:
        _ = self._errors_all  # much quicker for all ticks together than for each
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        last = self.first_tick + len(self) - 1
        shown = f"; the last: {self[-1]}" if len(self) else ""
        return (
            f"Releases(ticks {self.first_tick} to {last}, {len(self.labels)} outputs, "
            f"noise={self.noise!r}{shown})"
        )

    def __len__(self) -> int:
        return len(self._values)

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._errors.query

    # -- numbers -----------------------------------------------------------------------------------

    @property
    def labels(self) -> Sequence[str]:
        """One label per output; where keys are discovered, of all that these ticks publish."""
        if self._labels is None:
            return self._errors.query.labels
        return self._labels

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
        """(low, high): each holds its true number with probability at least `level`; see
        `Release.interval`.

        Args:
            level: The probability.

        Returns:
            The lower and the upper ends, each in the shape of `values`.
        """
        low, high = self._limits(level)
        return self._squeeze(low), self._squeeze(high)

    def bound(self, level: float = 0.95, method: str = "union") -> FloatArray:
        """Half-widths that hold for all ticks and outputs of this run at once with probability
        `level`.

        "union" takes exact tails (normal, or of sums of Laplace numbers) and a union bound.
        "simulate" takes the quantile of the largest normalised error over 4000 simulated runs (its
        upper 99.9 % confidence limit). The noise is correlated, so it is smaller; it is never
        larger than the union bound.

        Args:
            level: the probability that all numbers are inside.
            method: "union", or "simulate" for one running sum of up to 2^17 ticks from the first
                one.

        Returns:
            The half-widths, of the shape of `values`.

        Raises:
            ParameterError: the level or the method is not legal, or the method does not fit this
                run.
        """
        beta = 1 - check_probability("level", level)
        if method not in ("union", "simulate"):
            raise ParameterError(f"method must be 'union' or 'simulate', got {method!r}")
        if self._sums is not None:
            raise ParameterError(
                "bound() is unavailable for ratios: their error depends on how many events come"
            )
        last = self.first_tick + len(self) - 1
        numbers = max(self._values.size, 1)
        if self._looks_back:
            numbers = max(last * self._values.shape[1], 1)
        factors = np.full((len(self), 1), float(simultaneous_quantile(numbers, beta)))
        if self._errors.pure:
            if self._errors.joined:
                weights = [1] * len(self)
            else:
                weights = self._equal_numbers(self.ticks).min(axis=1).tolist()
            factors = np.asarray(
                [laplace_factor(beta / numbers, weight) for weight in weights]
            ).reshape(-1, 1)
        _, spread, slack = self._errors_all
        if method == "simulate":
            if self.first_tick != 1 or self.postprocessed:
                raise ParameterError(
                    "method='simulate' is for runs from tick 1 on without post-processing"
                )
            top = factors.max(initial=0.0)
            shape = factors / top
            factors = min(top, simulated_factor(self._errors, spread, slack, shape, beta)) * shape
        return self._squeeze(factors * spread + slack + self._rounding)

    def between(self, first: int, stop: int) -> tuple[V_co, V_co]:
        """(value, std): what came in ticks first, …, stop − 1, as `range(first, stop)`, with its
        own exact error.

        Of sums and counts the sum over those ticks, of averages per tick their average, of graph
        statistics their change. A key that joined after the first of these ticks has NaN, unless
        that is tick 1: then it has its total. Averages per event are refused with the reason.

        Args:
            first: The first of these ticks. What is before it must be known: a run that does not
                begin with tick 1 has it from its second tick on.
            stop: The tick after the last of them.

        Returns:
            The value and its std: one number each, or arrays with one entry per output.

        Raises:
            ParameterError: The ticks do not fit this run, or the query does not tell what came
                between.
        """
        last = self.first_tick + len(self) - 1
        least = 1 if self.first_tick == 1 else self.first_tick + 1
        if not all(isinstance(tick, int | np.integer) for tick in (first, stop)):
            raise ParameterError(
                f"between needs two whole numbers, such as between(1, 8), got {first!r} and "
                f"{stop!r}"
            )
        if not least <= first <= stop <= last + 1:
            raise ParameterError(
                f"between needs {least} ≤ first ≤ stop ≤ {last + 1}, got {first}, {stop}"
            )
        earlier = int(first) - 1
        later = int(stop) - 1
        if self._errors.joined and later > earlier:
            view = take_views.spans(self, "between", [earlier], [later], totals=earlier == 0)
            return cast(tuple[V_co, V_co], (view.values[0], view.std[0]))
        # what would be published before the first tick, without noise
        none = np.zeros(self._values.shape[1])
        empty = none
        if not self.query.discovery:
            empty = self.query.decode_run(1, np.zeros((1, self.query.cells)))[0]
        low, high = (
            self._values[tick - self.first_tick] if tick else empty for tick in (earlier, later)
        )
        value, weight = self.query.publishing.between(earlier, later, low, high)
        std = weight * 0.0
        if later > earlier:
            std = (
                weight
                * self._errors.difference_errors(np.asarray([earlier]), np.asarray([later]))[0][
                    0, 0
                ]
            )
        if self.query.single:
            return cast(tuple[V_co, V_co], (float(value[0]), float(std[0])))
        return cast(tuple[V_co, V_co], (value, std))

    # -- errors ------------------------------------------------------------------------------------

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
        if self._sums is not None and (kept := self.query.publishing.kept) is not None:
            errors[0] = errors[0][:, :1] * kept.scale(self._sums, self._values)
        if self._looks_back:  # the largest number so far has the largest error so far
            before = [
                part.max(axis=0)
                for part in self._errors.errors(self._errors.worst_ticks(self.first_tick))
            ]
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

    def _limits(self, level: float) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends of all intervals, shape (ticks, outputs)."""
        if self._sums is not None and (kept := self.query.publishing.kept) is not None:
            return kept.interval(self._values, self._sums, self._cells, level)
        half = self._symmetric(level)
        return self._values - half, self._values + half

    @property
    def _rank_errors(self) -> RankErrors:
        """The errors of the numbers of one tick, as the selection of the largest needs them."""
        if self._sums is not None:
            if self.query.discovery is None:
                raise ParameterError(
                    "there is nothing to select from: an average per event is one number"
                )
            raise ParameterError(
                "there is nothing to select: every discovered key has passed a threshold already"
            )
        _, spread, slack = self._errors_all
        outputs = self._values.shape[1]
        alike = self.query.outputs == self.query.cells and bool(
            np.all(self.query.publishing.norms() == 1.0)
        )
        numbers = coarse(self.first_tick * outputs) if self._looks_back else outputs
        return RankErrors(
            CellErrors(spread, slack + self._rounding, self._errors.pure),
            numbers,
            independent=alike and not self._looks_back and not self._errors.pure,
        )

    def _symmetric(self, level: float) -> FloatArray:
        """Half the width of each interval that reaches as far on both sides."""
        ticks = self.ticks
        ends: int | list[list[int]] = 0
        if self._looks_back:
            ends = [[coarse(tick * self._errors.width)] for tick in ticks.tolist()]
        weights = self._errors.with_joined(self._equal_numbers(ticks), ticks, self._errors.parts)
        factor = interval_factors(level, weights, ends)
        return np.asarray(factor * self._errors_all[1] + self._errors_all[2] + self._rounding)

    @property
    def _rounding(self) -> float:
        """How far post-processing to whole numbers can move a number: not at all where all numbers
        are whole before."""
        if "integer" in self.postprocessed and not self.query.publishes_whole_numbers:
            return 0.5
        return 0.0

    def _equal_numbers(self, ticks: IntArray) -> IntArray:
        """See `ErrorModel.equal_numbers`; where a number is the largest so far, the heaviest tails
        so far."""
        numbers = self._errors.equal_numbers(ticks)
        if self._looks_back:
            return np.minimum(numbers, 1)
        return numbers

    @property
    def _looks_back(self) -> bool:
        """Whether a number is the largest so far, so that its error is that of all ticks before."""
        return "monotone" in self.postprocessed

    def _squeeze(self, array: FloatArray) -> FloatArray:
        """Take the only column out of an array of a query with one number."""
        if self.query.single:
            return array[:, 0]
        return array

    # -- views, at no further cost (engine/take_views.py) ------------------------------------------

    def running(self) -> View:
        """The running totals as a view: to compare cells, or to read quantiles.

        Returns:
            The view.

        Raises:
            ParameterError: As `per_tick`, or this run does not begin with tick 1.
        """
        if self.first_tick > 1:
            raise ParameterError("a view of running totals needs the releases from tick 1 on")
        return take_views.spans(
            self, "running total", np.zeros_like(self.ticks), self.ticks, totals=True
        )

    def per_tick(self) -> View:
        """The events of each tick, with the exact error of each number.

        Returns:
            The view.

        Raises:
            ParameterError: The numbers were post-processed, or the query is not a sum over ticks.
        """
        own = self.query.publishing.own_ticks
        until = self.ticks
        if self.first_tick > 1 and not own:
            until = self.ticks[1:]
        return take_views.spans(self, "per tick", until - 1, until)

    def last(self, ticks: int) -> View:
        """The events of the last `ticks` ticks, at every tick that has as many before it.

        A key that joined has numbers from the tick on at which it has been there for as many.

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
        """The events of ticks first, …, stop − 1, as `range(first, stop)`, for any spans: days,
        weeks, one for all.

        A key that joined in the middle of a span has no number there (NaN): it would be that of a
        part of the span.

        Args:
            name: What the view is called.
            first: For each span, its first tick.
            stop: For each span, the tick after its last one.

        Returns:
            The view, with a row for each span.

        Raises:
            ParameterError: As `per_tick`, or a span does not lie in this run.
        """
        begin = np.asarray(first)
        end = np.asarray(stop)
        if begin.dtype.kind + end.dtype.kind not in ("ii", "iu", "ui", "uu"):
            raise ParameterError(
                'spans need whole numbers, as in spans("weeks", [1, 8], [8, 15]), got '
                f"{first!r:.80}"
            )
        return take_views.spans(self, name, begin - 1, end - 1)

    def weighted(self, weights: str | npt.ArrayLike, name: str | None = None) -> View:
        """Weighted sums of the ticks up to each tick, with the exact std of each number.

        Args:
            weights: "decayed-0.9": each tick counts 0.9 times what the next one does. Or a lower
                triangular matrix with a row and a column for each tick: row t says how much the
                ticks 1 … t count at tick t.
            name: What the view is called.

        Returns:
            The view, with a row for each tick.

        Raises:
            ParameterError: The weights are not finite or not lower triangular, the releases do not
                begin with the first tick or were post-processed, or the query is not a sum over
                ticks.
            TooLarge: There are more than 2048 ticks.

        >>> from evercount import Budget, Count, Stream
        >>> releases = Stream(Count(), Budget(1.0, 0.0), 24, "fresh").run([100, 50, 30])
        >>> releases.weighted("decayed-0.9").std.round(2).tolist()
        [[1.36], [1.83], [2.13]]
        """
        # it needs the views of this module
        from evercount.engine.weighted_views import weighted_view

        return weighted_view(self, weights, name)

    # -- export ------------------------------------------------------------------------------------

    def table(self, level: float = LEVEL, starts: Sequence[int] | None = None) -> ReleaseTable:
        """The numbers as a table, one row per tick and cell; a column `postprocessed` says what was
        done to them.

        Args:
            level: The probability of the intervals low … high.
            starts: When each tick begins, in microseconds since 1970: a column of its own.

        Returns:
            The table.
        """
        numbers = [self._values, self.stds, *self._limits(level)]
        # a stream with a schedule has a declaration that says it
        marks = {}
        if self.postprocessed and starts is None:
            marks["postprocessed"] = " ".join(self.postprocessed)
        return table_of(
            self.ticks, starts, self.labels, numbers, marks=marks, guarantee=self.guarantee
        )
