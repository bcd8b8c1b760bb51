"""Very many new keys at a late tick: their noise is drawn while the writer works, events are taken,
nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declarations.schedule import Schedule
from evercount.errors import Busy
from evercount.mechanisms.composed_noise import NamedNoise
from evercount.noise import Secret
from evercount.service.commit_loop import Writer
from evercount.service.runtime import Service
from evercount.store import Batch, Store, StreamDeclaration
from served_service import ADMIN, HEADERS, HandClock, served
from store_reading import all_releases

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
    "views": ["running"],
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
    store.declare(
        StreamDeclaration.from_dict({**KEYS, "name": "manual", "tick": "manual"}), clock.now()
    )
    store.declare(
        StreamDeclaration.from_dict({**KEYS, "name": "other", "query": "count", "tick": "manual"}),
        BEGIN,
    )
    store.close_ticks(live, LATE - 1, 0.0)
    assert live.ahead is not None
    # else the first events would find a thread that is still busy, and nothing would look again
    live.ahead.result()
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
                assert self.opened.wait(300)
            return join(noise, fresh, tick)

        monkeypatch.setattr(NamedNoise, "join", joining)


def post(client: httpx.Client, name: str, events: list[str]) -> httpx.Response:
    return client.post(f"/v1/streams/{name}/events", json=events)


class Sender(threading.Thread):
    """A batch that is sent while the test goes on."""

    def __init__(self, client: httpx.Client, name: str, events: list[Any]) -> None:
        super().__init__()
        self.there, self.name_of_stream, self.events = client, name, events
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self.there.base_url, headers=HEADERS, timeout=300) as own:
            self.found = post(own, self.name_of_stream, self.events)

    def until_the_writer_has_it(self, service: Service) -> None:
        """It is answered, or waits for a tick to close."""
        while self.is_alive() and not any(
            batch.size == len(self.events) for batch in waiting_batches(service)
        ):
            post(self.there, "other", [1])  # the writer's turn

    def answer(self) -> httpx.Response:
        self.join(300)
        return self.found


def waiting_batches(service: Service) -> list[Batch]:
    assert isinstance(service.writer, Writer)
    return [batch for batches in service.writer._waiting.values() for _, batch, _ in batches]


def seen(answer: httpx.Response) -> tuple[int, Any, str | None]:
    return answer.status_code, answer.json(), answer.headers.get("retry-after")


@pytest.mark.parametrize(
    "new", [[], ["b"] * 40], ids=["no new keys", "new keys whose noise takes long"]
)
def test_new_keys_change_no_answer(
    client: httpx.Client,
    service: Service,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    new: list[str],
) -> None:
    """What other senders are told, and which tick counts their events, is the same whatever keys a
    tick has brought.

    A batch that comes before its own tick is open counts in it, also if that tick ends, too, while
    the batch waits: its events have times, and late ones would be dropped.
    """
    gate = Gate(monkeypatch)
    if not new:
        gate.opened.set()
    assert post(client, "keys", new).status_code == 200
    assert not new or gate.reached.wait(300)
    sent = []
    for hour in (1, 2):
        clock.moment += HOUR
        events = [
            {"key": "a", "time": BEGIN + (LATE - 1 + hour) * HOUR + 1 + number}
            for number in range(hour)
        ]
        sent.append(Sender(client, "keys", events))
        sent[-1].until_the_writer_has_it(service)
    clock.moment += HOUR
    assert seen(client.get("/readyz"))[0] == 200
    assert len(waiting_batches(service)) == (2 if new else 0)
    gate.opened.set()
    assert [seen(one.answer()) for one in sent] == [
        (200, {"accepted": hour, "tick": LATE + hour}, None) for hour in (1, 2)
    ]
    while client.get("/v1/streams/keys").json()["released"] < LATE + 2:
        post(client, "other", [1])
    found = [one["values"] for one in all_releases(service.store, "keys")][-3:]
    assert found == expected([new, ["a"], ["a", "a"]])


def test_a_clock_that_goes_back_answers_what_waits(
    client: httpx.Client, service: Service, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    assert post(client, "keys", ["b"] * 40).status_code == 200
    assert gate.reached.wait(300)
    clock.moment += HOUR
    waiting = Sender(client, "keys", ["a"])
    waiting.until_the_writer_has_it(service)
    assert waiting_batches(service)
    clock.moment -= HOUR  # the clock went back: nothing is to be closed
    post(client, "other", [1])
    assert waiting.answer().json() == {"accepted": 1, "tick": LATE}
    gate.opened.set()


def test_a_stop_answers_what_waits(
    service: Service, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    service.start()
    assert service.writer.submit(Batch("keys", ["b"] * 40)).result(300).tick == LATE
    assert gate.reached.wait(300)
    clock.moment += HOUR
    future = service.writer.submit(Batch("keys", ["a"]))
    while not waiting_batches(service):
        service.writer.submit(lambda: None).result(300)
    service.writer.stop()
    assert isinstance(future.exception(60), Busy)
    gate.opened.set()


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
    assert gate.reached.wait(300), "noise is drawn while the tick is open"
    assert post(client, "keys", ["a"] * 9 + ["c"] * 90).json() == {"accepted": 99, "tick": LATE}
    assert post(client, "other", [1, 1]).status_code == 200
    clock.moment += HOUR  # the tick is over, and cannot be closed yet
    waiting = Sender(client, "keys", ["b"] * 3)
    waiting.until_the_writer_has_it(service)
    for _ in range(3):
        assert post(client, "other", [1]).status_code == 200
        assert client.post("/v1/streams/other/close-tick").status_code == 200
    assert client.get("/v1/streams/keys").json()["released"] == LATE - 1
    gate.opened.set()
    assert waiting.answer().json() == {"accepted": 3, "tick": LATE + 1}
    clock.moment += HOUR
    while client.get("/v1/streams/keys").json()["released"] < LATE + 1:
        post(client, "other", [1])  # the writer's turn
    found = [one["values"] for one in all_releases(service.store, "keys")][-2:]
    assert found == expected([["a"] * 49 + ["b"] * 60 + ["c"] * 90, ["b"] * 3])
    assert len(found[0]) == 5, "all three keys are public"


def test_a_tick_that_is_closed_by_hand_stops_nobody(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    assert post(client, "manual", ["a"] * 80).status_code == 200
    answers: list[httpx.Response] = []

    def close() -> None:
        with httpx.Client(base_url=client.base_url, headers=HEADERS, timeout=300) as other:
            answers.append(other.post("/v1/streams/manual/close-tick?tick=1"))

    closing = threading.Thread(target=close)
    closing.start()
    assert gate.reached.wait(300)
    for number in range(3):
        assert post(client, "other", [1]).status_code == 200
        assert post(client, "manual", ["a"]).json() == {"accepted": 1, "tick": 1}, number
    assert not answers
    gate.opened.set()
    closing.join(300)
    assert len(answers[0].json()["values"]) == 3, "the key is public"


def test_a_thousand_keys_join_while_the_writer_works(
    client: httpx.Client, service: Service, clock: HandClock
) -> None:
    """The same without a gate: no noise of a key is drawn by the writer, whose turns are those of
    all streams."""
    drawn_by: set[str] = set()
    join = NamedNoise.join

    def joining(noise: NamedNoise, names: Any, tick: int) -> bool:
        fresh = [name for name in names if name not in noise.place]
        if fresh:
            drawn_by.add(threading.current_thread().name.split("_")[0])
        return join(noise, fresh, tick)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NamedNoise, "join", joining)
        events = [f"key {number}" for number in range(1000)] * 4 + ["a"] * 60
        for start in range(0, len(events), 3000):
            assert post(client, "keys", events[start : start + 3000]).status_code == 200
        clock.moment += HOUR
        while client.get("/v1/streams/keys").json()["released"] < LATE:
            assert post(client, "other", [1]).status_code == 200
    assert drawn_by == {"evercount-new-keys"}
    assert [list(all_releases(service.store, "keys"))[-1]["values"]] == expected([events])
