"""Real kill -9 of a real driver, JVM and all, and of executors: nothing lost, doubled or released otherwise.

Run as a program this file is the driver. It dies by SIGKILL at a chosen step of its work with the store and with Spark.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TICKS = 9
SECRET = "9f" * 32
DECLARATION = {
    "name": "live",
    "query": {"name": "histogram", "parameters": {"keys": ["north", "south", *"abcdefgh"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": TICKS,
    "columns": {"time": "ts", "key": "key"},
    "views": ["running"],
}
KINDS: dict[str, dict[str, Any]] = {
    "counts": {},
    "unlisted keys": {
        "query": {"name": "discovered-keys", "parameters": {"minimum": 2}},
        "budget": {"epsilon": 8.0, "delta": 0.01},
    },
    "persons": {
        "query": "active-users",
        "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_ticks": 3},
        "columns": {"time": "ts", "user": "who"},
    },
    "person-days": {
        "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_per_tick": 1, "period": 1},
        "columns": {"time": "ts", "key": "key", "user": "who", "order": "n"},
    },
}
"""What a stream is, besides the declaration."""
PATIENCE = 1800
"""Seconds after which a driver that does nothing is a failure."""


# -- the driver -------------------------------------------------------------------------------------------------------


Kill = tuple[str, int]
"""The name of a step and which of its times; "any" counts all steps. Time 0 is never."""
NEVER: Kill = ("any", 0)


def kill_executor_once(marker: Path) -> None:
    """In a task: kill the JVM of the executor that runs it, unless the marker says that it was done before."""
    if marker.exists():
        return
    marker.touch()
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()  # the worker's parent; its parent is the executor
    os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    signal.pause()  # this worker dies with its executor


def deadly(folder: Path) -> Any:
    """As `close_on_executors._close`; the first task of shard 0 dies before its commit, that of shard 1 after it."""
    from evercount.store.close_shards import close_shard

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


def driver(folder: Path, kill: Kill, shards: int | None, master: str, kind: str) -> None:
    """Two rounds over all files; dies at the chosen step, and in a cluster its executors die."""
    from sqlalchemy import Connection, Engine, event

    from evercount.declare.declaration import StreamDeclaration
    from evercount.noise import Secret
    from evercount.spark import close_on_executors, open_session, release_stream
    from evercount.spark.stream_release import _Round
    from evercount.store import Store

    seen = {"any": 0}

    def step(name: str) -> None:
        for counted in ("any", name):
            seen[counted] = seen.get(counted, 0) + 1
            if (counted, seen[counted]) == kill:
                os.killpg(0, signal.SIGKILL)

    declaration = StreamDeclaration.from_dict(DECLARATION | KINDS[kind])
    session = open_session(master)
    if "cluster" in master:
        close_on_executors._close = deadly(folder)
    store = Store(folder / "store.db")
    store.declare(declaration, declaration.schedule.begin / 1e6, Secret.from_hex(SECRET), shards=shards)
    event.listen(Engine, "before_cursor_execute", lambda *_: step("statement"))
    real_commit = Connection._commit_impl  # type: ignore[attr-defined]
    real_count = _Round._count

    def commit(connection: Any) -> None:
        step("before commit")
        real_commit(connection)
        step("after commit")

    def count(self: Any, batch: Any, number: int) -> None:
        step("batch planned")
        real_count(self, batch, number)
        step("batch stored")  # the store has it, and Spark's checkpoint does not know that yet

    Connection._commit_impl = commit  # type: ignore[attr-defined]
    _Round._count = count  # type: ignore[method-assign]
    schema = "ts timestamp, key string, who string, n long"
    events = session.readStream.schema(schema).options(maxFilesPerTrigger=2, maxFileAge="36500d")
    for closed in (4, TICKS):
        step(f"round {closed}")
        release_stream(
            events.parquet(str(folder / "in")),
            declaration,
            store,
            str(folder / "checkpoint"),
            clock=lambda at=closed: declaration.schedule.start_of(at + 1),  # type: ignore[misc]
        )
    store.close()


def run_driver(folder: Path, kill: Kill, shards: int | None, master: str, kind: str) -> int:
    """The exit status of one life."""
    return run_program(Path(__file__), folder, [kill, shards, master, kind])


def run_program(program: Path, folder: Path, arguments: list[Any]) -> int:
    """The exit status of a test file that is run as a driver of Spark."""
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "OFF",
    }
    # a life is short: a compiler that starts at once
    java = "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'"
    submitted = " ".join([java, *(f"--conf {name}={value}" for name, value in options.items())])
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"{submitted} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, str(program), str(folder), json.dumps(arguments)]
    # a group of its own, so that the driver takes its JVM with it
    with (folder / "log").open("ab") as log, subprocess.Popen(
        command, stdout=log, stderr=log, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        return process.wait(PATIENCE)


# -- the tests --------------------------------------------------------------------------------------------------------


def write_events(folder: Path) -> list[list[tuple[str, str]]]:
    """Five files; returns (key, who) of each tick's events in the order of their numbers. All events of the second
    round's ticks are there from the start."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from evercount.declare.declaration import StreamDeclaration

    begin = StreamDeclaration.from_dict(DECLARATION).schedule.begin
    generator = np.random.default_rng(21)
    ticks: list[list[tuple[str, str]]] = [[] for _ in range(TICKS)]
    (folder / "in").mkdir(parents=True)
    for number in range(5):
        tick = generator.integers(0, TICKS, 60)
        keys = [["north", "south"][c] for c in generator.integers(0, 2, 60)]
        who = [f"u{c}" for c in generator.integers(0, 15, 60)]
        for at, event in zip(tick.tolist(), zip(keys, who, strict=True), strict=True):
            ticks[at].append(event)
        times = pa.array(begin + tick * 3600 * 10**6, pa.timestamp("us", "UTC"))
        table = pa.table({"ts": times, "key": keys, "who": who, "n": np.arange(60) + 60 * number})
        pq.write_table(table, folder / "in" / f"{number}.parquet")
    return ticks


def check(folder: Path, ticks: list[list[tuple[str, str]]], kind: str) -> None:
    """The store holds the releases of all events, each counted once, and is in one piece."""
    from evercount.declare.declaration import StreamDeclaration
    from evercount.noise import Secret
    from evercount.store import Store

    store = Store(folder / "store.db")
    found = [[value for value in one["values"] if value is not None] for one in store.all_releases("live")]
    assert store.verify(store.head) == []
    store.close()
    declaration = StreamDeclaration.from_dict(DECLARATION | KINDS[kind])
    stream = declaration.build(secret=Secret.from_hex(SECRET), replay=True)
    users = [[who for _, who in tick] for tick in ticks]
    events = users if kind == "persons" else [[key for key, _ in tick] for tick in ticks]
    rows = stream.run(events, users=users if kind == "person-days" else None).rows.tolist()
    assert found == [[value for value in row if value == value] for row in rows]


def burn(
    folder: Path, kills: Iterable[Kill], shards: int | None = None, master: str = "local[1]", kind: str = "counts"
) -> int:
    """Lives that end at these steps, until all steps are used or one reaches its end; returns how many were killed."""
    ticks = write_events(folder)
    killed = 0
    for kill in itertools.chain(kills, [NEVER]):
        ended = run_driver(folder, kill, None if kill is NEVER else shards, master, kind)
        assert ended in (-signal.SIGKILL, 0), (folder / "log").read_text()[-3000:]
        if not ended:
            break
        killed += 1
    check(folder, ticks, kind)
    return killed


def require_spark() -> None:
    from conftest import why_no_spark

    reason = why_no_spark()
    if reason:
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unlisted keys", "person-days"])
def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Killed between the store's commit and Spark's own, which is where a batch comes twice."""
    require_spark()
    assert burn(tmp_path, [("batch stored", 2)], kind=kind) == 1


@pytest.mark.soak
@pytest.mark.parametrize("shards", [3, 7])
def test_a_cluster_whose_executors_and_driver_are_killed_publishes_the_same_table(tmp_path: Path, shards: int) -> None:
    """Executors are processes of their own here. One dies before a shard's commit, one after it; then the driver."""
    require_spark()
    assert burn(tmp_path, [(f"round {TICKS}", 1)], shards, "local-cluster[2,1,1024]") == 1
    assert (tmp_path / "shard 0 was killed").exists()
    assert (tmp_path / "shard 1 was killed").exists()


@pytest.mark.soak
def test_a_driver_that_is_killed_at_thirty_random_moments_loses_nothing(tmp_path: Path) -> None:
    """Streams are begun until thirty lives were killed: of all kinds, every other one of counts with shards."""
    require_spark()
    generator = random.Random(os.environ.get("EVERCOUNT_SEED", "spark"))
    killed = streams = 0
    while killed < 30:
        folder = tmp_path / str(streams)
        folder.mkdir()
        kind = list(KINDS)[streams // 2 % len(KINDS)]
        shards = 3 if streams % 2 and kind in ("counts", "person-days") else None
        kills = (("any", generator.randint(1, 40)) for _ in itertools.count())
        here = burn(folder, kills, shards, kind=kind)
        assert here, "the steps lie beyond the end of the driver's work"
        killed, streams = killed + here, streams + 1
        print(f"{killed} lives of {streams} streams were killed, and nothing was lost")


if __name__ == "__main__":
    chosen, *rest = json.loads(sys.argv[2])
    driver(Path(sys.argv[1]), tuple(chosen), *rest)
