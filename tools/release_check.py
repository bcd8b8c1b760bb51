"""Check a release before it is tagged: one line per step, `ok`, `FAILED` or `not checked`, with the
reason.

    make release-check                 python tools/release_check.py [--strict] [--only STEP …]

`--strict` also fails where a step could not be checked on this machine. The steps are those of
RELEASING.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(".venv") / "uv" / "bin"
KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
BEGIN_STREAM = f"""
import sys
from pathlib import Path
from evercount import Budget, Count, Secret, Stream
stream = Stream(Count(), Budget(1.0, 1e-6), horizon=8, secret=Secret.from_hex("{KEY}"))
print(*[stream.step(count).value for count in (3, 1, 4)])
Path(sys.argv[1]).write_bytes(stream.snapshot())
"""
CONTINUE_STREAM = """
import sys
from pathlib import Path
from evercount import Stream
stream = Stream.restore(Path(sys.argv[1]).read_bytes())
print(*[stream.step(count).value for count in (1, 5, 9)])
"""
WHOLE_STREAM = f"""
from evercount import Budget, Count, Secret, Stream
stream = Stream(Count(), Budget(1.0, 1e-6), horizon=8, secret=Secret.from_hex("{KEY}"))
print(*[stream.step(count).value for count in (3, 1, 4, 1, 5, 9)])
"""
RELEASE = (
    *(
        "release",
        "events.csv",
        "--time",
        "t",
        "--zone",
        "UTC",
        "--every",
        "1d",
        "--start",
        "2026-01-01",
    ),
    *("--epsilon", "1", "--horizon", "30", "--out", "daily.csv"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step found: `ok`, `FAILED` or `not checked`, and the reason."""

    verdict: str
    reason: str = ""


def ok(reason: str = "") -> Outcome:
    """Report a step that passed."""
    return Outcome("ok", reason)


def failed(reason: str) -> Outcome:
    """Report a step that failed."""
    return Outcome("FAILED", reason)


def not_checked(reason: str) -> Outcome:
    """Report a step that this machine cannot do."""
    return Outcome("not checked", reason)


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run one command and keep its output; `uv` of the environment comes first."""
    path = os.pathsep.join((str(ROOT / UV), os.environ.get("PATH", "")))
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip


def outcome_of(*command: object) -> Outcome:
    """Run a command that passes or fails, and keep the last line of what it said."""
    done = run(*command)
    if done.returncode == 0:
        return ok()
    lines = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()
    return failed(lines[-1])


def versions(root: Path = ROOT) -> dict[str, str]:
    """Read the version from every file that names it."""
    patterns = {
        "src/evercount/__init__.py": r'^__version__ = "([^"]+)"',
        "CITATION.cff": r"^version: (\S+)",
        "CHANGELOG.md": r"^## (\d\S*)",
    }
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def check_version(root: Path = ROOT) -> Outcome:
    """Compare the versions, and refuse one whose tag names another commit."""
    found = versions(root)
    if len(set(found.values())) > 1:
        return failed(", ".join(f"{name}: {version}" for name, version in found.items()))
    tag = f"v{found['CITATION.cff']}"
    tagged = run("git", "rev-list", "-1", tag, cwd=root).stdout.strip()
    if tagged and tagged != run("git", "rev-parse", "HEAD", cwd=root).stdout.strip():
        return failed(f"the tag {tag} names another commit: choose the next version")
    return ok(found["CITATION.cff"])


def check_tree(root: Path = ROOT) -> Outcome:
    """Refuse files that are not committed."""
    changed = run("git", "status", "--porcelain", cwd=root).stdout.splitlines()
    return (
        failed(f"not committed: {', '.join(line[3:] for line in changed[:3])}") if changed else ok()
    )


def check_vectors() -> Outcome:
    """Compute the golden vectors again."""
    return outcome_of(sys.executable, "tools/vectors.py", "--check")


def check_docs() -> Outcome:
    """Build the site; a warning fails."""
    return outcome_of("make", "docs")


def check_package() -> Outcome:
    """Install the wheel, with each extra, into empty environments."""
    if run("uv", "--version").returncode:
        return not_checked("uv is not here: run `make .venv/.run`")
    return outcome_of(sys.executable, "tools/check_package.py")


def has_target(name: str) -> bool:
    """Whether the Makefile has a target."""
    return (
        re.search(
            rf"^{re.escape(name)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        is not None
    )


def check_deployment() -> Outcome:
    """Build the image and run it."""
    if not has_target("deploy-test"):
        return not_checked("the Makefile has no target deploy-test")
    if shutil.which("podman") is None:
        return not_checked("podman is not here")
    return outcome_of("make", "deploy-test")


def previous_tag(root: Path = ROOT) -> str | None:
    """Find the newest tag of a version before this commit."""
    head = set(run("git", "tag", "--points-at", "HEAD", cwd=root).stdout.split())
    tags = run(
        "git", "tag", "--merged", "HEAD", "--list", "v[0-9]*", "--sort=-version:refname", cwd=root
    )
    return next((tag for tag in tags.stdout.split() if tag not in head), None)


def spoken(python: Path, folder: Path, *arguments: object) -> str:
    """Run Python in a folder and return what it printed; a failure raises with the last line."""
    done = run(python, *arguments, cwd=folder)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()
        raise RuntimeError(f"{arguments[0]}: {lines[-1]}")
    return done.stdout


def upgrade(old: Path, new: Path, folder: Path) -> Outcome:
    """Begin a stream and a file with one Python's evercount; another one must go on with the same
    bits."""
    try:
        begun = spoken(old, folder, "-c", BEGIN_STREAM, "stream.snapshot").split()
        continued = spoken(new, folder, "-c", CONTINUE_STREAM, "stream.snapshot").split()
        whole = spoken(new, folder, "-c", WHOLE_STREAM).split()
        if begun + continued != whole:
            return failed(f"bits of noise: {' '.join(begun + continued)} is not {' '.join(whole)}")
        days = [f"2026-01-{day:02}T12:00Z" for day in range(1, 11)]
        (folder / "events.csv").write_text("\n".join(["t", *days, ""]), encoding="utf-8")
        spoken(old, folder, "-m", "evercount", *RELEASE, "--end", "2026-01-05")
        published = (folder / "daily.csv").read_text(encoding="utf-8")
        spoken(new, folder, "-m", "evercount", *RELEASE, "--end", "2026-01-09")
        rows = (folder / "daily.csv").read_text(encoding="utf-8")
    except RuntimeError as error:
        return failed(str(error))
    if not rows.startswith(published):
        return failed("published rows of daily.csv have changed")
    if rows.count("\n") != published.count("\n") + 4:
        return failed("the new version did not add the four days")
    return ok()


def install(commit: str, folder: Path) -> Path:
    """Install a commit, with files and command, into an environment; return its Python."""
    tree = folder / "tree"
    tree.mkdir(parents=True)
    archive = folder / "tree.tar"
    steps: list[list[object]] = [
        ["git", "archive", "--output", archive, commit],
        ["tar", "-xf", archive, "-C", tree],
        ["uv", "venv", "--quiet", "--python", sys.executable, folder / "env"],
        [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            folder / "env" / "bin" / "python",
            f"{tree}[files]",
        ],
    ]
    for step in steps:
        done = run(*step)
        if done.returncode:
            raise RuntimeError(f"{step[0]}: {done.stderr.strip().splitlines()[-1]}")
    return folder / "env" / "bin" / "python"


def check_upgrade() -> Outcome:
    """Go on in this version with what the previous tag began."""
    tag = previous_tag()
    if tag is None:
        return not_checked("there is no tag of an earlier version")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            old = install(tag, folder / "old")
            new = install("HEAD", folder / "new")
        except RuntimeError as error:
            return failed(str(error))
        found = upgrade(old, new, folder)
        return Outcome(found.verdict, found.reason or f"from {tag}")


STEPS: dict[str, Callable[[], Outcome]] = {
    "version": check_version,
    "tree": check_tree,
    "vectors": check_vectors,
    "docs": check_docs,
    "package": check_package,
    "deployment": check_deployment,
    "upgrade": check_upgrade,
}


def outcomes(names: list[str]) -> Iterator[tuple[str, Outcome]]:
    """Run the steps in their order."""
    for name, step in STEPS.items():
        if name in names:
            yield name, step()


def code_of(found: list[Outcome], strict: bool) -> int:
    """Return the exit status: 1 if a step failed, or, strictly, was not checked."""
    bad = {"FAILED", "not checked"} if strict else {"FAILED"}
    return int(any(outcome.verdict in bad for outcome in found))


def main() -> int:
    """Run the steps and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--only", action="append", choices=tuple(STEPS))
    given = parser.parse_args()
    found = []
    for name, outcome in outcomes(given.only or list(STEPS)):
        found.append(outcome)
        print(f"{name:12} {outcome.verdict:12} {outcome.reason}".rstrip(), flush=True)
    return code_of(found, given.strict)


if __name__ == "__main__":
    sys.exit(main())
