"""The secrets of noise and store appear in no plan, log, event log, checkpoint or file that a job leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evercount.noise import Secret

ROOT_SECRET, KEY, STREAM_SECRET = "ab12" * 16, "cd34" * 16, "ef56" * 16
DECLARATION = {
    "name": "quiet",
    "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": 4,
    "columns": {"time": "ts", "key": "key"},
}


def driver(folder: Path) -> None:
    """A stream and a batch, with everything written down that Spark can write down."""
    from evercount.declare.declaration import StreamDeclaration
    from evercount.noise import Secret
    from evercount.spark import open_session, release_batch, release_stream
    from evercount.store import Store, key_from_environment

    declaration = StreamDeclaration.from_dict(DECLARATION)
    end = declaration.schedule.start_of(5)
    session = open_session("local[2]")
    rows = session.sql("SELECT TIMESTAMP'2026-01-01 01:00:00Z' AS ts, 'north' AS key")
    rows.write.parquet(str(folder / "in"))
    store = Store(folder / "store.db", key_from_environment())
    store.declare(declaration, end / 1e6, Secret.from_hex(STREAM_SECRET))
    events = session.readStream.schema("ts timestamp, key string").parquet(str(folder / "in"))
    release_stream(events, declaration, store, str(folder / "checkpoint"), clock=lambda: end)
    store.close()
    release_batch(rows, declaration, str(folder / "out"), until=end, shards=2, run="r")
    session.stop()


def traces(secret: str) -> set[bytes]:
    """The ways in which a secret could be written."""
    raw = bytes.fromhex(secret)
    return {secret.encode(), secret.upper().encode(), raw, str(list(raw)).encode()}


def test_no_secret_is_left_behind(tmp_path: Path) -> None:
    import pytest

    from conftest import why_no_spark

    reason = why_no_spark()
    if reason:
        pytest.skip(reason)
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
        "spark.local.dir": str(tmp_path / "local"),
        "spark.log.level": "DEBUG",
    }
    (tmp_path / "events").mkdir()
    arguments = " ".join(f"--conf {name}={value}" for name, value in options.items())
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell",
        "EVERCOUNT_SECRET": ROOT_SECRET,
        "EVERCOUNT_KEY": KEY,
    }
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, __file__, str(tmp_path)]
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-3000:]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    content = {path: path.read_bytes() for path in files}
    run = Secret.from_hex(ROOT_SECRET).derive("evercount/spark/run/r").hex()
    wanted = {"event log": b"SparkListenerSQLExecutionStart", "plan in the log": b"== Optimized Logical Plan"}
    everything = b"".join(content.values())
    assert wanted["event log"] in everything, "Spark wrote no plan down, so the search would prove nothing"
    assert any("checkpoint" in path.parts for path in files)
    for secret in (ROOT_SECRET, KEY, STREAM_SECRET, run):
        for trace in traces(secret):
            assert not [path for path, data in content.items() if trace in data]
    # the search can find something: the public name of the run is in the plan
    assert any(b"evercount.run" in data for data in content.values())


if __name__ == "__main__":
    driver(Path(sys.argv[1]))
