"""Intervals of rounded numbers hold at least as often as stated: exact laws, no samples
(`cell_errors.proof.md`)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from evercount import Budget, Count, Rollup, Stream
from evercount.engine.error_model import normal_quantile
from evercount.engine.views import Difference
from evercount.queries import QUERIES, build_query
from evercount.queries.publishing import CellErrors
from product_internals import half_widths, symmetric_half_widths
from small_queries import SMALL

LEVELS = (0.5, 0.8, 0.95, 0.99)
OF_CELLS = ("discovered-keys",)
"""Their numbers are cells, or differences of cells at two ticks."""
CASES = {name: (name, SMALL[name]) for name in QUERIES if name not in OF_CELLS} | {
    "rollup, weighted": (
        "rollup",
        {"paths": [["a", "b"], ["a", "c"], ["d", "e"]], "weights": [2, 1, 3]},
    ),
    "marginals, two tables": (
        "marginals",
        {"columns": [["a", "b"], ["c", "d", "e"]], "tables": [[0], [0, 1]]},
    ),
    "substrings, weighted": ("substrings", {"alphabet": "ab", "max_length": 2, "weights": [1, 3]}),
    "quantiles, many bins": ("quantiles", {"low": 0, "high": 1, "bins": 64}),
}


def held(half: float, noise: float) -> float:
    """The probability that normal noise, rounded to a whole number, is at most `half` away from
    zero."""
    return float(1 - 2 * norm.sf((np.floor(half) + 0.5) / noise))


def test_intervals_of_rounded_counts_hold() -> None:
    """At every ε, and a whole number less would not hold: beyond what the variance of rounding
    adds."""
    before: dict[float, list[float]] = {level: [] for level in LEVELS}
    for epsilon in np.geomspace(0.02, 9.0, 80):
        stream = Stream(Count(), Budget(float(epsilon), 1e-6), 1, "balanced")
        release = stream.step(0)
        noise = stream.sigma * float(stream.factorization.row_norms(np.asarray([1]))[0])
        for level in LEVELS:
            low, high = release.interval(level)
            half = (high - low) / 2
            assert held(half, noise) >= level
            wide = normal_quantile(level) * release.std
            assert held(half - 1, noise) <= 1 - 2 * norm.sf(wide / noise)
            before[level].append(held(wide, noise))
        stream.close()
    for level in LEVELS:
        assert min(before[level]) < level - 0.01, (
            "without the step intervals hold less often than stated"
        )


@pytest.mark.parametrize("cells", range(1, 7))
def test_intervals_of_sums_of_rounded_numbers_hold(cells: int) -> None:
    """The exact law of a sum of rounded numbers: one step is enough, however many are added up."""
    for noise in np.geomspace(1.0, 12.0, 60):
        reach = int(40 * noise) + 2
        ends = np.arange(-reach, reach + 2) - 0.5
        one = np.diff(norm.cdf(ends / noise))
        law = one
        for _ in range(cells - 1):
            law = np.convolve(law, one)
        away = np.abs(np.arange(len(law)) - len(law) // 2)
        spread = np.full((1, 1), np.sqrt(noise**2 + 1 / 12))
        cell = CellErrors(spread, np.zeros((1, 1)), pure=False, step=np.full((1, 1), 0.5))
        slack = float(cell.slack_of(np.sqrt(cells), float(cells))[0, 0])
        assert slack == 0.5
        for level in LEVELS:
            half = normal_quantile(level) * np.sqrt(cells) * float(spread[0, 0])
            assert law[away <= half + slack].sum() >= level - 1e-12, (noise, level)


@pytest.mark.parametrize("name", CASES)
def test_every_output_has_a_coefficient_as_small_as_its_step(name: str) -> None:
    """The assumption of `CellErrors.slack_of`, from the dense map of each query."""
    query = build_query(*CASES[name])
    rows = np.abs(
        query.decode_run(1, np.eye(query.cells)) - query.decode_run(1, np.zeros((1, query.cells)))
    )
    cell = CellErrors(np.ones((1, 1)), np.zeros((1, 1)), pure=False, step=np.ones((1, 1)))
    steps = cell.step_of(
        np.atleast_1d(query.publishing.norms()), np.atleast_1d(query.publishing.roundings())
    )
    smallest = np.where(rows > 1e-12, rows, np.inf).min(axis=0)
    steps = np.broadcast_to(steps[0], smallest.shape)
    assert np.all((smallest <= steps * (1 + 1e-9)) | np.isinf(smallest))


def test_totals_become_wider_by_half_a_unit_at_most() -> None:
    """A rollup's root adds up hundreds of cells; its interval gets one step, as that of a leaf
    does."""
    stream = Stream(
        Rollup([(f"a{i}", f"b{j}") for i in range(20) for j in range(20)]),
        Budget(1.0, 1e-6),
        4,
        "balanced",
    )
    releases = stream.run_totals(np.zeros((4, stream.query.cells), dtype=np.int64))
    view = releases.last(2)
    for half, std in (
        (symmetric_half_widths(releases, 0.95), releases.stds),
        (half_widths(view, 0.95), view.std),
    ):
        more = half - normal_quantile(0.95) * std
        assert np.all((more > 0) & (more <= 0.5 + 1e-9))


def test_a_difference_of_two_streams_has_one_step() -> None:
    one, other = (
        Stream(Count(), Budget(1.0, 1e-6), 4, "balanced").run([5] * 4).last(2) for _ in range(2)
    )
    low, high = Difference(one, other).interval(0.95)
    apart = (high - low) / 2 - normal_quantile(0.95) * np.hypot(one.std, other.std)
    assert np.allclose(apart, 0.5)
