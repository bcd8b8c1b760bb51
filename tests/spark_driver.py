"""A driver of Spark that dies, JVM and all, or whose executors die.

Run as a program this file is the driver. It dies by SIGKILL at a chosen step of its work with the
store and with Spark.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from killed_at_steps import report_calls
from killed_interfaces import (
    SECRET,
    TICKS,
    declaration_of,
    events_of,
    library_releases,
    published,
    verify_store,
)
from wrapped_functions import wrap

SPARK_STEPS = 40
"""Steps of a driver that goes through its work, about."""
PATIENCE = 1800
"""Seconds after which a driver that does nothing is a failure."""


# -- the driver ------------------------------------------------------------------------------------


Kill = tuple[str, int]
"""The name of a step and which of its times; "any" counts all steps. Time 0 is never."""
NEVER: Kill = ("any", 0)


def kill_executor_once(marker: Path) -> None:
    """In a task: kill the JVM of the executor that runs it, unless the marker says that it was done
    before."""
    if marker.exists():
        return
    marker.touch()
    # the worker's parent; its parent is the executor
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()  # this worker dies with its executor


def close_and_kill_executors(folder: Path) -> Any:
    """As `stream_release._close`; the first task of shard 0 dies before its commit, that of shard 1
    after it."""
    from evercount.store.closing_ticks import close_shard

    die = kill_executor_once

    def close(work: Any, frames: Any) -> Any:
        for frame in frames:
            for number in frame["id"].tolist():
                if number == 0:
                    die(folder / "shard 0 was killed")
                close_shard(work, number, None)
                if number == 1:
                    die(folder / "shard 1 was killed")
            yield frame.rename(columns={"id": "shard"}).assign(ticks=0)

    return close


def driver(
    folder: Path, kill: Kill, shards: int | None, master: str, kind: str, lake: str | None = None
) -> None:
    """Two rounds over all files; dies at the chosen step, and in a cluster its executors die."""
    from sqlalchemy import Engine, event

    from evercount.spark import open_session, release_stream, stream_release
    from evercount.spark.stream_release import _Round
    from evercount.store import Store

    seen = {"any": 0}

    def step(name: str) -> None:
        for counted in ("any", name):
            seen[counted] = seen.get(counted, 0) + 1
            if (counted, seen[counted]) == kill:
                os.killpg(0, signal.SIGKILL)

    declaration = declaration_of(kind)
    session = open_session(master)
    if "cluster" in master:
        stream_release._close = close_and_kill_executors(folder)
    store = Store(folder / "spark.db")
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET, shards=shards)
    event.listen(Engine, "before_cursor_execute", lambda *_: step("statement"))
    report_calls(
        lambda name: step("before commit") if name == "commit" else None,
        lambda name: step("after commit") if name == "commit" else None,
    )

    def count(real_count: Any, self: Any, batch: Any, number: int) -> None:
        step("batch planned")
        real_count(self, batch, number)
        step("batch stored")  # the store has it, and Spark's checkpoint does not know that yet

    real_append = stream_release.append_released

    def append(store: Any, name: str, lake: str) -> int:
        step("released")
        added = real_append(store, name, lake)
        step("table written")
        return added

    stream_release.append_released = append
    wrap(pytest.MonkeyPatch(), _Round, "_count", count)
    schema = "ts string, key string, who string, n long"
    events = session.readStream.schema(schema).options(maxFilesPerTrigger=2, maxFileAge="36500d")
    for closed in (TICKS // 2, TICKS):
        step(f"round {closed}")
        release_stream(
            events.parquet(str(folder / "in")),
            declaration,
            store,
            str(folder / "checkpoint"),
            clock=lambda at=closed: declaration.schedule.start_of(at + 1),  # type: ignore[misc]
            lake=lake,
        )
    store.close()


def run_program(program: Path, folder: Path, arguments: list[Any]) -> int:
    """Run a test file as a driver of Spark; return its exit status."""
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "OFF",
    }
    # a process is short: a compiler that starts at once
    java = "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'"
    submitted = " ".join([java, *(f"--conf {name}={value}" for name, value in options.items())])
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"{submitted} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        ),
    }
    command = [sys.executable, str(program), str(folder), json.dumps(arguments)]
    # a group of its own, so that the driver takes its JVM with it
    with (folder / "log").open("ab") as log, subprocess.Popen(
        command, stdout=log, stderr=log, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        return process.wait(PATIENCE)


# -- the test that kills it ------------------------------------------------------------------------


def write_events(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Five files, each with events of all ticks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = events_of(seed)
    (folder / "in").mkdir(parents=True)
    for number in range(5):
        pq.write_table(pa.Table.from_pylist(rows[number::5]), folder / "in" / f"{number}.parquet")
    return rows


def kill_driver(
    folder: Path,
    kills: Iterable[Kill],
    shards: int | None = None,
    master: str = "local[1]",
    kind: str = "counts",
    seed: int = 21,
    lake: str | None = None,
) -> int:
    """Run the driver again and again, killed at these steps, until all are used or it reaches its
    end; return how often it was killed.

    What is published after any of them is the beginning of the table that the library computes, at
    the end all of it.
    """
    expected = library_releases(kind, write_events(folder, seed))
    killed = before = 0
    for kill in itertools.chain(kills, [NEVER]):
        cut = None if kill is NEVER else shards
        ended = run_program(Path(__file__), folder, [kill, cut, master, kind, lake])
        assert ended in (-signal.SIGKILL, 0), (folder / "log").read_text()[-3000:]
        found = published(folder, "spark")
        assert before <= len(found), (kind, seed)
        assert found == expected[: len(found)], (kind, seed)
        before = len(found)
        if not ended:
            break
        killed += 1
    assert len(found) == TICKS
    verify_store(folder, "spark")
    return killed


def require_spark() -> None:
    from conftest import why_no_spark

    reason = why_no_spark()
    if reason:
        pytest.skip(reason)


if __name__ == "__main__":
    chosen, *rest = json.loads(sys.argv[2])
    driver(Path(sys.argv[1]), tuple(chosen), *rest)
