"""Thresholds of discovery: their δ₂ holds for every split of a unit's events, and they are the
least that do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import norm

from evercount import Budget
from evercount.errors import ParameterError
from evercount.queries.key_counts import Reach, Thresholds


def partitions(total: int, largest: int | None = None) -> Iterator[list[int]]:
    if total == 0:
        yield []
    for part in range(min(total, largest or total), 0, -1):
        for rest in partitions(total - part, part):
            yield [part, *rest]


def running(most: int) -> Reach:
    return Reach.of(Budget(1.0, 1e-3, unit="user", max_events=most), None, own_ticks=False)


def chance(one: Thresholds, tick: int, threshold: int, split: list[int], std: float) -> float:
    """P that some key of the split passes at one tick, by the union over keys."""
    return float(sum(norm.sf(threshold - (one.minimum - 1 + a) - 0.5, scale=std) for a in split))


@pytest.mark.parametrize("std", [0.4, 3.0, 40.0, 4000.0])
@pytest.mark.parametrize("most", [1, 2, 7])
@pytest.mark.parametrize("minimum", [1, 30])
def test_thresholds_keep_their_delta_for_every_split(std: float, most: int, minimum: int) -> None:
    one = Thresholds(minimum, 3, 30, running(most), 1e-4, lambda ticks: np.full(len(ticks), std))
    share = 1e-4 / 10
    assert one.share(3) == pytest.approx(share)
    found = one.at(3)
    worst = max(chance(one, 3, found, split, std) for split in partitions(most))
    assert worst <= share
    # the rule k·max p(a)/a is the truth within the least whole number for one event, and never far
    # from it
    before = max(chance(one, 3, found - 1, split, std) for split in partitions(most))
    if most == 1:
        assert before > share
    assert found - minimum - most <= std * norm.isf(share / most) + 2


def test_shares_of_all_discovery_ticks_add_up_to_delta_2() -> None:
    bounded = Thresholds(1, 4, 103, running(1), 0.01, lambda ticks: np.ones(len(ticks)))
    assert sum(
        bounded.share(tick) for tick in range(1, 104) if bounded.discovers(tick)
    ) == pytest.approx(0.01)
    endless = Thresholds(1, 4, None, running(1), 0.01, lambda ticks: np.ones(len(ticks)))
    total = sum(endless.share(tick) for tick in range(1, 40_001) if endless.discovers(tick))
    assert 0.0099 < total < 0.01


def test_visible_and_needed_are_inverse_to_each_other() -> None:
    one = Thresholds(5, 2, 100, running(1), 1e-7, lambda ticks: 3.0 + ticks / 50)
    for tick in (2, 51, 100):
        for wanted in (0.01, 0.5, 0.99):
            count = one.needed(wanted, tick)
            assert one.visible(count, tick) >= wanted > one.visible(count - 1, tick)
    assert one.visible(4, 100) == 0.0, "below the minimum nothing is tested"
    assert one.visible(10**6, 1) == 0.0, "no discovery tick has come"


def test_a_horizon_without_discovery_tick_is_refused() -> None:
    with pytest.raises(ParameterError, match="every=5"):
        Thresholds(1, 5, 4, running(1), 0.1, lambda ticks: np.ones(len(ticks)))


def spreads(reach: Reach) -> Iterator[list[int]]:
    """All numbers of events of one unit in (key, tick) pairs that its reach allows, in falling
    order."""
    for total in range(1, reach.total + 1):
        for split in partitions(total, reach.events):
            if len(split) <= reach.keys * reach.ticks:
                yield split


REACHES = [
    Reach(1, 1, 1, 1),
    Reach(3, 3, 3, 3),
    Reach(2, 2, 3, 6),
    Reach(4, 1, 2, 8),
    Reach(1, 5, 2, 10),
]


@pytest.mark.parametrize("std", [0.4, 3.0, 40.0])
@pytest.mark.parametrize("reach", REACHES)
def test_chances_hold_for_every_spread(reach: Reach, std: float) -> None:
    """Own ticks: the exact chance that a key of the unit passes somewhere, for every spread over
    keys and ticks."""
    delta = 1e-4
    one = Thresholds(
        5, 1, None, reach, delta, lambda ticks: np.full(len(ticks), std), own_ticks=True
    )

    def worst(threshold: int) -> float:
        chances = (
            norm.sf(threshold - 4 - np.asarray(split) - 0.5, scale=std) for split in spreads(reach)
        )
        return max(-float(np.expm1(np.log1p(-each).sum())) for each in chances)

    found = one.at(1)
    assert found == one.at(10**9), "no tick costs another one anything"
    assert worst(found) <= delta
    assert found - 5 - reach.events <= std * norm.isf(delta / reach.total) + 2
    if reach.total == 1:
        assert worst(found - 1) > delta, "the least threshold that keeps it"
    else:  # planted: a threshold for one event
        least = Thresholds(5, 1, None, Reach(1, 1, 1, 1), delta, one.std, own_ticks=True).at(1)
        assert worst(least) > delta
    # planted: δ₂ for each tick that a unit touches
    if reach.total > reach.events * reach.keys and std == 40.0:
        once = Reach(reach.events, reach.keys, 1, reach.events * reach.keys)
        assert worst(Thresholds(5, 1, None, once, delta, one.std, own_ticks=True).at(1)) > delta
