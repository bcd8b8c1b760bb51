"""The lemmas and the claim of `laplace_tails.proof.md` on mixed scales, by quadrature; variances
add up to 1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.special import digamma, erfc, gammaln

from evercount.bounds.endless_tails import NUMBERS
from evercount.bounds.tails import equal_numbers, heaviest_tail, laplace_factor, laplace_tail

Q = (np.arange(1 << 15) + 0.5) * (40 / (1 << 15))
"""Values of a variance whose mean is of the order of 1."""


def gamma_density(shape: float, scale: float) -> np.ndarray:
    """The density of a gamma number on Q, as chances of its cells."""
    return (
        np.exp((shape - 1) * np.log(Q / scale) - Q / scale - gammaln(shape)) / scale * (Q[1] - Q[0])
    )


def density(*parts: tuple[float, float]) -> np.ndarray:
    """The density of a sum of gamma numbers (shape, scale) on Q, up to half a cell."""
    law = np.ones(1)
    for part in parts:
        law = fftconvolve(law, gamma_density(*part))[: len(Q)]
    return law


def derivative(order: int, x: float) -> np.ndarray:
    """f″ or f‴ on Q without a common positive factor, f(q) = P(|√q·Z| > x)."""
    first = np.exp(-(x**2) / (2 * Q)) * Q**-1.5
    one = (x**2 - 3 * Q) / (2 * Q**2)
    return first * (one if order == 2 else one**2 + (3 / (2 * Q) - x**2 / Q**2) / Q)


HYPOEXPONENTIAL = [
    [(1, w) for w in weights]
    for weights in ((0.5, 0.3, 0.2), (0.1, 0.2, 0.9), (0.4,) * 5, (1.0, 1.0))
]
WITH_LARGEST = [
    [(0.3, 0.2), (1, 0.5), (0.2, 0.5)],
    [(0.05, 0.9), (1, 0.9), (0.4, 0.1)],
    [(2.5, 0.1), (1, 0.4)],
]


@pytest.mark.parametrize("parts", HYPOEXPONENTIAL + WITH_LARGEST, ids=str)
def test_signs_of_the_derivatives(parts: list[tuple[float, float]]) -> None:
    """Lemma 1: where the mean of f″ is 0, that of f‴ is negative."""
    law = density(*parts)
    x = brentq(lambda x: float(law @ derivative(2, x)), 0.2, 6)
    assert law @ derivative(3, x) < 0


def test_signs_need_a_log_concave_density() -> None:
    """Two far heaps: f″ is 0 on average, and f‴ is positive."""
    law = density((60, 0.2 / 60)) + density((60, 6 / 60))
    x = np.linspace(0.3, 6, 115)
    signs = np.sign([law @ derivative(2, one) for one in x])
    zeros = x[:-1][signs[1:] != signs[:-1]]
    assert max(float(law @ derivative(3, zero)) for zero in zeros) > 0


def most_convex(law: np.ndarray) -> float:
    """The largest second difference of the logarithm of a density, where it is not small."""
    inner = np.log(law[(law > 1e-9) & (Q > 0.05)][::16])
    return float(np.diff(inner, 2).max())


@pytest.mark.parametrize("parts", WITH_LARGEST, ids=str)
def test_log_concave_with_the_largest_scale(parts: list[tuple[float, float]]) -> None:
    """Lemma 2: shapes below 1 do no harm next to an exponential number of the largest scale, only
    of a smaller one."""
    assert most_convex(density(*parts)) < 1e-7
    assert most_convex(density((1, 0.1), (0.3, 0.8))) > 1e-5


def gamma_mean(k: float, f: Callable[[np.ndarray], np.ndarray], score: bool = False) -> float:
    """E f(Γ_k/k), or its derivative in k; the trapezoid rule in ln q is exact to many digits."""
    y = np.linspace(-36 / k - 10 / math.sqrt(k), min(10 / math.sqrt(k), 5.0), 6001)
    q = np.exp(y)
    law = np.exp(k * math.log(k) + k * (y - q) - gammaln(k)) * (y[1] - y[0])
    return float((f(q) * law * (math.log(k) + 1 + y - q - digamma(k) if score else 1.0)).sum())


def leaving(x: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda q: np.asarray(erfc(x / np.sqrt(2 * q)))


def crossing(k: float) -> float:
    """c(k): where the tail of T_k does not change with k."""
    return brentq(lambda x: gamma_mean(k, leaving(x), score=True), 1.3, 2.5, xtol=1e-12)


def test_crossings_of_equal_parts() -> None:
    """Item 1 of the proof, and the closed form for whole k."""
    for k in (1, 2, 7):
        assert gamma_mean(k, leaving(1.7)) == pytest.approx(
            float(laplace_tail(k, 1.7 * math.sqrt(2 * k))), rel=1e-9
        )
    assert crossing(2) == pytest.approx(1.66174, abs=1e-5)
    assert all(1.6556 < crossing(k) < 1.6618 for k in np.linspace(2, 3, 21))
    rising = [crossing(k) for k in np.geomspace(3, 3000, 120)]
    assert min(np.diff(rising)) > 0
    assert rising[0] == pytest.approx(1.65581, abs=1e-5)
    assert rising[-1] == pytest.approx(math.sqrt(3) - 1 / (3000 * math.sqrt(3)), abs=1e-6)
    assert gamma_mean(2, leaving(1.67)) < erfc(1.67 / math.sqrt(2))
    assert crossing(1.5) > crossing(2)  # so one part needs more than this: item 2


@pytest.mark.parametrize("equal", range(1, int(NUMBERS[NUMBERS % 1 > 0].max()) + 1))
def test_a_smaller_part_next_to_equal_ones(equal: int) -> None:
    """Item 2: from none to a part of full size, the zero in x of the derivative rises, so the ends
    are the largest."""
    theta = (np.arange(8_000) + 0.5) * 0.02

    def zero(part: float) -> float:
        phi = (1 + theta**2 / 2) ** -(equal + 1.0) * (1 + part * theta**2 / 2) ** -2.0
        std = math.sqrt(equal + part)
        return brentq(
            lambda x: float((theta**3 * np.sin(theta * x * std)) @ phi), 1.0, 2.3, xtol=1e-9
        )

    zeros = [zero(part) for part in np.linspace(0.02, 1, 30)]
    assert min(np.diff(zeros)) > 0
    if equal == 1:
        assert math.sqrt(2) < zeros[0] < 1.46
        assert zeros[-1] == pytest.approx(1.8956, abs=1e-3)


def tails(scales: np.ndarray, x: np.ndarray) -> np.ndarray:
    """P(|S| > x·std) for Laplace numbers of different scales, by inverting the characteristic
    function (Gil-Pelaez)."""
    theta = (np.arange(40_000) + 0.5) * 0.01
    phi = np.prod(
        [1 / (1 + (theta * scale) ** 2 / (2 * (scales**2).sum())) for scale in scales], axis=0
    )
    return np.asarray(1 - 2 / math.pi * np.sin(np.multiply.outer(x, theta)) @ (phi / theta) * 0.01)


def test_no_sum_leaves_more_often() -> None:
    """Random parts, equal parts and parts with one smaller: the bound holds at every half width,
    and is reached."""
    rng = np.random.default_rng(7)
    rows = [
        rng.random(count) ** power
        for count in (2, 3, 6, 20)
        for power in (0.2, 1, 4)
        for _ in range(2)
    ]
    rows += [np.ones(n) for n in (2, 3, 8, 50)] + [np.append(np.ones(n), 0.6) for n in (1, 2, 3, 5)]
    x, reached = np.asarray([0.4, 1, 1.3, 1.6, 1.66, 1.68, 1.7, 1.72, 1.75, 1.9, 2.2, 3, 4.5]), 0
    for scales in rows:
        n = int(equal_numbers(np.asarray([2 * (scales**2).sum()]), np.asarray([scales.max()]))[0])
        exact, bound = tails(scales, x), heaviest_tail(n, x)
        assert np.all(exact <= bound * (1 + 1e-4) + 2e-8), scales
        reached += int(np.sum(exact > bound * (1 - 1e-4)))
    assert reached > 20


def test_two_parts_at_a_level_of_907_in_a_thousand() -> None:
    """The one place where two parts leave more often than one part and than a normal number."""
    x = 1.68
    two = float(laplace_tail(2, x * 2))
    assert two > 1.001 * max(float(laplace_tail(1, x * math.sqrt(2))), erfc(x / math.sqrt(2)))
    assert laplace_factor(two * (1 - 1e-9)) >= x
    assert laplace_factor(0.1) == pytest.approx(1.6449, abs=1e-4)  # other levels keep theirs
    assert laplace_factor(0.05) == pytest.approx(-math.log(0.05) / math.sqrt(2))
