"""How many files an engineer meets on the paths of CONTRIBUTING.md: more of them are a decision,
not an accident."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import executed_files

SAID = re.search(
    r"a step runs through at most (\d+) files, a POST through (\d+), a row of a file through (\d+)",
    (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8"),
)
WAYS = (executed_files.step, executed_files.post, executed_files.row)


@pytest.mark.parametrize(
    ("way", "place"), list(zip(WAYS, (1, 2, 3), strict=True)), ids=("step", "post", "row")
)
def test_a_path_runs_through_no_more_files_than_the_page_says(
    way: Callable[[], executed_files.Calls], place: int
) -> None:
    assert SAID is not None
    files = executed_files.files_of(way())
    assert 0 < len(files) <= int(SAID[place]), "\n".join(sorted(files))
