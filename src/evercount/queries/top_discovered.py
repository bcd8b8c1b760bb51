"""The largest of the keys that were discovered, with intervals and confidences that hold given discovery."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import check_count, check_probability
from evercount.queries.cell_errors import CellErrors
from evercount.queries.discovered_keys import CLEAR, RESERVED, DiscoveredKeys
from evercount.queries.top_keys import TopKey


def top_discovered(
    found: DiscoveredKeys,
    labels: Sequence[str],
    values: FloatArray,
    evidence: FloatArray,
    errors: CellErrors,
    k: int,
    level: float,
) -> list[TopKey]:
    """The k public keys with the largest noisy counts, largest first; ties go to the key that became public earlier.

    **Guarantee.** Given which keys are public: all intervals hold at once with probability at least `level`, and for
    every c, with probability at least c all keys whose confidence is at least c belong to the k largest of the public
    keys. Keys that are not public are not compared. Proof: `discovered_keys.proof.md`, "The largest keys". Test:
    tests/queries/test_top_discovered.py::test_intervals_and_confidences_hold_given_discovery.
    """
    k, miss = check_count("k", k), 1 - check_probability("level", level)
    first = len(RESERVED)
    noisy, number = values[first:], len(values) - first
    if not number:
        return []
    order = np.argsort(-noisy, kind="stable")
    low, high = found.interval(values[np.newaxis], evidence[np.newaxis], errors, 1 - miss / number)
    best_of_rest = float(noisy[order[k:]].max()) if k < number else None
    return [
        TopKey(
            labels[first + place],
            float(noisy[place]),
            float(low[0, first + place]),
            float(high[0, first + place]),
            _confidence(float(noisy[place]), best_of_rest, float(evidence[first + place]), errors, number),
        )
        for place in order[:k].tolist()
    ]


def _confidence(noisy: float, rest: float | None, evidence: float, errors: CellErrors, number: int) -> float:
    """The largest c for which the lower end of the key and the upper ends of the rest are apart."""
    from scipy.special import ndtr

    if rest is None:
        return 1.0
    spread, slack = float(errors.spread[0, 0]), float(errors.slack_of(1.0, 1.0)[0, 0])
    apart = min((noisy - rest - 2 * slack) / (2 * spread), evidence - CLEAR)
    return max(0.0, 1 - number * float(ndtr(-apart) / ndtr(CLEAR)))
