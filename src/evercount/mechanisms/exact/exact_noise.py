"""Exact noise: the correlated noise of a stream in fixed-point integers, rounded to whole grid units.

Every number is a function of (secret, factorisation, scale, tick, cell): a fixed-point number that integer arithmetic
defines, rounded. Doubles with a proved error bound decide which integer that is; where the call is too close, integers
decide. So any split, any subset of cells, a restored stream and another machine give the same numbers.
"""

from __future__ import annotations

import hashlib
import math
import operator
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray, ObjectArray
from evercount.errors import HorizonReached, ParameterError, PrecisionReached, SnapshotError, TooLarge
from evercount.factorizations import BinaryTree, Direct, Factorization, Honaker, Identity, Optimal, SquareRoot
from evercount.factorizations.row_weighted import Weighted
from evercount.mechanisms.blas_threads import one_thread
from evercount.mechanisms.exact.filter_kernel import DRAW_BITS, MOST_TICKS, SIGMAS, SIZE, FilterKernel
from evercount.mechanisms.exact.near_filter import NearFilter
from evercount.mechanisms.exact.near_trees import NearDirect, NearHonaker, NearOptimal, NearTree
from evercount.mechanisms.exact.state_bytes import pack, to_pairs, unpack, unpack_integers
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
SLICE = 1000
"""Cells that are drawn and filtered at once: the working set stays in the processor's cache."""
LONG_HORIZON = 2**24
"""For longer horizons, dumps keep all bits of the state."""
STEP = 22
"""Fractional bits come in multiples of this."""
FEWEST_BITS, MOST_BITS = 6 * STEP, 10 * STEP
_FORMAT, _OLD_FORMAT = 2, 1
_LARGEST = 2.0**53
_SMALL = 2.0**31


class Kernel(Protocol):
    """The arithmetic of one factorisation: `FilterKernel` has the contract."""

    bits: int
    rows: int

    def window(self, block: int) -> tuple[int, int]:
        """The draws that a block reads."""

    def norm(self, ticks: int) -> float:
        """An upper bound of ‖L_t‖ over the first ticks."""

    def error(self, ticks: int) -> float:
        """An upper bound of |Ỹ_t − (L z)_t·2^bits| over the first ticks."""

    def step(self, state: ObjectArray, block: int, z: ObjectArray) -> tuple[ObjectArray, ObjectArray]:
        """Y and the state after a block, in Python integers."""


class Near(Protocol):
    """The same noise in doubles, with a proved error: `NearFilter` has the contract."""

    narrow: int
    """Of so many first rows of the state, dumps keep the low part with 24 bits."""

    def shape(self, cells: int, ticks: int) -> tuple[int, int]:
        """(ticks of a block, blocks) of the next call of `advance`."""

    def advance(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float, FloatArray]:
        """(noise, bound, state after)."""

    def refine(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals
    ) -> tuple[FloatArray, float]:
        """(noise in two doubles, a bound far below the other)."""


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

    The fewest such that either the rounding inside, summed over all ticks, is below 2^−88, or it is within a
    factor 16 of what the 128 bits of a normal cost anyway. So `numeric_delta` grows with the scale.
    """
    ticks = REACH if factorization.horizon is None else factorization.horizon
    if ticks > LARGEST_TICKS:
        raise ParameterError(f"exact noise serves at most 2^47 ticks, the horizon is {ticks}")
    for bits in range(FEWEST_BITS, MOST_BITS + 1, STEP):
        made = make_kernel(factorization, bits)
        inside = made.error(ticks) * 2.0**-made.bits
        if ticks * inside <= 2.0**-88 or inside <= 16 * _cut(made, ticks):
            break
    return made


@lru_cache(maxsize=32)
def near(factorization: Factorization) -> Near:
    """The arithmetic in doubles that stands beside `kernel`."""
    made = kernel(factorization)
    match made:
        case DirectKernel():
            return NearDirect(made)
        case HonakerKernel():
            return NearHonaker(made)
        case TreeKernel():
            return NearTree(made)
        case OptimalKernel():
            return NearOptimal(made)
    assert isinstance(made, FilterKernel | IdentityKernel)
    return NearFilter(made, narrow=factorization.horizon is not None and factorization.horizon <= LONG_HORIZON)


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
                f"scale {scale:.6g}, epsilon={epsilon:g} and {cells} cells are too much for 128-bit normals: even one "
                f"tick costs more than {cap:.3g} in δ; choose a smaller epsilon or fewer cells, or use a coarser grid "
                "where the query has one"
            )
        ticks = 1 << (ticks - 1).bit_length() - 1
    return ticks


def fingerprint(factorization: Factorization, scale: float, bits: int) -> str:
    """A digest of all public parameters of the noise: whoever restores must have the same."""
    digest = hashlib.blake2b(digest_size=16, person=b"evercount.params")
    digest.update(f"{factorization.name}|{factorization.horizon}|{scale.hex()}|{bits}|{SIZE}|{STEP}".encode())
    for array in factorization.public_parameters():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
    return digest.hexdigest()


def _columns(distance: FloatArray, limit: float) -> IntArray:
    """The columns in which something is not below the limit."""
    if float(distance.max(initial=0.0)) < limit:  # nearly always
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((distance >= limit).any(axis=0))


def _times(scale: float, number: FloatArray) -> tuple[FloatArray, FloatArray]:
    """scale·(high + low) as (a double, the rest): Dekker's product, exact but for scale·low and one sum."""
    high, low = number
    top = high * 134217729.0  # 2^27 + 1
    top -= top - high
    part = scale * 134217729.0
    part -= part - scale
    total = high * scale
    rest = ((top * part - total) + top * (scale - part)) + (high - top) * part
    rest += (high - top) * (scale - part)
    rest += low * scale
    return total, rest


class ExactStream(NoiseStream):
    """Noise that is private on a real computer: row t is scale·(L z)_t rounded to the nearest integer, halves upwards.

    `limit` is the last tick that may be taken; by default the horizon or, without one, `numeric_horizon` at ε = 1.

    **Guarantee.** Row t of cell c is a function of (secret, factorisation, scale, t, first_cell + c) alone. With real
    normals z* that the secret's bits stand for, all rows equal the rounding of scale·(L z*) but with probability
    numeric_delta/(1 + e^ε). Proof: `exact_noise.proof.md`. Tests: `tests/mechanisms/test_exact_noise.py` (splits,
    restores, subsets, exact rationals as reference), `tests/mechanisms/test_near_noise.py` (doubles and integers give
    the same numbers, also where every call is close), `tests/mechanisms/test_exact_golden.py` (numbers of the past).
    """

    name = "exact"
    rounded = True
    whole = True

    tick: int = 0

    _doubt: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """Tests add this to the two error bounds (in grid units): more calls are then close, and no number changes."""

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
        self.kernel, self.near = kernel(factorization), near(factorization)
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
        self._own_error = 2 * self.kernel.error(self.limit) * 2.0**-self.kernel.bits  # of the integers, twice: lemma 11
        self._state: FloatArray = np.zeros((2, self.kernel.rows, self.cells))
        # the state at `_start`, where the block begins that `tick` lies in, and what is not taken of that block
        self._before, self._start = self._state, 0
        self._rows: AnyArray = np.empty((0, self.cells))
        self._kept: tuple[FloatArray, Any] | None = None

    def __repr__(self) -> str:
        return f"ExactStream({self.factorization.name}, tick={self.tick}, cells={self.cells}, secret=…)"

    def take(self, ticks: int) -> FloatArray:
        """See `NoiseStream`."""
        ticks = whole_ticks(ticks)
        if self.tick + ticks > self.limit:
            raise HorizonReached(self.limit) if self.factorization.horizon else PrecisionReached(self.limit)
        out = np.empty((ticks, self.cells))
        done = min(ticks, len(self._rows))
        out[:done], rows = self._rows[:done], self._rows[done:]
        made, state, before, start = self.tick + len(self._rows), self._state, self._before, self._start
        while done < ticks:
            before, start = state, made
            fresh, state = self._blocks(made, out[done:], state)
            made += len(fresh)
            count = min(len(fresh), ticks - done)
            if fresh.base is not out:
                out[done : done + count] = fresh[:count]
            rows = fresh[count:]
            done += count
        self.tick, self._state, self._rows = self.tick + ticks, state, rows
        self._before, self._start = (before, start) if len(rows) else (state, made)
        return out

    def prepare(self) -> None:
        """Make the next block now if none is ready: the same numbers, and the next `take` of a tick is fast."""
        if not len(self._rows) and self.tick < self.limit:
            self._rows, self._state = self._blocks(self.tick, self._rows, self._before)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, start: int, out: AnyArray, state: FloatArray) -> tuple[AnyArray, FloatArray]:
        """Noise of the next ticks from `start` on, about len(out) of them, in `out` if it has room; the state after."""
        size, blocks = self.near.shape(self.cells, len(out))
        blocks = min(blocks, -(-(self.limit - start) // size))
        noise: AnyArray = out[: size * blocks]
        if len(noise) < size * blocks:
            noise = np.empty((size * blocks, self.cells), np.int32)
        after = np.empty_like(state)
        pieces = -(-self.cells // SLICE)
        with one_thread():
            for number in range(pieces):
                low, high = number * self.cells // pieces, (number + 1) * self.cells // pieces
                rows, after[:, :, low:high] = self._piece(start, size, blocks, low, state[:, :, low:high])
                if noise.dtype == np.int32 and float(np.abs(rows).max()) >= _SMALL:
                    noise = noise.astype(np.float64)
                noise[:, low:high] = rows
        return noise, after

    def _piece(
        self, start: int, size: int, blocks: int, first: int, state: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Noise and state after of a piece of the cells: doubles decide, or integers where the call is close."""
        normals = self._normals(start, start + size * blocks, state.shape[2], first)
        noise, bound, after = self.near.advance(state, start, size, blocks, normals)
        noise *= self.scale
        whole = np.rint(noise)
        noise -= whole
        largest = float(np.abs(whole).max()) + 1.0
        if not largest < _LARGEST:
            raise TooLarge(f"noise of scale {self.scale} has passed 2^53 grid units; use a coarser grid")
        error = self.scale * (bound + self._own_error) * 1.01 + largest * 2.0**-50 + self._doubt[0]
        close = _columns(np.abs(noise, out=noise), 0.5 - error)
        if len(close):
            fine, bound = self.near.refine(state[:, :, close], start, size, blocks, normals[:, close])
            fine, rest = _times(self.scale, fine)
            up = np.rint(fine)
            rest += fine - up
            more = np.rint(rest)
            whole[:, close] = up + more
            error = self.scale * (bound + self._own_error) * 1.01 + largest * 2.0**-98 + 2.0**-50 + self._doubt[1]
            for cell in close[_columns(np.abs(rest - more), 0.5 - error)].tolist():
                whole[:, cell] = self._exactly(start, start + size * blocks, first + cell)
        return whole, after

    def _normals(self, start: int, stop: int, cells: int, first: int) -> Normals:
        """The draws that ticks start+1 … stop read."""
        window = self.kernel.window(start // SIZE)[0], self.kernel.window(stop // SIZE - 1)[1]
        normals = self._noise.normals(*window, cells, self.first_cell + first)
        if normals.integer.max() >= SIGMAS:
            raise AssertionError("a normal is 64 standard deviations out: the chance of that is below e^-2000")
        return normals

    def _exactly(self, start: int, stop: int, cell: int) -> list[int]:
        """A cell's noise of whole blocks in integers, from the first draw on."""
        state = np.zeros((self.kernel.rows, 1), dtype=object)
        found: list[int] = []
        for block in range(stop // SIZE):
            normals = self._normals(block * SIZE, (block + 1) * SIZE, 1, cell)
            y, state = self.kernel.step(state, block, normals.to_ints())
            if block * SIZE >= start:
                found += (((y[:, 0] * (2 * self._numerator)) + (1 << self._point)) >> (self._point + 1)).tolist()
        return found

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
            "start": self._start,
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
            self._kept = (self._before, pack(self._before, self.near.narrow))
        return self._kept[1]

    @classmethod
    def load(cls, factorization: Factorization, scale: float, cells: int, dumped: dict[str, Any]) -> ExactStream:
        """The stream that `dump` described, or a SnapshotError where anything public differs."""
        try:
            if dumped["format"] not in (_FORMAT, _OLD_FORMAT) or dumped["noise"] != cls.name:
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
            tick, packed, old = operator.index(dumped["tick"]), dumped["state"], dumped["format"] == _OLD_FORMAT
            start = tick // SIZE * SIZE if old else operator.index(dumped["start"])
            same = (made.cells, made.kernel.bits) == (dumped["cells"], dumped["bits"])
            known = dumped["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not same or known != fingerprint(factorization, made.scale, made.kernel.bits):
            raise SnapshotError(
                "the noise state belongs to other public parameters (factorisation, horizon, scale or cells); "
                "restore it with those it was made with"
            )
        if not 0 <= start <= tick <= made.limit or start % SIZE:
            raise SnapshotError(f"the noise state is damaged: tick {tick} of {made.limit}")
        shape = (made.kernel.rows, made.cells)
        if old:  # integers with `bits` fractional bits
            made._state = to_pairs(unpack_integers(packed, shape), made.kernel.bits)
        else:
            made._state = unpack(packed, shape, made.near.narrow)
        made._before = made._state
        made.tick = made._start = start
        made.take(tick - start)
        return made
