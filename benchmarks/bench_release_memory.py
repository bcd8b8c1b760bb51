"""Resident memory of `evercount release` with many cells, next to the formula of
`evercount plan`."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TICKS = 3
MOST_KB_PER_CELL = 2.0


def release(folder: Path, cells: int, horizon: int | None, delta: float = 1e-9) -> dict[str, float]:
    """Run the command in this process and measure it, next to what a plan states."""
    from evercount import Budget, Histogram
    from evercount.cli import app
    from evercount.planning.resources import measure_resources

    (folder / "keys.txt").write_text("".join(f"key-{i}\n" for i in range(cells)))
    rows = "".join(f"2026-01-01T0{i % TICKS}:00:00,key-{i}\n" for i in range(1000))
    (folder / "events.csv").write_text("ts,k\n" + rows)
    options = "--time ts --every 1h --start 2026-01-01 --key k --epsilon 1 --view running --quiet"
    options += f" --delta {delta} --horizon {horizon or 'none'}"
    files = ["--keys", str(folder / "keys.txt"), "--out", str(folder / "out.csv")]
    command = [
        "release",
        str(folder / "events.csv"),
        *options.split(),
        *files,
        "--end",
        f"2026-01-01T0{TICKS}:00",
    ]
    app(command, standalone_mode=False)
    # the most of this program alone; ru_maxrss may be that of the program that started it
    used = 1024 * int(
        re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)[0]
    )
    state = (folder / "out.csv.state").stat().st_size
    keys = [f"key-{i}" for i in range(cells)]
    planned = measure_resources(Histogram(keys), Budget(1.0, delta), horizon)
    return {"used": used, "formula": planned.memory, "state": state, "planned state": planned.state}


def run(sizes: tuple[int, ...] = (10**5, 10**6)) -> list[dict[str, Any]]:
    """Rows for every number of cells, with a horizon and without one."""
    results: list[dict[str, Any]] = []
    for cells, horizon in itertools.product(sizes, (8760, None)):
        command = [sys.executable, __file__, str(cells), str(horizon or 0)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        one = json.loads(done.stdout.splitlines()[-1])
        name = f"release, {cells:.0e} cells × {TICKS} ticks, horizon {horizon or 'none'}"
        states = (
            f"state on disk {one['state'] / 1e6:.1f} MB, planned {one['planned state'] / 1e6:.1f} "
            "MB"
        )
        note = f"formula: {one['formula'] / 1e6:.0f} MB; {states}"
        results.append(
            {
                "name": name,
                "value": one["used"] / 1e6,
                "unit": "MB",
                "ratio": one["used"] / one["formula"],
                "note": note,
            }
        )
        if cells >= 10**6:
            each = one["used"] / cells / 1000
            results.append(
                {
                    "name": f"{name}, per cell",
                    "value": each,
                    "unit": "KB",
                    "ratio": each / MOST_KB_PER_CELL,
                    "target": 1.0,
                }
            )
    return results


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as made:
            print(
                json.dumps(
                    release(
                        Path(made),
                        int(sys.argv[1]),
                        int(sys.argv[2]) or None,
                        *map(float, sys.argv[3:]),
                    )
                )
            )
    else:
        for row in run():
            print(row)
