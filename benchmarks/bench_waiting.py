"""What people wait for: start-up, plans, first releases, noise of one cell, errors of views, many
small streams.

Processor seconds of this process and of the programs that it starts, never the clock: other work on
the machine does not count. A ratio is over what stands in the note, measured in the same run.
Without bytecode files (PYTHONDONTWRITEBYTECODE) every start compiles the package anew, which
doubles it: the note says so.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from evercount import Budget, Count, Stream
from evercount.engine.build import make_noise
from evercount.engine.worst_errors import planned_errors
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.noise import Secret

COMMAND = (sys.executable, "-m", "evercount")
VIEWS = ("--view", "per-tick", "--view", "last-24", "--view", "running")
PERSONS = (
    "--max-per-tick",
    "1",
    "--max-ticks",
    "30",
    "--view",
    "per-tick",
    "--view",
    "last-7",
    "--view",
    "running",
)
YEAR = 8760
SMALL = 300
BYTECODE = (
    ", no bytecode written"
    if sys.dont_write_bytecode or os.environ.get("PYTHONDONTWRITEBYTECODE")
    else ""
)


def _program(*arguments: str, out: Path | None = None) -> float:
    """Processor seconds of a program, the median of three runs; each writes a file of its own in
    `out`."""
    times = []
    for number in range(3):
        more = [] if out is None else [str(out / f"{number}.csv")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*arguments, *more], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times)


def _seconds(action: Callable[[], object]) -> float:
    """Processor seconds of one call, the median of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def _row(
    name: str, seconds: float, ratio: float, note: str, target: float | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "value": seconds,
        "unit": "s",
        "ratio": ratio,
        "target": target,
        "note": note,
    }


def _programs() -> list[dict[str, Any]]:
    unit = _program(sys.executable, "-c", "import numpy")
    rows = [_row("import numpy", unit, 1.0, f"a process of its own{BYTECODE}")]

    def add(name: str, *arguments: str, out: Path | None = None) -> None:
        seconds = _program(*arguments, out=out)
        rows.append(_row(name, seconds, seconds / unit, "over import numpy"))

    add("import evercount", sys.executable, "-c", "import evercount")
    add("evercount --version", *COMMAND, "--version")
    add("evercount tail --help", *COMMAND, "tail", "--help")
    for delta in ("0", "1e-6"):
        budget = ("-e", "1", "-d", delta)
        add(
            f"plan, an hourly year, delta {delta}",
            *COMMAND,
            "plan",
            *budget,
            "-t",
            str(YEAR),
            *VIEWS,
        )
        add(f"plan, no horizon, delta {delta}", *COMMAND, "plan", *budget, "-t", "none", *VIEWS)
    add("plan, persons", *COMMAND, "plan", "-e", "1", "-d", "1e-6", "-t", "365", *PERSONS)
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder, "events.csv")
        events.write_text(
            "time\n" + "".join(f"2026-01-{day:02}T10:00:00Z\n" for day in range(1, 11))
        )
        asked = (
            "--time",
            "time",
            "--every",
            "1d",
            "--zone",
            "UTC",
            "--start",
            "2026-01-01",
            "--end",
            "2026-01-11",
        )
        for delta in ("0", "1e-6"):
            out = Path(folder, delta)
            out.mkdir()
            of_year = ("--horizon", "365", "--epsilon", "1", "--delta", delta, "--out")
            command = (*COMMAND, "release", str(events), *asked, *of_year)
            add(f"release of ten rows, delta {delta}", *command, out=out)
    return rows


def _bridges() -> list[dict[str, Any]]:
    rows = []
    for horizon, ticks in ((2**17, 2**17), (None, 10**5)):
        floats = np.random.Generator(np.random.PCG64(1))
        unit = _seconds(partial(floats.standard_normal, ticks))
        engine, budget = pure_factorization(None, horizon), Budget(1.0, 0.0)

        def draw(
            ticks: int = ticks,
            horizon: int | None = horizon,
            engine: Any = engine,
            budget: Any = budget,
        ) -> None:
            make_noise(Count(), engine, budget, horizon, secret=Secret.generate()).stream.take(
                ticks
            )

        seconds = _seconds(draw)
        rows.append(
            _row(
                f"{engine.name}, one cell",
                seconds,
                seconds / unit,
                f"over {ticks} numpy normals",
                40.0,
            )
        )
    return rows


def _views() -> list[dict[str, Any]]:
    rows = []
    ticks = np.arange(1, YEAR + 1)
    for delta, name in ((1e-6, "balanced"), (1e-6, "blend"), (0.0, "fresh"), (0.0, "bridge")):
        stream = Stream(Count(), Budget(1.0, delta), YEAR, name)
        model, _ = planned_errors(stream.query, stream.budget, YEAR, stream.factorization)
        totals = _seconds(partial(model.std, ticks))
        seconds = _seconds(partial(model.std, ticks, 24))
        rows.append(
            _row(
                f"stds of last-24, {name}",
                seconds,
                seconds / totals,
                "hourly year, over those of totals",
            )
        )
    return rows


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _small_streams() -> list[dict[str, Any]]:
    rows = []
    for delta in (1e-6, 0.0):

        def make(delta: float = delta) -> Stream[Any]:
            stream = Stream(Count(), Budget(1.0, delta))
            stream.step(1)
            return stream

        blob = make().snapshot()
        alone = _seconds(make)
        for name, action in (("made", make), ("restored", partial(Stream.restore, blob))):
            before, start = _resident(), time.process_time()
            streams = [action() for _ in range(SMALL)]
            seconds = (time.process_time() - start) / len(streams)
            size = (_resident() - before) / len(streams) / 1024
            note = f"each of {SMALL}, {size:.0f} KiB each; over one that is made"
            rows.append(
                _row(f"small streams {name}, delta {delta:g}", seconds, seconds / alone, note)
            )
            del streams
    return rows


GROUPS = (_bridges, _views, _small_streams, _programs)


def run() -> list[dict[str, Any]]:
    """One row per measurement."""
    return [row for group in GROUPS for row in group()]


if __name__ == "__main__":
    for row in (row for group in GROUPS for row in group()):
        target = "" if row["target"] is None else f"≤ {row['target']:g}"
        print(
            f"{row['name']:36}{row['value']:9.4f} s  ratio {row['ratio']:8.2f} "
            f"{target:8}{row['note']}",
            flush=True,
        )
