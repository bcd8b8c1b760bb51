"""Programs in processes that have the package loaded: a start of Python takes longer than what most
tests ask of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

COMMAND = "from evercount.__main__ import main; main()"
"""`evercount`, as `python -m evercount` starts it."""


def run_program(
    code: str,
    words: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    out: Connection,
    err: Connection,
) -> None:
    """Run a program in this process, with its own words, environment, folder and output."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, pipe in ((1, out), (2, err)):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.argv = ["evercount", *words]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})


class Running:
    """A program that runs, with what `subprocess.Popen` has."""

    def __init__(self, process: Any, stdout: TextIO, stderr: TextIO) -> None:
        self._process, self.stdout, self.stderr = process, stdout, stderr

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        """Its exit status, once it has ended; what it still said is lost."""
        self._process.join(300)
        assert self._process.exitcode is not None, "it does not end"
        self.stdout.close()
        self.stderr.close()
        return int(self._process.exitcode)


class Programs:
    """Starts programs: children of the server that has all modules loaded."""

    def __init__(self, fork_server: Any) -> None:
        self._fork_server = fork_server

    def start(
        self,
        code: str,
        *words: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Running:
        """As `subprocess.Popen([sys.executable, "-c", code, *words])`, with pipes."""
        pipes = [self._fork_server.Pipe(duplex=False) for _ in range(2)]
        environment, folder = dict(os.environ if env is None else env), str(cwd or Path.cwd())
        sent = (code, tuple(map(str, words)), environment, folder, *(write for _, write in pipes))
        process = self._fork_server.Process(target=run_program, args=sent)
        process.start()
        files = []
        for read, write in pipes:
            write.close()
            files.append(os.fdopen(os.dup(read.fileno()), encoding="utf-8"))
            read.close()
        return Running(process, *files)

    def run(
        self,
        code: str,
        *words: object,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([sys.executable, "-c", code, *words], capture_output=True,
        text=True)`."""
        running, said = self.start(code, *words, env=env, cwd=cwd), list[str]()
        reader = threading.Thread(target=lambda: said.append(running.stderr.read()))
        reader.start()
        printed = running.stdout.read()
        reader.join()
        return subprocess.CompletedProcess(words, running.wait(), printed, said[0])
