"""The head of every release chain, kept outside the database, so that a database from the past is recognised."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evercount._safe_files import refuse_link, replaced
from evercount.errors import StoreError
from evercount.store.database import Database

Heads = dict[str, tuple[int, str]]
"""Stream's name → (last released tick, its hash in hexadecimal digits)."""

FORMAT = "evercount-head"
VERSION = 1
OLDER = (
    "the database is older than its head, or was changed: it does not have the last release that the head names. "
    "Releasing from it would use the same noise with other data"
)
REVIVED = "the stream was retired after this copy of the database was made, and a retired stream never releases again"


def default_path(database: Database) -> Path:
    """`<file>.head` beside SQLite; in the user's state folder for PostgreSQL."""
    if database.file is not None:
        return database.file.with_name(database.file.name + ".head")
    where = database.url.set(password=None).render_as_string()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "evercount" / f"{hashlib.blake2b(where.encode(), digest_size=12).hexdigest()}.head"


@dataclass(frozen=True)
class Head:
    """What the head file says.

    Args:
        store: the random name of the store.
        streams: the last release of every stream.
        spent: what each stream spent (a row of the ledger and the identity of its noise), so that the spending of a
            stream is known even when a restored database does not have the stream. Empty in heads of version 0.1.
        retired: streams that must never release again, whatever a restored database says.
    """

    store: str
    streams: Heads
    spent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    retired: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Quarantine:
    """Why one stream of a database must not go on, while the others may.

    Args:
        name: the stream.
        reason: one sentence for anyone.
        tick: the last tick that the head names.
        readable: whether the database's own history of the stream may be shown. Not where it differs from the one
            that was published: the same noise may then lie on other data.
        lost: whether the database does not have the stream at all.
    """

    name: str
    reason: str
    tick: int
    readable: bool = True
    lost: bool = False


class HeadFile:
    """A small file that is replaced, durably, after every commit of a release."""

    def __init__(self, path: Path) -> None:
        refuse_link("the head file", path)
        self.path = path

    def read(self) -> Head | None:
        """The head, or None when there is no file."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(data["format"])
            streams = {str(name): (int(tick), str(digest)) for name, (tick, digest) in data["streams"].items()}
            spent = {str(name): dict(entry) for name, entry in data.get("spent", {}).items()}
            return Head(str(data["store"]), streams, spent, frozenset(map(str, data.get("retired", ()))))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError("the head file cannot be read", f"{self.path}: {type(error).__name__}") from None

    def write(self, head: Head) -> None:
        """Replace the file; when this returns it is on the disk."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "store": head.store,
            "streams": head.streams,
            "spent": dict(head.spent),
            "retired": sorted(head.retired),
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.path, _mode(self.path)) as file:
                file.write(json.dumps(content).encode())
        except OSError as error:
            raise StoreError("the head file cannot be written", f"{self.path}: {error.strerror}") from None

    def check(
        self,
        head: Head | None,
        store: str,
        known: Mapping[str, Mapping[int, str]],
        declares: bool,
        retired: Mapping[str, bool],
    ) -> dict[str, Quarantine]:
        """The streams of a database that are older than its head, or differ from it; they must not go on.

        Args:
            head: what `read` gave *before* the database was looked at: the head is written after a commit, so the
                database is then at least as new, whatever a writer does meanwhile.
            store: the random name of the database.
            known: for each stream the hashes that the database has at the ticks that the head names (0: genesis).
            declares: whether the database holds any stream: one that has no release in a copy may have some by now.
            retired: the streams that are retired in the database, and whether the database has their history.

        Returns:
            A quarantine for each stream that must not go on.

        Raises:
            StoreError: there is no head although a stream was declared, or it is the head of another store.

        **Guarantee.** If a release of a stream was committed and its head was written, a database without that release
        puts the stream into quarantine. So does a database that does not know that the stream was retired.
        Assumption: the head file is not put back together with the old database. Tests:
        `tests/store/test_store_rollback.py::test_an_old_backup_is_quarantined`,
        `tests/store/test_store_rollback.py::test_a_copy_from_before_the_first_release_needs_its_head`,
        `tests/store/test_store_retire.py::test_a_backup_from_before_the_retirement_is_quarantined`.
        """
        if head is None:
            if declares:
                raise StoreError(
                    "the head file is missing, so nothing shows that this database is the newest copy. If you are "
                    "certain that no later release was made, accept it: `evercount store verify --adopt`",
                    str(self.path),
                )
            return {}
        if head.store != store:
            raise StoreError(
                "the head file belongs to another store. If this is meant to be a new store, give it another file name "
                "or another head file",
                str(self.path),
            )
        quarantined: dict[str, Quarantine] = {}
        for name, (tick, digest) in head.streams.items():
            if name not in known:
                if name not in retired:
                    quarantined[name] = Quarantine(name, OLDER, tick, readable=False, lost=True)
            elif known[name].get(tick) != digest:
                quarantined[name] = Quarantine(name, OLDER, tick, readable=tick not in known[name])
            elif name in head.retired and name not in retired:
                quarantined[name] = Quarantine(name, REVIVED, tick)
        return quarantined


def _mode(path: Path) -> int:
    """The permissions that the file has already; a new one is for its owner only."""
    return path.stat().st_mode & 0o777 if path.exists() else 0o600
