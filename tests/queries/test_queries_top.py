"""Selected keys: intervals that hold although the keys were selected, and confidences that mean
what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import studentized_range

from evercount import Budget, Histogram, Rollup, Stream, TopK
from evercount._validate import FloatArray
from evercount.errors import ParameterError
from evercount.graphs import DegreeHistogram
from evercount.queries import Query
from evercount.queries.publishing import (
    CellErrors,
    RankErrors,
    range_tail,
    supported_keys,
    top_keys,
)
from evercount.words import Substrings
from independent_streams import least_share, noise_of, published, smooth_stream
from product_internals import run_of, symmetric_half_widths

STREAMS = 8_000


def errors(
    cells: int, std: float = 1.0, independent: bool = True, pure: bool = False
) -> RankErrors:
    return RankErrors(
        CellErrors(np.full((1, cells), std), np.zeros((1, cells)), pure), cells, independent
    )


def test_top_picks_the_largest() -> None:
    query = TopK(["a", "b", "c"], 2, unknown="other")
    assert query.outputs == query.cells == 4
    found = query.top(np.array([1.5, 3.0, 3.0, 99.0]), errors(4))
    assert [(key.key, key.value) for key in found] == [("b", 3.0), ("c", 3.0)]
    assert [key.key for key in query.top(np.array([1.5, 3.0, -2.0, 0.0]), errors(4), k=1)] == ["b"]
    for k in (0, 4, 1.5):
        with pytest.raises(ParameterError):
            TopK(["a", "b", "c"], k, unknown="other")  # type: ignore[arg-type]
        with pytest.raises(ParameterError):
            query.top(np.zeros(4), errors(4), k=k)  # type: ignore[arg-type]


def test_top_values_obey_the_simultaneous_bound() -> None:
    rng = np.random.default_rng(5)
    query = TopK(20, 5)
    beaten_per_cell = 0
    for _ in range(200):
        true = np.sort(rng.integers(0, 30, 20))[::-1].astype(float)
        noise = rng.normal(0, 4, 20)
        bound = np.abs(noise).max()
        for rank, key in enumerate(query.top(true + noise, errors(20, 4.0))):
            assert abs(key.value - true[int(key.key)]) <= bound + 1e-9
            assert abs(key.value - true[rank]) <= bound + 1e-9
            beaten_per_cell += rank == 0 and key.value - true[int(key.key)] > 1.645 * 4
    # a one-sided 95 % interval of one cell fails far more often than 1 in 20 for the winner
    assert beaten_per_cell > 20


def selected(
    true: FloatArray, std: float, k: int, seed: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Many releases: which cells were selected, their values, and the gap to the best one that was
    not."""
    values = true + np.random.default_rng(seed).normal(0, std, (STREAMS, len(true)))
    order = np.argsort(-values, axis=1, kind="stable")
    chosen = np.take_along_axis(values, order[:, :k], axis=1)
    best_rest = np.take_along_axis(values, order[:, k : k + 1], axis=1)
    return order[:, :k], chosen, chosen - best_rest


@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0])
def test_selected_intervals_hold_at_once(spread: float) -> None:
    """8,000 releases of 200 keys, 10 selected: all ten intervals hold in ≥ 94 % of them; per-cell
    intervals do not."""
    true = np.round(spread * np.sort(np.random.default_rng(1).exponential(size=200)))
    cells, values, _ = selected(true, 3.0, 10, 2)
    off = np.abs(values - true[cells])
    half = errors(200, 3.0).cells.half(0.95, 200)[0, 0]
    found = top_keys([str(i) for i in range(200)], true, errors(200, 3.0), 10, 0.95)
    assert found[0].high - found[0].value == pytest.approx(half)
    assert np.mean((off <= half).all(axis=1)) >= 0.94
    naive = 1.96 * 3.0
    assert np.mean((off <= naive).all(axis=1)) < 0.8
    if spread == 0:
        assert np.mean(off <= naive) < 0.6, "the intervals that were stated before"


@pytest.mark.parametrize(
    ("keys", "k", "gap"), [(50, 5, 1.0), (50, 1, 6.0), (300, 10, 8.0), (8, 3, 2.0)]
)
def test_confident_keys_belong_to_the_top(keys: int, k: int, gap: float) -> None:
    """For every c: some key of confidence ≥ c is wrong in at most 1 − c of 8,000 releases, up to 4
    standard errors."""
    true = np.where(np.arange(keys) < k, gap, 0.0)
    cells, _, apart = selected(true, 1.0, k, keys)
    grid = np.linspace(0, 12, 600)
    tails = np.array([range_tail(keys, d) for d in grid])
    confidence = 1 - np.interp(apart, grid, tails)
    wrong = cells >= k
    for c in (0.5, 0.8, 0.95):
        failed = float(np.mean((wrong & (confidence >= c)).any(axis=1)))
        assert failed <= 1 - c + 4 * np.sqrt(c * (1 - c) / STREAMS)
    if gap >= 4:
        assert np.mean(confidence > 0.5) > 0.01, "and some keys are confident"
    if gap == 1:  # the planted mistake: noise that is understated by a factor of 10
        bold = np.interp(10 * apart, grid, 1 - tails)
        assert np.mean((wrong & (bold >= 0.8)).any(axis=1)) > 0.4


def test_the_range_of_normals() -> None:
    for numbers in (2, 3, 10, 60):
        for apart in (0.5, 2.0, 4.0, 6.0):
            assert range_tail(numbers, apart) == pytest.approx(
                studentized_range.sf(apart, numbers, np.inf), abs=1e-6
            )
    assert range_tail(5, 0.0) == range_tail(5, -1.0) == 1.0
    assert 0 < range_tail(10**6, 13.0) < 0.01


def test_releases_state_them() -> None:
    stream = Stream(TopK(["a", "b", "c", "d"], k=3), Budget(1.0, 1e-9), 4)
    release = stream.step(["a"] * 1000 + ["b"] * 900)
    assert [key.key for key in release.top()][:2] == ["a", "b"]
    assert len(release.top(2)) == 2
    assert all(key.low < key.value < key.high for key in release.top())
    assert release.top(2)[0].confidence > 0.999999
    assert release.top(4)[3].confidence == 1.0, "all keys are in the top of all keys"
    half = release.top(level=0.5)[0].high - release.top(level=0.5)[0].value
    assert half < release.top()[0].high - release.top()[0].value
    plain = Stream(Histogram(["a", "b"]), Budget(1.0, 1e-9), 4).step(["a"])
    assert len(plain.top()) == 1
    for k in (0, -1, 1.5):
        with pytest.raises(ParameterError):
            plain.top(k)  # type: ignore[arg-type]


def test_other_kinds_of_noise_use_the_union_bound() -> None:
    """Laplace noise, running maxima, and numbers that share noise: wider, never the law of
    independent normals."""
    events = ["a"] * 60 + ["b"] * 30
    pure = Stream(TopK(["a", "b", "c"], k=1), Budget(1.0, 0.0), 4).step(events)
    highest = Stream(
        TopK(["a", "b", "c"], k=1), Budget(4.0, 1e-6), 4, postprocess=["monotone"]
    ).step(events)
    degrees = Stream(DegreeHistogram(40, max_degree=3), Budget(4.0, 1e-6), 4).step([(0, 1)])
    for release in (pure, highest, degrees):
        assert not run_of(release)._rank_errors.independent
        key = release.top()[0]
        assert 0 <= key.confidence <= 1
        assert key.low < key.value < key.high


def test_confidence_under_laplace_noise() -> None:
    """4,000 draws of Laplace noise, two equal keys of ten: a winner is confident at 0.8 in at most
    20 %."""
    rng = np.random.default_rng(3)
    wrong = 0
    for row in rng.laplace(0, 1 / np.sqrt(2), (4_000, 10)):
        row[1] += 6
        key = top_keys(
            [str(i) for i in range(10)], row, errors(10, pure=True, independent=False), 1, 0.95
        )[0]
        wrong += key.key != "1" and key.confidence >= 0.8
    assert wrong <= 0.2 * 4_000


@pytest.mark.parametrize(
    ("query", "budget"),
    [
        (TopK(40, 5), Budget(0.2, 1e-6)),
        (TopK(40, 5), Budget(0.2, 0.0)),
        (DegreeHistogram(30, max_degree=6), Budget(0.2, 1e-6)),
        (
            Rollup([(f"state {i}", f"county {j}") for i in range(5) for j in range(4)]),
            Budget(0.2, 0.0),
        ),
    ],
    ids=["normal", "pure", "shared noise", "shared pure noise"],
)
def test_selected_intervals_of_streams_hold_at_once(query: Query, budget: Budget) -> None:
    """4,000 streams: 5 selected numbers in ≥ 95 % less 4 standard errors; intervals of single
    numbers do not hold."""
    streams, level, k = 4_000, 0.95, 5
    stream = smooth_stream(query, budget, 4, "balanced" if budget.delta else None, seed=1)
    releases = stream.run([[]] * 4)
    noise = (
        published(query, noise_of(stream, streams, 4))[-1]
        - published(query, np.zeros((1, 1, query.cells)))[-1]
    )
    order = np.argsort(-noise, axis=1, kind="stable")[:, :k]
    off = np.abs(np.take_along_axis(noise, order, axis=1))
    top = releases[-1].top(query.outputs, level)
    half = np.empty(query.outputs)
    half[[list(query.labels).index(key.key) for key in top]] = [
        (key.high - key.low) / 2 for key in top
    ]
    least = least_share(level, streams)
    assert np.mean((off <= half[order]).all(axis=1)) >= least
    assert np.mean((np.abs(noise) <= half).all(axis=1)) >= least
    if query.cells == query.outputs and budget.delta:
        assert np.mean((np.abs(noise) <= 0.9 * half).all(axis=1)) < least, (
            "planted: 10 % too narrow"
        )
    single = symmetric_half_widths(releases, level)[-1]
    assert np.mean((off <= single[order]).all(axis=1)) < least


def test_supported_keys_have_occurred() -> None:
    """8,000 releases of 500 keys of which 20 occur: some listed key never occurred in at most 5 %
    of them."""
    true = np.where(np.arange(500) < 20, np.linspace(200, 30, 500), 0.0)
    values = true + np.random.default_rng(6).normal(0, 5.0, (STREAMS, 500))
    wide = errors(500, 5.0)
    threshold = float(wide.cells.half(0.95, 500)[0, 0])
    wrong = (values > threshold)[:, 20:].any(axis=1)
    assert wrong.mean() <= 0.05
    assert (values > 1.96 * 5.0)[:, 20:].any(axis=1).mean() > 0.9, (
        "a threshold for one key lists keys that never came"
    )
    labels = [str(i) for i in range(500)]
    for row in values[:50]:
        listed = supported_keys(labels, row, wide, None, 0.95)
        assert {key.key for key in listed} == {labels[i] for i in np.flatnonzero(row > threshold)}
        assert [key.value for key in listed] == sorted((key.value for key in listed), reverse=True)
        assert len(supported_keys(labels, row, wide, 100.0, 0.95)) == np.sum(row > 100)


def test_support_filter_of_words() -> None:
    """10^5 letters of a skewed alphabet of 26 in 50 ticks: the filter leaves a fifth of the total
    error."""
    rng = np.random.default_rng(1)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    query = Substrings(alphabet, 3)
    chance = 1 / np.arange(1, 27) ** 1.5
    letters = "".join(rng.choice(list(alphabet), 100_000, p=chance / chance.sum()))
    ticks = [letters[i : i + 2000] for i in range(0, 100_000, 2000)]
    truth = query.encode_run([], ticks)[0].sum(axis=0)
    release = smooth_stream(query, Budget(1.0, 1e-6), 50, seed=3).run(ticks)[-1]
    listed = release.supported()
    filtered = np.zeros(query.cells)
    for key in listed:
        filtered[query.labels.index(key.key)] = key.value
    assert sum(len(key.key) == 3 for key in listed) > 40
    assert all(truth[query.labels.index(key.key)] > 0 for key in listed)
    assert np.abs(filtered - truth).sum() < 0.2 * np.abs(release.values - truth).sum()
