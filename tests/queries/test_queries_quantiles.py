"""Quantiles: bins, refusals, exact sensitivity and covariance, intervals that hold."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Quantiles, Stream
from evercount.audit.sensitivity import audit_sensitivity
from evercount.errors import InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries import build_query
from independent_streams import noise_of, smooth_stream
from soak_cases import soak_except

BUDGET = Budget(1.0, 1e-6)


def test_bins() -> None:
    query = Quantiles(-1, 3, 4)
    assert query.edges.tolist() == [-1, 0, 1, 2, 3]
    assert query.encode(None, [-1, -0.001, 0, 2.999, 3, 3])[0].tolist() == [6, 3, 3, 2, 1, 0, 3]
    assert query.encode(None, np.array([0.5, 1.5]))[0][3:].tolist() == [0, 1, 1, 0]
    assert query.encode(None, [])[0].tolist() == [0] * 7
    assert build_query("quantiles", query.parameters()) == query
    assert Quantiles(0, 1, 4, [0, 3, 1]).cells == 6


@pytest.mark.parametrize(
    "events", [[4], [-1.01], [math.nan], [math.inf], ["1"], [True], [None], [[1]], 1, "1", {1: 2}]
)
def test_bad_events(events: Any) -> None:
    with pytest.raises(InputError):
        Quantiles(-1, 3, 4).encode(None, events)


@pytest.mark.parametrize(
    "bad",
    [
        {"low": 1, "high": 1},
        {"low": 0, "high": math.inf},
        {"low": 0, "high": 1, "bins": 3},
        {"low": 0, "high": 1, "bins": 1},
        {"low": 0, "high": 1, "bins": 2**17},
        {"low": 0, "high": 1, "bins": 4, "weights": [1, 1]},
        {"low": 0, "high": 1, "bins": 4, "weights": [1, 1, 0]},
        {"low": 1e15, "high": 1e15 + 1, "bins": 64},
    ],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Quantiles(**bad)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(
    "query", [Quantiles(0, 1, 2), Quantiles(0, 1, 4), Quantiles(0, 1, 4, [3, 0, 2])], ids=repr
)
def test_sensitivity_is_the_exact_maximum(query: Quantiles, adjacency: Adjacency) -> None:
    report = audit_sensitivity(query, np.eye(3), adjacency, 3)
    assert report.exhaustive
    assert report.holds
    assert report.reached
    assert not audit_sensitivity(query, np.eye(3), adjacency, 3, claimed=1).holds


@pytest.mark.parametrize(
    "query", [Quantiles(0, 1, 2), Quantiles(0, 1, 16), Quantiles(0, 1, 8, [0, 2, 1, 3])], ids=repr
)
def test_covariance_and_reach_against_the_dense_map(query: Quantiles) -> None:
    rows = query.decode_run(1, np.eye(query.cells)).T
    assert np.allclose(query.publishing.joint(range(query.bins)), rows @ rows.T, atol=1e-12)
    assert np.allclose(query.publishing.norms(), np.linalg.norm(rows, axis=1), atol=1e-12)
    for q in (0.25, 0.9):
        assert np.allclose(
            query.norms_against(q), np.linalg.norm(rows - q * rows[-1], axis=1), atol=1e-12
        )
    assert np.all(query.publishing.roundings() >= np.abs(rows).sum(axis=1) - 1e-12)


def true_quantile(values: np.ndarray, q: float) -> float:
    """The smallest value that at least a part q of the values do not exceed."""
    return float(np.sort(values)[max(math.ceil(q * len(values) - 1e-9), 1) - 1])


def coverage(number: int, q: float, budget: Budget, factor: float = 1.0) -> dict[float, float]:
    """How often intervals at the last tick hold the truth, by level; `factor` scales the noise
    behind their back.

    4,000 streams: eight sets of data, 500 times the noise of the library's own generator.
    """
    query, streams, held = Quantiles(0, 100, 64), 500, dict.fromkeys((0.8, 0.95), 0)
    stream = smooth_stream(query, budget, 4, seed=1)
    noise = factor * noise_of(stream, 8 * streams, 4)[-1]
    view = stream.run([[]] * 4).running()
    last = np.full(streams, 4)
    for seed in range(8):
        generator = np.random.default_rng(seed)
        ticks = [generator.normal(40, 12, number).clip(0, 100) for _ in range(4)]
        sums = (
            query.encode_run(None, ticks)[0].sum(axis=0)
            + noise[seed * streams : (seed + 1) * streams]
        )
        many = replace(view, first=np.ones_like(last), last=last, values=query.decode_run(1, sums))
        truth = true_quantile(np.concatenate(ticks), q)
        for level in held:
            value, low, high = many.quantile(q, level)
            assert np.all((low <= value) & (value <= high))
            held[level] += int(np.sum((low <= truth) & (truth <= high)))
    return {level: number / (8 * streams) for level, number in held.items()}


@pytest.mark.parametrize(
    ("number", "q", "delta"),
    soak_except(
        [(50, 0.5, 1e-6), (2000, 0.95, 0.0)],
        [(50, 0.5, 1e-6), (2000, 0.95, 1e-6), (300, 0.1, 1e-6), (2000, 0.95, 0.0), (300, 0.1, 0.0)],
    ),
)
def test_intervals_hold_as_often_as_they_say(number: int, q: float, delta: float) -> None:
    """More often where a bin is wide compared with the interval: the truth is missed only with its
    whole bin."""
    for level, held in coverage(number, q, Budget(1.0, delta)).items():
        assert held >= level - 0.01


@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_intervals_that_are_too_narrow_are_caught(delta: float) -> None:
    """Planted: twice the noise that the interval believes in."""
    assert coverage(300, 0.1, Budget(1.0, delta), factor=2.0)[0.95] < 0.94


def test_much_data_pins_the_median_to_its_bin() -> None:
    values = np.random.default_rng(1).normal(40, 12, 200_000).clip(0, 100)
    stream = Stream(Quantiles(0, 100, 64), BUDGET, 8)
    view = stream.run([values, values[:1000]]).running()
    for q in (0.05, 0.5, 0.9):
        value, low, high = (float(part[-1]) for part in view.quantile(q))
        assert low <= np.quantile(values, q) <= high
        assert high - low <= 3 * 100 / 64
        assert abs(value - np.quantile(values, q)) < 100 / 64


def test_quantiles_of_the_last_ticks_follow_the_data() -> None:
    low, high = np.full(5000, 10.0), np.full(5000, 90.0)
    view = Stream(Quantiles(0, 100, 16), BUDGET, 8).run([low] * 4 + [high] * 4).last(2)
    value, below, above = view.quantile(0.5)
    assert below[0] <= 10 <= above[0]
    assert below[-1] <= 90 <= above[-1]
    assert value[0] < 20
    assert value[-1] > 80


def test_without_data_nothing_is_claimed_beyond_the_range() -> None:
    view = Stream(Quantiles(0, 100, 16), BUDGET, 8).run([[]] * 3).running()
    value, low, high = view.quantile(0.5)
    assert np.all((low >= 0) & (high <= 100) & (low <= value) & (value <= high))
    for q in (0, 1, 1.5):
        with pytest.raises(ParameterError):
            view.quantile(q)
    with pytest.raises(ParameterError, match="all cells"):
        view.only("total").quantile(0.5)
