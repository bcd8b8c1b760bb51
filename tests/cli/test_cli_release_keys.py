"""The text rule at the door of `evercount release`: new streams obey it, old ones go on."""

from __future__ import annotations

import csv
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.files import release_run

pytest.importorskip("duckdb")
TWIN = unicodedata.normalize("NFD", "café")
KEYS = {"steers the display": "\u202eevil", "decomposed": TWIN, "invisible": "a\u200bb"}


def run(end: str) -> tuple[int, str]:
    options = "--time time --key place --keys keys.txt --epsilon 1 --delta 1e-9 --every 1h --start 2026-01-01T00:00Z"
    done = CliRunner().invoke(app, ["release", "events.csv", *options.split(), "--out", "out.csv", "--end", end])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_new_streams_obey_and_old_streams_go_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.txt").write_text(f"café\n{KEYS[name]}\n", "utf-8")
    Path("events.csv").write_text(f"time,place\n2026-01-01T00:10Z,{KEYS[name]}\n2026-01-01T01:10Z,café\n", "utf-8")
    code, told = run("2026-01-01T01:00Z")
    assert code == 2
    assert "--keys: the key" in told
    assert KEYS[name] not in told, "shown escaped"
    assert not Path("out.csv").exists()
    with monkeypatch.context() as earlier:  # an earlier version took any key
        earlier.setattr(release_run, "check_public_text", lambda what, text: text)
        assert run("2026-01-01T01:00Z")[0] == 0
    code, told = run("2026-01-01T02:00Z")
    assert code == 0, told
    with Path("out.csv").open(newline="", encoding="utf-8") as file:
        cells = [row["cell"] for row in csv.DictReader(file)]
    assert cells == ["café", ascii(KEYS[name])[1:-1]] * 2
