"""kill -9 of files, service, log and Spark over the same events: all publish the table of a run that nobody killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kill_doors
from conftest import why_no_spark
from kill_doors import DOORS, events_of, files, published

pytest.importorskip("nats", reason="nats-py is not installed: pip install 'evercount[consume]'")

FIRST_WINDOW, GROWTH = 0.25, 1.15
"""Seconds within which the first life of a door is ended, and how much longer the next may take."""


@pytest.fixture(scope="session")
def lives() -> Any:
    """A server whose children have all modules loaded, and no thread or connection of an earlier life."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        ["kill_doors", "evercount.files.release_run", "evercount.consume.consume_log", "nats"]
    )
    return server


def lap(folder: Path, address: str, seed: int, kills: dict[str, int], lives: Any, doors: list[str]) -> None:
    """Each door over fresh events, killed until it comes to its end; then all tables are equal."""
    from log_servers import publish

    draw, persons = random.Random(seed), bool(seed % 2)
    folder.mkdir()
    rows = [json.dumps(row) for row in events_of(seed)]
    (folder / "events.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "whole").mkdir()
    (folder / "whole" / "events.jsonl").write_text("\n".join(rows) + "\n")
    files(folder / "whole", persons, "")
    expected = published(folder / "whole", "files")
    assert len(expected) == kill_doors.TICKS
    if "log" in doors:
        publish(address, f"lap{seed}", [row.encode() for row in [*rows[:100], "poison", *rows[100:]]])
    if "spark" in doors:
        (folder / "parts").mkdir()
        for part in range(4):
            (folder / "parts" / f"{part}.json").write_text("\n".join(rows[part::4]) + "\n")
    for door in doors:
        life = spark_life if door == "spark" else fork_life
        window = FIRST_WINDOW * (40 if door == "spark" else 1)
        while life(lives, door, folder, persons, f"nats://{address}/lap{seed}", window * draw.random()):
            kills[door] = kills.get(door, 0) + 1
            window *= GROWTH**3 if door == "spark" else GROWTH
        assert published(folder, door) == expected, (door, seed)
    if "log" in doors:
        assert len((folder / "bad.jsonl").read_text().splitlines()) == 1


def fork_life(lives: Any, door: str, folder: Path, persons: bool, address: str, seconds: float) -> bool:
    """One life of a door; whether it was killed."""
    process = lives.Process(target=DOORS[door], args=(folder, persons, address))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (door, process.exitcode)
    return bool(process.exitcode)


def spark_life(_lives: Any, _door: str, folder: Path, persons: bool, _address: str, seconds: float) -> bool:
    """One life of a driver and its JVM; whether it was killed."""
    command = [sys.executable, kill_doors.__file__, str(folder), json.dumps([persons])]
    environment = {**os.environ, "PYTHONPATH": str(Path(kill_doors.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "spark output").open("ab") as output, subprocess.Popen(
        command, stdout=output, stderr=output, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        until = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), (folder / "spark output").read_text()[-2000:]
        return bool(process.returncode)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_doors_that_are_killed_publish_the_same_table(seed: int, lives: Any, nats_address: str, tmp_path: Path) -> None:
    kills: dict[str, int] = {}
    lap(tmp_path / "lap", nats_address, seed, kills, lives, ["files", "service", "log"])
    assert set(kills) == {"files", "service", "log"}


@pytest.mark.soak
def test_a_thousand_kills_of_all_doors(lives: Any, nats_address: str, tmp_path: Path) -> None:
    kills: dict[str, int] = {}
    seed = 100
    while sum(kills.values()) < 1000:
        seed += 1
        doors = ["files", "service", "log"]
        if why_no_spark() is None and seed % 10 == 0:
            doors.append("spark")
        lap(tmp_path / str(seed), nats_address, seed, kills, lives, doors)
    print(f"\n{sum(kills.values())} kills: {kills}")
    assert kills.keys() >= {"files", "service", "log"}
