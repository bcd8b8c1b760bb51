"""Plans for keys that nobody listed: which count makes a key public, and how likely that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evercount.engine.noise_choice import check_noise_for, choose_noise
from evercount.engine.worst_errors import REFERENCE_TICKS, planned_errors
from evercount.privacy import Budget
from evercount.queries import Query

# about how many discovery ticks are looked at; one for keys of the day, whose ticks are alike
POINTS = 6
CHANCES = (0.5, 0.95, 0.999)  # chances for which the needed count is stated


@dataclass(frozen=True)
class DiscoveryTick:
    """One discovery tick: its threshold, the counts that are seen with `CHANCES`, and the chances
    of given counts. A key that passed at an earlier tick stays public, so chances are at least
    these."""

    tick: int
    threshold: int
    std: float
    needed: tuple[int, ...]
    visible: tuple[float, ...]


@dataclass(frozen=True)
class DiscoveryPlan:
    """What discovery will list, computed from public parameters only."""

    factorization: str
    delta_1: float
    delta_2: float
    minimum: int
    counts: tuple[int, ...]
    ticks: tuple[DiscoveryTick, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_discovery(
    budget: Budget,
    horizon: int | None,
    query: Query,
    counts: Sequence[int] = (),
    views: Sequence[str] = (),
) -> DiscoveryPlan | None:
    """The thresholds of a stream before it starts; None for queries whose keys are listed."""
    names = check_noise_for(query, views)
    query = query.for_views(names)
    if query.discovery is None:
        return None
    budget, engine = choose_noise(query, budget, horizon, None, names)
    errors, _ = planned_errors(query, budget, horizon, engine)
    thresholds = query.discovery.thresholds(budget, horizon, errors.unrounded_std)
    last = 1
    if not query.publishing.own_ticks:
        last = (horizon or REFERENCE_TICKS) // thresholds.every
    numbers = np.unique(np.rint(np.geomspace(1, last, POINTS)).astype(np.int64)) * thresholds.every
    ticks = tuple(
        DiscoveryTick(
            tick,
            thresholds.at(tick),
            float(thresholds.std(np.asarray([tick]))[0]),
            tuple(thresholds.needed(chance, tick) for chance in CHANCES),
            tuple(thresholds.visible(count, tick) for count in counts),
        )
        for tick in numbers.tolist()
    )
    delta_1 = budget.delta - query.discovery.own_delta(budget)
    return DiscoveryPlan(
        engine.name, delta_1, thresholds.delta, thresholds.minimum, tuple(counts), ticks
    )
