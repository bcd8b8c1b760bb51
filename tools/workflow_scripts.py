"""Print the shell lines of all workflows as one script, for shellcheck."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).parents[1] / ".github" / "workflows"
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through the steps of every job."""
    for job in workflow["jobs"].values():
        yield from job["steps"]


def script_of(step: dict[str, Any]) -> str:
    """Write the shell lines of a step, in a shell of its own, with the variables that it is
    given."""
    names = " ".join(f"{name}=x" for name in ("IMAGE", "PWD", *step.get("env", {})))
    text = EXPRESSION.sub("x", step["run"]).strip()
    return f"(\nexport {names} GITHUB_REF_NAME=x GITHUB_RUN_ID=x GITHUB_OUTPUT=x\n{text}\n)\n"


def main() -> None:
    """Print the scripts of all workflows."""
    parts = ["set -e"]
    for path in sorted(FOLDER.glob("*.yml")):
        parts += [
            script_of(step)
            for step in steps(yaml.safe_load(path.read_text(encoding="utf-8")))
            if "run" in step
        ]
    sys.stdout.write("\n".join(parts))


if __name__ == "__main__":
    main()
