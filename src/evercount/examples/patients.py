"""Made-up visits of made-up patients, the same for the same seed: some come once, a few come again and again.

python -m evercount.examples.patients visits.csv [DAYS]
"""

from __future__ import annotations

import csv
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1)
CLINICS = ("north", "south")


def write_csv(path: str | Path, days: int = 90, seed: int = 2026) -> int:
    """Write one row per visit (time, patient, clinic), in order of time; about 100 visits a day.

    Args:
        path: The CSV file.
        days: How many days from `START` on.
        seed: The same seed gives the same visits.

    Returns:
        The number of rows.

    >>> write_csv("visits.csv", days=7) > 500
    True
    """
    draw = random.Random(seed)
    rows = []
    for patient in range(30 * days):
        for _ in range(min(days, int(draw.paretovariate(1.1)))):
            moment = START + timedelta(minutes=draw.randrange(days * 1440))
            rows.append((moment.isoformat(), f"p{patient:05d}", draw.choice(CLINICS)))
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("time", "patient", "clinic"), *sorted(rows)])
    return len(rows)


if __name__ == "__main__":
    target, *days = sys.argv[1:] or ["visits.csv"]
    sys.stdout.write(f"{write_csv(target, *map(int, days)):,} visits written to {target}\n")
