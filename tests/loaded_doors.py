"""What a life of a door need not load or calculate again; imported by the server that forks the lives."""

from __future__ import annotations

import importlib
from contextlib import suppress

from kill_doors import KINDS, events_of, recomputed

for name in (
    "cli",
    "cli.serve_command",
    "consume.consume_log",
    "consume.jetstream",
    "files.release_run",
    "service.demo",
    "service.http_server",
    "service.read_events",
    "store.watched_store",
):
    importlib.import_module(f"evercount.{name}")
for name in ("deltalake", "pyiceberg.catalog.sql", "evercount.files.lake_table", "psycopg", "pytest"):
    with suppress(ImportError):  # extras: tests of what is not installed say that they skip
        importlib.import_module(name)
for kind in KINDS:
    recomputed(kind, events_of(0))
