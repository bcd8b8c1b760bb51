"""What a user's type checker sees: numbers where a query publishes one, arrays where it publishes many."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from evercount import Budget, Histogram, Stream

RIGHT = """
from evercount import Budget, Count, Histogram, Stream

count = Stream(Count(), Budget(1.0, 1e-6), 8).step(3)
number: float = count.value
low, high = count.interval()
width: float = high - low
cells = Stream(Histogram(["a", "b"]), Budget(1.0, 1e-6), 8).run([["a"]])[0]
first: float = float(cells.value[0])
"""
WRONG = """
from evercount import Budget, Count, Histogram, Stream

text: str = Stream(Count(), Budget(1.0, 1e-6), 8).step(3).value
number: float = Stream(Histogram(["a", "b"]), Budget(1.0, 1e-6), 8).step(["a"]).value
"""


def checked(program: str, folder: Path) -> list[str]:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return [line for line in done.stdout.splitlines() if "program.py" in line]


def test_wrong_programs_are_seen_by_a_type_checker(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    assert checked(RIGHT, tmp_path) == []
    assert len(checked(WRONG, tmp_path)) == 2


def test_an_array_stays_one_for_a_single_key() -> None:
    release = Stream(Histogram(["only"]), Budget(1.0, 1e-6), 8).step(["only"])
    assert release.value.shape == (1,)
    assert release.interval()[0].shape == (1,)
