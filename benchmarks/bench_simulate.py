"""Speed of the batched simulator: all statistics of a stream, against drawing the same normals with numpy."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from evercount.factorizations import factorization
from evercount.reproduce.simulator import measure, one_batch

TICKS = 2**16
REPETITIONS = 64
NAMES = ("binary-tree", "square-root", "balanced")


def run() -> list[dict[str, Any]]:
    """One row per measurement: seconds, and their ratio to drawing as many normals."""
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
    return rows


def _row(name: str, seconds: float, drawing: float) -> dict[str, Any]:
    return {"name": name, "value": seconds, "unit": "s", "ratio": seconds / drawing}


if __name__ == "__main__":
    print(f"{REPETITIONS} repetitions of {TICKS} ticks")
    for row in run():
        print(f"{row['name']:38}{row['value']:9.3f} s{row['ratio']:8.2f} ×")
