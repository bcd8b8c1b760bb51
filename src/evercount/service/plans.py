"""Errors that are known before any event: of a stream over its ticks, and of every mechanism for a budget."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from evercount.declarations.view_names import noise_views
from evercount.privacy import Budget
from evercount.queries import Query
from evercount.store import EndedStream, LiveStream
from evercount.text_rules import finite

KEPT_PLANS = 32
"""Plans that are kept, in the service: each has some hundred kilobytes."""
UNBOUNDED_PLAN = 2**20
"""How far ahead the error of a stream without horizon is shown."""


def own_plan(live: LiveStream | EndedStream, points: int) -> dict[str, Any]:
    """The stream's own error over its ticks, of what it shows."""
    # the errors of an ended stream are those of its declaration; there is no noise left to ask
    stream = live.declaration.build(replay=True) if isinstance(live, EndedStream) else live.stream
    last = live.declaration.horizon or UNBOUNDED_PLAN
    ticks = np.unique(np.rint(np.geomspace(1, last, points)).astype(np.int64))
    std = stream.std(ticks, *noise_views([live.declaration.shown], live.declaration.schedule))
    known = stream.thresholds
    public = {} if known is None else {"thresholds": {t: known.at(t) for t in ticks.tolist() if known.discovers(t)}}
    return {
        **public,
        "stream": live.name,
        "view": live.declaration.shown,
        "ticks": ticks.tolist(),
        "std": np.asarray(std).max(axis=1).tolist(),
        "sigma": stream.sigma,
        "factorization": stream.factorization.name,
    }


@lru_cache(maxsize=KEPT_PLANS)
def all_plans(budget: Budget, horizon: int | None, query: Query | None = None) -> dict[str, Any]:
    """The errors of all mechanisms for a budget and a horizon, from `evercount.planning.compare`."""
    from evercount.planning.compare import plan

    return dict(finite(plan(budget, horizon, query).to_dict()))


@lru_cache(maxsize=KEPT_PLANS)
def view_plans(budget: Budget, horizon: int | None, views: tuple[str, ...]) -> dict[str, Any]:
    """The errors of each view with every noise that a stream could run on, from `evercount.planning.plan_views`."""
    from evercount.planning import plan_views

    return dict(finite(plan_views(budget, horizon, views).to_dict()))
