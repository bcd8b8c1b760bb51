"""Release files: CSV, JSONL and Parquet that only grow, one row per tick and cell."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from evercount._arrays import FloatArray
from evercount._safe_files import new_private
from evercount.declare.schedule import Schedule, zone_named
from evercount.engine.release_table import COLUMNS, ReleaseTable
from evercount.engine.stream import Stream
from evercount.errors import MissingExtra, ParameterError, StoreError
from evercount.text_rules import csv_text

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

    In CSV and JSONL a tick's start is a text with the offset of the declared zone, in Parquet a timestamp of that zone.

    A CSV without `old` begins with its header, unless an earlier run has written it elsewhere.
    """
    with new_private(new) as file:
        if kind == "parquet":
            _parquet(file, old, tables, schedule, guarantee)
        else:
            _lines(file, kind, old, _shown(tables, schedule), header)
        file.flush()
        os.fsync(file.fileno())


def _shown(tables: Iterable[ReleaseTable], schedule: Schedule) -> Iterator[dict[str, list[Any]]]:
    """The columns of each table, with the starts of ticks as texts of the declared zone."""
    for table in tables:
        texts = {start: "" if start is None else schedule.show(start) for start in table.starts}
        columns = table.columns()
        yield {**columns, "start": [texts[start] for start in columns["start"]]}


def _lines(
    file: IO[bytes], kind: OutputKind, old: Path | None, blocks: Iterable[Mapping[str, Iterable[Any]]], header: bool
) -> None:
    if old is not None:
        with old.open("rb") as before:
            shutil.copyfileobj(before, file)
    elif kind == "csv" and header:
        file.write((",".join(COLUMNS) + "\n").encode())
    for columns in blocks:
        if kind == "csv":
            columns = {**columns, "cell": map(csv_text, columns["cell"])}
        rows = zip(*columns.values(), strict=True)
        if kind == "csv":
            text = _Text()
            csv.writer(text, lineterminator="\n").writerows(rows)
            file.write("".join(text.parts).encode())
        else:
            lines = (json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
            file.write("".join(lines).encode())


class _Text:
    """Collects what csv.writer writes."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


def _parquet(
    file: IO[bytes], old: Path | None, tables: Iterable[ReleaseTable], schedule: Schedule, guarantee: str
) -> None:
    pa, pq = parquet_modules()
    try:
        earlier = None if old is None else pq.ParquetFile(old)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{old} cannot be read back: {error}") from error
    types = [pa.int64(), _moments(pa, schedule.zone), pa.string(), *[pa.float64()] * 4]
    schema = pa.schema(list(zip(COLUMNS, types, strict=True)), metadata={"evercount.guarantee": guarantee})
    with pq.ParquetWriter(file, schema) as writer:
        if earlier is not None:
            try:
                for number in range(earlier.num_row_groups):
                    writer.write_table(earlier.read_row_group(number).replace_schema_metadata(schema.metadata))
                earlier.close()
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{old} cannot be read back: {error}") from error
        for table in tables:
            writer.write_table(pa.table(table.columns(), schema=schema))


def read_numbers(output: Path, stream: Stream, names: Sequence[str]) -> tuple[Sequence[str], list[FloatArray]]:
    """The cells and these columns of a published file, each (ticks, cells), NaN where a key was not public.

    The file is opened here and handed over open: in a name DuckDB takes * ? [ for a pattern, and x=1 for a column.
    """
    pa, pq = parquet_modules()
    own_ticks = stream.query.publishing.own_ticks
    cell = [("cell", pa.string())] if own_ticks else []  # else cells have their order
    schema = pa.schema([("tick", pa.int64()), *((name, pa.float64()) for name in names), *cell])
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
    tick, *columns = (table.column(name).to_numpy() for name in ("tick", *names))
    outputs, width = stream.query.outputs, len(stream.labels)
    widths = np.bincount(tick, minlength=stream.tick + 1)[1:] if tick.size and tick.min() >= 0 else tick
    legal = len(widths) == stream.tick and np.array_equal(tick, np.repeat(np.arange(1, stream.tick + 1), widths))
    grown = [outputs, *widths.tolist(), width] if legal else []  # discovered keys join in the order of their cells
    if not legal or (sorted(grown) != grown and not own_ticks):
        raise StoreError(f"{output} does not hold the {stream.tick} ticks of its stream, in order: it was changed")
    if own_ticks:
        cells = table.column("cell").to_pylist()
        cells = [text.removeprefix("'") for text in cells] if kind == "csv" else cells
        labels = [*stream.query.labels, *sorted(set(cells) - set(stream.query.labels))]
        place = {label: number for number, label in enumerate(labels)}
        numbers = np.full((len(names), stream.tick, len(labels)), np.nan)
        numbers[:, tick - 1, [place[text] for text in cells]] = columns
        return labels, list(numbers)
    numbers = np.full((len(names), stream.tick, width), np.nan)
    numbers[:, np.arange(width) < widths[:, np.newaxis]] = columns
    return stream.labels, list(numbers)


def _moments(pa: Any, zone: str) -> Any:
    """The type of times in Parquet: instants, which readers show in the declared zone."""
    return pa.timestamp("us", tz="UTC" if zone_named(zone) is UTC else zone)


def view_parquet(columns: Mapping[str, Sequence[Any]], zone: str, guarantee: str) -> bytes:
    """A view as a Parquet file: its columns in order, the starts (ISO texts or None) as timestamps of the zone."""
    pa, pq = parquet_modules()
    types = [pa.int64(), pa.int64(), _moments(pa, zone), pa.string(), *[pa.float64()] * 4]
    schema = pa.schema(list(zip(columns, types, strict=True)), metadata={"evercount.guarantee": guarantee})
    starts = [datetime.fromisoformat(text) if text else None for text in columns["start"]]
    sink: Any = io.BytesIO()
    pq.write_table(pa.table({**columns, "start": starts}, schema=schema), sink)
    return bytes(sink.getvalue())


def parquet_modules() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, or MissingExtra."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("Parquet", "files") from error
