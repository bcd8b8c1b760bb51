"""Caps that are carried over: what a person has used stays used in the next stream, or the way in
is refused."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evercount
from evercount import Ledger
from evercount.errors import ParameterError
from evercount.store import Store

pytest.importorskip("duckdb")
DAYS, YEARS = 4, 4
EPSILON = 200.0  # noise that is 0 but for a chance of e^-30
QUERIES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "active": ({"query": "active-users"}, {"max_ticks": 3}),
    "active with keys": (
        {"query": "active-users", "key": "region", "keys": ["n", "s"]},
        {"max_ticks": 3},
    ),
    "count": ({}, {"max_ticks": 3, "max_per_tick": 2}),
    "histogram": ({"key": "region", "keys": ["n", "s"]}, {"max_events": 5}),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def events(seed: int) -> list[tuple[int, str, str]]:
    """Day from 0 on, person and region of each event, in their order: most persons come in every
    year."""
    draw = random.Random(seed)
    days = sorted(draw.randrange(DAYS * YEARS) for _ in range(150))
    return [(day, f"u{draw.randrange(6)}", draw.choice("ns")) for day in days]


def counted(name: str, rows: list[tuple[int, str, str]]) -> list[float]:
    """How much each day counts, with the caps of one stream over all years, in plain Python."""
    caps = QUERIES[name][1]
    persons_once = name.startswith("active")
    total, by_person = [0.0] * (DAYS * YEARS), dict[str, list[int]]()
    came = set[Any]()
    for day, who, region in rows:
        once = (day, who, region) if "keys" in name else (day, who)
        if persons_once and once in came:
            continue
        came.add(once)
        before = by_person.setdefault(who, [])
        visits = Counter(before)
        if visits[day] == 0 and len(visits) >= caps.get("max_ticks", 99):
            continue
        if len(before) >= caps.get("max_events", 99) or visits[day] >= caps.get("max_per_tick", 99):
            continue
        before.append(day)
        once_a_day = persons_once and before.count(day) > 1  # under one key only: max_keys is 1
        total[day] += not once_a_day
    return total


def declared(name: str, **more: Any) -> Any:
    query, caps = QUERIES[name]
    times: Any = {"time": "ts", "every": "1d", "zone": "UTC", "start": "2026-01-01", "user": "who"}
    return evercount.declare(
        **times,
        **query,
        **caps,
        epsilon=EPSILON,
        horizon=DAYS,
        views=["per-tick"],
        carry_caps=True,
        **more,
    )


@pytest.mark.filterwarnings("ignore:epsilon=200")
@pytest.mark.parametrize("place", [{"state": "years.state"}, {"db": "years.db"}], ids=str)
@pytest.mark.parametrize("name", QUERIES)
def test_caps_are_those_of_one_stream(name: str, place: dict[str, str]) -> None:
    """Four years in four streams, and the ledger is charged for one: nobody counts more than the
    caps of one allow."""
    rows = events(list(QUERIES).index(name))
    frame = pd.DataFrame(
        [
            (pd.Timestamp("2026-01-01 09:00", tz="UTC") + pd.Timedelta(days=day), who, region)
            for day, who, region in rows
        ],
        columns=["ts", "who", "region"],
    )
    published: list[float] = []
    for year in range(YEARS):
        total = {"total": (EPSILON, 1e-6)} if year == 0 else {}
        options: Any = {**place, "renew": True, "ledger": "years.ledger", **total}
        table = evercount.release(frame, declared(name), now="2027-01-01", **options)
        columns = table.columns()
        by_day = (
            pd.DataFrame({key: columns[key] for key in ("tick", "value")})
            .groupby("tick")["value"]
            .sum()
        )
        published += by_day.tolist()
    expected = counted(name, rows)
    assert published == expected
    later = sum(expected[DAYS:])
    assert later < sum(expected), "somebody has used up a cap"
    with Ledger(path="years.ledger") as ledger:
        assert "4 streams, together epsilon=200" in str(ledger.sentence())


def test_a_stream_built_in_python_hands_nothing_on_and_is_refused() -> None:
    """Such a stream would begin with fresh caps and be charged as if it had not. A replay publishes
    nothing."""
    for name in QUERIES:
        year = declared(name)
        for one in (year, year.renewed()):
            with pytest.raises(ParameterError, match="only there does a stream begin"):
                one.build()
            with pytest.raises(ParameterError, match="only there does a stream begin"):
                one.build(ledger=Ledger(one.budget))
        assert year.build(replay=True).cost.chain


def test_a_store_that_takes_events_hands_nothing_on_and_is_refused() -> None:
    store = Store("s.db")
    with pytest.raises(ParameterError, match="hand no caps on"):
        store.declare(declared("active"), 1.77e9)
    assert not store.streams
    store.close()


def test_spark_hands_nothing_on_and_is_refused() -> None:
    pytest.importorskip("pyspark")
    from evercount.spark.session import check_declaration

    with pytest.raises(ParameterError, match="Spark hands no caps on"):
        check_declaration(declared("active"))
