"""Spark Connect: what its API lacks, this door does not use; the one thing that it cannot do is refused by name.

Run as a program this file is the client: one process has a session of Connect or one of the driver itself, never both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT_SECRET, why_no_spark
from evercount.declare.declaration import StreamDeclaration
from evercount.engine.close_ticks import close_ticks
from evercount.engine.tick_totals import TickTotals
from evercount.noise import Secret

DECLARATION = {
    "name": "far",
    "query": {"name": "histogram", "parameters": {"keys": ["north", "süd, 'west'"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": 4,
    "columns": {"time": "ts", "key": "key"},
}
EVENTS = [("2026-01-01T01:10:00Z", "north"), ("2026-01-01T01:30:00Z", "north"), ("2026-01-01T03:00:00Z", "süd, 'west'")]
TOTALS = [[0, 0], [2, 0], [0, 0], [0, 1]]


def client(folder: Path) -> None:
    """A table is released; a stream is refused. Prints the rows and the refusal."""
    from pyspark.sql import SparkSession

    from evercount.errors import ParameterError
    from evercount.spark import release_batch, release_stream

    session = SparkSession.builder.remote("local[2]").getOrCreate()
    declaration = StreamDeclaration.from_dict(DECLARATION)
    end = declaration.schedule.start_of(5)
    events = session.createDataFrame(EVENTS, "ts string, key string")
    release_batch(events, declaration, str(folder / "out"), until=end, shards=2, run="r")
    rows = session.read.parquet(str(folder / "out")).orderBy("tick", "cell").collect()
    stream = session.readStream.format("rate").load().selectExpr("timestamp AS ts", "'north' AS key")
    try:
        release_stream(stream, declaration, folder / "store.db", str(folder / "checkpoint"))
    except ParameterError as error:
        refusal = str(error)
    (folder / "answer.json").write_text(json.dumps([[list(row) for row in rows], refusal]))
    session.stop()


def test_a_table_of_a_connect_session_is_released_and_a_stream_is_refused(tmp_path: Path) -> None:
    reason = why_no_spark()
    missing = [name for name in ("grpc", "grpc_status", "google.rpc") if not _is_installed(name)]
    if missing:
        reason = f"Spark Connect needs {missing[0]}: pip install grpcio grpcio-status googleapis-common-protos"
    if reason:
        pytest.skip(reason)
    options = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    settings = " ".join(f"--conf {name}={value}" for name, value in options.items())
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "EVERCOUNT_SECRET": ROOT_SECRET,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, __file__, str(tmp_path)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    rows, refusal = json.loads((tmp_path / "answer.json").read_text())
    declaration = StreamDeclaration.from_dict(DECLARATION)
    secret = Secret.from_hex(ROOT_SECRET).derive("evercount/spark/run/r")
    stream = declaration.build(secret=secret, replay=True)
    expected = []
    for table in close_ticks(stream, TickTotals.dense(1, TOTALS), declaration.schedule.starts_of):
        for tick, start, *rest in zip(*table.columns().values(), strict=True):
            expected.append([tick, declaration.schedule.show(start), *rest])
    assert rows == expected
    assert "runs the function for each micro-batch on its server" in refusal


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    client(Path(sys.argv[1]))
