"""Events of a query of persons that come for a tick after the open one, while that waits for late
ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store

DAY = 86_400


@pytest.mark.parametrize("query", ["active-users", "distinct-users"])
def test_persons_of_the_next_day_count_in_it(query: str, tmp_path: Path) -> None:
    """Found by a life: closing a tick failed for ever where persons of the next one had come."""
    declaration = StreamDeclaration.from_dict(
        {
            "name": "people",
            "query": query,
            "budget": {"epsilon": 1e6, "delta": 0.0, "unit": "user", "period": 1},
            "tick": "1d",
            "zone": "UTC",
            "start": "2026-01-01",
            "horizon": 3,
            "wait": "2h",
            "views": ["per-tick"],
        }
    )
    start = declaration.schedule.begin / 1e6
    store = Store(tmp_path / "a.db")
    try:
        live = store.declare(declaration, start)
        body = json.dumps([{"user": "ann", "time": start + DAY + 60}]).encode()
        (answer,) = store.accept([read_batch(declaration, body)], start + DAY + 60)
        assert isinstance(answer, Accepted), answer
        store.close_ticks(live, 1, start + DAY + 7200)
        store.close_ticks(live, 1, start + 2 * DAY + 7200)
        values = [one["values"][0] for one in store.read_releases(live, 0)]
        assert [round(value) for value in values] == [0, 1]
    finally:
        store.close()
