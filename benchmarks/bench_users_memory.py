"""What a service keeps of users: resident memory and the table of users, within a period and when
it is over."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

USERS, BATCH, TICKS = 50_000, 10_000, 2
"""New users of a period, users of a request, ticks of a period."""
PERIODS = 6
"""After the first, memory must not grow. Without a period, when nobody is forgotten, it grows by
half."""
ADMIN = "an admin token of the benchmark"
BUDGET = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_ticks": 1, "period": TICKS}
STREAMS = {"visits": ("count", {**BUDGET, "max_per_tick": 2}), "visitors": ("active-users", BUDGET)}
LAUNCH = """
import socket, sys
from evercount.service.http_server import run
from evercount.service.runtime import Service
from evercount.store import Store
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
run(Service(Store(sys.argv[1]), admin=sys.argv[2]), "127.0.0.1", port, lambda a: print(a, flush=True))
"""  # noqa: E501


class Serving:
    """A service in a process of its own."""

    def __init__(self, file: Path, process: subprocess.Popen[str], address: str) -> None:
        self.file, self.process, self.address = file, process, address

    def call(self, path: str, body: Any = None) -> None:
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.address}/v1/{path}", json.dumps(body).encode(), headers, method="POST"
        )
        urllib.request.urlopen(request, timeout=600).close()

    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def users(self) -> int:
        """Rows of the table of users."""
        with contextlib.closing(sqlite3.connect(self.file)) as file:
            return int(file.execute("select count(*) from users").fetchone()[0])

    def period(self, number: int, people: int) -> tuple[int, int]:
        """Send a period of events; (memory, rows of users) before its last tick is closed."""
        for tick in range(TICKS):
            for name in STREAMS:
                for start in range(0, people, BATCH):
                    size = min(BATCH, people - start)
                    self.call(
                        f"streams/{name}/events",
                        [{"user": f"{number}-{start + i}"} for i in range(size)],
                    )
            held = self.memory(), self.users()
            if tick == TICKS - 1:
                break
            self.close()
        self.close()
        return held

    def close(self) -> None:
        for name in STREAMS:
            self.call(f"streams/{name}/close-tick")


@contextlib.contextmanager
def serving() -> Iterator[Serving]:
    """A service with an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        command = [sys.executable, "-c", LAUNCH, str(file), ADMIN]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield Serving(file, process, process.stdout.readline().strip())
        finally:
            process.terminate()
            process.wait()


def run(users: int = USERS, **unit: Any) -> list[dict[str, Any]]:
    """The memory after several periods, each of new users, next to that after the first; and the
    rows of users left."""
    with serving() as service:
        for name, (query, budget) in STREAMS.items():
            table = {
                "name": name,
                "query": query,
                "budget": {**budget, **unit},
                "views": ["per-tick"],
                "horizon": 100,
            }
            service.call("streams", table)
        held, after = [], []
        for number in range(PERIODS):
            held.append(service.period(number, users))
            after.append(service.memory())
        left = service.users()
    name = f"service, {PERIODS} periods of {users:.0e} users"
    return [
        {
            "name": f"{name}: users in the store within a period",
            "value": max(rows for _, rows in held),
            "unit": "rows",
        },
        {"name": f"{name}: users in the store afterwards", "value": left, "unit": "rows"},
        {
            "name": f"{name}: memory within a period",
            "value": max(size for size, _ in held) / 1e6,
            "unit": "MB",
        },
        {
            "name": f"{name}: memory afterwards",
            "value": after[-1] / 1e6,
            "unit": "MB",
            "ratio": after[-1] / after[0],
            "target": 1.1,
            "note": f"after the first: {after[0] / 1e6:.0f} MB",
        },
    ]


if __name__ == "__main__":
    for row in run(*map(int, sys.argv[1:])):
        print(row)
