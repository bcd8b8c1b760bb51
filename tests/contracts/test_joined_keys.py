"""Keys that join: files and `release --db` publish in several runs what the library publishes."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.view_names import stack_rows
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from soak_cases import soak_except

SECRET = Secret.from_hex("4f" * 32)
JOINS = 7
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], dict[str, Any]]] = {
    # parameters, columns, keys that join, budget
    "histogram": (
        {"keys": ["a", "b"], "unknown": "other", "weights": {"a": 2}},
        {"key": "region"},
        ["c"],
        {},
    ),
    "rollup": (
        {"paths": [["a", "x"], ["b", "y"]], "unknown": "other"},
        {"levels": ["region", "place"]},
        [("c", "x")],
        {},
    ),
    "distinct-users": (
        {"keys": ["a", "b"]},
        {"user": "who", "key": "region"},
        ["c"],
        {"unit": "user"},
    ),
    "active-users": (
        {"keys": ["a", "b"]},
        {"user": "who", "key": "region"},
        ["c"],
        {"unit": "user", "max_ticks": 5},
    ),
}


# how keys of each query join a store: tests/store/test_store_join_keys.py
@pytest.mark.parametrize(
    ("name", "db"),
    soak_except(
        [("rollup", False), ("active-users", False), ("histogram", True)],
        product(CASES, [False, True]),
    ),
)
def test_files_publish_what_the_library_publishes(name: str, db: bool, tmp_path: Path) -> None:
    parameters, columns, keys, unit = CASES[name]
    declaration = StreamDeclaration.from_dict(
        {
            "name": "s",
            "query": {"name": name, "parameters": parameters},
            "budget": {"epsilon": 1.0, "delta": 1e-6, **unit},
            "tick": "1h",
            "start": "2026-05-01T00:00:00Z",
            "zone": "UTC",
            "horizon": 40,
            "columns": {"time": "ts", **columns},
            "views": ["running", "per-tick"],
        }
    )
    random, rows = np.random.default_rng(3), []
    for hour in range(12):
        known = "abc" if hour >= JOINS or name in ("histogram", "rollup") else "ab"
        for _ in range(30):
            region = known[random.integers(len(known))]
            place = "xy"[random.integers(2)]
            rows.append((hour, region, place, f"u{random.integers(60)}"))
    path, out = tmp_path / "events.csv", tmp_path / "out.csv"
    lines = [
        f"2026-05-01T{hour:02d}:10:00Z,{region},{place},{who}" for hour, region, place, who in rows
    ]
    schedule = declaration.schedule
    for stop, more in ((JOINS, []), (JOINS + 2, keys), (12, []), (12, keys)):
        path.write_text("\n".join(["ts,region,place,who", *lines[: 30 * stop]]) + "\n", "utf-8")
        now = schedule.start_of(stop + 1)
        job = Job(str(path), declaration, str(out), now, secret=SECRET, add_keys=tuple(more))
        release_file(replace(job, db=str(tmp_path / "s.db")) if db else job)

    stream = declaration.build(secret=SECRET, replay=True)
    published = []
    for hour in range(12):
        if hour == JOINS:
            stream.add_keys(keys)
        here = [(region, place, who) for at, region, place, who in rows if at == hour]
        events: list[Any] = [region for region, _, _ in here]
        if name == "rollup":
            events = [(region, place) for region, place, _ in here]
        elif name != "histogram":
            events = [(who, region) for region, _, who in here]
        published.append(stream.run([events]).rows)
    releases = stream.read_back(stack_rows(*published))
    for view, file in ((releases, out), (releases.per_tick(), out.with_name("out.per-tick.csv"))):
        with file.open(newline="", encoding="utf-8") as opened:
            found = [tuple(map(float, row[3:])) for row in list(csv.reader(opened))[1:]]
        wanted = view.table().columns()
        assert found == list(
            zip(*(wanted[part].tolist() for part in ("value", "std", "low", "high")), strict=True)
        )
