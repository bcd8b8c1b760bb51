"""Several files at once: patterns, every format together, row order, bad rows by file, late rows,
streams.toml."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_count_rows import FORMATS, KEYS, declared, rows_of, text_file, write
from typer.testing import CliRunner

from evercount import Budget
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.declarations.schedule import Schedule
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickEvents
from evercount.errors import InputError, ParameterError
from evercount.files.bad_rows import LATE, MAYBE_LATE
from evercount.files.count_rows import count
from evercount.files.source import expand_inputs, open_source
from evercount.queries import build_query
from state_reading import running_sums

pytest.importorskip("duckdb")
CLOCK = Schedule.of("1h", "2026-01-01T00:00")


def counted(files: list[str], spec: Any, scratch: Path, **more: Any) -> Arrivals:
    scratch.mkdir()
    return count(
        [open_source(file, scratch, number=n) for n, file in enumerate(files)],
        spec,
        1,
        11,
        scratch,
        **more,
    )


@pytest.mark.parametrize("user", [None, "user"])
def test_every_format_together_is_one_file(tmp_path: Path, user: str | None) -> None:
    """The same rows in one file and spread over all formats: the same counts, and the same
    users."""
    rows = rows_of(700)
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user=user, max_events=3)
    whole = counted([write(tmp_path, rows, "csv")], spec, tmp_path / "one")
    files = []
    for number, (form, part) in enumerate(
        zip(FORMATS, np.array_split(np.arange(700), len(FORMATS)), strict=True)
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        # columns in any order
        some = [dict(reversed(rows[i].items())) if number % 2 else rows[i] for i in part]
        files.append(write(folder, some, form))
    parts = counted(files, spec, tmp_path / "many")
    np.testing.assert_array_equal(parts.totals.rows(1, 11), whole.totals.rows(1, 11))
    assert (parts.caps_used, parts.bad) == (whole.caps_used, 0)


def test_values_of_several_files(tmp_path: Path) -> None:
    spec = declared(CLOCK, "ts", "sum", value="score", low=-1.0, high=1.0, grid=0.25)
    rows = rows_of(300)
    whole = counted([write(tmp_path, rows, "csv")], spec, tmp_path / "one")
    files = []
    for form, some in (("csv", rows[:100]), ("jsonl", rows[100:200]), ("parquet", rows[200:])):
        (tmp_path / form).mkdir()
        files.append(write(tmp_path / form, some, form))
    np.testing.assert_array_equal(
        counted(files, spec, tmp_path / "many").totals.rows(1, 11), whole.totals.rows(1, 11)
    )


@pytest.mark.parametrize("query", ["distinct-users", "active-users"])
@pytest.mark.parametrize("order", [None, "seq"])
def test_users_of_several_files_are_counted(tmp_path: Path, query: str, order: str | None) -> None:
    rows = [{**row, "seq": -number} for number, row in enumerate(rows_of(300))]
    columns = Columns("ts", user="user", order=order)
    asked = build_query(query, {})
    spec = StreamDeclaration(
        "events",
        asked,
        Budget(1.0, 1e-6, unit="user", max_ticks=9 if query == "active-users" else None),
        factorization="anytime",  # nothing is published here: no noise need be fitted
        columns=columns,
    ).with_schedule(CLOCK)
    whole = counted([write(tmp_path, rows, "csv")], spec, tmp_path / "one").totals
    files = []
    for form, some in (("csv", rows[:100]), ("jsonl", rows[100:200]), ("parquet", rows[200:])):
        (tmp_path / form).mkdir()
        files.append(write(tmp_path / form, some, form))
    parts = counted(files, spec, tmp_path / "many").totals
    assert isinstance(whole, TickEvents)
    assert isinstance(parts, TickEvents)
    assert parts.ticks == whole.ticks
    assert len(set().union(*whole.ticks)) == 40


def test_first_events_of_users_go_by_the_order_of_files_and_rows(tmp_path: Path) -> None:
    """600,000 rows of one moment in three files that DuckDB reads in parallel: the first row of
    each user counts."""
    files = []
    for number in range(3):
        lines = (
            f"2026-01-01T00:00:00,{KEYS[(n + number) % 2]},u{n % 50_000}" for n in range(200_000)
        )
        files.append(text_file(tmp_path, "ts,region,user\n" + "\n".join(lines), f"{number}.csv"))
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=1)
    got = counted(files, spec, tmp_path / "s")
    assert got.totals.rows(1, 2).tolist() == [[25_000, 25_000, 0, 0]]
    got = counted(
        files[1:], spec, tmp_path / "t", users={f"u{n}": (1, 0) for n in range(0, 50_000, 2)}
    )
    # the odd users' rows of file 1 are KEYS[0]
    assert got.totals.rows(1, 2).tolist() == [[25_000, 0, 0, 0]]
    assert len(got.caps_used) == 50_000


def test_users_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the groups in which events are put in order, the same events count."""
    rows = rows_of(900, seed=8)
    for row in rows[::2]:
        row["user"] = "busy"
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=7)
    path = write(tmp_path, rows, "csv")
    expected: Counter[tuple[int, int]] = Counter()
    seen: Counter[str] = Counter({"busy": 2})
    for row in sorted(rows, key=lambda row: row["ts"]):
        if seen[row["user"]] < 7:
            seen[row["user"]] += 1
            expected[int(row["ts"][11:13]), KEYS.index(row["region"])] += 1
    for number, pieces in enumerate((1 << 20, 100, 7)):
        monkeypatch.setattr("evercount.files.event_parts.EVENTS_OF_A_PART", pieces)
        monkeypatch.setattr("evercount.files.event_parts.MOST_EVENTS", pieces)
        monkeypatch.setattr("evercount.files.event_parts.BATCH_ROWS", pieces)
        got = counted([path], spec, tmp_path / f"s{number}", users={"busy": (2, 0)})
        table = got.totals.rows(1, 11)
        assert {(t, c): int(table[t, c]) for t, c in zip(*np.nonzero(table), strict=True)} == dict(
            expected
        )
        assert got.caps_used == {user: (events, 0) for user, events in seen.items()}


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b.csv", "a.csv", "[x].csv"):
        Path(name).write_text("ts\n")
    Path("folder.csv").mkdir()
    assert expand_inputs(["*.csv"]) == ("[x].csv", "a.csv", "b.csv")
    assert expand_inputs(["[x].csv", "?.csv"]) == ("[x].csv", "a.csv", "b.csv")
    Path("link.csv").symlink_to("a.csv")
    os.link("b.csv", "hard.csv")
    for twice in (
        ["a.csv", "a.csv"],
        ["*.csv"],
        ["a.csv", "link.csv"],
        ["b.csv", "hard.csv"],
        ["a.csv", "./a.csv"],
    ):
        with pytest.raises(ParameterError, match="count twice"):
            expand_inputs(twice)
    with pytest.raises(InputError, match="no file matches"):
        expand_inputs(["*.parquet"])
    with pytest.raises(ParameterError, match="alone"):
        expand_inputs(["-", "a.csv"])
    with pytest.raises(ParameterError, match="no events file"):
        expand_inputs([])


# -- through the command ---------------------------------------------------------------------------

OPTIONS = "--time ts --every 1h --start 2026-01-01 --epsilon 1 --delta 1e-6"


def run(*arguments: str, end: str = "2026-01-01T10:00") -> Any:
    return CliRunner().invoke(app, ["release", *arguments, "--end", end])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(name).read_text("utf-8").splitlines()))


def test_files_of_days_and_bad_rows_by_file(folder: Path) -> None:
    Path("day1.csv").write_text("ts\n2026-01-01T01:00:00\n2026-01-01T02:00:00\n")
    Path("day2.csv").write_text("ts\n2026-01-01T03:00:00\n")
    done = run("day*.csv", *OPTIONS.split(), "--out", "out.csv")
    assert done.exit_code == 0, done.stderr
    assert running_sums() == [3]
    Path("day3.csv").write_text("ts\n2026-01-01T11:00:00\nsoon\n2026-01-01,2\n")
    refused = run(
        "day*.csv",
        *OPTIONS.split(),
        "--out",
        "out.csv",
        "--rejects",
        "bad.csv",
        end="2026-01-01T12:00",
    )
    assert refused.exit_code == 3
    assert "day3.csv, line 3" in refused.stderr
    done = run(
        "day3.csv",
        "day2.csv",
        *OPTIONS.split(),
        "--out",
        "out.csv",
        "--skip-bad",
        "--quiet",
        end="2026-01-01T12:00",
    )
    assert done.exit_code == 0, done.stderr
    assert running_sums() == [4]
    done = run("day1.csv", "day2.csv", *OPTIONS.split(), "--late", "next", "--out", "late.csv")
    assert done.exit_code == 0, done.stderr
    assert running_sums("late.csv.state") == [3]


def test_late_rows_are_for_the_rejects_file_only(folder: Path) -> None:
    """Counted rows are not called late, late ones are, and the terminal says the same with and
    without them."""
    arguments = ("log.csv", *OPTIONS.split(), "--out", "out.csv", "--rejects", "late.csv")
    before = "ts\n2026-01-01T01:00:00\n2026-01-01T05:00:00\n"
    Path("log.csv").write_text(before)
    first = run(*arguments, end="2026-01-01T04:00")
    assert first.exit_code == 0, first.stderr
    assert "Late rows" not in first.stderr
    assert Path("late.csv").read_text() == "line,reason,row\n"
    Path("log.csv").write_text(before + "2026-01-01T06:00:00\n")
    quiet = run(*arguments, end="2026-01-01T03:00")
    assert Path("late.csv").read_text() == "line,reason,row\n"
    Path("log.csv").write_text(
        before + "2026-01-01T02:00:00\n2026-01-01T06:00:00\n2026-01-01T02:30:00\n"
    )
    told = run(*arguments, end="2026-01-01T03:00")
    assert told.stderr == quiet.stderr
    assert (
        "Late rows, of ticks before tick 5, do not count (--late drop); they are listed in "
        "late.csv."
    ) in told.stderr
    rows = table("late.csv")
    assert [(row["line"], row["reason"], row["row"][11:16]) for row in rows] == [
        ("4", LATE, "02:00"),
        ("6", LATE, "02:30"),
    ]
    assert stat.S_IMODE(Path("late.csv").stat().st_mode) == 0o600
    assert run(*arguments).exit_code == 0
    assert running_sums() == [3]
    # the run before published nothing, so they are listed until one does
    assert table("late.csv") == rows
    assert run(*arguments).exit_code == 0
    assert table("late.csv") == []  # listed by a run that published: not again
    # another file: nobody can say whether it was counted
    Path("log.csv").write_text("ts\n2026-01-01T07:00:00\n")
    assert run(*arguments).exit_code == 0
    assert [row["reason"] for row in table("late.csv")] == [MAYBE_LATE]
    without = run("log.csv", *OPTIONS.split(), "--out", "out.csv")
    assert "--rejects FILE lists them" in without.stderr


def test_combined_keys(folder: Path) -> None:
    """Two columns are one key; values with commas and quotes are told apart, in every format."""
    values = [
        ("Tyrol", "f"),
        ("Tyrol", "m"),
        ("Hall, Tyrol", "f"),
        ('the "old"', "m"),
        ("a", "b,c"),
        ("a,b", "c"),
    ]
    rows = [
        {"ts": f"2026-01-01T0{n}:00:00", "place": p, "sex": s} for n, (p, s) in enumerate(values)
    ]
    text = "".join(
        f'"{p}", {s if "," not in s else chr(34) + s + chr(34)}\n'.replace(
            '"the "old""', '"the ""old"""'
        )
        for p, s in values
    )
    Path("keys.txt").write_text(text)
    for form in ("csv", "jsonl", "parquet"):
        file = write(folder, rows, form)
        options = f"{OPTIONS} --key place --key sex --keys keys.txt --out {form}.csv"
        done = run(file, *options.split())
        assert done.exit_code == 0, done.stderr
        assert running_sums(f"{form}.csv.state") == [1] * 6
    cells = [row["cell"] for row in table("csv.csv")][:6]
    assert cells == [
        "Tyrol,f",
        "Tyrol,m",
        '"Hall, Tyrol",f',
        '"the ""old""",m',
        'a,"b,c"',
        '"a,b",c',
    ]
    shown = CliRunner().invoke(
        app, ["release", "events.csv", *options.split(), "--show-declaration"]
    )
    Path("other.toml").write_text(shown.stdout)
    again = run("events.csv", "--streams", "other.toml", "--out", "csv.csv")
    assert again.exit_code == 0, again.stderr
    Path("keys.txt").write_text("Tyrol\n")
    refused = run("events.csv", *options.split())
    assert refused.exit_code == 2
    assert "line 1 has 1 values" in refused.stderr


def test_check_publishes_nothing(folder: Path) -> None:
    Path("log.csv").write_text("ts\n2026-01-01T01:00:00\n")
    for out in ((), ("--out", "out.csv")):
        done = run("log.csv", *OPTIONS.split(), "--check", *out)
        assert done.exit_code == 0, done.stderr
        assert "Nothing was published" in done.stderr
    assert {path.name for path in folder.iterdir()} <= {"log.csv", ".out.csv.state.lock"}
    Path("log.csv").write_text("ts\nsoon\n")
    assert run("log.csv", *OPTIONS.split(), "--check").exit_code == 3
    Path("log.csv").write_text("ts\n2026-01-01T01:00:00\n")
    assert run("log.csv", *OPTIONS.split(), "--out", "out.csv").exit_code == 0
    before = Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()
    other = run(
        "log.csv",
        *OPTIONS.replace("--epsilon 1", "--epsilon 2").split(),
        "--out",
        "out.csv",
        "--check",
    )
    assert other.exit_code == 2
    assert "epsilon was" in other.stderr
    assert (
        run("log.csv", *OPTIONS.split(), "--out", "out.csv", "--check", end="2026-01-02").exit_code
        == 0
    )
    assert (Path("out.csv").read_bytes(), Path("out.csv.state").read_bytes()) == before


def test_json_summary_holds_public_facts(folder: Path) -> None:
    Path("log.csv").write_text("ts\n2026-01-01T01:00:00\nsoon\n")
    done = run(
        "log.csv", *OPTIONS.split(), "--out", "out.csv", "--json", "--skip-bad", "--horizon", "10"
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["released"], found["last_tick"], found["complete"], found["output"]) == (
        10,
        10,
        True,
        "out.csv",
    )
    assert (found["epsilon"], found["delta"], found["shows"], found["noise_for"]) == (
        1,
        0,
        "per-tick",
        ["per-tick"],
    )
    assert found["guarantee"].startswith("All releases together")
    Path("log.csv").write_text("ts\n" + "2026-01-01T01:00:00\n" * 50)
    again = run("log.csv", *OPTIONS.split(), "--out", "out2.csv", "--json", "--horizon", "10")
    assert json.loads(again.stdout.replace("out2.csv", "out.csv")) == found


TOML = """
[[stream]]
name = "flu"
query = "count"
tick = "1h"
start = 2026-01-01T00:00:00Z
budget = { epsilon = 1.0, delta = 1e-6 }
columns = { time = "ts" }

[stream.files]
input = "events/*.csv"
output = "flu.csv"
rejects = "flu.rejects.csv"
"""


def test_a_stream_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evercount release flu`, from the folder of streams.toml and from elsewhere."""
    Path("events").mkdir()
    Path("events/1.csv").write_text("ts\n2026-01-01T01:00:00\n")
    Path("streams.toml").write_text(TOML)
    done = run("flu")
    assert done.exit_code == 0, done.stderr
    assert running_sums("flu.csv.state") == [1]
    assert Path("flu.rejects.csv").exists()
    wrong = run("flux")
    assert wrong.exit_code == 2
    assert "Did you mean 'flu'" in wrong.stderr
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    done = run("flu", "--streams", "../streams.toml", end="2026-01-01T12:00")
    assert done.exit_code == 0, done.stderr
    assert "ticks 11 to 12" in done.stderr
    assert len(table("../flu.csv")) == 12
    for wrong_files in ("rejects = 3", 'inputs = "a"'):
        Path("bad.toml").write_text(TOML.replace('rejects = "flu.rejects.csv"', wrong_files))
        assert run("flu", "--streams", "bad.toml").exit_code == 2
    Path("bad.toml").write_text(TOML + TOML)
    assert "declared twice" in run("flu", "--streams", "bad.toml").stderr


def test_words_for_an_operator(folder: Path) -> None:
    """A start in the future, a finished horizon, a weak promise, very short ticks, an epsilon
    beyond the arithmetic."""
    Path("log.csv").write_text("ts\n")
    early = run(
        "log.csv", *OPTIONS.split(), "--out", "out.csv", "--now", "2025-12-01", end="2026-01-02"
    )
    assert early.exit_code == 0
    assert (
        "No tick has ended yet: the stream begins at 2026-01-01T00:00:00+00:00. Nothing was "
        "written."
    ) in early.stderr
    assert "unchanged" not in early.stderr
    for expected in (0, 4):
        done = run("log.csv", *OPTIONS.split(), "--out", "out.csv", "--horizon", "3")
        assert done.exit_code == expected
        assert "--horizon none" in done.stderr
        assert "horizon=None" not in done.stderr
    weak = run(
        "log.csv", *OPTIONS.replace("--epsilon 1", "--epsilon 12").split(), "--out", "weak.csv"
    )
    assert "warning: epsilon=12 is a weak promise" in weak.stderr
    short = OPTIONS.replace("1h", "100ms").split()
    assert (
        "warning: ticks of 100ms are very short"
        in run("log.csv", *short, "--out", "short.csv", end="2026-01-01T00:00:01").stderr
    )
    beyond = run(
        "log.csv",
        *OPTIONS.replace("--epsilon 1", "--epsilon 60").split(),
        *("--out", "beyond.csv", "--view", "running", "--factorization", "anytime"),
    )
    assert beyond.exit_code == 2
    assert "choose a smaller epsilon" in beyond.stderr


def test_starts_in_parquet_are_timestamps_of_the_zone(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    Path("log.csv").write_text("ts\n2026-01-01T01:00:00Z\n")
    options = [*OPTIONS.split(), "--zone", "Europe/Vienna", "--out", "out.parquet"]
    for end in ("2026-01-01T04:00", "2026-01-01T06:00"):
        assert run("log.csv", *options, end=end).exit_code == 0
    table = pq.read_table("out.parquet")
    assert table.schema.field("start").type == pa.timestamp("us", tz="Europe/Vienna")
    starts = [moment.isoformat() for moment in table["start"].to_pylist()]
    assert starts == [f"2026-01-01T{hour:02d}:00:00+01:00" for hour in range(6)]
