"""Pure ε-differential privacy: noise of trees from exact discrete Laplace numbers, and how much of
it a query needs.

Rates come from ε, an l1 sensitivity and a grid, as doubles that never spend more than ε. A row of
noise is a row of whole coefficients times the numbers of a tree's nodes, rounded to the grid at the
end.
"""

from __future__ import annotations

import json
import math
import operator
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any

import numpy as np

from evercount._validate import AnyArray, FloatArray, IntArray
from evercount.errors import HorizonReached, ParameterError, SnapshotError
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_choice import EndlessBridge, WindowTree
from evercount.factorizations.laplace_trees import (
    LARGEST_TICKS,
    DigitTree,
    EndlessTree,
    HybridTree,
    PureFactorization,
    TreeRows,
)
from evercount.factorizations.terrace import SHARES, Terrace
from evercount.mechanisms.noise_stream import Facts, Noise, NoiseStream, check_room, noise_key
from evercount.mechanisms.terrace_noise import TerraceNoise
from evercount.noise import Secret
from evercount.noise.laplace_sampler import LARGEST_RATE, LEAST_RATE, ExactLaplace, variance
from evercount.noise.prf import Prf, counters
from evercount.privacy.gaussian import round_down


def grid_units(l1: float, grid: float) -> int:
    """l1/grid, a whole number up to the rounding of both: increments are whole numbers of grid
    units."""
    if not (l1 > 0 and math.isfinite(l1)):
        raise ParameterError(f"the l1 sensitivity must be positive and finite, got {l1!r}")
    ratio = Fraction(l1) / Fraction(grid)
    if abs(ratio - round(ratio)) <= ratio / 10**12:
        return round(ratio)
    return math.ceil(ratio)


def node_rate(epsilon: float, l1: float, grid: float, share: int | Fraction) -> float:
    """The largest double r with r·share·units ≤ ε: the rate of a node that has the part 1/share of
    ε.

    **Guarantee.** The inequality holds in exact arithmetic. Test:
    tests/mechanisms/test_laplace_stream.py::test_rates_round_down.
    """
    rate = round_down(Fraction(epsilon) / (grid_units(l1, grid) * share))
    return min(check_rate(rate, epsilon), LARGEST_RATE)


def unit_rate(epsilon: float, l1: float, grid: float, parts: int) -> float:
    """A double r of 27 bits with r·parts·units ≤ ε: a node with the share n/parts of ε has the rate
    n·r, exactly.

    **Guarantee.** The inequality holds in exact arithmetic, and n·r is a double for every whole n ≤
    2^26: so rates of nodes whose n add up to `parts` add up to at most ε/units, without rounding.
    Test:
    tests/mechanisms/test_bridge_stream.py::test_rates_that_are_drawn_add_up_to_at_most_epsilon.
    """
    exact = Fraction(epsilon) / (grid_units(l1, grid) * parts)
    mantissa, exponent = math.frexp(float(exact))
    rate = math.ldexp(math.floor(mantissa * 2**27) - 1, exponent - 27)
    assert Fraction(rate) <= exact
    return rate


def check_rate(rate: float, epsilon: float) -> float:
    if rate < LEAST_RATE:
        raise ParameterError(
            f"epsilon={epsilon:g} needs Laplace noise above 2^36 grid units; use a coarser grid"
        )
    return rate


class TreeNoise:
    """Rows of noise of one tree for many cells: a function of (secret, tree, rate, tick, cell), in
    whole grid units.

    A row is the tree's coefficients times the numbers of its nodes, which are drawn again for every
    few ticks, rounded. Halves are rounded up or down: a fair coin of the cell decides for all its
    ticks.

    **Guarantee.** No number is ever cut or rounded before the last step: where 64 bits may not hold
    all products and sums, Python's integers are used. Rounding commutes with whole numbers
    (`round_to_grid`). Tests:
    tests/mechanisms/test_bridge_stream.py::test_wide_integers_give_the_same_numbers and
    tests/mechanisms/test_released_integers.py::test_the_exact_law_of_each_released_integer.
    """

    def __init__(
        self, tree: DigitTree | Bridge, unit: float, cells: int, secret: Secret, first_cell: int = 0
    ) -> None:
        self.tree = tree
        self.unit = unit
        self.cells = cells
        self.first_cell = first_cell
        self._laplace = ExactLaplace(secret)
        some = range(first_cell, first_cell + cells)
        self._up: AnyArray = fair_bits(secret, some) if tree.bits else np.zeros(cells, np.int8)

    def rates(self, shares: IntArray) -> FloatArray:
        """The rates of nodes with these shares, cut to the largest that the sampler serves: that
        only adds noise."""
        return np.asarray(np.minimum(shares * self.unit, LARGEST_RATE))

    def draw(self, nodes: IntArray, shares: IntArray, cells: slice = slice(None)) -> IntArray:
        """The numbers of nodes, shape (nodes, cells)."""
        some = range(self.first_cell, self.first_cell + self.cells)[cells]
        return self._laplace.draw(nodes, self.rates(shares), len(some), some.start)

    def rows(self, first: int, count: int) -> IntArray:
        """Noise of ticks first … first+count−1 in whole grid units, shape (count, cells)."""
        ticks = np.arange(first, first + count)
        if isinstance(self.tree, Bridge):
            return self._bridged(self.tree, ticks)
        return self.sums(self.tree.rows(ticks))

    def _bridged(self, bridge: Bridge, ticks: IntArray) -> IntArray:
        """`sums` of a bridge from both ends of each block: a few steps for each tick, not one for
        each of its nodes."""
        levels = bridge.levels_of(ticks)
        nodes = np.concatenate([level.nodes.ravel() for level in levels])
        shares = np.concatenate([level.shares.ravel() for level in levels])
        out = np.empty((len(ticks), self.cells), np.int64)
        for start in range(0, self.cells, _CELLS_AT_ONCE):
            cells = slice(start, start + _CELLS_AT_ONCE)
            drawn = self.draw(nodes, shares, cells)
            if not bridge.fits(int(np.abs(drawn).max(initial=0))):
                return self.sums(bridge.rows(ticks))
            out[:, cells] = round_to_grid(bridge.noise(levels, drawn), bridge.bits, self._up[cells])
        return out

    def sums(self, rows: TreeRows) -> IntArray:
        """The noise of these rows, rounded."""
        out = np.empty((len(rows.place), self.cells), np.int64)
        most = int(np.abs(rows.weights).sum(axis=1).max(initial=0))
        for start in range(0, self.cells, _CELLS_AT_ONCE):
            cells = slice(start, start + _CELLS_AT_ONCE)
            drawn = self.draw(rows.nodes, rows.shares, cells)
            fits = most * int(np.abs(drawn).max(initial=0)) < 2**63
            kind = np.int64 if fits else np.object_
            numbers: AnyArray = drawn.astype(kind, copy=False)
            noise: AnyArray = np.zeros((len(out), drawn.shape[1]), kind)
            for weight, place in zip(rows.weights.T, rows.place.T, strict=True):
                noise += weight[:, None] * numbers[place]
            out[:, cells] = round_to_grid(noise, self.tree.bits, self._up[cells])
        return out


def bridge_noise(
    bridge: Bridge,
    epsilon: float,
    l1: float,
    grid: float,
    cells: int,
    secret: Secret,
    first_cell: int = 0,
) -> TreeNoise:
    """The noise of a bridge.

    **Guarantee.** Running sums plus its rows are ε-DP with δ = 0 for changes of l1 norm `l1`, for
    all ticks together and adaptive inputs. Proof: `factorizations/laplace_bridge.proof.md`. Test:
    tests/mechanisms/test_bridge_stream.py::test_attack_on_the_joint_release.
    """
    unit = unit_rate(epsilon, l1, grid, UNITS)
    check_rate(unit * bridge.least_share, epsilon)
    purpose = [bridge.name, bridge.fingerprint, bridge.horizon, float(epsilon).hex(), unit.hex()]
    return TreeNoise(
        bridge, unit, cells, secret.derive("bridge " + json.dumps(purpose)), first_cell
    )


def terrace_noise(
    terrace: Terrace,
    epsilon: float,
    l1: float,
    grid: float,
    cells: int,
    secret: Secret,
    first_cell: int = 0,
) -> TerraceNoise:
    """The noise of a terrace; the guarantee is that of `bridge_noise`.

    Proof: `factorizations/terrace.proof.md`. Test:
    tests/mechanisms/test_terrace_noise.py::test_a_shift_of_the_data_leaves_all_discrepancies.
    """
    unit = unit_rate(epsilon, l1, grid, SHARES)
    check_rate(unit * min(terrace.design.shares), epsilon)
    return TerraceNoise(
        terrace, unit, cells, secret.derive(f"terrace {terrace.horizon}"), first_cell
    )


class WindowNoise(TreeNoise):
    """Rows of a `WindowTree`, whose prefixes have more and more nodes of the highest level: their
    sum is carried."""

    tree: WindowTree

    def __init__(
        self, tree: WindowTree, unit: float, cells: int, secret: Secret, first_cell: int = 0
    ) -> None:
        super().__init__(tree, unit, cells, secret, first_cell)
        # nodes of the highest level so far, and their sum
        self._tops = 0
        self._sum = np.zeros(cells, np.int64)

    def start_at(self, tick: int, noise: IntArray) -> None:
        """Go on after a tick that had this noise."""
        at = np.asarray([tick])
        lower = self.sums(self.tree.below(self.tree.levels - 1, at))[0]
        self._tops, self._sum = int(self.tree.tops(at)[0]), noise - lower

    def rows(self, first: int, count: int) -> IntArray:
        ticks = np.arange(first, first + count)
        tops = self.tree.tops(ticks)
        numbers = np.arange(min(self._tops, int(tops[0])), max(self._tops, int(tops[-1])) + 1)
        drawn = self.draw(numbers * self.tree.size, np.ones_like(numbers))
        drawn[0] = 0
        sums = np.cumsum(drawn, axis=0)
        sums += self._sum - sums[self._tops - numbers[0]]
        check_room(sums)
        self._tops, self._sum = int(numbers[-1]), sums[-1]
        lower = self.sums(self.tree.below(self.tree.levels - 1, ticks))
        return np.asarray(sums[tops - numbers[0]] + lower)


class EpochNoise(ABC):
    """Rows of noise of a stream without a horizon: the totals of earlier epochs, and the tree of
    its own.

    **Guarantee.** Each epoch has a key of its own, and its total is the same number in all later
    epochs, and where it is a node of the epoch's tree, also there. Test:
    tests/mechanisms/test_endless_noise.py::test_rows_are_the_coefficients_times_the_numbers_drawn.
    """

    def __init__(
        self,
        tree: EndlessTree,
        epsilon: float,
        l1: float,
        grid: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
    ) -> None:
        self._calibration = (epsilon, l1, grid)
        self._secret = secret
        self.tree = tree
        self.cells = cells
        self.first_cell = first_cell
        self._epoch, self._inside, self._before = 0, self.inside(0), np.zeros(cells, np.int64)

    @abstractmethod
    def inside(self, epoch: int) -> TreeNoise:
        """The noise of the tree of an epoch."""

    @abstractmethod
    def total(self, epoch: int) -> IntArray:
        """The noise of the total of an epoch."""

    def rows(self, first: int, count: int) -> IntArray:
        parts = []
        while count:
            epoch = int(self.tree.epochs([first])[0])
            if epoch != self._epoch:
                before = sum(map(self.total, range(epoch)), start=np.zeros(self.cells, np.int64))
                self._inside, self._before, self._epoch = self.inside(epoch), before, epoch
            part = min(count, int(self.tree.ends[epoch + 1]) - first + 1)
            parts.append(self._before + self._inside.rows(first - int(self.tree.ends[epoch]), part))
            first += part
            count -= part
        return np.concatenate(parts)


class EndlessBridgeNoise(EpochNoise):
    """As `bridge_noise`. Proof: `factorizations/laplace_bridge.proof.md`, "Without a horizon".

    Test: tests/mechanisms/test_endless_noise.py::test_attack_on_the_joint_release.
    """

    tree: EndlessBridge

    def inside(self, epoch: int) -> TreeNoise:
        # a rate below the sampler's least is refused here, and never in the middle of a stream
        if epoch == 0:
            least = min(
                self.tree.tree(epoch).least_share for epoch in range(len(self.tree.ends) - 1)
            )
            check_rate(unit_rate(*self._calibration, UNITS) * least, self._calibration[0])
        return bridge_noise(
            self.tree.tree(epoch), *self._calibration, self.cells, self._secret, self.first_cell
        )

    def total(self, epoch: int) -> IntArray:
        return np.asarray(
            self.inside(epoch).draw(np.zeros(1, np.int64), self.tree.tree(epoch).top_shares)[0]
        )


class HybridNoise(EpochNoise):
    """Proof: `laplace_noise.proof.md`, lemma 2."""

    tree: HybridTree

    def inside(self, epoch: int) -> TreeNoise:
        rate = node_rate(*self._calibration, self.tree.node_share(epoch))
        key = self._secret.derive(f"pure epoch {epoch}")
        return TreeNoise(self.tree.tree(epoch), rate, self.cells, key, self.first_cell)

    def total(self, epoch: int) -> IntArray:
        rate = node_rate(*self._calibration, self.tree.total_share)
        source = ExactLaplace(self._secret.derive("pure epochs"))
        return np.asarray(source.draw([epoch], rate, self.cells, self.first_cell)[0])


def round_to_grid(noise: AnyArray, bits: int, up: AnyArray) -> AnyArray:
    """Round numbers in units of 2^−bits to whole numbers, halves upwards where `up` is 1 and
    downwards where it is 0.

    **Guarantee.** For whole X, round(X + N) = X + round(N): only the part of N behind the point
    decides. Halves to even would not do: they look at whether N is odd, which with an odd X says
    something about X. Nothing overflows. Test:
    tests/mechanisms/test_bridge_stream.py::test_rounding_commutes_with_whole_numbers.
    """
    if bits == 0:
        return noise
    low = noise >> bits
    rest = noise - (low << bits)
    return np.asarray(low + (rest + up > 1 << (bits - 1)))


def fair_bits(secret: Secret, cells: range) -> AnyArray:
    """A fair bit for each cell, independent of all numbers that `ExactLaplace` draws from the same
    secret."""
    prf = Prf(secret, TIES)
    bits = np.empty(len(cells), np.int8)
    for start in range(0, len(cells), _BITS_AT_ONCE):
        some = cells[start : start + _BITS_AT_ONCE]
        bits[start : start + len(some)] = prf.words(counters(range(1), some))[:, 0] & np.uint64(1)
    return bits


AHEAD = 64
"""Ticks of noise that are made at a time for lone ticks."""
LEAST_AHEAD = 8
"""The fewest ticks of noise that are made at a time."""
MOST_AHEAD = 1 << 12
"""The most of them."""
NUMBERS_AHEAD = 1 << 18  # numbers that are made at a time, unless LEAST_AHEAD ticks have more
TIES = "evercount/noise/ties/1"
"""The label under which the key of the coins is derived that decide halves."""
_BITS_AT_ONCE = 1 << 16
# the numbers of some hundred nodes for so many cells stay in the processor's cache
_CELLS_AT_ONCE = 1 << 10
_FORMAT = 1


class PureStream(NoiseStream):
    """Noise of a pure tree in whole grid units: row t is a sum of the nodes of tick t with the
    tree's coefficients.

    **Guarantee.** Running sums plus this noise are ε-DP with δ = 0 for changes of l1 norm `l1`
    (real units), for all ticks together, against anyone who cannot tell AES-256 and BLAKE2b from
    random functions. Row t of cell c is a function of (secret, tree, rate, t, c). Proof:
    `laplace_noise.proof.md`, theorem; for a bridge, `factorizations/laplace_bridge.proof.md`. Test:
    tests/mechanisms/test_laplace_stream.py::test_exact_ratio_of_the_joint_release.
    """

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
        # others are discrete from the start: no rounding error adds to the stated std
        self.rounded = tree.bits > 0
        self.rate = node_rate(epsilon, l1, grid, tree.levels if isinstance(tree, DigitTree) else 1)
        self.limit = LARGEST_TICKS if tree.horizon is None else tree.horizon
        self._parameters: list[Any] = [
            tree.name,
            tree.horizon,
            float(epsilon),
            float(l1),
            float(grid),
            self.cells,
        ]
        self._calibration = (epsilon, l1, grid)
        self._secret = secret
        self._rows: IntArray = np.empty((0, self.cells), np.int64)
        self._last = np.zeros(self.cells, np.int64)
        self._source: TreeNoise | EpochNoise | TerraceNoise
        match tree:
            case Bridge():
                self._source = bridge_noise(
                    tree, epsilon, l1, grid, self.cells, secret, self.first_cell
                )
            case EndlessBridge():
                self._source = EndlessBridgeNoise(
                    tree, epsilon, l1, grid, self.cells, secret, self.first_cell
                )
            case Terrace():
                self._source = terrace_noise(
                    tree, epsilon, l1, grid, self.cells, secret, self.first_cell
                )
            case HybridTree():
                self._source = HybridNoise(
                    tree, epsilon, l1, grid, self.cells, secret, self.first_cell
                )
            case WindowTree():
                self._source = WindowNoise(
                    tree, self.rate, self.cells, secret.derive("pure tree"), self.first_cell
                )
            case DigitTree():
                self._source = TreeNoise(
                    tree, self.rate, self.cells, secret.derive("pure tree"), self.first_cell
                )
        if isinstance(tree, Bridge | EndlessBridge):
            self._parameters.append(tree.fingerprint)
        if isinstance(tree, Terrace):
            self._parameters.append(tree.design.as_dict())
        if self.first_cell:
            self._parameters.append(self.first_cell)

    def take(self, ticks: int) -> IntArray:
        if self.tick + ticks > self.limit:
            raise HorizonReached(self.limit)
        parts = [self._rows]
        ready = self.tick + len(self._rows)
        while ready < self.tick + ticks:
            wanted = min(max(AHEAD, self.tick + ticks - ready), MOST_AHEAD)
            ahead = max(LEAST_AHEAD, min(wanted, NUMBERS_AHEAD // self.cells))
            stop = min(self.limit, ready - ready % ahead + ahead)
            if isinstance(self._source, TerraceNoise):  # its state is that of one block
                stop = min(stop, self._source.last_of_block(self.tick + ticks))
            parts.append(self._source.rows(ready + 1, stop - ready))
            ready = stop
        rows = np.concatenate(parts)
        last = rows[ticks - 1].copy() if ticks else self._last
        self._rows, self._last, self.tick = rows[ticks:].copy(), last, self.tick + ticks
        return rows[:ticks]

    def dump(self) -> dict[str, Any]:
        """The secret and the tick are all there is; also what is long to add up: the last row of a
        `WindowTree`, and the open blocks of a terrace."""
        dumped = {
            "format": _FORMAT,
            "pure": self._parameters,
            "tick": self.tick,
            "secret": self._secret.hex(),
        }
        if isinstance(self._source, TerraceNoise):
            return {**dumped, **self._source.state(self.tick, self._last)}
        if isinstance(self.tree, WindowTree):
            return {**dumped, "sum": self._last}
        return dumped

    def prepare(self) -> None:
        """Draw the numbers of a terrace's next blocks ahead of their first tick."""
        if isinstance(self._source, TerraceNoise) and not len(self._rows):
            self._source.prepare()

    def further_cells(self, first_cell: int, cells: int) -> PureStream:
        epsilon, l1, grid = self._calibration
        return PureStream(self.tree, epsilon, l1, grid, cells, self._secret, first_cell)

    def resume(self, dumped: dict[str, Any]) -> PureStream:
        """Continue where `dump` stood; SnapshotError where anything public differs."""
        if dumped.get("format") != _FORMAT or list(dumped.get("pure", ())) != self._parameters:
            raise SnapshotError(
                "the noise state belongs to other public parameters (tree, epsilon, query or grid)"
            )
        tick = dumped.get("tick")
        if not isinstance(tick, int) or not 0 <= tick <= self.limit:
            raise SnapshotError(f"the noise state is damaged: tick {tick!r}")
        if isinstance(self._source, WindowNoise):
            last = np.asarray(dumped["sum"])
            if last.shape != (self.cells,) or last.dtype != np.int64:
                raise SnapshotError("the noise state belongs to other cells")
            self._last = last
            self._source.start_at(tick, last)
        if isinstance(self._source, TerraceNoise):
            self._last = self._source.start_at(tick, dumped)
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
    declaration: Facts | None = None,
    part: range | None = None,
) -> Noise:
    """Noise that makes the whole stream ε-DP with δ = 0; what `build_noise` returns for a pure
    budget.

    `declaration`, `dumped` and `part` are as there. Its σ is the std of a node in a digit tree, and
    else that of continuous noise with all of ε, √2·l1/ε.
    """
    if not isinstance(tree, PureFactorization):
        raise ParameterError(
            f"factorization {tree!r} is for Gaussian noise; with delta=0 use 'bridge'"
        )
    state = None if dumped is None else dumped["state"]
    key, fingerprint = noise_key(secret, dumped, declaration, tree, l1 / epsilon)
    first, number = (0, cells) if part is None else (part.start, len(part))
    stream = PureStream(tree, epsilon, l1, grid, number, key, first)
    if state is not None:
        stream.resume(state)
    one_node = isinstance(tree, DigitTree)
    if one_node:
        sigma = math.sqrt(variance(stream.rate)) * grid
    else:
        sigma = math.sqrt(2.0) * l1 / epsilon
    return Noise(stream, sigma, 0.0, stream.limit, key, fingerprint)
