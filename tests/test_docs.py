"""Docs are executed: the README's example runs, its table is what `plan` prints, links resolve, commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evercount import Budget
from evercount.cli import app
from evercount.planning import plan

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_examples_in_the_docs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = 0
    for page in PAGES:
        names: dict[str, object] = {}  # the blocks of a page belong together
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            exec(compile(block, page.name, "exec"), names)
            run += 1
    assert run >= 2
    assert (tmp_path / "releases.csv").exists()


def test_readme_table_is_what_plan_prints():
    rows = {row.name: row for row in plan(Budget(0.5, 1e-10), 2**16).rows}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = {
        "square-root, paper's C": "`square-root` with the paper's constant",
        "square-root": "`square-root` (the paper",
    }
    for name, row in rows.items():
        if name == "identity":
            continue
        line = next(x for x in text.splitlines() if x.startswith(f"| {names.get(name, f'`{name}`')}"))
        assert f"| {row.worst_std:.2f} | {row.ratio_to_lower_bound:.3f} |" in line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_named_in_the_docs_exist():
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    for page in PAGES:
        for name in re.findall(r"`evercount ([a-z]+)", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name} names the command {name!r}"
    assert known
