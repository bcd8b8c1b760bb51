"""Runs of the command that are killed at a chosen change on disk: real processes, really killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from evercount import Budget, Count, Stream
from evercount.cli import app
from killed_at_steps import die_before_change

CHANGES = ".changes"
"""The file with the names of the changes that a run makes on disk."""
OPTIONS = (
    "--time ts --every 1h --start 2026-01-01 --epsilon 1 --delta 1e-6 --horizon 64 --out out.csv "
    "--quiet"
)


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


class Runner:
    """Runs the command in real processes that really die, without the start-up of an interpreter
    for each.

    They are forked by one helper process that has everything loaded and has never run DuckDB,
    because DuckDB's threads do not survive a fork. The helper is this file, run as a program.
    """

    def __init__(self, planted: str = "") -> None:
        """`planted` is code that the helper runs first: a bug that tests must catch."""
        # modules of the tests, too
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        pipe = subprocess.PIPE
        self._helper = subprocess.Popen(
            [sys.executable, __file__, planted], stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def __call__(self, folder: Path, end: int, steps: int = 0, more: str = "") -> Ended:
        """One run up to `end` o'clock that is killed before the `steps`-th change on disk (0:
        never)."""
        arguments = [
            "events.csv",
            *OPTIONS.split(),
            *more.split(),
            "--end",
            f"2026-01-01T{end:02d}:00",
        ]
        streams = [folder / ".stdout", folder / ".stderr"]
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.write(
            json.dumps([str(folder), steps, arguments, list(map(str, streams))]) + "\n"
        )
        self._helper.stdin.flush()
        code = int(self._helper.stdout.readline())
        return Ended(code, *(stream.read_text() for stream in streams))

    def changes(self, folder: Path, end: int, more: str = "") -> list[str]:
        """One run that is not killed; the names of its changes on disk."""
        (folder / CHANGES).unlink(missing_ok=True)
        ended = self(folder, end, more=more)
        assert ended.returncode == 0, ended.stderr
        return (folder / CHANGES).read_text().splitlines()

    def close(self) -> None:
        self._helper.communicate()


def serve() -> None:
    """The helper: one line per run in, its exit status out."""
    import_module("evercount.files.move_stream")
    import_module("duckdb")
    exec(sys.argv[1])
    Stream(Count(), Budget(1.0, 1e-6), horizon=64).run_totals([[0]])[0]
    for line in sys.stdin:
        folder, steps, arguments, streams = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _be_the_child(Path(folder), steps, arguments, list(map(Path, streams)))
            finally:
                os._exit(99)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _be_the_child(folder: Path, steps: int, arguments: list[str], streams: list[Path]) -> None:
    os.chdir(folder)
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    die_before_change(steps, folder / CHANGES)
    code = 0
    try:
        app(["release", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def write_events(path: Path, hours: int, per_hour: int = 3) -> None:
    rows = [
        f"2026-01-01T{hour:02d}:{minute:02d}:00"
        for hour in range(hours)
        for minute in range(per_hour)
    ]
    path.write_text("\n".join(["ts", *rows]) + "\n")


if __name__ == "__main__":
    serve()
