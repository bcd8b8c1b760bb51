"""Bad and late rows: which they are, on which lines, and why. Read only when the count has found bad ones, or when
the operator asks for the list.

What is written here is raw input, for the operator's eyes: the file gets the permissions 0600.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evercount._safe_files import replaced
from evercount.declarations.declaration import StreamDeclaration
from evercount.files.count_rows import unreadable
from evercount.files.event_sql import REASONS, Sources, columns_of, listed, placed, prepare, row_fields
from evercount.files.source import COPY_BYTES, LINE, SeenRows, Source, connect

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

    `exact` is False where empty lines or line ends inside quotes make the number of the line uncertain. `file` is the
    name of its file where there are several.

    >>> print(Reject(7, "no time", ",north"))
    line 7: no time: ',north'
    """

    line: int
    reason: str
    text: str
    exact: bool = True
    file: str = ""
    word: str = "line"  # what `line` counts; rows of a data frame from 0

    def __str__(self) -> str:
        where = f"{self.file}, " * bool(self.file) + (self.word if self.exact else f"about {self.word}")
        return f"{where} {self.line}: {self.reason}: {self.text[:120]!r}"

    @property
    def late(self) -> bool:
        return self.reason in (LATE, MAYBE_LATE)


@dataclass
class LateRows:
    """Which rows are late: those of ticks before `first` that were not there when the last run published. By the name
    of the file, `before` is what that run had read, and `now` what `find_rejects` reads."""

    first: int
    before: dict[str, SeenRows]
    now: dict[str, SeenRows] = field(default_factory=dict)


def find_rejects(
    sources: Sources, declaration: StreamDeclaration, scratch: Path, late: LateRows | None = None
) -> Iterator[Reject]:
    """All rows that do not count, file by file: those that could not be parsed, then the others in file order. With
    `late` also late ones."""
    files = listed(sources)
    for source in files:
        yield from _rejects_of(source, declaration, scratch, late, source.name if len(files) > 1 else "")


def _rejects_of(
    source: Source, declaration: StreamDeclaration, scratch: Path, late: LateRows | None, name: str
) -> Iterator[Reject]:
    with connect(scratch, (source,)) as connection:
        prepare(connection, declaration, (source,))
        known, is_late = 0, LATE
        if late is not None:
            known, is_late = _read_before(connection, source, declaration, late)
        names = {"csv": [f"c{i}" for i in range(len(source.columns))], "jsonl": [LINE]}
        raw = ", ".join(names.get(source.kind, ["t", "k", "v"]))
        first = 1 if late is None else late.first
        # A table, so that DuckDB's own list of rejects is complete before it is read.
        connection.execute(
            f"CREATE TEMP TABLE bad AS SELECT n, -place AS reason, {raw} FROM "
            f"({placed(source, declaration, 1, first, number=True, extra=raw)}) "
            f"WHERE place < 0 OR (place > 0 AND n > {known})"
        )
        unreadable(connection, source)
        broken = _broken(connection, source, name)
        yield from broken
        lines = _Lines(source, [reject.line for reject in broken], connection)
        cursor = connection.execute(f"SELECT n, reason, {raw} FROM bad ORDER BY n")
        while rows := cursor.fetchmany(ROWS_AT_A_TIME):
            for n, reason, *fields in rows:
                text = fields[0] if source.kind == "jsonl" else _joined(fields, source.delimiter)
                said = REASONS[reason] if reason > 0 else is_late
                yield Reject(lines.of(n), said, text, lines.exact, name, "row" if source.frame is not None else "line")


def _read_before(
    connection: DuckDBPyConnection, source: Source, declaration: StreamDeclaration, late: LateRows
) -> tuple[int, str]:
    """How many rows at the beginning of the file the last run had read, and what to call the others of closed ticks."""
    before = late.before.get(source.name, SeenRows(0, ""))
    row: Any = connection.execute(
        f"SELECT count(*), bit_xor(code), bit_xor(code) FILTER (n <= {before.rows}) FROM "
        f"(SELECT n, hash(n, t, k, v, who) AS code FROM ({row_fields(source, columns_of(declaration), True)}))"
    ).fetchone()
    late.now[source.name] = SeenRows(int(row[0]), str(row[1]))
    if before.rows and before.rows <= row[0] and str(row[2]) == before.digest:
        return before.rows, LATE
    return 0, MAYBE_LATE


def write_rejects(path: Path, rejects: Iterable[Reject]) -> list[Reject]:
    """Write rows that do not count as a private CSV: line, reason, row; the file first where there are several. Returns
    the first few bad ones: late rows are for the file only."""
    few: list[Reject] = []
    rows = iter(rejects)
    first = next(rows, None)
    several = first is not None and bool(first.file)
    with replaced(path) as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("file", *FIELDS) if several else FIELDS)
        for reject in chain(() if first is None else (first,), rows):
            written = (reject.line, reject.reason, reject.text)
            writer.writerow((reject.file, *written) if several else written)
            if len(few) < MOST_SHOWN and not reject.late:
                few.append(reject)
        file.detach()  # it is written to `raw`, which is brought to the disk and closed here
    return few


def _broken(connection: DuckDBPyConnection, source: Source, name: str) -> list[Reject]:
    """The lines that DuckDB could not parse, with their physical line numbers."""
    if source.typed:
        return []
    errors = connection.execute(
        "SELECT line_byte_position, any_value(csv_line), any_value(error_message) FROM reject_errors "
        "GROUP BY line_byte_position ORDER BY line_byte_position"
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


class _Lines:
    """From the number of a readable row to its line."""

    def __init__(self, source: Source, broken: list[int], connection: DuckDBPyConnection) -> None:
        self._header = int(source.kind == "csv") - int(source.frame is not None)
        self.exact = True
        self._broken = sorted(broken)
        if source.typed:
            return
        total, last = 0, b"\n"
        with source.open_bytes() as raw:
            while chunk := raw.read(COPY_BYTES):
                total += chunk.count(b"\n")
                last = chunk[-1:]
        total += last != b"\n"
        row: Any = connection.execute(f"SELECT count(*) FROM {source.scan()}").fetchone()
        self.exact = total == self._header + int(row[0]) + len(broken)
        # the i-th broken line is before the readable rows from this number on
        self._before = [line - self._header - i for i, line in enumerate(self._broken)]

    def of(self, n: int) -> int:
        if not self._broken:
            return n + self._header
        # rows with number ≥ line − header − i come after the i-th broken line
        passed = bisect_left(self._before, n + 1)
        return n + self._header + passed


def _joined(fields: list[Any], delimiter: str) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="").writerow(["" if f is None else f for f in fields])
    return text.getvalue()
