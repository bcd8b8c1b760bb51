"""Helpers of the store's and the service's tests: a served service, and a PostgreSQL of the tests'
own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import uvicorn

from evercount.service.catch_up import Clock
from evercount.service.http_server import parse_proxies, server_config
from evercount.service.runtime import Service

ADMIN = "an admin token for the tests only"
HEADERS = {"Authorization": f"Bearer {ADMIN}"}
BINARIES = Path("/usr/lib/postgresql/15/bin")


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


def free_port() -> int:
    """A port for a program that must be told one. It stays bound here, so that the system gives it
    to nobody else, while a program that sets SO_REUSEADDR, as servers do, may listen on it, also a
    second time."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)
    port: int = held.getsockname()[1]
    return port


class Postgres:
    """A PostgreSQL cluster in a temporary folder, run by an unprivileged user."""

    def __init__(self) -> None:
        if not (BINARIES / "initdb").exists():
            pytest.skip(f"PostgreSQL 15 is not installed: no {BINARIES}/initdb")
        self.folder = Path(tempfile.mkdtemp(prefix="evercount-pg-", dir="/tmp"))
        self.prefix: list[str] = []
        if os.geteuid() == 0:
            if shutil.which("runuser") is None:
                pytest.skip("PostgreSQL does not run as root, and runuser is missing")
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self.prefix = ["runuser", "-u", "nobody", "--"]
        self.port = free_port()
        data = self.folder / "data"
        self.run("initdb", "-D", data, "-U", "evercount", "-A", "trust", "--no-sync")
        self.start()

    def run(self, program: str, *arguments: object) -> None:
        """One of PostgreSQL's programs, as the unprivileged user."""
        command = [*self.prefix, str(BINARIES / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            pytest.fail(f"{program} failed: {done.stderr[-500:]}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        # Processes are killed here, never the machine: what the kernel holds is safe, and a start
        # need not sync files.
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c "
            f"unix_socket_directories={self.folder} -c fsync=off"
        )
        log = self.folder / "log"
        self.run("pg_ctl", "-D", self.folder / "data", "-l", log, "-w", "-o", options, "start")

    def stop(self, how: str = "immediate") -> None:
        """Stop at once."""
        self.run("pg_ctl", "-D", self.folder / "data", "-m", how, "stop")

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        name = f"t{os.urandom(6).hex()}"
        place = f"postgresql://evercount@127.0.0.1:{self.port}"
        with psycopg.connect(f"{place}/postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return f"{place}/{name}"

    def close(self) -> None:
        """Stop and remove."""
        with contextlib.suppress(BaseException):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
