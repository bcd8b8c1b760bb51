"""Shares of events that caps drop, against the rule in plain Python; and who gets to see them."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.user_counting import UserCaps
from evercount.files.cap_users import dropped_events
from evercount.files.source import open_source
from evercount.privacy import Budget
from evercount.queries.user_cap import Caps

pytest.importorskip("duckdb")
DAYS = 70
DECLARED: dict[str, Any] = {
    "name": "visits",
    "query": "count",
    "tick": "1d",
    "zone": "UTC",
    "start": "2026-01-01",
    "columns": {"time": "ts", "user": "who"},
}
UNITS: list[dict[str, Any]] = [
    {"max_events": 4},
    {"max_per_tick": 2, "period": "1d"},
    {"max_events": 3, "max_per_tick": 2, "max_ticks": 2, "period": "1w"},
]


def events() -> list[tuple[datetime, str]]:
    draw = random.Random(3)
    days = (datetime(2026, 1, 1) + timedelta(days=draw.random() * DAYS) for _ in range(600))
    return [(day, f"u{draw.randint(0, 20)}") for day in sorted(days)]


def write(folder: Path) -> Path:
    path = folder / "visits.csv"
    path.write_text(
        "ts,who\n" + "".join(f"{day.isoformat()},{who}\n" for day, who in events()), "utf-8"
    )
    return path


def plainly_dropped(declaration: StreamDeclaration, caps: Caps) -> Counter[str]:
    """By the caps of the library, tick after tick."""
    declared = declaration.user_caps
    assert declared is not None
    rule = UserCaps(declaration.query, caps, declared.period_of)
    ticks: list[list[str]] = [[] for _ in range(DAYS)]
    for day, who in events():
        ticks[(day - datetime(2026, 1, 1)).days].append(who)
    kept, _ = rule.cap([None] * DAYS, ticks, 1, {})
    gone: Counter[str] = Counter()
    for number, (users, left) in enumerate(zip(ticks, kept, strict=True)):
        gone[(datetime(2026, 1, 1) + timedelta(days=number)).strftime("%Y-%m")] += len(users) - left
    return gone


@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_shares_are_those_of_plain_python(unit: dict[str, Any], tmp_path: Path) -> None:
    budget = {"epsilon": 1, "delta": 1e-6, "unit": "user", **unit}
    declaration = StreamDeclaration.from_dict({**DECLARED, "budget": budget, "horizon": DAYS})
    found = dropped_events(
        [open_source(str(write(tmp_path)), tmp_path)],
        declaration,
        1,
        DAYS + 1,
        tmp_path / "scratch",
    )
    assert found.months == ["2026-01", "2026-02", "2026-03"]
    assert sum(found.events) == 600
    tried = {
        "as declared": Caps.of(Budget(1.0, 1e-6, unit="user", **unit)),
        "max_per_tick 2": Caps(per_tick=2),
    }
    if declaration.budget.period_ticks != 1:
        tried |= {"max_ticks 3": Caps(ticks=3), "max_events 3": Caps(events=3)}
    for name, caps in tried.items():
        wanted = plainly_dropped(declaration, caps)
        assert found.dropped[name] == [wanted[month] for month in found.months], name
    assert sum(found.dropped["as declared"]) > 0


def test_a_check_shows_the_operator_and_nobody_else(tmp_path: Path) -> None:
    path = write(tmp_path)
    options = (
        "--time ts --zone UTC --every 1d --start 2026-01-01 --end 2026-03-12 --epsilon 1 --delta "
        "1e-6 --user who"
    )
    options += " --max-events 4"
    done = CliRunner().invoke(app, ["release", str(path), *options.split(), "--check"])
    assert done.exit_code == 0, done.output
    assert "Do not publish them" in done.stderr
    assert "as declared" in done.stderr
    assert "as declared" not in done.stdout
    out = tmp_path / "out.csv"
    done = CliRunner().invoke(app, ["release", str(path), *options.split(), "--out", str(out)])
    assert "as declared" not in done.output + out.read_text("utf-8")
    plan = (
        "plan -e 1 -d 1e-6 -t 70 --max-per-tick 1 --max-ticks 7 --view per-tick --from {} --time "
        "ts --user who"
    )
    done = CliRunner().invoke(
        app, [*plan.format(path).split(), "--every", "1d", "--start", "2026-01-01"]
    )
    assert done.exit_code == 0, done.output
    assert "as declared" in done.stderr
    assert "fresh (chosen)" in done.stdout


PLAN = (
    "plan -e 1 -d 1e-6 -t 70 --max-per-tick 1 --max-ticks 7 --view per-tick --time ts --user who "
    "--start 2026-01-01"
)


def planned(*more: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, [*PLAN.split(), *more], input=text)


def test_a_plan_reads_files_as_release_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns, several files, standard input, delimiters and line ends, with the same shares."""
    whole = write(tmp_path)
    header, *rows = whole.read_text("utf-8").splitlines()
    wanted = planned("--from", str(whole)).stderr
    assert "as declared" in wanted
    (tmp_path / "log").mkdir()
    for number, part in enumerate((rows[:200], rows[200:])):
        (tmp_path / "log" / f"{number}.csv").write_text("\n".join([header, *part, ""]), "utf-8")
    semicolons, mixed = tmp_path / "semicolons.csv", tmp_path / "mixed.csv"
    semicolons.write_text(whole.read_text("utf-8").replace(",", ";"), "utf-8")
    mixed.write_bytes(
        "\n".join(
            [header, *(row + "\r" * (place % 2) for place, row in enumerate(rows)), ""]
        ).encode()
    )
    monkeypatch.chdir(tmp_path)
    ways: list[tuple[list[str], str | None]] = [
        (["--from", "log/*.csv"], None),
        (["--from", "log/0.csv", "--from", "log/1.csv"], None),
        (["--from", "-"], whole.read_text("utf-8")),
        (["--from", "semicolons.csv", "--delimiter", ";"], None),
        (["--from", "mixed.csv"], None),
    ]
    for options, text in ways:
        done = planned(*options, text=text)
        assert done.exit_code == 0, done.output
        assert done.stderr == wanted, options
    for options, message in (
        (["--from", "log/0.csv", "--from", "log/*.csv"], "its rows would count twice"),
        (["--from", "none/*.csv"], "no file matches none/*.csv"),
        (["--from", "semicolons.csv"], "has no column 'ts'"),
        (["--from", "semicolons.csv", "--delimiter", ""], "must be one character"),
        (["--delimiter", ";"], "--delimiter is for the files of --from"),
    ):
        done = planned(*options)
        assert done.exit_code in (2, 3), done.output
        assert message in " ".join(done.output.split())


def test_a_plan_names_rows_that_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("ts,who\n2026-01-01,p\n" + '"2026-01-01","p\n' + "2026-01-01,p\n" * 7, "utf-8")
    done = planned("--from", str(path))
    assert done.exit_code == 3
    assert "a quote is opened and never closed" in " ".join(done.output.split())
    path.write_text("ts,who\n2026-01-01,p\n2026-01-01,p\n" + "never,p\n" * 7, "utf-8")
    done = planned("--from", str(path))
    assert done.exit_code == 0, done.output
    assert done.stderr.count("left out line") == 5
    assert "left out 7 bad rows in all" in done.stderr
    assert "left out" not in done.stdout
    path.write_text("", "utf-8")  # nothing came: nothing is dropped
    assert planned("--from", str(path)).exit_code == 0
