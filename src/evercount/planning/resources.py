"""What a stream costs a machine: memory of `evercount release`, state on disk, time per tick.

Time and state are measured here and now, on a stream of at most `MEASURED_CELLS` cells with the same noise, and scaled
to all cells. Memory is a formula, which `benchmarks/bench_release_memory.py` compares with the resident memory of real
runs of the command.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evercount.engine.snapshot_format import pack
from evercount.engine.stream import Stream
from evercount.privacy import Budget
from evercount.queries import Count, Histogram, Query

MEASURED_CELLS = 20_000
MEASURED_TICKS = 32
MEMORY_OF_THE_PROGRAM = 160_000_000
"""Bytes that `release` takes for a small file and few cells: Python, numpy, DuckDB. Large files take up to 600 MB."""
MEMORY_PER_CELL = 960
"""Bytes per cell besides the noise: its key in every form, a released row, its text."""
MEMORY_PER_ENDLESS_CELL = 3_400
"""Bytes per cell, with the noise, of a stream without a horizon while its state is written."""


@dataclass(frozen=True)
class Resources:
    """What a stream costs.

    Args:
        cells: the number of cells.
        memory: resident bytes of `evercount release`.
        state: bytes of the state on disk, without the texts of keys and without users.
        seconds_per_tick: time to close a tick, on this machine.
    """

    cells: int
    memory: int
    state: int
    seconds_per_tick: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)

    def __str__(self) -> str:
        took = shown_time(self.seconds_per_tick)
        return (
            f"For {self.cells:,} cell{'s' * (self.cells > 1)}, about: memory of release {shown_bytes(self.memory)}, "
            f"state on disk {shown_bytes(self.state)}, time per tick {took} on this machine."
        )


def release_memory(cells: int, state_bytes: int) -> int:
    """Resident bytes of `evercount release` for `cells` cells, whose noise keeps `state_bytes` per cell.

    >>> release_memory(10**6, 88)
    1208000000
    """
    return MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + state_bytes)


def measure_resources(query: Query, budget: Budget, horizon: int | None) -> Resources:
    """Measure a stream with the default mechanism.

    Args:
        query: what is counted; only its number of cells matters here.
        budget: the budget; a budget for users costs the same as one for events.
        horizon: the number of ticks, or None.

    Returns:
        What it costs.

    >>> from evercount import Budget, Count
    >>> measure_resources(Count(), Budget(1.0, 1e-9), 100).cells
    1
    """
    sample = min(query.cells, MEASURED_CELLS)
    plain = Budget(budget.epsilon, budget.delta, calibration=budget.calibration)
    stream = Stream(Count() if sample == 1 else Histogram(sample), plain, horizon)
    try:
        rows = np.zeros((1, sample), np.int64)
        ticks = MEASURED_TICKS if horizon is None else min(MEASURED_TICKS, horizon)
        took = []
        for _ in range(ticks):  # the first one draws ahead for those that follow
            start = time.perf_counter()
            stream.run_totals(rows)
            took.append(time.perf_counter() - start)
        state = len(pack(stream.dump()))
        per_cell = stream.factorization.state_bytes
    finally:
        stream.close()
    scale = query.cells / sample
    memory = release_memory(query.cells, per_cell)
    if horizon is None:
        memory = MEMORY_OF_THE_PROGRAM + query.cells * MEMORY_PER_ENDLESS_CELL
    return Resources(query.cells, memory, round(state * scale), float(np.mean(took)) * scale)


def shown_bytes(number: float) -> str:
    """A number of bytes in the unit that reads best.

    >>> shown_bytes(900), shown_bytes(1.43e9)
    ('900 B', '1.4 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}" if number < 10 * size else f"{number / size:.0f} {unit}"
    return f"{number:.0f} B"


def shown_time(seconds: float) -> str:
    """A duration in the unit that reads best.

    >>> shown_time(0.0000154), shown_time(2.5)
    ('15 µs', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.0f} µs"
