"""Made-up visits of made-up patients, the same for the same seed: some come once, a few come again
and again."""

from __future__ import annotations

import argparse
import csv
import random
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1)
CLINICS = ("north", "south")


def write_csv(path: str | Path, days: int = 90, seed: int = 2026) -> int:
    """Write one row per visit (time, patient, clinic), in order of time; about 100 a day, from 8:00
    to 18:00.

    >>> write_csv("visits.csv", days=7) > 500
    True
    """
    draw = random.Random(seed)
    rows = []
    for patient in range(30 * days):
        for _ in range(min(days, int(draw.paretovariate(1.1)))):
            day, minute = divmod(draw.randrange(days * 1440), 1440)
            # 1440 · 25 s are ten hours
            moment = START + timedelta(days=day, hours=8, seconds=25 * minute)
            rows.append((moment.isoformat(), f"p{patient:05d}", draw.choice(CLINICS)))
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("time", "patient", "clinic"), *sorted(rows)])
    return len(rows)


if __name__ == "__main__":
    command = argparse.ArgumentParser("python -m evercount.examples.patients", description=__doc__)
    command.add_argument("path", nargs="?", default="visits.csv", help="the CSV file to write")
    command.add_argument(
        "days", nargs="?", type=int, default=90, help="how many days from 2026-01-01 on"
    )
    asked = command.parse_args()
    print(f"{write_csv(asked.path, asked.days):,} visits written to {asked.path}")  # noqa: T201
