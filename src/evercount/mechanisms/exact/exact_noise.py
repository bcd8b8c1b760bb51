"""Exact noise: the correlated noise of a stream in fixed-point integers, rounded to whole grid units.

Every number is a function of (secret, factorisation, scale, tick, cell). Time is cut into blocks of 32 ticks that start
at multiples of 32, whatever blocks the caller takes, so any split, any subset of cells, a restored stream and a rebuilt
one give the same bits.
"""

from __future__ import annotations

import hashlib
import math
import operator
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from evercount._arrays import AnyArray, FloatArray, Limbs32, ObjectArray
from evercount.errors import HorizonReached, ParameterError, PrecisionReached, SnapshotError, TooLarge
from evercount.factorizations import BinaryTree, Direct, Factorization, Honaker, Identity, Optimal, SquareRoot
from evercount.factorizations.row_weighted import Weighted
from evercount.mechanisms.blas_threads import one_thread
from evercount.mechanisms.exact.filter_kernel import DRAW_BITS, MOST_TICKS, SIGMAS, SIZE, FilterKernel
from evercount.mechanisms.exact.limbs import BASE, WIDTH, aligned, from_ints, pack, times, to_ints, unpack
from evercount.mechanisms.exact.tree_kernels import (
    DirectKernel,
    HonakerKernel,
    IdentityKernel,
    OptimalKernel,
    TreeKernel,
)
from evercount.mechanisms.noise_stream import NoiseStream, whole_ticks
from evercount.noise import ExactNoise, Normals, Secret

LARGEST_TICKS = MOST_TICKS
"""Ticks that the counters of the generator serve (a tree uses up to two draws a tick)."""
CAP = 2.0**-60
"""The price in δ that `numeric_horizon` allows by default."""
REACH = 2**40
"""The number of ticks for which the precision of a stream without horizon is chosen."""
WIDE = 48
"""From so many cells on, numbers are limbs; below, Python integers (or limbs over many blocks at once)."""
SLICE = 512
"""Cells (or blocks of few cells) that go through the limbs at once: the working set stays in the processor's cache."""
SEVERAL = 12
"""From so many columns (blocks times cells) on, limbs are faster than Python integers for few cells."""
FEWEST_BITS, MOST_BITS = 6 * WIDTH, 10 * WIDTH
_FORMAT = 1
_LARGEST = 2.0**53


class Kernel(Protocol):
    """The arithmetic of one factorisation: `FilterKernel` has the contract."""

    bits: int
    rows: int

    @property
    def limbs(self) -> int:
        """Limbs of Y and of the state."""

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""

    def norm(self, ticks: int) -> float:
        """An upper bound of ‖L_t‖ over the first ticks."""

    def error(self, ticks: int) -> float:
        """An upper bound of |Ỹ_t − (L z)_t·2^bits| over the first ticks."""

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """Y and the state after a block, in Python integers."""

    def wide(self, state: Limbs32, block: int, z: FloatArray) -> tuple[FloatArray, Limbs32]:
        """The same in limbs."""


def make_kernel(factorization: Factorization, bits: int) -> Kernel:
    """The arithmetic of a factorisation with so many fractional bits (ignored where nothing is rounded)."""
    match factorization:
        case Weighted(weights=weights):
            filter_ = weights.filter
            return FilterKernel(filter_.zero_lack, filter_.pole_lack, weights.eta, weights.n, bits)
        case SquareRoot(filter=filter_):
            return FilterKernel(filter_.pole_lack, filter_.zero_lack, None, None, bits)
        case Identity():
            return IdentityKernel()
        case Direct():
            return DirectKernel()
        case BinaryTree(horizon=int(horizon)):
            return TreeKernel(horizon)
        case Honaker(horizon=int(horizon)):
            return HonakerKernel(horizon, bits)
        case Optimal():
            return OptimalKernel(factorization.dense()[0])
    raise ParameterError(f"there is no exact arithmetic for the factorisation {factorization.name!r}")


@lru_cache(maxsize=32)
def kernel(factorization: Factorization) -> Kernel:
    """The arithmetic with the bits that every stream of this factorisation has, whatever its scale and its cells.

    The fewest limbs such that either the rounding inside, summed over all ticks, is below 2^−88, or it is within a
    factor 16 of what the 128 bits of a normal cost anyway. So `numeric_delta` grows with the scale.
    """
    ticks = REACH if factorization.horizon is None else factorization.horizon
    if ticks > LARGEST_TICKS:
        raise ParameterError(f"exact noise serves at most 2^47 ticks, the horizon is {ticks}")
    for bits in range(FEWEST_BITS, MOST_BITS + 1, WIDTH):
        made = make_kernel(factorization, bits)
        inside = made.error(ticks) * 2.0**-made.bits
        if ticks * inside <= 2.0**-88 or inside <= 16 * _cut(made, ticks):
            break
    return made


def _cut(made: Kernel, ticks: int) -> float:
    """What cutting the normals to 128 bits adds to the error: lemma 2 of the proof."""
    return SIGMAS * 2.0**-DRAW_BITS * made.norm(ticks)


def check_scale(scale: Any) -> float:
    """The scale as a float, or a ParameterError."""
    value = float(scale)
    if not (math.isfinite(value) and 2.0**-60 <= value <= 2.0**46):
        raise ParameterError(f"scale (σ over the grid) must lie between 2^-60 and 2^46, got {scale!r}")
    return value


def _positive(name: str, value: Any) -> int:
    number = operator.index(value)
    if number < 1:
        raise ParameterError(f"{name} must be at least 1, got {value!r}")
    return number


def numeric_delta(
    factorization: Factorization, scale: float, cells: int, epsilon: float, ticks: int | None = None
) -> float:
    """The proved price in δ of finite arithmetic for all releases of `ticks` ticks (default: all of them).

    It grows with the scale, the cells, ε and the ticks; so a price for a larger scale covers a smaller one.

    **Guarantee.** If real Gaussian noise of this factorisation and scale, rounded to the grid, is (ε, δ₀)-DP, then a
    release with `ExactStream` is (ε, δ₀ + numeric_delta)-DP against whoever cannot tell AES-256 and BLAKE2b from random
    functions. Proof: `exact_noise.proof.md`, theorem. Assumption: the data are whole numbers of grid units. Tests:
    `tests/mechanisms/test_exact_error.py` (measured error below the bound; a planted loss of bits is caught).
    """
    scale, cells = check_scale(scale), _positive("cells", cells)
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ParameterError(f"epsilon must be a finite number ≥ 0, got {epsilon!r}")
    made = kernel(factorization)
    if ticks is None:
        ticks = factorization.horizon
    if ticks is None:
        ticks = numeric_horizon(factorization, scale, cells, epsilon)
    ticks = _positive("ticks", ticks)
    off = scale * (made.error(ticks) * 2.0**-made.bits + _cut(made, ticks)) * (1 + 1e-6)
    if off > 1e-3 or epsilon > 700:
        return 1.0
    return min(1.0, (1 + math.exp(epsilon)) * ticks * cells * (4 * off + 2.0**-1000) * (1 + 1e-6))


def numeric_horizon(factorization: Factorization, scale: float, cells: int, epsilon: float, cap: float = CAP) -> int:
    """The horizon, or the largest power of two (≤ 2^47) of ticks for which `numeric_delta` is at most `cap`."""
    ticks = LARGEST_TICKS if factorization.horizon is None else factorization.horizon
    while numeric_delta(factorization, scale, cells, epsilon, ticks) > cap:
        if ticks == 1:
            raise ParameterError(
                f"scale {scale} and {cells} cells are too much for 128-bit normals: even one tick costs more than "
                f"{cap:.3g} in δ; use a coarser grid"
            )
        ticks = 1 << (ticks - 1).bit_length() - 1
    return ticks


def fingerprint(factorization: Factorization, scale: float, bits: int) -> str:
    """A digest of all public parameters of the noise: whoever restores must have the same."""
    digest = hashlib.blake2b(digest_size=16, person=b"evercount.params")
    digest.update(f"{factorization.name}|{factorization.horizon}|{scale.hex()}|{bits}|{SIZE}|{WIDTH}".encode())
    for array in factorization.public_parameters():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
    return digest.hexdigest()


class ExactStream(NoiseStream):
    """Noise that is private on a real computer: row t is scale·(L z)_t rounded to the nearest integer, halves upwards.

    `limit` is the last tick that may be taken; by default the horizon or, without one, `numeric_horizon` at ε = 1.

    **Guarantee.** Row t of cell c is a function of (secret, factorisation, scale, t, first_cell + c) alone. With real
    normals z* that the secret's bits stand for, all rows equal the rounding of scale·(L z*) but with probability
    numeric_delta/(1 + e^ε). Proof: `exact_noise.proof.md`. Tests: `tests/mechanisms/test_exact_noise.py` (splits,
    restores, subsets, exact rationals as reference), `tests/mechanisms/test_exact_limbs.py` (both arithmetics, bit for
    bit).
    """

    name = "exact"
    rounded = True
    whole = True

    tick: int = 0

    def __init__(
        self,
        factorization: Factorization,
        scale: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
        numeric_delta: float = 0.0,
        limit: int | None = None,
    ) -> None:
        self.factorization = factorization
        self.scale = check_scale(scale)
        self.cells = _positive("cells", cells)
        self.first_cell = operator.index(first_cell)
        if self.first_cell < 0:
            raise ParameterError(f"first_cell must not be negative, got {first_cell!r}")
        self.numeric_delta = float(numeric_delta)
        self.kernel = kernel(factorization)
        if limit is None:
            limit = factorization.horizon
        if limit is None:
            limit = numeric_horizon(factorization, self.scale, self.first_cell + self.cells, 1.0)
        self.limit = _positive("limit", limit)
        if self.limit > (factorization.horizon or LARGEST_TICKS):
            raise ParameterError(f"limit {limit} is beyond the horizon or 2^47 ticks")
        self.tick = 0
        self._secret = secret
        self._noise = ExactNoise(secret)
        numerator, denominator = self.scale.as_integer_ratio()
        self._numerator, self._point = numerator, self.kernel.bits + denominator.bit_length() - 1
        self._scale_digits, self._drop = aligned(np.asarray([numerator], dtype=object), self._point)
        self._wide = self.cells >= WIDE
        self._state = self._unfrozen(np.zeros((self.kernel.rows, self.cells), dtype=object))
        self._before = self._state  # the state at the start of the block that `tick` lies in
        self._rows: FloatArray = np.empty((0, self.cells))  # of that block, what is not taken yet
        self._kept: tuple[AnyArray, Any] | None = None

    def __repr__(self) -> str:
        return f"ExactStream({self.factorization.name}, tick={self.tick}, cells={self.cells}, secret=…)"

    def take(self, ticks: int) -> FloatArray:
        """See `NoiseStream`."""
        ticks = whole_ticks(ticks)
        if self.tick + ticks > self.limit:
            raise HorizonReached(self.limit) if self.factorization.horizon else PrecisionReached(self.limit)
        if ticks < len(self._rows):
            out, self._rows, self.tick = self._rows[:ticks], self._rows[ticks:], self.tick + ticks
            return out.copy()
        out = np.empty((ticks, self.cells))
        done = min(ticks, len(self._rows))
        out[:done], rows = self._rows[:done], self._rows[done:]
        tick, state, before = self.tick + done, self._state, self._before
        while done < ticks:
            blocks = range(tick // SIZE, -(-(tick + ticks - done) // SIZE))
            with one_thread():
                before, fresh, state = self._blocks(blocks, state)
            count = min(len(fresh), ticks - done)
            out[done : done + count], rows = fresh[:count], fresh[count:]
            done, tick = done + count, tick + count
        self.tick, self._state, self._rows = tick, state, rows
        self._before = before if len(rows) else state
        return out

    def prepare(self) -> None:
        """Make the next block now if none is ready: the same numbers, and the next `take` of a tick is fast."""
        if not len(self._rows) and self.tick < self.limit:
            with one_thread():
                self._before, self._rows, self._state = self._blocks(
                    range(self.tick // SIZE, self.tick // SIZE + 1), self._state
                )

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, blocks: range, state: AnyArray) -> tuple[AnyArray, FloatArray, AnyArray]:
        """Noise of some of the first of these blocks; the states before its last block and after it."""
        if self._wide:
            return state, *self._limbs(blocks[0], state)
        blocks = blocks[: max(1, SLICE // self.cells)]
        if isinstance(self.kernel, FilterKernel) and (len(blocks) - 1) * self.cells >= SEVERAL:
            # the last block is left to the next round: its state before is wanted for a dump
            return state, *self._many(self.kernel, blocks[:-1], state)
        return state, *self._integers(blocks[0], state)

    def _normals(self, start: int, stop: int, cells: int, first: int) -> Normals:
        normals = self._noise.normals(start, stop, cells, self.first_cell + first)
        if normals.integer.max() >= SIGMAS:
            raise AssertionError("a normal is 64 standard deviations out: the chance of that is below e^-2000")
        return normals

    def _integers(self, block: int, state: ObjectArray) -> tuple[FloatArray, ObjectArray]:
        """A block in Python integers."""
        normals = self._normals(*self.kernel.window(block), self.cells, 0)
        y, state = self.kernel.step(state, block, normals.to_ints())
        whole = ((y * (2 * self._numerator)) + (1 << self._point)) >> (self._point + 1)
        return self._checked(whole.astype(np.float64)), state

    def _limbs(self, block: int, state: Limbs32) -> tuple[FloatArray, Limbs32]:
        """A block in limbs, slice by slice of the cells."""
        noise, after = np.empty((SIZE, self.cells)), np.empty_like(state)
        pieces = -(-self.cells // SLICE)
        for number in range(pieces):
            low, high = number * self.cells // pieces, (number + 1) * self.cells // pieces
            normals = self._normals(*self.kernel.window(block), high - low, low)
            y, after[:, :, low:high] = self.kernel.wide(state[:, :, low:high], block, normals.limbs(WIDTH))
            noise[:, low:high] = self._rounded(y)
        return self._checked(noise), after

    def _many(self, made: FilterKernel, blocks: range, state: ObjectArray) -> tuple[FloatArray, ObjectArray]:
        """Several blocks of few cells in limbs."""
        normals = self._normals(blocks[0] * SIZE, (blocks[-1] + 1) * SIZE, self.cells, 0)
        z = normals.limbs(WIDTH).reshape(-1, len(blocks), SIZE, self.cells).transpose(0, 2, 1, 3)
        y, state = made.many(state, blocks, z.reshape(len(z), SIZE, -1))
        noise = self._rounded(y).reshape(SIZE, len(blocks), self.cells).transpose(1, 0, 2)
        return self._checked(noise.reshape(-1, self.cells)), state

    def _rounded(self, y: FloatArray) -> FloatArray:
        """⌊scale·Y + ½⌋ as doubles, exact below 2^53."""
        whole = times(y, self._scale_digits[:, :, np.newaxis], self._drop, 0, half=True)
        total: FloatArray = whole[-1].copy()
        for digit in whole[-2::-1]:
            total *= BASE
            total += digit
        return total

    def _frozen(self, state: AnyArray) -> ObjectArray:
        """The state as Python integers, the same for either arithmetic."""
        return to_ints(state) if self._wide else np.asarray(state, dtype=object)

    def _unfrozen(self, state: ObjectArray) -> AnyArray:
        return from_ints(state, self.kernel.limbs).astype(np.int32) if self._wide else state

    def _checked(self, noise: FloatArray) -> FloatArray:
        if noise.size and float(np.abs(noise).max()) >= _LARGEST:
            raise TooLarge(f"noise of scale {self.scale} has passed 2^53 grid units; use a coarser grid")
        return noise

    @classmethod
    def rebuild(
        cls, factorization: Factorization, scale: float, cells: int, secret: Secret, tick: int, **rest: Any
    ) -> ExactStream:
        """The stream as it stands after `tick` ticks, from the secret alone, in time proportional to `tick`."""
        made = cls(factorization, scale, cells, secret, **rest)
        chunk = max(SIZE, 2**20 // made.cells // SIZE * SIZE)
        while made.tick < tick:
            made.take(min(chunk, tick - made.tick))
        return made

    def dump(self) -> dict[str, Any]:
        """See `NoiseStream`: with the secret, and with the state at the start of the block that is under way."""
        return {
            "format": _FORMAT,
            "noise": self.name,
            "tick": self.tick,
            "cells": self.cells,
            "first_cell": self.first_cell,
            "limit": self.limit,
            "numeric_delta": self.numeric_delta,
            "bits": self.kernel.bits,
            "fingerprint": fingerprint(self.factorization, self.scale, self.kernel.bits),
            "secret": self._secret.hex(),
            "state": self._packed(),
        }

    def _packed(self) -> Any:
        """`_before` for a dump; it changes once in a block, so what was packed last is kept."""
        if self._kept is None or self._kept[0] is not self._before:
            self._kept = (self._before, pack(self._frozen(self._before)))
        return self._kept[1]

    @classmethod
    def load(cls, factorization: Factorization, scale: float, cells: int, dumped: dict[str, Any]) -> ExactStream:
        """The stream that `dump` described, or a SnapshotError where anything public differs."""
        try:
            if dumped["format"] != _FORMAT or dumped["noise"] != cls.name:
                raise SnapshotError(f"noise of format {dumped['format']!r} cannot be read by this program")
            made = cls(
                factorization,
                scale,
                cells,
                Secret.from_hex(dumped["secret"]),
                dumped["first_cell"],
                dumped["numeric_delta"],
                dumped["limit"],
            )
            tick, packed = operator.index(dumped["tick"]), dumped["state"]
            same = (made.cells, made.kernel.bits) == (dumped["cells"], dumped["bits"])
            known = dumped["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not same or known != fingerprint(factorization, made.scale, made.kernel.bits):
            raise SnapshotError(
                "the noise state belongs to other public parameters (factorisation, horizon, scale or cells); "
                "restore it with those it was made with"
            )
        if not 0 <= tick <= made.limit:
            raise SnapshotError(f"the noise state is damaged: tick {tick} of {made.limit}")
        made._state = made._before = made._unfrozen(unpack(packed, (made.kernel.rows, made.cells)))
        made.tick = tick // SIZE * SIZE
        made.take(tick % SIZE)
        return made
