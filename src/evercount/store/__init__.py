"""Durable state and releases: SQLite by default, PostgreSQL by a URL."""

from __future__ import annotations

import importlib.util

from evercount.errors import MissingExtra

if importlib.util.find_spec("sqlalchemy") is None:
    raise MissingExtra("The durable store", "store")

from evercount.declare.declaration import StreamDeclaration
from evercount.errors import Conflict, StreamStopped, TooEarly
from evercount.store.open_stream import Accepted, Batch, LiveStream
from evercount.store.reader import Reading
from evercount.store.sealing import key_from_environment
from evercount.store.writer import Store

__all__ = [
    "Accepted",
    "Batch",
    "Conflict",
    "LiveStream",
    "Reading",
    "Store",
    "StreamDeclaration",
    "StreamStopped",
    "TooEarly",
    "key_from_environment",
]
