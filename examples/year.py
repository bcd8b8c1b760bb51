"""A publisher's year: a daily file, three of them late, a gap, a correction, a new region, kills, and the next year.

    python examples/year.py [folder] [days]

Synthetic reports of four regions; a fifth one joins in May. Cron releases every day at 13:00, into a store, which
`evercount serve --read-only` shows, and into reports.csv. Every tenth run is killed (-9) and started again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from evercount import release
from evercount.declare.declaration import read_declarations
from evercount.plotting import new_axes, save
from evercount.store import Reading

START, KEYS = date(2026, 1, 1), ["North", "East", "South", "West", "Islands"]
STREAM = """[[stream]]
name = "reports"
query = {name = "histogram", parameters = {keys = ["North", "East", "South", "West"]}}
budget = {epsilon = 1.0, delta = 0.0}
tick = "1d"
zone = "Europe/Vienna"
start = "2026-01-01"
wait = "12h"                       # a day closes at noon of the next one
late = "next"                      # later reports count on the first day that is still open
views = ["per-tick", "per-week"]
columns = {time = "ts", key = "region"}
files = {input = "in/*.csv", output = "reports.csv"}
"""


def evercount(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "evercount", *words, "--db", "year.db"], cwd=folder, stderr=-3)


def write(folder: Path, day: int, numbers: list[int]) -> None:
    """Append reports to the file of their day."""
    when = START + timedelta(day)
    rows = [f"{when}T10:00:00,{key}\n" for key, many in zip(KEYS, numbers, strict=True) for _ in range(many)]
    with (folder / "in" / f"{when}.csv").open("a") as file:
        file.writelines(rows if file.tell() else ["ts,region\n", *rows])


def main(folder: Path, days: int = 365) -> None:
    """Play the year and three weeks of the next; compare all that was released with what is stated to be counted."""
    (folder / "in").mkdir()
    (folder / "streams.toml").write_text(f"{STREAM}horizon = {days}\n")
    (declaration,) = read_declarations(folder / "streams.toml")
    generator, total = np.random.default_rng(3), days + 21
    events = generator.poisson(np.outer(60 + 40 * np.sin(np.arange(total) / 30), [1.0, 0.7, 0.5, 0.3, 0.2]))
    noon, late, later, fixed, joins, gap = (days // part for part in (7, 6, 5, 4, 3, 2))
    events[:joins, 4] = 0
    arrives = np.arange(total) + 1  # the day on which the file of a day is there
    arrives[late], arrives[later] = late + 2, later + 3
    counted = np.zeros((total, 5), int)
    for day in range(total):
        counted[arrives[day] - 1] += events[day]
    counted[gap] = 0
    counted[fixed + 2, 0] += 7  # a correction: seven more of the North, two days later
    tables = {}

    def cron(day: int, hour: int = 13) -> None:
        now, places = f"{START + timedelta(day)}T{hour:02}:00", {"db": folder / "year.db", "out": folder / "reports.csv"}
        table = release(str(folder / "in/*.csv"), declaration, now=now, renew=True, **places)
        tables[table.starts[0]] = table

    for now in range(1, total + 1):
        if now == joins + 1:
            (folder / "new.txt").write_text("Islands\n")
            assert not evercount(folder, "store", "add-keys", "reports", "new.txt").wait()
        if now == gap:
            day = str(START + timedelta(gap))
            note = ("reporting system down", "--missing", "drop")
            assert not evercount(folder, "store", "note", "reports", day, day, *note).wait()
        if now == noon + 1:
            cron(now, 9)  # its file comes at noon: nothing is released yet
        for day in np.flatnonzero(arrives == now).tolist():
            write(folder, day, events[day].tolist())
        if now == fixed + 3:
            write(folder, fixed, [7, 0, 0, 0, 0])
        if now % 10 == 0:
            run = evercount(folder, "release", "reports", "--renew", f"--now={START + timedelta(now)}T13:00")
            time.sleep(generator.uniform(0.5, 3.0))
            run.kill()
            run.wait()
        cron(now)
    spent = (reading := Reading.open(folder / "year.db")).ledger()["totals"][0]
    reading.close()
    print(f"spent together: ε = {spent['epsilon']:.6g}, δ = {spent['delta']:.3g}")
    axes = new_axes(height=4)
    for name, length in (("per-tick", 1), ("per-week", 7)):
        errors, inside = [], []
        for table in tables.values():
            shown = (table if name == "per-tick" else table.views[name]).columns()
            first = (np.asarray(shown["start"]) // 86_400_000_000 + 1 - (START - date(1970, 1, 1)).days).tolist()
            truth = [counted[at : at + length, KEYS.index(cell)].sum() for at, cell in zip(first, shown["cell"], strict=True)]
            errors += (shown["value"] - truth).tolist()
            inside += ((shown["low"] <= truth) & (truth <= shown["high"])).tolist()
            if name == "per-tick":
                north = shown["cell"] == "North"
                axes.fill_between(np.array(first)[north], shown["low"][north], shown["high"][north], alpha=0.5)
        print(f"{name}: {len(inside)} numbers, {np.mean(inside):.1%} of the 95 % intervals hold, std {np.std(errors):.2f}")
    axes.plot(counted[:, 0], "k.", markersize=2)
    axes.set_title("Reports of the North per day, with 95 % intervals (synthetic, ε = 1 for both years)", loc="left")
    save(axes, folder / "year.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."), int(sys.argv[2]) if len(sys.argv) > 2 else 365)
