"""A PostgreSQL of the tests' own, started from the programs of Debian's package.

psycopg, its driver, is an extra: only `Postgres.fresh` imports it, so that tests on SQLite are
collected and run without it, and the others skip with the reason.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from free_ports import free_port

BINARIES = Path("/usr/lib/postgresql/15/bin")


class Postgres:
    """A PostgreSQL cluster in a temporary folder, run by an unprivileged user."""

    def __init__(self) -> None:
        missing = "psycopg is not installed: pip install 'evercount[postgres]'"
        pytest.importorskip("psycopg", reason=missing, exc_type=ImportError)
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
        import psycopg

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
