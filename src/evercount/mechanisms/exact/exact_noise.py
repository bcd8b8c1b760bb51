"""Exact noise: the correlated noise of a stream in fixed-point integers, rounded to whole grid units.

Every number is a function of (secret, factorisation, scale, tick, cell): a fixed-point number that integer arithmetic
defines, rounded. Doubles with a proved error bound decide which integer that is; where they are within that bound of
the boundary, integers decide. So any split, any subset of cells, a restored stream and another machine give the same
numbers.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray, ObjectArray
from evercount.errors import HorizonReached, ParameterError, PrecisionReached, SnapshotError, TooLarge
from evercount.factorizations import Factorization
from evercount.mechanisms.blas_threads import one_thread
from evercount.mechanisms.exact.arithmetic import (
    BITS_STEP,
    LARGEST_TICKS,
    at_least_one,
    check_scale,
    kernel,
    near,
    numeric_horizon,
)
from evercount.mechanisms.exact.filter_kernel import BLOCK_TICKS, SIGMAS
from evercount.mechanisms.exact.state_bytes import (
    of_pairs,
    pack,
    pack_rows,
    to_pairs,
    unpack,
    unpack_integers,
    unpack_rows,
)
from evercount.mechanisms.keep_memory import keep_freed_memory
from evercount.mechanisms.noise_stream import NoiseStream, whole_ticks
from evercount.noise import ExactNoise, Normals, Secret

SLICE_CELLS = 1000
"""Cells that are drawn and filtered at once: the working set stays in the processor's cache."""
ROWS_IN_DUMPS = 4000
"""From this many cells on, dumps hold the rows that are ready, and no state from before them is kept: less memory."""
MOST_AHEAD = 1 << 15
"""Rows that lie ready are fewer than this."""
_FORMAT_ROWS, _FORMAT, _OLD_FORMAT = 3, 2, 1
_LARGEST = 2.0**53
_SMALL = 2.0**31


def fingerprint(factorization: Factorization, scale: float, bits: int) -> str:
    """A digest of all public parameters of the noise: a restored stream must have the same."""
    digest = hashlib.blake2b(digest_size=16, person=b"evercount.params")
    digest.update(
        f"{factorization.name}|{factorization.horizon}|{scale.hex()}|{bits}|{BLOCK_TICKS}|{BITS_STEP}".encode()
    )
    for array in factorization.public_parameters():
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).astype("<f8").tobytes())
    return digest.hexdigest()


class ExactStream(NoiseStream):
    """Noise that is private on a real computer: row t is scale·(L z)_t rounded to the nearest integer, halves upwards.

    `limit` is the last tick that may be taken; by default the horizon or, without one, `numeric_horizon` at ε = 1. With
    `names`, one for each cell, a cell's noise is a function of its name instead of its number.

    **Guarantee.** Row t of cell c is a function of (secret, factorisation, scale, t, first_cell + c) alone. With real
    normals z* that the secret's bits stand for, all rows equal the rounding of scale·(L z*) but with probability
    numeric_delta/(1 + e^ε). Proof: `exact_noise.proof.md`. Tests: `tests/mechanisms/test_exact_noise.py` (splits,
    restores, subsets, exact rationals as reference), `tests/mechanisms/test_near_noise.py` (doubles and integers give
    the same numbers, also where every call is close), `tests/mechanisms/test_exact_golden.py` (numbers of the past).
    """

    name = "exact"
    rounded = True
    whole_units = True

    tick: int = 0

    _doubt: ClassVar[tuple[float, float, float]] = (0.0, 0.0, 0.0)
    """Tests add this to the three error bounds (in grid units): integers decide more often, and no number changes."""

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
        keep_freed_memory()
        self.factorization = factorization
        self.scale = check_scale(scale)
        self.cells = at_least_one("cells", cells)
        self.first_cell = operator.index(first_cell)
        if self.first_cell < 0:
            raise ParameterError(f"first_cell must not be negative, got {first_cell!r}")
        self.numeric_delta = float(numeric_delta)
        self.kernel, self.near = kernel(factorization), near(factorization)
        if limit is None:
            limit = factorization.horizon
        if limit is None:
            limit = numeric_horizon(factorization, self.scale, self.first_cell + self.cells, 1.0)
        self.limit = at_least_one("limit", limit)
        if self.limit > (factorization.horizon or LARGEST_TICKS):
            raise ParameterError(f"limit {limit} is beyond the horizon or 2^47 ticks")
        self.tick = 0
        self._secret = secret
        self.names = names
        self._noise = ExactNoise(secret) if names is None else ExactNoise(secret, names)
        numerator, denominator = self.scale.as_integer_ratio()
        self._numerator, self._point = numerator, self.kernel.bits + denominator.bit_length() - 1
        # twice the error of the integers: lemma 11
        self._own_error = 2 * self.kernel.error(self.limit) * 2.0**-self.kernel.bits
        self._state: FloatArray = np.zeros((2, self.kernel.rows, self.cells))
        # `_before` is the state at `_start`, where the block that holds `tick` begins, and `_rows` are the rows of that
        # block that were not taken. With very many cells `_start` is the end of the block, `_before` the state there.
        self._rows_in_dumps = self.cells >= ROWS_IN_DUMPS
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
        ready, state, before, start = self.tick + len(self._rows), self._state, self._before, self._start
        while done < ticks:
            before, start = state, ready
            fresh, state = self._blocks(ready, out[done:], state)
            ready += len(fresh)
            count = min(len(fresh), ticks - done)
            if fresh.base is not out:
                out[done : done + count] = fresh[:count]
            rows = fresh[count:]
            done += count
        self.tick, self._state, self._rows = self.tick + ticks, state, rows
        self._before, self._start = (before, start) if len(rows) and not self._rows_in_dumps else (state, ready)
        return out

    def prepare(self) -> None:
        """Make the next block now if none is ready: the same numbers, and the next `take` of a tick is fast."""
        if not len(self._rows) and self.tick < self.limit:
            self._rows, self._state = self._blocks(self.tick, self._rows, self._before)
            if self._rows_in_dumps:
                self._before, self._start = self._state, self.tick + len(self._rows)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _blocks(self, start: int, out: AnyArray, state: FloatArray) -> tuple[AnyArray, FloatArray]:
        """(noise, state after) of about len(out) ticks from `start` on; the noise lies in `out` if that has room."""
        size, blocks = self.near.shape(self.cells, len(out))
        blocks = min(blocks, -(-(self.limit - start) // size))
        noise: AnyArray = out[: size * blocks]
        if len(noise) < size * blocks:
            noise = np.empty((size * blocks, self.cells), np.int32)
        after = np.empty_like(state)
        pieces = -(-self.cells // SLICE_CELLS)
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
        """(noise, state after) of some cells: rounded doubles, computed again where one is too close to a half."""
        normals = self._normals(start, start + size * blocks, state.shape[2], first)
        rounded, close, after = self._rounded(state, start, size, blocks, normals)
        if len(close):
            some, again = state[:, :, close], normals[:, close]
            rounded[:, close], closer, _ = self._rounded(some, start, size, blocks, again, fine=True)
            for cell in close[closer].tolist():
                rounded[:, cell] = self._closely(start, size, blocks, first + cell, state[:, :, cell : cell + 1])
        return rounded, after

    def _rounded(
        self, state: FloatArray, start: int, size: int, blocks: int, normals: Normals, fine: bool = False
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """(noise rounded from doubles, cells with a number too close to a half to be sure, state after)."""
        noise, bound, after = self.near.advance(state, start, size, blocks, normals, fine)
        noise *= self.scale
        rounded = np.rint(noise)
        noise -= rounded
        largest = float(np.abs(rounded).max()) + 1.0
        if not largest < _LARGEST:
            raise TooLarge(f"noise of scale {self.scale} has passed 2^53 grid units; use a coarser grid")
        error = self.scale * (bound + self._own_error) * 1.01 + largest * 2.0**-50 + self._doubt[fine]
        np.abs(noise, out=noise)
        if float(noise.max()) < 0.5 - error:  # nearly always
            return rounded, np.empty(0, dtype=np.int64), after
        return rounded, np.flatnonzero((noise >= 0.5 - error).any(axis=0)), after

    def _closely(self, start: int, size: int, blocks: int, cell: int, state: FloatArray) -> FloatArray:
        """Noise of a cell that is too close to a half: halve the blocks in doubles; do a single block in integers."""
        if blocks > 1:
            middle = blocks // 2
            first, state = self._piece(start, size, middle, cell, state)
            rest, _ = self._piece(start + middle * size, size, blocks - middle, cell, state)
            return np.concatenate([first, rest])[:, 0]
        drift = self.scale * (self.near.drift(start, size) + self._own_error) * 1.01 + self._doubt[2]
        integers = of_pairs(state, self.kernel.bits)
        numbers = self._exactly(start, start, start + size, cell, integers, Fraction(drift))
        return np.asarray(numbers or self._exactly(0, start, start + size, cell, integers * 0), dtype=np.float64)

    def _normals(self, start: int, stop: int, cells: int, first: int) -> Normals:
        """The draws that ticks start+1 … stop read."""
        window = self.kernel.window(start // BLOCK_TICKS)[0], self.kernel.window(stop // BLOCK_TICKS - 1)[1]
        normals = self._noise.normals(*window, cells, self.first_cell + first)
        if normals.integer.max() >= SIGMAS:
            raise AssertionError("a normal is 64 standard deviations out: the chance of that is below e^-2000")
        return normals

    def _exactly(
        self, begin: int, start: int, stop: int, cell: int, state: ObjectArray, doubt: Fraction | None = None
    ) -> list[int]:
        """Noise of one cell in integers, from the state at `begin`; [] if a number is within `doubt` of a half."""
        numerators: list[int] = []
        for block in range(begin // BLOCK_TICKS, stop // BLOCK_TICKS):
            normals = self._normals(block * BLOCK_TICKS, (block + 1) * BLOCK_TICKS, 1, cell)
            y, state = self.kernel.step(state, block, normals.to_ints())
            if block * BLOCK_TICKS >= start:
                numerators += ((y[:, 0] * (2 * self._numerator)) + (1 << self._point)).tolist()
        unit = 2 << self._point
        if doubt is not None and any(min(value % unit, -value % unit) <= doubt * unit for value in numerators):
            return []
        return [value // unit for value in numerators]

    @classmethod
    def rebuild(
        cls, factorization: Factorization, scale: float, cells: int, secret: Secret, tick: int, **rest: Any
    ) -> ExactStream:
        """The stream as it stands after `tick` ticks, from the secret alone, in time proportional to `tick`."""
        stream = cls(factorization, scale, cells, secret, **rest)
        chunk = max(BLOCK_TICKS, 2**20 // stream.cells // BLOCK_TICKS * BLOCK_TICKS)
        while stream.tick < tick:
            stream.take(min(chunk, tick - stream.tick))
        return stream

    def dump(self) -> dict[str, Any]:
        """See `NoiseStream`: with the secret, and with the state at the start of the block that is under way."""
        rows = {"rows": pack_rows(self._rows)} if self._start > self.tick else {}
        return {
            "format": _FORMAT_ROWS if rows else _FORMAT,
            "noise": self.name,
            "tick": self.tick,
            "start": self._start,
            "cells": self.cells,
            "first_cell": self.first_cell,
            "limit": self.limit,
            "numeric_delta": self.numeric_delta,
            "bits": self.kernel.bits,
            "fingerprint": self._fingerprint,
            "secret": self._secret.hex(),
            "state": self._packed(),
            **rows,
        }

    @cached_property
    def _fingerprint(self) -> str:
        """That of its parameters, none of which changes."""
        return fingerprint(self.factorization, self.scale, self.kernel.bits)

    def _packed(self) -> Any:
        """`_before` for a dump. It changes once in a block, so what was packed last is kept, if it is not large."""
        if self._rows_in_dumps:
            return pack(self._before, self.near.narrow)
        if self._kept is None or self._kept[0] is not self._before:
            self._kept = (self._before, pack(self._before, self.near.narrow))
        return self._kept[1]

    @classmethod
    def load(
        cls,
        factorization: Factorization,
        scale: float,
        cells: int,
        dumped: dict[str, Any],
        names: Sequence[str] | None = None,
    ) -> ExactStream:
        """The stream that `dump` described, or a SnapshotError where anything public differs."""
        try:
            if dumped["format"] not in (_FORMAT_ROWS, _FORMAT, _OLD_FORMAT) or dumped["noise"] != cls.name:
                raise SnapshotError(f"noise of format {dumped['format']!r} cannot be read by this program")
            stream = cls(
                factorization,
                scale,
                cells,
                Secret.from_hex(dumped["secret"]),
                dumped["first_cell"],
                dumped["numeric_delta"],
                dumped["limit"],
                names,
            )
            tick, packed, old = operator.index(dumped["tick"]), dumped["state"], dumped["format"] == _OLD_FORMAT
            start = tick // BLOCK_TICKS * BLOCK_TICKS if old else operator.index(dumped["start"])
            same = (stream.cells, stream.kernel.bits) == (dumped["cells"], dumped["bits"])
            known = dumped["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not same or known != stream._fingerprint:
            raise SnapshotError(
                "the noise state belongs to other public parameters (factorisation, horizon, scale or cells); "
                "restore it with those it was made with"
            )
        ahead = start - tick if dumped["format"] == _FORMAT_ROWS else 0
        if (
            not 0 <= start <= tick + ahead
            or not 0 <= tick <= stream.limit
            or start % BLOCK_TICKS
            or not 0 <= ahead < MOST_AHEAD
        ):
            raise SnapshotError(f"the noise state is damaged: tick {tick} of {stream.limit}")
        shape = (stream.kernel.rows, stream.cells)
        if old:  # integers with `bits` fractional bits
            stream._state = to_pairs(unpack_integers(packed, shape), stream.kernel.bits)
        else:
            stream._state = unpack(packed, shape, stream.near.narrow)
        stream._before = stream._state
        stream.tick = stream._start = start
        if ahead:
            stream._rows = unpack_rows(dumped.get("rows"), ahead, stream.cells)
            stream.tick, stream._rows_in_dumps = tick, True
        else:
            stream.take(tick - start)
        return stream
