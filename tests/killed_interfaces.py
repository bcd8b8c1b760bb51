"""The interfaces as programs that a test kills: each function runs one of them over the events in a
folder, from wherever an earlier process was killed, up to the last tick.

An interface is a way into the product: files, the service, a log such as NATS. That of Spark is in
spark_driver.py.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.errors import HorizonReached
from evercount.noise import Secret

TICKS, EVENTS = 6, 240
SECRET = Secret.from_hex("c4" * 32)
TABLE: dict[str, Any] = {
    "name": "visits",
    "query": {"name": "histogram", "parameters": {"keys": [*"abcdefgh"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": TICKS,
    "columns": {"time": "ts", "key": "key"},
    "views": ["running"],
}
PERSON = {"epsilon": 1.0, "delta": 1e-6, "unit": "user"}
ORDERED = {"time": "ts", "key": "key", "user": "who", "order": "n"}
KINDS: dict[str, dict[str, Any]] = {
    "counts": {},
    "unlisted keys": {
        "query": {"name": "discovered-keys", "parameters": {"minimum": 2}},
        "budget": {"epsilon": 8.0, "delta": 0.01},
    },
    "active persons": {
        "query": "active-users",
        "budget": {**PERSON, "max_ticks": 3},
        "columns": {"time": "ts", "user": "who"},
    },
    "person-days": {"budget": {**PERSON, "max_per_tick": 1, "period": 1}, "columns": ORDERED},
    "three events of a person in two hours": {
        "budget": {**PERSON, "max_events": 3, "period": 2},
        "columns": ORDERED,
    },
}
"""What a stream is, besides `TABLE`."""
Row = dict[str, Any]
Released = list[dict[str, float]]
"""The value of each published cell, tick by tick."""


def declaration_of(kind: str) -> StreamDeclaration:
    return StreamDeclaration.from_dict(TABLE | KINDS[kind])


def events_of(seed: int) -> list[Row]:
    """Events in the order of their times."""
    draw = random.Random(seed)
    seconds = sorted(draw.sample(range(TICKS * 3600), EVENTS))
    return [
        {
            "ts": f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z",
            "key": draw.choice("abbc"),
            "who": f"user {draw.randrange(20)}",
            "n": number,
        }
        for number, at in enumerate(seconds)
    ]


def hour_of(row: Row) -> int:
    """The tick of an event, from 1 on."""
    return int(row["ts"][11:13]) + 1


def library_releases(kind: str, rows: list[Row]) -> Released:
    """Compute what the library publishes of these events, with caps in plain Python."""
    declaration = declaration_of(kind)
    budget, query = declaration.budget, declaration.query
    kept: dict[Any, list[int]] = {}
    ticks: list[list[str]] = [[] for _ in range(TICKS)]
    for row in rows:
        tick = hour_of(row)
        if budget.unit == "user" and query.people is None:
            before = kept.setdefault((row["who"], (tick - 1) // budget.period), [])
            if len(before) >= (budget.max_events or EVENTS) or before.count(tick) >= (
                budget.max_per_tick or EVENTS
            ):
                continue
            before.append(tick)
        ticks[tick - 1].append(row["who"] if query.people is not None else row["key"])
    stream, starts = declaration.build(secret=SECRET, replay=True), declaration.schedule.starts_of
    if declaration.remembers:
        return values_by_tick(close_ticks(stream, TickEvents(1, ticks), starts))
    totals = [query.encode(None, tick)[0] for tick in ticks]
    return values_by_tick(close_ticks(stream, TickTotals.dense(1, totals), starts))


def values_by_tick(tables: Iterable[Any]) -> Released:
    found: Released = []
    for table in tables:
        columns = table.columns()
        for tick, cell, value in zip(
            *(columns[name].tolist() for name in ("tick", "cell", "value")), strict=True
        ):
            if tick > len(found):
                found.append({})
            found[tick - 1][cell] = value
    return found


def run_files(folder: Path, kind: str, _address: str) -> None:
    """`evercount release`, hour by hour."""
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file

    declaration = declaration_of(kind)
    job = Job(str(folder / "events.jsonl"), declaration, str(folder / "out.csv"), 0, secret=SECRET)
    for tick in range(1, TICKS + 1):
        try:
            release_file(replace(job, now=declaration.schedule.start_of(tick + 1)))
        except HorizonReached:
            return


def run_service(folder: Path, kind: str, _address: str) -> None:
    """Requests with idempotency keys; a client that got no answer sends the same again."""
    from evercount.service.read_events import read_batch
    from evercount.store import Accepted, Store

    declaration = declaration_of(kind)
    columns = declaration.columns
    assert columns is not None
    store = Store(folder / "service.db")
    live = store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for tick in range(live.closed + 1, TICKS + 1):
        now = declaration.schedule.start_of(tick) / 1e6
        inside = [row for row in rows if hour_of(row) == tick]
        for start in range(0, len(inside), 4):
            sent = [
                {"time": row["ts"]}
                | ({"key": row["key"]} if columns.key else {})
                | ({"user": row["who"]} if columns.user else {})
                for row in inside[start : start + 4]
            ]
            batch = replace(
                read_batch(declaration, json.dumps(sent).encode()), key=f"{tick} {start}"
            )
            (answer,) = store.accept([batch], now)
            assert isinstance(answer, Accepted), answer
        store.close_ticks(live, 1, now)
    store.close()


def run_log(folder: Path, kind: str, address: str) -> None:
    """`evercount consume` over JetStream, hour by hour."""
    from evercount.consume import consume_log
    from evercount.consume.log_sources import LogAddress
    from evercount.store import Store

    consume_log.MOST_MESSAGES = 25
    declaration = declaration_of(kind)
    store = Store(folder / "log.db")
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    source = LogAddress.parse(address).open()
    consumer = consume_log.LogConsumer(
        source, declaration, store, folder, 0, rejects=folder / "bad.jsonl"
    )
    for tick in range(store.find("visits").closed + 1, TICKS + 1):
        consumer.round(declaration.schedule.start_of(tick + 1))
    consumer.close()
    source.close()
    store.close()


def check_preloaded() -> None:
    """Exit with 1 unless the server that forks this process has loaded `preloaded_modules`."""
    sys.exit("preloaded_modules" not in sys.modules)


INTERFACES = {"files": run_files, "service": run_service, "log": run_log}


def published(folder: Path, interface: str) -> Released:
    """Read what an interface has published, as any reader sees it."""
    if interface == "files":
        found: Released = []
        if (folder / "out.csv").exists():
            with (folder / "out.csv").open() as file:
                for row in csv.DictReader(file):
                    if int(row["tick"]) > len(found):
                        found.append({})
                    found[-1][row["cell"]] = float(row["value"])
        return found
    from evercount.errors import StoreError
    from evercount.store import Reading

    try:
        reading = Reading.open(str(folder / f"{interface}.db"))
    except StoreError:  # it was not made yet
        return []
    try:
        return values_by_tick(reading.tables_of("visits")[1]) if "visits" in reading.names() else []
    finally:
        reading.close()


def verify_store(folder: Path, interface: str) -> None:
    """Check that a store is in one piece."""
    from evercount.store import Store

    if interface != "files":
        store = Store(folder / f"{interface}.db")
        assert store.verify(store.head) == []
        store.close()
