"""The events of a file as `evercount push` sends them: CSV, JSONL or Parquet, opened as `release` opens it."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evercount.errors import InputError
from evercount.files.event_sql import AWARE_TYPES, NAIVE_TYPES, user_text
from evercount.files.source import COPY_BYTES, Source, connect, open_source

ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class PushedFile:
    """An event file, and which of its columns holds the time, key, value and user of an event; JSONL has none."""

    source: Source
    columns: Mapping[str, str]
    scratch: Path

    @property
    def identity(self) -> str:
        """What tells this file from others, and stays when it grows: its first two lines, or its first row."""
        if self.source.kind == "parquet":
            return json.dumps([self.source.columns, next(self.lines(), "")])
        with _readable(self.source), self.source.open_bytes() as raw:
            return (raw.readline() + raw.readline()).decode("utf-8", "replace")

    def begins_with_json(self) -> bool:
        """Whether the first line is JSON, or so long that nobody would read it here."""
        with _readable(self.source), self.source.open_bytes() as raw:
            first = raw.readline(COPY_BYTES).removeprefix(b"\xef\xbb\xbf")
        try:
            json.loads(first)
        except (ValueError, RecursionError):
            return len(first) == COPY_BYTES
        return True

    def lines(self) -> Iterator[str]:
        """The events in the order of the file, each as a line of JSON."""
        if self.source.kind == "jsonl":
            with _readable(self.source), self.source.open_bytes() as raw:
                text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
                yield from (line.strip() for line in text if line.strip())
            return
        self.source.require(*self.columns.values())
        yield from self._table_lines() if self.source.kind == "parquet" else self._csv_lines()

    def _csv_lines(self) -> Iterator[str]:
        with _readable(self.source), self.source.open_bytes() as raw:
            table = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), strict=True)
            for row in table:
                event: dict[str, Any] = {name: row[column] for name, column in self.columns.items()}
                if "value" in event:
                    event["value"] = _number(event["value"])
                yield json.dumps(event)

    def _table_lines(self) -> Iterator[str]:
        import duckdb

        chosen = ", ".join(self._field(name, column) for name, column in self.columns.items())
        try:
            with connect(self.scratch) as connection:
                rows = connection.execute(f"SELECT {chosen} FROM {self.source.scan()}")
                while part := rows.fetchmany(ROWS_AT_ONCE):
                    yield from (json.dumps(dict(zip(self.columns, row, strict=True))) for row in part)
        except duckdb.Error as error:
            raise InputError(f"{self.source.name} is a damaged Parquet file") from error

    def _field(self, name: str, column: str) -> str:
        """SQL: a column as the service takes it. A time without a zone is one of the stream's zone, in every door."""
        place, kind = self.source.column(column), self.source.type_of(column)
        if name == "value":
            return f"{place}::DOUBLE"
        if name == "user":
            return user_text(self.source, column)
        if name != "time":
            return f"{place}::VARCHAR"
        if kind in AWARE_TYPES:
            return f"strftime(make_timestamp(epoch_us({place}::TIMESTAMPTZ)), '%Y-%m-%dT%H:%M:%S.%fZ')"
        if kind in NAIVE_TYPES:
            return f"strftime({place}::TIMESTAMP, '%Y-%m-%dT%H:%M:%S.%f')"
        return place


@contextmanager
def opened(file: Path, columns: Mapping[str, str | None]) -> Iterator[PushedFile]:
    """The file, ready to be read; what cannot be read is an InputError.

    Whether text is a table is said by the columns that are named, never guessed: `3` begins a list of counts as well as
    a CSV, and a row without a named column would count as one event whatever it says.
    """
    with tempfile.TemporaryDirectory(prefix="evercount-push-") as folder:
        scratch = Path(folder)
        named = {name: column for name, column in columns.items() if column is not None}
        source = open_source(str(file), scratch, json_lines=None if named else True)
        pushed = PushedFile(source, named, scratch)
        if not named and (source.kind == "parquet" or not pushed.begins_with_json()):
            what = "Parquet" if source.kind == "parquet" else "not JSON lines"
            raise InputError(f"{file} is {what}: name the columns of a table with --time, --key, --value or --user")
        if named and source.kind == "jsonl":
            raise InputError(f"{file} is JSON lines: omit --time, --key, --value and --user")
        yield pushed


@contextmanager
def _readable(source: Source) -> Iterator[None]:
    """Turn every failure to read the file into an InputError, with its name."""
    try:
        yield
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _number(text: str) -> float | str:
    """A number where the text is one; the service refuses what is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return text
