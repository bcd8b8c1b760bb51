"""`evercount release` with keys that nobody listed: normal forms, bad keys, late rows, runs in
pieces, charts."""

from __future__ import annotations

import csv
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.cautions import published_line
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import parse_time, zone_named
from evercount.declarations.view_names import all_of_view
from evercount.errors import BadRows, ParameterError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from soak_cases import soak_except

duckdb = pytest.importorskip("duckdb")

NFC, NFD = "Gr\u00fcnau", unicodedata.normalize("NFD", "Gr\u00fcnau")
BAD = ["", " north", "a\tb", "\u202enorth", "x" * 201, "y" * 1_000_000]


TOWNS = [
    ["oslo"] * 60 * (hour % 2) + ["=bergen"] * 50 * (hour % 3 > 1) + [f"hut {hour}"]
    for hour in range(14)
]


def declaration(**rest: Any) -> StreamDeclaration:
    table = {
        "name": "x",
        "query": {"name": "discovered-keys", "parameters": {"minimum": 2}},
        "budget": {"epsilon": 2.0, "delta": 1e-3},
        "tick": "1h",
        "start": "2026-01-01T00:00Z",
        "horizon": 24,
        "columns": {"time": "ts", "key": "region"},
    }
    return StreamDeclaration.from_dict({**table, **rest})


def job(folder: Path, form: str, until: int, one: StreamDeclaration, **rest: Any) -> Job:
    now = parse_time(f"2026-01-01T{until:02d}:00Z", zone_named("UTC"), "now")
    return Job(str(folder / f"events.{form}"), one, str(folder / "out.csv"), now, **rest)


def write(path: Path, rows: list[tuple[int, str]]) -> None:
    timed = [(f"2026-01-01T{hour:02d}:30:00Z", key) for hour, key in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            csv.writer(file, lineterminator="\n").writerows([("ts", "region"), *timed])
        else:
            file.writelines(json.dumps({"ts": ts, "region": key}) + "\n" for ts, key in timed)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "out.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_keys_of_the_day_are_those_of_the_library(tmp_path: Path, form: str) -> None:
    """Runs in pieces; the view is read back from the published file, with the names that it has
    there."""
    one = declaration(views=["per-tick"], horizon=None)
    write(tmp_path / "events.csv", [(hour, key) for hour, keys in enumerate(TOWNS) for key in keys])
    secret, out = Secret.from_hex("e9" * 32), tmp_path / f"out.{form}"
    for until in (3, 9, 14):
        now = parse_time(f"2026-01-01T{until:02d}:00Z", zone_named("UTC"), "now")
        outcome = release_file(Job(str(tmp_path / "events.csv"), one, str(out), now, secret=secret))
    assert "the keys of each tick" in published_line(outcome.job.declaration)
    releases = one.build(secret=secret, replay=True).run(TOWNS)
    assert list(releases.labels) == ["total", "other", "=bergen", "oslo"]
    table = releases.table(starts=one.schedule.starts_of(1, len(releases))).columns()
    wanted = {name: column.tolist() for name, column in table.items()}
    assert [wanted["cell"].count(key) for key in ("total", "oslo", "=bergen")] == [14, 7, 4]
    reader = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[form]
    if form == "csv":
        wanted["cell"] = [cell.replace("=", "'=") for cell in wanted["cell"]]
    columns = [column for column in wanted if column != "start"]
    rows = list(zip(*(wanted[column] for column in columns), strict=True))
    assert duckdb.sql(f"SELECT * EXCLUDE start FROM {reader}('{out}')").fetchall() == rows
    assert not (tmp_path / f"out.per-tick.{form}").exists(), "the release file shows it"
    with pytest.raises(ParameterError, match="no sum over several"):
        release_file(
            Job(str(tmp_path / "events.csv"), one, str(out), now, secret=secret, views=("last-5",))
        )


@pytest.mark.parametrize("form", soak_except(["csv", "parquet"], ["csv", "jsonl", "parquet"]))
def test_views_are_those_of_the_library(tmp_path: Path, form: str) -> None:
    """Runs in pieces; every view is read back from the published file, whatever its form."""
    query = {"name": "discovered-keys", "parameters": {"minimum": 2, "every": 2}}
    one = declaration(query=query, views=["per-tick", "last-5"])
    ticks = [["oslo"] * 60 + ["bergen"] * 9 * (hour > 3) + [f"hut {hour}"] for hour in range(14)]
    write(tmp_path / "events.csv", [(hour, key) for hour, keys in enumerate(ticks) for key in keys])
    secret = Secret.from_hex("e7" * 32)
    for until in (3, 9, 14):
        now = parse_time(f"2026-01-01T{until:02d}:00Z", zone_named("UTC"), "now")
        out = str(tmp_path / f"out.{form}")
        release_file(
            Job(
                str(tmp_path / "events.csv"),
                one,
                out,
                now,
                secret=secret,
                views=("per-tick", "last-5"),
            )
        )
    stream = one.build(secret=secret, replay=True)
    releases = stream.run(ticks)
    assert len(stream.labels) == 4, "both towns became public, no hut did"
    reader = {"csv": "read_csv", "jsonl": "read_json", "parquet": "read_parquet"}[form]
    for name in ("per-tick", "last-5"):
        wanted = {
            key: column.tolist()
            for key, column in all_of_view(releases, name, one.schedule).columns().items()
        }
        path = tmp_path / (f"out.{form}" if name == "per-tick" else f"out.{name}.{form}")
        found = duckdb.sql(f"SELECT * EXCLUDE start FROM {reader}('{path}')").fetchall()
        columns = [column for column in wanted if column != "start"]
        assert found == list(zip(*(wanted[column] for column in columns), strict=True))
        assert len(found) < 4 * (14 if name == "per-tick" else 10), "no row before a key is public"


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_normal_forms_are_one_key_and_bad_keys_are_bad_rows(tmp_path: Path, form: str) -> None:
    good = (
        [(0, NFC), (0, NFD)] * 150 + [(1, "north")] * 300 + [(1, f"village {n}") for n in range(50)]
    )
    write(tmp_path / f"events.{form}", [*good, *[(1, key) for key in BAD]])
    secret = Secret.from_hex("f1" * 32)
    with pytest.raises(BadRows):
        release_file(job(tmp_path, form, 3, declaration(), secret=secret))
    assert not (tmp_path / "out.csv").exists()
    rejects = tmp_path / "rejects.csv"
    outcome = release_file(
        job(
            tmp_path,
            form,
            3,
            declaration(views=["running"]),
            secret=secret,
            skip_bad=True,
            rejects=str(rejects),
        )
    )
    assert outcome.bad == len(BAD)
    csv.field_size_limit(2_000_000)
    with rejects.open(newline="", encoding="utf-8") as file:
        assert {row["reason"] for row in csv.DictReader(file)} == {
            "not a legal key: 1 to 200 characters, none of them invisible, no blanks at its ends"
        }
    plain = declaration(views=["running"]).build(secret=secret, replay=True)
    releases = plain.run([[NFC] * 300, [key for hour, key in good if hour == 1], []])
    expected = [
        (str(release.tick), label, value)
        for release in releases
        for label, value in zip(release.labels, release.values.tolist(), strict=True)
    ]
    assert [(row["tick"], row["cell"], float(row["value"])) for row in table(tmp_path)] == expected
    assert list(releases[2].labels) == ["total", "other", NFC, "north"]


def test_runs_in_pieces_with_late_rows_are_one_stream(tmp_path: Path) -> None:
    """late=next: rows of closed ticks count in the next one; every piece continues counts, keys and
    noise."""
    one, secret = declaration(late="next", views=["running"]), Secret.from_hex("f2" * 32)
    rows = [(0, "north")] * 100 + [(0, "south")] * 3
    path = tmp_path / "events.csv"
    write(path, rows)
    release_file(job(tmp_path, "csv", 1, one, secret=secret))
    with path.open("a", encoding="utf-8") as file:
        file.writelines(
            f"2026-01-01T{hour:02d}:10:00Z,south\n" for hour in [0] * 60 + [1] * 60 + [3] * 5
        )
    release_file(job(tmp_path, "csv", 2, one))
    release_file(job(tmp_path, "csv", 5, one, plot=str(tmp_path / "chart.svg")))
    plain = one.build(secret=secret, replay=True)
    releases = plain.run([["north"] * 100 + ["south"] * 3, ["south"] * 120, [], ["south"] * 5, []])
    found = [(int(row["tick"]), row["cell"], float(row["value"])) for row in table(tmp_path)]
    assert found == [
        (release.tick, label, value)
        for release in releases
        for label, value in zip(release.labels, release.values.tolist(), strict=True)
    ]
    assert "south" in releases[1].labels
    assert (tmp_path / "chart.svg").stat().st_size > 1000


def test_a_file_without_legal_keys_and_one_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "events.csv", [])
    release_file(job(tmp_path, "csv", 2, declaration()))
    assert {row["cell"] for row in table(tmp_path)} == {"total", "other"}


def test_options_write_the_declaration(tmp_path: Path) -> None:
    options = (
        "--time ts --every 1h --start 2026-01-01 --epsilon 1 --delta 1e-6 --key region "
        "--show-declaration"
    )
    run = CliRunner().invoke(
        app, ["release", "-", *options.split(), "--query", "discovered-keys", "--minimum", "7"]
    )
    assert run.exit_code == 0
    assert "discovered-keys" in run.output
    assert "minimum = 7" in run.output
    for wrong in (["--minimum", "7"], ["--query", "discovered-keys", "--unknown", "other"]):
        assert CliRunner().invoke(app, ["release", "-", *options.split(), *wrong]).exit_code != 0


def test_a_line_that_cannot_be_parsed_is_counted_once(tmp_path: Path) -> None:
    """Keys that nobody listed are read by a scan of their own, which meets the same line."""
    from evercount.files.count_rows import count
    from evercount.files.source import open_source

    path = tmp_path / "events.csv"
    path.write_text(
        "ts,region\n2026-01-01T00:30:00Z,oslo\n2026-01-01T00:30:00Z\n2026-01-01T01:30:00Z,oslo\n"
    )
    assert count((open_source(str(path), tmp_path),), declaration(), 1, 9, tmp_path).bad == 1
