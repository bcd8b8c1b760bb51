"""`evercount.release` of data frames: what is counted, what is refused with which row, and that
nothing is lost."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import evercount
from evercount import Budget, Count, Histogram, Ledger, Secret, StreamDeclaration
from evercount.cli.spelling import as_options, command_options
from evercount.errors import (
    BadRows,
    EvercountError,
    HorizonReached,
    InputError,
    ParameterError,
    UnknownName,
)

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")

TIMES = ["2026-03-28 08:15", "2026-03-28 17:40", "2026-03-29 09:05", "2026-03-30 23:59"]
FRAME = pd.DataFrame(
    {
        "when": pd.to_datetime(TIMES),
        "ward": ["a", "b", "a", "7"],
        "who": [1, 2, 1, 3],
        "score": [0.5, 1.0, 2.0, 0.0],
    }
)
BASE: dict[str, Any] = {
    "time": "when",
    "every": "1d",
    "zone": "Europe/Vienna",
    "start": "2026-03-28",
    "end": "2026-03-31",
    "epsilon": 1,
}
KEYS = {"key": "ward", "keys": ["a", "b", "7"]}
USERS = {**KEYS, "user": "who", "max_events": 1}
VALUES = {"value": "score", "low": 0, "high": 2, "grid": 0.5}


def released(data: Any, **options: Any) -> evercount.ReleaseTable:
    """With one secret: the same numbers where the same rows are counted, and only there."""
    return evercount.release(data, secret=Secret.from_hex("5a" * 32), **{**BASE, **options})


def seconds(column: Any) -> Any:
    return column.dt.tz_localize("Europe/Vienna").map(lambda moment: moment.timestamp())


COUNTED: dict[str, Callable[[Any], Any]] = {
    "Polars": pl.from_pandas,
    "lazy Polars": lambda frame: pl.from_pandas(frame).lazy(),
    "Arrow": pa.Table.from_pandas,
    "a batch of Arrow": pa.RecordBatch.from_pandas,
    "a reader of Arrow": lambda frame: pa.Table.from_pandas(frame).to_reader(),
    "DuckDB": lambda frame: duckdb.from_df(frame),
    "a time in the index": lambda frame: frame.set_index("when"),
    "one index for all rows": lambda frame: frame.set_index([[0] * len(frame)]),
    "categories": lambda frame: frame.astype({"ward": "category", "who": "category"}),
    "categories of Polars": lambda frame: pl.from_pandas(frame).with_columns(
        pl.col("ward").cast(pl.Categorical)
    ),
    "nullable types": lambda frame: frame.convert_dtypes(),
    "types of Arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "aware times": lambda frame: frame.assign(
        when=frame["when"].dt.tz_localize("Europe/Vienna").dt.tz_convert("UTC")
    ),
    "naive and aware times": lambda frame: frame.assign(
        when=[
            *frame["when"][:2].dt.tz_localize("Europe/Vienna").astype(object),
            *frame["when"][2:].astype(object),
        ]
    ),
    "texts and numbers as keys": lambda frame: frame.assign(
        ward=pd.Series(["a", "b", "a", 7], dtype=object)
    ),
    "texts and numbers as users": lambda frame: frame.assign(
        who=pd.Series(["1", 2, 1, "3"], dtype=object)
    ),
    "times as texts": lambda frame: frame.assign(when=TIMES),
    "seconds since 1970": lambda frame: frame.assign(when=seconds(frame["when"])),
    "nanoseconds": lambda frame: frame.astype({"when": "datetime64[ns]"}),
    "other columns": lambda frame: frame.assign(**{"other": [object()] * 4, "0": 1}),
}


@cache
def wanted(kind: str) -> str:
    return released(FRAME, **{"users": USERS, "values": VALUES}[kind]).to_csv()


@pytest.mark.parametrize("name", COUNTED)
def test_what_a_frame_holds_is_counted_as_it_is(name: str) -> None:
    assert released(COUNTED[name](FRAME), **USERS).to_csv() == wanted("users")
    if name in ("Arrow", "DuckDB", "nullable types", "types of Arrow"):
        assert released(COUNTED[name](FRAME), **VALUES).to_csv() == wanted("values")


def test_a_frame_of_fewer_rows_is_another_table() -> None:
    assert released(FRAME[1:], **USERS).to_csv() != wanted("users")


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], type[EvercountError], str]] = {
    "no column": (
        lambda: FRAME,
        {"time": "wen"},
        InputError,
        "no column 'wen'; its columns: 'when'",
    ),
    "two columns": (
        lambda: pd.concat([FRAME, FRAME], axis=1),
        {},
        InputError,
        "more than one column 'when'",
    ),
    "NaT": (
        lambda: FRAME.assign(when=FRAME["when"].where(FRAME.index != 2)),
        {},
        BadRows,
        "row 2: no time",
    ),
    "null": (
        lambda: pl.DataFrame({"when": [datetime(2026, 3, 28), None]}),
        {},
        BadRows,
        "row 1: no time",
    ),
    "an unknown key": (
        lambda: FRAME,
        {**KEYS, "keys": ["a", "b"]},
        BadRows,
        "row 3: a key that is not in the list",
    ),
    "a value outside": (
        lambda: FRAME,
        {**VALUES, "high": 1},
        BadRows,
        "row 2: a value outside its range",
    ),
    "a fraction": (
        lambda: FRAME,
        {**VALUES, "grid": None},
        BadRows,
        "row 0: the value is not a whole number.*grid=0.01",
    ),
    "before the start": (
        lambda: FRAME,
        {"start": "2026-03-29"},
        BadRows,
        "row 0: before the start",
    ),
    "an hour that never was": (
        lambda: FRAME.assign(when=pd.to_datetime([*TIMES[:3], "2026-03-29 02:30"])),
        {},
        BadRows,
        "row 3: a time that the zone's clock never showed",
    ),
    "objects as times": (
        lambda: FRAME.assign(when=pd.Series([*TIMES[:3], 3.5], dtype=object)),
        {},
        InputError,
        r"'when' .* row 3 \(from 0\) is 3.5 \(float\).*astype\(str\)",
    ),
    "bytes": (
        lambda: FRAME.assign(ward=[b"a"] * 4),
        KEYS,
        InputError,
        r"'ward' .* row 0 \(from 0\) is b'a'",
    ),
    "users as floats": (
        lambda: FRAME.assign(who=[1.0, 2.0, None, 3.0]),
        USERS,
        InputError,
        "7 and 7.0 would be two",
    ),
    "durations": (
        lambda: FRAME.assign(when=FRAME["when"] - FRAME["when"][0]),
        {},
        InputError,
        "a time is a TIMESTAMP",
    ),
    "milliseconds": (
        lambda: FRAME.assign(when=[1774682100000] * 4),
        {},
        BadRows,
        "row 0: not a time",
    ),
    "a frame from the future": (
        lambda: FRAME.assign(when=FRAME["when"] + pd.Timedelta(days=36525)),
        {"start": "2126-03-28", "end": None},
        InputError,
        "no tick has ended: the first one ends at 2126-03-29",
    ),
    "a number": (lambda: 5, {}, InputError, r"data must be a DataFrame .* got int: try release\("),
    "a column": (lambda: FRAME["when"], {}, InputError, "got Series"),
    "a column of Polars": (lambda: pl.Series([1]), {}, InputError, "got Series"),
    "frames": (lambda: [FRAME, FRAME], {}, InputError, r"pd\.concat\(frames\)"),
    "no such file": (lambda: "absent.csv", {}, InputError, "absent.csv cannot be read"),
    "a folder of files": (
        lambda: os.path.curdir,
        {},
        InputError,
        "is a directory: name the files in it",
    ),
    "late rows": (lambda: FRAME, {"late": "next"}, ParameterError, "data frames"),
    "no start": (
        lambda: FRAME,
        {"start": None},
        ParameterError,
        "missing: `start`, as in: release",
    ),
    "no epsilon": (lambda: FRAME, {"epsilon": None}, ParameterError, "missing: `epsilon`"),
    "no zone": (lambda: FRAME, {"zone": None}, ParameterError, "add `zone` Europe/Vienna"),
    "a misspelt option": (lambda: FRAME, {"epsilom": 1}, UnknownName, "Did you mean 'epsilon'"),
    "a length": (
        lambda: FRAME,
        {"every": 86400},
        ParameterError,
        "tick must be the length of a tick, such as 15m",
    ),
    "a class": (
        lambda: FRAME,
        {"query": Count},
        ParameterError,
        "query must be a name, or a table such as",
    ),
    "a column's number": (
        lambda: FRAME,
        {"key": 1, "keys": ["a"]},
        ParameterError,
        "columns.key must be the name",
    ),
    "no list": (
        lambda: FRAME,
        {"key": "ward", "keys": 3},
        ParameterError,
        r'`keys` must be a list such as \["north"',
    ),
    "a state": (
        lambda: FRAME,
        {"state": 5},
        ParameterError,
        "`state` must be a str or PathLike, e.g. .daily.state., got int",
    ),
    "periods": (
        lambda: FRAME.assign(when=FRAME["when"].dt.to_period("D")),
        {},
        InputError,
        r"dt\.to_timestamp\(\)",
    ),
    "a list of rows": (
        lambda: [{"when": TIMES[0]}],
        {},
        InputError,
        r"holds dict: .* pd\.DataFrame\(rows\)",
    ),
    "a set": (
        lambda: FRAME,
        {"key": "ward", "keys": {"a", "b"}},
        ParameterError,
        r'`keys` must be a list such as \["no',
    ),
    "an empty list": (
        lambda: FRAME,
        {"key": "ward", "keys": []},
        ParameterError,
        "`keys` is empty: name at least one",
    ),
    "keys in a text": (
        lambda: FRAME,
        {"key": "ward", "keys": "a,b"},
        ParameterError,
        "In Python it may be a list",
    ),
    "a number of keys": (
        lambda: FRAME,
        {**KEYS, "add_keys": 5},
        ParameterError,
        "`add_keys` must be a list",
    ),
    "a list of weights": (
        lambda: FRAME,
        {**KEYS, "weights": [1, 2]},
        ParameterError,
        'weights must be a table such as {"north": 3}',
    ),
    "a view's number": (
        lambda: FRAME,
        {"views": 7},
        ParameterError,
        "`views` must be a Sequence, e.g. ",
    ),
    "views in a list": (
        lambda: FRAME,
        {"views": [["per-tick"]]},
        ParameterError,
        "a name in `views` must be a str, e.g. .last-7., got list",
    ),
    "post-processing in a list": (
        lambda: FRAME,
        {"postprocess": [["integer"]]},
        ParameterError,
        "a name in `postprocess` must be a str, e.g. .integer., got list",
    ),
    "post-processing": (
        lambda: FRAME,
        {"postprocess": 1},
        ParameterError,
        r'must be a Sequence, e\.g\. \["integer',
    ),
    "no as a text": (
        lambda: FRAME,
        {"skip_bad": "no"},
        ParameterError,
        "`skip_bad` must be a bool, e.g. True or False, got str",
    ),
    "digits": (
        lambda: FRAME,
        {"secret": "5a" * 32},
        ParameterError,
        r"`secret` must be a Secret, e\.g\. Secret\.generate\(\), got str",
    ),
    "a bar": (
        lambda: FRAME,
        {"progress": 5},
        ParameterError,
        "`progress` must be a Callable, e.g. print, got int",
    ),
    "a ledger": (
        lambda: FRAME,
        {"ledger": Ledger(Budget(1, 0))},
        ParameterError,
        "`ledger` must be a str or PathLike, e.g. .daily.ledger",
    ),
    "epsilon as a text": (
        lambda: FRAME,
        {"epsilon": "1"},
        ParameterError,
        "epsilon must be a number, got '1'",
    ),
    "a unit": (lambda: FRAME, {"unit": "users"}, UnknownName, "Did you mean 'user'"),
    "no such view": (lambda: FRAME, {"views": ["daily"]}, UnknownName, "Did you mean 'per-day'"),
    "no folder": (lambda: FRAME, {"state": "no/such.state"}, ParameterError, "there is no folder"),
    "a folder": (
        lambda: FRAME,
        {"ledger": os.path.curdir},
        ParameterError,
        "is a directory: name a file",
    ),
    "a declaration": (
        lambda: FRAME,
        {"declaration": "daily"},
        ParameterError,
        r"e\.g\. declare\(.*, got str",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_row_and_the_remedy(
    name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """With a state and a ledger as well: neither is there afterwards."""
    monkeypatch.chdir(tmp_path)
    data, options, kind, message = REFUSED[name]
    if name != "a frame from the future":
        options = {"state": "frame.state", "ledger": "all.ledger", "total": (1, 0), **options}
    with pytest.raises(kind, match=message):
        evercount.release(data(), **{"secret": Secret.from_hex("5a" * 32), **BASE, **options})
    assert not Path("frame.state").exists()
    if Path("all.ledger").exists():
        with Ledger(path="all.ledger") as ledger:
            assert ledger.entries == ()


def test_bad_rows_may_be_left_out(tmp_path: Path) -> None:
    frame = FRAME.assign(when=FRAME["when"].where(FRAME.index != 2))
    rejects = tmp_path / "rejects.csv"
    found = released(frame, **KEYS, skip_bad=True, rejects=rejects)
    assert found.to_csv() == released(FRAME.drop(2), **KEYS).to_csv()
    assert "2,no time" in rejects.read_text()


def test_a_frame_of_the_future_is_counted_when_its_days_are_over(tmp_path: Path) -> None:
    state = tmp_path / "s.state"
    assert len(released(FRAME, state=state, now="2026-03-28T12:00")) == 0
    assert len(released(FRAME, state=state, now="2026-03-29T12:00")) == 1
    assert released(FRAME, state=state, now="2026-04-29").to_csv() == released(FRAME).to_csv()


@pytest.mark.parametrize(
    "start", [date(2026, 3, 28), datetime(2026, 3, 27, 23, tzinfo=UTC), pd.Timestamp(2026, 3, 28)]
)
def test_times_are_those_of_python(start: Any) -> None:
    assert released(FRAME, start=start).to_csv() == released(FRAME).to_csv()


def test_a_declaration_takes_the_place_of_options(tmp_path: Path) -> None:
    options = {name: value for name, value in BASE.items() if name != "end"}
    daily = evercount.declare(**options, **KEYS, name="wards")
    assert StreamDeclaration.from_toml(daily.to_toml()) == daily
    (tmp_path / "streams.toml").write_text(daily.to_toml(), "utf-8")
    assert StreamDeclaration.from_toml(tmp_path / "streams.toml") == daily
    assert daily == evercount.declare(
        **options, query=Histogram(["a", "b", "7"]), key="ward", name="wards"
    )
    secret = Secret.from_hex("5a" * 32)
    table = evercount.release(FRAME, daily, end="2026-03-31", secret=secret)
    assert table.to_csv() == released(FRAME, **KEYS).to_csv()
    with pytest.raises(ParameterError, match="omit `epsilon`"):
        evercount.release(FRAME, daily, epsilon=1)


def test_no_public_name_is_a_module_too() -> None:
    doubled = {name for name in evercount.__all__ if importlib.util.find_spec(f"evercount.{name}")}
    assert not doubled, "importing the module would replace the name"


def test_whole_numbers_are_keys() -> None:
    wanted = released(FRAME, key="who", keys=["1", "2", "3"]).to_csv()
    assert released(FRAME, key="who", keys=FRAME["who"].unique()).to_csv() == wanted


def stream(**options: Any) -> Any:
    return evercount.Stream(Count(), Budget(1.0, 1e-6), 4, **options)


NOT_ONE: Any = 5
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a plan of a number": (lambda: evercount.plan(NOT_ONE), r"e\.g\. declare\(.*, got int"),
    "a column of a table": (
        lambda: released(FRAME)["value"],
        r'for columns use table\.to_pandas\(\)\["value"\]',
    ),  # type: ignore[call-overload]
    "a tick by name": (lambda: stream().run([1])["a"], r"as in releases\[0\]"),
    "spans of texts": (lambda: stream().run([1]).spans("x", "a", "b"), r"as in spans\("),
    "a number as Parquet": (
        lambda: released(FRAME).to_parquet(NOT_ONE),
        'a path such as "daily.parquet", got 5',
    ),
    "a number as CSV": (
        lambda: released(FRAME).to_csv(NOT_ONE),
        'a path such as "daily.csv" or to an open file',
    ),
    "a number as axes": (
        lambda: released(FRAME).plot(NOT_ONE),
        'a file such as "daily.png" or into axes, got 5',
    ),
    "cells in a list": (lambda: stream().run([1]).per_tick().only(["count"]), "there is no cell"),
    "a ledger's path": (lambda: stream(ledger="a"), r'e\.g\. Ledger\(path="all.ledger"\)'),
    "a secret's digits": (
        lambda: stream(secret="5a" * 32),
        r"e\.g\. Secret\.generate\(\), got str",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_get_a_line_that_works(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ParameterError, match=message):
        call()


def test_a_ledger_is_charged_once_for_all_calls(tmp_path: Path) -> None:
    given = {"state": tmp_path / "a.state", "ledger": tmp_path / "all.ledger", "total": (1.5, 1e-6)}
    for now in ("2026-03-29T12:00", "2026-04-29"):
        released(FRAME, **given, now=now)
    with pytest.raises(EvercountError, match=r"What is left: at most epsilon=0.5"):
        evercount.release(FRAME, **BASE, **{**given, "state": tmp_path / "b.state"})


def test_the_horizon_ends_a_stream(tmp_path: Path) -> None:
    state = tmp_path / "a.state"
    assert len(released(FRAME, horizon=2, state=state)) == 2
    with pytest.raises(HorizonReached):
        released(FRAME, horizon=2, state=state)


def test_a_plan_says_what_a_release_then_has() -> None:
    plan = evercount.plan(
        every="1d", zone="UTC", epsilon=1, horizon=30, views=["per-tick", "last-7"]
    )
    table = released(FRAME, horizon=30, views=["per-tick", "last-7"])
    assert table[0].std == pytest.approx(plan[0].stds["per-tick"])
    assert list(plan.to_pandas().columns) == list(plan.to_polars().columns) == list(plan.columns())
    assert len(plan) == len(list(plan))
    assert repr(plan).splitlines()[0].split()[:3] == ["noise", "delta", "per-tick"]
    assert repr(plan).splitlines()[1] in plan._repr_html_()


@pytest.mark.parametrize("views", [["per-tick"], ["running"], ["last-7", "running"]])
@pytest.mark.parametrize("delta", [0, 1e-6])
@pytest.mark.parametrize(
    "factorization", ["fresh", "balanced", "binary-tree", "bridge", "pure-binary", "best", None]
)
def test_a_plan_is_about_the_declared_noise(
    factorization: str | None, delta: float, views: list[str]
) -> None:
    asked: dict[str, Any] = {"epsilon": 1, "delta": delta, "horizon": 30, "views": views}
    asked["factorization"] = factorization
    if delta == 0 and factorization in ("balanced", "binary-tree"):
        for refusing in (evercount.plan, evercount.declare):
            with pytest.raises(ParameterError, match=factorization):
                refusing(time="ts", every="1d", zone="UTC", **asked)
        return
    plan = evercount.plan(every="1d", zone="UTC", **asked)
    table = released(FRAME, **asked, end=None, now="2026-05-29")
    assert len(table) == 30 - 6 * ("last-7" in views)
    assert plan[0].stds[views[0]] == pytest.approx(max(table.columns()["std"]))
    assert [row.chosen for row in plan] == [True] + [False] * (len(plan) - 1)
    assert len({(row.name, row.delta) for row in plan}) == len(plan)
    if factorization not in ("best", None):
        assert plan[0].name == factorization
        assert f"{plan[0].kind} is declared: at worst" in plan.reason
        assert "is chosen" not in plan.reason


def test_messages_and_options_of_the_command_are_those_of_the_function() -> None:
    assert (
        as_options("add `zone`, `views` and `new_noise_stream`")
        == "add --zone, --view and --new-noise-stream"
    )
    assert {"state", "zone", "low", "views", "ledger"} <= set(command_options())
    text = evercount.release.__doc__ or ""
    assert all(f"\n        {name}: " in text for name in command_options())


KILLED = """
import os, signal, sys
import pandas as pd
import evercount
from evercount import _safe_files
from evercount.files import state_file as run_state
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "before":
    run_state.write = die
else:
    _safe_files.sync_folder = die  # the new state is in its place
frame = pd.DataFrame({"when": pd.to_datetime(["2026-03-28 08:15", "2026-03-29 09:05"])})
secret = evercount.Secret.from_hex("5a" * 32)
evercount.release(frame, time="when", every="1d", zone="UTC", start="2026-03-28", end="2026-03-30", epsilon=1,
                  state="s.state", secret=secret)
"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_call_has_happened_or_not(moment: str, tmp_path: Path) -> None:
    """After the commit later rows of its days are late, and its numbers are the ones that are read
    back."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, moment], cwd=tmp_path, check=False, env=os.environ
    )
    assert done.returncode == -signal.SIGKILL
    frame = pd.DataFrame({"when": pd.to_datetime(["2026-03-28 08:15", "2026-03-29 09:05"])})
    more = pd.concat([frame] * 50)
    options: dict[str, Any] = {**BASE, "zone": "UTC", "end": "2026-03-30"}
    secret = Secret.from_hex("5a" * 32)
    found = evercount.release(more, state=tmp_path / "s.state", secret=secret, **options)
    once, fifty = (
        evercount.release(data, secret=Secret.from_hex("5a" * 32), **options)
        for data in (frame, more)
    )
    assert found.to_csv() == (fifty if moment == "before" else once).to_csv()


def test_budgets_have_the_default_of_the_command() -> None:
    daily = evercount.declare(**{name: value for name, value in BASE.items() if name != "end"})
    assert daily.budget == Budget(1, 0)


def test_what_a_release_takes_is_not_declared() -> None:
    with pytest.raises(
        ParameterError, match=r"`end` belongs to `release`, .*: release\(data, daily, end=…\)"
    ):
        evercount.declare(time="when", every="1h", epsilon=1, end="2026-03-02")  # type: ignore[arg-type]
