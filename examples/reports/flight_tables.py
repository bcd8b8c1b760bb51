"""Two more statistics of the real flights of 2013: `python examples/reports/flight_tables.py`.

Flights by origin and carrier (a two-way table with its margins), and how many different aircraft
flew in each week (active users: an aircraft stands for a person with any number of events).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from flight_statistics import EVENTS, PEOPLE

from evercount.engine.stream import Stream
from evercount.examples.flights import DAYS, Flight, by_day, flights
from evercount.queries import ActiveUsers, Marginals

WEEKS = 13
"""A quarter: an aircraft may fly in all its weeks, so the cap leaves nothing out."""


def origins_and_carriers(days: Sequence[Sequence[Flight]]) -> str:
    """Flights by origin and carrier: every margin is the sum of its row or column."""
    ticks = [[(flight.origin, flight.carrier) for flight in day] for day in days]
    # both are public
    columns = [sorted({event[place] for tick in ticks for event in tick}) for place in (0, 1)]
    query = Marginals(columns)
    releases = Stream(query, EVENTS, DAYS).run(ticks)
    events = [event for tick in ticks for event in tick]
    lines = [f"Flights of {DAYS} days by origin and carrier, epsilon 1 for each flight"]
    for origin, carrier in (
        (None, None),
        ("JFK", None),
        (None, "B6"),
        ("JFK", "B6"),
        ("LGA", "OO"),
    ):
        label = "total" if origin is carrier else f"{origin or '*'} / {carrier or '*'}"
        true = sum(origin in (None, event[0]) and carrier in (None, event[1]) for event in events)
        at = query.labels.index(label)
        value, std = releases[-1].values[at], releases[-1].stds[at]
        lines.append(f"  {label:<10} true {true:>9,}  published {value:>11,.1f}  std {std:6.1f}")
    return "\n".join(lines)


def weekly_aircraft(days: Sequence[Sequence[Flight]]) -> str:
    """How many different aircraft flew in each week of the first quarter."""
    named = [[flight.aircraft for flight in day if flight.aircraft != "unknown"] for day in days]
    ticks = [
        [name for day in named[7 * week : 7 * week + 7] for name in day] for week in range(WEEKS)
    ]
    weekly = Stream(ActiveUsers(), replace(PEOPLE, max_ticks=WEEKS), WEEKS).run(ticks).per_tick()
    lines = [
        (
            f"Different aircraft in a week, {WEEKS} weeks, epsilon 1 for each aircraft with all "
            "its flights"
        )
    ]
    for week in (1, WEEKS):
        true, value, std = (
            len(set(ticks[week - 1])),
            weekly.values[week - 1, 0],
            weekly.std[week - 1, 0],
        )
        lines.append(f"  week {week}: true {true:,}, published {value:,.0f}, std {std:.1f}")
    return "\n".join(lines)


def report() -> str:
    """Both."""
    days = by_day(flights())
    return f"{origins_and_carriers(days)}\n\n{weekly_aircraft(days)}\n"


if __name__ == "__main__":
    sys.stdout.write(report())
