"""The largest discovered keys: intervals that hold at once and confidences that hold, given discovery."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.errors import ParameterError


@pytest.mark.parametrize("runs", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_intervals_and_confidences_hold_given_discovery(runs: int) -> None:
    """Keys of nearly one size around the threshold: what is public and what is largest is decided by noise."""
    query, budget, level, k = DiscoveredKeys(), Budget(1.0, 1e-2), 0.8, 3
    missed = wrong = naive = confident = 0
    for seed in range(runs):
        stream = Stream(query, budget, 4, secret=Secret.from_hex("d1" * 32).derive(f"{seed}"))
        assert stream.thresholds is not None
        least, std = stream.thresholds.at(1), float(stream.std([1])[0, 0])
        counts = {f"k{i:02d}": int(least + std * (-2 + 0.5 * i)) for i in range(12)}
        counts |= {"a": int(least + 14 * std), "b": int(least + 22 * std)}
        release = stream.step(counts)
        top = release.top(k, level)
        public = {label: counts[label] for label in release.labels[2:]}
        assert [key.key for key in top] == sorted(
            public, key=lambda one: -release.values[list(release.labels).index(one)]
        )[:k]
        missed += any(not key.low <= counts[key.key] <= key.high for key in top)
        naive += any(abs(counts[key.key] - key.value) > 1.2816 * std for key in top)
        largest = sorted(public.values())[-k:]
        sure = [key for key in top if key.confidence >= 0.8]
        confident += bool(sure)
        wrong += any(counts[key.key] < largest[0] for key in sure)
    assert missed <= binom.ppf(1 - 1e-6, runs, 1 - level)
    assert wrong <= binom.ppf(1 - 1e-6, runs, 0.2)
    assert confident > runs / 2, "keys far above all others are told apart"
    assert naive > binom.ppf(1 - 1e-6, runs, 1 - level), "intervals of single keys would have failed"


def test_edges() -> None:
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-6), 4)
    assert stream.step(["rare"]).top(5) == []
    release = stream.step({"a": 5000, "b": 9000, "total": 10**6})
    assert [key.key for key in release.top(9)] == ["b", "a"]
    assert [key.confidence for key in release.top(2)] == [1.0, 1.0]
    (best,) = release.top()
    assert best.key == "b"
    assert best.confidence > 0.999
    assert np.isfinite([best.low, best.high]).all()
    for k in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="k"):
            release.top(k)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="passed a threshold"):
        release.supported()
