"""Soak of the service: load, kills, readers, live connections and catch-ups at once, and exact sums at the end.

    python benchmarks/soak_service.py [--seconds 3600] [--rate 50000] [--batch 500] [--kill-every 120] [--json FILE]

One server process at a time, killed by SIGKILL and started again after a pause in which ticks are missed. Clients send
every batch until it is acknowledged, under one idempotency key. It fails unless the sums in the store are those of the
acknowledged batches, every live connection saw every tick once and in order, and the release chain verifies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from evercount.store import Store

ADMIN = "an admin token for the soak only"
AUTHORIZATION = {"Authorization": f"Bearer {ADMIN}"}
KEYS = [f"key-{number}" for number in range(100)]
DECLARATION = {
    "name": "load",
    "query": {"name": "histogram", "parameters": {"keys": KEYS}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "tick": "1s",
    "late": "next",
    "public": True,
}
FAST = {**DECLARATION, "name": "fast", "query": {"name": "count"}, "tick": "20ms"}
SERVER = """
import json, sys
from evercount.service.access import Limits
from evercount.service.run_server import run
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
service = Service(Store(sys.argv[1]), admin=sys.argv[2], limits=Limits(rate=1e6, burst=1e6))
service.declare([StreamDeclaration.from_dict(table) for table in json.loads(sys.argv[3])])
run(service, "127.0.0.1", int(sys.argv[4]), lambda address: print(address, flush=True))
"""
SETTLED_SECONDS = 5.0
"""After a start, before durations count as "between kills": the server catches up and warms up."""
PAUSE_SECONDS = 3.0
"""Between a kill and the next start: 3 ticks of one stream and 150 of the other are missed."""


class Soak:
    """The server under load, and what was seen of it."""

    def __init__(self, place: Path, seconds: float, rate: float, batch: int, clients: int, kill_every: float) -> None:
        self.place, self.seconds, self.rate, self.batch = place, seconds, rate, batch
        self.clients, self.kill_every = clients, kill_every
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.acknowledged: Counter[str] = Counter()
        self.batches = self.retries = self.kills = self.reads = self.live_events = 0
        self.latencies: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self.catch_ups: list[float] = []
        self.faults: list[str] = []
        self.settled_at = 0.0
        self.address = ""
        self.server: subprocess.Popen[str] | None = None

    # -- the server ------------------------------------------------------------------------------------------------

    def start(self, port: int = 0) -> None:
        """Start a server and wait for its address; later ones take the same port."""
        arguments = [str(self.place), ADMIN, json.dumps([DECLARATION, FAST]), str(port)]
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.address = self.server.stdout.readline().strip()
        began = time.perf_counter()
        while httpx.get(f"{self.address}/readyz", timeout=30).status_code != 200:
            time.sleep(0.05)
        self.catch_ups.append(time.perf_counter() - began)
        self.settled_at = time.monotonic() + SETTLED_SECONDS

    def supervise(self) -> None:
        """Kill and start again until the time is over; then end the last server with SIGTERM."""
        ends = time.monotonic() + self.seconds
        while (left := ends - time.monotonic()) > 0:
            life = time.monotonic() + min(left, self.kill_every * random.uniform(0.7, 1.3))
            while time.monotonic() < life:
                time.sleep(1)
                self._sample_memory()
            if time.monotonic() >= ends:
                break
            assert self.server is not None
            self.settled_at = float("inf")
            self.server.kill()
            self.server.wait()
            self.kills += 1
            time.sleep(PAUSE_SECONDS)
            self.start(int(self.address.rsplit(":", 1)[1]))

    def _sample_memory(self) -> None:
        assert self.server is not None
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = Path(f"/proc/{self.server.pid}/statm").read_text(encoding="ascii").split()[1]
            self.memory.append((time.monotonic(), int(pages) * os.sysconf("SC_PAGE_SIZE")))

    def stop(self) -> None:
        """SIGTERM, as an operator would."""
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(120)

    # -- its clients -----------------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        """One sender: its share of the rate, each batch until it is acknowledged."""
        draw = random.Random(number)
        bodies = []
        for _ in range(20):
            events = draw.choices(KEYS, k=self.batch)
            bodies.append((json.dumps(events).encode(), Counter(events)))
        gap = self.batch * self.clients / self.rate
        due, sent = time.monotonic(), 0
        with httpx.Client(headers={**AUTHORIZATION, "Content-Type": "application/json"}, timeout=30) as client:
            while not self.over.is_set():
                due = max(due + gap, time.monotonic() - 5 * gap)  # what was missed in a pause is not sent in one burst
                time.sleep(max(0.0, due - time.monotonic()))
                body, counts = bodies[sent % len(bodies)]
                sent += 1
                self._insist(client, body, f"{number}-{sent}")
                with self.lock:
                    self.acknowledged.update(counts)
                    self.batches += 1

    def _insist(self, client: httpx.Client, body: bytes, key: str) -> None:
        headers = {"Idempotency-Key": key}
        while True:
            began, settled = time.perf_counter(), time.monotonic() >= self.settled_at
            try:
                answer = client.post(f"{self.address}/v1/streams/load/events", content=body, headers=headers)
                if answer.status_code == 200:
                    if settled and time.monotonic() >= self.settled_at:
                        self.latencies.append(time.perf_counter() - began)
                    return
                if answer.status_code != 503:
                    self.faults.append(f"a batch got {answer.status_code}: {answer.text[:100]}")
                    return
            except httpx.TransportError:
                pass
            self.retries += 1
            time.sleep(0.1)

    def listen(self, stream: str) -> None:
        """One live connection, resumed after every kill: each tick once, in order."""
        last: int | None = None
        while not self.over.is_set():
            headers = {} if last is None else {"Last-Event-ID": str(last)}
            try:
                with httpx.stream(
                    "GET", f"{self.address}/v1/streams/{stream}/live", headers=headers, timeout=30
                ) as live:
                    for line in live.iter_lines():
                        if line.startswith("id: "):
                            tick = int(line[4:])
                            if last is not None and tick != last + 1:
                                self.faults.append(f"a listener of {stream} saw tick {tick} after {last}")
                            last = tick
                            self.live_events += 1
                        if self.over.is_set():
                            return
            except httpx.TransportError:
                time.sleep(0.2)

    def read(self) -> None:
        """One reader of pages, exports, metrics and lists."""
        paths = ["/v1/streams", "/v1/streams/load/releases?limit=50", "/metrics", "/v1/ledger", "/readyz", "/"]
        with httpx.Client(headers=AUTHORIZATION, timeout=30) as client:
            while not self.over.is_set():
                for path in paths:
                    with contextlib.suppress(httpx.TransportError):
                        client.get(self.address + path)
                        self.reads += 1
                    time.sleep(0.1)

    def run(self, listeners: int) -> dict[str, Any]:
        """Everything at once; then the books are checked."""
        self.start()
        jobs = [threading.Thread(target=self.send, args=(number,)) for number in range(self.clients)]
        jobs += [threading.Thread(target=self.listen, args=(("load", "fast")[n % 2],)) for n in range(listeners)]
        jobs.append(threading.Thread(target=self.read))
        for job in jobs:
            job.start()
        began = time.monotonic()
        try:
            self.supervise()
        finally:
            self.over.set()
            for job in jobs[: self.clients]:
                job.join(60)
            took = time.monotonic() - began
            self.stop()
            for job in jobs:
                job.join(60)
        self.check()
        return self.report(took)

    def check(self) -> None:
        """The sums in the store are those of the acknowledged batches, exactly, and every chain verifies."""
        store = Store(self.place)
        try:
            live = store.find("load")
            sums = live.stream._state.totals + live.totals
            wanted = np.asarray([self.acknowledged[key] for key in KEYS])
            if (sums != wanted).any():
                self.faults.append("the sums in the store are not those of the acknowledged batches")
            self.faults += store.verify(store.head)
            self.ticks = {name: stream.closed for name, stream in store.streams.items()}
        finally:
            store.close()

    def report(self, took: float) -> dict[str, Any]:
        """All figures."""
        quantiles = np.quantile(self.latencies, [0.5, 0.99]) * 1000 if self.latencies else [float("nan")] * 2
        sizes = [size for _, size in self.memory]
        quarter = max(1, len(sizes) // 4)
        return {
            "seconds": round(took),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "events_acknowledged": self.acknowledged.total(),
            "events_per_second": round(self.acknowledged.total() / took),
            "batches": self.batches,
            "retries": self.retries,
            "kills": self.kills,
            "p50_ms_between_kills": round(float(quantiles[0]), 1),
            "p99_ms_between_kills": round(float(quantiles[1]), 1),
            "ready_after_start_seconds_max": round(max(self.catch_ups), 2),
            "ticks_released": self.ticks,
            "live_events": self.live_events,
            "reads": self.reads,
            "memory_mb_first_quarter_max": round(max(sizes[:quarter], default=0) / 1e6),
            "memory_mb_last_quarter_max": round(max(sizes[-quarter:], default=0) / 1e6),
            "faults": sorted(set(self.faults)),
        }


def main() -> None:
    """Soak, print, and fail if the books do not balance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=50_000, help="events per second that are sent")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--listeners", type=int, default=8)
    parser.add_argument("--kill-every", type=float, default=120, help="seconds between kills, on average")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(
            Path(folder) / "soak.db",
            options.seconds,
            options.rate,
            options.batch,
            options.clients,
            options.kill_every,
        )
        figures = soak.run(options.listeners)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["faults"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
