"""`make release-check` finds what is planted: other versions, changed bits, rows that were
published differently."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import release_check
from release_check import (
    ROOT,
    STEPS,
    Outcome,
    check_tree,
    check_version,
    code_of,
    previous_tag,
    upgrade,
)

OTHER_NOISE = """
import sys
import evercount
kept = evercount.Secret.from_hex
evercount.Secret.from_hex = staticmethod(lambda text: kept(text[::-1]))
"""
FORGETS = """
from pathlib import Path
for path in (Path("daily.csv"), *Path().glob("*.state")):
    path.unlink(missing_ok=True)
"""


def repository(folder: Path, citation: str = "1.0.0") -> Path:
    (folder / "src" / "evercount").mkdir(parents=True)
    (folder / "src" / "evercount" / "__init__.py").write_text('__version__ = "1.0.0"\n')
    (folder / "CITATION.cff").write_text(f"version: {citation}\n")
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0.0\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "a change")


def python_with(program: str, folder: Path) -> Path:
    """A Python that runs a few lines before everything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


def test_versions_of_this_tree_agree() -> None:
    assert check_version().verdict == "ok", check_version().reason


def test_another_version_is_found(tmp_path: Path) -> None:
    found = check_version(repository(tmp_path, citation="1.0.1"))
    assert found.verdict == "FAILED"
    assert "CITATION.cff: 1.0.1" in found.reason


def test_a_tag_is_not_used_twice(tmp_path: Path) -> None:
    repository(tmp_path)
    git(tmp_path, "tag", "v1.0.0")
    assert check_version(tmp_path).verdict == "ok"
    commit(tmp_path)
    assert check_version(tmp_path).verdict == "FAILED"


def test_the_tag_before_this_commit_is_found(tmp_path: Path) -> None:
    repository(tmp_path)
    assert previous_tag(tmp_path) is None
    for name in ("v1.9.0", "v1.10.0", "v1.11.0"):
        commit(tmp_path)
        git(tmp_path, "tag", name)
    assert previous_tag(tmp_path) == "v1.10.0"


def test_what_is_not_committed_is_found(tmp_path: Path) -> None:
    repository(tmp_path)
    assert check_tree(tmp_path).verdict == "ok"
    (tmp_path / "new.txt").touch()
    assert "new.txt" in check_tree(tmp_path).reason


def test_what_one_program_began_another_goes_on_with(tmp_path: Path) -> None:
    python = Path(sys.executable)
    assert upgrade(python, python, tmp_path) == Outcome("ok")


@pytest.mark.parametrize(
    ("program", "reason"), [(OTHER_NOISE, "bits of noise"), (FORGETS, "published rows")]
)
def test_an_upgrade_that_breaks_a_promise_is_found(
    program: str, reason: str, tmp_path: Path
) -> None:
    new = python_with(program, tmp_path / "new")
    work = tmp_path / "work"
    work.mkdir()
    found = upgrade(Path(sys.executable), new, work)
    assert found.verdict == "FAILED"
    assert reason in found.reason


def test_strictly_what_was_not_checked_fails() -> None:
    unchecked = [Outcome("ok"), Outcome("not checked", "no tag")]
    assert code_of(unchecked, strict=False) == 0
    assert code_of(unchecked, strict=True) == 1
    assert code_of([Outcome("FAILED", "x")], strict=False) == 1


def test_the_page_names_every_step() -> None:
    page = (ROOT / "RELEASING.md").read_text(encoding="utf-8")
    table = page.partition("| step |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w+) \|", table, re.MULTILINE) == list(STEPS)


def test_the_makefile_is_asked_for_the_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert release_check.has_target("wheel")
    monkeypatch.setattr(release_check, "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text("x:\n")
    assert release_check.check_deployment() == Outcome(
        "not checked", "the Makefile has no target deploy-test"
    )
