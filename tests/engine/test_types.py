"""What a user's type checker sees: numbers where a query publishes one, arrays where it publishes
many."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evercount import Budget, Histogram, Stream

pytestmark = pytest.mark.slow

RIGHT = """
from datetime import date
from pathlib import Path

import numpy as np

import evercount
from evercount import Budget, Count, Histogram, Release, Releases, ReleaseTable, Stream, StreamDeclaration, View
from evercount.graphs import Edges

daily: StreamDeclaration = evercount.declare(
    time="when", every="1d", zone="UTC", start=date(2026, 1, 1), epsilon=1, key="ward", keys=["a"], views=["running"]
)
again: StreamDeclaration = StreamDeclaration.from_toml(daily.to_toml())
table: ReleaseTable = evercount.release("a.csv", daily, state=Path("a.state"), ledger="all.ledger", total=(1, 1e-6))
other = evercount.release(["a.csv", "b.csv"], time="when", every="1h", start="2026-01-01", epsilon=0.5, delta=1e-6)
part: ReleaseTable = table[:7]
view: ReleaseTable = table.views["last-7"]
text: str | None = table.to_csv()
numbers = np.asarray(table)
rows: int = len(other)
plan = evercount.plan(every="1d", zone="UTC", epsilon=1, horizon=365, views=["per-tick", "last-7"])
std: float = plan[0].stds["last-7"]
with Stream(Count(), Budget(1.0, 1e-6), 8) as stream:
    run: Releases[float] = stream.run([3, [1, 1, 1]])
    some: Releases[float] = run[0:2]
    one: Release[float] = some[-1]
    value, error = run.between(1, 3)
    total: float = value + error
    spans: View = run.spans("all", [1], [3])
    bounds = run.bound(level=0.9)
cells = Stream(Histogram(["a", "b"]), Budget(1.0, 1e-6), 8).run([["a"]])[0]
first: float = float(cells.value[0])
edges = Stream(Edges(100), Budget(1.0, 1e-6), 8)
"""  # noqa: E501
WRONG = """
import evercount
from evercount import Budget, Count, Stream

text: str = Stream(Count(), Budget(1.0, 1e-6), 8).step(3).value
evercount.release("visits.csv", time="when", every="1d", epsilom=1)
evercount.declare(time="when", every=5, epsilon=1)
rows: str = len(evercount.release("visits.csv", time="when", every="1d", epsilon=1))
"""


README = re.search(
    r"```python\n(.*?)```",
    (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"),
    re.DOTALL,
)


def checked(folder: Path, *programs: str) -> list[str]:
    """Where mypy --strict sees errors in programs of a user, from outside; one run, because it
    reads the package."""
    files = [folder / f"program{number}.py" for number in range(len(programs))]
    for file, program in zip(files, programs, strict=True):
        file.write_text(program)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        os.devnull,
    ]
    done = subprocess.run(
        [*command, *map(str, files)], capture_output=True, text=True, cwd=folder, check=False
    )
    return [line.partition(":")[0] for line in done.stdout.splitlines() if "error:" in line]


def test_wrong_programs_are_seen_by_a_type_checker(tmp_path: Path) -> None:
    """What the README shows and what is right passes; a wrong line does not."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    assert README is not None
    found = checked(tmp_path, RIGHT, README[1], WRONG, f"{README[1]}\nwrong: str = release.std\n")
    assert sorted(found) == [*["program2.py"] * 4, "program3.py"]


@pytest.mark.soak
def test_pyright_sees_the_same(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip(
            "pyright is not installed: pip install pyright (it fetches its program from npm)"
        )
    for name, program in (("right.py", RIGHT), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(program)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(
        [*command, "right.py", "wrong.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    found = [Path(one["file"]).name for one in json.loads(done.stdout)["generalDiagnostics"]]
    assert found == ["wrong.py"] * 4


def test_an_array_stays_one_for_a_single_key() -> None:
    release = Stream(Histogram(["only"]), Budget(1.0, 1e-6), 8).step(["only"])
    assert release.value.shape == (1,)
    assert release.interval()[0].shape == (1,)
