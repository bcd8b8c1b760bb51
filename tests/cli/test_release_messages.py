"""What `evercount release` says where a line is wrong: all that is missing at once, and what to
do."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import evercount
from evercount.cli import app
from evercount.errors import ParameterError

pytest.importorskip("duckdb")
WHOLE = "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --out p.csv"
DECLARED = """[[stream]]
name = "visits"
query = "count"
budget = {epsilon = 1, delta = 0}
tick = "1d"
zone = "UTC"
start = "2026-01-01"
columns = {time = "ts"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("ts,who\n2026-01-01T09:00:00Z,a\n2026-01-02T09:00:00Z,b\n")


def run(line: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["release", *shlex.split(line), "--now", "2026-01-03T01:00"])
    return done.exit_code, " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("", "event files, --time, --every, --start, --epsilon, --out"),
        ("a.csv", "--time, --every, --start, --epsilon, --out"),
        ("a.csv --every 1d", "--time, --zone, --start, --epsilon, --out"),
        ("a.csv --every 1h --time ts", "--start, --epsilon, --out"),
        ("a.csv --every 1d --time ts --epsilon 1 --out p.csv", "--zone, --start"),
        ("a.csv --every 24h --time ts --epsilon 1 --start 2026-01-01", "--out"),
        ("a.csv --db s.db", "--time, --every, --epsilon"),
        (WHOLE, "event files"),
    ],
)
def test_all_that_is_missing_is_named_at_once(line: str, missing: str) -> None:
    code, said = run(line)
    assert code == 2
    assert f"missing: {missing}, as in: evercount release visits.csv --time when" in said
    assert ("The start is public" in said) == ("--start" in missing)
    assert not Path("s.db").exists()


def test_a_run_that_goes_on_has_its_start_and_zone() -> None:
    assert run(f"a.csv {WHOLE}")[0] == 0
    assert run("a.csv --time ts --every 1d --epsilon 1 --out p.csv")[0] == 0
    assert "missing: --epsilon, as in" in run("a.csv --time ts --every 1d --out p.csv")[1]
    with pytest.raises(
        ParameterError, match="missing: `every`, `start`, `epsilon`, as in: release"
    ):
        evercount.release("a.csv", time="ts")
    with pytest.raises(ParameterError, match="missing: `time`, `every`, as in: declare"):
        evercount.declare(epsilon=1)


def test_a_name_that_is_no_file() -> None:
    """Without a file of streams, with one, and with one that the options keep from being read."""
    for line in ("visits", f"visits {WHOLE}"):
        code, said = run(line)
        assert code == 3
        assert "visits cannot be read: there is no such file" in said
        assert "declare it in streams.toml (no streams.toml here)" in said
    assert "missing.csv cannot be read" in run(f"missing.csv {WHOLE}")[1]
    Path("streams.toml").write_text(DECLARED)
    for line, missing in (
        ("visits", "event files, --out"),
        ("visits a.csv", "--out"),
        ("visits --out p.csv", "event"),
    ):
        code, said = run(line)
        assert code == 2
        assert f"missing: {missing}" in said
        assert "evercount release visits visits.csv --out daily.csv" in said
    code, said = run(f"visits a.csv {WHOLE}")
    assert (code, "omit --time, --every, --start, --zone, --epsilon" in said) == (3, True)
    assert run("visits a.csv --out p.csv")[0] == 0


def test_persons_without_a_cap() -> None:
    """Each of the choices that it names is one."""
    code, said = run(f"a.csv {WHOLE} --user who")
    assert code == 2
    choices = (
        "--period 1d --max-per-tick 1",
        "--max-per-tick 1 and --max-ticks 30",
        "--max-events 10",
    )
    for number, choice in enumerate((*choices, "--query active-users and --period 1d")):
        assert choice in said
        line = f"a.csv {WHOLE} --user who {choice.replace(' and', '')}".replace(
            "p.csv", f"{number}.csv"
        )
        assert run(line)[0] == 0
    assert run(f"a.csv {WHOLE} --user who --max-ticks 3")[1] == said


def test_post_processing_after_the_first_run() -> None:
    assert run(f"a.csv {WHOLE}")[0] == 0
    code, said = run(f"a.csv {WHOLE} --postprocess integer")
    assert code == 2
    assert "post-processing is chosen in the first run" in said
    assert (
        "give --postprocess as it was (none), and round or clip the numbers where they are read"
        in said
    )
    assert (
        run(f"a.csv {WHOLE}".replace("p.csv", "q.csv") + " --postprocess integer,nonnegative")[0]
        == 0
    )
    assert "as it was (nonnegative, integer)" in run(f"a.csv {WHOLE}".replace("p.csv", "q.csv"))[1]


def test_a_tiny_epsilon_is_said_before_it_is_spent() -> None:
    code, said = run(f"a.csv {WHOLE} --check".replace("--epsilon 1", "--epsilon 0.0001"))
    assert code == 0
    assert "epsilon=0.0001 is very small" in said
    assert "`evercount plan` prints the errors before anything is spent" in said
    assert "very small" not in run(f"a.csv {WHOLE}")[1]


@pytest.mark.parametrize("rows", [0, 3], ids=["no event", "three events"])
@pytest.mark.parametrize("caps", ["", "--user who --max-per-tick 1 --max-ticks 30"])
def test_caps_are_a_reason_to_inspect_whatever_the_events(
    caps: str, rows: int, tmp_path: Path
) -> None:
    path, out = tmp_path / "visits.csv", tmp_path / "daily.csv"
    path.write_text("when,who\n" + "2026-01-01,p\n" * rows, "utf-8")
    words = (
        f"release {path} --time when --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --now "
        f"2026-01-03 --out {out} {caps}"
    )
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 0, done.output
    assert ("`evercount inspect` with the same files" in done.stderr) == bool(caps)
    assert ("Caps distort totals over time" in done.stderr) == bool(caps)
