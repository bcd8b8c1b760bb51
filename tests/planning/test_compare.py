"""`plan`: its numbers are those of the stream that it is about, at the worst of all ticks and
outputs; its chart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Stream, Sum
from evercount._validate import finite
from evercount.bounds import endless_tails, tails
from evercount.engine.error_model import interval_factor
from evercount.errors import ParameterError
from evercount.factorizations.covariance import Covariance
from evercount.graphs import DegreeHistogram
from evercount.planning import plan_views
from evercount.planning.compare import Row, plan
from evercount.plotting import error_plot
from evercount.queries import Query

GAUSSIAN, PURE = Budget(0.5, 1e-10), Budget(1.0, 0.0)
CASES: list[tuple[Budget, int | None, Query, str | None]] = [
    (GAUSSIAN, 700, Count(), "balanced"),
    (GAUSSIAN, 700, Count(), "normalized"),
    (GAUSSIAN, 700, Count(), "honaker"),
    (GAUSSIAN, 700, Count(), "binary-tree"),
    (GAUSSIAN, 700, Average(), "balanced"),
    (GAUSSIAN, 700, Average(), "binary-tree"),
    (GAUSSIAN, 700, Average(0, 8, 0.25), "unbounded"),
    (GAUSSIAN, None, Average(), "fresh"),
    (GAUSSIAN, None, Sum(-2, 1), "unbounded"),
    (GAUSSIAN, 256, DegreeHistogram(6, max_degree=4), "balanced"),
    (GAUSSIAN, 500, Count(), "periods-60"),
    (GAUSSIAN, 300, Count(), "periods-200"),
    (GAUSSIAN, None, Count(), "periods-60"),
    # noise below the grid: rounding is what is left
    (Budget(40.0, 1e-2), 700, Count(), "balanced"),
    (PURE, 700, Count(), "pure-tree"),
    (PURE, 700, Count(), "pure-binary"),
    (PURE, 700, Average(), "pure-tree"),
    (PURE, 700, Count(), "pure-window-60"),
    (PURE, None, Count(), "endless-bridge"),
    (PURE, None, Count(), "pure-hybrid"),
    (PURE, None, Count(), "pure-hybrid-binary"),
    (PURE, None, Count(), "pure-window-60"),
    (Budget(12.0, 0.0), 700, Count(), "pure-tree"),
]


def one_row(
    budget: Budget, horizon: int | None, query: Query, name: str | None
) -> tuple[Row, Stream]:
    """The row and the stream, over 700 ticks where there is no horizon."""
    found = plan(
        budget,
        horizon,
        query,
        names=None if name is None else (name,),
        ticks=None if horizon else 700,
    )
    (row,) = (row for row in found.rows if row.calibration == "tight")
    return row, Stream(query, budget, horizon, factorization=name)


@pytest.mark.parametrize(("budget", "horizon", "query", "name"), CASES, ids=str)
def test_a_row_states_what_the_stream_states(
    budget: Budget, horizon: int | None, query: Query, name: str | None
) -> None:
    """The worst over every tick and output, by the stream's own stds; intervals as the stream gives
    them."""
    row, made = one_row(budget, horizon, query, name)
    last = horizon or 700
    std = np.asarray(made.std(np.arange(1, last + 1))).reshape(last, -1)
    assert row.worst_std == pytest.approx(std.max(), rel=2e-5)
    assert row.worst_std == pytest.approx(std[row.worst_tick - 1].max(), rel=1e-9)
    assert row.worst_std >= max(row.std)
    assert row.std == pytest.approx(std.max(axis=1)[np.asarray(row.ticks) - 1].tolist(), rel=1e-6)
    assert row.last_std == pytest.approx(std[-1].max())
    assert row.ticks[-1] == last
    _, spread, slack = row.model.errors([row.worst_tick])
    weight = int(row.model.equal_numbers(np.asarray([row.worst_tick])).min())
    assert row.interval95 == pytest.approx((interval_factor(0.95, weight) * spread + slack).max())
    factor = interval_factor(0.95, int(budget.pure), last * query.outputs)
    _, spread, slack = row.model.errors(np.arange(1, last + 1))
    wide = (factor * spread + slack).max()
    if budget.pure:  # a union over each tick's own tails: tests/bounds/test_laplace_tails.py
        assert row.interval95 < row.simultaneous <= wide * (1 + 2e-5)
    else:
        assert row.simultaneous == pytest.approx(wide, rel=2e-5)


@pytest.mark.parametrize(
    ("budget", "name"),
    [(GAUSSIAN, "balanced"), (Budget(40.0, 1e-2), "balanced"), (PURE, "pure-tree")],
    ids=str,
)
def test_half_width_is_that_of_a_release(budget: Budget, name: str) -> None:
    row, made = one_row(budget, 60, Count(), name)
    low, high = made.run([0] * row.worst_tick).interval(0.95)
    assert row.interval95 == pytest.approx((high[-1] - low[-1]) / 2)


def test_average_is_ordered_by_its_own_error_and_has_no_lower_bound() -> None:
    found = plan(GAUSSIAN, 2**16, Average())
    rows = {row.name: row for row in found.rows}
    assert rows["balanced"].worst_std == pytest.approx(26.99, abs=0.01)
    assert rows["balanced"].worst_tick == 1
    assert math.isnan(found.lower_bound)
    assert all(math.isnan(row.ratio_to_lower_bound) for row in found.rows)
    assert [row.worst_std for row in found.rows] == sorted(row.worst_std for row in found.rows)
    with pytest.raises(ParameterError, match="ratio"):
        plan(GAUSSIAN, 2**16, Average(per="event"))


def test_several_outputs_have_the_largest_error_and_a_lower_bound_of_the_same_unit() -> None:
    found = plan(GAUSSIAN, 256, DegreeHistogram(6, max_degree=4), names=("balanced", "optimal"))
    rows = {row.name: row for row in found.rows}
    assert rows["balanced"].worst_std == pytest.approx(218.14, abs=0.01)
    assert rows["optimal"].state_bytes == 8 * 256
    # its outputs are differences of cells, which could be measured in other ways: no bound for all
    # of them is known
    assert all(math.isnan(row.ratio_to_lower_bound) for row in found.rows)
    plain = plan(GAUSSIAN, 256, names=("balanced", "optimal"))
    several = {
        row.name: row
        for row in plan(GAUSSIAN, 256, Histogram(5), names=("balanced", "optimal")).rows
    }
    for row in plain.rows:
        assert several[row.name].ratio_to_lower_bound == pytest.approx(
            row.ratio_to_lower_bound, rel=1e-3
        )


def test_ticks_and_names_are_used_or_refused() -> None:
    assert plan(GAUSSIAN, None, ticks=500).ticks == 500
    for wrong in (0, -5, 2.5, True):
        with pytest.raises(ParameterError, match="ticks must be"):
            plan(GAUSSIAN, None, ticks=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="without a horizon"):
        plan(GAUSSIAN, 100, ticks=50)


def test_json_has_no_number_that_json_lacks() -> None:
    assert finite({"a": [math.nan, 1.5], "b": (math.inf, -math.inf, 2)}) == {
        "a": [None, 1.5],
        "b": [None, None, 2],
    }
    found = plan(PURE, 64).to_dict()
    assert "model" not in found["mechanisms"][0]
    json.dumps(finite(found), allow_nan=False)


@pytest.mark.parametrize(
    ("budget", "name"), [(GAUSSIAN, "binary-tree"), (GAUSSIAN, "honaker"), (PURE, "pure-tree")]
)
def test_a_band_holds_every_tick_and_touches_it(budget: Budget, name: str) -> None:
    """All ticks of 5,000; of a longer stream the dyadic extremes, which a plain sample of the grid
    misses."""
    (row,) = plan(budget, 5000, names=(name,)).rows
    assert row.jumps
    edges, least, most = row.band(100)
    std = row.model.std(np.arange(1, 5001))[:, 0]
    for a, b, low, high in zip(edges[:-1], edges[1:], least, most, strict=True):
        assert (low, high) == (std[a - 1 : b - 1].min(), std[a - 1 : b - 1].max())
    assert (edges[0], edges[-1]) == (1, 5001)
    assert max(most) == row.worst_std
    assert max(row.std) <= row.worst_std


@pytest.mark.parametrize("name", ["binary-tree", "honaker"])
def test_a_band_of_a_long_stream_is_exact_for_dyadic_trees(name: str) -> None:
    (row,) = plan(GAUSSIAN, 250_000, names=(name,)).rows
    edges, least, most = row.band()
    std = row.model.std(np.arange(1, 250_001))[:, 0]
    inside = [std[a - 1 : b - 1] for a, b in pairwise(edges)]
    assert least == pytest.approx([part.min() for part in inside])
    assert most == pytest.approx([part.max() for part in inside])


def test_the_chart_draws_jumps_as_bands_and_the_rest_as_lines() -> None:
    rows = plan(GAUSSIAN, 1000, names=("balanced", "binary-tree")).rows
    curves = {row.name: (row.ticks, row.std) for row in rows}
    bands = {row.name: row.band() for row in rows if row.jumps}
    assert list(bands) == ["binary-tree"]
    axes = error_plot(curves, "a title", None, 20.0, bands)
    lines = [line.get_label() for line in axes.get_lines()]
    assert lines == ["balanced", "binary-tree (least to largest)", "lower bound, worst tick"]
    assert len(axes.collections) == 1


@pytest.mark.parametrize("horizon", [2**13, None])
def test_plans_of_one_horizon_share_what_no_promise_changes(
    horizon: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances and bounds of noise of rate 1 are computed once: another ε only scales them."""
    ticks = None if horizon else 2**13
    plan(Budget(1.0, 1e-9), horizon, ticks=ticks)
    computed: list[str] = []
    for room, name in (
        (Covariance, "_compute"),
        (tails, "_groups"),
        (endless_tails, "endless_chance"),
    ):
        original = getattr(room, name)

        def spied(*arguments: Any, name: str = name, original: Any = original) -> Any:
            computed.append(name)
            return original(*arguments)

        monkeypatch.setattr(room, name, spied)
    plan(Budget(1.5, 1e-9), horizon, ticks=ticks)
    assert computed == []
    # another horizon, which no other test has, needs its own
    plan(Budget(1.5, 1e-9), 4003 if horizon else 4001)
    assert {"_compute", "_groups"} <= set(computed)


def test_a_plan_of_views_marks_what_a_stream_runs_on() -> None:
    views = ("per-tick", "last-7", "running")
    found = plan_views(Budget(1.0, 1e-6), 365, views)
    (chosen,) = [row for row in found.rows if row.chosen]
    stream = Stream(Count(), Budget(1.0, 1e-6), 365, views=views)
    assert (chosen.name, chosen.delta) == (stream.factorization.name, stream.budget.delta)
    assert {row.name for row in found.rows} == {"terrace", "fresh", "bridge", "balanced", "blend"}
    for view, std in chosen.stds.items():
        assert std == pytest.approx(stream.std(np.arange(1, 366), view=view).max(), rel=1e-6)
    blend = next(row for row in found.rows if row.name == "blend")
    assert [
        blend.stds[view] <= bar for view, bar in zip(views, (5.45, 9.75, 14.7), strict=True)
    ] == [True] * 3
    assert chosen.twice == 2.0
    assert 1.4 < blend.twice < 1.6
    json.dumps(found.to_dict(), allow_nan=False)
    assert "terrace (chosen)" in str(found)
    assert str(found).endswith(found.reason)
    assert found.reason.startswith(
        "terrace (delta=0) is chosen: at worst 1.32 times the best possible for one view;"
    )


@pytest.mark.parametrize(
    ("budget", "views", "named"),
    [
        (Budget(1.0, 1e-6), ("per-tick",), "next best: fresh"),
        (Budget(1.0, 1e-3), ("running",), "next best"),
        (
            Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=6, period=6),
            ("per-tick",),
            "better by more",
        ),
        (Budget(1.0, 0.0), ("per-tick",), "no other noise"),
    ],
)
def test_a_plan_of_views_says_why(budget: Budget, views: tuple[str, ...], named: str) -> None:
    found = plan_views(budget, 60, views)
    chosen, *others = found.rows
    stream = Stream(Count(), budget, 60, views=views)
    assert (chosen.chosen, chosen.name, chosen.delta) == (
        True,
        stream.factorization.name,
        stream.budget.delta,
    )
    assert [row.score for row in others] == sorted(row.score for row in others)
    assert named in found.reason
    better = any(1 < chosen.score / row.score <= 1.4 for row in others)
    assert ("better by more" in found.reason) == better
    assert min(row.score for row in found.rows) >= 1 - 1e-9
    assert found.guarantee == replace(stream.budget, delta=budget.delta).sentence()
    assert bool(found.counted) == (budget.unit == "user")


def test_a_plan_of_views_is_a_table() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    found = plan_views(Budget(1.0, 0.0), 60, ["per-tick", "running"])
    frame = found.to_pandas()
    assert list(frame.columns) == [
        "noise",
        "delta",
        "per-tick",
        "running",
        "score",
        "epsilon_if_run_twice",
        "chosen",
    ]
    assert frame["running"].tolist() == [row.stds["running"] for row in found.rows]
    assert frame["chosen"].tolist() == [True, False, False]


def test_a_plan_of_views_counts_ticks() -> None:
    with pytest.raises(ParameterError, match="last-25"):
        plan_views(Budget(1.0, 1e-6), 60, ["per-day"])
    with pytest.raises(ParameterError, match="number of ticks"):
        plan_views(Budget(1.0, 1e-6, unit="user", max_per_tick=1, period="1w"), 60, ["per-tick"])


def test_a_plan_without_a_horizon_has_a_blend_that_says_how_long_it_is_fitted() -> None:
    person = Budget(1.0, 1e-3, unit="user", max_per_tick=1, max_ticks=60)
    found = plan_views(person, None, {"a day": "per-tick", "in all": "running"})
    chosen = found.rows[0]
    assert (chosen.name, list(chosen.stds)) == ("blend", ["a day", "in all"])
    anytime = next(row for row in found.rows if row.name == "anytime")
    assert chosen.stds["a day"] < 0.51 * anytime.stds["a day"]
    assert chosen.stds["in all"] < 1.4 * anytime.stds["in all"]
    assert "fitted to the first 2^30 ticks" in found.reason


def test_a_plan_says_which_keys_have_less_noise() -> None:
    query = Histogram(["a", "b", "c"], weights={"b": 4})
    compared, views = plan(GAUSSIAN, 64, query), plan_views(GAUSSIAN, 64, ["per-tick"], query)
    assert compared.shares == views.shares == {"a": 1.0, "b": 0.25}
    assert compared.squared_sensitivity == 16
    assert str(views).endswith("others have this fraction of it: b 0.25.")
    assert plan(GAUSSIAN, 64, Histogram(["a", "b"])).shares == {}
