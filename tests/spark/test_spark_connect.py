"""Spark Connect: a table is released as by a session of the driver itself, and a stream is refused.

Run as a program this file is the client: one process has a session of Connect or one of the driver
itself, never both.
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
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.close_ticks import TickTotals, close_ticks
from evercount.noise import Secret

pytestmark = pytest.mark.slow

DECLARATION = {
    "name": "far",
    "query": {"name": "histogram", "parameters": {"keys": ["north", "süd, 'west'"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": 4,
    "columns": {"time": "ts", "key": "key"},
    "views": ["running"],
}
EVENTS = [
    ("2026-01-01T01:10:00Z", "north"),
    ("2026-01-01T01:30:00Z", "north"),
    ("2026-01-01T03:00:00Z", "süd, 'west'"),
]
TOTALS = [[0, 0], [2, 0], [0, 0], [0, 1]]
REFUSALS = [
    ("StoreError", "cannot be written"),
    ("InputError", "1 × a key that is not in the list of keys"),
    ("InputError", "this executor and the driver have different secrets"),
    ("ParameterError", "runs the function for each micro-batch on its server"),
]


def client(folder: Path) -> None:
    """A table is released, then everything else is refused. Writes down the rows and the
    refusals."""
    from pyspark.sql import SparkSession

    from evercount.errors import EvercountError
    from evercount.spark import release_batch, release_stream

    session = (
        SparkSession.builder.remote("local[1]")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    declaration = StreamDeclaration.from_dict(DECLARATION)
    end = declaration.schedule.start_of(5)
    events = session.createDataFrame(EVENTS, "ts string, key string")
    release_batch(events, declaration, str(folder / "out"), until=end, shards=2, run="r")
    rows = session.read.parquet(str(folder / "out")).orderBy("tick", "cell").collect()
    strangers = session.createDataFrame(
        [("2026-01-01T01:10:00Z", "stranger")], "ts string, key string"
    )
    stream = (
        session.readStream.format("rate").load().selectExpr("timestamp AS ts", "'north' AS key")
    )
    refusals = []
    for table, out, secret in (
        (events, "out", ROOT_SECRET),
        (strangers, "other", ROOT_SECRET),
        (events, "other", "11" * 32),  # the server's workers have the secret of its own start
        (stream, "", ROOT_SECRET),
    ):
        os.environ["EVERCOUNT_SECRET"] = secret
        try:
            if table is stream:
                release_stream(stream, declaration, folder / "store.db", str(folder / "checkpoint"))
            else:
                release_batch(table, declaration, str(folder / out), until=end, shards=2, run="r")
        except EvercountError as error:
            refusals.append([type(error).__name__, str(error)])
    (folder / "answer.json").write_text(json.dumps([[list(row) for row in rows], refusals]))
    session.stop()


def test_a_table_of_a_connect_session_is_released_and_a_stream_is_refused(tmp_path: Path) -> None:
    reason = why_no_spark()
    missing = [name for name in ("grpc", "grpc_status", "google.rpc") if not _is_installed(name)]
    if missing:
        reason = (
            f"Spark Connect needs {missing[0]}: pip install grpcio grpcio-status "
            "googleapis-common-protos"
        )
    if reason:
        pytest.skip(reason)
    environment = {
        # of another session
        **{name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"},
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # a compiler that starts at once
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "EVERCOUNT_SECRET": ROOT_SECRET,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, __file__, str(tmp_path)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    rows, refusals = json.loads((tmp_path / "answer.json").read_text())
    declaration = StreamDeclaration.from_dict(DECLARATION)
    secret = Secret.from_hex(ROOT_SECRET).derive("evercount/spark/run/r")
    stream = declaration.build(secret=secret, replay=True)
    expected = []
    for table in close_ticks(stream, TickTotals.dense(1, TOTALS), declaration.schedule.starts_of):
        for tick, start, *rest in zip(*table.columns().values(), strict=True):
            expected.append([tick, declaration.schedule.show(start), *rest])
    assert rows == expected
    for (kind, message), (expected_kind, part) in zip(refusals, REFUSALS, strict=True):
        assert kind == expected_kind, message
        assert part in message
    assert not (tmp_path / "store.db").exists()
    assert not (tmp_path / "other" / "_SUCCESS").exists()


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    client(Path(sys.argv[1]))
