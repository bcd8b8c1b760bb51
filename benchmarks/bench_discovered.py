"""Discovered keys: 10^6 distinct keys of which 10^3 are heavy. Time per tick, state, snapshots,
keys that join late.

Times are ratios to a `Histogram` that was given the heavy keys as a list, on the same events, in
the same run. They are seconds of the processor, so that a busy machine changes little; only
requests are timed by the clock.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

from evercount import Budget, DiscoveredKeys, Histogram, Stream
from evercount.service.catch_up import Clock
from evercount.service.commit_loop import Writer
from evercount.service.read_events import read_batch
from evercount.store import Store, StreamDeclaration
from evercount.store.open_stream import read_request

Row = dict[str, Any]
BUDGET = Budget(1.0, 1e-6)
TICKS, HEAVY, RARE = 40, 1000, 25_000
"""Every tick has 25,000 keys that never came before, and 25 events of each heavy key."""


def events_of(tick: int) -> list[str]:
    """The events of one tick: 50,000."""
    rare = [f"rare key {tick * RARE + number}" for number in range(RARE)]
    return rare + [f"heavy key {number}" for number in range(HEAVY)] * 25


def run_stream(stream: Stream, prepared: bool) -> tuple[float, float, list[float]]:
    """(mean seconds of a step, of a preparation, all steps); preparations happen between ticks, off
    the path."""
    steps, ahead = [], 0.0
    for tick in range(TICKS):
        events = events_of(tick)
        start = time.process_time()
        stream.step(events)
        steps.append(time.process_time() - start)
        if prepared:
            start = time.process_time()
            stream.prepare()
            ahead += time.process_time() - start
    return float(np.mean(steps)), ahead / TICKS, steps


def run() -> list[Row]:
    """All rows of this group."""
    rows: list[Row] = []
    known = [f"heavy key {number}" for number in range(HEAVY)]
    listed = Stream(Histogram(known, unknown="other"), BUDGET, 2**12)
    base, _, _ = run_stream(listed, prepared=True)
    rows.append(
        {
            "name": "Histogram of 1,000 listed keys: a tick of 50,000 events",
            "value": base * 1e3,
            "unit": "ms",
        }
    )
    stream = Stream(DiscoveredKeys(minimum=30), BUDGET, 2**12)
    tracemalloc.start()
    stream.step(events_of(0))
    before = tracemalloc.get_traced_memory()[0]
    stream.step(events_of(1))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    stream.close()
    rows.append(
        {"name": "memory of a rare key (text, count)", "value": grown / RARE, "unit": "bytes"}
    )
    stream = Stream(DiscoveredKeys(minimum=30), BUDGET, 2**12)
    mean, ahead, steps = run_stream(stream, prepared=True)
    name = f"{TICKS * RARE:,} distinct keys, minimum 30: "
    rows.append(
        {
            "name": name + "a tick of 50,000 events",
            "value": mean * 1e3,
            "unit": "ms",
            "ratio": mean / base,
        }
    )
    growth = float(np.mean(steps[-5:]) / np.mean(steps[5:10]))
    rows.append({"name": name + "last ticks against early ones", "value": growth, "unit": "times"})
    rows.append({"name": name + "preparation between ticks", "value": ahead * 1e3, "unit": "ms"})
    rows.append(
        {
            "name": name + "public keys",
            "value": len(stream.labels) - 2,
            "unit": f"of {HEAVY} heavy ones",
        }
    )
    start = time.process_time()
    blob = stream.snapshot()
    taken = time.process_time() - start
    rows.append({"name": name + "snapshot", "value": len(blob) / 2**20, "unit": "MiB"})
    rows.append(
        {
            "name": name + "time of a snapshot",
            "value": taken * 1e3,
            "unit": "ms",
            "ratio": taken / mean,
        }
    )
    stream.close()
    start = time.process_time()
    Stream.restore(blob).close()
    rows.append(
        {
            "name": name + "time of a restore",
            "value": (time.process_time() - start) * 1e3,
            "unit": "ms",
        }
    )
    rows += [*every_key_has_noise(base), ingestion_goes_on(), other_streams_go_on()]
    return rows


def every_key_has_noise(base: float) -> list[Row]:
    """minimum=1: every key that ever came has noise. 40,000 keys stand for more: time and memory
    are linear in them."""
    stream = Stream(DiscoveredKeys(), BUDGET, 2**12)
    keys = 40_000
    events = [f"key {number}" for number in range(keys)]
    start = time.process_time()
    stream.step(events)
    joined = time.process_time() - start
    start = time.process_time()
    for _ in range(64):
        stream.step([])
    mean = (time.process_time() - start) / 64
    state = len(stream.snapshot())
    stream.close()
    name = "minimum 1, 40,000 keys with noise: "
    return [
        {
            "name": name + "an empty tick",
            "value": mean / keys * 1e9,
            "unit": "ns/key",
            "ratio": mean / base,
        },
        {"name": name + "to join", "value": joined / keys * 1e6, "unit": "µs/key"},
        {"name": name + "snapshot", "value": state / keys, "unit": "bytes/key"},
    ]


def ingestion_goes_on() -> Row:
    """1,000 keys join at tick 3,000 next to a thread that reads requests: how much slower the
    requests are read."""
    declaration = StreamDeclaration.from_dict(
        {
            "name": "x",
            "query": "discovered-keys",
            "budget": {"epsilon": 1, "delta": 1e-6},
            "horizon": 4096,
        }
    )
    stream = Stream(DiscoveredKeys(minimum=40), BUDGET, 4096)
    stream.run([[]] * 3000)
    stream.step([f"key {number}" for number in range(1000)] * 35)  # below the minimum, and near it
    requests = [[f"key {number}" for number in range(100)]] * 40

    def read() -> float:
        start = time.perf_counter()
        for request in requests:
            read_request(declaration, request)
        return time.perf_counter() - start

    alone = min(read() for _ in range(5))
    helper = threading.Thread(target=stream.prepare)
    helper.start()
    meanwhile = []
    while helper.is_alive():
        meanwhile.append(read())
    start = time.perf_counter()
    stream.step([f"key {number}" for number in range(1000)] * 35)
    closing = time.perf_counter() - start
    stream.close()
    return {
        "name": "requests are read while 1,000 keys join at tick 3,000",
        "value": float(np.median(meanwhile)) / alone if meanwhile else float("nan"),
        "unit": "times slower",
        "note": (
            f"the closing tick in which they become candidates then takes {closing * 1e3:.0f} ms"
        ),
    }


class SetClock(Clock):
    """A clock that stands at the moment to which it was set."""

    moment = 0.0

    def now(self) -> float:
        """The moment."""
        return self.moment

    def seconds_until(self, moment: float) -> float:
        """None to wait for what is over, an hour for all else."""
        return 3600.0 if moment > self.moment else 0.0


def other_streams_go_on() -> Row:
    """20,000 new keys in tick 2,000 of one stream: how long the slowest batch of another stream
    waits."""
    table = {
        "name": "keys",
        "query": {"name": "discovered-keys", "parameters": {"minimum": 4}},
        "horizon": 4096,
    }
    table |= {
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-03-01T00:00:00Z",
    }
    keys = StreamDeclaration.from_dict(table)
    other = StreamDeclaration.from_dict(
        {**table, "name": "other", "query": "count", "tick": "manual"}
    )
    clock, late = SetClock(), 2000
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "a.db")
        live = store.declare(keys, keys.schedule.begin / 1e6)
        store.declare(other, keys.schedule.begin / 1e6)
        while live.closed < late - 1:
            store.close_ticks(live, late - 1 - live.closed, 0.0)
        clock.moment = keys.schedule.start_of(late) / 1e6
        writer = Writer(store, clock, lambda _: None)
        writer.start()
        events = json.dumps([f"key {number}" for number in range(20_000)] * 4).encode()
        writer.submit(read_batch(keys, events, most=10**5)).result()
        clock.moment += 3600.0
        start, slowest = time.perf_counter(), 0.0
        while live.closed < late:
            sent = time.perf_counter()
            writer.submit(read_batch(other, b"[1]")).result()
            slowest = max(slowest, time.perf_counter() - sent)
        took = time.perf_counter() - start
        writer.stop()
        store.close()
    return {
        "name": "20,000 keys join at tick 2,000: the slowest batch of another stream",
        "value": slowest * 1e3,
        "unit": "ms",
        "ratio": slowest / took,
        "note": f"of the {took:.1f} s until the tick is released",
    }


if __name__ == "__main__":
    for row in run():
        print(row)
