"""A synthetic stream of flu self-assessments: made by a formula, about nobody, for examples and tests.

Hourly numbers of reports from eight made-up regions over a winter: an epidemic curve whose peak comes at another week
in each region, more reports on weekdays and by day, and Poisson chance on top.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

REGIONS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
START = datetime(2025, 10, 6, tzinfo=UTC)
"""A Monday."""
HOURS = 26 * 7 * 24
"""A winter of 26 weeks."""
SIZES = (9.0, 4.0, 6.0, 3.0, 12.0, 5.0, 7.0, 2.0)
"""Mean reports per hour of each region, far from the peak."""
PEAKS = (13.0, 14.0, 12.5, 15.0, 11.0, 14.5, 13.5, 16.0)
"""Week of the peak."""
WIDTH = 2.8
HEIGHT = 11.0
DAY_OF_WEEK = (1.25, 1.15, 1.05, 1.0, 0.95, 0.8, 0.8)
COLUMNS = ("ts", "region", "user", "score")


def rates(hour: npt.NDArray[np.int64], speed: float = 1.0) -> npt.NDArray[np.float64]:
    """Expected reports in these hours (from 0), shape (hours, regions); the wave may come `speed` times as fast."""
    week = hour[:, np.newaxis] * speed / 168
    season = 1 + HEIGHT * np.exp(-(((week - np.asarray(PEAKS)) / WIDTH) ** 2) / 2)
    daily = 1 + 0.85 * np.sin((hour % 24 - 7.5) / 24 * 2 * np.pi)
    weekly = np.asarray(DAY_OF_WEEK)[hour // 24 % 7]
    return np.asarray(season * np.asarray(SIZES) * (daily * weekly)[:, np.newaxis])


def generate(hours: int = HOURS, seed: int = 2026) -> npt.NDArray[np.int64]:
    """Reports per hour and region: the same seed gives the same numbers, and more hours only add to them."""
    generator = np.random.default_rng(seed)
    return generator.poisson(rates(np.arange(hours))).astype(np.int64)


def write_csv(path: str | Path, hours: int = 14 * 24, seed: int = 2026) -> int:
    """Write one row per report (time, region, user, score from 0 to 10), in order of time; returns the number of rows.

    The rows of an hour and region are as many as `generate` says.
    """
    counts = generate(hours, seed)
    generator = np.random.default_rng([seed, 1])
    written = 0
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for hour, row in enumerate(counts):
            region = np.repeat(np.arange(len(REGIONS)), row)
            second = generator.integers(0, 3600, len(region))
            user = generator.integers(0, 20_000, len(region))
            score = generator.binomial(10, 0.35, len(region))
            begin = START + timedelta(hours=hour)
            for i in np.argsort(second, kind="stable"):
                at = (begin + timedelta(seconds=int(second[i]))).strftime("%Y-%m-%dT%H:%M:%SZ")
                writer.writerow((at, REGIONS[region[i]], f"user-{user[i]:05d}", int(score[i])))
            written += len(region)
    return written
