"""What a checkpoint says about the batches that Spark will not give again, read from any Hadoop file system."""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from evercount.errors import StoreError
from evercount.spark.session import first_line


def read_checkpoint(session: SparkSession, folder: str) -> tuple[str | None, int]:
    """The id of the checkpoint's query, None where there is none, and the number of the first batch that will come.

    Spark gives the newest planned batch again if it is not committed; all before it are over. It plans a batch after
    it has committed the one before, so a folder `commits` that was lost or is older counts for nothing here.
    """
    jvm: Any = session._jvm
    state: Any = session._jsparkSession.sessionState()
    try:
        root = jvm.org.apache.hadoop.fs.Path(folder)
        files = root.getFileSystem(state.newHadoopConf())

        def newest(name: str) -> int:
            path = jvm.org.apache.hadoop.fs.Path(root, name)
            names = [one.getPath().getName() for one in files.listStatus(path)] if files.exists(path) else []
            return max((int(name) for name in names if name.isdecimal()), default=-1)

        metadata = jvm.org.apache.hadoop.fs.Path(root, "metadata")
        query = None
        if files.exists(metadata):
            stream = files.open(metadata)
            try:
                query = str(json.loads(stream.readAllBytes())["id"])
            finally:
                stream.close()
        return query, max(newest("commits") + 1, newest("offsets"))
    except (ValueError, KeyError, TypeError, Py4JError) as error:
        raise StoreError(f"the checkpoint {folder} cannot be read: {first_line(error)}") from None
