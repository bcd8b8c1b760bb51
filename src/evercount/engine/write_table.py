"""Writes columns of published numbers: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from evercount.errors import MissingExtra
from evercount.text_rules import csv_text

Columns = Mapping[str, npt.NDArray[Any]]
"""Columns of one length by their names."""
TextTarget = str | Path | IO[str]
"""A path, or an open text file."""


def write_csv(columns: Columns, target: TextTarget) -> None:
    """Write a header and one line for each row; labels of cells as `csv_text` has them."""
    with _opened(target) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        cells = columns["cell"]
        writer.writerows(_rows({**columns, "cell": np.asarray([csv_text(cell) for cell in cells], object)}))


def write_jsonl(columns: Columns, target: TextTarget) -> None:
    with _opened(target) as file:
        for row in _rows(columns):
            file.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")


def write_parquet(columns: Columns, target: str | Path, metadata: Mapping[str, str]) -> None:
    try:
        pa = importlib.import_module("pyarrow")
        pq = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("Parquet", "files") from error
    table = pa.table({name: column.tolist() for name, column in columns.items()})
    pq.write_table(table.replace_schema_metadata(dict(metadata)), str(target))


def _rows(columns: Columns) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns.values()), strict=True)


def _opened(target: TextTarget) -> AbstractContextManager[IO[str]]:
    if isinstance(target, str | Path):
        return Path(target).open("w", newline="", encoding="utf-8")
    return nullcontext(target)
