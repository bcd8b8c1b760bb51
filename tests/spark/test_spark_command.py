"""`evercount spark`, and what is said where Spark cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.errors import Conflict, MissingExtra, ParameterError
from evercount.store import Reading

pytest.importorskip("pyspark")

from evercount.spark import session as spark_session

TOML = """
[[stream]]
name = "live"
query = {name = "histogram", parameters = {keys = ["north", "south"]}}
budget = {epsilon = 1.0, delta = 1e-6}
tick = "1h"
start = "2026-01-01T00:00:00Z"
horizon = 4
columns = {time = "ts", key = "key"}
"""


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    path = tmp_path / "streams.toml"
    path.write_text(TOML)
    return path


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["spark", *map(str, arguments)])


def test_a_folder_of_files_is_released(spark: Any, streams: Path, tmp_path: Path) -> None:
    rows = spark.sql("SELECT '2026-01-01T01:00:00Z' AS ts, 'north' AS key UNION ALL SELECT 'never', 'south'")
    rows.write.json(str(tmp_path / "in"))
    shared = [
        streams, tmp_path / "in", "--format", "json", "--schema", "ts string, key string", "--db",
        tmp_path / "store.db", "--checkpoint", tmp_path / "checkpoint", "--shards", "2",
    ]  # fmt: skip
    refused = call(*shared)
    assert refused.exit_code == 3
    assert "1 × not a time in ISO 8601" in refused.stderr
    assert "--skip-bad" in refused.stderr
    done = call(*shared, "--skip-bad", "--follow", "--wait", "1m")
    assert done.exit_code == 0, done.stderr
    assert "ticks 1 to 4 released; 0 behind the clock" in done.stderr
    reading = Reading.open(tmp_path / "store.db")
    assert [one["tick"] for one in reading.all_releases("live")] == [1, 2, 3, 4]
    reading.close()
    other = call(*shared[:-1], "3", "--skip-bad")
    assert (other.exit_code, "is kept in 2 shards" in other.stderr) == (Conflict.exit_code, True)


def test_arguments_that_make_no_sense(spark: Any, streams: Path, tmp_path: Path) -> None:
    rest = ("--db", tmp_path / "store.db", "--checkpoint", tmp_path / "c")
    answers = {
        "unknown stream 'other'": call(streams, tmp_path, *rest, "--stream", "other"),
        "is no length of time": call(streams, tmp_path, *rest, "--wait", "soon", "--schema", "ts string"),
        "cannot be opened": call(streams, tmp_path, *rest, "--format", "nothing", "--schema", "ts string"),
    }
    for text, answer in answers.items():
        assert answer.exit_code == 2, answer.stderr
        assert text in answer.stderr
    two = tmp_path / "two.toml"
    two.write_text(TOML + TOML.replace('"live"', '"other"'))
    assert "declares 2 streams" in call(two, tmp_path, *rest).stderr


def test_java_that_is_missing_or_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ParameterError, match=r"has no bin/java: install Java 17"):
        spark_session.check_java()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(ParameterError, match="is Java 8: install"):
        spark_session.check_java()
    (tmp_path / "release").write_text('JAVA_VERSION="21.0.2"\n')
    spark_session.check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ParameterError, match="no java is on the PATH"):
        spark_session.check_java()


def test_pandas_that_is_missing_or_new_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_session, "version", lambda _: "3.0.1")
    with pytest.raises(ParameterError, match=r"pandas below 3, this is 3\.0\.1"):
        spark_session.check_pandas()

    def missing(_: str) -> str:
        raise spark_session.PackageNotFoundError

    monkeypatch.setattr(spark_session, "version", missing)
    with pytest.raises(MissingExtra, match=r"evercount\[spark\]"):
        spark_session.check_pandas()


def test_pyspark_that_is_missing_is_named() -> None:
    import subprocess
    import sys

    hide = "import sys, importlib.util as u; real = u.find_spec; "
    hide += "u.find_spec = lambda n, *a: None if n == 'pyspark' else real(n, *a); "
    code = hide + "import evercount.cli; sys.argv = ['evercount', 'spark', 'a', 'b', '--checkpoint', 'c']; "
    done = subprocess.run(
        [sys.executable, "-c", code + "evercount.cli.main()"], capture_output=True, text=True, check=False
    )
    assert done.returncode == MissingExtra.exit_code
    assert "pip install 'evercount[spark]'" in done.stderr
