"""The text rule at the interface of `evercount release`: a key that breaks it is refused."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app

pytest.importorskip("duckdb")
TWIN = unicodedata.normalize("NFD", "café")
KEYS = {"steers the display": "\u202eevil", "decomposed": TWIN, "invisible": "a\u200bb"}


def run(end: str) -> tuple[int, str]:
    options = (
        "--time time --key place --keys keys.txt --epsilon 1 --delta 1e-9 --every 1h --start "
        "2026-01-01T00:00Z"
    )
    done = CliRunner().invoke(
        app, ["release", "events.csv", *options.split(), "--out", "out.csv", "--end", end]
    )
    return done.exit_code, done.stderr


@pytest.mark.parametrize("name", KEYS)
def test_keys_obey_the_text_rule(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.txt").write_text(f"café\n{KEYS[name]}\n", "utf-8")
    Path("events.csv").write_text("time,place\n2026-01-01T00:10Z,café\n", "utf-8")
    code, told = run("2026-01-01T01:00Z")
    assert code == 2
    assert "--keys keys.txt: the key" in told
    assert KEYS[name] not in told, "shown escaped"
    assert not Path("out.csv").exists()
