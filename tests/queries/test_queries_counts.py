"""Count, Sum and Average: sensitivities by enumeration, encoders."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from evercount import Average, Budget, Count, Stream, Sum
from evercount.errors import EventRefused, InputError, ParameterError, UnknownName
from evercount.mechanisms.laplace_noise import grid_units
from evercount.privacy import gaussian


def change(query, one, other):
    """Σ_cells (P² + N²) between two ticks' worth of events, in real units."""
    d = (query.encode(None, one)[0] - query.encode(None, other)[0]) * query.grid
    return float(np.sum(np.maximum(d, 0) ** 2) + np.sum(np.minimum(d, 0) ** 2))


@pytest.mark.parametrize(
    "query",
    [Sum(0, 1), Sum(-2, 1), Sum(-1, 3, 0.5), Sum(2, 3), Average(-1, 1, 0.5),
     Average(0, 3, 0.5, per="event"),
     Average(-2, 1, 1.0, per="event"), Average(0, 1, 0.25, per="event")],
    ids=repr,
)  # fmt: skip
def test_sensitivity_by_enumeration(query):
    values = np.arange(query.low, query.high + query.grid / 2, query.grid)
    rest = [float(values[0]), float(values[-1])]
    removed = max(change(query, [*rest, v], rest) for v in values)
    assert removed == pytest.approx(query.squared_sensitivity("add-remove"))
    swapped = max(
        change(query, [*rest, v], [*rest, w]) for v, w in itertools.product(values, values)
    )
    assert max(swapped, removed if query.cells == 2 else 0) == pytest.approx(
        query.squared_sensitivity("replace")
    )


def units_of(query, value):
    """What the encoder makes of one event, in whole grid units of each cell."""
    return query.encode(None, [value])[0].tolist()


RANGES = [
    (-8738.05, -8738.04, 0.01),
    (-9472.81, -9472.80, 0.01),
    (0.1, 0.3, 0.1),
    (-0.3, 0.6, 0.1),
    (-1.1, 2.2, 0.1),
    (1e5 + 0.1, 1e5 + 0.2, 0.1),
    (-104857.6, -104857.5, 0.1),
    (-1 / 3, 2 / 3, 1 / 3),
    (7e-5, 9e-5, 1e-5),
    (1048575, 1048576, 1),
]


@pytest.mark.parametrize("limits", RANGES)
@pytest.mark.parametrize("make", [Sum, Average])
def test_sensitivity_is_what_the_encoder_can_do_on_any_grid(make, limits):
    """In exact arithmetic: no pair of events may change the increments by more than S says, in real
    units."""
    query = make(*limits)
    low, high, grid = query.low, query.high, Fraction(query.grid)
    near = [math.nextafter(end, other) for end, other in ((low, high), (high, low))]
    values = [
        low,
        high,
        *near,
        *np.linspace(low, high, 9).tolist(),
        *(low + np.arange(4) * (high - low) / 3).tolist(),
    ]
    if grid == 1:
        values = [value for value in values if value.is_integer()]
    ends = [units_of(query, value)[0] for value in values if low <= value <= high]
    for adjacency, units in (
        ("add-remove", max(map(abs, ends))),
        ("replace", max(ends) - min(ends)),
    ):
        stated, real = Fraction(query.squared_sensitivity(adjacency)), (units * grid) ** 2
        assert abs(stated / real - 1) < Fraction(1, 10**15), "true, and no larger than needed"
        assert grid_units(query.l1_sensitivity(adjacency), query.grid) == units, (
            "pure noise is not doubled"
        )


@pytest.mark.parametrize(
    "limits", [(-8738.05, -8738.0, 0.05), (0, 3, 0.1), (-2, 1, 1.0), (-0.3, 0.6, 0.1)]
)
def test_averages_per_event_count_in_whole_units(limits):
    query = Average(*limits, per="event")
    middle = (query.low + query.high) / 2
    ends = [
        units_of(query, value)
        for value in (query.low, query.high, np.floor(middle) if query.grid == 1 else middle)
    ]
    absent = max(a * a + b * b for a, b in ends)
    swapped = max((a - c) ** 2 + (b - d) ** 2 for a, b in ends for c, d in ends)
    exact = Fraction(query.grid) ** 2
    for adjacency, units in (("add-remove", absent), ("replace", max(absent, swapped))):
        assert abs(Fraction(query.squared_sensitivity(adjacency)) / (units * exact) - 1) < Fraction(
            1, 10**15
        )
    l1 = max(abs(a) + abs(b) for a, b in ends)
    assert grid_units(query.l1_sensitivity("add-remove"), query.grid) == l1


def test_a_sum_far_from_zero_spends_no_more_than_its_delta():
    """It spent 1.0000000053e-9 of 1e-9: the noise in grid units, against the change in grid
    units."""
    query, budget = Sum(-8738.05, -8738.04, 0.01), Budget(1.0, 1e-9, adjacency="replace")
    stream = Stream(query, budget, 40, "fresh")
    scale = stream.sigma / query.grid
    assert gaussian.delta_upper(1 / scale, budget.epsilon) + stream.numeric_delta <= budget.delta
    pure = Budget(1.0, 0.0, adjacency="replace")
    assert (
        Stream(Sum(-9472.81, -9472.80, 0.01), pure, 40).sigma
        == Stream(Sum(0, 0.01, 0.01), pure, 40).sigma
    )


def test_count_sensitivity_is_one():
    for n in range(4):
        assert change(Count(), n + 1, n) == 1 == Count().squared_sensitivity("add-remove")
    assert Count().squared_sensitivity("replace") == 1


@pytest.mark.parametrize(
    "arguments", [(1, 1), (2, 1), (0, 1, 0), (0, 1, -1), (0, 1, 0.3), (float("nan"), 1), ("0", 1)]
)
def test_bad_sums(arguments):
    with pytest.raises(ParameterError):
        Sum(*arguments)


def test_bad_counts_and_averages():
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ParameterError):
            Count(most_per_tick=bad)
    with pytest.raises(UnknownName):
        Average(per="hour")
    with pytest.raises(ParameterError, match="divides 1"):
        Average(0, 3, 1.5, per="event")


def test_values_are_rounded_to_the_grid():
    increments, _ = Sum(0, 1, 0.25).encode(None, [0.3, 0.99, 0.0])
    assert increments.tolist() == [1 + 4 + 0]


@pytest.mark.parametrize(
    "query", [Sum(0, 5), Average(0, 5), Average(0, 5, per="event"), Sum(0, 5, 1)], ids=repr
)
def test_fractions_are_refused_where_the_grid_is_one(query):
    """A thousand events of 0.3 were 0.0 ± 0.5. Nothing is counted, and the message says what to
    do."""
    for events, at in (([0.3] * 1000, 0), ([1, 2.0, 2.9999999], 2), (np.asarray([5.0, 0.5]), 1)):
        with pytest.raises(
            EventRefused, match=r"declare a finer one, such as grid=0\.01"
        ) as refused:
            query.encode(None, events)
        assert refused.value.number == at
    stream = Stream(query, Budget(1.0, 1e-6), 4, "fresh")
    with pytest.raises(InputError, match="not a whole number"):
        stream.run([[1.0], [0.3]])
    assert stream.tick == 0
    stream.step([0, 5.0, np.float32(3)])


@pytest.mark.parametrize("make", [Sum, Average])
def test_fractions_add_up_on_a_finer_grid(make):
    stream = Stream(make(0, 5, 0.01), Budget(4.0, 1e-6), 1, "fresh")
    low, high = stream.step([0.3] * 1000).interval(1 - 1e-9)
    assert low <= 300 <= high
    assert low > 200


def test_average_per_event_is_the_mean():
    query = Average(0, 10, 0.5, per="event")
    increments, _ = query.encode(None, [1.0, 2.5, 10.0, 0.0])
    noisy = (increments * query.grid)[np.newaxis].astype(float)
    assert query.decode_run(1, noisy)[0, 0] == pytest.approx(13.5 / 4)
