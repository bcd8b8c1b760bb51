"""The chain of releases: any change is seen, and a database from the past is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from evercount.store import Store, StreamDeclaration
from evercount.store.stored_releases import genesis, link

DECLARATION = {
    "name": "chain",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 64,
}


def test_any_change_changes_the_hash() -> None:
    numbers = np.asarray([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.0], [3.0, 4.0]])
    start = genesis("declaration", 0.0)
    base = link(start, 1, numbers)
    others = {
        link(genesis("declaration ", 0.0), 1, numbers),
        link(genesis("declaration", 1.0), 1, numbers),
        link(start, 2, numbers),
        link(start, 1, numbers[:, ::-1]),
        link(start, 1, numbers[::-1]),
        link(start, 1, numbers.reshape(2, 4)),
        link(start, 1, np.nextafter(numbers, 9)),
        link(base, 1, numbers),
        link(start, 1, numbers, ["a", "b"]),
        link(start, 1, numbers, ["b", "a"]),
        link(start, 1, numbers, ["ab"]),
    }
    assert len(others | {base}) == 12
    assert link(start, 1, numbers.copy()) == base


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "chain.db"
    store = Store(place)
    live = store.declare(StreamDeclaration.from_dict(DECLARATION), 0.0)
    store.close_ticks(live, 5, 0.0)
    store.close()
    return place


def test_a_whole_chain_verifies(place: Path) -> None:
    store = Store(place)
    assert store.verify(store.head) == []
    store.close()


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("update releases set value = value + 1 where tick = 3 and cell = 1", "tick 3 was changed"),
        ("update releases set std = std / 2 where tick = 1 and cell = 0", "tick 1 was changed"),
        ("update releases set low = low - 1 where tick = 1 and cell = 0", "tick 1 was changed"),
        ("update releases set high = high + 1 where tick = 1 and cell = 0", "tick 1 was changed"),
        ((
            "update releases set value = (select value + 1000 from releases r where r.tick = 2 and "
            "r.cell = 0) where tick = 4 and cell = 0"), "tick 4 was changed"),
        ("delete from releases where tick = 2 and cell = 1", "around tick 2 are not complete"),
        ("delete from releases where tick = 2", "around tick 2 are not complete"),
        ("update ticks set hash = zeroblob(32) where tick = 4", "tick 4 was changed"),
        ("delete from releases where tick = 5; delete from ticks where tick = 5", "another tick"),
        ("update streams set start = start + 1", "declaration was changed"),
        ((
            "update streams set declaration = replace(declaration, '\"epsilon\":1.0', "
            "'\"epsilon\":9.0')"), "changed"),
    ],
)  # fmt: skip
def test_every_tampering_is_seen(place: Path, statement: str, complaint: str) -> None:
    with sqlite3.connect(place) as connection:
        connection.executescript(statement)
    connection.close()
    from evercount.store import Reading

    reading = Reading.open(place)
    try:
        wrong = reading.verify()
    finally:
        reading.close()
    assert any(complaint in line for line in wrong), wrong
