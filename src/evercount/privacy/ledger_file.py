"""The file of a ledger: a locked journal of chained lines, and a small head file next to it that
names its end.

One JSON object per line. The first line states the total, every later one an entry; each carries
`link`, a hash over the line before and its own content. The lines are only ever added.
`<file>.head` holds how many lines there are, the last link and which file it is about (inode,
device, path); it is replaced after every new line.

Tampering that is detected when the file is opened again:

- a line that was changed, removed, moved or added in the middle: its link does not match;
- lines removed at the end, or the whole file: the head names more lines;
- a copy of the file, with or without its head: the head names another file;
- a second user: the file is locked for as long as a Ledger has it open, and a child of a fork is
  refused.

With a key the links and the head are keyed BLAKE2b, and nobody without the key can make a line, a
link or a head. Without a key they are plain hashes: they show accidents and careless edits, not
somebody who computes all hashes again. What is not detected: an older ledger and its older head
that are put back together, in place, or both removed. Keep the head where a restore does not bring
it back (`head=`), as for a store.

A crash. A line is written and synced first, then the head. A crash before the line is complete
leaves a piece without a line end that the head does not know: it is dropped, since `spend` had not
returned. A crash after it leaves one line more than the head knows: it counts as spent.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import weakref
from pathlib import Path
from typing import Any

from evercount._safe_files import (
    disk_errors,
    lock_exclusively,
    open_private,
    refuse_link,
    replaced,
    sync_folder,
)
from evercount.errors import ParameterError, StoreError
from evercount.noise.secret import random_bytes

LEDGER_FORMAT = "evercount-ledger"
HEAD_FORMAT = "evercount-ledger-head"
FILE_VERSION = 1
START = b"\x00" * 32
_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()
"""Files that this process has open. A child of a fork closes its handles, which would keep the lock
otherwise."""


class LedgerFile:
    """The journal of one ledger, locked from here until `close`. `records` are its lines without
    their links."""

    def __init__(
        self,
        path: str | Path,
        key: bytes | None,
        head: str | Path | None,
        adopt: bool,
        wait: bool = False,
    ) -> None:
        if key is not None and not (isinstance(key, bytes) and 16 <= len(key) <= 64):
            raise ParameterError(
                "the key of a ledger is 16 to 64 random bytes, for example secrets.token_bytes(32)"
            )
        self.path = Path(path).expanduser().absolute()
        if head is None:
            self.head = self.path.with_name(self.path.name + ".head")
        else:
            self.head = Path(head).absolute()
        self._key = key
        self._handle = -1
        self.records: list[dict[str, Any]] = []
        self._link = START
        self._length = 0
        refuse_link("the ledger", self.path)
        refuse_link("the ledger's head", self.head)
        try:
            with disk_errors(f"the ledger {self.path} cannot be used"):
                self._open(adopt, wait)
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._handle < 0

    def _open(self, adopt: bool, wait: bool) -> None:
        """Open and lock the file, and read it against its head."""
        self._handle = open_private(self.path, os.O_RDWR | os.O_CREAT)
        _OPEN.add(self)
        self._lock(wait)
        content = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
        if not content:
            if self.head.exists():
                raise StoreError(
                    f"the ledger {self.path} is empty or missing, and its head {self.head} says "
                    "that something was spent. Put the ledger back; if it is lost, all of its "
                    "budget counts as spent"
                )
            return
        self._check_head(self._load(content), adopt)

    def _lock(self, wait: bool) -> None:
        """Lock the file; refuse one that was replaced meanwhile."""
        try:
            lock_exclusively(self._handle, wait)
        except OSError:
            raise StoreError(
                f"another Ledger has {self.path} open, in this or another process: a ledger has "
                "one user at a time. Use the object that is open, or close it first"
            ) from None
        here = os.fstat(self._handle)
        there = self.path.stat()
        if (here.st_ino, here.st_dev) != (there.st_ino, there.st_dev):
            raise StoreError(
                f"the ledger {self.path} was replaced while it was being opened: open it again"
            )

    # -- the chain ---------------------------------------------------------------------------------

    def _hash(self, *parts: bytes) -> bytes:
        """Hash these parts, with the key if there is one."""
        key = self._key or b""
        return hashlib.blake2b(
            b"".join(parts), digest_size=32, key=key, person=b"evercount.ledger"
        ).digest()

    def _load(self, content: bytes) -> list[str]:
        """Read the lines into `records`; return their links."""
        links = []
        for number, line in enumerate(content.splitlines(keepends=True)):
            if not line.endswith(b"\n"):
                break  # a crash in the middle of a line, if the head agrees
            try:
                record = json.loads(line)
                link = bytes.fromhex(record.pop("link"))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise StoreError(
                    f"line {number + 1} of the ledger {self.path} is damaged"
                ) from None
            if number == 0:
                self._check_first(record)
            self._link = self._hash(self._link, _canonical(record))
            if not hmac.compare_digest(link, self._link):
                keyed = ", or the key is not the one of this ledger" if self._key else ""
                raise StoreError(
                    f"line {number + 1} of the ledger {self.path} was changed, or a line before it "
                    f"was removed{keyed}. Put the ledger back as it was; if it is lost, all of its "
                    "budget counts as spent"
                )
            self.records.append(record)
            links.append(link.hex())
            self._length += len(line)
        return links

    def _check_first(self, record: dict[str, Any]) -> None:
        """Refuse another format, and a key where there is none or none where there is one."""
        if record.get("format") != LEDGER_FORMAT or record.get("version") != FILE_VERSION:
            raise StoreError(
                f"{self.path} is not a ledger that this program reads (format "
                f"{record.get('format')!r:.40}, version {record.get('version')!r:.10}; known: "
                f"{FILE_VERSION}): update evercount"
            )
        if bool(record.get("keyed")) != (self._key is not None):
            if self._key:
                has = "has no key: open it without"
            else:
                has = "has a key: open it with"
            raise StoreError(f"the ledger {self.path} {has} key=…")

    # -- the head ----------------------------------------------------------------------------------

    def _place(self) -> dict[str, Any]:
        """Which file this is."""
        status = os.fstat(self._handle)
        place = str(self.path.parent.resolve() / self.path.name)
        return {"inode": status.st_ino, "device": status.st_dev, "path": place}

    def _write_head(self) -> None:
        """Replace the head by one that names the newest line."""
        body = {
            "format": HEAD_FORMAT,
            "lines": len(self.records),
            "last": self._link.hex(),
            **self._place(),
        }
        seal = self._hash(b"head", _canonical(body)).hex()
        with replaced(self.head) as file:
            file.write(_canonical({**body, "seal": seal}) + b"\n")

    def _check_head(self, links: list[str], adopt: bool) -> None:
        """Refuse a file that is not the one of its head, or older; `adopt` does not excuse entries
        that are missing."""
        way_out = (
            "If this is the only copy, and nothing was spent from another, accept it: "
            "Ledger(path=…, adopt=True)"
        )
        try:
            head = self._read_head()
        except StoreError as error:
            if not adopt:
                raise StoreError(f"{error}. {way_out}") from None
            head = {"lines": len(links), "last": links[-1] if links else "", **self._place()}
        lines = head["lines"]
        here = self._place()
        if not 1 <= lines <= len(links) or links[lines - 1] != head["last"]:
            raise StoreError(
                f"the ledger {self.path} lacks entries that its head names: it is older than its "
                "head, or was cut. Put the newest ledger back; if it is lost, all of its budget "
                "counts as spent"
            )
        moved = head["inode"] != here["inode"] or (
            head["device"] != here["device"] and head["path"] != here["path"]
        )
        if moved and not adopt:
            raise StoreError(
                f"{self.path} is a copy of the ledger {head['path']}: two copies would spend one "
                f"budget twice. Use the original. {way_out}"
            )
        if len(links) > lines + 1 and not adopt:
            raise StoreError(
                f"the head {self.head} of the ledger is older than the ledger. {way_out}"
            )
        self._cut()
        if len(links) > lines or adopt:  # a crash between the line and the head: it counts as spent
            self._write_head()

    def _read_head(self) -> dict[str, Any]:
        """The head, if it has the seal of this ledger."""
        try:
            body: dict[str, Any] = json.loads(self.head.read_bytes())
            seal = bytes.fromhex(body.pop("seal"))
        except FileNotFoundError:
            raise StoreError(
                f"the head {self.head} of the ledger is missing, so nothing shows that {self.path} "
                "is the newest copy"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise StoreError(f"the head {self.head} of the ledger cannot be read") from None
        if not hmac.compare_digest(seal, self._hash(b"head", _canonical(body))):
            raise StoreError(f"the head {self.head} of the ledger was changed")
        return body

    def _cut(self) -> None:
        """Drop the piece of a line that a crash left: it was never recorded."""
        if os.fstat(self._handle).st_size != self._length:
            os.ftruncate(self._handle, self._length)
            os.fsync(self._handle)

    # -- writing -----------------------------------------------------------------------------------

    def begin(self, facts: dict[str, Any]) -> None:
        """Write the first line of a new file."""
        sync_folder(self.path)
        what = {"format": LEDGER_FORMAT, "version": FILE_VERSION, "keyed": self._key is not None}
        self.append({**what, "identity": random_bytes(16).hex(), **facts})

    def append(self, record: dict[str, Any]) -> None:
        """Write one more line; it is on the disk when this returns."""
        link = self._hash(self._link, _canonical(record))
        with disk_errors(f"nothing is spent, because the ledger {self.path} cannot be written"):
            try:
                self._write(_canonical({**record, "link": link.hex()}) + b"\n")
            except BaseException:
                # an interrupt, too: else the next line would be written over a longer one
                with contextlib.suppress(OSError):
                    self._cut()
                raise
        self._link = link
        self.records.append(record)
        with disk_errors(
            f"the entry is recorded and its budget is spent, but the head {self.head} cannot be "
            "written"
        ):
            self._write_head()

    def _write(self, content: bytes) -> None:
        """Append these bytes and bring them to the disk."""
        written = 0
        while written < len(content):
            written += os.pwrite(self._handle, content[written:], self._length + written)
        os.fsync(self._handle)
        self._length += len(content)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _close_in_child() -> None:
    """Close all ledgers in the child of a fork: only the parent may spend."""
    for file in list(_OPEN):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _canonical(record: dict[str, Any]) -> bytes:
    """One text for one record; floats are written so that they read back as the same double."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
