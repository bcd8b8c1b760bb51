"""Processor time of one new day of `evercount release` with a state file and with a store, and how
it and what is on disk grow with the days that are published.

Each run is a process of its own, as cron starts it. Processor time, because a shared machine is
busy: the ratio of the two is what counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

KEEPERS = {"state file": "--state own.state", "store": "--db own.db"}
START = date(2020, 1, 1)
MOST_RATIO = 1.5


def release(folder: Path, ticks: int, keeper: str) -> float:
    """Release until this many ticks are published; return the processor seconds of the run."""
    now = START + timedelta(days=ticks)
    options = f"--time ts --every 1d --zone UTC --start {START} --key k --keys keys.txt"
    options += " --epsilon 1 --delta 1e-9 --horizon 2000 --view per-tick --quiet --out days.csv"
    options += f" {KEEPERS[keeper]}"
    program = "from evercount.cli import app; app()"
    words = ["release", "events.csv", *options.split(), "--now", f"{now}T01:00"]
    before = os.times()
    subprocess.run([sys.executable, "-c", program, *words], cwd=folder, check=True)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def measure(keys: int, ticks: int, keeper: str, rounds: int) -> tuple[float, float]:
    """The least processor seconds of one new tick after a history, and the MB on disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "keys.txt").write_text("".join(f"key-{number}\n" for number in range(keys)))
        days = (START + timedelta(days=day) for day in range(ticks + rounds))
        rows = (f"{day}T12:00:00Z,key-{number % keys}\n" for number, day in enumerate(days))
        (folder / "events.csv").write_text("ts,k\n" + "".join(rows))
        release(folder, ticks, keeper)
        seconds = [release(folder, ticks + 1 + number, keeper) for number in range(rounds)]
        kept = folder.glob(f"{KEEPERS[keeper].split()[1]}*")
        return min(seconds), sum(path.stat().st_size for path in kept) / 1e6


def run(
    ticks: Sequence[int] = (250, 500, 1000), keys: int = 500, rounds: int = 3
) -> list[dict[str, Any]]:
    """A row for each keeper and length of history; the ratio is that of the store to the file."""
    results: list[dict[str, Any]] = []
    for before in ticks:
        measured = {keeper: measure(keys, before, keeper, rounds) for keeper in KEEPERS}
        (by_file, _), (by_store, _) = measured.values()
        for keeper, (seconds, megabytes) in measured.items():
            name = f"one new tick, {keys} keys × {before + 1:,} ticks, {keeper}"
            note = f"processor time; {megabytes:.1f} MB on disk"
            row = {"name": name, "value": seconds, "unit": "s", "note": note}
            if keeper == "store":
                row |= {"ratio": by_store / by_file, "target": MOST_RATIO}
            results.append(row)
    return results


if __name__ == "__main__":
    for row in run():
        ratio = f", ratio {row['ratio']:.2f}" if "ratio" in row else ""
        print(f"{row['name']}: {row['value']:.2f} s{ratio} ({row['note']})", flush=True)
