"""What researchers ask of a stream: the covariance of its noise, and simulated paths of that
law."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Average, Budget, Count, DiscoveredKeys, Histogram, Stream
from evercount.errors import ParameterError
from evercount.factorizations import Dense
from independent_streams import smooth_stream
from product_internals import error_model

GAUSSIAN = Budget(1.0, 1e-6)
TICKS = [1, 2, 7, 8, 30, 31, 40]
MINE = Dense(
    np.tri(40) @ np.linalg.inv(np.eye(40) + 0.5 * np.eye(40, k=-1)),
    np.eye(40) + 0.5 * np.eye(40, k=-1),
)
NAMES = [
    "balanced",
    "square-root",
    "binary-tree",
    "honaker",
    "honaker-full",
    "fresh",
    "periods-7",
    "optimal",
    MINE,
]


def drawn(engine):
    return engine if isinstance(engine, str) else engine.name


@pytest.mark.parametrize("engine", NAMES, ids=drawn)
def test_covariance_is_that_of_the_matrices(engine):
    stream = smooth_stream(Count(), GAUSSIAN, 40, engine, seed=1)
    L = stream.factorization.dense(40)[0][np.asarray(TICKS) - 1]
    want = stream.sigma**2 * L @ L.T
    assert np.allclose(stream.noise_covariance(TICKS), want, rtol=1e-9)
    assert np.allclose(stream.noise_covariance([40]), want[-1:, -1:]), (
        "few late ticks, by differences"
    )
    exact = Stream(Count(), GAUSSIAN, 40, engine)
    for view in ("running", "per-tick", "last-7"):
        variances = np.diagonal(exact.noise_covariance(TICKS, view))
        assert np.allclose(variances, exact.std(TICKS, view)[:, 0] ** 2, rtol=1e-6), view


def test_differences_agree_with_the_matrix():
    """Far apart ticks are computed from differences, neighbouring ones from L: the same numbers."""
    stream = Stream(Count(), GAUSSIAN, 1000, "balanced")
    every = stream.noise_covariance(np.arange(1, 1001, 25))
    assert np.allclose(
        stream.noise_covariance([1, 501, 976]), every[np.ix_([0, 20, 39], [0, 20, 39])], rtol=1e-7
    )
    assert Stream(Count(), GAUSSIAN, 10**6).noise_covariance([1, 10**6]).shape == (2, 2)


PURE = (
    "bridge",
    "pure-tree",
    "pure-binary",
    "fresh of Laplace",
    "pure-hybrid",
    "endless-bridge",
    "terrace",
)


@pytest.mark.parametrize("engine", [*NAMES, *PURE], ids=drawn)
def test_paths_have_the_stated_covariance(engine):
    budget = Budget(6.0, 0.0) if engine in PURE else Budget(6.0, 1e-3)
    name = engine.removesuffix(" of Laplace") if isinstance(engine, str) else engine
    stream = Stream(
        Count(), budget, None if name in ("pure-hybrid", "endless-bridge") else 40, name
    )
    paths = stream.sample_paths(40_000, 40, seed=5)
    assert paths.shape == (40_000, 40)
    want = stream.noise_covariance(TICKS)
    found = np.cov(paths[:, np.asarray(TICKS) - 1].T)
    size = np.sqrt(np.multiply.outer(np.diagonal(want), np.diagonal(want)))
    # noise narrower than the grid is not a normal plus an independent rounding: there the stated
    # std is a bound
    room = 0.03 if np.diagonal(want).min() > 0.4 else 0.1
    assert np.abs((found - want) / size).max() < room
    assert np.all(paths == np.rint(paths))


def test_a_wrong_covariance_would_be_seen():
    """The bar of the test above tells noise of one factorization from that of another, and 10 % of
    σ."""
    stream = Stream(Count(), Budget(1.0, 1e-3), 40, "balanced")
    found = np.cov(stream.sample_paths(40_000, seed=5)[:, np.asarray(TICKS) - 1].T)
    for other in (
        Stream(Count(), Budget(1.0, 1e-3), 40, "square-root").noise_covariance(TICKS),
        stream.noise_covariance(TICKS) * 1.1**2,
    ):
        size = np.sqrt(np.multiply.outer(np.diagonal(other), np.diagonal(other)))
        assert np.abs((found - other) / size).max() > 0.03


def test_paths_do_not_touch_the_stream():
    one, other = (smooth_stream(Count(), GAUSSIAN, 40, seed=3) for _ in range(2))
    one.sample_paths(100)
    assert np.array_equal(one.run([1] * 40).values, other.run([1] * 40).values)
    stream = Stream(Count(), GAUSSIAN, 40)
    assert np.array_equal(stream.sample_paths(10, 5, seed=2), stream.sample_paths(10, 5, seed=2))
    assert not np.array_equal(stream.sample_paths(10, 5), stream.sample_paths(10, 5))
    assert stream.tick == 0


def test_published_numbers_that_are_not_sums():
    average = Stream(Average(0, 1), GAUSSIAN, 40)
    covariance = average.noise_covariance(TICKS)
    assert np.allclose(
        np.diagonal(covariance), error_model(average).cell_errors(TICKS)[0][:, 0] ** 2
    )
    days = Stream(DiscoveredKeys(), GAUSSIAN, 40, views=["per-tick"])
    daily = days.noise_covariance([1, 2])
    assert daily[0, 1] == 0 < daily[0, 0]
    many = Stream(Histogram(3), GAUSSIAN, 40)
    assert np.allclose(np.diagonal(many.noise_covariance(TICKS)), many.std(TICKS)[:, 0] ** 2)


def test_what_does_not_fit_is_refused():
    stream = Stream(Count(), GAUSSIAN, 40)
    for ticks in ([0], [41], [1.5], [[1]]):
        with pytest.raises(ParameterError, match="ticks"):
            stream.noise_covariance(ticks)
    with pytest.raises(ParameterError, match=r"1\.\.40"):
        stream.sample_paths(3, 41)
    with pytest.raises(ParameterError, match="n must be"):
        stream.sample_paths(0)
    with pytest.raises(ParameterError, match="say how many ticks"):
        Stream(Count(), GAUSSIAN).sample_paths(3)
    assert Stream(Count(), GAUSSIAN).sample_paths(3, 9).shape == (3, 9)
