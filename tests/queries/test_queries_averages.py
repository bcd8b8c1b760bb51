"""Averages per event: Fieller's intervals hold from the first tick on, where a first-order interval
does not."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Average, Budget, Releases, Secret, Stream
from evercount._validate import FloatArray
from evercount.queries.publishing import CellErrors, ErrorsFromSums, fieller_interval
from many_streams import least_share, noise_of, smooth_stream
from tiers import soak_but

STREAMS = 8_000
BUDGET = Budget(1.0, 1e-6)


def kept(query: Average) -> ErrorsFromSums:
    found = query.publishing.kept
    assert found is not None
    return found


def released(
    query: Average, budget: Budget, ticks: list[list[float]]
) -> tuple[FloatArray, Releases, FloatArray]:
    """Noisy sums (ticks, streams, 2) of many streams of the same data, one of them released, and
    the true averages."""
    stream = smooth_stream(query, budget, len(ticks), seed=1)
    sums = np.cumsum(query.encode_run(None, ticks)[0], axis=0) * query.grid
    flat = [
        np.concatenate([np.asarray(tick, float) for tick in ticks[: t + 1]])
        for t in range(len(ticks))
    ]
    noisy = sums[:, np.newaxis] + noise_of(stream, STREAMS, len(ticks))
    return noisy, stream.run(ticks), np.asarray([values.mean() for values in flat])


def held(
    query: Average, now: FloatArray, cell: CellErrors, truth: float, narrow: float = 1.0
) -> float:
    """How many of the streams hold the truth, where their cells claim `narrow` times their
    error."""
    claimed = CellErrors(narrow * cell.spread, narrow * cell.slack, cell.pure)
    low, high = kept(query).interval(query.decode_run(1, now), now, claimed, 0.95)
    return float(np.mean((low <= truth) & (truth <= high)))


@pytest.mark.parametrize(
    ("hi", "share", "events"),
    soak_but([(10, 0.1, 8)], [(10, 0.1, 8), (10, 0.9, 40), (100, 0.1, 400)]),
)
def test_intervals_of_averages_per_event_hold(hi: int, share: float, events: int) -> None:
    """8,000 streams, 0.95 stated: at least 0.94 at every tick and at most 0.96 once many events
    have come."""
    query, rng = Average(0, hi, 1, per="event"), np.random.default_rng(3)
    ticks = [list(hi * (rng.random(events) < share).astype(float)) for _ in range(60)]
    sums, releases, truth = released(query, BUDGET, ticks)
    naive = []
    for t in (0, 1, 3, 9, 29, 59):
        now, cell = sums[t], releases[t]._run._cells
        values = query.decode_run(t + 1, now)
        covered = held(query, now, cell, truth[t])
        assert covered >= 0.94, t
        low, high = kept(query).interval(values, now, cell, 0.95)
        assert (low <= values).all()
        assert (values <= high).all()
        half = 1.96 * cell.spread * kept(query).scale(now, values)
        naive.append(float(np.mean(np.abs(values - truth[t]) <= half)))
        if t == 59:
            assert covered <= 0.96
            assert held(query, now, cell, truth[t], narrow=0.9) < 0.94, (
                "planted: intervals that are 10 % too narrow"
            )
            assert np.median(high - low) < hi / 6, "and it says something"
    assert min(naive) < 0.9, (
        "the first-order interval, which was stated before, must fail this test"
    )


@pytest.mark.parametrize(("epsilon", "events"), [(1.0, 3), (0.2, 120), (8.0, 3)])
def test_pure_noise_bounds_each_sum_by_itself(epsilon: float, events: int) -> None:
    """8,000 streams under δ = 0: at least 0.95 hold, less 4 standard errors, at every tick."""
    query, ticks = Average(0, 1, 0.25, per="event"), [[0.25, 1.0, 1.0] * (events // 3)] * 4
    sums, releases, truth = released(query, Budget(epsilon, 0.0), ticks)
    least = least_share(0.95, STREAMS)
    for t in range(4):
        assert held(query, sums[t], releases[t]._run._cells, truth[t]) >= least
    assert held(query, sums[3], releases[3]._run._cells, truth[3], narrow=0.5) < least, (
        "planted: half as wide"
    )


def test_releases_use_fieller() -> None:
    stream = Stream(Average(0, 1, 0.25, per="event"), BUDGET, 8, secret=Secret.from_hex("07" * 32))
    releases = stream.run([[0.25, 1.0]] * 4)
    low, high = releases.interval(0.9)
    assert (low >= 0).all()
    assert (high <= 1).all()
    for i, release in enumerate(releases):
        assert release.interval(0.9) == (low[i], high[i])
    table = releases.table(0.9).columns()
    np.testing.assert_array_equal(table["low"], low)
    np.testing.assert_array_equal(table["high"], high)


def test_a_retry_after_a_restart_has_the_same_interval() -> None:
    stream = Stream(
        Average(0, 1, 0.25, per="event"), Budget(8.0, 1e-6), 8, secret=Secret.from_hex("09" * 32)
    )
    first = stream.step([0.25, 1.0] * 200, tick=1)
    blob = stream.snapshot()
    again = Stream.restore(blob).step([0.25, 1.0] * 200, tick=1)
    assert again.interval(0.95) == first.interval(0.95)


def brute(
    above: float, below: float, normal: float, linear: float, low: float, high: float
) -> tuple[float, float]:
    grid = np.linspace(low, high, 20_001)
    fits = np.abs(above - grid * below) <= normal * np.sqrt(1 + grid**2) + linear * (
        1 + np.abs(grid)
    )
    return (float(grid[fits].min()), float(grid[fits].max())) if fits.any() else (np.nan, np.nan)


def test_the_hull_against_a_fine_grid() -> None:
    """Random numerators and denominators of both signs, narrow and wide bounds, and a denominator
    of 0."""
    rng = np.random.default_rng(8)
    seen = set()
    for number in range(300):
        above, below = rng.normal(0, 3, 2)
        below = 0.0 if number % 50 == 0 else below
        normal, linear = rng.choice([0.0, 0.3, 1.0, 4.0], 2)
        low, high = -rng.uniform(0.1, 2), rng.uniform(0.1, 2)
        expected = brute(above, below, normal, linear, low, high)
        parts = [np.asarray([[x]]) for x in (above, below, normal, linear)]
        found = [float(side[0, 0]) for side in fieller_interval(*parts, low, high)]
        if np.isnan(expected[0]):
            assert found[1] - found[0] < 1e-3
            seen.add("empty")
            continue
        assert found == pytest.approx(expected, abs=(high - low) / 9_000)
        seen.add((found[0] == low, found[1] == high))
    assert seen == {"empty", (True, True), (True, False), (False, True), (False, False)}
