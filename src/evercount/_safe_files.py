"""Files that hold secrets or promises: no symbolic links, for the owner only, one user at a time,
down to the disk.

The rule for symbolic links is the same at every door: a file that evercount writes is named itself.
Writing through a link would let anyone who may change the link choose which file is overwritten,
and renaming over a link would replace the link and leave the file that it points to behind. So a
link is refused, and the message names its target.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from evercount.errors import ParameterError, StoreError

log = logging.getLogger("evercount.store")
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
MAKE_ROOM = "the disk is full, or this user's share of it: make room and try again"


def refuse_link(what: str, path: Path) -> None:
    """Refuse a path that is a symbolic link, with its target, or a device, a pipe or a socket."""
    if path.is_symlink():
        raise StoreError(
            f"{what} {path} is a symbolic link to {path.readlink()}: name the file itself, "
            f"{path.parent.resolve() / path.readlink()}, or remove the link"
        )
    if path.exists() and not path.is_file() and not path.is_dir():
        raise StoreError(
            f"{what} {path} is not a regular file, but would be replaced by one: name another file"
        )


def open_private(path: Path, flags: int) -> int:
    """A handle of a file that is created for its owner only; the last part of `path` is never
    followed as a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def read_secret_file(what: str, path: Path, *, links: bool = True) -> str:
    """The text of a file that only its owner (this user or root) and those whom root lets in can
    read. Root may give the file to a group or by an access list, which systemd does with
    credentials and which looks like a group here. Nothing of the text is in a message."""
    try:
        if links:
            handle = os.open(path, os.O_RDONLY)
        else:
            handle = open_private(path, os.O_RDONLY)
        with os.fdopen(handle, encoding="utf-8") as content:
            facts = os.fstat(content.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ParameterError(f"{what} {path} is not a regular file")
            _refuse_readers(what, path, facts)
            return content.read(10_000).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        link = "" if links else " (it may be a link)"
        raise ParameterError(f"{what} {path} cannot be read{link}: {reason}") from None


def _refuse_readers(what: str, path: Path, facts: os.stat_result) -> None:
    """Refuse a file that others own or can read; the group of root's files may read."""
    mine = facts.st_uid == os.geteuid()
    if not mine and facts.st_uid != 0:
        raise ParameterError(
            f"{what} {path} must belong to the user who runs this program, or to root"
        )
    others, remedy = (0o077, "chmod 600") if mine else (0o007, "chmod o=")
    if facts.st_mode & others:
        raise ParameterError(f"other users can read or change {what} {path}: {remedy} {path}")


def keep_others_out(what: str, paths: Sequence[Path], rights: int) -> None:
    """Take these rights on files of ours from all other users, and tell the operator of the first
    that had them.

    A group keeps its rights: orchestrators give volumes to a group. A file system without owners
    shows rights that nobody can take away; then the operator is told every time.
    """
    warnings = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            mode = path.stat().st_mode
            if mode & rights:
                with contextlib.suppress(PermissionError):
                    path.chmod(stat.S_IMODE(mode) & ~rights)
                could = "read or change" if mode & rights & stat.S_IWOTH else "read"
                command = "chmod o=" if rights & stat.S_IROTH else "chmod o-w"
                still = path.stat().st_mode & rights
                now = f"they still can: {command} {path}" if still else "now they cannot"
                warnings.append(f"every user of this machine could {could} {what} {path}; {now}")
    for warning in warnings[:1]:
        log.warning("%s", warning)


def new_private(path: Path) -> IO[bytes]:
    """A new file for its owner only; what stood at `path` before is removed, a link too, and never
    written to."""
    path.unlink(missing_ok=True)
    return os.fdopen(open_private(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL), "wb")


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Write a new file next to `path`, then put it in its place. When the block ends it is on the
    disk. The new file is created, never opened: what somebody else put under its name is not
    written to. A block that raises changes nothing."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with new_private(fresh) as file:
            yield file
            file.flush()
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def new_mode(path: Path) -> int:
    """The permissions of a file that is meant to be read by others: those that it has, else those
    of any new file."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """What the system refuses, as a StoreError that says what could not be done."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error.strerror or error}") from error


def lock_exclusively(handle: int, wait: bool = False) -> None:
    """Lock an open file until its handle is closed. Where another handle has the lock: OSError at
    once, or `wait`."""
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    fcntl.flock(handle, operation)


def sync_folder(path: Path) -> None:
    """Bring the names in the folder of `path` to the disk, where the system can do that."""
    with contextlib.suppress(OSError):  # folders cannot be synced everywhere
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
