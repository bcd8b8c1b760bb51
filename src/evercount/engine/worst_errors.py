"""The worst error of each view on a noise, before a stream is built: by it noise is compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evercount.engine.build import Decayed, make_noise, view_weighting
from evercount.engine.error_model import ErrorModel
from evercount.engine.weighted_errors import decayed_std, weighted_suspects
from evercount.factorizations import Factorization
from evercount.factorizations.base import tick_grid
from evercount.factorizations.laplace_trees import PureFactorization
from evercount.factorizations.terrace import Terrace
from evercount.factorizations.view_norms import worst_view
from evercount.mechanisms import Noise
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query

REFERENCE_TICKS = 2**20
"""Ticks over which streams without a horizon are compared."""
UNUSED_SECRET = Secret.from_hex("00" * 32)
"""Nothing is drawn from it."""


def planned_errors(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization
) -> tuple[ErrorModel, Noise]:
    """The errors and the noise of a stream before it is built; nothing is drawn."""
    noise = make_noise(query, engine, budget, horizon, secret=UNUSED_SECRET)
    return ErrorModel(query, engine, noise.sigma, noise.stream.rounded), noise


def view_stds(
    query: Query, budget: Budget, horizon: int | None, engine: Factorization, views: Sequence[str]
) -> tuple[float, ...]:
    """The worst std of each view with exact noise; of averages over time, whose first ticks would
    decide, the root mean square over the ticks."""
    model, _ = planned_errors(query, budget, horizon, engine)
    last = horizon or REFERENCE_TICKS
    if query.publishing.weights is not None:
        return (mean_std(model, last),) * len(views)
    return tuple(worst_of_view(model, view, last) for view in views)


def mean_std(model: ErrorModel, last: int) -> float:
    """The root mean square of the std over the first `last` ticks; beyond some thousand ticks, of a
    sample of them."""
    ticks = tick_grid(last, MOST_AVERAGED)
    squares = (model.std(ticks) ** 2).max(axis=1)
    spans = np.diff(ticks, append=last + 1)
    return math.sqrt(float(squares @ spans) / last)


def worst_of_view(model: ErrorModel, view: str, last: int) -> float:
    """The largest std of a view by its name; of a decayed sum over many ticks, that of a sample of
    them."""
    weighting = view_weighting(view)
    if not isinstance(weighting, Decayed):
        return worst_std(model, weighting, last)
    return float(decayed_std(model, weighting, weighted_suspects(model.factorization, last)).max())


def worst_std(model: ErrorModel, width: int | None, last: int) -> float:
    """The largest std of a view of this width over the first `last` ticks."""
    engine = model.factorization
    if width is None and isinstance(engine, PureFactorization):
        return float(model.std([worst_tick(model, last)]).max())
    if isinstance(engine, Terrace):
        tick, _ = engine.worst_tick(width, last)
    else:
        tick, _ = worst_view(engine, width, last)
    ticks = np.asarray([tick])
    trees = isinstance(engine, PureFactorization) and not isinstance(engine, Terrace)
    if trees and last <= ALL_PAIRS:  # norms are those of continuous noise
        ticks = np.arange(1, last + 1)
    return float(model.std(ticks, width).max())


ALL_PAIRS = 2**14
"""Up to this many ticks, the worst of a view of Laplace noise is looked for among all of them."""


def worst_tick(model: ErrorModel, last: int) -> int:
    """The tick, of the first `last`, with the largest std that a stream of Laplace noise states."""
    engine = model.factorization
    assert isinstance(engine, PureFactorization)
    ticks = engine.stated_suspects(last)
    return int(ticks[np.argmax(model.cell_errors(ticks)[0])])


MOST_AVERAGED = 4096
