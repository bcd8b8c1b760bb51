"""Exact normals in a row: equal to a 200-digit reference, however many attempts are made at once,
and normal."""

from __future__ import annotations

import copy
import hashlib
import pickle
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import special, stats

import evercount.noise.normal_sampler as exact
from evercount.errors import ParameterError, TooLarge
from evercount.noise import ExactNoise, Secret
from evercount.noise.normal_sampler import LONGEST, NormalSequence
from evercount.noise.prf import EXACT_NOISE_LABEL, SEQUENCE, Prf, accepts, counter, thresholds
from product_internals import tables_of_normals
from wrapped_functions import wrap

KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"


def secret() -> Secret:
    return Secret.from_hex(KEY)


def ints(sequence: NormalSequence) -> list[int]:
    return [sequence.exact(number) for number in range(len(sequence))]


class AlwaysExact(NormalSequence):
    """Every decision is closer than this margin, so every decision goes the exact way."""

    _margin = 2.0


# -- an independent reference ----------------------------------------------------------------------


@lru_cache(maxsize=1)
def attempts() -> list[int | None]:
    """z · 2^128 of each attempt, None if rejected, by 200-digit arithmetic that shares no code with
    the package."""
    key = hashlib.blake2b(
        b"evercount/noise/sequence/1",
        digest_size=32,
        key=bytes.fromhex(KEY),
        person=b"evercount.derive",
    ).digest()
    made: list[int | None] = []
    with mpmath.workdps(200):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / 2) for k in range(40)]
        total = mpmath.fsum(weights)
        for j in range(400):
            start = bytes(8) + j.to_bytes(4, "big") + bytes(4)
            stream = (
                Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(16 * 16))
            )
            w = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
            expansions = {
                "x": f"{w[0]:064b}{w[1]:064b}",
                "u": f"{w[2]:064b}",
                "v": f"{w[3] >> 1:063b}",
            }
            for block in range(2, 14):
                expansions["xuv"[(block - 2) % 3]] += f"{w[2 * block]:064b}{w[2 * block + 1]:064b}"
            x, u, v = (
                mpmath.ldexp(mpmath.mpf(int(text, 2)), -len(text)) for text in expansions.values()
            )
            k = 0
            while v * total >= mpmath.fsum(weights[: k + 1]):
                k += 1
            kept = u < mpmath.exp(-x * (2 * k + x) / 2)
            made.append(
                (-1 if w[3] & 1 else 1) * ((k << 128) + (w[0] << 64) + w[1]) if kept else None
            )
    return made


def test_equals_the_reference() -> None:
    expected = [z for z in attempts() if z is not None]
    assert 240 < len(expected) < 330
    for count in (1, 2, 128, 230):
        assert ints(NormalSequence(secret(), count)) == expected[:count]


def test_forced_exact_path_gives_identical_numbers() -> None:
    """With a margin of 2 no decision is left to doubles."""
    for number in range(10):
        own = secret().derive(str(number))
        forced, usual = AlwaysExact(own, 50), NormalSequence(own, 50)
        assert ints(forced) == ints(usual)
        assert np.array_equal(forced.near, usual.near)


def test_forced_path_is_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(exact, "accepts", lambda k, bits: counts.append(1) or accepts(k, bits))
    AlwaysExact(secret(), 100)
    assert len(counts) == exact._enough(100)
    counts.clear()
    NormalSequence(secret(), 100)
    assert not counts


@pytest.mark.parametrize("first", [1, 7, 100])
def test_too_few_attempts_are_made_again(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers do not depend on how many attempts are made at once."""
    usual = ints(NormalSequence(secret(), 128))
    made: list[int] = []
    monkeypatch.setattr(exact, "_enough", lambda count: first)
    wrap(monkeypatch, exact, "_row", lambda row, count: made.append(count) or row(count))
    assert ints(NormalSequence(secret(), 128)) == usual
    assert len(made) > 1
    assert made == [first << i for i in range(len(made))]


def test_a_longer_sequence_begins_with_the_shorter_one() -> None:
    long = ints(NormalSequence(secret(), 9000))
    for count in (1, 3, 500, 8192):
        assert ints(NormalSequence(secret(), count)) == long[:count]
    assert len(set(long)) == 9000


KNOWN = [
    -105271896550733032490859803369124508427,
    -343580621483085273204623504949753680330,
    -244065662943222815318373794549861478913,
]


def test_known_answers() -> None:
    """z · 2^128 for the key 00 01 … 1f."""
    assert ints(NormalSequence(secret(), 3)) == KNOWN


def test_doubles_are_near() -> None:
    sequence = NormalSequence(secret(), 2000)
    for near, number in zip(sequence.near.tolist(), ints(sequence), strict=True):
        with mpmath.workdps(60):
            true = mpmath.mpf(number) / 2**128
            assert abs(near - true) <= 2.0**-52 * (1 + abs(true))


def test_it_shares_no_block_with_other_noise() -> None:
    """The key has a label of its own: at the same places the other key gives other numbers."""
    assert SEQUENCE != EXACT_NOISE_LABEL
    sequence = ints(NormalSequence(secret(), 500))
    assert not set(sequence) & set(ExactNoise(secret()).normals(0, 1, 1000).to_ints()[0].tolist())
    other = ints(NormalSequence(Secret.from_hex(KEY[:-1] + "e"), 500))
    assert not set(sequence) & set(other)


# -- close decisions, planted ----------------------------------------------------------------------


class Planted(Prf):
    """The real key stream, except for blocks that are written by hand: such ties are too rare to
    wait for."""

    blocks: dict[bytes, bytes] = {}  # noqa: RUF012

    def encrypt(self, blocks: bytes) -> bytes:
        real = super().encrypt(blocks)
        pieces = [
            self.blocks.get(blocks[i : i + 16], real[i : i + 16]) for i in range(0, len(blocks), 16)
        ]
        return b"".join(pieces)


def little(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def planted(monkeypatch: pytest.MonkeyPatch, blocks: dict[bytes, bytes]) -> int:
    """The first number when these blocks are planted."""
    monkeypatch.setattr(Planted, "blocks", blocks)
    monkeypatch.setattr(exact, "Prf", Planted)
    return NormalSequence(secret(), 128).exact(0)


@pytest.mark.parametrize("above", [False, True])
def test_a_tie_of_k_is_settled_by_more_bits(above: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """v agrees with C_2 in 63 bits; the next block puts it on either side."""
    with mpmath.workdps(200):
        total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
        long = int(mpmath.floor(mpmath.ldexp((1 + mpmath.exp(-0.5) + mpmath.exp(-2)) / total, 191)))
    rest = (long & (2**128 - 1)) + (1 if above else -1)
    blocks = {
        counter(0, 0, 0, 0): little(0, 5),
        counter(0, 0, 0, 1): little(0, thresholds()[2] << 1),  # u = 0: kept
        counter(0, 0, 0, 4): little(rest >> 64, rest & (2**64 - 1)),
    }
    assert planted(monkeypatch, blocks) == ((3 if above else 2) << 128) + 5


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("step", [-1, 1])
def test_every_threshold_is_searched_where_the_table_is_too_coarse(
    k: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v one unit of 2^−63 to either side of C_k: the table of leading bits has no answer."""
    v = thresholds()[k] + step
    blocks = {counter(0, 0, 0, 0): little(0, 7), counter(0, 0, 0, 1): little(0, v << 1 | 1)}
    assert planted(monkeypatch, blocks) == -((k + (step > 0) << 128) + 7)


@pytest.mark.parametrize("above", [False, True])
def test_a_close_acceptance_is_settled_by_more_bits(
    above: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """u agrees with exp(−x²/2) in 64 bits; the next block puts it on either side."""
    x = 2**127 + 12345
    with mpmath.workdps(200):
        real = mpmath.ldexp(mpmath.mpf(x), -128)
        long = int(mpmath.floor(mpmath.ldexp(mpmath.exp(-(real**2) / 2), 192))) + (
            1 if above else -1
        )
    blocks = {
        counter(0, 0, 0, 0): little(x >> 64, x & (2**64 - 1)),
        counter(0, 0, 0, 1): little(long >> 128, 1),  # v = 0: k = 0, negative
        counter(0, 0, 0, 2): little(0, 0),
        counter(0, 0, 0, 3): little(long >> 64 & (2**64 - 1), long & (2**64 - 1)),
    }
    assert (planted(monkeypatch, blocks) == -x) is not above


def test_the_table_holds_k_or_nan() -> None:
    table, parts = tables_of_normals()[0], exact._parts()
    assert np.array_equal(np.isnan(parts), table == 255)
    assert np.array_equal(parts[table != 255], table[table != 255])


# -- the distribution ------------------------------------------------------------------------------

ACCEPT, REJECT = 1e-3, 1e-4  # p-values: the secret is fixed, so the tests are deterministic


def sample() -> np.ndarray:
    """2^20 numbers, from 16 secrets."""
    own = Secret.from_hex("8f" * 32)
    return np.concatenate([NormalSequence(own.derive(str(i)), LONGEST).near for i in range(16)])


def chi_square(z: np.ndarray) -> float:
    """128 cells of equal probability."""
    edges = special.ndtri(np.arange(1, 128) / 128)
    return float(stats.chisquare(np.bincount(np.searchsorted(edges, z), minlength=128)).pvalue)


def neighbours(z: np.ndarray) -> float:
    """The 8 × 8 table of consecutive pairs, cells of equal probability: independence and the
    marginal at once."""
    cell = np.searchsorted(special.ndtri(np.arange(1, 8) / 8), z)
    pairs = cell[0::2] * 8 + cell[1::2]
    return float(stats.chisquare(np.bincount(pairs, minlength=64)).pvalue)


def test_numbers_are_normal_and_independent() -> None:
    z = sample()
    assert chi_square(z) > ACCEPT
    assert neighbours(z) > ACCEPT
    mixed = (z[1:] + 0.05 * z[:-1]) / np.hypot(1, 0.05)  # planted: neighbours are correlated
    assert neighbours(mixed[:-1]) < REJECT
    assert chi_square(0.97 * z) < REJECT


@pytest.mark.parametrize(
    ("name", "value"), [("_ZERO", -2.0), ("_ZERO", 0.02), ("_MINUS_HALF", -0.45)]
)
def test_a_planted_bug_is_caught(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rejected; close ones are always rejected; a wrong exponent."""
    monkeypatch.setattr(exact, name, np.asarray(value))
    assert chi_square(sample()) < REJECT


# -- what is refused -------------------------------------------------------------------------------


def test_illegal_requests() -> None:
    for count in (0, -1, 1.0, "1", None):
        with pytest.raises(ParameterError):
            NormalSequence(secret(), count)  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match="normals"):
        NormalSequence(secret(), LONGEST + 1)
    with pytest.raises(ParameterError, match="Secret"):
        NormalSequence(KEY, 3)  # type: ignore[arg-type]


def test_it_is_not_pickled_and_shows_nothing() -> None:
    sequence = NormalSequence(secret(), 3)
    for action in (pickle.dumps, copy.copy):
        with pytest.raises(ParameterError):
            action(sequence)
    assert "[" not in repr(sequence)
