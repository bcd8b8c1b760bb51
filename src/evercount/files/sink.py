"""Release files: CSV, JSONL and Parquet that only grow, one row per tick and cell."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray
from evercount._safe_files import new_private
from evercount.declare.schedule import Schedule
from evercount.engine.release_table import ReleaseTable
from evercount.engine.write_table import parquet_modules, write_tables
from evercount.errors import ParameterError, StoreError
from evercount.text_rules import plain_csv_text

OutputKind = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, OutputKind] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def output_kind(name: str) -> OutputKind:
    """The format that a name asks for; standard output is CSV.

    >>> output_kind("hourly.parquet"), output_kind("-")
    ('parquet', 'csv')
    """
    if name == "-":
        return "csv"
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise ParameterError(f"--out {name!r}: the name must end in .csv, .jsonl or .parquet, or be '-'") from None


def write_releases(
    kind: OutputKind,
    old: Path | None,
    new: Path,
    tables: Iterable[ReleaseTable],
    schedule: Schedule,
    guarantee: str,
    *,
    header: bool = True,
) -> None:
    """Write the rows of `old` unchanged and those of `tables` after them into the private file `new`, down to disk.

    A CSV without `old` begins with its header, unless an earlier run has written it elsewhere.
    """
    with new_private(new) as file:
        if old is not None and kind != "parquet":
            with old.open("rb") as before:
                shutil.copyfileobj(before, file)
        metadata = {"evercount.guarantee": guarantee}
        write_tables(kind, file, tables, schedule, metadata, header=header and old is None, old=old)
        file.flush()
        os.fsync(file.fileno())


def read_numbers(output: Path, cells: Sequence[str], names: Sequence[str]) -> tuple[IntArray, list[FloatArray]]:
    """The ticks of a published file, and these columns of some of its cells, each of shape (ticks, cells).

    NaN where a tick has no number of a cell. The file is opened here and handed over open: in a name DuckDB takes
    * ? [ for a pattern, and x=1 for a column.
    """
    tick, label, *columns = _columns(output, names)
    ticks, row = np.unique(tick, return_inverse=True)
    numbers = np.full((len(names), len(ticks), len(cells)), np.nan)
    for place, cell in enumerate(cells):
        chosen_rows = label == cell
        numbers[:, row[chosen_rows], place] = [column[chosen_rows] for column in columns]
    return ticks, list(numbers)


def published_cells(output: Path) -> set[str]:
    """The cells of a published file."""
    return set(_columns(output, ())[1].tolist())


def _columns(output: Path, names: Sequence[str]) -> list[AnyArray]:
    """tick, cell and these columns of a published file, as they were before they were written."""
    pa, pq = parquet_modules()
    schema = pa.schema([("tick", pa.int64()), ("cell", pa.string()), *((name, pa.float64()) for name in names)])
    kind = output_kind(output.name)
    try:
        with output.open("rb") as file:
            if kind == "parquet":
                table = pq.ParquetFile(file).read(columns=schema.names)
            elif kind == "csv":
                csv_module = importlib.import_module("pyarrow.csv")
                chosen = csv_module.ConvertOptions(column_types=schema, include_columns=schema.names)
                parsed = csv_module.ParseOptions(newlines_in_values=True)
                table = csv_module.read_csv(file, convert_options=chosen, parse_options=parsed)
            else:
                json_module = importlib.import_module("pyarrow.json")
                parsed = json_module.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
                table = json_module.read_json(file, parse_options=parsed)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{output} is published, but cannot be read back: {str(error).splitlines()[0]}") from error
    tick, label, *columns = (table.column(name).to_numpy() for name in schema.names)
    if kind == "csv":
        label = np.asarray([plain_csv_text(one) for one in label.tolist()], object)
    return [tick, label, *columns]
