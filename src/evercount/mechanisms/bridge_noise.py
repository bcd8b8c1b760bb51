"""Noise of a bridge in exact integers: discrete Laplace numbers of many rates, rounded to the grid at the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import IntArray
from evercount.factorizations.laplace_bridge import UNITS, Bridge, Memory
from evercount.mechanisms.laplace_rates import check_rate, unit_rate
from evercount.noise import Secret
from evercount.noise.laplace_sampler import LARGEST_RATE, ExactLaplaceRates

_ORDINARY = 46.0
"""A number of rate r is below this over r, unless the first 64 bits of its uniform are all zero."""


class BridgeNoise:
    """Rows of noise of one bridge for many cells: a function of (secret, bridge, ε, Δ₁, grid, tick, cell).

    **Guarantee.** Running sums plus these rows are ε-DP with δ = 0 for changes of l1 norm `l1`, for all ticks together
    and adaptive inputs. No number is ever cut or rounded before the last step: where 64 bits could overflow, Python's
    integers are used. Proof: `factorizations/laplace_bridge.proof.md`. Tests:
    tests/mechanisms/test_bridge_stream.py::test_attack_on_the_joint_release,
    tests/mechanisms/test_bridge_stream.py::test_wide_integers_give_the_same_numbers.
    """

    def __init__(
        self,
        bridge: Bridge,
        epsilon: float,
        l1: float,
        grid: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
    ) -> None:
        self.bridge = bridge
        self.cells = cells
        self.first_cell = first_cell
        self.unit = unit_rate(epsilon, l1, grid, UNITS)
        least = check_rate(self.unit * bridge.least_share, epsilon)
        self._most = int(_ORDINARY / least) + 1
        # Every noise is a mean of two sums of at most sum(k) numbers; while it is computed, at most four times that.
        self.wide = (4 * sum(bridge.branching) * self._most << bridge.bits) >= 2**63
        purpose = [bridge.name, bridge.fingerprint, bridge.horizon, float(epsilon).hex(), self.unit.hex()]
        self._laplace = ExactLaplaceRates(secret.derive("bridge " + json.dumps(purpose)))
        self._memory: Memory | None = None

    def rows(self, first: int, count: int) -> IntArray:
        """Noise of ticks first … first+count−1 in whole grid units, shape (count, cells)."""
        noise, self._memory = self.bridge.noise(first, count, self._draw, self._memory)
        return round_to_grid(noise, self.bridge.bits).astype(np.int64)

    def rates(self, shares: IntArray) -> npt.NDArray[np.float64]:
        """The rates that are drawn for nodes with these shares; the sampler's largest rate is a larger noise."""
        return np.asarray(np.minimum(shares * self.unit, LARGEST_RATE))

    def _draw(self, nodes: IntArray, shares: IntArray) -> npt.NDArray[Any]:
        drawn = self._laplace.draw_at(nodes, self.rates(shares), self.cells, self.first_cell)
        if self.wide or np.abs(drawn).max(initial=0) > self._most:
            return drawn.astype(object)
        return drawn


def round_to_grid(noise: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Numbers in units of 2^−bits rounded to whole numbers, halves to even: −x gives minus the number of x."""
    if bits == 0:
        return noise
    low = noise >> bits
    rest = noise - (low << bits)
    half = 1 << (bits - 1)
    return np.asarray(low + ((rest > half) | ((rest == half) & (low % 2 == 1))))
