"""`evercount release` from end to end: real files in, release files out, in pieces, with faults and
wrong flags."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Budget, Histogram, Stream
from evercount.cli import app
from evercount.engine import stream as stream_module
from evercount.examples import flu
from evercount.files.source import library
from evercount.mechanisms.exact.exact_noise import ExactStream
from state_reading import read_state, running_sums, stream_of
from tiers import soak_but

pytest.importorskip("duckdb")
pq = pytest.importorskip("pyarrow.parquet")

HOURS = 30
REFUSED = (2, 3, 4, 5)
"""Exit codes of wrong options, bad rows, a finished horizon and files that do not fit."""
BASE = {
    "time": "ts",
    "every": "1h",
    "start": flu.START.isoformat(),
    "key": "region",
    "keys": "regions.txt",
    "epsilon": "1",
    "delta": "1e-6",
    "horizon": "64",
    "view": "running",
    "out": "out.csv",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    flu.write_csv("events.csv", HOURS)
    Path("regions.txt").write_text("\n".join(flu.REGIONS) + "\n")
    return tmp_path


def at(hour: float) -> str:
    return (flu.START + (flu.START.resolution * int(hour * 3.6e9))).isoformat()


def arguments_of(**options: Any) -> list[str]:
    given = {**BASE, **{name.replace("_", "-"): value for name, value in options.items()}}
    return [
        text
        for name, value in given.items()
        if value is not None
        for text in (f"--{name}", str(value))
    ]


def run(file: str = "events.csv", *flags: str, stdin: bytes | None = None, **options: Any) -> Any:
    return CliRunner().invoke(app, ["release", file, *flags, *arguments_of(**options)], input=stdin)


def rows(name: str = "out.csv") -> list[dict[str, Any]]:
    path = Path(name)
    if path.suffix == ".parquet":
        return [
            {**row, "start": row["start"].isoformat()} for row in pq.read_table(path).to_pylist()
        ]
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    types = {"tick": int, "start": str, "cell": str}
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: types.get(k, float)(v) for k, v in row.items()} for row in csv.DictReader(file)]


def same_noise(name: str = "out.csv.state") -> Stream:
    """A new stream with the key of a state: what the engine says about the same counts."""
    made = stream_of(name)
    assert made._parameters.noise.key is not None
    noise = ExactStream(
        made.factorization,
        made.sigma / made.query.grid,
        made.query.cells,
        made._parameters.noise.key,
    )
    stream = Stream(made.query, made.budget, made.horizon, replay=True)
    stream._parameters = replace(
        stream._parameters, noise=replace(made._parameters.noise, stream=noise)
    )
    return stream


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_releases_are_the_engine_s_with_exact_noise(folder: Path, form: str) -> None:
    """Bit for bit: counts by the generator, noise by the secret in the state, all columns."""
    done = run("events.csv", "--full-digits", out=f"out.{form}", end=at(HOURS))
    assert done.exit_code == 0, done.stderr
    assert "protect any one event" in done.stderr
    assert "simulation" not in done.stderr
    stream = same_noise(f"out.{form}.state")
    assert stream.noise == "exact"
    found = rows(f"out.{form}")
    assert len(found) == HOURS * 8
    expected = iter(found)
    for tick, counts in enumerate(flu.generate(HOURS), 1):
        made = stream.run_totals([counts])[0]
        low, high = made.interval(0.95)
        for cell, name in enumerate(flu.REGIONS):
            assert next(expected) == {
                "tick": tick,
                "start": at(tick - 1),
                "cell": name,
                "value": made.values[cell],
                "std": made.stds[cell],
                "low": low[cell],
                "high": high[cell],
            }


@pytest.mark.parametrize(
    ("form", "late"),
    soak_but(
        [("jsonl", "drop"), ("parquet", "next")],
        [("csv", "next"), ("jsonl", "drop"), ("parquet", "next")],
    ),
)
def test_runs_in_pieces_are_one_run(folder: Path, form: str, late: str) -> None:
    out = f"out.{form}"
    options = {"out": out, "late": late, "user": "user", "max_events": 2}
    assert run(end=at(7), **options).exit_code == 0
    Path("whole").mkdir()
    for name in ("events.csv", "regions.txt", out, out + ".state"):
        shutil.copy(name, "whole")
    for hour in (7.5, 8, 15.99, 30):
        before = rows(out)
        assert run(end=at(hour), **options).exit_code == 0
        assert rows(out)[: len(before)] == before
    pieces, state = rows(out), read_state(out + ".state")
    os.chdir("whole")
    assert run(end=at(30), **options).exit_code == 0
    assert rows(out) == pieces
    again = read_state(out + ".state")
    assert (again.users, again.consumed) == (state.users, state.consumed)
    assert Stream.load(again.stream).snapshot() == Stream.load(state.stream).snapshot()
    if form != "parquet":
        assert Path(out).read_bytes() == Path("..", out).read_bytes()


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_file_that_grows_out_of_order(folder: Path, late: str) -> None:
    """Rows appended in any order and at any time: `next` counts each exactly once, `drop` those in
    time."""
    lines = Path("events.csv").read_text().splitlines()
    header, body = lines[0], lines[1:]
    order = np.random.default_rng(5).permutation(len(body))
    Path("live.csv").write_text(header + "\n")
    in_time, closed = 0, 0
    for number, part in enumerate(np.array_split(order, 5)):
        with Path("live.csv").open("a") as file:
            file.writelines(body[i] + "\n" for i in part)
        times = [
            (np.datetime64(body[i][:19]) - np.datetime64(at(0)[:19])) / np.timedelta64(1, "h")
            for i in part
        ]
        in_time += sum(t >= closed for t in times)
        for _ in range(2):  # the second has no tick to release, and must not use up the late rows
            assert run("live.csv", late=late, end=at(max(4 * (number // 2), 0.5))).exit_code == 0
        closed = 4 * (number // 2)
    assert run("live.csv", late=late, end=at(40)).exit_code == 0
    assert sum(running_sums()) == (len(body) if late == "next" else in_time)
    assert in_time < len(body)


def test_late_next_needs_a_file_that_only_grows(folder: Path) -> None:
    assert run(late="next", end=at(5)).exit_code == 0
    state = Path("out.csv.state").read_bytes()
    text = Path("events.csv").read_text()
    Path("events.csv").write_text(text.replace("east", "west", 1))
    refused = run(late="next", end=at(6))
    assert refused.exit_code in REFUSED
    assert "only grow" in refused.stderr
    assert Path("out.csv.state").read_bytes() == state
    refused = run("-", late="next", end=at(6), stdin=text.encode())
    assert "--late drop" in refused.stderr


def test_how_many_ticks_does_not_depend_on_the_rows(folder: Path) -> None:
    """No rows, all rows, rows of the far future: the clock alone decides, or the length would tell
    of the rows."""
    header, *body = Path("events.csv").read_text().splitlines()
    lengths = set()
    files = {
        "none.csv": [],
        "all.csv": body,
        "one.csv": body[:1],
        "far.csv": ["2099-01-01T00:00:00Z,east,u,1"],
    }
    for name, lines in files.items():
        Path(name).write_text("\n".join([header, *lines]) + "\n")
        assert run(name, out="of-" + name, now=at(12.5)).exit_code == 0
        found = rows("of-" + name)
        lengths.add(len(found))
        assert [row["cell"] for row in found[:8]] == list(flu.REGIONS)
    assert lengths == {12 * 8}


def test_standard_input(folder: Path) -> None:
    data = gzip.compress(Path("events.csv").read_bytes())
    done = run("-", end=at(4), stdin=data)
    assert done.exit_code == 0, done.stderr
    assert "Released ticks 1 to 4" in done.stderr
    assert Path("out.csv").read_text().splitlines()[0] == "tick,start,cell,value,std,low,high"
    assert run("-", end=at(6), stdin=data).exit_code == 0
    assert [row["tick"] for row in rows()] == np.repeat(np.arange(1, 7), 8).tolist()
    assert run("-", "--quiet", end=at(6), stdin=data).output == ""


def test_standard_output(folder: Path) -> None:
    """A pipe gets all rows so far, with the digits of a file; the state keeps them."""
    for missing in ({"out": "-"}, {"out": "-", "state": "s", "json": True}):
        refused = run("events.csv", end=at(4), **missing)
        assert refused.exit_code == 2
        assert "--out - needs --state" in refused.stderr
    refused = run(
        "events.csv", "--view", "per-tick", "--view", "running", out="-", state="s", end=at(4)
    )
    assert refused.exit_code == 2
    assert "--out - shows one view" in refused.stderr
    assert not Path("s").exists()
    first = run("events.csv", out="-", state="s", end=at(4))
    assert first.exit_code == 0, first.stderr
    assert "Released ticks 1 to 4" in first.stderr
    assert first.stdout.splitlines()[0] == "tick,start,cell,value,std,low,high"
    assert len(first.stdout.splitlines()) == 1 + 4 * 8
    more = run("events.csv", "--quiet", out="-", state="s", end=at(6))
    assert more.output.startswith(first.stdout)
    assert len(more.stdout.splitlines()) == 1 + 6 * 8
    assert run("events.csv", out="file.csv", end=at(6)).exit_code == 0
    cells = [line.split(",")[:3] for line in Path("file.csv").read_text().splitlines()]
    assert [line.split(",")[:3] for line in more.stdout.splitlines()] == cells
    assert {line.split(",")[4] for line in more.stdout.splitlines()} == {
        line.split(",")[4] for line in Path("file.csv").read_text().splitlines()
    }


def test_standard_output_of_a_stream_that_is_over(folder: Path) -> None:
    """A pipe that broke while the last ticks were printed gets them from the next run, which
    refuses further ticks."""
    last = run("events.csv", "--quiet", out="-", state="s", horizon=6, end=at(6))
    assert last.exit_code == 0, last.stderr
    again = run("events.csv", "--quiet", out="-", state="s", horizon=6, end=at(7))
    assert again.exit_code == 4
    assert again.stdout == last.stdout
    assert "released all 6 ticks" in again.stderr
    assert run("events.csv", "--check", out="-", state="s", horizon=6, end=at(7)).stdout == ""


def test_days_of_a_time_zone(folder: Path) -> None:
    Path("v.csv").write_text(
        "ts\n2026-03-28T23:30:00\n2026-03-29T03:30:00\n2026-03-30T00:30:00+02:00\n"
    )
    options = {
        "key": None,
        "keys": None,
        "zone": "Europe/Vienna",
        "every": "1d",
        "start": "2026-03-28",
    }
    assert run("v.csv", end="2026-03-31", **options).exit_code == 0
    assert [row["start"] for row in rows()] == [
        "2026-03-28T00:00:00+01:00",
        "2026-03-29T00:00:00+01:00",
        "2026-03-30T00:00:00+02:00",
    ]
    assert running_sums() == [3]


def test_sums(folder: Path) -> None:
    options = {"key": None, "keys": None, "value": "score", "low": 0, "high": 10, "end": at(HOURS)}
    assert run(**options).exit_code == 0
    with Path("events.csv").open(newline="") as file:
        assert running_sums() == [sum(int(row["score"]) for row in csv.DictReader(file))]
    assert {row["cell"] for row in rows()} == {"sum"}


# -- bad rows --------------------------------------------------------------------------------------


# what is a bad row: tests/files/test_count_rows.py
@pytest.mark.parametrize(
    "line",
    soak_but(
        ["not a row", "2025-10-06T01:00:00Z,atlantis,u,1"],
        ["not a row", "soon,east,u,1", "2025-10-06T01:00:00Z,atlantis,u,1", "2024-01-01,east,u,1"],
    ),
)
def test_one_bad_line(folder: Path, line: str) -> None:
    lines = Path("events.csv").read_text().splitlines()
    lines.insert(41, line)
    Path("events.csv").write_text("\n".join(lines) + "\n")
    refused = run(end=at(5), rejects="bad.csv")
    assert refused.exit_code in REFUSED
    assert "1 bad row" in refused.stderr
    assert "line 42" in refused.stderr
    assert not Path("out.csv").exists()
    assert not Path("out.csv.state").exists()
    with Path("bad.csv").open(newline="") as file:
        (found,) = csv.DictReader(file)
    assert (found["line"], found["row"]) == ("42", line)
    assert stat.S_IMODE(Path("bad.csv").stat().st_mode) == 0o600
    done = run("events.csv", "--skip-bad", end=at(HOURS))
    assert done.exit_code == 0
    assert "line 42" in done.stderr
    assert sum(running_sums()) == len(lines) - 2
    published = Path("out.csv").read_bytes()
    assert run(end=at(40)).exit_code in REFUSED
    assert Path("out.csv").read_bytes() == published


def test_start_after_all_rows(folder: Path) -> None:
    refused = run(start="2030-01-01", end="2030-01-02")
    assert refused.exit_code in REFUSED
    assert "before the start" in refused.stderr
    assert not Path("out.csv").exists()


def test_ctrl_c_while_the_file_is_read(folder: Path, ctrl_c: None) -> None:
    """A real signal to a real process while DuckDB counts."""
    header, *body = Path("events.csv").read_text().splitlines()
    with Path("long.csv").open("w") as file:
        file.write(header + "\n" + ("\n".join(body) + "\n") * 800)
    before = {path.name for path in folder.iterdir()}
    program = """
        import os, signal, sys, threading
        from evercount.cli import app
        from evercount.files import release_run

        real = release_run.count

        def count(*args, **options):
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            return real(*args, **options)

        release_run.count = count
        app(["release", *sys.argv[1:]])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), "long.csv", *arguments_of(end=at(3))]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert stopped.returncode == 130
    assert "Traceback" not in stopped.stderr
    assert {path.name for path in folder.iterdir()} == before | {".out.csv.state.lock"}


def test_ctrl_c_waits_for_an_import(monkeypatch: pytest.MonkeyPatch, ctrl_c: None) -> None:
    imported = []

    def slow(name: str) -> None:
        signal.raise_signal(signal.SIGINT)
        imported.append(name)

    monkeypatch.setattr(importlib, "import_module", slow)
    with pytest.raises(KeyboardInterrupt):
        library("duckdb")
    assert imported == ["duckdb"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_leaves_things_whole(folder: Path, ctrl_c: None) -> None:
    assert run(end=at(3)).exit_code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    real = stream_module.advance

    def interrupted(*args: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "advance", interrupted)
        stopped = run(end=at(9))
    assert stopped.exit_code == 130
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert run(end=at(9)).exit_code == 0
    assert len(rows()) == 9 * 8


# -- one stream, one state -------------------------------------------------------------------------


def test_a_finished_horizon_says_so(folder: Path) -> None:
    done = run(horizon=5, end=at(HOURS))
    assert done.exit_code == 0
    assert "horizon of 5 ticks is complete" in done.stderr
    assert len(rows()) == 5 * 8
    refused = run(horizon=5, end=at(HOURS))
    assert refused.exit_code in REFUSED
    assert "all 5 ticks" in refused.stderr
    assert len(rows()) == 5 * 8


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"epsilon": "2"}, "epsilon was 1.0 and is now 2.0"),
        ({"every": "2h"}, "tick was '1h' and is now '2h'"),
        ({"start": "2025-10-06T01:00+00:00"}, "start was"),
        ({"horizon": "none"}, "horizon was 64 and is now None"),
        ({"zone": "Europe/Vienna"}, "zone was 'UTC'"),
        ({"unknown": "other"}, "unknown was 'refuse'"),
        ({"late": "revise", "revise_for": "2"}, "revise_for was None and is now 2"),
        ({"keys": "others.txt"}, "the keys are different, or in a different order"),
        ({"user": "user", "max_events": 3}, "max_events was None"),
    ],
)
def test_other_parameters_are_refused(folder: Path, changed: dict[str, str], named: str) -> None:
    Path("others.txt").write_text("\n".join(reversed(flu.REGIONS)))
    assert run(end=at(3)).exit_code == 0
    before = Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()
    refused = run(end=at(5), **changed)
    assert refused.exit_code in REFUSED
    assert named in refused.stderr
    assert (Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()) == before


def test_a_second_noise_stream_has_to_be_asked_for(folder: Path) -> None:
    assert run(end=at(5)).exit_code == 0
    first = Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()
    done = run("events.csv", "--new-noise-stream", end=at(5))
    assert done.exit_code == 0
    assert (
        "Together with 1 earlier noise stream over the same data: epsilon=1.40326, delta=2e-06"
        in done.stderr
    )
    assert (Path("out.1.csv").read_bytes(), Path("out.csv.state.1").read_bytes()) == first
    assert rows() != rows("out.1.csv")
    again = run("events.csv", "--new-noise-stream", end=at(5), epsilon="0.5")
    assert "Together with 2 earlier" in again.stderr
    assert Path("out.2.csv").exists()
    continued = run(end=at(6), epsilon="0.5")
    assert "Together with 2 earlier" in continued.stderr
    # the first stream goes on under its new name
    assert run(out="out.1.csv", state="out.csv.state.1", end=at(6)).exit_code == 0
    other = run("events.csv", "--new-noise-stream", end=at(6), adjacency="replace")
    assert other.exit_code in REFUSED
    assert "adjacency" in other.stderr


def test_the_chart_shows_all_runs(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    for form in ("jsonl", "parquet"):
        assert run(end=at(3), out=f"out.{form}").exit_code == 0
        assert run(end=at(6), out=f"out.{form}", plot="chart.png").exit_code == 0
        assert Path("chart.png").read_bytes().startswith(b"\x89PNG")
        Path("chart.png").unlink()


# -- wrong flags -----------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"every": "1y"}, "tick length"),
    ({"start": "tomorrow"}, "ISO 8601"),
    ({"start": "2026-03-29T02:30", "zone": "Europe/Vienna"}, "does not exist"),
    ({"start": "2026-10-25T02:30", "zone": "Europe/Vienna"}, "happens twice"),
    ({"zone": "Mars/Olympus"}, "time zone"),
    ({"end": "2025-01-01"}, "not after --start"),
    ({"time": "when"}, "no column 'when'; its columns: 'ts', 'region'"),
    ({"key": "colour"}, "no column 'colour'"),
    ({"key": None}, "--keys"),
    ({"keys": None}, "--keys"),
    ({"keys": "absent.txt"}, "cannot be read"),
    ({"keys": "empty.txt"}, "holds no key"),
    ({"keys": "twice.txt"}, "lines 1 and 3"),
    ({"horizon": "-3"}, "horizon"),
    ({"horizon": "0"}, "horizon"),
    ({"horizon": str(2**60)}, "horizon"),
    ({"horizon": "many"}, "number of ticks"),
    ({"epsilon": "-1"}, "epsilon"),
    ({"delta": "2"}, "delta"),
    ({"adjacency": "near"}, "adjacency"),
    ({"late": "maybe"}, "late"),
    ({"unknown": "guess"}, "unknown"),
    ({"query": "sum"}, "--key"),
    ({"query": "rollup"}, "--query rollup does not go with --key and --keys"),
    ({"query": "discovered-keys"}, "--query discovered-keys does not go with --key and --keys"),
    ({"minimum": 5}, "--query histogram does not go with --minimum"),
    ({"query": "nothing"}, "unknown query"),
    ({"value": "score"}, "--low"),
    ({"low": 1.0}, "--value"),
    ({"user": "user"}, "how many events of one person are counted"),
    ({"max_events": 3}, "--user"),
    ({"unit": "user"}, "--user"),
    ({"user": "user", "unit": "event"}, "the column --user is required by"),
    ({"user": "user", "unit": "person", "max_events": 1}, "unknown unit"),
    ({"every": "5h", "user": "user", "max_per_tick": 1, "period": "1d"}, "cut periods"),
    ({"user": "user", "max_per_tick": 1, "period": "soon"}, "a length of the calendar"),
    ({"query": "active-users", "user": "user", "horizon": "none"}, "nothing bounds how many ticks"),
    ({"query": "active-users", "user": "user", "max_events": 3}, "any number of events"),
    ({"user": "user", "max_events": 0}, "max_events"),
    ({"out": "out.xlsx"}, ".parquet"),
    ({"out": "nowhere/out.csv"}, "no folder"),
    ({"out": "events.csv"}, "same file"),
    ({"rejects": "out.csv"}, "same file"),
    ({"plot": "chart.gif"}, ".png"),
    ({"factorization": "magic"}, "unknown factorization"),
    ({"delimiter": "::"}, "--delimiter"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[str(w[0]) for w in WRONG])
def test_wrong_flags(folder: Path, options: dict[str, Any], message: str) -> None:
    Path("empty.txt").write_text("\n \n")
    Path("twice.txt").write_text("east\nwest\neast\n")
    before = {path.name for path in folder.iterdir()}
    refused = run(**{"end": at(5), **options})
    assert refused.exit_code in REFUSED, refused.output
    assert message in refused.stderr
    assert refused.stdout == ""
    left = {path.name for path in folder.iterdir()} - before
    assert left <= {".out.csv.state.lock"}


def test_the_chart_has_a_title_a_budget_and_a_time_axis(folder: Path) -> None:
    """Texts of an SVG are read back."""
    done = run(end=at(5), plot="chart.svg")
    assert done.exit_code == 0, done.stderr
    text = Path("chart.svg").read_text("utf-8")
    assert "start of the tick (UTC)" in text
    assert "ε = 1, δ = 1e-06 per event for all ticks together" in text
    Path("many.txt").write_text("\n".join([*flu.REGIONS, *(f"far {n}" for n in range(12))]))
    many = run(end=at(5), keys="many.txt", out="many.csv", plot="chart.svg", zone="Europe/Vienna")
    assert many.exit_code == 0, many.stderr
    text = Path("chart.svg").read_text("utf-8")
    assert "the first 8 of 20 keys" in text
    assert "start of the tick (Europe/Vienna)" in text


def test_the_example_is_reproducible(folder: Path) -> None:
    counts = flu.generate(HOURS)
    assert counts.shape == (HOURS, len(flu.REGIONS))
    np.testing.assert_array_equal(counts, flu.generate(HOURS))
    np.testing.assert_array_equal(counts[:5], flu.generate(5))
    assert (flu.generate(HOURS, seed=1) != counts).any()
    season = flu.rates(np.arange(flu.HOURS)).reshape(-1, 168, 8).sum(axis=1)
    np.testing.assert_array_less(4 * season[0], season.max(axis=0))


def test_budget_of_the_stream(folder: Path) -> None:
    """What the options say is what the noise is calibrated to."""
    assert run(end=at(2), user="user", max_events=3, adjacency="replace").exit_code == 0
    made = stream_of()
    budget = Budget(1.0, 1e-6, adjacency="replace", unit="user", max_events=3)
    assert made.budget == budget
    assert made.sigma == Stream(Histogram(flu.REGIONS), budget, 64).sigma


def test_the_documented_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of docs/release.md, one after the other."""
    text = Path(__file__).parents[2].joinpath("docs", "release.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(block, {})
            continue
        if kind == "toml":  # tests/files/test_many_files.py releases such a stream by its name
            continue
        for line in block.strip().splitlines():
            program, command, *arguments = shlex.split(line)
            assert (program, command) == ("evercount", "release")
            done = CliRunner().invoke(app, ["release", *arguments])
            assert done.exit_code == 0, done.stderr
            ran += 1
    assert ran == 6
    assert [len(rows(name)) for name in ("hourly.csv", "daily.parquet")] == [48 * 8, 2]


def test_labels_that_look_like_formulas_continue_and_are_drawn(folder: Path) -> None:
    """In CSV they are quoted; a later run goes on with the file, its views and its chart find every
    cell."""
    Path("events.csv").write_text(
        "ts,region\n" + "".join(f"{at(h)},{k}\n" for h in range(4) for k in ("=1+1", "-5"))
    )
    Path("regions.txt").write_text("=1+1\n-5\n")
    for hour in (2, 4):
        # and --view running
        done = run("events.csv", "--view", "per-tick", end=at(hour), plot="out.png")
        assert done.exit_code == 0, done.output
    with Path("out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["cell"] for row in table] == ["'=1+1", "'-5"] * 4
    assert all(row["value"][0] != "'" and row["low"][0] != "'" for row in table)
    with Path("out.running.csv").open(newline="") as file:
        assert {row["cell"] for row in csv.DictReader(file)} == {"'=1+1", "'-5"}
    assert Path("out.png").stat().st_size > 0


def test_labels_of_the_library_are_no_formulas_in_csv(folder: Path) -> None:
    stream = Stream(Histogram(["=1+1", "plain"]), Budget(1.0, 1e-6), horizon=4)
    releases = stream.run([["=1+1"], []])
    releases.to_csv("out.csv")
    with Path("out.csv").open(newline="") as file:
        assert [row["cell"] for row in csv.DictReader(file)] == ["'=1+1", "plain"] * 2
