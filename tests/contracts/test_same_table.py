"""One declaration, one secret, the same events: every door publishes the same table, bit for
bit."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evercount
from conftest import ROOT_SECRET
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import EPOCH, parse_instant
from evercount.declarations.settle import settle
from evercount.declarations.view_names import stack_rows, view_table
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.engine.release_table import COLUMNS, ReleaseTable
from evercount.errors import InputError, ParameterError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.files.view_files import view_path
from evercount.noise import Secret
from evercount.privacy import Enforced, guarantee_text
from evercount.service.read_events import read_batch
from evercount.service.views import ViewRequest, read_view
from evercount.store import Accepted, Store
from stored import all_releases
from tiers import soak_but

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Rows = list[tuple[Any, ...]]
Tables = dict[str, Rows]
"""The rows of the main output, by the name of the view that it shows, and of every further view."""
KEYS = ["north", "south", "süd, 'west'"]
HISTOGRAM = {"name": "histogram", "parameters": {"keys": KEYS, "unknown": "other"}}
HOUR = 3600 * 10**6
DAYS_OF_VIENNA = ([5, 28], [28, 52])  # whole ones: not the four hours before
"""Hours from 20:00 on before a day of 23: (first, stop) of each complete day."""
PATHS = [[key, place] for key in KEYS for place in ("1:a", "b", key)]
GAUSSIAN = {"epsilon": 1.0, "delta": 1e-6}
LARGE = {"epsilon": 8.0, "delta": 0.01}
"""So large that keys with some ten events become public."""


@dataclass(frozen=True)
class Case:
    """A declaration, which is made when it is needed, and how many ticks of it are released."""

    table: dict[str, Any]
    ticks: int

    @cached_property
    def declaration(self) -> StreamDeclaration:
        return StreamDeclaration.from_dict(self.table)

    @property
    def query(self) -> str:
        query = self.table["query"]
        return str(query if isinstance(query, str) else query["name"])

    @property
    def ordered(self) -> bool:
        return "order" in self.table["columns"]

    def but(self, **fields: Any) -> Case:
        return Case(self.table | fields, self.ticks)


def case(
    query: Any,
    columns: dict[str, Any],
    ticks: int = 12,
    budget: dict[str, Any] | None = None,
    **rest: Any,
) -> Case:
    fields = {
        "tick": "1h",
        "start": "2026-03-28T20:00:00Z",
        "zone": "UTC",
        "horizon": ticks,
        **rest,
    }
    table = {
        "name": "x",
        "query": query,
        "budget": budget or GAUSSIAN,
        "columns": {"time": "ts", **columns},
        **fields,
    }
    return Case(table, ticks)


CASES = {
    "count": case("count", {}),
    "histogram": case(HISTOGRAM, {"key": "region"}),
    "weighted histogram of users": case(
        {
            "name": "histogram",
            "parameters": {**HISTOGRAM["parameters"], "weights": {"south": 3, "other": 2}},
        },
        {"key": "region", "user": "who"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 3},
    ),
    "top-k": case(
        {"name": "top-k", "parameters": {"keys": KEYS, "k": 2, "unknown": "other"}},
        {"key": "region"},
    ),
    "rollup": case(
        {
            "name": "rollup",
            "parameters": {"paths": PATHS, "weights": [2, 0, 3], "unknown": "other"},
        },
        {"levels": ["region", "place"]},
    ),
    "rollup of users": case(
        {"name": "rollup", "parameters": {"paths": PATHS, "unknown": "other"}},
        {"levels": ["region", "place"], "user": "who"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 3},
    ),
    "marginals": case(
        {
            "name": "marginals",
            "parameters": {
                "columns": [[*KEYS, "unlisted"], list("0123456789")],
                "weights": [1, 2, 1, 1],
            },
        },
        {"levels": ["region", "digit"]},
    ),
    "distinct users": case("distinct-users", {"user": "who"}, budget={**GAUSSIAN, "unit": "user"}),
    "distinct users per key": case(
        {
            "name": "distinct-users",
            "parameters": {"keys": [*KEYS, "unlisted"], "max_keys": 2, "total": True},
        },
        {"user": "who", "key": "region"},
        budget={"epsilon": 1.0, "delta": 0, "unit": "user"},
    ),
    "active users": case(
        {"name": "active-users", "parameters": {"keys": [*KEYS, "unlisted"]}},
        {"user": "who", "key": "region"},
    ),
    "occupancy of users": case(
        {"name": "occupancy", "parameters": {"keys": [*KEYS, "unlisted"], "max_events": 3}},
        {"user": "who", "key": "move"},
        budget={**GAUSSIAN, "unit": "user"},
    ),
    "occupancy, without a cap": case("occupancy", {"user": "who", "key": "door", "order": "seq"}),
    "quantiles": case(
        {"name": "quantiles", "parameters": {"low": -1, "high": 1, "bins": 16}}, {"value": "score"}
    ),
    "quantiles of odd bins": case(
        {
            "name": "quantiles",
            "parameters": {"low": -1.1, "high": 1.3, "bins": 32, "weights": [0, 1, 2, 1, 1, 3]},
        },
        {"value": "score"},
    ),
    "sum": case(
        {"name": "sum", "parameters": {"low": -1, "high": 1, "grid": 0.25}}, {"value": "score"}
    ),
    "average per tick": case(
        {"name": "average", "parameters": {"low": -1, "high": 1, "grid": 0.25}}, {"value": "score"}
    ),
    "average per event": case(
        {"name": "average", "parameters": {"low": -1, "high": 1, "grid": 0.25, "per": "event"}},
        {"value": "score"},
    ),
    "periods": case(HISTOGRAM, {"key": "region"}, factorization="periods-3"),
    "periods, without end": case("count", {}, factorization="periods-3", horizon=None),
    "pure windows": case(
        "count", {}, factorization="pure-window-3", budget={"epsilon": 1.0, "delta": 0}
    ),
    "pure": case("count", {}, budget={"epsilon": 1.0, "delta": 0}),
    "terrace": case(
        HISTOGRAM,
        {"key": "region"},
        factorization={
            "name": "terrace",
            "blocks": [3, 6],
            "shares": [600, 200, 224],
            "weights": [30000, 20000],
        },
        budget={"epsilon": 1.0, "delta": 0},
        views=["per-tick", "last-3", "running"],
    ),
    "honaker-full": case(HISTOGRAM, {"key": "region"}, factorization="honaker-full"),
    "endless": case("count", {}, horizon=None),
    "users": case(
        HISTOGRAM,
        {"key": "region", "user": "who"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 3},
    ),
    "discovered keys": case(
        {"name": "discovered-keys", "parameters": {"minimum": 3}}, {"key": "region"}, budget=LARGE
    ),
    "discovered keys, sometimes, without end": case(
        {"name": "discovered-keys", "parameters": {"every": 4, "share": 0.25}},
        {"key": "region"},
        horizon=None,
        budget=LARGE,
    ),
    "discovered keys of users": case(
        "discovered-keys",
        {"key": "region", "user": "who"},
        budget={**LARGE, "unit": "user", "max_events": 2},
    ),
    "keys of the day": case(
        {"name": "discovered-keys", "parameters": {"minimum": 3}},
        {"key": "region"},
        horizon=None,
        budget=LARGE,
        views=["per-tick"],
    ),
    "keys of the day of users": case(
        "discovered-keys",
        {"key": "region", "user": "who"},
        ticks=4,
        tick="1d",
        start="2026-03-28",
        horizon=None,
        budget={**LARGE, "unit": "user", "max_events": 2},
        views=["per-day"],
    ),
    "users in a declared order": case(
        HISTOGRAM,
        {"key": "region", "user": "who", "order": "seq"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 3},
    ),
    "sums of users": case(
        {"name": "average", "parameters": {"low": -1, "high": 1, "grid": 0.25, "per": "event"}},
        {"value": "score", "user": "who", "order": "seq"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 2},
    ),
    "post-processed": case("count", {}, postprocess=["nonnegative", "integer", "monotone"]),
    "post-processed views": case(
        HISTOGRAM,
        {"key": "region"},
        views=["per-tick", "last-3"],
        postprocess=["nonnegative", "integer"],
    ),
    "running": case("count", {}, views=["running"]),
    "running keys": case(HISTOGRAM, {"key": "region"}, views=["running"]),
    "two views": case(HISTOGRAM, {"key": "region"}, views=["per-tick", "last-3"]),
    "two views of pure noise": case(
        "count", {}, views=["last-3", "running"], budget={"epsilon": 1.0, "delta": 0}
    ),
    "two views of users": case(
        HISTOGRAM,
        {"key": "region", "user": "who", "order": "seq"},
        budget={**GAUSSIAN, "unit": "user", "max_events": 3},
        views=["per-tick", "last-3"],
    ),
    "two views of discovered keys": case(
        {"name": "discovered-keys", "parameters": {"minimum": 3, "every": 2}},
        {"key": "region"},
        budget=LARGE,
        views=["last-3", "running"],
    ),
    "days of hours": case(
        "count", {}, ticks=60, zone="Europe/Vienna", start="2026-03-28T20:00", views=["per-day"]
    ),
    "quantiles and a median": case(
        {"name": "quantiles", "parameters": {"low": -1, "high": 1, "bins": 16}},
        {"value": "score"},
        views=["per-tick", "quantile-0.5"],
    ),
    "days of a clock change": case(
        HISTOGRAM, {"key": "region"}, ticks=4, tick="1d", zone="Europe/Vienna", start="2026-03-28"
    ),
    "weeks": case("count", {}, ticks=2, tick="1w", zone="America/New_York", start="2026-03-23"),
    "half seconds": case("count", {}, ticks=16, tick="500ms", start="2026-03-29T00:59:50Z"),
    "hours over a clock change": case("count", {}, zone="Europe/Vienna", start="2026-03-28T20:00"),
}

PERSONS = {
    "person-days": case(
        HISTOGRAM,
        {"key": "region", "user": "who", "order": "seq"},
        budget={**GAUSSIAN, "unit": "user", "max_per_tick": 2, "period": 1},
    ),
    "three days of a week of each person": case(
        HISTOGRAM,
        {"key": "region", "user": "who", "order": "seq"},
        ticks=16,
        tick="1d",
        zone="Europe/Vienna",
        start="2026-03-26",
        budget={**GAUSSIAN, "unit": "user", "max_per_tick": 2, "max_ticks": 3, "period": "1w"},
    ),
    "all caps of persons": case(
        HISTOGRAM,
        {"key": "region", "user": "who", "order": "seq"},
        budget={
            **GAUSSIAN,
            "unit": "user",
            "max_events": 5,
            "max_per_tick": 2,
            "max_ticks": 3,
            "period": 4,
        },
    ),
}
"""Persons in periods."""
SEQ = {"key": "region", "user": "who", "order": "seq"}
NAMED = {
    "discovered keys of users in a declared order": case(
        "discovered-keys", SEQ, budget={**LARGE, "unit": "user", "max_events": 2}
    ),
    "keys of the day of person-days": case(
        {"name": "discovered-keys", "parameters": {"minimum": 2}},
        SEQ,
        horizon=None,
        budget={**LARGE, "unit": "user", "max_per_tick": 2, "period": 1},
        views=["per-tick"],
    ),
    "distinct users under their first keys": case(
        {
            "name": "distinct-users",
            "parameters": {"keys": [*KEYS, "unlisted"], "max_keys": 2, "total": True},
        },
        SEQ,
        budget={**GAUSSIAN, "unit": "user"},
    ),
    "active users of three days of a week": case(
        {"name": "active-users", "parameters": {"keys": [*KEYS, "unlisted"]}},
        SEQ,
        ticks=16,
        tick="1d",
        zone="Europe/Vienna",
        start="2026-03-26",
        budget={**GAUSSIAN, "unit": "user", "max_ticks": 3, "period": "1w"},
    ),
}
"""Keys that nobody listed and persons that are counted, with an order that Spark needs."""


def events_of(
    one: Case, number: int | None = None, people: int | None = None
) -> list[dict[str, Any]]:
    """Events inside the released ticks, as rows; times are wall times of the zone, offsets and
    seconds since 1970.

    They come in the order in which a service gets them: by time, and by `seq` where that is
    declared; then many events of a user have one time. Unlisted keys need more events than others
    to become public.
    """
    number = number or (600 if one.declaration.query.discovery is not None else 300)
    people = people or min(150, number // 4)
    generator = np.random.default_rng(7)
    schedule = one.declaration.schedule
    low, high = schedule.begin, schedule.start_of(one.ticks + 1)
    instants = np.sort(generator.integers(low, high, number)) // 1000 * 1000
    if one.ordered:
        instants = instants // (HOUR // 2) * (HOUR // 2)
    rows = []
    for i, instant in enumerate(instants.tolist()):
        moment = (EPOCH + timedelta(microseconds=instant)).replace(tzinfo=UTC)
        text = [
            moment.isoformat().replace("+00:00", "Z"),
            schedule.show(instant),
            f"{instant // 10**6}.{instant % 10**6:06d}",
            moment.replace(tzinfo=None).isoformat(" ") + " UTC",
        ][i % 4]
        rows.append(
            {
                "ts": text,
                "instant": instant,
                "region": [*KEYS, "unlisted"][int(generator.integers(0, 4))],
                "place": ["1:a", "b", *KEYS, "1:a1:b"][int(generator.integers(0, 6))]
                if i % 50
                else None,
                "digit": str(i % 10),
                "score": float(generator.integers(-8, 9)) / 8,
                "who": f"u{int(generator.integers(0, people))}",
                "seq": i * 7 - 1000,
            }
        )
        rows[-1] |= {
            "move": rows[-1]["region"] if i % 3 else "out",
            "door": "in" if i % 3 else "out",
        }
    return rows


def as_found(one: Case, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as a table has them: in any order, where the declaration says how to put them in
    order."""
    if not one.ordered:
        return rows
    return [rows[i] for i in np.random.default_rng(8).permutation(len(rows))]


def secret_of(name: str) -> Secret:
    return Secret.from_hex("5a" * 32).derive(f"{name}")


# -- the doors -------------------------------------------------------------------------------------


def check_said(one: Case, said: str) -> None:
    """Doors cap users themselves, so none of them speaks of a promise of its caller."""
    budget, query = settle(one.declaration).budget, one.declaration.query
    enforced: Enforced = "query" if query.people is not None else "evercount"
    assert said == guarantee_text(budget, enforced, one.declaration.tick).sentence
    assert "promised" not in said


class PlainCaps:
    """The caps of a user in plain Python. Weeks are seven days, here, from the start on."""

    def __init__(self, one: Case) -> None:
        self.budget, self.schedule = one.declaration.budget, one.declaration.schedule
        self.length = {"1w": 7, None: one.ticks}.get(self.budget.period, self.budget.period)
        self.came: dict[Any, set[int]] = {}
        self.kept: dict[Any, list[int]] = {}

    def counts(self, row: dict[str, Any]) -> bool:
        most, per_tick, most_ticks = self.budget.caps
        tick = self.schedule.tick_of(row["instant"])
        who = (row["who"], (tick - 1) // self.length)
        came, kept = self.came.setdefault(who, set()), self.kept.setdefault(who, [])
        came.add(tick)
        if (most is not None and len(kept) >= most) or (
            per_tick is not None and kept.count(tick) >= per_tick
        ):
            return False
        if most_ticks is not None and tick not in sorted(came)[:most_ticks]:
            return False
        kept.append(tick)
        return True


def by_library(one: Case, rows: list[dict[str, Any]], secret: Secret) -> Tables:
    """Ticks by the schedule, increments by the query's own encoder, one tick at a time."""
    declaration = one.declaration
    query, schedule = declaration.query, declaration.schedule
    columns = declaration.columns
    assert columns is not None
    ticks: list[list[Any]] = [[] for _ in range(one.ticks)]
    counted = PlainCaps(one)
    for row in rows:
        if columns.user is not None and query.people is None and not counted.counts(row):
            continue
        payload: Any = row[columns.key] if columns.key else row["score"] if columns.value else 1
        if columns.levels:  # no name: an unknown path
            payload = tuple(row[name] or "no name" for name in columns.levels)
        if query.people is not None:
            payload = (row["who"], row[columns.key]) if columns.key else row["who"]
        ticks[schedule.tick_of(row["instant"]) - 1].append(payload)
    counting = query.event_number is not None
    stream = declaration.build(secret=secret, replay=True)
    published = []
    for number, tick in enumerate(ticks, 1):
        if declaration.remembers:
            totals: TickTotals | TickEvents = TickEvents(number, [tick])
        else:
            totals = TickTotals.dense(
                number, [query.encode(None, len(tick) if counting else tick)[0]]
            )
        published += close_ticks(stream, totals, schedule.starts_of)
    tables = {"running": published}
    names = names_of(one)
    if declaration.query.publishing.own_ticks:
        tables = dict.fromkeys(names, published)
    elif names != ["running"]:
        # all views from the whole history at once, by the methods of the library
        releases = stream.read_back(stack_rows(*(table.numbers[:, 0] for table in published)))
        own = {
            "per-tick": releases.per_tick,
            "last-3": lambda: releases.last(3),
            "per-day": lambda: releases.spans("days", *DAYS_OF_VIENNA),
            "quantile-0.5": releases.running,
        }
        made = declaration.view_postprocess
        tables |= {
            name: [view_table(own[name](), name, schedule, postprocess=made)]
            for name in names
            if name in own
        }
    return {name: [row for table in tables[name] for row in rows_of(table)] for name in names}


def names_of(one: Case) -> list[str]:
    """The main output's view first."""
    return list(dict.fromkeys((one.declaration.main_view, *one.declaration.views)))


def rows_of(table: ReleaseTable) -> Rows:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    columns["std"] = [None if std != std else std for std in columns["std"]]
    return list(zip(*columns.values(), strict=True))


def by_file(
    form: str, pieces: int = 2
) -> Callable[[Case, list[dict[str, Any]], Secret, Path], Tables]:
    """The file door, in several runs."""

    def run(one: Case, rows: list[dict[str, Any]], secret: Secret, folder: Path) -> Tables:
        schedule = one.declaration.schedule
        path, out = folder / f"events.{form}", folder / f"out.{form}"
        write(path, form, as_found(one, rows))
        for piece in range(1, pieces + 1):
            now = schedule.start_of(1 + one.ticks * piece // pieces)
            outcome = release_file(Job(str(path), one.declaration, str(out), now, secret=secret))
            check_said(one, outcome.published.guarantee)
        main, *further = names_of(one)
        paths = {main: out, **{name: view_path(out, name) for name in further}}
        return {name: with_instants(one, read(path, form)) for name, path in paths.items()}

    return run


def with_instants(one: Case, rows: Rows) -> Rows:
    """Rows of a release file, with the starts of ticks as instants."""
    schedule = one.declaration.schedule
    instants = {
        schedule.show(schedule.start_of(tick)): schedule.start_of(tick)
        for tick in range(1, one.ticks + 1)
    }
    return [(tick, instants[start], *rest) for tick, start, *rest in rows]


def by_service(
    one: Case, rows: list[dict[str, Any]], secret: Secret, folder: Path, place: str | None = None
) -> Tables:
    """Requests of the service, batch by batch, by the clock of the declaration; read back from the
    store."""
    declaration = one.declaration
    schedule, columns = declaration.schedule, declaration.columns
    assert columns is not None
    payload = columns.key if columns.key else "score" if columns.value else None
    store = Store(place or folder / "store.db")
    try:
        live = store.declare(declaration, schedule.begin / 1e6, secret)
        check_said(one, live.guarantee)
        for tick in range(1, one.ticks + 1):
            inside = [row for row in rows if schedule.tick_of(row["instant"]) == tick]
            for start in range(0, len(inside), 20):
                events = [
                    {"time": row["ts"]}
                    | ({} if payload is None else {"key" if columns.key else "value": row[payload]})
                    | levels_of(columns.levels, row, by_name=bool(start))
                    | ({"user": row["who"]} if columns.user else {})
                    for row in inside[start : start + 20]
                ]
                # a time as text or, where it is one, as a number
                for event in events:
                    if event["time"].replace(".", "").isdigit():
                        event["time"] = float(event["time"])
                body = json.dumps(events).encode()
                (answer,) = store.accept(
                    [read_batch(declaration, body)], schedule.start_of(tick) / 1e6
                )
                assert isinstance(answer, Accepted), answer
            if tick % 5 == 0:  # several ticks at once: the later ones of these have no events
                store.recover()
                live = store.find(declaration.name)
            store.close_ticks(live, 1, 0.0)
        check_said(one, live.guarantee)
        return read_store(one, store)
    finally:
        store.close()


def read_store(one: Case, store: Store) -> Tables:
    """The main output, by tables and tick by tick, and further views as the service reads them."""
    declaration = one.declaration
    live = store.find(declaration.name)
    main, *further = names_of(one)
    exported = [row for table in store.tables_of(declaration.name)[1] for row in rows_of(table)]
    found: Rows = []
    for release in all_releases(store, declaration.name):
        numbers = zip(*(release[name] for name in ("values", "std", "low", "high")), strict=True)
        start = parse_instant(release["start"], UTC, "start")
        named = [(label, *row) for label, row in zip(live.labels, numbers, strict=False)]
        if declaration.query.publishing.own_ticks:  # the store numbers keys as they come
            named = named[:2] + sorted(row for row in named[2:] if row[1] is not None)
        found += [(release["tick"], start, *row) for row in named]
    assert found == exported
    assert store.verify(store.head) == []
    views = {
        name: rows_of(read_view(store, live, ViewRequest(view=name), 10**6)) for name in further
    }
    return {main: found, **views}


def levels_of(levels: tuple[str, ...], row: dict[str, Any], by_name: bool) -> dict[str, Any]:
    """The names of an event of a rollup or a table, as a path or by the names of their columns."""
    names = {name: row[name] or "no name" for name in levels}
    return names if by_name or not names else {"path": list(names.values())}


def write(path: Path, form: str, rows: list[dict[str, Any]]) -> None:
    if form == "csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)


def read(path: Path, form: str) -> Rows:
    if form == "parquet":
        rows = (
            {**row, "start": row["start"].isoformat()} for row in pq.read_table(path).to_pylist()
        )
        return [tuple(row[name] for name in COLUMNS) for row in rows]
    if form == "jsonl":
        return [
            tuple(json.loads(line)[name] for name in COLUMNS)
            for line in path.read_text("utf-8").splitlines()
        ]
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (
                int(row["tick"]),
                row["start"],
                row["cell"],
                *(float(row[name]) if row[name] else None for name in COLUMNS[3:]),
            )
            for row in csv.DictReader(file)
        ]


def by_frame(one: Case, rows: list[dict[str, Any]], secret: Secret, folder: Path) -> Tables:
    """`evercount.release` of a data frame, in several calls with a state; pandas, Polars and Arrow
    take turns."""
    import pandas as pd
    import polars as pl

    schedule, found = one.declaration.schedule, as_found(one, rows)
    frames = [pd.DataFrame(found), pl.DataFrame(found), pa.Table.from_pylist(found)]
    for piece, frame in enumerate(frames, 1):
        now = schedule.show(schedule.start_of(1 + one.ticks * piece // len(frames)))
        state = folder / "frame.state"
        table = evercount.release(frame, one.declaration, now=now, secret=secret, state=state)
        check_said(one, table.guarantee)
    main, *further = names_of(one)
    return {main: rows_of(table), **{name: rows_of(table.views[name]) for name in further}}


def by_release_db(
    one: Case, rows: list[dict[str, Any]], secret: Secret, folder: Path, place: str | None = None
) -> Tables:
    """`release(db=…)` in several runs: the store, its export and the files of the runs hold one
    table."""
    schedule, path, out = one.declaration.schedule, folder / "events.parquet", folder / "db.csv"
    write(path, "parquet", as_found(one, rows))
    for piece in (1, 2):
        now = schedule.show(schedule.start_of(1 + one.ticks * piece // 2))
        places: Any = {"db": place or folder / "r.db", "out": out, "full_digits": True}
        check_said(
            one,
            evercount.release(path, one.declaration, now=now, secret=secret, **places).guarantee,
        )
    store = Store(place or folder / "r.db")
    try:
        tables = read_store(one, store)
    finally:
        store.close()
    main, *further = names_of(one)
    paths = {main: out, **{name: view_path(out, name) for name in further}}
    assert tables == {name: with_instants(one, read(path, "csv")) for name, path in paths.items()}
    return tables


DOORS = {
    "release into a store": by_release_db,
    "csv": by_file("csv"),
    "jsonl": by_file("jsonl"),
    "parquet": by_file("parquet", pieces=1),
    "frame": by_frame,
    "sqlite": by_service,
}


def by_spark_stream(
    spark: Any,
    one: Case,
    rows: list[dict[str, Any]],
    secret: Secret,
    folder: Path,
    shards: int | None = None,
) -> Tables:
    """Spark's streaming door: files in an order that is not that of time, in two rounds."""
    (folder / "in").mkdir()
    for number, (part, closed) in enumerate(two_rounds(one, rows)):
        # two micro-batches: a user's events of one tick come in both
        files = 2 if one.ordered else 1
        for file in range(files):
            write(folder / "in" / f"{number}{1 - file}.parquet", "parquet", part[::-1][file::files])
        spark_round(spark, one, secret, folder / "in", folder, closed, shards)
    return in_store(one, folder)


def two_rounds(one: Case, rows: list[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], int]]:
    """The new rows of each round, and the last tick that it closes; a third of the later rows is
    there early."""
    middle = one.ticks // 2
    early = [row for row in rows if one.declaration.schedule.tick_of(row["instant"]) <= middle]
    late = [row for row in rows if one.declaration.schedule.tick_of(row["instant"]) > middle]
    return [(late[::3] + early, middle), (late[1::3] + late[2::3], one.ticks)]


def spark_round(
    spark: Any,
    one: Case,
    secret: Secret,
    events: Path,
    folder: Path,
    closed: int,
    shards: int | None = None,
) -> None:
    """One round over the Parquet files of `events`, with the store opened anew, as after a
    restart."""
    from evercount.spark import release_stream

    declaration, schedule = one.declaration, one.declaration.schedule
    columns = (
        "ts string, region string, place string, digit string, score double, who string, seq long"
    )
    stream = (
        spark.readStream.schema(columns)
        .options(maxFilesPerTrigger=1, maxFileAge="36500d")
        .parquet(str(events))
    )
    store = Store(folder / "store.db")
    store.declare(declaration, schedule.begin / 1e6, secret, shards=shards)
    checkpoint = str(folder / "checkpoint")
    release_stream(
        stream, declaration, store, checkpoint, clock=lambda: schedule.start_of(closed + 1)
    )
    store.close()


def in_store(one: Case, folder: Path) -> Tables:
    """What the rounds over the store of a folder have released."""
    store = Store(folder / "store.db")
    check_said(one, store.streams[one.declaration.name].guarantee)
    found = read_store(one, store)
    store.close()
    return found


def by_spark_batch(
    spark: Any, one: Case, rows: list[dict[str, Any]], folder: Path, shards: int
) -> Rows:
    """Spark's batch door."""
    from evercount.spark import release_batch

    declaration, schedule = one.declaration, one.declaration.schedule
    pq.write_table(pa.Table.from_pylist(as_found(one, rows)), folder / "events.parquet")
    events = spark.read.parquet(str(folder / "events.parquet"))
    out = folder / "released"
    outcome = release_batch(
        events,
        declaration,
        str(out),
        until=schedule.start_of(one.ticks + 1),
        shards=shards,
        run=declaration.name,
    )
    check_said(one, outcome.guarantee)
    found = [tuple(row[name] for name in COLUMNS) for row in pq.read_table(out).to_pylist()]
    if declaration.query.discovery is None:  # else one task has written them in their order
        place = {label: number for number, label in enumerate(declaration.query.labels)}
        found.sort(key=lambda row: (row[0], place[row[2]]))
    return with_instants(one, found)


def by_log(
    address: str, one: Case, rows: list[dict[str, Any]], secret: Secret, folder: Path
) -> Tables:
    """A log of NATS, in two rounds, a few messages at a time."""
    from evercount.consume import consume_log
    from evercount.consume.log_sources import LogAddress
    from log_servers import publish

    name = folder.name.replace(".", "")
    for part, closed in two_rounds(one, rows):
        found = sorted(part, key=rows.index) if not one.ordered else part
        publish(address, name, [json.dumps({**row, "instant": None}).encode() for row in found])
        store = Store(folder / "store.db")
        store.declare(one.declaration, one.declaration.schedule.begin / 1e6, secret)
        source = LogAddress.parse(f"nats://{address}/{name}").open()
        consumer = consume_log.LogConsumer(source, one.declaration, store, folder, 0)
        consumer.round(one.declaration.schedule.start_of(closed + 1))
        assert not consumer.bad
        consumer.close()
        source.close()
        store.close()
    return in_store(one, folder)


REFUSED_BY_SPARK = {
    name
    for name, one in CASES.items()
    if (one.table["budget"].get("unit") == "user" and not one.ordered and name != "distinct users")
    or one.query in ("active-users", "occupancy")
}
"""What needs the order of a user's events where none is declared, and moves of users."""
COUNTED_ALIKE = {
    "average per tick",
    "endless",
    "honaker-full",
    "periods",
    "periods, without end",
    "post-processed",
    "pure",
    "pure windows",
    "top-k",
}
"""Spark counts these as `sum`, `histogram` and `count`; what the store makes of totals is the same
for the service."""
LOG_CASES = [
    name for name, one in CASES.items() if one.query != "occupancy" and name not in COUNTED_ALIKE
]
LOG_CASES += [name for name in PERSONS if name != "person-days"]
SPARK_CASES = [name for name in CASES if name not in REFUSED_BY_SPARK | COUNTED_ALIKE]
OF_A_LOG = ["rollup", "users in a declared order", "discovered keys"]
OF_SPARK = ["rollup", "average per event", "users in a declared order"]
"""Levels, values, and users with listed cells: after that a store closes the ticks, as for the
service. Persons and keys of the day:
`test_keys_that_nobody_listed_and_persons_are_alike_in_every_door`."""


@pytest.mark.parametrize("name", sorted(REFUSED_BY_SPARK))
def test_spark_refuses_what_it_would_count_wrongly(name: str) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'evercount[spark]'")
    from evercount.spark.session import check_declaration

    with pytest.raises(ParameterError, match=r"evercount release"):
        check_declaration(CASES[name].declaration)


@pytest.mark.slow
@pytest.mark.parametrize("name", soak_but(OF_A_LOG, LOG_CASES))
def test_a_log_publishes_the_same_table(
    name: str, nats_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evercount.consume import consume_log

    monkeypatch.setattr(consume_log, "MOST_MESSAGES", 150)
    one = (CASES | PERSONS)[name]
    rows = events_of(one, 3000) if name in PERSONS else events_of(one)
    secret = secret_of(name)
    expected = by_library(one, rows, secret)
    assert by_log(nats_address, one, rows, secret, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", soak_but(OF_SPARK, SPARK_CASES))
def test_spark_publishes_the_same_table(name: str, spark: Any, tmp_path: Path) -> None:
    one = CASES[name]
    rows = events_of(one)
    secret = secret_of(name)
    expected = by_library(one, rows, secret)
    check_size(one, expected)
    assert by_spark_stream(spark, one, rows, secret, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    soak_but(
        ["all caps of persons"],
        [
            "histogram",
            "average per event",
            "days of a clock change",
            "users in a declared order",
            "running keys",
            "two views",
            "two views of discovered keys",
            "keys of the day",
            "distinct users",
            *PERSONS,
        ],
    ),
)
def test_a_batch_of_spark_publishes_the_same_table(name: str, spark: Any, tmp_path: Path) -> None:
    one = (CASES | PERSONS)[name]
    rows = events_of(one, 3000) if name in PERSONS else events_of(one)
    secret = Secret.from_hex(ROOT_SECRET).derive(f"evercount/spark/run/{one.declaration.name}")
    expected = by_library(one, rows, secret)
    assert by_spark_batch(spark, one, rows, tmp_path, 3) == expected[one.declaration.main_view]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    soak_but(
        ["keys of the day of person-days"],
        [*NAMED, "person-days"],
    ),
)
def test_keys_that_nobody_listed_and_persons_are_alike_in_every_door(
    name: str, spark: Any, nats_address: str, tmp_path: Path
) -> None:
    one = (NAMED | PERSONS)[name]
    rows, secret = events_of(one), Secret.from_hex(ROOT_SECRET).derive("evercount/spark/run/x")
    expected = by_library(one, rows, secret)
    check_size(one, expected)
    assert by_file("parquet")(one, rows, secret, tmp_path) == expected
    (tmp_path / "service").mkdir()
    assert by_service(one, rows, secret, tmp_path / "service") == expected
    (tmp_path / f"log{name.replace(' ', '')}").mkdir()
    assert (
        by_log(nats_address, one, rows, secret, tmp_path / f"log{name.replace(' ', '')}")
        == expected
    )
    assert by_spark_batch(spark, one, rows, tmp_path, 3) == expected[one.declaration.main_view]
    shards = 3 if name == "person-days" else None  # only listed cells can be cut
    assert by_spark_stream(spark, one, rows, secret, tmp_path, shards) == expected


@pytest.mark.slow
@pytest.mark.parametrize("by_spark", ["next", pytest.param("drop", marks=pytest.mark.soak)])
def test_late_events_of_capped_users_count_alike_in_files_and_spark(
    by_spark: str, spark: Any, tmp_path: Path
) -> None:
    """Every third event comes after its tick was closed: it counts in the open tick, inside its
    user's cap."""
    tables = []
    for late in ("next", "drop"):
        one = case(
            HISTOGRAM,
            {"key": "region", "user": "who", "order": "seq"},
            ticks=6,
            budget={**GAUSSIAN, "unit": "user", "max_events": 3},
            late=late,
        )
        schedule, secret, folder = one.declaration.schedule, secret_of("late"), tmp_path / late
        (folder / "in").mkdir(parents=True)
        rows = as_found(one, events_of(one))
        delay = itertools.cycle((2, 0, 0))
        arrival = [
            min(6, schedule.tick_of(row["instant"]) + ticks)
            for row, ticks in zip(rows, delay, strict=False)
        ]
        for closed in (2, 4, 6):
            new = [
                row for row, tick in zip(rows, arrival, strict=True) if closed - 2 < tick <= closed
            ]
            write(folder / f"{closed}.jsonl", "jsonl", new)
            with (folder / "events.jsonl").open("ab") as file:
                file.write((folder / f"{closed}.jsonl").read_bytes())
            now = schedule.start_of(closed + 1)
            out = str(folder / "out.jsonl")
            release_file(
                Job(str(folder / "events.jsonl"), one.declaration, out, now, secret=secret)
            )
        tables.append(with_instants(one, read(folder / "out.jsonl", "jsonl")))
        if late != by_spark:
            continue
        for closed in (2, 4, 6):
            new = [
                json.loads(line)
                for line in (folder / f"{closed}.jsonl").read_text("utf-8").splitlines()
            ]
            write(folder / "in" / f"{closed}.parquet", "parquet", new)
            spark_round(spark, one, secret, folder / "in", folder, closed)
        assert in_store(one, folder)["per-tick"] == tables[-1]
    assert tables[0] != tables[1]


EVERY_FORM = [
    "histogram",
    "rollup",
    "marginals",
    "distinct users per key",
    "active users",
    "quantiles",
    "average per event",
    "endless",
    "users",
    "discovered keys of users",
    "users in a declared order",
    "days of a clock change",
    "half seconds",
]
"""One case of each kind of columns and of clock: the others differ only in what becomes of their
totals."""
BY_TYPE = [
    "histogram",
    "rollup",
    "active users",
    "quantiles",
    "users in a declared order",
    "days of a clock change",
    "half seconds",
]
"""Of these, one for each type of a column: what rows become after they are read is the same for all
forms."""
INTO_STORES = [
    "histogram",
    "users in a declared order",
    "discovered keys of users",
    "days of a clock change",
    "two views",
]
"""Rows are counted as from any file, and ticks closed as by the service."""

READ_BACK = [
    "keys of the day",
    "post-processed",
    "two views of discovered keys",
    "quantiles and a median",
    "pure",
]
"""What a state alone keeps of them is more than running sums."""
EVERY_DOOR = [
    (name, door)
    for name in CASES
    for door in DOORS
    if door in ("csv", "sqlite")
    or name in (INTO_STORES if door == "release into a store" else BY_TYPE)
    or (door == "frame" and name in READ_BACK)
]
OF_CSV = [
    "histogram",
    "rollup of users",
    "marginals",
    "distinct users per key",
    "active users",
    "occupancy of users",
    "quantiles of odd bins",
    "sum",
    "average per event",
    "discovered keys of users",
    "keys of the day of users",
    "users in a declared order",
    "post-processed views",
    "two views of discovered keys",
    "days of hours",
    "quantiles and a median",
    "days of a clock change",
    "half seconds",
    "terrace",
]
"""Each kind of cell, of caps, of clock and of view: after a row has its cell, a file is counted as
any other."""
LIKE_OTHERS = {
    "average per tick": "average per event",
    "count": "hours over a clock change",
    "days of hours": "days of a clock change",
    "discovered keys": "keys of the day",
    "discovered keys of users": "weighted histogram of users",
    "distinct users": "distinct users per key",
    "histogram": "post-processed views",
    "keys of the day of users": "keys of the day",
    "occupancy of users": "occupancy, without a cap",
    "periods": "periods, without end",
    "post-processed": "post-processed views",
    "pure": "two views of pure noise",
    "quantiles": "quantiles and a median",
    "quantiles of odd bins": "quantiles and a median",
    "rollup": "rollup of users",
    "running": "two views of pure noise",
    "running keys": "two views of users",
    "sum": "average per event",
    "two views": "two views of users",
    "users": "weighted histogram of users",
    "users in a declared order": "two views of users",
    "weeks": "days of a clock change",
}
"""What walks the way of another case through the service and its store, and of which one."""
KEPT_CASES = {
    "csv": OF_CSV,
    "sqlite": [name for name in CASES if name not in LIKE_OTHERS],
    "jsonl": ["rollup", "quantiles", "users in a declared order"],
    "parquet": ["rollup", "quantiles", "users in a declared order", "half seconds"],
    "frame": [
        "histogram",
        "users in a declared order",
        "days of a clock change",
        "keys of the day",
        "pure",
    ],
    "release into a store": ["users in a declared order", "discovered keys of users", "two views"],
}
"""What CI runs; files of other forms: one case for each type of a column."""


def test_what_ci_leaves_out_is_seen_in_another_case() -> None:
    kept = {name for names in KEPT_CASES.values() for name in names}
    assert all(name in kept or LIKE_OTHERS[name] in KEPT_CASES["sqlite"] for name in CASES)
    assert {CASES[name].query for name in KEPT_CASES["sqlite"]} == {
        one.query for one in CASES.values()
    } - {"sum"}
    assert "sum" in KEPT_CASES["csv"]


@pytest.mark.filterwarnings("ignore:ticks of 500ms are very short")
@pytest.mark.parametrize(
    ("name", "door"),
    soak_but([(name, door) for door, names in KEPT_CASES.items() for name in names], EVERY_DOOR),
)
def test_every_door_publishes_the_same_table(name: str, door: str, tmp_path: Path) -> None:
    one = CASES[name]
    rows, expected = expected_of(name)
    found = DOORS[door](one, rows, secret_of(name), tmp_path)
    check_size(one, expected)
    assert found == expected


@cache
def expected_of(name: str) -> tuple[list[dict[str, Any]], Tables]:
    """The events of a case and what the library publishes of them, once for all doors."""
    one = CASES[name]
    rows = events_of(one)
    return rows, by_library(one, rows, secret_of(name))


def check_size(one: Case, tables: Tables) -> None:
    """The tables that are compared are not empty."""
    for name, rows in tables.items():
        if one.declaration.query.discovery is not None:
            assert len({row[2] for row in rows}) > one.declaration.query.outputs, (
                "some key became public"
            )
            continue
        ticks = {"last-3": one.ticks - 2, "per-day": 2}.get(name, one.ticks)
        assert len(rows) == ticks * (1 if name == "quantile-0.5" else one.declaration.query.outputs)


def test_what_is_shown_by_default() -> None:
    """New events per tick where a clock closes the ticks; else running totals, and where
    differences mean nothing."""
    shown = {name: one.declaration.main_view for name, one in CASES.items()}
    running = {
        "average per tick",
        "average per event",
        "sums of users",
        "post-processed",
        "running",
        "running keys",
    }
    running |= {
        "occupancy of users",
        "occupancy, without a cap",
        "discovered keys, sometimes, without end",
    }
    first = {
        "two views of pure noise": "last-3",
        "two views of discovered keys": "last-3",
        "days of hours": "per-day",
        "keys of the day of users": "per-day",
    }
    assert shown == {
        name: "running" if name in running else first.get(name, "per-tick") for name in CASES
    }
    by_hand = {"name": "x", "query": "count", "budget": GAUSSIAN}
    assert StreamDeclaration.from_dict(by_hand).main_view == "running"
    assert StreamDeclaration.from_dict({**by_hand, "views": ["per-tick"]}).main_view == "per-tick"


@pytest.mark.parametrize("name", soak_but(["all caps of persons"], PERSONS))
def test_service_and_files_count_persons_in_periods_as_the_library_does(
    name: str, tmp_path: Path
) -> None:
    one = PERSONS[name]
    rows, secret = events_of(one, 1000, 50), secret_of(name)
    expected = by_library(one, rows, secret)
    assert by_service(one, rows, secret, tmp_path) == expected
    assert by_file("parquet")(one, rows, secret, tmp_path) == expected
    counted = PlainCaps(one)
    assert 167 < sum(map(counted.counts, rows)) < 833, "the caps drop some events, not all"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ticks of 500ms are very short")
@pytest.mark.parametrize(
    ("name", "door"),
    soak_but(
        [(name, by_service) for name in ("rollup", "users in a declared order", "half seconds")]
        + [("discovered keys of users", by_release_db)],
        itertools.product(EVERY_FORM, [by_service, by_release_db]),
    ),
)
def test_postgresql_publishes_the_same_table(
    name: str, door: Any, tmp_path: Path, postgres: Any
) -> None:
    one = CASES[name]
    rows, secret = events_of(one, 60), secret_of(name)
    expected = by_library(one, rows, secret)
    assert door(one, rows, secret, tmp_path, postgres.fresh()) == expected


def test_a_table_of_other_events_differs(tmp_path: Path) -> None:
    """The comparison can fail: one event less, another secret, another declaration."""
    one = CASES["histogram"]
    rows, secret = events_of(one), secret_of("other")
    expected = by_library(one, rows, secret)
    assert by_library(one, rows[1:], secret) != expected
    assert by_library(one, rows, secret_of("third")) != expected
    smaller = one.but(budget={**GAUSSIAN, "epsilon": 0.5})
    assert by_library(smaller, rows, secret) != expected


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_an_empty_user_is_nobody_in_every_door(form: str, tmp_path: Path) -> None:
    """In a file it is a bad row, at the other doors it is refused. Spark:
    tests/spark/test_count_events.py::test_users_are_capped_as_in_the_file_door."""
    one = CASES["users"]
    declaration, rows, secret = one.declaration, events_of(one), secret_of("nobody")
    (tmp_path / "plain").mkdir()
    plain = by_file(form, 1)(one, rows, secret, tmp_path / "plain")["per-tick"]
    path, out = tmp_path / f"events.{form}", tmp_path / f"out.{form}"
    write(path, form, as_found(one, [*rows, {**rows[0], "who": ""}]))
    now = declaration.schedule.start_of(1 + one.ticks)
    with pytest.raises(InputError, match="no user"):
        release_file(Job(str(path), declaration, str(out), now, secret=secret))
    outcome = release_file(Job(str(path), declaration, str(out), now, secret=secret, skip_bad=True))
    assert outcome.bad == 1
    assert [row[2:] for row in read(out, form)] == [row[2:] for row in plain]
    with pytest.raises(InputError, match="1 to 256 characters"):
        read_batch(declaration, json.dumps([{"key": "north", "user": ""}]).encode())
    stream = declaration.build(secret=secret, replay=True)
    with pytest.raises(InputError, match="names nobody"):
        stream.step(["north"], users=[""])


def test_declarations_survive_toml_and_json(tmp_path: Path) -> None:
    from evercount.declarations.streams_file import read_declarations

    path = tmp_path / "streams.toml"
    for one in CASES.values():
        path.write_text(one.declaration.to_toml(), "utf-8")
        assert read_declarations(path) == [one.declaration]
        assert (
            StreamDeclaration.from_dict(json.loads(one.declaration.canonical())) == one.declaration
        )
