"""Speed of exact normals next to numpy's float normals and OpenDP's discrete Gaussian, all in one
run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from evercount.noise import ExactNoise, Secret

TARGET = 15.0
"""Exact normals in blocks of at least 10^4 cost at most this many times numpy's float normals."""


def _seconds(action: Callable[[int], object], repeats: int) -> float:
    """Median time of one call; the argument counts the calls, so that every call draws new
    numbers."""
    action(0)
    times = []
    for number in range(1, repeats + 1):
        start = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _row(
    name: str, value: float, unit: str, ratio: float | None, target: float | None, note: str
) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ratio": ratio,
        "target": target,
        "note": note,
    }


def run() -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, ratio to numpy's float normal, target of the
    ratio, note."""
    noise, rows = ExactNoise(Secret.generate()), []
    out = np.empty((1, 10**6))
    floats = np.random.Generator(np.random.SFC64(1))
    unit = _seconds(lambda _: floats.standard_normal(out=out), 9) / 10**6
    rows.append(_row("float normal", unit * 1e9, "ns", 1.0, None, "numpy, into one array of 10^6"))
    shapes = [(1, 10**4), (10**4, 1), (100, 100), (1, 10**5), (10**5, 1), (1, 10**6), (1000, 1000)]
    for draws, cells in shapes:
        size = draws * cells
        each = _seconds(_drawer(noise, draws, cells), max(5, 10**6 // size)) / size
        rows.append(
            _row(
                "exact normal",
                each * 1e9,
                "ns",
                each / unit,
                TARGET,
                f"{draws} draws × {cells} cells",
            )
        )
    for draws, cells in [(1, 1), (1, 10), (1, 100), (1, 1000)]:
        call = _seconds(_drawer(noise, draws, cells), 300)
        rows.append(
            _row(
                "exact call",
                call * 1e6,
                "µs",
                None,
                None,
                f"one call, {draws} draw × {cells} cells",
            )
        )
    block = noise.normals(0, 64, 256)
    for name, action in {
        "slices": lambda _: block.slices(),
        "to_float": lambda _: block.to_float(),
    }.items():
        each = _seconds(action, 50) / block.integer.size
        rows.append(_row(name, each * 1e9, "ns", each / unit, None, "a number, block of 16,384"))
    each = _seconds(lambda _: block[:8].to_ints(), 20) / block[:8].integer.size
    rows.append(_row("to_ints", each * 1e9, "ns", each / unit, None, "a number"))
    rows += _opendp(unit)
    return rows


def _drawer(noise: ExactNoise, draws: int, cells: int) -> Callable[[int], object]:
    return lambda number: noise.normals(number * draws, (number + 1) * draws, cells)


def _opendp(unit: float) -> list[dict[str, Any]]:
    try:
        import opendp.prelude as dp
    except ImportError:
        return []
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    measure = dp.m.make_gaussian(*space, scale=1000.0)
    zeros = [0] * 5000
    each = _seconds(lambda _: measure(zeros), 5) / len(zeros)
    return [
        _row(
            "OpenDP discrete Gaussian",
            each * 1e9,
            "ns",
            each / unit,
            None,
            "scale 1000, i64, vector of 5000",
        )
    ]


if __name__ == "__main__":
    print(f"{'':26}{'value':>12} {'':4}{'ratio':>8}{'target':>8}  note")
    for row in run():
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        target = "" if row["target"] is None else f"≤ {row['target']:g}"
        print(
            f"{row['name']:26}{row['value']:12.1f} {row['unit']:4}{ratio:>8}{target:>8}  "
            f"{row['note']}"
        )
