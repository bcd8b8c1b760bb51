"""Durable state and releases: SQLite by default, PostgreSQL by a URL."""

from __future__ import annotations

import importlib.util

from evercount.errors import MissingExtra

if importlib.util.find_spec("sqlalchemy") is None:
    raise MissingExtra("The durable store", "store")

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import Conflict, StreamStopped, TooEarly
from evercount.store.open_stream import Accepted, AnyStream, Batch, EndedStream, LiveStream
from evercount.store.reader import Reading
from evercount.store.retire import retire_stream
from evercount.store.sealing import key_from_environment
from evercount.store.spending import Cap, set_cap
from evercount.store.writer import Store

__all__ = [
    "Accepted",
    "AnyStream",
    "Batch",
    "Cap",
    "Conflict",
    "EndedStream",
    "LiveStream",
    "Reading",
    "Store",
    "StreamDeclaration",
    "StreamStopped",
    "TooEarly",
    "key_from_environment",
    "retire_stream",
    "set_cap",
]
