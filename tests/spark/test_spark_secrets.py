"""The secrets of noise and store appear in no plan, log, event log, checkpoint or file that a job
leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    """A stream by shards and a batch, with everything written down that Spark can write down."""
    from evercount.spark import open_session

    session = open_session("local[2]")
    release(session, folder)
    session.stop()


def release(session: Any, folder: Path) -> None:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.spark import release_batch, release_stream
    from evercount.store import Store, key_from_environment

    declaration = StreamDeclaration.from_dict(DECLARATION)
    end = declaration.schedule.start_of(5)
    rows = session.sql("SELECT TIMESTAMP'2026-01-01 01:00:00Z' AS ts, 'north' AS key")
    rows.write.parquet(str(folder / "in"))
    store = Store(folder / "store.db", key_from_environment())
    store.declare(declaration, end / 1e6, Secret.from_hex(STREAM_SECRET), shards=2)
    events = (
        session.readStream.option("maxFileAge", "36500d")
        .schema("ts timestamp, key string")
        .parquet(str(folder / "in"))
    )
    release_stream(events, declaration, store, str(folder / "checkpoint"), clock=lambda: end)
    store.close()
    release_batch(rows, declaration, str(folder / "out"), until=end, shards=2, run="r")


def traces(secret: str) -> set[bytes]:
    """The ways in which a secret could be written."""
    raw = bytes.fromhex(secret)
    return {secret.encode(), secret.upper().encode(), raw, str(list(raw)).encode()}


def search(files: list[Path], secrets: tuple[str, ...]) -> None:
    """No file holds one of the secrets, or what a run derives from the first of them."""
    content = {path: path.read_bytes() for path in files}
    everything = b"".join(content.values())
    assert b"SparkListenerSQLExecutionStart" in everything, (
        "Spark wrote no plan down: the search would prove nothing"
    )
    assert any("checkpoint" in path.parts for path in files)
    run = Secret.from_hex(secrets[0]).derive("evercount/spark/run/r").hex()
    for secret in (*secrets, run):
        for trace in traces(secret):
            assert not [path for path, data in content.items() if trace in data]
    # the search can find something: the public name of the run is in the plan
    assert b"evercount.run" in everything


def test_no_secret_is_in_event_logs_checkpoints_and_results(spark: Any, tmp_path: Path) -> None:
    """The store is not encrypted here, so that it holds the secret of the stream: all other files
    are searched."""
    from conftest import ROOT_SECRET as OPERATORS

    release(spark, tmp_path)
    logs = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file://"))
    files = [path for folder in (tmp_path, logs) for path in folder.rglob("*") if path.is_file()]
    search(
        [path for path in files if not path.name.startswith("store.db")], (OPERATORS, STREAM_SECRET)
    )


@pytest.mark.soak
def test_no_secret_is_left_behind(tmp_path: Path) -> None:
    """A driver of its own, with the log of its JVM in full and an encrypted store."""
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
    search(files, (ROOT_SECRET, KEY, STREAM_SECRET))


if __name__ == "__main__":
    driver(Path(sys.argv[1]))


def test_a_secret_file_that_others_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "pyspark", reason="pyspark is not installed: pip install 'evercount[spark]'"
    )
    from evercount.errors import ParameterError
    from evercount.spark.session import root_secret

    file = tmp_path / "secret"
    file.write_text(ROOT_SECRET + "\n")
    monkeypatch.setenv("EVERCOUNT_SECRET_FILE", str(file))
    file.chmod(0o600)
    assert root_secret().hex() == ROOT_SECRET
    file.chmod(0o644)
    with pytest.raises(ParameterError, match="chmod 600"):
        root_secret()
    file.chmod(0o600)
    file.write_text("")
    with pytest.raises(ParameterError, match="64 hexadecimal digits"):
        root_secret()
