"""Delta and Iceberg tables next to a release: every tick once, over kills, repeats and two writers
at once."""

from __future__ import annotations

import random
import signal
import sys
import time
from dataclasses import replace
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
from evercount.store import Reading
from tiers import soak_but

pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'evercount[lake]'")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: pip install 'evercount[lake]'")

SCHEDULE = Schedule("24h", start=0)
CELLS = ["a", "b"]
WRITER = "evercount visits from 1970-01-01T00:00:00+00:00"


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
    return (
        f"delta:{tmp_path / 'd'}"
        if request.param == "delta"
        else f"iceberg:{tmp_path}/public.visits"
    )


def append(place: str, ticks: int, shift: float = 0.0) -> int:
    return append_new(place, "visits", released(ticks, shift), SCHEDULE, "a promise")


def dies(*_: Any) -> int:
    raise KeyboardInterrupt


def test_new_ticks_are_added_and_old_ones_are_not(place: str) -> None:
    assert [append(place, ticks) for ticks in (2, 2, 5, 5)] == [4, 0, 6, 0]
    assert read(place) == wanted(5)


def test_the_table_of_another_stream_is_refused(place: str) -> None:
    append(place, 3)
    with pytest.raises(Conflict, match="other numbers for tick 3"):
        append(place, 4, 0.5)
    with pytest.raises(Conflict, match="more than the stream"):
        append(place, 2)
    assert read(place) == wanted(3)


def test_of_two_writers_at_once_one_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(place, 1)
    second, rows = open_lake(place), open_lake(place).rows(1)
    append(place, 2)
    with pytest.raises(StoreError, match="cannot be written"):
        second.append(WRITER, 2, rows, "")
    assert read(place) == wanted(2)


def living(place: str, ticks: int, seconds: float, spent: Path) -> None:
    """Append, in a process that dies without any clean-up when it has used so much processor time;
    0: it lives."""
    assert {"deltalake", "pyiceberg.catalog.sql"} <= set(sys.modules), (
        "it would die while it loads them"
    )
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    began = time.process_time()
    append(place, ticks)
    spent.write_text(str(time.process_time() - began))


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "deaths"), soak_but([(6, 2)], [(6, 2), (14, 5)]))
def test_a_kill_at_any_time_loses_and_doubles_nothing(
    place: str, runs: int, deaths: int, lives: Any, tmp_path: Path
) -> None:
    """Killed at any time of the processor time that an append takes: the table has all new ticks or
    none of them."""
    draw, spent = random.Random(3), tmp_path / "spent"

    def life(ticks: int, seconds: float) -> int:
        process = lives.Process(target=living, args=(place, ticks, seconds, spent))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGPROF)
        return int(process.exitcode)

    assert [life(1, 0), life(2, 0)] == [0, 0]
    whole = float(spent.read_text())
    ticks = 2
    ends = []
    for _ in range(runs):
        ends.append(life(ticks + 2, 1.1 * whole * draw.random()))
        last = open_lake(place).last(WRITER)
        assert last == ticks + 2 or (last == ticks and ends[-1])
        assert read(place) == wanted(last)
        ticks = last
    assert sum(end != 0 for end in ends) >= deaths
    assert append(place, ticks + 2) == 4
    assert read(place) == wanted(ticks + 2)


@pytest.mark.parametrize(
    "text", ["", "delta:", "parquet:x", "iceberg:x", "iceberg:/tmp/x", "iceberg:/tmp/x.y.z"]
)
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

    monkeypatch.setattr(published, "append_new", dies)
    with pytest.raises(KeyboardInterrupt):
        release(events, **options)
    monkeypatch.undo()
    assert open_lake(place).last("evercount release from 2026-05-01T00:00:00+00:00") == 0
    with pytest.raises(HorizonReached):  # and yet the table is filled
        release(events, **options)
    assert [row[0] for row in read(place)] == [1, 2]


@pytest.mark.parametrize("home", ["state", "db"])
def test_the_next_year_goes_on_in_the_same_table(
    place: str, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ticks count from 1 again; what a killed run left out of the table is added also where the
    next one renews."""
    events = tmp_path / "events.csv"
    events.write_text("ts\n2026-05-01T10:00:00Z\n")
    options: dict[str, Any] = {
        "time": "ts",
        "every": "24h",
        "epsilon": 1,
        "lake": place,
        "horizon": 2,
        "renew": True,
    }
    options |= {
        "start": "2026-05-01T00:00:00Z",
        "now": "2026-06-01T00:00:00Z",
        home: tmp_path / "home",
    }
    with monkeypatch.context() as patch:
        patch.setattr(published, "append_new", dies)
        with pytest.raises(KeyboardInterrupt):
            release(events, **options)
    for end in (4, 4, 6, 7, 7):
        release(events, end=f"2026-05-0{end}T00:00:00Z", **options)
    assert [row[0] for row in read(place)] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("home", ["state", "db"])
def test_notes_and_removed_keys_do_not_part_a_stream_from_its_table(
    place: str, home: str, tmp_path: Path
) -> None:
    events = tmp_path / "events.csv"
    events.write_text("ts,key\n2026-05-01T10:00:00Z,a\n")
    options: dict[str, Any] = {
        "time": "ts",
        "key": "key",
        "keys": CELLS,
        "every": "24h",
        "epsilon": 1,
        "lake": place,
    }
    options |= {
        "start": "2026-05-01T00:00:00Z",
        "now": "2026-06-01T00:00:00Z",
        home: tmp_path / "home",
    }
    release(events, end="2026-05-02T00:00:00Z", **options)
    release(events, end="2026-05-03T00:00:00Z", notes="1,2,a storm", remove_keys=["b"], **options)
    table = release(events, end="2026-05-04T00:00:00Z", **options)
    assert table.columns()["note"].tolist() == ["a storm"] * 3 + [""]
    assert [row[:2] for row in read(place)] == [(1, "a"), (1, "b"), (2, "a"), (3, "a")]


def test_a_note_in_a_store_does_not_part_an_export_from_its_table(
    place: str, tmp_path: Path
) -> None:
    append(place, 2)
    tables = [replace(table, notes=["a storm"] * len(table.ticks)) for table in released(3)]
    assert append_new(place, "visits", tables, SCHEDULE, "a promise") == 2
    assert read(place) == wanted(3)


def test_days_of_another_stream_are_refused_before_anything_is_spent(
    place: str, tmp_path: Path
) -> None:
    """A second state, a second store, another name: the table and the budget stay as they are.
    Later days are free."""
    events = tmp_path / "events.csv"
    events.write_text("ts\n2026-05-01T10:00:00Z\n")
    options: dict[str, Any] = {
        "time": "ts",
        "every": "24h",
        "epsilon": 1,
        "lake": place,
        "horizon": 2,
    }
    options |= {"start": "2026-05-01T00:00:00Z", "now": "2026-05-02T00:00:00Z"}
    homes: list[dict[str, Any]] = [
        {"state": tmp_path / "state"},
        {"state": tmp_path / "second.state"},
        {"db": tmp_path / "s.db"},
        {"db": tmp_path / "s.db", "name": "other"},
        {"state": tmp_path / "third.state", "name": "other"},
    ]
    release(events, **options, **homes[0])
    published = read(place)
    for home in homes[1:]:
        with pytest.raises(Conflict, match="name another table"):
            release(events, **options, **home)
        assert read(place) == published
        assert not Path(home.get("state", "none")).exists()
    reading = Reading.open(tmp_path / "s.db")
    assert reading.names() == []
    reading.close()
    later = options | {
        "start": "2026-05-04T00:00:00Z",
        "now": "2026-05-05T00:00:00Z",
        "skip_bad": True,
    }
    release(events, **later, **homes[4])
    assert len(read(place)) == len(published) + 1
    release(events, **options | {"now": "2026-05-03T00:00:00Z"}, **homes[0])
    assert len(read(place)) == len(published) + 2
