"""Which rows of files are new since the last run: for late rows that count, each must count once.

A file only grows, and it is known by its beginning: the state keeps how many bytes of each file were read, and their
digest. A file of another name that begins with what was read of a file that is gone is that file, renamed or moved.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evercount._safe_files import new_private
from evercount.errors import InputError
from evercount.files.source import COPY_BYTES, Prefix, Source

ONE_FILE = ""  # the name, in states of before, of the only file that a run could have


@dataclass(frozen=True)
class NewRows:
    """Private copies of files, which grow no more."""

    files: tuple[Source, ...]  # all complete lines. A line that is still being written waits for the next run.
    new: tuple[Source, ...]  # the lines that the last run has not read; none where nobody can tell
    consumed: dict[str, Prefix] = field(default_factory=dict)  # of each file, those of earlier runs included


def split_new(sources: Sequence[Source], scratch: Path, earlier: Mapping[str, Prefix] | None) -> NewRows:
    """Tell new rows from those that earlier runs have read (`earlier`; None: the first run that keeps it).

    **Guarantee.** A row is new in one run only, if files only grow and a row is in one file: what was read of a file is
    found again under its name, or under another one once the file is gone. A file that changed under its name is
    refused. Without `earlier` no row is new. Tests:
    tests/files/test_late_files.py::test_every_row_is_new_once and
    tests/files/test_late_files.py::test_a_change_of_the_rule_counts_no_row_twice.
    """
    known = dict(earlier or {})
    gone = {name: known[name] for name in known.keys() - {source.name for source in sources}}
    files, new, consumed = [], [], dict(known)
    for number, source in enumerate(sources):
        own = known.get(source.name)
        copy = scratch / f"complete-{number}"
        prefix, found = _copied(source, copy, [own] if own else list(gone.values()))
        if own is not None and own not in found:
            raise InputError(
                f"{source.name} does not begin with what an earlier run has read of it. To tell late rows "
                "from counted ones, files may only grow: restore the file as it was, and write corrections to a new one"
            )
        seen = max(found, key=lambda one: one.length, default=None)
        moved = next((name for name, one in gone.items() if one == seen), None)
        if moved is not None:
            del gone[moved], consumed[moved]
        frozen = replace(source, path=copy, compression="none")
        files.append(frozen)
        consumed[source.name] = prefix
        if earlier is not None and (seen is None or seen.length < prefix.length):
            new.append(frozen if seen is None else _rest(frozen, scratch / f"new-{number}", seen.length))
    if ONE_FILE in gone:
        raise InputError(
            f"{sources[0].name} does not begin with what the last run has read: put the file back as it was"
        )
    return NewRows(tuple(files), tuple(new), consumed)


def _copied(source: Source, path: Path, wanted: Sequence[Prefix]) -> tuple[Prefix, list[Prefix]]:
    """Copy the complete lines of a file (all of a Parquet file); what was copied, and which prefixes it begins with."""
    digest, length, found = hashlib.blake2b(digest_size=32), 0, []
    ahead = sorted(set(wanted), key=lambda one: one.length)
    with source.open_bytes() as raw, new_private(path) as copy:
        carry = b""
        while chunk := raw.read(COPY_BYTES):
            chunk = carry + chunk
            end = len(chunk) if source.kind == "parquet" else chunk.rfind(b"\n") + 1
            chunk, carry = chunk[:end], chunk[end:]
            copy.write(chunk)
            while ahead and ahead[0].length <= length + len(chunk):
                cut = ahead[0].length - length
                at = digest.copy()
                at.update(chunk[:cut])
                one = ahead.pop(0)
                whole = source.kind != "parquet" or one.length == source.path.stat().st_size
                if at.hexdigest() == one.digest and whole:
                    found.append(one)
            digest.update(chunk)
            length += len(chunk)
    return Prefix(length, digest.hexdigest()), found


def _rest(source: Source, path: Path, after: int) -> Source:
    """The lines after a number of bytes, under the header of their file."""
    with source.path.open("rb") as whole, new_private(path) as rest:
        if source.kind == "csv":
            rest.write(whole.readline())
        whole.seek(after)
        shutil.copyfileobj(whole, rest, COPY_BYTES)
    return replace(source, path=path)
