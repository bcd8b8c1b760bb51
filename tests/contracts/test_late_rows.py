"""Rows that come late, caps of users and restarts in the middle: every query of unlisted keys,
trees, people and quantiles counts the same rows at every interface, and one run has one truth."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_same_table import (
    CASES,
    GAUSSIAN,
    KEYS,
    Case,
    Rows,
    Tables,
    by_library,
    case,
    events_of,
    levels_of,
    read,
    read_store,
    secret_of,
)

from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store
from soak_cases import soak_except

pytest.importorskip("duckdb")

USERS = {**GAUSSIAN, "unit": "user", "max_events": 3}
MARGINALS = {
    "name": "marginals",
    "parameters": {"columns": [[*KEYS, "unlisted"], list("0123456789")]},
}
SUBJECTS = {
    name: CASES[name]
    for name in (
        "rollup",
        "rollup of users",
        "marginals",
        "distinct users",
        "distinct users per key",
        "active users",
        "quantiles",
        "discovered keys",
        "discovered keys of users",
    )
} | {
    "marginals of users": case(
        MARGINALS, {"levels": ["region", "digit"], "user": "who"}, budget=USERS
    ),
    "quantiles of users": case(
        {"name": "quantiles", "parameters": {"low": -1, "high": 1, "bins": 16}},
        {"value": "score", "user": "who"},
        budget=USERS,
    ),
    "active users, users protected": case(
        "active-users", {"user": "who"}, budget={**GAUSSIAN, "unit": "user", "max_ticks": 2}
    ),
}
CLOSED = (3, 7, 8, 12)
"""The ticks that are closed after each delivery of rows; the last delivery closes all."""


@dataclass(frozen=True)
class Delivery:
    """Rows that arrive together: `late` ones of ticks that are closed, and those of the ticks that
    it closes."""

    first: int
    stop: int
    late: list[dict[str, Any]]
    timely: list[dict[str, Any]]


def deliveries_of(one: Case, rows: list[dict[str, Any]]) -> list[Delivery]:
    """A fifth of the rows arrive one or two deliveries after their time; some late ones belong to
    one early tick."""
    generator = np.random.default_rng(11)
    schedule = one.declaration.schedule
    arrived: list[list[tuple[int, dict[str, Any]]]] = [[] for _ in CLOSED]
    for row in rows:
        tick = schedule.tick_of(row["instant"])
        due = next(number for number, closed in enumerate(CLOSED) if tick <= closed)
        delay = int(generator.choice([0, 1, 2], p=[0.8, 0.15, 0.05]))
        arrived[min(due + delay, len(CLOSED) - 1)].append((tick, row))
    found = []
    for number, (before, closed) in enumerate(zip((0, *CLOSED), CLOSED, strict=False)):
        here = arrived[number]
        found.append(
            Delivery(
                before + 1,
                closed + 1,
                [row for tick, row in here if tick <= before],
                [row for tick, row in here if tick > before],
            )
        )
    assert any(len(one.late) > 5 for one in found)
    return found


def as_counted(one: Case, deliveries: list[Delivery]) -> list[dict[str, Any]]:
    """The rows that count, in their order, each with a time in the tick in which it counts."""
    schedule = one.declaration.schedule
    rows: list[dict[str, Any]] = []
    for delivery in deliveries:
        if one.declaration.late == "next":
            rows += [row | {"instant": schedule.start_of(delivery.first)} for row in delivery.late]
        rows += delivery.timely
    return rows


def by_files(one: Case, deliveries: list[Delivery], secret: Secret, folder: Path) -> Rows:
    """A CSV that grows; a run for each delivery, and one more at the beginning that has nothing to
    do."""
    schedule, path, out = one.declaration.schedule, folder / "events.csv", folder / "out.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(deliveries[0].timely[0]))
        writer.writeheader()
        for delivery in deliveries:
            writer.writerows(delivery.timely + delivery.late)
            file.flush()
            now = schedule.start_of(delivery.stop)
            for _ in range(2 if delivery.first == 1 else 1):
                release_file(Job(str(path), one.declaration, str(out), now, secret=secret))
    starts = {
        schedule.show(schedule.start_of(tick)): schedule.start_of(tick)
        for tick in range(1, one.ticks + 1)
    }
    return [(tick, starts[start], *rest) for tick, start, *rest in read(out, "csv")]


def by_service(one: Case, deliveries: list[Delivery], secret: Secret, folder: Path) -> Rows:
    """Requests of the service; the store is closed and opened again in the middle of a tick of
    every delivery."""
    declaration, schedule = one.declaration, one.declaration.schedule
    store = Store(folder / "store.db")
    store.declare(declaration, schedule.begin / 1e6, secret)
    for delivery in deliveries:
        for tick in range(delivery.first, delivery.stop):
            inside = [row for row in delivery.timely if schedule.tick_of(row["instant"]) == tick]
            if tick == delivery.first:
                send(store, one, tick, delivery.late)
                send(store, one, tick, inside[:7])
                store.close()
                store, inside = Store(folder / "store.db"), inside[7:]
            send(store, one, tick, inside)
            store.close_ticks(store.find(declaration.name), 1, 0.0)
    found = read_store(one, store)[declaration.main_view]
    store.close()
    return found


def send(store: Store, one: Case, tick: int, rows: list[dict[str, Any]]) -> None:
    """A request with these rows while the tick is open."""
    body = json.dumps([event_of(one, row) for row in rows]).encode()
    (answer,) = store.accept(
        [read_batch(one.declaration, body)], one.declaration.schedule.start_of(tick) / 1e6
    )
    assert isinstance(answer, Accepted), answer


def event_of(one: Case, row: dict[str, Any]) -> dict[str, Any]:
    """A row as a client of the service sends it."""
    columns = one.declaration.columns
    assert columns is not None
    event = {"time": row["instant"] / 1e6, **levels_of(columns.levels, row, by_name=True)}
    for name, column in (("key", columns.key), ("value", columns.value), ("user", columns.user)):
        if column:
            event[name] = row[column]
    return event


INTERFACES = {"files": by_files, "service": by_service}


DROPPED = ("rollup", "quantiles of users", "distinct users", "discovered keys of users")
"""One of each way to count: what is dropped reaches no query."""


@cache
def expected_of(name: str, rule: str) -> tuple[Case, list[Delivery], Tables]:
    one = SUBJECTS[name].but(late=rule)
    deliveries = deliveries_of(one, events_of(one))
    return one, deliveries, by_library(one, as_counted(one, deliveries), secret_of(name))


# rows of the other subjects take the way of one of these: each has one interface here, and both in
# `make soak`
@pytest.mark.parametrize(
    ("name", "rule", "interface"),
    soak_except(
        [(name, "next", list(INTERFACES)[number % 2]) for number, name in enumerate(SUBJECTS)]
        + [("rollup", "drop", "files"), ("distinct users", "drop", "service")],
        [*product(SUBJECTS, ("next",), INTERFACES), *product(DROPPED, ("drop",), INTERFACES)],
    ),
)
def test_late_rows_count_by_the_declared_rule(
    name: str, rule: str, interface: str, tmp_path: Path
) -> None:
    one, deliveries, expected = expected_of(name, rule)
    found = INTERFACES[interface](one, deliveries, secret_of(name), tmp_path)
    if one.declaration.query.discovery is not None:
        assert len({row[2] for row in found}) > one.declaration.query.outputs, (
            "some key became public"
        )
    assert found == expected[one.declaration.main_view]


@pytest.mark.parametrize("name", DROPPED)
def test_the_rules_differ(name: str) -> None:
    """The comparison can fail: rows that are dropped, that count in the next tick and that came in
    time differ."""
    one, _, dropped = expected_of(name, "drop")
    tables = [
        dropped,
        expected_of(name, "next")[2],
        by_library(one, events_of(one), secret_of(name)),
    ]
    assert all(left != right for number, left in enumerate(tables) for right in tables[:number])
