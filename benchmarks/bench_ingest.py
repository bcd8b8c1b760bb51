"""Counting of a file of 10^7 events beside DuckDB's own plain query over the same file, and peak memory.

Each measurement is a process of its own; the two kinds take turns, and the best of each is compared, because other work
on the machine can only make a run slower.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration

KEYS, TICKS = 1000, 100
START_US = 1_767_225_600_000_000
TARGET_RATIO, TARGET_USERS, TARGET_MB = 1.5, 2.2, 600.0
CAPS: dict[str, dict[str, Any]] = {
    "20 events": {"max_events": 20},
    "3 events of a tick": {"max_per_tick": 3, "period": 1},
    "10 events of a day": {"max_events": 10, "period": "1d"},
    "8 hours of a day, 2 events each": {"max_per_tick": 2, "max_ticks": 8, "period": "1d"},
    "8 hours of a day, 3 events each, 10 in all": {"max_events": 10, "max_per_tick": 3, "max_ticks": 8, "period": "1d"},
}
"""What is counted of a user, who has 100 events in 100 hours."""


def write_events(folder: Path, rows: int) -> None:
    """events.csv, .csv.gz, .jsonl, .parquet and regions.txt; the numbers come from a hash, so all runs see the same."""
    import duckdb

    connection = duckdb.connect()
    events = (
        f"SELECT strftime(make_timestamp({START_US} + (hash(i) % {TICKS * 3600})::BIGINT * 1000000), "
        f"'%Y-%m-%dT%H:%M:%S') AS ts, 'region-' || (hash(i * 7 + 1) % {KEYS}) AS region, "
        f"'user-' || (hash(i * 3) % 100000) AS uid FROM range({rows}) t(i)"
    )
    connection.execute(f"COPY ({events}) TO '{folder}/events.csv' (HEADER)")
    connection.execute(f"COPY (SELECT ts::TIMESTAMP AS ts, region, uid FROM ({events})) TO '{folder}/events.parquet'")
    connection.execute(f"COPY (SELECT * FROM ({events}) LIMIT {rows // 10}) TO '{folder}/events.jsonl'")
    (folder / "regions.txt").write_text("".join(f"region-{i}\n" for i in range(KEYS)))


def plain(folder: Path, name: str) -> dict[str, float]:
    """The query that someone without privacy would write."""
    import duckdb

    reader = {
        "events.csv": f"read_csv('{folder}/events.csv', header=true, delim=',', "
        "columns={'ts': 'TIMESTAMP', 'region': 'VARCHAR', 'uid': 'VARCHAR'})",
        "events.parquet": f"read_parquet('{folder}/events.parquet')",
        "events.jsonl": f"read_json('{folder}/events.jsonl', format='newline_delimited', "
        "columns={ts: 'TIMESTAMP', region: 'VARCHAR'})",
    }[name]
    start = time.perf_counter()
    duckdb.connect().execute(
        f"SELECT (epoch_us(ts) - {START_US}) // 3600000000 AS tick, region, count(*) FROM {reader} GROUP BY ALL"
    ).fetchnumpy()
    return {"seconds": time.perf_counter() - start}


def declared(folder: Path, caps: dict[str, Any] | None = None) -> StreamDeclaration:
    """Hourly counts per region; with `caps` users are protected."""
    from evercount.declarations.columns import Columns
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.front_door.listed_keys import keys_of
    from evercount.privacy import Budget
    from evercount.queries import Histogram

    return StreamDeclaration(
        "bench",
        Histogram(keys_of(folder / "regions.txt", None, False)),
        Budget(1.0, 1e-6) if caps is None else Budget(1.0, 1e-6, unit="user", **caps),
        "1h",
        "2026-01-01",
        horizon=TICKS,
        columns=Columns("ts", key="region", user=None if caps is None else "uid"),
    )


def counted(folder: Path, name: str, caps: dict[str, Any] | None = None) -> dict[str, float]:
    """`evercount.files`: the same counts, with every row checked."""
    from evercount.files.count_rows import count
    from evercount.files.source import open_source

    declaration = declared(folder, caps)
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        rows = count(open_source(str(folder / name), Path(scratch)), declaration, 1, TICKS + 1, Path(scratch))
        seconds = time.perf_counter() - start
    assert rows.bad == 0
    return {"seconds": seconds}


def whole_command(folder: Path, name: str) -> dict[str, float]:
    """The whole command: count, exact noise, commit."""
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file

    declaration = declared(folder)
    with tempfile.TemporaryDirectory() as out:
        job = Job(str(folder / name), declaration, f"{out}/out.csv", declaration.schedule.start_of(TICKS + 1))
        start = time.perf_counter()
        release_file(job)
        return {"seconds": time.perf_counter() - start}


ACTIONS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "plain": plain,
    "counted": counted,
    "whole": whole_command,
    **{what: partial(counted, caps=caps) for what, caps in CAPS.items()},
}


def _process(action: str, folder: Path, name: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", action, str(folder), name]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def run(rows: int = 10**7, repeats: int = 3) -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, ratio to the plain query, target, note."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_events(folder, rows)
        for name in ("events.csv", "events.parquet", "events.jsonl"):
            took: dict[str, list[dict[str, float]]] = {"plain": [], "counted": []}
            for _ in range(repeats):
                for action, found in took.items():
                    found.append(_process(action, folder, name))
            best = {action: min(one["seconds"] for one in found) for action, found in took.items()}
            number = rows // 10 if name == "events.jsonl" else rows
            note = f"{number:.0e} rows, {KEYS} keys, {TICKS} ticks"
            ratio = best["counted"] / best["plain"]
            memory = max(one["megabytes"] for one in took["counted"])
            results.append(_row(f"plain query, {name}", best["plain"], "s", 1.0, None, note))
            target = TARGET_RATIO if name == "events.csv" else None
            results.append(_row(f"count, {name}", best["counted"], "s", ratio, target, note))
            results.append(_row(f"peak memory, {name}", memory, "MB", memory / TARGET_MB, 1.0, "of 600 MB"))
        turns = [[_process(one, folder, "events.csv") for one in ("counted", *CAPS)] for _ in range(repeats)]
        without, *within = (min(one["processor"] for one in side) for side in zip(*turns, strict=True))
        for name, processor in zip(CAPS, within, strict=True):
            note = "processor time beside the count without users; 10^5 users, at most so much each"
            results.append(_row(f"users, {name}", processor, "s", processor / without, TARGET_USERS, note))
        whole = _process("whole", folder, "events.csv")
        results.append(_row("whole command, events.csv", whole["seconds"], "s", None, None, "in all"))
        for name, most in (
            ("users", max(one["megabytes"] for turn in turns for one in turn)),
            ("whole", whole["megabytes"]),
        ):
            results.append(_row(f"peak memory, {name}", most, "MB", most / TARGET_MB, 1.0, "of 600 MB"))
    return results


def _row(name: str, value: float, unit: str, ratio: float | None, target: float | None, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "ratio": ratio, "target": target, "note": note}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measured = ACTIONS[given.one[0]](Path(given.one[1]), given.one[2])
        used = resource.getrusage(resource.RUSAGE_SELF)
        processor = used.ru_utime + used.ru_stime
        print(json.dumps({**measured, "megabytes": used.ru_maxrss / 1024, "processor": processor}))
        sys.exit()
    print(f"{'':50}{'value':>10} {'':4}{'ratio':>8}{'target':>8}  note")
    for row in run(given.rows):
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        target = "" if row["target"] is None else f"≤ {row['target']:g}"
        print(f"{row['name']:50}{row['value']:10.2f} {row['unit']:4}{ratio:>8}{target:>8}  {row['note']}")
