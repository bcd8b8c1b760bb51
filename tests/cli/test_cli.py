"""The command as a user types it: plan's numbers, audit's exit codes, clear errors, pipes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Budget, Histogram, Stream, __version__
from evercount.cli import app
from evercount.cli.options import parse_parameters
from evercount.errors import ParameterError
from evercount.front_door.declare_stream import parse_horizon
from preloaded_programs import COMMAND


def evercount(*arguments):
    """The command in this process: starting Python takes longer than most of what is asked here."""
    return CliRunner().invoke(app, arguments, prog_name="evercount")


def process(program, *arguments):
    return subprocess.run(
        [sys.executable, *program, *arguments], capture_output=True, text=True, check=False
    )


def test_plan_prints_the_numbers_of_the_design():
    result = evercount(
        "plan", "--epsilon", "0.5", "--delta", "1e-10", "--horizon", "65536", "--json"
    )
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    worst = {row["name"]: row["worst_std"] for row in plan["mechanisms"]}
    assert worst["balanced"] == pytest.approx(49.0, abs=0.05)
    assert worst["square-root"] == pytest.approx(52.6, abs=0.05)
    assert worst["square-root, paper's C"] == pytest.approx(88.6, abs=0.05)
    assert worst["binary-tree"] == pytest.approx(188.6, abs=0.05)
    assert plan["lower_bound"]["worst_std"] == pytest.approx(48.4, abs=0.05)
    gaussian = [row for row in plan["mechanisms"] if row["delta"] > 0]
    assert all(row["worst_std"] >= plan["lower_bound"]["worst_std"] for row in gaussian)
    assert all(0 < row["numeric_delta"] <= 2**-60 for row in gaussian)
    assert worst["bridge"] == pytest.approx(46.0, abs=0.05)
    assert plan["best"] == {
        "worst tick": "bridge",
        "on average": "bridge",
        "all ticks at once": "balanced",
    }
    names = [row["name"] for row in plan["mechanisms"]]
    assert names == sorted(names, key=worst.get), "best first"


def test_plan_table_and_chart(tmp_path):
    chart = tmp_path / "errors.png"
    result = evercount(
        "plan",
        "-t",
        "none",
        "--rho",
        "0.01",
        "-q",
        "histogram",
        "-p",
        "keys=50",
        "--ticks",
        "4096",
        "--plot",
        str(chart),
    )
    assert result.exit_code == 0, result.stderr
    assert "unbounded" in result.stdout
    assert "lower bound" in result.stdout
    assert widest(result.stdout) <= 80
    assert chart.stat().st_size > 10_000


def test_piped_tables_are_not_cut():
    """Billions have all their digits, and small numbers of an average are not 0.00."""
    result = evercount("plan", "--epsilon", "1e-9", "-t", "64")
    assert result.exit_code == 0, result.stderr
    assert "…" not in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if "binary-tree" in line)
    cells = line.split()
    assert len(cells) == 7
    exact = evercount("plan", "--epsilon", "1e-9", "-t", "64", "-m", "binary-tree", "--json")
    assert float(cells[2].replace(",", "")) == pytest.approx(
        json.loads(exact.stdout)["mechanisms"][0]["worst_std"]
    )
    average = evercount("plan", "-q", "average", "-m", "balanced")
    assert "0.000736" in average.stdout
    assert "lower bound" not in average.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan",),
        ("plan", "-q", "sparse-count", "-p", "max_ones=100", "--delta", "0", "-t", "2^10"),
    ],
)
def test_output_fits_80_columns(arguments):
    result = evercount(*arguments)
    assert result.exit_code == 0, result.stderr
    assert widest(result.stdout) <= 80


def widest(text):
    return max(len(line.rstrip()) for line in text.splitlines())


def test_plan_knows_days_of_hours_and_people():
    """A day of a zone that changes its clock has 25 hours; queries of people plan for people."""
    base = "plan --epsilon 1 --delta 1e-6 --horizon 60 --every 1h --zone Europe/Vienna --json"
    plan = json.loads(evercount(*f"{base} --view per-day --view last-25".split()).stdout)
    assert all(row["stds"]["per-day"] == row["stds"]["last-25"] for row in plan["rows"])
    hours = json.loads(
        evercount(*f"{base} --view per-tick --period 1d --max-per-tick 1".split()).stdout
    )
    # 25 hours, √25
    assert hours["rows"][0]["stds"]["per-tick"] == pytest.approx(4.2247 * 5, rel=1e-3)
    people = json.loads(evercount(*f"{base} -q distinct-users --view per-day".split()).stdout)
    assert "unit person" in people["guarantee"]


def test_plan_says_what_a_stream_costs():
    """Memory and state grow with the cells; the state is that of a real stream."""
    costs = {}
    for keys in (10, 20_000):
        result = evercount(
            "plan", "-q", "histogram", "-p", f"keys={keys}", "-t", "100", "-m", "balanced", "--json"
        )
        costs[keys] = json.loads(result.stdout)["resources"]
    assert costs[10]["cells"] == 10
    assert costs[20_000]["memory"] > costs[10]["memory"]
    assert min(cost["seconds_per_tick"] for cost in costs.values()) > 0
    stream = Stream(Histogram(20_000), Budget(0.5, 1e-10), 100)
    sizes = []
    for _ in range(4):  # the state is largest where noise was drawn ahead
        stream.run_totals(np.zeros((1, 20_000), np.int64))
        sizes.append(len(stream.snapshot()))
    assert costs[20_000]["state"] == pytest.approx(max(sizes), rel=0.1)
    stream.close()
    text = " ".join(evercount("plan", "-t", "100", "-m", "balanced").stdout.split())
    assert all(name in text for name in ("memory of release", "state on disk", "time per tick"))


def test_the_example_without_matplotlib(programs, tmp_path):
    """The releases are written and the command succeeds; only the chart is missing, and it says how
    to get it."""
    program = "import sys; sys.modules['matplotlib'] = None; from evercount.cli import main; main()"
    done = programs.run(program, "example", "--hours", "8", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evercount[plot]" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["releases.csv"]


def test_one_version():
    """The package says which version it is, and its metadata is read from there."""
    assert evercount("--version").stdout == f"evercount {__version__}\n"
    data = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
    assert "version" not in data["project"]
    assert data["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "evercount.__version__"}


def test_nothing_heavy_is_imported_before_a_command_runs():
    loaded = process(("-c", "import sys, evercount.cli; print(*sys.modules)")).stdout.split()
    heavy = {
        "scipy",
        "duckdb",
        "pyarrow",
        "pandas",
        "matplotlib",
        "sqlalchemy",
        "fastapi",
        "uvicorn",
        "httpx",
    }
    assert "evercount.cli" in loaded
    assert heavy & {name.partition(".")[0] for name in loaded} == set()


def loaded_by(*arguments: str) -> set[str]:
    """The modules that are loaded when the command has run."""
    program = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules)); "
    program += "from evercount.__main__ import main; main()"
    done = process(("-c", program, *arguments))
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    "command", ["plan", "inspect", "release", "tail", "streams", "tokens", "store", "serve"]
)
def test_a_command_loads_what_it_needs_alone(command):
    loaded = loaded_by(command, "--help")
    other = "store" if command != "store" else "plan"
    assert f"evercount.cli.{other}_command" not in loaded
    assert {
        "evercount.declarations.declaration",
        "evercount.files.event_sql",
        "sqlalchemy",
        "scipy",
    } & loaded == set()


@pytest.mark.parametrize(
    "views", [(), ("--view", "per-tick", "--view", "last-7", "--view", "running")]
)
def test_a_release_of_some_rows_needs_no_scipy(tmp_path, views):
    """It takes as long as all the rest of the release."""
    events = tmp_path / "events.csv"
    events.write_text("time\n" + "".join(f"2026-03-0{day}T10:00:00Z\n" for day in range(1, 8)))
    options = (
        "--time",
        "time",
        "--every",
        "1d",
        "--zone",
        "UTC",
        "--start",
        "2026-03-01",
        "--end",
        "2026-03-08",
    )
    out = ("--horizon", "365", "--epsilon", "1", "--out", str(tmp_path / "out.csv"))
    loaded = loaded_by("release", str(events), *options, *out, *views)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 8
    assert "evercount.files.release_run" in loaded
    assert not {"scipy", "scipy.special", "numpy.f2py"} & loaded


def test_the_version_needs_no_command():
    loaded = loaded_by("--version")
    assert "evercount" in loaded
    assert {"typer", "pydantic", "evercount.cli"} & loaded == set()


def test_defaults_are_in_the_help():
    text = " ".join(evercount("plan", "--help").stdout.split())
    assert "[default: (0.5)]" in text
    assert "[default: (event)]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--epsilon", "-1"), "epsilon"),
        (("plan", "--epsilon", "nan"), "epsilon"),
        (("plan", "--delta", "1.5"), "delta"),
        (("plan", "-t", "0"), "horizon"),
        (("plan", "-t", "2.5"), "horizon"),
        (("plan", "-t", "many"), "horizon"),
        (("plan", "-q", "histogam"), "Did you mean 'histogram'"),
        (("plan", "-q", "histogram"), "keys"),
        (("plan", "-m", "optimal", "-t", "5000"), "1024"),
        (("plan", "-m", "balnced"), "Did you mean 'balanced'"),
        (("plan", "-p", "width"), "KEY=VALUE"),
        (("plan", "--adjacency", "swap"), "adjacency"),
        (("plan", "-t", "none", "--ticks", "0"), "ticks must be a whole number from 1"),
        (("plan", "-t", "none", "--ticks", "-5"), "ticks must be a whole number from 1"),
        (("plan", "-t", "100", "--ticks", "50"), "ticks=50 is for streams without a horizon"),
        (("plan", "--ticks", "50"), "without a horizon"),
        (("plan", "--view", "per-tick", "-m", "balanced"), "--mechanism is for running totals"),
        (("plan", "--view", "per-tick", "--plot", "x.png"), "--plot is for running totals"),
        (("plan", "--rho", "0.1", "--epsilon", "0.5"), "--epsilon 0.5 next to --rho"),
        (("plan", "-q", "average", "-p", "per=event"), "ratio"),
        (
            ("plan", "-t", "64", "--plot", "/nonexistent/x.png"),
            "'/nonexistent/x.png': No such file or directory",
        ),
        (("plan", "-t", "64", "--plot", "/nonexistent/x.zzz"), "png"),
        (("plan", "-t", "64", "--plot", "/nonexistent"), "png"),
        (("plan", "-q", "sparse-count", "-t", "64", "--plot", "/nonexistent/x.zzz"), "svg"),
        (("audit", "sensitivity", "cuont"), "Did you mean 'count'"),
        (("bench", "nothing"), "benchmark"),
    ],
)
def test_errors_are_one_line_and_exit_2(arguments, message):
    result = evercount(*arguments)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_an_error_of_the_process_is_one_line_too(programs):
    result = programs.run(COMMAND, "plan", "--epsilon", "-1")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "epsilon" in line


def test_wrong_flag_and_help():
    assert evercount("plan", "--epsilom", "1").exit_code == 2
    assert "--epsilon" in evercount("plan", "--help").stdout
    assert "plan" in evercount("--help").stdout


def test_audit_exits_1_when_the_claim_is_beaten():
    arguments = ("audit", "sensitivity", "substrings", "-p", 'alphabet="ab"', "-p", "max_length=2")
    honest = evercount(*arguments, "--adjacency", "replace")
    assert honest.exit_code == 0, honest.stderr
    assert "holds" in honest.stdout
    paper = evercount(*arguments, "--adjacency", "replace", "--claimed", "4")  # the paper's ℓ²
    assert paper.exit_code == 1
    assert "BEATEN" in paper.stdout


def test_output_can_be_piped_to_a_reader_that_stops():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "evercount", "plan", "-t", "64", "-m", "balanced"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (1, b"")


def test_example_writes_table_and_chart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = evercount("example", "--hours", "672", "--out", "out")
    assert result.exit_code == 0, result.stderr
    assert widest(result.stdout) <= 80
    assert "synthetic" in result.stdout
    assert "protect any one event" in result.stdout.replace("\n", " ")
    assert (tmp_path / "out" / "releases.png").stat().st_size > 10_000
    assert len((tmp_path / "out" / "releases.csv").read_text().splitlines()) == 1 + 672 * 8


@pytest.mark.parametrize(("text", "value"), [("2^16", 65536), ("24", 24), ("none", None)])
def test_horizons(text, value):
    assert parse_horizon(text) == value


def test_parameters():
    assert parse_parameters(['keys=["a"]', "k=3", "per=event"]) == {
        "keys": ["a"],
        "k": 3,
        "per": "event",
    }
    with pytest.raises(ParameterError):
        parse_parameters(["=3"])


def on_a_terminal(long: float, *arguments: str) -> tuple[str, str]:
    """(standard output, what a terminal shows of standard error) of a command for which so many
    seconds are long."""
    program = f"from evercount.cli import main, options; options.LONG = {long}; main()"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0) as screen:
        done = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # the other end is closed
            while part := screen.read(4096):
                shown += part
        output = done.communicate()[0]
        assert done.returncode == 0, shown.decode()
    return output, shown.decode()


def test_a_terminal_shows_that_a_plan_goes_on():
    asked = ("plan", "-e", "1", "-d", "1e-6", "-t", "70", "--view", "per-tick", "--view", "running")
    output, shown = on_a_terminal(0.0, *asked)
    assert "comparing noise" in shown
    again, quiet = on_a_terminal(1e9, *asked)
    assert quiet == ""
    assert again == output, "a bar changes nothing of what is printed"
    assert "comparing noise" not in evercount(*asked).stderr, "a file gets no bar"
