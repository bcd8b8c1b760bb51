"""Thresholds of discovery: their δ₂ holds for every split of a unit's events, and they are the least that do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import norm

from evercount.errors import ParameterError
from evercount.queries.discovery_threshold import Thresholds


def partitions(total: int, largest: int | None = None) -> Iterator[list[int]]:
    if total == 0:
        yield []
    for part in range(min(total, largest or total), 0, -1):
        for rest in partitions(total - part, part):
            yield [part, *rest]


def chance(one: Thresholds, tick: int, threshold: int, split: list[int], std: float) -> float:
    """P that some key of the split passes at one tick, by the union over keys."""
    return float(sum(norm.sf(threshold - (one.minimum - 1 + a) - 0.5, scale=std) for a in split))


@pytest.mark.parametrize("std", [0.4, 3.0, 40.0, 4000.0])
@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("minimum", [1, 30])
def test_thresholds_keep_their_delta_for_every_split(std: float, most: int, minimum: int) -> None:
    one = Thresholds(minimum, 3, 30, most, 1e-4, lambda ticks: np.full(len(ticks), std))
    share = 1e-4 / 10
    assert one.share(3) == pytest.approx(share)
    found = one.at(3)
    worst = max(chance(one, 3, found, split, std) for split in partitions(most))
    assert worst <= share
    # the rule k·max p(a)/a is the truth within the least whole number for one event, and never far from it
    before = max(chance(one, 3, found - 1, split, std) for split in partitions(most))
    if most == 1:
        assert before > share
    assert found - minimum - most <= std * norm.isf(share / most) + 2


def test_shares_of_all_discovery_ticks_add_up_to_delta_2() -> None:
    bounded = Thresholds(1, 4, 103, 1, 0.01, lambda ticks: np.ones(len(ticks)))
    assert sum(bounded.share(tick) for tick in range(1, 104) if bounded.discovers(tick)) == pytest.approx(0.01)
    endless = Thresholds(1, 4, None, 1, 0.01, lambda ticks: np.ones(len(ticks)))
    total = sum(endless.share(tick) for tick in range(1, 40_001) if endless.discovers(tick))
    assert 0.0099 < total < 0.01


def test_visible_and_needed_are_inverse_to_each_other() -> None:
    one = Thresholds(5, 2, 100, 1, 1e-7, lambda ticks: 3.0 + ticks / 50)
    for tick in (2, 51, 100):
        for wanted in (0.01, 0.5, 0.99):
            count = one.needed(wanted, tick)
            assert one.visible(count, tick) >= wanted > one.visible(count - 1, tick)
    assert one.visible(4, 100) == 0.0, "below the minimum nothing is tested"
    assert one.visible(10**6, 1) == 0.0, "no discovery tick has come"


def test_a_horizon_without_discovery_tick_is_refused() -> None:
    with pytest.raises(ParameterError, match="every=5"):
        Thresholds(1, 5, 4, 1, 0.1, lambda ticks: np.ones(len(ticks)))
