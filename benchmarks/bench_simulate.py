"""Speed of the batched simulator: all statistics of a stream, against drawing the same normals with numpy."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

from evercount.factorizations import factorization
from evercount.reproduce import simulate_torch
from evercount.reproduce.simulate import EDGES, measure, one_batch

TICKS = 2**16
REPETITIONS = 64
NAMES = ("binary-tree", "square-root", "balanced")


def run() -> list[dict[str, Any]]:
    """One row per measurement: name, seconds, and the ratio to drawing as many normals."""
    start = time.perf_counter()
    np.random.default_rng(0).standard_normal((TICKS, REPETITIONS))
    unit = time.perf_counter() - start
    rows = [{"name": "draw the normals (numpy)", "seconds": unit, "ratio": 1.0}]
    for name in NAMES:
        engine = factorization(name, TICKS)
        std = engine.row_norms(np.arange(1, TICKS + 1))
        start = time.perf_counter()
        noise = one_batch(engine, REPETITIONS, 1)
        made = time.perf_counter() - start
        measure(noise, std)
        spent = time.perf_counter() - start
        rows.append({"name": f"{name}: noise", "seconds": made, "ratio": made / unit})
        rows.append({"name": f"{name}: noise and statistics", "seconds": spent, "ratio": spent / unit})
        if importlib.util.find_spec("torch") is not None:
            plan = simulate_torch.Plan.of(simulate_torch.describe(engine, std, EDGES))
            start = time.perf_counter()
            simulate_torch.run(plan, REPETITIONS, 1, "cpu")
            spent = time.perf_counter() - start
            rows.append({"name": f"{name}: the same by torch, cpu", "seconds": spent, "ratio": spent / unit})
    return rows


if __name__ == "__main__":
    print(f"{REPETITIONS} repetitions of {TICKS} ticks; on a GPU: python -m evercount.reproduce.gpu_bench")
    for row in run():
        print(f"{row['name']:38}{row['seconds']:9.3f} s{row['ratio']:8.2f} ×")
