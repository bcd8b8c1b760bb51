"""The store's contract on SQLite and PostgreSQL: declarations, batches, caps, late events, ticks
and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.schedule import instant_of
from evercount.errors import (
    Conflict,
    EventRefused,
    HorizonReached,
    InputError,
    ParameterError,
    StoreError,
    TooEarly,
    UnknownName,
)
from evercount.noise import Secret
from evercount.store import Accepted, Batch, Store, StreamDeclaration
from evercount.store.open_stream import encode_events
from postgres_cluster import Postgres
from soak_cases import soak_except
from store_reading import all_releases, close_and_read

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
HISTOGRAM = {
    "name": "h",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": BUDGET,
}
HOUR = {**HISTOGRAM, "tick": "1h", "start": "2026-01-01T00:00:00Z", "horizon": 100}
START = StreamDeclaration.from_dict(HOUR).schedule.begin / 1e6
assert START is not None
Open = Callable[[], Store]


@pytest.fixture(
    params=soak_except(
        ["sqlite, encrypted", "postgresql"], ["sqlite", "sqlite, encrypted", "postgresql"]
    )
)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same store again and again; the last one is closed before the next is opened."""
    place: Any = tmp_path / "a.db"
    if request.param == "postgresql":
        cluster: Postgres = request.getfixturevalue("postgres")
        place = cluster.fresh()
    key = bytes(32) if request.param == "sqlite, encrypted" else None
    stores: list[Store] = []

    def again() -> Store:
        for store in stores:
            store.close()
        stores.append(Store(place, key, tmp_path / "head"))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


def declare(
    store: Store, table: dict[str, Any], now: float = START, secret: Secret | None = None
) -> Any:
    return store.declare(StreamDeclaration.from_dict(table), now, secret)


def batch(table: dict[str, Any], events: list[Any], **rest: Any) -> Batch:
    declaration = StreamDeclaration.from_dict(table)
    row = None if declaration.remembers else encode_events(declaration, events)
    return Batch(declaration.name, events, row, **rest)


def accept(store: Store, *batches: Batch, now: float = START) -> list[Any]:
    return store.accept(batches, now)


def test_events_and_releases_survive_a_restart(opened: Open) -> None:
    secret = Secret.generate()
    store = opened()
    live = declare(store, HISTOGRAM, secret=secret)
    assert accept(store, batch(HISTOGRAM, ["a", "b", "a"])) == [Accepted(3, 1)]
    store = opened()
    live = store.find("h")
    assert live.totals.tolist() == [2, 1]
    accept(store, batch(HISTOGRAM, ["b"]), batch(HISTOGRAM, ["b"]))
    first = close_and_read(store, live, 1, 0.0)
    store = opened()
    live = store.find("h")
    assert live.totals.tolist() == [0, 0]
    second = close_and_read(store, live, 2, 0.0)
    plain = live.declaration.build(secret=secret, replay=True)
    wanted = [
        plain.run_totals([np.asarray(row)])[0].values.tolist() for row in ([2, 3], [0, 0], [0, 0])
    ]
    assert [release["values"] for release in first + second] == wanted
    assert list(all_releases(store, "h")) == first + second
    assert store.verify(store.head) == []


def test_a_key_counts_once(opened: Open) -> None:
    store = opened()
    live = declare(store, HISTOGRAM)
    one, other = (
        batch(HISTOGRAM, ["a"], key="k", body=b"one"),
        batch(HISTOGRAM, ["b"], key="k", body=b"other"),
    )
    assert accept(store, one, one) == [Accepted(1, 1)] * 2
    store = opened()
    live = store.find("h")
    store.close_ticks(live, 1, 0.0)
    assert accept(store, one) == [Accepted(1, 1)]  # the answer names the tick that counted it
    refused = accept(store, other)[0]
    assert isinstance(refused, Conflict)
    assert live.totals.tolist() == [0, 0]
    assert accept(store, batch({**HISTOGRAM}, ["a"], key="l", body=b"one")) == [Accepted(1, 2)]


def test_a_declaration_is_immutable(opened: Open) -> None:
    store = opened()
    live = declare(store, HOUR)
    assert declare(store, HOUR, now=START + 1e6) is live
    assert declare(store, {**HOUR, "start": None}) is live
    store = opened()
    live = store.find("h")
    explicit = {
        **HOUR,
        "query": {"name": "histogram", "parameters": live.declaration.query.parameters()},
    }
    assert declare(store, explicit) is live
    for change in ({"budget": {**BUDGET, "epsilon": 2.0}}, {"tick": "2h"}, {"horizon": None},
                   {"public": True},
                   {"late": "revise", "revise_for": 2}, {"start": "2026-01-02"},
                   {"description": "other"}):  # fmt: skip
        with pytest.raises(Conflict, match="immutable"):
            declare(store, {**HOUR, **change})
    assert len(store.ledger()["entries"]) == 1


def test_users_are_capped_over_the_whole_stream(opened: Open) -> None:
    table = {**HISTOGRAM, "budget": {**BUDGET, "unit": "user", "max_events": 2}}
    store = opened()
    live = declare(store, table)
    accept(
        store,
        batch(table, ["a", "a", "b"], users=["x", "x", "y"]),
        batch(table, ["b", "a"], users=["x", "z"]),
    )
    assert live.totals.tolist() == [3, 1]  # the third event of x is dropped
    store.close_ticks(live, 1, 0.0)
    store = opened()
    live = store.find("h")
    accept(store, batch(table, ["a", "b", "b", "b"], users=["x", "y", "y", "w"]))
    assert live.totals.tolist() == [0, 2]
    accept(store, batch(table, ["a", "a"], users=["w", "w"]))
    assert live.totals.tolist() == [1, 2]


@pytest.mark.parametrize(("late", "wanted"), [("drop", [1, 1]), ("next", [2, 1])])
def test_late_and_early_events(opened: Open, late: str, wanted: list[int]) -> None:
    table = {**HOUR, "late": late}
    store = opened()
    live = declare(store, table)
    store.close_ticks(live, 2, 0.0)
    now = START + 2.5 * 3600
    times = [instant_of(START + 1.9 * 3600), instant_of(START + 2.1 * 3600), None]
    assert accept(store, batch(table, ["a", "a", "b"], times=times), now=now) == [
        Accepted(3, 3, late=1)
    ]
    assert live.totals.tolist() == wanted
    refused = accept(store, batch(table, ["a"], times=[instant_of(START + 3 * 3600)]), now=now)[0]
    assert isinstance(refused, TooEarly)
    before = accept(store, batch(table, ["a"], times=[instant_of(START) - 1]), now=now)[0]
    assert type(before) is InputError, "an event before the start is not legal at any interface"
    assert live.totals.tolist() == wanted
    assert isinstance(accept(store, batch(table, ["a"]), now=START - 1)[0], TooEarly)


def test_a_clock_that_goes_back_ends_no_tick(opened: Open) -> None:
    store = opened()
    live = declare(store, HOUR)
    assert [live.due(START + hours * 3600) for hours in (-5, 0, 0.99, 1, 2.5, 1e9)] == [
        0,
        0,
        0,
        1,
        2,
        100,
    ]
    store.close_ticks(live, live.due(START + 5 * 3600), 0.0)
    assert live.open_tick == 6
    assert live.due(START + 2 * 3600) == 0
    assert accept(store, batch(HOUR, ["a"]), now=START + 2 * 3600) == [Accepted(1, 6)]


def test_the_horizon_ends_a_stream(opened: Open) -> None:
    store = opened()
    live = declare(store, {**HOUR, "horizon": 3})
    store.close_ticks(live, live.due(START + 1e9), 0.0)
    assert live.closed == 3
    assert live.finished
    assert live.next_end() is None
    assert isinstance(accept(store, batch(HOUR, ["a"]), now=START + 1e9)[0], HorizonReached)
    with pytest.raises(HorizonReached):
        store.close_ticks(live, 1, 0.0)
    store = opened()
    assert store.find("h").finished


def test_an_encoder_with_a_memory_gets_its_events_in_order(opened: Open) -> None:
    table = {"name": "w", "query": {"name": "substrings", "parameters": {"alphabet": "ab",
                                                                         "max_length": 2}},
             "budget": BUDGET, "horizon": 50}  # fmt: skip
    secret = Secret.generate()
    store = opened()
    declare(store, table, secret=secret)
    accept(store, batch(table, ["a"]), batch(table, ["b", "a"]))
    refused = accept(store, batch(table, ["z"]))[0]
    assert isinstance(refused, InputError)
    store = opened()
    accept(store, batch(table, ["b"]))
    assert store.find("w").events == ["a", "b", "a", "b"]
    first = close_and_read(store, store.find("w"), 2, 0.0)
    store = opened()
    accept(store, batch(table, ["b"]))
    third = close_and_read(store, store.find("w"), 1, 0.0)
    plain = store.find("w").declaration.build(secret=secret, replay=True)
    wanted = [plain.step(events).values.tolist() for events in (["a", "b", "a", "b"], [], ["b"])]
    assert [release["values"] for release in first + third] == wanted


@pytest.mark.parametrize(
    ("query", "parameters", "events", "wanted"),
    [
        ("count", {}, [1, 0, 3], [4]),
        ("sum", {"low": -2, "high": 8, "grid": 0.5}, [0.5, -2, 7.75], [13]),
        ("average", {"low": 0, "high": 4, "per": "event"}, [1, 4], [1, 2]),
        ("top-k", {"keys": 3, "k": 2, "max_keys_per_event": 2}, [[0, 2], 1, []], [1, 1, 1]),
        (
            "histogram",
            {"keys": ["x"], "unknown": "other", "removals": True},
            ["x", "q", {"x": -1}],
            [0, 1],
        ),
    ],
)
def test_queries_without_memory_add_up(
    tmp_path: Path, query: str, parameters: dict[str, Any], events: list[Any], wanted: list[int]
) -> None:
    table = {
        "name": "q",
        "query": {"name": query, "parameters": parameters},
        "budget": BUDGET,
        "horizon": 64,
    }
    store = Store(tmp_path / "q.db")
    live = declare(store, table)
    for event in events:
        accept(store, batch(table, [event]))
    assert live.totals.tolist() == wanted
    assert close_and_read(store, live, 1, 0.0)[0]["tick"] == 1
    store.close()


def test_a_group_keeps_what_is_legal_of_it(opened: Open) -> None:
    table = {
        "name": "e",
        "query": {"name": "edges", "parameters": {"vertices": 9, "stream": "insert"}},
        "budget": BUDGET,
    }
    store = opened()
    live = declare(store, table)
    answers = accept(
        store, batch(table, [[0, 1]]), batch(table, [[2, 3], [1, 0]]), batch(table, [[2, 3]])
    )
    assert [type(answer) for answer in answers] == [Accepted, EventRefused, Accepted]
    assert live.events == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""}, {"name": "a/b"}, {"name": "x" * 65}, {"name": 7}, {"tick": "0s"},
        {"tick": "9ms"}, {"tick": "1w"}, {"tick": 5},
        {"start": "yesterday"}, {"start": True}, {"start": 1e300}, {"horizon": 0},
        {"horizon": True}, {"horizon": 1.5}, {"late": "never"}, {"public": 1}, {"description": 5},
        {"description": "x" * 2001}, {"extra": 1}, {"query": {"name": "nothing"}},
        {"query": {"name": "prefix", "parameters": {"encode": "os:system"}}},
        {"query": {"name": "histogram"}}, {"query": {"name": "histogram",
                                                     "parameters": {"keys": [[]]}}}, {"query": 5},
                                                     {"budget": 5},
        {"budget": {"epsilon": 0, "delta": 0.1}}, {"budget": {"epsilon": "1", "delta": 0.1}},
        {"budget": {}}, {"postprocess": "monotone"}, {"postprocess": ["tidy"]},
    ],
)  # fmt: skip
def test_wrong_declarations_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        StreamDeclaration.from_dict({**HOUR, **change})


def test_a_start_far_in_the_past_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    with pytest.raises(ParameterError, match="in the past"):
        declare(store, {**HOUR, "tick": "1s", "start": "1970-01-01", "horizon": None})
    assert store.streams == {}
    store.close()


@pytest.mark.parametrize(
    ("change", "event", "ticks"),
    [
        ({"postprocess": ["nonnegative", "monotone"]}, "a", 100),
        ({"factorization": "periods-7", "horizon": None}, "a", 100),
    ],
)
def test_missed_ticks_are_the_same_whether_closed_together_or_one_by_one(
    tmp_path: Path, change: dict[str, Any], event: Any, ticks: int
) -> None:
    secret, table = Secret.generate(), {**HOUR, "horizon": 1000, **change}
    made = []
    for name, most in (("together", ticks), ("mixed", 77), ("apart", 1)):
        store = Store(tmp_path / f"{name}.db")
        live = declare(store, table, secret=secret)
        accept(store, batch(table, [event] * 40))
        number = ticks if most > 1 else 40  # one by one is slow
        while live.closed < number:
            store.close_ticks(live, min(most, number - live.closed), 0.0)
        made.append(list(all_releases(store, "h")))
        store.close()
    assert made[0] == made[1]
    assert made[0][:40] == made[2]


def test_unknown_names_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    with pytest.raises(StoreError, match="no stream"):
        store.tables_of("none")
    with pytest.raises(UnknownName, match="description"):
        StreamDeclaration.from_dict({**HOUR, "descripton": ""})
    store.close()


@pytest.mark.parametrize("postprocess", [[], ["nonnegative", "integer", "monotone"]])
def test_what_is_stored_is_what_the_engine_states(tmp_path: Path, postprocess: list[str]) -> None:
    table, secret = {**HISTOGRAM, "horizon": 50, "postprocess": postprocess}, Secret.generate()
    store = Store(tmp_path / "a.db")
    live = declare(store, table, secret=secret)
    accept(store, batch(table, ["a"] * 100))
    store.close_ticks(live, 10, 0.0)
    plain = live.declaration.build(secret=secret, replay=True)
    for release, wanted in zip(
        all_releases(store, "h"), plain.run([["a"] * 100, *[[]] * 9]), strict=True
    ):
        low, high = wanted.interval(0.95)
        assert release["values"] == wanted.values.tolist()
        assert release["std"] == wanted.stds.tolist()
        assert (release["low"], release["high"]) == (low.tolist(), high.tolist())
    store.close()
