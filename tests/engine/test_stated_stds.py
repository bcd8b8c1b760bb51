"""One number has one std: in a release, in a view, in the covariance, and in the plan before
anything was drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount import Budget, Count, Stream
from evercount.engine.build import choose_engine
from evercount.engine.worst_errors import planned_errors, worst_std
from evercount.planning import plan
from evercount.planning.plan_views import plan_views
from tiers import soak_but

KNOWN = [
    ("bridge", 7),
    ("bridge", 24),
    ("bridge", 365),
    ("pure-tree", 100),
    ("fresh", 60),
    ("pure-window-7", 90),
]
ENDLESS = [
    ("endless-bridge", None),
    ("pure-hybrid", None),
    ("pure-hybrid-binary", None),
    ("fresh", None),
]
EPSILONS = [0.1, 1.0, 4.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("name", "horizon"), [*KNOWN, *ENDLESS])
def test_a_number_has_one_std(name: str, horizon: int | None, epsilon: float) -> None:
    """Views add up the discrete numbers of the nodes, as releases do, and round what these
    round."""
    stream = Stream(Count(), Budget(epsilon, 0.0), horizon, name)
    ticks = horizon or 40
    releases, at = stream.run([1] * ticks), np.arange(1, ticks + 1)
    assert releases.std == pytest.approx(releases.running().std[:, 0], rel=1e-14)
    assert np.array_equal(releases.std, stream.std(at)[:, 0])
    some = at[:: max(1, ticks // 30)]
    covariance = stream.noise_covariance(some)
    assert np.sqrt(np.diagonal(covariance)) == pytest.approx(stream.std(some)[:, 0], rel=1e-9)
    for view, width in (("per-tick", 1), ("last-7", 7)):
        stated = (releases.per_tick() if width == 1 else releases.last(7)).std[:, 0]
        planned = stream.std(at[-len(stated) :], view)[:, 0]
        exact = np.sqrt(np.diagonal(stream.noise_covariance(at[-len(stated) :][-30:], view)))
        assert np.array_equal(stated, planned)
        assert exact == pytest.approx(stated[-30:], rel=1e-9)


def test_a_day_of_discrete_noise() -> None:
    """Up to 7 ticks a bridge is one discrete Laplace number of rate ε for each: 1.357 at ε = 1, and
    not √2."""
    releases = Stream(Count(), Budget(1.0, 0.0), 7, "bridge").run([0] * 7)
    one = 1 / (math.sqrt(2) * math.sinh(0.5))
    assert one == pytest.approx(1.357, abs=1e-4)
    assert releases.per_tick().std[:, 0] == pytest.approx(np.full(7, one))
    assert releases.last(3).std[:, 0] == pytest.approx(np.full(5, one * math.sqrt(3)))
    assert releases.std == pytest.approx(one * np.sqrt(np.arange(1, 8)))


WORST = [(4.0, 1000), (8.0, 8760), (1.0, 24), (2.0, 365), (0.5, 5000), (6.0, 100), (1.0, 5)]


@pytest.mark.parametrize(("epsilon", "horizon"), WORST)
def test_the_planned_std_is_the_largest_that_a_stream_states(epsilon: float, horizon: int) -> None:
    """At every tick; ε = 4 over 1,000 ticks: 2.93, and ε = 8 over 8,760: 1.98."""
    budget = Budget(epsilon, 0.0)
    stream = Stream(Count(), budget, horizon, "bridge")
    largest = float(stream.std(np.arange(1, horizon + 1)).max())
    model, _ = planned_errors(
        Count(), budget, horizon, choose_engine(Count(), budget, horizon, None)
    )
    assert worst_std(model, None, horizon) == largest
    planned = {row.name: row.worst_std for row in plan(budget, horizon, names=("bridge",)).rows}
    assert planned["bridge"] == pytest.approx(largest)
    chosen = next(
        row
        for row in plan_views(budget, horizon, ["running"], factorization="bridge")
        if row.chosen
    )
    assert chosen.stds["running"] == pytest.approx(largest)
    shown = {(4.0, 1000): 2.926, (8.0, 8760): 1.982}.get((epsilon, horizon))
    assert shown is None or largest == pytest.approx(shown, abs=5e-4)


@pytest.mark.parametrize("width", [1, 24])
def test_planned_stds_of_views_are_the_largest(width: int) -> None:
    for epsilon, horizon, name in (
        (8.0, 8760, "bridge"),
        (1.0, 365, "bridge"),
        (2.0, 200, "pure-tree"),
    ):
        engine = choose_engine(Count(), Budget(epsilon, 0.0), horizon, name)
        model, _ = planned_errors(Count(), Budget(epsilon, 0.0), horizon, engine)
        assert worst_std(model, width, horizon) == float(
            model.std(np.arange(1, horizon + 1), width).max()
        )


@pytest.mark.parametrize("ticks", soak_but([5000], [5000, 70_000, 2**20]))
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_planned_std_without_a_horizon(epsilon: float, ticks: int) -> None:
    engine = choose_engine(Count(), Budget(epsilon, 0.0), None, None)
    model, _ = planned_errors(Count(), Budget(epsilon, 0.0), None, engine)
    every = max(
        float(model.std(np.arange(low + 1, min(low + 4096, ticks) + 1)).max())
        for low in range(0, ticks, 4096)
    )
    assert worst_std(model, None, ticks) == pytest.approx(every, rel=1e-12)


def test_far_horizons_look_where_the_blocks_are_largest() -> None:
    """Above 2^21 ticks not all are looked at: the largest of these is not below any of a million
    others."""
    horizon = 2**23
    budget = Budget(1.0, 0.0)
    model, _ = planned_errors(
        Count(), budget, horizon, choose_engine(Count(), budget, horizon, None)
    )
    others = np.unique(np.linspace(1, horizon, 2**18).astype(np.int64))
    assert worst_std(model, None, horizon) >= float(model.std(others).max())
