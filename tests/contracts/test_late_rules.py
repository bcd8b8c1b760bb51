"""`wait` and `late = "revise"` at every interface: files, service, and what Spark and logs hand on
publish one table."""

from __future__ import annotations

import csv
import json
import signal
import textwrap
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from conftest import ROOT_SECRET
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import UNITS
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, ParameterError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.service.views import ViewRequest, read_view
from evercount.store import Accepted, Store
from evercount.store.accept_totals import SourceBatch
from evercount.store.reader import Reading
from evercount.store.schema import users
from evercount.store.writer import WatchedStore
from preloaded_programs import Programs
from soak_cases import soak_except
from store_reading import all_releases, close_and_read

pytest.importorskip("duckdb")
SECRET, HOUR, KEYS = Secret.from_hex(ROOT_SECRET), UNITS["h"], ["n", "s"]
TABLE = {
    "name": "x",
    "query": {"name": "histogram", "parameters": {"keys": KEYS}},
    "budget": {"epsilon": 1.0, "delta": 0},
    "tick": "1h",
    "start": "2026-01-01T00:00Z",
    "columns": {"time": "t", "key": "k"},
    "wait": "30m",
    "horizon": 8,
}
TICKS, LAGS = 8, 3
Arrival = tuple[int, int, str]
"""When a row comes (µs after the start), its time, and its key."""


def declared(**changes: Any) -> StreamDeclaration:
    return StreamDeclaration.from_dict(TABLE | changes)


INTERFACE_RULES = {
    "drop": declared(),
    "next": declared(late="next"),
    "revise": declared(late="revise", revise_for=LAGS - 1, views=["per-tick", "last-3"]),
    "gaussian": declared(
        late="revise",
        revise_for=LAGS - 1,
        budget={"epsilon": 1, "delta": 1e-6},
        factorization="balanced",
    ),
    "revised persons": declared(
        late="revise",
        revise_for=LAGS - 1,
        budget={
            "epsilon": 1,
            "delta": 1e-6,
            "unit": "user",
            "max_events": 3,
            "max_per_tick": 2,
            "period": 1,
        },
        columns={"time": "t", "key": "k", "user": "w"},
    ),
}
BEGIN = INTERFACE_RULES["drop"].schedule.begin


def arrivals() -> list[Arrival]:
    """Rows that come up to five hours after their time: some inside the wait, some late, some too
    late."""
    generator = np.random.default_rng(5)
    delay = generator.choice(
        [0, HOUR // 4, HOUR, 2 * HOUR, 5 * HOUR], 160, p=[0.4, 0.2, 0.2, 0.1, 0.1]
    )
    times = generator.integers(0, TICKS * HOUR, 160)
    keys = generator.choice(KEYS, 160)
    return sorted((int(t + d), int(t), str(k)) for t, d, k in zip(times, delay, keys, strict=True))


def person(time: int) -> str:
    """Few, so that the caps drop some events."""
    return f"u{time % 5}"


def rows_of(one: StreamDeclaration) -> list[Arrival]:
    """The key of a person is always the same: which of their events count does not matter, but how
    many."""
    if one.budget.unit == "event":
        return arrivals()
    return [(came, time, KEYS[int(person(time)[1:]) % 2]) for came, time, _ in arrivals()]


def counted(one: StreamDeclaration, *, users: bool = False) -> list[list[list[str]]]:
    """What each tick counts, lag by lag, in plain Python: tick a is open until half an hour after
    its end. Or, before the caps, the users of that."""
    ticks: list[list[list[str]]] = [[[] for _ in range(LAGS)] for _ in range(TICKS)]
    used: dict[tuple[int, str], list[int]] = {}
    for came, time, key in rows_of(one):
        # the first open tick when it came
        tick, first = time // HOUR + 1, max(0, (came - HOUR // 2) // HOUR) + 1
        place, lag = (tick, 0) if tick >= first else (first, first - tick)
        if lag and one.late == "drop":
            continue
        if (place <= TICKS and lag < LAGS) or (one.late == "next" and place <= TICKS):
            mine = used.setdefault((tick, person(time)), [])
            if users:
                ticks[place - 1][lag].append(person(time))
            elif one.budget.unit == "event" or (len(mine) < 3 and mine.count(place) < 2):
                mine.append(place)
                ticks[place - 1][lag if one.late == "revise" else 0].append(key)
    return ticks


def expected(one: StreamDeclaration) -> list[tuple[Any, ...]]:
    """The table of the library: (tick, as_of, cell, value), or without as_of."""
    stream, ticks = one.build(secret=SECRET, replay=True), counted(one)
    if one.late != "revise":
        rows = stream.run([tick[0] for tick in ticks]).per_tick().values
        return [
            (t + 1, key, float(rows[t, cell]))
            for t in range(TICKS)
            for cell, key in enumerate(KEYS)
        ]
    if one.budget.unit == "user":  # as they came: the library caps them by itself
        named = counted(one, users=True)
        ticks = [[[KEYS[int(user[1:]) % 2] for user in lag] for lag in tick] for tick in named]
        library = stream.run(ticks, named)
        plain = one.build(secret=SECRET, replay=True).run(counted(one), capped="by door")
        assert np.array_equal(library.rows, plain.rows, equal_nan=True)
        kept, all_of_them = (
            sum(len(lag) for tick in part for lag in tick) for part in (counted(one), named)
        )
        assert kept < 0.9 * all_of_them
    else:
        library = stream.run(ticks)
    rows = library.rows.reshape(TICKS, LAGS, 2)
    return [
        (as_of - lag, as_of, key, float(rows[as_of - 1, lag, cell]))
        for as_of in range(1, TICKS + 1)
        for lag in reversed(range(LAGS))
        if as_of > lag
        for cell, key in enumerate(KEYS)
    ]


def by_files(one: StreamDeclaration, folder: Path, db: str | None = None) -> list[tuple[Any, ...]]:
    """A new file for every hour of arrival, and a run half an hour after each."""
    names: list[str] = []
    for hour in range(1, TICKS + 1):
        # what came in the half hours around the run's own: a run sees all that came before it
        since, until = (hour - 1) * HOUR + HOUR // 2 if hour > 1 else 0, hour * HOUR + HOUR // 2
        names.append(str(folder / f"{hour}.csv"))
        with Path(names[-1]).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["t", "k", "w"])
            show = one.schedule.show
            new = [(time, key) for came, time, key in rows_of(one) if since <= came < until]
            writer.writerows([show(BEGIN + time), key, person(time)] for time, key in new)
        release_file(
            Job(tuple(names), one, str(folder / "out.csv"), BEGIN + until, secret=SECRET, db=db)
        )
    with (folder / "out.csv").open(newline="") as file:
        columns = ("tick", "as_of") if one.late == "revise" else ("tick",)
        return [
            (*(int(row[name]) for name in columns), row["cell"], float(row["value"]))
            for row in csv.DictReader(file)
        ]


def by_files_and_store(one: StreamDeclaration, folder: Path) -> list[tuple[Any, ...]]:
    """`release --db`: the files are exports of what the store has."""
    found = by_files(one, folder, str(folder / "store.db"))
    store = Store(folder / "store.db")
    assert shown(one, store) == found
    store.close()
    return found


def shown(one: StreamDeclaration, store: Reading) -> list[tuple[Any, ...]]:
    found = []
    for release in all_releases(store, "x"):
        mark = (release["as_of"],) if one.late == "revise" else ()
        found += [
            (release["tick"], *mark, key, value)
            for key, value in zip(KEYS, release["values"], strict=True)
        ]
    return found


def close_due(store: Store, now: int) -> None:
    live = store.find("x")
    while due := live.due(now / 1e6):
        told = close_and_read(store, live, due, now / 1e6)
        assert told[-1]["tick"] == live.closed
        assert len(told[-1]["values"]) == 2


def by_service(one: StreamDeclaration, folder: Path) -> list[tuple[Any, ...]]:
    """Requests as rows come, with a restart between some of them; ticks close when the clock says
    so."""
    store = Store(folder / "store.db")
    store.declare(one, BEGIN / 1e6, SECRET)
    for number, (came, time, key) in enumerate(rows_of(one)):
        if number % 37 == 36:
            store.close()
            store = Store(folder / "store.db")
        close_due(store, BEGIN + came)
        if store.find("x").closed < TICKS:
            named = {} if one.budget.unit == "event" else {"user": person(time)}
            body = json.dumps([{"key": key, "time": (BEGIN + time) / 1e6, **named}]).encode()
            (answer,) = store.accept([read_batch(one, body)], (BEGIN + came) / 1e6)
            assert isinstance(answer, Accepted), answer
    live = store.find("x")
    store.close_ticks(live, TICKS - live.closed, 0.0) if live.closed < TICKS else None
    assert store.verify(store.head) == []
    found = shown(one, store)
    assert found == shown(one, WatchedStore(folder / "store.db"))
    with store.database.reading() as connection:
        known = [bytes(row.user) for row in connection.execute(select(users.c.user))]
    # days that are final are forgotten
    assert all(int.from_bytes(key[1:8], "big") > TICKS - LAGS + 1 for key in known)
    assert bool(known) == (one.budget.unit == "user")
    if "last-3" in one.views:
        view = read_view(store, live, ViewRequest(view="last-3"), 10**6)
        library = one.build(secret=SECRET, replay=True).run(counted(one)).last(3)
        assert np.array_equal(view.numbers[:, 0], library.values)
        assert np.allclose(view.numbers[:, 1], library.std)
        assert view.left is not None
        assert view.left.tolist() == [0] * (TICKS - LAGS - 1) + [1, 2]
    store.close()
    return found


def by_totals(one: StreamDeclaration, folder: Path) -> list[tuple[Any, ...]]:
    """What Spark and consumers of logs do: totals of batches, by the tick of each row."""
    store = Store(folder / "store.db")
    store.declare(one, BEGIN / 1e6, SECRET)
    for number, (came, time, key) in enumerate(arrivals()):
        close_due(store, BEGIN + came)
        if store.find("x").closed < TICKS:
            tick = time // HOUR + 1
            totals = TickTotals(
                tick, 1, 2, *(np.asarray([part]) for part in (tick, KEYS.index(key), 1))
            )
            store.accept_totals("x", SourceBatch("query", number), Arrivals(totals))
    live = store.find("x")
    store.close_ticks(live, TICKS - live.closed, 0.0) if live.closed < TICKS else None
    found = shown(one, store)
    store.close()
    return found


INTERFACES = {
    "files": by_files,
    "files and store": by_files_and_store,
    "service": by_service,
    "totals": by_totals,
}


EACH_WAY = [
    ("next", "files"),
    ("revise", "files"),
    ("revised persons", "files and store"),
    ("next", "service"),
    ("revised persons", "service"),
    ("gaussian", "service"),
    ("drop", "totals"),
    ("revise", "totals"),
    ("revised persons", "totals"),
]
"""Every rule, interface and noise: which tick a row counts in does not depend on where the
state is."""


@pytest.mark.parametrize(
    ("rule", "interface"),
    soak_except(EACH_WAY, product(INTERFACE_RULES, INTERFACES)),
)
def test_every_interface_publishes_the_same_table(
    rule: str, interface: str, tmp_path: Path
) -> None:
    one = INTERFACE_RULES[rule]
    if (rule, interface) == ("revised persons", "totals"):
        from evercount.consume.consume_log import check_declaration

        with pytest.raises(ParameterError, match="how late it came"):
            check_declaration(one)
        return
    assert INTERFACES[interface](one, tmp_path) == expected(one)


@pytest.mark.slow
def test_spark_revises_as_the_others_do(spark: Any, tmp_path: Path) -> None:
    """A file for every hour of arrival, and a round half an hour after each."""
    from evercount.spark import release_stream

    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    one = INTERFACE_RULES["revise"]
    (tmp_path / "in").mkdir()
    store = Store(tmp_path / "store.db")
    store.declare(one, BEGIN / 1e6, SECRET)
    for hour in range(1, TICKS + 1):
        since, until = (hour - 1) * HOUR + HOUR // 2 if hour > 1 else 0, hour * HOUR + HOUR // 2
        came = [(time, key) for moment, time, key in arrivals() if since <= moment < until]
        rows = [{"t": one.schedule.show(BEGIN + time), "k": key} for time, key in came]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{hour}.parquet")
        events = spark.readStream.schema("t string, k string").options(maxFileAge="36500d")
        released = release_stream(
            events.parquet(str(tmp_path / "in")),
            one,
            store,
            str(tmp_path / "checkpoint"),
            clock=lambda now=BEGIN + until: now,  # type: ignore[misc]
        )
        assert list(released.ticks) == [hour]
    assert shown(one, store) == expected(one)
    store.close()


PROGRAM = """
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from test_late_rules import *

    one = INTERFACE_RULES["revise"]
    store = Store(Path(sys.argv[2]))
    store.declare(one, BEGIN / 1e6, SECRET)
    for number, (came, time, key) in enumerate(arrivals()):
        if number >= int(sys.argv[3]):
            close_due(store, BEGIN + came)
            if store.find("x").closed < TICKS:
                body = json.dumps([{"key": key, "time": (BEGIN + time) / 1e6}]).encode()
                store.accept([read_batch(one, body, key=str(number))], (BEGIN + came) / 1e6)
            print(number, flush=True)
    close_due(store, BEGIN + 100 * HOUR)
"""


@pytest.mark.slow
@pytest.mark.parametrize("most", soak_except([3], [3, 10]))
def test_a_killed_writer_releases_the_same_revisions(
    tmp_path: Path, most: int, programs: Programs
) -> None:
    """kill -9 at so many moments; the next process sends what was not confirmed again, under the
    same keys."""
    generator, done, kills = np.random.default_rng(2), 0, 0
    code, place = textwrap.dedent(PROGRAM), tmp_path / "store.db"
    while done < len(arrivals()):
        until = done + int(generator.integers(10, 50)) if kills < most else 10**6
        process = programs.start(code, Path(__file__).parent, place, done)
        for line in process.stdout:
            done = int(line) + 1
            if done >= until:
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        assert process.wait() in (0, -signal.SIGKILL)
    assert kills == most or (kills >= 3 and done == len(arrivals()))
    one, store = INTERFACE_RULES["revise"], Store(tmp_path / "store.db")
    close_due(store, BEGIN + 100 * HOUR)
    assert store.verify(store.head) == []
    assert shown(one, store) == expected(one)
    store.close()


def test_the_rules_differ() -> None:
    """The comparison can fail."""
    sums = {
        rule: [[len(part) for part in tick] for tick in counted(one)]
        for rule, one in INTERFACE_RULES.items()
    }
    assert sums["drop"] != sums["next"] != sums["revise"]
    assert sum(map(sum, sums["drop"])) < sum(map(sum, sums["revise"])) < sum(map(sum, sums["next"]))
    assert sum(tick[2] > 0 for tick in sums["revise"]) > 3


def test_rules_change_for_events_to_come(tmp_path: Path) -> None:
    """drop → next at tick 3, and a restart keeps that; from and to revise it is another stream."""
    store, one = Store(tmp_path / "store.db"), declared()
    store.declare(one, BEGIN / 1e6, SECRET)
    late = read_batch(one, json.dumps([{"key": "n", "time": BEGIN / 1e6}] * 5).encode())
    timely = [[], [], [], []]
    for tick, rule in ((1, "drop"), (2, "drop"), (3, "next"), (4, "next")):
        if tick == 3:
            live = store.declare(declared(late="next", wait="45m"), BEGIN / 1e6)
            assert (live.declaration.late, live.declaration.wait) == ("next", "45m")
            store.close()
            store = Store(tmp_path / "store.db")
        assert store.find("x").declaration.late == rule
        if tick > 1:
            store.accept([late], (BEGIN + (tick - 1) * HOUR + 50 * HOUR // 60) / 1e6)
        store.close_ticks(store.find("x"), 1, 0.0)
        timely[tick - 1] = ["n"] * 5 if rule == "next" else []
    rows = one.build(secret=SECRET, replay=True).run(timely).per_tick().values
    assert shown(one, store) == [
        (t + 1, key, float(rows[t, c])) for t in range(4) for c, key in enumerate(KEYS)
    ]
    assert store.verify(store.head) == []
    with pytest.raises(Conflict):
        store.declare(declared(late="revise", revise_for=2), BEGIN / 1e6)
    store.close()


def test_a_revised_stream_has_no_shards_and_no_persons_over_several_days(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    with pytest.raises(ParameterError, match="cannot be cut"):
        store.declare(replace(INTERFACE_RULES["revise"], name="y"), BEGIN / 1e6, shards=2)
    store.close()
    with pytest.raises(ParameterError, match="on one day"):
        declared(
            late="revise",
            revise_for=2,
            budget={"epsilon": 1, "delta": 0, "unit": "user", "max_events": 1, "period": 2},
            columns={**TABLE["columns"], "user": "u"},  # type: ignore[dict-item]
        )
