"""Inputs without rows: whatever their form, columns and types, ticks are published as if no event
had come.

Whether a day is published must not depend on its events: a filter that leaves no row leaves a frame
whose columns have other types, or none, and a file that may have no header.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Secret, declare, release
from evercount.engine.close_ticks import TickEvents, TickTotals, close_ticks
from evercount.errors import BadRows, InputError, ParameterError

duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = ("t", "k", "k2", "v", "u", "o")
ROW = {"t": "2026-04-01", "k": "a", "k2": "x", "v": 1, "u": "p", "o": 7}
"""A row after the last tick that is released: a source with this row alone has empty ticks."""
FULL = pd.DataFrame([ROW])
RUN: dict[str, Any] = {
    "every": "1d",
    "zone": "UTC",
    "start": "2026-03-01",
    "end": "2026-03-04",
    "now": "2026-03-05",
    "epsilon": 1,
    "time": "t",
}
CAPS = {"user": "u", "max_per_tick": 1, "max_ticks": 3, "horizon": 10, "delta": 1e-6}
PAIRS = [("a", "x"), ("b", "y")]
QUERIES: dict[str, dict[str, Any]] = {
    "count": {},
    "histogram": {"key": "k", "keys": ["a", "b"]},
    "histogram of two columns": {"key": ["k", "k2"], "keys": PAIRS},
    "rollup": {"rollup": ["k", "k2"], "keys": PAIRS},
    "sum": {"value": "v", "low": 0, "high": 10},
    "quantiles": {"value": "v", "low": 0, "high": 16, "bins": 16},
    "discovered keys": {"key": "k", "query": "discovered-keys", "delta": 1e-6, "horizon": 10},
    "keys of the day": {
        "key": "k",
        "query": "discovered-keys",
        "delta": 1e-6,
        "horizon": 10,
        "views": ["per-tick"],
    },
    "active users": {"user": "u", "query": "active-users", "max_ticks": 2, "horizon": 10},
    "distinct users": {"user": "u", "query": "distinct-users", "horizon": 10},
    "capped count": CAPS,
    "capped sum": {**CAPS, "value": "v", "low": 0, "high": 10},
}


def arrow(kind: Any) -> Any:
    return pa.table({name: pa.array([], kind) for name in COLUMNS})


def typed(kind: str) -> Any:
    return pd.DataFrame({name: pd.Series([], dtype=kind) for name in COLUMNS})


FRAMES: dict[str, Callable[[], Any]] = {
    "pandas: columns only": lambda: pd.DataFrame(columns=list(COLUMNS)),
    "pandas: no rows at all": lambda: pd.DataFrame([]),
    "pandas: filtered": lambda: FULL[FULL.k == "none"],
    "pandas: strings filtered": lambda: FULL.astype("string")[FULL.k == "none"],
    "pandas: times filtered": lambda: FULL.astype({"t": "datetime64[ns]"}).iloc[:0],
    "pandas: categories": lambda: FULL.astype("category").iloc[:0],
    "pandas: an index": lambda: FULL.set_index("t").iloc[:0],
    "pandas: floats": lambda: typed("float64"),
    "pandas: whole numbers": lambda: typed("int64"),
    "pandas: booleans": lambda: typed("bool"),
    "pandas: periods": lambda: typed("period[D]"),
    "pandas: differences": lambda: typed("timedelta64[ns]"),
    "polars: no rows at all": lambda: pl.DataFrame([]),
    "polars: no types": lambda: pl.DataFrame({name: [] for name in COLUMNS}),
    "polars: filtered": lambda: pl.DataFrame([ROW]).filter(pl.col("k") == "none"),
    "polars: lazy": lambda: pl.DataFrame([ROW]).lazy().filter(pl.col("k") == "none"),
    "polars: lists": lambda: pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.List(pl.Int64))),
    "arrow: no types": lambda: arrow(pa.null()),
    "arrow: dictionaries": lambda: arrow(pa.dictionary(pa.int32(), pa.string())),
    "arrow: structures": lambda: arrow(pa.struct({"a": pa.int64()})),
    "duckdb": lambda: duckdb.sql(
        "SELECT NULL t, NULL k, NULL k2, NULL v, NULL u, NULL o WHERE false"
    ),
}


def packed(table: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def columnless() -> bytes:
    sink = io.BytesIO()
    pd.DataFrame([]).to_parquet(sink)
    return sink.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "header.csv": lambda: b"t,k,k2,v,u,o\n",
    "header-alone.csv": lambda: b"t,k,k2,v,u,o",
    "header.csv.gz": lambda: gzip.compress(b"t,k,k2,v,u,o\n"),
    "nothing.csv": lambda: b"",
    "nothing.jsonl": lambda: b"",
    "nothing": lambda: b"",
    "nothing.jsonl.gz": lambda: gzip.compress(b""),
    "mark.csv": lambda: b"\xef\xbb\xbf",
    "blank.jsonl": lambda: b"\n \r\n\n",
    "types.parquet": lambda: packed(pa.Table.from_pylist([ROW]).slice(0, 0)),
    "no-types.parquet": lambda: packed(arrow(pa.null())),
    "filtered.parquet": lambda: packed(pa.Table.from_pandas(FULL.iloc[:0])),
    "no-columns.parquet": columnless,
}
SOME = ("pandas: columns only", "polars: no types", "nothing.jsonl", "no-types.parquet")


def source_of(name: str, folder: Path) -> Any:
    if name in FRAMES:
        return FRAMES[name]()
    path = folder / name
    path.write_bytes(FILES[name]())
    return path


def published(data: Any, **more: Any) -> str:
    return str(release(data, **{**RUN, "secret": Secret.from_hex("8a" * 32), **more}).to_csv())


@pytest.mark.parametrize("name", [*FRAMES, *FILES])
def test_every_input_without_rows_is_an_empty_tick(name: str, tmp_path: Path) -> None:
    for query in ("count", "capped sum"):
        wanted = published(FULL, **QUERIES[query])
        assert published(source_of(name, tmp_path), **QUERIES[query]) == wanted


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_publishes_without_rows(query: str, tmp_path: Path) -> None:
    wanted = published(FULL, **QUERIES[query])
    for name in SOME:
        assert published(source_of(name, tmp_path), **QUERIES[query]) == wanted, name


@pytest.mark.parametrize("query", QUERIES)
def test_it_is_an_empty_tick_of_the_library(query: str) -> None:
    ticks = {name: value for name, value in RUN.items() if name not in ("end", "now")}
    declaration = declare(**{"views": ["running"], **ticks, **QUERIES[query]})
    stream = declaration.build(secret=Secret.from_hex("8a" * 32), replay=True)
    wanted: list[tuple[Any, ...]] = []
    for tick in (1, 2, 3):
        nothing = np.zeros(declaration.query.cells, np.int64)
        totals = (
            TickEvents(tick, [[]]) if declaration.remembers else TickTotals.dense(tick, [nothing])
        )
        for table in close_ticks(stream, totals, declaration.schedule.starts_of):
            wanted += zip(*(column.tolist() for column in table.columns().values()), strict=True)
    published_rows = release(
        pd.DataFrame([]),
        declaration,
        end=RUN["end"],
        now=RUN["now"],
        secret=Secret.from_hex("8a" * 32),
    )
    got = zip(*(column.tolist() for column in published_rows.columns().values()), strict=True)
    assert repr(list(got)) == repr(wanted)  # repr, because some std are no numbers


def test_a_store_and_a_later_run_publish_empty_days(tmp_path: Path) -> None:
    wanted = published(FULL)
    places = {"out": tmp_path / "state.csv"}, {"db": tmp_path / "store.db", "name": "visits"}
    for place in places:
        rows = ""
        for day in (2, 3, 4):
            data, end = tmp_path / "events.csv", f"2026-03-0{day}"
            data.write_bytes(b"")
            secret = Secret.from_hex("8a" * 32) if day == 2 else None
            rows = str(release(data, **{**RUN, **place, "end": end, "secret": secret}).to_csv())
        assert rows == wanted


@pytest.mark.filterwarnings("ignore:epsilon=100 is a weak promise")
@pytest.mark.parametrize("late", ["next", "revise"])
def test_a_file_may_begin_empty_and_grow(late: str, tmp_path: Path) -> None:
    """Each row counts once: a file that was empty has no header that a later run could read
    twice."""
    asked: dict[str, Any] = {
        **RUN,
        "late": late,
        "epsilon": 100,
        "delta": 1e-6,
        "horizon": 10,
        "end": None,
    }
    if late == "revise":
        asked |= {"revise_for": 2}
    path, table = tmp_path / "events.csv", None
    for day, text in enumerate(
        ("", "", "t", "t\n2026-03-04\n", "t\n2026-03-04\n2026-03-05\n2026-03-04\n"), 2
    ):
        path.write_text(text)
        table = release(
            path, **{**asked, "out": tmp_path / "out.csv", "now": f"2026-03-0{day}T01:00"}
        )
    assert table is not None
    newest = table.to_pandas().groupby("start").value.last().round().tolist()
    assert newest == ([0, 0, 0, 1, 2] if late == "next" else [0, 0, 0, 2, 1])
    with pytest.raises(ParameterError, match="needs files that only grow"):
        published(pd.DataFrame([]), late="next")


def test_what_is_wrong_whatever_the_rows_is_still_refused(tmp_path: Path) -> None:
    for data in (
        pd.DataFrame(columns=["when"]),
        pl.DataFrame(schema={"when": pl.String}),
        arrow(pa.null()),
    ):
        with pytest.raises(InputError, match="has no column 'time'; its columns"):
            published(data, time="time")
    with pytest.raises(InputError, match="has no column 't'"):
        published(pd.DataFrame(index=[1, 2]))  # rows without columns
    path = tmp_path / "header.csv"
    path.write_text("when,who\n")
    with pytest.raises(InputError, match="has no column 't'"):
        published(path)
    for name in ("events.parquet", "events.csv.gz", "events.jsonl.zst"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(InputError, match=f"{name} is empty: it was cut off"):
            published(tmp_path / name)


def test_rows_whose_columns_hold_nothing_are_bad_rows(tmp_path: Path) -> None:
    """A column of which nothing is known has no type; its rows are bad, as in a CSV, and not the
    whole frame."""
    nothing = {name: [None, None] for name in COLUMNS}
    path = tmp_path / "nothing.parquet"
    path.write_bytes(packed(pa.table(nothing)))
    wanted = published(FULL, **QUERIES["capped sum"])
    for data in (pd.DataFrame(nothing), pl.DataFrame(nothing), pa.table(nothing), path):
        with pytest.raises(BadRows, match="no time"):
            published(data, **QUERIES["capped sum"])
        assert published(data, skip_bad=True, **QUERIES["capped sum"]) == wanted
    unnamed = [{**ROW, "t": "2026-03-01", "u": None}]
    with pytest.raises(BadRows, match="no user"):
        published(pl.DataFrame(unnamed), **QUERIES["capped count"])
