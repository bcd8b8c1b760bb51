"""Norms: high-precision oracles, known numbers, and what the paper gets wrong."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.bounds import norms
from evercount.errors import ParameterError

horizons = st.integers(1, 2**44)

# of a norm less ln T/π, for T → ∞
LANDAU_LIMIT = (np.euler_gamma + 4 * math.log(2)) / math.pi
MATHIAS_LIMIT = (np.euler_gamma + math.log(8 / math.pi)) / math.pi
NUCLEAR_LIMIT = (np.euler_gamma + math.log(16 / math.pi)) / math.pi


def landau_oracle(T: int) -> mpmath.mpf:
    """The sum in 40 digits, term by term."""
    with mpmath.workdps(40):
        total, f = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(T):
            f = f * (2 * k - 1) / (2 * k) if k else mpmath.mpf(1)
            total += f * f
        return total


def gamma_oracle(T: int) -> mpmath.mpf:
    with mpmath.workdps(40):
        return (
            mpmath.fsum(1 / mpmath.sin((2 * j - 1) * mpmath.pi / (2 * T)) for j in range(1, T + 1))
            / T
        )


def counting_root(T: int) -> np.ndarray:
    k = np.arange(1, T)
    f = np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))
    rows, columns = np.indices((T, T))
    return np.where(rows >= columns, f[np.abs(rows - columns)], 0.0)


@pytest.mark.parametrize("T", [1, 2, 3, 64, 65, 127, 128, 129, 130, 1000, 20000])
def test_landau_against_forty_digits(T: int) -> None:
    assert norms.landau(T) == pytest.approx(float(landau_oracle(T)), rel=1e-15)


def test_landau_is_the_norm_of_the_square_root() -> None:
    for T in (1, 2, 5, 50):
        root = counting_root(T)
        np.testing.assert_allclose(root @ root, np.tril(np.ones((T, T))), atol=1e-13)
        norm = np.linalg.norm(root, axis=1).max() * np.linalg.norm(root, axis=0).max()
        assert norms.landau(T) == pytest.approx(norm, rel=1e-14)


def test_landau_at_huge_horizons_by_two_expansions() -> None:
    """G_n = Σ_{k≤n} f² has a second, independent expansion in 1/(n+1) (Watson 1930), here in 40
    digits."""
    with mpmath.workdps(40):
        for T in (10**4, 2**20, 2**44):
            N = mpmath.mpf(T)
            # π·G ~ ln N + γ + 4 ln 2 − 1/(4N) + 5/(192N²) + 3/(128N³) − 341/(122880N⁴)
            tail = (
                -1 / (4 * N)
                + 5 / (192 * N**2)
                + 3 / (128 * N**3)
                - mpmath.mpf(341) / (122880 * N**4)
            )
            watson = (mpmath.log(N) + mpmath.euler + 4 * mpmath.log(2) + tail) / mpmath.pi
            assert norms.landau(T) == pytest.approx(float(watson), rel=1e-15)


@pytest.mark.parametrize("T", [1, 2, 3, 7, 127, 128, 129, 500, 2048, 4097])
def test_gamma_hat_against_forty_digits(T: int) -> None:
    assert norms.gamma_hat(T) == pytest.approx(float(gamma_oracle(T)), rel=1e-14)


def test_gamma_hat_at_huge_horizons_against_more_terms() -> None:
    with mpmath.workdps(60):
        for T in (10**4, 2**30, 2**44):
            x = mpmath.pi / T
            total = 2 * (mpmath.log(T) + mpmath.euler + mpmath.log(8 / mpmath.pi))
            for k in range(1, 9):
                b = mpmath.bernoulli(2 * k)
                a = (-1) ** (k - 1) * 2 * (2 ** (2 * k - 1) - 1) * b / mpmath.factorial(2 * k)
                total += 2 * a * mpmath.zeta(1 - 2 * k, mpmath.mpf(1) / 2) * x ** (2 * k)
            assert abs(norms.gamma_hat(T) - total / mpmath.pi) < 1e-13


@pytest.mark.parametrize("T", [1, 2, 5, 63, 64, 65, 300, 2000])
def test_nuclear_bound_is_the_nuclear_norm(T: int) -> None:
    with mpmath.workdps(40):
        angle = mpmath.pi / (4 * T + 2)
        direct = mpmath.fsum(1 / (2 * mpmath.sin((2 * k - 1) * angle)) for k in range(1, T + 1)) / T
    assert norms.nuclear_lower(T) == pytest.approx(float(direct), rel=1e-14)
    if T <= 300:
        singular = np.linalg.svd(np.tril(np.ones((T, T))), compute_uv=False)
        assert norms.nuclear_lower(T) == pytest.approx(singular.sum() / T, rel=1e-12)


# -- the numbers of the design page ----------------------------------------------------------------


def test_quoted_values_of_psi_and_of_the_norm() -> None:
    assert norms.psi_paper(65536) == pytest.approx(4.4591, abs=5e-5)
    assert norms.landau(65536) == pytest.approx(4.5964, abs=5e-5)
    assert norms.psi_paper(2) == 1.0
    assert norms.landau(2) == 1.25
    assert norms.psi(1) == norms.landau(1) == 1.0


def test_quoted_limits() -> None:
    log = math.log(2**44) / math.pi
    assert norms.landau(2**44) - log == pytest.approx(LANDAU_LIMIT, abs=1e-12)
    assert norms.mathias_lower(2**44) - log == pytest.approx(MATHIAS_LIMIT, abs=1e-11)
    assert norms.mathias_upper(2**44) - log == pytest.approx(0.981, abs=5e-4)
    assert norms.nuclear_lower(2**44) - log == pytest.approx(NUCLEAR_LIMIT, abs=1e-11)
    assert pytest.approx(1.0663, abs=5e-5) == LANDAU_LIMIT
    assert pytest.approx(0.702, abs=5e-4) == NUCLEAR_LIMIT
    assert pytest.approx(0.481, abs=5e-4) == MATHIAS_LIMIT


def test_quoted_constants_at_finite_horizons() -> None:
    T = np.array([256, 1024, 4096, 2**14])
    log = np.log(T) / math.pi
    np.testing.assert_allclose(norms.landau(T) - log, [1.0660, 1.0662, 1.0663, 1.0663], atol=5.1e-5)
    np.testing.assert_allclose(
        norms.nuclear_lower(T) - log, [0.7064, 0.7032, 0.7023, 0.7020], atol=5.1e-5
    )


def test_gap_to_mathias() -> None:
    T = 2 ** np.arange(5, 45)
    true, paper = (
        np.asarray(norms.landau(T)) - norms.mathias_lower(T),
        norms.psi_paper(T) - np.asarray(norms.mathias_lower(T)),
    )
    assert np.all(paper < 0.5)  # what the paper plots
    assert np.all(true > 0.5)  # what its mechanism has
    assert true[-1] == pytest.approx(0.585, abs=1e-3)


def test_worst_stds_that_plan_shows() -> None:
    """σ = 11.436 (tight) and 19.285 (paper) at (0.5, 1e-10), T = 65536: the figures that `plan`
    must show."""
    assert 11.436 * norms.landau(65536) == pytest.approx(52.6, abs=0.05)
    assert 19.285 * norms.landau(65536) == pytest.approx(88.6, abs=0.05)
    assert 11.436 * norms.binary_norm(65536) == pytest.approx(188.6, abs=0.05)
    assert 11.436 * norms.nuclear_lower(65536) == pytest.approx(48.4, abs=0.05)


# -- upper and lower -------------------------------------------------------------------------------


def test_psi_is_an_upper_bound_and_psi_paper_is_not() -> None:
    T = np.arange(1, 200_001)
    norm = np.asarray(norms.landau(T))
    assert np.all(norms.psi_paper(T) < norm - 0.029)  # the margin of psi.proof.md
    assert np.all(np.asarray(norms.psi(T)[1:]) > norm[1:])
    huge = 2 ** np.arange(18, 53)
    assert np.all(norms.psi(huge) > norms.landau(huge))
    assert np.all(norms.psi_paper(huge) < norms.landau(huge))


@settings(max_examples=200, deadline=None)
@given(horizons)
def test_order_of_all_bounds(T: int) -> None:
    lower, better = norms.mathias_lower(T), norms.nuclear_lower(T)
    slack = 1e-12
    if T >= 3:
        assert lower < better + slack
    assert max(lower, better) <= norms.mathias_upper(T) + slack
    assert norms.mathias_upper(T) <= norms.landau(T) + slack
    assert norms.landau(T) <= norms.psi(T) + slack
    assert norms.psi(T) <= norms.binary_norm(T) + slack or T < 8
    assert norms.gamma_hat(T) > norms.gamma_hat_integral_paper(T)  # the paper says the opposite


@settings(max_examples=200, deadline=None)
@given(horizons)
def test_everything_grows_with_the_horizon(T: int) -> None:
    for function in (
        norms.psi,
        norms.psi_paper,
        norms.landau,
        norms.nuclear_lower,
        norms.gamma_hat,
        norms.mathias_upper,
    ):
        assert function(2 * T) > function(T)
    assert norms.binary_norm(T + 1) >= norms.binary_norm(T)


def test_lower_bounds_hold_for_the_square_root_and_for_random_factorizations() -> None:
    rng = np.random.default_rng(7)
    for T in (2, 5, 20):
        M = np.tril(np.ones((T, T)))
        bound = max(norms.mathias_lower(T), norms.nuclear_lower(T))
        for _ in range(50):
            R = counting_root(T) + 0.3 * rng.standard_normal((T, T))
            L = M @ np.linalg.inv(R)
            assert np.linalg.norm(L, axis=1).max() * np.linalg.norm(R, axis=0).max() >= bound
        root = counting_root(T)
        assert np.linalg.norm(root, axis=1).max() * np.linalg.norm(root, axis=0).max() >= bound


# -- the binary mechanism --------------------------------------------------------------------------


def binary_matrices(T: int) -> tuple[np.ndarray, np.ndarray]:
    """R: one row per dyadic interval inside 1..T; L: the intervals of the binary form of t."""
    nodes = [
        (start, start + size)
        for size in (2**i for i in range(T.bit_length()))
        for start in range(0, T - size + 1, size)
    ]
    R = np.array([[float(a <= j < b) for j in range(T)] for a, b in nodes])
    L = np.zeros((T, len(nodes)))
    for t in range(1, T + 1):
        start = 0
        for i in reversed(range(t.bit_length())):
            if t >> i & 1:
                L[t - 1, nodes.index((start, start + 2**i))] = 1
                start += 2**i
    return L, R


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 21, 64])
def test_binary_norms_against_the_matrices(T: int) -> None:
    L, R = binary_matrices(T)
    np.testing.assert_array_equal(L @ R, np.tril(np.ones((T, T))))
    rows, column = np.linalg.norm(L, axis=1), np.linalg.norm(R, axis=0).max()
    assert norms.binary_norm(T) == pytest.approx(rows.max() * column)
    np.testing.assert_allclose(norms.binary_std(T, np.arange(1, T + 1), 3.0), 3.0 * rows * column)


def test_most_ones_against_brute_force() -> None:
    for T in range(1, 300):
        assert norms.most_ones(T) == max(t.bit_count() for t in range(1, T + 1))


def test_binary_formulas_and_ratio() -> None:
    T = 2 ** np.arange(1, 45)
    k = np.arange(1, 45)
    np.testing.assert_allclose(norms.binary_norm_paper(T), k * (k + 1))
    np.testing.assert_allclose(norms.binary_norm(T), np.sqrt(k * (k + 1)))
    assert pytest.approx(4.5324, abs=1e-4) == norms.BINARY_FACTOR
    assert norms.binary_norm(65536) / norms.landau(65536) == pytest.approx(188.6 / 52.6, abs=5e-3)
    ratio = np.asarray(norms.binary_norm(T[4:])) / norms.landau(T[4:])
    assert np.all(np.diff(ratio) > 0)
    assert ratio[-1] < norms.BINARY_FACTOR
    # the limit itself: the leading terms are √(k²+k) = k + ½ − … and k·ln2/π + 1.0663
    assert (10**9 + 0.5) / (10**9 * math.log(2) / math.pi + LANDAU_LIMIT) == pytest.approx(
        norms.BINARY_FACTOR
    )


# -- vectorised, checked ---------------------------------------------------------------------------

VECTORISED = [
    norms.psi,
    norms.psi_paper,
    norms.landau,
    norms.gamma_hat,
    norms.gamma_hat_integral_paper,
    norms.mathias_lower,
    norms.mathias_upper,
    norms.nuclear_lower,
    norms.binary_norm,
    norms.binary_norm_paper,
]


@pytest.mark.parametrize("function", VECTORISED)
def test_arrays_and_numbers_agree(function: Any) -> None:
    T = np.array([[2, 3, 100, 129], [1000, 2**20, 2**40, 2**52]])
    values = function(T)
    assert values.shape == T.shape
    for place in np.ndindex(T.shape):
        single = function(int(T[place]))
        assert isinstance(single, float)
        assert values[place] == pytest.approx(single, rel=1e-15)


def test_binary_std_refuses_ticks_beyond_the_horizon() -> None:
    for T, t, multiplier in ((8, 9, 1.0), (8, 0, 1.0), (0, 1, 1.0), (8, 1, -1.0), (8, 1, math.nan)):
        with pytest.raises(ParameterError):
            norms.binary_std(T, t, multiplier)


@pytest.mark.parametrize("function", VECTORISED)
def test_bad_horizons_are_refused(function: Any) -> None:
    for bad in (0, -1, 1.5, 2.0, True, "3", None, [1, 0], [1.0, 2.0], 2**53, 2**70):
        with pytest.raises(ParameterError):
            function(bad)


def test_haagerup_is_above_mathias() -> None:
    """Every T to 5,000 and powers of two to 2^52: at least Mathias' upper bound, equal at 1, never
    0.02 above it."""
    horizons = np.concatenate([np.arange(1, 5000), 2 ** np.arange(13, 53)])
    apart = np.asarray(norms.haagerup_upper(horizons)) - np.asarray(norms.mathias_upper(horizons))
    assert apart[0] == 0
    assert (apart[1:] > 0).all()
    assert apart.max() < 0.02
