"""Counting of a file of 10^7 events next to DuckDB's own plain query over the same file, and peak
memory.

Each measurement is a process of its own; the two kinds take turns, and the best of each is
compared, because other work on the machine can only make a run slower. Caps of persons are compared
with DuckDB's own count of different persons in each tick, and unlisted keys with its count of each
key in each tick, over the same file, in the processor time of the whole processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration

KEYS, TICKS = 1000, 100
START_US = 1_767_225_600_000_000
TARGET_RATIO, TARGET_LARGE, TARGET_MB = 1.5, 1.4, 600.0
TARGET_WITHIN_TICKS, TARGET_CAPS, TARGET_EXPONENT, TARGET_PERSONS_MB = 1.5, 2.5, 1.05, 800.0
"""How many times the processor time of `count(distinct)` caps within a tick and others may take,
and how it may grow with the rows."""
PERSONS = (10**5, 10**6)
TARGET_KEYS, TARGET_KEYS_MB = 4.0, 500.0
UNLISTED = 10**5
LARGE = 5 * 10**7
CAPS: dict[str, dict[str, Any]] = {
    "20 events": {"max_events": 20},
    "3 events of a tick": {"max_per_tick": 3, "period": 1},
    "10 events of a day": {"max_events": 10, "period": "1d"},
    "8 hours of a day, 2 events each": {"max_per_tick": 2, "max_ticks": 8, "period": "1d"},
    "8 hours of a day, 3 events each, 10 in all": {
        "max_events": 10,
        "max_per_tick": 3,
        "max_ticks": 8,
        "period": "1d",
    },
}
"""What is counted of a person; 10^5 of them have 100 events each in 100 hours, 10^6 have 10."""


def write_events(
    folder: Path,
    rows: int,
    persons: int = 10**5,
    kinds: tuple[str, ...] = ("csv", "parquet", "jsonl"),
) -> None:
    """events.csv, .parquet, .jsonl and regions.txt; the numbers come from a hash, so all runs see
    the same."""
    import duckdb

    connection = duckdb.connect()
    events = (
        f"SELECT strftime(make_timestamp({START_US} + (hash(i) % {TICKS * 3600})::BIGINT * "
        f"1000000), '%Y-%m-%dT%H:%M:%S') AS ts, 'region-' || (hash(i * 7 + 1) % {KEYS}) AS region, "
        f"'user-' || (hash(i * 3) % {persons}) AS uid FROM range({rows}) t(i)"
    )
    written = {
        "csv": f"({events}) TO '{folder}/events.csv' (HEADER)",
        "parquet": (
            f"(SELECT ts::TIMESTAMP AS ts, region, uid FROM ({events})) TO "
            f"'{folder}/events.parquet'"
        ),
        "jsonl": f"(SELECT * FROM ({events}) LIMIT {rows // 10}) TO '{folder}/events.jsonl'",
    }
    for kind in kinds:
        connection.execute(f"COPY {written[kind]}")
    (folder / "regions.txt").write_text("".join(f"region-{i}\n" for i in range(KEYS)))


def _reader(folder: Path, name: str) -> str:
    """SQL: read the events, in the types that someone would give them."""
    return {
        "events.csv": f"read_csv('{folder}/events.csv', header=true, delim=',', "
        "columns={'ts': 'TIMESTAMP', 'region': 'VARCHAR', 'uid': 'VARCHAR'})",
        "events.parquet": f"read_parquet('{folder}/events.parquet')",
        "events.jsonl": f"read_json('{folder}/events.jsonl', format='newline_delimited', "
        "columns={ts: 'TIMESTAMP', region: 'VARCHAR'})",
    }[name]


def plain(folder: Path, name: str) -> dict[str, float]:
    """The query that someone without privacy would write."""
    import duckdb

    reader = _reader(folder, name)
    start = time.perf_counter()
    duckdb.connect().execute(
        f"SELECT (epoch_us(ts) - {START_US}) // 3600000000 AS tick, region, count(*) FROM {reader} "
        "GROUP BY ALL"
    ).fetchnumpy()
    return {"seconds": time.perf_counter() - start}


def distinct(folder: Path, name: str) -> dict[str, float]:
    """Count the different persons of each hour, as someone without privacy would."""
    import duckdb

    start = time.perf_counter()
    duckdb.connect().execute(
        f"SELECT (epoch_us(ts) - {START_US}) // 3600000000 AS tick, count(DISTINCT uid) FROM "
        f"{_reader(folder, name)} GROUP BY ALL"
    ).fetchnumpy()
    return {"seconds": time.perf_counter() - start}


def keys_of_hours(folder: Path, name: str) -> dict[str, float]:
    """Count each key of each hour, whatever keys there are: here the persons are the keys."""
    import duckdb

    start = time.perf_counter()
    duckdb.connect().execute(
        f"SELECT (epoch_us(ts) - {START_US}) // 3600000000 AS tick, uid, count(*) FROM "
        f"{_reader(folder, name)} GROUP BY ALL"
    ).fetchnumpy()
    return {"seconds": time.perf_counter() - start}


def unlisted(folder: Path, name: str) -> dict[str, float]:
    """Release the keys of each hour that pass the threshold: count, noise for each, commit."""
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.declarations.fields import Columns
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file
    from evercount.privacy import Budget
    from evercount.queries import DiscoveredKeys

    declaration = StreamDeclaration(
        "bench",
        DiscoveredKeys(),
        Budget(1.0, 1e-6),
        "1h",
        "2026-01-01",
        horizon=TICKS,
        columns=Columns("ts", key="uid"),
        views=("per-tick",),
    )
    with tempfile.TemporaryDirectory() as out:
        end = declaration.schedule.start_of(TICKS + 1)
        start = time.perf_counter()
        release_file(Job(str(folder / name), declaration, f"{out}/out.csv", end))
        return {"seconds": time.perf_counter() - start}


def declared(folder: Path, caps: dict[str, Any] | None = None) -> StreamDeclaration:
    """Hourly counts per region; with `caps` users are protected."""
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.declarations.fields import Columns
    from evercount.front_door.key_lists import keys_of
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
        rows = count(
            (open_source(str(folder / name), Path(scratch)),),
            declaration,
            1,
            TICKS + 1,
            Path(scratch),
        )
        seconds = time.perf_counter() - start
    assert rows.bad == 0
    return {"seconds": seconds}


def whole_command(folder: Path, name: str) -> dict[str, float]:
    """The whole command: count, exact noise, commit."""
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file

    declaration = declared(folder)
    with tempfile.TemporaryDirectory() as out:
        job = Job(
            str(folder / name),
            declaration,
            f"{out}/out.csv",
            declaration.schedule.start_of(TICKS + 1),
        )
        start = time.perf_counter()
        release_file(job)
        return {"seconds": time.perf_counter() - start}


ACTIONS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "plain": plain,
    "counted": counted,
    "whole": whole_command,
    "distinct": distinct,
    "keys of hours": keys_of_hours,
    "unlisted": unlisted,
    **{what: partial(counted, caps=caps) for what, caps in CAPS.items()},
}


def _process(action: str, folder: Path, name: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", action, str(folder), name]
    return dict(
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    )


def _turns(
    actions: tuple[str, ...], folder: Path, name: str, rounds: int
) -> list[list[dict[str, float]]]:
    """The measurements of each action, which took turns."""
    turns = [[_process(action, folder, name) for action in actions] for _ in range(rounds)]
    return [list(found) for found in zip(*turns, strict=True)]


def _best(found: list[dict[str, float]], what: str) -> float:
    return min(one[what] for one in found)


def plain_rows(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Counting without persons, next to the plain query."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_events(folder, rows)
        for name in ("events.csv", "events.parquet", "events.jsonl"):
            plainly, counting = _turns(("plain", "counted"), folder, name, rounds)
            base, took = _best(plainly, "seconds"), _best(counting, "seconds")
            note = (
                f"{rows // 10 if name == 'events.jsonl' else rows:.0e} rows, {KEYS} keys, {TICKS} "
                "ticks"
            )
            yield _row(f"plain query, {name}", base, "s", 1.0, None, note)
            yield _row(
                f"count, {name}",
                took,
                "s",
                took / base,
                TARGET_RATIO if name == "events.csv" else None,
                note,
            )
            yield _memory(name, counting)
        whole = _process("whole", folder, "events.csv")
        yield _row("whole command, events.csv", whole["seconds"], "s", None, None, "in all")
        yield _memory("whole", [whole])


def persons_rows(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Caps of persons, next to DuckDB's count of different persons; and how a cap grows with the
    rows."""
    smaller: dict[tuple[int, str, str], float] = {}
    sizes = ((rows, ("csv", "parquet")), (5 * rows, ("parquet",)))
    for (size, kinds), persons in itertools.product(sizes, PERSONS):
        with tempfile.TemporaryDirectory() as made:
            write_events(Path(made), size, persons, kinds)
            for kind in kinds:
                name = f"events.{kind}"
                for row in _persons_of_a_file(Path(made), name, size, persons, rounds):
                    key = (persons, kind, row["name"])
                    if row["unit"] == "s" and key in smaller:
                        yield _growth(row, smaller[key])
                    smaller.setdefault(key, row["value"])
                    yield row


def _persons_of_a_file(
    folder: Path, name: str, rows: int, persons: int, rounds: int
) -> Iterator[dict[str, Any]]:
    """The rows of one file: the plain query, each cap, peak memory."""
    plainly, *within = _turns(("distinct", *CAPS), folder, name, rounds)
    base = _best(plainly, "processor")
    note = f"{rows:.0e} rows, {persons:.0e} persons, processor time"
    yield _row(f"count(distinct), {name}", base, "s", 1.0, None, note)
    for caps, found in zip(CAPS, within, strict=True):
        took = _best(found, "processor")
        target = TARGET_CAPS
        if CAPS[caps].keys() == {"max_per_tick", "period"}:
            target = TARGET_WITHIN_TICKS
        yield _row(f"{caps}, {name}", took, "s", took / base, target, note)
    most = max(one["megabytes"] for found in within for one in found)
    ratio = most / TARGET_PERSONS_MB
    yield _row(f"peak memory of caps, {name}", most, "MB", ratio, 1.0, f"of 800 MB; {note}")


def _growth(row: dict[str, Any], before: float) -> dict[str, Any]:
    """By which power of the rows a measurement has grown from a fifth of them."""
    exponent = math.log(row["value"] / before) / math.log(5)
    note = f"power of the rows; {row['note']}"
    return _row(f"growth of {row['name']}", exponent, "", exponent, TARGET_EXPONENT, note)


def keys_rows(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Unlisted keys, next to DuckDB's count of each key in each tick."""
    with tempfile.TemporaryDirectory() as made:
        write_events(Path(made), rows, UNLISTED, ("parquet",))
        actions = ("keys of hours", "unlisted")
        plainly, released = _turns(actions, Path(made), "events.parquet", rounds)
        base, took = _best(plainly, "processor"), _best(released, "processor")
        note = f"{rows:.0e} rows, {UNLISTED:.0e} keys, {TICKS} ticks, processor time"
        yield _row("group by hour and key, events.parquet", base, "s", 1.0, None, note)
        name = "keys of the hour, unlisted, events.parquet"
        yield _row(name, took, "s", took / base, TARGET_KEYS, note)
        most = max(one["megabytes"] for one in released)
        ratio = most / TARGET_KEYS_MB
        yield _row("peak memory, unlisted keys", most, "MB", ratio, 1.0, "of 500 MB")


def large_rows(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Counting of a large Parquet file without persons, next to the plain query: by the clock and
    in processor time."""
    with tempfile.TemporaryDirectory() as made:
        write_events(Path(made), rows, kinds=("parquet",))
        plainly, counting = _turns(("plain", "counted"), Path(made), "events.parquet", rounds)
        for what, unit in (("seconds", "by the clock"), ("processor", "processor time")):
            base, took = _best(plainly, what), _best(counting, what)
            yield _row(
                "plain query, events.parquet", base, "s", 1.0, None, f"{rows:.0e} rows, {unit}"
            )
            yield _row(
                "count, events.parquet",
                took,
                "s",
                took / base,
                TARGET_LARGE,
                f"{rows:.0e} rows, {unit}",
            )
        yield _memory("count", counting)


def run(rows: int = 10**7, repeats: int = 3) -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, ratio, target, note."""
    parts = (plain_rows, persons_rows, keys_rows)
    return [row for part in parts for row in part(rows, repeats)]


def _memory(name: str, found: list[dict[str, float]]) -> dict[str, Any]:
    most = max(one["megabytes"] for one in found)
    return _row(f"peak memory, {name}", most, "MB", most / TARGET_MB, 1.0, "of 600 MB")


def _row(
    name: str, value: float, unit: str, ratio: float | None, target: float | None, note: str
) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ratio": ratio,
        "target": target,
        "note": note,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="default: 10^7, with --large 5·10^7")
    parser.add_argument(
        "--rounds", type=int, default=3, help="how many times each is measured; the best counts"
    )
    parser.add_argument("--persons", action="store_true", help="only the caps of persons")
    parser.add_argument("--keys", action="store_true", help="only unlisted keys")
    parser.add_argument(
        "--large", action="store_true", help="only a large Parquet file, without persons"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        measured = ACTIONS[given.one[0]](Path(given.one[1]), given.one[2])
        used = resource.getrusage(resource.RUSAGE_SELF)
        processor = used.ru_utime + used.ru_stime
        print(json.dumps({**measured, "megabytes": used.ru_maxrss / 1024, "processor": processor}))
        sys.exit()
    print(f"{'':60}{'value':>10} {'':4}{'ratio':>8}{'target':>8}  note")
    parts = [plain_rows, persons_rows, keys_rows]
    if given.persons:
        parts = [persons_rows]
    elif given.keys:
        parts = [keys_rows]
    elif given.large:
        parts = [large_rows]
    for row in chain(
        *(part(given.rows or (LARGE if given.large else 10**7), given.rounds) for part in parts)
    ):
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        target = "" if row["target"] is None else f"≤ {row['target']:g}"
        line = (
            f"{row['name']:60}{row['value']:10.2f} {row['unit']:4}{ratio:>8}{target:>8}  "
            f"{row['note']}"
        )
        print(line, flush=True)
