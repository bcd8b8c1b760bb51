"""Event files: what a file is (CSV, JSONL or Parquet, plain or gzip), its columns, and how DuckDB scans it.

The format is told from the first bytes, never from the name. Nothing about the events is guessed: a CSV has a header, a
declared delimiter and text columns, so that no row can change how another row is read.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from evercount._safe_files import new_private
from evercount.errors import InputError, MissingExtra, ParameterError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Kind = Literal["csv", "jsonl", "parquet"]
MEMORY = "420MB"
"""What DuckDB may hold at a time; beyond it spills into the private scratch folder."""
MOST_THREADS = 8
SAMPLE_LINES = 1000
LINE = "line"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """An event file that is ready to be scanned. `path` is a private link or copy without special characters."""

    path: Path
    name: str
    kind: Kind
    compressed: bool
    columns: tuple[str, ...]
    types: tuple[str, ...]
    delimiter: str = ","

    def scan(self) -> str:
        """SQL: the table function that reads the file; rows that cannot be taken apart go to DuckDB's reject tables."""
        if self.kind == "parquet":
            return f"read_parquet({_file(self.path)})"
        single = self.kind == "jsonl"
        # Columns go by number: names may repeat, and DuckDB does not tell "TS" from "ts".
        names = (LINE,) if single else tuple(f"c{number}" for number in range(len(self.columns)))
        columns = ", ".join(f"'{name}': 'VARCHAR'" for name in names)
        # A raw control character is not legal in JSON, so no line of a legal file is split.
        dialect = (
            "delim='\x01', quote='', escape=''"
            if single
            else f"delim={_quoted(self.delimiter)}, quote='\"', escape='\"'"
        )
        return (
            f"read_csv({_file(self.path)}, auto_detect=false, header={str(not single).lower()}, {dialect}, "
            f"strict_mode=true, store_rejects=true, columns={{{columns}}}, "
            f"compression={_quoted('gzip' if self.compressed else 'none')})"
        )

    def column(self, name: str) -> str:
        """SQL: a column of the scan (CSV and Parquet)."""
        if self.kind == "csv":
            return f"c{self.columns.index(name)}"
        return '"' + name.replace('"', '""') + '"'

    def type_of(self, name: str) -> str:
        """The SQL type of a column."""
        return self.types[self.columns.index(name)] if self.kind == "parquet" else "VARCHAR"

    def require(self, *names: str) -> None:
        """Refuse when a column is missing, with the list of those that are there."""
        for name in names:
            if self.columns.count(name) != 1:
                what = "has no column" if name not in self.columns else "has more than one column"
                raise InputError(f"{self.name} {what} {name!r}; its columns: {', '.join(map(repr, self.columns))}")

    def open_bytes(self) -> gzip.GzipFile | io.BufferedReader:
        """The file's bytes, decompressed."""
        return gzip.open(self.path, "rb") if self.compressed else self.path.open("rb")


@dataclass(frozen=True)
class Prefix:
    """How much of an append-only file has been read: a length and a digest of those bytes."""

    length: int
    digest: str


def connect(scratch: Path) -> DuckDBPyConnection:
    """DuckDB in memory, which downloads nothing and spills into `scratch` only."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("reading event files", "files") from error
    connection = duckdb.connect(
        config={
            "memory_limit": MEMORY,
            "threads": min(MOST_THREADS, os.cpu_count() or 1),
            "temp_directory": str(scratch / "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    # Times without an offset are turned into instants by Clock; for DuckDB all times are in UTC.
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def open_source(name: str, scratch: Path, delimiter: str = ",", stdin: IO[bytes] | None = None) -> Source:
    """The source of a path, or of standard input for "-". Reads the header only; InputError names what is wrong."""
    if len(delimiter.encode()) != 1 or delimiter in '"\n\r\x01':
        raise ParameterError(f"--delimiter must be one character such as ',' or ';' (a tab: $'\\t'), got {delimiter!r}")
    link = scratch / "input"
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            with new_private(link) as spool:
                shutil.copyfileobj(stdin or sys.stdin.buffer, spool, CHUNK)
        else:
            path = Path(name)
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name} is a directory: name a file, or '-' for standard input")
            if stat.S_ISREG(mode):
                link.symlink_to(path.resolve())
            else:
                with path.open("rb") as pipe, new_private(link) as spool:
                    shutil.copyfileobj(pipe, spool, CHUNK)
        with link.open("rb") as file:
            head = file.read(4)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {name}") from error
    except PermissionError as error:
        raise InputError(f"no permission to read {name}") from error
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from error
    if not head:
        raise InputError(f"{shown} is empty: it has not even a header")
    if head == b"PAR1":
        return _parquet(link, shown, scratch)
    if head == b"\x28\xb5\x2f\xfd" or head[:3] in (b"BZh", b"PK\x03") or head == b"\xfd7zX":
        raise InputError(f"{shown} is compressed in a way that is not read here: use gzip, or pipe it in: zstdcat … |")
    text = Source(link, shown, "csv", head[:2] == b"\x1f\x8b", (), (), delimiter)
    return _text(text)


def _parquet(link: Path, shown: str, scratch: Path) -> Source:
    import duckdb

    try:
        with connect(scratch) as connection:
            rows = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({_file(link)})").fetchall()
    except duckdb.Error as error:
        raise InputError(f"{shown} is a damaged Parquet file") from error
    return Source(link, shown, "parquet", False, tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def _text(source: Source) -> Source:
    """CSV or JSONL, with its columns."""
    lines = []
    try:
        with source.open_bytes() as raw:
            for _ in range(SAMPLE_LINES):
                line = raw.readline(CHUNK)
                if not line:
                    break
                lines.append(line)
                if len(lines) == 1 and not line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
                    break
    except (OSError, EOFError) as error:
        raise InputError(f"{source.name} is a damaged gzip file") from error
    first = lines[0].removeprefix(b"\xef\xbb\xbf") if lines else b""
    if not first.strip():
        raise InputError(f"{source.name} begins with an empty line: a CSV begins with its header")
    if first.lstrip().startswith(b"{"):
        names: dict[str, None] = {}
        for line in lines:
            try:
                item = json.loads(line)
            except ValueError:
                continue
            if isinstance(item, dict):
                names.update(dict.fromkeys(item))
        return replace(source, kind="jsonl", columns=tuple(names), types=("VARCHAR",) * len(names))
    try:
        header = next(
            csv.reader(io.StringIO(first.decode("utf-8"), newline=""), delimiter=source.delimiter, strict=True)
        )
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(
            f"{source.name} has no readable header (UTF-8, one line, names apart by the delimiter)"
        ) from error
    return replace(source, columns=tuple(header), types=("VARCHAR",) * len(header))


# -- append-only files ------------------------------------------------------------------------------------------------


def freeze(source: Source, scratch: Path, earlier: Prefix | None) -> tuple[Source, Source | None, Prefix]:
    """(all whole lines, those beyond `earlier`, how much that is): private copies that no longer grow.

    A line that is still being written waits for the next run. The file must begin with the bytes of `earlier`.
    """
    whole, tail = scratch / "whole", scratch / "tail"
    digest, length, matched = hashlib.blake2b(digest_size=32), 0, earlier is None
    header = b""
    with source.open_bytes() as raw, new_private(whole) as copy, new_private(tail) as rest:
        carry = b""
        while chunk := raw.read(CHUNK):
            chunk = carry + chunk
            end = chunk.rfind(b"\n") + 1
            chunk, carry = chunk[:end], chunk[end:]
            copy.write(chunk)
            if source.kind == "csv" and not header and chunk:
                header = chunk[: chunk.index(b"\n") + 1]
                rest.write(header)
            if earlier is not None and length < earlier.length <= length + len(chunk):
                cut = earlier.length - length
                digest.update(chunk[:cut])
                matched = digest.hexdigest() == earlier.digest
                digest.update(chunk[cut:])
                rest.write(chunk[cut:])
            else:
                digest.update(chunk)
                if earlier is not None and length >= earlier.length:
                    rest.write(chunk)
            length += len(chunk)
    if not matched:
        raise InputError(
            f"{source.name} does not begin with what the last run has read. --late next needs a file that only grows, "
            "to tell late rows from counted ones; restore the file, or start a stream with --late drop"
        )
    frozen = replace(source, path=whole, compressed=False)
    later = None if earlier is None else replace(source, path=tail, compressed=False)
    return frozen, later, Prefix(length, digest.hexdigest())


def _file(path: Path) -> str:
    """SQL: exactly this file. DuckDB takes * ? [ for a pattern, also in the names of folders."""
    return _quoted(glob.escape(str(path)))


def _quoted(text: str) -> str:
    """SQL: a text literal."""
    return "'" + text.replace("'", "''") + "'"
