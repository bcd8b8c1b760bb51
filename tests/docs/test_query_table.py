"""docs/queries.md: its tables are what the command prints, and every query has a row and an
example."""

from __future__ import annotations

from pathlib import Path

import pytest

from evercount.queries import QUERIES
from queries_page import main
from query_table import examples, show

PAGE = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")


AT_ONCE = (
    "count",
    "histogram",
    "rollup",
    "sum",
    "average",
    "quantiles",
    "distinct-users",
    "top-k",
    "marginals",
)


def test_lines_of_quick_queries_are_what_the_command_prints() -> None:
    lines = [show(example).line() for example in examples() if example.query.name in AT_ONCE]
    assert len(lines) >= len(AT_ONCE)
    assert all(line in PAGE.splitlines() for line in lines)


@pytest.mark.soak
def test_tables_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table in PAGE


def test_every_query_is_in_the_table() -> None:
    assert {type(example.query) for example in examples()} == set(QUERIES.values())


@pytest.mark.parametrize("kind", QUERIES.values(), ids=lambda kind: kind.name)
def test_every_query_has_a_runnable_example(kind: type) -> None:
    assert f"last({kind.__name__}(" in PAGE
