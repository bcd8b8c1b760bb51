"""Windows: the method is chosen by exact errors, and what is published has the stated covariance."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Budget, Stream, Window
from evercount.factorizations import Balanced, factorization
from evercount.queries.window import Method, largest, window_errors

METHODS: tuple[Method, ...] = ("difference", "periods", "inputs")


def rows(method: Method, width: int, ticks: int) -> np.ndarray:
    """What every window is of the normals z, one row for each tick, by dense matrices."""
    if method == "periods":
        short, _ = Balanced(width).dense()
        left = np.zeros((ticks, ticks + width))
        for start in range(0, ticks, width):
            size = min(width, ticks - start)
            left[start : start + size, start : start + width] = short[:size]
    else:
        left, _ = factorization("identity" if method == "inputs" else None, ticks).dense()
    padded = np.vstack([np.zeros((width, left.shape[1])), left])
    return np.asarray(Window(width, method).decode_run(1, padded))


def brute_force(width: int, horizon: int) -> dict[Method, float]:
    """The largest norm over all ticks, for columns of norm 1."""
    return {method: float(np.linalg.norm(rows(method, width, horizon), axis=1).max()) for method in METHODS}


@pytest.mark.parametrize("horizon", [1, 2, 9, 64, 150, 400])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 13, 40, 63, 149, 150, 300])
def test_errors_are_those_of_the_worst_of_all_ticks(horizon: int, width: int) -> None:
    """Dense matrices at every tick; also where the window is never full or the second period never ends."""
    found, want = window_errors(width, horizon), brute_force(width, horizon)
    for method in METHODS:
        assert found[method] == pytest.approx(want[method], rel=2e-5), method
    ranked = sorted(METHODS, key=lambda method: want[method])
    if want[ranked[1]] > want[ranked[0]] * 1.0001:
        assert Window(width).resolved(horizon).method == ranked[0]


@pytest.mark.parametrize(
    ("horizon", "width", "difference", "periods"),
    [(20_000, 1000, 5.1554, 5.0517), (65_536, 2000, 5.6235, 5.4355), (65_536, 3000, 5.6947, 5.6592)],
)
def test_the_peak_after_the_first_window_decides(horizon: int, width: int, difference: float, periods: float) -> None:
    """A grid of 24 ticks misses this peak by up to 3.5 %, and would take the difference."""
    errors = window_errors(width, horizon)
    assert errors["difference"] == pytest.approx(difference, rel=2e-5)
    assert errors["periods"] == pytest.approx(periods, rel=2e-5)
    assert Window(width).resolved(horizon).method == "periods"
    running = Balanced(horizon)
    near = [running.difference_norm(k, width + k) for k in range(width // 10, width, width // 20)]
    assert max(near) <= errors["difference"] * (1 + 2e-5)


@pytest.mark.parametrize("peak", [1, 2, 17, 250, 4999, 5000])
def test_the_search_finds_a_hill_anywhere(peak: int) -> None:
    asked: list[int] = []

    def values(places: np.ndarray) -> np.ndarray:
        asked.extend(places.tolist())
        return -np.abs(np.log(places / peak))

    place, best = largest(values, np.asarray([1, 10, 100, 1000, 5000]))
    assert place == pytest.approx(peak, rel=0.01)
    assert best == values(np.asarray([place]))[0]
    assert len(asked) < 40
    assert all(1 <= x <= 5000 for x in asked)


@pytest.mark.parametrize("method", METHODS)
def test_published_noise_has_the_stated_covariance(method: Method) -> None:
    """4,000 streams of 12 ticks without events, windows of 5: sample covariances lie within 5 standard errors.

    The standard error of a sample covariance of normals is √((vᵢvⱼ + cᵢⱼ²)/streams). Planted: the covariance of windows
    of 4 ticks must be refused.
    """
    ticks, streams, width = 12, 4000, 5
    budget = Budget(1.0, 1e-6)
    made = []
    for number in range(streams):
        stream = Stream(Window(width, method), budget, ticks, noise="insecure-float", seed=number)
        made.append(stream.run([0] * ticks).values)
    sample = np.cov(np.asarray(made), rowvar=False, bias=True)

    def agrees(width: int) -> bool:
        left = rows(method, width, ticks) * stream.sigma
        want = left @ left.T
        error = np.sqrt((np.multiply.outer(np.diag(want), np.diag(want)) + want**2) / streams)
        return bool((np.abs(sample - want) < 5 * error).all())

    assert agrees(width)
    assert not agrees(width - 1)
    assert stream.std(range(1, ticks + 1))[:, 0] == pytest.approx(
        stream.sigma * np.linalg.norm(rows(method, width, ticks), axis=1)
    )


def test_interpolated_stds_are_as_close_as_the_limits_say() -> None:
    """docs/limits.md: over more than 512 ticks, stds of windows are within 2e-5 of the exact ones."""
    stream = Stream(Window(100, "difference"), Budget(1.0, 1e-6), 5000, noise="insecure-float", seed=1)
    many = stream.std(np.arange(1, 5001))[:, 0]
    ticks = np.unique(np.concatenate([np.arange(90, 130), np.linspace(1, 5000, 60).astype(np.int64)]))
    exact = stream.std(ticks)[:, 0]
    assert np.abs(many[ticks - 1] / exact - 1).max() < 2e-5
