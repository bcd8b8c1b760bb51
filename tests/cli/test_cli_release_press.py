"""`evercount release` for people who read: digits, post-processed views, descriptions, and a region
that is added."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.engine.stream import Stream
from evercount.engine.write_table import round_table
from state_reading import read_state

DAYS = 12
JOINS = 6
OPTIONS = (
    "--time when --every 1d --zone UTC --start 2026-05-01 --epsilon 1 --delta 1e-6 --horizon 30 "
    "--key region"
)
VIEWS = "--keys keys.txt --unknown other --view per-tick --view last-3"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"2026-05-{day:02d}T{hour:02d}:00:00Z,{region}"
        for day in range(1, DAYS + 1)
        for hour in range(20)
        for region in ("north", "south", "east")
    ]
    Path("events.csv").write_text("\n".join(["when,region", *lines]) + "\n", "utf-8")
    Path("keys.txt").write_text("north\nsouth\n", "utf-8")
    Path("more.txt").write_text("east\nnorth\n", "utf-8")
    Path("weights.txt").write_text("north,3\n", "utf-8")


def run(day: int, *more: str, out: str = "out.csv") -> tuple[int, str]:
    given = [
        "release",
        "events.csv",
        *OPTIONS.split(),
        *VIEWS.split(),
        "--now",
        f"2026-05-{day:02d}",
        "--out",
        out,
    ]
    done = CliRunner().invoke(app, [*given, *more])
    return done.exit_code, done.output


def rows(path: str = "out.csv") -> list[list[str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def library(name: str = "out.csv") -> tuple[Stream, np.ndarray]:
    state = read_state(f"{name}.state")
    assert state is not None
    return Stream.load(state.stream), state.numbers


def test_numbers_have_the_digits_that_the_error_allows_in_every_run() -> None:
    assert run(4)[0] == 0
    before = Path("out.csv").read_text("utf-8")
    assert run(8)[0] == 0
    assert Path("out.csv").read_text("utf-8").startswith(before)
    stream, numbers = library()
    for view, path in (
        (stream.read_back(numbers).per_tick(), "out.csv"),
        (stream.read_back(numbers).last(3), "out.last-3.csv"),
    ):
        columns = round_table(view.table()).columns()
        wanted = [
            list(map(repr, column.tolist()))
            for name, column in columns.items()
            if name in ("value", "std", "low", "high")
        ]
        assert [row[3:] for row in rows(path)] == [list(row) for row in zip(*wanted, strict=True)]
        assert max(len(number) for row in rows(path) for number in row[3:]) <= 6
    stream.close()
    code, told = run(9, "--full-digits")
    assert code == 2
    assert "digits was 'as the error allows' and is now 'full'" in told
    assert run(8, "--full-digits", out="full.csv")[0] == 0
    assert run(9, "--full-digits", out="full.csv")[0] == 0
    assert max(len(number) for row in rows("full.csv") for number in row[3:]) > 10


def test_views_are_post_processed_and_described() -> None:
    assert run(8, "--postprocess", "nonnegative,integer", "--weights", "weights.txt")[0] == 0
    for path in ("out.csv", "out.last-3.csv"):
        for row in rows(path):
            value, low, high = (float(row[place]) for place in (3, 5, 6))
            assert value == int(value)
            assert 0 <= low <= value <= high
        said = json.loads(Path(f"{path}.meta.json").read_text("utf-8"))
        assert said["url"] == path
        assert [column["name"] for column in said["tableSchema"]["columns"]] == [
            "tick",
            "start",
            "cell",
            "value",
            "std",
            "low",
            "high",
        ]
        (note,) = said["notes"]
        assert (note["epsilon"], note["unit"], note["postprocess"]) == (
            1.0,
            "event",
            ["nonnegative", "integer"],
        )
        assert "protect any one event" in note["guarantee"]
    stds = {row[2]: float(row[4]) for row in rows()}
    assert stds["south"] > 2.5 * stds["north"], (
        "a key of three times the weight has a third of the noise"
    )
    code, told = run(9, "--postprocess", "monotone", out="b.csv")
    assert code == 2
    assert "not monotone" in told


def test_a_region_joins_and_goes() -> None:
    assert run(JOINS)[0] == 0
    before = Path("out.csv").read_text("utf-8")
    code, told = run(9, "--add-keys", "more.txt")
    assert code == 0, told
    assert f"Keys that join: east; counted from tick {JOINS} on" in told
    assert run(11)[0] == 0, "later runs need not name the keys again"
    Path("gone.txt").write_text("south\n", "utf-8")
    assert run(13, "--remove-keys", "gone.txt", "--add-keys", "more.txt")[0] == 0
    assert Path("out.csv").read_text("utf-8").startswith(before)
    found = rows()
    assert {int(row[0]) for row in found if row[2] == "east"} == set(range(JOINS, DAYS + 1))
    assert {int(row[0]) for row in found if row[2] == "south"} == set(range(1, 11))
    for row in found:
        true = {"north": 20, "south": 20, "east": 20, "other": 20 if int(row[0]) < JOINS else 0}[
            row[2]
        ]
        assert abs(float(row[3]) - true) < 6 * float(row[4])
    stream, numbers = library()
    assert list(stream.labels) == ["north", "south", "other", "east"]
    wanted = stream.read_back(numbers).per_tick()
    shown = ~np.isnan(wanted.values)
    shown[10:, 1] = False  # south is counted and kept, and not shown any more
    assert [row[3] for row in found] == [
        repr(round(value, 1)) for value in wanted.values[shown].tolist()
    ]
    stream.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--add-keys", "nothing.txt"], "cannot be read"),
        (["--add-keys", "keys.txt", "--adjacency", "replace"], "adjacency"),
        (["--weights", "keys.txt"], "not a key and a whole number"),
        (["--remove-keys", "more.txt"], "no key 'east'"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_lost(more: list[str], why: str) -> None:
    assert run(4)[0] == 0
    before = {path: path.read_bytes() for path in Path().glob("out*")}
    code, told = run(6, *more)
    assert code == 2, told
    assert why in told
    assert {path: path.read_bytes() for path in Path().glob("out*")} == before
