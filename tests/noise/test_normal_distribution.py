"""Exact normals are standard normal and independent; every check must also reject a planted fault.

The secret is fixed, so the tests are deterministic. A check passes at a p-value above ACCEPT (or a
score below 4.5 standard errors, p = 7e-6), and every planted fault must fall below REJECT (or above
6, p = 2e-9).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from evercount.noise import ExactNoise, Normals, Secret
from evercount.noise.prf import Prf, cumulative, thresholds
from soak_cases import soak_except

pytestmark = pytest.mark.slow

SECRET = "8f" * 32
DRAWS, CELLS = 1000, 1000
ACCEPT, REJECT = 1e-3, 1e-4
LOW, HIGH = 4.5, 6.0

Sample = np.ndarray


@lru_cache(maxsize=1)
def numbers() -> Normals:
    return ExactNoise(Secret.from_hex(SECRET)).normals(0, DRAWS, CELLS)


@lru_cache(maxsize=1)
def sample() -> Sample:
    z = numbers().to_float()
    z.flags.writeable = False
    return z


def truncated(z: Sample, at: float) -> Sample:
    """The tail beyond `at` is folded back inside."""
    return np.where(np.abs(z) > at, z / 2, z)


# -- the marginal distribution: p-values -----------------------------------------------------------


def chi_square(z: Sample) -> float:
    """128 cells of equal probability."""
    edges = special.ndtri(np.arange(1, 128) / 128)
    counts = np.bincount(np.searchsorted(edges, z.ravel()), minlength=128)
    return float(stats.chisquare(counts).pvalue)


def kolmogorov_smirnov(z: Sample) -> float:
    return float(stats.kstest(z.ravel(), special.ndtr).pvalue)


def tail_counts(z: Sample) -> float:
    """The smallest exact binomial p-value of the counts beyond 3, 3.5, 4 and 4.5, times 4."""
    values = [
        stats.binomtest(int((np.abs(z) > t).sum()), z.size, 2 * special.ndtr(-t)).pvalue
        for t in (3, 3.5, 4, 4.5)
    ]
    return min(1.0, 4 * min(values))


MARGINAL: list[Callable[[Sample], float]] = [chi_square, kolmogorov_smirnov, tail_counts]


@pytest.mark.parametrize("check", MARGINAL)
def test_marginal(check: Callable[[Sample], float]) -> None:
    assert check(sample()) > ACCEPT


@pytest.mark.parametrize("check", MARGINAL)
@pytest.mark.parametrize("factor", soak_except([1.01], [0.99, 1.01]))
def test_marginal_rejects_sigma_off_by_one_percent(
    check: Callable[[Sample], float], factor: float
) -> None:
    if check is tail_counts:
        factor = factor**3  # tails hold fewer numbers: they catch 3 %
    assert check(factor * sample()) < REJECT


def test_marginal_rejects_a_shift_and_a_truncated_tail() -> None:
    assert chi_square(sample() + 0.01) < REJECT
    assert kolmogorov_smirnov(sample() + 0.01) < REJECT
    assert tail_counts(truncated(sample(), 4.0)) < REJECT
    assert tail_counts(np.where(sample() > 3.5, -sample() / 2, sample())) < REJECT


# -- moments: scores in standard errors ------------------------------------------------------------


def moment_scores(z: Sample) -> Sample:
    """Moments 1 to 8 against (m−1)!!, in their own standard errors."""
    scores = []
    for order in range(1, 9):
        true = 0.0 if order % 2 else float(special.factorial2(order - 1))
        variance = float(special.factorial2(2 * order - 1)) - true**2
        scores.append(((z**order).mean() - true) / np.sqrt(variance / z.size))
    return np.array(scores)


def test_moments_to_order_8() -> None:
    assert np.abs(moment_scores(sample())).max() < LOW


def test_moments_reject_planted_faults() -> None:
    for factor in (0.99, 1.01):
        assert np.abs(moment_scores(factor * sample())[1]) > HIGH
    assert np.abs(moment_scores(sample() + 0.01)[0]) > HIGH
    assert np.abs(moment_scores(truncated(sample(), 3.5))[7]) > HIGH
    skewed = np.where(sample() > 2, sample() * 1.05, sample())
    assert np.abs(moment_scores(skewed)[2]) > HIGH


# -- tails to 6σ and beyond, by the exact tables ---------------------------------------------------


def tail_from_table(table: tuple[tuple[int, int], ...], bits: int, t: int) -> mpmath.mpf:
    """P(|z| ≥ t) that a table of C_k implies: Σ_{k≥t} P(k) A_k / Σ P(k) A_k, where A_k = P(kept |
    k)."""
    with mpmath.workdps(80):
        c = [mpmath.mpf(lo + hi) / 2 / mpmath.mpf(2) ** bits for lo, hi in table]
        weights = [c[0], *(b - a for a, b in pairwise(c))]
        kept = []
        for k, weight in enumerate(weights):
            root = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(mpmath.mpf(k * k) / 2)
            two = mpmath.sqrt(2)
            kept.append(weight * root * (mpmath.erfc(k / two) - mpmath.erfc((k + 1) / two)))
        return mpmath.fsum(kept[t:]) / mpmath.fsum(kept)


@pytest.mark.parametrize("t", range(1, 10))
def test_the_tables_have_the_tails_of_the_normal(t: int) -> None:
    with mpmath.workdps(80):
        true = mpmath.erfc(t / mpmath.sqrt(2))
        assert abs(tail_from_table(cumulative(223), 223, t) / true - 1) < 1e-30


def test_a_truncated_or_rescaled_table_is_noticed() -> None:
    good = cumulative(223)
    cut = (*good[:5], (2**223, 2**223))  # nothing beyond 6
    # 33 bits: too few for 7σ
    blunt = tuple((lo >> 190 << 190, hi >> 190 << 190) for lo, hi in good)
    with mpmath.workdps(80):
        assert tail_from_table(cut, 223, 6) == 0
        assert abs(tail_from_table(cut, 223, 5) / mpmath.erfc(5 / mpmath.sqrt(2)) - 1) > 1e-4
        assert abs(tail_from_table(blunt, 223, 6) / mpmath.erfc(6 / mpmath.sqrt(2)) - 1) > 1e-3


class Tail(Prf):
    """The real key stream with v moved into the interval of one k: draws from the tail without
    waiting for it."""

    def __init__(self, secret: Secret, k: int) -> None:
        super().__init__(secret)
        edges = (0, *thresholds())
        self.word = (edges[k] + edges[k + 1]) // 2 << 1

    def encrypt(self, blocks: bytes) -> bytes:
        stream = bytearray(super().encrypt(blocks))
        for at in range(0, len(stream), 16):
            if blocks[at + 12 : at + 16] == b"\0\0\0\1":
                stream[at + 8 : at + 16] = (self.word | stream[at + 8] & 1).to_bytes(8, "little")
        return bytes(stream)

    def words(self, blocks: np.ndarray) -> np.ndarray:
        words = super().words(blocks)
        words[:, 3] = np.uint64(self.word) | (words[:, 3] & np.uint64(1))
        return words


def conditional(k: int) -> Sample:
    noise = ExactNoise(Secret.from_hex(SECRET))
    noise._prf = Tail(Secret.from_hex(SECRET), k)
    return noise.normals(0, 50, 1000).to_float()


def tail_cdf(k: int) -> Callable[[Sample], Sample]:
    """P(|z| < t | k ≤ |z| < k+1)."""
    low, high = special.ndtr(-k), special.ndtr(-(k + 1))
    return lambda t: (low - special.ndtr(-t)) / (low - high)


@pytest.mark.parametrize("k", soak_except([0, 1, 3, 8], range(9)))
def test_shape_within_each_unit_interval(k: int) -> None:
    """Given k, |z| has the normal law cut to [k, k+1): 50,000 draws at each k, up to 9σ."""
    z = conditional(k)
    assert np.all(np.floor(np.abs(z)) == k)
    assert stats.kstest(np.abs(z).ravel(), tail_cdf(k)).pvalue > ACCEPT
    assert abs((z > 0).sum() - z.size / 2) < LOW * np.sqrt(z.size) / 2
    # Planted faults: the density of the neighbouring interval, and a tail cut off inside the
    # interval.
    wrong = np.abs(conditional(k + 1 if k < 8 else k - 1)).ravel()
    assert stats.kstest(wrong - np.floor(wrong) + k, tail_cdf(k)).pvalue < REJECT
    cut = np.where(np.abs(z) > k + 0.8, k + (np.abs(z) - k) / 2, np.abs(z)).ravel()
    assert k > 3 or stats.kstest(cut, tail_cdf(k)).pvalue < REJECT


# -- independence: scores in standard errors -------------------------------------------------------


def lag_scores(z: Sample, axis: int) -> Sample:
    """Correlations at lags 1 to 20 along an axis, of the numbers, their squares and their signs."""
    scores = []
    for values in (z, (z**2 - 1) / np.sqrt(2), np.sign(z)):
        moved = np.moveaxis(values, axis, 0)
        for lag in range(1, 21):
            products = moved[lag:] * moved[:-lag]
            scores.append(products.sum() / np.sqrt(products.size))
    return np.array(scores)


def pair_scores(z: Sample) -> float:
    """The largest sample correlation of any two columns, in standard errors."""
    gram = z.T @ z / np.sqrt(len(z))
    np.fill_diagonal(gram, 0)
    return float(np.abs(gram).max())


@pytest.mark.parametrize("axis", [0, 1], ids=["draws", "cells"])
def test_independence_along(axis: int) -> None:
    z = sample()
    assert np.abs(lag_scores(z, axis)).max() < LOW
    moved = np.moveaxis(z, axis, 0)
    # Correlated neighbours, ρ = 0.01.
    leaky = moved.copy()
    leaky[1:] += 0.01 * moved[:-1]
    assert np.abs(lag_scores(np.moveaxis(leaky, 0, axis), axis)).max() > HIGH
    # Repeated noise: one in a hundred is the same as the one seven before it.
    repeated = moved.copy()
    repeated[100::100] = moved[93:993:100]
    assert np.abs(lag_scores(np.moveaxis(repeated, 0, axis), axis)).max() > HIGH
    # Common scale without correlation: only the squares can tell.
    scaled = moved * np.where(np.arange(len(moved)) // 25 % 2, 1.1, 0.9)[:, None]
    assert np.abs(lag_scores(np.moveaxis(scaled, 0, axis), axis)[20:40]).max() > HIGH


def test_no_pair_of_draws_or_cells_is_correlated() -> None:
    """The largest of 499,500 pairs: a score of 6.5 has p = 8e-11 each, 4e-5 over all."""
    assert pair_scores(sample()) < 6.5
    assert pair_scores(sample().T) < 6.5
    planted = sample().copy()
    planted[:, 700] = 0.9 * planted[:, 700] + 0.4 * planted[:, 31]
    assert pair_scores(planted) > 6.5
    planted = sample().copy()
    planted[700, :] = planted[31, :]
    assert pair_scores(planted.T) > 6.5


def test_no_number_is_repeated() -> None:
    z = numbers()
    pairs = np.stack([z.fraction_hi.ravel(), z.fraction_lo.ravel()], axis=1)
    assert len(np.unique(pairs.view("V16"))) == DRAWS * CELLS
    pairs[5000] = pairs[31]
    assert len(np.unique(pairs.view("V16"))) == DRAWS * CELLS - 1


def test_other_secrets_are_independent() -> None:
    other = ExactNoise(Secret.from_hex("8e" + "8f" * 31)).normals(0, DRAWS, CELLS).to_float()
    assert abs((sample() * other).sum()) / 1000 < LOW
    assert abs((sample() * (other + 0.01 * sample())).sum()) / 1000 > HIGH


def byte_p_values(words: np.ndarray) -> list[float]:
    """Each of the 8 bytes of a word is uniform."""
    octets = words.ravel().view(np.uint8).reshape(-1, 8)
    return [
        float(stats.chisquare(np.bincount(octets[:, i], minlength=256)).pvalue) for i in range(8)
    ]


def test_low_bits_and_signs_are_uniform() -> None:
    z = numbers()
    assert min(byte_p_values(z.fraction_lo)) > ACCEPT / 8
    assert abs(int(z.sign.sum(dtype=np.int64))) < LOW * 1000
    stuck = z.fraction_lo.ravel().copy()
    stuck[::50] |= np.uint64(1)
    assert min(byte_p_values(stuck)) < REJECT


# -- another library's exact sampler as oracle -----------------------------------------------------


def test_agrees_with_the_discrete_gaussian_of_opendp() -> None:
    """OpenDP at scale 1000 against ours, both in units of 250: at this scale the two laws differ by
    less than 1e-6.

    Its randomness cannot be fixed, so the threshold is p > 1e-7: one false alarm in ten million
    runs.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    count = 60_000
    theirs = np.array(dp.m.make_gaussian(*space, scale=1000.0)([0] * count))

    def p_value(z: Sample) -> float:
        ours = np.rint(1000 * z.ravel()).astype(np.int64)
        table = [
            np.bincount(np.clip((a + 125) // 250, -13, 13) + 13, minlength=27)
            for a in (ours, theirs)
        ]
        return float(stats.chi2_contingency(np.array(table)).pvalue)

    assert p_value(sample()) > 1e-7
    assert p_value(1.06 * sample()) < 1e-9
    assert p_value(truncated(sample(), 2.5)) < 1e-9
