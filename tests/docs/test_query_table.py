"""docs/queries.md: its tables are what the command prints, and every query has a row and an example."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.examples.query_table import examples
from evercount.queries import QUERIES

PAGE = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")


def test_tables_are_what_the_command_prints() -> None:
    result = CliRunner().invoke(app, ["example", "--queries"])
    assert result.exit_code == 0
    for table in result.output.strip().split("\n\n"):
        assert table in PAGE


def test_every_query_is_in_the_table() -> None:
    assert {type(example.query) for example in examples()} == set(QUERIES.values())


@pytest.mark.parametrize("kind", QUERIES.values(), ids=lambda kind: kind.name)
def test_every_query_has_a_runnable_example(kind: type) -> None:
    assert f"last({kind.__name__}(" in PAGE
