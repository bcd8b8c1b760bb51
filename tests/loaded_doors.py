"""What a life of a door need not load again; imported by the server that forks the lives."""

from __future__ import annotations

import importlib
from contextlib import suppress

import kill_doors  # noqa: F401

for name in (
    "cli",
    "cli.serve_command",
    "consume.consume_log",
    "consume.log_sources",
    "files.release_run",
    "service.demo",
    "service.http_server",
    "service.read_events",
    "store",
):
    importlib.import_module(f"evercount.{name}")
for name in (
    "deltalake",
    "pyiceberg.catalog.sql",
    "evercount.files.lake_table",
    "psycopg",
    "pytest",
):
    with suppress(ImportError):  # extras: tests of what is not installed say that they skip
        importlib.import_module(name)
