"""One secret with one declaration is one stream: a second one in the same store is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evercount.errors import Conflict, ParameterError, StoreError
from evercount.noise import Secret
from evercount.store import Store, StreamDeclaration

TABLE: dict[str, Any] = {
    "name": "one",
    "query": "count",
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 64,
    "views": ["running"],
}
SAME_NOISE = [
    {},
    {"description": "x"},
    {"public": True},
    {"start": "1970-01-01T00:00:00Z"},
    {"late": "next"},
]
OTHER_NOISE = [
    {"tick": "1h"},
    {"tick": "30m"},
    {"start": "1970-01-01T01:00:00Z"},
    {"horizon": 65},
    {"budget": {"epsilon": 0.9, "delta": 1e-9}},
    {"query": {"name": "histogram", "parameters": {"keys": ["a"]}}},
]


def declared(**change: Any) -> StreamDeclaration:
    return StreamDeclaration.from_dict({**TABLE, **change})


@pytest.mark.parametrize("key", [None, bytes(32)])
def test_a_secret_is_used_once_for_one_declaration(tmp_path: Path, key: bytes | None) -> None:
    secret = Secret.generate()
    store = Store(tmp_path / "a.db", key)
    first = store.declare(declared(), 0.0, secret)
    # the same stream again is not a second one
    assert store.declare(declared(), 0.0, secret) is first
    for again in (False, True):
        if again:
            store.close()
            store = Store(tmp_path / "a.db", key)
        for number, change in enumerate(SAME_NOISE):
            with pytest.raises((Conflict, ParameterError), match="same noise"):
                store.declare(declared(**change, name=f"same{number}"), 0.0, secret)
        assert list(store.streams) == ["one"]
    for number, change in enumerate(OTHER_NOISE):
        store.declare(declared(**change, name=f"other{number}"), 0.0, secret)
    store.declare(declared(name="fresh"), 0.0, Secret.generate())
    store.declare(declared(name="generated"), 0.0)
    assert store.verify(store.head) == []
    store.close()
    assert secret.hex().encode() not in b"".join(
        bytes(row[0])
        for row in sqlite3.connect(tmp_path / "a.db").execute(
            "select identity from noise_identities"
        )
    )


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("delete from ledger where stream = 1", "ledger lacks"),
        ("update ledger set cost = replace(cost, '1.0', '0.1') where stream = 1", "another budget"),
        (
            (
                "update ledger set cost = replace(cost, '\"during\": [0', '\"during\": [9') where "
                "stream = 1"
            ),
            "time range",
        ),
    ],
)
def test_spending_that_was_removed_is_seen(tmp_path: Path, statement: str, complaint: str) -> None:
    place = tmp_path / "a.db"
    store = Store(place)
    store.declare(declared(), 0.0)
    store.declare(declared(name="two"), 0.0)
    store.close()
    with sqlite3.connect(place) as connection:
        connection.execute(statement)
    connection.close()
    from evercount.store import Reading

    reading = Reading.open(place)
    assert any(complaint in line for line in reading.verify())
    reading.close()
    with pytest.raises(StoreError, match=r"row is missing|another budget"):
        Store(place)
