"""The simulator against the exact answers."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import UnknownName
from evercount.factorizations import factorization
from evercount.reproduce.counting_items import HALF_NORMAL
from evercount.reproduce.simulator import Simulation, measure, one_batch, simulate, with_standard_error

NAMES = ("binary-tree", "square-root", "balanced", "honaker")
SIGMAS = 4.5
"""A correct simulation leaves this range once in 1.5·10^5 comparisons. Seeds are fixed, so a failure is a change."""


@pytest.fixture(scope="module")
def simulations() -> dict[str, Simulation]:
    return simulate(NAMES, 512, 2000, seed=3)


@pytest.mark.parametrize("name", NAMES)
def test_mean_error_agrees_with_the_exact_std(simulations: dict[str, Simulation], name: str) -> None:
    mean, error = simulations[name].mean_normalised
    assert abs(mean - HALF_NORMAL) < SIGMAS * error
    per_tick = (simulations[name].mean_absolute / simulations[name].std - HALF_NORMAL) / np.sqrt((1 - 2 / np.pi) / 2000)
    assert np.abs(per_tick).max() < 5.5  # 512 correlated comparisons


def test_running_maximum_grows_and_ends_at_the_worst_error(simulations: dict[str, Simulation]) -> None:
    for one in simulations.values():
        assert np.all(np.diff(one.running_maximum) >= 0)
        assert one.running_maximum[-1] == pytest.approx(one.worst_error[0])


def test_a_wrong_std_is_caught() -> None:
    """Negative control: the same comparison fails for noise that is 2 % too large."""
    engine = factorization("square-root", 512)
    std = engine.row_norms(np.arange(1, 513))
    noise = np.concatenate([one_batch(engine, 500, seed) for seed in range(40)], axis=1)
    for factor, good in ((1.0, True), (1.02, False)):
        mean, error = with_standard_error(measure(noise * factor, std)[2][0])
        assert (abs(mean - HALF_NORMAL) < SIGMAS * error) == good


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    one, two, other = (simulate(["square-root"], 64, 100, seed=seed)["square-root"] for seed in (1, 1, 2))
    assert np.array_equal(one.mean_absolute, two.mean_absolute)
    assert not np.array_equal(one.mean_absolute, other.mean_absolute)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName):
        simulate(["binary"], 64, 10)
