"""Bounds for all ticks by simulation, for Gaussian and for pure noise."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Releases, Stream, Sum, Window
from evercount.errors import ParameterError
from evercount.queries.base import Query

BETA = 0.1
TICKS = 60


def simulate(query: Query[float], factorization: str | None, budget: Budget, seed: int) -> Releases[float]:
    stream = Stream(query, budget, TICKS, factorization, noise="insecure-float", seed=seed)
    return stream.run_totals(np.zeros((TICKS, 1), np.int64))


@pytest.mark.parametrize("factorization", ["bridge", "pure-tree", "pure-binary"])
@pytest.mark.parametrize("epsilon", [0.2, 3.0])
def test_bounds_of_pure_streams_are_simulated(factorization: str, epsilon: float) -> None:
    """The simulation hits the level from above, closer than the union bound; much less would not hold."""
    query, budget = Sum(0, 1, 0.5), Budget(epsilon, 0.0)
    runs = [simulate(query, factorization, budget, seed) for seed in range(400)]
    bound, union = runs[0].bound(BETA, "simulate"), runs[0].bound(BETA)
    assert np.all(bound < union)
    held = np.mean([np.all(np.abs(run.values) <= bound) for run in runs])
    assert held >= 1 - BETA - 3 * np.sqrt(BETA * (1 - BETA) / 400)
    narrow = np.mean([np.all(np.abs(run.values) <= 0.75 * bound) for run in runs])
    assert narrow < 1 - BETA - 3 * np.sqrt(BETA * (1 - BETA) / 400), "the check can fail"


def test_simulation_is_refused_where_it_does_not_fit() -> None:
    budget = Budget(1.0, 0.0)
    histogram = Stream(Histogram(2), budget, 4).run([[0]] * 4)
    with pytest.raises(ParameterError, match="one running sum"):
        histogram.bound(BETA, "simulate")
    with pytest.raises(ParameterError, match="one running sum"):
        Stream(Window(2), budget, 4).run([1] * 4).bound(BETA, "simulate")
    with pytest.raises(ParameterError, match="ratio"):
        Stream(Average(per="event"), budget, 4).run([[1]] * 4).bound(BETA, "simulate")
    with pytest.raises(ParameterError, match="post-processing"):
        Stream(Count(), budget, 4, postprocess=["nonnegative"]).run([1] * 4).bound(BETA, "simulate")
    stream = Stream(Count(), budget, 4)
    stream.step(1)
    with pytest.raises(ParameterError, match="from tick 1 on"):
        stream.run([1]).bound(BETA, "simulate")
    with pytest.raises(ParameterError, match="method must be"):
        stream.run([1]).bound(BETA, "guess")
