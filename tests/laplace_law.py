"""The exact law of the first releases of a pure stream: discrete Laplace numbers through
whole-number rows of L."""

from __future__ import annotations

import math

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.replay import Claim
from evercount.errors import ParameterError

LOST = 1e-14
"""Probability that may lie outside of the lattice box of the law."""
LARGEST_BOX = 4_000_000


def first_law(claim: Claim, ticks: int, grid: float = 1.0) -> tuple[FloatArray, int]:
    """(probabilities, radius): the joint law of the noise of the first `ticks` ticks on [−radius,
    radius]^ticks."""
    rows = claim.left[:ticks]
    if claim.cost is None or not np.array_equal(rows, np.rint(rows)):
        raise ParameterError("the exact law is computed for pure trees whose L holds whole numbers")
    columns = [tuple(int(x) for x in column) for column in rows.T if np.any(column)]
    rate = claim.cost * grid
    farthest = math.ceil(-math.log(LOST) / rate)
    radius = farthest * max(1, max(sum(abs(c[row]) for c in columns) for row in range(ticks)))
    if (2 * radius + 1) ** ticks > LARGEST_BOX:
        raise ParameterError(
            f"the law of {ticks} ticks needs a box of {2 * radius + 1}^{ticks} points: take fewer "
            "ticks"
        )
    law = np.zeros((2 * radius + 1,) * ticks)
    law[(radius,) * ticks] = 1.0
    steps = np.arange(-farthest, farthest + 1)
    weights = np.exp(-rate * np.abs(steps)) * (1 - math.exp(-rate)) / (1 + math.exp(-rate))
    for column in columns:
        convolved = np.zeros_like(law)
        for step, weight in zip(steps.tolist(), weights.tolist(), strict=True):
            convolved += weight * _shift(law, tuple(step * c for c in column))
        law = convolved
    return law, radius


def _shift(law: FloatArray, by: tuple[int, ...]) -> FloatArray:
    """The law moved by whole steps; what leaves the box is lost."""
    shifted = np.zeros_like(law)
    take = tuple(slice(max(0, -b), law.shape[i] - max(0, b)) for i, b in enumerate(by))
    put = tuple(slice(max(0, b), law.shape[i] - max(0, -b)) for i, b in enumerate(by))
    if all(part.start < part.stop for part in take):
        shifted[put] = law[take]
    return shifted


def exact_epsilon(claim: Claim, ticks: int, difference: FloatArray, grid: float = 1.0) -> float:
    """The largest |log-ratio| of the law of the first ticks against itself moved by `difference`
    (one per tick).

    **Guarantee.** Up to rounding it is the ε that these releases alone spend on a pair of
    neighbours whose sums differ by `difference`; outcomes rarer than 1e-12 are left out. Test:
    tests/audit/test_mechanism.py::test_exact_law_of_the_first_ticks.
    """
    law, _ = first_law(claim, ticks, grid)
    moved = _shift(law, tuple(round(d / grid) for d in difference))
    common = (law > 1e-12) & (moved > 1e-12)
    return float(np.abs(np.log(law[common] / moved[common])).max(initial=0.0))
