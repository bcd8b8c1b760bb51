"""Delta and Iceberg tables beside a release: every tick once, over kills, repeats and two writers at once."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import release
from evercount.declarations.schedule import Schedule
from evercount.engine.release_table import ReleaseTable
from evercount.errors import Conflict, HorizonReached, ParameterError, StoreError
from evercount.files import published
from evercount.files.lake_table import append_new, open_lake

pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'evercount[lake]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'evercount[lake]'")

SCHEDULE = Schedule("24h", start=0)
CELLS = ["a", "b"]


def released(ticks: int, shift: float = 0.0) -> list[ReleaseTable]:
    """All releases so far, in two tables where there are several."""
    every = np.arange(1, ticks + 1)
    numbers = np.broadcast_to(every[:, None, None] + shift, (ticks, 4, 2)).copy()
    parts = [part for part in (slice(0, 2), slice(2, ticks)) if len(every[part])]
    starts = SCHEDULE.starts_of(1, ticks)
    return [ReleaseTable(every[part], starts[part], CELLS, numbers[part]) for part in parts]


def read(place: str) -> list[tuple[int, str, float]]:
    lake: Any = open_lake(place)
    table = lake._table
    rows = table.to_pyarrow_table() if place.startswith("delta") else table.scan().to_arrow()
    return sorted((row["tick"], row["cell"], row["value"]) for row in rows.to_pylist())


def wanted(ticks: int) -> list[tuple[int, str, float]]:
    return [(tick, cell, float(tick)) for tick in range(1, ticks + 1) for cell in CELLS]


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"delta:{tmp_path / 'd'}" if request.param == "delta" else f"iceberg:{tmp_path}/public.visits"


def append(place: str, ticks: int, shift: float = 0.0) -> int:
    return append_new(place, "visits", released(ticks, shift), SCHEDULE, "a promise")


def test_new_ticks_are_added_and_old_ones_are_not(place: str) -> None:
    assert [append(place, ticks) for ticks in (2, 2, 5, 5)] == [4, 0, 6, 0]
    assert read(place) == wanted(5)


def test_the_table_of_another_stream_is_refused(place: str) -> None:
    append(place, 3)
    with pytest.raises(Conflict, match="other numbers for tick 3"):
        append(place, 4, 0.5)
    with pytest.raises(Conflict, match="fewer"):
        append(place, 2)
    assert read(place) == wanted(3)


def test_of_two_writers_at_once_one_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1)
    second, rows = open_lake(place), open_lake(place).rows(1)
    append(place, 2)
    with pytest.raises(StoreError, match="cannot be written"):
        second.append("evercount visits", 2, rows, "")
    assert read(place) == wanted(2)


def dying(place: str, ticks: int, seconds: float) -> None:
    """Append, in a process that the alarm ends without any clean-up."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    append(place, ticks)


@pytest.mark.slow
def test_a_kill_at_any_time_loses_and_doubles_nothing(place: str) -> None:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["deltalake", "pyiceberg.catalog.sql", "test_lake_table"])
    ends = set()
    for number in range(1, 31):
        process = server.Process(target=dying, args=(place, 2 * number, 0.01 + 0.015 * (number % 15)))
        process.start()
        process.join()
        ends.add(process.exitcode)
        if number % 3 == 0:
            append(place, 2 * number)
            assert read(place) == wanted(2 * number)
    assert -signal.SIGALRM in ends


@pytest.mark.parametrize("text", ["", "delta:", "parquet:x", "iceberg:x", "iceberg:/tmp/x", "iceberg:/tmp/x.y.z"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"delta:FOLDER or iceberg:FOLDER/namespace\.table"):
        append_new(text, "visits", [], SCHEDULE, "")


def test_a_run_that_dies_after_its_commit_is_finished_by_the_next_one(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "events.csv"
    events.write_text("ts\n2026-05-01T10:00:00Z\n")
    options: dict[str, Any] = {
        "time": "ts",
        "every": "24h",
        "start": "2026-05-01T00:00:00Z",
        "epsilon": 1,
        "lake": place,
    }
    options |= {"horizon": 2, "state": tmp_path / "state", "now": "2026-05-03T00:00:00Z"}
    with pytest.raises(ParameterError, match="`lake` needs `state`"):
        release(events, **{**options, "state": None})

    def dies(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(published, "append_new", dies)
    with pytest.raises(KeyboardInterrupt):
        release(events, **options)
    monkeypatch.undo()
    assert open_lake(place).last("evercount release") == 0
    with pytest.raises(HorizonReached):  # and yet the table is filled
        release(events, **options)
    assert [row[0] for row in read(place)] == [1, 2]
