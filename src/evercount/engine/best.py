"""The mechanism of least error: Gaussian noise, or Laplace noise with δ = 0, which keeps every (ε, δ) promise."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from evercount.engine.build import choose_engine, make_noise
from evercount.engine.error_model import ErrorModel
from evercount.errors import ParameterError
from evercount.factorizations import tick_grid
from evercount.factorizations.laplace_base import PureFactorization
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query

BEST = "best"
REFERENCE_TICKS = 2**20
"""Ticks over which streams without a horizon are compared."""


def pure_budget(budget: Budget) -> Budget:
    """The same ε with δ = 0: a stronger promise."""
    return replace(budget, delta=0.0, calibration="tight")


def settle_best(query: Query, budget: Budget, horizon: int | None, name: str | None) -> tuple[Budget, str | None]:
    """The budget and the factorisation with the name "best" replaced by the mechanism of least worst std.

    A pure mechanism has a budget with δ = 0: that is what it promises, and what a ledger is asked for.

    Example:
        >>> from evercount import Budget, Count
        >>> kept, name = settle_best(Count(), Budget(0.5, 1e-10), 2**16, "best")
        >>> kept.delta, name
        (0.0, 'bridge')
    """
    if name != BEST:
        return (pure_budget(budget), name) if is_pure_name(name) and not budget.pure else (budget, name)
    candidates = [(*worst_std(query, budget, horizon), budget)]
    if not budget.pure:
        with suppress(ParameterError):  # no l1 sensitivity is declared, or the noise is wider than the sampler serves
            candidates.append((*worst_std(query, pure_budget(budget), horizon), pure_budget(budget)))
    _, name, kept = min(candidates, key=lambda candidate: candidate[0])
    return kept, name


def worst_std(query: Query, budget: Budget, horizon: int | None) -> tuple[float, str]:
    """The largest std on the default factorization, over a grid of ticks that contains the worst, and its name."""
    engine = choose_engine(query, budget, horizon, None)
    nothing = Secret.from_hex("00" * 32)  # nothing is drawn from it
    noise = make_noise("exact", query, engine, budget, horizon, secret=nothing)
    model = ErrorModel(query, engine, noise.sigma, noise.stream.rounded)
    ticks = tick_grid(REFERENCE_TICKS if horizon is None else horizon)
    if isinstance(engine, PureFactorization):
        ticks = np.append(ticks, engine.suspects(int(ticks[-1])))
    elif engine.horizon is not None:
        ticks = np.append(ticks, engine.worst_row()[0])
    return float(model.std(ticks).max()), engine.name
