"""Quantiles of sums of Laplace numbers: against simulation, against the closed form for two, and
the common factor."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from evercount import Budget, Count
from evercount.bounds import interval_quantile
from evercount.bounds.tails import (
    computed_factor,
    continuous_std,
    equal_numbers,
    heaviest_tail,
    laplace_factor,
    laplace_quantile,
    laplace_tail,
    simultaneous_radius,
    usual_factors,
)
from evercount.engine.error_model import computed_normal
from evercount.engine.release_table import LEVEL
from evercount.errors import ParameterError
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from independent_streams import least_share, noise_of, published, smooth_stream
from product_internals import half_widths
from soak_cases import soak_except


def test_tails_in_closed_form() -> None:
    for x in (0.1, 1.0, 5.0):
        assert laplace_tail(1, x) == pytest.approx(math.exp(-x))
        assert laplace_tail(2, x) == pytest.approx((1 + x / 2) * math.exp(-x))
    assert laplace_tail(40, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("weight", [1, 2, 5, 17])
def test_quantiles_against_simulation(weight: int) -> None:
    """400,000 sums: the share outside is β within 5 standard errors; with the normal quantile it is
    not."""
    sums = np.random.default_rng(weight).laplace(size=(400_000, weight)).sum(axis=1) / math.sqrt(
        2 * weight
    )
    for beta in (0.1, 0.01):
        share = (np.abs(sums) > laplace_quantile(weight, beta)).mean()
        assert abs(share - beta) < 5 * math.sqrt(beta / 400_000)
    normal = (np.abs(sums) > interval_quantile(0.01)).mean()
    assert weight > 5 or normal > 0.013


def test_one_factor_is_enough_for_all_sums() -> None:
    for beta in (0.2, 0.05, 1e-3, 1e-9):
        factor = laplace_factor(beta)
        assert all(
            laplace_quantile(weight, beta) <= factor * (1 + 1e-9)
            for weight in (1, 2, 3, 5, 9, 30, 100, 1000)
        )
    rng = np.random.default_rng(1)
    scales = rng.random((8, 12)) ** 3
    for row in scales:
        sums = (rng.laplace(size=(200_000, 12)) * row).sum(axis=1) / math.sqrt(2 * (row**2).sum())
        for beta in (0.1, 0.01):
            assert (np.abs(sums) > laplace_factor(beta)).mean() < beta + 5 * math.sqrt(
                beta / 200_000
            )


def sums_of_discrete_numbers(
    rate: float, weights: tuple[int, ...]
) -> Iterator[tuple[int, np.ndarray]]:
    """(weight, P(|S| > h) for h = 0, 1, …) for sums S of discrete Laplace numbers, by
    convolution."""
    reach = int(80 / rate + 60)
    one = np.exp(-rate * np.abs(np.arange(-reach, reach + 1)))
    one /= one.sum()
    made = one
    for weight in range(1, max(weights) + 1):
        if weight in weights:
            middle = len(made) // 2
            upper = np.cumsum(made[:middle])[::-1]  # P(S < −h)
            yield weight, 2 * upper
        made = np.convolve(made, one)
        spare = max(0, len(made) // 2 - int(reach + 14 * math.sqrt(2 * (weight + 1)) / rate))
        made = made[spare : len(made) - spare]


def test_intervals_hold_sums_of_discrete_numbers() -> None:
    """Half widths a·√W·continuous std + ½ are wide enough; with the discrete std and without ½ they
    are not."""
    weights = (1, 2, 3, 5, 9, 17, 40)
    narrow = 0
    for rate in np.geomspace(0.05, 12, 14):
        std = math.sqrt(2 * math.exp(-rate)) / -math.expm1(-rate)
        assert continuous_std(std) == pytest.approx(math.sqrt(2) / rate)
        for weight, above in sums_of_discrete_numbers(float(rate), weights):
            for beta in (0.5, 0.2, 0.1, 0.05, 0.01, 1e-3, 1e-5, 1e-7):
                half = laplace_factor(beta) * math.sqrt(weight) * continuous_std(std) + 0.5
                assert above[int(half)] <= beta * (1 + 1e-9), (rate, weight, beta)
                narrow += above[int(laplace_factor(beta) * math.sqrt(weight) * std)] > beta
    assert narrow > 100


@pytest.mark.parametrize(
    "rates", [(1.0,) * 50, (0.3, 2.0), (0.2, 0.2, 1.5, 4.0, 4.0), (0.5,) * 3 + (3.0,) * 40], ids=len
)
def test_discrete_sums_of_mixed_rates_never_leave_more_often(rates: tuple[float, ...]) -> None:
    """P(|D| > x + ½) ≤ P(|C| > x) by exact laws, where x is largest for its bound; without the ½ it
    is false."""
    half = 600
    law = np.ones(1)
    for rate in rates:
        one = np.exp(-rate * np.abs(np.arange(-half, half + 1)))
        law = np.convolve(law, one / one.sum())[max(0, len(law) // 2) :][: 2 * half + 1]
    theta = (np.arange(40_000) + 0.5) * 0.001
    phi = np.prod([1 / (1 + (theta / rate) ** 2) for rate in rates], axis=0)
    narrow = 0
    for N in range(40):
        discrete = 2 * float(law[half + N + 1 :].sum())
        continuous = (
            1 - 2 / math.pi * float(np.sum(np.sin(theta * (N + 0.5)) / theta * phi)) * 0.001
        )
        assert discrete <= continuous + 2e-4, N
        wider = 1 - 2 / math.pi * float(np.sum(np.sin(theta * (N + 1)) / theta * phi)) * 0.001
        narrow += discrete > wider + 2e-4
    assert narrow > 0


def test_the_stated_intervals_of_a_narrow_pure_stream_hold() -> None:
    """Three ticks at epsilon=3.4 have a std of half a unit: ±factor·std would hold in 82 % of cases
    only."""
    streams = 4_000
    stream = smooth_stream(Count(), Budget(3.4, 0.0), 12, "pure-window-3", seed=1)
    view = stream.run([2] * 12).last(3)
    noise = np.concatenate(
        [np.zeros((1, streams)), published(stream.query, noise_of(stream, streams, 12))[..., 0]]
    )
    off = np.abs(noise[view.last] - noise[view.last - 3])
    assert np.all(np.mean(off <= half_widths(view, 0.95), axis=1) >= least_share(0.95, streams))
    assert np.all(np.mean(off <= laplace_factor(0.05, 3) * view.std, axis=1) < 0.92)


def mixed_tail(scales: np.ndarray, x: float) -> float:
    """P(|S| > x) for Laplace numbers of different scales, by inverting the characteristic function
    (Gil-Pelaez)."""
    scales = scales / math.sqrt(2 * (scales**2).sum())
    step = 0.02  # the midpoint rule sees the tail beyond 2π/step − x: nothing
    theta = (np.arange(20_000) + 0.5) * step
    phi = np.prod(1 / (1 + np.multiply.outer(theta, scales) ** 2), axis=1)
    return 1 - 2 / math.pi * float(np.sum(np.sin(theta * x) / theta * phi)) * step


def test_fewer_equal_numbers_have_heavier_tails() -> None:
    """Rows of a bridge: ⌊V/2m²⌋ equal numbers leave 2 … 4.5 stds at least as often, one more do not
    always.

    For other sums and widths see test_heaviest_tails.py.
    """
    _, weights, shares = Bridge(1000).coefficients(
        np.asarray([1, 5, 33, 64, 120, 257, 500, 765, 936, 1000])
    )
    tight = 0
    for row in (np.abs(w) / (s / UNITS) for w, s in zip(weights, shares, strict=True)):
        row = row[row > 0]
        n = int(equal_numbers(np.asarray([2 * (row**2).sum()]), np.asarray([row.max()]))[0])
        for x in (2.0, 3.0, 4.5):
            exact = mixed_tail(row, x)
            assert exact <= float(heaviest_tail(n, x)) * (1 + 1e-4) + 2e-9, (n, x)
            tight += exact > float(heaviest_tail(n + 1, x)) + 1e-6
    assert tight > 3


PURE_TREES = ["bridge", "pure-tree", "pure-binary", "pure-hybrid", "endless-bridge"]


@pytest.mark.parametrize(
    ("name", "horizon"),
    soak_except(
        [(name, 64) for name in PURE_TREES] + [("bridge", 1024)],
        [(name, horizon) for name in PURE_TREES for horizon in (64, 1024)],
    ),
)
def test_bounds_for_all_ticks_hold_and_are_close(name: str, horizon: int) -> None:
    """2,000 streams: the bound holds in 95 % of them, and is at most 1.3 times the simulated
    quantile."""
    tree = pure_factorization(name, None if name in ("pure-hybrid", "endless-bridge") else horizon)
    bound = simultaneous_radius(tree, 0.25, 0.05, horizon)
    runs = []
    for seed in range(5):
        secret = Secret.from_hex(f"{seed + 1:064x}")
        noise = build_pure(tree, cells=400, grid=1.0, l1=1.0, epsilon=0.25, secret=secret)
        runs.append(np.abs(noise.stream.take(horizon)).max(axis=0))
    largest = np.concatenate(runs)
    assert (largest <= bound).mean() >= 0.95
    assert bound <= 1.3 * np.quantile(largest, 0.95)


def test_the_bound_of_a_bridge_is_the_union_of_the_tails_of_its_rows() -> None:
    """Tick by tick, from the rows themselves: at the bound the tails add up to at most β, at 0.95
    of it to more."""
    beta, horizon = 0.05, 200
    bridge = Bridge(horizon)
    bound = simultaneous_radius(bridge, 1.0, beta, horizon) - 0.5
    _, weights, shares = bridge.coefficients(np.arange(1, horizon + 1))
    scales = np.abs(weights) / (shares / UNITS) / 2.0**bridge.bits
    variance, largest = 2 * (scales**2).sum(axis=1), scales.max(axis=1)
    numbers = equal_numbers(variance, largest)

    def outside(radius: float) -> float:
        return sum(
            float(heaviest_tail(int(n), radius / math.sqrt(v)))
            for n, v in zip(numbers, variance, strict=True)
        )

    assert outside(bound) <= beta
    assert outside(0.95 * bound) > beta, "planted: a radius that is 5 % too small"


def test_the_bound_of_a_long_tree() -> None:
    """A union over each tick's own nodes: ±226 at 2^20 ticks, where the worst tick's tail for all
    gives ±302."""
    assert simultaneous_radius(
        pure_factorization("pure-tree", 2**20), 1.0, 0.05, 2**20
    ) == pytest.approx(226.4, abs=0.1)
    assert simultaneous_radius(pure_factorization("bridge", 2**20), 1.0, 0.05, 2**20) < 200


def test_bad_beta_is_refused() -> None:
    with pytest.raises(ParameterError):
        laplace_quantile(3, 0.0)
    with pytest.raises(ParameterError):
        simultaneous_radius(pure_factorization("pure-binary", 8), 1.0, 1.0, 8)


def test_factors_of_many_numbers_are_few_and_never_too_small() -> None:
    for beta in (0.05, 1e-9):
        factors = {
            n: laplace_factor(beta, n) for n in (63, 64, 65, 127, 128, 1000, 1001, 4095, 4096)
        }
        assert len(set(factors.values())) == 7
        for n, factor in factors.items():
            assert heaviest_tail(n, factor) <= beta
            assert factor <= laplace_quantile(n, beta) * 1.01


def test_the_table_of_usual_factors_is_what_is_computed() -> None:
    """Up to what SciPy's versions differ in: an interval is the same with and without the table."""
    usual = usual_factors()
    assert (usual.level, usual.beta) == (LEVEL, 1 - LEVEL)
    assert usual.normal == pytest.approx(computed_normal(LEVEL), rel=1e-14)
    computed = [computed_factor(usual.beta, weight) for weight in usual.laplace]
    assert computed == pytest.approx(list(usual.laplace.values()), rel=1e-13)
    asked = {
        weight // step * step
        for weight in range(1, 4097)
        for step in [1 << max(0, weight.bit_length() - 6)]
    }
    assert set(usual.laplace) == asked
    for weight in (1, 2, 63, 64, 127, 1000, 4096, 10**6):
        assert laplace_factor(0.050000000000000044, weight) == pytest.approx(
            laplace_factor(0.05, weight), rel=1e-9
        )
    assert laplace_factor(0.01, 1) > laplace_factor(0.05, 1)
