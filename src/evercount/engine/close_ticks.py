"""close_ticks: totals in, released rows out. Whatever publishes closes its ticks here; noise is
drawn nowhere else.

What events add to the cells of some ticks is a `TickTotals`; queries with a memory get the events,
as `TickEvents`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount._validate import IntArray
from evercount.engine.release import Releases
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.state import Capped
from evercount.engine.stream import Stream
from evercount.errors import InputError, ParameterError


@dataclass(frozen=True, eq=False)
class TickTotals:
    """Sums per tick and cell of `ticks` consecutive ticks from `first_tick` on, in grid units;
    cells not listed are 0. Entries are in the order of ticks, and entries of one cell add up."""

    first_tick: int
    ticks: int
    cells: int
    tick: IntArray
    cell: IntArray
    total: IntArray

    def __post_init__(self) -> None:
        if self.first_tick < 1 or self.ticks < 0 or self.cells < 1:
            raise ParameterError(
                "totals need a first tick and cells of at least 1, and no negative number of ticks"
            )
        if not len(self.tick) == len(self.cell) == len(self.total):
            raise ParameterError("the columns of totals differ in length")
        if len(self.tick) and not (
            self.first_tick <= self.tick[0] and self.tick[-1] < self.first_tick + self.ticks
        ):
            raise ParameterError("totals hold a tick outside their range")

    @classmethod
    def dense(cls, first_tick: int, rows: Any) -> TickTotals:
        array = np.asarray(rows, dtype=np.int64)
        tick, cell = np.nonzero(array)
        return cls(
            first_tick, len(array), array.shape[1], tick + first_tick, cell, array[tick, cell]
        )

    @classmethod
    def of(cls, cells: int, tick: IntArray, cell: IntArray, total: IntArray) -> TickTotals:
        """Entries in the order of ticks, from their first tick to their last."""
        if len(tick):
            first = int(tick[0])
            stop = int(tick[-1]) + 1
        else:
            first, stop = 1, 1
        return cls(first, stop - first, cells, tick, cell, total)

    @classmethod
    def none(cls, cells: int) -> TickTotals:
        return cls.of(cells, *[np.empty(0, np.int64)] * 3)

    def __len__(self) -> int:
        return self.ticks

    def rows(self, first: int, stop: int) -> IntArray:
        """The sums of ticks first … stop−1 as an array of shape (ticks, cells)."""
        part = slice(np.searchsorted(self.tick, first), np.searchsorted(self.tick, stop))
        out = np.zeros((stop - first, self.cells), np.int64)
        np.add.at(out, (self.tick[part] - first, self.cell[part]), self.total[part])
        return out

    def blocks(self, numbers: int) -> Iterator[IntArray]:
        """The sums of consecutive ticks, about `numbers` numbers at a time."""
        size = max(1, numbers // self.cells)
        last = self.first_tick + self.ticks
        for first in range(self.first_tick, last, size):
            yield self.rows(first, min(first + size, last))


@dataclass(frozen=True)
class TickEvents:
    """What the query reads as a tick, for queries whose encoder has a memory: the events, in order.
    Secret."""

    first_tick: int
    ticks: list[Any]

    def __len__(self) -> int:
        return len(self.ticks)


# published numbers of one table: memory stays bounded, and noise is drawn in long blocks
NUMBERS_AT_A_TIME = 1 << 17

Starts = Callable[[int, int], Sequence[int] | None]
"""From (first tick, number of ticks) to the instants at which they begin; None where ticks are
closed by hand."""


def close_ticks(
    stream: Stream,
    totals: TickTotals | TickEvents,
    starts: Starts,
    *,
    numbers: int = NUMBERS_AT_A_TIME,
) -> Iterator[ReleaseTable]:
    """Release the ticks of `totals`, in order, as tables of a bounded size. Users are capped
    already.

    **Guarantee.** The published numbers are those of `Stream.run_totals` tick by tick: a function
    of the stream's parameters, its secret and the totals, whatever the sizes of the tables. Test:
    tests/contracts/test_same_table.py::test_every_interface_publishes_the_same_table.
    """
    if totals.first_tick != stream.tick + 1:
        raise InputError(
            f"the totals begin at tick {totals.first_tick}, but tick {stream.tick + 1} is next"
        )
    capped: Capped = False
    if stream.budget.unit == "user" and stream.query.people is None:
        capped = "by door"
    for releases in _released(stream, totals, capped, numbers):
        yield releases.table(LEVEL, starts(releases.first_tick, len(releases)))


def _released(
    stream: Stream, totals: TickTotals | TickEvents, capped: Capped, numbers: int
) -> Iterator[Releases]:
    """The ticks, some at a time; a table without rows where there are no ticks of events."""
    if isinstance(totals, TickTotals):
        for rows in totals.blocks(numbers):
            yield stream.run_totals(rows, capped=capped)
        return
    done = 0
    while done < len(totals) or not done:
        some = max(1, numbers // len(stream.labels))
        yield stream.run(totals.ticks[done : done + some], capped=capped)
        done += some
