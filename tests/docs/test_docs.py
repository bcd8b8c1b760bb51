"""Docs are executed: the README's example runs, its table is what `plan` prints, links resolve,
commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from evercount import Budget
from evercount.cli import COMMANDS
from evercount.factorizations import FACTORIZATIONS
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.local.collection_plan import LocalPlan
from evercount.local.estimate import LocalEstimate
from evercount.local.genprot import GenProtServer
from evercount.local.genprot_plan import GenProtPlan
from evercount.planning.compare import plan
from evercount.planning.plan_views import plan_views

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_table_is_what_plan_prints():
    rows = {row.name: row for row in plan(Budget(0.5, 1e-10), 2**16).rows}
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("× lower bound")[2]
    names = {
        "square-root, paper's C": "`square-root` with the paper's constant",
        "square-root": "`square-root` (the paper",
    }
    for name, row in rows.items():
        if name == "fresh":
            continue
        line = next(
            x for x in text.splitlines() if x.startswith(f"| {names.get(name, f'`{name}`')}")
        )
        assert f"| {row.worst_std:.2f} | {row.ratio_to_lower_bound:.3f} |" in line


PUBLISHED = {
    "days": ("per-tick",),
    "days and weeks": ("per-tick", "last-7"),
    "weeks": ("last-7",),
    "running totals": ("running",),
    "days, weeks and totals": ("per-tick", "last-7", "running"),
}


def test_readme_table_of_a_year_is_what_plan_prints():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for words, views in PUBLISHED.items():
        (chosen,) = [row for row in plan_views(Budget(1.0, 0.0), 365, views).rows if row.chosen]
        stds = [
            f"{chosen.stds[view]:.2f}" if view in chosen.stds else ""
            for view in ("per-tick", "last-7", "running")
        ]
        line = " | ".join((words, *stds, f"`{chosen.name}`")).replace("  ", " ")
        assert f"| {line} |" in text.replace("|  |", "| |"), line
    blend = next(
        row
        for row in plan_views(Budget(1.0, 1e-6), 365, PUBLISHED["days, weeks and totals"]).rows
        if row.name == "blend"
    )
    assert "(`blend`) has {:.2f}, {:.2f} and {:.2f}".format(*blend.stds.values()) in text


def test_readme_compares_errors_as_the_table_has_them():
    """In every column the least of ours is at most the least of the others, but for rounding to
    whole numbers."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    table = page.partition("## Days, weeks and persons")[2].partition("## Time")[0]
    rows = [
        line.strip("|").split("|")
        for line in table.splitlines()
        if re.search(r"\| (yes|no) \|", line)
    ]
    errors = {row[0].strip(): [float(cell) for cell in row[2:]] for row in rows}
    ours = [
        min(column)
        for column in zip(*(r for name, r in errors.items() if "evercount" in name), strict=True)
    ]
    others = [
        min(column)
        for column in zip(
            *(r for name, r in errors.items() if "evercount" not in name), strict=True
        )
    ]
    assert len(ours) == 6
    assert all(own <= 1.0002 * other for own, other in zip(ours, others, strict=True))


def test_links_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_named_in_the_docs_exist():
    known = set(COMMANDS)
    for page in PAGES:
        for name in re.findall(r"`evercount ([a-z]+)", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name} names the command {name!r}"
    assert known


def test_the_calculation_of_the_scale_page_is_what_its_command_prints():
    program = ROOT / "benchmarks" / "bench_spark.py"
    done = subprocess.run([sys.executable, program, "--calculate"], capture_output=True, check=True)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert done.stdout.decode().count("\n") > 4
    assert done.stdout.decode() in page
    measured = page[page.index("| job | figure |") : page.index("**A calculation")]
    for line in program.with_name("spark_figures.jsonl").read_text(encoding="utf-8").splitlines():
        figure = json.loads(line)
        value = figure["value"]
        shown = (
            f"{value:.0f}"
            if figure["unit"] == "bytes"
            else f"{value:.1f}"
            if value > 1
            else f"{value:.3f}"
        )
        if "processor time" in figure["name"]:  # the page has its ratio
            shown = f"{figure['ratio']:.2f}"
        assert re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d])", measured), line


def test_table_of_the_local_forms_is_what_the_code_computes():
    """docs/local.md: n × the largest variance at 128 buckets, for four ε and four forms."""
    text = (ROOT / "docs" / "local.md").read_text(encoding="utf-8")
    for epsilon in (0.25, 0.5, 1.0, 2.0):
        n = round((128 / epsilon) ** 2)
        found = []
        for form in ("one-counter", "two-counter"):
            made = LocalPlan(epsilon, 1e-6, n, form)
            assert made.w == 128
            found.append(LocalEstimate(made, 1, np.zeros(129)).std.max() ** 2)
        for rule in ("best", "paper"):
            server = GenProtServer(GenProtPlan(epsilon, n, "any seed", rule=rule))
            server.accepted = 1
            found.append(server.estimate().std.max() ** 2)
        row = next(line for line in text.splitlines() if line.startswith(f"| {epsilon:g} |"))
        stated = [float(cell.replace(",", "")) for cell in row.strip("| ").split("|")[1:]]
        assert stated == pytest.approx(found, rel=1e-5, abs=0.51), epsilon


def test_every_test_that_a_guarantee_names_exists() -> None:
    """A claim in code or docs points at the test that would fail if it were wrong: the test must be
    there."""
    root = Path(__file__).parents[2]
    known = {
        path.name: path.read_text(encoding="utf-8") for path in (root / "tests").rglob("test_*.py")
    }
    missing, found = [], 0
    pages = [
        *(root / "src").rglob("*.py"),
        *(root / "src").rglob("*.md"),
        *(root / "docs").rglob("*.md"),
    ]
    for page in pages:
        text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
        for file, name in re.findall(r"(test_\w+\.py)(?:::\s?(test_\w+))?", text):
            found += 1
            if file not in known or (name and f"def {name}(" not in known[file]):
                missing.append((page.name, file, name))
    assert not missing
    assert found > 80


def drawn(lines: list[list[str]], layers: list[list[str]]) -> list[list[str]]:
    """The lines of the map, those of one layer together."""
    found = iter(lines)
    joined = []
    for layer in layers:
        names: list[str] = []
        while len(names) < len(layer):
            names += next(found)
        joined.append(names)
    assert next(found, None) is None
    return joined


def test_the_map_is_that_of_the_imports_and_every_file_that_is_named_exists() -> None:
    source = ROOT / "src" / "evercount"
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    the_map = text.partition("## The map")[2].partition("##")[0]
    lines = [
        line.strip().partition("   ")[0].split()
        for line in the_map.splitlines()
        if line.startswith("    ")
    ]
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    layers = [layer.split(" | ") for layer in checked["contracts"][0]["layers"]]
    assert [sorted(line) for line in drawn(lines, layers)] == [sorted(layer) for layer in layers]
    assert {path.parent.name for path in source.glob("*/__init__.py")} <= {
        name for line in lines for name in line
    }
    listed = (source / "factorizations" / "README.md").read_text(encoding="utf-8")
    modules = [
        path.name for path in (source / "factorizations").glob("*.py") if path.name != "__init__.py"
    ]
    assert [name for name in sorted(modules) if f"`{name}`" not in listed] == []
    registered = {*FACTORIZATIONS, *PURE, *PURE_ENDLESS}
    assert [name for name in sorted(registered) if f"`{name}`" not in listed] == []
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(\w+/[\w/]+\.py)", page.read_text(encoding="utf-8"))
    }
    missing = [
        name
        for name in sorted(named)
        if not any((place / name).exists() for place in (source, source.parent, ROOT))
    ]
    assert missing == []
    assert len(named) > 30
