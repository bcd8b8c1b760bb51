"""Very many new keys at a late tick: their noise is drawn beside the writer, events are taken, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declare.schedule import Schedule
from evercount.mechanisms.named_noise import NamedNoise
from evercount.noise import Secret
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
from serving import ADMIN, HEADERS, HandClock, served

START = "2026-03-01T00:00:00Z"
BEGIN = Schedule.of("1h", START).begin / 1e6
HOUR = 3600.0
SECRET = Secret.from_hex("6b" * 32)
KEYS: dict[str, Any] = {
    "name": "keys",
    "query": {"name": "discovered-keys", "parameters": {"minimum": 4}},
    "budget": {"epsilon": 4.0, "delta": 0.01},
    "tick": "1h",
    "start": START,
    "horizon": 4096,
}
LATE = 400
"""The tick in which the keys come: a key's noise begins at tick 1."""


@pytest.fixture
def clock() -> HandClock:
    return HandClock(BEGIN)


@pytest.fixture
def service(tmp_path: Path, clock: HandClock) -> Iterator[Service]:
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(KEYS), clock.now(), SECRET)
    store.declare(StreamDeclaration.from_dict({**KEYS, "name": "manual", "tick": "manual"}), clock.now())
    store.declare(StreamDeclaration.from_dict({**KEYS, "name": "other", "query": "count", "tick": "manual"}), BEGIN)
    store.close_ticks(live, LATE - 1, 0.0)
    clock.moment = BEGIN + (LATE - 1) * HOUR
    yield Service(store, clock=clock, admin=ADMIN)
    store.close()


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as opened:
        opened.headers.update(HEADERS)
        yield opened


class Gate:
    """Noise of new names waits until the gate is opened, as it would with very many names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        join = NamedNoise.join

        def joining(noise: NamedNoise, names: Any, tick: int) -> bool:
            fresh = [name for name in names if name not in noise.place]
            if fresh:
                self.reached.set()
                assert self.opened.wait(60)
            return join(noise, fresh, tick)

        monkeypatch.setattr(NamedNoise, "join", joining)


def post(client: httpx.Client, name: str, events: list[str]) -> httpx.Response:
    return client.post(f"/v1/streams/{name}/events", json=events)


def expected(ticks: list[list[str]]) -> list[list[float]]:
    """What a stream publishes that nobody disturbs."""
    stream = StreamDeclaration.from_dict(KEYS).build(secret=SECRET, replay=True)
    stream.run([[]] * (LATE - 1))
    return [release.values.tolist() for release in stream.run(ticks)]


def test_events_are_taken_while_the_noise_of_new_keys_is_drawn(
    client: httpx.Client, service: Service, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    assert post(client, "keys", ["a"] * 40 + ["b"] * 60).json() == {"accepted": 100, "tick": LATE}
    assert gate.reached.wait(20), "noise is drawn while the tick is open"
    assert post(client, "keys", ["a"] * 9 + ["c"] * 90).json() == {"accepted": 99, "tick": LATE}
    assert post(client, "other", [1, 1]).status_code == 200
    clock.moment += HOUR  # the tick is over, and cannot be closed yet
    for _ in range(3):
        refused = post(client, "keys", ["b"] * 3)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "CatchingUp")
        assert post(client, "other", [1]).status_code == 200
        assert client.post("/v1/streams/other/close-tick").status_code == 200
    assert client.get("/v1/streams/keys").json()["released"] == LATE - 1
    gate.opened.set()
    while (answer := post(client, "keys", ["b"] * 3)).status_code == 503:
        assert answer.json()["error"]["type"] == "CatchingUp"
    assert answer.json() == {"accepted": 3, "tick": LATE + 1}
    clock.moment += HOUR
    while client.get("/v1/streams/keys").json()["released"] < LATE + 1:
        post(client, "other", [1])  # the writer's turn
    found = [one["values"] for one in service.store.all_releases("keys")][-2:]
    assert found == expected([["a"] * 49 + ["b"] * 60 + ["c"] * 90, ["b"] * 3])
    assert len(found[0]) == 5, "all three keys are public"


def test_a_tick_that_is_closed_by_hand_stops_nobody(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    assert post(client, "manual", ["a"] * 80).status_code == 200
    answers: list[httpx.Response] = []

    def close() -> None:
        with httpx.Client(base_url=client.base_url, headers=HEADERS, timeout=60) as other:
            answers.append(other.post("/v1/streams/manual/close-tick?tick=1"))

    closing = threading.Thread(target=close)
    closing.start()
    assert gate.reached.wait(20)
    for number in range(3):
        assert post(client, "other", [1]).status_code == 200
        assert post(client, "manual", ["a"]).json() == {"accepted": 1, "tick": 1}, number
    assert not answers
    gate.opened.set()
    closing.join(60)
    assert len(answers[0].json()["values"]) == 3, "the key is public"


def test_five_thousand_keys_join_beside_the_writer(client: httpx.Client, service: Service, clock: HandClock) -> None:
    """The same without a gate: no noise of a key is drawn by the writer, whose turns are those of all streams."""
    drawn_by: set[str] = set()
    join = NamedNoise.join

    def joining(noise: NamedNoise, names: Any, tick: int) -> bool:
        fresh = [name for name in names if name not in noise.place]
        if fresh:
            drawn_by.add(threading.current_thread().name.split("_")[0])
        return join(noise, fresh, tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NamedNoise, "join", joining)
        events = [f"key {number}" for number in range(5000)] * 4 + ["a"] * 60
        for start in range(0, len(events), 10_000):
            assert post(client, "keys", events[start : start + 10_000]).status_code == 200
        clock.moment += HOUR
        while client.get("/v1/streams/keys").json()["released"] < LATE:
            assert post(client, "other", [1]).status_code == 200
    assert drawn_by == {"evercount-new-keys"}
    assert [list(service.store.all_releases("keys"))[-1]["values"]] == expected([events])
