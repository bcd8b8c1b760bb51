"""Distinct and active users, rollups and values over HTTP: what is accepted, refused and released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the service is not installed: pip install 'evercount[service]'")

from evercount.service.runtime import Service
from evercount.store import Store
from serving import ADMIN, HEADERS, HandClock, served

BUDGET = {"epsilon": 4.0, "delta": 1e-3, "unit": "user"}
KEYED = {"keys": ["north", "south"], "max_keys": 2, "total": True}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    service = Service(Store(tmp_path / "store.db"), clock=HandClock(1_774_641_600.0), admin=ADMIN)
    with served(service) as made:
        made.headers.update(HEADERS)
        yield made


def declare(client: httpx.Client, query: Any, budget: dict[str, Any] = BUDGET, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/streams", json={"name": "s", "query": query, "budget": budget, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def send(client: httpx.Client, events: list[Any]) -> int:
    return client.post("/v1/streams/s/events", json=events).status_code


def close(client: httpx.Client) -> Any:
    return client.post("/v1/streams/s/close-tick").json()


def test_users_count_once_however_many_events_they_send(client: httpx.Client) -> None:
    facts = declare(client, {"name": "distinct-users", "parameters": KEYED})
    assert facts["labels"] == ["total", "north", "south"]
    for start in (0, 100):  # the same people again
        events = [{"user": f"u{i}", "key": "north"} for i in range(400)]
        events += [[f"u{i}", "south"] for i in range(start, 300)]
        assert send(client, events * 3) == 200
    assert (
        "everything under any one user id (however many events that is)"
        in client.get("/v1/streams/s").json()["guarantee"]
    )
    release = close(client)
    for value, std, true in zip(release["values"], release["std"], (400, 400, 300), strict=True):
        assert abs(value - true) < 8 * std
    send(client, [{"user": "u1", "key": "north"}])
    again = close(client)
    assert abs(again["values"][0] - 400) < 8 * again["std"][0]


@pytest.mark.parametrize(
    "event",
    [
        {"user": "ann"},
        {"key": "north"},
        {"user": "ann", "key": "east"},
        {"user": "", "key": "north"},
        {"user": "e\u0301", "key": "north"},
        {"user": "ann", "key": "north", "value": 3},
        {"user": 7, "key": "north"},
        "ann",
        ["ann", "north", "south"],
        None,
    ],
)
def test_events_that_name_no_user_or_key_are_refused(client: httpx.Client, event: Any) -> None:
    declare(client, {"name": "distinct-users", "parameters": KEYED})
    answer = client.post("/v1/streams/s/events", json=[{"user": "bob", "key": "north"}, event])
    assert answer.status_code == 422, answer.text
    assert "event 1" in answer.json()["error"]["message"]


def test_active_users_per_tick(client: httpx.Client) -> None:
    declare(client, {"name": "active-users", "parameters": {}})
    for _ in range(5):
        assert send(client, [{"user": f"u{i}"} for i in range(500)] * 2 + ["late"]) == 200
        close(client)
    view = client.get("/v1/streams/s/releases", params={"view": "per-tick"}).json()["releases"]
    for tick, span in enumerate(view):
        true = 501 if tick < 3 else 0  # a user counts in three ticks
        assert abs(span["values"][0] - true) < 8 * span["std"][0]


def test_who_is_inside(client: httpx.Client) -> None:
    facts = declare(client, {"name": "occupancy", "parameters": {"keys": ["north", "south"], "max_events": 3}})
    assert facts["labels"] == ["north", "south"]
    assert send(client, [{"user": f"u{i}", "key": "north"} for i in range(500)] * 2) == 200
    assert send(client, [[f"u{i}", "south"] for i in range(200)]) == 200
    first = close(client)
    assert send(client, [{"user": f"u{i}", "key": "out"} for i in range(500)]) == 200  # a fourth event of 200
    second = close(client)
    for release, true in ((first, (300, 200)), (second, (0, 200))):
        for value, std, number in zip(release["values"], release["std"], true, strict=True):
            assert abs(value - number) < 8 * std
            assert 16 * std < 200
    for event in ({"user": "ann"}, {"user": "ann", "key": "in"}, {"user": "ann", "key": None}, ["ann"], "ann"):
        assert send(client, [event]) == 422
    assert "however many events that is" in client.get("/v1/streams/s").json()["guarantee"]


def test_paths_values_and_columns(client: httpx.Client) -> None:
    columns = {"time": "ts", "levels": ["state", "county"]}
    rollup = {"name": "rollup", "parameters": {"paths": [["a", "x"], ["a", "y"], ["b", "x"]]}}
    declare(client, rollup, {"epsilon": 4.0, "delta": 1e-3}, columns=columns)
    events = [{"path": ["a", "x"]}, {"values": ["a", "x"]}, ["a", "y"], {"state": "b", "county": "x"}] * 200
    assert send(client, events) == 200
    release = close(client)
    for value, std, true in zip(release["values"], release["std"], (800, 600, 200, 400, 200, 200), strict=True):
        assert abs(value - true) < 8 * std
    assert release["values"][0] == pytest.approx(sum(release["values"][1:3]), abs=1e-6)
    assert send(client, [{"path": ["b", "y"]}]) == 422
    assert send(client, [{"state": "b"}]) == 422
