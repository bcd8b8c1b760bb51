"""Views of a release file: `hourly.csv` and its view per-day in `hourly.per-day.csv`, written anew by every run.

They are read back from the published file alone, so they can be lost, deleted and made again at any time.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from evercount._safe_files import new_mode, replaced
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.view_names import COLUMNS, ViewTable, show_view
from evercount.engine.stream import Stream
from evercount.errors import StoreError
from evercount.files.sink import OutputKind, output_kind, read_numbers, view_parquet
from evercount.text_rules import csv_text


def view_path(output: Path, name: str) -> Path:
    """Where a view of a release file lies.

    >>> view_path(Path("hourly.csv"), "per-day").name
    'hourly.per-day.csv'
    """
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def write_views(
    output: Path, stream: Stream, declaration: StreamDeclaration, names: tuple[str, ...], level: float
) -> list[Path]:
    """Write these views of a published file next to it, each complete or as it was before."""
    labels, (rows,) = read_numbers(output, stream, ["value"])
    releases = stream.read_back(rows, labels=labels)
    paths = [view_path(output, name) for name in names]
    for name, path in zip(names, paths, strict=True):
        view = show_view(releases, name, declaration.schedule, level)
        try:
            with replaced(path, new_mode(path)) as file:
                file.write(_bytes(output_kind(output.name), view, declaration.schedule.zone))
        except OSError as error:
            raise StoreError(f"{output} is published; its view {path} cannot be written: {error.strerror}") from error
    return paths


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
