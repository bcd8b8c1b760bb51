"""What a life of a door need not load or calculate again; imported by the server that forks the lives."""

from __future__ import annotations

import importlib
from contextlib import suppress

from kill_doors import KINDS, events_of, recomputed

for name in ("consume.consume_log", "consume.jetstream", "files.release_run", "service.read_events"):
    importlib.import_module(f"evercount.{name}")
for name in ("deltalake", "pyiceberg.catalog.sql", "evercount.files.lake_table", "pytest"):
    with suppress(ImportError):  # extras: tests of what is not installed say that they skip
        importlib.import_module(name)
for kind in KINDS:
    recomputed(kind, events_of(0))
