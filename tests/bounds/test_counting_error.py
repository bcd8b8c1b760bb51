"""Theorem 2 and its relatives: dense oracles, simulation with a negative control, and the quoted
overspends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evercount.bounds import counting_error, landau, psi_paper, simultaneous_quantile
from evercount.bounds.tails import interval_quantile
from evercount.errors import ParameterError


def root(T: int) -> np.ndarray:
    k = np.arange(1, T)
    f = np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))
    rows, columns = np.indices((T, T))
    return np.where(rows >= columns, f[np.abs(rows - columns)], 0.0)


def test_std_is_that_of_the_dense_mechanism() -> None:
    T, C = 60, 11.436
    L = root(T)
    sigma = C * np.linalg.norm(L, axis=0).max()
    np.testing.assert_allclose(
        counting_error.theorem2_std(T, np.arange(1, T + 1), C),
        sigma * np.linalg.norm(L, axis=1),
        rtol=1e-13,
    )
    assert counting_error.theorem2_std(T, T, C) == pytest.approx(C * landau(T), rel=1e-14)


def test_simultaneous_bound_covers_simulated_streams() -> None:
    """4000 streams of 128 ticks, β = 0.2. The union bound must fail at most β + 4 standard errors =
    0.2 + 0.026.

    Negative control: the radius of one tick, used for all ticks, must fail far more often.
    """
    T, C, beta, streams = 128, 3.0, 0.2, 4000
    L, ticks = root(T), np.arange(1, T + 1)
    noise = np.random.default_rng(11).standard_normal((streams, T)) @ L.T * C * math.sqrt(landau(T))

    def failures(radius: Any) -> float:
        return float((np.abs(noise) > np.asarray(radius)).any(axis=1).mean())

    exact = counting_error.theorem2_simultaneous(T, ticks, C, beta)
    closed = counting_error.theorem2_simultaneous_closed_form(T, ticks, C, beta)
    assert failures(exact) <= beta + 0.026
    assert failures(closed) <= failures(exact)
    assert failures(counting_error.theorem2_per_tick(T, ticks, C, beta)) > 2 * beta
    # one tick: exact, both sides, 4 standard errors = 0.026
    share = (np.abs(noise[:, -1]) > counting_error.theorem2_per_tick(T, T, C, beta)).mean()
    assert abs(share - beta) < 0.026


def test_forms_of_theorem_2() -> None:
    T, t, C, beta = 65536, np.array([1, 2, 1000, 65536]), 19.285, 0.05
    tail = math.sqrt(2 * math.log(T / beta))
    np.testing.assert_allclose(
        counting_error.theorem2_paper(T, t, C, beta), C * np.asarray(psi_paper(t)) * tail
    )
    np.testing.assert_allclose(
        counting_error.theorem2_paper_proof(T, t, C, beta),
        math.sqrt(2) * C * np.asarray(psi_paper(t)) * math.log(2 * T / beta),
    )
    std = np.asarray(counting_error.theorem2_std(T, t, C))
    np.testing.assert_allclose(std, C * np.sqrt(landau(T) * np.asarray(landau(t))))
    np.testing.assert_allclose(
        counting_error.theorem2_simultaneous_closed_form(T, t, C, beta), std * tail
    )
    np.testing.assert_allclose(
        counting_error.theorem2_simultaneous(T, t, C, beta), std * simultaneous_quantile(T, beta)
    )
    np.testing.assert_allclose(
        counting_error.theorem2_per_tick(T, t, C, beta), std * interval_quantile(beta)
    )
    # the paper's claim is below the truth at every tick
    assert np.all(
        counting_error.theorem2_paper(T, t, C, beta)
        < counting_error.theorem2_simultaneous_closed_form(T, t, C, beta)
    )


def test_average_in_the_papers_and_in_the_corrected_form() -> None:
    T, t, C = 1000, np.array([1, 10, 1000]), 2.0
    np.testing.assert_allclose(
        counting_error.average_paper(T, t, C),
        C * np.asarray(psi_paper(t)) * math.sqrt(math.log(6000)) / t,
    )
    np.testing.assert_allclose(
        counting_error.average(T, t, C),
        np.asarray(counting_error.theorem2_simultaneous(T, t, C, 1 / 3)) / t,
    )
    assert counting_error.average(T, 10, C) == pytest.approx(counting_error.average(T, t, C)[1])  # type: ignore[index]


def test_sparse_bound_of_the_paper() -> None:
    value = counting_error.sparse_paper(10_000, 50, 2.0)
    assert value == pytest.approx(
        2 * (5 * math.log(10_000) + psi_paper(50) * math.sqrt(math.log(300)))
    )
    assert counting_error.sparse_paper(10_000, 51, 2.0) > value
    with pytest.raises(ParameterError):
        counting_error.sparse_paper(10, 11, 2.0)


def test_quoted_overspends() -> None:
    assert counting_error.fresh_noise_overspend(1024) == pytest.approx(11.1, abs=0.05)
    assert counting_error.fresh_noise_overspend(65536) == pytest.approx(60.5, abs=0.05)
    assert counting_error.fresh_noise_overspend(1) == 1.0


def test_overspends_against_dense_gaussians() -> None:
    """√(dᵀΣ⁻¹d) of the joint release, Σ its covariance at C = 1, d the change by one first bit."""
    T = 40
    L = root(T)
    c = np.sqrt(np.asarray(landau(np.arange(1, T + 1))))
    d = np.ones(T)
    fresh = np.diag((c * np.linalg.norm(L, axis=1)) ** 2)
    assert counting_error.fresh_noise_overspend(T) == pytest.approx(
        math.sqrt(d @ np.linalg.solve(fresh, d))
    )
    fixed = c[-1] ** 2 * L @ L.T  # what is implemented: within its promise
    assert math.sqrt(d @ np.linalg.solve(fixed, d)) == pytest.approx(1.0)


def test_sampling_error_covers() -> None:
    """Uniform points: sup|F̂ − F| exceeds the bound in at most β + 4 standard errors of 2000
    samples."""
    n, beta = 100, 0.2
    points = np.sort(np.random.default_rng(3).random((2000, n)), axis=1)
    grid = np.arange(1, n + 1) / n
    gap = np.maximum(np.abs(points - grid), np.abs(points - grid + 1 / n)).max(axis=1)
    share = (gap > counting_error.sampling_error(n, beta)).mean()
    assert share <= beta + 0.036
    assert (gap > 0.5 * counting_error.sampling_error(n, beta)).mean() > 2 * beta


@pytest.mark.parametrize(
    "call",
    [
        lambda: counting_error.theorem2_std(10, 11, 1.0),
        lambda: counting_error.theorem2_std(0, 1, 1.0),
        lambda: counting_error.theorem2_std(10, 0, 1.0),
        lambda: counting_error.theorem2_std(10, 1.5, 1.0),
        lambda: counting_error.theorem2_std(10, 1, 0.0),
        lambda: counting_error.theorem2_std(10, 1, math.nan),
        lambda: counting_error.theorem2_paper(10, 1, True, 0.05),
        lambda: counting_error.theorem2_simultaneous(10, 1, 1.0, 1.0),
        lambda: counting_error.average(10, 11, 1.0),
        lambda: counting_error.fresh_noise_overspend(2**27),
        lambda: counting_error.sampling_error(0, 0.1),
    ],
)
def test_bad_arguments_are_refused(call: Any) -> None:
    with pytest.raises(ParameterError):
        call()
