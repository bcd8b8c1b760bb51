"""Intervals of discovered keys hold given discovery; the naive ones, planted here, do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.queries.discovered_keys import CLEAR, sum_of_clear

KEYS = 1500


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
    names = [f"k{place:04d}" for place in range(KEYS)]
    ticks = [{name: int(n) for name, n in zip(names, row, strict=True) if n} for row in steps]
    return stream, stream.run(ticks), counts


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_hold_given_discovery(run: tuple[Stream, object, np.ndarray], level: float) -> None:
    _, releases, counts = run
    barely, naive_missed, tested = 0, 0, 0
    for tick in (8, 16):
        release = releases[tick - 1]  # type: ignore[index]
        low, high = release.interval(level)
        truth = np.asarray([counts[tick - 1, int(label[1:])] for label in release.labels[2:]])
        values, std = release.values[2:], release.std_all[2:]
        # keys with nearly the same count: those that were listed hold their intervals at the stated rate
        for part in np.array_split(np.argsort(truth), 8):
            missed = int(((truth < low[2:]) | (truth > high[2:]))[part].sum())
            assert missed <= binom.ppf(1 - 1e-6, len(part), 1 - level), (tick, truth[part][[0, -1]])
            tested += len(part)
        lucky = truth < np.quantile(truth, 0.1)
        barely += int(lucky.sum())
        half = release.half_widths(level)[0]
        naive_missed += int((np.abs(values - truth) > half)[lucky].sum())
        assert (std > 0).all()
        hidden = counts[tick - 1].sum() - truth.sum()
        low, high = release.interval(0.9999)  # one number each: only a high level can be tested
        assert low[1] <= hidden <= high[1]
        assert low[0] <= counts[tick - 1].sum() <= high[0]
    assert tested > 800
    assert naive_missed > 1.7 * (1 - level) * barely, "symmetric intervals would have failed for keys listed by luck"


@pytest.mark.parametrize("above", [0.0, 2.0, 3.5, 4.0, 4.5, 8.0])
def test_the_noise_of_clear_keys_stays_below_its_bound(above: float) -> None:
    """Keys whose counts are so many stds above the threshold: which are public and clear is decided by their noise."""
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
