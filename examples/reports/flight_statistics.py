"""Signal and noise of 336,776 real flights of 2013: `python examples/reports/flight_statistics.py`.

Flights by origin and destination (a rollup), the median departure delay (quantiles), and how many
different aircraft flew (distinct users: an aircraft stands for a person with any number of events).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from evercount.engine.stream import Stream
from evercount.examples.flights import DAYS, Flight, by_day, flights
from evercount.privacy import Budget
from evercount.queries import DistinctUsers, Quantiles, Rollup

EVENTS = Budget(epsilon=1.0, delta=1e-9)
PEOPLE = Budget(epsilon=1.0, delta=1e-9, unit="user")
LOW, HIGH = -64.0, 192.0
"""Delays are cut to this range, in minutes: it is public, and chosen before anyone looked."""


def routes(days: Sequence[Sequence[Flight]]) -> str:
    """Flights by origin and destination: numbers that add up at every tick."""
    ticks = [[(flight.origin, flight.dest) for flight in day] for day in days]
    paths = sorted({path for tick in ticks for path in tick})  # which routes exist is public
    query = Rollup(paths)
    releases = Stream(query, EVENTS, DAYS).run(ticks)
    truth = query.tree.estimate(
        query.encode_run(None, ticks)[0].sum(axis=0, keepdims=True).astype(float)
    )[0]
    lines = [
        (
            f"Flights of {DAYS} days by origin and destination, {len(paths)} routes, epsilon 1 for "
            "each flight"
        )
    ]
    for label in ("total", "JFK", "JFK / LAX", "EWR / ANC"):
        at = query.labels.index(label)
        value, std = releases[-1].values[at], releases[-1].stds[at]
        lines.append(
            f"  {label:<10} true {truth[at]:>9,.0f}  published {value:>11,.1f}  std {std:6.1f}"
        )
    week = releases.last(7)
    at = query.labels.index("JFK")
    lines.append(f"  JFK, last week: {week.values[-1, at]:,.0f}, std {week.std[-1, at]:.1f}")
    return "\n".join(lines)


def delays(days: Sequence[Sequence[Flight]]) -> str:
    """The median and the 90 % quantile of the departure delay."""
    ticks = [
        [min(max(float(flight.delay), LOW), HIGH) for flight in day if flight.delay] for day in days
    ]
    releases = Stream(Quantiles(LOW, HIGH, bins=256), EVENTS, DAYS).run(ticks)
    lines = ["Departure delay in minutes, epsilon 1 for each flight"]
    for name, view, part in (
        ("year", releases.running(), ticks),
        ("last week", releases.last(7), ticks[-7:]),
    ):
        values = np.concatenate(part)
        for q in (0.5, 0.9):
            value, low, high = (numbers[-1] for numbers in view.quantile(q))
            true = float(np.quantile(values, q, method="inverted_cdf"))
            lines.append(
                f"  {name}, quantile {q}: true {true:.0f}, published {value:.1f}, 95 % interval "
                f"{low:.0f} to {high:.0f}"
            )
    return "\n".join(lines)


def aircraft(days: Sequence[Sequence[Flight]]) -> str:
    """How many different aircraft so far; each is protected with all its flights."""
    ticks = [[flight.aircraft for flight in day if flight.aircraft != "unknown"] for day in days]
    releases = Stream(DistinctUsers(), PEOPLE, DAYS).run(ticks)
    lines = ["Different aircraft so far, epsilon 1 for each aircraft with all its flights"]
    for day in (31, 365):
        true = len({name for tick in ticks[:day] for name in tick})
        release = releases[day - 1]
        lines.append(
            f"  day {day}: true {true:,}, published {release.values[0]:,.0f}, std "
            f"{release.stds[0]:.1f}"
        )
    most = max(np.unique([name for tick in ticks for name in tick], return_counts=True)[1])
    lines.append(f"  the busiest one made {most:,} flights; it changes the count by 1 all the same")
    return "\n".join(lines)


def report() -> str:
    """All three."""
    days = by_day(flights())
    return "\n\n".join((routes(days), delays(days), aircraft(days))) + "\n"


if __name__ == "__main__":
    sys.stdout.write(report())
