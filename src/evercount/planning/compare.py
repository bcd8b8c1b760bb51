"""plan: which error will I get? All mechanisms side by side, with the lower bound for Gaussian
noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.bounds import nuclear_lower
from evercount.bounds.tails import simultaneous_radius
from evercount.engine.build import choose_engine
from evercount.engine.error_model import ErrorModel, interval_factor
from evercount.engine.noise_choice import pure_budget
from evercount.engine.state import enforced_by
from evercount.engine.worst_errors import REFERENCE_TICKS, planned_errors, worst_tick
from evercount.errors import ParameterError
from evercount.factorizations import (
    BUILT_IN,
    ENDLESS,
    FACTORIZATIONS,
    BinaryTree,
    Honaker,
    HonakerFull,
    check_horizon,
    tick_grid,
)
from evercount.factorizations.base import LARGEST_HORIZON
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS, is_pure_name
from evercount.factorizations.laplace_trees import PureFactorization
from evercount.planning.output_errors import error_shares, largest
from evercount.privacy import Budget, guarantee_text
from evercount.queries import Count, Query
from evercount.queries.sensitivities import protected_l1

OURS = (*BUILT_IN, *PURE, *PURE_ENDLESS)
LARGEST_OPTIMAL = 64
"""`optimal` is part of a plan up to this horizon (it takes seconds beyond); ask for it by name
above."""

BETA = 0.05  # the chance that some number is farther off than the bound for all ticks
# a band looks at every tick of spans up to this, and at about this number of ticks of longer ones
EVERY_TICK = 2**16


@dataclass(frozen=True)
class Row:
    """One mechanism: stds are of one published number, in the query's units; of several outputs,
    the largest. `worst_std` is never below `std`. `interval95` is the half-width that a stream
    states at the worst tick, and `simultaneous` the largest one that holds with probability 95 %
    for all ticks and outputs together. `mean_std` is the root of the mean square over some hundred
    evenly spaced ticks. `delta` is 0 for pure mechanisms, whatever was asked for."""

    name: str
    delta: float
    calibration: str
    last_std: float
    worst_std: float
    mean_std: float
    worst_tick: int
    interval95: float
    simultaneous: float
    ratio_to_lower_bound: float
    state_bytes: int
    numeric_delta: float
    ticks: list[int]
    std: list[float]
    model: ErrorModel = field(repr=False, compare=False)

    @property
    def jumps(self) -> bool:
        """Whether the std goes up and down between the ticks of `ticks`, so that no line may join
        them."""
        return isinstance(
            self.model.factorization, BinaryTree | Honaker | HonakerFull | PureFactorization
        )

    def band(self, bins: int = 256) -> tuple[list[int], list[float], list[float]]:
        """(first ticks of the bins and the tick after the last, least std, largest std): for what
        jumps. Up to EVERY_TICK ticks all are looked at, beyond that some hundred of each bin with
        its roundest ones."""
        last = self.ticks[-1]
        edges = np.unique(np.linspace(1, last + 1, min(bins, last) + 1).astype(np.int64))
        inside = [_inside(a, b, EVERY_TICK // bins) for a, b in pairwise(edges.tolist())]
        std = _largest_output(self.model, np.concatenate(inside))
        starts = np.cumsum([0, *map(len, inside[:-1])])
        least = np.minimum.reduceat(std, starts)
        most = np.maximum.reduceat(std, starts)
        return edges.tolist(), least.tolist(), most.tolist()

    def to_dict(self) -> dict[str, Any]:
        return {
            part.name: getattr(self, part.name) for part in fields(self) if part.name != "model"
        }


def _inside(start: int, stop: int, most: int) -> IntArray:
    """Ticks of start … stop − 1: all, or `most` at uneven distances, and the ends of dyadic
    intervals."""
    if stop - start <= most:
        return np.arange(start, stop)
    # even steps would meet the same low digits again and again
    steps = np.arange(most) * 0.6180339887 % 1
    spread = np.linspace(start, stop - 1, most + 1)
    ticks = [
        (spread[:-1] + steps * np.diff(spread)).astype(np.int64),
        np.asarray([start, stop - 1]),
    ]
    for end in (start, stop - 1):
        below = np.asarray([end >> bit << bit for bit in range(end.bit_length())])
        above = below + (1 << np.arange(len(below)))
        ticks += [below, below - 1, above, above - 1]
    ticks_of_span = np.unique(np.concatenate(ticks))
    return np.asarray(ticks_of_span[(ticks_of_span >= start) & (ticks_of_span < stop)])


@dataclass(frozen=True)
class Plan:
    """The rows, best first, and what they were computed for.

    Args:
        query: the query, as text.
        epsilon: the budget.
        delta: the budget.
        adjacency: the budget.
        horizon: the number of ticks, or None.
        ticks: the number of ticks over which the mechanisms are compared.
        outputs: the number of published numbers per tick.
        squared_sensitivity: S of the query for this budget's unit.
        lower_bound: no worst std with Gaussian noise is below this; NaN where none is known.
        guarantee: the promise in one sentence.
        rows: one for each mechanism, best first.
        shares: the std of outputs over the largest one, where outputs differ: by the first label of
            each size.

    >>> from evercount.planning import plan
    >>> plan(Budget(1.0, 1e-6), 64, names=("balanced", "fresh")).best["worst tick"]
    'balanced'
    """

    query: str
    epsilon: float
    delta: float
    adjacency: str
    horizon: int | None
    ticks: int
    outputs: int
    squared_sensitivity: float
    lower_bound: float
    guarantee: str
    rows: list[Row]
    shares: dict[str, float]

    @property
    def best(self) -> dict[str, str]:
        """The mechanism of least error at the worst tick, on average, and for all ticks at once."""
        return {
            "worst tick": min(self.rows, key=lambda row: row.worst_std).name,
            "on average": min(self.rows, key=lambda row: row.mean_std).name,
            "all ticks at once": min(self.rows, key=lambda row: row.simultaneous).name,
        }

    def ledger_sentence(self) -> str:
        """What two such streams over the same events cost together, for each kind of noise in the
        plan.

        Returns:
            One sentence.
        """
        parts = []
        if any(row.delta == 0 for row in self.rows):
            parts.append(
                f"with pure mechanisms epsilon={2 * self.epsilon:g} and delta=0 (pure epsilons add "
                "up)"
            )
        if any(row.delta > 0 for row in self.rows):
            mu = math.sqrt(2) * Budget(self.epsilon, self.delta).mu
            both = Budget.from_mu(mu, self.delta).epsilon
            parts.append(f"with Gaussian ones epsilon={both:.2f} at delta={self.delta:g}")
        return "Two such streams over the same events cost " + ", ".join(parts) + "."

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable, with the rows under "mechanisms".

        Returns:
            The facts of the plan by name.
        """
        data = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "rows"}
        more = {
            "mechanisms": [row.to_dict() for row in self.rows],
            "lower_bound": {"worst_std": self.lower_bound},
        }
        return {**data, **more, "best": self.best, "ledger": self.ledger_sentence()}


def plan(
    budget: Budget,
    horizon: int | None,
    query: Query | None = None,
    *,
    names: tuple[str, ...] | None = None,
    ticks: int | None = None,
) -> Plan:
    """Exact errors of every mechanism for this budget, horizon and query.

    With δ > 0 pure mechanisms are shown next to Gaussian ones, as they keep the promise too.
    `ticks`: over how many ticks a stream without a horizon is compared. The lower bound holds for
    the worst tick of every factorization mechanism with tight Gaussian noise (nuclear norm of M
    over T): `bounds.nuclear_lower`. It is one of running sums, and NaN for windows and averages. An
    average per event is refused.

    Args:
        budget: the promise.
        horizon: the number of ticks, or None.
        query: what is asked; a `Count` if left out.
        names: the mechanisms to compare; None for all that fit.
        ticks: over how many ticks a stream without a horizon is compared.

    Returns:
        The comparison, best mechanism first.

    Raises:
        ParameterError: a parameter is not legal, or the query's error is not known before.

    >>> [row.name for row in plan(Budget(1.0, 1e-6), 64, names=("balanced", "fresh")).rows]
    ['balanced', 'fresh']
    """
    query = query or Count()
    horizon = check_horizon(horizon)
    if query.publishing.kept is not None and query.discovery is None:
        raise ParameterError(
            f"{query!r} publishes a ratio, whose error depends on how many events come, and that "
            "is not known before; plan an average per tick, or a sum and a count"
        )
    span = compared_ticks(horizon, ticks)
    # what the rows use, as all their Gram matrices fall
    S = query.falling_sensitivity(budget.adjacency)
    if S is None or budget.pure:
        S = query.squared_sensitivity(budget.adjacency)
    by_value = query.squared_value_sensitivity(budget.adjacency)
    if budget.unit == "user" and query.people is not None:
        user = partial(query.people.user_sensitivity, budget.adjacency, budget.period is not None)
        S = user(falling=not budget.pure)
        if by_value is not None:
            by_value = user(values=True)
    else:  # all that a unit may do in one tick
        most = (budget.touched(horizon).per_tick or 1) ** 2
        S = S * most
        if by_value is not None:
            by_value = by_value * most
    only_values = by_value is not None and math.isinf(S)
    if by_value is not None and only_values:
        S = by_value
    grid = tick_grid(span, 256)
    floor = math.nan  # there is no lower bound of this kind for Laplace noise
    # else measured with other weights
    if not budget.pure and query.publishing.as_they_are and not only_values:
        tight = replace(budget, calibration="tight").noise_multiplier() * math.sqrt(S)
        floor = tight * float(nuclear_lower(span))
        if by_value is not None and tight * math.sqrt(by_value / S * span) < floor:
            floor = math.nan  # it bounds noise for increments; noise on values is smaller here
    rows = []
    even = np.unique(np.linspace(1, span, 512).astype(np.int64))
    for label, name, own in _candidates(query, budget, horizon, names, only_values):
        check_wanted()
        try:
            engine = choose_engine(query, own, horizon, name)
            model, noise = planned_errors(query, own, horizon, engine)
        except ParameterError:
            if names is not None or (own.pure == budget.pure and name in OURS):
                raise
            # a pure or registered mechanism that nobody asked for, and that cannot serve this
            # budget
            continue
        suspects = np.unique(np.concatenate([grid, _suspects(model, span)]))
        std, spread, slack = (part.max(axis=1) for part in model.errors(suspects))
        worst_tick, worst = largest(partial(_largest_output, model), suspects, std)
        std = std[np.searchsorted(suspects, grid)]
        weight = int(model.equal_numbers(np.asarray([worst_tick])).min())
        rows.append(
            Row(
                name=label,
                delta=own.delta,
                calibration=own.calibration,
                last_std=float(std[-1]),
                worst_std=worst,
                mean_std=math.sqrt(float(np.mean(_largest_output(model, even) ** 2))),
                worst_tick=worst_tick,
                interval95=_half_width(model, worst_tick, interval_factor(0.95, weight)),
                simultaneous=_simultaneous(model, span, spread, slack, worst_tick),
                ratio_to_lower_bound=worst / floor,
                state_bytes=engine.state_bytes,
                numeric_delta=noise.numeric_delta,
                ticks=grid.tolist(),
                std=std.tolist(),
                model=model,
            )
        )
    rows.sort(key=lambda row: row.worst_std)
    return Plan(
        query=repr(query),
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=budget.adjacency,
        horizon=horizon,
        ticks=span,
        outputs=query.outputs,
        squared_sensitivity=S,
        lower_bound=floor,
        guarantee=guarantee_text(budget, enforced_by(query, None)).sentence,
        rows=rows,
        shares=error_shares(query),
    )


def compared_ticks(horizon: int | None, ticks: int | None) -> int:
    """Over how many ticks mechanisms are compared."""
    if ticks is None:
        return REFERENCE_TICKS if horizon is None else horizon
    if horizon is not None:
        raise ParameterError(
            f"ticks={ticks} is for streams without a horizon; this one is compared over its "
            f"{horizon}"
        )
    if isinstance(ticks, bool) or not isinstance(ticks, int) or not 1 <= ticks <= LARGEST_HORIZON:
        raise ParameterError(f"ticks must be a whole number from 1 to 2^50, got {ticks!r}")
    return ticks


def _suspects(model: ErrorModel, span: int) -> IntArray:
    """List ticks next to a grid at which the std may be the largest."""
    engine = model.factorization
    candidates = [*range(1, 17), *tick_grid(span).tolist(), span]
    if isinstance(engine, PureFactorization):
        candidates += [*engine.suspects(span), worst_tick(model, span)]
    elif engine.horizon is not None:
        candidates.append(engine.worst_row()[0])
    return np.asarray([tick for tick in candidates if 1 <= tick <= span])


def _largest_output(model: ErrorModel, ticks: IntArray) -> FloatArray:
    """The std of the output that has the largest, at each tick."""
    return np.asarray(model.std(ticks).max(axis=1))


def _half_width(model: ErrorModel, tick: int, factor: float) -> float:
    """The half-width of an interval of the output that has the largest, as a stream states it."""
    _, spread, slack = model.errors([tick])
    return float((factor * spread + slack).max())


def _simultaneous(
    model: ErrorModel, span: int, spread: FloatArray, slack: FloatArray, worst_tick: int
) -> float:
    """The half-width that holds for all ticks and outputs together; `spread` and `slack` at the
    ticks looked at."""
    outputs = model.query.outputs
    tree = model.factorization
    if isinstance(tree, PureFactorization) and model.query.publishing.as_they_are:
        radius = simultaneous_radius(tree, model.full_rate, BETA, span, outputs) - 0.5
        return (radius + 0.5) * model.query.grid
    every = interval_factor(1 - BETA, int(model.pure), span * outputs)
    return max(float((every * spread + slack).max()), _half_width(model, worst_tick, every))


def _candidates(
    query: Query,
    budget: Budget,
    horizon: int | None,
    names: tuple[str, ...] | None,
    only_values: bool,
) -> list[tuple[str, str, Budget]]:
    """(label, factorization, budget) of every row."""
    pure = pure_budget(budget)
    if names is None:
        names = ()
        if _has_l1(query, budget, horizon):
            names = PURE_ENDLESS if horizon is None else PURE
        if not budget.pure:
            unfit = {
                # it is for keys of the day, which have no running totals
                "fresh": query.discovery is not None,
                "optimal": horizon is None or horizon > LARGEST_OPTIMAL,
                "direct": query.squared_value_sensitivity(budget.adjacency) is None,
            }
            all_gaussian = ENDLESS if horizon is None else FACTORIZATIONS
            gaussian = [name for name in all_gaussian if not unfit.get(name)]
            if only_values:
                gaussian = ["direct"]
            names = (*gaussian, *names[:2])
    candidates = [(name, name, pure if is_pure_name(name) else budget) for name in names]
    if (
        "square-root" in names
        and budget.calibration == "tight"
        and budget.epsilon < 1
        and not budget.pure
    ):
        candidates.append(
            ("square-root, paper's C", "square-root", replace(budget, calibration="paper"))
        )
    return candidates


def _has_l1(query: Query, budget: Budget, horizon: int | None) -> bool:
    """Whether pure mechanisms can be compared: the query has an l1 sensitivity, or the budget needs
    one."""
    try:
        protected_l1(query, budget, horizon)
    except ParameterError:
        return budget.pure
    return True
