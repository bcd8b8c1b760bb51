"""Durable state and releases: SQLite by default, PostgreSQL by a URL."""

from __future__ import annotations

import importlib.util

from evercount.errors import MissingExtra

if importlib.util.find_spec("sqlalchemy") is None:
    raise MissingExtra("The durable store", "store")

from evercount.declarations.declaration import StreamDeclaration
from evercount.store.open_stream import Accepted, Batch, LiveStream, StoredStream
from evercount.store.reader import Reading
from evercount.store.sealing import key_from_environment
from evercount.store.spending import BudgetCap, set_cap
from evercount.store.stream_life import retire_stream
from evercount.store.writer import Store

__all__ = [
    "Accepted",
    "Batch",
    "BudgetCap",
    "LiveStream",
    "Reading",
    "Store",
    "StoredStream",
    "StreamDeclaration",
    "key_from_environment",
    "retire_stream",
    "set_cap",
]
