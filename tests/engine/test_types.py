"""What a user's type checker sees: numbers where a query publishes one, arrays where it publishes many."""

from __future__ import annotations

import importlib.util
import re
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


README = re.search(
    r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"), re.DOTALL
)


def checked(folder: Path, *programs: str) -> list[str]:
    """What mypy --strict says about programs of a user, from outside; one run for all, because it reads the package."""
    files = [folder / f"program{number}.py" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache")]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, cwd=folder, check=False)
    return [line.partition(":")[0] for line in done.stdout.splitlines() if "error:" in line]


def test_wrong_programs_are_seen_by_a_type_checker(tmp_path: Path) -> None:
    """What the README shows and what is right passes; a wrong line does not."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    assert README is not None
    assert checked(tmp_path, RIGHT, README[1]) == []
    found = checked(tmp_path, WRONG, f"{README[1]}\nwrong: str = release.std\n")
    assert sorted(found) == ["program0.py", "program0.py", "program1.py"]


def test_an_array_stays_one_for_a_single_key() -> None:
    release = Stream(Histogram(["only"]), Budget(1.0, 1e-6), 8).step(["only"])
    assert release.value.shape == (1,)
    assert release.interval()[0].shape == (1,)
