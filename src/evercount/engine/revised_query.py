"""Revisions: a query whose number of a tick is published again at each of the next ticks, as late events come in.

What epidemiologists call a reporting triangle. A tick has a day of its own; an event that comes ℓ ticks after its day
has lag ℓ. After tick t the numbers of the days t, t−1, …, t−R are published, each with the events that came so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import InputError, ParameterError
from evercount.queries.base import Adjacency, Query
from evercount.queries.publishing import Publishing

MOST_LAGS = 1000
"""Lags of one day: each is a number that every tick publishes for every cell."""


class Revisions(Query[FloatArray]):
    """The running sums of each of the last `lags` days, by cell.

    Cell ℓ·C + c is cell c of the query (C of them) for the day that is ℓ ticks ago. As events, a tick is a sequence:
    first what the query takes as a tick for the events of its own day, then the same for those that came one tick late,
    and so on. `engine/state.py` moves the sums of a day on by one lag after each tick.

    **Guarantee.** An event is counted for one day at one lag, and what is counted for other days and lags does not
    depend on it. So the neighbours of all days together are those of the query for one day, with S of the query. Proof:
    `revisions.proof.md`. Test: tests/engine/test_revisions.py::test_no_neighbours_beat_one_day.

    >>> from evercount import Count
    >>> Revisions(Count(), 3).encode(None, [5, 2])[0].tolist()
    [5, 2, 0]
    """

    name: ClassVar[str] = "revisions"
    single = False

    def __init__(self, query: Query, lags: int) -> None:
        check_revised(query)
        self.query, self.lags = query, lags

    @property
    def cells(self) -> int:
        return self.lags * self.query.cells

    @property
    def outputs(self) -> int:
        return self.lags * self.query.outputs

    @property
    def grid(self) -> float:
        return self.query.grid

    @property
    def labels(self) -> Sequence[str]:
        return tuple(f"{label}, {lag} late" for lag in range(self.lags) for label in self.query.labels)

    @property
    def publishing(self) -> Publishing:
        return Publishing(decode=self._decode, norms=self._norms, rounding=self._rounding, no_views=NOT_SUMS)

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """What the query publishes for each day; NaN for days before the first."""
        blocks = noisy.reshape(len(noisy) * self.lags, self.query.cells)
        published = self.query.decode_run(1, blocks).reshape(len(noisy), self.lags, self.query.outputs).copy()
        ticks = np.arange(first_tick, first_tick + len(noisy))
        published[ticks[:, np.newaxis] <= np.arange(self.lags)] = np.nan
        return published.reshape(len(noisy), self.outputs)

    def _norms(self) -> FloatArray:
        return np.tile(np.ones(self.query.outputs) * self.query.publishing.norms(), self.lags)

    def _rounding(self) -> FloatArray:
        return np.tile(np.ones(self.query.outputs) * self.query.publishing.roundings(), self.lags)

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.squared_sensitivity(adjacency)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.l1_sensitivity(adjacency)

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


NOT_SUMS = "the numbers of a revised stream are those of single days: views take the newest number of each"


def check_revised(query: Query) -> None:
    """Refuse a query whose days cannot be published again."""
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
