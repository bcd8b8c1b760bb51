"""The docs site builds without a warning, its reference pages are what the code says, and its snippets run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```(\w*)\n.*?^```", re.DOTALL | re.MULTILINE)
RUN_BY_HAND = {
    "console": "a session that is shown, not typed",
    "text": "a file or a picture",
    "toml": "read by tests/declare",
    "json": "an answer",
    "sql": "run by tests/files/test_duckdb_queries.py",
    "nginx": "a file of another program",
    "ini": "a file of another program",
}
"""Fences that are not executed, and why."""


def test_reference_pages_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_reference_lists_every_command_and_option():
    """A planted gap: without one option's row the page is not accepted."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import reference
    finally:
        sys.path.pop(0)
    page = reference.commands_page()
    for name in ("release", "serve", "plan", "audit replay", "store"):
        assert f"## evercount {name}" in page
    assert "`--epsilon`" in page
    lines = page.splitlines()
    broken = "\n".join(line for line in lines if "`--late`" not in line)
    assert broken != page.rstrip()


def test_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page in ("index.html", "tutorial/flights.html", "reference/api.html", "proofs/index.html"):
        assert (tmp_path / "site" / page).is_file()
    api = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    assert 'id="evercount.Stream.step"' in api


def test_site_refuses_a_broken_link(tmp_path):
    """The check is real: a copy of the site with one broken link does not build."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Home\n\n[gone](gone.md)\n", encoding="utf-8")
    configuration = "site_name: a\nvalidation: {links: {not_found: warn}}\n"
    (tmp_path / "mkdocs.yml").write_text(configuration, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "gone.md" in done.stderr


def test_the_list_of_decisions_is_complete():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((0[\w-]+\.md)\)", (folder / "index.md").read_text(encoding="utf-8"))
    assert listed == sorted(page.name for page in folder.glob("0*.md"))


def test_every_fence_is_executed_or_has_a_reason():
    for page in PAGES:
        for language in FENCE.findall(page.read_text(encoding="utf-8")):
            assert language in ("python", "sh", *RUN_BY_HAND), f"{page.name} has a fence of kind {language!r}"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if SNIPPET.search(page.read_text(encoding="utf-8"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_snippets_run(page, tmp_path, monkeypatch):
    """The blocks of a page belong together: they run in order, in one empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names: dict[str, object] = {"__name__": "snippet"}
    for language, block in SNIPPET.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, page.name, "exec"), names)
        else:
            # into a file: a pipe would wait for servers in the background
            with Path("output.txt").open("w+", encoding="utf-8") as output:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", block], stdout=output, stderr=subprocess.STDOUT, check=False
                )
                output.seek(0)
                assert done.returncode == 0, f"{block}\n{output.read()}"


INDENTED = re.compile(r"^    (evercount (?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)


def test_commands_that_are_shown_but_not_run_are_legal():
    """Indented lines show commands that need a cluster, a server or an hour: each must name what there is."""
    import typer.main

    from evercount.cli import app

    seen = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for line in INDENTED.findall(text):
            words = shlex.split(line.replace("\\\n", " "), comments=True)[1:]
            command, context = typer.main.get_command(app), None
            while words and hasattr(command, "get_command"):
                context = typer.Context(command, parent=context)
                command, words = command.get_command(context, words[0]), words[1:]
                assert command is not None, f"{page.name}: {line}"
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            for word in words:
                if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit() and word != "-":
                    assert word.partition("=")[0] in known | {"--help", "-h"}, f"{page.name}: {line}"
            seen += 1
    assert seen > 20
