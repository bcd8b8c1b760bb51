"""Exact normals: equal to a 200-digit reference, the same by every road, and exact in every
representation."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from multiprocessing import get_context

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import evercount.noise.normal_sampler as exact
from evercount.errors import ParameterError, TooLarge
from evercount.noise import FRACTION_BITS, ExactNoise, Normals, Secret
from evercount.noise.prf import (
    CELLS,
    DRAWS,
    Prf,
    _series,
    accepts,
    counter,
    counters,
    cumulative,
    exp_minus,
    integer_part,
    sums,
    thresholds,
)
from product_internals import tables_of_normals

KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"


def make(kind: type[ExactNoise] = ExactNoise) -> ExactNoise:
    return kind(Secret.from_hex(KEY))


class AlwaysExact(ExactNoise):
    """Every decision is closer than this margin, so every decision goes the exact way."""

    _margin = 2.0


# -- an independent reference ----------------------------------------------------------------------


def reference(draw: int, cell: int) -> int:
    """z · 2^128 by 200-digit arithmetic on 640 bits of each uniform, sharing no code with the
    package."""
    key = hashlib.blake2b(
        b"evercount/noise/exact/1",
        digest_size=32,
        key=bytes.fromhex(KEY),
        person=b"evercount.derive",
    ).digest()
    for attempt in range(100):
        start = (
            draw.to_bytes(6, "big")
            + attempt.to_bytes(2, "big")
            + cell.to_bytes(4, "big")
            + bytes(4)
        )
        stream = Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(16 * 16))
        w = [int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8)]
        expansions = {"x": f"{w[0]:064b}{w[1]:064b}", "u": f"{w[2]:064b}", "v": f"{w[3] >> 1:063b}"}
        for block in range(2, 14):
            expansions["xuv"[(block - 2) % 3]] += f"{w[2 * block]:064b}{w[2 * block + 1]:064b}"
        with mpmath.workdps(200):
            x, u, v = (
                mpmath.ldexp(mpmath.mpf(int(text, 2)), -len(text)) for text in expansions.values()
            )
            weights = [mpmath.exp(-mpmath.mpf(k * k) / 2) for k in range(40)]
            scaled, k = v * mpmath.fsum(weights), 0
            while scaled >= mpmath.fsum(weights[: k + 1]):
                k += 1
            if u < mpmath.exp(-x * (2 * k + x) / 2):
                return (-1 if w[3] & 1 else 1) * ((k << 128) + (w[0] << 64) + w[1])
    raise AssertionError


def test_equals_the_reference() -> None:
    draws, cells = 40, 5
    z = make().normals(1000, 1000 + draws, cells, first_cell=77).to_ints()
    expected = [[reference(1000 + d, 77 + c) for c in range(cells)] for d in range(draws)]
    assert z.tolist() == expected


@pytest.mark.parametrize(("draw", "cell"), [(0, 0), (DRAWS - 1, CELLS - 1), (2**40 + 5, 2**31)])
def test_equals_the_reference_at_the_corners(draw: int, cell: int) -> None:
    assert make().normals(draw, draw + 1, 1, first_cell=cell).to_ints()[0, 0] == reference(
        draw, cell
    )


@pytest.mark.parametrize(
    ("draws", "cells"), [(1, 3), (1, 200), (3, 500)], ids=["lone", "several", "many"]
)
def test_forced_exact_path_gives_identical_numbers(draws: int, cells: int) -> None:
    """With a margin of 2 no decision is left to doubles; every road of the sampler must agree with
    itself."""
    forced, usual = make(AlwaysExact).normals(0, draws, cells), make().normals(0, draws, cells)
    assert np.array_equal(forced.to_ints(), usual.to_ints())


def test_forced_path_is_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(exact, "accepts", lambda k, bits: counts.append(1) or accepts(k, bits))
    make(AlwaysExact).normals(0, 1, 100)
    assert len(counts) >= 300  # several attempts at once, each decided exactly
    counts.clear()
    make().normals(0, 10, 1000)
    assert not counts


KNOWN = {
    (0, 0): -386126470082527468936559677089982550050,
    (0, 1): 663004693465071090015618146160934811363,
    (1, 0): -439301365961767884555116807820970168490,
    (12345, 678): -524404091899636109934968652935957320164,
    (DRAWS - 1, CELLS - 1): -296670272447461248300595724571240377998,
}


def test_known_answers() -> None:
    """z · 2^128 for the key 00 01 … 1f. They may never change: stored streams are replayed from
    them."""
    for (draw, cell), answer in KNOWN.items():
        assert make().normals(draw, draw + 1, 1, first_cell=cell).to_ints()[0, 0] == answer


# -- the same number by every road -----------------------------------------------------------------


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, cells = 60, 90
    noise = make()
    whole = noise.normals(0, draws, cells).to_ints()
    for chunk in (1, 64, 700, 5000):
        monkeypatch.setattr(exact, "_NUMBERS_AT_A_TIME", chunk)
        assert np.array_equal(noise.normals(0, draws, cells).to_ints(), whole)
    monkeypatch.undo()
    by_rows = np.concatenate([noise.normals(d, d + 7, cells).to_ints() for d in range(0, 56, 7)])
    assert np.array_equal(by_rows, whole[:56])
    by_columns = np.concatenate(
        [noise.normals(0, draws, 15, first_cell=c).to_ints() for c in range(0, 90, 15)], 1
    )
    assert np.array_equal(by_columns, whole)
    for d, c in ((0, 0), (59, 89), (17, 3), (30, 88)):
        assert noise.normals(d, d + 1, 1, first_cell=c).to_ints()[0, 0] == whole[d, c]


def test_threads_do_not_matter() -> None:
    noise = make()
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda d: noise.normals(d, d + 1, 600).to_ints(), range(16)))
    assert np.array_equal(np.concatenate(parts), noise.normals(0, 16, 600).to_ints())


def in_a_child(draw: int) -> list[int]:
    return make().normals(draw, draw + 1, 9).to_ints()[0].tolist()


def test_processes_do_not_matter() -> None:
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(in_a_child, (5,)) == in_a_child(5)


def test_other_secrets_draws_and_cells_give_other_numbers() -> None:
    z = make().normals(0, 100, 100).to_ints()
    other = ExactNoise(Secret.from_hex(KEY[:-1] + "e")).normals(0, 100, 100).to_ints()
    assert len({*z.ravel().tolist(), *other.ravel().tolist()}) == 20000


def test_empty_requests() -> None:
    assert make().normals(4, 4, 3).shape == (0, 3)
    assert make().normals(4, 6, 0).to_ints().shape == (2, 0)
    assert make().normals(DRAWS, DRAWS, 0, first_cell=CELLS).slices()[0].shape == (0, 0)


@pytest.mark.parametrize(
    "request_",
    [
        (-1, 1, 1),
        (2, 1, 1),
        (0, DRAWS + 1, 1),
        (0, 1, -1),
        (0, 1, 1, -1),
        (0, 1, 1, CELLS),
        (0, 1, CELLS + 1),
    ],
)
def test_illegal_requests(request_: tuple[int, ...]) -> None:
    with pytest.raises(ParameterError):
        make().normals(*request_)


@pytest.mark.parametrize("bad", [1.0, "1", None, np.float64(1)])
def test_arguments_must_be_integers(bad: object) -> None:
    for request_ in ((bad, 1, 1), (0, bad, 1), (0, 1, bad), (0, 1, 1, bad)):
        with pytest.raises(ParameterError, match="whole number"):
            make().normals(*request_)  # type: ignore[arg-type]
    assert make().normals(np.int64(0), np.uint8(1), np.int32(1)).shape == (1, 1)  # type: ignore[arg-type]


def test_a_request_that_would_not_fit_is_refused() -> None:
    with pytest.raises(TooLarge, match="fewer draws"):
        make().normals(0, 2**20, 2**20)


# -- exact arithmetic ------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [10, 64, 160, 500])
def test_exp_minus_brackets_tightly(bits: int) -> None:
    rng = np.random.default_rng(1)
    cases = [(0, 0), (1, 0), (1, 300), (2000, 0), (1, 1), (2**70 - 1, 70)]
    cases += [(int(rng.integers(1, 2**60)), int(rng.integers(50, 70))) for _ in range(60)]
    with mpmath.workdps(300):
        for numerator, shift in cases:
            lo, hi = exp_minus(numerator, shift, bits)
            true = mpmath.ldexp(mpmath.exp(-mpmath.ldexp(mpmath.mpf(numerator), -shift)), bits)
            assert lo <= true <= hi
            assert lo >= 0
            assert hi - lo <= 2


@pytest.mark.parametrize("work", [6, 8, 11, 300, 900])
def test_series_brackets(work: int) -> None:
    """At few bits every argument that `exp_minus` can ask for; at many bits, and many terms, 200 of
    them."""
    step = max(1, (1 << work) // 3211)
    for argument in range(0, (1 << work) // 16 + 2, step):
        lo, hi = _series(argument, work)
        with mpmath.workdps(300):
            true = mpmath.ldexp(mpmath.exp(-mpmath.ldexp(mpmath.mpf(argument), -work)), work)
            assert 0 <= lo <= true <= hi


def test_tables_bracket_at_every_precision() -> None:
    """Few bits, so that the tail of the sum is not hidden by the rounding."""
    with mpmath.workdps(60):
        total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
        for bits in range(1, 100):
            for k, (lo, hi) in enumerate(cumulative(bits)):
                c = mpmath.fsum(mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1)) / total
                assert lo <= mpmath.ldexp(c, bits) <= hi
            partial, (lo, hi) = sums(bits, bits + 16)
            assert lo <= mpmath.ldexp(total, bits + 16) <= hi
            assert len(partial) == len(cumulative(bits))


def test_tables_bracket_the_distribution_of_k() -> None:
    with mpmath.workdps(200):
        total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
        for bits in (95, 223, 351):
            for k, (lo, hi) in enumerate(cumulative(bits)):
                c = mpmath.fsum(mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1)) / total
                assert lo <= mpmath.ldexp(c, bits) <= hi
                assert hi - lo <= 4
        for k, edge in enumerate(thresholds()):
            c = mpmath.fsum(mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1)) / total
            assert edge == int(mpmath.floor(mpmath.ldexp(c, 63)))
    assert thresholds()[-1] == 2**63 - 1


def test_fast_table_agrees_with_the_thresholds() -> None:
    table, edges = tables_of_normals()
    starts = np.arange(2**16, dtype=np.uint64) << np.uint64(47)
    ends = starts + np.uint64(2**47 - 1)
    for at in (starts, ends):
        k = np.searchsorted(edges, at)
        assert np.array_equal(table[table != 255], k[table != 255])
    assert not np.isin(edges, np.concatenate([starts, ends])[np.tile(table != 255, 2)]).any()
    assert 1 <= (table == 255).sum() <= len(edges)


class Bits:
    """Expansions written by hand: the given bits, then zeros."""

    def __init__(self, **numbers: tuple[int, int]) -> None:
        self.numbers = numbers
        self.most = 0

    def prefix(self, name: str, bits: int) -> int:
        value, length = self.numbers[name]
        self.most = max(self.most, bits)
        return value >> (length - bits) if bits <= length else value << (bits - length)


@pytest.mark.parametrize("k", [0, 1, 5, 12])
@pytest.mark.parametrize("agree", [100, 300, 700])
def test_acceptance_is_right_however_close(k: int, agree: int) -> None:
    """u equals exp(−y) in `agree` bits and differs only after them: more bits are read, and the
    answer is right."""
    x = 0x9E3779B97F4A7C15F39CC0605CEDC834
    with mpmath.workdps(400):
        real = mpmath.ldexp(mpmath.mpf(x), -128)
        p = int(mpmath.floor(mpmath.ldexp(mpmath.exp(-real * (2 * k + real) / 2), agree)))
    for u, answer in ((p, True), (p + 1, False)):
        bits = Bits(x=(x, 128), u=(u, agree))
        assert accepts(k, bits) is answer  # type: ignore[arg-type]
        assert bits.most >= agree


def test_acceptance_depends_on_the_bits_of_x_that_are_not_returned() -> None:
    """u lies between the p of the first 128 bits of x and the p of all of x: only the later bits of
    x can tell."""
    x, k = 2**120 + 987654321, 12
    ones = (x << 256) + 2**256 - 1
    with mpmath.workdps(400):
        p = [
            mpmath.exp(-real * (2 * k + real) / 2)
            for real in (mpmath.ldexp(mpmath.mpf(x), -128), mpmath.ldexp(mpmath.mpf(ones), -384))
        ]
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            u = int(mpmath.floor(mpmath.ldexp(p[1] + share * (p[0] - p[1]), 384)))
            assert accepts(k, Bits(x=(x, 128), u=(u, 384))) is True  # type: ignore[arg-type]
            assert accepts(k, Bits(x=(ones, 384), u=(u, 384))) is False  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, 1, 3, 8, 15])
@pytest.mark.parametrize("agree", [300, 600])
def test_integer_part_is_right_however_close(k: int, agree: int) -> None:
    with mpmath.workdps(400):
        total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
        c = mpmath.fsum(mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1)) / total
        edge = int(mpmath.floor(mpmath.ldexp(c, agree)))
    for v, answer in ((edge, k), (edge + 1, k + 1)):
        bits = Bits(v=(v, agree))
        assert integer_part(bits) == answer  # type: ignore[arg-type]
        assert bits.most >= agree


class Planted(Prf):
    """The real key stream, except for blocks that are written by hand: such ties are too rare to
    wait for."""

    def __init__(self, secret: Secret, blocks: dict[bytes, bytes]) -> None:
        super().__init__(secret)
        self.blocks = blocks

    def encrypt(self, blocks: bytes) -> bytes:
        real = super().encrypt(blocks)
        pieces = [
            self.blocks.get(blocks[i : i + 16], real[i : i + 16]) for i in range(0, len(blocks), 16)
        ]
        return b"".join(pieces)

    def words(self, blocks: np.ndarray) -> np.ndarray:
        return np.frombuffer(self.encrypt(blocks.tobytes()), "<u8").reshape(-1, 4).copy()


def little(*words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


@pytest.mark.parametrize("cells", [1, 50, 900], ids=["lone", "several", "many"])
@pytest.mark.parametrize("above", [False, True])
def test_a_tie_of_k_is_settled_by_more_bits(cells: int, above: bool) -> None:
    """v agrees with C_2 in 63 bits; the next block puts it on either side."""
    with mpmath.workdps(200):
        total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
        c = (1 + mpmath.exp(-0.5) + mpmath.exp(-2)) / total
        long = int(mpmath.floor(mpmath.ldexp(c, 191)))
    assert long >> 128 == thresholds()[2]
    rest = (long & (2**128 - 1)) + above
    noise = make()
    blocks = {
        counter(7, 0, 0, 0): little(0, 5),
        counter(7, 0, 0, 1): little(0, thresholds()[2] << 1),  # u = 0: kept
        counter(7, 0, 0, 4): little(rest >> 64, rest & (2**64 - 1)),
    }
    noise._prf = Planted(Secret.from_hex(KEY), blocks)
    assert noise.normals(7, 8, cells).to_ints()[0, 0] == ((3 if above else 2) << 128) + 5


@pytest.mark.parametrize("cells", [1, 50, 900], ids=["lone", "several", "many"])
@pytest.mark.parametrize("above", [False, True])
def test_a_close_acceptance_is_settled_by_more_bits(cells: int, above: bool) -> None:
    """u agrees with exp(−x²/2) in 64 bits; the next block puts it on either side."""
    x = 2**127 + 12345
    with mpmath.workdps(200):
        real = mpmath.ldexp(mpmath.mpf(x), -128)
        long = int(mpmath.floor(mpmath.ldexp(mpmath.exp(-(real**2) / 2), 192))) + above
    blocks = {
        counter(7, 0, 0, 0): little(x >> 64, x & (2**64 - 1)),
        counter(7, 0, 0, 1): little(long >> 128, 1),  # v = 0: k = 0, negative
        counter(7, 0, 0, 2): little(0, 0),
        counter(7, 0, 0, 3): little(long >> 64 & (2**64 - 1), long & (2**64 - 1)),
    }
    noise = make()
    noise._prf = Planted(Secret.from_hex(KEY), blocks)
    z = noise.normals(7, 8, cells).to_ints()[0, 0]
    assert (z == -x) is not above


def test_doubles_are_far_more_accurate_than_the_margin_needs() -> None:
    """Lemma 3 of the proof assumes exp right to 2^−37; and the whole computed p is measured against
    the truth."""
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**64, (3000, 2), dtype=np.uint64)
    k = rng.integers(0, 13, 3000)
    x = (words[:, 0] >> np.uint64(11)).view(np.int64) * 2.0**-53
    y = -0.5 * ((x + k + k) * x)
    with mpmath.workdps(60):
        for number, computed in enumerate(np.exp(y)):
            argument = mpmath.mpf(float(y[number]))
            assert abs(computed - mpmath.exp(argument)) < 2.0**-45
            real = (
                int(words[number, 0]) + mpmath.ldexp(mpmath.mpf(int(words[number, 1])), -64)
            ) / 2**64
            true = mpmath.exp(-real * (2 * int(k[number]) + real) / 2)
            assert abs(computed - true) < exact.DECISION_MARGIN / 2**8


# -- representations -------------------------------------------------------------------------------


def extremes() -> Normals:
    top = 2**64 - 1
    k = np.array([[0, 0, 1, 7, 63, 127, 1000, 0]])
    hi = np.array([[0, 0, top, 1 << 63, top, top, top, 0]], dtype=np.uint64)
    lo = np.array([[0, 1, top, 1, top, top, top, top]], dtype=np.uint64)
    return Normals(np.array([[1, -1, 1, -1, -1, 1, -1, 1]], dtype=np.int8), k, hi, lo)


@pytest.mark.parametrize("source", ["drawn", "extremes"])
def test_slices_add_up_to_the_number(source: str) -> None:
    z = make().normals(0, 30, 20) if source == "drawn" else extremes()
    first, second, third = z.slices()
    for part, bits in ((first, 20), (second, 40)):
        assert np.array_equal(np.ldexp(part, bits), np.rint(np.ldexp(part, bits)))
    assert np.abs(second).max() < 2.0**-20
    assert np.abs(third).max() <= 2.0**-40
    for part in (first, second, third):
        assert np.all(part * z.sign >= 0)
    for number, *parts in zip(
        z.to_ints().ravel(), first.ravel(), second.ravel(), third.ravel(), strict=True
    ):
        total = sum(Fraction(float(part)) for part in parts)
        assert abs(total - Fraction(int(number), 2**FRACTION_BITS)) <= Fraction(1, 2**92)


def test_floats_are_close() -> None:
    for z in (make().normals(0, 50, 20), extremes()):
        for value, number in zip(z.to_float().ravel(), z.to_ints().ravel(), strict=True):
            with mpmath.workdps(60):
                true = mpmath.mpf(number) / 2**FRACTION_BITS
                assert abs(value - true) <= abs(true) * 2.0**-51


def test_results_are_read_only_and_slices_agree() -> None:
    z = make().normals(0, 9, 4)
    assert z.to_ints()[2:5].tolist() == z[2:5].to_ints().tolist()
    assert z.shape == (9, 4)
    for array in (z.sign, z.integer, z.fraction_hi, z.fraction_lo):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


def test_counters_for_the_same_place_are_the_same_however_made() -> None:
    blocks = counters(range(5, 8), range(3, 9)).reshape(3, 6, 4)
    assert blocks[1, 2].tobytes() == counter(6, 5, 0, 0) + counter(6, 5, 0, 1)
