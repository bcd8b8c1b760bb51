"""Writes ReleaseTables: one writer for each format, for files, the service, the library and Spark."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np

from evercount.engine.release_table import NUMBERS, ReleaseTable
from evercount.errors import MissingExtra, StoreError
from evercount.text_rules import csv_text

Kind = Literal["csv", "json", "jsonl", "parquet"]
MEDIA_TYPES: dict[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


class Clock(Protocol):
    """What shows the starts of ticks: a `Schedule`."""

    @property
    def arrow_zone(self) -> str: ...

    def show(self, instant: int) -> str: ...


def table_texts(
    kind: Kind, tables: Iterable[ReleaseTable], clock: Clock | None = None, *, header: bool = True
) -> Iterator[str]:
    """CSV, JSON lines or one array of JSON, piece by piece. Starts are texts with the offset of the clock's zone. A CSV
    begins with its header, unless an earlier piece has it; labels of cells are as `csv_text` has them."""
    before = "[\n" if kind == "json" else ""
    for table in tables:
        columns = {
            name: column.tolist() for name, column in table.columns(None if clock is None else clock.show).items()
        }
        columns["std"] = [None if std != std else std for std in columns["std"]]
        if kind == "csv":
            columns["cell"] = list(map(csv_text, columns["cell"]))
        rows = zip(*columns.values(), strict=True)
        if kind == "csv":
            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            if header:
                writer.writerow(columns)
                header = False
            writer.writerows(rows)
            yield text.getvalue()
            continue
        lines = (json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows)
        if kind == "jsonl":
            yield "".join(f"{line}\n" for line in lines)
        elif joined := ",\n".join(lines):
            yield before + joined
            before = ",\n"
    if kind == "json":
        yield "\n]\n" if before == ",\n" else "[]\n"


def write_tables(
    kind: Kind,
    file: IO[bytes],
    tables: Iterable[ReleaseTable],
    clock: Clock | None,
    metadata: Mapping[str, str],
    *,
    header: bool = True,
    old: Path | None = None,
) -> None:
    """Write tables into an open file; `old` is a Parquet file whose rows come first, unchanged."""
    if kind == "parquet":
        write_parquet(file, tables, clock, metadata, old)
    else:
        for text in table_texts(kind, tables, clock, header=header):
            file.write(text.encode())


def write_parquet(
    file: IO[bytes] | str,
    tables: Iterable[ReleaseTable],
    clock: Clock | None,
    metadata: Mapping[str, str],
    old: Path | None = None,
) -> None:
    """One row group for each table; starts are instants, which readers show in the clock's zone."""
    pa, pq = parquet_modules()
    following = iter(tables)
    table = next(following)
    schema = arrow_schema(table, clock, metadata)
    with pq.ParquetWriter(file, schema) as writer:
        if old is not None:
            try:
                with pq.ParquetFile(old) as earlier:
                    for number in range(earlier.num_row_groups):
                        writer.write_table(earlier.read_row_group(number).replace_schema_metadata(schema.metadata))
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{old} cannot be read back: {error}") from error
        for each in chain([table], following):
            writer.write_table(arrow_table(each, schema))


def arrow_schema(table: ReleaseTable, clock: Clock | None, metadata: Mapping[str, str]) -> Any:
    """The types of a table's columns; without a clock its starts are texts."""
    pa, _ = parquet_modules()
    whole = ("tick", "first", "as_of", "revisions_left")
    types = {name: pa.float64() for name in NUMBERS} | {name: pa.int64() for name in whole}
    if clock is not None:
        types["start"] = pa.timestamp("us", tz=clock.arrow_zone)
    return pa.schema([(name, types.get(name, pa.string())) for name in table.columns()], metadata=dict(metadata))


def arrow_table(table: ReleaseTable, schema: Any, show: Callable[[int], str] | None = None) -> Any:
    pa, _ = parquet_modules()
    columns: dict[str, Any] = dict(table.columns(show))
    columns["std"] = pa.array(columns["std"], mask=np.isnan(columns["std"]))
    return pa.table(columns, schema=schema)


def parquet_modules() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("Parquet", "files") from error


def frame_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"a table of {name}", name, package=True) from error
