"""Many ticks closed at once, with keys that become public in the middle of them."""

from __future__ import annotations

import json
from pathlib import Path

from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Store, StreamDeclaration

DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "keys",
        "query": {"name": "discovered-keys", "parameters": {"every": 3, "minimum": 4}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "horizon": 300,
    }
)


def released(place: Path, slices: list[int]) -> list[dict[str, object]]:
    store = Store(place)
    try:
        live = store.declare(DECLARATION, 0.0, secret=Secret.from_hex(bytes(range(32)).hex()))
        events = ["a"] * 500 + ["b"] * 3 + ["x"] * 600
        store.accept([read_batch(DECLARATION, json.dumps(events).encode())], 0.0)
        for ticks in slices:
            store.close_ticks(live, ticks, 0.0)
        assert store.verify() == []
        return store.read_releases(live)
    finally:
        store.close()


def test_one_slice_publishes_what_single_ticks_do(tmp_path: Path) -> None:
    at_once = released(tmp_path / "a.db", [7])
    one_by_one = released(tmp_path / "b.db", [1] * 7)
    assert [release["values"] for release in at_once] == [
        release["values"] for release in one_by_one
    ]
    assert [len(release["values"]) for release in at_once] == [2, 2, 4, 4, 4, 4, 4]
