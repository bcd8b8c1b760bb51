"""The plan of discovery is what streams do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from evercount import Budget, Count, DiscoveredKeys, Secret, Stream
from evercount.cli import app
from evercount.planning.discovery_plan import plan_discovery

BUDGET = Budget(1.0, 1e-3)


def test_the_plan_has_the_thresholds_of_the_stream() -> None:
    query = DiscoveredKeys(every=3, minimum=4)
    for horizon in (30, None):
        stream, made = Stream(query, BUDGET, horizon), plan_discovery(BUDGET, horizon, query)
        assert made is not None
        assert stream.thresholds is not None
        assert [(one.tick % 3, one.threshold) for one in made.ticks] == [
            (0, stream.thresholds.at(one.tick)) for one in made.ticks
        ]
        assert made.delta_2 == stream.thresholds.delta
    assert plan_discovery(BUDGET, 10, Count()) is None


def test_the_plan_of_keys_of_the_day_is_that_of_the_stream() -> None:
    query, views = DiscoveredKeys(minimum=4), ["per-tick"]
    stream, made = (
        Stream(query, BUDGET, views=views),
        plan_discovery(BUDGET, None, query, [30], views=views),
    )
    assert made is not None
    assert stream.thresholds is not None
    (only,) = made.ticks
    assert (made.factorization, only.threshold) == ("fresh", stream.thresholds.at(10**6))
    assert only.std == pytest.approx(stream.sigma)
    assert made.delta_1 + 2 * made.delta_2 < BUDGET.delta
    options = [
        "-q",
        "discovered-keys",
        "--epsilon",
        "1",
        "--delta",
        "1e-3",
        "--horizon",
        "none",
        "--view",
        "per-tick",
    ]
    shown = CliRunner().invoke(
        app, ["plan", *options, "-p", "minimum=4", "--count", "30", "--json"]
    )
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert found["discovery"]["ticks"][0]["threshold"] == only.threshold
    assert found["rows"][0]["stds"]["per-tick"] == pytest.approx(stream.std([1])[0, 0])
    for views in (["--view", "per-tick"], []):  # and of keys that stay
        shown = CliRunner().invoke(app, ["plan", *options[:-2], *views])
        assert shown.exit_code == 0, shown.output
        assert "threshold" in shown.output


def test_a_count_is_seen_as_often_as_the_plan_says() -> None:
    """Real streams: keys with one count each, all at the one discovery tick."""
    query, keys = DiscoveredKeys(every=8), 500
    made = plan_discovery(BUDGET, 8, query, [30, 36, 44])
    assert made is not None
    for count, chance in zip(made.counts, made.ticks[-1].visible, strict=True):
        stream = Stream(query, BUDGET, 8, secret=Secret.from_hex("9b" * 32), replay=True)
        ticks: list[dict[str, int]] = [
            {f"k{number}": count for number in range(keys)},
            *({} for _ in range(7)),
        ]
        seen = len(stream.run(ticks)[-1].labels) - 2
        low, high = binom.ppf([1e-6, 1 - 1e-6], keys, chance)
        assert low <= seen <= high
    assert 0.02 < np.mean(made.ticks[-1].visible) < 0.98, "the counts tell chances apart"


def test_the_command_prints_it() -> None:
    arguments = (
        "plan -q discovered-keys -p minimum=5 -e 1 -d 1e-6 --horizon 64 -m balanced --count 40 "
        "--count 200"
    )
    shown = CliRunner().invoke(app, arguments.split())
    assert shown.exit_code == 0, shown.output
    assert "threshold" in shown.output
    assert "count 200" in shown.output
    data = json.loads(CliRunner().invoke(app, [*arguments.split(), "--json"]).output)
    assert data["discovery"]["ticks"][-1]["tick"] == 64
    assert len(data["discovery"]["ticks"][-1]["visible"]) == 2
    refused = CliRunner().invoke(
        app, ["plan", "-q", "count", "-m", "balanced", "--horizon", "64", "--count", "3"]
    )
    assert refused.exit_code != 0


@pytest.mark.parametrize("minimum", [1, 50])
def test_a_minimum_raises_thresholds_by_as_much(minimum: int) -> None:
    plain, raised = (plan_discovery(BUDGET, 64, DiscoveredKeys(minimum=m)) for m in (1, minimum))
    assert plain is not None
    assert raised is not None
    assert [b.threshold - a.threshold for a, b in zip(plain.ticks, raised.ticks, strict=True)] == [
        minimum - 1
    ] * len(plain.ticks)
