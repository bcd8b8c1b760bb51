"""Days that are published again as late events come.

Revisions are what epidemiologists call a reporting triangle. A tick has a day of its own; an event
that comes ℓ ticks after its day has lag ℓ. After tick t the numbers of the days t, t−1, …, t−R are
published in one row, each with the events that came so far. Readers get rows of (tick, as_of): the
day, and the tick after which the number was published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.bounds.tails import equal_numbers
from evercount.engine.derived_query import SensitivityOfQuery
from evercount.engine.error_model import CellStd, ErrorModel, TickErrors
from evercount.engine.release import Releases
from evercount.engine.release_table import ReleaseTable
from evercount.engine.take_views import ValuesAt, view_of
from evercount.engine.views import Spans, View
from evercount.errors import InputError, ParameterError
from evercount.factorizations.laplace_trees import PureFactorization
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.publishing import CellErrors, Publishing

MOST_LAGS = 1000  # lags of one day: each is a number that every tick publishes for every cell


class Revisions(SensitivityOfQuery, Query[FloatArray]):
    """The running sums of each of the last `lags` days, by cell.

    Cell ℓ·C + c is cell c of the query (C of them) for the day that is ℓ ticks ago. As events, a
    tick is a sequence: first what the query takes as a tick for the events of its own day, then the
    same for those that came one tick late, and so on. `engine/state.py` moves the sums of a day on
    by one lag after each tick.

    **Guarantee.** An event is counted for one day at one lag, and what is counted for other days
    and lags does not depend on it. So the neighbours of all days together are those of the query
    for one day, with S of the query. Proof: `revisions.proof.md`. Test:
    tests/engine/test_revisions.py::test_no_neighbours_beat_one_day.
    """

    name: ClassVar[str] = "revisions"
    cells = outputs = 0
    single = False

    def __init__(self, query: Query, lags: int) -> None:
        check_revised(query)
        self.query = query
        self.lags = lags
        self.cells = lags * query.cells
        self.outputs = lags * query.outputs

    @property
    def labels(self) -> Sequence[str]:
        return tuple(
            f"{label}, {lag} late" for lag in range(self.lags) for label in self.query.labels
        )

    @property
    def publishing(self) -> Publishing:
        of_day = self.query.publishing
        each = np.ones(self.query.outputs)
        return Publishing(
            self._decode,
            lambda: np.tile(each * of_day.norms(), self.lags),
            lambda: np.tile(each * of_day.roundings(), self.lags),
            why_no_views=(
                "the numbers of a revised stream are of single days: views take the newest number "
                "of each"
            ),
        )

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """What the query publishes for each day; NaN for days before the first."""
        blocks = noisy.reshape(len(noisy) * self.lags, self.query.cells)
        published = (
            self.query.decode_run(1, blocks)
            .reshape(len(noisy), self.lags, self.query.outputs)
            .copy()
        )
        ticks = np.arange(first_tick, first_tick + len(noisy))
        published[ticks[:, np.newaxis] <= np.arange(self.lags)] = np.nan
        return published.reshape(len(noisy), self.outputs)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        if (
            not isinstance(events, Sequence)
            or isinstance(events, str | bytes)
            or len(events) > self.lags
        ):
            raise InputError(
                "a tick of a revised stream is a list: the events of its own day, those of the day "
                f"before, …, at most {self.lags} days"
            )
        row = np.zeros((self.lags, self.query.cells), np.int64)
        for lag, part in enumerate(events):
            row[lag] = self.query.encode(None, part)[0]
        return row.reshape(-1), state

    def check_totals(self, totals: IntArray) -> None:
        self.query.check_totals(totals.reshape(-1, self.query.cells))

    def identity(self) -> list[Any]:
        return [self.name, {"query": self.query.identity(), "lags": self.lags}]

    def with_keys(self, keys: Sequence[Any]) -> Query:
        raise ParameterError(
            "keys cannot join a stream whose ticks are revised: declare a successor with all keys"
        )

    def parameters(self) -> dict[str, Any]:
        return {"query": self.query, "lags": self.lags}


def check_revised(query: Query) -> None:
    if not query.memoryless or query.whole_ticks or query.people is not None:
        raise ParameterError(
            f"late = 'revise': {query.name!r} looks at earlier events or at who sent them, so a "
            "late event would change other days too; revise only count, sum, histogram, rollup, "
            "marginals, quantiles or top-k"
        )
    if query.discovery is not None:
        raise ParameterError(
            "late = 'revise' cannot be used with unlisted keys, which become public tick by tick; "
            "list the keys (histogram)"
        )
    if (
        query.publishing.why_no_views is not None
        or query.publishing.weights is not None
        or query.publishing.own_ticks
    ):
        raise ParameterError(
            f"late = 'revise': {query.name!r} publishes no sums; for averages revise the sum and "
            "the count"
        )


ONE_DAY = (
    "late = 'revise' protects one event, or what one user does on one day (period = '1d' for ticks "
    "of 1d): caps over several days are not supported"
)


def day_budget(budget: Budget) -> Budget:
    """What the stream of one day keeps so that all of them together keep the budget: its whole life
    is one period.

    **Guarantee.** `engine/revisions.proof.md`, Theorem 2. Tests:
    tests/engine/test_revisions.py::test_no_neighbours_beat_one_day and
    ::test_no_persons_beat_one_day.
    """
    if budget.unit == "event":
        return budget
    if budget.period_ticks != 1:
        raise ParameterError(ONE_DAY)
    return replace(budget, period=None, period_ticks=None)


@dataclass(frozen=True, eq=False)
class DayErrors(ErrorModel):
    """The errors of the query for one day, and of sums of the newest numbers of several after
    `released` ticks. `factorization` is that of a day: it has as many ticks as there are lags. A
    sum over days adds independent noise."""

    released: int = 0

    @property
    def lags(self) -> int:
        assert self.factorization.horizon is not None  # a day ends
        return self.factorization.horizon

    def lag_of(self, day: IntArray) -> IntArray:
        return np.clip(self.released - day, 0, self.lags - 1)

    def newest(self, last: IntArray) -> tuple[IntArray, IntArray]:
        final = last + self.lags - 1
        as_of = np.minimum(final, self.released)
        return as_of, final - as_of

    def difference_errors(self, earlier: IntArray, later: IntArray) -> CellStd:
        """(std, errors) of the sum of one cell over days earlier+1 … later."""
        std, cell = self.cell_errors(np.arange(1, self.lags + 1))
        if self.rounded:
            slack = self._over(cell.slack, earlier, later)
        else:
            slack = np.full((len(later), 1), cell.slack.max())
        step = np.full((len(later), 1), np.max(cell.step))  # added once
        spread = np.sqrt(self._over(cell.spread**2, earlier, later))
        return np.sqrt(self._over(std**2, earlier, later)), CellErrors(
            spread, slack, self.pure, step
        )

    def _over(self, by_lag: FloatArray, earlier: IntArray, later: IntArray) -> FloatArray:
        """Add up over the days of each span what each has by its lag, as a column."""
        first, days = _days_of(earlier, later)
        sums = np.concatenate([[0.0], np.cumsum(by_lag.reshape(-1)[self.lag_of(days)])])
        return np.asarray(sums[later - first] - sums[earlier - first])[:, np.newaxis]

    def equal_differences(self, earlier: IntArray, later: IntArray) -> IntArray:
        """`equal_numbers` of the sum over each span of days."""
        tree = self.factorization
        if not isinstance(tree, PureFactorization):
            return np.zeros((len(later), 1), int)
        _, plain, largest = tree.laplace_errors(np.arange(1, self.lags + 1), self.full_rate)
        most = np.where(later - earlier == 1, largest[self.lag_of(later)], largest.max())
        return equal_numbers(self._over(plain, earlier, later), most[:, np.newaxis])


def _days_of(earlier: IntArray, later: IntArray) -> tuple[int, IntArray]:
    """List all days from the first to the last that spans of days earlier+1 … later hold, after
    the day before them."""
    if not len(later):
        return 0, np.zeros(0, np.int64)
    before = int(earlier.min())
    return before, np.arange(before + 1, int(later.max()) + 1)


@dataclass(frozen=True, eq=False)
class RevisedErrors(ErrorModel):
    """The errors of a row of a revised stream: those of one day at each lag, the same at every
    tick."""

    @property
    def revisions(self) -> Revisions:
        assert isinstance(self.query, Revisions)
        return self.query

    @cached_property
    def day(self) -> DayErrors:
        """Of the newest numbers, long after the days."""
        return DayErrors(
            self.revisions.query, self.factorization, self.sigma, self.rounded, released=1 << 60
        )

    def errors(self, ticks: npt.ArrayLike) -> TickErrors:
        number = np.size(ticks)
        wide = (self.revisions.lags, self.revisions.query.outputs)
        of_day = self.day.errors(np.arange(1, self.revisions.lags + 1))

        def each_tick(part: FloatArray) -> FloatArray:
            return np.tile(np.broadcast_to(part, wide).reshape(-1), (number, 1))

        return TickErrors(each_tick(of_day.std), each_tick(of_day.spread), each_tick(of_day.slack))

    def std(self, ticks: npt.ArrayLike, width: int | None = None) -> FloatArray:
        """Std of the last `width` days up to each tick (None: all so far) once they are not revised
        any more."""
        at = np.atleast_1d(np.asarray(ticks))
        if width is None:
            earlier = np.zeros_like(at)
        else:
            earlier = np.maximum(at - width, 0)
        std, _ = self.day.difference_errors(earlier, at)
        return np.asarray(std * np.atleast_1d(self.day.query.publishing.norms()))

    def equal_numbers(self, ticks: IntArray) -> IntArray:
        of_lags = self.day.equal_numbers(np.arange(1, self.revisions.lags + 1))
        return np.tile(np.repeat(of_lags, self.revisions.query.outputs), (len(ticks), 1))


def newest_spans(releases: Releases, name: str, spans: Spans) -> View:
    """As `take_views.spans`, of the newest number of each day; the spans lie within the released
    ticks."""
    model = releases._errors
    assert isinstance(model, RevisedErrors)
    if releases.first_tick > 1:
        raise ParameterError("a view of revised days needs the releases from tick 1 on")

    def values_at(ticks: Iterable[int], cells: Sequence[int]) -> dict[int, FloatArray]:
        return {tick: releases.rows[tick - 1, list(cells)] for tick in ticks}

    outputs = range(model.revisions.query.outputs)
    return newest_view(model, name, spans, outputs, values_at, len(releases), releases.guarantee)


def newest_view(
    model: RevisedErrors,
    name: str,
    spans: Spans,
    outputs: Sequence[int],
    values_at: ValuesAt,
    released: int,
    guarantee: str,
) -> View:
    """Sums of the newest numbers of the days of spans, of some outputs of the query, after
    `released` ticks.

    **Guarantee.** A function of published numbers. Days have independent noise, so the variances
    add up. Test:
    tests/engine/test_revised_streams.py::test_views_take_the_newest_number_of_each_day.
    """
    after, until = spans
    errors = replace(model.day, released=released)
    first, days = _days_of(after, until)
    lags = errors.lag_of(days)
    width = model.revisions.query.outputs
    chosen = np.asarray(list(outputs), np.int64)
    sums = np.zeros((len(days) + 1, len(chosen)))
    # days that are final lie at one lag in many ticks, the others at many lags of the last tick
    final = lags == errors.lags - 1
    stored = values_at(
        (days[final] + errors.lags - 1).tolist(), (chosen + (errors.lags - 1) * width).tolist()
    )
    rows = [stored[day + errors.lags - 1] for day in days[final].tolist()]
    if not final.all():
        cells = [cell for lag in lags[~final].tolist() for cell in (chosen + lag * width).tolist()]
        rows += list(values_at([released], cells)[released].reshape(-1, len(chosen)))
    if rows:
        sums[1:] = np.cumsum(rows, axis=0)
    return view_of(
        name, spans, (sums[after - first], sums[until - first]), outputs, errors, guarantee
    )


def by_day(
    table: ReleaseTable, wide: Query, starts: Callable[[int, int], Sequence[int] | None]
) -> ReleaseTable:
    """The rows of a revised stream as readers get them: one for each day and the tick after which
    it was published. In the order in which they were published, and those of one tick by day."""
    assert isinstance(wide, Revisions)
    query = wide.query
    lags = wide.lags
    ticks = table.ticks
    outputs = query.outputs
    numbers = table.numbers.reshape(len(ticks), 4, lags, outputs).transpose(0, 2, 1, 3)[:, ::-1]
    as_of = np.repeat(ticks, lags)
    lag = np.tile(np.arange(lags)[::-1], len(ticks))
    there = as_of - lag >= 1
    day = (as_of - lag)[there]
    begin = None
    if table.starts is not None:
        first, last = 1, 0
        if len(day):
            first = int(day.min())
            last = int(day.max())
        instants = starts(first, last - first + 1) or []
        begin = [instants[one - first] for one in day.tolist()]
    return replace(
        table,
        ticks=day,
        starts=begin,
        cells=query.labels,
        numbers=numbers.reshape(-1, 4, outputs)[there],
        as_of=as_of[there],
        left=(lags - 1 - lag)[there],
    )
