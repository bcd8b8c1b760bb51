"""An epidemic dashboard: new reports per day and region with their error band, and a comparison of
two regions.

    python examples/epidemic.py [folder]

Synthetic data (`evercount.examples.flu`). All numbers of the picture come from one stream:
views cost no further privacy.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evercount import Budget, Histogram, Stream
from evercount.examples import flu
from evercount.plotting import COLOURS, label_lines, new_axes, save

DAYS = 26 * 7


def main(folder: Path) -> None:
    """Release half a year of hourly reports and draw days."""
    reports = flu.generate(24 * DAYS)
    stream = Stream(
        Histogram(list(flu.REGIONS)), Budget(epsilon=1.0, delta=1e-9), horizon=24 * DAYS
    )
    releases = stream.run_totals(reports)

    days = releases.spans("per day", range(1, 24 * DAYS, 24), range(25, 24 * DAYS + 2, 24))
    low, high = days.interval(0.95)
    axes = new_axes(height=5)
    for region, colour in zip(("north", "south", "north-west"), COLOURS, strict=False):
        cell = days.cells.index(region)
        axes.fill_between(
            range(DAYS), low[:, cell], high[:, cell], color=colour, alpha=0.3, linewidth=0
        )
        axes.plot(range(DAYS), days.values[:, cell], color=colour, linewidth=1, label=region)
    axes.set_title("New reports per day, 95 % band (synthetic data, ε = 1, δ = 1e-9)", loc="left")
    axes.set_xlabel("day")
    axes.set_ylabel("reports")
    label_lines(axes)
    save(axes, folder / "epidemic.png")

    truth = reports.reshape(DAYS, 24, -1).sum(axis=1)
    inside = ((low <= truth) & (truth <= high)).mean()
    print(f"{inside:.1%} of the {truth.size:,} true daily numbers lie within their 95 % interval")
    difference = days.compare("south", "north")
    peak = int(difference.values[:, 0].argmax())
    print(
        f"day {peak}: south has {difference.values[peak, 0]:.0f} ± "
        f"{2 * difference.std[peak, 0]:.0f} more than north"
    )
    print(stream.guarantee)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples")
    target.mkdir(parents=True, exist_ok=True)
    main(target)
