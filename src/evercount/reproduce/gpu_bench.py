"""Time the full simulation on a GPU and check it against the exact answers; one JSON line.

python -m evercount.reproduce.gpu_bench --write-parameters poles.json --ticks 65536
python src/evercount/reproduce/gpu_bench.py --parameters poles.json --repetitions 1000000 --ticks 65536 --device cuda

Run as a file, it needs only torch and numpy: the filter's poles come from the parameters file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

MECHANISMS = ("square-root", "binary-tree")
LEAST_EXPECTED_EXCEEDANCES = 500
"""Edges with fewer expected exceedances are not checked: their counts are not close to normal."""
LAYOUTS = [(8, 4, None), (8, 4, 128), (8, 8, 128), (8, 8, 96), (4, 4, None), (4, 8, 128), (16, 4, 64)]
"""The layouts (warps, programs per multiprocessor, registers per thread) that --tune compares."""


def parameters(ticks: int) -> dict[str, Any]:
    """The numbers that describe both mechanisms. Needs the package."""
    from evercount.factorizations import factorization
    from evercount.reproduce.simulate import EDGES
    from evercount.reproduce.simulate_torch import describe

    return {name: describe(factorization(name, ticks), None, EDGES) for name in MECHANISMS}


def check(plan: Any, sums: dict[str, Any], count: int) -> dict[str, float]:
    """How far the statistics are from the exact answers, in standard errors.

    `mean_z`: the average of |error|/std over all ticks and repetitions, against √(2/π). `tick_z`: the largest
    deviation of one tick's mean |error|. `edge_z`: the largest deviation of a counted share from the normal's.
    """
    mean, squares = sums["each"][0] / count
    mean_z = (mean - math.sqrt(2 / math.pi)) / math.sqrt((squares - mean**2) / count)
    per_tick = (sums["absolute"] / count / plan.std - math.sqrt(2 / math.pi)) / math.sqrt((1 - 2 / math.pi) / count)
    kept = [edge for edge in plan.edges if count * math.erfc(edge / math.sqrt(2)) >= LEAST_EXPECTED_EXCEEDANCES]
    expected = np.array([math.erf(edge / math.sqrt(2)) for edge in kept])
    edge_z = (sums["below"][:, : len(kept)] / count - expected) / np.sqrt(expected * (1 - expected) / count)
    return {
        "mean_z": float(mean_z),
        "tick_z": float(np.abs(per_tick).max()),
        "tick_z_rms": float(np.sqrt(np.mean(per_tick**2))),
        "edge_z": float(np.abs(edge_z).max()) if kept else 0.0,
        "mean_worst_error": float(sums["each"][1][0] / count),
        "mean_running_maximum_at_end": float(sums["running"][-1] / count),
        "largest_error": float(sums["largest"].max()),
    }


def timed(torch: Any, device: str, repeats: int, action: Callable[[int], Any]) -> tuple[list[float], Any]:
    """(seconds of each of `repeats` calls, the last result). The device is idle before and after each call."""
    seconds, result = [], None
    for number in range(repeats):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = action(number)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds, result


def _run_kernel(kernel: Any, plans: list[Any], count: int, how: Any, device: str, number: int) -> Any:
    return kernel.run(plans, count, number, device, how)


def tune(backend: Any, plans: list[Any], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds for a tenth of the repetitions under each of `LAYOUTS`; a layout that fails reports its error."""
    torch = backend.load_torch()
    kernel = importlib.import_module(f"{__package__}.kernel_triton" if __package__ else "kernel_triton")
    multiprocessors = torch.cuda.get_device_properties(chosen.device).multi_processor_count
    rows = []
    for warps, each, registers in LAYOUTS:
        how = kernel.Launch(warps, each * multiprocessors, registers)
        count = max(chosen.repetitions // 10, 1)
        row: dict[str, Any] = {"warps": warps, "programs": how.programs, "registers": registers}
        try:
            kernel.run(plans, 256, 1, chosen.device, how)
            seconds, _ = timed(torch, chosen.device, 2, partial(_run_kernel, kernel, plans, count, how, chosen.device))
            row["seconds_of_a_tenth"] = min(seconds)
        except Exception as error:  # noqa: BLE001 - a layout may exceed the device's limits in many ways
            row["error"] = f"{type(error).__name__}: {error}"[:200]
        rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print one JSON line; returns 1 when a check fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=65536)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="tensor code instead of the fused kernel")
    parser.add_argument("--tune", action="store_true", help="also time other layouts of the fused kernel")
    parser.add_argument("--parameters", type=Path)
    parser.add_argument("--write-parameters", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.write_parameters:
        chosen.write_parameters.write_text(json.dumps(parameters(chosen.ticks)))
        return 0
    described = json.loads(chosen.parameters.read_text()) if chosen.parameters else parameters(chosen.ticks)
    backend = importlib.import_module(f"{__package__}.simulate_torch" if __package__ else "simulate_torch")
    torch = backend.load_torch()
    plans = [backend.Plan.of(described[name]) for name in MECHANISMS]
    if any(plan.ticks != chosen.ticks for plan in plans):
        parser.error(f"the parameters are for {plans[0].ticks} ticks; write them again for {chosen.ticks}")
    fused = backend.fused(plans, chosen.device) and not chosen.plain

    def simulate(count: int, number: int) -> dict[str, dict[str, Any]]:
        if fused:
            result: dict[str, dict[str, Any]] = backend.run_many(plans, count, chosen.seed + number, chosen.device)
            return result
        return {plan.name: backend.run_tensors(plan, count, chosen.seed + number, chosen.device) for plan in plans}

    first, _ = timed(torch, chosen.device, 1, lambda n: simulate(min(256, chosen.repetitions), n))
    seconds, sums = timed(torch, chosen.device, chosen.repeats, lambda n: simulate(chosen.repetitions, n + 1))
    checks = {plan.name: check(plan, sums[plan.name], chosen.repetitions) for plan in plans}
    # The largest of 65536 ticks × 8 edges is compared: of as many normals it exceeds 6 once in 10^3 runs.
    good = all(abs(c["mean_z"]) < 4.5 and c["tick_z"] < 6.5 and c["edge_z"] < 7.0 for c in checks.values())
    tuned = tune(backend, plans, chosen) if chosen.tune and fused else []
    line = {
        "repetitions": chosen.repetitions,
        "ticks": chosen.ticks,
        "kernel": "fused" if fused else "tensors",
        "device": torch.cuda.get_device_name() if chosen.device.startswith("cuda") else chosen.device,
        "torch": torch.__version__,
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "first_call_seconds": first[0],
        "tuned": tuned,
        "checks": checks,
        "agrees": good,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
