"""Formats of 1.0: what it wrote is read by every later version, and goes on with the same numbers.

docs/public-api.md promises that. The files in tests/fixtures/1.0 were written once; a change that
cannot read them, or goes on with other numbers, breaks the promise. EVERCOUNT_WRITE_FIXTURES=1
writes them: for a new format only, into a folder of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from evercount import Budget, Count, DiscoveredKeys, Histogram, Ledger, Secret, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.queries.base import Query
from evercount.store import Batch, Store
from store_reading import all_releases

FOLDER = Path(__file__).parents[1] / "fixtures" / "1.0"
SECRET = Secret.from_hex("10" * 32)
KEY = bytes(range(32))
STREAMS: dict[str, tuple[Query, dict[str, Any], dict[str, Any], list[Any]]] = {
    "balanced": (Histogram(["a", "b"]), {"delta": 1e-6}, {"horizon": 100}, [["a"], ["a", "b"], []]),
    "anytime": (Count(), {"delta": 1e-6}, {}, [3, 0, 5]),
    "bridge": (Count(), {"delta": 0.0}, {"horizon": 100}, [3, 0, 5]),
    "fresh": (Count(), {"delta": 1e-6}, {"views": ["per-tick"]}, [3, 0, 5]),
    "blend": (
        Count(),
        {"delta": 1e-6, "unit": "user", "max_per_tick": 1, "max_ticks": 3},
        {"horizon": 50, "views": ["per-tick", "running"]},
        [["u", "v"], ["u"], ["w", "u"]],
    ),
    "keys": (
        DiscoveredKeys(),
        {"delta": 1e-6},
        {"horizon": 50},
        [["oslo"] * 500, ["oslo"], ["bergen"] * 400],
    ),
}


def stream_of(name: str, factorization: Any = None) -> Stream:
    query, budget, rest, _ = STREAMS[name]
    factorization = "blend" if name == "blend" and factorization is None else factorization
    return Stream(query, Budget(1.0, **budget), secret=SECRET, factorization=factorization, **rest)


def step(stream: Stream, events: Any) -> list[float]:
    users = {"users": events} if stream.budget.unit == "user" else {}
    values: list[float] = stream.step(None if users else events, **users).values.tolist()
    return values


DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "visits",
        "query": {"name": "histogram", "parameters": {"keys": ["N", "S"]}},
        "budget": {
            "epsilon": 1.0,
            "delta": 1e-6,
            "unit": "user",
            "max_per_tick": 1,
            "max_ticks": 2,
            "period": "1w",
        },
        "tick": "1d",
        "zone": "Europe/Vienna",
        "start": "2026-03-26",
        "horizon": 60,
        "views": ["per-tick", "last-7"],
        "columns": {"time": "ts", "key": "where", "user": "who"},
    }
)
ROWS = [
    (day, who, where)
    for day in range(26, 32)
    for who, where in (("u", "N"), ("v", "S"), ("u", "S"))
]


def events_file(folder: Path, until: int) -> Path:
    lines = [f"2026-03-{day}T10:00:00,{who},{where}" for day, who, where in ROWS if day < until]
    path = folder / "visits.csv"
    path.write_text("\n".join(["ts,who,where", *lines]) + "\n", "utf-8")
    return path


def run_files(folder: Path, until: int) -> str:
    tick = until - 25
    now = DECLARATION.schedule.start_of(tick)
    out = folder / "out.csv"
    release_file(Job(str(events_file(folder, until)), DECLARATION, str(out), now, secret=SECRET))
    return out.read_text("utf-8") + (folder / "out.last-7.csv").read_text("utf-8")


def run_store(place: Path, ticks: int) -> list[list[float]]:
    store = Store(place, KEY)
    if DECLARATION.name not in store.streams:
        store.declare(DECLARATION, DECLARATION.schedule.begin / 1e6, SECRET)
    for _ in range(ticks):
        live = store.find(DECLARATION.name)
        day = 25 + live.open_tick
        mine = [(who, where) for at, who, where in ROWS if at == day]
        users, keys = [who for who, _ in mine], [where for _, where in mine]
        store.accept(
            [Batch(DECLARATION.name, keys, users=users)],
            DECLARATION.schedule.start_of(live.open_tick) / 1e6,
        )
        store.close_ticks(live, 1, 0.0)
    found = [release["values"] for release in all_releases(store, DECLARATION.name)]
    assert store.verify(store.head) == []
    store.close()
    return found


def write_fixtures() -> None:
    FOLDER.mkdir(parents=True)
    expected: dict[str, Any] = {"streams": {}}
    for name, (_, _, _, ticks) in STREAMS.items():
        stream = stream_of(name)
        for events in ticks[:2]:
            step(stream, events)
        blob = stream.snapshot()
        (FOLDER / f"{name}.snapshot").write_bytes(blob)
        stream.close()
        again = Stream.restore(blob)
        expected["streams"][name] = step(again, ticks[2])
        again.close()
    files = FOLDER / "files"
    files.mkdir()
    run_files(files, 29)
    (FOLDER / "store").mkdir()
    run_store(FOLDER / "store" / "store.db", 3)
    with Ledger(Budget(2.0, 1e-5), str(FOLDER / "ledger")) as ledger:
        ledger.spend("first", Budget(1.0, 1e-6))
        expected["ledger"] = ledger.sentence()
    head = FOLDER / "ledger.head"  # it names the place of the ledger, which is nobody's business
    head.write_text(head.read_text("utf-8").replace(str(FOLDER), "/somewhere"), "utf-8")
    work = FOLDER.parent / "work"
    shutil.copytree(FOLDER, work)
    expected["files"] = run_files(work / "files", 32)
    expected["store"] = run_store(work / "store" / "store.db", 3)
    shutil.rmtree(work)
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


if os.environ.get("EVERCOUNT_WRITE_FIXTURES"):
    write_fixtures()
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text("utf-8"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):  # a clone does not keep who may read a file
        path.chmod(0o700 if path.is_dir() else 0o600)
    return tmp_path / "copy"


@pytest.mark.parametrize("name", STREAMS)
def test_snapshots_go_on(name: str) -> None:
    stream = Stream.restore((FOLDER / f"{name}.snapshot").read_bytes())
    assert stream.tick == 2
    assert step(stream, STREAMS[name][3][2]) == EXPECTED["streams"][name]
    stream.close()


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_secret_has_the_same_noise(name: str) -> None:
    """Bits of noise are promised, too: a stream from its first tick publishes what it published
    then. The numbers of a `blend` are part of its declaration: on another kind of processor a new
    fit ends at other last digits."""
    kept = Stream.restore((FOLDER / f"{name}.snapshot").read_bytes())
    kept.close()
    stream = stream_of(name)
    if isinstance(kept.factorization.spec, dict):
        assert stream.std(50) == pytest.approx(kept.std(50), rel=1e-3)
        stream.close()
        stream = stream_of(name, kept.factorization.spec)
    found = [step(stream, events) for events in STREAMS[name][3]]
    assert found[2] == EXPECTED["streams"][name]
    stream.close()


@pytest.mark.parametrize("name", ["files", "store"])
def test_files_and_stores_go_on(name: str, copy: Path) -> None:
    found = (
        run_files(copy / "files", 32)
        if name == "files"
        else run_store(copy / "store" / "store.db", 3)
    )
    assert found == EXPECTED[name]


def test_files_and_store_publish_the_same() -> None:
    """The fixtures themselves: one declaration, one secret, one table."""
    main = EXPECTED["files"].split("tick,")[1].splitlines()[1:]
    values = [float(line.split(",")[3]) for line in main]
    assert values == [value for tick in EXPECTED["store"] for value in tick]


def test_ledgers_are_read(copy: Path) -> None:
    with Ledger(path=str(copy / "ledger"), adopt=True) as ledger:
        assert ledger.sentence() == EXPECTED["ledger"]
        assert [entry.name for entry in ledger.entries] == ["first"]
