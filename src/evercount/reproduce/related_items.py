"""Newer work next to this package: banded inverse square roots, running means, and counts that go
up and down."""

from __future__ import annotations

import numpy as np

from evercount._validate import FloatArray
from evercount.engine.stream import Stream
from evercount.factorizations import Dense, factorization
from evercount.factorizations.base import lower_toeplitz
from evercount.privacy import Budget
from evercount.queries import Count, Occupancy
from evercount.reproduce.item import Context, Parameters, Result, Row, item
from evercount.reproduce.simulator import stds

NAMES = ("square-root", "balanced")


def banded_inverse_root(horizon: int, bands: int) -> Dense:
    """The factorization whose R⁻¹ is the inverse square root of M, cut off after so many bands
    (arXiv 2505.12128)."""
    k = np.arange(1, horizon)
    inverse = np.cumprod(np.append(1.0, (2 * k - 3) / (2 * k)))  # coefficients of (1−z)^(1/2)
    inverse[bands:] = 0.0
    right = lower_toeplitz(_inverse_series(inverse))
    return Dense(
        np.tril(np.cumsum(lower_toeplitz(inverse), axis=0)),
        right,
        f"banded inverse root, {bands} bands",
    )


def _inverse_series(coefficients: FloatArray) -> FloatArray:
    """The first coefficients of one over a power series that begins with 1."""
    inverse = np.zeros_like(coefficients)
    inverse[0] = 1.0
    for at in range(1, len(inverse)):
        inverse[at] = -np.dot(coefficients[1 : at + 1], inverse[at - 1 :: -1][:at])
    return inverse


@item(
    "related-work",
    "Newer work next to this package",
    "Not in the paper: banded inverse square roots, running means, and counts of persons who come "
    "and go.",
    {"horizon": 1024, "days": 365, "bands": [4, 16, 64], "max_ticks": 30, "events": [2, 8, 32]},
    {"horizon": 128, "days": 64, "bands": [4, 16], "max_ticks": 8, "events": [2, 8]},
)
def related_work(parameters: Parameters, context: Context) -> Result:
    tables = (banded_roots, running_means, comings_and_goings)
    rows_by_table = {
        table.__name__.replace("_", " "): table(parameters) for table in context.steps(tables)
    }
    return Result(
        rows_by_table,
        "defaults have less error than banded roots; a factorization for running means could have "
        "less than ours",
    )


def banded_roots(parameters: Parameters) -> list[Row]:
    """Worst stds of running totals: an event once in all ticks, and a person with so many days."""
    horizon = parameters["horizon"]
    days = parameters["days"]
    person = Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=parameters["max_ticks"])
    rows: list[Row] = []
    for bands in (*parameters["bands"], None):
        if bands is None:
            noise = "balanced; for a person the default"
            for_event: Dense | str = "balanced"
            for_person: Dense | None = None
        else:
            noise = f"banded inverse root, {bands} bands"
            for_event = banded_inverse_root(horizon, bands)
            for_person = banded_inverse_root(days, bands)
        event = Stream(Count(), Budget(1.0, 1e-6), horizon, for_event, views=["running"])
        other = Stream(Count(), person, days, for_person, views=["running"])
        rows.append(
            {
                "noise": noise,
                "an event": _worst(event, horizon),
                f"a person with {parameters['max_ticks']} of {days} days": _worst(other, days),
            }
        )
    return rows


def _worst(stream: Stream, ticks: int) -> float:
    return float(stream.std(np.arange(1, ticks + 1)).max())


def running_means(parameters: Parameters) -> list[Row]:
    """Root mean square error of the mean so far, at multiplier 1, next to what no factorization
    goes below."""
    horizon = parameters["horizon"]
    ticks = np.arange(1, horizon + 1)
    means = np.tril(np.ones((horizon, horizon))) / ticks[:, np.newaxis]
    # ‖L‖_F·‖R‖_{1→2} ≥ ‖A·D_√q‖_* for A = L·R and all weights q of columns with sum 1
    least = max(_nuclear(means, ticks**-power) for power in np.linspace(0, 2, 21)) / float(
        np.sqrt(horizon)
    )
    rows: list[Row] = []
    for name in NAMES:
        size = float(np.sqrt(np.mean((stds(factorization(name, horizon)) / ticks) ** 2)))
        rows.append(
            {"noise": name, "root mean square error": size, "least": least, "ratio": size / least}
        )
    return rows


def _nuclear(matrix: FloatArray, weights: FloatArray) -> float:
    """The nuclear norm of a matrix whose columns are weighted by roots of these, made to have the
    sum 1."""
    return float(np.linalg.svd(matrix * np.sqrt(weights / weights.sum()), compute_uv=False).sum())


def comings_and_goings(parameters: Parameters) -> list[Row]:
    """Worst std of how many are inside, where a person may have so many events, by our S and by the
    l1 change."""
    horizon = parameters["horizon"]
    rows = list[Row]()
    for events in parameters["events"]:
        budget = Budget(1.0, 1e-6, unit="user")
        ours = _worst(Stream(Occupancy(max_events=events), budget, horizon, "balanced"), horizon)
        each = _worst(Stream(Count(), Budget(1.0, 1e-6), horizon, "balanced"), horizon)
        rows.append({"events of a person": events, "ours": ours, "by the l1 change": each * events})
    return rows
