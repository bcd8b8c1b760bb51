"""Streams that publish a day again as late events come in: errors, releases, and the newest number of each day.

A tick publishes one row with the numbers of the last days, lag by lag (`engine/derived_query.py`). Readers get rows of
(tick, as_of): the day, and the tick after which the number was published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.bounds.laplace_tails import equal_numbers
from evercount.engine.derived_query import Revisions
from evercount.engine.error_model import CellStd, ErrorModel, interval_factor
from evercount.engine.release import Releases
from evercount.engine.release_table import ReleaseTable
from evercount.engine.take_views import ValuesAt, view_of
from evercount.engine.views import View
from evercount.errors import ParameterError
from evercount.factorizations.laplace_base import PureFactorization
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.publishing import CellErrors

ONE_DAY = (
    "late = 'revise' protects one event, or what one user does on one day (period = '1d' for ticks of 1d): caps over "
    "several days would have to be kept by the time of the event for all of them"
)


def day_budget(budget: Budget) -> Budget:
    """What the stream of one day keeps so that all of them together keep the budget: its whole life is one period.

    **Guarantee.** `engine/revisions.proof.md`, Theorem 2. Tests:
    tests/engine/test_revisions.py::test_no_neighbours_beat_one_day and ::test_no_persons_beat_one_day.
    """
    if budget.unit == "event":
        return budget
    if budget.period_ticks != 1:
        raise ParameterError(ONE_DAY)
    return replace(budget, period=None, period_ticks=None)


@dataclass(frozen=True, eq=False)
class DayErrors(ErrorModel):
    """The errors of the query for one day, and of sums of the newest numbers of several after `released` ticks.
    `factorization` is that of a day: it has as many ticks as there are lags. A sum over days adds independent noise."""

    released: int = 0

    @property
    def lags(self) -> int:
        assert self.factorization.horizon is not None  # a day ends
        return self.factorization.horizon

    def lag_of(self, day: IntArray) -> IntArray:
        return np.clip(self.released - day, 0, self.lags - 1)

    def difference_errors(self, earlier: IntArray, later: IntArray) -> CellStd:
        """(std, errors) of the sum of one cell over days earlier+1 … later."""
        std, cell = self.cell_errors(np.arange(1, self.lags + 1))
        slack = self._over(cell.slack, earlier, later) if self.rounded else np.full((len(later), 1), cell.slack.max())
        step = np.full((len(later), 1), np.max(cell.step))  # added once
        spread = np.sqrt(self._over(cell.spread**2, earlier, later))
        return np.sqrt(self._over(std**2, earlier, later)), CellErrors(spread, slack, self.pure, step)

    def _over(self, by_lag: FloatArray, earlier: IntArray, later: IntArray) -> FloatArray:
        """Σ over the days of each span of what each has by its lag, as a column."""
        first, last = (int(earlier.min()), int(later.max())) if len(later) else (0, 0)
        days = np.arange(first + 1, last + 1)
        sums = np.concatenate([[0.0], np.cumsum(by_lag.reshape(-1)[self.lag_of(days)])])
        return np.asarray(sums[later - first] - sums[earlier - first])[:, np.newaxis]

    def difference_factors(self, level: float, earlier: IntArray, later: IntArray) -> FloatArray:
        """`interval_factor` of the sum over each span of days, as a column."""
        if not self.pure:
            return np.full((len(later), 1), interval_factor(level, (), 1))
        tree = self.factorization
        assert isinstance(tree, PureFactorization)
        _, plain, largest = tree.laplace_errors(np.arange(1, self.lags + 1), self.full_rate)
        total = self._over(plain, earlier, later)[:, 0]
        single = later - earlier == 1
        numbers = equal_numbers(total, np.where(single, largest[self.lag_of(later)], largest.max()))
        return np.asarray([[interval_factor(level, (), 1, number)] for number in numbers.tolist()]).reshape(-1, 1)


@dataclass(frozen=True, eq=False)
class RevisedErrors(ErrorModel):
    """The errors of a row of a revised stream: those of one day at each lag, the same at every tick."""

    revised: ClassVar[bool] = True

    @property
    def revisions(self) -> Revisions:
        assert isinstance(self.query, Revisions)
        return self.query

    @cached_property
    def day(self) -> DayErrors:
        """Of the newest numbers, long after the days."""
        return DayErrors(self.revisions.query, self.factorization, self.sigma, self.rounded, released=1 << 60)

    def errors(self, ticks: npt.ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        number, wide = np.size(ticks), (self.revisions.lags, self.revisions.query.outputs)
        std, spread, slack = self.day.errors(np.arange(1, self.revisions.lags + 1))
        a, b, c = (np.tile(np.broadcast_to(part, wide).reshape(-1), (number, 1)) for part in (std, spread, slack))
        return a, b, c

    def half_widths(self, level: float) -> FloatArray:
        lags = self.revisions.lags
        of_day = Releases(1, np.zeros((lags, self.revisions.query.outputs)), self.day, "")
        return of_day._symmetric(level, slice(None)).reshape(-1)

    def std(self, ticks: npt.ArrayLike, width: int | None = None) -> FloatArray:
        """Std of the last `width` days up to each tick (None: all so far) once they are not revised any more."""
        at = np.atleast_1d(np.asarray(ticks))
        earlier = np.zeros_like(at) if width is None else np.maximum(at - width, 0)
        std, _ = self.day.difference_errors(earlier, at)
        return np.asarray(std * np.atleast_1d(self.day.query.publishing.norms()))

    def equal_numbers(self, ticks: IntArray) -> list[int | None]:
        """The heaviest tails of all lags."""
        of_lags = self.day.equal_numbers(np.arange(1, self.revisions.lags + 1))
        fewest = None if of_lags[0] is None else min(number for number in of_lags if number is not None)
        return [fewest] * len(ticks)


def newest_spans(releases: Releases, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
    """As `take_views.spans`, of the newest number of each day."""
    model, first = releases._errors, releases.first_tick
    assert isinstance(model, RevisedErrors)
    start, stop = (np.atleast_1d(np.asarray(ticks, dtype=np.int64)) for ticks in (after, until))
    last = first + len(releases) - 1
    if first > 1 or (len(start) and (np.any(start >= stop) or start.min() < 0 or stop.max() > last)):
        raise ParameterError(f"a view of revised days needs the releases from tick 1 on, and spans within 1 … {last}")

    def values_at(ticks: Iterable[int], cells: Sequence[int]) -> dict[int, FloatArray]:
        return {tick: releases.rows[tick - 1, list(cells)] for tick in ticks}

    outputs = range(model.revisions.query.outputs)
    return newest_view(model, name, (start, stop), outputs, values_at, last, releases.guarantee)


def newest_view(
    model: RevisedErrors,
    name: str,
    spans: tuple[IntArray, IntArray],
    outputs: Sequence[int],
    values_at: ValuesAt,
    released: int,
    guarantee: str,
) -> View:
    """Sums of the newest numbers of days after+1 … until, of some outputs of the query, after `released` ticks.

    **Guarantee.** A function of published numbers. Days have independent noise, so the variances add up. Test:
    tests/engine/test_revised_streams.py::test_views_take_the_newest_number_of_each_day.
    """
    after, until = spans
    errors = replace(model.day, released=released)
    first, last = (int(after.min()), int(until.max())) if len(until) else (0, 0)
    days = np.arange(first + 1, last + 1)
    lags = errors.lag_of(days)
    width, chosen = model.revisions.query.outputs, np.asarray(list(outputs), np.int64)
    sums = np.zeros((len(days) + 1, len(chosen)))
    # days that are final lie at one lag in many ticks, the others at many lags of the last tick
    final = lags == errors.lags - 1
    stored = values_at((days[final] + errors.lags - 1).tolist(), (chosen + (errors.lags - 1) * width).tolist())
    rows = [stored[day + errors.lags - 1] for day in days[final].tolist()]
    if not final.all():
        wanted = [cell for lag in lags[~final].tolist() for cell in (chosen + lag * width).tolist()]
        rows += list(values_at([released], wanted)[released].reshape(-1, len(chosen)))
    if rows:
        sums[1:] = np.cumsum(rows, axis=0)
    low, high = sums[after - first], sums[until - first]
    return view_of(name, after, until, low, high, outputs, errors, guarantee)


def by_day(table: ReleaseTable, wide: Query, starts: Callable[[int, int], Sequence[int] | None]) -> ReleaseTable:
    """The rows of a revised stream as readers get them: one for each day and the tick after which it was published. In
    the order in which they were published, and those of one tick by day."""
    assert isinstance(wide, Revisions)
    query, lags = wide.query, wide.lags
    ticks, outputs = table.ticks, query.outputs
    numbers = table.numbers.reshape(len(ticks), 4, lags, outputs).transpose(0, 2, 1, 3)[:, ::-1]
    as_of, lag = np.repeat(ticks, lags), np.tile(np.arange(lags)[::-1], len(ticks))
    there = as_of - lag >= 1
    day = (as_of - lag)[there]
    begin: Sequence[int] | None = None
    if table.starts is not None and len(day):
        first = int(day.min())
        all_starts = starts(first, int(day.max()) - first + 1)
        assert all_starts is not None
        begin = [all_starts[one - first] for one in day.tolist()]
    elif table.starts is not None:
        begin = []
    return replace(
        table,
        ticks=day,
        starts=begin,
        cells=query.labels,
        numbers=numbers.reshape(-1, 4, outputs)[there],
        as_of=as_of[there],
        left=(lags - 1 - lag)[there],
    )


def with_revisions_left(table: ReleaseTable, view: View) -> ReleaseTable:
    """A view of newest numbers with the tick as of which each is, and how often it will still be revised."""
    errors = view._errors
    if not isinstance(errors, DayErrors):
        return table
    final = view.last + errors.lags - 1
    as_of = np.minimum(final, errors.released)
    return replace(table, as_of=as_of, left=final - as_of)
