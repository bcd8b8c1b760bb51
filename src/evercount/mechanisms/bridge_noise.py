"""Noise of a bridge in exact integers: discrete Laplace numbers of many rates, rounded to the grid at the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import IntArray
from evercount.factorizations.bridge_blocks import Memory
from evercount.factorizations.endless_bridge import ENDS, EndlessBridge
from evercount.factorizations.laplace_bridge import UNITS, Bridge
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
        self, bridge: Bridge, epsilon: float, l1: float, grid: float, cells: int, secret: Secret, first_cell: int = 0
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

    def totals(self) -> IntArray:
        """Noise of the nodes of the highest level, in whole grid units, shape (nodes, cells)."""
        shares = self.bridge.top_shares
        return np.asarray(self._draw(np.arange(len(shares)), shares).astype(np.int64))

    def rates(self, shares: IntArray) -> npt.NDArray[np.float64]:
        """The rates of nodes with these shares, cut to the largest that the sampler serves: that only adds noise."""
        return np.asarray(np.minimum(shares * self.unit, LARGEST_RATE))

    def _draw(self, nodes: IntArray, shares: IntArray) -> npt.NDArray[Any]:
        drawn = self._laplace.draw_at(nodes, self.rates(shares), self.cells, self.first_cell)
        if self.wide or np.abs(drawn).max(initial=0) > self._most:
            return drawn.astype(object)
        return drawn


class EndlessBridgeNoise:
    """Rows of noise of an endless bridge: a function of (secret, bridge, ε, Δ₁, grid, tick, cell).

    **Guarantee.** As `BridgeNoise`. Each epoch has a key of its own, and the total of an epoch is the same number in
    its bridge and in all later epochs. Proof: `factorizations/laplace_bridge.proof.md`, "Without a horizon". Tests:
    tests/mechanisms/test_endless_noise.py::test_attack_on_the_joint_release,
    tests/mechanisms/test_endless_noise.py::test_rows_are_the_coefficients_times_the_numbers_drawn.
    """

    def __init__(
        self,
        tree: EndlessBridge,
        epsilon: float,
        l1: float,
        grid: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
    ) -> None:
        self._tree = tree
        self._arguments = (epsilon, l1, grid, cells, secret, first_cell)
        self._epoch = 0
        self._inside = BridgeNoise(tree.bridge(0), *self._arguments)
        self._before: IntArray = np.zeros(cells, np.int64)
        # A rate below the sampler's least is refused here, and never in the middle of a stream.
        least = min(tree.bridge(epoch).least_share for epoch in range(len(ENDS) - 1))
        check_rate(self._inside.unit * least, epsilon)

    def rows(self, first: int, count: int) -> IntArray:
        parts = []
        while count:
            epoch = int(self._tree.epochs([first])[0])
            self._enter(epoch)
            part = min(count, int(ENDS[epoch + 1]) - first + 1)
            parts.append(self._before + self._inside.rows(first - int(ENDS[epoch]), part))
            first, count = first + part, count - part
        return np.concatenate(parts)

    def _enter(self, epoch: int) -> None:
        """Go to an epoch: add up the totals of those before it."""
        if epoch == self._epoch:
            return
        earlier = [BridgeNoise(self._tree.bridge(e), *self._arguments).totals()[0] for e in range(epoch)]
        self._inside = BridgeNoise(self._tree.bridge(epoch), *self._arguments)
        self._before = np.sum(earlier, axis=0, dtype=np.int64) if earlier else np.zeros_like(self._before)
        self._epoch = epoch


def round_to_grid(noise: npt.NDArray[Any], bits: int) -> npt.NDArray[Any]:
    """Round numbers in units of 2^−bits to whole numbers, halves to even: −x becomes minus what x becomes."""
    if bits == 0:
        return noise
    low = noise >> bits
    rest = noise - (low << bits)
    half = 1 << (bits - 1)
    return np.asarray(low + ((rest > half) | ((rest == half) & (low % 2 == 1))))
