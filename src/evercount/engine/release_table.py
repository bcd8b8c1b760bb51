"""ReleaseTable: the one shape in which released numbers leave the engine, for files, stores and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.release import Releases

LEVEL = 0.95
"""The level of the intervals that doors publish."""
NUMBERS = ("value", "std", "low", "high")
COLUMNS = ("tick", "start", "cell", *NUMBERS)
LARGEST_STATED = 1e300
"""What stands for an error that has no bound: JSON has no infinity."""


@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """Released numbers of consecutive ticks, one row per tick and cell."""

    first_tick: int
    starts: Sequence[int | None]  # in microseconds since 1970; None for ticks closed by hand
    cells: Sequence[str]
    numbers: FloatArray
    """value, std, low and high, shape (ticks, 4, cells). Finite, no negative zero: files and databases give back the
    same bits. NaN where a discovered key was not public: no row of a file or a database stands for it."""

    @classmethod
    def of(cls, releases: Releases, starts: Sequence[int | None], level: float = LEVEL) -> ReleaseTable:
        low, high = releases.limits(level)
        numbers = np.stack([releases.rows, releases.std_all, low, high], axis=1)
        numbers = np.clip(numbers, -LARGEST_STATED, LARGEST_STATED) + 0.0  # no infinity, no negative zero
        return cls(releases.first_tick, starts, releases.labels, numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ticks(self) -> range:
        return range(self.first_tick, self.first_tick + len(self))

    def last(self, ticks: int | None, cells: int | None = None) -> ReleaseTable:
        """The table of its last ticks and first cells only; None for all of them."""
        skipped = 0 if ticks is None else max(0, len(self) - ticks)
        numbers = self.numbers[skipped:, :, :cells]
        return ReleaseTable(self.first_tick + skipped, self.starts[skipped:], self.cells[:cells], numbers)

    def columns(self) -> dict[str, list[Any]]:
        """The columns of COLUMNS, one row per tick and published cell."""
        public = ~np.isnan(self.numbers[:, 0])
        rows, places = (side.tolist() for side in np.nonzero(public))
        return {
            "tick": [self.first_tick + row for row in rows],
            "start": [self.starts[row] for row in rows],
            "cell": [self.cells[place] for place in places],
            **{name: self.numbers[:, index][public].tolist() for index, name in enumerate(NUMBERS)},
        }

    def described(self, show: Callable[[int], str], hashes: Mapping[int, bytes]) -> list[dict[str, Any]]:
        """Each tick as readers of a service get it; `hashes` are those of the release chain.

        Numbers reach to the last cell that the tick published; before it, None stands for a cell that it did not.
        """
        return [
            {
                "tick": tick,
                "start": None if start is None else show(start),
                **dict(zip(("values", "std", "low", "high"), _filled(places, numbers), strict=True)),
                "hash": hashes.get(tick, b"").hex(),
            }
            for tick, start, places, numbers in self.each_tick()
        ]

    def each_tick(self) -> Iterator[tuple[int, int | None, IntArray, FloatArray]]:
        """(tick, start, places of published cells, their numbers of shape (4, cells)) of each tick."""
        for tick, start, numbers in zip(self.ticks, self.starts, self.numbers, strict=True):
            places = np.flatnonzero(~np.isnan(numbers[0]))
            yield tick, start, places, numbers[:, places]

    def among(self, cells: Sequence[str]) -> ReleaseTable:
        """The same numbers under these cells, which may be more and in another order."""
        place = {cell: number for number, cell in enumerate(cells)}
        width = self.numbers.shape[2]
        numbers = np.full((len(self), len(NUMBERS), len(cells)), np.nan)
        numbers[:, :, [place[cell] for cell in self.cells[:width]]] = self.numbers
        return ReleaseTable(self.first_tick, self.starts, cells, numbers)


def _filled(places: IntArray, numbers: FloatArray) -> list[list[float | None]]:
    """Rows of numbers up to the last place, None where there is none."""
    plain: list[list[float | None]] = numbers.tolist()
    width = int(places[-1]) + 1 if len(places) else 0
    if width == len(places):
        return plain
    rows: list[list[float | None]] = [[None] * width for _ in plain]
    for row, known in zip(rows, plain, strict=True):
        for place, number in zip(places.tolist(), known, strict=True):
            row[place] = number
    return rows
