"""Install the wheel into empty environments: every Python from 3.11 on that is here, without and
with each extra.

    python tools/check_package.py [--python 3.11 --python 3.12 …] [--extra files …]

It needs `uv` and a package registry. Each environment imports what its extra promises and counts
one stream; the command plans one, or says what to install where its extra is missing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
HEAVY = {"dev", "spark", "torch"}
"""Extras of more than 400 MB: checked when they are named."""
MODULES = {
    "cli": "evercount.cli",
    "plot": "matplotlib",
    "accounting": "dp_accounting",
    "files": "evercount.files.source",
    "store": "evercount.store",
    "postgres": "psycopg",
    "service": "evercount.service.http_app",
    "client": "httpx",
    "consume": "evercount.consume.log_sources",
    "lake": "deltalake",
    "frames": "polars",
    "audit": "evercount.audit.service_door",
    "examples": "evercount.examples.flights",
    "run": "evercount.service.http_app",
    "torch": "evercount.reproduce.device_simulator",
    "docs": "mkdocs",
    "all": "evercount.service.http_app",
    "spark": "evercount.spark",
}
PROGRAM = """
import importlib, sys
from evercount import Budget, Count, Stream
release = Stream(Count(), Budget(1.0, 1e-6), horizon=8).step(3)
assert release.std > 0
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """One command, its output kept."""
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def has_command(extra: str, extras: dict[str, list[str]]) -> bool:
    """Whether an extra brings what the command `evercount` needs."""
    parts = [
        part for need in extras.get(extra, []) for part in re.findall(r"evercount\[(.*?)\]", need)
    ]
    return extra == "cli" or any(
        has_command(name, extras) for names in parts for name in names.split(",")
    )


def check(wheel: Path, python: str, extra: str, folder: Path, command: bool) -> str:
    """`ok`, or the last line of what went wrong. Without its parts the `command` says what to
    install."""
    environment = folder / f"{Path(python).parts[-3:][0]}-{extra or 'plain'}"
    name = f"evercount[{extra}] @ {wheel.as_uri()}" if extra else f"evercount @ {wheel.as_uri()}"
    binary = environment / "bin"
    steps: list[list[object]] = [
        ["uv", "venv", "--quiet", "--no-python-downloads", "--python", python, environment],
        ["uv", "pip", "install", "--quiet", "--python", binary / "python", name],
        [
            binary / "python",
            "-W",
            "error::SyntaxWarning",
            "-c",
            PROGRAM,
            *([MODULES[extra]] if extra else []),
        ],
        [binary / "evercount", "plan", "--epsilon", "1", "--delta", "1e-6", "--horizon", "8"],
        [binary / "python", "-m", "evercount", "--version"],
    ]
    for step in steps:
        done = run(*step)
        if not command and done.returncode == 7 and "pip install 'evercount[cli]'" in done.stderr:
            continue
        if done.returncode:
            return (
                f"{Path(str(step[0])).name}: "
                f"{(done.stderr or done.stdout).strip().splitlines()[-1]}"
            )
    return "ok"


def main() -> int:
    """Build the wheel once and print one line per environment."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", action="append")
    parser.add_argument("--extra", action="append")
    given = parser.parse_args()
    chosen = given.extra or ["", *(extra for extra in extras if extra not in HEAVY)]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = run("uv", "build", "--quiet", "--wheel", "--out-dir", folder)
        if built.returncode:
            sys.stderr.write(built.stderr)
            return 1
        wheel = next(folder.glob("*.whl"))
        for python in given.python or PYTHONS:
            for extra in chosen:
                answer = check(wheel, python, extra, folder, has_command(extra, extras))
                failed += answer != "ok"
                sys.stdout.write(f"Python {python} {extra or 'no extra':10} {answer}\n")
                sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
