"""How many files of the package run for a step, a row of a file, and a POST; the walks of
CONTRIBUTING.md.

python tools/executed_files.py [--names]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import evercount
from evercount import Budget, Count, Stream
from evercount.audit.service_door import MOMENT, ServiceProgram
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.service.http_app import create_app

ROOT = str(Path(evercount.__file__).parent)


Calls = Counter[CodeType]
"""The functions of the package that are called, and how often each is."""


def files_of(calls: Calls) -> set[str]:
    """The files of the package that these functions are in."""
    return {code.co_filename[len(ROOT) + 1 :] for code in calls}


@contextmanager
def watched() -> Iterator[Calls]:
    """Count the calls of functions of the package meanwhile, in this thread and in those that
    start."""
    calls: Calls = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if (
            event == "call"
            and frame.f_code.co_filename.startswith(ROOT)
            and frame.f_code.co_name != "<module>"
        ):
            calls[frame.f_code] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def step(std: bool = False) -> Calls:
    """A warm step of a count, and its std."""
    stream = Stream(Count(), Budget(1.0, 1e-6), 1000)
    for _ in range(40):
        _ = stream.step(3).std
    with watched() as calls:
        release = stream.step(3)
        _ = release.std if std else release.value
    return calls


def row(db: bool = False) -> Calls:
    """One more row of a CSV that `evercount release` goes on with, by its state file or a store."""
    declared = evercount.declare(
        time="time", every="1h", start="2026-01-01T00:00:00Z", epsilon=1.0, horizon=100
    )
    with tempfile.TemporaryDirectory() as folder:
        events, out = Path(folder, "events.csv"), Path(folder, "out.csv")
        text, secret = "time\n2026-01-01T00:30:00Z\n", Secret.generate()
        for hour in (1, 2):
            events.write_text(text)
            text += f"2026-01-01T0{hour}:30:00Z\n"
            job = Job(
                str(events), declared, str(out), declared.schedule.start_of(hour + 1), secret=secret
            )
            if db:
                job = replace(job, db=f"{folder}/store.db")
            with watched() as calls:
                release_file(job)
    return calls


def post() -> Calls:
    """An event posted to the service, and the tick closed."""
    program = ServiceProgram(Count(), Budget(1.0, 1e-6), 100)
    posted: Calls = Counter()

    async def serve(place: Path) -> None:
        service = program._start_service(place)
        service.store.declare(program.declaration, MOMENT, Secret.generate())
        with watched() as calls:
            service.start()  # its writer's thread is watched from here on
            app = create_app(service)
            await program._tick(app, 1, (1,))
            calls.clear()
            await program._tick(app, 2, (1,))
            posted.update(calls)
        service.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(Path(folder, "store.db")))
    return Counter(
        {
            code: times
            for code, times in posted.items()
            if not code.co_filename.endswith("audit/service_door.py")
        }
    )


def main() -> None:
    """Print the numbers, and with --names the files."""
    ways: dict[str, Callable[[], Calls]] = {
        "step": step,
        "step and its std": partial(step, std=True),
        "row of a file": row,
        "row of a file, with a store": partial(row, db=True),
        "POST and close": post,
    }
    for name, way in ways.items():
        files = files_of(way())
        print(f"{name}: {len(files)} files")
        if "--names" in sys.argv:
            print("\n".join(f"  {file}" for file in sorted(files)))


if __name__ == "__main__":
    main()
