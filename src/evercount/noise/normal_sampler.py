"""Exact standard normals from a secret, by (draw, cell) or in a row.

An attempt is z = ±(k + x): k has probability proportional to exp(−k²/2), x is uniform on [0, 1), and it is
kept if u < exp(−x (2k + x) / 2) for a uniform u. Attempts that are kept have exactly the normal density
(Karney 2016, "Sampling exactly from the normal distribution"). About 71 % are kept, the others are drawn again.

Doubles decide whether an attempt is kept; within DECISION_MARGIN of the boundary exact integers decide.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import ClassVar, NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt

from evercount._arrays import BoolArray, FloatArray, IntArray, UIntArray
from evercount.errors import ParameterError, TooLarge
from evercount.noise.exact_comparisons import accepts, integer_part, thresholds
from evercount.noise.exact_normals import Normals, as_integer, check_block_size
from evercount.noise.prf import (
    ATTEMPTS,
    CELLS,
    DRAWS,
    SEQUENCE,
    Expansion,
    NamedPrf,
    Prf,
    counter,
    counters,
    read_counter,
    set_attempt,
)
from evercount.noise.secret import Secret

_Pending = tuple[IntArray, UIntArray]  # places in the output, and their counters

DECISION_MARGIN = 2.0**-36
"""Doubles decide only where p and u differ by more; they are then right: `normal_sampler.proof.md`, lemma 3."""

LONGEST = 2**16  # a longer `NormalSequence` is refused: `ExactNoise.normals` makes many numbers faster

_NUMBERS_AT_A_TIME = 1 << 14  # the working set stays in the processor's cache
_DRAWN_SINGLY = 8  # up to this many numbers are drawn one by one: numpy's calls cost more than they save
_SEVERAL = 1 << 9  # up to this many numbers get several attempts at once
_AT_ONCE = 4  # the number of attempts then
_UNIT_OF_53_BITS = 2.0**-53

# Constants of `NormalSequence` as arrays: numpy reads them faster than Python's numbers.
_ZERO, _WORD, _MINUS_HALF = np.asarray(0.0), np.asarray(2.0**-64), np.asarray(-0.5)
_TOP = np.asarray(2**63, np.uint64)
_U16, _U64 = np.dtype("<u2"), np.dtype("<u8")


@lru_cache(maxsize=1)
def _tables() -> tuple[npt.NDArray[np.uint8], UIntArray]:
    """k by the leading 16 bits of v (255 where a threshold lies inside), and the thresholds."""
    edges = thresholds()
    starts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(47)
    below = np.searchsorted(np.array(edges, dtype=np.uint64), starts)
    k = below.astype(np.uint8)
    k[[edge >> 47 for edge in edges]] = 255
    return k, np.array(edges, dtype=np.uint64)


@lru_cache(maxsize=1)
def _parts() -> FloatArray:
    """k by the leading 16 bits of v as doubles, NaN where a threshold lies inside: then no comparison holds."""
    k = _tables()[0]
    return np.where(k == 255, np.nan, k)


@lru_cache(maxsize=8)
def _row(attempts: int) -> bytes:
    """The counter blocks of a sequence: attempt j is the place (draw 0, cell j, attempt 0)."""
    return counters(range(1), range(attempts)).tobytes()


class ExactNoise:
    """Standard normals with 128 fractional bits: a pseudorandom function of (secret, draw, cell), stateless.

    **Guarantee.** For bits that are uniform (see `Prf`), the numbers of all (draw, cell) are independent, and
    each is a true standard normal z* cut toward zero to 128 fractional bits: there is a z* ~ N(0, 1) with the
    same sign and 0 ≤ |z*| − |z| < 2^−128. Every (secret, draw, cell) gives the same number on every machine
    and in every block. Proof: `normal_sampler.proof.md`. Assumption: `numpy.exp` and `math.exp` err by less than 2^−37
    on arguments ≤ 0. Tests: `tests/noise/test_normal_sampler.py` (equality with a 200-digit reference, forced exact
    path, blocks, known answers), `tests/noise/test_normal_distribution.py`.

    Two streams must never share a secret: the same noise on different data would reveal the difference.

    With `names`, cell i stands for the name in place i, and its numbers are a function of (secret, draw, name).

    Args:
        secret: the key of the noise.
        names: one for each cell; None for numbered cells.

    Raises:
        ParameterError: it is not a `Secret`.

    >>> ExactNoise(Secret.from_hex("ab" * 32)).normals(0, 3, cells=2).shape
    (3, 2)
    """

    name = "exact"
    _margin: ClassVar[float] = DECISION_MARGIN  # tests make it larger: every decision then goes the exact way

    def __init__(self, secret: Secret, names: Sequence[str] | None = None) -> None:
        self._prf = Prf(secret) if names is None else NamedPrf(secret, names)

    def normals(self, start: int, stop: int, cells: int, first_cell: int = 0) -> Normals:
        """Draws ``start … stop−1`` of `cells` cells from `first_cell` on, shape ``(stop − start, cells)``.

        Args:
            start: The first draw, from 0.
            stop: The draw after the last one.
            cells: The number of cells.
            first_cell: The number of the first cell.

        Returns:
            The numbers, which depend on the secret, the draw and the cell only.

        Raises:
            ParameterError: The draws or the cells are not a legal range.
        """
        start, stop = as_integer("start", start), as_integer("stop", stop)
        cells, first_cell = as_integer("cells", cells), as_integer("first_cell", first_cell)
        if not 0 <= start <= stop <= DRAWS:
            raise ParameterError(f"draws {start} to {stop} are not a range between 0 and 2^48")
        if cells < 0 or not 0 <= first_cell <= first_cell + cells <= CELLS:
            raise ParameterError(f"cells {first_cell} to {first_cell + cells} are not a range between 0 and 2^32")
        check_block_size(stop - start, cells)
        size = (stop - start) * cells
        draws, which = range(start, stop), range(first_cell, first_cell + cells)
        output = _Output(size)
        if size <= _DRAWN_SINGLY:
            for number, (draw, cell) in enumerate(product(draws, which)):
                output.put_one(number, self._one(draw, cell, 0))
        elif size <= _SEVERAL:
            self._finish(np.arange(size), counters(draws, which), 0, output)
        else:
            self._many(draws, which, output)
        return output.normals((stop - start, cells))

    def _many(self, draws: range, cells: range, output: _Output) -> None:
        """First attempts chunk by chunk, then second attempts of those that were rejected, and so on."""
        pending = self._first(draws, cells, output)
        attempt = 1
        while sum(len(numbers) for numbers, _ in pending) > _SEVERAL:
            pending = [self._again(numbers, blocks, attempt, output) for numbers, blocks in _merge(pending)]
            attempt += 1
        numbers, blocks = zip(*pending, strict=True)
        self._finish(np.concatenate(numbers), np.concatenate(blocks), attempt, output)

    def _first(self, draws: range, cells: range, output: _Output) -> list[_Pending]:
        """Attempt 0 of everything; returns what was rejected."""
        pending = []
        for offset, some_draws, some_cells in _rectangles(draws, cells):
            blocks = counters(some_draws, some_cells)
            words, k, kept = self._attempt(blocks)
            # The rejected ones are written too, for speed, and overwritten by a later attempt.
            output.put(slice(offset, offset + len(blocks)), words, k)
            rejected = (~kept).nonzero()[0]
            pending.append((rejected + offset, blocks.take(rejected, axis=0)))
        return pending

    def _again(self, numbers: IntArray, blocks: UIntArray, attempt: int, output: _Output) -> _Pending:
        """One more attempt of these numbers; returns what was rejected."""
        set_attempt(blocks, attempt)
        words, k, kept = self._attempt(blocks)
        hit, rejected = kept.nonzero()[0], (~kept).nonzero()[0]
        output.put(numbers.take(hit), words.take(hit, axis=0), k.take(hit))
        return numbers.take(rejected), blocks.take(rejected, axis=0)

    def _finish(self, numbers: IntArray, blocks: UIntArray, attempt: int, output: _Output) -> None:
        """Several attempts at once of numbers that are not many, until the few last are drawn one by one."""
        while len(numbers) > _DRAWN_SINGLY:
            trial = blocks.repeat(_AT_ONCE, axis=0).reshape(-1, _AT_ONCE, 4)
            set_attempt(trial, np.arange(attempt, attempt + _AT_ONCE))
            words, k, kept = self._attempt(trial.reshape(-1, 4))
            table = kept.reshape(-1, _AT_ONCE)
            first = table.argmax(axis=1) + np.arange(0, len(kept), _AT_ONCE)
            hit = kept.take(first)
            output.put(numbers[hit], words.take(first[hit], axis=0), k.take(first[hit]))
            numbers, blocks = numbers[~hit], blocks[~hit]
            attempt += _AT_ONCE
        for number, block in zip(numbers.tolist(), blocks, strict=True):
            draw, cell, _ = read_counter(block)
            output.put_one(number, self._one(draw, cell, attempt))

    def _attempt(self, blocks: UIntArray) -> tuple[UIntArray, npt.NDArray[np.uint8], BoolArray]:
        """One attempt for each row of counters: its words, its k, and whether it is kept."""
        words = self._prf.words(blocks)
        table, edges = _tables()
        k = table.take(words.view(np.dtype("<u2"))[:, 15])
        unsure = (k == 255).nonzero()[0]
        v = words[unsure, 3] >> np.uint64(1)
        place = np.searchsorted(edges, v)
        k[unsure] = place
        close = unsure[edges[place] == v]  # only more bits of v can tell
        x = (words[:, 0] >> np.uint64(11)).view(np.int64) * _UNIT_OF_53_BITS
        u = (words[:, 2] >> np.uint64(11)).view(np.int64) * _UNIT_OF_53_BITS
        p = x + k
        p += k
        p *= x
        p *= -0.5
        np.exp(p, out=p)
        p -= u
        kept = p > 0.0
        np.abs(p, out=p)
        if len(close) or p.min(initial=2.0) <= self._margin:
            for number in np.union1d(close, np.flatnonzero(p <= self._margin)):
                k[number], kept[number] = _exactly(self._prf, *read_counter(blocks[number]))
        return words, k, kept

    def _one(self, draw: int, cell: int, attempt: int) -> tuple[bool, int, int, int]:
        """One number, from this attempt on, without numpy: (negative, k, halves of the fraction)."""
        edges = thresholds()
        while attempt < ATTEMPTS - 1:
            tries = range(attempt, attempt + 2)
            stream = self._prf.encrypt(b"".join(counter(draw, cell, a, i) for a in tries for i in (0, 1)))
            for a, (hi, lo, u, v) in zip(tries, struct.iter_unpack("<4Q", stream), strict=True):
                k = bisect_left(edges, v >> 1)
                x = (hi >> 11) * _UNIT_OF_53_BITS
                difference = math.exp(-0.5 * (x * (2 * k + x))) - (u >> 11) * _UNIT_OF_53_BITS
                kept = difference > 0.0
                if edges[k] == v >> 1 or abs(difference) <= self._margin:
                    k, kept = _exactly(self._prf, draw, cell, a)
                if kept:
                    return bool(v & 1), k, hi, lo
            attempt += 2
        raise AssertionError("65,000 attempts were rejected: the chance of that is below 2^−100000")

    def __repr__(self) -> str:
        return "ExactNoise(Secret(…))"

    def __copy__(self) -> ExactNoise:
        return self

    def __deepcopy__(self, memo: object) -> ExactNoise:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError("exact noise is not pickled: recreate it from its secret")


class NormalSequence:
    """`count` exact standard normals in a row, a function of the secret alone: the quick way to draw a few hundred.

    Attempts 0, 1, 2, … are independent and alike, so those that are kept, in their order, are independent exact
    normals, and the first `count` of them are taken. A longer sequence of the same secret begins with the shorter one.

    **Guarantee.** For bits that are uniform (see `Prf`), the numbers z are independent, and each is a true standard
    normal cut toward zero to 128 fractional bits, as in `ExactNoise`; they are independent of all `ExactNoise.normals`
    of the same secret. `near` are doubles with |near − z| ≤ 2^−52·(1 + |z|). Proof: `normal_sampler.proof.md`, lemma 5.
    Assumption: as in `ExactNoise`. Tests: `tests/noise/test_normal_sequence.py` (equality with a 200-digit reference,
    forced exact path, ties, too few attempts, distribution with planted bugs).

    A secret serves one sequence: the same noise on different data would reveal the difference.
    """

    __slots__ = ("_hits", "_k", "_words", "near")
    _margin: ClassVar[float] = DECISION_MARGIN  # tests make it larger: every decision then goes the exact way

    near: FloatArray
    """The numbers as doubles. A release that rounds them must ask `exact` wherever the error could matter."""

    def __init__(self, secret: Secret, count: int) -> None:
        count = as_integer("count", count)
        if count < 1:
            raise ParameterError(f"a sequence has at least one number, not {count}")
        if count > LONGEST:
            raise TooLarge(f"a sequence of {count} numbers is longer than {LONGEST}: use ExactNoise.normals")
        prf = Prf(secret, SEQUENCE)
        attempts = _enough(count)
        while not self._draw(prf, count, attempts):
            attempts *= 2

    def __len__(self) -> int:
        return len(self.near)

    def exact(self, number: int) -> int:
        """z · 2^128 of one number."""
        attempt = int(self._hits[number])
        hi, lo, _, v = map(int, self._words[4 * attempt : 4 * attempt + 4])
        magnitude = int(self._k[attempt]) << 128 | hi << 64 | lo
        return -magnitude if v & 1 else magnitude

    def _draw(self, prf: Prf, count: int, attempts: int) -> bool:
        """Make this number of attempts; return whether enough of them are kept."""
        words = np.frombuffer(prf.encrypt(_row(attempts)), _U64)
        k = _parts().take(words.view(_U16)[15::16], mode="clip")  # 16 bits are always inside: "clip" only skips a check
        uniforms = words[::2].astype(np.float64)
        uniforms *= _WORD
        x, u = uniforms[::2], uniforms[1::2]
        p = x * _MINUS_HALF
        p -= k
        p *= x
        np.exp(p, out=p)
        p -= u
        kept = p > _ZERO
        np.abs(p, out=p)
        if not p[p.argmin()] > self._margin:  # argmin finds a NaN first
            for j in np.flatnonzero(~(p > self._margin)).tolist():
                k[j], kept[j] = _exactly(prf, 0, j, 0)
        hits = kept.nonzero()[0][:count]
        near = np.copysign(x + k, (words[3::4] * _TOP).view(np.float64))
        self.near, self._words, self._k, self._hits = near.take(hits), words, k, hits
        return len(hits) == count

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError("noise is not pickled: draw it again from its secret")


def _enough(count: int) -> int:
    """The number of attempts of which `count` are nearly always kept; on average 0.7148 of them are."""
    return count + count // 2 + 2 * math.isqrt(count)


def _exactly(prf: Prf, draw: int, cell: int, attempt: int) -> tuple[int, bool]:
    """k, and whether the attempt is kept, in exact arithmetic on as many bits as it takes."""
    bits = Expansion(prf, draw, cell, attempt)
    k = integer_part(bits)
    return k, accepts(k, bits)


class _Output:
    """The arrays that fill up, flat."""

    def __init__(self, size: int) -> None:
        self.sign = np.empty(size, dtype=np.int8)
        self.integer = np.empty(size, dtype=np.int64)
        self.hi = np.empty(size, dtype=np.uint64)
        self.lo = np.empty(size, dtype=np.uint64)

    def put(self, where: IntArray | slice, words: UIntArray, k: npt.NDArray[np.uint8]) -> None:
        """Write attempts into their places."""
        self.hi[where] = words[:, 0]
        self.lo[where] = words[:, 1]
        self.integer[where] = k
        self.sign[where] = 1 - 2 * (words.view(np.int8)[:, 24] & 1)  # the lowest byte of the last word

    def put_one(self, where: int, number: tuple[bool, int, int, int]) -> None:
        """Write one number into its place."""
        negative, self.integer[where], self.hi[where], self.lo[where] = number
        self.sign[where] = -1 if negative else 1

    def normals(self, shape: tuple[int, int]) -> Normals:
        """The finished numbers, read-only."""
        for array in (self.sign, self.integer, self.hi, self.lo):
            array.flags.writeable = False
            array.shape = shape
        return Normals(self.sign, self.integer, self.hi, self.lo)


def _rectangles(draws: range, cells: range) -> Iterator[tuple[int, range, range]]:
    """Split draws × cells into pieces that are contiguous in the output, with their offsets."""
    offset = 0
    if len(cells) <= _NUMBERS_AT_A_TIME:
        rows = _NUMBERS_AT_A_TIME // len(cells)
        for first in range(0, len(draws), rows):
            some = draws[first : first + rows]
            yield offset, some, cells
            offset += len(some) * len(cells)
    else:
        pieces = -(-len(cells) // _NUMBERS_AT_A_TIME)
        width = -(-len(cells) // pieces)
        for draw in draws:
            for first in range(0, len(cells), width):
                some = cells[first : first + width]
                yield offset, range(draw, draw + 1), some
                offset += len(some)


def _merge(pending: list[_Pending]) -> Iterator[_Pending]:
    """The same numbers in pieces of about one chunk."""
    group: list[_Pending] = []
    size = 0
    for piece in pending:
        group.append(piece)
        size += len(piece[0])
        if size >= _NUMBERS_AT_A_TIME // 2 or piece is pending[-1]:
            numbers, blocks = zip(*group, strict=True)
            yield np.concatenate(numbers), np.concatenate(blocks)
            group, size = [], 0
