"""docs/reference/file-formats.md names every table and column that the code writes, and says what
is sealed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evercount.engine.release_table import COLUMNS
from evercount.engine.snapshot_format import DIGEST_BYTES, MAGIC
from evercount.files.bad_rows import FIELDS
from evercount.store import schema

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "file-formats.md").read_text(
    encoding="utf-8"
)
TABLES = schema.metadata.tables
FOR_READERS = ("releases", "streams", "public_keys", "ticks")


def section(title: str) -> str:
    """The text below a heading."""
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def quoted(text: str) -> set[str]:
    """What stands in backquotes."""
    return set(re.findall(r"`([^`]+)`", text))


def store_rows() -> dict[str, str]:
    """The row of each table of the store."""
    rows = [line for line in section("The store").splitlines() if line.startswith("| `")]
    return {name: row for row in rows for name in quoted(row.split("|")[1])}


def test_every_table_of_the_store_has_a_row():
    assert set(store_rows()) == set(TABLES)


@pytest.mark.parametrize("name", FOR_READERS)
def test_tables_for_readers_name_all_columns(name):
    assert set(TABLES[name].columns.keys()) <= quoted(store_rows()[name])


def test_sealed_tables_are_called_secret():
    sealed = {name for name, table in TABLES.items() if "sealed" in table.columns}
    assert sealed == {name for name, row in store_rows().items() if "**yes**, sealed" in row}


@pytest.mark.parametrize(
    ("title", "columns"),
    [("Release files", COLUMNS), ("View files", COLUMNS), ("Rejects file", FIELDS)],
)
def test_files_name_their_columns(title, columns):
    assert set(columns) <= quoted(section(title))


def test_the_head_of_a_snapshot():
    sizes = re.findall(r"^\| (\d+) \|", section("Snapshots and state files"), re.MULTILINE)
    assert [int(size) for size in sizes] == [len(MAGIC), 2, DIGEST_BYTES]
