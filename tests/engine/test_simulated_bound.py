"""Bounds for all ticks by simulation, for Gaussian and for pure noise."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Stream, Sum
from evercount.errors import ParameterError
from independent_streams import least_share, noise_of, smooth_stream

BETA = 0.1
TICKS = 60


@pytest.mark.parametrize("factorization", ["bridge", "pure-tree", "pure-binary"])
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_bounds_of_pure_streams_are_simulated(factorization: str, epsilon: float) -> None:
    """4,000 streams: the simulation hits the level from above, closer than the union bound; less
    would not hold."""
    streams = 4_000
    stream = smooth_stream(Sum(0, 1, 0.5), Budget(epsilon, 0.0), TICKS, factorization, seed=1)
    releases = stream.run_totals(np.zeros((TICKS, 1), np.int64))
    bound, union = releases.bound(1 - BETA, "simulate"), releases.bound(1 - BETA)
    assert np.all(bound < union)
    off = np.abs(noise_of(stream, streams, TICKS)[..., 0])
    held, narrow = (
        np.mean(np.all(off <= part * bound[:, np.newaxis], axis=0)) for part in (1.0, 0.9)
    )
    assert held >= least_share(1 - BETA, streams)
    assert narrow < least_share(1 - BETA, streams), "planted: a bound that is 10 % too small"


def test_simulation_is_refused_where_it_does_not_fit() -> None:
    budget = Budget(1.0, 0.0)
    histogram = Stream(Histogram(2), budget, 4).run([[0]] * 4)
    with pytest.raises(ParameterError, match="one running sum"):
        histogram.bound(1 - BETA, "simulate")
    with pytest.raises(ParameterError, match="ratio"):
        Stream(Average(per="event"), budget, 4).run([[1]] * 4).bound(1 - BETA, "simulate")
    with pytest.raises(ParameterError, match="post-processing"):
        Stream(Count(), budget, 4, postprocess=["nonnegative"]).run([1] * 4).bound(
            1 - BETA, "simulate"
        )
    stream = Stream(Count(), budget, 4)
    stream.step(1)
    with pytest.raises(ParameterError, match="from tick 1 on"):
        stream.run([1]).bound(1 - BETA, "simulate")
    with pytest.raises(ParameterError, match="method must be"):
        stream.run([1]).bound(1 - BETA, "guess")
