"""`release_batch` of Spark as a program under audit: a DataFrame of events in, the published Parquet files out.

The session is started once, on two threads of this machine, and reused. The noise of a run follows from the operator's
secret in the environment and the public name of the run; the audit's secret chooses that name, so that two runs with
one secret have the same noise.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from evercount.audit.files_door import FilesProgram, published_rows
from evercount.audit.program import Data, Published
from evercount.errors import MissingExtra, ParameterError
from evercount.noise import Secret

SCHEMA = "time string, key string, value double, user string, order bigint"
MASTER = "local[2]"


class SparkProgram(FilesProgram):
    """The Spark door: queries whose rows have a listed key or a value, in a batch of all ticks."""

    # A batch is not stopped halfway, so `restarts` changes nothing. Cells are cut into two shards where there are two.

    door = "spark"
    unordered = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if importlib.util.find_spec("pyspark") is None:
            raise MissingExtra("the audit of Spark", "spark")
        super().__init__(*arguments, **options)
        if self.levels or self.query.people is not None or self.query.discovery is not None:
            raise ParameterError(f"--door spark takes listed keys and values in one column, not {self.query!r}")
        _session()

    def run_name(self, secret: Secret) -> str:
        """The public name of the batch that an audit's secret stands for."""
        return secret.derive("evercount/audit/spark").hex()[:32]

    def run(self, data: Data, secret: Secret) -> Published:
        from evercount.engine.write_table import parquet_modules
        from evercount.spark import release_batch

        _, parquet = parquet_modules()
        table = [
            (time, key, None if value == "" else float(value), user, order)
            for order, (time, key, value, user) in enumerate(self._rows(data))
        ]
        events = _session().createDataFrame(table, SCHEMA)
        until = self.declaration.schedule.start_of(len(data) + 1)
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            out = str(Path(folder, "out"))
            outcome = release_batch(events, self.declaration, out, until=until, shards=2, run=self.run_name(secret))
            rows = parquet.read_table(out).to_pylist()
        labels = list(self.query.labels)
        rows.sort(key=lambda row: (row["tick"], labels.index(row["cell"])))
        told = [outcome.ticks, outcome.shards, outcome.run, outcome.guarantee]
        return published_rows(self.query, self.parts, rows, told)


@cache
def _session() -> Any:
    """The session of all audits of this process. Its secret is fresh unless the environment names one."""
    from evercount.spark import open_session
    from evercount.spark.run_secret import FILE_VARIABLE, VARIABLE

    if not (os.environ.get(FILE_VARIABLE) or os.environ.get(VARIABLE)):
        os.environ[VARIABLE] = Secret.generate().hex()  # before the JVM starts: its Python workers inherit it
    session = open_session(MASTER, "evercount audit").newSession()  # settings of its own
    session.conf.set("spark.sql.shuffle.partitions", "2")  # the tables are tiny
    return session
