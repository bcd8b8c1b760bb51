"""plan: which error will I get? All mechanisms side by side, with the lower bound that none can beat."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from evercount.bounds import nuclear_lower
from evercount.errors import ParameterError
from evercount.factorizations import ENDLESS, FACTORIZATIONS, check_horizon, tick_grid
from evercount.mechanisms.pure_trees import PURE, PURE_ENDLESS
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.privacy.budget import Calibration
from evercount.queries import Count, Query, Window
from evercount.queries.window import Method
from evercount.release import ErrorModel, interval_factor
from evercount.stream import choose_engine, make_noise

LARGEST_OPTIMAL = 64
"""`optimal` is part of a plan up to this horizon (it takes seconds beyond); ask for it by name above."""
WINDOW_METHODS: tuple[Method, ...] = ("difference", "periods", "inputs")
REFERENCE_TICKS = 2**20
"""Ticks over which a stream without a horizon is compared by default."""


@dataclass(frozen=True)
class Row:
    """One mechanism: stds are of one published number, in the query's units."""

    name: str
    calibration: str
    last_std: float
    worst_std: float
    worst_tick: int
    interval95: float
    simultaneous: float
    ratio_to_lower_bound: float
    state_bytes: int
    numeric_delta: float
    ticks: list[int]
    std: list[float]


@dataclass(frozen=True)
class Plan:
    """The rows, best first, and what they were computed for."""

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

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable, with the rows under "mechanisms"."""
        data = asdict(self)
        data["mechanisms"] = data.pop("rows")
        data["lower_bound"] = {"worst_std": self.lower_bound}
        return data


def plan(
    budget: Budget,
    horizon: int | None,
    query: Query | None = None,
    *,
    names: tuple[str, ...] | None = None,
    ticks: int | None = None,
    beta: float = 0.05,
    points: int = 256,
) -> Plan:
    """Exact errors of every mechanism for this budget, horizon and query.

    `ticks`: over how many ticks a stream without a horizon is compared. The lower bound holds for the worst tick of
    every factorisation mechanism with tight Gaussian noise (nuclear norm of M over T): `bounds.nuclear_lower`.
    """
    query = query or Count()
    horizon = check_horizon(horizon, unbounded=True)
    if not 0 < beta < 1:
        raise ParameterError(f"beta must lie between 0 and 1, got {beta!r}")
    span = horizon if horizon is not None else (ticks or REFERENCE_TICKS)
    S = budget.scale_sensitivity(query.squared_sensitivity(budget.adjacency))
    floor = math.nan  # there is no lower bound of this kind for Laplace noise
    if query.memory == 0 and not budget.pure:
        tight = replace(budget, calibration="tight").noise_multiplier() * math.sqrt(S)
        floor = tight * float(nuclear_lower(span))
    rows = []
    for label, asked, name, calibration in _candidates(query, budget, horizon, names):
        model, reserved, state = _model(asked, name, replace(budget, calibration=calibration), horizon, S)
        grid = tick_grid(span, points)
        std = model.std(grid)[:, 0]
        if name is not None and horizon is not None:
            worst_tick, _ = model.factorization.worst_row()
            worst = float(model.std([worst_tick])[0, 0])
        else:
            worst_tick, worst = int(grid[np.argmax(std)]), float(std.max())
        rows.append(
            Row(
                name=label,
                calibration=calibration,
                last_std=float(std[-1]),
                worst_std=worst,
                worst_tick=worst_tick,
                interval95=interval_factor(0.95, (), 1, model.pure) * worst,
                simultaneous=interval_factor(1 - beta, ("monotone",), span * query.outputs, model.pure) * worst,
                ratio_to_lower_bound=worst / floor if floor == floor else math.nan,
                state_bytes=state,
                numeric_delta=reserved,
                ticks=grid.tolist(),
                std=std.tolist(),
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
        guarantee=budget.sentence(),
        rows=rows,
    )


def _candidates(
    query: Query, budget: Budget, horizon: int | None, names: tuple[str, ...] | None
) -> list[tuple[str, Query, str | None, Calibration]]:
    """(label, query with its method settled, factorisation, calibration) of every row."""
    if isinstance(query, Window):
        methods = WINDOW_METHODS if query.method == "auto" else (query.method,)
        return [
            (f"window: {method}", Window(query.width, method, query.max_per_tick), None, budget.calibration)
            for method in methods
        ]
    if names is None and budget.pure:
        names = PURE_ENDLESS if horizon is None else PURE
    if names is None:
        names = ENDLESS if horizon is None else tuple(FACTORIZATIONS)
        if horizon is None or horizon > LARGEST_OPTIMAL:
            names = tuple(name for name in names if name != "optimal")
    found: list[tuple[str, Query, str | None, Calibration]] = [
        (name, query, name, budget.calibration) for name in names
    ]
    if "square-root" in names and budget.calibration == "tight" and budget.epsilon < 1:
        found.append(("square-root, paper's C", query, "square-root", "paper"))
    return found


def _model(
    query: Query, name: str | None, budget: Budget, horizon: int | None, S: float
) -> tuple[ErrorModel, float, int]:
    """(error model with exact noise, numeric δ, bytes of streaming state per cell)."""
    _, engine = choose_engine(query, horizon, name, budget.pure)
    nothing = Secret.from_hex("00" * 32)  # a plan draws nothing from it
    noise = make_noise("exact", query, engine, budget, horizon, secret=nothing)
    return ErrorModel(query, engine, noise.sigma, noise.stream.rounded), noise.numeric_delta, engine.state_bytes
