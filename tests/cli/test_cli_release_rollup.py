"""`evercount release --rollup`: several columns, a public list of paths, numbers that add up in
every run."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.examples import flu

pytest.importorskip("duckdb")
HOURS = 30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flu.write_csv("events.csv", HOURS)
    Path("paths.csv").write_text(
        "".join(f"{r}, {score}\n" for r in flu.REGIONS for score in range(11)), "utf-8"
    )


def run(*more: str, end: str = "2025-10-07T06:00Z", out: str = "out.csv") -> tuple[int, str]:
    options = (
        "--time ts --every 1h --start 2025-10-06T00:00Z --epsilon 1 --delta 1e-6 --horizon 64 "
        "--full-digits"
    )
    given = [
        "release",
        "events.csv",
        *options.split(),
        "--keys",
        "paths.csv",
        "--end",
        end,
        "--out",
        out,
        *more,
    ]
    done = CliRunner().invoke(app, given)
    return done.exit_code, done.stderr


def table(path: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = defaultdict(list)
    with Path(path).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["cell"]].append(float(row["value"]))
    return found


def test_levels_of_two_columns_add_up_in_several_runs() -> None:
    assert run("--rollup", "region,score", end="2025-10-06T05:00Z")[0] == 0
    code, told = run("--rollup", "region,score")
    assert code == 0, told
    found = {cell: np.asarray(values) for cell, values in table("out.csv").items()}
    assert len(found) == 1 + 8 + 88
    assert all(len(values) == HOURS for values in found.values())
    assert np.allclose(found["total"], sum(found[region] for region in flu.REGIONS), atol=1e-6)
    assert np.allclose(
        found["south"], sum(found[f"south / {score}"] for score in range(11)), atol=1e-6
    )
    truth = flu.generate(HOURS).sum(axis=1)
    assert np.abs(found["total"] - truth).max() < 100  # the std is below 16


def test_unknown_paths() -> None:
    Path("paths.csv").write_text("south,3\nsouth,4\n", "utf-8")
    code, told = run("--rollup", "region,score")
    assert code == 3
    assert "not in the list" in told
    code, told = run("--rollup", "region,score", "--unknown", "other")
    assert code == 0, told
    assert list(table("out.csv")) == [
        "total",
        "south",
        "other",
        "south / 3",
        "south / 4",
        "other / other",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rollup", "region,score", "--key", "region"), "only one of them"),
        (("--rollup", "region,score,user"), "2 names, and levels has 3"),
        (("--rollup", "region,region"), "different columns"),
        (("--rollup", "region,nothing"), "has no column"),
        (("--rollup", "region,score", "--query", "histogram"), "rollup"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], words: str) -> None:
    code, told = run(*options)
    assert code in (2, 3)
    assert words in " ".join(told.split())
    assert not Path("out.csv").exists()


def test_text_rule_holds_for_the_names_of_paths() -> None:
    Path("paths.csv").write_text("south,a\u200bb\nsouth,4\n", "utf-8")
    assert run("--rollup", "region,score")[0] == 2


def test_other_paths_are_another_stream() -> None:
    assert run("--rollup", "region,score", end="2025-10-06T05:00Z")[0] == 0
    Path("paths.csv").write_text(
        "".join(f"{r},{s}\n" for r in flu.REGIONS for s in range(12)), "utf-8"
    )
    code, told = run("--rollup", "region,score")
    assert code == 2
    assert "the paths are different, or in a different order" in " ".join(told.split())


def test_declaration_of_a_rollup_is_what_the_options_write() -> None:
    options = [
        "--time",
        "ts",
        "--every",
        "1h",
        "--start",
        "2025-10-06T00:00Z",
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
    ]
    shown = CliRunner().invoke(
        app,
        [
            "release",
            "events.csv",
            *options,
            "--rollup",
            "region,score",
            "--keys",
            "paths.csv",
            "--show-declaration",
        ],
    )
    assert shown.exit_code == 0, shown.stderr
    Path("streams.toml").write_text(shown.stdout, "utf-8")
    assert "levels = [" in shown.stdout
    done = CliRunner().invoke(
        app,
        [
            "release",
            "events.csv",
            "--streams",
            "streams.toml",
            "--out",
            "out.csv",
            "--end",
            "2025-10-06T05:00Z",
        ],
    )
    assert done.exit_code == 0, done.stderr
    assert len(table("out.csv")) == 97
