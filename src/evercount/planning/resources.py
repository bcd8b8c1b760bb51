"""What a stream costs a machine.

Time per tick and state on disk are measured here and now, on a stream of at most `MEASURED_CELLS`
cells with the same noise, and scaled to all cells; memory of `evercount release` is a formula,
which `benchmarks/bench_release_memory.py` compares with the resident memory of real runs.
"""

from __future__ import annotations

import io
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evercount.engine.snapshot_format import pack, write
from evercount.engine.stream import Stream
from evercount.privacy import Budget
from evercount.queries import Count, Histogram, Query

MEASURED_CELLS = 20_000
MEASURED_TICKS = 65  # more than the ticks of the longest block of noise
MEMORY_OF_THE_PROGRAM = 190_000_000
"""Bytes that `release` takes for a small file and few cells: Python, numpy, DuckDB. Large files
take up to 600 MB."""
# bytes per cell besides the noise: its key in every form, a released row, its text
MEMORY_PER_CELL = 880
# how often the noise's state per cell is in memory at once, at most, while it is written
COPIES_OF_NORMAL_STATE = 2.5
MEMORY_PER_REDRAWN_CELL = 70  # bytes per cell of Laplace noise: it is drawn again, not kept
LEAST_ENDLESS_MEMORY = 295_000_000
"""Bytes while the tables of normal noise without a horizon are built; they do not depend on the
cells."""
MORE_FOR_ENDLESS = 25_000_000
BYTES = {"GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@dataclass(frozen=True)
class Resources:
    """What a stream costs: resident bytes of `evercount release`, bytes of the state on disk at its
    largest in the first ticks, without users, and the time to close a tick on this machine."""

    cells: int
    memory: int
    state: int
    seconds_per_tick: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        cells = "1 cell" if self.cells == 1 else f"{self.cells:,} cells"
        memory = _format(self.memory, BYTES)
        state = _format(self.state, BYTES)
        return (
            f"For {cells}, about: memory of release {memory}, "
            f"state on disk {state}, time per tick {_format(self.seconds_per_tick, SECONDS)} on "
            "this machine."
        )


def release_memory(cells: int, state_bytes: int, pure: bool = False, endless: bool = False) -> int:
    """Resident bytes of `evercount release`. Test:
    `tests/planning/test_resources.py::test_a_plan_states_what_is_used`.

    >>> release_memory(10**6, 72)
    1250000000
    """
    if pure:
        return round(MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + MEMORY_PER_REDRAWN_CELL))
    needed = round(
        MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + COPIES_OF_NORMAL_STATE * state_bytes)
    )
    if endless:
        return max(LEAST_ENDLESS_MEMORY, needed + MORE_FOR_ENDLESS)
    return needed


def measure_resources(query: Query, budget: Budget, horizon: int | None) -> Resources:
    """Measure a stream with the default mechanism; only the number of cells of the query
    matters."""
    sample = min(query.cells, MEASURED_CELLS)
    plain = Budget(budget.epsilon, budget.delta, calibration=budget.calibration)
    rows = np.zeros((1, sample), np.int64)
    ticks = MEASURED_TICKS if horizon is None else min(MEASURED_TICKS, horizon)
    seconds = 0.0
    with Stream(Count() if sample == 1 else Histogram(sample), plain, horizon) as stream:
        for tick in range(ticks):
            began = time.perf_counter()
            stream.run_totals(rows)
            seconds += time.perf_counter() - began
            if not tick:  # noise for the next ticks was drawn ahead: the state is never larger
                file = io.BytesIO()
                write(stream.dump(), file)
                state = len(file.getvalue())
        per_cell = stream.factorization.state_bytes
    scale = query.cells / sample
    texts = 2 * len(pack({"query": query.parameters()}))  # in the declaration and in the stream
    memory = release_memory(query.cells, per_cell, budget.delta == 0, horizon is None)
    return Resources(query.cells, memory, round(state * scale) + texts, seconds / ticks * scale)


def _format(number: float, units: dict[str, float]) -> str:
    """A number in the first unit that is not larger than it, else in the last, with two digits or
    more.

    >>> _format(900, BYTES), _format(1.43e9, BYTES)
    ('900 B', '1.4 GB')
    >>> _format(0.0000154, SECONDS), _format(2.5, SECONDS)
    ('15 µs', '2.5 s')
    """
    unit = next((unit for unit, size in units.items() if number >= size), list(units)[-1])
    scaled = number / units[unit]
    if 1 <= scaled < 10 and unit not in ("B", "µs"):
        return f"{scaled:.1f} {unit}"
    return f"{scaled:.0f} {unit}"
