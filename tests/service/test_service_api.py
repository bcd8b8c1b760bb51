"""The HTTP API over a real socket: every route, the one error shape, live releases, the clock and
the demonstration."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declarations.schedule import Schedule
from evercount.errors import InputError
from evercount.service.access import Limits
from evercount.service.demo import YEAR
from evercount.service.every_request import Json
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration

sys.path.insert(0, str(Path(__file__).parents[1]))
from serving import ADMIN, HEADERS, HandClock, served
from tiers import soak_but

FLU = {
    "name": "flu",
    "description": "reports",
    "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 1000,
    "public": True,
}
START = "2026-03-01T00:00:00Z"


@pytest.fixture
def clock() -> HandClock:
    return HandClock(Schedule.of("1h", START).begin / 1e6)


@pytest.fixture
def service(tmp_path: Path, clock: HandClock) -> Service:
    return Service(
        Store(tmp_path / "a.db"),
        admin=ADMIN,
        clock=clock,
        limits=Limits(body=20_000, batch=100, page=50),
    )


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        made.headers.update(HEADERS)
        yield made


def declare(client: httpx.Client, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/streams", json={**FLU, **changes})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def problem(answer: httpx.Response, status: int, kind: str | None = None) -> str:
    """The message of an error, after a look at its shape."""
    assert answer.status_code == status, answer.text
    data = answer.json()
    assert list(data) == ["error"]
    assert sorted(data["error"].keys() - {"events"}) == ["message", "remedy", "type"]
    assert all(
        isinstance(text, str) and text for name, text in data["error"].items() if name != "events"
    )
    if kind is not None:
        assert data["error"]["type"] == kind
    return str(data["error"]["message"])


def totals(service: Service, name: str = "flu") -> list[int]:
    found: list[int] = service.store.find(name).totals.tolist()
    return found


def test_a_stream_from_declaration_to_release(client: httpx.Client, service: Service) -> None:
    facts = declare(client)
    assert facts["labels"] == ["north", "south"]
    assert facts["ticks_left"] == 1000
    assert "protect any one event" in facts["guarantee"]
    assert client.post("/v1/streams", json=FLU).status_code == 200
    problem(client.post("/v1/streams", json={**FLU, "horizon": 7}), 409, "Conflict")
    answer = client.post(
        "/v1/streams/flu/events", json=["north", {"key": "south"}, {"key": "north", "user": "u"}]
    )
    assert answer.json() == {"accepted": 3, "tick": 1}
    lines = {"Content-Type": "application/x-ndjson"}
    answer = client.post(
        "/v1/streams/flu/events", content=b'"north"\n\n{"key": "south"}\n', headers=lines
    )
    assert answer.json() == {"accepted": 2, "tick": 1}
    assert totals(service) == [3, 2]
    release = client.post("/v1/streams/flu/close-tick").json()
    assert sorted(release) == ["hash", "high", "low", "start", "std", "tick", "values"]
    assert client.post("/v1/streams/flu/close-tick", params={"tick": 1}).json() == release
    problem(client.post("/v1/streams/flu/close-tick", params={"tick": 9}), 422, "InputError")
    page = client.get("/v1/streams/flu/releases").json()
    shown = {
        "stream": "flu",
        "labels": ["north", "south"],
        "first_cell": 0,
        "cells": 2,
        "view": "running",
    }
    assert page == {**shown, "releases": [release]}
    assert client.get("/v1/streams/flu/releases", params={"after": 1}).json()["releases"] == []
    assert client.get("/v1/streams/flu").json()["released"] == 1
    listed = client.get("/v1/streams").json()
    assert [stream["name"] for stream in listed["streams"]] == ["flu"]
    assert listed["ledger"]["totals"][0]["epsilon"] == 1.0


def test_discovered_keys_are_listed_with_their_ticks(
    client: httpx.Client, service: Service
) -> None:
    declare(client, query="discovered-keys", budget={"epsilon": 8.0, "delta": 0.01})
    for key in ("oslo", "bergen"):
        assert (
            client.post("/v1/streams/flu/events", json=[key] * 90 + [f"only {key}"]).status_code
            == 200
        )
        assert client.post("/v1/streams/flu/close-tick").status_code == 200
    labels = ["total", "other", "oslo", "bergen"]
    assert client.get("/v1/streams/flu").json()["labels"] == labels
    page = client.get("/v1/streams/flu/releases").json()
    assert page["labels"] == labels
    assert [len(release["values"]) for release in page["releases"]] == [3, 4]
    refused = client.post("/v1/streams/flu/events", json=["fine", "\u202e"])
    assert "event 1" in problem(refused, 422)


def test_an_idempotency_key_counts_once(client: httpx.Client, service: Service) -> None:
    declare(client)
    for again in ({}, {"repeated": True}, {"repeated": True}):
        answer = client.post(
            "/v1/streams/flu/events", json=["north"], headers={"Idempotency-Key": "k"}
        )
        assert answer.json() == {"accepted": 1, "tick": 1, **again}
    assert totals(service) == [1, 0]
    problem(
        client.post("/v1/streams/flu/events", json=["south"], headers={"Idempotency-Key": "k"}),
        409,
        "Conflict",
    )


MALFORMED: list[tuple[bytes, str | None, int]] = [
    (b"", None, 422), (b"{", None, 422), (b"{}", None, 422), (b"5", None, 422),
    (b'["west"]', None, 422), (b"[5]", None, 422), (b"[null]", None, 422),
    (b'[["north","north"]]', None, 422), (b"[NaN]", None, 422),
    (b'[{"key":"north","when":1}]', None, 422), (b'[{"key":"north","value":1}]', None, 422),
    (b"[{}]", None, 422), (b'[{"key":"north","time":"now"}]', None, 422),
    (b'[{"key":"north","time":"2026-03-01"}]', None, 422), (b'["\\ud800"]', None, 422),
    (b'["\xff"]', None, 422), (b"[" * 5000, None, 422), (b'["north"', None, 422),
    (b'["north"] x', "application/x-ndjson", 422), (b'"north"\n[', "application/x-ndjson", 422),
    (b'["north"]', "text/plain", 415), (b"[" + b'"north",' * 100 + b'"north"]', None, 422),
    (b" " * 20_001, None, 413), (b'[{"key":"north","key":"south"}]', None, 422),
    (b'{"key":"north","\\u006bey":"north"}', "application/x-ndjson", 422),
]  # fmt: skip


def test_malformed_batches_count_nothing(client: httpx.Client, service: Service) -> None:
    declare(client)
    for body, kind, status in MALFORMED:
        headers = {"Content-Type": kind or "application/json"}
        problem(client.post("/v1/streams/flu/events", content=body, headers=headers), status)
        assert totals(service) == [0, 0], body[:40]


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/tokens"])
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"name":"a","name":"b"}',
        b'{"role":"read","role":"admin"}',
        b'{"query":{"name":1,"name":2}}',
    ],
)
def test_bad_json_that_holds_no_events_is_not_called_events(
    client: httpx.Client, path: str, body: bytes
) -> None:
    answer = client.post(path, content=body)
    assert "not JSON" in problem(answer, 422, "ParameterError")
    assert "events" not in answer.json()["error"]["remedy"]


def test_every_error_has_the_one_shape(client: httpx.Client) -> None:
    declare(client)
    problem(client.get("/nothing"), 404, "NotFound")
    problem(client.put("/v1/streams"), 405, "MethodNotAllowed")
    problem(client.get("/v1/streams/none"), 404, "NotFound")
    problem(client.post("/v1/streams/none/events", json=[]), 404, "NotFound")
    problem(client.get("/v1/streams/flu/releases", params={"after": "x"}), 422, "ParameterError")
    problem(client.get("/v1/streams/flu/releases", params={"limit": 0}), 422, "ParameterError")
    problem(client.get("/v1/streams/flu/plan", params={"points": 1}), 422, "ParameterError")
    problem(
        client.get("/v1/streams/flu/live", headers={"Last-Event-ID": "x"}), 422, "ParameterError"
    )
    problem(client.post("/v1/streams", json={"name": "x"}), 422, "ParameterError")
    problem(client.post("/v1/streams", content=b"\xff"), 422, "ParameterError")
    problem(client.get("/static/../app.py"), 404)
    problem(client.get("/static/..%2fapp.py"), 404)
    problem(client.get("/vendor/uplot/..%2f__init__.py"), 404)
    problem(client.delete("/v1/tokens/99"), 404, "NotFound")


def test_unexpected_failures_tell_nothing(client: httpx.Client, service: Service) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("there were 123456 events")

    service.facts = broken  # type: ignore[method-assign]
    message = problem(client.get("/v1/streams/flu"), 404, "NotFound")
    declare_answer = client.post("/v1/streams", json=FLU)
    message = problem(declare_answer, 500, "InternalError")
    assert "123456" not in message


def test_a_tick_at_which_the_view_has_no_number_is_closed(client: httpx.Client) -> None:
    """Said as a refusal, it would be closed again: the next tick in its place."""
    table = {**FLU, "name": "three", "views": ["last-3"]}
    assert client.post("/v1/streams", json=table).status_code == 201
    close = "/v1/streams/three/close-tick"
    assert [client.post(close).json() for _ in range(2)] == [{"tick": 1}, {"tick": 2}]
    assert client.post(close, params={"tick": 1}).json() == {"tick": 1}
    third = client.post(close).json()
    assert (third["tick"], len(third["values"])) == (3, 2)
    assert client.get("/v1/streams/three/releases").json()["releases"] == [third]


def test_live_releases_are_resumable(client: httpx.Client, service: Service) -> None:
    declare(client)
    for _ in range(3):
        client.post("/v1/streams/flu/close-tick")
    wanted = client.get("/v1/streams/flu/releases").json()["releases"]
    with client.stream("GET", "/v1/streams/flu/live", headers={"Last-Event-ID": "1"}) as live:
        events = read_events(live)
        assert [next(events), next(events)] == [(2, wanted[1]), (3, wanted[2])]
        fourth = client.post("/v1/streams/flu/close-tick").json()
        assert next(events) == (4, fourth)
        assert service.hub.listeners == 1
    with client.stream("GET", "/v1/streams/flu/live", params={"after": 3}) as live:
        assert next(read_events(live)) == (4, fourth)


def test_releases_that_nobody_listened_to_are_not_missed(
    client: httpx.Client, service: Service
) -> None:
    declare(client)
    client.post("/v1/streams/flu/close-tick")
    with client.stream("GET", "/v1/streams/flu/live", params={"after": 0}) as live:
        events = read_events(live)
        assert next(events)[0] == 1
        client.post("/v1/streams/flu/close-tick")
        assert next(events)[0] == 2
    while service.hub.listeners:  # the service notices that the listener went away
        client.get("/v1/streams")
    for _ in range(3):
        client.post("/v1/streams/flu/close-tick")
    with client.stream("GET", "/v1/streams/flu/live", params={"after": 1}) as live:
        events = read_events(live)
        assert [next(events)[0] for _ in range(4)] == [2, 3, 4, 5]
        client.post("/v1/streams/flu/close-tick")
        assert next(events)[0] == 6


def test_many_releases_reach_a_slow_listener(client: httpx.Client) -> None:
    declare(client)
    with client.stream("GET", "/v1/streams/flu/live") as live:
        for _ in range(70):  # more than are read at a time
            client.post("/v1/streams/flu/close-tick")
        events = read_events(live)
        assert [next(events)[0] for _ in range(70)] == list(range(1, 71))


def read_events(response: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if not line and "data" in fields:
            assert fields["event"] == "release"
            yield int(fields["id"]), json.loads(fields["data"])
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def wake(service: Service) -> None:
    """Let the writer look at the clock, until nothing is left to close."""
    service.writer.submit(lambda: None).result()
    while any(live.due(service.clock.now()) for live in service.store.streams.values()):
        service.writer.submit(lambda: None).result()


def test_ticks_close_on_the_clock_and_never_open_again(
    client: httpx.Client, service: Service, clock: HandClock
) -> None:
    declare(client, tick="1h", start=START)
    post: Callable[[list[Any]], httpx.Response] = lambda events: client.post(  # noqa: E731
        "/v1/streams/flu/events", json=events
    )
    assert post(["north"]).json()["tick"] == 1
    clock.moment += 3600 * 2.5
    assert post(["south"]).json()["tick"] == 3  # two ticks ended, the second without an event
    made = client.get("/v1/streams/flu/releases").json()["releases"]
    assert [(release["tick"], release["start"]) for release in made] == [
        (1, START),
        (2, "2026-03-01T01:00:00Z"),
    ]
    clock.moment -= 3600 * 2
    assert post(["north"]).json()["tick"] == 3
    assert totals(service) == [1, 1]
    assert client.get("/v1/streams/flu/releases").json()["releases"] == made
    late = [
        {"key": "north", "time": "2026-03-01T01:59:59Z"},
        {"key": "north", "time": "2026-03-01T02:00:00Z"},
    ]
    assert post(late).json() == {"accepted": 2, "tick": 3, "late": 1, "dropped": 1}
    assert totals(service) == [2, 1]
    problem(post([{"key": "north", "time": "2026-03-01T03:00:00+00:00"}]), 425, "TooEarly")
    problem(client.post("/v1/streams/flu/close-tick"), 422, "InputError")
    clock.moment += 3600 * 24 * 365
    wake(service)
    assert client.get("/v1/streams/flu").json()["state"] == "finished"
    problem(post(["north"]), 409, "HorizonReached")


def test_missed_ticks_are_closed_at_the_next_start(tmp_path: Path) -> None:
    place, clock = tmp_path / "a.db", HandClock(Schedule.of("1h", START).begin / 1e6)
    store = Store(place)
    live = store.declare(
        StreamDeclaration.from_dict({**FLU, "tick": "1h", "start": START}), clock.now()
    )
    store.accept([], clock.now())
    store.close()
    clock.moment += 3600 * 500.5
    store = Store(place)
    service = Service(store, admin=ADMIN, clock=clock)
    with served(service) as client:
        wake(service)
        made = client.get("/v1/streams/flu/releases", params={"after": 490}).json()["releases"]
        assert [release["tick"] for release in made] == list(range(491, 501))
    assert live.closed == 0


def test_raw_counts_are_nowhere(
    client: httpx.Client, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Only releases may hold numbers that depend on the events."""
    declare(client)
    paths = (
        "/v1/streams",
        "/v1/streams/flu",
        "/v1/streams/flu/plan",
        "/v1/ledger",
        "/healthz",
        "/docs",
        "/openapi.json",
    )
    before = [client.get(path).text for path in paths]
    metrics = client.get("/metrics").text
    for number in range(7):
        client.post("/v1/streams/flu/events", json=["north"] * (91 if number else 90))
    assert [client.get(path).text for path in paths] == before
    new = set(client.get("/metrics").text.splitlines()) - set(metrics.splitlines())
    assert not [line for line in new if "/events" in line or "accepted" in line]
    assert totals(service) == [636, 0]
    assert "636" not in caplog.text


def test_a_failing_store_is_answered_and_recovers(client: httpx.Client, service: Service) -> None:
    declare(client)
    client.post("/v1/streams/flu/events", json=["north"])
    connection = service.store.database.connection()

    def read_only(state: str) -> None:
        connection.exec_driver_sql(f"PRAGMA query_only={state}")
        connection.commit()

    service.writer.submit(lambda: read_only("ON")).result()
    key = {"Idempotency-Key": "again"}
    problem(client.post("/v1/streams/flu/events", json=["south"], headers=key), 503, "StoreError")
    assert client.get("/healthz").status_code == 503
    service.writer._needs_reload = False  # let the next line in although the store is in doubt
    service.writer.submit(lambda: read_only("OFF")).result()
    assert client.post("/v1/streams/flu/events", json=["south"], headers=key).json()["tick"] == 1
    assert client.get("/healthz").json() == {"status": "ok"}
    assert totals(service) == [1, 1]


def test_plans_and_pages(client: httpx.Client) -> None:
    declare(client)
    made = client.get("/v1/streams/flu/plan", params={"points": 20}).json()
    assert (made["ticks"][0], made["ticks"][-1]) == (1, 1000)
    assert made["std"] == StreamDeclaration.from_dict(FLU).build().std(made["ticks"])[:, 0].tolist()
    assert client.get("/v1/plan", params={"epsilon": 1, "delta": 1e-6, "horizon": 64}).json()[
        "mechanisms"
    ]
    assert "Bearer TOKEN" in client.get("/docs").text
    assert client.get("/openapi.json").json()["info"]["title"] == "evercount"
    script = client.get("/vendor/uplot/uPlot.iife.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["content-type"].startswith("text/html")


COMMAND = """
import typer
from evercount.cli.serve_command import serve
typer.run(serve)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", soak_but([signal.SIGINT], [signal.SIGTERM, signal.SIGINT]))
def test_the_demonstration_runs_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", COMMAND, "--demo", "--db", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "made-up data" in process.stderr.readline()
        address = process.stderr.readline().split(" serves ")[1].split()[0]
        told = process.stderr.readline()
        token = Path(told.rsplit(" is in ", 1)[1].strip()).read_text().strip()
        assert token not in told
        with httpx.stream(
            "GET", f"{address}/v1/streams/flu-demo/live?after=0", timeout=300
        ) as live:
            events = read_events(live)
            assert next(events)[0] == 1
            days = httpx.get(
                f"{address}/v1/streams/flu-demo/releases?view=per-day&limit=366", timeout=300
            ).json()["releases"]
            assert len(days) == 364, "the year is there before the first page is asked for"
            ledger = httpx.get(
                f"{address}/v1/ledger", headers={"Authorization": f"Bearer {token}"}, timeout=300
            )
            assert ledger.status_code == 200
            process.send_signal(number)
            list(events)  # the server ends the connection
            assert process.wait(300) == 0
        assert re.fullmatch(
            r"[0-9T:.-]+Z INFO evercount.service: stopped[.]\n", process.stderr.read()
        )
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    store = Store(tmp_path / "evercount-demo.db")
    assert store.verify(store.head) == []
    assert store.find("flu-demo").closed >= YEAR
    store.close()


def test_whoever_goes_away_does_not_stop_the_writer(client: httpx.Client, service: Service) -> None:
    declare(client)
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        began.set()
        assert go_on.wait(300)

    busy = service.writer.submit(slow)
    assert began.wait(300)
    gone = service.writer.submit(lambda: pytest.fail("this was withdrawn"))
    assert gone.cancel()
    go_on.set()
    busy.result(300)
    assert client.post("/v1/streams/flu/events", json=["north"]).json()["tick"] == 1


def test_a_stream_that_cannot_go_on_stops_alone(
    client: httpx.Client, service: Service, clock: HandClock
) -> None:
    for name in ("flu", "other"):
        declare(client, name=name, tick="1h", start=START)

    def refuse(_: Any, **more: Any) -> Any:
        raise InputError("this tick cannot be released")

    for number in range(3):
        if number == 2:
            service.store.find("flu").stream.run_totals = refuse  # type: ignore[method-assign]
        clock.moment += 3600
        wake(service)
    assert client.get("/v1/streams/flu").json()["state"] == "stopped"
    assert client.get("/v1/streams/flu").json()["released"] == 2
    assert client.get("/v1/streams/other").json()["released"] == 3
    problem(client.post("/v1/streams/flu/events", json=["north"]), 503, "StreamStopped")
    assert client.post("/v1/streams/other/events", json=["north"]).json()["tick"] == 4
    assert client.get("/healthz").status_code == 200


def test_answers_are_strict_json_in_ascii_for_any_text() -> None:
    """The quick writer and the strict one agree; numbers that JSON has not are refused, halves of
    pairs are escaped."""
    content = {
        "cells": [{"label": "é\u2028\U0001f600", "value": 1e16, "low": -0.0, "std": 0.1}],
        "none": None,
        "n": 2**70,
    }
    assert json.loads(Json(content).body) == content
    assert bytes(Json(content).body).isascii()
    for text in ("NaN", "Infinity", "half \ud800 a pair"):
        assert json.loads(Json({"label": text}).body) == {"label": text}
    for number in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ValueError, match="JSON compliant"):
            Json({"value": number})
