"""The counting engine: growth with the horizon, memory, start-up.

Every ratio is measured in one run, both sides in turn, best of several. Run alone on an idle
machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from evercount.factorizations import Balanced, State

Row = dict[str, Any]


def best(action: Callable[[], object], repeats: int = 7) -> float:
    """Shortest of several timings, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def in_turn(
    first: Callable[[], object], second: Callable[[], object], repeats: int = 40
) -> tuple[float, float]:
    """Shortest timings of both, measured in turn, so that a slow moment of the machine meets
    both."""
    times = [(best(first, 1), best(second, 1)) for _ in range(repeats)]
    return min(a for a, _ in times), min(b for _, b in times)


def growth() -> Row:
    """Time per tick in the middle of 10^8 ticks over that in the middle of 2^16."""

    ticks = 16_384
    z = np.random.default_rng(1).standard_normal((ticks, 1))

    def block_of(horizon: int) -> Callable[[], object]:
        factorization = Balanced(horizon)
        start = State(horizon // 3, factorization.initial(1).arrays)
        return lambda: factorization.block(start, z, ticks)

    small, large = (seconds / ticks for seconds in in_turn(block_of(2**16), block_of(10**8), 50))
    return {
        "name": "time per tick, horizon 10^8 over 2^16",
        "value": large * 1e9,
        "unit": "ns/tick",
        "ratio": large / small,
        "target": "≤ 1.3",
        "note": f"2^16: {small * 1e9:.1f} ns",
    }


MEMORY = """
import resource, numpy as np
from evercount import Stream, Budget, Count
T = 10**7
Stream(Count(), Budget(0.5, 1e-10), T).run(np.ones(1000, np.int64))
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts = np.ones(T, np.int64)
releases = Stream(Count(), Budget(0.5, 1e-10), T).run(counts)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((peak - base) * 1024 / releases.values.nbytes)
"""


HELP = """
import sys
sys.argv = ["evercount", "--help"]
from evercount.cli import app
app(standalone_mode=False)
"""


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def memory() -> Row:
    """Peak memory of a run of 10^7 ticks, in arrays of its output (its input counts as one of
    them)."""
    arrays = float(fresh(MEMORY))
    return {
        "name": "peak memory of a 10^7-tick run",
        "value": arrays,
        "unit": "output arrays",
        "target": "≤ 4",
    }


def startup() -> list[Row]:
    """Import and help, each in a new interpreter."""
    imported = best(lambda: fresh("import evercount"), 5) - best(lambda: fresh("pass"), 5)
    helped = best(lambda: fresh(HELP), 5)
    return [
        {"name": "import evercount", "value": imported, "unit": "s", "target": "≤ 0.3"},
        {"name": "evercount --help", "value": helped, "unit": "s", "target": "≤ 0.5"},
    ]


def construction() -> Row:
    """CPU seconds to build the factorisation of 10^8 ticks from nothing, in a new interpreter."""
    code = (
        "import time, evercount\n"
        "from evercount.factorizations import Balanced\n"
        "import scipy.special\n"
        "t = time.process_time(); Balanced(10**8); print(time.process_time() - t)"
    )
    return {
        "name": "build `balanced` for 10^8 ticks",
        "value": float(fresh(code)),
        "unit": "CPU s",
        "target": "< 1",
    }


def run() -> list[Row]:
    """All rows of this group."""
    return [
        growth(),
        construction(),
        memory(),
        *startup(),
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
