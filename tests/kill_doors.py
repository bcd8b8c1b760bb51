"""Doors that die: each function brings one door as far as it comes, from wherever an earlier life has left it.

Run as a program this file is Spark's driver.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from evercount.declare.declaration import StreamDeclaration
from evercount.errors import HorizonReached
from evercount.noise import Secret

TICKS, EVENTS = 6, 240
SECRET = Secret.from_hex("c4" * 32)
TABLE: dict[str, Any] = {
    "name": "visits",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b", "c"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "horizon": TICKS,
    "columns": {"time": "ts", "key": "region"},
    "views": ["running"],
}
PERSONS = {
    "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3, "period": 2},
    "columns": {"time": "ts", "key": "region", "user": "who", "order": "n"},
}


def declared(persons: bool) -> StreamDeclaration:
    return StreamDeclaration.from_dict(TABLE | (PERSONS if persons else {}))


def events_of(seed: int) -> list[dict[str, Any]]:
    """Events in the order of their times."""
    draw = random.Random(seed)
    seconds = sorted(draw.sample(range(TICKS * 3600), EVENTS))
    return [
        {
            "ts": f"2026-01-01T{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z",
            "region": draw.choice("abbc"),
            "who": f"user {draw.randrange(20)}",
            "n": number,
        }
        for number, at in enumerate(seconds)
    ]


def files(folder: Path, persons: bool, _address: str) -> None:
    """`evercount release`, hour by hour."""
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file

    declaration = declared(persons)
    job = Job(str(folder / "events.jsonl"), declaration, str(folder / "out.csv"), 0, secret=SECRET)
    for tick in range(1, TICKS + 1):
        try:
            release_file(replace(job, now=declaration.schedule.start_of(tick + 1)))
        except HorizonReached:
            return


def service(folder: Path, persons: bool, _address: str) -> None:
    """Requests with idempotency keys; a client that got no answer sends the same again."""
    from evercount.service.read_events import read_batch
    from evercount.store import Accepted, Store

    declaration = declared(persons)
    store = Store(folder / "service.db")
    live = store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for tick in range(live.closed + 1, TICKS + 1):
        now = declaration.schedule.start_of(tick) / 1e6
        inside = [row for row in rows if int(row["ts"][11:13]) == tick - 1]
        for start in range(0, len(inside), 15):
            sent = [
                {"time": row["ts"], "key": row["region"], **({"user": row["who"]} if persons else {})}
                for row in inside[start : start + 15]
            ]
            batch = replace(read_batch(declaration, json.dumps(sent).encode()), key=f"{tick} {start}")
            (answer,) = store.accept([batch], now)
            assert isinstance(answer, Accepted), answer
        store.close_ticks(live, 1, now)
    store.close()


def log(folder: Path, persons: bool, address: str) -> None:
    """`evercount consume` over JetStream, hour by hour."""
    from evercount.consume import consume_log
    from evercount.consume.log_source import LogAddress
    from evercount.store import Store

    consume_log.MOST_MESSAGES = 25
    declaration = declared(persons)
    store = Store(folder / "log.db")
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    source = LogAddress.parse(address).open()
    consumer = consume_log.LogConsumer(source, declaration, store, folder, 0, rejects=folder / "bad.jsonl")
    for tick in range(store.find("visits").closed + 1, TICKS + 1):
        consumer.round(declaration.schedule.start_of(tick + 1))
    consumer.close()
    source.close()
    store.close()


def spark(folder: Path, persons: bool) -> None:
    """Spark's streaming door."""
    from evercount.spark import open_session, release_stream
    from evercount.store import Store

    declaration = declared(persons)
    session = open_session("local[1]")
    store = Store(folder / "spark.db")
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    schema = "ts string, region string, who string, n long"
    events = session.readStream.schema(schema).options(maxFilesPerTrigger=1, maxFileAge="36500d")
    for tick in (TICKS // 2, TICKS):
        release_stream(
            events.json(str(folder / "parts")),
            declaration,
            store,
            str(folder / "checkpoint"),
            clock=lambda at=tick: declaration.schedule.start_of(at + 1),  # type: ignore[misc]
        )
    store.close()


DOORS = {"files": files, "service": service, "log": log}


def published(folder: Path, door: str) -> list[list[float]]:
    """The values that a door has published, tick by tick."""
    if door != "files":
        from evercount.store import Reading

        reading = Reading.open(str(folder / f"{door}.db"))
        _, tables = reading.tables_of("visits")
        found = [row.tolist() for table in tables for row in table.numbers[:, 0]]
        reading.close()
        return found
    with (folder / "out.csv").open() as file:
        values = [float(row["value"]) for row in csv.DictReader(file)]
    return [values[start : start + 3] for start in range(0, len(values), 3)]


if __name__ == "__main__":
    spark(Path(sys.argv[1]), *json.loads(sys.argv[2]))
