"""Intervals of discovered keys hold given discovery; the naive ones, planted here, do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.queries.discovered_keys import CLEAR, sum_of_clear
from independent_streams import discoveries, least_share
from product_internals import cell_errors

pytestmark = pytest.mark.slow

KEYS = 16_000


@pytest.fixture(scope="module", params=[1, 4], ids=["every tick", "every fourth"])
def run(request: pytest.FixtureRequest) -> tuple[Stream, object, np.ndarray]:
    """Keys whose counts grow through the threshold: many are listed because of their noise."""
    query = DiscoveredKeys(every=request.param)
    stream = Stream(query, Budget(1.0, 1e-2), 16, secret=Secret.from_hex("a7" * 32), replay=True)
    assert stream.thresholds is not None
    middle = stream.thresholds.at(16 // request.param * request.param)
    final = np.linspace(0.3 * middle, 2.0 * middle, KEYS).astype(int)
    counts = np.stack([final * tick // 16 for tick in range(1, 17)])
    steps = np.diff(counts, axis=0, prepend=0)
    names = [f"k{place:05d}" for place in range(KEYS)]
    ticks = [{name: int(n) for name, n in zip(names, row, strict=True) if n} for row in steps]
    return stream, stream.run(ticks), counts


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_hold_given_discovery(
    run: tuple[Stream, object, np.ndarray], level: float
) -> None:
    """Keys have noise of their own: each of the more than 2,000 that are public at a tick counts as
    a stream."""
    _, releases, counts = run
    barely = naive_missed = 0
    for tick in (8, 16):
        release = releases[tick - 1]  # type: ignore[index]
        low, high = release.interval(level)
        truth = np.asarray([counts[tick - 1, int(label[1:])] for label in release.labels[2:]])
        values, std = release.values[2:], release.stds[2:]
        # keys with nearly the same count: those that were listed hold their intervals at the stated
        # rate
        for part in np.array_split(np.argsort(truth), 8):
            missed = int(((truth < low[2:]) | (truth > high[2:]))[part].sum())
            assert missed <= binom.ppf(1 - 1e-6, len(part), 1 - level), (tick, truth[part][[0, -1]])
        lucky = truth < np.quantile(truth, 0.1)
        barely += int(lucky.sum())
        half = max(release.values[0] - low[0], high[0] - release.values[0])
        naive_missed += int((np.abs(values - truth) > half)[lucky].sum())
        assert (std > 0).all()
        assert len(truth) > 2000
    assert naive_missed > 1.7 * (1 - level) * barely, (
        "symmetric intervals would have failed for keys listed by luck"
    )


@pytest.mark.parametrize("every", [1, 4])
def test_intervals_of_the_total_and_of_others_hold(every: int) -> None:
    """2,500 streams of twelve keys around the threshold and two far above; level 0.95 and 0.8, less
    4 standard errors.

    Planted: for the total and clear keys intervals that are 10 % too narrow, for `other` one that
    forgets discovery.
    """
    streams = 2_500
    stream = Stream(
        DiscoveredKeys(every=every),
        Budget(0.05, 1e-2),
        4,
        secret=Secret.from_hex("d2" * 32),
        replay=True,
    )
    assert stream.thresholds is not None
    least, std = stream.thresholds.at(4), float(stream.std([4])[0, 0])
    final = np.asarray([least + std * away for away in (*np.arange(-2, 4, 0.5), 14, 22)])
    counts = np.stack([final * tick // 4 for tick in range(1, 5)]).astype(np.int64)
    many = discoveries(stream, counts, streams)
    values, evidence, order = many.rows(4)
    public = ~np.isnan(values[:, 2:])
    keys = counts[3][order]
    total = counts[3].sum()
    truth = np.column_stack(
        [np.full(streams, total), total - np.where(public, keys, 0).sum(axis=1), keys]
    )
    one = cell_errors(many.releases[3])
    errors = one.at(np.zeros(streams, np.int64))
    for level in (0.8, 0.95):
        low, high = stream.query.interval(values, evidence, errors, level)
        held = (low <= truth) & (truth <= high)
        enough = least_share(level, streams)
        assert held[:, 0].mean() >= enough
        assert held[:, 1].mean() >= enough
        clear = public & (keys >= counts[3, -2])
        assert clear.sum() == 2 * streams
        assert held[:, 2:][clear].mean() >= least_share(level, 2 * streams)
        if level == 0.95:
            narrow = np.abs(values - truth) <= 0.9 * (high - values)
            assert narrow[:, 0].mean() < enough
            assert narrow[:, 2:][clear].mean() < least_share(level, 2 * streams)
        noise = one.factor(level) * np.sqrt(public.sum(axis=1) + 1) * one.spread[0, 0]
        assert np.mean(np.abs(values[:, 1] - truth[:, 1]) <= noise) < enough


@pytest.mark.parametrize("above", [0.0, 2.0, 3.5, 4.0, 4.5, 8.0])
def test_the_noise_of_clear_keys_stays_below_its_bound(above: float) -> None:
    """Keys whose counts are so many stds above the threshold: which are public and clear is decided
    by their noise."""
    generator, miss, missed, runs = np.random.default_rng(5), 0.05, 0, 3000
    for noise in generator.standard_normal((runs, 40)):
        public = noise[above + noise >= 0]
        clear = public[above + public >= 2 * CLEAR]
        missed += bool(len(clear)) and clear.sum() > sum_of_clear(len(public), miss)
    assert missed <= binom.ppf(1 - 1e-6, runs, miss)
    assert sum_of_clear(40, miss) < 40 * 1.5, "far below what bounds of single keys would add up to"


def test_the_last_step_of_the_bound_holds_for_every_rate() -> None:
    rate = np.linspace(0, 3, 3001)
    gap = 0.5 - ndtr(CLEAR) + np.exp(rate**2 / 2) * (ndtr(rate) - ndtr(rate - CLEAR))
    assert abs(gap[0]) < 1e-12
    assert (np.diff(gap) > 0).all()
