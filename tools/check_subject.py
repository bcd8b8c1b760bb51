"""Check the subjects of commits: at most 72 characters, one line, plain words, no full stop.

python tools/check_subject.py FILE                 the message of the commit that is being made (a
                                                   hook of git)
python tools/check_subject.py --range main..HEAD   every commit of a branch
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

LONGEST = 72
WRITTEN_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"


def faults(message: str) -> list[str]:
    """List what is wrong with a message, as sentences that say what to do."""
    text = message.partition(SCISSORS)[0]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    while lines and not lines[0].strip():
        lines.pop(0)
    subject = lines[0] if lines else ""
    if not subject.strip():
        return ["the subject is empty: say what changes for whom"]
    if subject.startswith(WRITTEN_BY_GIT):
        return []
    found = []
    if len(subject) > LONGEST:
        found.append(
            f"the subject has {len(subject)} characters: {LONGEST} at most; the rest goes below an "
            "empty line"
        )
    if subject != subject.strip():
        found.append("the subject begins or ends with a blank: take it out")
    if subject.rstrip().endswith("."):
        found.append("the subject ends with a full stop: take it out")
    if re.match(r"(?:wip|tmp|todo)\b", subject.strip(), re.IGNORECASE):
        found.append("the subject says nothing: say what changes for whom")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty: leave one empty line after the subject")
    return found


def messages(commits: str) -> dict[str, str]:
    """Read the messages of a range of commits, by their short names; merges are left out."""
    listed = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h%x00%B%x01", commits],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    records = [
        record.strip("\n").partition("\0") for record in listed.split("\x01") if record.strip()
    ]
    return {name: message for name, _, message in records}


def main(arguments: list[str] | None = None) -> int:
    """Check one message or a range; print what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--range")
    given = parser.parse_args(arguments)
    if (given.file is None) == (given.range is None):
        parser.error("give a file or --range")
    checked = (
        messages(given.range) if given.range else {"commit": given.file.read_text(encoding="utf-8")}
    )
    wrong = [(name, fault) for name, message in checked.items() for fault in faults(message)]
    for name, fault in wrong:
        print(f"{name}: {fault}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
