"""What all plans need: where an error is largest, and how the numbers of one tick differ in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.queries import Query

MOST_NAMED = 6  # kinds of numbers that a sentence names
_GOLDEN = (3 - 5**0.5) / 2


def largest(
    values: Callable[[IntArray], FloatArray], places: IntArray, first: FloatArray
) -> tuple[int, float]:
    """(first place, value) of the maximum: the best of the rising `places`, then golden sections
    around it. Between two neighbours of the best place the value must have one hill. The search
    ends when the place is known to one in a hundred, measured from zero: the value of a hill that
    wide is then known to about one in 100,000. `first`: the values at `places`."""
    computed = dict(zip(places.tolist(), first.tolist(), strict=True))

    def look(*wanted: int) -> list[float]:
        new = [place for place in wanted if place not in computed]
        if new:
            computed.update(zip(new, values(np.asarray(new)).tolist(), strict=True))
        return [computed[place] for place in wanted]

    at = int(np.argmax(list(computed.values())))
    low = int(places[max(at - 1, 0)])
    high = int(places[min(at + 1, len(places) - 1)])
    while high - low > max(4, high // 100):
        step = round((high - low) * _GOLDEN)
        left, right = look(low + step, high - step)
        if left >= right:
            high -= step
        else:
            low += step
    if high - low <= 4:
        look(*range(low, high + 1))
    most = max(computed.values())
    return min(place for place, size in computed.items() if size >= most - 1e-13 * abs(most)), most


def error_shares(query: Query) -> dict[str, float]:
    """The std of some outputs over the largest one: the first output of each size, where they
    differ; else nothing.

    >>> from evercount import Histogram
    >>> error_shares(Histogram(["a", "b", "c"], weights={"b": 4}))
    {'a': 1.0, 'b': 0.25}
    """
    norms = np.atleast_1d(query.publishing.norms())
    if query.discovery is not None or len(norms) < 2:
        return {}
    sizes, first = np.unique(np.round(norms / norms.max(), 6), return_index=True)
    of_size = sorted(zip(first.tolist(), sizes.tolist(), strict=True))
    if len(of_size) > 1:
        return {query.labels[place]: size for place, size in of_size}
    return {}


def shares_sentence(shares: dict[str, float]) -> str:
    """What a plan says of numbers with less error than those in its table; empty where all are
    alike."""
    if not shares:
        return ""
    less = {label: share for label, share in shares.items() if share < 1}
    others = "others have this fraction of it: " + ", ".join(
        f"{label} {share:.3g}" for label, share in less.items()
    )
    if len(less) > MOST_NAMED:
        others = f"others have as little as {min(less.values()):.3g} of it"
    return f"The table is about the number with the largest error; {others}."
