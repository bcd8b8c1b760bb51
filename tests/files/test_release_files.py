"""Where a run writes: links are not followed or replaced, names of folders are not patterns, no
trap is used."""

from __future__ import annotations

import csv
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import evercount
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.engine import build, noise_choice
from evercount.errors import ParameterError
from evercount.factorizations import fit_blend
from evercount.files.count_rows import count
from evercount.files.source import open_source
from evercount.privacy import Budget
from evercount.queries import Count
from product_internals import forget_fitted_noise

pq = pytest.importorskip("pyarrow.parquet")
EVENTS = "ts,user\n2026-01-01T00:10Z,a\n2026-01-01T01:10Z,b\n"


def release(
    folder: Path, *more: object, out: str = "out.csv", events: str = EVENTS
) -> tuple[int, str]:
    source = folder / "events.csv"
    source.write_text(events)
    options = {
        "time": "ts",
        "every": "1h",
        "start": "2026-01-01T00:00Z",
        "end": "2026-01-01T02:00Z",
    }
    options |= {"epsilon": "1", "delta": "1e-6", "out": str(folder / out)}
    named = [part for name, value in options.items() for part in (f"--{name}", value)]
    done = CliRunner().invoke(app, ["release", str(source), *named, *map(str, more)])
    return done.exit_code, done.output


@pytest.mark.parametrize("option", ["--out", "--state", "--rejects", "--plot"])
@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_is_refused_with_its_target(
    tmp_path: Path, option: str, dangling: bool
) -> None:
    target, link = (
        tmp_path / "target.png",
        tmp_path / ("link.csv" if option == "--out" else "link.png"),
    )
    if not dangling:
        target.write_text("precious")
    link.symlink_to(target)
    code, output = release(tmp_path, *(() if option == "--out" else (option, link)), out="link.csv")
    if option != "--out":
        link_out = tmp_path / "link.csv"
        assert not link_out.exists()
    assert code == 5
    assert f"{option} {link} is a symbolic link to {target}" in output.replace("\n", " ")
    assert link.is_symlink()
    assert target.exists() != dangling
    assert dangling or target.read_text() == "precious"


@pytest.mark.parametrize("option", ["--rejects", "--plot"])
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path, option: str) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    code, output = release(tmp_path, option, pipe)
    assert code == 5
    assert "is not a regular file, but would be replaced" in output
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_traps_next_to_the_files_are_not_written_to(tmp_path: Path) -> None:
    """Links under the names of private files: removed or refused, never followed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    bad = EVENTS + "nonsense,c\n"
    for trap in (".out.csv.new", ".out.csv.state.new", ".rejects.csv.new", "rejects.csv"):
        (tmp_path / trap).unlink(missing_ok=True)
        if trap != "rejects.csv":
            (tmp_path / trap).symlink_to(victim)
        else:
            os.link(victim, tmp_path / trap)
        code, output = release(
            tmp_path, "--rejects", tmp_path / "rejects.csv", "--skip-bad", events=bad
        )
        assert code == 0, output
        assert victim.read_text() == "precious"
        assert "nonsense" in (tmp_path / "rejects.csv").read_text()
        for made in ("rejects.csv", "out.csv.state"):
            assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o600
        for left in ("out.csv", "out.csv.state"):
            (tmp_path / left).unlink()
    for trap in (".out.csv.state.lock", ".out.csv.state.scratch"):
        (tmp_path / trap).unlink(missing_ok=True)
        (tmp_path / trap).symlink_to(tmp_path)
        code, output = release(tmp_path)
        assert code == 5
        assert "cannot be" in output
        (tmp_path / trap).unlink()
    assert victim.read_text() == "precious"


def counted_by(column: str) -> StreamDeclaration:
    """Hourly counts of rows whose time stands in that column."""
    budget, columns = Budget(1.0, 1e-6), Columns(column)
    return StreamDeclaration("events", Count(), budget, "1h", "2026-01-01T00:00Z", columns=columns)


def test_names_of_folders_are_no_patterns(tmp_path: Path) -> None:
    """A folder named a[1] is not the folder a1, and one named s*r is not star: other files would be
    counted."""
    spec = counted_by("ts")
    for name, other in (("a[1]", "a1"), ("s*r", "star"), ("q?", "qq")):
        for folder in (tmp_path / name, tmp_path / other):
            folder.mkdir()
        (tmp_path / other / "input").write_text("ts\n" + "2026-01-01T00:10Z\n" * 5)
        (tmp_path / name / "events.csv").write_text("ts\n2026-01-01T00:10Z\n")
        source = open_source(str(tmp_path / name / "events.csv"), tmp_path / name)
        assert count((source,), spec, 1, 2, tmp_path / name).totals.total.tolist() == [1]


HOSTILE = [
    "value=3",
    "tick=1",
    "ts=2030-01-01",
    "a[1]",
    "s*r",
    "q?",
    "~x",
    "it's",
    "a b",
    "{x,y}",
    "back\\slash",
    "ü",
]


def test_names_of_files_and_folders_are_only_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input, state, output, view and chart in folders whose names are patterns, columns or homes to
    some readers."""
    monkeypatch.chdir(tmp_path)
    for name, other in (("a[1]", "a1"), ("s*r", "star"), ("q?", "qq")):
        Path(other).mkdir()
        Path(other, f"{other}.parquet").write_bytes(b"not ours")
        assert HOSTILE.count(name) == 1
    for name in HOSTILE:
        Path(name).mkdir()
        Path(name, "events.csv").write_text(
            "ts\n" + "2026-01-01T00:10Z\n2026-01-01T01:10Z\n" * 1000
        )
        for form in ["parquet", *{"a[1]": ["csv"], "s*r": ["jsonl"]}.get(name, [])]:
            out = f"{name}/{name}.{form}"
            options = (
                "--time ts --every 1h --start 2026-01-01T00:00Z --end 2026-01-01T02:00Z --epsilon "
                "1 --delta 1e-6"
            )
            more = ["--horizon", "2", "--out", out, "--view", "running", "--view", "per-tick"]
            if form == "csv":  # a chart takes longer than all the rest
                more += ["--plot", f"{name}/chart.png"]
            done = CliRunner().invoke(
                app, ["release", f"{name}/events.csv", *options.split(), *more]
            )
            assert done.exit_code == 0, f"{out}: {done.output}"
            published, view = (
                read(Path(out)),
                read(Path(out).with_name(f"{Path(out).stem}.per-tick{Path(out).suffix}")),
            )
            assert view == [published[0], published[1] - published[0]], out
            assert all(abs(value - 1000 * tick) < 100 for tick, value in enumerate(published, 1)), (
                out
            )
    assert Path("a[1]", "chart.png").exists()


def read(path: Path) -> list[float]:
    """The published values, by a reader that takes a name for nothing but a name."""
    if path.suffix == ".parquet":
        with path.open("rb") as file:
            values: list[float] = pq.ParquetFile(file).read()["value"].to_pylist()
            return values
    lines = path.read_text().splitlines()
    rows = map(json.loads, lines) if path.suffix == ".jsonl" else csv.DictReader(lines)
    return [float(row["value"]) for row in rows]


@pytest.mark.parametrize(
    "name", ["ü", "*", "a/b", "a~b", "a~1b", 'a"b', "a'b", "$", "a.b", "a[0]", " "]
)
def test_fields_of_json_lines_are_found_by_their_very_name(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, Any]] = [
        {name: "2026-01-01T00:10Z", "other": "x"},
        {"other": "2026-01-01T00:10Z", name: None},
    ]
    for number, plain in enumerate((True, False)):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "events.jsonl"
        file.write_text("".join(json.dumps(row, ensure_ascii=plain) + "\n" for row in rows))
        found = count((open_source(str(file), folder),), counted_by(name), 1, 2, folder)
        assert (found.totals.total.tolist(), found.bad) == ([1], 1)


def test_the_chart_is_readable_like_any_new_file(tmp_path: Path) -> None:
    chart = tmp_path / "chart.png"
    for _ in range(2):
        mask = os.umask(0o027)
        try:
            code, output = release(tmp_path, "--plot", chart)
        finally:
            os.umask(mask)
        assert code == 0, output
        assert stat.S_IMODE(chart.stat().st_mode) == 0o640
        assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_terraces_go_on_in_later_runs(tmp_path: Path, delta: float) -> None:
    """They are chosen for these views whatever δ is; a run that goes on takes their numbers from
    the state."""
    events = tmp_path / "visits.csv"
    events.write_text("when\n" + "".join(f"2026-01-{1 + day:02}T10:00:00Z\n" for day in range(28)))
    options: dict[str, Any] = {
        "time": "when",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "horizon": 365,
    }
    options |= {"epsilon": 1, "delta": delta, "views": ["per-tick", "last-7", "running"]}
    secret = evercount.Secret.from_hex("7e" * 32)
    tables = []
    for runs in (("2026-01-29",), ("2026-01-06", "2026-01-15", "2026-01-29")):
        out = tmp_path / f"daily-{len(runs)}.csv"
        for end in runs:
            evercount.release(events, end=end, out=str(out), secret=secret, **options)
        tables.append(out.read_text())
    assert tables[0] == tables[1]


def test_a_run_that_goes_on_fits_no_noise_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of noise are in the state: later runs take them from there. Another declaration
    is still noticed."""
    for steps in ("STEPS", "WEIGHTED_STEPS"):  # how good the fit is is not asked here
        monkeypatch.setattr(fit_blend, steps, 2)
    events = tmp_path / "visits.csv"
    events.write_text(
        "when,who\n" + "".join(f"2026-01-{1 + day:02}T10:00:00Z,p{day % 3}\n" for day in range(20))
    )
    options: dict[str, Any] = {
        "time": "when",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "horizon": 64,
        "user": "who",
    }
    options |= {
        "epsilon": 1,
        "delta": 1e-6,
        "max_per_tick": 1,
        "period": "1w",
        "views": ["per-tick", "running"],
    }
    options["out"] = str(tmp_path / "daily.csv")
    evercount.release(events, end="2026-01-11", **options)
    forget_fitted_noise()

    def refuse(*_: object) -> None:
        raise AssertionError("a fit")

    monkeypatch.setattr(build, "_fitted", refuse)
    monkeypatch.setattr(noise_choice, "_least_error", refuse)
    table = evercount.release(events, end="2026-01-21", **options)
    assert len(table.to_pandas()) == 20
    with pytest.raises(ParameterError, match=r"epsilon was 1.0 and is now 0\.5"):
        evercount.release(events, end="2026-01-21", **options | {"epsilon": 0.5})
    # and other streams of the process know nothing of it
    with pytest.raises(AssertionError, match="a fit"):
        evercount.release(
            events, end="2026-01-21", **options | {"out": str(tmp_path / "other.csv")}
        )
