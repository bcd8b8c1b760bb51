"""Pure ε-differential privacy: tree noise of exact discrete Laplace numbers, and how much of it a query needs."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.errors import HorizonReached, ParameterError, SnapshotError
from evercount.factorizations import Factorization
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_base import LARGEST_TICKS, PureFactorization
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, Memory
from evercount.factorizations.laplace_windows import FreshLaplace, WindowTree
from evercount.mechanisms.bridge_noise import BridgeNoise, EndlessBridgeNoise
from evercount.mechanisms.calibrate import Noise
from evercount.mechanisms.declared_key import noise_key
from evercount.mechanisms.laplace_rates import node_rate
from evercount.mechanisms.noise_stream import NoiseStream, whole_ticks
from evercount.noise import Secret
from evercount.noise.laplace_sampler import ExactLaplace, variance

AHEAD = 64  # ticks of noise that are made at a time when a stream is taken tick by tick
MANY = 1024
"""With more cells than this, noise is made tick by tick from what the last tick left: less memory, fewer draws."""
LARGEST_NOISE = 2**52
"""Running sums of a `WindowTree` grow without end; beyond this they would not be exact as doubles."""
_STRIDE = 1 << 16
_FORMAT = 1


class PureStream(NoiseStream):
    """Noise of a pure tree in whole grid units: row t is a sum of the nodes of tick t with the tree's coefficients.

    **Guarantee.** Running sums plus this noise are ε-DP with δ = 0 for changes of l1 norm `l1` (real units), for all
    ticks together, against anyone who cannot tell AES-256 and BLAKE2b from random functions. Row t of cell c is a
    function of (secret, tree, rate, t, c). Proof: `laplace_noise.proof.md`, theorem; for a bridge,
    `factorizations/laplace_bridge.proof.md`. Test:
    tests/mechanisms/test_laplace_stream.py::test_exact_ratio_of_the_joint_release.
    """

    rounded = False  # discrete from the start: no rounding error adds to the stated std
    numeric_delta = 0.0

    tick: int = 0

    def __init__(
        self,
        tree: PureFactorization,
        epsilon: float,
        l1: float,
        grid: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
    ) -> None:
        self.cells = operator.index(cells)
        self.tree = tree
        self.first_cell = operator.index(first_cell)
        self.tick = 0
        self._parameters = [tree.name, tree.horizon, float(epsilon), float(l1), float(grid), self.cells]
        self._secret = secret
        self._rows: FloatArray = np.empty((0, self.cells))
        self.limit = LARGEST_TICKS if tree.horizon is None else tree.horizon
        self._sources: dict[int, ExactLaplace] = {}
        if isinstance(tree, Bridge | EndlessBridge):
            self.rate = node_rate(epsilon, l1, grid, 1)
            self.rounded = tree.bits > 0
            self._bridge: BridgeNoise | EndlessBridgeNoise
            if isinstance(tree, EndlessBridge):
                self._bridge = EndlessBridgeNoise(tree, epsilon, l1, grid, self.cells, secret, self.first_cell)
            else:
                self._bridge = BridgeNoise(tree, epsilon, l1, grid, self.cells, secret, self.first_cell)
            self._parameters.append(tree.fingerprint)
        elif isinstance(tree, DigitTree):
            self.rate = node_rate(epsilon, l1, grid, tree.levels)
            self._laplace = ExactLaplace(secret.derive("pure tree"), self.rate)
        else:
            assert isinstance(tree, HybridTree)
            self.rate = node_rate(epsilon, l1, grid, tree.total_share)
            self._laplace = ExactLaplace(secret.derive("pure epochs"), self.rate)
        if self.first_cell:
            self._parameters.append(self.first_cell)
        self._calibration = (epsilon, l1, grid)
        self._memory: tuple[int, int, Memory] | None = None  # epoch, the tick it stands at, its prefixes
        self._last = np.zeros(self.cells, np.int64)  # for fresh noise: its sum so far
        self._top = 0, np.zeros(self.cells, np.int64)  # for a WindowTree: complete nodes so far, noise of their prefix

    def __repr__(self) -> str:
        return f"PureStream({self.tree.name}, tick={self.tick}, cells={self.cells}, secret=…)"

    def take(self, ticks: int) -> FloatArray:
        ticks = whole_ticks(ticks)
        if self.tick + ticks > self.limit:
            raise HorizonReached(self.limit)
        if ticks > len(self._rows):
            ahead = max(ticks, min(AHEAD if self.cells <= MANY else 1, self.limit - self.tick))
            fresh = self._make(self.tick + len(self._rows) + 1, ahead - len(self._rows))
            self._rows = np.concatenate([self._rows, fresh.astype(np.float64)])
        out, self._rows = self._rows[:ticks].copy(), self._rows[ticks:]
        self.tick += ticks
        if ticks and isinstance(self.tree, FreshLaplace):
            self._last = out[-1].astype(np.int64)
        return out

    def _make(self, first: int, count: int) -> IntArray:
        if isinstance(self.tree, Bridge | EndlessBridge):
            return self._bridge.rows(first, count)
        if isinstance(self.tree, WindowTree):
            top = self._tops(self.tree, first, count)
            return self.tree.noise(first, count, lambda nodes: self._draw(self._laplace, nodes), top)
        if isinstance(self.tree, DigitTree):
            return self._rows_of(self.tree, 0, first, count, self._laplace)
        assert isinstance(self.tree, HybridTree)
        parts = []
        while count:
            epoch = first.bit_length() - 1
            inside = first - (1 << epoch)
            part = min(count, (1 << epoch) - inside)
            noise = self._rows_of(self.tree.tree(epoch), epoch, inside + 1, part, self._source(self.tree, epoch))
            parts.append(noise + self._draw(self._laplace, np.arange(epoch)).sum(axis=0))  # totals of earlier epochs
            first, count = first + part, count - part
        return np.concatenate(parts)

    def _rows_of(self, tree: DigitTree, epoch: int, first: int, count: int, source: ExactLaplace) -> IntArray:
        def draw(nodes: IntArray) -> IntArray:
            return self._draw(source, nodes)

        if self.cells <= MANY:
            return tree.noise(first, count, draw)
        rows = np.empty((count, self.cells), np.int64)
        for number in range(count):
            memory = None
            if self._memory is not None and self._memory[:2] == (epoch, first + number - 1):
                memory = self._memory[2]
            rows[number], memory = tree.step(memory, first + number, draw)
            self._memory = (epoch, first + number, memory)
        return rows

    def _draw(self, source: ExactLaplace, nodes: IntArray) -> IntArray:
        return source.draw(nodes, self.cells, self.first_cell)

    def _tops(self, tree: WindowTree, first: int, count: int) -> tuple[int, IntArray]:
        """Noise of the prefixes of complete nodes that these ticks use; after a restore, added up from the start."""
        low, high = tree.tops([first, first + count - 1]).tolist()
        at, total = self._top
        if at > low:  # an interrupted call went ahead
            at, total = 0, np.zeros(self.cells, np.int64)
        while at < low:
            stop = min(low, at + _STRIDE)
            total = total + self._draw(self._laplace, np.arange(at + 1, stop + 1) * tree.size).sum(axis=0)
            at = stop
        rows = np.cumsum(self._draw(self._laplace, np.arange(at, high + 1) * tree.size), axis=0)
        rows += total - rows[0]  # `total` has the node `at` in it
        if np.abs(rows).max(initial=0) >= LARGEST_NOISE:
            raise ParameterError(
                "the noise of the running sums has passed 2^52: use a larger epsilon or a coarser grid"
            )
        self._top = high, rows[-1]
        return low, rows

    def _source(self, tree: HybridTree, epoch: int) -> ExactLaplace:
        if epoch not in self._sources:
            rate = node_rate(*self._calibration, tree.node_share(epoch))
            self._sources = {epoch: ExactLaplace(self._secret.derive(f"pure epoch {epoch}"), rate)}
        return self._sources[epoch]

    def dump(self) -> dict[str, Any]:
        """The secret and the tick are all there is; of fresh noise, also its sum so far, which is long to add up."""
        dumped = {"format": _FORMAT, "pure": self._parameters, "tick": self.tick, "secret": self._secret.hex()}
        return {**dumped, "sum": self._last} if isinstance(self.tree, FreshLaplace) else dumped

    def beside(self, first_cell: int, cells: int) -> PureStream:
        return PureStream(self.tree, *self._calibration, cells, self._secret, first_cell)

    def resume(self, dumped: dict[str, Any]) -> PureStream:
        """Continue where `dump` stood; SnapshotError where anything public differs."""
        if dumped.get("format") != _FORMAT or list(dumped.get("pure", ())) != self._parameters:
            raise SnapshotError("the noise state belongs to other public parameters (tree, epsilon, query or grid)")
        tick = dumped.get("tick")
        if not isinstance(tick, int) or not 0 <= tick <= self.limit:
            raise SnapshotError(f"the noise state is damaged: tick {tick!r}")
        if isinstance(self.tree, FreshLaplace):
            last = np.asarray(dumped["sum"])
            if last.shape != (self.cells,) or last.dtype != np.int64:
                raise SnapshotError("the noise state belongs to other cells")
            self._last, self._top = last, (tick, last)
        self.tick = tick
        return self


def build_pure(
    tree: Factorization,
    *,
    cells: int,
    grid: float,
    l1: float,
    epsilon: float,
    secret: Secret | None = None,
    dumped: dict[str, Any] | None = None,
    declaration: Mapping[str, Any] | None = None,
    part: range | None = None,
) -> Noise:
    """Noise that makes the whole stream ε-DP with δ = 0; what `build_noise` returns for a pure budget.

    `declaration`, `dumped` and `part` are as there. Its σ is the std of a node in a digit tree, and else that of
    continuous noise with all of ε, √2·l1/ε.
    """
    if not isinstance(tree, PureFactorization):
        raise ParameterError(f"factorization {tree!r} is for Gaussian noise; with delta=0 use 'bridge'")
    state = None if dumped is None else dumped["state"]
    key, fingerprint = noise_key(secret, dumped, declaration, tree, l1 / epsilon)
    first, number = (0, cells) if part is None else (part.start, len(part))
    stream = PureStream(tree, epsilon, l1, grid, number, key, first)
    if state is not None:
        stream.resume(state)
    one_node = isinstance(tree, DigitTree)
    sigma = math.sqrt(variance(stream.rate)) * grid if one_node else math.sqrt(2.0) * l1 / epsilon
    return Noise(stream, sigma, 0.0, stream.limit, key, fingerprint)
