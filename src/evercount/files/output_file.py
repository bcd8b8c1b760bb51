"""The file that a stream publishes into: finished under a private name, published by a rename.

A keeper commits the digest of the finished file together with the ticks in it. Whoever finds the
old file next to a newer commit puts the finished one in its place, so no tick is lost.

`.hourly.csv.stream`, next to an output, names the stream that writes it and where that is kept. It
is there unless the state file lies next to the output as `hourly.csv.state`, which says as much.
The marker is on the disk before the output: a crash in between leaves a marker without an output,
which means nothing. It holds no secret.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from evercount._safe_files import disk_errors, new_mode, replaced, sync_folder

STATE_SUFFIX = ".state"  # of the state next to an output, where a run names no other
# how markers and tombstones begin to name a place
IN_STORE = "the store "
IN_STATE = "the state file "


class Marker(NamedTuple):
    """Which stream writes an output, by its identity, and in which store or state file it is."""

    identity: str
    place: str

    @property
    def in_store(self) -> bool:
        return self.place.startswith(IN_STORE)


@dataclass(frozen=True)
class OutputFile:
    """A release file and the private files next to it.

    >>> OutputFile(Path("hourly.csv")).marker_path.name
    '.hourly.csv.stream'
    """

    path: Path

    @property
    def pending(self) -> Path:
        """Where the next output is written before it is committed."""
        return self.path.with_name(f".{self.path.name}.new")

    @property
    def state_path(self) -> Path:
        """Where its state lies, unless a run names another place."""
        return self.path.with_name(self.path.name + STATE_SUFFIX)

    @property
    def marker_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.stream")

    def is_whole(self, digest: str) -> bool:
        """Whether the output is the one with this digest."""
        return self.path.exists() and digest_of(self.path) == digest

    def publish(self, digest: str) -> bool:
        """Put the committed file in its place, unless it is there; False if it is nowhere."""
        if self.is_whole(digest):
            return True
        if not self.pending.exists() or digest_of(self.pending) != digest:
            return False
        self.pending.chmod(new_mode(self.path))
        self.pending.replace(self.path)
        sync_folder(self.path)
        return True

    def read_marker(self) -> Marker | None:
        with disk_errors(f"the marker {self.marker_path} cannot be read"):
            try:
                lines = self.marker_path.read_text("utf-8", "replace").splitlines()
            except FileNotFoundError:
                return None
        identity, place, *_ = (*lines, "", "")
        return Marker(identity, place)

    def write_marker(self, marker: Marker) -> None:
        """Name the stream that writes this output from now on."""
        if self.read_marker() == marker:
            return
        what = f"the marker of {self.path} cannot be written"
        with disk_errors(what), replaced(self.marker_path) as file:
            file.write(f"{marker.identity}\n{marker.place}\n".encode())


def state_path(out: str | None, state: str | None) -> Path | None:
    """Where the state of a run lies that names these files; None if it names neither."""
    if state is not None:
        return Path(state)
    return None if out is None else OutputFile(Path(out)).state_path


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
