"""File systems that a test mounts: a small one that gets full, and one that cannot be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of so many bytes at a new folder."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield folder
    finally:
        _unmount(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that nobody can write to, with all that is in it."""
    if os.geteuid() != 0:  # root may write everywhere but to a disk that is read-only
        folder.chmod(0o500)
        try:
            yield
        finally:
            folder.chmod(0o700)
        return
    _mount("--bind", folder, folder)
    try:
        _mount("-o", "remount,ro,bind", folder)
        yield
    finally:
        _unmount(folder)


def fill(folder: Path, free: int = 0) -> Path:
    """A file that leaves so many bytes of a disk free."""
    file = folder / "filler"
    state = os.statvfs(folder)
    file.write_bytes(b"x" * max(0, state.f_bavail * state.f_bsize - free))
    return file


def _mount(*arguments: object) -> None:
    done = subprocess.run(
        ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user or machine cannot mount: {done.stderr.strip()}")


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
