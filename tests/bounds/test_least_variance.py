"""The least variance of noise for one number: against linear programs, the laws that we draw, and
all that we plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import lil_matrix

from evercount import Budget, Count, Histogram, Sum
from evercount._validate import FloatArray
from evercount.bounds.least_variance import least_variance
from evercount.errors import ParameterError
from evercount.noise.laplace_sampler import variance
from evercount.planning.distances import any_noise, distances

PROMISES = [(1.0, 0.01), (1.0, 0.3), (1.0, 0.5), (0.5, 0.05), (2.0, 1e-3), (0.3, 0.2), (3.0, 0.05)]


def best_noise(epsilon: float, delta: float, parts: int) -> tuple[float, FloatArray]:
    """(variance, law) of the best noise on multiples of 1/parts up to 7, by a linear program."""
    reach = 7 * parts
    size = 2 * reach + 1
    places = np.arange(-reach, reach + 1) / parts
    rows, most = lil_matrix((2 * size + 2, 3 * size)), np.zeros(2 * size + 2)
    for place in range(size):
        for side, other in ((0, place + parts), (1, place - parts)):  # excess ≥ p(y) − e^ε·p(y ± 1)
            row = side * size + place
            rows[row, place] = 1.0
            rows[row, (1 + side) * size + place] = -1.0
            if 0 <= other < size:
                rows[row, other] = -math.exp(epsilon)
    for side in (0, 1):
        rows[2 * size + side, (1 + side) * size : (2 + side) * size] = 1.0
        most[2 * size + side] = delta
    total = lil_matrix((1, 3 * size))
    total[0, :size] = 1.0
    cost = np.concatenate([places**2, np.zeros(2 * size)])
    program: Any = linprog
    found = program(
        cost, rows.tocsr(), most, total.tocsr(), [1.0], bounds=(0, None), method="highs"
    )
    assert found.success
    return float(found.fun), np.asarray(found.x[:size])


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_no_noise_that_a_program_finds_has_less(epsilon: float, delta: float) -> None:
    bound = least_variance(epsilon, delta)
    for parts in (1, 2, 5, 8):
        found, law = best_noise(epsilon, delta, parts)
        shifted = np.concatenate([law[parts:], np.zeros(parts)])  # the program's noise is private
        assert np.maximum(law - math.exp(epsilon) * shifted, 0).sum() <= delta + 1e-6
        assert found >= bound * (1 - 1e-7)


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_the_bound_is_nearly_attained(epsilon: float, delta: float) -> None:
    assert best_noise(epsilon, delta, 8)[0] <= least_variance(epsilon, delta) * 1.003


def test_whole_numbers_would_be_no_bound() -> None:
    assert best_noise(1.0, 0.5, 1)[0] > 0.26
    assert best_noise(1.0, 0.5, 2)[0] == pytest.approx(0.25)
    assert least_variance(1.0, 0.5) < 0.2


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 4.0, 20.0])
def test_discrete_laplace_noise_has_the_least_variance_at_delta_0(epsilon: float) -> None:
    assert least_variance(epsilon) == pytest.approx(variance(epsilon), rel=1e-9)
    few = [least_variance(epsilon, delta) for delta in (1e-12, 1e-6, 1e-3, 0.1)]
    assert few == sorted(few, reverse=True)
    assert least_variance(epsilon) >= few[0]
    assert few[0] == pytest.approx(least_variance(epsilon), rel=1e-3)


def test_small_epsilons_are_served_by_a_larger_one() -> None:
    assert least_variance(1e-7, 1e-3) == least_variance(1e-4, 1e-3)
    assert 0 <= least_variance(1.0, 0.999) < 1e-2


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.1), (math.nan, 0.0), (1.0, 1.0), (1.0, -0.1), (1.0, math.nan)]
)
def test_what_is_no_promise_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ParameterError):
        least_variance(epsilon, delta)


@pytest.mark.parametrize(
    "budget",
    [Budget(1.0, 0.0), Budget(0.2, 0.0), Budget(6.0, 0.0), Budget(1.0, 1e-6), Budget(3.0, 1e-2)],
    ids=str,
)
def test_none_of_ours_is_below_what_any_noise_needs(budget: Budget) -> None:
    """Every mechanism and view; and a day alone at delta = 0 has exactly that."""
    for views in (("per-tick",), ("running",), ("per-tick", "last-7", "running")):
        least = any_noise(budget, 60, views)
        assert least is not None
        found, _, _ = distances(budget, 60, views)
        for one in found:
            assert all(
                own >= low * (1 - 1e-9) for own, low in zip(one.stds, least.alone, strict=True)
            )
            assert one.above_any >= -1e-9
        if views == ("per-tick",) and budget.pure:
            assert found[0].stds[0] == pytest.approx(least.alone[0], rel=5e-3)


def test_one_tick_is_attained_and_units_are_scaled() -> None:
    pure = Budget(1.0, 0.0)
    count, steps = (
        any_noise(pure, 20, ("running",)),
        any_noise(pure, 20, ("running",), Sum(-2, 3, 0.5)),
    )
    assert count is not None
    assert steps is not None
    assert steps.alone[0] == pytest.approx(3 * count.alone[0])
    users = any_noise(Budget(1.0, 0.0, unit="user", max_events=6, max_per_tick=2), 20, ("running",))
    assert users is not None
    assert users.alone[0] == pytest.approx(2 * count.alone[0])
    # where one event changes two numbers nothing is known
    assert any_noise(Budget(1.0, 0.0, adjacency="replace"), 20, ("running",), Histogram(3)) is None
    assert any_noise(pure, None, ("running",)) is None
    with pytest.raises(ParameterError, match="--optimal"):
        distances(Budget(1.0, 0.0, adjacency="replace"), 20, ("running",), Histogram(3))
    with pytest.raises(ParameterError, match="--optimal"):
        distances(pure, None, ("running",), Count())
