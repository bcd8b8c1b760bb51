"""Bad, late and new rows: which they are, on which lines, and why.

Bad rows are listed only when the count has found some, or when the operator asks for the list. What
is written is raw input, for the operator's eyes: the file gets the permissions 0600.

Where late rows count, each must count once, and files only grow. A file is known by its beginning:
the state keeps how many bytes of each were read, and their digest. A file of another name that
begins with what was read of a file that is gone is that file, renamed or moved.
"""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evercount._safe_files import new_private, replaced
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError
from evercount.files.count_rows import unreadable
from evercount.files.event_sql import REASONS, columns_of, open_files, placed, row_fields
from evercount.files.source import COPY_BYTES, LINE, Prefix, SeenRows, Source

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FIELDS = ("line", "reason", "row")
MOST_SHOWN = 5  # bad rows that are shown; all of them go to the file of rejects
ROWS_AT_A_TIME = 10_000
LATE = "late: an earlier run has released its tick"
MAYBE_LATE = "in a tick that an earlier run has released: late, unless that run has read this row"


@dataclass(frozen=True)
class Reject:
    """A row that does not count: its line (in Parquet: its row, from 1), the reason and its text.

    The text is raw input, for the operator's eyes: neither `str` nor `repr` shows it.

    `exact` is False where empty lines or line ends inside quotes make the number of the line
    uncertain. `file` is the name of its file where there are several.

    >>> print(Reject(7, "no time", ",north"))
    line 7: no time
    """

    line: int
    reason: str
    text: str = field(repr=False)
    exact: bool = True
    file: str = ""
    word: str = "line"  # what `line` counts; rows of a data frame from 0

    def __str__(self) -> str:
        about = "" if self.exact else "about "
        where = f"{about}{self.word} {self.line}: {self.reason}"
        return f"{self.file}, {where}" if self.file else where


@dataclass
class LateRows:
    """Which rows are late: those of ticks before `first` that were not there when the last run
    published. By the name of the file, `before` is what that run had read, and `now` what
    `find_rejects` reads."""

    first: int
    before: dict[str, SeenRows]
    now: dict[str, SeenRows] = field(default_factory=dict)


def find_rejects(
    files: tuple[Source, ...],
    declaration: StreamDeclaration,
    scratch: Path,
    late: LateRows | None = None,
) -> Iterator[Reject]:
    """All rows that do not count, file by file: those that could not be parsed, then the others in
    file order. With `late` also late ones."""
    for source in files:
        name = source.name if len(files) > 1 else ""
        with open_files((source,), declaration, scratch) as (connection, _):
            known, is_late = 0, LATE
            if late is not None:
                known, is_late = _read_before(connection, source, declaration, late)
            names = {"csv": [f"c{i}" for i in range(len(source.columns))], "jsonl": [LINE]}
            raw = ", ".join(["t", "k", "v"] if source.typed else names[source.kind])
            first = 1 if late is None else late.first
            placed_rows = placed((source,), declaration, 1, first, f"n, {raw}")
            # A table, so that DuckDB's own list of rejects is complete before it is read.
            connection.execute(
                f"CREATE TEMP TABLE bad AS SELECT n, -place AS reason, {raw} FROM ({placed_rows}) "
                f"WHERE place < 0 OR (place > 0 AND n > {known})"
            )
            unreadable(connection, (source,))
            broken = _broken(connection, source, name)
            yield from broken
            line_of, exact = _lines(source, [reject.line for reject in broken], connection)
            cursor = connection.execute(f"SELECT n, reason, {raw} FROM bad ORDER BY n")
            while rows := cursor.fetchmany(ROWS_AT_A_TIME):
                for n, reason, *fields in rows:
                    text = fields[0] if source.json_lines else _joined(fields, source.delimiter)
                    said = REASONS[reason] if reason > 0 else is_late
                    yield Reject(
                        line_of(n),
                        said,
                        text,
                        exact,
                        name,
                        "row" if source.frame is not None else "line",
                    )


def _read_before(
    connection: DuckDBPyConnection, source: Source, declaration: StreamDeclaration, late: LateRows
) -> tuple[int, str]:
    """How many rows at the beginning of the file the last run had read, and what to call the others
    of closed ticks."""
    before = late.before.get(source.name, SeenRows(0, ""))
    row: Any = connection.execute(
        f"SELECT count(*), bit_xor(code), bit_xor(code) FILTER (n <= {before.rows}) FROM (SELECT "
        "n, hash(n, t, k, v, who) AS code FROM "
        f"({row_fields(source, columns_of(declaration), True)}))"
    ).fetchone()
    late.now[source.name] = SeenRows(int(row[0]), str(row[1]))
    if before.rows and before.rows <= row[0] and str(row[2]) == before.digest:
        return before.rows, LATE
    return 0, MAYBE_LATE


def write_rejects(path: Path, rejects: Iterable[Reject], several: bool) -> None:
    """Write rows that do not count as a private CSV: line, reason, row; the file first where there
    are `several`."""
    with replaced(path) as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*["file"] * several, *FIELDS))
        for reject in rejects:
            writer.writerow((*[reject.file] * several, reject.line, reject.reason, reject.text))
        file.detach()  # it is written to `raw`, which is brought to the disk and closed here


def _broken(connection: DuckDBPyConnection, source: Source, name: str) -> list[Reject]:
    """The lines that DuckDB could not parse, with their physical line numbers."""
    if source.typed:
        return []
    errors = connection.execute(
        "SELECT line_byte_position, any_value(csv_line), any_value(error_message) FROM "
        "reject_errors GROUP BY line_byte_position ORDER BY line_byte_position"
    ).fetchall()
    rejects, line, at = [], 1, 0
    with source.open_bytes() as raw:
        for position, text, message in errors:
            while at < position - 1 and (chunk := raw.read(min(COPY_BYTES, position - 1 - at))):
                line += chunk.count(b"\n")
                at += len(chunk)
            shown = (text or "").lstrip("\r\n")
            empty = (text or "")[: len(text or "") - len(shown)].count("\n")
            reason = (message or "not a row of this file").splitlines()[0]
            rejects.append(Reject(line + empty, reason, shown.rstrip("\r\n"), file=name))
    return rejects


def _lines(
    source: Source, broken: list[int], connection: DuckDBPyConnection
) -> tuple[Callable[[int], int], bool]:
    """From the number of a readable row to its line; and whether that is exact."""
    header = int(source.kind == "csv") - int(source.frame is not None)
    if source.typed:
        return lambda n: n + header, True
    total, last = 0, b"\n"
    with source.open_bytes() as raw:
        while chunk := raw.read(COPY_BYTES):
            total += chunk.count(b"\n")
            last = chunk[-1:]
    total += last != b"\n"
    row: Any = connection.execute(f"SELECT count(*) FROM {source.scan()}").fetchone()
    # rows with number ≥ line − header − i come after the i-th broken line
    before = [line - header - i for i, line in enumerate(sorted(broken))]
    return lambda n: n + header + bisect_left(before, n + 1), total == header + int(row[0]) + len(
        broken
    )


def _joined(fields: list[Any], delimiter: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="").writerow(
        ["" if f is None else f for f in fields]
    )
    return text.getvalue()


# -- rows that the last run has not read -----------------------------------------------------------


def split_new(
    sources: Sequence[Source], scratch: Path, earlier: Mapping[str, Prefix] | None
) -> tuple[tuple[Source, ...], tuple[Source, ...], dict[str, Prefix]]:
    """Tell new rows from those that earlier runs have read (`earlier`; None: the first run that
    keeps it).

    Returns private copies of the files, which grow no more: all complete lines (a line that is
    still being written waits for the next run), and the lines that the last run has not read (none
    where nobody can tell); and what has been read of each file, by earlier runs too.

    **Guarantee.** A row is new in one run only, if files only grow and a row is in one file: what
    was read of a file is found again under its name, or under another one once the file is gone. A
    file that changed under its name is refused. Without `earlier` no row is new. Tests:
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
                f"{source.name} does not begin with what an earlier run has read of it. To tell "
                "late rows from counted ones, files may only grow: restore the file as it was, and "
                "write corrections to a new one"
            )
        seen = max(found, key=lambda one: one.length, default=None)
        moved = next((name for name, one in gone.items() if one == seen), None)
        if moved is not None:
            del gone[moved], consumed[moved]
        frozen = replace(source, path=copy, compression="none")
        files.append(frozen)
        consumed[source.name] = prefix
        if earlier is not None and (seen is None or seen.length < prefix.length):
            new.append(
                frozen if seen is None else _rest(frozen, scratch / f"new-{number}", seen.length)
            )
    return tuple(files), tuple(new), consumed


def _copied(source: Source, path: Path, wanted: Sequence[Prefix]) -> tuple[Prefix, list[Prefix]]:
    """Copy the complete lines of a file (all of a Parquet file); what was copied, and which
    prefixes it begins with."""
    digest, length = hashlib.blake2b(digest_size=32), 0
    found = [one for one in wanted if not one.length]  # every file begins with nothing
    ahead = sorted({one for one in wanted if one.length}, key=lambda one: one.length)
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
