"""Ticks as columns and frames of pandas, Polars and Arrow: the same numbers as from lists, for
every query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, DiscoveredKeys, Histogram, Stream
from evercount.engine.frame_events import plain_events
from evercount.errors import InputError
from evercount.noise import Secret
from evercount.queries import QUERIES, Query
from small_queries import events_of, small

pd = pytest.importorskip(
    "pandas", reason="pandas is not installed: pip install 'evercount[frames]'"
)
pl = pytest.importorskip(
    "polars", reason="polars is not installed: pip install 'evercount[frames]'"
)
pa = pytest.importorskip(
    "pyarrow", reason="pyarrow is not installed: pip install 'evercount[files]'"
)

SECRET = Secret.from_hex("3d" * 32)
BUDGET = Budget(1.0, 1e-6)
Columns = dict[str, list[Any]]
FORMS: dict[str, Callable[[Columns], Any]] = {
    "numpy": lambda columns: (
        np.asarray(list(columns.values())).T if len(columns) > 1 else np.asarray(columns["0"])
    ),
    "pandas": lambda columns: (
        pd.DataFrame(columns) if len(columns) > 1 else pd.Series(columns["0"])
    ),
    "pandas, one column": pd.DataFrame,
    "pandas, new types": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pandas, a column of new types": lambda columns: (
        pd.DataFrame(columns).convert_dtypes()
        if len(columns) > 1
        else pd.Series(columns["0"]).convert_dtypes()
    ),
    "polars": lambda columns: (
        pl.DataFrame(columns) if len(columns) > 1 else pl.Series(columns["0"])
    ),
    "arrow": lambda columns: pa.table(columns) if len(columns) > 1 else pa.array(columns["0"]),
    "arrow, in pieces": lambda columns: (
        pa.table(columns) if len(columns) > 1 else pa.chunked_array([columns["0"]] * 1)
    ),
    "arrow batch": pa.record_batch,
}
ROWS = sorted(name for name in QUERIES if name not in ("count", "prefix"))


def columns_of(events: list[Any]) -> Columns:
    rows = [event if isinstance(event, tuple | list) else (event,) for event in events]
    return {str(number): list(column) for number, column in enumerate(zip(*rows, strict=True))}


def released(query: Query, tick: Any) -> list[float]:
    values: list[float] = (
        Stream(query, BUDGET, 4, secret=SECRET, replay=True).step(tick).values.tolist()
    )
    return values


def usable(query: Query) -> list[Any]:
    """Events that can be rows of one table: all of one length."""
    events = [event for tick in events_of(query, 40) for event in tick]
    lengths = [len(event) if isinstance(event, tuple | list) else 0 for event in events]
    return [event for event, length in zip(events, lengths, strict=True) if length == lengths[0]][
        :6
    ]


@pytest.mark.parametrize("name", ROWS)
def test_a_frame_is_the_tick_that_its_rows_are(name: str) -> None:
    query = small(name)
    events = usable(query)
    assert events, name
    wanted = released(query, events)
    assert [
        form for form, make in FORMS.items() if released(query, make(columns_of(events))) != wanted
    ] == []


def test_runs_and_users_take_columns() -> None:
    keys, who = [["a", "b", "a"], ["b"], ["a", "a"]], [["u", "v", "u"], ["u"], ["w", "u"]]
    users = Budget(1.0, 1e-6, unit="user", max_events=2)
    plain = Stream(Histogram(["a", "b"]), users, 4, secret=SECRET, replay=True)
    wanted = plain.run(keys, users=who).rows.tolist()
    for column in (pa.array, pl.Series, pd.Series, np.asarray):
        stream = Stream(Histogram(["a", "b"]), users, 4, secret=SECRET, replay=True)
        assert (
            stream.run(
                [column(tick) for tick in keys], users=[column(tick) for tick in who]
            ).rows.tolist()
            == wanted
        )
        stream = Stream(Histogram(["a", "b"]), users, 4, secret=SECRET, replay=True)
        found = [
            stream.step(column(tick), users=column(people))
            for tick, people in zip(keys, who, strict=True)
        ]
        assert [release.values.tolist() for release in found] == wanted
    counts = Stream(Count(), BUDGET, 4, secret=SECRET, replay=True).run([3, 4]).rows.tolist()
    assert (
        Stream(Count(), BUDGET, 4, secret=SECRET, replay=True).run(pa.array([3, 4])).rows.tolist()
        == counts
    )


def test_a_retry_of_a_frame_reads_the_release_back() -> None:
    stream = Stream(DiscoveredKeys(), BUDGET, 4, secret=SECRET, replay=True)
    column = pa.array(["a", "b"])
    assert (
        stream.step(column, tick=1).values.tolist() == stream.step(column, tick=1).values.tolist()
    )


@pytest.mark.parametrize(
    "frame", [pd.DataFrame({"k": ["a"]}), pl.DataFrame({"k": ["a"]}), pa.table({"k": ["a"]})]
)
def test_one_frame_is_no_run(frame: Any) -> None:
    with pytest.raises(InputError, match="a run is a sequence of ticks"):
        Stream(Histogram(["a"]), BUDGET, 4).run(frame)


@pytest.mark.parametrize(
    "missing", [pd.Series(["a", None]), pa.array(["a", None]), pl.Series(["a", None])]
)
def test_missing_keys_are_refused(missing: Any) -> None:
    with pytest.raises(InputError, match="event 1"):
        Stream(DiscoveredKeys(), BUDGET, 4).step(missing)


@pytest.mark.parametrize(
    "empty", [pd.DataFrame({"k": []}), pl.DataFrame({"k": []}), pa.table({"k": pa.array([])})]
)
def test_an_empty_frame_is_an_empty_tick(empty: Any) -> None:
    assert list(plain_events(empty)) == []
