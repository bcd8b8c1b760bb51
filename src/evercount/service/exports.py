"""Releases as files: written to a temporary file, sent, and removed."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from evercount.declarations.cautions import public_facts
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.write_table import MEDIA_TYPES, Kind, describe_csv, write_tables
from evercount.errors import HttpProblem
from evercount.factorizations.interruption import check_wanted
from evercount.store import Reading, StoredStream

log = logging.getLogger("evercount.service")


def write_export(live: StoredStream, tables: Iterable[ReleaseTable], kind: Kind) -> Path:
    """Write tables of a stream into a new temporary file of its owner only; `ExportResponse`
    removes it."""
    handle, name = tempfile.mkstemp(prefix="evercount-export-")
    try:
        with os.fdopen(handle, "wb") as file:
            metadata = {"evercount.guarantee": live.guarantee}
            write_tables(kind, file, while_wanted(tables), live.declaration.schedule, metadata)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        log.error("an export cannot be written to %s: %s", tempfile.gettempdir(), error.strerror)
        message = "the file cannot be written at the moment"
        raise HttpProblem(
            503, "Busy", message, "Try again later, or read /releases page by page.", retry=60
        ) from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def while_wanted(tables: Iterable[ReleaseTable]) -> Iterator[ReleaseTable]:
    """The tables, for as long as a client waits for their file."""
    for table in tables:
        check_wanted()
        yield table


def describe_export(
    store: Reading, live: StoredStream, tables: Iterable[ReleaseTable], full_digits: bool, url: str
) -> dict[str, Any]:
    """Describe a CSV of these tables, as `evercount release` describes its own."""
    facts = public_facts(
        live.declaration,
        live.guarantee,
        store.marks(live.id),
        full_digits=full_digits,
        carried=store.carried(live.id),
    )
    return describe_csv(url, list(next(iter(tables)).columns()), facts, LEVEL)


class ExportResponse(FileResponse):
    """A file that is removed when it was sent, or when its reader went away. A CSV says where its
    description is."""

    def __init__(self, file: Path, name: str, kind: Kind, query: str) -> None:
        link = (
            f'<releases.csv-metadata.json{query}>; rel="describedby"; type="application/csvm+json"'
        )
        headers = None
        if kind == "csv":
            headers = {"Link": link}
        super().__init__(
            file, media_type=MEDIA_TYPES[kind], filename=f"{name}.{kind}", headers=headers
        )
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.unlink(missing_ok=True)
