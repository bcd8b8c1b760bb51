"""Fresh noise: new on every tick, Gaussian and Laplace; restores, parts of cells, its law, and what
it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Secret, Stream
from evercount.engine.build import make_noise
from evercount.errors import ParameterError
from evercount.factorizations import Direct, Fresh
from evercount.graphs import Edges
from evercount.mechanisms.exact.arithmetic import numeric_delta
from evercount.noise.laplace_sampler import variance

SECRET = Secret.from_hex("6f" * 32)
GAUSSIAN, PURE = Budget(1.0, 1e-6), Budget(1.0, 0.0)


@pytest.mark.parametrize("budget", [GAUSSIAN, PURE], ids=["gaussian", "laplace"])
def test_ticks_are_independent_with_the_stated_std(budget: Budget) -> None:
    """4,000 cells as independent streams; noise of the running total, or shared by two ticks, is
    caught."""
    cells, ticks = 4000, 6
    stream = Stream(Histogram(cells), budget, None, "fresh", secret=SECRET)
    releases = stream.run_totals(np.zeros((ticks, cells), np.int64))
    each = np.diff(releases.rows, axis=0, prepend=0.0)
    assert np.array_equal(each, np.round(each)), "every tick's noise is a whole number"
    covariance = each @ each.T / cells
    std = releases.per_tick().std[:, 0]
    error = 5 * std[0] ** 2 * math.sqrt(6 / cells)
    assert np.abs(covariance - np.diag(std**2)).max() < error
    assert std == pytest.approx(std[0])
    assert releases.last(4).std[-1, 0] == pytest.approx(2 * std[0])
    assert releases.stds[:, 0] == pytest.approx(std[0] * np.sqrt(np.arange(1, ticks + 1)))
    assert np.abs(np.cov(releases.rows) - np.diag(std**2)).max() > error, "planted: running totals"


def test_a_day_has_the_noise_of_a_beginners_loop() -> None:
    """ε = 1, δ = 0: one day 1.36, seven days 3.6, whatever the length of the stream."""
    stream = Stream(Count(), PURE, None, "fresh", secret=SECRET)
    view = stream.run([0] * 20)
    assert (
        view.per_tick().std[-1, 0]
        == pytest.approx(math.sqrt(variance(1.0)))
        == pytest.approx(1.36, abs=0.005)
    )
    assert view.last(7).std[-1, 0] == pytest.approx(3.59, abs=0.01)


@pytest.mark.parametrize("budget", [GAUSSIAN, PURE], ids=["gaussian", "laplace"])
def test_splits_restores_and_parts_give_the_same_numbers(budget: Budget) -> None:
    totals = np.arange(300 * 5).reshape(300, 5)
    whole = (
        Stream(Histogram(5), budget, None, "fresh", secret=SECRET, replay=True)
        .run_totals(totals)
        .rows
    )
    stream = Stream(Histogram(5), budget, None, "fresh", secret=SECRET)
    rows = []
    for first, last in ((0, 1), (1, 70), (70, 71), (71, 300)):
        rows.append(stream.run_totals(totals[first:last]).rows)
        blob = stream.snapshot()
        stream.close()
        stream = Stream.restore(blob)
    assert np.array_equal(np.concatenate(rows), whole)
    stream.close()
    part = Stream(Histogram(5), budget, None, "fresh", secret=SECRET, part=range(2, 4))
    assert np.array_equal(part.run_totals(totals[:, 2:4]).rows, whole[:, 2:4])


def test_only_touched_ticks_cost_anything() -> None:
    """An event touches one tick, whatever the number of ticks: the others have one law for both
    neighbours."""
    endless = make_noise(Count(), Fresh(), GAUSSIAN, None, secret=SECRET)
    once = numeric_delta(Direct(2**47), 2 * GAUSSIAN.noise_multiplier(), 1, 1.0, 1)
    assert endless.numeric_delta == pytest.approx(once, rel=1e-6)
    users = make_noise(
        Count(), Fresh(), Budget(1.0, 1e-6, unit="user", max_events=9), None, secret=SECRET
    )
    assert users.numeric_delta >= 9 * endless.numeric_delta
    graph = make_noise(Edges(4), Fresh(10**6), GAUSSIAN, 10**6, secret=SECRET)
    assert graph.numeric_delta > 10**5 * endless.numeric_delta, "one edge may move later ticks"


def test_neighbours_agree_but_for_their_tick() -> None:
    """The same secret: what is published per tick differs in the tick of the event alone."""
    one, other = (
        Stream(Count(), PURE, None, "fresh", secret=SECRET, replay=True)
        .run(data)
        .per_tick()
        .values[:, 0]
        for data in ([5, 5, 5, 5], [5, 5, 6, 5])
    )
    assert (other - one).tolist() == [0, 0, 1, 0]


def test_running_totals_of_unlisted_keys_are_refused() -> None:
    from evercount import DiscoveredKeys

    with pytest.raises(ParameterError, match="omit the factorization"):
        Stream(DiscoveredKeys(), GAUSSIAN, 10, "fresh")
