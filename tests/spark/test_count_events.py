"""Rows become events by the same rules as in files, whatever the types of their columns."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.files.bad_rows import find_rejects
from evercount.files.count_rows import count
from evercount.files.event_sql import FRACTION, NO_ORDER, REASONS
from evercount.files.source import open_source
from evercount.service.read_events import read_batch
from soak_cases import soak_except

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark")

from evercount.spark.count_events import (  # noqa: E402
    BAD,
    TOO_FAR,
    capped_groups,
    count_placed,
    place_events,
    refuse_bad,
)
from evercount.spark.session import check_declaration  # noqa: E402

TICKS = 60
TIMES = [
    "2026-03-28T12:00:00Z",
    "2026-03-28 12:00:00 UTC",
    "2026-03-28T12:00:00+0130",
    "2026-03-28T12:00:00.123456789-05",
    "2026-03-28T12:00Z",
    "2026-03-28 12:00+01:00",
    "2026-03-28T12:00:00",
    "2026-03-28 23:59:59.999999",
    "2026-03-29",
    "2026-03-29 02:30",  # never shown by a clock in Vienna
    "2026-03-29T03:00:00",
    "2026-10-25 02:30:00",  # shown twice
    "1774699200",
    "1774699200.5",
    "1774699200.0000005",
    "",
    "soon",
    "2026-02-30T00:00:00Z",
    "2026-3-29 10:00:00",
    "12026-03-29 10:00:00",
    "2026-03-29T10:00:00 Europe/Vienna",
    " 2026-03-29T10:00:00Z",
    "2026-03-29T10:00:00Z\n",
    "2026-03-29T10:00:61Z",
    "2026",
    "99999999",
    "100000000000",
    "1774699200e0",
    "2025-03-29T10:00:00Z",
    "2027-03-29T10:00:00Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    None,
]


def count_events(
    events: Any, declaration: StreamDeclaration, last: int, horizon: int | None
) -> Arrivals:
    with count_placed(place_events(events, declaration, last, horizon), declaration) as arrivals:
        return arrivals


def declared(
    query: Any = "count", columns: dict[str, str] | None = None, **rest: Any
) -> StreamDeclaration:
    fields = {"tick": "6h", "start": "2026-03-28T00:00", "zone": "UTC", "horizon": TICKS, **rest}
    table = {"name": "x", "query": query, "budget": {"epsilon": 1.0, "delta": 1e-6}, **fields}
    return StreamDeclaration.from_dict({**table, "columns": {"time": "ts", **(columns or {})}})


def by_file(declaration: StreamDeclaration, rows: Any, folder: Path) -> tuple[Any, dict[str, int]]:
    path = folder / "events.parquet"
    pq.write_table(rows, path)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    source = open_source(str(path), scratch)
    counted = count((source,), declaration, 1, TICKS + 1, scratch)
    bad: dict[str, int] = {}
    for reject in find_rejects((source,), declaration, scratch) if counted.bad else ():
        bad[reject.reason] = bad.get(reject.reason, 0) + 1
    path.unlink()
    return counted.totals.rows(1, TICKS + 1), bad


def by_spark(
    spark: Any, declaration: StreamDeclaration, rows: Any, folder: Path
) -> tuple[Any, dict[str, int]]:
    path = folder / "events.spark.parquet"
    pq.write_table(rows, path)
    counted = count_events(spark.read.parquet(str(path)), declaration, TICKS, TICKS)
    totals = counted.totals
    dense = replace(totals, first_tick=1, ticks=TICKS).rows(1, TICKS + 1)
    path.unlink()
    return dense, counted.reasons


def same(
    spark: Any, declaration: StreamDeclaration, rows: Any, folder: Path
) -> tuple[Any, dict[str, int]]:
    expected, found = by_file(declaration, rows, folder), by_spark(spark, declaration, rows, folder)
    assert np.array_equal(expected[0], found[0])
    assert expected[1] == found[1]
    return found


@pytest.mark.parametrize("tick", soak_except(["1d"], ["6h", "1d"]))
def test_spark_and_the_file_interface_agree_row_by_row(
    spark: Any, tick: str, tmp_path: Path
) -> None:
    """Each text alone, so that no two differences cancel."""
    declaration = declared({"name": "histogram",
                            "parameters": {"keys": [f"r{i}" for i in range(len(TIMES))]}},
                           {"key": "row"}, tick=tick, zone="Europe/Vienna")  # fmt: skip
    rows = pa.table(
        {"ts": pa.array(TIMES, pa.string()), "row": [f"r{i}" for i in range(len(TIMES))]}
    )
    totals, bad = same(spark, declaration, rows, tmp_path)
    assert totals.sum() >= 10
    assert {REASONS[1], REASONS[2], REASONS[3], REASONS[4]} <= set(bad)


MOMENTS = [
    datetime(2026, 3, 28, 23, 59, 59, 999999),
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 3, 29, 3),
    None,
]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(MOMENTS, pa.timestamp("us")),
        pytest.param(
            pa.array([m and m.replace(tzinfo=UTC) for m in MOMENTS], pa.timestamp("us", "UTC")),
            marks=pytest.mark.soak,  # as in most tests of streams
        ),
        pa.array([date(2026, 3, 28), date(2026, 4, 1), date(2020, 1, 1), None], pa.date32()),
        pytest.param(
            pa.array([1774699200, 1774785600, 2026, None], pa.int64()), marks=pytest.mark.soak
        ),
        pa.array([1774699200.5, float("nan"), float("inf"), None], pa.float64()),
    ],
    ids=["wall", "instant", "date", "int64", "double"],
)
def test_times_of_every_type(spark: Any, column: Any, tmp_path: Path) -> None:
    totals, _ = same(
        spark, declared(tick="1d", zone="Asia/Tokyo"), pa.table({"ts": column}), tmp_path
    )
    assert totals.sum() >= 1


@pytest.mark.parametrize(
    ("keys", "unknown"),
    [(["a", "süd, 'west'", "`x`"], "other"), pytest.param(3, "refuse", marks=pytest.mark.soak)],
)
def test_keys(spark: Any, keys: Any, unknown: str, tmp_path: Path) -> None:
    declaration = declared(
        {"name": "histogram", "parameters": {"keys": keys, "unknown": unknown}},
        {"key": "the `key`.x"},
    )
    given = (
        pa.array([0, 1, 2, 3, -1, None, 2])
        if keys == 3
        else pa.array(["a", "süd, 'west'", "`x`", "A", "", None, "a "])
    )
    rows = pa.table({"ts": ["2026-03-28T12:00:00Z"] * 7, "the `key`.x": given})
    totals, bad = same(spark, declaration, rows, tmp_path)
    assert totals.sum() == (7 if unknown == "other" else 7 - bad[REASONS[5]])


HALF = b"\xed\xa0\x80"
"""Half of a surrogate pair as bytes: no text in UTF-8."""


@pytest.mark.parametrize("unknown", soak_except(["refuse"], ["refuse", "other"]))
def test_a_key_with_half_a_surrogate_pair_is_unknown(
    spark: Any, unknown: str, tmp_path: Path
) -> None:
    """In Parquet as bytes, in JSON as an escape, which Spark's reader gives as "?"; the other
    interfaces answer alike."""
    declaration = declared(
        {"name": "histogram", "parameters": {"keys": ["a", "\u00e9"], "unknown": unknown}},
        {"key": "k"},
    )
    time = "2026-03-28T12:00:00Z"
    halves = pa.array([b"a", HALF, b"a" + HALF], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"ts": [time] * 3, "k": halves}), tmp_path / "x.parquet")
    escapes = "".join(
        json.dumps({"ts": time, "k": key}) + "\n" for key in ("a", "\ud800", "a\ud800")
    )
    (tmp_path / "x.jsonl").write_text(escapes)
    texts = spark.read.schema("ts string, k string").json(str(tmp_path / "x.jsonl"))
    for rows in (spark.read.parquet(str(tmp_path / "x.parquet")), texts):
        counted = count_events(rows, declaration, TICKS, TICKS)
        if unknown == "other":
            assert (
                counted.totals.cell.tolist(),
                counted.totals.total.tolist(),
                counted.reasons,
            ) == (
                [0, 2],
                [1, 2],
                {},
            )
        else:
            assert (counted.totals.cell.tolist(), counted.totals.total.tolist()) == ([0], [1])
            assert counted.reasons == {REASONS[5]: 2}
    assert [row["k"] for row in texts.collect()] == ["a", "?", "a?"]
    # the library and the service: the declared rule; files: bad rows, or a file that cannot be read
    body = json.dumps([{"time": time, "key": "\ud800"}]).encode()
    if unknown == "other":
        assert declaration.query.encode(None, ["\ud800"])[0].tolist() == [0, 0, 1]
        assert read_batch(declaration, body).row.tolist() == [0, 0, 1]
    else:
        with pytest.raises(EventRefused):
            declaration.query.encode(None, ["\ud800"])
        with pytest.raises(EventRefused):
            read_batch(declaration, body)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    counted_file = count(
        (open_source(str(tmp_path / "x.jsonl"), scratch),), declaration, 1, TICKS + 1, scratch
    )
    assert (counted_file.totals.total.tolist(), counted_file.bad) == ([1], 2)


def test_a_declared_key_with_half_a_surrogate_pair_is_refused() -> None:
    table = declared(
        {"name": "histogram", "parameters": {"keys": ["a", "b"]}}, {"key": "k"}
    ).to_dict()
    table["query"]["parameters"]["keys"] = ["a", "b\ud800"]
    with pytest.raises(ParameterError, match="half of a surrogate pair"):
        StreamDeclaration.from_dict(table)


def test_values(spark: Any, tmp_path: Path) -> None:
    declaration = declared(
        {"name": "average", "parameters": {"low": -1, "high": 1, "grid": 0.25, "per": "event"}},
        {"value": "v"},
    )
    values = [0.125, 0.375, -0.125, 1.0, -1.0, 1.0000001, float("nan"), float("inf"), None, 0.3]
    rows = pa.table({"ts": ["2026-03-28T12:00:00Z"] * len(values), "v": values})
    _, bad = same(spark, declaration, rows, tmp_path)
    assert bad == {REASONS[6]: 2, REASONS[7]: 2}


def test_fractions_are_bad_where_the_grid_is_one(spark: Any, tmp_path: Path) -> None:
    declaration = declared({"name": "sum", "parameters": {"low": 0, "high": 5}}, {"value": "v"})
    values = [0.0, 3.0, 5.0, 0.3, 2.999999999, 5.5]
    rows = pa.table({"ts": ["2026-03-28T12:00:00Z"] * len(values), "v": values})
    _, bad = same(spark, declaration, rows, tmp_path)
    assert bad == {REASONS[FRACTION]: 2, REASONS[7]: 1}


def test_values_that_are_texts(spark: Any, tmp_path: Path) -> None:
    declaration = declared(
        {"name": "sum", "parameters": {"low": -1, "high": 1, "grid": 0.25}}, {"value": "v"}
    )
    texts = ["0.5", "-1", "1e-1", "1d", "0x1", "", "two", None, "+.5"]
    rows = pa.table({"ts": ["2026-03-28T12:00:00Z"] * len(texts), "v": texts})
    path = str(tmp_path / "t.parquet")
    pq.write_table(rows, path)
    counted = count_events(spark.read.parquet(path), declaration, TICKS, TICKS)
    assert counted.totals.total.tolist() == [2 - 4 + 0 + 2]
    assert counted.reasons == {REASONS[6]: 5}


def test_users_are_capped_as_in_the_file_interface(spark: Any, tmp_path: Path) -> None:
    """Few users, times and orders: many events stand at one place; and rows that lack something,
    alone or together."""
    declaration = declared(
        {"name": "histogram", "parameters": {"keys": ["a", "b"], "unknown": "refuse"}},
        {"key": "k", "user": "who", "order": "n"},
        budget={"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3},
    )
    draw = np.random.default_rng(2).integers
    rows = [
        {
            "ts": f"2026-03-28T{draw(0, 24):02d}:00:00Z",
            "k": "ab"[draw(0, 2)],
            "who": f"u{draw(0, 20)}",
            "n": f"{draw(0, 3)}",
        }
        for _ in range(200)
    ]
    for gone in (("who",), ("n",), ("k",), ("k", "who"), ("who", "n"), ("ts", "who")):
        rows.append({**rows[0], **dict.fromkeys(gone)})
    rows.append({**rows[0], "n": "first"})
    rows.append({**rows[0], "who": ""})  # it names nobody
    table = pa.Table.from_pylist(rows)
    totals, bad = by_file(declaration, table, tmp_path)
    assert totals.sum() <= 60
    assert bad[REASONS[NO_ORDER]] >= 2
    pq.write_table(table, tmp_path / "x.parquet")
    events = spark.read.parquet(str(tmp_path / "x.parquet"))
    groups = capped_groups(events, declaration, TICKS, TICKS).collect()
    found = np.zeros_like(totals)
    for row in groups:
        if row["place"] > 0:
            found[row["place"] - 1, row["cell"]] += row["events"]
    assert np.array_equal(found, totals)
    assert {BAD[-row["place"]]: row["events"] for row in groups if row["place"] < 0} == bad
    counted = count_events(events, declaration, TICKS, TICKS)
    assert counted.reasons == bad
    assert counted.persons is not None
    assert counted.persons.place is not None
    per_tick = Counter(
        zip(counted.persons.tick.tolist(), counted.persons.place.tolist(), strict=True)
    )
    assert max(per_tick.values()) >= 3


def test_rows_far_ahead_are_bad_and_rows_after_the_horizon_are_ignored(spark: Any) -> None:
    rows = spark.sql(
        "SELECT TIMESTAMP'2026-04-08 00:00:00Z' AS ts UNION ALL SELECT TIMESTAMP'2036-01-01 "
        "00:00:00Z'"
    )
    counted = count_events(rows, declared(), 10, TICKS)
    assert counted.reasons == {BAD[TOO_FAR]: 1}
    assert not len(counted.totals.tick)
    endless = count_events(rows, declared(horizon=None), 10, None)
    assert endless.reasons == {BAD[TOO_FAR]: 2}


def test_an_empty_table_has_no_totals(spark: Any) -> None:
    counted = count_events(spark.createDataFrame([], "ts timestamp"), declared(), TICKS, TICKS)
    assert counted.totals.ticks == 0
    assert not counted.bad


def test_columns_that_hold_nothing_need_no_type(spark: Any) -> None:
    """As in `tests/files/test_empty_inputs.py`: without rows nothing is refused, and rows without a
    time are bad."""
    histogram = {"name": "histogram", "parameters": {"keys": ["a"]}}
    declaration = declared(histogram, {"time": "ts", "key": "k"})
    counted = count_events(spark.createDataFrame([], "ts void, k void"), declaration, TICKS, TICKS)
    assert (counted.totals.ticks, counted.reasons) == (0, {})
    counted = count_events(
        spark.createDataFrame([(None, None)], "ts void, k void"), declaration, TICKS, TICKS
    )
    assert (counted.totals.ticks, counted.reasons) == (0, {BAD[1]: 1})


def test_what_is_refused(spark: Any) -> None:
    rows = spark.createDataFrame([], "ts boolean, when timestamp, k double, v boolean")
    with pytest.raises(InputError, match="no column 'other'"):
        count_events(rows, declared(columns={"time": "other"}), 9, 9)
    with pytest.raises(InputError, match="of type boolean; a time is"):
        count_events(rows, declared(), 9, 9)
    histogram = {"name": "histogram", "parameters": {"keys": ["a"]}}
    with pytest.raises(InputError, match="a key is a string"):
        count_events(rows, declared(histogram, {"time": "when", "key": "k"}), 9, 9)
    with pytest.raises(InputError, match="a value is a number"):
        count_events(rows, declared("sum", {"time": "when", "value": "v"}), 9, 9)
    with pytest.raises(InputError, match="3 × no time"):
        refuse_bad({"no time": 3})


def test_declarations_that_this_interface_cannot_serve() -> None:
    users = {"budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3}}
    with pytest.raises(
        ParameterError, match=r"name a column of whole numbers .* \(columns\.order\)"
    ):
        check_declaration(declared(columns={"user": "who"}, **users))
    check_declaration(declared(columns={"user": "who", "order": "n"}, **users))
    with pytest.raises(ParameterError, match="by the clock"):
        check_declaration(declared(tick="manual"))
    with pytest.raises(ParameterError, match="names no columns"):
        check_declaration(replace(declared(), columns=None))
