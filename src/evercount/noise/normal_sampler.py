"""Exact standard normals from a secret, by (draw, cell) or in a row.

An attempt is z = ±(k + x): k has probability proportional to exp(−k²/2), x is uniform on [0, 1),
and it is kept if u < exp(−x (2k + x) / 2) for a uniform u. Attempts that are kept have exactly the
normal density (Karney 2016, "Sampling exactly from the normal distribution"). About 71 % are kept,
the others are drawn again.

Doubles decide whether an attempt is kept; within DECISION_MARGIN of the boundary exact integers
decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt

from evercount._validate import AnyArray, BoolArray, FloatArray, UIntArray, check_count
from evercount.errors import ParameterError, TooLarge
from evercount.noise.prf import (
    ATTEMPTS,
    DRAWS,
    SEQUENCE,
    Expansion,
    NamedPrf,
    Normals,
    Prf,
    accepts,
    check_cells,
    counters,
    integer_part,
    read_counter,
    set_attempt,
    thresholds,
)
from evercount.noise.secret import Secret

DECISION_MARGIN = 2.0**-36
"""Doubles decide only where p and u differ by more; they are then right: `normal_sampler.proof.md`,
lemma 3."""

# a longer `NormalSequence` is refused: `ExactNoise.normals` makes many numbers faster
LONGEST = 2**16

_NUMBERS_AT_A_TIME = 1 << 14  # the working set stays in the processor's cache
# where fewer numbers are left, each gets several attempts at once, up to these
_AT_ONCE = 1 << 11
_MOST_ATTEMPTS = 8
_UNIT_OF_53_BITS = 2.0**-53

# Constants of `NormalSequence` as arrays: numpy reads them faster than Python's numbers.
_ZERO = np.asarray(0.0)
_WORD = np.asarray(2.0**-64)
_MINUS_HALF = np.asarray(-0.5)
_TOP = np.asarray(2**63, np.uint64)
_U16 = np.dtype("<u2")
_U64 = np.dtype("<u8")


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
    """k by the leading 16 bits of v as doubles, NaN where a threshold lies inside: then no
    comparison holds."""
    k = _tables()[0]
    return np.where(k == 255, np.nan, k)


@lru_cache(maxsize=8)
def _row(attempts: int) -> bytes:
    """The counter blocks of a sequence: attempt j is the place (draw 0, cell j, attempt 0)."""
    return counters(range(1), range(attempts)).tobytes()


class ExactNoise:
    """Standard normals with 128 fractional bits: a pseudorandom function of (secret, draw, cell),
    stateless.

    **Guarantee.** For bits that are uniform (see `Prf`), the numbers of all (draw, cell) are
    independent, and each is a true standard normal z* cut toward zero to 128 fractional bits: there
    is a z* ~ N(0, 1) with the same sign and 0 ≤ |z*| − |z| < 2^−128. Every (secret, draw, cell)
    gives the same number on every machine and in every block. Proof: `normal_sampler.proof.md`.
    Assumption: `numpy.exp` errs by less than 2^−37 on arguments ≤ 0. Tests:
    `tests/noise/test_normal_sampler.py` (equality with a 200-digit reference, forced exact path,
    blocks, known answers), `tests/noise/test_normal_distribution.py`.

    Two streams must never share a secret: the same noise on different data would reveal the
    difference.

    With `names`, cell i stands for the name in place i, and its numbers are a function of (secret,
    draw, name).

    Args:
        secret: the key of the noise.
        names: one for each cell; None for numbered cells.

    Raises:
        ParameterError: it is not a `Secret`.

    >>> ExactNoise(Secret.from_hex("ab" * 32)).normals(0, 3, cells=2).shape
    (3, 2)
    """

    # tests make it larger: every decision then goes the exact way
    _margin: ClassVar[float] = DECISION_MARGIN

    def __init__(self, secret: Secret, names: Sequence[str] | None = None) -> None:
        self._prf = Prf(secret) if names is None else NamedPrf(secret, names)

    def normals(self, start: int, stop: int, cells: int, first_cell: int = 0) -> Normals:
        """Draws ``start … stop−1`` of `cells` cells from `first_cell` on, shape
        ``(stop − start, cells)``.

        Args:
            start: The first draw, from 0.
            stop: The draw after the last one.
            cells: The number of cells.
            first_cell: The number of the first cell.

        Returns:
            The numbers, which depend on the secret, the draw and the cell only.

        Raises:
            ParameterError: The draws or the cells are not a legal range.
            TooLarge: They are more than 2^31 numbers.
        """
        start = check_count("start", start, 0)
        stop = check_count("stop", stop, 0)
        if not start <= stop <= DRAWS:
            raise ParameterError(f"draws {start} to {stop} are not a range between 0 and 2^48")
        cells, first_cell = check_cells(stop - start, cells, first_cell, 0)
        shape = (stop - start, cells)
        out = Normals(
            sign=np.empty(shape, np.int8),
            integer=np.empty(shape, np.int64),
            fraction_hi=np.empty(shape, np.uint64),
            fraction_lo=np.empty(shape, np.uint64),
        )
        draws = range(start, stop)
        which = range(first_cell, first_cell + cells)
        width = min(max(cells, 1), _NUMBERS_AT_A_TIME)
        rows = _NUMBERS_AT_A_TIME // width
        for draw in range(0, len(draws), rows):
            for cell in range(0, cells, width):
                here = slice(draw, draw + rows), slice(cell, cell + width)
                words, k = self._first_kept(counters(draws[here[0]], which[here[1]]))
                sign = 1 - 2 * (words.view(np.int8)[:, 24] & 1)  # the lowest byte of the last word
                drawn: list[AnyArray] = [sign, k, words[:, 0], words[:, 1]]
                for part, numbers in zip(vars(out[here]).values(), drawn, strict=True):
                    part[:] = numbers.reshape(part.shape)
        for array in vars(out).values():
            array.flags.writeable = False
        return out

    def _first_kept(self, blocks: UIntArray) -> tuple[UIntArray, npt.NDArray[np.uint8]]:
        """Words and k of the first attempt that is kept, for each row of counters."""
        words, k, kept = self._attempt(blocks)
        left = (~kept).nonzero()[0]
        attempt = 1
        while len(left):
            # numpy's calls cost more than a few attempts
            count = min(max(1, _AT_ONCE // len(left)), _MOST_ATTEMPTS)
            trial = blocks.take(left, axis=0).repeat(count, axis=0).reshape(-1, count, 4)
            set_attempt(trial, np.arange(attempt, attempt + count))
            tried, integers, kept = self._attempt(trial.reshape(-1, 4))
            first = kept.reshape(-1, count).argmax(axis=1) + np.arange(0, len(kept), count)
            hit = kept.take(first)
            words[left[hit]] = tried.take(first[hit], axis=0)
            k[left[hit]] = integers.take(first[hit])
            left = left[~hit]
            attempt += count
            if attempt >= ATTEMPTS - _MOST_ATTEMPTS:
                raise AssertionError(
                    "65,000 attempts were rejected: the chance of that is below 2^−100000"
                )
        return words, k

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

    def __repr__(self) -> str:
        return "ExactNoise(Secret(…))"


class NormalSequence:
    """`count` exact standard normals in a row, a function of the secret alone: the quick way to
    draw a few hundred.

    Attempts 0, 1, 2, … are independent and alike, so those that are kept, in their order, are
    independent exact normals, and the first `count` of them are taken. A longer sequence of the
    same secret begins with the shorter one.

    **Guarantee.** For bits that are uniform (see `Prf`), the numbers z are independent, and each is
    a true standard normal cut toward zero to 128 fractional bits, as in `ExactNoise`; they are
    independent of all `ExactNoise.normals` of the same secret. `near` are doubles with |near − z| ≤
    2^−52·(1 + |z|). Proof: `normal_sampler.proof.md`, lemma 5. Assumption: as in `ExactNoise`.
    Tests: `tests/noise/test_normal_sequence.py` (equality with a 200-digit reference, forced exact
    path, ties, too few attempts, distribution with planted bugs).

    A secret serves one sequence: the same noise on different data would reveal the difference.
    """

    __slots__ = ("_hits", "_k", "_words", "near")
    # tests make it larger: every decision then goes the exact way
    _margin: ClassVar[float] = DECISION_MARGIN

    near: FloatArray
    """The numbers as doubles. A release that rounds them must ask `exact` wherever the error could
    matter."""

    def __init__(self, secret: Secret, count: int) -> None:
        count = check_count("count", count)
        if count > LONGEST:
            raise TooLarge(
                f"a sequence of {count} numbers is longer than {LONGEST}: use ExactNoise.normals"
            )
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
        # 16 bits are always inside: "clip" only skips a check
        k = _parts().take(words.view(_U16)[15::16], mode="clip")
        uniforms = words[::2].astype(np.float64)
        uniforms *= _WORD
        x = uniforms[::2]
        u = uniforms[1::2]
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
    """The number of attempts of which `count` are nearly always kept; on average 0.7148 of them
    are."""
    return count + count // 2 + 2 * math.isqrt(count)


def _exactly(prf: Prf, draw: int, cell: int, attempt: int) -> tuple[int, bool]:
    """k, and whether the attempt is kept, in exact arithmetic on as many bits as it takes."""
    bits = Expansion(prf, draw, cell, attempt)
    k = integer_part(bits)
    return k, accepts(k, bits)
