"""The exact arithmetic of every factorization: its precision, its proved price in δ, and the
kernels of trees.

`kernel` chooses how many bits all streams of a factorization share, and `numeric_delta` says what
that costs. The recursive factorizations have a `FilterKernel`; those of the binary trees and of
`optimal` are here, in fixed point and in doubles. Of these only `honaker` and `honaker-full` round.
In doubles a number of a tree is two of them: a multiple of 2^−40, of which sums are exact, and a
rest. `exact_noise.proof.md`, lemmas 6, 7 and 12, has the same letters.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from evercount._validate import AnyArray, FloatArray, ObjectArray, check_count
from evercount.errors import ParameterError
from evercount.factorizations import (
    BinaryTree,
    Dense,
    Direct,
    Factorization,
    Honaker,
    HonakerFull,
    Optimal,
    SquareRoot,
)
from evercount.factorizations.row_weighted import Weighted
from evercount.factorizations.trees import (
    known_boundaries,
    node_estimates,
    noise_at_boundaries,
    prefix_sums,
)
from evercount.mechanisms.exact.filter_kernel import FilterKernel
from evercount.mechanisms.exact.filter_numbers import (
    BLOCK_TICKS,
    DRAW_BITS,
    MOST_TICKS,
    ROUNDING,
    SIGMAS,
    cut,
    of_integers,
    product,
    settle,
)
from evercount.noise import Normals

# no number of a tree of 48 levels is further off in pairs of doubles (lemma 12)
DRIFT = 48**2 * 2.0**-76


class TreeKernel:
    """The binary mechanism: sums of the nodes of a prefix. Other trees differ in what a node is.

    **Guarantee.** In doubles that of `FilterKernel`. Proof: `exact_noise.proof.md`, lemma 12.
    Tests: `tests/mechanisms/test_near_noise.py` (measured error below the bound; planted losses of
    bits are caught).
    """

    bits = DRAW_BITS
    narrow = 0
    long_block = BLOCK_TICKS
    weights: tuple[int, ...] = ()  # of a node's own normal, by level

    def __init__(self, horizon: int) -> None:
        # of the tree over whole blocks
        self.levels = (-(-horizon // BLOCK_TICKS) * BLOCK_TICKS).bit_length()
        self.rows = self.levels + 1

    def window(self, start: int, stop: int) -> tuple[int, int]:
        return start, stop

    def norm(self, ticks: int) -> float:
        """At most one node per bit of t."""
        return math.sqrt(ticks.bit_length())

    def error(self, ticks: int) -> float:
        """Sums of integers are exact."""
        return 0.0

    def step(
        self, state: ObjectArray, start: int, z: ObjectArray
    ) -> tuple[ObjectArray, ObjectArray]:
        return self._sums(state, start, start + BLOCK_TICKS, z << self.bits - DRAW_BITS)

    def advance(
        self,
        state: FloatArray,
        start: int,
        size: int,
        blocks: int,
        normals: Normals,
        fine: bool = False,
    ) -> tuple[FloatArray, float, FloatArray]:
        first, second, third = normals.slices()
        z = _pairs(first + second, third)
        noise, after = self._sums(_pairs(*state), start, start + size * blocks, z)
        if fine:
            parts = np.stack([noise.real, noise.imag])
        else:
            parts = (noise.real + noise.imag)[np.newaxis]
        return parts, DRIFT, np.stack([after.real, after.imag])

    def _sums(
        self, state: AnyArray, start: int, stop: int, z: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        """(Y, state after) of ticks start+1 … stop, in integers or in doubles."""
        return prefix_sums(z, state, start)

    @cached_property
    def slices(self) -> FloatArray:
        """The weights, (5, levels)."""
        return of_integers(np.asarray(self.weights, dtype=object), self.bits)

    def _mix(self, level: int, share: float, others: AnyArray, numbers: AnyArray) -> AnyArray:
        """share·others + weight·numbers in pairs of doubles; a share of 1 or ½ is exact."""
        one, two, three = product(
            self.slices[:, level, None, None], cut(numbers.real, numbers.imag, 1.0)
        )
        one += share * others.real
        three += share * others.imag
        first, second, third = settle((one, two, three), 1.0)[:3]
        return _pairs(first + second, third)


class HonakerKernel(TreeKernel):
    """Honaker's variant: estimate of an interval = ⌊v_h·z + (1 − v_h)·(left + right)⌋, v_h =
    2^h/(2^(h+1) − 1).

    The state is the prefixes of the tree, then the newest estimate of every level.
    """

    def __init__(self, horizon: int, bits: int) -> None:
        super().__init__(horizon)
        self.bits = bits
        self.rows += self.levels
        self.weights = tuple((1 << h + bits) // ((2 << h) - 1) for h in range(self.levels))

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """One draw for every node that completes."""
        return 2 * start - start.bit_count(), 2 * stop - stop.bit_count()

    def error(self, ticks: int) -> float:
        """Lemma 7."""
        levels = ticks.bit_length()
        return levels**2 * (1 + 3 * SIGMAS * (levels + 1)) * (1 + 1e-6)

    def combine(self, level: int, own: AnyArray, others: AnyArray) -> AnyArray:
        """A node from its own normal and the sum of its halves, in integers or in doubles."""
        if own.dtype != object:
            return self._mix(level, 1.0, others, own - others)
        v = self.weights[level]
        return np.asarray((v * own + ((1 << self.bits) - v) * others) >> self.bits, dtype=object)

    def _sums(
        self, state: AnyArray, start: int, stop: int, z: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        half = len(state) // 2 + 1
        values, after = node_estimates(z, state[half:], start, stop, self.combine)
        noise, prefixes = prefix_sums(values, state[:half], start)
        return noise, np.concatenate([prefixes, after])


class HonakerFullKernel(TreeKernel):
    """Honaker's full estimator: noise in the middle of a node = ⌊(sum of its ends)/2⌋ +
    ⌊√(v_h/2)·z⌋, v_h as above.

    At the end of the complete tree it is ⌊√v_H·z⌋. The state is the noise at the ends of the nodes
    that hold the tick.
    """

    def __init__(self, horizon: int, bits: int) -> None:
        self.bits = bits
        self.height = (horizon - 1).bit_length()
        self.rows = self.height + 1
        halves = [1] * self.height + [0]  # v_h/2 of the middles, v_H of the end
        self.weights = tuple(
            math.isqrt((1 << 2 * bits + h - half) // ((2 << h) - 1))
            for h, half in enumerate(halves)
        )

    def window(self, start: int, stop: int) -> tuple[int, int]:
        """One draw for every boundary that becomes known."""
        start, stop = (
            known_boundaries(min(tick, 1 << self.height), self.height) for tick in (start, stop)
        )
        return start, stop

    def norm(self, ticks: int) -> float:
        """Lemma 7."""
        return math.sqrt(self.height / 4 + 1.5)

    def error(self, ticks: int) -> float:
        """Lemma 7."""
        return (self.height + 1) * (SIGMAS + 2) * (1 + 1e-6)

    def combine(self, level: int, own: AnyArray, others: AnyArray) -> AnyArray:
        """The noise in the middle of a node from its own normal and the sum of the noise at its
        ends."""
        if own.dtype != object:
            return self._mix(level, 0.5, others, own)
        return np.asarray((others >> 1) + (self.weights[level] * own >> self.bits), dtype=object)

    def _sums(
        self, state: AnyArray, start: int, stop: int, z: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        last = min(stop, 1 << self.height)
        noise, ends = noise_at_boundaries(z, state, start, last, self.combine)
        # a tree shorter than a block has no noise for the block's last ticks, and no stream takes
        # them
        rest = np.zeros((stop - last, *z.shape[1:]), dtype=z.dtype)
        return np.concatenate([noise, rest]), ends


class OptimalKernel(TreeKernel):
    """The dense matrix, its doubles taken exactly. Every block reads all draws from the first on;
    there is no state."""

    rows = 0

    def __init__(self, left: FloatArray) -> None:
        self._norm = float(np.linalg.norm(left, axis=1).max()) * (1 + 1e-6)
        self._sum = float(np.abs(left).sum(axis=1).max()) * 1.001
        # entries are integers / 2^extra
        self._extra = max(0, 53 - int(np.frexp(left[left != 0])[1].min()))
        self.bits = DRAW_BITS + self._extra
        # no stream takes the ticks that are added
        self.left = np.pad(left, (0, -len(left) % BLOCK_TICKS))

    def window(self, start: int, stop: int) -> tuple[int, int]:
        return 0, stop

    def norm(self, ticks: int) -> float:
        return self._norm

    def step(
        self, state: ObjectArray, start: int, z: ObjectArray
    ) -> tuple[ObjectArray, ObjectArray]:
        rows = np.ldexp(self.left[start : start + BLOCK_TICKS, : len(z)], self._extra)
        return np.vectorize(int, otypes=[object])(rows) @ z, state

    def advance(
        self,
        state: FloatArray,
        start: int,
        size: int,
        blocks: int,
        normals: Normals,
        fine: bool = False,
    ) -> tuple[FloatArray, float, FloatArray]:
        z = normals.to_float()
        bound = (len(z) + 8) * ROUNDING * self._sum * float(np.abs(z).max())
        return (self.left[start : start + size * blocks, : len(z)] @ z)[np.newaxis], bound, state


def _pairs(high: FloatArray, low: FloatArray) -> AnyArray:
    """Pairs of doubles as complex numbers: they are added, halved and moved together."""
    pairs = np.empty(high.shape, dtype=np.complex128)
    pairs.real = high
    pairs.imag = low
    return pairs


ALLOWED_PRICE = 2.0**-60  # the price in δ that `numeric_horizon` allows by default
# the number of ticks for which the precision of a stream without horizon is chosen
ENDLESS_TICKS = 2**40
LONG_HORIZON = 2**24  # for longer horizons, dumps keep all bits of the state
BITS_STEP = 22  # fractional bits come in multiples of this
FEWEST_BITS = 6 * BITS_STEP
MOST_BITS = 10 * BITS_STEP

# the arithmetic of one factorization: `FilterKernel` has the contract
Kernel = FilterKernel | TreeKernel

_known: WeakKeyDictionary[Factorization, Kernel] = WeakKeyDictionary()
"""Kernels of the factorizations that are in use. A cache that held a factorization would hold its
tables, which grow to megabytes:
tests/store/test_store_retire.py::test_a_retired_stream_leaves_the_memory."""


_errors: WeakKeyDictionary[Kernel, dict[int, float]] = WeakKeyDictionary()
"""Errors of these kernels, by the number of ticks: powers of two, and horizons."""


def make_kernel(factorization: Factorization, bits: int) -> Kernel:
    """The arithmetic of a factorization with `bits` fractional bits (ignored where nothing is
    rounded)."""
    match factorization:
        case Weighted() | SquareRoot() | Direct():
            return _filter_kernel(factorization, bits)
        case BinaryTree(horizon=int(horizon)):
            return TreeKernel(horizon)
        case Honaker(horizon=int(horizon)):
            return HonakerKernel(horizon, bits)
        case HonakerFull(horizon=int(horizon)):
            return HonakerFullKernel(horizon, bits)
        case Optimal() | Dense():
            return OptimalKernel(factorization.dense()[0])
    raise ParameterError(
        f"there is no exact arithmetic for the factorization {factorization.name!r}"
    )


def _filter_kernel(factorization: Weighted | SquareRoot | Direct, bits: int) -> FilterKernel:
    """Build the arithmetic of filters; `direct` has none."""
    narrow = (factorization.horizon or MOST_TICKS) <= LONG_HORIZON
    match factorization:
        case Weighted(weights=weights):
            filter_ = weights.filter
            return FilterKernel(
                filter_.zero_lack, filter_.pole_lack, weights.eta, weights.n, bits, narrow
            )
        case SquareRoot(filter=filter_):
            return FilterKernel(filter_.pole_lack, filter_.zero_lack, None, None, bits, narrow)
    none = np.empty(0)
    return FilterKernel(none, none, None, None, DRAW_BITS)


def kernel(factorization: Factorization) -> Kernel:
    """The arithmetic of a factorization, with the number of bits that all its streams share.

    It has the fewest bits for which the rounding inside, summed over all ticks, is below 2^−88, or
    is within a factor 16 of what the 128 bits of a normal cost anyway. The scale plays no part, so
    `numeric_delta` grows with it.
    """
    if factorization in _known:
        return _known[factorization]
    if factorization.horizon is None:
        ticks = ENDLESS_TICKS
    else:
        ticks = factorization.horizon
    if ticks > MOST_TICKS:
        raise ParameterError(f"exact noise serves at most 2^47 ticks, the horizon is {ticks}")
    for bits in range(FEWEST_BITS, MOST_BITS + 1, BITS_STEP):
        arithmetic = make_kernel(factorization, bits)
        inside = arithmetic.error(ticks) * 2.0**-arithmetic.bits
        if ticks * inside <= 2.0**-88 or inside <= 16 * _cut(arithmetic, ticks):
            break
    return _known.setdefault(factorization, arithmetic)


def _error(arithmetic: Kernel, ticks: int) -> float:
    """What rounding inside and cutting the normals add, for a scale of 1; stored for all streams of
    one kernel."""
    errors = _errors.setdefault(arithmetic, {})
    if ticks not in errors:
        errors[ticks] = arithmetic.error(ticks) * 2.0**-arithmetic.bits + _cut(arithmetic, ticks)
    return errors[ticks]


def _cut(arithmetic: Kernel, ticks: int) -> float:
    """What cutting the normals to 128 bits adds to the error: lemma 2 of the proof."""
    return SIGMAS * 2.0**-DRAW_BITS * arithmetic.norm(ticks)


def check_scale(scale: Any) -> float:
    value = float(scale)
    if not 2.0**-60 <= value <= 2.0**46:
        raise ParameterError(
            f"scale (σ over the grid) must lie between 2^-60 and 2^46, got {scale!r}"
        )
    return value


def numeric_delta(
    factorization: Factorization, scale: float, cells: int, epsilon: float, ticks: int
) -> float:
    """The proved price in δ of finite arithmetic for all releases of the first `ticks` ticks.

    It grows with the scale, the cells, ε and the ticks; so a price for a larger scale covers a
    smaller one.

    **Guarantee.** If real Gaussian noise of this factorization and scale, rounded to the grid, is
    (ε, δ₀)-DP, then a release with `ExactStream` is (ε, δ₀ + numeric_delta)-DP against anyone who
    cannot tell AES-256 and BLAKE2b from random functions. Proof: `exact_noise.proof.md`, theorem.
    Assumption: the data are whole numbers of grid units. Tests:
    `tests/mechanisms/test_exact_error.py` (measured error below the bound; a planted loss of bits
    is caught).
    """
    scale = check_scale(scale)
    cells = check_count("cells", cells)
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ParameterError(f"epsilon must be a finite number ≥ 0, got {epsilon!r}")
    ticks = check_count("ticks", ticks)
    off = scale * _error(kernel(factorization), ticks) * (1 + 1e-6)
    if off > 1e-3 or epsilon > 700:
        return 1.0
    return min(1.0, (1 + math.exp(epsilon)) * ticks * cells * (4 * off + 2.0**-1000) * (1 + 1e-6))


def numeric_horizon(
    factorization: Factorization,
    scale: float,
    cells: int,
    epsilon: float,
    cap: float = ALLOWED_PRICE,
) -> int:
    """The horizon, or the largest power of two (≤ 2^47) of ticks for which `numeric_delta` is at
    most `cap`."""
    if factorization.horizon is None:
        ticks = MOST_TICKS
    else:
        ticks = factorization.horizon
    while numeric_delta(factorization, scale, cells, epsilon, ticks) > cap:
        if ticks == 1:
            raise ParameterError(
                f"scale {scale:.6g}, epsilon={epsilon:g} and {cells} cells are too much for "
                f"128-bit normals: even one tick costs more than {cap:.3g} in δ; choose a smaller "
                "epsilon or fewer cells, or use a coarser grid where the query has one"
            )
        ticks = 1 << (ticks - 1).bit_length() - 1
    return ticks
