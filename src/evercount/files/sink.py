"""Release files: CSV, JSONL and Parquet that only grow, one row per tick and cell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from evercount._safe_files import new_private
from evercount.declarations.schedule import Schedule
from evercount.engine.release_table import ReleaseTable
from evercount.engine.write_table import write_tables
from evercount.errors import ParameterError

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
        raise ParameterError(f"`out` {name!r}: the name must end in .csv, .jsonl or .parquet, or be '-'") from None


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
