"""Load of the service: batches with commit over HTTP, and the closing of wide ticks with exact noise.

    python benchmarks/bench_service.py [--seconds 20] [--clients 4] [--batch 500] [--json FILE]

The server is a process of its own; the client runs on the same machine.
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
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ADMIN = "an admin token for the benchmark"
KEYS = [f"key-{number}" for number in range(1000)]
SERVER = """
import sys
from evercount.service.access import Limits
from evercount.service.run_server import run
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
            client.post("/v1/streams/load/events", content=bodies[number % len(bodies)], headers=key).raise_for_status()
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
            with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=60) as client:
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--ticks", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between ticks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.seconds, options.clients, options.batch, options.ticks, options.pause)
    for name, value in found.items():
        print(f"{name:32} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
