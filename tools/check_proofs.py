"""Let Coq check proofs/*.v, and refuse what was assumed instead of proved.

python tools/check_proofs.py      needs coqc (Debian: apt-get install coq)
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "proofs"
LEGAL = {"functional_extensionality_dep", "sig_forall_dec", "sig_not_dec"}
"""Axioms of functions and of Coq's real numbers."""
STATEMENT = re.compile(r"^\s*(?:Theorem|Lemma) (\w+)", re.MULTILINE)
ASSUMED = re.compile(r"\b(?:Admitted|admit|Axiom|Parameter|Conjecture|Abort)\b")
COMMENT = re.compile(r"\(\*.*?\*\)", re.DOTALL)


def statements(path: Path) -> list[str]:
    """List what a file proves."""
    return STATEMENT.findall(COMMENT.sub("", path.read_text(encoding="utf-8")))


def assumed(text: str) -> list[str]:
    """List the words with which a file would assume something."""
    return ASSUMED.findall(COMMENT.sub("", text))


def axioms(printed: str) -> set[str]:
    """Read the axioms that `Print Assumptions` names."""
    return {
        name.rpartition(".")[2]
        for name in re.findall(r"^([\w.]+)\s*(?::|\n\s+:)", printed, re.MULTILINE)
    } - {"Axioms"}


def check(path: Path, folder: Path) -> str | None:
    """Compile one file in a folder; say what is wrong, or nothing."""
    words = assumed(path.read_text(encoding="utf-8"))
    if words:
        return f"assumes something: {', '.join(words)}"
    names = statements(path)
    asked = "".join(f"Print Assumptions {name}.\n" for name in names)
    (folder / path.name).write_text(path.read_text(encoding="utf-8") + asked, encoding="utf-8")
    done = subprocess.run(
        ["coqc", "-q", path.name], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr or done.stdout).strip()
    strange = axioms(done.stdout) - LEGAL
    return f"rests on {', '.join(sorted(strange))}" if strange else None


def main() -> int:
    """Check all files, and print a line for each."""
    if shutil.which("coqc") is None:
        print("coqc is not here: apt-get install coq", file=sys.stderr)
        return 1
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        for path in sorted(FOLDER.glob("*.v")):
            fault = check(path, Path(name))
            wrong += fault is not None
            print(
                f"{path.name:16} {len(statements(path)):3} statements  {fault or 'proved'}",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
