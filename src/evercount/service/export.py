"""Releases of a stream, or a view of them, as one file: CSV, JSON, JSON lines or Parquet, with the columns of files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from evercount.declarations.public_facts import public_facts
from evercount.engine.press_table import describe_csv
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.write_table import MEDIA_TYPES, Kind, write_tables
from evercount.store import AnyStream, Reading


def write_export(live: AnyStream, tables: Iterable[ReleaseTable], kind: Kind) -> Path:
    """Write tables of a stream into a new temporary file of its owner only; `ExportResponse` removes it."""
    handle, name = tempfile.mkstemp(prefix="evercount-export-")
    try:
        with os.fdopen(handle, "wb") as file:
            write_tables(kind, file, tables, live.declaration.schedule, {"evercount.guarantee": live.guarantee})
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def describe_export(
    store: Reading, live: AnyStream, tables: Iterable[ReleaseTable], full_digits: bool, url: str
) -> dict[str, Any]:
    """What readers of a CSV of these tables must know: the same as next to a CSV of `evercount release`."""
    marks, carried = store.marks(live.id), store.carried(live.id)
    facts = public_facts(live.declaration, live.guarantee, marks, full_digits=full_digits, carried=carried)
    return describe_csv(url, list(next(iter(tables)).columns()), facts, LEVEL)


class ExportResponse(FileResponse):
    """A file that is removed when it was sent, or when its reader went away. A CSV says where its description is."""

    def __init__(self, file: Path, name: str, kind: Kind, query: str = "") -> None:
        where = f"releases.csv-metadata.json?{query}" if query else "releases.csv-metadata.json"
        link = {"Link": f'<{where}>; rel="describedby"; type="application/csvm+json"'} if kind == "csv" else None
        super().__init__(file, media_type=MEDIA_TYPES[kind], filename=f"{name}.{kind}", headers=link)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.unlink(missing_ok=True)
