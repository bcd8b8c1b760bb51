"""The pages for contributors are followed: their changes are made in a copy of the tree, and their
tests run there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import architecture

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "first-query.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COPIED = ("src", "tests", "tools", "docs/queries.md", "pyproject.toml")


@dataclass(frozen=True)
class Edit:
    """A fence `diff`: the file, the one line that must be there once, and the lines that follow it,
    or replace it."""

    file: str
    line: str
    added: tuple[str, ...]
    replaces: bool

    def apply(self, text: str) -> str:
        assert text.count(f"{self.line}\n") == 1, f"{self.file}: {self.line!r} must be there once"
        kept = () if self.replaces else (self.line,)
        return text.replace(f"{self.line}\n", "\n".join((*kept, *self.added, "")))


def edits() -> list[Edit]:
    found = []
    for body in (body for language, body in FENCE.findall(PAGE) if language == "diff"):
        file, context, *rest = body.splitlines()
        assert context.startswith(" ")
        removed = [line[1:] for line in rest if line.startswith("-")]
        assert removed in ([], [context[1:]])
        added = tuple(line[1:] for line in rest if line.startswith("+"))
        assert len(removed) + len(added) == len(rest)
        found.append(Edit(file, context[1:], added, bool(removed)))
    return found


def new_files() -> dict[str, str]:
    """The files that the page asks for: the fence that follows the sentence with the name."""
    names = re.findall(r"\*\*(src/\S+/threshold\.\S+?)\*\*", PAGE)
    bodies = [body for language, body in FENCE.findall(PAGE) if language in ("python", "text")]
    return dict(zip(names, bodies, strict=False))


def test_the_places_of_the_page_are_there() -> None:
    assert len(edits()) == 9
    for edit in edits():
        edit.apply((ROOT / edit.file).read_text(encoding="utf-8"))
    assert list(new_files()) == [
        f"src/evercount/queries/threshold.{ending}" for ending in ("py", "proof.md")
    ]


@pytest.fixture
def followed(tmp_path: Path) -> Path:
    """A copy of the tree with the changes of the page."""
    ignored = shutil.ignore_patterns("__pycache__", "static", "golden")
    for name in COPIED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for name, text in new_files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for edit in edits():
        path = tmp_path / edit.file
        path.write_text(edit.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
    return tmp_path


def run(folder: Path, line: str) -> tuple[int, str]:
    program, *rest = shlex.split(line)
    words = ["-m", "evercount", *rest] if program == "evercount" else rest
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_stranger_who_follows_the_page_has_a_query(followed: Path) -> None:
    lines = [
        line
        for line in PAGE.splitlines()
        if line.startswith(("evercount audit", "python -m pytest"))
    ]
    attack, first, second = lines
    code, said = run(followed, attack)
    assert code == 0, said
    assert "claimed S = 2" in said
    assert "the claim holds" in said
    code, said = run(followed, f"{first} -n 0 -p no:cacheprovider")
    assert code == 0, said
    assert " skipped" not in said
    code, said = run(followed, f"{second} -n 0 -p no:cacheprovider")
    assert code == 1, "docs/queries.md lacks the query, as the page says"
    assert "test_every_query_has_a_runnable_example[threshold]" in said
    failed = re.findall(r"def (test_\w+)", said)
    assert "test_every_query_is_in_the_table" not in failed

    path = followed / "src" / "evercount" / "queries" / "threshold.py"
    path.write_text(
        path.read_text(encoding="utf-8").replace("return 2.0 if", "return 1.0 if"), encoding="utf-8"
    )
    code, said = run(followed, attack)
    assert code != 0, "the page says that this claim is refuted"
    assert run(followed, f"{first} -n 0 -p no:cacheprovider")[0] == 1


def test_the_picture_is_what_the_imports_are() -> None:
    assert architecture.main(["--check"]) == 0


def test_another_import_changes_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "evercount"
    shutil.copytree(
        architecture.SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "static")
    )
    monkeypatch.setattr(architecture, "SOURCE", copy)
    assert architecture.picture() == architecture.PICTURE.read_text(encoding="utf-8")
    module = copy / "words.py"
    module.write_text(
        module.read_text(encoding="utf-8") + "\nfrom evercount.mechanisms import calibrate\n"
    )
    assert architecture.main(["--check"]) == 1


def test_imports_for_types_alone_are_no_arrows() -> None:
    import ast

    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from evercount.cli import app\n"
    )
    assert architecture.imported(ast.parse(text)) == set()
    assert architecture.imported(ast.parse("def f():\n    from evercount.cli import app\n")) == {
        "cli"
    }
