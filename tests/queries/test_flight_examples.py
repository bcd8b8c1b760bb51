"""The examples on real flights: published numbers lie near the true ones, and the docs state what
they print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flight_statistics import aircraft, delays, routes
from flight_tables import origins_and_carriers, weekly_aircraft

from evercount.errors import MissingExtra
from evercount.examples.flights import Flight, by_day, flights

SCRIPT = Path(__file__).parents[2] / "examples" / "reports" / "flight_statistics.py"


pytestmark = pytest.mark.slow
"""Every report reads and counts a whole year of flights."""


@pytest.fixture(scope="module")
def days() -> list[list[Flight]]:
    try:
        return by_day(flights())
    except MissingExtra as error:
        print(error)
        pytest.skip(str(error))


def numbers(line: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(r"-?[\d,]*\d(?:\.\d+)?", line)]


@pytest.mark.soak
def test_routes_add_up_and_lie_near_the_truth(days: list[list[Flight]]) -> None:
    lines = routes(days).splitlines()
    assert "224 routes" in lines[0]
    for line in lines[1:5]:
        true, value, std = numbers(line.split("true")[1])
        assert abs(true - value) < 6 * std
    assert numbers(lines[1].split("true")[1])[0] == 336_776


@pytest.mark.soak
def test_medians_of_delays_hold(days: list[list[Flight]]) -> None:
    for line in delays(days).splitlines()[1:]:
        true, value, _, low, high = numbers(line.split("true")[1])
        assert low - 1 <= true <= high + 1  # four intervals of 95 %: a bin more on each side
        assert low <= value <= high


def test_different_aircraft(days: list[list[Flight]]) -> None:
    for line in aircraft(days).splitlines()[1:3]:
        true, value, std = numbers(line.split("true")[1])
        assert abs(true - value) < 6 * std
    assert len(SCRIPT.read_text("utf-8").splitlines()) < 100


def test_tables_and_weekly_aircraft_lie_near_the_truth(days: list[list[Flight]]) -> None:
    lines = [*origins_and_carriers(days).splitlines()[1:], *weekly_aircraft(days).splitlines()[1:]]
    assert len(lines) == 7
    for line in lines:
        true, value, std = numbers(line.split("true")[1])
        assert abs(true - value) < 6 * std
    assert numbers(lines[0])[0] == 336_776
