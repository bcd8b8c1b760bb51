"""The largest discovered keys: intervals that hold at once and confidences that hold, given
discovery."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.errors import ParameterError
from evercount.queries.discovered_keys import top_discovered
from independent_streams import discoveries
from product_internals import cell_errors, run_of, sums_of


def test_intervals_and_confidences_hold_given_discovery() -> None:
    """1,200 streams with keys of nearly one size around the threshold: noise decides what is public
    and largest."""
    level, k, runs = 0.8, 3, 1_200
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-2), 4, secret=Secret.from_hex("d1" * 32))
    assert stream.thresholds is not None
    least, std = stream.thresholds.at(1), float(stream.std([1])[0, 0])
    counts = np.asarray([int(least + std * away) for away in (*np.arange(-2, 4, 0.5), 14, 22)])
    many = discoveries(stream, counts[np.newaxis], runs)
    errors = cell_errors(many.releases[0])
    missed = wrong = naive = confident = 0
    for values, evidence, order in zip(*many.rows(1), strict=True):
        public = order[: np.count_nonzero(~np.isnan(values)) - 2]
        shown = slice(0, 2 + len(public))
        labels = ["total", "other", *map(str, public)]
        top = top_discovered(stream.query, labels, values[shown], evidence[shown], errors, k, level)
        assert [key.key for key in top] == [
            labels[2 + place] for place in np.argsort(-values[2:], kind="stable")[:k]
        ]
        truth = [counts[int(key.key)] for key in top]
        missed += any(not key.low <= true <= key.high for key, true in zip(top, truth, strict=True))
        naive += any(
            abs(true - key.value) > 1.2816 * std for key, true in zip(top, truth, strict=True)
        )
        largest = sorted(counts[public])[-k:]
        sure = [true for key, true in zip(top, truth, strict=True) if key.confidence >= 0.8]
        confident += bool(sure)
        wrong += any(true < largest[0] for true in sure)
    assert missed <= binom.ppf(1 - 1e-6, runs, 1 - level)
    assert wrong <= binom.ppf(1 - 1e-6, runs, 0.2)
    assert confident > runs / 2, "keys far above all others are told apart"
    assert naive > binom.ppf(1 - 1e-6, runs, 1 - level), (
        "intervals of single keys would have failed"
    )


def test_a_release_gives_what_its_numbers_give() -> None:
    """`Release.top` is the function that is tested above, of what the release publishes."""
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-2), 4)
    release = stream.step({"a": 500, "b": 400, "c": 300})
    run = run_of(release)
    wanted = top_discovered(
        stream.query, release.labels, release.values, sums_of(run)[0], cell_errors(run[0]), 2, 0.8
    )
    assert release.top(2, 0.8) == wanted
    assert [key.key for key in wanted] == ["a", "b"]


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
