"""Shards of a stream closed by Spark's executors: each loads its state from the store, closes, and commits by itself.

The store's key and the password of a database are taken from the executor's own environment; they never travel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from evercount.errors import ParameterError, StoreError
from evercount.spark.session import check_pandas, first_line
from evercount.store import Store, key_from_environment
from evercount.store.close_shards import Run, ShardWork, close_shard


def executors_of(session: SparkSession, store: Store) -> Run:
    """What closes the shards of a stream of this store on the executors of a session."""
    check_pandas()
    if store.database.url.password is not None:
        raise ParameterError(
            "executors open the store themselves, and its password must not travel with a job: leave it out of the "
            "address, and give it to the driver and every executor by PGPASSWORD or a .pgpass file"
        )

    def run(work: ShardWork) -> None:
        numbers = session.range(0, work.shards, 1, work.shards)  # a partition, and so a task, for each
        try:
            numbers.mapInPandas(partial(_close, work), "shard long, ticks long").collect()
        except PySparkException as error:
            raise StoreError(f"a shard could not be closed: {first_line(error)}") from error

    return run


def _close(work: ShardWork, frames: Iterator[Any]) -> Iterator[Any]:
    """On an executor: close the shards of these rows."""
    key = key_from_environment()
    for frame in frames:
        ticks = [close_shard(work, int(number), key) for number in frame["id"]]
        yield frame.rename(columns={"id": "shard"}).assign(ticks=ticks)
