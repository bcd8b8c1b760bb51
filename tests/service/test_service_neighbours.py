"""What can be seen from outside is the same for neighbouring streams, byte for byte, but for the
released numbers."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declarations.schedule import Schedule
from evercount.errors import InputError
from evercount.noise import Secret
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration

sys.path.insert(0, str(Path(__file__).parents[1]))
from product_internals import true_totals
from served_service import ADMIN, HEADERS, HandClock, served

pytestmark = pytest.mark.slow

START = "2026-03-01T00:00:00Z"
SECRET = Secret.from_hex("42" * 32)
BUDGET = {"epsilon": 1.0, "delta": 1e-9}
HOURLY = {"budget": BUDGET, "tick": "1h", "start": START, "horizon": 100, "public": True}
STREAMS: list[dict[str, Any]] = [
    {"name": "keys", "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}}, **HOURLY},
    {"name": "few", "query": {"name": "count", "parameters": {"most_per_tick": 5}}, **HOURLY},
    {
        "name": "edges",
        "query": {"name": "triangles", "parameters": {"vertices": 9, "max_degree": 2}},
        **HOURLY,
    },
    {
        "name": "words",
        "query": {"name": "substrings", "parameters": {"alphabet": "ab", "max_length": 2}},
        **HOURLY,
    },
    {"name": "sums", "query": {"name": "sum", "parameters": {"low": -1, "high": 1}}, **HOURLY},
    {
        "name": "users",
        "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
        **HOURLY,
        "budget": {**BUDGET, "unit": "user", "max_events": 2},
    },
    {
        "name": "friends",
        "query": {"name": "edges", "parameters": {"vertices": 9}},
        **HOURLY,
        "budget": {**BUDGET, "unit": "user", "max_events": 2},
    },
    {"name": "hidden", "query": {"name": "count"}, **HOURLY, "public": False},
]
OTHERS: dict[str, list[Any]] = {
    "keys": ["a", "a", "b"],
    "few": [2, 1],
    "edges": [[0, 1], [0, 2]],
    "words": ["a", "b"],
    "sums": [1, -1],
    "users": [{"user": "x", "key": "a"}],
    "friends": [{"user": "x", "edge": [0, 1]}],
    "hidden": [1, 1],
}
"""What other people send; neighbouring streams have one event more, or one event that is
another."""
EVENT: dict[str, tuple[Any, Any]] = {
    "keys": ("a", "b"),
    "few": (2, 1),
    "edges": ([1, 2], [3, 4]),
    "words": ("a", "b"),
    "sums": (1, -1),
    "users": ({"user": "x", "key": "a"}, {"user": "y", "key": "a"}),
    "friends": ({"user": "x", "edge": [0, 2]}, {"user": "y", "edge": [0, 2]}),
    "hidden": (1, 0),
}
PROBES: list[tuple[str, Any]] = [
    ("keys", ["a"]), ("keys", ["c"]), ("keys", []), ("few", [5]), ("few", [6]), ("few", [1, 1, 1]),
    ("edges", [[1, 7]]),
    ("edges", [[1, 2]]), ("edges", [[1, 2], [1, 2]]), ("edges", [[0, 3], [0, 4], [0, 5]]),
    ("edges", [[1, 1]]), ("edges", [[5, 6], [0, 99]]), ("words", ["b", "z"]), ("words", ["b"]),
    ("sums", [1, 2]), ("sums", [1]), ("users", [{"user": "x", "key": "a"}]),
    ("users", [{"user": "x", "key": "q"}]), ("users", [{"user": "x"}]),
    ("users", [{"user": "x", "key": "b"}, {"user": "x", "key": "b"}, {"user": "x", "key": "q"}]),
    ("friends", [{"user": "x", "edge": [4, 4]}]), ("friends", [{"user": "x", "edge": [3, 4]}]),
    ("hidden", [1]), ("hidden", ["x"]), ("none", [1]),
]  # fmt: skip
READS = [
    "/metrics", "/openapi.json", "/docs", "/healthz", "/readyz", "/v1/streams", "/v1/ledger",
    "/v1/tokens", "/", "/static/app.js", "/v1/plan?horizon=64", "/nothing", "/v1/streams/none",
    *(f"/v1/streams/{table['name']}{end}" for table in STREAMS for end in ("", "/releases")),
    *(f"/v1/streams/{table['name']}/plan?points=5" for table in STREAMS),
]  # fmt: skip
NUMBERS = ("values", "low", "high", "hash")

Seen = list[tuple[str, Any]]
Others = Callable[[httpx.Client, str], None]


def nothing_more(client: httpx.Client, name: str) -> None:
    post(client, name, OTHERS[name], HEADERS)


def one_more(client: httpx.Client, name: str) -> None:
    post(client, name, [*OTHERS[name], EVENT[name][0]], HEADERS)


def another(client: httpx.Client, name: str) -> None:
    post(client, name, [*OTHERS[name], EVENT[name][1]], HEADERS)


def in_a_request_of_its_own(client: httpx.Client, name: str) -> None:
    post(client, name, OTHERS[name], HEADERS)
    post(client, name, [EVENT[name][0]], {**HEADERS, "Idempotency-Key": "k"})


def post(client: httpx.Client, name: str, events: Any, headers: dict[str, str]) -> httpx.Response:
    return client.post(f"/v1/streams/{name}/events", json=events, headers=headers)


def without_numbers(value: Any) -> Any:
    """The same data with the released numbers left out; how many there are is kept."""
    if isinstance(value, dict):
        return {
            key: (len(item) if key in NUMBERS and "tick" in value else without_numbers(item))
            for key, item in value.items()
        }
    return [without_numbers(item) for item in value] if isinstance(value, list) else value


def seen(answer: httpx.Response) -> tuple[Any, ...]:
    """Everything of an answer but the time of day and the released numbers."""
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    text = re.sub(
        r"(evercount_uptime_seconds|evercount_clock_skew_seconds) -?\d+", r"\1", answer.text
    )
    text = re.sub(r"(evercount_released_value{.*}) .*", r"\1", text)
    if text != answer.text:
        headers.pop("content-length")
    if "/releases" in str(answer.url) and answer.status_code == 200:
        headers.pop("content-length")
        text = json.dumps(without_numbers(answer.json()))
    return answer.status_code, headers, text


def look(folder: Path, caplog: pytest.LogCaptureFixture, others: Others) -> tuple[Seen, list[Any]]:
    """All that readers, another writer and the log see while others send their events; and the
    released numbers."""
    caplog.clear()
    clock = HandClock(Schedule.of("1h", START).begin / 1e6)
    store = Store(folder / "a.db")
    for table in STREAMS:
        store.declare(StreamDeclaration.from_dict(table), clock.now(), SECRET)
    service = Service(store, admin=ADMIN, clock=clock)
    made: Seen = []
    with served(service) as client:
        tokens = {}
        for role in ("write", "read"):
            answer = client.post("/v1/tokens", json={"role": role}, headers=HEADERS).json()
            tokens[role] = {"Authorization": f"Bearer {answer['token']}"}
        for _ in range(3):
            for table in STREAMS:
                others(client, table["name"])
            for name, events in PROBES:
                made.append((f"{name} {events}", seen(post(client, name, events, tokens["write"]))))
            clock.moment += 3600
            service.writer.submit(lambda: None).result()
            for path in READS:
                for who, headers in (("anonymous", {}), ("read", tokens["read"])):
                    made.append((f"{who} {path}", seen(client.get(path, headers=headers))))
        for table in STREAMS:
            path = f"/v1/streams/{table['name']}/live?after=0"
            with client.stream("GET", path, headers=tokens["read"]) as live:
                lines = live.iter_lines()
                for line in lines:
                    if line.startswith("data: "):
                        data = json.loads(line[6:])
                        made.append((f"sse {table['name']}", without_numbers(data)))
                        if data["tick"] == 3:
                            break
                    else:
                        made.append((f"sse {table['name']}", line))
                made.append(("sse headers", {k: v for k, v in live.headers.items() if k != "date"}))
        numbers = [
            client.get(f"/v1/streams/{t['name']}/releases", headers=HEADERS).json() for t in STREAMS
        ]
    logged = [
        (r.name, r.levelname, r.getMessage())
        for r in caplog.records
        if r.name.startswith(("evercount", "uvicorn"))
    ]
    return [*made, ("log", logged)], numbers


def differences(one: Seen, other: Seen) -> list[tuple[Any, Any]]:
    assert [label for label, _ in one] == [label for label, _ in other]
    return [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]


def test_neighbours_look_alike_from_outside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Add-remove, replace, and an event that comes in a request of its own."""
    caplog.set_level(logging.DEBUG)
    looks = {}
    for others in (nothing_more, one_more, another, in_a_request_of_its_own):
        folder = tmp_path / others.__name__
        folder.mkdir()
        looks[others] = look(folder, caplog, others)
    for first, second in (
        (nothing_more, one_more),
        (one_more, another),
        (nothing_more, in_a_request_of_its_own),
    ):
        (one, released), (other, changed) = looks[first], looks[second]
        assert differences(one, other) == []
        assert len(one) > 300
        differ = {
            t["name"]
            for t, before, after in zip(STREAMS, released, changed, strict=True)
            if before != after
        }
        assert differ >= {"keys", "words", "sums", "hidden"}, (
            "streams that do not differ test nothing"
        )


def test_a_leak_would_be_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a raw number in a fact, a metric that exists from the first batch on, a
    line per batch.

    Each of them shows in another place, so one look sees whether all three are found.
    """
    caplog.set_level(logging.DEBUG)
    facts, page, prepare = Service.facts, Service.metrics_page, Service.prepare

    def told(self: Service, live: Any) -> dict[str, Any]:
        return facts(self, live) | {
            "level": 0.95 + len(true_totals(live.stream)) + float(true_totals(live.stream).sum())
        }

    async def logged(self: Service, function: Any, *arguments: Any) -> Any:
        logging.getLogger("evercount.service").debug("a batch")
        return await prepare(self, function, *arguments)

    monkeypatch.setattr(Service, "facts", told)
    monkeypatch.setattr(Service, "metrics_page", lambda self, _: page(self, True))
    monkeypatch.setattr(Service, "prepare", logged)
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, _ = look(tmp_path / "one", caplog, nothing_more)
    other, _ = look(tmp_path / "other", caplog, in_a_request_of_its_own)
    seen_at = {label for (label, _), _ in differences(one, other)}
    assert {"anonymous /v1/streams/keys", "read /metrics", "log"} <= seen_at
    assert "anonymous /healthz" not in seen_at


def test_logs_quote_no_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts of refusals quote data: they reach whoever sent it, and no log."""
    clock = HandClock(Schedule.of("1h", START).begin / 1e6)
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(STREAMS[0]), clock.now())
    service = Service(store, admin=ADMIN, clock=clock)

    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError("event 5 names the key 'secret-key'")

    with served(service) as client:
        answer = post(client, "keys", ["secret-key"], HEADERS)
        assert "secret-key" in answer.json()["error"]["message"]
        assert "event 0 of this request (from 0)" in answer.json()["error"]["message"]
        live.stream.run_totals = refuse  # type: ignore[method-assign]
        clock.moment += 3600
        service.writer.submit(lambda: None).result()
        assert live.stopped
    assert "is stopped: InputError" in caplog.text
    assert "secret-key" not in caplog.text
