"""`.github`: what the workflows call exists, runs with few rights, and is pinned; forms ask what
the pages say.

The linters of such files (zizmor, their schemas, shellcheck) run in `make lint`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from workflow_scripts import FOLDER, script_of, steps

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.yml"))
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {
    name
    for line in re.findall(r"^([a-z][\w -]*):(?!=)", MAKEFILE, re.MULTILINE)
    for name in line.split()
}


def called(workflow: dict[str, Any]) -> set[str]:
    """The targets of make that a workflow calls, those of a matrix included."""
    found = set()
    for job in workflow["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            for words in re.findall(r"\bmake ([^\n#&|;]*)", step.get("run", "")):
                for word in words.split():
                    if word.startswith('"$'):
                        found.update(matrix[word.strip('"$').lower()])
                    elif "=" not in word:
                        found.add(word)
    return found


def test_every_target_that_a_workflow_calls_exists() -> None:
    names = set().union(*(called(workflow) for workflow in WORKFLOWS.values()))
    assert {"soak", "oldest", "newest", "release-check", "dist", "sbom", "docs"} <= names
    assert names <= TARGETS, names - TARGETS


def test_ci_wraps_the_same_program_as_everybody() -> None:
    jobs = WORKFLOWS["ci.yml"]["jobs"]
    for name in ("linux", "macos"):
        assert ".ci/run" in [
            step.get("run", "").partition(" #")[0].strip() for step in jobs[name]["steps"]
        ], name


def test_every_python_of_the_package_is_in_the_matrix() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        name.rpartition(" :: ")[2]
        for name in project["classifiers"]
        if re.search(r":: 3\.\d+$", name)
    }
    matrix = WORKFLOWS["ci.yml"]["jobs"]["linux"]["strategy"]["matrix"]["python"]
    assert {"3.11", "3.12", "3.13", "3.14"} == set(matrix)
    assert named <= set(matrix)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_rights_are_given_by_job(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    uses = re.findall(r"uses: (.*)", text)
    assert uses
    for line in uses:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line
    assert WORKFLOWS[name]["permissions"] == {}
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["permissions"]
        assert job["timeout-minutes"] <= 360
    for step in steps(WORKFLOWS[name]):
        assert "${{" not in step.get("run", ""), (
            "values go through env, so that no text becomes a command"
        )


def test_publishing_needs_the_checks_and_no_password() -> None:
    jobs = WORKFLOWS["release.yml"]["jobs"]
    assert set(jobs["publish"]["needs"]) >= {"check", "build"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "release"
    used = [step["uses"].partition("@")[0] for step in jobs["build"]["steps"] if "uses" in step]
    assert {"actions/attest-build-provenance", "actions/attest-sbom"} <= set(used)
    assert "password" not in str(jobs["publish"])


def test_no_file_names_a_registry() -> None:
    files = [*GITHUB.rglob("*.*"), ROOT / ".pre-commit-config.yaml", *(ROOT / "locks").iterdir()]
    assert len(files) > 12
    for path in files:
        assert "https://" not in path.read_text(encoding="utf-8"), path


def test_owners_are_named_for_paths_that_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text(encoding="utf-8").splitlines()
    rules = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    for pattern, owners in rules.items():
        assert owners.startswith("@")
        if pattern.startswith("/"):
            assert (ROOT / pattern.strip("/")).exists(), pattern
    for room in ("privacy", "noise", "mechanisms"):
        assert "guardians" in rules[f"/src/evercount/{room}/"]


@pytest.mark.parametrize(
    "path", sorted(GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")), ids=lambda path: path.stem
)
def test_forms_ask_for_what_is_needed(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    required = {
        name for name, field in fields.items() if field.get("validations", {}).get("required")
    }
    need = {
        "bug": {"version", "steps", "happened"},
        "wrong-number": {"version", "declaration", "number", "why"},
    }
    assert required >= need.get(path.stem, {"claim"})
    if path.stem == "new-mechanism":
        assert next(iter(fields)) == "claim", "the claim comes first"
    if path.stem in need:
        assert "in private" in path.read_text(encoding="utf-8")
    for name in re.findall(r"docs/\S+\.md", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_script_for_the_linter_hides_no_line() -> None:
    step = {"run": "echo $A\nfalse", "env": {"A": "${{ github.sha }}"}}
    assert "export IMAGE=x PWD=x A=x" in script_of(step)
    assert script_of(step).endswith("echo $A\nfalse\n)\n")
