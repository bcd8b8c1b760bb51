"""largest: the maximum of a function of ticks that has few hills, from few values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evercount._arrays import FloatArray, IntArray

_GOLDEN = (3 - 5**0.5) / 2


def largest(
    values: Callable[[IntArray], FloatArray], places: IntArray, known: FloatArray | None = None
) -> tuple[int, float]:
    """(first place, value) of the maximum: the best of the rising `places`, then golden sections around it.

    Between two neighbours of the best place the value must have one hill. The search ends when the place is known to
    one in a hundred, measured from zero: the value of a hill that wide is then known to about one in 100,000.
    `known`: the values at `places`, where they have been computed already.
    """
    known_values = dict(zip(places.tolist(), (values(places) if known is None else known).tolist(), strict=True))

    def look(*asked: int) -> list[float]:
        new = [place for place in asked if place not in known_values]
        if new:
            known_values.update(zip(new, values(np.asarray(new)).tolist(), strict=True))
        return [known_values[place] for place in asked]

    at = int(np.argmax(list(known_values.values())))
    low, high = int(places[max(at - 1, 0)]), int(places[min(at + 1, len(places) - 1)])
    while high - low > max(4, high // 100):
        step = round((high - low) * _GOLDEN)
        left, right = look(low + step, high - step)
        low, high = (low, high - step) if left >= right else (low + step, high)
    if high - low <= 4:
        look(*range(low, high + 1))
    most = max(known_values.values())
    return min(place for place, size in known_values.items() if size >= most - 1e-13 * abs(most)), most
