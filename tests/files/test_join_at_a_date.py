"""`add_keys_from`: keys join at a date inside a run, as they do where two runs meet there."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_run_state import Runner

import evercount
from evercount import Secret
from evercount.errors import BadRows, ParameterError

pytest.importorskip("duckdb")
SECRET = Secret.from_hex("5a" * 32)
JOINS = 20  # the day of January on which the keys join; the run before ended with day 10
KINDS: dict[str, dict[str, Any]] = {
    "histogram": {"key": "region", "keys": ["n", "s"]},
    "other": {"key": "region", "keys": ["n", "s"], "unknown": "other"},
    "rollup": {"rollup": ["state", "region"], "keys": [("a", "n"), ("a", "s")]},
    "active": {
        "query": "active-users",
        "key": "region",
        "keys": ["n", "s"],
        "user": "who",
        "max_ticks": 6,
    },
    "distinct": {"query": "distinct-users", "key": "region", "keys": ["n", "s"], "user": "who"},
    "capped": {"key": "region", "keys": ["n", "s"], "user": "who", "max_events": 4},
    "late rows": {"key": "region", "keys": ["n", "s"], "late": "next"},
}
NEW = {"rollup": [("a", "islands"), ("b", "west")]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_events(days: range, path: str = "events.csv") -> None:
    """Some rows of each day; those of the new regions come on all days from 12 on."""
    draw = random.Random(days.stop)
    new = Path(path).exists()
    with Path(path).open("a") as file:
        if not new:
            file.write("ts,state,region,who\n")
        for day in days:
            for _ in range(12):
                states = (
                    {"n": "a", "s": "a", "islands": "a", "west": "b"}
                    if day >= 12
                    else {"n": "a", "s": "a"}
                )
                region = draw.choice(list(states))
                file.write(
                    f"2026-01-{day:02d}T09:00:00Z,{states[region]},{region},u{draw.randrange(9)}\n"
                )


def released(kind: str, home: dict[str, Any], now: int, **more: Any) -> evercount.ReleaseTable:
    options: Any = {
        "time": "ts",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "horizon": 40,
        "epsilon": 1,
    }
    options |= {
        "views": ["per-tick", "running"],
        "secret": SECRET,
        "now": f"2026-01-{now:02d}T01:00:00Z",
    }
    return evercount.release("events.csv", **options, **KINDS[kind], **home, **more)


@pytest.mark.parametrize("home", ["state", "db"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_join_at_a_date_as_in_two_runs(kind: str, home: str) -> None:
    """A month that is released at once, and the same where one run ends with the day before: bit
    for bit the same."""
    new = NEW.get(kind, ["islands", "west"])
    write_events(range(1, 11))
    for name in ("one", "two"):
        released(kind, {home: f"{name}.home", "out": f"{name}.csv"}, 11)
    write_events(range(11, 31))
    one = released(
        kind,
        {home: "one.home", "out": "one.csv"},
        31,
        add_keys=new,
        add_keys_from=f"2026-01-{JOINS:02d}",
    )
    released(kind, {home: "two.home", "out": "two.csv"}, JOINS, skip_bad=True)
    two = released(kind, {home: "two.home", "out": "two.csv"}, 31, add_keys=new)
    for view in ("", ".running"):
        assert Path(f"one{view}.csv").read_bytes() == Path(f"two{view}.csv").read_bytes()
    assert one.to_csv() == two.to_csv()
    columns = one.columns()
    rows = list(zip(columns["cell"].tolist(), columns["tick"].tolist(), strict=True))
    assert set(dict(rows).values()) == {30}
    first = min(tick for cell, tick in rows if "islands" in cell)
    assert first == JOINS, "no number from before the key joined, and so no negative month"


def test_rows_of_faulty_keys_stay_faults() -> None:
    """Rows of the keys that join are legal in the whole file; others are not, before and after the
    day."""
    write_events(range(1, 31))
    home = {"out": "p.csv"}
    with pytest.raises(BadRows, match="bad rows"):
        released("histogram", home, 31, add_keys=["islands"], add_keys_from="2026-01-20")
    assert not Path("p.csv").exists()
    released("histogram", home, 31, add_keys=["islands", "west"], add_keys_from="2026-01-20")


def test_a_date_that_cannot_be_is_refused_with_the_first_that_can() -> None:
    write_events(range(1, 12))
    home = {"out": "p.csv"}
    released("histogram", home, 11)
    published = Path("p.csv").read_bytes()
    for more, why in (
        ({"add_keys": ["w"], "add_keys_from": "2026-01-05"}, r"can join begins at 2026-01-11"),
        ({"add_keys_from": "2026-01-15"}, "give both"),
        ({"add_keys": ["w"], "add_keys_from": "soon"}, "`add_keys_from`"),
    ):
        with pytest.raises(ParameterError, match=why):
            released("histogram", home, 12, **more)
        assert Path("p.csv").read_bytes() == published
    later = released("histogram", home, 12, add_keys=["w"], add_keys_from="2026-01-25")
    assert set(later.columns()["cell"]) == {"n", "s"}, "not yet"
    write_events(range(12, 31))
    new = {"add_keys": ["islands", "west"], "add_keys_from": "2026-01-12"}
    assert "west" in released("histogram", home, 31, **new).cells
    assert "west" in released("histogram", home, 31, **new).cells, "cron gives the same line again"


@pytest.fixture
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--db s.db"])
def test_killed_where_keys_join(more: str, tmp_path: Path, run: Runner) -> None:
    """At steps before, at and after the day: the same command then gives the table of a run that
    was not killed."""
    start = tmp_path / "start"
    start.mkdir()
    rows = [
        f"2026-01-01T{hour:02d}:{minute:02d}:00,{key}"
        for hour in range(9)
        for minute in range(9)
        for key in "nsw"
    ]
    (start / "events.csv").write_text(
        "\n".join(["ts,k", *(row for row in rows if row[-1] != "w" or row[11:13] > "05")])
    )
    (start / "keys.txt").write_text("n\ns\n")
    (start / "new.txt").write_text("w\n")
    keys = f"{more} --key k --keys keys.txt"
    assert run(start, 3, more=f"{keys} --skip-bad").returncode == 0
    joining = f"{keys} --add-keys new.txt --add-keys-from 2026-01-01T07:00"
    shutil.copytree(start, tmp_path / "whole")
    assert run(tmp_path / "whole", 9, more=joining).returncode == 0
    whole = (tmp_path / "whole" / "out.csv").read_bytes()
    assert next(line for line in whole.decode().splitlines() if ",w," in line).startswith(
        "8,2026-01-01T07:00:00"
    )
    lengths, step, killed = set[int](), 1, 0
    while True:
        shutil.copytree(start, tmp_path / str(step))
        died = run(tmp_path / str(step), 9, step, joining)
        seen = (tmp_path / str(step) / "out.csv").read_bytes()
        assert whole.startswith(seen)
        lengths.add(seen.count(b"\n"))
        assert run(tmp_path / str(step), 9, more=joining).returncode in (0, 4)
        assert (tmp_path / str(step) / "out.csv").read_bytes() == whole
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL
        killed, step = killed + 1, step + (11 if more else 1)
    assert killed > 8
    assert lengths >= {7, 1 + 2 * 7}, "also between the two commits"
