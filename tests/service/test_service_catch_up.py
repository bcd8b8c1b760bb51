"""Missed ticks are closed in slices: requests are answered and a stop is obeyed meanwhile; clock
jumps wait."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.schedule import Schedule
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.service import catch_up
from evercount.service.catch_up import CatchUp
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
from served_service import ADMIN, HEADERS, HandClock, served
from store_reading import all_releases

pytestmark = pytest.mark.slow

START = "2026-03-01T00:00:00Z"
BEGIN = Schedule.of("1h", START).begin / 1e6
TABLE: dict[str, Any] = {
    "name": "seconds",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "tick": "1s",
    "start": START,
    "public": True,
}
SECRET = Secret.from_hex("77" * 32)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(BEGIN)


class RunsAway:
    """Makes every slice move the clock on by more ticks than the slice closed, until it is told to
    stop."""

    def __init__(self, service: Service, clock: HandClock) -> None:
        self.on = True
        close = service.store.close_ticks

        def closing(*arguments: Any, **named: Any) -> Any:
            if self.on:
                clock.moment += 100
            return close(*arguments, **named)

        service.store.close_ticks = closing  # type: ignore[method-assign]


@pytest.fixture
def service(tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> Service:
    for name in ("FIRST_SLICE_TICKS", "LARGEST_SLICE_TICKS"):
        monkeypatch.setattr(catch_up, name, 64)  # a fast machine would catch up in one slice
    store = Store(tmp_path / "a.db")
    for table in (TABLE, {**TABLE, "name": "manual", "tick": "manual"}):
        store.declare(
            StreamDeclaration.from_dict(table), clock.now(), SECRET if table is TABLE else None
        )
    return Service(store, clock=clock, admin=ADMIN)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        made.headers.update(HEADERS)
        yield made


def wait_until_ready(client: httpx.Client) -> None:
    while client.get("/readyz").status_code != 200:
        client.post("/v1/streams/manual/events", json=["a"]).raise_for_status()  # the writer's turn


def test_a_stream_that_is_behind_refuses_its_batches_and_no_others(
    client: httpx.Client, service: Service, clock: HandClock
) -> None:
    away = RunsAway(service, clock)
    clock.moment += 500
    for _ in range(3):
        answer = client.post("/v1/streams/seconds/events", json=["a"])
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "CatchingUp")
        # never a measured time, which could depend on data
        assert answer.headers["retry-after"] == "5"
        assert client.post("/v1/streams/manual/events", json=["a"]).status_code == 200
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "catching-up")
    assert ready.json()["ticks_left"]["seconds"] > 0
    anonymous = httpx.get(f"{client.base_url}/readyz", timeout=300)
    assert anonymous.json() == {"status": "catching-up"}
    assert client.get("/healthz").status_code == 200
    away.on = False
    wait_until_ready(client)
    answer = client.post("/v1/streams/seconds/events", json=["a"])
    assert answer.json() == {"accepted": 1, "tick": round(clock.moment - BEGIN) + 1}


def test_a_stop_ends_within_a_slice(service: Service, clock: HandClock) -> None:
    """A catch-up that never ends by itself: stopping must not wait for it."""
    RunsAway(service, clock)
    clock.moment += 500
    with served(service) as client:
        assert client.get("/readyz").status_code == 503
    assert not service.writer.is_alive()


def test_slices_release_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number, size in enumerate((7, 3000)):
        monkeypatch.setattr(catch_up, "FIRST_SLICE_TICKS", size)
        monkeypatch.setattr(catch_up, "LARGEST_SLICE_TICKS", size)
        clock = HandClock(BEGIN)
        store = Store(tmp_path / f"{number}.db")
        live = store.declare(StreamDeclaration.from_dict(TABLE), clock.now(), SECRET)
        told: list[int] = []
        closing = CatchUp(store, clock, lambda _, told=told, live=live: told.append(live.closed))
        clock.moment += 200
        while closing.close_slice(live, clock.moment):
            pass
        assert told == [200] if size == 3000 else len(told) >= 200 / 7  # once for each slice
        made.append(list(all_releases(store, "seconds")))
        assert store.verify(store.head) == []
        store.close()
    assert len(made[0]) == 200
    assert made[0] == made[1]


def test_progress_is_logged(
    service: Service, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "evercount")
    clock.moment += 40 * 86400
    live = service.store.find("seconds")
    left = service.writer.catch_up.close_slice(live, clock.moment)
    assert left > 3_000_000
    assert f"{left} left" in caplog.text
    clock.moment = BEGIN + live.closed + 3
    assert service.writer.catch_up.close_slice(live, clock.moment) == 0
    assert "has closed all missed ticks" in caplog.text
    service.store.close()


# -- clock jumps -----------------------------------------------------------------------------------


def test_a_clock_jump_waits_for_the_operator(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(TABLE), clock.now())
    service = Service(store, clock=clock, admin=ADMIN, clock_jump=3600.0)
    with served(service) as client:
        client.headers.update(HEADERS)
        clock.moment += 900
        assert client.post("/v1/streams/seconds/events", json=["a"]).json()["tick"] == 901
        clock.moment += 30 * 86400
        for _ in range(2):
            answer = client.post("/v1/streams/seconds/events", json=["a"])
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
            assert client.get("/readyz").json()["status"] == "clock-jump"
            assert live.closed == 900
        clock.moment -= 30 * 86400 - 5  # the clock is right again: nothing was lost
        assert client.post("/v1/streams/seconds/events", json=["a"]).json()["tick"] == 906
        clock.moment += 7200
        assert client.post("/v1/streams/seconds/events", json=["a"]).status_code == 503
        assert httpx.post(f"{client.base_url}/v1/clock", timeout=300).status_code == 401
        assert client.post("/v1/clock").json()["jump_seconds"] in range(7190, 7201)
        while client.get("/readyz").status_code != 200:
            service.writer.submit(lambda: None).result()
        assert live.closed == 8105
    assert caplog.text.count("ahead of what was expected") == 2
    assert "POST /v1/clock" in caplog.text


@pytest.mark.parametrize(("tick", "held"), [("1s", True), ("168h", False)])
def test_a_long_pause_waits_for_the_operator(
    tmp_path: Path, clock: HandClock, tick: str, held: bool
) -> None:
    """Unless no stream missed more than one tick: weekly releases have long pauses anyway."""
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict({**TABLE, "tick": tick}), clock.now())
    length = live.declaration.schedule.length / 1e6
    clock.moment += length
    store.close_ticks(live, 1, clock.now())
    clock.moment += 7 * 86400
    service = Service(store, clock=clock, clock_jump=86400.0)
    service.writer.close_due()
    assert service.writer.guard.holding == held
    assert (live.closed == 1) == held
    store.close()


def test_sleep_of_the_machine_is_no_jump(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = 1000.0
    monkeypatch.setattr(catch_up, "steady_seconds", lambda: steady)
    guard = catch_up.ClockGuard(clock, 60.0)
    clock.moment, steady = clock.moment + 1e6, steady + 1e6
    assert guard.allows(clock.moment, 100)
    clock.moment += 61
    assert not guard.allows(clock.moment, 100)


def test_the_option_is_a_length_of_time() -> None:
    for text in ("manual", "soon", "-1h"):
        refused = CliRunner().invoke(app, ["serve", "--port", "0", "--clock-jump", text])
        assert refused.exit_code == ParameterError.exit_code
        assert "--clock-jump" in refused.stderr


# -- the real thing --------------------------------------------------------------------------------


def test_a_month_of_seconds_neither_keeps_the_port_closed_nor_stops_the_end(
    tmp_path: Path, preloaded_command: Path
) -> None:
    """A real `evercount serve` that has 2.6 million ticks to close."""
    place = tmp_path / "a.db"
    store = Store(place)
    now = time.time()
    past = now - 30 * 86400
    table = {key: value for key, value in TABLE.items() if key != "start"}
    store.close_ticks(store.declare(StreamDeclaration.from_dict(table), past - 1), 1, past)
    store.close()
    released = []
    for option in ("24h", "none"):
        command = [preloaded_command / "evercount", "serve", "--db", str(place), "--port", "0"]
        process = subprocess.Popen(
            [*command, "--clock-jump", option], stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            address = next(
                line.split("serves ")[1].split()[0] for line in lines if "evercount serves" in line
            )
            while (
                status := httpx.get(f"{address}/readyz", timeout=300).json()["status"]
            ) == "starting":
                pass
            while (
                option == "none"
                and httpx.get(f"{address}/v1/streams/seconds", timeout=300).json()["released"] == 1
            ):
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
        store = Store(place)
        assert store.verify(store.head) == []
        released.append((status, store.find("seconds").closed))
        store.close()
    assert released[0] in (("clock-jump", 1), ("ready", 1), ("catching-up", 1))
    assert released[1][0] == "catching-up"
    assert 1 < released[1][1] < 2_592_000
