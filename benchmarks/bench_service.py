"""Load of the service: batches with commit over HTTP, missed ticks, and wide ticks with exact
noise.

    python benchmarks/bench_service.py [--seconds 20] [--clients 4] [--batch 500] \
        [--missed 2592000] [--json FILE]

The server is a process of its own; the client runs on the same machine. `evercount bench service`
measures the same for a short time, as ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from evercount.service.catch_up import CatchUp, Clock
from evercount.store import Store, StreamDeclaration

ADMIN = "an admin token for the benchmark"
KEYS = [f"key-{number}" for number in range(1000)]
SERVER = """
import sys
from evercount.service.access import Limits
from evercount.service.http_server import run
from evercount.service.runtime import Service
from evercount.store import Store
store = Store(sys.argv[1])
service = Service(store, admin=sys.argv[2], limits=Limits(rate=1e6, burst=1e6))
run(service, "127.0.0.1", 0, lambda address: print(address, flush=True))
"""


def declare(client: httpx.Client, name: str, keys: list[str]) -> None:
    """A manually clocked histogram."""
    declaration = {
        "name": name,
        "query": {"name": "histogram", "parameters": {"keys": keys}},
        "budget": {"epsilon": 1.0, "delta": 1e-9},
        "horizon": 100_000,
    }
    client.post("/v1/streams", json=declaration).raise_for_status()


def feed(address: str, batch: int, until: float, latencies: list[float]) -> None:
    """One client: batches one after the other, each acknowledged."""
    bodies = [json.dumps(random.choices(KEYS, k=batch)).encode() for _ in range(20)]
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
    number = 0
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        while time.perf_counter() < until:
            began = time.perf_counter()
            key = {"Idempotency-Key": f"{threading.get_ident()}-{number}"}
            client.post(
                "/v1/streams/load/events", content=bodies[number % len(bodies)], headers=key
            ).raise_for_status()
            latencies.append(time.perf_counter() - began)
            number += 1


def measure(seconds: float, clients: int, batch: int, ticks: int, pause: float) -> dict[str, Any]:
    """All numbers."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SERVER, str(Path(folder) / "bench.db"), ADMIN]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            with httpx.Client(
                base_url=address, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60
            ) as client:
                declare(client, "load", KEYS)
                latencies: list[float] = []
                until = time.perf_counter() + seconds
                began = time.perf_counter()
                arguments = (address, batch, until, latencies)
                threads = [threading.Thread(target=feed, args=arguments) for _ in range(clients)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                took = time.perf_counter() - began
                closing = []
                for _ in range(ticks):
                    time.sleep(pause)  # a clock ends ticks apart; the next noise is drawn meanwhile
                    start = time.perf_counter()
                    client.post("/v1/streams/load/close-tick").raise_for_status()
                    closing.append(time.perf_counter() - start)
        finally:
            os.kill(server.pid, signal.SIGTERM)
            server.wait(30)
    return {
        "events_per_second": round(len(latencies) * batch / took),
        "batches": len(latencies),
        "p50_ms": round(float(np.quantile(latencies, 0.5)) * 1000, 1),
        "p99_ms": round(float(np.quantile(latencies, 0.99)) * 1000, 1),
        "max_ms": round(max(latencies) * 1000, 1),
        "close_1000_cells_median_ms": round(float(np.median(closing)) * 1000, 1),
        "close_1000_cells_mean_ms": round(float(np.mean(closing)) * 1000, 1),
        "close_1000_cells_max_ms": round(max(closing) * 1000, 1),
    }


def measure_catch_up(ticks: int) -> dict[str, float]:
    """Seconds and processor seconds for closing missed ticks of a count, in the slices of the
    service."""
    with tempfile.TemporaryDirectory() as folder:
        clock = StandingClock(0.0)
        store = Store(Path(folder) / "bench.db")
        table = {
            "name": "s",
            "query": "count",
            "budget": {"epsilon": 1.0, "delta": 1e-9},
            "tick": "1s",
        }
        live = store.declare(StreamDeclaration.from_dict(table), clock.moment)
        clock.moment += ticks
        closing = CatchUp(store, clock, lambda *_: None)
        longest = 0.0
        began, worked = time.perf_counter(), time.process_time()
        while True:
            slice_began = time.perf_counter()
            left = closing.close_slice(live, clock.moment)
            longest = max(longest, time.perf_counter() - slice_began)
            if not left:
                break
        took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - worked}
        store.close()
    return {**took, "longest_slice": longest}


class StandingClock(Clock):
    """A clock that is set by hand."""

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment

    def now(self) -> float:
        """As it was set."""
        return self.moment


def measure_wide(cells: int, ticks: int) -> dict[str, float]:
    """Processor seconds of closing a tick of very many cells, and of reading a page of it and all
    of it."""
    keys = [f"key-{number}" for number in range(cells)]
    table = {
        "name": "wide",
        "query": {"name": "histogram", "parameters": {"keys": keys}},
        "budget": {"epsilon": 1.0, "delta": 1e-9},
        "horizon": 1000,
    }
    declaration = StreamDeclaration.from_dict(table)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "bench.db")
        live = store.declare(declaration, 0.0)
        store.close_ticks(live, 1, 0.0)
        closing = per_call(lambda: store.close_ticks(live, 1, 0.0), ticks)
        page = per_call(lambda: store.read_releases(live, 1, 1, cells=range(50_000, 51_000)), 20)
        everything = per_call(lambda: store.read_releases(live, 1, 1), 3)
        size = len(json.dumps(store.read_releases(live, 1, 1)))
        store.close()
    return {"closing": closing, "page": page, "everything": everything, "json_bytes": size}


def per_call(function: Callable[[], Any], calls: int) -> float:
    """Processor seconds of one call, on average."""
    began = time.process_time()
    for _ in range(calls):
        function()
    return (time.process_time() - began) / calls


def run() -> list[dict[str, Any]]:
    """The rows of `evercount bench service`."""
    load = measure(5, 4, 500, 20, 0.1)
    many, few = measure_catch_up(200_000), measure_catch_up(2_000)
    wide = measure_wide(100_000, 3)
    return [
        {"name": "events accepted over HTTP", "value": load["events_per_second"], "unit": "1/s"},
        {"name": "acknowledged batch of 500, p99", "value": load["p99_ms"], "unit": "ms"},
        {
            "name": "missed ticks closed, per processor second",
            "value": 200_000 / many["cpu_seconds"],
            "unit": "1/s",
            "ratio": few["cpu_seconds"] * 100 / many["cpu_seconds"],
            "note": "ratio: the same ticks in a hundred catch-ups of 2,000",
        },
        {
            "name": "close a tick of 100,000 cells",
            "value": wide["closing"],
            "unit": "s",
            "ratio": wide["closing"] / wide["everything"],
            "note": "processor time of noise and commit; ratio: next to reading all cells back",
        },
        {
            "name": "read 1,000 of 100,000 cells",
            "value": wide["page"],
            "unit": "s",
            "ratio": wide["page"] / wide["everything"],
            "target": "< 0.1",
            "note": "ratio: next to all cells",
        },
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between ticks")
    parser.add_argument(
        "--missed", type=int, default=2_592_000, help="missed ticks that are closed"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.seconds, options.clients, options.batch, options.ticks, options.pause)
    for name, number in measure_catch_up(options.missed).items():
        figures[f"catch_up_{options.missed}_{name}"] = round(number, 2)
    for name, number in measure_wide(100_000, 5).items():
        figures[f"cells_100000_{name}"] = round(number, 3)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
