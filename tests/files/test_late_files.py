"""Rows that come after their tick was released: which are new, when a tick closes, and days that
are revised."""

from __future__ import annotations

import csv
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT_SECRET
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import UNITS
from evercount.errors import InputError, ParameterError
from evercount.files.bad_rows import split_new
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.files.source import open_source
from evercount.files.view_files import view_path
from evercount.noise import Secret

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DAY, SECRET = UNITS["d"], Secret.from_hex(ROOT_SECRET)
TABLE = {
    "name": "flu",
    "query": {"name": "histogram", "parameters": {"keys": ["n", "s"]}},
    "budget": {"epsilon": 1.0, "delta": 0},
    "tick": "24h",
    "start": "2026-01-01",
    "columns": {"time": "t", "key": "k"},
}
FLU = StreamDeclaration.from_dict(TABLE)
BEGIN = FLU.schedule.begin
Row = tuple[int, str]
"""Day (from 1) and key."""


def declared(**changes: Any) -> StreamDeclaration:
    return StreamDeclaration.from_dict(TABLE | changes)


def write_rows(path: Path, rows: list[Row], more: bool = False) -> None:
    with path.open("a" if more else "w", newline="") as file:
        writer = csv.writer(file)
        if not more:
            writer.writerow(["t", "k"])
        writer.writerows(
            [FLU.schedule.show(FLU.schedule.start_of(day) + DAY // 3), key] for day, key in rows
        )


def new_rows(folder: Path, names: list[str], earlier: Any) -> tuple[list[str], Any]:
    """The texts of the new rows, and what the next run gets."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    sources = [
        open_source(str(folder / name), scratch, number=number) for number, name in enumerate(names)
    ]
    _, new, consumed = split_new(sources, scratch, earlier)
    found = []
    for source in new:
        if source.kind == "parquet":
            found += [row["k"] for row in pq.read_table(source.path).to_pylist()]
        else:
            found += source.path.read_text().splitlines()[1:]
    return found, consumed


def test_every_row_is_new_once(tmp_path: Path) -> None:
    """Files that grow, that are new, renamed, compressed or gone; only a change of what was read is
    refused."""
    one, two, parquet = (tmp_path / name for name in ("one.csv", "two.csv", "three.parquet"))
    one.write_text("k\na\nb\n")
    found, known = new_rows(tmp_path, ["one.csv"], None)
    assert found == [], "the first run cannot tell"
    one.write_text("k\na\nb\nc\nunfini")
    two.write_text("k\na\n")
    pq.write_table(pa.table({"k": ["p"]}), parquet)
    found, known = new_rows(tmp_path, ["one.csv", "two.csv", "three.parquet"], known)
    assert found == ["c", "a", "p"]
    one.write_text("k\na\nb\nc\nunfinished\n")
    two.rename(tmp_path / "moved.csv")
    with gzip.open(tmp_path / "four.csv", "wt") as file:
        file.write("k\nz\n")
    names = ["one.csv", "moved.csv", "three.parquet", "four.csv"]
    found, known = new_rows(tmp_path, names, known)
    assert found == ["unfinished", "z"]
    assert new_rows(tmp_path, names, known)[0] == []
    assert new_rows(tmp_path, ["four.csv"], known)[0] == []
    one.write_text("k\na\nx\nc\nunfinished\n")
    pq.write_table(pa.table({"k": ["q"]}), parquet)
    for name in ("one.csv", "three.parquet"):
        with pytest.raises(InputError, match="does not begin with"):
            new_rows(tmp_path, [name], known)


def run(folder: Path, declaration: StreamDeclaration, day: float, *names: str) -> Any:
    """A run so many days after the start."""
    files = tuple(str(folder / name) for name in names)
    return release_file(
        Job(files, declaration, str(folder / "out.csv"), BEGIN + int(day * DAY), secret=SECRET)
    )


def read(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    with path.open(newline="") as file:
        return [tuple(row[name] for name in columns) for row in csv.DictReader(file)]


def values(path: Path) -> list[float]:
    return [float(value) for (value,) in read(path, "value")]


def test_a_tick_closes_only_so_long_after_its_end(tmp_path: Path) -> None:
    waiting = declared(wait="12h")
    write_rows(tmp_path / "one.csv", [(1, "n")] * 40)
    early = run(tmp_path, waiting, 1.49, "one.csv")
    assert early.released == 0
    assert early.next_end == FLU.schedule.show(BEGIN + 3 * DAY // 2)
    write_rows(tmp_path / "late.csv", [(1, "n")] * 300)  # came after midnight, and counts
    assert run(tmp_path, waiting, 1.5, "one.csv", "late.csv").last == 1
    expected = FLU.build(secret=SECRET, replay=True).run([["n"] * 340]).rows[0]
    assert values(tmp_path / "out.csv") == expected.tolist()
    assert run(tmp_path, declared(wait="0s"), 2.0, "one.csv", "late.csv").last == 2, "it may change"
    with pytest.raises(ParameterError, match="by hand"):
        StreamDeclaration.from_dict(
            {"name": "x", "query": "count", "budget": TABLE["budget"], "wait": "1h"}
        )
    with pytest.raises(ParameterError, match="not a length of time"):
        declared(wait="soon")


def test_a_change_of_the_rule_counts_no_row_twice(tmp_path: Path) -> None:
    """drop, then next, then drop: rows that a run under drop may have counted never count again."""
    write_rows(tmp_path / "one.csv", [(1, "n")] * 5)
    run(tmp_path, declared(), 1, "one.csv")
    # seven are late, and dropped
    write_rows(tmp_path / "one.csv", [(1, "s")] * 7 + [(2, "n")], more=True)
    run(tmp_path, declared(late="next"), 2, "one.csv")
    # late, and count on day 3
    write_rows(tmp_path / "one.csv", [(1, "s")] * 11 + [(3, "n")], more=True)
    write_rows(tmp_path / "two.csv", [(2, "s")] * 2)
    run(tmp_path, declared(late="next"), 3, "one.csv", "two.csv")
    write_rows(tmp_path / "one.csv", [(1, "s")] * 13, more=True)
    run(tmp_path, declared(), 4, "one.csv", "two.csv")
    counted = [["n"] * 5, ["n"], ["n"] + ["s"] * 13, []]
    expected = FLU.build(secret=SECRET, replay=True).run(counted).per_tick().values
    assert values(tmp_path / "out.csv") == expected.reshape(-1).tolist()
    with pytest.raises(ParameterError, match="revise_for was None and is now 2"):
        run(tmp_path, declared(late="revise", revise_for=2), 5, "one.csv")


REVISED = declared(late="revise", revise_for=2, views=("per-day", "last-3"))


def test_files_are_revised_as_the_library_does(tmp_path: Path) -> None:
    """Rows of five days in a file for each day of arrival: as lags of a library stream, with the
    same noise."""
    generator = np.random.default_rng(3)
    names, ticks = [], []
    for arrival in range(1, 7):
        lags = generator.choice(5, 60, p=[0.5, 0.2, 0.1, 0.1, 0.1])
        rows = [
            (arrival - lag, str(generator.choice(["n", "s"])))
            for lag in lags.tolist()
            if arrival > lag
        ]
        # later ones are dropped
        ticks.append([[key for day, key in rows if day == arrival - lag] for lag in range(3)])
        names.append(f"{arrival}.csv")
        write_rows(tmp_path / names[-1], rows)
        run(tmp_path, REVISED, arrival, *names)
    releases = REVISED.build(secret=SECRET, replay=True).run(ticks)
    by_lag = releases.rows.reshape(6, 3, 2)
    expected = [
        (str(as_of - lag), str(as_of), str(2 - lag), key, by_lag[as_of - 1, lag, cell])
        for as_of in range(1, 7)
        for lag in (2, 1, 0)
        if as_of > lag
        for cell, key in enumerate("ns")
    ]
    found = read(tmp_path / "out.csv", "tick", "as_of", "revisions_left", "cell", "value")
    assert [(*row[:4], float(row[4])) for row in found] == expected
    newest = view_path(tmp_path / "out.csv", "per-day")
    assert values(newest) == releases.per_tick().values.reshape(-1).tolist()
    assert read(newest, "tick", "as_of", "revisions_left")[::2] == [
        (str(day), str(min(day + 2, 6)), str(max(0, day - 4))) for day in range(1, 7)
    ]
    weeks = view_path(tmp_path / "out.csv", "last-3")
    assert [float(std) for (std,) in read(weeks, "std")] == pytest.approx(
        releases.last(3).std.reshape(-1)
    )
    with pytest.raises(ParameterError, match="revise_for was 2 and is now None"):
        run(tmp_path, declared(late="next"), 7, *names)
