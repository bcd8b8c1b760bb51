"""Sources of events, files and data frames: what each is, and how DuckDB scans it.

A file is CSV, JSONL or Parquet; plain, gzip or zstd. The format is told from the first bytes, never
from the name. Nothing about the events is guessed: a CSV has a header, a declared delimiter and
text columns, so that no row can change how another row is read. A source without rows needs neither
columns nor types: whether a day is published must not depend on its events.

A data frame is one of pandas, Polars, Arrow, a relation of DuckDB, or anything that speaks Arrow's
C stream. Only the columns that a stream uses are taken, as an Arrow table, which DuckDB scans like
a Parquet file: the same rules for times, users, keys and bad rows hold. Numbers, times and most
texts are not copied.
"""

from __future__ import annotations

import csv
import glob
import gzip
import importlib
import io
import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from threading import current_thread, main_thread
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from evercount._safe_files import new_private
from evercount.errors import InputError, MissingExtra, ParameterError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Kind = Literal["csv", "jsonl", "parquet", "frame"]
Library = Literal[
    "duckdb", "pyarrow", "pyarrow.compute", "pyarrow.parquet", "deltalake", "pyiceberg.catalog.sql"
]
Compression = Literal["none", "gzip", "zstd"]
LineEnds = Literal["none", "some", "all"]
# what DuckDB may hold at a time; beyond it spills into the private scratch folder
DUCKDB_MEMORY = "400MB"
MOST_THREADS = 8
NO_TYPE = '"NULL"'  # what DuckDB calls the type of a column in which nothing is said
SAMPLE_LINES = 1000  # lines of a JSONL file that are read for the names of its fields
LINE = "line"
FRAME = "frame"  # what DuckDB calls the data frame of a source
COPY_BYTES = 1 << 20  # bytes that are read, hashed and copied at a time
# first bytes of files
MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# such a file without a byte was cut off
NEVER_EMPTY = (".parquet", ".gz", ".gzip", ".zst", ".zstd")


@dataclass(frozen=True)
class Source:
    """An event file that is ready to be scanned. `path` is a private link or copy without special
    characters."""

    path: Path
    name: str
    kind: Kind
    compression: Compression
    columns: tuple[str, ...]
    types: tuple[str, ...]
    delimiter: str = ","
    # those of a frame that are used, in Arrow
    frame: Any = field(default=None, repr=False, compare=False)
    empty: bool = False  # there are no rows; a CSV that has a header is read as any other
    crlf: LineEnds = "none"  # of a text: which line feeds follow a carriage return

    @property
    def typed(self) -> bool:
        """Whether its columns have types, and every row can be read."""
        return self.empty or self.kind in ("parquet", "frame")

    @property
    def json_lines(self) -> bool:
        """Whether each row is an object of JSON."""
        return self.kind == "jsonl" and not self.empty

    def scan(self) -> str:
        """SQL: the table function that reads the file; rows that cannot be parsed go to DuckDB's
        reject tables."""
        if self.empty:
            return "(SELECT 1 WHERE false)"
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
            f", auto_detect=false, header={str(not single).lower()}, {dialect}, strict_mode=true, "
            f"store_rejects=true, columns={{{columns}}}, compression={quoted(self.compression)}",
        )

    def column(self, name: str) -> str:
        """SQL: a column; texts where its type says nothing, because it holds nothing."""
        if self.empty:
            return "NULL::VARCHAR"
        if self.kind == "csv":
            return f"c{self.columns.index(name)}"
        column = '"' + name.replace('"', '""') + '"'
        return f"{column}::VARCHAR" if self._stored_type(name) == NO_TYPE else column

    def row_digest(self) -> str:
        """SQL: a number that rows share if they are equal in every column, whatever the order of
        the columns. Two others share it with probability 2^−64."""
        if self.empty or self.kind == "frame":
            return "NULL::UBIGINT"
        if self.kind == "jsonl":
            return f"hash({LINE})"
        columns = [f"c{place}" for place in range(len(self.columns))]
        if self.kind == "parquet":
            columns = ['"' + name.replace('"', '""') + '"' for name in self.columns]
        by_name = sorted(zip(self.columns, columns, strict=True))
        return f"hash({', '.join(f'{column}::VARCHAR' for _, column in by_name)})"

    def type_of(self, name: str) -> str:
        kind = self._stored_type(name)
        return "VARCHAR" if kind == NO_TYPE else kind

    def _stored_type(self, name: str) -> str:
        if self.empty or not self.typed:
            return "VARCHAR"
        return self.types[self.columns.index(name)]

    def require(self, *names: str) -> None:
        """Refuse a source that lacks one of the columns. What has neither rows nor columns lacks
        none."""
        if self.empty and not self.columns:
            return
        for name in names:
            if self.columns.count(name) != 1:
                what = "has no column" if name not in self.columns else "has more than one column"
                there = ", ".join(map(repr, self.columns))
                raise InputError(f"{self.name} {what} {name!r}; its columns: {there or 'none'}")

    @contextmanager
    def open_bytes(self) -> Iterator[IO[bytes]]:
        """The file's bytes, decompressed. That a compressed file is damaged shows while it is
        read."""
        try:
            with self._open() as raw:
                yield raw
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the machine's, not the file's
            raise InputError(f"{self.name} is a damaged {self.compression} file") from error

    def _open(self) -> IO[bytes]:
        if self.compression == "gzip":
            return gzip.open(self.path, "rb")  # type: ignore[return-value]
        if self.compression == "zstd":
            return io.BufferedReader(
                library("pyarrow").input_stream(str(self.path), compression="zstd")
            )
        return self.path.open("rb")


class Prefix(NamedTuple):
    """How much of an append-only file has been read: bytes, decompressed, and their BLAKE2b in
    hexadecimal."""

    length: int
    digest: str


class SeenRows(NamedTuple):
    """How many rows of a file a run has read, and DuckDB's hash of them; with another version of
    DuckDB the hash matches no more, and rows are listed as possibly late."""

    rows: int
    digest: str


def connect(scratch: Path, sources: Sequence[Source] = ()) -> DuckDBPyConnection:
    """DuckDB in memory, which downloads nothing and spills into `scratch` only; all times are in
    UTC. It knows the data frame of `sources`, if there is one."""
    connection: DuckDBPyConnection = library("duckdb").connect(
        config={
            "memory_limit": DUCKDB_MEMORY,
            "threads": min(MOST_THREADS, os.cpu_count() or 1),
            "temp_directory": str(scratch / "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    # `Schedule.sql_instant` turns times without an offset into instants; for DuckDB all times are
    # in UTC.
    connection.execute("SET TimeZone = 'UTC'")
    for source in sources:
        if source.frame is not None:
            connection.register(FRAME, source.frame)
    return connection


def library(name: Library, what: str = "reading event files", extra: str = "files") -> Any:
    """DuckDB, PyArrow or another module of an extra. Ctrl-C waits until it is imported: an import
    that is interrupted may fail with another error, abort the process, or lose the interrupt."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT) if current_thread() is main_thread() else None
    if before is not None:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(what, extra) from error
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def expand_inputs(names: Sequence[str]) -> tuple[str, ...]:
    """The input files, in the order in which they are given; those of a pattern in the order of
    their names.

    A path that exists is never taken for a pattern.

    **Guarantee.** No file is listed twice, not even by way of a link: a row that was read twice
    would count twice, and one event would add 2 to its cell. Test:
    tests/files/test_many_files.py::test_a_file_is_read_once.

    >>> expand_inputs(["-"])
    ('-',)
    """
    paths = find_inputs(names)
    for name, first in linked_names(paths).items():
        same = "is named twice" if first == name else f"is the same file as {first}"
        raise ParameterError(f"{name} {same}: its rows would count twice")
    return tuple(paths)


def find_inputs(names: Sequence[str]) -> list[str]:
    """The files that names and patterns stand for, also one that several of them stand for."""
    paths: list[str] = []
    for name in names:
        matches = [name]
        if name != "-" and not Path(name).exists() and glob.has_magic(name):
            # Path.glob takes no absolute patterns
            found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207
            matches = [match for match in found if not Path(match).is_dir()]
        if not matches:
            raise InputError(f"no file matches {name}")
        paths += matches
    if not paths:
        raise ParameterError(
            "no events file is named: give one or more files, a pattern, or '-' for standard input"
        )
    if "-" in paths and len(paths) > 1:
        raise ParameterError("standard input ('-') is read alone: omit the other files, or '-'")
    return paths


def linked_names(paths: Sequence[str]) -> dict[str, str]:
    """The paths whose file comes under another path before, or twice under this one; and the path
    that comes first."""
    first_names: dict[tuple[int, int], str] = {}
    linked: dict[str, str] = {}
    for name in paths:
        if name == "-" or not Path(name).is_file():
            continue
        facts = Path(name).stat()
        first = first_names.setdefault((facts.st_dev, facts.st_ino), name)
        if first != name or paths.count(name) > 1:
            linked[name] = first
    return linked


def open_sources(names: Sequence[str], scratch: Path, delimiter: str) -> tuple[Source, ...]:
    """`open_source` of each of the names that `expand_inputs` found."""
    return tuple(
        open_source(name, scratch, delimiter, number=number) for number, name in enumerate(names)
    )


def open_source(
    name: str,
    scratch: Path,
    delimiter: str = ",",
    *,
    number: int = 0,
    json_lines: bool | None = None,
) -> Source:
    """The `number`-th source, from a path or "-", by a link or a copy in `scratch`. Reads the
    header only, and a gzip file and text to their ends. Whether text is JSON lines shows in its
    first character, unless `json_lines` says it. A file without a byte is a day without rows; that
    it was cut off shows where its name says that it cannot be empty.
    """
    if len(delimiter.encode()) != 1 or delimiter in '"\n\r\x01':
        raise ParameterError(
            "`delimiter` must be one character such as ',' or ';' (a tab: $'\\t'), got "
            f"{delimiter!r}"
        )
    link = scratch / (f"input-{number}" if number else "input")
    shown = "standard input" if name == "-" else name
    try:
        path = Path(name)
        if name != "-" and path.is_file():
            link.symlink_to(path.resolve())
        else:
            given = nullcontext(sys.stdin.buffer) if name == "-" else path.open("rb")
            with given as pipe, new_private(link) as spool:
                shutil.copyfileobj(pipe, spool, COPY_BYTES)
        with link.open("rb") as file:
            head = file.read(4)
    except IsADirectoryError as error:
        raise InputError(f"{shown} is a directory: name the files in it") from error
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from error
    if not head and name.lower().endswith(NEVER_EMPTY):
        raise InputError(
            f"{shown} is empty: it was cut off, because such a file is never without a byte"
        )
    if head == b"PAR1":
        return _parquet(link, shown, scratch)
    if head[:3] in (b"BZh", b"PK\x03") or head == b"\xfd7zX":
        raise InputError(
            f"{shown} has a compression that is not supported: use gzip or zstd, or pipe it in"
        )
    compression: Compression = next(
        (kind for magic, kind in MAGIC.items() if head.startswith(magic)), "none"
    )
    source = Source(link, shown, "csv", compression, (), (), delimiter)
    # To the end, also for the checksum: DuckDB reads bytes that do not have it as if nothing were
    # wrong.
    blank, crlf = _scan_lines(source)
    if blank:
        return replace(source, kind="jsonl", empty=True)
    return replace(_text(source, json_lines), crlf=crlf)


def _scan_lines(source: Source) -> tuple[bool, LineEnds]:
    """Whether all lines of a text are blank, and how its lines end."""
    blank = True
    line_feeds = after_return = 0
    before = b""
    with source.open_bytes() as raw:
        while chunk := raw.read(COPY_BYTES):
            if blank:
                blank = not chunk.removeprefix(BYTE_ORDER_MARK).strip()
            line_feeds += chunk.count(b"\n")
            if b"\r" in chunk or before == b"\r":
                after_return += chunk.count(b"\r\n")
                after_return += before == b"\r" and chunk.startswith(b"\n")
            before = chunk[-1:]
    if not after_return:
        return blank, "none"
    return blank, "all" if after_return == line_feeds else "some"


def with_one_line_end(sources: Sequence[Source], scratch: Path, what: str) -> tuple[Source, ...]:
    """The sources; instead of one whose lines end in several ways, a private copy in which CR LF is
    LF. The names of copies begin with `what`.

    **Guarantee.** No row changes how another row is read: `event_sql.user_text` takes CR LF for LF
    in every CSV, and no other text that a row may have holds a line end. Test:
    tests/files/test_line_ends.py::test_one_row_changes_no_other.
    """
    return tuple(
        _with_line_feeds(source, scratch / f"{what}-{number}-with-one-line-end")
        if source.crlf == "some"
        else source
        for number, source in enumerate(sources)
    )


def _with_line_feeds(source: Source, path: Path) -> Source:
    with source.open_bytes() as raw, new_private(path) as copy:
        carry = b""
        while chunk := raw.read(COPY_BYTES):
            chunk = carry + chunk
            carry = b"\r" if chunk.endswith(b"\r") else b""
            copy.write(chunk.removesuffix(b"\r").replace(b"\r\n", b"\n"))
        copy.write(carry)
    return replace(source, path=path, compression="none", crlf="none")


def _parquet(link: Path, shown: str, scratch: Path) -> Source:
    try:
        with connect(scratch) as connection:
            scan = _reading("read_parquet", link)
            rows = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()
            some = connection.execute(f"SELECT 1 FROM {scan} LIMIT 1").fetchall()
    except library("duckdb").Error as error:
        if _without_columns(link):
            return Source(link, shown, "parquet", "none", (), (), empty=True)
        raise InputError(f"{shown} is a damaged Parquet file") from error
    names, types = (tuple(row[place] for row in rows) for place in (0, 1))
    return Source(link, shown, "parquet", "none", names, types, empty=not some)


def _without_columns(link: Path) -> bool:
    """Whether a Parquet file has no columns, as that of a data frame made of no rows; DuckDB reads
    none such."""
    parquet = library("pyarrow.parquet")
    try:
        return bool(parquet.read_metadata(link).num_columns == 0)
    except (library("pyarrow").ArrowException, OSError):
        return False


def _text(source: Source, json_lines: bool | None) -> Source:
    """Tell CSV from JSONL by the first line, and read the names of the columns."""
    with source.open_bytes() as raw:
        first = raw.readline(COPY_BYTES).removeprefix(BYTE_ORDER_MARK)
        if not first.strip():
            raise InputError(
                f"{source.name} begins with an empty line: a CSV begins with its header"
            )
        if first.lstrip().startswith(b"{") if json_lines is None else json_lines:
            names: dict[str, None] = {}
            for line in (
                first,
                *islice(iter(partial(raw.readline, COPY_BYTES), b""), SAMPLE_LINES - 1),
            ):
                with suppress(ValueError, RecursionError):
                    item = json.loads(line)
                    names.update(dict.fromkeys(item if isinstance(item, dict) else ()))
            return replace(
                source, kind="jsonl", columns=tuple(names), types=("VARCHAR",) * len(names)
            )
    try:
        header = next(
            csv.reader(
                io.StringIO(first.decode("utf-8"), newline=""),
                delimiter=source.delimiter,
                strict=True,
            )
        )
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise InputError(
            f"{source.name} has no readable header (UTF-8, one line, names separated by the "
            "delimiter)"
        ) from error
    return replace(source, columns=tuple(header), types=("VARCHAR",) * len(header))


def _reading(function: str, path: Path, options: str = "") -> str:
    """SQL: read exactly this file. In the names of folders DuckDB takes * ? [ for a pattern, x=1
    for a column whose value is 1 in every row, and a first ~ for the home of the user."""
    return (
        f"{function}({quoted(glob.escape(str(path.absolute())))}, hive_partitioning=false{options})"
    )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# -- data frames -----------------------------------------------------------------------------------

FRAME_NAME = "the data frame"
PLAIN = (
    "string",
    "empty",
    "integer",
    "floating",
    "mixed-integer-float",
    "decimal",
    "boolean",
    "date",
)
"""What pandas calls objects that Arrow converts as they are."""
EXPECTED = (
    "data must be a DataFrame of pandas or Polars, an Arrow table, a relation of DuckDB, a path or "
    "a list of paths, "
    'got {}: try release(pd.DataFrame(rows), time="when", every="1d", zone="UTC", '
    'start="2026-01-01", epsilon=1)'
)


def frame_source(data: Any, used: tuple[str, ...], scratch: Path) -> Source:
    """A data frame as a source: its columns that are used."""
    pa = library("pyarrow")
    names, table = _table(pa, data, used)
    if table is None:
        source = Source(Path(), FRAME_NAME, "frame", "none", names, (), empty=True)
        source.require(*used)
        return source
    for number, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(
                number, table.field(number).name, column.cast(column.type.value_type)
            )
    source = Source(Path(), FRAME_NAME, "frame", "none", names, (), frame=table)
    source.require(*used)
    try:
        with connect(scratch, (source,)) as connection:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {FRAME}").fetchall()
    except library("duckdb").Error as error:
        raise InputError(
            f"{FRAME_NAME} cannot be read: {str(error).splitlines()[0]:.200}"
        ) from error
    types = {row[0]: row[1] for row in rows}
    return replace(source, types=tuple(types.get(name, "") for name in names))


def _table(pa: Any, data: Any, used: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """The names of all columns, and the used ones as an Arrow table: None where there are no
    rows."""
    kind = type(data)
    if hasattr(kind, "itertuples"):
        return _of_pandas(pa, data, used)
    if hasattr(kind, "collect_schema"):  # Polars
        names = tuple(data.collect_schema().names())
        polars = importlib.import_module("polars")
        chosen = data.lazy().select([name for name in dict.fromkeys(used) if name in names])
        table = pa.table(
            chosen.cast({polars.Categorical: polars.String, polars.Enum: polars.String}).collect()
        )
        return names, table if table.num_rows else None
    try:  # tables of Arrow, relations of DuckDB, and others
        reader = pa.RecordBatchReader.from_stream(data)
    except (TypeError, pa.ArrowException):
        raise InputError(EXPECTED.format(kind.__name__)) from None
    names = tuple(reader.schema.names)
    schema = pa.schema(
        [reader.schema.field(name) for name in dict.fromkeys(used) if names.count(name) == 1]
    )
    table = pa.Table.from_batches([batch.select(schema.names) for batch in reader], schema)
    return names, table if table.num_rows else None


def _of_pandas(pa: Any, data: Any, used: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """The columns of pandas by name, and the levels of its index where no column has the name."""
    names = [str(name) for name in data.columns]
    levels = [str(name) for name in data.index.names if name is not None]
    all_names = (*names, *(name for name in levels if name not in names))
    if not len(data):  # without rows a column may have any type
        return all_names, None
    columns = {}
    for name in dict.fromkeys(used):
        if names.count(name) == 1:
            columns[name] = _column(pa, name, data.iloc[:, names.index(name)])
        elif name not in names and levels.count(name) == 1:
            columns[name] = _column(
                pa, name, data.index.get_level_values(levels.index(name)).to_series()
            )
    return all_names, pa.table(columns)


def _column(pa: Any, name: str, column: Any) -> Any:
    """A column of pandas as Arrow has it. Objects are taken for what they are, never for what the
    first of them are."""
    if str(column.dtype).startswith("period"):  # Arrow would take them for numbers
        raise InputError(
            f"the column {name!r} of {FRAME_NAME} holds periods ({column.dtype}): convert them to "
            f"times, as in frame[{name!r}] = frame[{name!r}].dt.to_timestamp()"
        )
    if column.dtype == object:
        column = _objects(name, column)
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the column {name!r} of {FRAME_NAME} ({column.dtype}) cannot be read: "
            f"{str(error).splitlines()[0]:.200}. Cast it, as in frame[{name!r}] = "
            f"frame[{name!r}].astype(str)"
        ) from error


def _text_of(value: str | int | datetime) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _objects(name: str, column: Any) -> Any:
    """Objects of one kind as they are; times, with and without an offset, and whole numbers among
    texts as texts."""
    kind = importlib.import_module("pandas").api.types.infer_dtype(column, skipna=True)
    if kind in PLAIN:
        return column
    texts: list[str | None] = []
    for number, (value, gone) in enumerate(zip(column, column.isna(), strict=True)):
        if not gone and (isinstance(value, bool) or not isinstance(value, str | int | datetime)):
            raise InputError(
                f"the column {name!r} of {FRAME_NAME} holds objects: row {number} (from 0) is "
                f"{value!r:.80} ({type(value).__name__}). Convert it to one type, as in "
                f"frame[{name!r}] = frame[{name!r}].astype(str)"
            )
        texts.append(None if gone else _text_of(value))
    return column.__class__(texts, dtype=object)
