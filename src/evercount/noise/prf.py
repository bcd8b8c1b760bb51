"""Random bits as a function of (secret, draw, cell, attempt), and the exact normals and decisions
made of them.

The bits are AES-256 in counter mode, seekable to any block. A counter block is 16 bytes,
big-endian: draw (48 bits), attempt (16), cell (32), index (32). The key stream of an attempt is its
encrypted blocks of index 0, 1, 2, …: what AES-256-CTR gives when it starts at index 0. Blocks are
encrypted in ECB mode, because the counters of a request are not consecutive; each block comes out
as in CTR mode. Words are read little-endian, so every machine reads the same numbers.

    index 0        bits 1 … 128 of x: the first word holds the leading 64
    index 1        bits 1 … 64 of u; then bits 1 … 63 of v and, lowest, the sign
    index 2+3j     bits 128j+129 … 128j+256 of x, read only when fewer bits cannot decide a
                   comparison
    index 3+3j     bits 128j+65  … 128j+192 of u
    index 4+3j     bits 128j+64  … 128j+191 of v

The sampler's decisions are right for infinitely many random bits: each brackets a real number
between two integers over a power of two, and is taken only when the bracket lies on one side;
otherwise more random bits are read and the bracket is made narrower. `Normals` holds sign, integer
part and 128 fractional bits of many numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, SupportsIndex

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from evercount._validate import FloatArray, IntArray, UIntArray, check_count
from evercount.errors import ParameterError, TooLarge
from evercount.noise.secret import Secret, check_secret

EXACT_NOISE_LABEL = "evercount/noise/exact/1"
"""The label under which the AES key is derived; a new layout of bits needs a new label."""
SEQUENCE = "evercount/noise/sequence/1"
"""The label of the key of a `NormalSequence`: none of its blocks is also a block of other noise."""

# the label of the AES key of noise that belongs to names instead of numbered cells
NAMED = "evercount/noise/named/1"
NAMES = "evercount/noise/names/1"  # the label of the key with which names are hashed

DRAWS = 2**48  # draws are numbered below this
CELLS = 2**32  # cells are numbered below this
ATTEMPTS = 2**16  # attempts of one draw and cell are numbered below this
BLOCK_BYTES = 16  # the size of an AES block
# of so many names the hashes are remembered
MOST_HASHES = 1 << 18


def counter(draw: int, cell: int, attempt: int, index: int) -> bytes:
    """One counter block, 16 bytes."""
    return (((draw << 16 | attempt) << 32 | cell) << 32 | index).to_bytes(BLOCK_BYTES, "big")


def counters(draws: range | IntArray, cells: range) -> UIntArray:
    """The counter blocks of index 0 and 1, attempt 0, draw by draw: shape
    ``(len(draws) · len(cells), 4)``."""
    # The entries are raw bytes, two 64-bit words for each block; `set_attempt` writes the attempt
    # into them.
    blocks = np.empty((len(draws), len(cells), 4), dtype=np.uint64)
    upper = np.asarray(draws, dtype=np.uint64) << np.uint64(16)
    lower = np.arange(cells.start, cells.stop, dtype=np.uint64) << np.uint64(32)
    blocks[:, :, ::2] = upper.astype(">u8").view(np.uint64)[:, None, None]
    blocks[:, :, 1] = lower.astype(">u8").view(np.uint64)
    lower += np.uint64(1)
    blocks[:, :, 3] = lower.astype(">u8").view(np.uint64)
    return blocks.reshape(-1, 4)


def set_attempt(blocks: UIntArray, attempt: npt.NDArray[np.int64] | int) -> None:
    """Write the attempt into contiguous counters of shape ``(…, 4)``, in place."""
    fields = blocks.view(np.dtype(">u2"))
    fields[..., 3] = attempt
    fields[..., 11] = attempt


def read_counter(block: UIntArray) -> tuple[int, int, int]:
    """Draw, cell and attempt of one row of counters."""
    place = int.from_bytes(block[:2].tobytes(), "big")
    return place >> 80, place >> 32 & (CELLS - 1), place >> 64 & (ATTEMPTS - 1)


class Prf:
    """The key stream. It has no state: any number of threads and processes may share it.

    **Guarantee.** If AES-256 is a pseudorandom permutation and keyed BLAKE2b a pseudorandom
    function, then the blocks of distinct counters are independent uniform bits to anyone who does
    not know the secret, up to an advantage of (4·numbers)²·2^−129. Tests: `tests/noise/test_prf.py`
    (known answers, distinct counters).
    """

    def __init__(self, secret: Secret, label: str = EXACT_NOISE_LABEL) -> None:
        self._cipher = Cipher(
            algorithms.AES(bytes.fromhex(check_secret(secret).derive(label).hex())), modes.ECB()
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError("exact noise is not pickled: recreate it from its secret")

    def encrypt(self, blocks: bytes) -> bytes:
        """The key-stream blocks of counter blocks."""
        return self._cipher.encryptor().update(blocks)

    def number(self, draw: int, cell: int, attempt: int, index: int) -> int:
        """The 128 bits of one block, its first word leading."""
        block = self.encrypt(counter(draw, cell, attempt, index))
        return int.from_bytes(block[:8], "little") << 64 | int.from_bytes(block[8:], "little")

    def words(self, blocks: UIntArray) -> UIntArray:
        """The key stream of an array that `counters` returned: one row of four words (index 0
        and 1) per counter."""
        stream = np.empty(blocks.nbytes + BLOCK_BYTES, dtype=np.uint8)
        self._cipher.encryptor().update_into(blocks.reshape(-1).view(np.uint8).data, stream.data)
        return stream[: blocks.nbytes].view(np.dtype("<u8")).reshape(-1, 4)


class HashedNames(list[str]):
    """Names, and their hashes one after the other, under the secret that they are used with."""

    def __init__(self, names: Sequence[str], hashes: bytes) -> None:
        super().__init__(names)
        self.hashes = hashes


class NameHashes:
    """Keyed 128-bit hashes of names, some of them remembered: the same names have noise at many
    ticks."""

    def __init__(self, secret: Secret) -> None:
        key = bytes.fromhex(secret.derive(NAMES).hex())
        self._keyed = hashlib.blake2b(digest_size=BLOCK_BYTES, key=key, person=b"evercount.name")
        self._hashes: dict[str, bytes] = {}

    def of(self, names: Sequence[str]) -> HashedNames:
        """Hash names."""
        try:
            joined = b"".join(map(self._hashes.__getitem__, names))
        except KeyError:
            self._remember(names)
            joined = b"".join(map(self._hashes.__getitem__, names))
        return HashedNames(names, joined)

    def _remember(self, names: Sequence[str]) -> None:
        """Hash the names that are not remembered."""
        if len(self._hashes) > MOST_HASHES:
            self._hashes = {}
        for name in names:
            if name not in self._hashes:
                hashed = self._keyed.copy()
                hashed.update(name.encode())
                self._hashes[name] = hashed.digest()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError("hashes of names are not pickled: make them from their secret")


class NamedPrf(Prf):
    """The key stream of cells that have names: a function of (secret, name, draw, attempt),
    whatever the cell's number.

    A counter's cell is a place in `names`. The block that is encrypted is the counter of cell 0,
    xored with a 128-bit keyed hash of the name.

    **Guarantee.** If AES-256 is a pseudorandom permutation and keyed BLAKE2b a pseudorandom
    function, then the blocks of distinct (name, draw, attempt, index) are independent uniform bits
    to anyone who does not know the secret, up to twice (4·numbers)²·2^−129: blocks of one name have
    distinct counters, and blocks of two names meet with probability 2^−128 each. They tell nothing
    of the order, the number or the places of names. Tests:
    tests/noise/test_named_prf.py::test_noise_of_a_name_is_the_same_in_every_company and
    tests/noise/test_named_prf.py::test_names_have_independent_noise.
    """

    def __init__(self, secret: Secret, names: Sequence[str]) -> None:
        super().__init__(secret, NAMED)
        if not isinstance(names, HashedNames):
            names = NameHashes(secret).of(names)
        self._masks = np.frombuffer(names.hashes, np.uint64).reshape(-1, 2)

    def encrypt(self, blocks: bytes) -> bytes:
        return super().encrypt(self._with_name(np.frombuffer(blocks, np.uint64)).tobytes())

    def words(self, blocks: UIntArray) -> UIntArray:
        return super().words(self._with_name(blocks).reshape(-1, 4))

    def _with_name(self, blocks: UIntArray) -> UIntArray:
        """The blocks with the hash of the name in the place of the cell's number."""
        named = blocks.reshape(-1, 2).copy()
        fields = named.view(np.dtype(">u4"))
        cells = fields[:, 2].astype(np.intp)
        fields[:, 2] = 0
        named ^= self._masks[cells]
        return named


class Expansion:
    """The infinite binary expansions of x, u and v in one attempt. Blocks are read when a
    comparison needs them."""

    def __init__(self, prf: Prf, draw: int, cell: int, attempt: int) -> None:
        self._prf = prf
        self._place = (draw, cell, attempt)
        u, v = divmod(prf.number(*self._place, 1), 2**64)
        self._known = {"x": (prf.number(*self._place, 0), 128), "u": (u, 64), "v": (v >> 1, 63)}

    def prefix(self, name: str, bits: int) -> int:
        """The first `bits` bits of the expansion of "x", "u" or "v", as an integer below 2^bits."""
        value, length = self._known[name]
        while length < bits:
            rounds = length // 128 - (name == "x")
            more = self._prf.number(*self._place, 2 + "xuv".index(name) + 3 * rounds)
            value = value << 128 | more
            length += 128
        self._known[name] = (value, length)
        return value >> (length - bits)


GUARD = 32  # bits of precision beyond the random bits that a decision has read

BITS_PER_READ = 128  # how many more random bits are read when a decision is still open


def exp_minus(numerator: int, shift: int, bits: int) -> tuple[int, int]:
    """Integers lo ≤ 2^bits · exp(−y) ≤ hi for y = numerator / 2^shift ≥ 0. Proof:
    `normal_sampler.proof.md`."""
    halvings = max(0, numerator.bit_length() - shift + 4)  # then y / 2^halvings < 1/16
    work = bits + halvings + 16
    scale = work - shift - halvings
    below = numerator << scale if scale >= 0 else numerator >> -scale
    lo = _series(below + 1, work)[0]
    hi = _series(below, work)[1]
    for _ in range(halvings):
        lo = lo * lo >> work
        hi = -(-hi * hi >> work)
    drop = work - bits
    return lo >> drop, -(-hi >> drop)


def _series(argument: int, work: int) -> tuple[int, int]:
    """Integers 0 ≤ lo ≤ 2^work · exp(−argument / 2^work) ≤ hi, for 0 ≤ argument ≤ 2^work."""
    lo = hi = low_term = high_term = 1 << work
    number = 0
    while high_term > 1:
        number += 1
        low_term = (low_term * argument >> work) // number
        high_term = -((-high_term * argument >> work) // number)
        if number % 2:
            lo -= high_term
            hi -= low_term
        else:
            lo += low_term
            hi += high_term
    # What follows in the alternating series is smaller than its last term, which is at most one
    # unit.
    return max(0, lo - 1), hi + 1


def sums(bits: int, work: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Brackets, times 2^work, of Σ_{j≤k} exp(−j²/2) for k = 0, 1, … and of the sum over all j ≥
    0."""
    # The list stops at the first k for which exp(−k²/2) < 2^−bits.
    lo = hi = 1 << work
    brackets = [(lo, hi)]
    while hi >> (work - bits):
        lo, hi = exp_minus(len(brackets) ** 2, 1, work)
        brackets.append((brackets[-1][0] + lo, brackets[-1][1] + hi))
    # exp(−(j+1)²/2) < exp(−j²/2) / 2, so the tail beyond the last term is less than that term.
    return brackets, (brackets[-1][0], brackets[-1][1] + hi)


@lru_cache(maxsize=16)
def cumulative(bits: int) -> tuple[tuple[int, int], ...]:
    """Integers lo_k ≤ 2^bits · C_k ≤ hi_k, where C_k = Σ_{j≤k} exp(−j²/2) / Σ_{j≥0} exp(−j²/2)."""
    # The table stops at the first k for which exp(−k²/2) < 2^−bits: a v beyond it needs more bits.
    brackets, (total_lo, total_hi) = sums(bits, bits + 16)
    return tuple(((lo << bits) // total_hi, -((-hi << bits) // total_lo)) for lo, hi in brackets)


def integer_part(bits: Expansion) -> int:
    """The k with C_{k−1} ≤ v < C_k, for the infinite expansion v."""
    read = 63
    while True:
        v = bits.prefix("v", read)
        for k, (lo, hi) in enumerate(cumulative(read + GUARD)):
            if v + 1 << GUARD <= lo:
                return k
            if v << GUARD < hi:
                break
        read += BITS_PER_READ


def accepts(k: int, bits: Expansion) -> bool:
    """Whether u < exp(−x (2k + x) / 2), for the infinite expansions u and x."""
    read = BITS_PER_READ
    while True:
        x = bits.prefix("x", read)
        u = bits.prefix("u", read)
        shift = 2 * read + 1
        precision = read + GUARD
        lower = x * ((2 * k << read) + x)
        upper = (x + 1) * ((2 * k << read) + x + 1)
        if u + 1 << GUARD <= exp_minus(upper, shift, precision)[0]:
            return True
        if u << GUARD >= exp_minus(lower, shift, precision)[1]:
            return False
        read += BITS_PER_READ


@lru_cache(maxsize=1)
def thresholds() -> tuple[int, ...]:
    """⌊2^63 · C_k⌋ for k = 0, 1, …, up to and with the first that is 2^63 − 1 (and so are all after
    it)."""
    limits: list[int] = []
    for lo, hi in cumulative(63 + 64):
        if lo >> 64 != hi >> 64:
            break
        limits.append(lo >> 64)
        if limits[-1] == 2**63 - 1:
            return tuple(limits)
    raise AssertionError("the bracket of a threshold holds an integer: more bits are needed")


FRACTION_BITS = 128  # every exact normal is an integer multiple of 2^−FRACTION_BITS


MOST_NUMBERS = 2**31  # a request for more numbers at once is refused: about 50 GB would be written


def check_cells(draws: int, cells: int, first_cell: int, least: int) -> tuple[int, int]:
    """(number of cells, number of the first one), or a ParameterError; so many draws of them must
    fit at once."""
    cells = check_count("cells", cells, least)
    first_cell = check_count("first_cell", first_cell, 0)
    if first_cell + cells > CELLS:
        raise ParameterError(
            f"cells {first_cell} to {first_cell + cells} are not a range between 0 and 2^32"
        )
    if draws * cells > MOST_NUMBERS:
        raise TooLarge(
            f"{draws} draws × {cells} cells are more than 2^31 numbers: ask for fewer draws or "
            "cells at once"
        )
    return cells, first_cell


@dataclass(frozen=True, eq=False)
class Normals:
    """Numbers z = sign · (integer + (fraction_hi · 2^64 + fraction_lo) / 2^128), in arrays of one
    shape.

    Args:
        sign: the parts; `ExactNoise.normals` gives them.
        integer: the parts; `ExactNoise.normals` gives them.
        fraction_hi: the parts; `ExactNoise.normals` gives them.
        fraction_lo: the parts; `ExactNoise.normals` gives them.

    >>> one = np.ones((1, 1))
    >>> half, zero = (one * 2**63).astype("u8"), 0 * one.astype("u8")
    >>> Normals(-one.astype(np.int8), one.astype(int), half, zero).to_float()
    array([[-1.5]])
    """

    sign: npt.NDArray[np.int8]  # +1 or −1
    integer: npt.NDArray[np.int64]  # ⌊|z|⌋
    fraction_hi: UIntArray  # the upper 64 fractional bits
    fraction_lo: UIntArray  # the lower 64 fractional bits

    @property
    def shape(self) -> tuple[int, ...]:
        """``(draws, cells)``."""
        return self.integer.shape

    def __getitem__(self, index: Any) -> Normals:
        """The same numbers, indexed as an array: views where numpy gives views."""
        return Normals(
            sign=np.asarray(self.sign[index]),
            integer=np.asarray(self.integer[index]),
            fraction_hi=np.asarray(self.fraction_hi[index]),
            fraction_lo=np.asarray(self.fraction_lo[index]),
        )

    def to_float(self) -> FloatArray:
        """The numbers as doubles, relative error ≤ 2^−51. For display and tests, never for a
        release.

        Returns:
            An array of the same shape.
        """
        magnitude = self.fraction_lo * 2.0**-128 + self.fraction_hi * 2.0**-64 + self.integer
        return np.asarray(magnitude * self.sign, dtype=np.float64)

    def to_ints(self) -> npt.NDArray[np.object_]:
        """The exact values z · 2^128 as Python integers.

        Returns:
            An array of the same shape.
        """
        sign, integer, high, low = (part.astype(object) for part in vars(self).values())
        return np.asarray(sign * ((integer << 128) + (high << 64) + low), dtype=object)

    def slices(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Three doubles each: multiples of 2^−20, multiples of 2^−40 below 2^−20, and the rest
        below 2^−40.

        All have the sign of z. The first two are exact, the third is rounded: the sum is within
        2^−92 of z.

        Returns:
            Three arrays of the same shape.
        """
        sign = self.sign.astype(np.float64)
        high = self.fraction_hi
        first = _doubles(high >> np.uint64(44), 2.0**-20)
        first += self.integer
        first *= sign
        second = _doubles((high >> np.uint64(24)) & np.uint64(2**20 - 1), 2.0**-40)
        second *= sign
        third = _doubles(self.fraction_lo >> np.uint64(1), 2.0**-127)
        third += _doubles(high & np.uint64(2**24 - 1), 2.0**-64)
        third *= sign
        return first, second, third


def _doubles(words: UIntArray, unit: float) -> FloatArray:
    """Words below 2^63 times a unit; numpy converts signed integers faster than unsigned ones."""
    return np.asarray(words.view(np.int64) * unit, dtype=np.float64)
