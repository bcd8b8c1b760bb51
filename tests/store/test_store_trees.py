"""Rollup and Quantiles in a durable store: restarts, replays and refusals, with the numbers of a
plain stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.errors import InputError
from evercount.noise import Secret
from evercount.store import Accepted, Batch, Store, StreamDeclaration
from evercount.store.open_stream import read_request
from store_reading import close_and_read

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
TREES: dict[str, tuple[dict[str, Any], list[Any], Any]] = {
    "rollup": (
        {"paths": [["a", "x"], ["a", "y"], ["b", "x"]]},
        [["a", "x"], ["b", "x"], ["a", "x"]],
        ["b", "y"],
    ),
    "marginals": (
        {"columns": [["a", "b"], ["x", "y"]]},
        [["a", "x"], ["b", "x"], ["a", "x"]],
        ["b", "z"],
    ),
    "distinct-users": (
        {"keys": ["a", "b"]},
        [["ann", "a"], ["ann", "b"], ["bob", "a"]],
        ["ann", "c"],
    ),
    "active-users": ({}, ["ann", "bob", "ann"], ""),
    "quantiles": ({"low": 0, "high": 8, "bins": 4}, [0, 7.5, 8], 9),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_survive_restarts_and_count_a_replay_once(name: str, tmp_path: Path) -> None:
    parameters, events, wrong = TREES[name]
    declaration = StreamDeclaration.from_dict(
        {
            "name": "s",
            "query": {"name": name, "parameters": parameters},
            "budget": BUDGET,
            "views": ["per-tick"],
        }
    )
    secret = Secret.generate()
    store = Store(tmp_path / "a.db", None, tmp_path / "head")
    store.declare(declaration, 0.0, secret)
    batch = Batch("s", events, read_request(declaration, events), None, None, "key", b"body")
    assert store.accept([batch, batch], 0.0) == [Accepted(3, 1)] * 2
    with pytest.raises(InputError):
        read_request(declaration, [wrong])
    store.close()
    store = Store(tmp_path / "a.db", None, tmp_path / "head")
    live = store.find("s")
    assert live.declaration.views == ("per-tick",)
    assert store.accept([batch], 0.0) == [Accepted(3, 1)]
    first = close_and_read(store, live, 1, 0.0)
    store.close()
    store = Store(tmp_path / "a.db", None, tmp_path / "head")
    second = close_and_read(store, store.find("s"), 2, 0.0)
    plain = declaration.started(0).build(secret=secret, replay=True)
    wanted = plain.run([events, [], []]).per_tick().values
    assert np.array_equal([release["values"] for release in first + second], wanted)
    assert store.verify(store.head) == []
    if name == "rollup":
        assert np.allclose(wanted[:, 0], wanted[:, 1] + wanted[:, 2], atol=1e-9)
    store.close()
