"""`evercount release --view`: the output shows the first view, the others have files that every run
makes anew."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.engine.stream import Stream
from evercount.examples import flu
from state_reading import read_state

pytest.importorskip("duckdb")
pq = pytest.importorskip("pyarrow.parquet")
BASE = "--time ts --every 1h --start 2025-10-06T00:00Z --epsilon 1 --delta 1e-6 --horizon 96"
KEYED = f"{BASE} --key region --keys regions.txt --full-digits"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flu.write_csv("events.csv", 72)
    Path("regions.txt").write_text("\n".join(flu.REGIONS), "utf-8")


def run(options: str, out: str = "out.csv", end: str = "2025-10-09T00:00Z") -> tuple[int, str]:
    done = CliRunner().invoke(
        app, ["release", "events.csv", *shlex.split(options), "--out", out, "--end", end]
    )
    return done.exit_code, " ".join(done.stderr.split())


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_views_are_the_librarys_and_grow_with_the_output() -> None:
    views = "--view running --view per-day --view last-24 --view per-tick"
    code, told = run(f"{KEYED} {views}", end="2025-10-07T12:00Z")
    assert code == 0, told
    assert "View: out.per-day.csv" in told
    first = rows("out.per-day.csv")
    assert {row["start"] for row in first} == {"2025-10-06T00:00:00+00:00"}
    code, told = run(f"{KEYED} {views}")
    assert code == 0, told
    days = rows("out.per-day.csv")
    assert days[: len(first)] == first
    assert len(days) == 3 * 8
    state = read_state("out.csv.state")
    assert state is not None
    stream = Stream.load(state.stream)
    published = np.reshape([float(row["value"]) for row in rows("out.csv")], (72, 8))
    library = stream.read_back(published).spans("per-day", [1, 25, 49], [25, 49, 73])
    for name, wanted in (
        ("value", library.values),
        ("std", library.std),
        ("low", library.interval()[0]),
    ):
        assert np.array_equal(np.reshape([float(row[name]) for row in days], (3, 8)), wanted)
    truth = flu.generate(72).reshape(3, 24, 8).sum(axis=1)
    assert np.all(np.abs(library.values - truth) < 6 * library.std)
    assert len(rows("out.last-24.csv")) == 49 * 8
    assert len(rows("out.per-tick.csv")) == 72 * 8


def test_views_of_other_formats_and_of_quantiles() -> None:
    options = (
        f"{BASE} --value score --low 0 --high 10 --bins 16 --view running --view quantile-0.4 "
        "--view per-day"
    )
    code, told = run(options, "out.jsonl")
    assert code == 0, told
    medians = [
        json.loads(line) for line in Path("out.quantile-0.4.jsonl").read_text("utf-8").splitlines()
    ]
    assert len(medians) == 72
    assert medians[-1]["std"] is None
    # binomial(10, 0.35): P(X ≤ 2) = 0.26, P(X ≤ 3) = 0.51
    assert medians[-1]["low"] <= 3 <= medians[-1]["high"]
    assert medians[-1]["high"] - medians[-1]["low"] < 3
    code, told = run(options, "out.parquet")
    assert code == 0, told
    table = pq.read_table("out.per-day.parquet")
    assert table.num_rows == 3 * 16
    # timestamps of the same zone
    assert table["start"].type == pq.read_table("out.parquet")["start"].type
    days = sorted({start.isoformat() for start in table["start"].to_pylist()})
    assert days == sorted(
        {
            json.loads(line)["start"]
            for line in Path("out.per-day.jsonl").read_text("utf-8").splitlines()
        }
    )
    assert b"evercount.guarantee" in table.schema.metadata


def test_views_can_be_added_lost_and_made_again() -> None:
    assert run(f"{KEYED} --view running", end="2025-10-08T00:00Z")[0] == 0
    before = Path("out.csv").read_bytes()
    assert run(f"{KEYED} --view per-day", end="2025-10-08T00:00Z")[0] == 0  # no tick is due
    assert Path("out.csv").read_bytes() == before
    kept = Path("out.per-day.csv").read_bytes()
    Path("out.per-day.csv").unlink()
    assert run(f"{KEYED} --view per-day", end="2025-10-08T00:00Z")[0] == 0
    assert Path("out.per-day.csv").read_bytes() == kept


def test_declared_views_are_written() -> None:
    done = CliRunner().invoke(
        app,
        ["release", "events.csv", *shlex.split(KEYED), "--view", "per-day", "--show-declaration"],
    )
    Path("streams.toml").write_text(done.stdout, "utf-8")
    assert 'views = [\n    "per-day",\n]' in done.stdout
    code, told = run("--streams streams.toml --view last-7")
    assert code == 0, told
    assert len(rows("out.csv")) == 3 * 8  # days
    assert not Path("out.per-day.csv").exists()
    assert len(rows("out.last-7.csv")) == 66 * 8
    # no tick is due: other views of the same numbers
    code, told = run("--streams streams.toml --view running")
    assert code == 0, told
    assert len(rows("out.running.csv")) == 72 * 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (f"{KEYED} --view daily", "Known: per-tick"),
        (f"{KEYED} --view quantile-0.5", "is for the query 'quantiles'"),
        (f"{BASE} --bins 16", "--value"),
        (f"{BASE} --value score --low 0 --high 10 --bins 16 --grid 1", "--grid"),
        (f"{KEYED} --view running --view per-day --plot out.per-day.csv", "same file"),
    ],
)
def test_wrong_views_are_refused_before_anything_is_published(options: str, words: str) -> None:
    code, told = run(options)
    assert code == 2
    assert words in told
    assert not Path("out.csv").exists()


def test_a_view_in_the_output_goes_on_where_the_last_run_ended() -> None:
    """Spans that begin in earlier runs: the state keeps what was published."""
    for hours in (4, 5, 9):
        options = shlex.split(
            f"{KEYED} --view last-3 --out joined.csv --end 2025-10-06T{hours:02d}:00Z --full-digits"
        )
        done = CliRunner().invoke(app, ["release", "events.csv", *options])
        assert done.exit_code == 0, done.output
    state = read_state("joined.csv.state")
    assert state is not None
    stream = Stream.load(state.stream)
    wanted = stream.read_back(state.numbers).last(3)
    assert [int(row["tick"]) for row in rows("joined.csv")] == np.repeat(
        np.arange(3, 10), 8
    ).tolist()
    for name, numbers in (("value", wanted.values), ("std", wanted.std)):
        assert [float(row[name]) for row in rows("joined.csv")] == numbers.ravel().tolist()


def test_a_changed_output_is_refused() -> None:
    assert run(KEYED)[0] == 0
    lines = Path("out.csv").read_text("utf-8").splitlines(keepends=True)
    Path("out.csv").write_text("".join(lines[:-1]), "utf-8")
    code, _ = run(f"{KEYED} --view per-day")
    assert code != 0
    assert not Path("out.per-day.csv").exists()


def test_a_view_that_is_named_later_changes_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run chooses the noise; a later --view only shows more, and the state keeps what the
    noise is for."""
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text(
        "time\n2026-01-01T00:10Z\n2026-01-01T01:10Z\n2026-01-01T02:10Z\n", "utf-8"
    )
    options = (
        "release events.csv --time time --every 1h --start 2026-01-01T00:00Z --epsilon 1 --delta "
        "1e-6 --horizon 24"
    )
    runner = CliRunner()

    def run(*more: str) -> str:
        done = runner.invoke(app, [*options.split(), *more])
        assert done.exit_code == 0, done.output
        return done.output

    began = run("--out", "a.csv", "--end", "2026-01-01T01:00Z", "--view", "running")
    assert "Published: running totals (std 5." in began
    header = Path("a.csv").read_text("utf-8")
    more = run("--out", "a.csv", "--end", "2026-01-01T02:00Z", "--view", "per-tick")
    assert "Published: running totals (std 5." in more
    run("--out", "a.csv", "--end", "2026-01-01T03:00Z")
    assert Path("a.csv").read_text("utf-8").startswith(header)
    with Path("a.csv").open(encoding="utf-8") as file:  # what an output shows never changes
        assert all(2.5 < float(row["std"]) < 5.1 for row in csv.DictReader(file))
    with Path("a.per-tick.csv").open(encoding="utf-8") as file:
        assert all(float(row["std"]) > 2.5 for row in csv.DictReader(file))
    first = run("--out", "b.csv", "--end", "2026-01-01T02:00Z")
    said = "Published: new events per tick (std 1.36)."
    noise = "Noise: fresh, Laplace, chosen for them."
    assert f"{said} {noise} For running totals or weeks declare --view running, last-7" in first
    assert "(epsilon=1, delta=0," in first
    later = run("--out", "b.csv", "--end", "2026-01-01T03:00Z", "--view", "last-2")
    assert f"{said[:-1]}, the last 2 ticks (std 1.92)." in later
    assert "declare" not in later
    with Path("b.csv").open(encoding="utf-8") as file:
        assert [round(float(row["std"]), 2) for row in csv.DictReader(file)] == [1.4] * 3
    with Path("b.last-2.csv").open(encoding="utf-8") as file:
        assert [round(float(row["std"]), 2) for row in csv.DictReader(file)] == [2.0, 2.0]
