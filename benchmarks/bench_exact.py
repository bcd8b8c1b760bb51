"""Speed of the whole exact release (normals, recurrence, rounding) beside the float path, all in one run.

On a busy machine set OPENBLAS_NUM_THREADS=1: threads that wait for each other then cost more than they bring.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from evercount.factorizations import (
    Balanced,
    BinaryTree,
    Factorization,
    Honaker,
    Identity,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
)
from evercount.mechanisms.exact.exact_noise import ExactStream, kernel
from evercount.noise import ExactNoise, FloatNoise, Secret

WIDE_TARGET, LONE_TARGET = 4.0, 40.0
"""µs per cell and tick in blocks of at least 1000 cells, and for a lone scalar step."""


def _row(name: str, value: float, ratio: float | None, target: float | None, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "µs", "ratio": ratio, "target": target, "note": note}


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Lower quartile of the times of one call, after one that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.quantiles(times, n=4, method="inclusive")[0]


def _exact(f: Factorization, cells: int, ticks: int, repeats: int) -> float:
    """µs per cell and tick."""
    stream = ExactStream(f, 6.0, cells, Secret.generate())
    return _seconds(lambda: stream.take(ticks), repeats) / cells / ticks * 1e6


def _float(f: Factorization, cells: int, ticks: int, repeats: int) -> float:
    """µs per cell and tick of the float normals and the float recurrence."""
    noise = FloatNoise(1)
    state = f.initial(cells)
    at = 0

    def action() -> None:
        nonlocal state, at
        rows, state = f.block(state, noise.normals(at, at + ticks, cells), ticks)
        np.rint(rows * 6.0)
        at += ticks

    return _seconds(action, repeats) / cells / ticks * 1e6


def _steps(stream: ExactStream) -> None:
    for _ in range(320):
        stream.take(1)


def run() -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, ratio to the float path of the same shape, target, note."""
    rows = []
    default = Balanced(2**20)
    for cells, ticks in [(1000, 32), (1000, 256), (10_000, 32), (100, 256), (10, 1024), (1, 32 * 1024)]:
        exact, plain = _exact(default, cells, ticks, 7), _float(default, cells, ticks, 7)
        target = WIDE_TARGET if cells >= 1000 else None
        rows.append(_row("release", exact, exact / plain, target, f"balanced 2^20, {cells} cells × {ticks} ticks"))
    noise = ExactNoise(Secret.generate())
    normals = _seconds(lambda: noise.normals(0, 32, 1000), 15) / 32_000 * 1e6
    rows.append(_row("of it: normals", normals, None, None, "1000 cells × 32 ticks"))
    others: list[Factorization] = [
        Balanced(2**16), Balanced(10**8), Normalized(2**16), Unbounded(), SquareRoot(2**16),
        Identity(), BinaryTree(2**16), Honaker(2**16),
    ]  # fmt: skip
    for f in others:
        note = f"{f.name} {f.horizon}, 1000 cells × 64 ticks, {kernel(f).bits} bits"
        rows.append(_row("release", _exact(f, 1000, 64, 5), None, WIDE_TARGET, note))
    whole = _exact(Optimal(1024), 1000, 64, 7)
    rows.append(_row("release", whole, None, WIDE_TARGET, "optimal 1024, 1000 cells × 64 ticks, first half"))
    for f in (default, Balanced(10**8), Unbounded(), SquareRoot(2**16), Honaker(2**16)):
        stream = ExactStream(f, 6.0, 1, Secret.generate())
        step = _seconds(partial(_steps, stream), 5) / 320 * 1e6
        rows.append(_row("lone step", step, None, LONE_TARGET, f"{f.name} {f.horizon}, one cell, amortised"))
    stream = ExactStream(default, 6.0, 1000, Secret.generate())
    stream.take(40)
    dumped = stream.dump()
    rows.append(_row("dump", _seconds(stream.dump, 5) * 1e6, None, None, "1000 cells"))
    load = _seconds(lambda: ExactStream.load(default, 6.0, 1000, dumped), 5) * 1e6
    rows.append(_row("load", load, None, None, "1000 cells, in the middle of a block"))
    return rows


if __name__ == "__main__":
    for row in run():
        ratio = "" if row["ratio"] is None else f"{row['ratio']:6.1f}× float"
        target = "" if row["target"] is None else f"target {row['target']:g}"
        print(f"{row['name']:16}{row['value']:12.3f} {row['unit']}  {ratio:14}  {target:10}  {row['note']}")
