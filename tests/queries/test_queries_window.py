"""Windows: the method is chosen by exact errors, and what is published has the stated covariance."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import (
    ActiveUsers,
    Average,
    Budget,
    Count,
    DiscoveredKeys,
    DistinctUsers,
    Edges,
    Histogram,
    Quantiles,
    Stream,
    Substrings,
    Sum,
    TopK,
    Window,
    WindowOf,
)
from evercount.errors import ParameterError
from evercount.factorizations import Balanced, factorization
from evercount.noise import Secret
from evercount.queries.base import Query
from evercount.queries.window_choice import Method, best_method, largest, window_errors
from many_streams import least_share, noise_of, published

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


@pytest.mark.parametrize("horizon", [None, 1, 5, 100, 3000, 65_536])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 31, 168, 1000])
def test_the_quick_choice_is_that_of_the_full_search(horizon: int | None, width: int) -> None:
    """Methods are left out by a lower bound: the choice, also between equal errors, stays the same."""
    errors = window_errors(width, horizon)
    assert best_method(width, horizon) == min(errors, key=lambda name: errors[name])


@pytest.mark.parametrize("name", ["balanced", "unbounded", "square-root"])
def test_differences_to_one_tick_are_those_of_pairs(name: str) -> None:
    engine = factorization(name, None if name == "unbounded" else 5000)
    earlier = np.asarray([0, 4999, 1, 17, 17, 2500, 5000, 4096])
    want = [engine.difference_norm(k, 5000) for k in earlier.tolist()]
    assert engine.difference_norms_to(5000, earlier) == pytest.approx(np.asarray(want), rel=1e-9, abs=1e-12)


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
    stream = Stream(Window(width, method), budget, ticks, noise="insecure-float", seed=1)
    sample = np.cov(published(stream.query, noise_of(stream, streams, ticks))[..., 0], bias=True)

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


WINDOWS: list[tuple[Query, list[object]]] = [
    (Sum(0, 4, 0.5), [[1, 2.5], [], [4], [0.5, 0.5], [3], [2]] * 3),
    (Histogram(3, max_keys_per_event=2), [[0, (1, 2)], [1], [], [2, 2], [0], [1, 1]] * 3),
    (TopK(["a", "b", "c"], k=2), [["a"], ["a", "b"], ["c"], [], ["b", "b"], ["a"]] * 3),
    (Substrings("ab", 2), ["ab", "a", "bb", "", "ba", "a"] * 3),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", range(len(WINDOWS)))
def test_windows_of_other_queries(number: int, method: Method) -> None:
    """Without noise a window is the sum of its ticks; S is that of the query; intervals of 2,000 streams hold."""
    inside, ticks = WINDOWS[number]
    query = WindowOf(inside, 4, method)
    rows = inside.encode_run(inside.initial_state(), ticks)[0] * inside.grid
    truth = np.stack([rows[max(0, t - 3) : t + 1].sum(axis=0) for t in range(len(rows))])
    for adjacency in ("add-remove", "replace"):
        assert query.squared_sensitivity(adjacency) == inside.squared_sensitivity(adjacency)
    quiet = Stream(query, Budget(60.0, 0.5), len(ticks), noise="insecure-float", seed=1).run(ticks)
    assert np.abs(quiet.rows - truth).max() < 4
    streams = 2_000
    stream = Stream(query, Budget(1.0, 1e-6), len(ticks), noise="insecure-float", seed=1)
    half = stream.run(ticks).half_widths(0.95)[:, np.newaxis]
    off = np.abs(published(query, noise_of(stream, streams, len(ticks))))
    held, narrow = (np.mean(off <= part * half, axis=1) for part in (1.0, 0.85))
    assert np.all(held >= least_share(0.95, streams))
    assert np.all(narrow.mean(axis=1) < least_share(0.95, streams)), "planted: intervals that are 15 % too narrow"


def test_windows_of_other_queries_resolve_restore_and_refuse() -> None:
    inside = TopK(["a", "b", "c"], k=2)
    stream = Stream(WindowOf(inside, 3), Budget(4.0, 1e-6), 12)
    first = [stream.step(["a"] * 30 + ["b"] * 9) for _ in range(5)]
    assert [key.key for key in first[-1].top()] == ["a", "b"]
    again = Stream.restore(stream.snapshot())
    assert again.query == stream.query
    assert again.step(["c"]).values.tolist() == stream.step(["c"]).values.tolist()
    pure = Stream(WindowOf(Histogram(3), 3), Budget(4.0, 0.0), 12).run([[0, 1]] * 12)
    assert pure.rows.shape == (12, 3)
    assert Window(3, max_per_tick=9).with_method("inputs") == Window(3, "inputs", 9)
    for wrong in (Average(), Edges(4), Window(3), 5):
        with pytest.raises(ParameterError, match="running sums"):
            WindowOf(wrong, 3)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="Window"):
        WindowOf(Count(), 3)
    for other in (DistinctUsers(), ActiveUsers(max_ticks=3), DiscoveredKeys(), Quantiles(0, 4, bins=4)):
        with pytest.raises(ParameterError, match=r"releases\.last"):
            WindowOf(other, 3)
    for given in ({}, {"name": 3}, {"name": "sum", "parameters": 3}):
        with pytest.raises(ParameterError, match="query of a window is given as"):
            WindowOf(given, 3)
    assert WindowOf({"name": "sum"}, 3) == WindowOf(Sum(), 3)


@pytest.mark.parametrize(("method", "delta"), [*((method, 1e-6) for method in METHODS), ("nodes", 0.0)])
def test_intervals_of_windows_cover_what_they_say(delta: float, method: Method) -> None:
    """8,000 cells are as many independent streams; at several ticks their intervals hold as often as stated."""
    keys, width, ticks = 8000, 6, 20
    counts = np.random.default_rng(5).integers(0, 4, (ticks, keys))
    stream = Stream(
        WindowOf(Histogram(keys), width, method),
        Budget(0.1, delta),
        horizon=ticks,
        secret=Secret.from_hex("07" * 32),
    )
    for tick in range(1, ticks + 1):
        release = stream.step([(int(key),) for key in np.repeat(np.arange(keys), counts[tick - 1])])
        if tick in (3, width + 1, ticks):
            truth = counts[max(0, tick - width) : tick].sum(0)
            low, high = release.interval(0.95)
            covered = float(np.mean((np.asarray(low) <= truth) & (truth <= np.asarray(high))))
            assert 0.94 <= covered <= 0.96, (tick, covered)
            narrow = np.abs(release.values - truth) <= 0.9 * release.half_widths(0.95)
            assert narrow.mean() < 0.94, "planted: intervals that are 10 % too narrow"
