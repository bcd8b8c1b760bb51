"""The key stream: AES-256-CTR as the library itself computes it, known answers, and distinct
counters."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from evercount.noise import Secret
from evercount.noise.prf import (
    ATTEMPTS,
    CELLS,
    DRAWS,
    EXACT_NOISE_LABEL,
    Expansion,
    Prf,
    counter,
    counters,
    read_counter,
    set_attempt,
)

KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
PLACES = [(0, 0, 0), (1, 2, 3), (DRAWS - 1, CELLS - 1, ATTEMPTS - 1), (123456789012, 987654321, 5)]


def ctr_stream(draw: int, cell: int, attempt: int, length: int) -> bytes:
    """The key stream computed independently: hashlib for the key, the library's own CTR mode for
    the blocks."""
    key = hashlib.blake2b(
        EXACT_NOISE_LABEL.encode(),
        digest_size=32,
        key=bytes.fromhex(KEY),
        person=b"evercount.derive",
    ).digest()
    start = (
        draw.to_bytes(6, "big") + attempt.to_bytes(2, "big") + cell.to_bytes(4, "big") + bytes(4)
    )
    return Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(length))


def test_cipher_is_aes_256() -> None:
    """Known answer of FIPS 197, appendix C.3."""
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    cipher = Cipher(algorithms.AES(bytes.fromhex(KEY)), modes.ECB()).encryptor()
    assert cipher.update(plain).hex() == "8ea2b7ca516745bfeafc49904b496089"


KNOWN = {
    (0, 0, 0): "df626b81cb407d222290755abe6f702b966e5b9eaf038aba23bd926d3a35dcb2",
    (1, 2, 3): "0d314f4649fbe8048c9f4efd79e89c54ce07e2fddc6fdaa1a4c00b9b2d9e4165",
    (
        DRAWS - 1,
        CELLS - 1,
        ATTEMPTS - 1,
    ): "0a51d0e614ab8503dc8df98dc92c94759048d24e31eb4ca4732718ccc1b8594c",
    (
        123456789012,
        987654321,
        5,
    ): "3c9d2b658639ad9e76e982cc0170d83a784014560e1551ac49fcd80c414a0309",
}


def test_known_answers() -> None:
    prf = Prf(Secret.from_hex(KEY))
    for place, answer in KNOWN.items():
        assert prf.encrypt(counter(*place, 0) + counter(*place, 1)).hex() == answer


@pytest.mark.parametrize("place", PLACES)
def test_key_stream_is_ctr_mode(place: tuple[int, int, int]) -> None:
    prf = Prf(Secret.from_hex(KEY))
    blocks = b"".join(counter(*place, index) for index in range(40))
    assert prf.encrypt(blocks) == ctr_stream(*place, 40 * 16)


@pytest.mark.parametrize("place", PLACES)
def test_vectorised_words_are_the_same_stream(place: tuple[int, int, int]) -> None:
    draw, cell, attempt = place
    first_draw, first_cell = max(0, draw - 2), max(0, cell - 4)
    blocks = counters(range(first_draw, draw + 1), range(first_cell, cell + 1))
    set_attempt(blocks, attempt)
    words = Prf(Secret.from_hex(KEY)).words(blocks)
    assert words[-1].astype("<u8").tobytes() == ctr_stream(*place, 32)
    assert words[0].astype("<u8").tobytes() == ctr_stream(first_draw, first_cell, attempt, 32)
    assert read_counter(blocks[-1]) == place


@pytest.mark.parametrize("place", PLACES)
def test_expansions_read_every_block_once(place: tuple[int, int, int]) -> None:
    stream = ctr_stream(*place, 16 * 20)
    words = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
    expected = {
        "x": f"{words[0]:064b}{words[1]:064b}",
        "u": f"{words[2]:064b}",
        "v": f"{words[3] >> 1:063b}",
    }
    for number in range(6):
        for which, name in enumerate("xuv"):
            at = 2 * (2 + which + 3 * number)
            expected[name] += f"{words[at]:064b}{words[at + 1]:064b}"
    bits = Expansion(Prf(Secret.from_hex(KEY)), *place)
    for name, text in expected.items():
        for length in (1, 63, 64, 128, 129, 500, 700, 40):
            assert bits.prefix(name, length) == int(text[:length], 2)


def test_counters_are_distinct_over_every_field() -> None:
    fields = [(d, c, a, i) for d in (0, 1, 2**16, DRAWS - 1) for c in (0, 1, 2**16, CELLS - 1)
              for a in (0, 1, ATTEMPTS - 1) for i in (0, 1, 2, 2**16)]  # fmt: skip
    made = {counter(*field) for field in fields}
    assert len(made) == len(fields)
    assert all(len(block) == 16 for block in made)


def test_other_secrets_give_other_streams() -> None:
    blocks = counters(range(2), range(50))
    one, two = (Prf(Secret.from_hex(key)).words(blocks) for key in (KEY, KEY[:-1] + "e"))
    assert not np.intersect1d(one, two).size
