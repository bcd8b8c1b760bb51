"""Release files: CSV, JSONL and Parquet that only grow, one row per tick and cell."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import MissingExtra, ParameterError, StoreError

OutputKind = Literal["csv", "jsonl", "parquet"]
FIELDS = ("tick", "start", "cell", "value", "std", "low", "high")
SUFFIXES: dict[str, OutputKind] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True, eq=False)
class Block:
    """Published numbers of some ticks, their stds and the ends of their intervals, each of shape (ticks, cells)."""

    ticks: list[int]
    starts: list[str]
    cells: tuple[str, ...]
    values: FloatArray
    std: FloatArray
    low: FloatArray
    high: FloatArray

    def columns(self) -> dict[str, list[Any]]:
        """The columns of FIELDS."""
        width = len(self.cells)
        return {
            "tick": [tick for tick in self.ticks for _ in range(width)],
            "start": [start for start in self.starts for _ in range(width)],
            "cell": list(self.cells) * len(self.ticks),
            "value": self.values.ravel().tolist(),
            "std": np.ascontiguousarray(self.std).ravel().tolist(),
            "low": self.low.ravel().tolist(),
            "high": self.high.ravel().tolist(),
        }


def output_kind(name: str) -> OutputKind:
    """The format that a name asks for; standard output is CSV."""
    if name == "-":
        return "csv"
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise ParameterError(f"--out {name!r}: the name must end in .csv, .jsonl or .parquet, or be '-'") from None


def write_releases(
    kind: OutputKind, old: Path | None, new: Path, blocks: Iterable[Block], guarantee: str, *, header: bool = True
) -> None:
    """Write the rows of `old` unchanged and those of `blocks` after them into the private file `new`, down to disk.

    Without `old` a CSV begins with its header, unless `header` says that an earlier run has written it elsewhere.
    """
    with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        if kind == "parquet":
            _parquet(file, old, blocks, guarantee)
        else:
            _lines(file, kind, old, blocks, header)
        file.flush()
        os.fsync(file.fileno())


def _lines(file: IO[bytes], kind: OutputKind, old: Path | None, blocks: Iterable[Block], header: bool) -> None:
    if old is not None:
        with old.open("rb") as before:
            shutil.copyfileobj(before, file)
    elif kind == "csv" and header:
        file.write((",".join(FIELDS) + "\n").encode())
    for block in blocks:
        columns = block.columns()
        rows = zip(*columns.values(), strict=True)
        if kind == "csv":
            text = _Text()
            csv.writer(text, lineterminator="\n").writerows(rows)
            file.write("".join(text.parts).encode())
        else:
            lines = (json.dumps(dict(zip(FIELDS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
            file.write("".join(lines).encode())


class _Text:
    """The little that csv.writer wants of a file."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


def _parquet(file: IO[bytes], old: Path | None, blocks: Iterable[Block], guarantee: str) -> None:
    pa, pq = parquet_modules()
    types = [pa.int64(), pa.string(), pa.string(), *[pa.float64()] * 4]
    schema = pa.schema(list(zip(FIELDS, types, strict=True)), metadata={"evercount.guarantee": guarantee})
    with pq.ParquetWriter(file, schema) as writer:
        if old is not None:
            try:
                earlier = pq.ParquetFile(old)
                for number in range(earlier.num_row_groups):
                    writer.write_table(earlier.read_row_group(number).replace_schema_metadata(schema.metadata))
                earlier.close()
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{old} cannot be read back: {error}") from error
        for block in blocks:
            writer.write_table(pa.table(block.columns(), schema=schema))


def parquet_modules() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, or MissingExtra."""
    import importlib

    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("Parquet", "files") from error
