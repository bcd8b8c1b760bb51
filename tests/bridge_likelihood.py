"""The exact likelihood of a whole release of a bridge, for attacks on joint releases."""

from __future__ import annotations

import math

import numpy as np

from evercount.factorizations.laplace_bridge import Bridge
from evercount.mechanisms.laplace_noise import TreeNoise
from product_internals import splits

REACH = 3000
"""Sums of the children of a block that are looked at; their probability falls like e^(−0.1·sum)."""


def log_likelihood(
    bridge: Bridge, rates: list[np.ndarray], released: np.ndarray, truth: np.ndarray
) -> float:
    """ln P(release | truth), exactly up to a constant: `released` in units of 2^−bits, before
    rounding.

    All boundaries are ticks, so the noise at both ends of every block is known, and one whole
    number per block is not: the miss D at its end. Given D all children are known, if they are
    whole numbers.
    """
    one = bridge._one
    ends = [0, *(released - (truth << bridge.bits)).tolist()]
    total = 0.0
    for level, k in enumerate(bridge.branching):
        size = math.prod(bridge.branching[level + 1 :])
        unit = 1 << bridge.bits  # units of the last level in one grid unit
        ticks = np.arange(1, math.prod(bridge.branching) + 1, size * k)
        split = next(found[2] for found in splits(bridge, ticks) if found[0] == level)
        for block, start in enumerate((ticks - 1).tolist()):
            at = [ends[start + i * size] for i in range(k + 1)]
            rate = rates[level][block * k : block * k + k]
            if level == 0:
                total -= float(rate @ np.abs(np.diff(at) // unit))
                continue
            alpha = split.alpha[block].tolist()
            # boundary i: one·at_i = one·(at_0 + P_i) − (one − a_i)·D, in units of the last level;
            # D = at_0 + P_k − at_k
            misses = at[0] - at[-1] + unit * np.arange(-REACH, REACH + 1)
            sums = [(one * (at[i] - at[0]) + (one - alpha[i]) * misses) for i in range(k + 1)]
            sums[0] = 0 * misses
            whole = np.logical_and.reduce([s % (one * unit) == 0 for s in sums])
            children = np.diff(np.stack([s[whole] // (one * unit) for s in sums]), axis=0)
            total += float(np.logaddexp.reduce(-(rate[:, None] * np.abs(children)).sum(axis=0)))
    return total


def rates_of(bridge: Bridge, noise: TreeNoise) -> list[np.ndarray]:
    """The rates that are drawn, by level and node."""
    ticks = np.arange(1, math.prod(bridge.branching) + 1)
    return [noise.rates(split.shares.ravel()) for _, _, split, _, _ in splits(bridge, ticks)]


def noise_of(bridge: Bridge, numbers: np.ndarray) -> np.ndarray:
    """The noise at all boundaries that these numbers of its nodes make, in units of 2^−bits."""
    nodes, weights, _ = bridge.matrix(np.arange(1, math.prod(bridge.branching) + 1))
    return np.asarray(weights @ numbers[nodes])
