"""Event files: what a file is (CSV, JSONL or Parquet; plain, gzip or zstd), its columns, and how DuckDB scans it.

The format is told from the first bytes, never from the name. Nothing about the events is guessed: a CSV has a header, a
declared delimiter and text columns, so that no row can change how another row is read.
"""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from evercount._safe_files import new_private
from evercount.errors import InputError, MissingExtra, ParameterError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Kind = Literal["csv", "jsonl", "parquet", "frame"]
Compression = Literal["none", "gzip", "zstd"]
DUCKDB_MEMORY = "400MB"  # what DuckDB may hold at a time; beyond it spills into the private scratch folder
MOST_THREADS = 8
SAMPLE_LINES = 1000  # lines of a JSONL file that are read for the names of its fields
LINE = "line"
FRAME = "frame"  # what DuckDB calls the data frame of a source
COPY_BYTES = 1 << 20  # bytes that are read, hashed and copied at a time
MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # first bytes of files


@dataclass(frozen=True)
class Source:
    """An event file that is ready to be scanned. `path` is a private link or copy without special characters."""

    path: Path
    name: str
    kind: Kind
    compression: Compression
    columns: tuple[str, ...]
    types: tuple[str, ...]
    delimiter: str = ","
    frame: Any = field(default=None, repr=False, compare=False)  # those of a frame that are used, in Arrow

    @property
    def typed(self) -> bool:
        """Whether its columns have types, and every row can be read."""
        return self.kind in ("parquet", "frame")

    def scan(self) -> str:
        """SQL: the table function that reads the file; rows that cannot be parsed go to DuckDB's reject tables."""
        if self.kind == "frame":
            return FRAME
        if self.kind == "parquet":
            return _reading("read_parquet", self.path)
        single = self.kind == "jsonl"
        # Columns go by number: names may repeat, and DuckDB does not tell "TS" from "ts".
        names = (LINE,) if single else tuple(f"c{number}" for number in range(len(self.columns)))
        columns = ", ".join(f"'{name}': 'VARCHAR'" for name in names)
        # A raw control character is not legal in JSON, so no line of a legal file is split.
        dialect = (
            "delim='\x01', quote='', escape=''"
            if single
            else f"delim={quoted(self.delimiter)}, quote='\"', escape='\"'"
        )
        return _reading(
            "read_csv",
            self.path,
            f", auto_detect=false, header={str(not single).lower()}, {dialect}, strict_mode=true, store_rejects=true, "
            f"columns={{{columns}}}, compression={quoted(self.compression)}",
        )

    def column(self, name: str) -> str:
        if self.kind == "csv":
            return f"c{self.columns.index(name)}"
        return '"' + name.replace('"', '""') + '"'

    def type_of(self, name: str) -> str:
        return self.types[self.columns.index(name)] if self.typed else "VARCHAR"

    def require(self, *names: str) -> None:
        for name in names:
            if self.columns.count(name) != 1:
                what = "has no column" if name not in self.columns else "has more than one column"
                there = ", ".join(map(repr, self.columns))
                raise InputError(f"{self.name} {what} {name!r}; its columns: {there or 'none'}")

    @contextmanager
    def open_bytes(self) -> Iterator[IO[bytes]]:
        """The file's bytes, decompressed. That a compressed file is damaged shows while it is read."""
        try:
            with self._opened() as raw:
                yield raw
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the machine's, not the file's
            raise InputError(f"{self.name} is a damaged {self.compression} file") from error

    def _opened(self) -> IO[bytes]:
        if self.compression == "gzip":
            return gzip.open(self.path, "rb")  # type: ignore[return-value]
        if self.compression == "zstd":
            return io.BufferedReader(arrow().input_stream(str(self.path), compression="zstd"))
        return self.path.open("rb")


class Prefix(NamedTuple):
    """How much of an append-only file has been read: bytes, decompressed, and their BLAKE2b in hexadecimal."""

    length: int
    digest: str


class SeenRows(NamedTuple):
    """How many rows of a file a run has read, and DuckDB's hash of them; with another version of DuckDB the hash
    matches no more, and rows are listed as possibly late."""

    rows: int
    digest: str


def connect(scratch: Path, sources: Sequence[Source] = ()) -> DuckDBPyConnection:
    """DuckDB in memory, which downloads nothing and spills into `scratch` only; all times are in UTC. It knows the data
    frame of `sources`, if there is one."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra("reading event files", "files") from error
    connection = duckdb.connect(
        config={
            "memory_limit": DUCKDB_MEMORY,
            "threads": min(MOST_THREADS, os.cpu_count() or 1),
            "temp_directory": str(scratch / "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    # `Schedule.sql_instant` turns times without an offset into instants; for DuckDB all times are in UTC.
    connection.execute("SET TimeZone = 'UTC'")
    for source in sources:
        if source.frame is not None:
            connection.register(FRAME, source.frame)
    return connection


def arrow() -> Any:
    import importlib

    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise MissingExtra("reading event files", "files") from error


def expand_inputs(names: Sequence[str]) -> tuple[str, ...]:
    """The input files, in the order in which they are given; those of a pattern in the order of their names.

    A path that exists is never taken for a pattern.

    **Guarantee.** No file is listed twice, not even by way of a link: a row that was read twice would count twice, and
    one event would add 2 to its cell. Test: tests/files/test_many_files.py::test_a_file_is_read_once.

    >>> expand_inputs(["-"])
    ('-',)
    """
    paths: list[str] = []
    for name in names:
        if name == "-" or Path(name).exists() or not glob.has_magic(name):
            paths.append(name)
            continue
        matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute patterns
        matches = [match for match in matches if not Path(match).is_dir()]
        if not matches:
            raise InputError(f"no file matches {name}")
        paths += matches
    if not paths:
        raise ParameterError("no events file is named: give one or more files, a pattern, or '-' for standard input")
    if "-" in paths and len(paths) > 1:
        raise ParameterError("standard input ('-') is read alone: omit the other files, or '-'")
    seen: dict[tuple[int, int], str] = {}
    for name in paths:
        if name != "-" and Path(name).is_file():
            facts = Path(name).stat()
            first = seen.get((facts.st_dev, facts.st_ino))
            if first is not None:
                same = "is named twice" if first == name else f"is the same file as {first}"
                raise ParameterError(f"{name} {same}: its rows would count twice")
            seen[facts.st_dev, facts.st_ino] = name
    return tuple(paths)


def open_source(
    name: str,
    scratch: Path,
    delimiter: str = ",",
    stdin: IO[bytes] | None = None,
    *,
    number: int = 0,
    json_lines: bool | None = None,
) -> Source:
    """The `number`-th source, from a path or "-", by a link or a copy in `scratch`. Reads the header only, and a gzip
    file to its end. Whether text is JSON lines shows in its first character, unless `json_lines` says it."""
    if len(delimiter.encode()) != 1 or delimiter in '"\n\r\x01':
        raise ParameterError(f"`delimiter` must be one character such as ',' or ';' (a tab: $'\\t'), got {delimiter!r}")
    link = scratch / (f"input-{number}" if number else "input")
    shown = "standard input" if name == "-" else name
    try:
        if name == "-":
            with new_private(link) as spool:
                shutil.copyfileobj(stdin or sys.stdin.buffer, spool, COPY_BYTES)
        else:
            path = Path(name)
            mode = path.stat().st_mode
            if stat.S_ISDIR(mode):
                raise InputError(f"{name} is a directory: name a file, or '-' for standard input")
            if stat.S_ISREG(mode):
                link.symlink_to(path.resolve())
            else:
                with path.open("rb") as pipe, new_private(link) as spool:
                    shutil.copyfileobj(pipe, spool, COPY_BYTES)
        with link.open("rb") as file:
            head = file.read(4)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {name}") from error
    except PermissionError as error:
        raise InputError(f"no permission to read {name}") from error
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from error
    if not head:
        raise InputError(f"{shown} is empty: not even a header")
    if head == b"PAR1":
        return _parquet(link, shown, scratch)
    if head[:3] in (b"BZh", b"PK\x03") or head == b"\xfd7zX":
        raise InputError(f"{shown} is compressed in a way that is not read here: use gzip or zstd, or pipe it in")
    compression: Compression = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "none")
    source = _text(Source(link, shown, "csv", compression, (), (), delimiter), json_lines)
    if compression == "gzip":  # DuckDB reads bytes that do not have the checksum as if nothing were wrong
        with source.open_bytes() as raw:
            while raw.read(COPY_BYTES):
                pass
    return source


def _parquet(link: Path, shown: str, scratch: Path) -> Source:
    import duckdb

    try:
        with connect(scratch) as connection:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {_reading('read_parquet', link)}").fetchall()
    except duckdb.Error as error:
        raise InputError(f"{shown} is a damaged Parquet file") from error
    return Source(link, shown, "parquet", "none", tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def _text(source: Source, json_lines: bool | None) -> Source:
    """Tell CSV from JSONL by the first line, and read the names of the columns."""
    with source.open_bytes() as raw:
        first = raw.readline(COPY_BYTES).removeprefix(b"\xef\xbb\xbf")
        if not first.strip():
            raise InputError(f"{source.name} begins with an empty line: a CSV begins with its header")
        if first.lstrip().startswith(b"{") if json_lines is None else json_lines:
            names: dict[str, None] = {}
            for line in (first, *islice(iter(partial(raw.readline, COPY_BYTES), b""), SAMPLE_LINES - 1)):
                with suppress(ValueError, RecursionError):
                    item = json.loads(line)
                    names.update(dict.fromkeys(item if isinstance(item, dict) else ()))
            return replace(source, kind="jsonl", columns=tuple(names), types=("VARCHAR",) * len(names))
    try:
        header = next(
            csv.reader(io.StringIO(first.decode("utf-8"), newline=""), delimiter=source.delimiter, strict=True)
        )
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(
            f"{source.name} has no readable header (UTF-8, one line, names separated by the delimiter)"
        ) from error
    return replace(source, columns=tuple(header), types=("VARCHAR",) * len(header))


def _reading(function: str, path: Path, options: str = "") -> str:
    """SQL: read exactly this file. In the names of folders DuckDB takes * ? [ for a pattern, x=1 for a column whose
    value is 1 in every row, and a first ~ for the home of the user."""
    return f"{function}({quoted(glob.escape(str(path.absolute())))}, hive_partitioning=false{options})"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
