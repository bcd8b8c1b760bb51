"""The encoder of an open tick: parts are read once, as the tick would be; refusals name places in
the request."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.errors import EventRefused, InputError, StoreError
from evercount.noise import Secret
from evercount.queries import PrefixQuery, Query, build_query
from evercount.store import Accepted, Batch, Store, StreamDeclaration
from evercount.store.open_encoder import OpenEncoder
from product_internals import inner_state
from store_reading import close_and_read

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
GRAPH = {"vertices": 40}


def table(query: str, name: str = "s", **parameters: Any) -> dict[str, Any]:
    return {
        "name": name,
        "query": {"name": query, "parameters": parameters},
        "budget": BUDGET,
        "horizon": 64,
    }


def send(store: Store, events: list[Any], name: str = "s", **rest: Any) -> Any:
    return store.accept([Batch(name, events, None, **rest)], 0.0)[0]


def some_events(query: str, draw: random.Random, number: int) -> list[Any]:
    if query in ("substrings", "episodes"):
        return [draw.choice(["a", "b", None]) for _ in range(number)]
    return [draw.sample(range(40), 2) for _ in range(number)]


MEMORIES: list[tuple[str, dict[str, Any]]] = [
    ("substrings", {"alphabet": "ab", "max_length": 3}),
    ("episodes", {"alphabet": "ab", "max_length": 3}),
    ("edges", {**GRAPH, "stream": "insert"}),
    ("triangles", {**GRAPH, "max_degree": 5, "enforce_degree": True, "stream": "insert"}),
    ("matching", {**GRAPH, "stream": "ignore-duplicates"}),
    ("degree-histogram", {**GRAPH, "max_degree": 3, "stream": "ignore-duplicates"}),
]


@pytest.mark.parametrize(("name", "parameters"), MEMORIES)
def test_parts_are_taken_as_the_tick_is(name: str, parameters: dict[str, Any]) -> None:
    """Against the way that needs no argument: all events of the tick, encoded together on a fresh
    copy."""
    draw = random.Random(name)
    query = build_query(name, parameters)
    state = query.encode(query.initial_state(), some_events(name, draw, 1))[1]
    kept: list[Any] = []
    encoder = OpenEncoder(query, state, kept)
    refusals = 0
    for _ in range(60):
        part = some_events(name, draw, draw.randint(1, 4))
        try:
            query.encode(query.load_state(query.dump_state(state)), [*kept, *part])
            wanted = True
        except InputError:
            wanted = False
        if wanted:
            encoder.take(part, list(range(len(part))))
            kept += part
            continue
        refusals += 1
        with pytest.raises(EventRefused) as caught:
            encoder.take(part, list(range(len(part))))
        assert caught.value.number < len(part)
    row, last = query.encode(query.load_state(query.dump_state(state)), kept)
    assert row.any()
    assert query.dump_state(inner_state(encoder)) == query.dump_state(last)
    refusing = name in ("edges", "triangles", "degree-histogram")
    assert bool(refusals) == refusing


def first_of_a_tick(state: Any, events: Any) -> Any:
    """An encoder of a user's own that a tick in parts would change: it counts the first event of a
    tick only."""
    if len(events) > 3:
        raise InputError(f"event {len(events)} of this tick is one too many")
    return [min(len(events), 1)], state + 1


def test_an_encoder_that_reads_ticks_as_units_gets_them_so() -> None:
    query: Query = PrefixQuery(first_of_a_tick, 1, {"add-remove": 1.0}, state=0)
    assert not query.splits
    encoder = OpenEncoder(query, query.initial_state(), ["x"])
    encoder.take(["y", "z"], [0, 1])
    with pytest.raises(InputError) as caught:
        encoder.take(["w"], [0])
    assert "4" not in str(caught.value)  # the encoder's own text counts other people's events


def test_each_event_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch costs what it holds, not what the tick holds; a restart reads the tick once more."""
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(table("edges", **GRAPH)), 0.0)
    seen: list[int] = []
    kind = type(live.declaration.query)
    original = kind.encode

    def counting(self: Any, state: Any, events: Any) -> Any:
        seen.append(len(events))
        return original(self, state, events)

    monkeypatch.setattr(kind, "encode", counting)
    draw = random.Random(3)
    for _ in range(30):
        assert send(store, some_events("edges", draw, 5)) == Accepted(5, 1)
    assert sum(seen) == 150
    store.close()
    store = Store(tmp_path / "a.db")
    seen.clear()
    send(store, some_events("edges", draw, 5))
    send(store, some_events("edges", draw, 5))
    assert seen == [150, 5, 5]
    store.close()


def test_a_refusal_counts_within_the_request(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.declare(StreamDeclaration.from_dict(table("edges", **GRAPH, stream="insert")), 0.0)
    others = [[0, number] for number in range(1, 40)]
    assert send(store, others) == Accepted(39, 1)
    refused = send(store, [[1, 2], [3, 4], [0, 7]])
    assert isinstance(refused, EventRefused)
    assert str(refused).startswith("update 2 of this request (from 0)")
    assert "41" not in str(refused)
    assert send(store, [[1, 2], [3, 4]]) == Accepted(2, 1)  # nothing of the refused batch was kept
    store.close()


def test_places_are_those_of_the_request_also_where_events_are_left_out(tmp_path: Path) -> None:
    declaration = table("edges", **GRAPH, stream="insert")
    declaration["budget"] = {**BUDGET, "unit": "user", "max_events": 2}
    store = Store(tmp_path / "a.db")
    store.declare(StreamDeclaration.from_dict(declaration), 0.0)
    send(store, [[0, 1], [0, 2]], users=["x", "x"])
    refused = send(store, [[5, 6], [5, 7], [8, 9], [0, 1]], users=["x", "x", "y", "y"])
    assert str(refused).startswith("update 3 of this request")
    store.close()


def test_what_is_not_committed_is_forgotten(tmp_path: Path) -> None:
    secret, declaration = (
        Secret.generate(),
        StreamDeclaration.from_dict(table("edges", **GRAPH, stream="insert")),
    )
    store = Store(tmp_path / "a.db")
    live = store.declare(declaration, 0.0, secret)
    send(store, [[0, 1]])
    connection = store.database.connection()
    connection.exec_driver_sql("PRAGMA query_only=ON")
    connection.commit()
    with pytest.raises(StoreError):
        send(store, [[2, 3]])
    connection.exec_driver_sql("PRAGMA query_only=OFF")
    connection.commit()
    assert send(store, [[2, 3]]) == Accepted(1, 1)
    assert isinstance(send(store, [[0, 1]]), EventRefused)
    released = close_and_read(store, live, 1, 0.0)[0]["values"]
    assert (
        released
        == declaration.started(0)
        .build(secret=secret, replay=True)
        .step([[0, 1], [2, 3]])
        .values.tolist()
    )
    assert isinstance(send(store, [[0, 1]]), EventRefused)
    store.close()


def test_declared_graphs_refuse_nothing_because_of_others(tmp_path: Path) -> None:
    """The quiet defaults; refusals can be asked for, and streams that were declared before keep
    their meaning."""
    store = Store(tmp_path / "a.db")
    quiet = store.declare(
        StreamDeclaration.from_dict(table("triangles", **GRAPH, max_degree=3)), 0.0
    )
    assert quiet.declaration.query.parameters() | {
        "stream": "ignore-duplicates",
        "enforce_degree": True,
    } == (quiet.declaration.query.parameters())
    for _ in range(2):
        assert send(store, [[0, number] for number in range(1, 9)]) == Accepted(8, 1)
    start = [[0, 1], [1, 2]]
    less = store.declare(
        StreamDeclaration.from_dict(table("components", "less", **GRAPH, initial_edges=start)), 0.0
    )
    assert less.declaration.query.parameters()["stream"] == "ignore-absent"
    for _ in range(2):
        assert send(store, [[0, 1], [5, 6]], "less") == Accepted(2, 1)
    loud = table("triangles", "loud", **GRAPH, max_degree=3, stream="insert", enforce_degree=False)
    store.declare(StreamDeclaration.from_dict(loud), 0.0)
    assert isinstance(send(store, [[0, 1], [0, 1]], "loud"), EventRefused)
    store.close()
    store = Store(tmp_path / "a.db")
    assert store.find("loud").declaration.query.parameters()["stream"] == "insert"
    assert np.array_equal(store.find("less").totals, [0])
    store.close()
