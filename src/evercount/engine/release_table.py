"""ReleaseTable: the one shape in which released numbers leave the engine, for files, stores and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.release import Releases

LEVEL = 0.95
"""The level of the intervals that doors publish."""
NUMBERS = ("value", "std", "low", "high")
COLUMNS = ("tick", "start", "cell", *NUMBERS)
LARGEST_STATED = 1e300
"""What stands for an error that has no bound: JSON has no infinity."""


@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """Released numbers of consecutive ticks, one row per tick and cell.

    Args:
        first_tick: the 1-based tick of the first row.
        starts: the instant (microseconds since 1970) at which each tick begins; None for ticks closed by hand.
        cells: one label per published number.
        numbers: value, std, low and high, shape (ticks, 4, cells). Finite, and no negative zero: files and databases
            give back the same bits.
    """

    first_tick: int
    starts: Sequence[int | None]
    cells: Sequence[str]
    numbers: FloatArray

    @classmethod
    def of(cls, releases: Releases, starts: Sequence[int | None], level: float = LEVEL) -> ReleaseTable:
        """The table of what a stream released."""
        low, high = releases.limits(level)
        numbers = np.stack([releases.rows, releases.std_all, low, high], axis=1)
        numbers = np.clip(numbers, -LARGEST_STATED, LARGEST_STATED) + 0.0  # no infinity, no negative zero
        return cls(releases.first_tick, starts, releases.labels, numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ticks(self) -> range:
        """The 1-based ticks."""
        return range(self.first_tick, self.first_tick + len(self))

    def last(self, ticks: int | None, cells: int | None = None) -> ReleaseTable:
        """The table of its last ticks and first cells only; None for all of them."""
        skipped = 0 if ticks is None else max(0, len(self) - ticks)
        numbers = self.numbers[skipped:, :, :cells]
        return ReleaseTable(self.first_tick + skipped, self.starts[skipped:], self.cells[:cells], numbers)

    def columns(self) -> dict[str, list[Any]]:
        """The columns of COLUMNS, one row per tick and cell."""
        width = len(self.cells)
        return {
            "tick": [tick for tick in self.ticks for _ in range(width)],
            "start": [start for start in self.starts for _ in range(width)],
            "cell": list(self.cells) * len(self),
            **{name: self.numbers[:, index].ravel().tolist() for index, name in enumerate(NUMBERS)},
        }

    def described(self, show: Callable[[int], str], hashes: Mapping[int, bytes]) -> list[dict[str, Any]]:
        """Each tick as readers of a service get it; `hashes` are those of the release chain."""
        return [
            {
                "tick": tick,
                "start": None if start is None else show(start),
                **dict(zip(("values", "std", "low", "high"), numbers.tolist(), strict=True)),
                "hash": hashes.get(tick, b"").hex(),
            }
            for tick, start, numbers in self.each_tick()
        ]

    def each_tick(self) -> Iterator[tuple[int, int | None, FloatArray]]:
        """(tick, start, numbers of shape (4, cells)) of each tick."""
        return zip(self.ticks, self.starts, self.numbers, strict=True)
