"""`evercount store` and the TOML file of streams."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.declarations.streams_file import read_declarations
from evercount.errors import EvercountError, ParameterError
from evercount.store import Batch, Store, StreamDeclaration
from store_reading import all_releases

EXAMPLE = Path(__file__).parents[2] / "examples" / "streams.toml"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "a.db"
    store = Store(place)
    table = {"name": "h", "query": {"name": "histogram", "parameters": {"keys": ["a", "b,c"]}},
             "budget": {"epsilon": 1.0, "delta": 1e-9}, "tick": "1h", "start": "2026-01-01",
             "horizon": 50}  # fmt: skip
    live = store.declare(StreamDeclaration.from_dict(table), 1767225600.0)
    store.accept([Batch("h", ["a"] * 7, live.encode(["a"] * 7))], 1767225600.0)
    store.close_ticks(live, 3, 0.0)
    store.close()
    return place


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, EvercountError | SystemExit)
    return done.exit_code, done.output or str(done.exception)


def test_releases_are_exported_while_a_writer_is_at_work(place: Path, tmp_path: Path) -> None:
    store = Store(place)
    code, text = run("export-releases", "h", "--db", place)
    released = list(all_releases(store, "h"))
    store.close()
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["cell"] for row in rows] == ["a", "b,c"] * 3
    assert [float(row["value"]) for row in rows] == [
        value for release in released for value in release["values"]
    ]
    assert rows[2]["start"] == "2026-01-01T01:00:00+00:00"
    target = tmp_path / "out.jsonl"
    assert (
        run("export-releases", "h", "--db", place, "--format", "jsonl", "--output", target)[0] == 0
    )
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert [line["value"] for line in lines] == [float(row["value"]) for row in rows]


def test_mistakes_are_named(place: Path, tmp_path: Path) -> None:
    for arguments, words in (
        (("export-releases", "none", "--db", place), "no stream"),
        (
            ("export-releases", "h", "--db", place, "--format", "xml"),
            "Known: csv, json, jsonl, parquet",
        ),
        (("verify", "--db", tmp_path / "none.db"), "there is no store"),
        (("backup", place, "--db", place), "exists already"),
    ):
        code, text = run(*arguments)
        assert code == 1
        assert words in text


def test_verify_says_that_all_is_well(place: Path) -> None:
    code, text = run("verify", "--db", place)
    assert (code, text) == (0, "all is well: 1 stream, every release chain is whole\n")


def test_adopting_is_refused_while_a_writer_is_at_work(place: Path) -> None:
    store = Store(place)
    code, text = run("verify", "--db", place, "--adopt")
    store.close()
    assert code == 1
    assert "one writer" in text.replace("\n", " ")


def test_the_example_file_is_legal() -> None:
    made = read_declarations(EXAMPLE)
    assert len(made) >= 3
    assert any(declaration.budget.unit == "user" for declaration in made)
    for declaration in made:
        assert StreamDeclaration.from_dict(declaration.to_dict()) == declaration


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "must hold"),
        ("[stream]\nname='a'", "must hold"),
        ("[[stream]]\nname='a'", "stream 1"),
        ("[[", "not TOML"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(text)
    with pytest.raises(ParameterError, match=words.replace("[", r"\[")):
        read_declarations(file)
    with pytest.raises(ParameterError, match="cannot be read"):
        read_declarations(tmp_path / "none.toml")
