"""The ticks of a ReleaseTable one by one: what stores keep of each, and what a service tells of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.release_table import NUMBERS, ReleaseTable


def each_tick(table: ReleaseTable) -> Iterator[tuple[int, IntArray, FloatArray]]:
    """(tick, places of published cells, their numbers of shape (4, cells)) of each tick."""
    for tick, numbers in zip(table.ticks.tolist(), table.numbers, strict=True):
        places = np.flatnonzero(~np.isnan(numbers[0]))
        yield tick, places, numbers[:, places]


def among(table: ReleaseTable, cells: Sequence[str]) -> ReleaseTable:
    """The same numbers under these cells, which may be more and in another order."""
    place = {cell: number for number, cell in enumerate(cells)}
    width = table.numbers.shape[2]
    numbers = np.full((len(table.ticks), len(NUMBERS), len(cells)), np.nan)
    numbers[:, :, [place[cell] for cell in table.cells[:width]]] = table.numbers
    return replace(table, cells=cells, numbers=numbers)


def described(
    table: ReleaseTable, show: Callable[[int], str], hashes: Mapping[int, bytes] | None = None
) -> list[dict[str, Any]]:
    """Each tick as readers of a service get it. With the hashes of the release chain the lists end with the last key
    that the tick shows; without, null stands for keys that are not public."""
    said = []
    for place, (tick, numbers) in enumerate(zip(table.ticks.tolist(), table.numbers, strict=True)):
        one: dict[str, Any] = {"tick": tick}
        released = tick
        if table.as_of is not None and table.left is not None:
            released = int(table.as_of[place])
            one |= {"as_of": released, "revisions_left": int(table.left[place])}
        if table.first is not None:
            one["first"] = int(table.first[place])
        one["start"] = None if table.starts is None else show(table.starts[place])
        if hashes is not None:
            numbers = numbers[:, : 1 + np.flatnonzero(~np.isnan(numbers[0])).max(initial=-1)]
        one |= zip(("values", *NUMBERS[1:]), map(_plain, numbers), strict=True)
        if hashes is not None:
            one["hash"] = hashes.get(released, b"").hex()
        if table.notes is not None and table.notes[place]:
            one["note"] = table.notes[place]
        said.append(one)
    return said


def _plain(numbers: FloatArray) -> list[float | None]:
    """Numbers as JSON has them, null for NaN."""
    plain: list[float | None] = numbers.tolist()
    return [None if number != number else number for number in plain] if np.isnan(numbers).any() else plain
