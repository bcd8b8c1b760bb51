"""Exact noise next to its own exact draw, numpy's draw and OpenDP's discrete Gaussian, all in one
run.

A bar is a ratio of processor times (of all threads), which other programs disturb less than the
clock.
"""

from __future__ import annotations

import random
import statistics
import string
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from evercount import Budget, Histogram, Stream
from evercount.factorizations import (
    Balanced,
    BinaryTree,
    Direct,
    Factorization,
    Honaker,
    HonakerFull,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
    factorization,
)
from evercount.mechanisms.exact.arithmetic import kernel
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_kernel import FilterKernel
from evercount.mechanisms.exact.filter_numbers import BLOCK_TICKS, LONG_BLOCK_TICKS
from evercount.mechanisms.noise_stream import NoiseStream
from evercount.noise import ExactNoise, Secret
from evercount.queries.base import Query
from evercount.words import Substrings

SCALE = 12.0
STEPS = 1024
BUDGET = Budget(1.0, 1e-9)
Row = dict[str, Any]


def _row(
    name: str, value: float, unit: str, ratio: float | None, target: float | None, note: str
) -> Row:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ratio": ratio,
        "target": target,
        "note": note,
    }


def _seconds(action: Callable[[], object], repeats: int = 7) -> float:
    """Lower quartile of the processor times of one call, after one that is not counted."""
    action()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.quantiles(times, n=4, method="inclusive")[0]


def _draw() -> float:
    """Seconds per exact normal, drawn in pieces that fit the processor's cache."""
    noise = ExactNoise(Secret.generate())
    return _seconds(lambda: noise.normals(0, 32, 500), 7) / 16_000


def _take(stream: NoiseStream, cells: int, ticks: int) -> tuple[float, float]:
    """Seconds per cell and tick of a noise stream, and of an exact draw: measured in turns, the
    best of both."""
    pairs = [(_seconds(partial(stream.take, ticks), 2) / cells / ticks, _draw()) for _ in range(5)]
    times, draws = zip(*pairs, strict=True)
    return min(times), min(draws)


def _exact(f: Factorization, cells: int, ticks: int, scale: float = SCALE) -> tuple[float, float]:
    return _take(ExactStream(f, scale, cells, Secret.generate()), cells, ticks)


def _steps(stream: ExactStream) -> None:
    for _ in range(STEPS):
        stream.take(1)


def _opendp() -> float | None:
    """Seconds per number of OpenDP's discrete Gaussian, or None where it is not installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    measure = dp.m.make_gaussian(*space, scale=SCALE)
    zeros = [0] * 5000
    return _seconds(lambda: measure(zeros), 5) / len(zeros)


def _noises() -> list[Row]:
    """Numbers in µs; ratios are to an exact draw that is measured in turns with them."""
    rows = []

    def compare(label: str, measured: tuple[float, float], target: float | None, note: str) -> None:
        seconds, draw = measured
        rows.append(_row(label, seconds * 1e6, "µs", seconds / draw, target, note))

    draw, rng = min(_draw() for _ in range(3)), np.random.default_rng(0)
    compare("exact draw", (draw, draw), None, "a normal of 128 bits")
    compare(
        "numpy's draw",
        (_seconds(lambda: rng.standard_normal((32, 500)), 15) / 16_000, draw),
        None,
        "not exact",
    )
    if (other := _opendp()) is not None:
        compare(
            "OpenDP discrete Gaussian",
            (other, draw),
            None,
            f"independent noise, scale {SCALE:g}, vector of 5000",
        )
    for cells in (1000, 10**5):
        compare(
            "exact noise", _exact(Balanced(2**16), cells, 64), 2.5, f"balanced 2^16, {cells} cells"
        )
        compare(
            "exact noise", _exact(Balanced(10**8), cells, 64), 4.0, f"balanced 10^8, {cells} cells"
        )
        compare("exact noise", _exact(Unbounded(), cells, 64), 4.0, f"unbounded, {cells} cells")
    for scale in (1e6, 1e9, 1e12):
        note = f"balanced 2^16, 1000 cells, scale {scale:g}: more close calls"
        compare("exact noise", _exact(Balanced(2**16), 1000, 64, scale), None, note)
    others: list[Factorization] = [Normalized(2**16), SquareRoot(2**16), Direct(2**16)]
    others += [BinaryTree(2**16), Honaker(2**16), HonakerFull(2**16)]
    for f in others:
        compare("exact noise", _exact(f, 1000, 64), None, f"{f.name} {f.horizon}, 1000 cells")
    compare(
        "exact noise", _exact(Optimal(1024), 1000, 32), None, "optimal 1024, 1000 cells, first half"
    )
    others = [
        Balanced(2**20),
        Balanced(10**8),
        Unbounded(),
        SquareRoot(2**20),
        Honaker(2**20),
        HonakerFull(2**20),
    ]
    for f in others:
        note = f"{f.name} {f.horizon}, one cell; 0.2 µs where a draw is 0.037"
        compare("scalar run", _exact(f, 1, 2**15), 5.4, note)
        stream = ExactStream(f, SCALE, 1, Secret.generate())
        step = _seconds(partial(_steps, stream), 5) / STEPS
        compare(
            "lone step",
            (step, draw),
            135.0,
            f"{f.name} {f.horizon}, one cell; 5 µs where a draw is 0.037",
        )
    return rows


def named(name: str) -> list[Row]:
    """The noise of one factorization, built-in or registered, for 1024 ticks."""
    seconds, draw = _exact(factorization(name, 1024), 1000, 32)
    return [
        _row("exact noise", seconds * 1e6, "µs", seconds / draw, None, f"{name} 1024, 1000 cells")
    ]


def _ticks(query: Query, ticks: list[Any]) -> float:
    """Seconds of a tick, single steps, after one block of warm-up: the best of three streams."""
    best = float("inf")
    for _ in range(3):
        stream = Stream(query, BUDGET, 2**16)
        for events in ticks[:32]:
            stream.step(events)
        start = time.process_time()
        for events in ticks[32:]:
            stream.step(events)
        best = min(best, (time.process_time() - start) / (len(ticks) - 32))
    return best


def _queries() -> list[Row]:
    """Whole ticks."""
    letters = [random.Random(0).choice(string.ascii_lowercase) for _ in range(32 + 320)]
    keys = [np.random.default_rng(0).integers(0, 10**5, 10**4)] * (32 + 64)
    rows = []
    for name, query, ticks in (
        ("Histogram, 10^5 cells", Histogram(10**5), keys),
        ("Substrings(26, 3)", Substrings(string.ascii_lowercase, 3), letters),
    ):
        rows.append(_row(name, _ticks(query, ticks) * 1e3, "ms a tick", None, None, ""))
    return rows


def _memory() -> list[Row]:
    """Memory that a stream holds, and the drift that its close calls depend on."""
    rows = []
    weighted = (Balanced(2**16), Balanced(10**8), Unbounded())
    for f in (*weighted, Honaker(2**16), HonakerFull(2**16)):
        cells = 10**5
        kernel(f)
        tracemalloc.start()
        stream = ExactStream(f, SCALE, cells, Secret.generate())
        stream.take(32)
        stream.take(1)
        held, peak = (value / cells / 1024 for value in tracemalloc.get_traced_memory())
        tracemalloc.stop()
        rows.append(
            _row(
                "memory",
                held,
                "KB a cell",
                None,
                0.7,
                f"{f.name} {f.horizon}; {peak:.2f} at the most",
            )
        )
    for f in weighted:
        last, by_doubles = f.horizon or 10**8, kernel(f)
        assert isinstance(by_doubles, FilterKernel)
        for size, cells_note in ((BLOCK_TICKS, "many cells"), (LONG_BLOCK_TICKS, "few cells")):
            # integers from the first draw on take about 10 µs a tick
            cost = 2 * SCALE * by_doubles.drift(last, size) * last * 10_000
            note = f"expected at tick {last} of {f.name}, {cells_note}, scale {SCALE:g}"
            rows.append(_row("integers", cost, "ns a number", None, None, note))
    stream = ExactStream(Balanced(2**16), SCALE, 1000, Secret.generate())
    stream.take(40)
    dumped = stream.dump()
    rows.append(
        _row("dump", len(dumped["state"]) / 1000, "bytes a cell", None, None, "balanced 2^16")
    )
    load = _seconds(lambda: ExactStream.load(Balanced(2**16), SCALE, 1000, dumped), 5) * 1e3
    rows.append(_row("load", load, "ms", None, None, "1000 cells, in the middle of a block"))
    return rows


def run() -> list[Row]:
    """One row per measurement: name, value, unit, ratio, target, note."""
    return _noises() + _queries() + _memory()


if __name__ == "__main__":
    for row in run():
        ratio = "" if row["ratio"] is None else f"ratio {row['ratio']:.2f}"
        target = "" if row["target"] is None else f"target {row['target']:g}"
        print(
            f"{row['name']:26}{row['value']:12.4g} "
            f"{row['unit']:13}{ratio:14}{target:12}{row['note']}"
        )
