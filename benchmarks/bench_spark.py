"""Spark: private release of 10^7 events next to the same Spark job that only counts, and noise by
shards.

Both kinds take turns on the same files in one session after a warm-up, and the best of each is
compared: other work on the machine can only make a run slower.

`--calculate` measures nothing: it prints what figures of a run mean for 10^8 events in an hour and
10^7 cells. Without a file these are the figures of `docs/scale.md`, in `spark_figures.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

KEYS, TICKS, FILES, FILES_PER_BATCH = 1000, 100, 20, 4
START_US = 1_767_225_600_000_000
TARGET_RATIO = 1.3
SHARD_CELLS, SHARD_TICKS = 100_000, 100
FIGURES = Path(__file__).with_name("spark_figures.jsonl")
"""The figures of the page: the JSON lines of one run on a quiet machine."""
MANY_EVENTS, MANY_CELLS = 10**8, 10**7
CANDIDATES = 10**6
"""Keys of one tick that nobody listed."""


def write_events(folder: Path, rows: int, keys: int = KEYS, ticks: int = TICKS) -> None:
    """Parquet files whose numbers come from a hash, so that all runs see the same; a person has two
    events."""
    import duckdb

    (folder / "in").mkdir(parents=True)
    for number in range(FILES):
        first, last = number * rows // FILES, (number + 1) * rows // FILES
        duckdb.connect().execute(
            f"COPY (SELECT make_timestamp({START_US} + (hash(i) % {ticks * 3600})::BIGINT * "
            f"1000000) AS ts, 'region-' || (hash(i * 7 + 1) % {keys}) AS region, 'person-' || "
            f"(hash(i * 3 + 2) % {max(rows // 2, 1)}) AS who, i AS seq FROM range({first}, {last}) "
            "t(i)) "
            f"TO '{folder}/in/{number:02d}.parquet'"
        )


def declared(
    keys: list[str],
    ticks: int,
    caps: dict[str, Any] | None = None,
    query: Any = None,
    views: Sequence[str] = (),
) -> Any:
    """Hourly counts per key."""
    from evercount.declarations.declaration import StreamDeclaration

    unit = {} if caps is None else {"unit": "user", **caps}
    return StreamDeclaration.from_dict(
        {
            "name": "bench",
            "query": query or {"name": "histogram", "parameters": {"keys": keys}},
            "budget": {"epsilon": 1.0, "delta": 1e-6, **unit},
            "tick": "1h",
            "start": "2026-01-01T00:00:00Z",
            "horizon": ticks,
            **({"views": list(views)} if views else {}),
            "columns": {
                "time": "ts",
                "key": "region",
                **({"user": "who", "order": "seq"} if unit else {}),
            },
        }
    )


def source(session: Any, folder: Path) -> Any:
    """The files as a stream."""
    reader = session.readStream.schema("ts timestamp_ntz, region string, who string, seq long")
    return reader.options(maxFilesPerTrigger=FILES_PER_BATCH, maxFileAge="36500d").parquet(
        str(folder / "in")
    )


def cpu_seconds() -> float:
    """Processor time of this process and of its JVM so far (Linux): other work on the machine
    hardly changes it."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # the process has ended
        fields = rest.split()
        if name.endswith("(java") and int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def plain(session: Any, folder: Path, out: Path) -> float:
    """The job that someone without privacy would write: counts per tick and key of every
    micro-batch."""
    from pyspark.sql import functions as fn

    tick = fn.expr("(unix_micros(CAST(ts AS TIMESTAMP)) - 1767225600000000) div 3600000000")

    def count(batch: Any, _: int) -> None:
        batch.groupBy(tick.alias("tick"), "region").count().write.format("noop").mode(
            "overwrite"
        ).save()

    start = time.perf_counter()
    query = (
        source(session, folder)
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", str(out))
    )
    query.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - start


def private(
    session: Any, folder: Path, out: Path, declaration: Any = None, ticks: int = TICKS
) -> float:
    """The same events through the door: totals into SQLite, all ticks closed and released."""
    from evercount.spark import release_stream

    declaration = declaration or declared([f"region-{i}" for i in range(KEYS)], TICKS)
    out.mkdir()
    start = time.perf_counter()
    outcome = release_stream(
        source(session, folder),
        declaration,
        out / "store.db",
        str(out / "checkpoint"),
        clock=lambda: int(declaration.schedule.start_of(ticks + 1)),
    )
    seconds = time.perf_counter() - start
    assert outcome.ticks == range(1, ticks + 1)
    return seconds


def batch(session: Any, cells: int, shards: int, out: Path) -> float:
    """No events at all: the noise and the rows of all cells."""
    from evercount.spark import release_batch

    declaration = declared([f"k{i}" for i in range(cells)], SHARD_TICKS)
    nothing = session.createDataFrame([], "ts timestamp, region string")
    until = declaration.schedule.start_of(SHARD_TICKS + 1)
    start = time.perf_counter()
    release_batch(nothing, declaration, str(out), until=until, shards=shards)
    return time.perf_counter() - start


def alone(cells: int, out: Path) -> float:
    """The same numbers in one process without Spark, into one Parquet file."""
    import numpy as np

    from evercount.declarations.view_names import shown_tables
    from evercount.engine.close_ticks import TickTotals, close_ticks
    from evercount.engine.write_table import write_parquet
    from evercount.noise import Secret

    declaration = declared([f"k{i}" for i in range(cells)], SHARD_TICKS)
    none = np.empty(0, np.int64)
    start = time.perf_counter()
    stream, schedule = declaration.build(secret=Secret.generate()), declaration.schedule
    totals = TickTotals(1, SHARD_TICKS, cells, none, none, none)
    closed = close_ticks(stream, totals, schedule.starts_of)
    tables = shown_tables(stream, closed, declaration.main_view, schedule, np.empty((0, cells)))
    write_parquet(str(out), tables, schedule, {})
    return time.perf_counter() - start


def sizes(folder: Path, cells: int = 10_000) -> Iterator[dict[str, Any]]:
    """What a store keeps: the state of a stream, and a released number, both for each cell."""
    from evercount.store import Store

    declaration = declared([f"k{i}" for i in range(cells)], SHARD_TICKS)
    store = Store(folder / "sizes.db")
    live = store.declare(declaration, START_US / 1e6)
    before = (folder / "sizes.db").stat().st_size + (folder / "sizes.db-wal").stat().st_size
    seconds = float("inf")
    while live.closed < 40:  # past the first block of 32 ticks, before which a state is empty
        start = time.perf_counter()
        store.close_ticks(live, 1, 0.0)
        seconds = min(seconds, time.perf_counter() - start)
    state = len(live.blob)
    store.close()
    after = (folder / "sizes.db").stat().st_size
    few, many = (backfill(folder, ticks) for ticks in (10_000, 40_000))
    name = "a batch of 20 keys in 40,000 ticks accepted by the store"
    yield {
        "name": name,
        "value": many,
        "unit": "s of CPU",
        "ratio": many / few,
        "note": "of 10,000 ticks",
    }
    yield {
        "name": "state of a stream, for each cell",
        "value": state / cells,
        "unit": "bytes",
        "key": "state",
    }
    yield {
        "name": "released rows in SQLite, for each number",
        "value": (after - before) / (40 * cells),
        "unit": "bytes",
        "key": "row",
    }
    name = f"a tick of {cells:.0e} cells closed in the store"
    yield {"name": name, "value": seconds, "unit": "s", "key": "tick", "of": cells}


def best_cpu(rounds: int, *jobs: Callable[[Path], Any], folder: Path) -> list[float]:
    """The least processor time of each job; they take turns, and the first round warms up."""
    best = [float("inf")] * len(jobs)
    for number in range(rounds + 1):
        for place, job in enumerate(jobs):
            before = cpu_seconds()
            job(folder / f"{place}-{number}")
            if number:
                best[place] = min(best[place], cpu_seconds() - before)
    return best


def persons(session: Any, folder: Path, rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What caps of persons with two events each cost, in processor time of driver and JVM."""
    ticks = 24
    (folder / "persons").mkdir()
    write_events(folder / "persons", rows, 20, ticks)
    keys = [f"region-{i}" for i in range(20)]
    kinds: list[dict[str, Any] | None] = [None, {"max_per_tick": 2, "period": 1}, {"max_events": 3}]
    jobs = [
        partial(
            _go, session, folder / "persons", declaration=declared(keys, ticks, caps), ticks=ticks
        )
        for caps in kinds
    ]
    alone, *capped = best_cpu(rounds, *jobs, folder=folder / "persons")
    yield {"name": f"{rows:.0e} events, counted and released", "value": alone, "unit": "s of CPU"}
    for caps, seconds in zip(("the events of one hour", "all events"), capped, strict=True):
        name = f"the same with a cap of {rows // 2:.0e} persons over {caps}"
        yield {
            "name": name,
            "value": seconds,
            "unit": "s of CPU",
            "ratio": seconds / alone,
            "target": "≤ 3",
        }


def many_keys(session: Any, folder: Path, rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """What many keys, and keys that nobody listed, cost in processor time of driver and JVM."""
    many = 100_000
    (folder / "many").mkdir()
    write_events(folder / "many", rows, many, 4)
    listed = declared([f"region-{i}" for i in range(many)], 4)
    unlisted = declared([], 4, query={"name": "discovered-keys", "parameters": {"minimum": 20}})
    jobs = [partial(_plain, session, folder / "many")]
    jobs += [
        partial(_go, session, folder / "many", declaration=one, ticks=4)
        for one in (listed, unlisted)
    ]
    alone, private_keys, found = best_cpu(rounds, *jobs, folder=folder / "many")
    yield {
        "name": f"{rows:.0e} events of {many:.0e} keys, Spark only counts",
        "value": alone,
        "unit": "s of CPU",
    }
    for name, seconds in (
        ("the keys are listed, 4 ticks released", private_keys),
        ("nobody listed the keys", found),
    ):
        yield {"name": name, "value": seconds, "unit": "s of CPU", "ratio": seconds / alone}


def candidates(ticks: int) -> dict[str, Any]:
    """A million keys that nobody listed in each tick, each once, next to ten that are common:
    memory of the driver."""
    import resource

    import duckdb

    with opened() as (session, folder):
        (folder / "in").mkdir()
        key = "CASE WHEN i % 10 = 0 THEN 'common-' || (i // 10 % 10) ELSE 'rare-' || i END"
        for tick in range(ticks):
            duckdb.connect().execute(
                f"COPY (SELECT make_timestamp({START_US} + {tick} * 3600000000) AS ts, {key} AS "
                f"region, 'p' AS who, i AS seq FROM range({CANDIDATES * 10 // 9}) t(i)) TO "
                f"'{folder}/in/{tick}.parquet'"
            )
        query = {"name": "discovered-keys", "parameters": {"minimum": 20}}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        processor = cpu_seconds()
        private(
            session,
            folder,
            folder / "out",
            declared([], ticks, query=query, views=["per-tick"]),
            ticks,
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {
            "name": (
                f"{CANDIDATES:.0e} unlisted keys in each of {ticks} ticks: peak memory of the "
                "driver"
            ),
            "value": peak,
            "unit": "MB",
            "note": f"{before:.0f} MB before the stream; {cpu_seconds() - processor:.1f} s of CPU",
        }


def _go(session: Any, folder: Path, out: Path, declaration: Any, ticks: int) -> None:
    private(session, folder, out, declaration, ticks)


def _plain(session: Any, folder: Path, out: Path) -> None:
    plain(session, folder, out)


def backfill(folder: Path, ticks: int) -> float:
    """Processor time in which a store accepts one batch of 20 keys in each of many ticks."""
    import numpy as np

    from evercount.engine.arrivals import Arrivals
    from evercount.engine.close_ticks import TickTotals
    from evercount.store import Store
    from evercount.store.accept_totals import SourceBatch

    declaration = declared([f"k{i}" for i in range(20)], ticks)
    tick, cell = np.repeat(np.arange(1, ticks + 1), 20), np.tile(np.arange(20), ticks)
    store = Store(folder / f"backfill{ticks}.db")
    live = store.declare(declaration, START_US / 1e6)
    before = time.process_time()
    totals = TickTotals(1, ticks, 20, tick, cell, np.ones_like(tick))
    store.accept_totals("bench", SourceBatch("q", 0), Arrivals(totals))
    seconds = time.process_time() - before
    assert live.counted
    store.close()
    return seconds


def calculate(figures: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows for many events and many cells, in proportion to the figures of a run. Calculated, not
    measured."""
    from evercount.store.declare_stream import MOST_CELLS

    cost = {row["key"]: row["value"] / row.get("of", 1) for row in figures if "key" in row}
    for name, value, unit in (
        (
            "10^8 events in an hour, counted and released on two cores",
            MANY_EVENTS * cost["event"],
            "s of that hour",
        ),
        ("shards of 10^7 cells, each as large as it may be", MANY_CELLS / MOST_CELLS, "shards"),
        ("a tick of 10^7 cells closed in the store", MANY_CELLS * cost["tick"], "s of one core"),
        ("states of 10^7 cells", MANY_CELLS * cost["state"] / 1e9, "GB"),
        ("rows that a tick of 10^7 cells adds to SQLite", MANY_CELLS * cost["row"] / 1e9, "GB"),
        (
            "noise and rows of a tick of 10^7 cells, without Spark and store",
            MANY_CELLS * cost["noise"],
            "s of one core",
        ),
    ):
        yield {"name": name, "value": value, "unit": unit, "note": "calculated"}


def read_figures(path: Path) -> list[dict[str, Any]]:
    """The rows that a run has printed."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def calculation_table(rows: Iterable[dict[str, Any]]) -> str:
    """The calculated rows as the table of `docs/scale.md`, with two digits."""
    lines = ["| calculated | figure |", "|---|---|"]
    for row in rows:
        value = float(f"{row['value']:.2g}")
        lines.append(f"| {row['name']} | {value:g} {row['unit']} |")
    return "\n".join(lines)


@contextmanager
def opened() -> Iterator[tuple[Any, Path]]:
    """A session on two cores, and a folder."""
    from evercount.noise import Secret
    from evercount.spark import open_session

    os.environ.setdefault("EVERCOUNT_SECRET", Secret.generate().hex())
    os.environ.setdefault(
        "PYSPARK_SUBMIT_ARGS", "--driver-memory 2g --conf spark.ui.enabled=false pyspark-shell"
    )
    with tempfile.TemporaryDirectory(prefix="evercount-bench-") as name:
        session = open_session("local[2]")
        session.sparkContext.setLogLevel("ERROR")
        session.conf.set("spark.sql.shuffle.partitions", "4")
        yield session, Path(name)
        session.stop()


def only_persons(rows: int, rounds: int) -> Iterator[dict[str, Any]]:
    """The rows of `persons` alone."""
    with opened() as (session, folder):
        yield from persons(session, folder, rows, rounds)


def run(
    rows: int = 10_000_000, rounds: int = 3, cells: int = SHARD_CELLS
) -> Iterator[dict[str, Any]]:
    """The measurements."""
    with opened() as (session, folder):
        write_events(folder, rows)
        best = {"plain": float("inf"), "private": float("inf")}
        cpu = dict(best)
        for number in range(rounds + 1):  # the first round warms the JVM up
            for kind, job in (("plain", plain), ("private", private)):
                before = cpu_seconds()
                seconds = job(session, folder, folder / f"{kind}{number}")
                if number:
                    best[kind] = min(best[kind], seconds)
                    cpu[kind] = min(cpu[kind], cpu_seconds() - before)
        yield {"name": f"{rows:.0e} events, Spark only counts", "value": best["plain"], "unit": "s"}
        yield {
            "name": (
                f"{rows:.0e} events, counted into a store and {TICKS} ticks × {KEYS} keys released"
            ),
            "value": best["private"],
            "unit": "s",
            "ratio": best["private"] / best["plain"],
            "target": f"≤ {TARGET_RATIO}",
            "key": "event",
            "of": rows,
        }
        yield {
            "name": "the same in processor time of driver and JVM",
            "value": cpu["private"],
            "unit": "s",
            "ratio": cpu["private"] / cpu["plain"],
        }
        yield from persons(session, folder, rows // 5, rounds)
        yield from many_keys(session, folder, rows, rounds)
        if not cells:
            return
        single = min(alone(cells, folder / f"alone{number}.parquet") for number in range(2))
        name = f"{cells:.0e} cells × {SHARD_TICKS} ticks, one process"
        yield {
            "name": name,
            "value": single,
            "unit": "s",
            "key": "noise",
            "of": cells * SHARD_TICKS,
        }
        for shards in (1, 2, 8):
            seconds = min(
                batch(session, cells, shards, folder / f"b{shards}-{number}") for number in range(2)
            )
            yield {
                "name": (
                    f"{cells:.0e} cells × {SHARD_TICKS} ticks, release_batch, {shards} shards on "
                    "local[2]"
                ),
                "value": seconds,
                "unit": "s",
                "ratio": seconds / single,
                "note": "of the time of one process",
            }
        yield from sizes(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=SHARD_CELLS, help="0 leaves the shards out")
    parser.add_argument(
        "--persons", action="store_true", help="only what caps cost; --rows events of half as many"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        metavar="TICKS",
        help="only memory: ticks of 10^6 unlisted keys each",
    )
    parser.add_argument(
        "--sizes", action="store_true", help="only what a store keeps, without Spark"
    )
    parser.add_argument(
        "--calculate", nargs="?", type=Path, const=FIGURES, metavar="FILE", help="from JSON lines"
    )
    given = parser.parse_args()
    if given.calculate:
        print(calculation_table(calculate(read_figures(given.calculate))))
        raise SystemExit
    with tempfile.TemporaryDirectory(prefix="evercount-bench-") as scratch:
        if given.candidates:
            rows = iter([candidates(given.candidates)])
        elif given.sizes:
            rows = sizes(Path(scratch))
        elif given.persons:
            rows = only_persons(given.rows, given.rounds)
        else:
            rows = run(given.rows, given.rounds, given.cells)
        for row in rows:
            print(json.dumps(row, ensure_ascii=False), flush=True)
