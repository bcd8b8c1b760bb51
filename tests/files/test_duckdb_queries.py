"""The statements of docs/howto/duckdb.md, run by DuckDB on real release files and on a real
store."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.examples import flu
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.store import Store

duckdb = pytest.importorskip("duckdb", reason="pip install 'evercount[files]'")

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "duckdb.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
FLU = {
    "name": "flu",
    "query": {"name": "histogram", "parameters": {"keys": list(flu.REGIONS)}},
    "budget": BUDGET,
}


def statements(block: str) -> list[str]:
    return [part.strip() for part in block.split(";") if part.strip()]


def test_release_files_and_their_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flu.write_csv(tmp_path / "events.csv", 60)
    declaration = StreamDeclaration.from_dict(
        {
            **FLU,
            "tick": "1h",
            "start": "2025-10-06T00:00:00Z",
            "columns": {"time": "ts", "key": "region"},
        }
    )
    end = declaration.schedule.start_of(50)
    release_file(Job("events.csv", declaration, "hourly.csv", end, views=("per-day",)))
    last, days = (duckdb.sql(text).fetchall() for text in statements(BLOCKS[0]))
    assert {row[0] for row in last} == set(flu.REGIONS)
    assert {row[1] for row in last} == {49}
    assert [row[2] for row in last] == sorted((row[2] for row in last), reverse=True)
    assert len(days) == 2
    assert all(low < value < high for _, value, low, high in days)


def test_the_store_by_an_export(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that needs no extension: the commands and the Python of the page, on a real store."""
    monkeypatch.chdir(store.parent)
    (export,) = re.findall(r"^evercount (store export-releases .*)$", PAGE, re.MULTILINE)
    done = CliRunner().invoke(app, export.split())
    assert done.exit_code == 0, done.output
    (select,) = statements(BLOCKS[3])
    found = duckdb.sql(select).fetchall()
    assert {row[1] for row in found} == set(flu.REGIONS)
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)
    connection = sqlite3.connect(store)
    last = connection.execute(
        "SELECT value FROM releases WHERE tick = 3 ORDER BY value DESC"
    ).fetchall()
    connection.close()
    assert [row[2:3] for row in found] == last


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "counts.db"
    opened = Store(place)
    live = opened.declare(
        StreamDeclaration.from_dict({**FLU, "tick": "1h", "views": ["running"]}), 0.0
    )
    opened.close_ticks(live, 3, 0.0)
    opened.close()
    return place


def test_the_store_by_the_statement_of_the_page(store: Path) -> None:
    """SQLite itself runs the same SELECT: tables and columns are what the page says."""
    (select,) = [text for text in statements(BLOCKS[1]) if text.startswith("SELECT")]
    connection = sqlite3.connect(store)
    try:
        rows = connection.execute(select.replace("store.", "")).fetchall()
    finally:
        connection.close()
    assert [row[:3] for row in rows] == [
        ("flu", tick, cell) for tick in (1, 2, 3) for cell in range(len(flu.REGIONS))
    ]
    assert all(low < value < high for *_, value, _, low, high in rows)


def test_the_store_by_duckdb(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    connection = duckdb.connect()
    try:
        connection.execute("LOAD sqlite")
    except duckdb.Error as error:
        reason = f"DuckDB's extension sqlite is not installed here: {str(error).splitlines()[0]}"
        print(reason)
        pytest.skip(reason)
    for text in [*statements(BLOCKS[1]), *statements(BLOCKS[2])]:
        if not text.startswith(("INSTALL", "LOAD")):
            found = connection.execute(text).fetchall()
    assert [row[:2] for row in found[: len(flu.REGIONS)]] == [
        (1, name) for name in sorted(flu.REGIONS)
    ]
