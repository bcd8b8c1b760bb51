"""Random bits as a function of (secret, draw, cell, attempt): AES-256 in counter mode, seekable to any block.

A counter block is 16 bytes, big-endian: draw (48 bits), attempt (16), cell (32), index (32). The key stream
of an attempt is its encrypted blocks of index 0, 1, 2, …: what AES-256-CTR gives when it starts at index 0.
Blocks are encrypted in ECB mode, because the counters of a request are not consecutive; each block comes out
as in CTR mode. Words are read little-endian, so every machine reads the same numbers.

    index 0        bits 1 … 128 of x: the first word holds the leading 64
    index 1        bits 1 … 64 of u; then bits 1 … 63 of v and, lowest, the sign
    index 2+3j     bits 128j+129 … 128j+256 of x, read only when fewer bits cannot decide a comparison
    index 3+3j     bits 128j+65  … 128j+192 of u
    index 4+3j     bits 128j+64  … 128j+191 of v
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from evercount._arrays import IntArray, UIntArray
from evercount.noise.secret import Secret, check_secret

EXACT_NOISE_LABEL = "evercount/noise/exact/1"
"""The label under which the AES key is derived; a new layout of bits needs a new label."""
SEQUENCE = "evercount/noise/sequence/1"
"""The label of the key of a `NormalSequence`: none of its blocks is also a block of other noise."""

NAMED = "evercount/noise/named/1"  # the label of the AES key of noise that belongs to names instead of numbered cells
NAMES = "evercount/noise/names/1"  # the label of the key with which names are hashed

DRAWS = 2**48  # draws are numbered below this
CELLS = 2**32  # cells are numbered below this
ATTEMPTS = 2**16  # attempts of one draw and cell are numbered below this
BLOCK_BYTES = 16  # the size of an AES block


def counter(draw: int, cell: int, attempt: int, index: int) -> bytes:
    """One counter block, 16 bytes."""
    return (((draw << 16 | attempt) << 32 | cell) << 32 | index).to_bytes(BLOCK_BYTES, "big")


def counters(draws: range | IntArray, cells: range) -> UIntArray:
    """The counter blocks of index 0 and 1, attempt 0, draw by draw: shape ``(len(draws) · len(cells), 4)``."""
    # The entries are raw bytes, two 64-bit words for each block; `set_attempt` writes the attempt into them.
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


def switching_bound(numbers: int) -> float:
    """A bound on the advantage of telling AES's permutation from a random function, for this many normals."""
    # It is E[q²]/2^129 for q blocks. An attempt uses 2, and the number A of attempts is geometric with mean 1.4: E[A²]
    # = 2.5, so E[q²] ≤ 4 · 2.5 · numbers² < (4 · numbers)².
    return (4.0 * numbers) ** 2 * 2.0**-129


class Prf:
    """The key stream. It has no state: any number of threads and processes may share it.

    **Guarantee.** If AES-256 is a pseudorandom permutation and keyed BLAKE2b a pseudorandom function, then
    the blocks of distinct counters are independent uniform bits to anyone who does not know the secret, up to an
    advantage of `switching_bound`. Tests: `tests/noise/test_prf.py` (known answers, distinct counters).
    """

    def __init__(self, secret: Secret, label: str = EXACT_NOISE_LABEL) -> None:
        self._cipher = Cipher(algorithms.AES(bytes.fromhex(check_secret(secret).derive(label).hex())), modes.ECB())

    def encrypt(self, blocks: bytes) -> bytes:
        """The key-stream blocks of counter blocks."""
        return self._cipher.encryptor().update(blocks)

    def words(self, blocks: UIntArray) -> UIntArray:
        """The key stream of an array that `counters` returned: one row of four words (index 0 and 1) per counter."""
        stream = np.empty(blocks.nbytes + BLOCK_BYTES, dtype=np.uint8)
        self._cipher.encryptor().update_into(blocks.reshape(-1).view(np.uint8).data, stream.data)
        return stream[: blocks.nbytes].view(np.dtype("<u8")).reshape(-1, 4)


class NamedPrf(Prf):
    """The key stream of cells that have names: a function of (secret, name, draw, attempt), whatever the cell's number.

    A counter's cell is a place in `names`. The block that is encrypted is the counter of cell 0, xored with a 128-bit
    keyed hash of the name.

    **Guarantee.** If AES-256 is a pseudorandom permutation and keyed BLAKE2b a pseudorandom function, then the blocks
    of distinct (name, draw, attempt, index) are independent uniform bits to anyone who does not know the secret, up to
    twice `switching_bound`: blocks of one name have distinct counters, and blocks of two names meet with probability
    2^−128 each. They tell nothing of the order, the number or the places of names. Tests:
    tests/noise/test_named_prf.py::test_noise_of_a_name_is_the_same_in_every_company and
    tests/noise/test_named_prf.py::test_names_have_independent_noise.
    """

    def __init__(self, secret: Secret, names: Sequence[str]) -> None:
        super().__init__(secret, NAMED)
        key = bytes.fromhex(secret.derive(NAMES).hex())
        hashes = (
            hashlib.blake2b(name.encode(), digest_size=BLOCK_BYTES, key=key, person=b"evercount.name").digest()
            for name in names
        )
        self._masks = np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2)

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
    """The infinite binary expansions of x, u and v in one attempt. Blocks are read when a comparison needs them."""

    def __init__(self, prf: Prf, draw: int, cell: int, attempt: int) -> None:
        self._prf = prf
        self._place = (draw, cell, attempt)
        head = self._block(0) + self._block(1)
        words = [int.from_bytes(head[8 * i : 8 * i + 8], "little") for i in range(4)]
        self.negative = bool(words[3] & 1)
        self._known = {"x": (words[0] << 64 | words[1], 128), "u": (words[2], 64), "v": (words[3] >> 1, 63)}

    def _block(self, index: int) -> bytes:
        return self._prf.encrypt(counter(*self._place, index))

    def prefix(self, name: str, bits: int) -> int:
        """The first `bits` bits of the expansion of "x", "u" or "v", as an integer below 2^bits."""
        value, length = self._known[name]
        while length < bits:
            rounds = length // 128 - (name == "x")
            block = self._block(2 + "xuv".index(name) + 3 * rounds)
            first, second = (int.from_bytes(block[i : i + 8], "little") for i in (0, 8))
            value, length = value << 128 | first << 64 | second, length + 128
        self._known[name] = (value, length)
        return value >> (length - bits)
