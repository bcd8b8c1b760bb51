"""The largest of many published numbers, with intervals and confidences that hold although they were selected.

Selection prefers numbers whose noise is large, so the interval of one number by itself fails for selected ones. Here
all intervals hold at once, and the confidence of a key compares it with every key that was not selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.queries.publishing import CellErrors


class TopKey(NamedTuple):
    """A selected key.

    With probability ≥ level all published intervals of a release hold at once, whatever was selected. For every c, with
    probability ≥ c all keys of a release whose confidence is at least c belong to the true k largest (ties included).

    Attributes:
        key: The label.
        value: The published number.
        low: The lower end of its interval.
        high: The upper end of its interval.
        confidence: That the key belongs to the true k largest.
    """

    key: str
    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, eq=False)
class RankErrors:
    """Errors of the numbers to select from."""

    cells: CellErrors  # spread and slack of each number, shape (1, numbers)
    # over how many numbers intervals must hold at once: these, or those of all ticks where a published number is the
    # largest so far
    count: int
    independent: bool  # whether the noise of the numbers is independent, of the same law, and normal


def top_keys(labels: list[str], values: FloatArray, errors: RankErrors, k: int, level: float) -> list[TopKey]:
    """The k largest values, largest first; ties go to the earlier label.

    **Guarantee.** See `TopKey`. Proof: `histogram.proof.md`, "Selected keys". Tests:
    tests/queries/test_queries_top.py::test_selected_intervals_hold_at_once and
    tests/queries/test_queries_top.py::test_confident_keys_belong_to_the_top.
    """
    order = np.argsort(-values, kind="stable")
    return _describe(labels, values, errors, order[:k], order[k:], level)


def _describe(
    labels: list[str], values: FloatArray, errors: RankErrors, chosen: IntArray, rest: IntArray, level: float
) -> list[TopKey]:
    """The chosen cells with their intervals, and the confidence that each is larger than the rest."""
    half = errors.cells.half(level, errors.count)[0]
    spread, slack = errors.cells.spread[0], errors.cells.slack[0]
    keys = []
    for cell in chosen.tolist():
        confidence = 1.0
        if len(rest):
            if errors.independent:
                apart = float(values[cell] - values[rest].max()) - 2 * float(slack[cell])
                confidence = 1 - range_tail(len(values), apart / float(spread[cell]))
            else:
                gaps = (values[cell] - values[rest] - slack[cell] - slack[rest]) / (spread[cell] + spread[rest])
                confidence = 1 - min(1.0, errors.count * _one_tail(float(gaps.min()), errors.cells.pure))
        value, reach = float(values[cell]), float(half[cell])
        keys.append(TopKey(labels[cell], value, value - reach, value + reach, confidence))
    return keys


def supported_keys(
    labels: list[str], values: FloatArray, errors: RankErrors, threshold: float | None, level: float
) -> list[TopKey]:
    """All keys whose value passes the threshold, largest first; by default half the width of each key's own interval.

    **Guarantee.** With probability ≥ level every listed key has a true number above threshold − half, half being half
    the width of its interval; by default above 0, so it has truly occurred. Keys that are not listed count as 0.
    Proof: `histogram.proof.md`, "Selected keys": the intervals hold at once. Test:
    tests/queries/test_queries_top.py::test_supported_keys_have_occurred.
    """
    least = errors.cells.half(level, errors.count)[0] if threshold is None else threshold
    order = np.argsort(-values, kind="stable")
    passed = (values > least)[order]
    return _describe(labels, values, errors, order[passed], order[~passed], level)


def range_tail(numbers: int, apart: float) -> float:
    """P(largest − smallest > apart) for this number of independent standard normals. The integral n·∫φ(z)·(Φ(z) − Φ(z −
    apart))^(n−1) dz by the trapezoid rule, which is exact to about 1e-13 here; never less than 1e-12, and never more
    than the union bound over all pairs."""
    from scipy.special import ndtr

    if apart <= 0 or numbers < 2:
        return 1.0
    z = np.linspace(-9.0, 9.0 + apart, 4001)
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    inside = float(numbers * np.trapezoid(density * (ndtr(z) - ndtr(z - apart)) ** (numbers - 1), z))
    pairs = numbers * (numbers - 1) * float(ndtr(-apart / math.sqrt(2)))
    return min(max(1 - inside, 1e-12), max(pairs, 1e-12), 1.0)


def _one_tail(spreads: float, pure: bool) -> float:
    """P(|noise| > spreads) for one number, an upper bound for sums of Laplace numbers where it is at most 0.2."""
    from scipy.special import ndtr

    if spreads <= 0:
        return 1.0
    tail = 2 * float(ndtr(-spreads))
    if not pure:
        return tail
    tail = max(tail, math.exp(-math.sqrt(2) * spreads))
    return tail if tail <= 0.2 else 1.0
