"""What the title of a chart tells readers, which follows from the declaration alone."""

from __future__ import annotations

from typing import Any

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.files.charts import chart_title

CAPPED = {"unit": "user", "max_per_tick": 1, "max_ticks": 30}


@pytest.mark.parametrize(
    ("budget", "late", "band"),
    [
        ({}, "drop", "shaded: 95% interval"),
        (CAPPED, "drop", "shaded: 95% interval of counted events; caps distort totals over time"),
        (CAPPED | {"max_ticks": None}, "drop", "shaded: 95% interval of counted events"),
        ({}, "next", "shaded: 95% interval; late events count when they arrive"),
    ],
)
def test_titles_have_the_marks_of_the_declaration(
    budget: dict[str, Any], late: str, band: str
) -> None:
    declaration = StreamDeclaration.from_dict(
        {
            "name": "visits",
            "query": "count",
            "tick": "1d",
            "zone": "UTC",
            "late": late,
            "budget": {"epsilon": 1, "delta": 0, **budget},
        }
    )
    assert chart_title(declaration, 1, 1).splitlines()[1] == band
