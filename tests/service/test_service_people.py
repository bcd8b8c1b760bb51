"""Distinct and active users, rollups and values over HTTP: what is accepted, refused and
released."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip(
    "fastapi", reason="the service is not installed: pip install 'evercount[service]'"
)

from evercount.privacy import Budget, counted_text, guarantee_text
from evercount.service.runtime import Service
from evercount.store import Store
from served_service import ADMIN, HEADERS, HandClock, served

BUDGET = {"epsilon": 4.0, "delta": 1e-3, "unit": "user"}
KEYED = {"keys": ["north", "south"], "max_keys": 2, "total": True}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    service = Service(Store(tmp_path / "store.db"), clock=HandClock(1_774_641_600.0), admin=ADMIN)
    with served(service) as made:
        made.headers.update(HEADERS)
        yield made


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that takes nothing of what it is sent: its stream `s`, of distinct users, stays
    empty."""
    service = Service(
        Store(tmp_path_factory.mktemp("refusing") / "store.db"),
        clock=HandClock(1_774_641_600.0),
        admin=ADMIN,
    )
    with served(service) as made:
        made.headers.update(HEADERS)
        declare(made, {"name": "distinct-users", "parameters": KEYED})
        yield made
        assert [one["name"] for one in made.get("/v1/streams").json()["streams"]] == ["s"]


def declare(
    client: httpx.Client, query: Any, budget: dict[str, Any] = BUDGET, **more: Any
) -> dict[str, Any]:
    answer = client.post(
        "/v1/streams", json={"name": "s", "query": query, "budget": budget, **more}
    )
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
        "everything under the id of any person (however many events that is)"
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
def test_events_that_name_no_user_or_key_are_refused(refusing: httpx.Client, event: Any) -> None:
    answer = refusing.post("/v1/streams/s/events", json=[{"user": "bob", "key": "north"}, event])
    assert answer.status_code == 422, answer.text
    assert "event 1" in answer.json()["error"]["message"]


def test_active_users_per_tick(client: httpx.Client) -> None:
    declare(
        client, {"name": "active-users", "parameters": {}}, {**BUDGET, "max_ticks": 3}, horizon=8
    )
    for _ in range(5):
        assert send(client, [{"user": f"u{i}"} for i in range(500)] * 2 + ["late"]) == 200
        close(client)
    view = client.get("/v1/streams/s/releases", params={"view": "per-tick"}).json()["releases"]
    for tick, span in enumerate(view):
        true = 501 if tick < 3 else 0  # a user counts in three ticks
        assert abs(span["values"][0] - true) < 8 * span["std"][0]


def test_active_users_of_each_period(client: httpx.Client) -> None:
    """No cap is needed where what is protected is one period, and each period begins anew."""
    facts = declare(
        client, "active-users", {**BUDGET, "max_ticks": 1, "period": 2}, views=["per-tick"]
    )
    assert "within one period of 2 ticks" in facts["guarantee"]
    for _ in range(5):
        assert send(client, [{"user": f"u{i}"} for i in range(500)]) == 200
        close(client)
    for span, true in zip(spans(client), (500, 0, 500, 0, 500), strict=True):
        assert abs(span["values"][0] - true) < 8 * span["std"][0] < 200


def test_distinct_users_count_once_in_all_periods(client: httpx.Client) -> None:
    facts = declare(client, "distinct-users", {**BUDGET, "period": 1})
    assert (
        "counting under the id of any person in one tick (however many events that is)"
        in facts["guarantee"]
    )
    for _ in range(2):
        assert send(client, [{"user": f"u{i}"} for i in range(500)]) == 200
        release = close(client)
    assert abs(release["values"][0] - 500) < 8 * release["std"][0] < 200


def spans(client: httpx.Client) -> Any:
    return client.get("/v1/streams/s/releases", params={"view": "per-tick"}).json()["releases"]


def users_in(folder: Path) -> int:
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as file:
        (number,) = file.execute("select count(*) from users").fetchone()
    return int(number)


def test_caps_hold_over_batches_ticks_and_periods(client: httpx.Client, tmp_path: Path) -> None:
    """Of 4 events in each tick 3 count, in 2 ticks of a period of 4; nobody is remembered when it
    is over."""
    caps = {"max_per_tick": 3, "max_ticks": 2, "period": 4}
    facts = declare(client, "count", {**BUDGET, "epsilon": 8.0, **caps}, views=["per-tick"])
    assert facts["budget"] == {**facts["budget"], **caps}
    assert "period_ticks" not in facts["budget"]
    assert (
        "its first 3 events of each tick, in the first 2 ticks in which it has one"
        in facts["counted"]
    )
    for tick in range(1, 9):
        for number in range(4):
            events = [{"user": f"u{i}"} for i in range(100)] + [{"user": f"once-{tick}-{number}"}]
            for _ in range(2):  # a batch that is sent again counts once
                key = {"Idempotency-Key": f"{tick}-{number}"}
                assert (
                    client.post("/v1/streams/s/events", json=events, headers=key).status_code == 200
                )
        assert users_in(tmp_path) == 100 + 4 * ((tick - 1) % 4 + 1)
        close(client)
        assert (users_in(tmp_path) == 0) == (tick % 4 == 0)
    for span, true in zip(spans(client), (304, 304, 4, 4) * 2, strict=True):
        assert abs(span["values"][0] - true) < 8 * span["std"][0] < 200


def test_three_days_of_a_week(tmp_path: Path) -> None:
    """Weeks of Vienna from the start on; the first has the hour that is left out in spring."""
    clock = HandClock(1_774_641_600.0)
    service = Service(Store(tmp_path / "store.db"), clock=clock, admin=ADMIN)
    with served(service) as client:
        client.headers.update(HEADERS)
        budget = {**BUDGET, "epsilon": 8.0, "max_per_tick": 1, "max_ticks": 3, "period": "1w"}
        when = {"tick": "1d", "zone": "Europe/Vienna", "start": "2026-03-28", "views": ["per-tick"]}
        facts = declare(client, "count", budget, **when)
        assert (
            "everything that comes up for counting under the id of any person in one week"
            in facts["guarantee"]
        )
        facts = client.get("/v1/streams/s").json()
        counted = "its first event of each day, in the first 3 days in which it has one"
        assert all(
            counted in said
            for said in (facts["guarantee"], facts["counted"], facts["explained"]["who"])
        )
        assert "tick" not in facts["guarantee"] + facts["counted"] + str(facts["explained"])
        live = service.store.find("s")

        def close_until(day: int) -> None:
            if live.closed < day - 1:
                service.store.close_ticks(live, day - 1 - live.closed, clock.moment)

        for day in range(1, 11):
            clock.moment = live.declaration.schedule.start_of(day) / 1e6 + 60
            service.writer.submit(lambda day=day: close_until(day)).result()
            assert users_in(tmp_path) == (0 if day in (1, 8) else 250)
            assert send(client, [{"user": f"u{i}"} for i in range(250)] * 2) == 200
        for span, true in zip(spans(client), (250, 250, 250, 0, 0, 0, 0, 250, 250), strict=True):
            assert abs(span["values"][0] - true) < 8 * span["std"][0] < 200


@pytest.mark.parametrize(
    ("budget", "more", "said"),
    [
        (
            {"max_per_tick": 1, "period": "1d"},
            {"tick": "5h"},
            "cut periods of 1d in UTC: choose ticks that fit",
        ),
        (
            {"max_per_tick": 1, "period": "1d"},
            {},
            "closed by hand: give the period as a number of ticks",
        ),
        (
            {"max_per_tick": 1, "period": "1x"},
            {"tick": "1d"},
            "such as 1d, 1w or 4w, or a number of ticks",
        ),
        ({"max_per_tick": 0, "period": 1}, {}, "max_per_tick"),
        ({"max_per_tick": 1, "period": 1, "unit": "event"}, {}, "Use unit='user'"),
        ({"max_per_tick": 1, "period": 7, "period_ticks": 7}, {}, "Did you mean 'period'?"),
        ({}, {}, "max_events"),
        ({}, {"query": "active-users"}, "max_ticks"),
    ],
)
def test_caps_that_contradict_each_other_are_refused(
    refusing: httpx.Client, budget: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    zone = {"zone": "UTC"} if "tick" in more else {}
    table = {"name": "refused", "query": "count", "budget": {**BUDGET, **budget}, **zone, **more}
    answer = refusing.post("/v1/streams", json=table)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["remedy"] == "Correct the request; nothing was changed."
    assert refusing.get("/v1/streams/refused").status_code == 404


def test_events_of_persons_name_their_user(client: httpx.Client) -> None:
    declare(client, "count", {**BUDGET, "max_per_tick": 1, "period": 1})
    for event in (1, {"value": 1}, {"user": None}, {"user": ""}):
        answer = client.post("/v1/streams/s/events", json=[{"user": "ann"}, event])
        assert answer.status_code == 422
        assert "event 1 (from 0) needs 'user'" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("query", "caps"),
    [
        ("count", {"max_events": 3}),
        ("count", {"max_per_tick": 2, "period": "1d"}),
        ("active-users", {"max_ticks": 3, "period": "4w"}),
        ("distinct-users", {"period": "1w"}),
    ],
)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_texts_follow_the_unit(
    client: httpx.Client, query: str, caps: dict[str, Any], adjacency: str
) -> None:
    budget = {**BUDGET, **caps, "adjacency": adjacency}
    declare(client, query, budget, tick="1d", zone="UTC", start="2026-04-01", horizon=56)
    facts = client.get("/v1/streams/s").json()
    own = Budget(**facts["budget"])
    texts = guarantee_text(own, "evercount" if query == "count" else "query", "1d")
    assert facts["guarantee"] == texts.sentence
    assert facts["explained"] == {**facts["explained"], "who": texts.who, "letter": texts.letter}
    assert (
        facts["counted"] == counted_text(own, tick="1d") != ("" if "distinct" not in query else "?")
    )
    assert "promised" not in json.dumps(client.get("/v1/streams").json()) + json.dumps(facts)


def test_the_api_describes_every_field_of_a_budget(client: httpx.Client) -> None:
    fields = client.get("/openapi.json").json()["components"]["schemas"]["Budget"]["properties"]
    assert {"max_events", "max_per_tick", "max_ticks", "period"} < set(fields)
    assert "period_ticks" not in fields
    assert "calendar length" in fields["period"]["description"]


def test_who_is_inside(client: httpx.Client) -> None:
    facts = declare(
        client, {"name": "occupancy", "parameters": {"keys": ["north", "south"], "max_events": 3}}
    )
    assert facts["labels"] == ["north", "south"]
    assert send(client, [{"user": f"u{i}", "key": "north"} for i in range(500)] * 2) == 200
    assert send(client, [[f"u{i}", "south"] for i in range(200)]) == 200
    first = close(client)
    # a fourth event of 200
    assert send(client, [{"user": f"u{i}", "key": "out"} for i in range(500)]) == 200
    second = close(client)
    for release, true in ((first, (300, 200)), (second, (0, 200))):
        for value, std, number in zip(release["values"], release["std"], true, strict=True):
            assert abs(value - number) < 8 * std
            assert 16 * std < 200
    for event in (
        {"user": "ann"},
        {"user": "ann", "key": "in"},
        {"user": "ann", "key": None},
        ["ann"],
        "ann",
    ):
        assert send(client, [event]) == 422
    assert "however many events that is" in client.get("/v1/streams/s").json()["guarantee"]


def test_paths_values_and_columns(client: httpx.Client) -> None:
    columns = {"time": "ts", "levels": ["state", "county"]}
    rollup = {"name": "rollup", "parameters": {"paths": [["a", "x"], ["a", "y"], ["b", "x"]]}}
    declare(client, rollup, {"epsilon": 4.0, "delta": 1e-3}, columns=columns)
    events = [
        {"path": ["a", "x"]},
        {"values": ["a", "x"]},
        ["a", "y"],
        {"state": "b", "county": "x"},
    ] * 200
    assert send(client, events) == 200
    release = close(client)
    for value, std, true in zip(
        release["values"], release["std"], (800, 600, 200, 400, 200, 200), strict=True
    ):
        assert abs(value - true) < 8 * std
    assert release["values"][0] == pytest.approx(sum(release["values"][1:3]), abs=1e-6)
    assert send(client, [{"path": ["b", "y"]}]) == 422
    assert send(client, [{"state": "b"}]) == 422
