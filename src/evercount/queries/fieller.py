"""Fieller's interval: a confidence set for a ratio of two noisy numbers that holds for small denominators, too."""

from __future__ import annotations

import numpy as np

from evercount._arrays import FloatArray

BISECTIONS = 60


def fieller_interval(
    above: FloatArray, below: FloatArray, normal: FloatArray, linear: FloatArray, low: float, high: float
) -> tuple[FloatArray, FloatArray]:
    """The hull of all ratios r in [low, high] with |above − r·below| ≤ normal·√(1 + r²) + linear·(1 + |r|).

    **Guarantee.** If the noise of `above` and `below` is Z₀ and Z₁, and for the true ratio r the bound
    |Z₀ − r·Z₁| ≤ normal·√(1+r²) + linear·(1+|r|) holds with some probability, then r lies in the hull with at least
    that probability: above − r·below = Z₀ − r·Z₁. Nothing is approximated. Proof: `averages.proof.md`. Test:
    tests/queries/test_queries_averages.py::test_intervals_of_averages_per_event_hold.

    Args:
        above: Noisy numerators.
        below: Noisy denominators, of any sign.
        normal: Bound of independent normal noise: quantile × std.
        linear: Bound of each noise by itself (rounding, or Laplace noise).
        low: The least that the ratio can be.
        high: The largest that the ratio can be.

    Returns:
        Lower and upper ends; where no ratio fits, the end of [low, high] that is nearest to one that does, twice.
    """

    def fits(ratio: FloatArray) -> FloatArray:
        return np.asarray(normal * np.sqrt(1 + ratio**2) + linear * (1 + np.abs(ratio)) - np.abs(above - ratio * below))

    with np.errstate(divide="ignore", invalid="ignore"):
        centre = np.clip(np.where(below == 0, low, above / below), low, high)
    bottom, top = np.full_like(centre, low), np.full_like(centre, high)
    inside_bottom, inside_top = fits(bottom) >= 0, fits(top) >= 0
    # on either side of the noisy ratio `fits` is convex and starts above 0: one change of sign at most
    start = np.where(fits(centre) >= 0, centre, np.where(inside_bottom, bottom, np.where(inside_top, top, centre)))
    ends = []
    for limit, limit_fits in ((bottom, inside_bottom), (top, inside_top)):
        good, bad = start, limit
        for _ in range(BISECTIONS):
            middle = (good + bad) / 2
            fit = fits(middle) >= 0
            good, bad = np.where(fit, middle, good), np.where(fit, bad, middle)
        ends.append(np.where(limit_fits, limit, bad))
    return ends[0], ends[1]
