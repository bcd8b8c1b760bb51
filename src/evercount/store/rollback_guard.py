"""The head of every release chain, kept outside the database, so that a database from the past is recognised."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from evercount._safe_files import refuse_link, replaced
from evercount.errors import StoreError
from evercount.store.database import Database

Heads = dict[str, tuple[int, str]]
"""Stream's name → (last released tick, its hash in hexadecimal digits)."""

FORMAT = "evercount-head"
VERSION = 1


def default_path(database: Database) -> Path:
    """`<file>.head` beside SQLite; in the user's state folder for PostgreSQL."""
    if database.file is not None:
        return database.file.with_name(database.file.name + ".head")
    where = database.url.set(password=None).render_as_string()
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "evercount" / f"{hashlib.blake2b(where.encode(), digest_size=12).hexdigest()}.head"


class HeadFile:
    """A small file that is replaced, durably, after every commit of a release."""

    def __init__(self, path: Path) -> None:
        refuse_link("the head file", path)
        self.path = path

    def read(self) -> tuple[str, Heads] | None:
        """(identity of the store, heads), or None when there is no file."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise ValueError(data["format"])
            return str(data["store"]), {str(k): (int(t), str(h)) for k, (t, h) in data["streams"].items()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError("the head file cannot be read", f"{self.path}: {type(error).__name__}") from None

    def write(self, store: str, heads: Mapping[str, tuple[int, str]]) -> None:
        """Replace the file; when this returns it is on the disk."""
        text = json.dumps({"format": FORMAT, "version": VERSION, "store": store, "streams": dict(heads)})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(self.path, _mode(self.path)) as file:
                file.write(text.encode())
        except OSError as error:
            raise StoreError("the head file cannot be written", f"{self.path}: {error.strerror}") from None

    def check(
        self, found: tuple[str, Heads] | None, store: str, known: Mapping[str, Mapping[int, str]], released: bool
    ) -> None:
        """Refuse a database that is older than its head.

        `found` is what `read` gave *before* the database was looked at: the head is written after a commit, so the
        database is then at least as new, whatever a writer does meanwhile. `known` maps each stream to the hashes that
        the database has at the ticks that the head names (0: genesis).

        **Guarantee.** If some release was made and its head was written, a database without that release is refused.
        Assumption: the head file is not put back together with the old database. Test:
        `tests/store/test_store_rollback.py::test_an_old_backup_is_refused`.
        """
        if found is None:
            if released:
                raise StoreError(
                    "the head file is missing, so nothing shows that this database is the newest copy. If you are "
                    "certain that no later release was made, accept it: `evercount store verify --adopt`",
                    str(self.path),
                )
            return
        identity, heads = found
        if identity != store:
            raise StoreError(
                "the head file belongs to another store. If this is meant to be a new store, give it another file name "
                "or another head file",
                str(self.path),
            )
        for name, (tick, digest) in heads.items():
            if known.get(name, {}).get(tick) != digest:
                raise StoreError(
                    "the database is older than its head, or was changed: it does not have the last release that the "
                    "head names. Releasing from it would use the same noise with other data. Put the newest database "
                    "back; if it is lost, declare a new stream",
                    f"stream {name!r} was released up to tick {tick}; head: {self.path}",
                )


def _mode(path: Path) -> int:
    """The permissions that the file has already; a new one is for its owner only."""
    return path.stat().st_mode & 0o777 if path.exists() else 0o600
