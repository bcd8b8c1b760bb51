"""Malformed requests by hypothesis and schemathesis: no 500, one error shape, and no raw count in
any answer."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evercount.service.access import Limits
from evercount.service.http_app import create_app
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration

sys.path.insert(0, str(Path(__file__).parents[1]))
from served_service import ADMIN, HEADERS, served

pytestmark = pytest.mark.slow

RAW = 7_654_321
"""A raw sum that no answer may hold."""
TINY = {"epsilon": 1e-4, "delta": 1e-12}
"""So little budget that the noise hides RAW: a release that holds its digits is a leak, not a
chance."""
STREAMS: list[dict[str, Any]] = [
    {
        "name": "keys",
        "query": {"name": "histogram", "parameters": {"keys": ["a", "b"], "removals": True}},
    },
    {
        "name": "many",
        "query": {"name": "top-k", "parameters": {"keys": 5, "max_keys_per_event": 3}},
        "tick": "24h",
    },
    {
        "name": "sum",
        "query": {"name": "sum", "parameters": {"low": -1, "high": 1, "grid": 0.5}},
        "public": True,
    },
    {"name": "count", "query": {"name": "count"}, "unit": "user"},
    {
        "name": "words",
        "query": {"name": "substrings", "parameters": {"alphabet": "ab", "max_length": 2}},
    },
    {"name": "edges", "query": {"name": "edges", "parameters": {"vertices": 5}}},
    {"name": "cuts", "query": {"name": "cuts", "parameters": {"vertices": 4}}},
]


def fill(store: Store) -> None:
    """Streams of all kinds, with a raw sum that can be recognised."""
    for table in STREAMS:
        unit = {"unit": "user", "max_events": 3} if table.get("unit") else {}
        rest = {key: value for key, value in table.items() if key != "unit"}
        live = store.declare(
            StreamDeclaration.from_dict({**rest, "budget": {**TINY, **unit}, "horizon": 4096}),
            time.time(),
        )
        if not live.declaration.remembers:
            live.totals = np.full_like(live.totals, RAW)


numbers = st.one_of(
    st.integers(-3, 9),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0.5, 1e308, -0.0, 2**53]),
)
texts = st.one_of(
    st.sampled_from(["a", "b", "", "keys", "\x00", "\ud800", "2026-01-01T00:00:00Z"]),
    st.text(max_size=8),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
names = st.sampled_from(
    ["key", "keys", "value", "edge", "letter", "event", "user", "time", "a", "x"]
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner, max_size=4),
    max_leaves=8,
)
fields = ("key", "value", "user", "time", "edge", "letter")
objects = st.fixed_dictionaries({}, optional=dict.fromkeys(fields, values))
events = st.lists(st.one_of(leaves, objects, values), max_size=6)
kinds = st.sampled_from(["count", "histogram", "sum", "edges", "cuts", "nothing"])
arguments = st.dictionaries(
    st.sampled_from(["keys", "lo", "hi", "grid", "width", "vertices", "k"]), values, max_size=3
)
rest = {
    "tick": st.sampled_from(["1h", "manual", "0s", "999999d"]) | values,
    "start": st.sampled_from(["2026-01-01", "9999-12-31T23:59:59Z", 0, 1e10]) | values,
    "horizon": st.sampled_from([None, 0, 1, 100, 2**40, 2**60]) | values,
    "late": values,
    "public": values,
    "postprocess": values,
    "description": values,
}
declarations = st.fixed_dictionaries(
    {},
    optional={
        "name": texts | st.sampled_from(["new", "keys"]),
        "query": st.fixed_dictionaries({"name": kinds}, optional={"parameters": arguments})
        | values,
        "budget": st.fixed_dictionaries(
            {"epsilon": numbers, "delta": numbers}, optional={"unit": values}
        )
        | values,
        **rest,
    },
)
plausible = st.builds(
    lambda whole, field: {**whole, field[0]: field[1]},
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["new", "newer", "newest", "keys"]),
            "query": st.sampled_from(
                [
                    {"name": "count"},
                    {"name": "sum", "parameters": {"low": 0, "high": 2**20}},
                    {"name": "sum", "parameters": {"low": 0, "high": 1, "grid": 2**-20}},
                    {"name": "histogram", "parameters": {"keys": 3}},
                ]
            ),
            "budget": st.fixed_dictionaries(
                {
                    "epsilon": st.sampled_from([1e-9, 0.5, 40, 1e6]),
                    "delta": st.sampled_from([1e-300, 1e-15, 1e-9, 0.9]),
                }
            ),
        }
    ),
    st.sampled_from(sorted(rest)).flatmap(lambda name: st.tuples(st.just(name), rest[name])),
)


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


bodies = st.one_of(
    st.binary(max_size=40),
    values.map(dumped),
    events.map(dumped),
    declarations.map(dumped),
    st.lists(values.map(dumped), max_size=4).map(b"\n".join),
    st.tuples(events.map(dumped), st.integers(0, 60)).map(lambda pair: pair[0][: pair[1]]),
)
streams = st.sampled_from([table["name"] for table in STREAMS]) | st.sampled_from(
    ["none", "..", "%00", "a%2Fb", "é"]
)
ends = st.sampled_from(
    [
        "",
        "/events",
        "/events",
        "/events",
        "/releases",
        "/plan",
        "/close-tick",
        "/live/",
        "/releases.csv",
        "/x",
    ]
)
paths = st.one_of(
    st.builds("/v1/streams/{}{}".format, streams, ends),
    st.sampled_from(
        [
            "/v1/streams",
            "/v1/tokens",
            "/v1/tokens/0",
            "/v1/ledger",
            "/v1/plan",
            "/metrics",
            "/docs",
            "/nothing",
        ]
    ),
    st.sampled_from(["/static/x", "/static/..", "/vendor/uplot/%2e%2e", "/"]),
)
queries = st.dictionaries(
    st.sampled_from(["after", "limit", "tick", "points", "x"]),
    (st.integers() | texts).map(lambda v: f"{v!r}"),
    max_size=2,
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "Authorization": st.sampled_from([f"Bearer {ADMIN}"] * 6 + ["Bearer x", "Basic", ""]),
        "Content-Type": st.sampled_from(
            ["application/json", "application/x-ndjson", "text/plain", ";", ""]
        ),
        "Idempotency-Key": st.sampled_from(["k", "l", "m" * 300, "é", ""]),
        "Last-Event-ID": st.sampled_from(["1", "-1", "x", "9" * 30]),
    },
)
known = st.sampled_from([table["name"] for table in STREAMS])
posted = st.tuples(
    st.just("POST"),
    st.builds("/v1/streams/{}/events".format, known),
    st.just({}),
    st.fixed_dictionaries(
        {"Authorization": st.just(f"Bearer {ADMIN}")},
        optional={
            "Content-Type": st.sampled_from(["application/json", "application/x-ndjson"]),
            "Idempotency-Key": st.sampled_from(["k", "l"]),
        },
    ),
    st.one_of(events.map(dumped), st.lists(values.map(dumped), max_size=4).map(b"\n".join), bodies),
)
declared = st.tuples(
    st.just("POST"),
    st.just("/v1/streams"),
    st.just({}),
    st.just({"Authorization": f"Bearer {ADMIN}"}),
    st.one_of(plausible, plausible, declarations).map(dumped),
)
asked = st.tuples(
    st.sampled_from(["GET", "POST"]),
    st.builds(
        "/v1/streams/{}{}".format, known, st.sampled_from(["/releases", "/plan", "/close-tick", ""])
    ),
    queries,
    st.just({"Authorization": f"Bearer {ADMIN}"}),
    st.just(b""),
)
wild = st.tuples(
    st.sampled_from(["POST"] * 5 + ["GET"] * 3 + ["PUT", "HEAD"]), paths, queries, headers, bodies
)
ended = st.tuples(  # not the streams that the other requests go to
    st.just("DELETE"),
    st.sampled_from(
        ["/v1/tokens/0", "/v1/tokens/x", "/v1/streams/none", "/v1/streams/new", "/v1/streams/%00"]
    ),
    st.dictionaries(
        st.sampled_from(["successor", "reason"]),
        texts.map(repr) | st.sampled_from(["newer", "n1"]),
        max_size=2,
    ),
    headers,
    st.just(b""),
)

requests = st.one_of(posted, posted, posted, declared, declared, asked, wild, ended)


def check(answer: httpx.Response, store: Store) -> None:
    assert answer.status_code < 500 or answer.status_code in (501, 503), (
        answer.status_code,
        answer.text,
    )
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        # `events`: how many a batch had that came a second time with other events
        assert sorted({*answer.json()["error"]} - {"events"}) == ["message", "remedy", "type"]
    for live in store.streams.values():
        for total in {int(number) for number in live.totals} if live.totals.any() else ():
            assert abs(total) < 10**6 or str(abs(total)) not in answer.text
    assert ADMIN not in answer.text


class Target:
    """The application without a socket, which is fast."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "fuzz.db")
        fill(self.store)
        self.service = Service(
            self.store, admin=ADMIN, limits=Limits(rate=1e9, burst=1e9, body=5000)
        )
        self.runner = asyncio.Runner()
        self.service.hub.loop = self.runner.get_loop()
        transport = httpx.ASGITransport(create_app(self.service), raise_app_exceptions=True)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.service.start()

    def send(self, request: tuple[Any, ...]) -> None:
        method, path, query, extra, body = request
        encoded = {name: value.encode("latin-1") for name, value in extra.items()}
        made = self.client.build_request(method, path, params=query, headers=encoded, content=body)
        check(self.runner.run(self.client.send(made)), self.store)

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()
        self.service.stop()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    made = Target(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.close()


def fuzz(target: Target, examples: int) -> list[tuple[Any, ...]]:
    """Send what hypothesis makes, and return it."""
    seen: list[tuple[Any, ...]] = []

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def run(request: tuple[Any, ...]) -> None:
        seen.append(request)
        target.send(request)

    run()
    return seen


def test_malformed_requests_are_refused(target: Target) -> None:
    fuzz(target, 250)


@pytest.mark.soak
def test_very_many_malformed_requests_are_refused(tmp_path: Path) -> None:
    """10^5 requests: thousands by hypothesis, the rest by mixing and damaging those."""
    target = Target(tmp_path)
    try:
        seen = fuzz(target, 4000)
        chance = random.Random(5)
        for _ in range(100_000):
            target.send(damaged(seen, chance))
    finally:
        target.close()


def damaged(seen: list[tuple[Any, ...]], chance: random.Random) -> tuple[Any, ...]:
    """Parts of several requests, with some bytes of the body changed, doubled or left away."""
    base = list(chance.choice(seen))
    if chance.random() < 0.3:
        part = chance.randrange(5)
        base[part] = chance.choice(seen)[part]
    body = bytearray(base[4])
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(body) + 1)
        cut = chance.randrange(4)
        body[at : at + cut] = chance.choice(
            [b"", b"0", b'"', b"]", b"{", b"\xff", b",", b"-", b"e9", bytes(body[:at])]
        )[:2000]
    base[4] = bytes(body)
    return tuple(base)


def test_a_leak_would_be_found(target: Target) -> None:
    """Negative control: an answer that holds a raw sum, and a 500."""
    request = httpx.Request("GET", "http://test/")
    with pytest.raises(AssertionError):
        check(httpx.Response(200, text=f'{{"total": {RAW}}}', request=request), target.store)
    with pytest.raises(AssertionError):
        check(httpx.Response(500, json={"error": {}}, request=request), target.store)


def test_what_the_description_allows_is_answered(tmp_path: Path) -> None:
    """Schemathesis makes requests from the API's own description."""
    schemathesis = pytest.importorskip("schemathesis")
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, limits=Limits(rate=1e9, burst=1e9))
    fill(service.store)
    with served(service) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith("/live"):
                continue  # it never ends

            @settings(
                max_examples=12,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def run(case: Any) -> None:
                case.headers = {**(case.headers or {}), **HEADERS}
                answer = case.call(base_url=str(client.base_url))
                assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text
                if answer.status_code >= 400:
                    assert sorted(json.loads(answer.content)["error"]) == [
                        "message",
                        "remedy",
                        "type",
                    ]
                assert str(RAW).encode() not in answer.content

            run()
