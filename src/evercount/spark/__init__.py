"""Beyond one machine: Spark reads and counts events, and the same engine releases them.

`release_stream` follows a streaming source into a store, `release_batch` releases years of history
into Parquet.
"""

from __future__ import annotations

import importlib.util

from evercount.errors import MissingExtra

if importlib.util.find_spec("pyspark") is None:
    raise MissingExtra("Spark", "spark")

from evercount.spark.batch_release import BatchOutcome, release_batch
from evercount.spark.session import open_session
from evercount.spark.stream_release import StreamOutcome, release_stream

__all__ = ["BatchOutcome", "StreamOutcome", "open_session", "release_batch", "release_stream"]
