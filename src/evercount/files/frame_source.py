"""Data frames as sources of events: pandas, Polars, Arrow, relations of DuckDB, and all that speaks Arrow's C stream.

Only the columns that a stream uses are taken, as an Arrow table, which DuckDB scans like a Parquet file: the same rules
for times, users, keys and bad rows hold. Numbers, times and most texts are not copied.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from evercount.errors import InputError
from evercount.files.source import FRAME, Source, arrow, connect

NAME = "the data frame"
TEXTS = ("string", "empty")
PLAIN = (*TEXTS, "integer", "floating", "mixed-integer-float", "decimal", "boolean", "date")
"""What pandas calls objects that Arrow converts as they are."""
EXPECTED = (
    "data must be a DataFrame of pandas or Polars, an Arrow table, a relation of DuckDB, a path or a list of paths, "
    'got {}: try release(pd.DataFrame(rows), time="when", every="1d", zone="UTC", start="2026-01-01", epsilon=1)'
)


def frame_source(data: Any, used: tuple[str, ...], scratch: Path) -> Source:
    pa = arrow()
    import duckdb

    names, table = _table(pa, data, used)
    for number, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(number, table.field(number).name, column.cast(column.type.value_type))
    source = Source(Path(), NAME, "frame", "none", names, (), frame=table)
    source.require(*used)
    try:
        with connect(scratch, (source,)) as connection:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {FRAME}").fetchall()
    except duckdb.Error as error:
        raise InputError(f"{NAME} cannot be read: {str(error).splitlines()[0]:.200}") from error
    types = {row[0]: row[1] for row in rows}
    return Source(Path(), NAME, "frame", "none", names, tuple(types.get(name, "") for name in names), frame=table)


def _table(pa: Any, data: Any, used: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    kind = type(data)
    if isinstance(data, pa.Table | pa.RecordBatch):
        names = tuple(data.schema.names)
        data = pa.table(data) if isinstance(data, pa.RecordBatch) else data
        return names, data.select([name for name in used if names.count(name) == 1])
    if hasattr(kind, "itertuples"):
        return _of_pandas(pa, data, used)
    if hasattr(kind, "collect_schema"):  # Polars
        names = tuple(data.collect_schema().names())
        chosen = data.select([name for name in dict.fromkeys(used) if name in names])
        polars = importlib.import_module("polars")
        chosen = chosen.cast({polars.Categorical: polars.String, polars.Enum: polars.String})
        return names, pa.table(chosen.collect() if hasattr(kind, "collect") else chosen)
    if hasattr(kind, "to_arrow_table") and hasattr(kind, "columns"):  # a relation, whose connection is another one
        names = tuple(data.columns)
        quoted = ['"' + name.replace('"', '""') + '"' for name in dict.fromkeys(used) if name in names]
        return names, data.select(*quoted).to_arrow_table() if quoted else pa.table({})
    with suppress(pa.ArrowException):
        if hasattr(kind, "__arrow_c_stream__"):
            return _table(pa, pa.table(data), used)
    raise InputError(EXPECTED.format(kind.__name__))


def _of_pandas(pa: Any, data: Any, used: tuple[str, ...]) -> tuple[tuple[str, ...], Any]:
    """The columns of pandas by name, and the levels of its index where no column has the name."""
    names = [str(name) for name in data.columns]
    levels = [str(name) for name in data.index.names if name is not None]
    columns = {}
    for name in dict.fromkeys(used):
        if names.count(name) == 1:
            columns[name] = _column(pa, name, data.iloc[:, names.index(name)])
        elif name not in names and levels.count(name) == 1:
            columns[name] = _column(pa, name, data.index.get_level_values(levels.index(name)).to_series())
    return (*names, *(name for name in levels if name not in names)), pa.table(columns)


def _column(pa: Any, name: str, column: Any) -> Any:
    """A column of pandas as Arrow has it. Objects are taken for what they are, never for what the first of them are."""
    if str(column.dtype).startswith("period"):  # Arrow would take them for numbers
        raise InputError(
            f"the column {name!r} of {NAME} holds periods ({column.dtype}): make times of them, as in "
            f"frame[{name!r}] = frame[{name!r}].dt.to_timestamp()"
        )
    if column.dtype == object:
        column = _objects(name, column)
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the column {name!r} of {NAME} ({column.dtype}) cannot be read: {str(error).splitlines()[0]:.200}. Cast "
            f"it, as in frame[{name!r}] = frame[{name!r}].astype(str)"
        ) from error


def _objects(name: str, column: Any) -> Any:
    """Objects of one kind as they are; times, with and without an offset, and whole numbers among texts as texts."""
    kind = importlib.import_module("pandas").api.types.infer_dtype(column, skipna=True)
    if kind in PLAIN:
        return column
    missing = column.isna()
    for number, (value, gone) in enumerate(zip(column, missing, strict=True)):
        if not gone and (isinstance(value, bool) or not isinstance(value, str | int | datetime)):
            raise InputError(
                f"the column {name!r} of {NAME} holds objects: row {number} (from 0) is {value!r:.80} "
                f"({type(value).__name__}). Make it one type, as in frame[{name!r}] = frame[{name!r}].astype(str)"
            )
    texts = [
        None if gone else value.isoformat() if isinstance(value, datetime) else str(value)
        for value, gone in zip(column, missing, strict=True)
    ]
    return column.__class__(texts, dtype=object)
