"""View: what people look at (new cases per day, the last 24 hours, two cells beside each other) with its exact error.

Every number of a view is a fixed linear function of numbers that are already released, so it costs no further privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_probability
from evercount.engine.error_model import ErrorModel, Part, SpanErrors, interval_factor
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.table_exports import TableExports
from evercount.errors import ParameterError
from evercount.queries.publishing import CellErrors

QUARTILES = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75}  # what a chart of a distribution shows


@dataclass(frozen=True, eq=False)
class View(TableExports):
    """Numbers over spans of ticks, one row per span and cell. `Releases` makes them: `per_tick`, `last`, `spans`.

    Args:
        name: what it is called.
        first: the first tick that each span counts, from 1.
        last: the last tick that each span counts.
        cells: one label for each column of `values`.
        values: shape (spans, cells).
        guarantee: as the releases state it.
        noise: the kind of noise, as the releases state it.

    **Guarantee.** A function of published numbers and public parameters. `std` is exact: the noise of a running sum
    and of its earlier value are correlated, and their joint law is known. Test:
    tests/engine/test_views.py::test_errors_of_views_are_exact.

    >>> from evercount import Budget, Count, Stream
    >>> view = Stream(Count(), Budget(1.0, 1e-6), 24).run([100, 50, 30]).last(2)
    >>> view.first.tolist(), view.last.tolist(), view.std.round(1).tolist()
    ([1, 2], [2, 3], [[7.3], [8.4]])
    """

    name: str
    first: IntArray
    last: IntArray
    cells: tuple[str, ...]
    values: FloatArray
    _norms: FloatArray
    """Std of each column in units of a cell's std, shape (cells,), or (spans, cells) where spans differ."""
    _rounding: FloatArray  # the most that rounding of a cell by 1 changes each column, in the same shape
    _errors: ErrorModel
    guarantee: str
    _later: tuple[Part, ...] = field(default=(), kw_only=True)
    """What cells that joined later contribute, besides `_norms` and `_rounding` of those of the start."""

    _symmetric: ClassVar[bool] = True  # whether an interval reaches as far on both sides

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"View({self.name!r}, {len(self)} spans, {len(self.cells)} cells, noise={self.noise!r})"

    @cached_property
    def _cell_errors(self) -> tuple[FloatArray, CellErrors]:
        """(std, errors) of one cell over each span, each array (spans, 1)."""
        return self._errors.difference_errors(self.first - 1, self.last)

    @cached_property
    def _span_errors(self) -> SpanErrors:
        return self._errors.span_errors(self.first - 1, self.last, self._parts)

    @property
    def _parts(self) -> tuple[Part, ...]:
        """What cells of the start, and of each joining, contribute."""
        return (Part(0, self._norms, self._rounding), *self._later)

    @property
    def std(self) -> FloatArray:
        """The exact std of each number, shape (spans, cells)."""
        return self._span_errors.std

    def _half_widths(self, level: float = 0.95) -> FloatArray:
        """Half the width of each number's interval, shape (spans, cells)."""
        factor = self._errors.difference_factors(level, self.first - 1, self.last)
        if self._later:
            factor = self._errors.with_joined(level, factor, self.last, self._parts)
        errors = self._span_errors
        return factor * errors.spread + errors.slack + errors.step

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`.

        Args:
            level: The probability.

        Returns:
            The lower and the upper ends, each of shape (spans, cells).
        """
        half = self._half_widths(level)
        return self.values - half, self.values + half

    def bound(self, level: float = 0.95) -> FloatArray:
        """Half-widths that hold for all spans and cells of this view at once with probability `level`.

        Args:
            level: The probability that all numbers are inside.

        Returns:
            The half-widths, shape (spans, cells).

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        return self._half_widths(1 - (1 - check_probability("level", level)) / max(self.values.size, 1))

    def only(self, *cells: str) -> Self:
        """The same view of some cells.

        Args:
            *cells: The labels of the cells.

        Returns:
            A new view.

        Raises:
            ParameterError: A cell is not in this view.
        """
        chosen = self._places(cells)
        return replace(
            self,
            cells=tuple(cells),
            values=self.values[:, chosen],
            _norms=self._norms[..., chosen],
            _rounding=self._rounding[..., chosen],
            _later=tuple(Part(part.after, part.norms[chosen], part.rounding[chosen]) for part in self._later),
        )

    def _spans_at(self, places: IntArray) -> Self:
        return replace(self, first=self.first[places], last=self.last[places], values=self.values[places])

    def compare(self, one: str, other: str) -> Self:
        """`one` minus `other`, with the exact error of the difference.

        Args:
            one: The label of a cell.
            other: The label of another cell.

        Returns:
            A view with one cell, the difference.

        Raises:
            ParameterError: a cell is not there, or the query does not declare how its outputs vary together.
        """
        a, b = self._places((one, other))
        published = self._errors.query.publishing
        if self._later:  # each number is its own cell's, or it cannot be compared
            if published.part is not None:
                raise ParameterError("numbers that add up cannot be compared once paths have joined the stream")
            norms = [np.hypot(part.norms[[a]], part.norms[[b]]) for part in self._parts]
        else:
            joint = published.joint(self._outputs([a, b]))
            norms = [np.sqrt([max(float(joint[0, 0] + joint[1, 1] - 2 * joint[0, 1]), 0.0)])]
        rounding = [part.rounding[[a]] + part.rounding[[b]] for part in self._parts]
        return replace(
            self,
            name=f"{self.name}, compared",
            cells=(f"{one} − {other}",),
            values=self.values[:, [a]] - self.values[:, [b]],
            _norms=norms[0],
            _rounding=rounding[0],
            _later=tuple(map(Part, (part.after for part in self._later), norms[1:], rounding[1:])),
        )

    def quantile(self, q: float, level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile of each span's values, each (spans,): for `Quantiles` only.

        [low, high] holds the smallest value that at least a part q of all values do not exceed, with probability at
        least `level` for each span by itself, if the span has a value at all.

        Args:
            q: Which quantile, between 0 and 1.
            level: The probability of the interval.

        Returns:
            The value, the lower and the upper end of each span.

        Raises:
            ParameterError: another query, or some of its cells only.
        """
        query = self._errors.query
        q = check_probability("q", q)
        if query.quantiles is None or len(self.cells) != query.outputs:
            raise ParameterError("quantiles are read from all cells of a stream of Quantiles")
        factor = self._errors.difference_factors(level, self.first - 1, self.last)
        cell, norms = self._cell_errors[1], query.quantiles.norms_beside(q)
        half = factor * cell.spread * norms + cell.slack_of(norms, self._rounding + q * self._rounding[-1])
        return query.quantiles.read_quantile(self.values, half, q)

    def table(self, level: float = LEVEL, starts: Sequence[int] | None = None) -> ReleaseTable:
        """The view as a table, one row per span and cell.

        Args:
            level: The probability of the intervals low … high.
            starts: When each span begins, in microseconds since 1970: a column `start` of its own.

        Returns:
            The table.
        """
        numbers = [self.values, self.std, *self.interval(level)]
        return table_of(self.last, starts, self.cells, numbers, self.first, guarantee=self.guarantee)

    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        if self._errors.query.quantiles is None or len(self.cells) != self._errors.query.outputs:
            return (self.name, self.cells, self.values, *self.interval(level))
        read = np.asarray([self.quantile(q, level) for q in QUARTILES.values()])
        return (f"quartiles, {self.name}", tuple(QUARTILES), read[:, 0].T, read[:, 1].T, read[:, 2].T)

    def _places(self, cells: Sequence[str]) -> list[int]:
        known = {label: place for place, label in enumerate(self.cells)}
        for cell in cells:
            if not isinstance(cell, str) or cell not in known:
                shown = ", ".join(self.cells[:8]) + (", …" if len(self.cells) > 8 else "")
                raise ParameterError(f"there is no cell {cell!r:.80} in this view; its cells: {shown}")
        return [known[cell] for cell in cells]

    def _outputs(self, places: list[int]) -> list[int]:
        labels = list(self._errors.query.labels)
        try:
            return [labels.index(self.cells[place]) for place in places]
        except ValueError:
            raise ParameterError("a comparison cannot be compared again: compare cells of the view itself") from None


@dataclass(frozen=True, eq=False)
class Difference:
    """One cell of a view minus one cell of a view of another stream, over the same spans.

    **Guarantee.** Different streams have independent noise (`mechanisms.declared_key`), so the variances add up. Both
    streams are already published; together they may reveal what their budgets add up to. Test:
    tests/engine/test_views.py::test_a_difference_of_two_streams_has_the_error_of_both.
    """

    one: View
    other: View

    def __post_init__(self) -> None:
        if len(self.one.cells) != 1 or len(self.other.cells) != 1 or len(self.one) != len(self.other):
            raise ParameterError("two streams are compared cell by cell: choose one cell of each, over the same spans")

    @property
    def values(self) -> FloatArray:
        return self.one.values - self.other.values

    @property
    def std(self) -> FloatArray:
        return np.hypot(self.one.std, self.other.std)

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true difference with probability at least `level`."""
        if not (self.one._symmetric and self.other._symmetric):  # each side gets half of the miss probability
            (a, b), (c, d) = (view.interval((1 + level) / 2) for view in (self.one, self.other))
            return a - d, b - c
        tails = 1 if self.one._errors.pure or self.other._errors.pure else None
        one, other = self.one._span_errors, self.other._span_errors
        spread, step = np.hypot(one.spread, other.spread), np.maximum(one.step, other.step)  # one step is enough
        half = interval_factor(level, (), 1, tails) * spread + one.slack + other.slack + step
        return self.values - half, self.values + half
