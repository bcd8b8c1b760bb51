"""Check text files against .editorconfig: UTF-8, Unix ends of lines, no blanks at the end, one end
of file.

python tools/check_text.py [FILE …]     without files: all that git knows
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
AS_THEY_CAME = ("docs/assets/", "src/evercount/service/static/", "tests/fixtures/", "docs/figures/")
"""Files of other projects, pictures, and fixtures, which hold what they test."""
SUFFIXES = {
    *(
        ".py",
        ".md",
        ".toml",
        ".yml",
        ".yaml",
        ".cff",
        ".lock",
        ".sh",
        ".sql",
        ".conf",
        ".service",
        ".txt",
    ),
    *("", ".editorconfig", ".gitignore", ".v"),
}


def tracked() -> list[Path]:
    """List the files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name]


def fault(data: bytes) -> str | None:
    """Say what is wrong with a text, or nothing."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8"
    if "\r" in text:
        return "has Windows ends of lines"
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip(" \t"):
            return f"line {number} ends with a blank"
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        return "must end with one end of line"
    return None


def is_checked(path: Path) -> bool:
    """Whether a file is a text of this project."""
    name = path.resolve().relative_to(ROOT).as_posix()
    return path.is_file() and path.suffix in SUFFIXES and not name.startswith(AS_THEY_CAME)


def main(names: list[str]) -> int:
    """Check the files that are named, or all."""
    wrong = 0
    for path in [Path(name) for name in names] or tracked():
        found = fault(path.read_bytes()) if is_checked(path) else None
        if found:
            wrong += 1
            print(f"{path.resolve().relative_to(ROOT)} {found}", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
