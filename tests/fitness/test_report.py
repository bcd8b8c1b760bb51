"""`evercount inspect`: every number of the report against plain Python, on messy files."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import microseconds
from evercount.engine.user_counting import UserCaps
from evercount.fitness.report import ALL_CAPS, NO_KEY, UNPARSED, inspect_files
from evercount.fitness.tables import PRIVATE, show_fitness
from evercount.queries.user_cap import Caps

duckdb = pytest.importorskip("duckdb")
START, NOW = datetime(2026, 1, 3), datetime(2026, 5, 20)
KEYS = ["north", "south", "west"]
CAPS = {"max_per_tick": 1, "max_ticks": 7}
Row = tuple[str, str, str]


def declaration(**changes: Any) -> StreamDeclaration:
    fields: dict[str, Any] = {
        "name": "visits",
        "query": {"name": "histogram", "parameters": {"keys": KEYS}},
        "budget": {"epsilon": 1, "delta": 1e-6, "unit": "user", **CAPS},
        "tick": "1d",
        "zone": "UTC",
        "start": START.date().isoformat(),
        "horizon": 365,
        "views": ["per-tick"],
        "columns": {"time": "when", "key": "where", "user": "who"},
    }
    return StreamDeclaration.from_dict(fields | changes)


def messy_rows() -> list[Row]:
    """Rows out of order, before the start, in the future, without a person, with other keys."""
    draw = random.Random(5)
    rows = []
    for number in range(1_500):
        moment = datetime(2026, 1, 1) + timedelta(days=number / 12, hours=draw.random() * 30)
        key = draw.choice(KEYS) if draw.random() < 0.97 else draw.choice(["moon", "Mars", ""])
        who = f"p{draw.randint(0, 30)}" if draw.random() < 0.98 else ""
        rows.append((moment.isoformat(timespec="seconds"), key, who))
    rows += draw.choices(rows, k=25)
    rows.append(("2027-03-04T05:06:07", "north", "p1"))
    return rows


def write(path: Path, rows: list[Row], more: str = "") -> Path:
    text = "when,where,who\n" + "".join(",".join(row) + "\n" for row in rows) + more
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, "utf-8")
    return path


def moment_of(row: Row) -> datetime | None:
    try:
        return datetime.fromisoformat(row[0])
    except ValueError:
        return None


def events_of(rows: list[Row]) -> list[tuple[datetime, str, str]]:
    """The rows that a run would count, by the rules in plain Python."""
    events = []
    for row in rows:
        moment = moment_of(row)
        if moment is None or not START <= moment <= NOW or row[1] not in KEYS or not row[2]:
            continue
        events.append((moment, row[1], row[2]))
    return events


def inspected(names: list[Path], folder: Path, **changes: Any) -> Any:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    now = microseconds(NOW.replace(tzinfo=UTC))
    paths = tuple(map(str, names))
    try:
        return inspect_files(paths, declaration(**changes), now, ",", scratch)
    finally:
        for link in scratch.glob("input*"):
            link.unlink()


def test_rows_are_those_of_plain_python(tmp_path: Path) -> None:
    rows = messy_rows()
    first = write(tmp_path / "a.csv", rows[:700])
    second = write(tmp_path / "b.csv.gz", rows[700:], "never,north,p1\nlost,in,a,line\n")
    empty = tmp_path / "c.csv"
    empty.write_bytes(b"")
    found = inspected([first, second, empty], tmp_path)
    readable = [*rows, ("never", "north", "p1")]
    assert [file.rows for file in found.files] == [700, len(rows) - 700 + 2, 0]
    assert found.rows == len(rows) + 2
    assert found.repeated == len(readable) - len(set(readable))
    assert found.files[0].repeated == 700 - len(set(rows[:700]))
    moments = [moment for row in readable if (moment := moment_of(row)) is not None]
    assert found.future == sum(moment > NOW for moment in moments) == 1
    assert found.before_start == sum(moment < START for moment in moments) > 0
    assert found.after_end == 0
    assert found.no_person == sum(not row[2] for row in readable) > 0
    unknown = Counter(row[1] or NO_KEY for row in readable if row[1] not in KEYS)
    assert found.unknown.first == dict(unknown)
    assert found.unknown.rows == unknown.total()
    assert found.unknown.keys == 3
    good = len(events_of(rows)) + sum(moment > NOW for moment in moments)
    assert sum(found.bad.values()) == found.rows - good
    assert found.bad[UNPARSED] == 1
    assert sum(file.bad for file in found.files) == sum(found.bad.values())
    assert found.files[0].first == min(row[0] for row in rows[:700]) + "+00:00"
    assert found.files[2].first is None


@pytest.mark.parametrize("form", ["plain", "gzip", "reordered", "CR LF", "jsonl", "parquet"])
def test_equal_files_are_found_however_they_are_packed(form: str, tmp_path: Path) -> None:
    rows = [row for row in messy_rows() if all(row)]
    first = write(tmp_path / "a.csv", rows)
    other = tmp_path / "b"
    if form == "gzip":
        other = write(tmp_path / "b.csv.gz", rows)
    elif form == "reordered":
        other.write_text(
            "who,when,where\n" + "".join(f"{who},{when},{key}\n" for when, key, who in rows)
        )
    elif form == "CR LF":
        other.write_bytes(first.read_bytes().replace(b"\n", b"\r\n"))
    elif form == "jsonl":
        named = [dict(zip(("when", "where", "who"), row, strict=True)) for row in rows]
        first.write_text("".join(json.dumps(row) + "\n" for row in named))
        other = tmp_path / "b.gz"
        other.write_bytes(gzip.compress(first.read_bytes()))
    elif form == "parquet":
        duckdb.sql(
            f"COPY (FROM read_csv('{first}', all_varchar=true)) TO '{other}' (FORMAT parquet)"
        )
    else:
        write(other, rows)
    found = inspected([first, other], tmp_path)
    assert found.equal == {str(other): str(first)}
    assert found.files[1].repeated == len(rows)
    write(first, rows[:-1])
    assert inspected([first, other], tmp_path).equal == {}


def test_a_file_under_two_names_is_read_once(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", messy_rows())
    link, hard = tmp_path / "b.csv", tmp_path / "c.csv"
    link.symlink_to(first)
    os.link(first, hard)
    found = inspected([first, link, hard], tmp_path)
    assert found.linked == {str(link): str(first), str(hard): str(first)}
    assert len(found.files) == 1
    assert found.equal == {}
    assert inspected([first, first], tmp_path).linked == {str(first): str(first)}
    assert "is the same file as" in show_fitness(found)


def late_rows(rows: list[Row], wait: timedelta) -> Counter[tuple[str, str]]:
    """Day of a late row and the day that is open when it arrives, row by row."""
    latest = START
    late: Counter[tuple[str, str]] = Counter()
    for row in rows:
        moment = moment_of(row)
        if moment is not None and START <= moment <= NOW:
            latest = max(latest, moment)
        if moment is not None and events_of([row]) and latest - wait >= START:
            day, opened = moment.date(), (latest - wait).date()
            if opened > day:
                late[day.isoformat(), opened.isoformat()] += 1
    return late


@pytest.mark.parametrize("wait", ["0s", "12h"])
@pytest.mark.parametrize("late", ["drop", "next"])
def test_late_rows_go_where_the_rule_says(late: str, wait: str, tmp_path: Path) -> None:
    rows = messy_rows()
    path = write(tmp_path / "a.csv", rows)
    found = inspected([path], tmp_path, late=late, wait=wait).late
    wanted = late_rows(rows, timedelta(hours=12 if wait == "12h" else 0))
    assert found.rows == wanted.total() > 0
    if late == "next":
        assert all(wanted[day, counted_in] == rows for day, counted_in, rows in found.moves)
        assert [rows for *_, rows in found.moves] == sorted(wanted.values())[::-1][:8]
    else:
        by_day: Counter[str] = Counter()
        for (day, _), number in wanted.items():
            by_day[day] += number
        assert found.moves == [
            (day, None, number)
            for day, number in sorted(by_day.items(), key=lambda item: (-item[1], item[0]))[:8]
        ]


@pytest.mark.parametrize(
    "unit",
    [CAPS, {"max_events": 5}, {"max_per_tick": 2, "max_events": 6, "period": "4w"}],
    ids=repr,
)
def test_caps_leave_what_the_caps_of_the_library_leave(
    unit: dict[str, Any], tmp_path: Path
) -> None:
    rows = messy_rows()
    path = write(tmp_path / "a.csv", rows)
    budget = {"epsilon": 1, "delta": 1e-6, "unit": "user", **unit}
    found = inspected([path], tmp_path, budget=budget).caps
    declared = declaration(budget=budget)
    ticks: list[list[str]] = [
        [] for _ in range(declared.schedule.tick_of(microseconds(NOW.replace(tzinfo=UTC))))
    ]
    for moment, _, who in events_of(rows):
        ticks[(moment - START).days].append(who)
    caps = declared.user_caps
    assert caps is not None
    rule = UserCaps(declared.query, Caps.of(declared.budget), caps.period_of)
    counts, _ = rule.cap([["north"] * len(users) for users in ticks], ticks, 1, {})
    events: Counter[str] = Counter()
    counted: Counter[str] = Counter()
    for place, (users, left) in enumerate(zip(ticks, counts, strict=True)):
        month = (START + timedelta(days=place)).strftime("%Y-%m")
        events[month] += len(users)
        counted[month] += len(left)
    assert dict(zip(found.months, found.events, strict=True)) == +events
    assert found.counted[ALL_CAPS] == [counted[month] for month in found.months]
    assert sum(counted.values()) < events.total()


def test_a_false_trend_is_named(tmp_path: Path) -> None:
    """The same visits every month, and persons who count on seven days."""
    days = [datetime(2026, 1, 3, 12) + timedelta(days=day) for day in range(120)]
    rows = [(day.isoformat(), "north", f"p{who}") for day in days for who in range(5)]
    path = write(tmp_path / "a.csv", rows)
    shown = show_fitness(inspected([path], tmp_path))
    assert "A false trend: published sums fall by" in shown
    assert "2026-05      10        0     -100.0%" in shown
    by_day = {"epsilon": 1, "delta": 0, "unit": "user", "max_per_tick": 1, "period": "1d"}
    assert "false trend" not in show_fitness(inspected([path], tmp_path, budget=by_day))


def test_keys_below_their_error_are_listed(tmp_path: Path) -> None:
    days = (NOW - START).days
    moments = [START + timedelta(days=day, hours=9) for day in range(days)]
    rows = [(moment.isoformat(), "north", "p") for moment in moments for _ in range(10)]
    rows += [(moment.isoformat(), "south", "p") for moment in moments[:60]]
    path = write(tmp_path / "a.csv", sorted(rows))
    (small,) = inspected(
        [path],
        tmp_path,
        budget={"epsilon": 1, "delta": 0},
        columns={"time": "when", "key": "where"},
    ).small
    assert small.view == "per-tick"
    assert small.std == pytest.approx(1.36, abs=0.01)
    assert small.smallest == {"west": 0.0, "south": pytest.approx(60 / days)}
    assert (small.below, small.keys) == (2, 3)


OPTIONS = (
    "--time when --key where --keys keys.txt --user who --max-per-tick 1 --max-ticks 7 --every 1d "
    "--zone UTC --start 2026-01-03 --epsilon 1 --delta 1e-6 --now 2026-05-20"
)


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv", messy_rows())
    (tmp_path / "keys.txt").write_text("\n".join(KEYS))


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.usefixtures("_files")
def test_the_command_takes_the_options_of_release() -> None:
    done = run("inspect", "*.csv", *OPTIONS.split(), "--out", "daily.csv", "--skip-bad")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(PRIVATE + "\n")
    assert not Path("daily.csv").exists()
    again = run("inspect", "a.csv", *OPTIONS.split(), "--json")
    facts = json.loads(again.stdout)
    assert facts["warning"] == PRIVATE
    with Path("a.csv").open(newline="") as file:
        assert facts["rows"] == len(list(csv.DictReader(file)))
    shown = run("release", *OPTIONS.split(), "--name", "visits", "--show-declaration")
    Path("streams.toml").write_text(shown.stdout)
    named = run("inspect", "visits", "a.csv", "--now", "2026-05-20", "--json")
    assert json.loads(named.stdout) == facts
    assert sorted(path.name for path in Path().iterdir()) == ["a.csv", "keys.txt", "streams.toml"]


@pytest.mark.usefixtures("_files")
def test_files_that_cannot_be_read_are_refused() -> None:
    for words, code, message in (
        (["none.csv", *OPTIONS.split()], 3, "cannot be read"),
        (["none*.csv", *OPTIONS.split()], 3, "no file matches none*.csv"),
        (["a.csv"], 2, "--epsilon"),
        (OPTIONS.split(), 2, "event files"),
        (["a.csv", *OPTIONS.replace("who", "whom").split()], 3, "has no column 'whom'"),
    ):
        done = run("inspect", *words)
        assert done.exit_code == code, done.output
        assert message in done.output
        assert not done.stdout
    Path("a.csv").write_text('when,where,who\n2026-02-02,north,p\n"2026-02-02,north,p\n' * 2)
    done = run("inspect", "a.csv", *OPTIONS.split())
    assert done.exit_code == 3
    assert "never closed" in done.output


@pytest.mark.usefixtures("_files")
def test_ctrl_c_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def interrupted(*_: Any) -> Any:
        assert list(scratch.iterdir())
        raise RuntimeError("INTERRUPT Error: Interrupted!")

    monkeypatch.setattr("evercount.fitness.report._Rows.late", interrupted)
    done = run("inspect", "a.csv", *OPTIONS.split())
    assert done.exit_code == 130
    assert done.stderr == "stopped: nothing was changed\n"
    assert not list(scratch.iterdir())
