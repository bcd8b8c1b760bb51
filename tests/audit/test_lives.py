"""Whole lives of streams in neighbouring worlds: no promise is broken, and the generator meets what
it should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from planted_lives import HOLES
from typer.testing import CliRunner

from evercount.audit.lives.attack import attack
from evercount.audit.lives.coverage import Coverage
from evercount.audit.lives.draw_life import draw_life
from evercount.audit.lives.life import Event, Life, Step
from evercount.audit.lives.search import USUAL_WAYS, search_lives
from evercount.audit.lives.shrink import shrink
from evercount.audit.lives.verdict import delta_of
from evercount.audit.lives.ways import WAYS
from evercount.audit.lives.write_script import write_script
from evercount.cli import app

pytest.importorskip("duckdb")
pytestmark = pytest.mark.slow
PARTS = 8
LIVES = 2000
DRAWN = 1600
SOAK = 1_000_000
LEAST_COVERAGE = 0.95


@pytest.mark.parametrize("part", range(PARTS))
def test_no_life_breaks_a_promise(part: int) -> None:
    report = search_lives(LIVES // PARTS, "ci", USUAL_WAYS, first=part * (LIVES // PARTS))
    assert report.holds, report.summary()
    assert report.attained > LIVES // PARTS // 5, "the generator does not reach the limits"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(100))
def test_no_life_of_a_night_breaks_a_promise(part: int) -> None:
    report = search_lives(SOAK // 100, "soak", USUAL_WAYS, first=part * (SOAK // 100))
    assert report.holds, report.summary()


@pytest.mark.parametrize("way", [way for way in WAYS if way != "python"])
def test_every_way_in_keeps_promises(way: str) -> None:
    report = search_lives(3, "ways", (way,))
    assert report.holds, report.summary()


def test_operations_meet_features() -> None:
    """Which operation meets which feature in lives of all ways alike, without running them."""
    coverage = Coverage()
    for number in range(DRAWN):
        coverage.add(draw_life(f"even/{number}", tuple(WAYS)))
    assert coverage.share >= LEAST_COVERAGE, coverage.missing()
    assert "of " in coverage.summary().splitlines()[-1]


def test_a_life_is_the_same_again() -> None:
    assert draw_life(7, tuple(WAYS)) == draw_life(7, tuple(WAYS))


def test_finds_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A find that is made small is still one, with no more steps or rows than before."""
    HOLES["a cap that looks at contents"].plant(monkeypatch)
    for number in range(100):
        verdict = attack(draw_life(number))
        if verdict.finds:
            break
    find = shrink(verdict.finds[0])
    assert not find.holds
    assert len(find.life.history) <= len(verdict.finds[0].life.history)
    assert attack(find.life, 100).finds


def test_a_script_shows_the_find(tmp_path: Path) -> None:
    """A script of a life that keeps its promise says so; it is what is printed of a find."""
    budget = {"epsilon": 1.0, "delta": 0.0, "adjacency": "add-remove", "unit": "event"}
    declaration = {
        "name": "life",
        "query": {"name": "count", "parameters": {}},
        "budget": budget,
        "tick": "1d",
        "start": "2026-03-28",
        "zone": "UTC",
        "horizon": 3,
    }
    rows = (Event(1774656000, "ann"), Event(1774742400, "bob"))
    life = Life("python", declaration, rows, (Step("release", 1774915200),))
    from evercount.audit.lives.verdict import Find

    script = write_script(Find("spent", "a reason", life, rows[1:]))
    assert len(script.splitlines()) <= 15
    path = tmp_path / "find.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "holds (spent, 1): its guarantee says epsilon=1" in done.stdout


def test_mixtures_have_the_profile_of_both() -> None:
    """Against sums over a grid of a normal and randomised response."""
    mu, pure, epsilon = 0.7, 0.4, 0.9
    x = np.linspace(-12, 12, 400_001)
    normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    other = np.exp(-((x - mu) ** 2) / 2) / np.sqrt(2 * np.pi)
    likely = 1 / (1 + np.exp(-pure))
    total = 0.0
    for one, two in ((likely, 1 - likely), (1 - likely, likely)):
        total += np.trapezoid(np.maximum(one * other - np.exp(epsilon) * two * normal, 0), x)
    assert delta_of(mu, pure, epsilon) == pytest.approx(total, rel=1e-6)


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["audit", "life", "--lives", "20", "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["holds"], report["lives"]) == (0, True, 20)
    HOLES["replace as add-remove"].plant(monkeypatch)
    done = CliRunner().invoke(app, ["audit", "life", "--lives", "300", "--seed", "0"])
    assert done.exit_code == 1, done.output
    assert "A PROMISE IS BROKEN (spent)" in done.output
    assert "show('python'" in done.output
