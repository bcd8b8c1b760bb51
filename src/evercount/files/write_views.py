"""Views beside a release file: `hourly.csv` and its view per-day in `hourly.per-day.csv`, written anew by every run.

They are read back from the published file alone, so they can be lost, deleted and made again at any time.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from evercount.declare.declaration import StreamDeclaration
from evercount.declare.view_names import COLUMNS, ViewTable, show_view
from evercount.engine.release import Releases
from evercount.engine.stream import Stream
from evercount.errors import StoreError
from evercount.files.sink import OutputKind, output_kind, view_parquet
from evercount.text_rules import csv_text

READERS = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}


def view_path(output: Path, name: str) -> Path:
    """Where a view of a release file lies.

    >>> view_path(Path("hourly.csv"), "per-day").name
    'hourly.per-day.csv'
    """
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def read_releases(output: Path, stream: Stream) -> Releases:
    """All releases of a published file, as the stream's own."""
    import duckdb

    kind = output_kind(output.name)
    options = ", all_varchar = true" if kind == "csv" else ""
    try:
        columns = (
            duckdb.connect()
            .execute(
                f"SELECT tick::BIGINT AS tick, value::DOUBLE AS value FROM {READERS[kind]}(?{options})", [str(output)]
            )
            .fetchnumpy()
        )
    except duckdb.Error as error:
        raise StoreError(f"{output} cannot be read back: {str(error).splitlines()[0]}") from error
    tick, value = np.asarray(columns["tick"], np.int64), np.asarray(columns["value"], np.float64)
    outputs, width = stream.query.outputs, len(stream.labels)
    widths = np.bincount(tick, minlength=stream.tick + 1)[1:] if tick.size and tick.min() >= 0 else tick
    legal = len(widths) == stream.tick and np.array_equal(tick, np.repeat(np.arange(1, stream.tick + 1), widths))
    grown = [outputs, *widths.tolist(), width] if legal else []  # discovered keys join in the order of their cells
    if not legal or sorted(grown) != grown:
        raise StoreError(f"{output} does not hold the {stream.tick} ticks of its stream, in order: it was changed")
    rows = np.full((stream.tick, width), np.nan)
    rows[np.arange(width) < widths[:, np.newaxis]] = value
    return stream.read_back(rows)


def write_views(
    output: Path, stream: Stream, declaration: StreamDeclaration, names: tuple[str, ...], level: float
) -> list[Path]:
    """Write these views of a published file beside it, each complete or as it was before.

    Returns:
        The files.

    Raises:
        StoreError: the published file was changed, or a view cannot be written.
    """
    releases = read_releases(output, stream)
    written = []
    for name in names:
        path = view_path(output, name)
        new = path.with_name(f".new.{path.name}")
        try:
            view = show_view(releases, name, declaration.schedule, level)
            new.write_bytes(_bytes(output_kind(output.name), view, declaration.schedule.zone))
            new.replace(path)
        except OSError as error:
            raise StoreError(f"{output} is published; its view {path} cannot be written: {error.strerror}") from error
        finally:
            new.unlink(missing_ok=True)
        written.append(path)
    return written


def _bytes(kind: OutputKind, view: ViewTable, zone: str) -> bytes:
    if kind == "csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        columns = {**view.columns, "cell": map(csv_text, view.columns["cell"])}
        writer.writerows(zip(*(columns[name] for name in COLUMNS), strict=True))
        return text.getvalue().encode()
    if kind == "jsonl":
        rows = zip(*(view.columns[name] for name in COLUMNS), strict=True)
        lines = (json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
        return "".join(lines).encode()
    return view_parquet(view.columns, zone, view.guarantee)
