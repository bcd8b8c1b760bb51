"""Planned errors, of a stream and of all mechanisms: they need no event."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from evercount._validate import finite
from evercount.declarations.view_names import noise_views
from evercount.privacy import Budget
from evercount.store import StoredStream

CACHED_PLANS = 64  # each has some hundred kilobytes
UNBOUNDED_PLAN = 2**20  # how far ahead the error of a stream without horizon is shown


def own_plan(live: StoredStream, points: int) -> dict[str, Any]:
    """The stream's own error over its ticks, of what it shows."""
    if live.live is None:  # its noise is deleted; its declaration has the same errors
        stream = live.declaration.build(replay=True)
    else:
        stream = live.live.stream
    last = live.declaration.horizon or UNBOUNDED_PLAN
    ticks = np.unique(np.rint(np.geomspace(1, last, points)).astype(np.int64))
    std = stream.std(ticks, *noise_views([live.declaration.main_view], live.declaration.schedule))
    return {
        "stream": live.name,
        "view": live.declaration.main_view,
        "ticks": ticks.tolist(),
        "std": np.asarray(std).max(axis=1).tolist(),
        "sigma": stream.sigma,
        "factorization": stream.factorization.name,
    }


@lru_cache(maxsize=CACHED_PLANS)
def all_plans(budget: Budget, horizon: int | None, views: tuple[str, ...]) -> dict[str, Any]:
    """The errors of all mechanisms for a budget and a horizon; with `views` of each view, with
    every noise."""
    from evercount.planning import plan, plan_views

    if views:
        return dict(finite(plan_views(budget, horizon, views).to_dict()))
    return dict(finite(plan(budget, horizon).to_dict()))
