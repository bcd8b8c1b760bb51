"""The worked examples run, write their picture and stay short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
