"""kill -9 of files, service, log and Spark over the same events: all publish the table that the
library computes."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from conftest import why_no_spark
from kill_doors import DOORS, EVENTS, KINDS, TICKS, events_of, published, recomputed, verify
from spark_driver import SPARK_STEPS, burn
from tiers import soak_but

pytest.importorskip("nats", reason="nats-py is not installed: pip install 'evercount[consume]'")

WINDOWS, GROWTH = {"files": 0.15, "service": 0.2, "log": 0.4}, 1.1
"""Seconds of processor time within which the first life of a door is ended, and how much longer the
next may take."""
KILLS = {"files": 500, "service": 250, "log": 220, "spark": 30}


def lap(
    door: str, folder: Path, address: str, seed: int, lives: Any, growth: float = GROWTH
) -> int:
    """A door over the events of a seed, killed until it comes to its end; returns how often it was
    killed.

    What a killed door has published is final: it is compared after every kill, and at the end all
    ticks are there.
    """
    from log_servers import publish

    draw, kind = random.Random(seed), list(KINDS)[seed % len(KINDS)]
    folder.mkdir()
    if door == "spark":
        steps = (("any", draw.randint(1, SPARK_STEPS)) for _ in itertools.count())
        shards = 3 if seed % 2 and kind in ("counts", "person-days") else None
        return burn(folder, steps, shards, kind=kind, seed=seed)
    rows = events_of(seed)
    lines = [json.dumps(row) for row in rows]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    if door == "log":
        publish(
            address,
            f"lap{seed}",
            [line.encode() for line in [*lines[:100], "poison", *lines[100:]]],
        )
    expected, kills, before, killed = recomputed(kind, rows), 0, 0, True
    while killed:
        seconds = WINDOWS[door] * growth**kills * draw.random()
        killed = fork_life(lives, door, folder, kind, f"nats://{address}/lap{seed}", seconds)
        found = published(folder, door)
        assert before <= len(found), (kind, seed)
        assert found == expected[: len(found)], (kind, seed)
        kills, before = kills + killed, len(found)
    assert len(found) == TICKS
    verify(folder, door)
    if door == "log":
        # again after a kill between it and the commit
        rejects = (folder / "bad.jsonl").read_text().splitlines()
        assert len(set(rejects)) == 1 <= len(rejects) <= 1 + kills
    return kills


def fork_life(lives: Any, door: str, folder: Path, kind: str, address: str, seconds: float) -> bool:
    """One life of a door, killed when it has used so much processor time; whether it was."""
    process = lives.Process(target=DOORS[door], args=(folder, kind, address))
    process.start()
    clock = (~process.pid << 3) | 2  # the processor time of all its threads
    with suppress(OSError):  # it has ended
        while process.exitcode is None and time.clock_gettime(clock) < seconds:
            process.join(0.002)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (door, process.exitcode)
    return bool(process.exitcode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "door"),
    soak_but([*enumerate(DOORS)], [*zip(range(len(KINDS)), itertools.cycle(DOORS), strict=False)]),
)
def test_doors_that_are_killed_publish_the_same_table(
    door: str, seed: int, lives: Any, nats_address: str, tmp_path: Path
) -> None:
    """One kind of stream at every door; `make soak` kills all kinds at all doors."""
    lap(door, tmp_path / "lap", nats_address, seed, lives, growth=1.4)


def test_an_event_more_or_less_is_another_table() -> None:
    """The comparison can fail. Who is counted once a tick is so whatever comes twice."""
    rows = events_of(1)
    for kind in KINDS:
        expected = recomputed(kind, rows)
        assert len(expected) == TICKS
        assert any(
            recomputed(kind, rows[:lost] + rows[lost + 1 :]) != expected
            for lost in range(0, EVENTS, 10)
        )
        twice = any(
            recomputed(kind, [*rows[:at], *rows[at - 1 :]]) != expected
            for at in range(1, EVENTS, 10)
        )
        assert twice == (kind not in ("active persons", "person-days"))


@pytest.mark.soak
@pytest.mark.parametrize("door", KILLS)
def test_a_thousand_kills_of_all_doors(
    door: str, lives: Any, nats_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = why_no_spark()
    if door == "spark" and reason:
        pytest.skip(reason)
    kills = 0
    for streams, seed in enumerate(itertools.count(100), 1):
        kills += lap(door, tmp_path / str(seed), nats_address, seed, lives)
        with capsys.disabled():
            print(
                f"{door}: {kills} kills, {streams * TICKS} releases as the library computes them",
                flush=True,
            )
        if kills >= KILLS[door]:
            break
