"""The service over a real socket, as `evercount serve` does it, and a clock that is set by hand."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import httpx
import uvicorn

from evercount.service.catch_up import Clock
from evercount.service.http_server import parse_proxies, server_config
from evercount.service.runtime import Service

ADMIN = "an admin token for the tests only"
HEADERS = {"Authorization": f"Bearer {ADMIN}"}


class HandClock(Clock):
    """A clock that is set by hand."""

    def __init__(self, moment: float) -> None:
        super().__init__()
        self.moment = moment

    def now(self) -> float:
        return self.moment

    def seconds_until(self, moment: float) -> float:
        return 3600.0 if moment > self.moment else 0.0


class QuickServer(uvicorn.Server):
    """uvicorn looks ten times in a second whether it shall end: tests would wait for that."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def served(service: Service, *proxies: str) -> Iterator[httpx.Client]:
    """A client of the service, which is served over a real socket as `evercount serve` does it."""
    server = QuickServer(server_config(service, "127.0.0.1", 0, parse_proxies(proxies)))
    began = threading.Event()
    original = server.startup

    async def startup(sockets: object = None) -> None:
        await original(sockets)  # type: ignore[arg-type]
        began.set()

    server.startup = startup  # type: ignore[method-assign]
    service.start()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert began.wait(300)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            yield client
    finally:
        service.end_waiting()
        server.should_exit = True
        thread.join(300)
        service.stop()
