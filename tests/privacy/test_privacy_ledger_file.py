"""The file of a ledger: one user at a time, every change is seen, no copy spends, and a crash is on
the safe side."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evercount.errors import BudgetExceeded, ParameterError, SnapshotError, StoreError
from evercount.privacy import Budget, Cost, Ledger
from evercount.privacy.ledger_file import LedgerFile

TOTAL = Budget(1.0, 1e-8)
PART = Cost(Budget(0.2, 1e-9), leak=1e-12)
KEY = bytes(range(32))
KEYS = [None, KEY]


def filled(path: Path, key: bytes | None = None, entries: int = 3) -> None:
    with Ledger(TOTAL, path, key=key) as ledger:
        for number in range(len(ledger.entries), entries):
            ledger.spend(f"ä{number}", PART)


@pytest.mark.parametrize("key", KEYS)
def test_what_was_spent_is_there_again(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "ledger"
    filled(path, key)
    with Ledger(path=path, key=key) as again:
        assert [entry.name for entry in again.entries] == ["ä0", "ä1", "ä2"]
        assert again.total == TOTAL
        assert again.entries[0].cost == PART
        again.spend("s3", PART)
        entries, left = again.entries, again.remaining()
    with Ledger(TOTAL, path, key=key) as last:
        assert (last.entries, last.remaining()) == (entries, left)
    assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "ledger.head").stat().st_mode & 0o077 == 0
    with pytest.raises(ParameterError, match="total is"):
        Ledger(Budget(2.0, 1e-8), path, key=key)
    with pytest.raises(ParameterError, match="give its total"):
        Ledger(path=tmp_path / "none")
    assert not (tmp_path / "none").exists()


# -- one budget is spent once ----------------------------------------------------------------------


def test_a_second_ledger_on_one_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    code = "import sys; from evercount import Ledger; Ledger(path=sys.argv[1])"
    with Ledger(TOTAL, path):
        with pytest.raises(StoreError, match="one user at a time"):
            Ledger(path=path)
        os.link(path, tmp_path / "other name")  # a hard link is the same file and has the same lock
        with pytest.raises(StoreError, match="one user at a time"):
            Ledger(path=tmp_path / "other name")
        other = subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
        )
        assert "one user at a time" in other.stderr
    assert (
        subprocess.run(
            [sys.executable, "-c", code, path], capture_output=True, check=False
        ).returncode
        == 0
    )


def test_copies_cannot_spend(tmp_path: Path) -> None:
    for ledger in (Ledger(TOTAL), Ledger(TOTAL, tmp_path / "ledger")):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(ParameterError, match=r"twice|pickled"):
                copied(ledger)
        ledger.spend("a", PART)
        ledger.close()
    with pytest.raises(ParameterError, match="closed"):
        ledger.spend("b", PART)


def _in_child(ledger: Ledger, answer: Any) -> None:
    try:
        ledger.spend("child", PART)
        answer.send("spent")
    except ParameterError as error:
        answer.send(str(error))
    answer.recv()  # stay alive until the parent has looked


@pytest.mark.parametrize("in_file", [False, True])
def test_a_fork_cannot_spend_and_keeps_no_lock(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(TOTAL, path if in_file else None)
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(ledger, theirs))
    child.start()
    try:
        assert "before a fork" in mine.recv()
        ledger.spend("parent", PART)
        ledger.close()
        if in_file:  # the child lives, and must not hold the lock that the parent gave back
            with Ledger(path=path) as again:
                assert [entry.name for entry in again.entries] == ["parent"]
    finally:
        mine.send(None)
        child.join()


@pytest.mark.parametrize("with_head", [False, True])
def test_a_copied_file_is_refused_until_it_is_adopted(tmp_path: Path, with_head: bool) -> None:
    path, other = tmp_path / "ledger", tmp_path / "copy"
    filled(path)
    shutil.copy2(path, other)
    if with_head:
        shutil.copy2(tmp_path / "ledger.head", tmp_path / "copy.head")
    with pytest.raises(StoreError, match="is a copy of the ledger" if with_head else "is missing"):
        Ledger(path=other)
    with Ledger(path=other, adopt=True) as adopted:
        assert len(adopted.entries) == 3
    Ledger(path=other).close()


def test_a_moved_file_goes_on(tmp_path: Path) -> None:
    path, other = tmp_path / "ledger", tmp_path / "moved"
    filled(path)
    path.rename(other)
    (tmp_path / "ledger.head").rename(tmp_path / "moved.head")
    filled(other, entries=4)


def test_symbolic_links_are_refused_with_their_target(tmp_path: Path) -> None:
    path, link = tmp_path / "ledger", tmp_path / "link"
    filled(path)
    link.symlink_to(path)
    with pytest.raises(StoreError, match=r"symbolic link to .*/ledger"):
        Ledger(path=link)
    (tmp_path / "ledger.head").rename(tmp_path / "elsewhere")
    (tmp_path / "ledger.head").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        Ledger(path=path)


# -- changes are seen ------------------------------------------------------------------------------


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def without_line(number: int) -> Any:
    return lambda lines: lines[:number] + lines[number + 1 :]


CHANGES = {
    "an entry in the middle removed": without_line(2),
    "the first entry removed": without_line(1),
    "the last entry removed": without_line(3),
    "the last two entries removed": lambda lines: lines[:2],
    "the last line cut": lambda lines: [*lines[:3], lines[3][:20]],
    "an epsilon changed": lambda lines: [
        lines[0],
        lines[1].replace(b'"epsilon":0.2', b'"epsilon":0.1'),
        *lines[2:],
    ],
    "the total changed": lambda lines: [
        lines[0].replace(b'"epsilon":1.0', b'"epsilon":9.0'),
        *lines[1:],
    ],
    "two entries exchanged": lambda lines: [lines[0], lines[2], lines[1], lines[3]],
    "an entry twice": lambda lines: [*lines, lines[3]],
    "no line at all": lambda lines: [],
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(tmp_path: Path, key: bytes | None, change: str) -> None:
    path = tmp_path / "ledger"
    filled(path, key)
    path.write_bytes(b"".join(CHANGES[change](lines_of(path))))  # the same inode
    with pytest.raises(StoreError):
        Ledger(path=path, key=key)


@pytest.mark.parametrize("key", KEYS)
def test_an_older_ledger_under_its_newer_head_is_refused(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "ledger"
    filled(path, key, 1)
    before = path.read_bytes()
    filled(path, key, 2)
    path.write_bytes(before)
    for adopt in (False, True):
        with pytest.raises(StoreError, match="older than its head"):
            Ledger(path=path, key=key, adopt=adopt)


def forged(path: Path) -> None:
    """Somebody who knows the format drops the last entry and computes a new head without the
    key."""
    from evercount.privacy.ledger_file import LedgerFile

    lines = lines_of(path)
    path.write_bytes(b"".join(lines[:-1]))
    file = LedgerFile.__new__(LedgerFile)
    file.path, file.head, file._key = path, path.with_name("ledger.head"), None
    file.records, file._handle = [json.loads(line) for line in lines[:-1]], os.open(path, os.O_RDWR)
    for record in file.records:
        file._link = bytes.fromhex(record.pop("link"))
    file._write_head()
    file.close()


def test_with_a_key_a_consistent_forgery_is_seen_too(tmp_path: Path) -> None:
    """Without a key it is not, as the docs say: the hashes are public."""
    for name, key in (("plain", None), ("keyed", KEY)):
        path = tmp_path / name / "ledger"
        path.parent.mkdir()
        filled(path, key)
        forged(path)
        if key is None:
            with Ledger(path=path) as ledger:
                assert len(ledger.entries) == 2
        else:
            with pytest.raises(StoreError, match="changed"):
                Ledger(path=path, key=key)


def test_the_key_must_be_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    filled(path, KEY)
    with pytest.raises(StoreError, match="has a key"):
        Ledger(path=path)
    with pytest.raises(StoreError, match="key is not the one"):
        Ledger(path=path, key=bytes(32))
    other = tmp_path / "other"
    filled(other)
    with pytest.raises(StoreError, match="has no key"):
        Ledger(path=other, key=KEY)
    for wrong in (b"short", "text", bytes(65)):
        with pytest.raises(ParameterError, match="16 to 64"):
            Ledger(TOTAL, tmp_path / "new", key=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="go with a path"):
        Ledger(TOTAL, key=KEY)


# -- crashes ---------------------------------------------------------------------------------------

CRASH = """
import os, signal, sys
from evercount import Budget, Ledger
from evercount.privacy import Cost, ledger_file

def die(*rest):
    os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv[2]
ledger = Ledger(path=sys.argv[1])
file = ledger._file
if where == "before the line":
    file._write = die
elif where == "in the line":
    def half(content):
        os.write(file._handle, content[:30])
        die()
    os.lseek(file._handle, 0, os.SEEK_END)
    file._write = half
else:
    file._write_head = die
ledger.spend("dies", Cost(Budget(0.2, 1e-9), leak=0.0))
"""


@pytest.mark.parametrize(
    ("where", "counted"),
    [("before the line", False), ("in the line", False), ("before the head", True)],
)
def test_a_kill_leaves_nothing_or_a_spent_entry(tmp_path: Path, where: str, counted: bool) -> None:
    path = tmp_path / "ledger"
    filled(path)
    done = subprocess.run(
        [sys.executable, "-c", CRASH, path, where], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with Ledger(path=path) as ledger:
        assert [entry.name for entry in ledger.entries][3:] == (["dies"] if counted else [])
        ledger.spend("next", PART)
    with Ledger(path=path) as ledger:
        assert len(ledger.entries) == 4 + counted


def test_a_full_disk_spends_nothing(tmp_path: Path) -> None:
    """The limit on the size of files is the process's own, so a child meets it."""
    path = tmp_path / "ledger"
    filled(path)
    size = path.stat().st_size
    code = f"""
import resource, signal, sys
from evercount import Budget, Ledger
from evercount.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger(path=sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, ({size + 40}, {size + 40}))
try:
    ledger.spend("too much", Budget(0.2, 1e-9))
except StoreError as error:
    print(error, len(ledger.entries))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        f"nothing is spent, because the ledger {path} cannot be written: "
    )
    assert done.stdout.strip().endswith(" 3")
    assert path.stat().st_size == size
    filled(path, entries=4)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("these are notes\n")
    for adopt in (False, True):
        with pytest.raises(StoreError, match="damaged"):
            Ledger(TOTAL, path, adopt=adopt)
    assert path.read_text() == "these are notes\n"


def test_an_entry_that_does_not_fit_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger(TOTAL, path) as ledger:
        ledger.spend("all", TOTAL)
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded):
            ledger.spend("more", PART)
        assert path.read_bytes() == before


def test_a_total_with_a_part_for_pure_streams_is_refused(tmp_path: Path) -> None:
    """Its entries were admitted by another rule: what both rules together admit is proved
    nowhere."""
    file = LedgerFile(tmp_path / "ledger", None, None, False)
    file.begin({"total": TOTAL.to_dict(), "plain": Budget(0.5, 0.0).to_dict()})
    file.close()
    with pytest.raises(SnapshotError, match="separate part for pure streams"):
        Ledger(path=tmp_path / "ledger")
