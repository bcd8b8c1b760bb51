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
MEASURED_TICKS = 65  # more than the ticks of the longest block of noise: between two blocks the state is smaller
MEMORY_OF_THE_PROGRAM = 190_000_000
"""Bytes that `release` takes for a small file and few cells: Python, numpy, DuckDB. Large files take up to 600 MB."""
MEMORY_PER_CELL = 880  # bytes per cell besides the noise: its key in every form, a released row, its text
COPIES_OF_NORMAL_STATE = 2.5
COPIES_OF_LAPLACE_STATE = 1.3  # how often the noise's state per cell is in memory at once, at most, while it is written
MEMORY_PER_REDRAWN_CELL = 70  # bytes per cell of Laplace noise without a horizon: it is drawn again, not kept
LEAST_ENDLESS_MEMORY = 295_000_000
"""Bytes while the tables of normal noise without a horizon are built; they do not depend on the cells."""
MORE_FOR_ENDLESS = 25_000_000
BYTES = {"GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@dataclass(frozen=True)
class Resources:
    """What a stream costs: resident bytes of `evercount release`, bytes of the state on disk at its largest in the
    first ticks, without users, and the time to close a tick on this machine."""

    cells: int
    memory: int
    state: int
    seconds_per_tick: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        memory, state = _shown(self.memory, BYTES), _shown(self.state, BYTES)
        return (
            f"For {self.cells:,} cell{'s' * (self.cells > 1)}, about: memory of release {memory}, state on disk "
            f"{state}, time per tick {_shown(self.seconds_per_tick, SECONDS)} on this machine."
        )


def release_memory(cells: int, state_bytes: int, pure: bool = False, endless: bool = False) -> int:
    """Resident bytes of `evercount release`. Test: `tests/planning/test_resources.py::test_a_plan_states_what_is_used`.

    >>> release_memory(10**6, 72)
    1250000000
    """
    if pure:
        noise = MEMORY_PER_REDRAWN_CELL if endless else COPIES_OF_LAPLACE_STATE * state_bytes
        return round(MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + noise))
    needed = round(MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + COPIES_OF_NORMAL_STATE * state_bytes))
    return max(LEAST_ENDLESS_MEMORY, needed + MORE_FOR_ENDLESS) if endless else needed


def measure_resources(query: Query, budget: Budget, horizon: int | None) -> Resources:
    """Measure a stream with the default mechanism; only the number of cells of the query matters."""
    sample = min(query.cells, MEASURED_CELLS)
    plain = Budget(budget.epsilon, budget.delta, calibration=budget.calibration)
    stream = Stream(Count() if sample == 1 else Histogram(sample), plain, horizon)
    try:
        rows = np.zeros((1, sample), np.int64)
        ticks = MEASURED_TICKS if horizon is None else min(MEASURED_TICKS, horizon)
        took, largest = [], -1
        for _ in range(ticks):  # the first one draws ahead for those that follow
            start = time.perf_counter()
            stream.run_totals(rows)
            took.append(time.perf_counter() - start)
            if (size := _noise_bytes(stream.dump()["noise"])) > largest:  # what was drawn ahead is in the state
                largest, fullest = size, stream.dump()
        state = len(pack(fullest))
        per_cell = stream.factorization.state_bytes
    finally:
        stream.close()
    scale = query.cells / sample
    texts = 2 * len(pack({"query": query.parameters()}))  # in the declaration and in the stream
    memory = release_memory(query.cells, per_cell, budget.delta == 0, horizon is None)
    return Resources(query.cells, memory, round(state * scale) + texts, float(np.mean(took)) * scale)


def _noise_bytes(tree: Any) -> int:
    """The bytes of all arrays and blocks in a part of a stream's state."""
    if isinstance(tree, dict):
        return sum(map(_noise_bytes, tree.values()))
    if isinstance(tree, list | tuple):
        return sum(map(_noise_bytes, tree))
    return tree.nbytes if isinstance(tree, np.ndarray) else len(tree) if isinstance(tree, bytes) else 0


def _shown(number: float, units: dict[str, float]) -> str:
    """A number in the first unit that is not larger than it, else in the last, with two digits or more.

    >>> _shown(900, BYTES), _shown(1.43e9, BYTES), _shown(0.0000154, SECONDS), _shown(2.5, SECONDS)
    ('900 B', '1.4 GB', '15 µs', '2.5 s')
    """
    unit = next((unit for unit, size in units.items() if number >= size), list(units)[-1])
    scaled = number / units[unit]
    return f"{scaled:.1f} {unit}" if 1 <= scaled < 10 and unit not in ("B", "µs") else f"{scaled:.0f} {unit}"
