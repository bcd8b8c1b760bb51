"""`evercount where`: every file says which stream it belongs to, wherever that has gone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app

pytest.importorskip("duckdb")
OPTIONS = "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --horizon 5 --name flu"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text("ts\n" + "".join(f"2026-01-0{day}T09:00Z\n" for day in (1, 2, 4)))


def run(day: int, more: str) -> None:
    text = f"release events.csv {OPTIONS} --out p.csv {more} --now 2026-01-{day:02d}T01:00"
    done = CliRunner().invoke(app, shlex.split(text))
    assert done.exit_code == 0, done.stderr


def where(text: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["where", *shlex.split(text), "--json"])
    assert done.exit_code == 0, done.stderr
    (facts,) = json.loads(done.stdout)
    assert isinstance(facts, dict)
    return facts


def test_a_stream_is_found_wherever_it_goes() -> None:
    """One identity from its first tick on, in a state file, in a store and in another state."""
    run(3, "--ledger l --total 2,0")
    first = where("p.csv")
    assert first["kept in"].endswith("p.csv.state")
    assert (first["stream"], first["ticks"], first["ledger"]) == ("flu", "1 to 2 of 5", "p.csv")
    assert where("p.csv.state") == {**first, "what": "the state of a stream"}
    run(4, "--ledger l --db s.db")
    moved = where("p.csv.state")
    assert moved["moved to"].endswith("s.db")
    in_store = where("s.db")
    assert where("flu --db s.db") == {name: in_store[name] for name in in_store if name != "what"}
    assert where("p.csv") == {**in_store, "what": "the output of a stream"}
    assert in_store["ticks"] == "1 to 3 of 5"
    run(5, "--ledger l --state q.state")
    assert where("s.db")["over"].startswith("it goes on in the state file")
    last = where("p.csv")
    assert last["kept in"].endswith("q.state")
    assert last["ticks"] == "1 to 4 of 5"
    assert {one["identity"] for one in (first, moved, in_store, last)} == {first["identity"]}


def test_what_is_no_file_of_a_stream_is_said() -> None:
    for name, why in (
        ("events.csv", "nothing next to it says that a stream has published it"),
        ("no.csv", "--db evercount.db"),
        ("flu --db no.db", "there is no store at"),
    ):
        done = CliRunner().invoke(app, ["where", *shlex.split(name)])
        assert done.exit_code != 0
        assert why in " ".join(done.stderr.split())
