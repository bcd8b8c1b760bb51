"""A synthetic stream of flu self-assessments, computed by a formula: no real person is in it. For
examples and tests.

Hourly numbers of reports from eight invented regions over a winter: an epidemic curve with its peak
in a different week for each region, more reports on weekdays and by day, and Poisson randomness on
top.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from evercount._validate import FloatArray, IntArray

REGIONS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
START = datetime(2025, 10, 6, tzinfo=UTC)  # a Monday
HOURS = 26 * 7 * 24  # a winter of 26 weeks
BASE_RATES = (9.0, 4.0, 6.0, 3.0, 12.0, 5.0, 7.0, 2.0)
"""Mean reports per hour of each region, long before and after the peak."""
PEAK_WEEKS = (13.0, 14.0, 12.5, 15.0, 11.0, 14.5, 13.5, 16.0)  # week of the peak in each region
PEAK_WIDTH_WEEKS = 2.8
PEAK_HEIGHT = 11.0  # reports at the peak, beyond the base rate and as a multiple of it
WEEKDAY_FACTORS = (1.25, 1.15, 1.05, 1.0, 0.95, 0.8, 0.8)  # Monday to Sunday
COLUMNS = ("ts", "region", "user", "score")


def rates(hour: IntArray, speed: float = 1.0) -> FloatArray:
    """Expected reports in these hours.

    Args:
        hour: Hours after `START`.
        speed: How many times as fast the epidemic wave runs.

    Returns:
        Shape (hours, regions).

    >>> rates(np.arange(48)).shape[0]
    48
    """
    week = hour[:, np.newaxis] * speed / 168
    season = 1 + PEAK_HEIGHT * np.exp(
        -(((week - np.asarray(PEAK_WEEKS)) / PEAK_WIDTH_WEEKS) ** 2) / 2
    )
    daily = 1 + 0.85 * np.sin((hour % 24 - 7.5) / 24 * 2 * np.pi)
    weekly = np.asarray(WEEKDAY_FACTORS)[hour // 24 % 7]
    return np.asarray(season * np.asarray(BASE_RATES) * (daily * weekly)[:, np.newaxis])


def generate(hours: int = HOURS, seed: int = 2026) -> IntArray:
    """Random numbers of reports per hour and region.

    Args:
        hours: How many hours from `START` on.
        seed: The same seed gives the same numbers; more hours append to them.

    Returns:
        Shape (hours, regions).

    >>> generate(hours=2).shape
    (2, 8)
    """
    generator = np.random.default_rng(seed)
    return generator.poisson(rates(np.arange(hours))).astype(np.int64)


def write_csv(path: str | Path, hours: int = 14 * 24, seed: int = 2026) -> int:
    """Write one row per report (time, region, user, score from 0 to 10), in order of time.

    Args:
        path: The CSV file.
        hours: How many hours.
        seed: As for `generate`, whose numbers of reports are the numbers of rows.

    Returns:
        The number of rows.

    >>> write_csv("flu.csv", hours=24) == int(generate(hours=24).sum())
    True
    """
    counts = generate(hours, seed)
    generator = np.random.default_rng([seed, 1])
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
    return int(counts.sum())
