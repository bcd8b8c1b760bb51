"""`plan --query sparse-count`: its numbers are those of the mechanism, the chart and errors work,
the docs show it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount import Budget
from evercount.cli import app
from evercount.errors import ParameterError, UnknownName
from evercount.planning.compare import plan
from evercount.planning.compare_sparse import ONES, SparseComparison, plan_sparse_count
from evercount.queries import build_query
from evercount.sparse import SparseCount
from evercount.sparse.budget_split import plan_sparse
from evercount.store import StreamDeclaration

DOCS = Path(__file__).parents[2] / "docs" / "pure-and-sparse.md"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", "--query", "sparse-count", *words])


def test_numbers_are_those_of_the_counter() -> None:
    """The same object that counts states the same bound, split and segments."""
    found = plan_sparse_count(Budget(1.0, 0.0), 2**12, 400)
    own = SparseCount(1.0, 2**12, max_ones=400, method="partition").plan
    assert found.method == SparseCount(1.0, 2**12, max_ones=400).plan.method == "plain"
    assert (found.bound, found.split.segments, found.split.threshold, found.split.spread) == (
        own.bound_without_promise(),
        own.segments,
        own.threshold,
        own.spread,
    )
    assert (
        max(found.split.threshold_epsilon, found.split.tick_epsilon) + found.split.counter_epsilon
        <= 1.0
    )
    assert (
        found.bounds[ONES.index(100)]
        == plan_sparse(1.0, 2**12, 0.0, 100, method="partition").bound_without_promise()
    )
    assert min(found.plain.values()) <= plan_sparse(1.0, 2**12, method="plain").bound(0)
    assert list(found.plain.values()) == sorted(found.plain.values())


def test_plain_counters_with_delta_are_those_of_plan() -> None:
    budget = Budget(1.0, 1e-9)
    found = plan_sparse_count(budget, 2**10, 20, names=("balanced", "binary-tree"))
    rows = {
        row.name: row.simultaneous
        for row in plan(budget, 2**10, names=("balanced", "binary-tree")).rows
    }
    assert found.plain == pytest.approx(rows)
    assert found.best_plain == min(rows.values())


def test_without_a_horizon() -> None:
    """The counter without a horizon, over so many ticks: its own bounds, next to mechanisms that
    need no horizon."""
    found = plan_sparse_count(Budget(1.0, 0.0), None, 400, ticks=2**12)
    own = SparseCount(1.0, None, max_ones=400, method="partition").plan
    assert (found.split.horizon, found.ticks) == (None, 2**12)
    assert found.bound == own.bound_without_promise(ticks=2**12)
    assert set(found.plain) == {"endless-bridge", "pure-hybrid", "pure-hybrid-binary"}
    assert next(iter(found.plain)) == "endless-bridge"
    shown = run("-t", "none", "--ticks", "1024", "-e", "1", "-d", "0", "-p", "max_ones=50")
    assert shown.exit_code == 0
    assert "no horizon, first 1024 ticks" in shown.output


def beats(found: SparseComparison, ones: int) -> bool:
    own = plan_sparse(
        found.split.epsilon, found.split.horizon, found.split.delta, ones, 0.05, "partition"
    )
    sparse = own.bound_without_promise()
    return sparse < min(found.best_plain, ones / 2)


def test_where_it_wins() -> None:
    """In the stated range it wins and next to it it does not; a shifted range would be caught."""
    found = plan_sparse_count(Budget(1.0, 0.0), 2**20, 1000)
    assert found.wins is not None
    low, high = found.wins
    assert [s for s in ONES if beats(found, s)] == [s for s in ONES if low <= s <= high]
    assert ONES[0] < low < high < ONES[-1]
    assert plan_sparse_count(Budget(1.0, 0.0), 2**6, 10).wins is None


def test_unknown_max_ones_is_a_function_of_the_events_so_far() -> None:
    found = plan_sparse_count(Budget(1.0, 0.0), 2**16)
    own = plan_sparse(1.0, 2**16, method="partition")
    assert found.bound is None
    assert found.bounds == [own.bound(s) for s in ONES]
    assert found.bounds == sorted(found.bounds)
    assert found.to_dict()["split"]["max_ones"] is None
    result = run("-e", "1", "-d", "0", "-t", "2^16")
    assert result.exit_code == 0
    assert "events so far" in result.output
    assert f"{own.bound(1000):,.1f}" in result.output


def test_json_and_chart(tmp_path: Path) -> None:
    chart = tmp_path / "sparse.svg"
    result = run(
        "-p", "max_ones=400", "-e", "1", "-d", "0", "-t", "4096", "--json", "--plot", str(chart)
    )
    assert result.exit_code == 0
    data = json.loads(result.output)
    assert data["query"] == "sparse-count"
    assert data["bound"] == pytest.approx(
        plan_sparse(1.0, 4096, 0.0, 400, method="partition").bound_without_promise()
    )
    assert data["ones"] == list(ONES)
    assert data["split"]["max_ones"] == 400
    assert "<svg" in chart.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-p", "max_ones=0"), "max_ones must be a whole number"),
        (("-p", "max_ones=2.5"), "max_ones must be a whole number"),
        (("-p", "max_ones=true"), "max_ones must be a whole number"),
        (("-p", "max_ones=many"), "max_ones must be a whole number"),
        (("-p", "max_ones=2000000000000"), "2^40"),
        (("-p", "maxones=3"), "maxones"),
        (("-t", "none", "--ticks", "0"), "ticks"),
        (("--ticks", "5"), "ticks=5 is for streams without a horizon"),
        (("--adjacency", "replace"), "add-remove"),
        (("--max-events", "2"), "unit event"),
        (("--epsilon", "17"), "between 2^-30 and 16"),
        (("-d", "0", "-m", "balanced"), "balanced"),
        (("-d", "0", "-m", "pure-hybrid"), "pure-hybrid"),
    ],
)
def test_parameters_that_make_no_sense(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert result.exit_code == ParameterError.exit_code
    assert message in " ".join(result.output.split())


def test_release_and_serve_say_where_it_is() -> None:
    for build in (
        lambda: build_query("sparse-count", {"max_ones": 3}),
        lambda: StreamDeclaration.from_dict(
            {
                "name": "s",
                "query": {"name": "sparse-count"},
                "budget": {"epsilon": 1.0, "delta": 0.0},
                "horizon": 9,
            }
        ),
    ):
        with pytest.raises(ParameterError, match=r"evercount\.sparse\.SparseCount"):
            build()
    with pytest.raises(UnknownName, match="Did you mean 'sparse-count'"):
        build_query("sparse-cuont", {})
    words = [
        "release",
        "-",
        "--time",
        "t",
        "--every",
        "1h",
        "--start",
        "2024-01-01",
        "--epsilon",
        "1",
        "--delta",
        "0",
    ]
    result = CliRunner().invoke(app, [*words, "--out", "x.csv", "--query", "sparse-count"])
    assert result.exit_code == ParameterError.exit_code
    assert "evercount.sparse.SparseCount" in result.output


def test_the_docs_show_what_the_command_prints() -> None:
    found = re.search(
        r"```console\n\$ evercount (plan --query sparse-count.*)\n((?:.*\n)+?)```", DOCS.read_text()
    )
    assert found is not None
    result = CliRunner().invoke(app, found[1].split())
    assert [line.rstrip() for line in result.output.splitlines()] == found[2].splitlines()
    example = re.search(
        r"Rare events: evercount (.*)", CliRunner().invoke(app, ["plan", "--help"]).output
    )
    assert example is not None
    assert "sparse-count" in example[1]
