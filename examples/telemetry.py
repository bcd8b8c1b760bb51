"""App telemetry with keys nobody listed: which errors do users see, without publishing what one
user alone saw?

    python examples/telemetry.py [folder]

Synthetic data: 40 error codes that many users see, and 3,000 messages that one user each sees (a
file name).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from evercount import Budget, DiscoveredKeys, Stream
from evercount.plotting import COLOURS, new_axes, save

DAYS, COMMON, LONELY = 60, 40, 3_000


def crashes(seed: int = 7) -> list[list[str]]:
    """Crash messages of each day: common ones by Zipf's law, and messages that occur once in
    all."""
    generator = np.random.default_rng(seed)
    shares = 1 / np.arange(1, COMMON + 1)
    shares /= shares.sum()
    days = [
        [f"E{code:02d}" for code in generator.choice(COMMON, 400, p=shares)] for _ in range(DAYS)
    ]
    for number, day in enumerate(generator.integers(0, DAYS, LONELY)):
        days[day].append(f"cannot open /home/user-{number}/diary.txt")
    return days


def main(folder: Path) -> None:
    """Count crash messages as they come and draw the public ones."""
    days = crashes()
    stream = Stream(DiscoveredKeys(), Budget(epsilon=1.0, delta=1e-7), horizon=DAYS)
    last = stream.run(days)[-1]
    public = [label for label in last.labels if label not in ("total", "other")]
    lonely = [key for key in public if key.startswith("cannot")]
    print(
        f"{DAYS} days: {len(public)} of {COMMON} common errors are public, of {LONELY:,} lonely "
        f"ones {len(lonely)}"
    )
    total, other = last.values[0], last.values[1]
    print(
        f"all crashes {total:,.0f}, of them in no public key {other:,.0f} (truth "
        f"{sum(map(len, days)):,})"
    )

    truth = {key: sum(day.count(key) for day in days) for key in public}
    order = sorted(public, key=lambda key: -truth[key])
    places = [last.labels.index(key) for key in order]
    low, high = last.interval(0.95)
    axes = new_axes(height=5)
    middle, ends = (
        last.values[places],
        np.stack([last.values[places] - low[places], high[places] - last.values[places]]),
    )
    axes.errorbar(
        range(len(order)),
        middle,
        np.maximum(ends, 0),
        fmt="o",
        markersize=3,
        capsize=2,
        color=COLOURS[0],
        label="published, 95 %",
    )
    axes.plot(
        range(len(order)),
        [truth[key] for key in order],
        "_",
        color=COLOURS[1],
        markersize=8,
        label="true",
    )
    axes.set_yscale("log")
    axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
    axes.set_title(
        f"Crashes by message after {DAYS} days (synthetic data, ε = 1, δ = 1e-7)", loc="left"
    )
    axes.legend(frameon=False)
    save(axes, folder / "telemetry.png")
    print(stream.guarantee)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples")
    target.mkdir(parents=True, exist_ok=True)
    main(target)
