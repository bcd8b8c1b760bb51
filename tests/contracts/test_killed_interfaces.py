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
from killed_interfaces import (
    EVENTS,
    INTERFACES,
    KINDS,
    TICKS,
    events_of,
    library_releases,
    published,
    verify_store,
)
from soak_cases import soak_except
from spark_driver import SPARK_STEPS, kill_driver

pytest.importorskip("nats", reason="nats-py is not installed: pip install 'evercount[consume]'")

WINDOWS, GROWTH = {"files": 0.15, "service": 0.2, "log": 0.4}, 1.1
"""Seconds of processor time within which the first process of an interface is killed, and how much
longer the next may take."""
KILLS = {"files": 500, "service": 250, "log": 220, "spark": 30}


def kill_until_done(
    interface: str, folder: Path, address: str, seed: int, fork_server: Any, growth: float = GROWTH
) -> int:
    """Kill an interface over the events of a seed until it comes to its end; return the number of
    kills.

    What a killed interface has published is final: it is compared after every kill, and at the end
    all ticks are there.
    """
    from log_servers import publish

    draw, kind = random.Random(seed), list(KINDS)[seed % len(KINDS)]
    folder.mkdir()
    if interface == "spark":
        steps = (("any", draw.randint(1, SPARK_STEPS)) for _ in itertools.count())
        shards = 3 if seed % 2 and kind in ("counts", "person-days") else None
        return kill_driver(folder, steps, shards, kind=kind, seed=seed)
    rows = events_of(seed)
    lines = [json.dumps(row) for row in rows]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    if interface == "log":
        publish(
            address,
            f"lap{seed}",
            [line.encode() for line in [*lines[:100], "poison", *lines[100:]]],
        )
    expected, kills, before, killed = library_releases(kind, rows), 0, 0, True
    while killed:
        seconds = WINDOWS[interface] * growth**kills * draw.random()
        killed = run_and_kill(
            fork_server, interface, folder, kind, f"nats://{address}/lap{seed}", seconds
        )
        found = published(folder, interface)
        assert before <= len(found), (kind, seed)
        assert found == expected[: len(found)], (kind, seed)
        kills, before = kills + killed, len(found)
    assert len(found) == TICKS
    verify_store(folder, interface)
    if interface == "log":
        # again after a kill between it and the commit
        rejects = (folder / "bad.jsonl").read_text().splitlines()
        assert len(set(rejects)) == 1 <= len(rejects) <= 1 + kills
    return kills


def run_and_kill(
    fork_server: Any, interface: str, folder: Path, kind: str, address: str, seconds: float
) -> bool:
    """Run an interface in a process, and kill that once it has used so much processor time; return
    whether it was killed."""
    process = fork_server.Process(target=INTERFACES[interface], args=(folder, kind, address))
    process.start()
    clock = (~process.pid << 3) | 2  # the processor time of all its threads
    with suppress(OSError):  # it has ended
        while process.exitcode is None and time.clock_gettime(clock) < seconds:
            process.join(0.002)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), (interface, process.exitcode)
    return bool(process.exitcode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "interface"),
    soak_except(
        [*enumerate(INTERFACES)],
        [*zip(range(len(KINDS)), itertools.cycle(INTERFACES), strict=False)],
    ),
)
def test_interfaces_that_are_killed_publish_the_same_table(
    interface: str, seed: int, fork_server: Any, nats_address: str, tmp_path: Path
) -> None:
    """One kind of stream at every interface; `make soak` kills all kinds at all interfaces."""
    kill_until_done(interface, tmp_path / "lap", nats_address, seed, fork_server, growth=1.4)


def test_an_event_more_or_less_is_another_table() -> None:
    """The comparison can fail. Who is counted once a tick is so whatever comes twice."""
    rows = events_of(1)
    for kind in KINDS:
        expected = library_releases(kind, rows)
        assert len(expected) == TICKS
        assert any(
            library_releases(kind, rows[:lost] + rows[lost + 1 :]) != expected
            for lost in range(0, EVENTS, 10)
        )
        twice = any(
            library_releases(kind, [*rows[:at], *rows[at - 1 :]]) != expected
            for at in range(1, EVENTS, 10)
        )
        assert twice == (kind not in ("active persons", "person-days"))


@pytest.mark.soak
@pytest.mark.parametrize("interface", KILLS)
def test_a_thousand_kills_of_all_interfaces(
    interface: str,
    fork_server: Any,
    nats_address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = why_no_spark()
    if interface == "spark" and reason:
        pytest.skip(reason)
    kills = 0
    for streams, seed in enumerate(itertools.count(100), 1):
        kills += kill_until_done(interface, tmp_path / str(seed), nats_address, seed, fork_server)
        with capsys.disabled():
            print(
                f"{interface}: {kills} kills, {streams * TICKS} releases as the library has them",
                flush=True,
            )
        if kills >= KILLS[interface]:
            break
