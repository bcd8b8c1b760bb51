"""Kill a process before the n-th change that it makes on disk, or in a database.

Nothing of the product or of its libraries is replaced. Python itself reports the changes:

- an audit hook reports files that are opened for writing, renamed, removed, linked, truncated or
  get other rights, and folders, each before it happens and with its path, whoever asks for it
  (those outside the working folder are left out: they are temporary, or compiled modules);
- fsync and SQLite's statements and commits have no audit event: a profile function is called before
  every call of C code, and looks for theirs.

Bytes that are written between two of these steps are on disk, or not, without a step of their own.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

FILE_EVENTS = {
    "os.rename": "rename",  # os.replace, too
    "os.remove": "remove",  # os.unlink, too
    "os.chmod": "chmod",
    "os.link": "link",
    "os.mkdir": "mkdir",
    "os.rmdir": "rmdir",
    "os.symlink": "link",
    "os.truncate": "truncate",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SYNCS = (os.fsync, os.fdatasync)
OF_A_DATABASE = ("execute", "executemany", "executescript", "commit")


def die_before_change(number: int, names: Path | None = None) -> None:
    """Kill this process before its `number`-th change from now on (0: never).

    `names` gets a line for each change: what it is, and the file, such as "rename out.csv".
    """
    left, folder = number, Path.cwd()
    written = None
    if names is not None:
        written = os.open(names, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def step(name: str) -> None:
        nonlocal left
        if written is not None:
            os.write(written, f"{name}\n".encode())
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    report_file_changes(folder, step)
    report_calls(step)


def report_file_changes(folder: Path, step: Callable[[str], None]) -> None:
    """Call `step` with the name of every change of files in a folder, before it is made, until the
    process ends."""

    def is_inside(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False  # it was reported when it was opened
        place = Path(os.fsdecode(path))
        return not place.is_absolute() or place.is_relative_to(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & WRITING and is_inside(path):
                step(f"open {Path(os.fsdecode(path)).name}")
        elif event in FILE_EVENTS:
            path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
            if is_inside(path):
                step(f"{FILE_EVENTS[event]} {Path(os.fsdecode(path)).name}")

    sys.addaudithook(hook)


def report_calls(step: Callable[[str], None], after: Callable[[str], None] | None = None) -> None:
    """Call `step` before every fsync, and every statement and commit of SQLite; call `after` when
    it has returned."""

    def profile(_: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and (name := change_of(called)):
            step(name)
        elif event == "c_return" and after is not None and (name := change_of(called)):
            after(name)

    threading.setprofile(profile)  # of threads that start later
    sys.setprofile(profile)


def change_of(called: Any) -> str | None:
    """Return the name of the change that a function of C makes."""
    if called in SYNCS:
        return "fsync"
    owner = getattr(called, "__self__", None)
    if isinstance(owner, sqlite3.Connection | sqlite3.Cursor) and called.__name__ in OF_A_DATABASE:
        return str(called.__name__)
    return None
