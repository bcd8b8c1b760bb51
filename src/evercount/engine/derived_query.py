"""Queries that streams make of another one: some of its cells, for shards, and days that are published again.

Revisions are what epidemiologists call a reporting triangle. A tick has a day of its own; an event that comes ℓ ticks
after its day has lag ℓ. After tick t the numbers of the days t, t−1, …, t−R are published, each with the events that
came so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_whole
from evercount.errors import InputError, ParameterError
from evercount.queries.base import Adjacency, Query
from evercount.queries.publishing import Publishing

MOST_LAGS = 1000  # lags of one day: each is a number that every tick publishes for every cell


class _Derived(Query[FloatArray]):
    """What both take over from the query that they are made of."""

    query: Query

    @property
    def grid(self) -> float:
        return self.query.grid

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.squared_sensitivity(adjacency)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.l1_sensitivity(adjacency)


class Revisions(_Derived):
    """The running sums of each of the last `lags` days, by cell.

    Cell ℓ·C + c is cell c of the query (C of them) for the day that is ℓ ticks ago. As events, a tick is a sequence:
    first what the query takes as a tick for the events of its own day, then the same for those that came one tick late,
    and so on. `engine/state.py` moves the sums of a day on by one lag after each tick.

    **Guarantee.** An event is counted for one day at one lag, and what is counted for other days and lags does not
    depend on it. So the neighbours of all days together are those of the query for one day, with S of the query. Proof:
    `revisions.proof.md`. Test: tests/engine/test_revisions.py::test_no_neighbours_beat_one_day.
    """

    name: ClassVar[str] = "revisions"
    cells = outputs = 0
    single = False

    def __init__(self, query: Query, lags: int) -> None:
        check_revised(query)
        self.query, self.lags = query, lags
        self.cells, self.outputs = lags * query.cells, lags * query.outputs

    @property
    def labels(self) -> Sequence[str]:
        return tuple(f"{label}, {lag} late" for lag in range(self.lags) for label in self.query.labels)

    @property
    def publishing(self) -> Publishing:
        of_day, each = self.query.publishing, np.ones(self.query.outputs)
        return Publishing(
            self._decode,
            lambda: np.tile(each * of_day.norms(), self.lags),
            lambda: np.tile(each * of_day.roundings(), self.lags),
            no_views="the numbers of a revised stream are those of single days: views take the newest number of each",
        )

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """What the query publishes for each day; NaN for days before the first."""
        blocks = noisy.reshape(len(noisy) * self.lags, self.query.cells)
        published = self.query.decode_run(1, blocks).reshape(len(noisy), self.lags, self.query.outputs).copy()
        ticks = np.arange(first_tick, first_tick + len(noisy))
        published[ticks[:, np.newaxis] <= np.arange(self.lags)] = np.nan
        return published.reshape(len(noisy), self.outputs)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        if not isinstance(events, Sequence) or isinstance(events, str | bytes) or len(events) > self.lags:
            raise InputError(
                f"a tick of a revised stream is a list: the events of its own day, those of the day before, …, at most "
                f"{self.lags} days"
            )
        row = np.zeros((self.lags, self.query.cells), np.int64)
        for lag, part in enumerate(events):
            row[lag] = self.query.encode(None, part)[0]
        return row.reshape(-1), state

    def encode_totals(self, state: Any, totals: npt.ArrayLike) -> tuple[IntArray, Any]:
        row, _ = super().encode_totals(state, totals)
        for part in row.reshape(self.lags, self.query.cells):
            self.query.encode_totals(None, part)
        return row, state

    def named(self) -> list[Any]:
        return [self.name, {"query": self.query.named(), "lags": self.lags}]

    def with_keys(self, keys: Sequence[Any]) -> Query:
        raise ParameterError("keys cannot join a stream whose ticks are revised: declare a successor with all keys")

    def parameters(self) -> dict[str, Any]:
        return {"query": self.query, "lags": self.lags}


def check_revised(query: Query) -> None:
    if not query.memoryless or query.whole_ticks or query.people is not None:
        raise ParameterError(
            f"late = 'revise': {query.name!r} looks at earlier events or at who sent them, so a late event would "
            "change other days too; revise count, sum, histogram, rollup, marginals, quantiles or top-k"
        )
    if query.discovery is not None:
        raise ParameterError(
            "late = 'revise': unlisted keys become public tick by tick, and a revised day has none of its own; list "
            "the keys (histogram)"
        )
    if query.publishing.no_views is not None or query.publishing.weights is not None or query.publishing.own_ticks:
        raise ParameterError(f"late = 'revise': {query.name!r} publishes no sums; publish the sum and the count")


class CellRange(_Derived):
    """The cells `part` of a query that publishes each cell by itself.

    **Guarantee.** Noise, sums and published numbers of a cell depend on that cell and on public facts only. So streams
    of disjoint parts of one declaration publish together exactly what the whole stream publishes, and its guarantee
    holds for all of them together; the noise of a part is calibrated to the whole query (`engine/build.py`). Test:
    tests/engine/test_cell_range.py::test_parts_together_are_the_whole_stream.
    """

    name: ClassVar[str] = "cell-range"
    cells = 0

    def __init__(self, query: Query, part: range) -> None:
        if part.step != 1 or not 0 <= part.start < part.stop <= query.cells:
            raise ParameterError(f"{part} is not a range of the {query.cells} cells")
        if not can_be_cut(query) and len(part) != query.cells:
            raise ParameterError(f"the cells of {query.name!r} cannot be cut into parts: use one part")
        self.query, self.part, self.cells = query, part, len(part)

    @property
    def labels(self) -> Sequence[str]:
        return self.query.labels[self.part.start : self.part.stop]

    @property
    def monotone(self) -> bool:
        return self.query.monotone

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        raise InputError("a part of the cells takes totals, not events: count the events before the cells are cut")

    def parameters(self) -> dict[str, Any]:
        return {"query": self.query, "part": self.part}


def can_be_cut(query: Query) -> bool:
    """Whether each published number is one cell's running sum, so that cells can be released apart."""
    sums = query.publishing.as_they_are and query.publishing.kept is None and query.outputs == query.cells
    return sums and query.initial_state() is None and not query.whole_ticks


def cut_cells(cells: int, shards: int) -> list[range]:
    """`shards` ranges of nearly equal length that cover the cells."""
    check_whole("shards", shards, 1, cells)
    return [range(number * cells // shards, (number + 1) * cells // shards) for number in range(shards)]
