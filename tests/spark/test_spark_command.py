"""`evercount spark`, and what is said where Spark cannot run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.errors import Conflict, InputError, MissingExtra, ParameterError
from evercount.store import Reading
from store_reading import all_releases

pytest.importorskip("pyspark")

from evercount.spark import session as spark_session
from preloaded_programs import Programs
from spark_driver import require_spark

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


@pytest.mark.soak
def test_a_folder_of_files_is_released(spark: Any, streams: Path, tmp_path: Path) -> None:
    rows = spark.sql(
        "SELECT '2026-01-01T01:00:00Z' AS ts, 'north' AS key UNION ALL SELECT 'never', 'south'"
    )
    rows.write.json(str(tmp_path / "in"))
    shared = [
        streams, tmp_path / "in", "--format", "json", "--schema", "ts string, key string", "--db",
        tmp_path / "store.db", "--checkpoint", tmp_path / "checkpoint", "--shards", "2",
    ]  # fmt: skip
    refused = call(*shared)
    assert refused.exit_code == 3
    assert "1 × not a time in ISO 8601" in refused.stderr
    assert "--skip-bad" in refused.stderr
    done = call(*shared, "--skip-bad", "--follow")
    assert done.exit_code == 0, done.stderr
    assert "ticks 1 to 4 released; 0 behind the clock" in done.stderr
    reading = Reading.open(tmp_path / "store.db")
    assert [one["tick"] for one in all_releases(reading, "live")] == [1, 2, 3, 4]
    reading.close()
    other = call(*shared[:-1], "3", "--skip-bad")
    assert (other.exit_code, "is kept in 2 shards" in other.stderr) == (Conflict.exit_code, True)


def test_arguments_that_make_no_sense(spark: Any, streams: Path, tmp_path: Path) -> None:
    rest = ("--db", tmp_path / "store.db", "--checkpoint", tmp_path / "c")
    answers = {
        "unknown stream 'other'": call(streams, tmp_path, *rest, "--stream", "other"),
        "cannot be opened": call(
            streams, tmp_path, *rest, "--format", "nothing", "--schema", "ts string, key string"
        ),
    }
    for text, answer in answers.items():
        assert answer.exit_code == 2, answer.stderr
        assert text in answer.stderr
    two = tmp_path / "two.toml"
    two.write_text(TOML + TOML.replace('"live"', '"other"'))
    assert "declares 2 streams" in call(two, tmp_path, *rest).stderr


def test_what_the_declaration_needs_is_said_before_spark_starts(
    streams: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot start here: whatever is said comes before."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    users = tmp_path / "users.toml"
    budget = 'budget = {epsilon = 1.0, delta = 1e-6, unit = "user", max_events = 3}'
    text = TOML.replace("budget = {epsilon = 1.0, delta = 1e-6}", budget)
    users.write_text(text.replace('key = "key"}', 'key = "key", user = "who"}'))
    rest = ("--checkpoint", tmp_path / "c", "--db", tmp_path / "store.db")
    schema = ("--schema", "ts string, key string, who string")
    answers = {
        "a stream of parquet files needs --schema": call(streams, tmp_path, *rest),
        "(columns.order)": call(users, tmp_path, *rest, *schema),
    }
    for said, answer in answers.items():
        assert (answer.exit_code, said in answer.stderr) == (ParameterError.exit_code, True), (
            answer.stderr
        )
    assert not (tmp_path / "store.db").exists()


def test_the_documented_commands_run(spark: Any, tmp_path: Path) -> None:
    """Every `evercount spark` of docs/scale.md over real files; its paths and its database are
    ours."""
    zone = 'tick = "1h"\nzone = "Europe/Vienna"'
    text = (
        TOML.replace('key = "key"', 'key = "region"')
        .replace('tick = "1h"', zone)
        .replace("00:00:00Z", "00:00:00")
    )
    keys = json.dumps(["north", *(f"other {number}" for number in range(19))])
    (tmp_path / "streams.toml").write_text(text.replace('["north", "south"]', keys))
    pages = (
        (Path(__file__).parents[2] / "docs" / "scale.md")
        .read_text(encoding="utf-8")
        .replace("\\\n", " ")
    )
    commands = [
        shlex.split(line) for line in pages.splitlines() if line.startswith("    evercount spark ")
    ]
    assert len(commands) == 2
    for number, command in enumerate(commands):
        form = command[command.index("--format") + 1] if "--format" in command else "parquet"
        time = "'2026-01-01T01:30:00'" if form == "json" else "TIMESTAMP_NTZ'2026-01-01 01:30:00'"
        rows = spark.sql(f"SELECT {time} AS ts, 'north' AS region FROM range(1000)")
        rows.write.format(form).save(str(tmp_path / f"events{number}"))
        ours = {
            "streams.toml": tmp_path / "streams.toml",
            "/data/events": tmp_path / f"events{number}",
            "/data/checkpoint": tmp_path / f"checkpoint{number}",
            "postgresql://evercount@db/evercount": tmp_path / f"store{number}.db",
        }
        done = call(*(ours.get(word, word) for word in command[2:]))
        assert done.exit_code == 0, done.stderr
        assert "micro-batch 0: 1000 rows" in done.stderr
        reading = Reading.open(tmp_path / f"store{number}.db")
        shown = [round(one["values"][0], -3) for one in all_releases(reading, "live")]
        reading.close()
        assert shown == [0, 1000, 0, 0]


def test_a_failing_micro_batch_names_its_file(spark: Any, streams: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.parquet").write_bytes(b"this is not Parquet" * 100)
    rest = (
        "--db",
        tmp_path / "store.db",
        "--checkpoint",
        tmp_path / "c",
        "--schema",
        "ts timestamp, key string",
    )
    answer = call(streams, tmp_path / "in", *rest)
    assert answer.exit_code == InputError.exit_code, answer.stderr
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("error: the source cannot be read: ")
    assert "broken.parquet" in last


@pytest.mark.soak
def test_a_failing_micro_batch_is_one_line(streams: Path, tmp_path: Path) -> None:
    """A file that is not Parquet, in a process of its own: what Spark's JVM writes is seen there
    only."""
    require_spark()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.parquet").write_bytes(b"this is not Parquet" * 100)
    arguments = [
        streams, tmp_path / "in", "--schema", "ts timestamp, key string", "--db",
        tmp_path / "store.db", "--checkpoint", tmp_path / "c", "--master", "local[1]",
    ]  # fmt: skip
    options = (
        "--conf spark.ui.enabled=false --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell"
    )
    done = subprocess.run(
        [sys.executable, "-m", "evercount", "spark", *map(str, arguments)],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": options, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == InputError.exit_code, done.stderr[-3000:]
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: the source cannot be read: ")
    # Spark says a few lines at its start, and more where the machine is busy: none of them is about
    # the failure
    assert [line for line in lines if "broken.parquet" in line or "Traceback" in line] == lines[-1:]


def test_java_that_is_missing_or_old_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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


def test_pyspark_that_is_missing_is_named(programs: Programs) -> None:
    hide = "import sys, importlib.util as u; real = u.find_spec; "
    hide += "u.find_spec = lambda n, *a: None if n == 'pyspark' else real(n, *a); "
    code = (
        hide
        + "import evercount.cli; sys.argv = ['evercount', 'spark', 'a', 'b', '--checkpoint', 'c']; "
    )
    done = programs.run(code + "evercount.cli.main()")
    assert done.returncode == MissingExtra.exit_code
    assert "pip install 'evercount[spark]'" in done.stderr
