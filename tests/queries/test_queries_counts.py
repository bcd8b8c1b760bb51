"""Count, Sum, Average and Window: sensitivities by enumeration, encoders, the choice of a window's method."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evercount import Average, Count, Sum, Window
from evercount.errors import ParameterError, UnknownName
from evercount.queries.window import window_errors


def change(query, one, other):
    """Σ_cells (P² + N²) between two ticks' worth of events, in real units."""
    d = (query.encode(None, one)[0] - query.encode(None, other)[0]) * query.grid
    return float(np.sum(np.maximum(d, 0) ** 2) + np.sum(np.minimum(d, 0) ** 2))


@pytest.mark.parametrize(
    "query",
    [Sum(0, 1), Sum(-2, 1), Sum(-1, 3, 0.5), Sum(2, 3), Average(-1, 1, 0.5), Average(0, 3, 0.5, per="event"),
     Average(-2, 1, 1.0, per="event"), Average(0, 1, 0.25, per="event")],
    ids=repr,
)  # fmt: skip
def test_sensitivity_by_enumeration(query):
    values = np.arange(query.lo, query.hi + query.grid / 2, query.grid)
    rest = [float(values[0]), float(values[-1])]
    removed = max(change(query, [*rest, v], rest) for v in values)
    assert removed == pytest.approx(query.squared_sensitivity("add-remove"))
    swapped = max(change(query, [*rest, v], [*rest, w]) for v, w in itertools.product(values, values))
    assert max(swapped, removed if query.cells == 2 else 0) == pytest.approx(query.squared_sensitivity("replace"))


def test_count_sensitivity_is_one():
    for n in range(4):
        assert change(Count(), n + 1, n) == 1 == Count().squared_sensitivity("add-remove")
    assert Count().squared_sensitivity("replace") == 1


@pytest.mark.parametrize("arguments", [(1, 1), (2, 1), (0, 1, 0), (0, 1, -1), (0, 1, 0.3), (float("nan"), 1), ("0", 1)])
def test_bad_sums(arguments):
    with pytest.raises(ParameterError):
        Sum(*arguments)


def test_bad_counts_averages_and_windows():
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ParameterError):
            Count(max_per_tick=bad)
        with pytest.raises(ParameterError):
            Window(bad)
    with pytest.raises(UnknownName):
        Average(per="hour")
    with pytest.raises(UnknownName):
        Window(3, "differences")
    with pytest.raises(ParameterError, match="divides 1"):
        Average(0, 3, 1.5, per="event")


def test_values_are_rounded_to_the_grid():
    increments, _ = Sum(0, 1, 0.25).encode(None, [0.3, 0.99, 0.0])
    assert increments.tolist() == [1 + 4 + 0]


def test_average_per_event_is_the_mean():
    query = Average(0, 10, 0.5, per="event")
    increments, _ = query.encode(None, [1.0, 2.5, 10.0, 0.0])
    noisy = (increments * query.grid)[np.newaxis].astype(float)
    assert query.decode_run(1, noisy)[0, 0] == pytest.approx(13.5 / 4)


@pytest.mark.parametrize("method", ["difference", "periods", "inputs"])
@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_window_decoding_is_the_window(width, method):
    query = Window(width, method)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, 50)
    if method == "periods":
        running = np.concatenate([np.cumsum(x[a : a + width]) for a in range(0, 50, width)])
    else:
        running = np.cumsum(x)
    truth = np.asarray([x[max(0, t - width + 1) : t + 1].sum() for t in range(50)])
    padded = np.concatenate([np.zeros(width), running])[:, np.newaxis].astype(float)
    assert np.array_equal(query.decode_run(1, padded)[:, 0], truth)
    # and the declared combination of running sums is the same linear map
    ticks = np.arange(1, 51)
    total = np.zeros(50)
    for at, weights in query.combination(ticks):
        total += np.where(at > 0, weights * running[np.maximum(at, 1) - 1], 0)
    assert np.array_equal(total, truth)


def test_window_chooses_the_smallest_exact_error():
    for width, horizon in ((2, 1000), (24, 4096), (900, 1000), (50, None)):
        errors = window_errors(width, horizon)
        assert Window(width).resolved(horizon).method == min(errors, key=errors.get)
    assert Window(2).resolved(None).method == "inputs"
    assert Window(500).resolved(None).method == "periods"
    assert Window(5, "difference").resolved(100).method == "difference"
