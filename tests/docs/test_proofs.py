"""Machine-checked lemmas: nothing is assumed, the table names what is there, and Coq agrees where
it is installed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from check_proofs import FOLDER, assumed, axioms, check, statements

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "how-sure.md").read_text(encoding="utf-8")
FILES = sorted(FOLDER.glob("*.v"))
ROWS = [re.split(r"(?<!\\)\|", line) for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_nothing_is_assumed() -> None:
    assert len(FILES) >= 6
    for path in FILES:
        assert assumed(path.read_text(encoding="utf-8")) == [], path.name
    assert assumed("Lemma x : 1 = 2. Admitted.") == ["Admitted"]
    assert assumed("(* Admitted *) Axiom x : False.") == ["Axiom"]


def test_the_table_names_theorems_that_are_there() -> None:
    named = 0
    for row in ROWS:
        for file, rest in re.findall(r"`(\w+\.v)`: (.*)", row[2]):
            known = statements(FOLDER / file)
            for name in re.findall(r"`(\w+)`", rest):
                named += 1
                assert name in known, f"{file}: {name}"
    assert named >= 14


def test_the_table_names_tests_and_proofs_that_are_there() -> None:
    for row in ROWS:
        assert row[5].strip(), "every claim has a proof on paper"
        for name in re.findall(r"`(tests/\S+?\.py)`", "|".join(row)):
            assert (ROOT / name).is_file(), name
    machine = {name for row in ROWS for name in re.findall(r"`(\w+\.v)`", row[2])}
    assert machine == {path.name for path in FILES}


def test_axioms_are_read() -> None:
    printed = (
        "Closed under the global context\n"
        "Axioms:\n"
        "A.B.false_is_true : False\n"
        "C.long_name\n"
        "  : forall x, x\n"
    )
    assert axioms(printed) == {"false_is_true", "long_name"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("coqc") is None, reason="needs Coq: apt-get install coq")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_coq_agrees(path: Path, tmp_path: Path) -> None:
    assert check(path, tmp_path) is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("coqc") is None, reason="needs Coq: apt-get install coq")
def test_a_wrong_lemma_is_refused(tmp_path: Path) -> None:
    """Planted: noise of discrepancies with the wrong sign, a bound that is too small, and an axiom
    in disguise."""
    terrace = (FOLDER / "Terrace.v").read_text(encoding="utf-8")
    wrong = {
        "Sign.v": terrace.replace("fun b => z b + sum d b.", "fun b => z b - sum d b."),
        "Bound.v": terrace.replace(
            "<= (n0 + rates levels) * size d ticks.", "<= rates levels * size d ticks."
        ),
        "Hidden.v": (
            "Require Import Classical.\n"
            "Lemma x : forall p : Prop, p \\/ ~ p. Proof. exact classic. Qed.\n"
        ),
    }
    faults = {}
    for name, text in wrong.items():
        assert text != terrace
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / "made").mkdir(exist_ok=True)
        faults[name] = check(tmp_path / name, tmp_path / "made")
    assert all(faults.values()), faults
    assert faults["Hidden.v"] == "rests on classic"
