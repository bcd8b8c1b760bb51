"""Errors go through pools of processes and through logs: pickled they are what they were, and they
show no raw row."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import evercount
from evercount import Budget, Count, Histogram, Stream, errors
from evercount.errors import BadRows, EventRefused, EvercountError, HorizonReached, UnknownName
from evercount.files.bad_rows import Reject

OTHERS: dict[str, tuple[Any, ...]] = {
    "UnknownName": ("query", "cuont", ["count", "sum"]),
    "BadRows": ("visits.csv", 7, (Reject(3, "no time", ",Ann Doe"),)),
    "EventRefused": (3, "is not a letter", "update", "of this request"),
    "HorizonReached": (24, "Begin a new one."),
    "PrecisionReached": (99,),
    "StoreError": ("locked", "by host a"),
    "Conflict": ("used before", "key k", 12),
    "CatchingUp": ("it closes ticks", 1.5),
    "HttpProblem": (409, "conflict", "used before", "Take another name.", 2.0),
    "ServiceRefused": ("refused", 503, 7),
    "MissingExtra": ("Charts", "plot"),
}


def kinds(base: type[EvercountError] = EvercountError) -> Iterator[type[EvercountError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


KINDS = sorted(
    {kind for kind in kinds() if kind.__module__ == errors.__name__}, key=lambda kind: kind.__name__
)


@pytest.mark.parametrize(
    "again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_what_it_was(kind: type[EvercountError], again: Any) -> None:
    error = kind(*OTHERS.get(kind.__name__, ("what is wrong, and what to do",)))
    error.add_note("seen at night")
    other = again(error)
    assert type(other) is kind
    assert str(other) == str(error)
    assert other.args == error.args
    assert vars(other) == vars(error)
    assert other.exit_code == error.exit_code


def test_every_error_with_its_own_arguments_is_there() -> None:
    named = {kind.__name__ for kind in KINDS if "__init__" in vars(kind)}
    assert named <= OTHERS.keys()
    for kind in KINDS:
        if kind.__name__ in OTHERS:
            signature(kind).bind(*OTHERS[kind.__name__])


def past_the_horizon(ticks: int) -> None:
    Stream(Count(), Budget(1.0, 1e-6), 2).run([1] * ticks)


def unknown_name(_: int) -> None:
    raise UnknownName("thing", lambda: 0, ["count"])  # a name that cannot be pickled


def refused_event(_: int) -> None:
    Stream(Histogram(["a"]), Budget(1.0, 1e-6), 2).step(["a", "b"])


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (past_the_horizon, HorizonReached),
        (unknown_name, UnknownName),
        (refused_event, EventRefused),
    ],
)
def test_a_pool_hands_errors_on(work: Any, kind: type[EvercountError]) -> None:
    """An error that cannot be unpickled ends the thread that reads results, and the pool waits for
    ever."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answer = pool.apply_async(work, (3,))
        answer.wait(120)
        assert answer.ready()
        with pytest.raises(kind):
            answer.get()


def test_rows_of_a_table_are_pickled() -> None:
    table = Stream(Count(), Budget(1.0, 1e-6), 24).run([100, 50]).table()
    rows = list(table)
    again = pickle.loads(pickle.dumps(rows))
    assert again == rows
    assert [row.value for row in again] == [row.value for row in rows]
    assert type(again[0]) is type(rows[0])
    assert repr(again[0]) == repr(rows[0])
    assert copy.deepcopy(rows) == rows
    assert list(pickle.loads(pickle.dumps(table))) == rows


def test_a_refusal_of_rows_shows_where_they_are_and_not_what_is_in_them(tmp_path: Path) -> None:
    """Messages and representations end in logs and notebooks; the file of rejects is private."""
    frame = pd.DataFrame({"t": ["2026-03-01T08:00Z", "Ann Doe, HIV", None], "who": ["Ann Doe"] * 3})
    path = tmp_path / "visits.csv"
    frame.to_csv(path, index=False)
    rejects = tmp_path / "rejects.csv"
    declared: dict[str, Any] = {
        "time": "t",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-03-01",
        "end": "2026-03-02",
        "epsilon": 1,
    }
    for data in (frame, path):
        with pytest.raises(BadRows) as caught:
            evercount.release(data, rejects=str(rejects), **declared)
        error = caught.value
        for text in (str(error), repr(error), repr(error.shown), str(error.shown[0])):
            assert "Ann" not in text
        assert error.bad == 2
        assert "no time" in str(error) or "not a time" in str(error)
        assert "Ann" in error.shown[0].text
        assert "Ann" in rejects.read_text()
        assert rejects.stat().st_mode & 0o777 == 0o600
