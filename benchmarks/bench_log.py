"""`evercount consume`: messages per second of NATS JetStream and Kafka (librdkafka's broker), with
the server's time.

The rate by the clock depends on what else the machine does; processor time does not, so both are
printed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

TARGET = 50_000
REGIONS = [f"region-{number}" for number in range(100)]


def declared(persons: bool) -> Any:
    """Hourly counts per region; with `persons` at most three events of a person and day."""
    from evercount.declarations.declaration import StreamDeclaration

    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
    columns = {"time": "ts", "key": "region"}
    if persons:
        budget |= {"unit": "user", "max_events": 3, "period": 24}
        columns["user"] = "who"
    query = {"name": "histogram", "parameters": {"keys": REGIONS}}
    return StreamDeclaration.from_dict(
        {
            "name": "b",
            "query": query,
            "budget": budget,
            "columns": columns,
            "tick": "1h",
            "horizon": 24,
        }
        | {"start": "2026-01-01T00:00:00Z", "views": ["per-tick"]}
    )


def messages(number: int) -> list[bytes]:
    """Events of one day."""
    return [
        json.dumps(
            {
                "ts": f"2026-01-01T{i * 7 % 24:02}:{i % 60:02}:{i // 60 % 60:02}Z",
                "region": REGIONS[i * 13 % 100],
                "who": f"user-{i * 31 % 100_000}",
            }
        ).encode()
        for i in range(number)
    ]


def consume(address: str, persons: bool, folder: Path) -> tuple[float, float]:
    """Seconds and processor seconds of one round over the whole log, the release of the day
    included."""
    from evercount.consume.consume_log import LogConsumer
    from evercount.consume.log_sources import LogAddress
    from evercount.store import Store

    declaration = declared(persons)
    store = Store(folder / f"{persons}{time.monotonic_ns()}.db")
    store.declare(declaration, declaration.schedule.begin / 1e6)
    source = LogAddress.parse(address).open()
    consumer = LogConsumer(source, declaration, store, folder, 0)
    begin, used = time.perf_counter(), time.process_time()
    consumer.round(declaration.schedule.start_of(25))
    answer = time.perf_counter() - begin, time.process_time() - used
    assert not consumer.bad
    consumer.close()
    source.close()
    store.close()
    return answer


def server_seconds(folder: Path) -> float:
    """Processor seconds of the NATS server whose files are in `folder`."""
    (ports,) = folder.glob("nats-server_*.ports")
    fields = (
        Path(f"/proc/{ports.stem.partition('_')[2]}/stat").read_text().rpartition(")")[2].split()
    )
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(number: int = 500_000) -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, ratio, target, note."""
    servers: Any = importlib.import_module("log_servers")  # of the tests
    rows = []
    bodies = messages(number)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with servers.nats_server(folder / "nats") as server:
            servers.publish(server, "b", bodies)
            for persons in (False, True):
                before = server_seconds(folder / "nats")
                clock, used = consume(f"nats://{server}/b", persons, folder)
                rows.append(
                    _row(
                        "JetStream",
                        persons,
                        number,
                        clock,
                        used,
                        server_seconds(folder / "nats") - before,
                    )
                )
        # the broker keeps 5 MB of a partition
        kafka, few = servers.KafkaMock(4), bodies[: min(number, 80_000)]
        kafka.publish("b", few)
        clock, used = consume(f"kafka://{kafka.address}/b", False, folder)
        rows.append(_row("Kafka, broker in the same process", False, len(few), clock, used, 0.0))
    return rows


def _row(
    log: str, persons: bool, number: int, clock: float, used: float, server: float
) -> dict[str, Any]:
    note = (
        f"{used / number * 1e6:.1f} µs of processor time a message, server "
        f"{server / number * 1e6:.1f} µs: {number / max(used, server):,.0f} messages/s if each had "
        "a core of its own"
    )
    name = f"consume {log}{', 3 events of a person and day' * persons}"
    return {
        "name": name,
        "value": number / clock,
        "unit": "messages/s",
        "ratio": None,
        "target": TARGET,
        "note": note,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    for row in run(parser.parse_args().messages):
        print(f"{row['name']}: {row['value']:,.0f} {row['unit']} ({row['note']})")
