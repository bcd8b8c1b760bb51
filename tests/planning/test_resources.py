"""What `plan` states about memory and disk, next to real runs of `evercount release`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evercount import Budget, Count, Histogram
from evercount.planning.resources import measure_resources

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench_release_memory.py"
CELLS = 30_000


@pytest.mark.parametrize(
    ("horizon", "delta"),
    [
        pytest.param(0, "1e-9", marks=pytest.mark.soak),  # no horizon: "0" below
        (8760, "1e-9"),
        pytest.param(0, "0", marks=pytest.mark.soak),
        pytest.param(8760, "0", marks=pytest.mark.soak),
    ],
)
def test_a_plan_states_what_is_used(horizon: int, delta: str) -> None:
    """A run over 30,000 cells, in its own process: at most 15 % more than planned, and no plan of
    twice as much."""
    command = [sys.executable, str(BENCH), str(CELLS), str(horizon), delta]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0.5 <= found["used"] / found["formula"] <= 1.15, found
    assert 0.5 <= found["state"] / found["planned state"] <= 1.05, found


def test_keys_are_part_of_the_state() -> None:
    short, long = (
        measure_resources(Histogram([f"{i:0{n}d}" for i in range(500)]), Budget(1.0, 1e-9), 4)
        for n in (4, 90)
    )
    assert long.state > short.state + 500 * 20
    assert measure_resources(Count(), Budget(1.0, 0.0), None).state > 0
