"""Bad rows: which they are, on which lines, and why. Read only when the count has found some.

What is written here is raw input, for the operator's eyes: the file gets the permissions 0600.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evercount._safe_files import replaced
from evercount.declare.declaration import StreamDeclaration
from evercount.files.count_rows import REASONS, placed, prepare, unreadable
from evercount.files.source import CHUNK, LINE, Source, connect

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FIELDS = ("line", "reason", "row")
FEW = 5
"""So many bad rows are shown; all of them go to the file of rejects."""
BATCH = 10_000


@dataclass(frozen=True)
class Reject:
    """A bad row: its line (in Parquet: its row, from 1), the reason and its text.

    `exact` is False where empty lines or line ends inside quotes make the number of the line uncertain.
    """

    line: int
    reason: str
    text: str
    exact: bool = True

    def __str__(self) -> str:
        return f"{'line' if self.exact else 'about line'} {self.line}: {self.reason}: {self.text[:120]!r}"


def find_rejects(source: Source, declaration: StreamDeclaration, scratch: Path) -> Iterator[Reject]:
    """All bad rows: first those that could not be taken apart, then those that are no events, each in file order."""
    with connect(scratch) as connection:
        prepare(connection, declaration, source)
        names = {"csv": [f"c{i}" for i in range(len(source.columns))], "jsonl": [LINE], "parquet": ["t", "k", "v"]}
        raw = ", ".join(names[source.kind])
        # A table, so that DuckDB's own list of rejects is complete before it is read.
        connection.execute(
            f"CREATE TEMP TABLE bad AS SELECT n, -place AS reason, {raw} FROM "
            f"({placed(source, declaration, 1, 1, number=True, extra=raw)}) WHERE place < 0"
        )
        unreadable(connection, source)
        broken = _broken(connection, source)
        yield from broken
        lines = _Lines(source, [reject.line for reject in broken], connection)
        cursor = connection.execute(f"SELECT n, reason, {raw} FROM bad ORDER BY n")
        while rows := cursor.fetchmany(BATCH):
            for n, reason, *fields in rows:
                text = fields[0] if source.kind == "jsonl" else _joined(fields, source.delimiter)
                yield Reject(lines.of(n), REASONS[reason], text, lines.exact)


def write_rejects(path: Path, rejects: Iterable[Reject]) -> list[Reject]:
    """Write all bad rows as CSV (line, reason, row) and return the first few."""
    few: list[Reject] = []
    with replaced(path) as raw:
        file = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for reject in rejects:
            writer.writerow((reject.line, reject.reason, reject.text))
            if len(few) < FEW:
                few.append(reject)
        file.detach()  # it is written to `raw`, which is brought to the disk and closed here
    return few


def _broken(connection: DuckDBPyConnection, source: Source) -> list[Reject]:
    """The lines that DuckDB could not take apart, with their physical line numbers."""
    if source.kind == "parquet":
        return []
    found = connection.execute(
        "SELECT line_byte_position, any_value(csv_line), any_value(error_message) FROM reject_errors "
        "GROUP BY line_byte_position ORDER BY line_byte_position"
    ).fetchall()
    rejects, line, at = [], 1, 0
    with source.open_bytes() as raw:
        for position, text, message in found:
            while at < position - 1 and (chunk := raw.read(min(CHUNK, position - 1 - at))):
                line += chunk.count(b"\n")
                at += len(chunk)
            shown = (text or "").lstrip("\r\n")
            empty = (text or "")[: len(text or "") - len(shown)].count("\n")
            reason = (message or "not a row of this file").splitlines()[0]
            rejects.append(Reject(line + empty, reason, shown.rstrip("\r\n")))
    return rejects


class _Lines:
    """From the number of a readable row to its line."""

    def __init__(self, source: Source, broken: list[int], connection: DuckDBPyConnection) -> None:
        self._header = int(source.kind == "csv")
        self.exact = True
        self._broken = sorted(broken)
        if source.kind == "parquet":
            return
        total, last = 0, b"\n"
        with source.open_bytes() as raw:
            while chunk := raw.read(CHUNK):
                total += chunk.count(b"\n")
                last = chunk[-1:]
        total += last != b"\n"
        row: Any = connection.execute(f"SELECT count(*) FROM {source.scan()}").fetchone()
        self.exact = total == self._header + int(row[0]) + len(broken)
        # the i-th broken line stands before the readable rows from this number on
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
