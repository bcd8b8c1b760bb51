"""ReleaseTable: the one shape in which released numbers and views leave the engine, for files, stores and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray

LEVEL = 0.95
"""The level of the intervals that doors publish."""
NUMBERS = ("value", "std", "low", "high")
COLUMNS = ("tick", "start", "cell", *NUMBERS)
"""Of streams with a schedule. Without one there is no start, and views have `first` instead."""
LARGEST_STATED = 1e300
"""Stands for an error that has no bound: JSON has no infinity."""


@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """Released numbers, one row per tick and cell; of a view, one row per span of ticks and cell."""

    ticks: IntArray
    """The tick that released each number: the last one of its span."""
    starts: Sequence[int] | None
    """When what a number counts begins, in microseconds since 1970 (of running totals: when the tick begins)."""
    cells: Sequence[str]
    numbers: FloatArray
    """value, std, low and high, shape (ticks, 4, cells). Finite, no negative zero: files and databases give back the
    same bits. The value is NaN where a discovered key was not public: no row of a file or a database stands for it.
    A quantile has no std: it is NaN."""
    first: IntArray | None = None
    """The first tick that each number of a view counts."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """What a reader must know besides: a column for each."""
    notes: Sequence[str] | None = None
    """What the operator says about the ticks of each row, empty where nothing; None where there is no note at all."""

    @classmethod
    def of(
        cls,
        ticks: IntArray,
        starts: Sequence[int] | None,
        cells: Sequence[str],
        numbers: Sequence[npt.ArrayLike],
        first: IntArray | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> ReleaseTable:
        """The table of value, std, low and high, each (ticks, cells)."""
        stated = np.stack([np.asarray(part, np.float64) for part in numbers], axis=1)
        stated = np.clip(stated, -LARGEST_STATED, LARGEST_STATED) + 0.0  # no infinity, no negative zero
        return cls(ticks, starts, cells, stated, first, marks or {})

    def __len__(self) -> int:
        return len(self.numbers)

    def columns(self, show: Callable[[int], str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """The columns by name, one row per tick and published cell; `show` makes texts of starts."""
        public = ~np.isnan(self.numbers[:, 0])
        row, cell = np.nonzero(public)
        columns: dict[str, npt.NDArray[Any]] = {"tick": self.ticks[row]}
        if self.starts is not None:
            starts = np.asarray(self.starts, np.int64)
            columns["start"] = (starts if show is None else np.asarray(list(map(show, self.starts)), object))[row]
        elif self.first is not None:
            columns["first"] = self.first[row]
        columns["cell"] = np.asarray(self.cells, object)[cell] if len(self.cells) else np.empty(0, object)
        columns |= {name: self.numbers[:, index][public] for index, name in enumerate(NUMBERS)}
        columns |= {name: np.full(len(row), text, object) for name, text in self.marks.items()}
        return columns if self.notes is None else columns | {"note": np.asarray(self.notes, object)[row]}

    def described(self, show: Callable[[int], str], hashes: Mapping[int, bytes] | None = None) -> list[dict[str, Any]]:
        """Each tick as readers of a service get it; `hashes` are those of the release chain.

        With hashes the lists end with the last key that the tick shows; without, null stands for keys that are not
        public.
        """
        said = []
        for place, (tick, numbers) in enumerate(zip(self.ticks.tolist(), self.numbers, strict=True)):
            if hashes is not None:
                numbers = numbers[:, : 1 + np.flatnonzero(~np.isnan(numbers[0])).max(initial=-1)]
            said.append(
                {
                    "tick": tick,
                    **({} if self.first is None else {"first": int(self.first[place])}),
                    "start": None if self.starts is None else show(self.starts[place]),
                    **dict(zip(("values", "std", "low", "high"), map(_plain, numbers), strict=True)),
                    **({} if hashes is None else {"hash": hashes.get(tick, b"").hex()}),
                    **({"note": self.notes[place]} if self.notes is not None and self.notes[place] else {}),
                }
            )
        return said

    def each_tick(self) -> Iterator[tuple[int, IntArray, FloatArray]]:
        """(tick, places of published cells, their numbers of shape (4, cells)) of each tick."""
        for tick, numbers in zip(self.ticks.tolist(), self.numbers, strict=True):
            places = np.flatnonzero(~np.isnan(numbers[0]))
            yield tick, places, numbers[:, places]

    def among(self, cells: Sequence[str]) -> ReleaseTable:
        """The same numbers under these cells, which may be more and in another order."""
        place = {cell: number for number, cell in enumerate(cells)}
        width = self.numbers.shape[2]
        numbers = np.full((len(self), len(NUMBERS), len(cells)), np.nan)
        numbers[:, :, [place[cell] for cell in self.cells[:width]]] = self.numbers
        return replace(self, cells=cells, numbers=numbers)


def _plain(numbers: FloatArray) -> list[float | None]:
    """Numbers as JSON has them, null for NaN."""
    plain: list[float | None] = numbers.tolist()
    return [None if number != number else number for number in plain] if np.isnan(numbers).any() else plain
