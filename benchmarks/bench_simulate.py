"""Speed of the simulator: NumPy against drawing the same normals, and PyTorch against NumPy.

    python benchmarks/bench_simulate.py  # both, on this machine's cores
    python benchmarks/bench_simulate.py --device cuda --repetitions 1000000

With a device it runs each factorization once with statistics (the mean and the largest |error|),
prints the seconds next to their bars for one H200, and checks the numbers against exact ones: the
mean of |error|/std over all ticks, and the shares of errors within 1, 2 and 3 std.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import numpy as np

from evercount.factorizations import factorization
from evercount.reproduce.device_simulator import BLOCK, DeviceBatches, block_statistics, load_torch
from evercount.reproduce.simulator import batch_runner, batch_seed, measure, one_batch, stds

TICKS = 2**16
REPETITIONS = 64
NAMES = ("binary-tree", "square-root", "balanced")
BARS = {"binary-tree": 1.5, "square-root": 1.0, "balanced": 1.5}
"""Seconds for 10^6 repetitions of 2^16 ticks on one H200."""
ON_CPU = 2048  # repetitions that are timed on a CPU
EDGES = (1.0, 2.0, 3.0)
CHECKED = 2048  # repetitions whose errors are counted


def run() -> list[dict[str, Any]]:
    """One row per measurement: seconds, and their ratio to drawing as many normals; then PyTorch's
    rate to NumPy's."""
    start = time.perf_counter()
    np.random.default_rng(0).standard_normal((TICKS, REPETITIONS))
    drawing = time.perf_counter() - start
    rows = [_row("draw the normals (numpy)", drawing, drawing)]
    for name in NAMES:
        engine = factorization(name, TICKS)
        std = engine.row_norms(np.arange(1, TICKS + 1))
        start = time.perf_counter()
        noise = one_batch(engine, REPETITIONS, 1)
        rows.append(_row(f"{name}: noise", time.perf_counter() - start, drawing))
        measure(noise, std)
        rows.append(_row(f"{name}: noise and statistics", time.perf_counter() - start, drawing))
    try:
        load_torch()
    except ImportError:
        return rows
    return rows + [row for name in NAMES for row in against_numpy(name)]


def _row(name: str, seconds: float, drawing: float) -> dict[str, Any]:
    return {"name": name, "value": seconds, "unit": "s", "ratio": seconds / drawing}


def against_numpy(name: str) -> list[dict[str, Any]]:
    """PyTorch on the cores of this machine against NumPy: by the clock, and by processor time on
    one core."""
    engine = factorization(name, TICKS)
    std = stds(engine)
    slow = seconds_each(lambda: batch_runner(engine, std, None)(REPETITIONS, 1), REPETITIONS)
    runner = DeviceBatches(engine, std, "cpu")
    fast = seconds_each(lambda: runner(ON_CPU, 1), ON_CPU)
    labels = ("by the clock, all cores", "by processor time, per core")
    return [
        {
            "name": f"{name}: PyTorch, a stream, {label}",
            "value": one,
            "unit": "s",
            "ratio": other / one,
        }
        for label, other, one in zip(labels, slow, fast, strict=True)
    ]


def seconds_each(action: Any, count: int) -> tuple[float, float]:
    """Seconds by the clock and of processors, for one of `count` repetitions."""
    clock, processors = time.perf_counter(), time.process_time()
    action()
    return (time.perf_counter() - clock) / count, (time.process_time() - processors) / count


def on_device(name: str, device: str, repetitions: int, block: int, compiled: bool) -> bool:
    """Run one factorization, print its seconds and its distance from the exact answers; return
    whether they agree."""
    torch = load_torch()
    engine = factorization(name, TICKS)
    std = stds(engine)
    statistics = torch.compile(block_statistics) if compiled else block_statistics
    start = time.perf_counter()
    runner = DeviceBatches(engine, std, device, block=block, statistics=statistics)
    runner(min(repetitions, runner.batch), 0)
    ready = time.perf_counter() - start
    start = time.perf_counter()
    totals = runner(repetitions, batch_seed(1, name, 0))
    while totals.repetitions < repetitions:
        totals += runner(repetitions - totals.repetitions, batch_seed(1, name, totals.repetitions))
    seconds = time.perf_counter() - start
    (mean, error), (worst, _) = (
        totals.simulation(std).mean_normalised,
        totals.simulation(std).worst_error,
    )
    apart = (mean - math.sqrt(2 / math.pi)) / error
    shares = counted_shares(runner, std)
    exact = [math.erf(edge / math.sqrt(2)) for edge in EDGES]
    counted = ", ".join(
        f"{share:.4f} ({one:.4f})" for share, one in zip(shares, exact, strict=True)
    )
    bar = f"bar on one H200: {BARS[name] * repetitions / 10**6:.2f} s"
    print(
        f"{name}: {repetitions} repetitions in {seconds:.2f} s; {bar}; {ready:.1f} s before that "
        "to get ready"
    )
    print(
        f"  mean of the largest |error| {worst:.4f}; mean |error|/std {apart:+.2f} standard errors "
        "from exact"
    )
    print(f"  shares within 1, 2 and 3 std, exact ones in brackets: {counted}")
    return abs(apart) < 4.5 and all(
        abs(share - one) < 0.01 for share, one in zip(shares, exact, strict=True)
    )


def counted_shares(runner: DeviceBatches, std: Any) -> list[float]:
    """The shares of errors of all ticks that are within each edge times their std."""
    within = np.zeros(len(EDGES))
    for start, noise in runner.noise(CHECKED, 5):
        size = noise.abs() * runner.inverse_std[start : start + len(noise)].unsqueeze(1)
        within += [float((size <= edge).double().sum()) for edge in EDGES]
    return [float(one) / CHECKED / len(std) for one in within]


def main() -> int:
    """Print the rows of `run`, or with a device what it takes and whether it is right; 1 if it is
    not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device")
    parser.add_argument("--repetitions", type=int, default=ON_CPU)
    parser.add_argument("--block", type=int, default=BLOCK, help="ticks of a block")
    parser.add_argument(
        "--compile", action="store_true", help="compile the statistics with torch.compile"
    )
    given = parser.parse_args()
    if given.device:
        good = [
            on_device(name, given.device, given.repetitions, given.block, given.compile)
            for name in NAMES
        ]
        return 0 if all(good) else 1
    print(f"{REPETITIONS} repetitions of {TICKS} ticks")
    for row in run():
        print(f"{row['name']:64}{row['value']:9.5f} s{row['ratio']:8.2f} ×")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
