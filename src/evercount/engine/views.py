"""View: what people look at (new cases per day, the last 24 hours, two cells beside each other) with its exact error.

Every number of a view is a fixed linear function of numbers that are already released, so it costs no further privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, check_probability
from evercount.engine.error_model import ErrorModel, interval_factor
from evercount.engine.table_exports import TableExports
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.engine.release import Releases

COLUMNS = ("first", "last", "cell", "value", "std", "low", "high")


@dataclass(frozen=True, eq=False)
class View(TableExports):
    """Numbers over spans of ticks, one row per span and cell. `Releases` makes them: `per_tick`, `last`, `spans`.

    Args:
        name: what it is called.
        first, last: the 1-based ticks that each span counts, both included.
        cells: one label for each column of `values`.
        values: shape (spans, cells).
        norms: std of each column in units of a cell's std; `rounding` bounds the effect of rounding likewise.
        errors: the error model of the stream.
        guarantee, noise: as the releases state them.

    **Guarantee.** A function of published numbers and public parameters. `std` is exact: the noise of a running sum
    and of its earlier value are correlated, and their joint law is known. Test:
    tests/engine/test_views.py::test_errors_of_views_are_exact.
    """

    name: str
    first: IntArray
    last: IntArray
    cells: tuple[str, ...]
    values: FloatArray
    norms: FloatArray
    rounding: FloatArray
    errors: ErrorModel
    guarantee: str
    noise: str

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"View({self.name!r}, {len(self)} spans, {len(self.cells)} cells, noise={self.noise!r})"

    @cached_property
    def _cell_errors(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(std, spread, slack) of one cell, each (spans, 1); see `ErrorModel.errors`."""
        found = self.errors.difference_errors(self.first - 1, self.last)
        std, spread, slack = (part[:, np.newaxis] for part in found)
        return std, spread, slack

    @property
    def std(self) -> FloatArray:
        """The exact std of each number, shape (spans, cells)."""
        return self._cell_errors[0] * self.norms

    def half_widths(self, level: float = 0.95) -> FloatArray:
        """Half the width of each number's interval, shape (spans, cells)."""
        factor = interval_factor(level, (), 1, self.errors.difference_tails)
        return factor * self._cell_errors[1] * self.norms + self._cell_errors[2] * self.rounding

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`."""
        half = self.half_widths(level)
        return self.values - half, self.values + half

    def only(self, *cells: str) -> View:
        """The same view of some cells."""
        chosen = self._places(cells)
        return replace(
            self,
            cells=tuple(cells),
            values=self.values[:, chosen],
            norms=self.norms[chosen],
            rounding=self.rounding[chosen],
        )

    def compare(self, one: str, other: str) -> View:
        """`one` minus `other`, with the exact error of the difference.

        Raises:
            ParameterError: a cell is not there, or the query does not declare how its outputs vary together.
        """
        a, b = self._places((one, other))
        joint = self.errors.query.output_covariance(self._outputs([a, b]))
        apart = max(float(joint[0, 0] + joint[1, 1] - 2 * joint[0, 1]), 0.0)
        return replace(
            self,
            name=f"{self.name}, compared",
            cells=(f"{one} − {other}",),
            values=self.values[:, [a]] - self.values[:, [b]],
            norms=np.asarray([np.sqrt(apart)]),
            rounding=self.rounding[[a]] + self.rounding[[b]],
        )

    def quantile(self, q: float, level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile of each span's values, each (spans,): for `Quantiles` only.

        [low, high] holds the smallest value that at least a part q of all values do not exceed, with probability at
        least `level` for each span by itself, if the span has a value at all.

        Raises:
            ParameterError: another query, or some of its cells only.
        """
        query = self.errors.query
        q = check_probability("q", q)
        if not query.has_quantiles or len(self.cells) != query.outputs:
            raise ParameterError("quantiles are read from all cells of a stream of Quantiles")
        factor = interval_factor(level, (), 1, self.errors.difference_tails)
        half = factor * self._cell_errors[1] * query.norms_beside(q)
        half = half + self._cell_errors[2] * (self.rounding + q * self.rounding[-1])
        return query.read_quantile(self.values, half, q)

    def table(self, level: float = 0.95) -> dict[str, npt.NDArray[Any]]:
        """The columns of COLUMNS, one row per span and cell."""
        low, high = self.interval(level)
        width = len(self.cells)
        return {
            "first": np.repeat(self.first, width),
            "last": np.repeat(self.last, width),
            "cell": np.tile(np.asarray(self.cells, dtype=object), len(self)),
            "value": self.values.ravel(),
            "std": self.std.ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
        }

    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        return (self.name, self.cells, self.values, *self.interval(level))

    def _places(self, cells: Sequence[str]) -> list[int]:
        known = {label: place for place, label in enumerate(self.cells)}
        for cell in cells:
            if cell not in known:
                shown = ", ".join(self.cells[:8]) + (", …" if len(self.cells) > 8 else "")
                raise ParameterError(f"there is no cell {cell!r:.80} in this view; its cells: {shown}")
        return [known[cell] for cell in cells]

    def _outputs(self, places: list[int]) -> list[int]:
        labels = list(self.errors.query.labels)
        try:
            return [labels.index(self.cells[place]) for place in places]
        except ValueError:
            raise ParameterError("a comparison cannot be compared again: compare cells of the view itself") from None


def spans(releases: Releases, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
    """The numbers of ticks after+1 … until of each span, from running sums.

    Raises:
        ParameterError: the query publishes no running sums, the numbers were post-processed, or a tick is not there.
    """
    query = releases.query
    if not query.running_sums:
        raise ParameterError(f"views are differences of running sums, and {query.name!r} publishes none")
    if releases.postprocessed:
        raise ParameterError(
            f"these numbers were post-processed ({', '.join(releases.postprocessed)}), so that the error of their "
            "differences is not known; release without post-processing and post-process the view"
        )
    start, stop = (np.atleast_1d(np.asarray(ticks, dtype=np.int64)) for ticks in (after, until))
    first, last = releases.first_tick, releases.first_tick + len(releases) - 1
    if len(start) and (np.any(start >= stop) or stop.max() > last or (start.min() < first and first > 1)):
        raise ParameterError(f"a view needs released ticks: {first} to {last} are here, and each span needs one more")
    if len(start) and start.min() < 0:
        raise ParameterError("ticks before the first cannot be counted")
    sums = np.concatenate([np.zeros((1, releases.rows.shape[1])), releases.rows])
    offset = 1 - first if first > 1 else 0
    places = (np.where(start > 0, start + offset, 0), stop + offset)
    values = sums[places[1]] - sums[places[0]]
    ones = np.ones(len(releases.labels))
    return View(
        name,
        start + 1,
        stop,
        tuple(releases.labels),
        values,
        ones * query.output_norms(),
        ones * query.rounding_norms(),
        releases.error_model,
        releases.guarantee,
        releases.noise,
    )


def running(releases: Releases) -> View:
    """The running totals themselves."""
    ticks = releases.ticks
    if releases.first_tick > 1:
        raise ParameterError("a view of running totals needs the releases from tick 1 on")
    return spans(releases, "running total", np.zeros_like(ticks), ticks)


def per_tick(releases: Releases) -> View:
    """The events of each tick."""
    until = releases.ticks if releases.first_tick == 1 else releases.ticks[1:]
    return spans(releases, "per tick", until - 1, until)


def last_ticks(releases: Releases, ticks: int) -> View:
    """The events of the last so many ticks, at every tick that has as many before it."""
    ticks = check_count("ticks", ticks)
    lowest = 0 if releases.first_tick == 1 else releases.first_tick
    until = np.arange(lowest + ticks, releases.first_tick + len(releases))
    return spans(releases, f"last {ticks} ticks", until - ticks, until)
