"""Soak of the service: load, kills, readers, live connections and catch-ups at once, and exact sums
at the end.

    python benchmarks/soak_service.py [--seconds 3600] [--rate 50000] [--batch 500] [--json FILE]

One server process at a time, killed by SIGKILL and started again after a pause in which ticks are
missed. Clients send every batch until it is acknowledged, under one idempotency key. It fails
unless the sums in the store are those of the acknowledged batches, every live connection saw every
tick once and in order, and the release chain verifies.

The load is one process with one event loop, plain sockets and bodies that are written beforehand,
because it shares the processors with the server. Every batch has a moment at which it is due;
batches that fell due while the server was down are sent afterwards, so that the number of events is
the one that was asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from datetime import UTC, datetime
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
MISSED = 5_000
"""Ticks that each of the streams of `Soak.catch_up` has missed when it is declared."""
CATCH_UP_SECONDS = 60.0
FAST = {**DECLARATION, "name": "fast", "query": {"name": "count"}, "tick": "100ms"}
SERVER = """
import json, sys
from evercount.service.access import Limits
from evercount.service.http_server import run
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
service = Service(Store(sys.argv[1]), admin=sys.argv[2], limits=Limits(rate=1e6, burst=1e6))
service.declare([StreamDeclaration.from_dict(table) for table in json.loads(sys.argv[3])])
run(service, "127.0.0.1", int(sys.argv[4]), lambda address: print(address, flush=True))
"""
LIVES = (30.0, 60.0, 120.0, 240.0, 480.0)
"""Seconds from a start to the next kill, in a random order, again and again: short lives and long
ones."""
SETTLED_SECONDS = 5.0
"""After a start, before durations count as "between kills": the server catches up and warms up."""
PAUSE_SECONDS = 3.0
"""Between a kill and the next start: 3 ticks of one stream and 150 of the other are missed."""
BACKLOG_SPEED = 1.25
"""How much faster than the wanted rate batches are sent that fell due during a pause."""
BODIES = 64
PATHS = (
    "/v1/streams",
    "/v1/streams/load/releases?limit=50",
    "/metrics",
    "/v1/ledger",
    "/readyz",
    "/",
)
LOST = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, EOFError)


class Connection:
    """One HTTP/1.1 connection that is kept open: as little work per request as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to the server on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def post(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; the head is given as it goes over the wire."""
        self._writer.write(head + body)
        status, headers = await self._answer()
        return status, await self._reader.readexactly(int(headers[b"content-length"]))

    async def events(self, path: str, after: int | None) -> AsyncIterator[bytes]:
        """The lines of server-sent events."""
        resumed = "" if after is None else f"Last-Event-ID: {after}\r\n"
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: soak\r\n{resumed}\r\n".encode())
        status, _ = await self._answer()
        if status != 200:
            raise EOFError
        # chunks hold events as a whole
        while length := int(await self._reader.readline() or b"0", 16):
            chunk = await self._reader.readexactly(length + 2)
            for line in chunk.split(b"\n"):
                yield line

    async def _answer(self) -> tuple[int, dict[bytes, bytes]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = (line.partition(b":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {
            name.strip().lower(): value.strip() for name, _, value in headers
        }


class Schedule:
    """When each batch is due; what was missed is sent a little faster than the rate, never in one
    burst."""

    def __init__(self, gap: float, ends: float) -> None:
        self.gap, self.ends = gap, ends
        self.sent = 0
        self._began = self._free = time.monotonic()

    async def next(self) -> int | None:
        """Wait until a batch is due, and take it; None when the time is over."""
        due = max(self._began + self.sent * self.gap, self._free)
        if due >= self.ends:
            return None
        number, self.sent = self.sent, self.sent + 1
        self._free = max(due, time.monotonic()) + self.gap / BACKLOG_SPEED
        await asyncio.sleep(due - time.monotonic())
        return number


class Soak:
    """The server under load, and what was seen of it."""

    def __init__(self, place: Path, options: argparse.Namespace) -> None:
        self.place, self.options = place, options
        self.acknowledged = [0] * BODIES
        self.batches = self.retries = self.kills = self.reads = self.live_events = 0
        self.latencies = array("d")
        self.memory: list[tuple[float, int]] = []
        """(seconds since the start of this server, bytes)."""
        self.starts: list[tuple[float, int]] = []
        """(seconds until ready, missed ticks) of each start."""
        self.catch_ups: list[float] = []
        """Seconds that each of the streams of `catch_up` took."""
        self.faults: Counter[str] = Counter()
        self.settled_at = float("inf")
        self.port = 0
        self.server: subprocess.Popen[str] | None = None
        draw = random.Random(1)
        drawn = [draw.choices(KEYS, k=options.batch) for _ in range(BODIES)]
        self.bodies = [json.dumps(events).encode() for events in drawn]
        self.counts = [Counter(events) for events in drawn]

    # -- the server --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start a server and wait until it has caught up; later ones take the same port."""
        arguments = [str(self.place), ADMIN, json.dumps([DECLARATION, FAST]), str(self.port)]
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        address = (await asyncio.to_thread(self.server.stdout.readline)).strip()
        self.port = int(address.rsplit(":", 1)[1])
        began, missed = time.monotonic(), 0
        async with httpx.AsyncClient(headers=AUTHORIZATION, timeout=30) as client:
            while (answer := await client.get(f"{address}/readyz")).status_code != 200:
                missed = max(missed, sum(answer.json().get("ticks_left", {}).values()))
                await asyncio.sleep(0.02)
        self.starts.append((time.monotonic() - began, missed))
        self.settled_at = time.monotonic() + SETTLED_SECONDS

    async def supervise(self, ends: float) -> None:
        """Kill and start again until the time is over."""
        while True:
            for life in random.sample(LIVES, len(LIVES)):
                born = time.monotonic()
                dies = born + life * self.options.lives
                while (now := time.monotonic()) < min(dies, ends):
                    await asyncio.sleep(min(1.0, min(dies, ends) - now))
                    self._sample_memory(time.monotonic() - born)
                if dies >= ends - 10:
                    await asyncio.sleep(max(0.0, ends - time.monotonic()))
                    return
                assert self.server is not None
                self.settled_at = float("inf")
                self.server.kill()
                self.server.wait()
                self.kills += 1
                await asyncio.sleep(PAUSE_SECONDS)
                await self.start()

    def _sample_memory(self, age: float) -> None:
        assert self.server is not None
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = Path(f"/proc/{self.server.pid}/statm").read_text(encoding="ascii").split()[1]
            self.memory.append((age, int(pages) * os.sysconf("SC_PAGE_SIZE")))

    def stop(self) -> None:
        """SIGTERM, as an operator would."""
        assert self.server is not None
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(120)

    # -- its clients -------------------------------------------------------------------------------

    async def send(self, schedule: Schedule) -> None:
        """One sender: takes the next batch that is due, and sends it until it is acknowledged."""
        connection: Connection | None = None
        while (number := await schedule.next()) is not None:
            body = self.bodies[number % BODIES]
            head = (
                "POST /v1/streams/load/events HTTP/1.1\r\n"
                "Host: soak\r\n"
                f"Authorization: Bearer {ADMIN}\r\n"
                "Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n"
                f"Idempotency-Key: {number}\r\n"
                "\r\n"
            ).encode()
            while True:
                began, settled_at = time.monotonic(), self.settled_at
                try:
                    connection = connection or await Connection.open(self.port)
                    status, answer = await connection.post(head, body)
                except LOST:
                    if connection is not None:
                        connection.close()
                    connection = None
                else:
                    if status == 200:
                        if began >= settled_at == self.settled_at:
                            self.latencies.append(time.monotonic() - began)
                        self.acknowledged[number % BODIES] += 1
                        self.batches += 1
                        break
                    if status != 503:
                        self.faults[f"a batch got {status}: {answer[:100]!r}"] += 1
                        break
                self.retries += 1
                await asyncio.sleep(0.1)
        if connection is not None:
            connection.close()

    async def listen(self, stream: str) -> None:
        """One live connection, resumed after every kill: each tick once, in order."""
        last: int | None = None
        while True:
            connection: Connection | None = None
            try:
                connection = await Connection.open(self.port)
                async for line in connection.events(f"/v1/streams/{stream}/live", last):
                    if line.startswith(b"id: "):
                        tick = int(line[4:])
                        if last is not None and tick != last + 1:
                            self.faults[
                                f"a listener of {stream} missed a tick or saw it twice"
                            ] += 1
                        last = tick
                        self.live_events += 1
            except LOST:
                await asyncio.sleep(0.2)
            finally:
                if connection is not None:
                    connection.close()

    async def read(self) -> None:
        """One reader of pages, exports, metrics and lists."""
        async with httpx.AsyncClient(headers=AUTHORIZATION, timeout=30) as client:
            while True:
                for path in PATHS:
                    with contextlib.suppress(httpx.TransportError):
                        answer = await client.get(f"http://127.0.0.1:{self.port}{path}")
                        if answer.status_code != 200 and path != "/readyz":
                            self.faults[f"{path} got {answer.status_code}"] += 1
                        self.reads += 1
                    await asyncio.sleep(0.1)

    async def catch_up(self) -> None:
        """Now and then a stream that has missed thousands of ticks is declared, closes them all,
        and is retired."""
        async with httpx.AsyncClient(headers=AUTHORIZATION, timeout=30) as client:
            while True:
                streams = f"http://127.0.0.1:{self.port}/v1/streams"
                name = f"missed-{len(self.catch_ups) + 1}"
                begins = datetime.fromtimestamp(int(time.time()) - MISSED, UTC).isoformat()
                budget = {"epsilon": 0.01, "delta": 1e-12}
                table = {**FAST, "name": name, "tick": "1s", "start": begins, "budget": budget}
                began = time.monotonic()
                with contextlib.suppress(httpx.TransportError):
                    if (answer := await client.post(streams, json=table)).status_code not in (
                        200,
                        201,
                        409,
                    ):
                        self.faults[f"a declaration got {answer.status_code}"] += 1
                    while (answer := await client.get(f"{streams}/{name}")).status_code != 404:
                        if answer.json().get("released", 0) >= MISSED:
                            break
                        await asyncio.sleep(0.05)
                    else:
                        continue  # the server died before the declaration was on the disk
                    took = time.monotonic() - began
                    await client.delete(f"{streams}/{name}")
                    self.catch_ups.append(took)
                    await asyncio.sleep(CATCH_UP_SECONDS)
                await asyncio.sleep(1)

    async def run(self) -> None:
        """Everything at once; then the books are checked."""
        options = self.options
        await self.start()
        began = time.monotonic()
        ends = began + options.seconds
        schedule = Schedule(options.batch / options.rate, ends)
        senders = [asyncio.create_task(self.send(schedule)) for _ in range(options.clients)]
        watchers: list[Coroutine[Any, Any, None]] = [
            self.listen(("load", "fast")[number % 2]) for number in range(options.listeners)
        ]
        others = [asyncio.create_task(job) for job in (*watchers, self.read(), self.catch_up())]
        try:
            await self.supervise(ends)
            await asyncio.wait_for(asyncio.gather(*senders), 120)
            self.seconds = time.monotonic() - began
        finally:
            await asyncio.to_thread(self.stop)
            for job in others:
                job.cancel()
            for ending in await asyncio.gather(*others, return_exceptions=True):
                if isinstance(ending, Exception):
                    self.faults[f"a reader failed: {ending!r:.100}"] += 1

    def check(self) -> None:
        """The sums in the store are those of the acknowledged batches, exactly, and every chain
        verifies."""
        wanted = np.zeros(len(KEYS), np.int64)
        for number, counts in zip(self.acknowledged, self.counts, strict=True):
            wanted += number * np.asarray([counts[key] for key in KEYS])
        store = Store(self.place)
        try:
            live = store.find("load")
            self.exact = bool((live.stream._state.totals + live.totals == wanted).all())
            if not self.exact:
                self.faults["the sums in the store are not those of the acknowledged batches"] += 1
            for fault in store.verify(store.head):
                self.faults[fault] += 1
            self.ticks = {name: stream.closed for name, stream in store.streams.items()}
        finally:
            store.close()

    def report(self) -> dict[str, Any]:
        """All figures."""
        p50, p99, worst = (
            np.quantile(self.latencies, [0.5, 0.99, 1]) * 1000 if self.latencies else [np.nan] * 3
        )
        events = self.batches * self.options.batch
        # what a server needs once it is warm
        old = [(age, size) for age, size in self.memory if age >= 20]
        quarter = max(1, len(old) // 4)
        sizes = [size / 1e6 for _, size in old] or [np.nan]
        longest = max(range(len(old)), key=lambda number: old[number][0], default=0)
        return {
            "seconds": round(self.seconds),
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
            "events_per_second": round(events / self.seconds),
            "events_acknowledged": events,
            "batches_acknowledged": self.batches,
            "sums_equal_acknowledged": self.exact,
            "kills": self.kills,
            "retries": self.retries,
            "p50_ms_between_kills": round(float(p50), 1),
            "p99_ms_between_kills": round(float(p99), 1),
            "max_ms_between_kills": round(float(worst), 1),
            "memory_mb_start": round(sizes[0], 1),
            "memory_mb_end": round(sizes[-1], 1),
            "memory_mb_first_quarter_max": round(max(sizes[:quarter]), 1),
            "memory_mb_last_quarter_max": round(max(sizes[-quarter:]), 1),
            "longest_life_seconds": round(old[longest][0]) if old else 0,
            "memory_mb_end_of_longest_life": round(sizes[longest], 1),
            "live_connections": self.options.listeners,
            "live_events_in_order": self.live_events,
            "reads": self.reads,
            "starts": len(self.starts),
            "ready_after_start_seconds_max": round(max(seconds for seconds, _ in self.starts), 2),
            "ticks_missed_by_kills": sum(missed for _, missed in self.starts),
            f"catch_ups_of_{MISSED}_ticks": len(self.catch_ups),
            "catch_up_seconds_max": round(max(self.catch_ups, default=0.0), 2),
            "ticks_released": self.ticks,
            "store_mb": round(
                sum(file.stat().st_size for file in self.place.parent.iterdir()) / 1e6, 1
            ),
            "faults": [
                f"{fault} ({number} times)" for fault, number in sorted(self.faults.items())
            ],
        }


def main() -> None:
    """Soak, print, and fail if the books do not balance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument(
        "--rate", type=float, default=50_000, help="events per second that are sent"
    )
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--clients", type=int, default=16, help="connections that send")
    parser.add_argument("--listeners", type=int, default=8, help="live connections")
    parser.add_argument(
        "--lives", type=float, default=1.0, help="factor for the seconds between kills (30 to 480)"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "soak.db", options)
        asyncio.run(soak.run())
        soak.check()
        figures = soak.report()
    for name, value in figures.items():
        print(f"{name:32} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["faults"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
