"""A data frame through `evercount.release` against the command on the same Parquet file: seconds
and peak memory.

python benchmarks/bench_frames.py             10^6 rows, each way five times, one after the other
python benchmarks/bench_frames.py --rows 100000 --rounds 2

Every run is a process of its own. `process` is the processor time of the whole process, with
imports and, for frames, with reading the file into the frame; `call` is that of `evercount.release`
alone. The bar: process at most 1.5 times that of the command, peak memory at most the frame and 300
MB.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

OPTIONS = {
    "time": "when",
    "every": "1d",
    "zone": "UTC",
    "start": "2025-01-01",
    "end": "2026-01-01",
    "key": "region",
    "keys": "regions.txt",
    "epsilon": 1,
    "delta": 1e-6,
    "horizon": 365,
}
REGIONS = [f"region {number}" for number in range(20)]
READ = {
    "pandas": (
        "import pandas; frame = pandas.read_parquet('events.parquet')",
        "frame.memory_usage(deep=True).sum()",
    ),
    "polars": (
        "import polars; frame = polars.read_parquet('events.parquet')",
        "frame.estimated_size()",
    ),
    "arrow": (
        "import pyarrow.parquet; frame = pyarrow.parquet.read_table('events.parquet')",
        "frame.nbytes",
    ),
}
CALL = """
import json, resource, time
{read}
import evercount
begin = time.process_time()
table = evercount.release(frame, **{options!r})
called = time.process_time() - begin
assert len(table) == 365 * 20, len(table)
"""
MEASURED = """
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([usage.ru_utime + usage.ru_stime, called, usage.ru_maxrss * 1024, int({size})]))
"""
COMMAND = """
import json, resource, sys
from evercount.cli import app
called = 0
try:
    app({arguments!r})
except SystemExit as done:
    assert not done.code, done.code
"""


def write_events(rows: int) -> None:
    """A year of events of 20 regions, with a column that nobody asks for."""
    pa, pq = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    generator = np.random.default_rng(1)
    when = np.datetime64("2025-01-01", "us") + generator.integers(0, 365 * 86_400 * 10**6, rows)
    region = np.asarray(REGIONS, object)[generator.integers(0, len(REGIONS), rows)]
    pq.write_table(
        pa.table({"when": when, "region": region, "amount": generator.random(rows)}),
        "events.parquet",
    )
    Path("regions.txt").write_text("\n".join(REGIONS) + "\n", encoding="utf-8")


def programs() -> dict[str, str]:
    """What each way runs."""
    arguments = ["release", "events.parquet", "--quiet", "--out", "out.csv", "--state", "out.state"]
    for name, value in OPTIONS.items():
        arguments += [f"--{name}", str(value)]
    found = {"command": COMMAND.format(arguments=arguments) + MEASURED.format(size="0")}
    for kind, (read, size) in READ.items():
        found[kind] = CALL.format(read=read, options=OPTIONS) + MEASURED.format(size=size)
    return found


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_events(given.rows)
        found: dict[str, list[list[float]]] = {}
        for _ in range(given.rounds):
            for name, program in programs().items():
                for left in ("out.csv", "out.state"):
                    Path(left).unlink(missing_ok=True)
                done = subprocess.run(
                    [sys.executable, "-c", program], check=True, capture_output=True, text=True
                )
                found.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
        os.chdir("/")
    print(f"{given.rows:,} rows, median of {given.rounds}; processor time in seconds, memory in MB")
    print("way      process  ratio   call   peak  frame  peak − frame")
    base = median(run[0] for run in found["command"])
    for name, runs in found.items():
        process, call, peak, frame = (median(column) for column in zip(*runs, strict=True))
        sizes = f"{peak / 1e6:6.0f} {frame / 1e6:6.0f} {(peak - frame) / 1e6:13.0f}"
        print(f"{name:8} {process:7.2f} {process / base:6.2f} {call:6.2f} {sizes}")


if __name__ == "__main__":
    main()
