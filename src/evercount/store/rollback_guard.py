"""The head of every release chain, kept outside the database, so that a database from the past is
recognised.

`HeadFile` is the file, and `HeadWriter` what the writer of a store puts into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert

from evercount._safe_files import (
    FULL_DISK,
    MAKE_ROOM,
    keep_others_out,
    open_private,
    refuse_link,
    replaced,
)
from evercount.errors import StoreError
from evercount.store import schema
from evercount.store.database import Database
from evercount.store.open_stream import LiveStream, StoredStream
from evercount.store.spending import Spending

if TYPE_CHECKING:
    from evercount.store.reader import Reading

log = logging.getLogger("evercount.store")

# Stream's name → (last released tick, its hash in hexadecimal digits)
Heads = dict[str, tuple[int, str]]

FORMAT = "evercount-head"
VERSION = 1
# bytes of lines that `HeadFile.add` appends before the file is replaced by a short one
MOST_ADDED = 1 << 16
OLDER = (
    "the database is older than its head, or was changed: it does not have the last release that "
    "the head names. Releasing from it would use the same noise with other data"
)
ANOTHER_PLACE = (
    "Name a file that this user can write (--head), or set XDG_STATE_HOME to a folder of this user"
)
REVIVED = (
    "the stream was retired after this copy of the database was made, and a retired stream never "
    "releases again"
)


def default_path(database: Database) -> Path:
    """`<file>.head` next to SQLite; in the user's state folder for PostgreSQL."""
    if database.file is not None:
        return database.file.with_name(database.file.name + ".head")
    where = database.url.set(password=None).render_as_string()
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        raise StoreError(
            f"no place for the head file: this user has no home folder. {ANOTHER_PLACE}"
        ) from None
    return (
        state / "evercount" / f"{hashlib.blake2b(where.encode(), digest_size=12).hexdigest()}.head"
    )


@dataclass(frozen=True)
class Head:
    store: str  # its random name
    streams: Heads
    # ledger rows and identities of noise, of lost streams too
    spent: Mapping[str, Mapping[str, Any]]
    retired: frozenset[str]  # they never release again, whatever a restored database says


@dataclass(frozen=True)
class Quarantine:
    """Why one stream of a database must not go on, while the others may."""

    name: str
    reason: str
    tick: int  # the last one that the head names
    # not where the history differs from the published one: the same noise on other data
    readable: bool = True
    lost: bool = False  # the database does not have the stream at all


class HeadFile:
    """A small file that is brought to the disk after every commit of a release.

    Its first line is a `Head` as JSON. Each line after it, [stream, tick, hash], is a later
    release. A last line without its end is one that a crash cut off: nobody was told of that
    release.

    **Guarantee.** When `write` or `add` returns, the file says what it was given, on the disk. A
    crash in the middle leaves what it said before, or that. `add` changes only a file that this
    object wrote last: where anybody else has changed, replaced or removed it, nothing is appended.
    Tests:
    `tests/store/test_store_head_file.py::test_a_crash_at_any_byte_leaves_the_head_before_or_after`,
    `tests/store/test_store_head_file.py::test_only_the_file_that_was_written_last_gets_a_line`,
    `tests/store/test_store_head_file.py::test_a_store_killed_at_any_moment_goes_on`.
    """

    def __init__(self, path: Path) -> None:
        refuse_link("the head file", path)
        self.path = path
        # what the file looked like after the last write of this object
        self._written: tuple[int, ...] | None = None
        self._most = 0

    def keep_others_out(self) -> None:
        """Whoever can write to the file can make an older database pass for the newest one."""
        keep_others_out("the head file", [self.path], stat.S_IWOTH)

    def read(self) -> Head | None:
        try:
            first, *lines = self.path.read_bytes().split(b"\n")
            data = json.loads(first)
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(data["format"])
            streams = {
                str(name): (int(tick), str(digest))
                for name, (tick, digest) in data["streams"].items()
            }
            # after the last end of a line: nothing, or a part
            for name, tick, digest in map(json.loads, lines[:-1]):
                if tick < streams[name][0]:
                    raise ValueError(tick)
                streams[name] = (int(tick), str(digest))
            spent = {str(name): dict(data["spent"][name]) for name in streams}
            return Head(str(data["store"]), streams, spent, frozenset(map(str, data["retired"])))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError("the head file cannot be read", f"{self.path}: {error!r}") from None

    def write(self, head: Head) -> None:
        """Replace the file; when this returns it is on the disk."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            **vars(head),
            "retired": sorted(head.retired),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # a new one is for its owner only
            mode = 0o600
            if self.path.exists():
                mode = self.path.stat().st_mode & 0o777
            with replaced(self.path, mode) as file:
                file.write(json.dumps(content).encode() + b"\n")
            state = self.path.stat()
            self._written = _look(state)
            self._most = state.st_size + MOST_ADDED
        except OSError as error:
            remedy = f". {ANOTHER_PLACE}"
            if error.errno in FULL_DISK:
                remedy = f": {MAKE_ROOM}"
            raise StoreError(
                f"the head file cannot be written{remedy}", f"{self.path}: {error.strerror}"
            ) from None

    def add(self, name: str, tick: int, digest: str) -> bool:
        """Append the last release of a stream that the file names already: one wait for the disk,
        `write` has three. False: the file has to be written anew. Somebody changed it, it has
        become long, or the disk refused the line."""
        line = json.dumps([name, tick, digest]).encode() + b"\n"
        written = self._written
        self._written = None
        with contextlib.ExitStack() as cleanup, contextlib.suppress(OSError):
            handle = open_private(self.path, os.O_WRONLY | os.O_APPEND)
            cleanup.callback(os.close, handle)
            state = os.fstat(handle)
            if _look(state) != written or state.st_size + len(line) > self._most:
                return False
            if os.write(handle, line) == len(line):
                getattr(os, "fdatasync", os.fsync)(handle)
                self._written = _look(os.fstat(handle))
                return True
        return False

    def check(
        self,
        head: Head | None,
        store: str,
        digests: Mapping[str, Mapping[int, str]],
        retired: Container[str],
    ) -> dict[str, Quarantine]:
        """The streams of a database that are older than its head, or differ from it; they must not
        go on.

        `head` is what `read` gave *before* the database was looked at: the head is written after a
        commit, so the database is then at least as new, whatever a writer does meanwhile.

        **Guarantee.** If a release of a stream was committed and its head was written, a database
        without that release puts the stream into quarantine. So does a database that does not know
        that the stream was retired. Assumption: the head file is not put back together with the old
        database. Tests: `tests/store/test_store_rollback.py::test_an_old_backup_is_quarantined`,
        `tests/store/test_store_rollback.py::test_a_copy_from_before_the_first_release_needs_its_head`,
        `tests/store/test_store_retire.py::test_a_backup_from_before_the_retirement_is_quarantined`.
        """
        if head is None:
            if digests:
                raise StoreError(
                    "the head file is missing, so nothing shows that this database is the newest "
                    "copy. If you are certain that no later release was made, accept it: "
                    "`evercount store verify --adopt`",
                    str(self.path),
                )
            return {}
        if head.store != store:
            raise StoreError(
                "the head file belongs to another store. If this is meant to be a new store, give "
                "it another file name or another head file",
                str(self.path),
            )
        quarantined: dict[str, Quarantine] = {}
        for name, (tick, digest) in head.streams.items():
            if name not in digests:
                if name not in retired:
                    quarantined[name] = Quarantine(name, OLDER, tick, readable=False, lost=True)
            elif digests[name].get(tick) != digest:
                quarantined[name] = Quarantine(
                    name, OLDER, tick, readable=tick not in digests[name]
                )
            elif name in head.retired and name not in retired:
                quarantined[name] = Quarantine(name, REVIVED, tick)
        return quarantined


class HeadWriter:
    """Writes the head file of one store.

    **Guarantee.** The head of a stream in quarantine, and of one that a restored copy lost, never
    goes back to an earlier tick: otherwise the next start would let the stream go on with noise
    that was used already. A stream that was retired once stays retired in the file. Test:
    `tests/store/test_store_rollback.py::test_a_quarantine_outlives_restarts`.
    """

    def __init__(
        self,
        file: HeadFile,
        reading: Reading,
        ended: Mapping[str, StoredStream],
        lost: frozenset[str],
    ) -> None:
        self.file = file
        self.lost = lost
        before = file.read() or Head("", {}, {}, frozenset())
        now = reading.current_head()
        self._store = now.store
        self._spent = {**now.spent, **before.spent}  # the file knows the noise of lost streams
        self._retired = before.retired | (now.retired - lost)
        older = {*lost, *(name for name, stream in ended.items() if stream.ending == "quarantined")}
        retired = [name for name, stream in ended.items() if stream.ending == "retired"]
        self._fixed: Heads = {
            **{name: head for name, head in before.streams.items() if name in older},
            **{name: now.streams[name] for name in retired},
        }

    def spend(self, line: Spending, identity: bytes) -> None:
        self._spent[line.stream] = {"cost": line.cost.to_dict(), "identity": identity.hex()}

    def spend_elsewhere(self, line: Spending) -> None:
        """Keep the line of a stream that this store never had, for a copy of it that is put back.

        **Guarantee.** A store that is restored from before a stream moved in still charges those
        that came before it. Test: tests/files/test_move_stream.py
        ::test_a_store_from_before_a_move_still_charges_what_was_before.
        """
        self.spend(line, b"")
        self._fixed[line.stream] = (0, "")

    def retire(self, name: str, closed: int, digest: str) -> None:
        self._retired |= {name}
        self._fixed[name] = (closed, digest)

    def lost_identity(self, identity: bytes) -> bool:
        lost = (self._spent.get(name, {}) for name in self.lost)  # none of those before a move
        return any(spent.get("identity") == identity.hex() for spent in lost)

    def write(self, streams: Iterable[LiveStream], released: LiveStream | None = None) -> None:
        """Bring the file up to date, after a commit that released, declared or retired
        something."""
        if released is not None and self.file.add(
            released.name, released.closed, released.head.hex()
        ):
            return
        live = {one.name: (one.closed, one.head.hex()) for one in streams}
        self.file.write(Head(self._store, {**self._fixed, **live}, self._spent, self._retired))


def keep_lost_spending(reading: Reading, file: HeadFile, lost: Sequence[Quarantine]) -> None:
    """Write down the streams that this copy of the database does not have: their names and budgets
    stay spent."""
    content = file.read()
    for one in lost:
        assert content is not None  # it names the stream
        row = {"name": one.name, "moment": time.time(), "reason": one.reason}
        with reading.database.transaction() as connection:
            connection.execute(
                insert(schema.retired).values(**row, facts=json.dumps(content.spent[one.name]))
            )
        log.error(
            "stream %s is not in this copy of the database: it has ended, and its budget stays "
            "spent",
            one.name,
        )


def quarantine(live: LiveStream, why: Quarantine) -> StoredStream:
    """Drop all of a stream that could release, and tell the operator by the log what can be
    done."""
    log.error(
        "stream %s is in quarantine, the others continue: %s (the head is at tick %d, this copy at "
        "tick %d). Restore the newest database, or continue with a new stream: `evercount store "
        "retire %s --successor NAME`",
        live.name,
        why.reason,
        why.tick,
        live.closed,
        live.name,
    )
    return live.end("quarantined", why.reason, why.readable)


def _look(state: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written to."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_nlink
