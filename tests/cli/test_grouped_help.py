"""Help in groups: every option is in one, examples come first and run as they stand."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import COMMANDS, app
from evercount.cli.grouped_help import RESEARCH, GroupedCommand
from evercount.cli.inspect_command import InspectHelp
from evercount.cli.release_command import ReleaseHelp
from evercount.cli.spelling import command_options, option_of
from evercount.front_door.options import GROUPS, ReleaseOptions

DECLARED = """[[stream]]
name = "visits"
query = "count"
budget = {epsilon = 1, delta = 0}
tick = "1d"
zone = "UTC"
start = "2026-01-01"
columns = {time = "when"}

[stream.files]
input = "visits.csv"
output = "visits.out.csv"
"""


def helped(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_option_is_in_one_group() -> None:
    grouped = Counter(name for names in GROUPS.values() for name in names)
    assert grouped == Counter(list(ReleaseOptions.model_fields))


@pytest.mark.parametrize("command", ["release", "inspect"])
def test_help_shows_examples_and_then_each_option_once(command: str) -> None:
    text = helped(command)
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles == ["Examples", "Arguments", *GROUPS]
    options = text.split("\nWhat is counted:\n")[1]
    shown = Counter(re.findall(r"^  (?:-h, )?(--[\w-]+)", options, re.MULTILINE))
    shared = {option_of(name) for name in command_options()}
    assert shared | {"--streams", "--stream", "--json", "--help"} <= shown.keys()
    assert set(shown.values()) == {1}
    protection = text.split("\nProtection:\n")[1].split("\nNoise and views:\n")[0]
    assert "--epsilon" in protection
    assert "--horizon" not in protection
    programs = text.split("\nFor programs:\n")[1]
    assert "--json" in programs


@pytest.mark.parametrize("help_class", [ReleaseHelp, InspectHelp], ids=["release", "inspect"])
def test_examples_run_as_they_stand(
    help_class: type[GroupedCommand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    row = "when,region,person\n2026-01-02T09:00Z,north,p\n"
    Path("log").mkdir()
    for name in ("visits.csv", "log/a.csv"):
        Path(name).write_text(row)
    Path("regions.txt").write_text("north\nsouth\n")
    Path("streams.toml").write_text(DECLARED)
    assert len(help_class.examples) == 3
    for example in help_class.examples.values():
        assert max(map(len, example.splitlines())) <= 76
        _, *words = shlex.split(example.replace("\\\n", " "))
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{example}\n{done.output}"


def test_commands_for_research_are_a_group_of_their_own() -> None:
    text = helped()
    commands, research = text.split("\nCommands:\n")[1].split("\nResearch:\n")
    listed = re.findall(r"^  (\w+) ", research, re.MULTILINE)
    assert sorted(listed) == sorted(RESEARCH)
    assert sorted(re.findall(r"^  (\w+) ", commands, re.MULTILINE) + listed) == sorted(COMMANDS)


def newest(text: str) -> list[str]:
    """The table of the newest numbers on standard error, without its title."""
    return text.partition("Newest numbers")[2].splitlines()[1:]


@pytest.fixture
def _visits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text("when,region\n2026-01-02T09:00Z,k1\n")
    Path("keys.txt").write_text("".join(f"k{number}\n" for number in range(10)))


LINE = (
    "release visits.csv --time when --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --key "
    "region --keys keys.txt"
)


@pytest.mark.usefixtures("_visits")
@pytest.mark.parametrize("digits", [[], ["--full-digits"]], ids=["rounded", "all digits"])
def test_a_run_shows_the_newest_numbers_of_its_output(digits: list[str]) -> None:
    for now in ("2026-01-03", "2026-01-05"):
        done = CliRunner().invoke(app, [*LINE.split(), "--out", "d.csv", "--now", now, *digits])
        assert done.exit_code == 0, done.output
        rows = [line.split(",") for line in Path("d.csv").read_text().splitlines()[-10:]]
        assert f"of what begins at {rows[0][1]}" in done.stderr
        _, *lines, rest = newest(done.stderr)
        assert rest == "  and 2 more keys"
        for line, (_, _, cell, *numbers) in zip(lines, rows, strict=False):
            assert line.split()[0] == cell
            shown = [float(text.replace(",", "")) for text in line.split()[1:]]
            assert shown == pytest.approx([float(number) for number in numbers], rel=1e-9)
        assert len(lines) == 8
    again = CliRunner().invoke(app, [*LINE.split(), "--out", "d.csv", "--now", now, *digits])
    assert again.exit_code == 0
    assert "Newest" not in again.stderr


@pytest.mark.usefixtures("_visits")
@pytest.mark.parametrize(
    "more", ["--out d.csv --quiet", "--out d.csv --json", "--out - --state s", "--check"]
)
def test_programs_and_checks_get_no_table(more: str) -> None:
    done = CliRunner().invoke(app, [*LINE.split(), "--now", "2026-01-05", *more.split()])
    assert done.exit_code == 0, done.output
    assert "Newest" not in done.output
