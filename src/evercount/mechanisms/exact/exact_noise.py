"""Exact noise: the correlated noise of a stream in fixed-point integers, rounded to whole grid
units.

Every number is a function of (secret, factorization, scale, tick, cell): a fixed-point number that
integer arithmetic defines, rounded. Doubles with a proved error bound decide which integer that is.
Where they are within that bound of the boundary, pairs of doubles decide, and where these are, the
integers of the definition. So any split, any subset of cells, a restored stream and another machine
give the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np

from evercount._validate import AnyArray, BoolArray, FloatArray, IntArray, check_count, check_whole
from evercount.errors import HorizonReached, PrecisionReached, SnapshotError, TooLarge
from evercount.factorizations import Factorization
from evercount.factorizations.blas_threads import blas_threads
from evercount.mechanisms.exact.arithmetic import BITS_STEP, check_scale, kernel, numeric_horizon
from evercount.mechanisms.exact.filter_numbers import (
    BLOCK_TICKS,
    MOST_TICKS,
    MOST_TICKS_AT_ONCE,
    SIGMAS,
    cut,
    power_above,
    product,
    two_sum,
)
from evercount.mechanisms.noise_stream import Facts, NoiseStream
from evercount.noise import ExactNoise, Normals, Secret
from evercount.noise.prf import CELLS

SLICE_CELLS = 1000
"""Cells that are drawn and filtered at once: the working set stays in the processor's cache."""
MANY = 4000
"""From this many cells on, blocks are short, dumps hold the rows that are ready, and no state from
before them is kept: less memory."""
_FORMAT = 1
LARGEST = 2.0**53
"""Noise is smaller than this in size, so that doubles can decide its rounding and hold it
exactly."""
_SMALL = 2.0**31


class ExactStream(NoiseStream):
    """Noise that is private on a real computer: row t is scale·(L z)_t rounded to the nearest
    integer, halves upwards.

    `limit` is the last tick that may be taken; by default the horizon or, without one,
    `numeric_horizon` at ε = 1. With `names`, one for each cell, a cell's noise is a function of its
    name instead of its number.

    **Guarantee.** Row t of cell c is a function of (secret, factorization, scale, t, first_cell +
    c) alone. With real normals z* that the secret's bits stand for, all rows equal the rounding of
    scale·(L z*) but with probability numeric_delta/(1 + e^ε). Proof: `exact_noise.proof.md`. Tests:
    `tests/mechanisms/test_exact_noise.py` (splits, restores, subsets, exact rationals as
    reference), `tests/mechanisms/test_near_noise.py` (doubles and integers give the same numbers,
    also where every call is close), `tests/mechanisms/test_exact_golden.py` (golden numbers).
    """

    rounded = True
    tick: int = 0
    _doubt: ClassVar[tuple[float, float]] = (0.0, 0.0)
    """Tests add this to both error bounds (in grid units): more calls are close, and no number
    changes."""

    def __init__(
        self,
        factorization: Factorization,
        scale: float,
        cells: int,
        secret: Secret,
        first_cell: int = 0,
        numeric_delta: float = 0.0,
        limit: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        _keep_freed_memory()
        self.factorization = factorization
        self.scale = check_scale(scale)
        self.cells = check_count("cells", cells)
        self.first_cell = check_whole("first_cell", first_cell, 0, CELLS - self.cells)
        self.numeric_delta = float(numeric_delta)
        self.kernel = kernel(factorization)
        if limit is None:
            last_cell = self.first_cell + self.cells
            limit = factorization.horizon or numeric_horizon(
                factorization, self.scale, last_cell, 1.0
            )
        self.limit = check_whole("limit", limit, 1, factorization.horizon or MOST_TICKS)
        self._secret = secret
        self.names = names
        self._noise = ExactNoise(secret, names)
        # twice the error of the integers: lemma 11
        self._own_error = 2 * self.kernel.error(self.limit) * 2.0**-self.kernel.bits
        self._state: FloatArray = np.zeros((2, self.kernel.rows, self.cells))
        # `_before` is the state at `_start`, where the block that holds `tick` begins, and `_rows`
        # are the rows of that block that were not taken. With very many cells `_start` is the end
        # of the block, `_before` the state there.
        self._rows_in_dumps = self.cells >= MANY
        self._before = self._state
        self._start = 0
        self._rows: AnyArray = np.empty((0, self.cells), np.int32)
        self._kept: tuple[FloatArray, Any] | None = None

    def take(self, ticks: int) -> IntArray:
        if self.tick + ticks > self.limit:
            raise (
                HorizonReached(self.limit)
                if self.factorization.horizon
                else PrecisionReached(self.limit)
            )
        out = np.empty((ticks, self.cells), np.int64)
        done = 0
        rows = self._rows
        state = self._state
        before = self._before
        start = self._start
        ready = self.tick + len(rows)
        while done < ticks:
            if not len(rows):
                before = state
                start = ready
                rows, state = self._blocks(ready, self.shape(ticks - done), state)
                ready += len(rows)
            count = min(len(rows), ticks - done)
            out[done : done + count] = rows[:count]
            rows = rows[count:]
            done += count
        if self._rows_in_dumps or not len(rows):
            before = state
            start = ready
        # in one statement, without calls: no interruption comes in between
        self.tick, self._rows, self._state, self._before, self._start = (
            self.tick + ticks,
            rows,
            state,
            before,
            start,
        )
        return out

    def further_cells(self, first_cell: int, cells: int) -> ExactStream:
        return ExactStream(
            self.factorization,
            self.scale,
            cells,
            self._secret,
            first_cell,
            self.numeric_delta,
            self.limit,
        )

    def row(self, tick: int) -> IntArray:
        """The noise of one tick, where that of no other tick is needed for it; nothing is taken."""
        assert not self.kernel.rows
        if not 1 <= tick <= self.limit:
            raise PrecisionReached(self.limit)
        return np.asarray(self._blocks(tick - 1, (1, 1), self._state)[0][0], np.int64)

    def skip_to(self, tick: int) -> None:
        """Take the noise of all ticks up to this one, and forget it."""
        while self.tick < tick:
            self.take(min(max(1, 2**20 // self.cells), tick - self.tick))

    def prepare(self) -> None:
        """Make the next block now if none is ready: the same numbers, and the next `take` of a tick
        is fast."""
        if not len(self._rows) and self.tick < self.limit:
            rows, state = self._blocks(self.tick, self.shape(0), self._state)
            before = self._state
            start = self.tick
            if self._rows_in_dumps:
                before = state
                start = self.tick + len(rows)
            self._rows, self._state, self._before, self._start = rows, state, before, start

    # -- blocks ------------------------------------------------------------------------------------

    def shape(self, ticks: int) -> tuple[int, int]:
        """(ticks of a block, number of blocks) that are made at once where `ticks` ticks are
        wanted."""
        size = self.kernel.long_block if self.cells < MANY else BLOCK_TICKS
        if self.cells >= 24:
            return size, 1
        most = 512 if ticks <= 512 else MOST_TICKS_AT_ONCE
        return size, max(1, most // size // self.cells)

    def _blocks(
        self, start: int, shape: tuple[int, int], state: FloatArray
    ) -> tuple[AnyArray, FloatArray]:
        """(noise, state after) of the blocks of this `shape` from `start` on."""
        size, blocks = shape
        blocks = min(blocks, -(-(self.limit - start) // size))
        noise: AnyArray = np.empty((size * blocks, self.cells), np.int32)
        after = np.empty_like(state)
        pieces = -(-self.cells // SLICE_CELLS)
        with blas_threads(1):
            for number in range(pieces):
                low = number * self.cells // pieces
                high = (number + 1) * self.cells // pieces
                rows, after[:, :, low:high] = self._piece(
                    start, size, blocks, low, state[:, :, low:high]
                )
                if noise.dtype == np.int32 and float(np.abs(rows).max()) >= _SMALL:
                    noise = noise.astype(np.int64)
                noise[:, low:high] = rows  # whole numbers below 2^53: the doubles are exact
        return noise, after

    def _piece(
        self, start: int, size: int, blocks: int, first: int, state: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """(noise, state after) of some cells. Where doubles are too close to a half, finer ones or
        integers decide."""
        stop = start + size * blocks
        normals = self._normals(start, stop, state.shape[2], first)
        (noise,), bound, after = self.kernel.advance(state, start, size, blocks, normals)
        noise *= self.scale
        rounded = np.rint(noise)
        noise -= rounded
        largest = float(np.abs(rounded).max()) + 1.0
        error = self.scale * (bound + self._own_error) * 1.01 + largest * 2.0**-50 + self._doubt[0]
        if not largest + error < LARGEST:
            raise TooLarge(
                f"noise of scale {self.scale} has passed 2^53 grid units; use a coarser grid"
            )
        close = np.abs(noise, out=noise) >= 0.5 - error
        again = np.flatnonzero(close.any(axis=0))
        if len(again):
            pairs, bound, _ = self.kernel.advance(
                state[:, :, again], start, size, blocks, normals[:, again], fine=True
            )
            rounded[:, again], close = self._finely(pairs, bound)
            for cell in again[close.any(axis=0)].tolist():
                rounded[:, cell] = self._in_integers(start, stop, first + cell)
        return rounded, after

    def _finely(self, pairs: FloatArray, bound: float) -> tuple[FloatArray, BoolArray]:
        """(scale times the sums of pairs of doubles rounded, which of them are too close to a half
        to be sure)."""
        high, low = two_sum(pairs[0], pairs[1:].sum(axis=0))
        units = [power_above(size) for size in (self.scale, float(np.abs(high).max()))]
        scale = cut(np.full((1, 1), self.scale), np.zeros((1, 1)), units[0])
        one, two, three = product(scale, cut(high, low, units[1]))
        rounded = np.rint(one + two)
        rest = ((one - rounded) + two) + three
        more = np.rint(rest)
        error = (
            self.scale * (bound + self._own_error) * 1.01
            + 2.0**-50
            + units[0] * units[1] * 2.0**-86
        )
        return rounded + more, np.abs(rest - more) >= 0.5 - error - self._doubt[1]

    def _normals(self, start: int, stop: int, cells: int, first: int) -> Normals:
        """The draws that ticks start+1 … stop read."""
        normals = self._noise.normals(
            *self.kernel.window(start, stop), cells, self.first_cell + first
        )
        if normals.integer.max() >= SIGMAS:
            raise AssertionError(
                "a normal is 64 standard deviations out: the chance of that is below e^-2000"
            )
        return normals

    def _in_integers(self, start: int, stop: int, cell: int) -> list[int]:
        """Noise of one cell at ticks start+1 … stop as it is defined: in integers, from the first
        draw on."""
        numbers: list[int] = []
        state = np.zeros((self.kernel.rows, 1), dtype=object)
        unit = Fraction(self.scale) / (1 << self.kernel.bits)
        for first in range(0 if self.kernel.rows else start, stop, MOST_TICKS_AT_ONCE):
            last = min(first + MOST_TICKS_AT_ONCE, stop)
            z = self._normals(first, last, 1, cell).to_ints()
            drawn = self.kernel.window(first, last)[0]
            for tick in range(first, last, BLOCK_TICKS):
                low, high = self.kernel.window(tick, tick + BLOCK_TICKS)
                y, state = self.kernel.step(state, tick, z[low - drawn : high - drawn])
                if tick >= start:
                    numbers += [math.floor(value * unit + Fraction(1, 2)) for value in y[:, 0]]
        return numbers

    def _facts(self) -> dict[str, Any]:
        """What a dump says about the stream that never changes, but for its secret."""
        return {
            "noise": "exact",
            "cells": self.cells,
            "first_cell": self.first_cell,
            "limit": self.limit,
            "numeric_delta": self.numeric_delta,
            "bits": self.kernel.bits,
            "fingerprint": self._fingerprint,
        }

    @cached_property
    def _fingerprint(self) -> str:
        """A digest of all public parameters of the noise: a restored stream must have the same."""
        parameters = (
            self.factorization.name,
            self.factorization.horizon,
            self.scale.hex(),
            self.kernel.bits,
        )
        digest = hashlib.blake2b(digest_size=16, person=b"evercount.params")
        digest.update("|".join(map(str, (*parameters, BLOCK_TICKS, BITS_STEP))).encode())
        for array in self.factorization.public_parameters():
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
        return digest.hexdigest()

    def dump(self) -> dict[str, Any]:
        """With the secret, and with the state at the start of the block that is under way."""
        if self._kept is None or self._kept[0] is not self._before:  # it changes once in a block
            self._kept = (self._before, pack(self._before, self.kernel.narrow))
        own = {
            "tick": self.tick,
            "start": self._start,
            "secret": self._secret.hex(),
            "state": self._kept[1],
        }
        if self._rows_in_dumps:
            self._kept = None  # it is large
        # the format holds wide rows as doubles, which are exact below 2^53
        if self._rows.dtype == np.int64:
            ready = self._rows.astype(np.float64)
        else:
            ready = self._rows
        rows = {"rows": to_bytes(ready)} if self._start > self.tick else {}
        return {"format": _FORMAT, **self._facts(), **own, **rows}

    @classmethod
    def load(
        cls,
        factorization: Factorization,
        scale: float,
        cells: int,
        dumped: Facts,
        names: Sequence[str] | None = None,
    ) -> ExactStream:
        """The stream that `dump` described, or a SnapshotError where anything public differs."""
        try:
            if dumped["format"] != _FORMAT:
                raise SnapshotError(
                    f"noise of format {dumped['format']!r:.40} is not read: only format {_FORMAT} "
                    "is"
                )
            secret = Secret.from_hex(dumped["secret"])
            first = dumped["first_cell"]
            delta = dumped["numeric_delta"]
            limit = dumped["limit"]
            stream = cls(factorization, scale, cells, secret, first, delta, limit, names)
            tick = check_count("tick", dumped["tick"], 0)
            start = check_count("start", dumped["start"], 0)
            packed = dumped["state"]
            ready = dumped.get("rows", b"")
            short = len(ready) < 8 * (start - tick) * cells  # whole numbers of 32 bits
            same = all(dumped[key] == value for key, value in stream._facts().items())
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not same:
            raise SnapshotError(
                "the noise state belongs to other public parameters (factorization, horizon, scale "
                "or cells); restore it with those it was made with"
            )
        far = tick - start > MOST_TICKS_AT_ONCE
        if (
            far
            or tick > stream.limit
            or start % BLOCK_TICKS
            or ("rows" in dumped) != (start > tick)
        ):
            raise SnapshotError(f"the noise state is damaged: tick {tick} of {stream.limit}")
        state = unpack(packed, (stream.kernel.rows, cells), stream.kernel.narrow)
        stream.tick = start
        stream._start = start
        stream._before = state
        stream._state = state
        if start > tick:
            (rows,) = of_bytes(ready, ("<i4" if short else "<f8", (start - tick, cells)))
            if (rows % 1).any():
                raise SnapshotError("the rows of the noise are damaged: they are not whole numbers")
            ready_rows = rows.astype(np.int32 if short else np.int64)
            stream.tick = tick
            stream._rows = ready_rows
            stream._rows_in_dumps = True
        stream.skip_to(tick)
        return stream


def pack(state: FloatArray, narrow: int) -> AnyArray:
    """A state (2, rows, cells) as bytes; the low parts of the first `narrow` rows are cut to 24
    bits."""
    return to_bytes(state[0], state[1, :narrow].astype(np.float32), state[1, narrow:])


def unpack(packed: object, shape: tuple[int, int], narrow: int) -> FloatArray:
    """The state that `pack` wrote, or a SnapshotError if it is not of that shape."""
    rows, cells = shape
    high, low, rest = of_bytes(
        packed, ("<f8", shape), ("<f4", (narrow, cells)), ("<f8", (rows - narrow, cells))
    )
    return np.stack([high, np.concatenate([low, rest])])


def to_bytes(*arrays: AnyArray) -> AnyArray:
    plain = (
        np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1) for array in arrays
    )
    data = np.concatenate([array.view(np.uint8) for array in plain])
    data.flags.writeable = False  # several dumps share it
    return data


def of_bytes(packed: Any, *layout: tuple[str, tuple[int, int]]) -> list[AnyArray]:
    """The arrays of these types and shapes from their bytes, or a SnapshotError if they are not
    finite numbers."""
    arrays: list[AnyArray] = []
    try:
        start = 0
        for kind, (rows, columns) in layout:
            arrays.append(np.frombuffer(packed, kind, rows * columns, start).reshape(rows, columns))
            start += arrays[-1].nbytes
        damaged = len(packed) != start or not all(np.isfinite(array).all() for array in arrays)
    except (TypeError, ValueError, OverflowError):
        damaged = True
    if damaged:
        raise SnapshotError(
            f"the state of the noise is damaged: numbers of the shapes {layout} were expected"
        )
    return arrays


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep freed blocks of up to 4 MB for the next ones. It acts once in a
    process.

    Every block of noise allocates and frees arrays of some hundred KB. glibc gives blocks of more
    than 128 KB back to the system at once, which clears their pages again for the next ones. The
    limit rises to the size of the largest such block that was freed (`mallopt`, M_MMAP_THRESHOLD),
    so one of 4 MB is freed here. The process keeps up to 8 MB more. Other C libraries have other
    rules; nothing happens there.
    """
    np.empty(4 << 20, dtype=np.uint8)
