"""All releases of a stream as one file: CSV, JSON, JSON lines or Parquet, with the columns of the file door."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from evercount._safe_files import new_private
from evercount.files.sink import OutputKind, write_releases
from evercount.store import EndedStream, LiveStream, Reading

Kind = Literal["csv", "json", "jsonl", "parquet"]
MEDIA_TYPES: dict[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


def write_export(store: Reading, live: LiveStream | EndedStream, kind: Kind) -> Path:
    """Write the releases of a stream into a new temporary file of its owner only; `ExportResponse` removes it."""
    handle, name = tempfile.mkstemp(prefix="evercount-export-")
    os.close(handle)
    file = Path(name)
    try:
        tables = store.release_tables(live.id, live.declaration, live.closed)
        form: OutputKind = "jsonl" if kind == "json" else kind
        write_releases(form, None, file, tables, live.declaration.schedule, live.guarantee)
        return _as_array(file) if kind == "json" else file
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _as_array(lines: Path) -> Path:
    """Turn lines of JSON into one array, line by line."""
    array = lines.with_name(f"{lines.name}.json")
    with lines.open("rb") as source, new_private(array) as target:
        target.write(b"[")
        for number, line in enumerate(source):
            target.write((b",\n" if number else b"\n") + line.rstrip(b"\n"))
        target.write(b"\n]\n")
    lines.unlink()
    return array


class ExportResponse(FileResponse):
    """A file that is removed when it was sent, or when its reader went away."""

    def __init__(self, file: Path, stream: str, kind: Kind) -> None:
        super().__init__(file, media_type=MEDIA_TYPES[kind], filename=f"{stream}.{kind}")
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Response`."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.unlink(missing_ok=True)
