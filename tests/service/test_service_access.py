"""Tokens, roles, limits and rates."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.errors import HttpProblem, ParameterError
from evercount.service.access import Access, Buckets, Limits, admin_token
from evercount.service.runtime import Service
from evercount.store import Store
from evercount.store.sealing import add_token, read_tokens, token_digest

sys.path.insert(0, str(Path(__file__).parents[1]))
from serving import ADMIN, HEADERS, served

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
COUNT = {"query": {"name": "count"}, "budget": BUDGET, "horizon": 64}

NEEDS: list[tuple[str, str, set[str | None]]] = [
    ("GET", "/healthz", {None, "read", "write", "admin"}),
    ("GET", "/readyz", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams/open", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams/open/releases", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams/open/plan", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams/hidden", {"read", "write", "admin"}),
    ("GET", "/v1/streams/hidden/releases", {"read", "write", "admin"}),
    ("GET", "/v1/streams/open/releases.csv", {None, "read", "write", "admin"}),
    ("GET", "/v1/streams/hidden/releases.csv", {"read", "write", "admin"}),
    ("GET", "/v1/streams/hidden/plan", {"read", "write", "admin"}),
    ("GET", "/v1/ledger", {"read", "write", "admin"}),
    ("GET", "/metrics", {"read", "write", "admin"}),
    ("POST", "/v1/streams/open/events", {"write", "admin"}),
    ("POST", "/v1/streams/open/close-tick", {"write", "admin"}),
    ("POST", "/v1/streams/open/open", {"write", "admin"}),
    ("POST", "/v1/streams/open/notes", {"admin"}),
    ("POST", "/v1/streams", {"admin"}),
    ("DELETE", "/v1/streams/none", {"admin"}),
    ("POST", "/v1/clock", {"admin"}),
    ("GET", "/v1/tokens", {"admin"}),
    ("POST", "/v1/tokens", {"admin"}),
    ("DELETE", "/v1/tokens/1000", {"admin"}),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return Service(Store(tmp_path_factory.mktemp("access") / "a.db"), admin=ADMIN)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        for name, public in (("open", True), ("hidden", False)):
            table = {**COUNT, "name": name, "public": public}
            made.post("/v1/streams", json=table, headers=HEADERS).raise_for_status()
        yield made


@pytest.fixture(scope="module")
def tokens(client: httpx.Client) -> dict[str | None, dict[str, str]]:
    made: dict[str | None, dict[str, str]] = {None: {}}
    for role in ("read", "write", "admin"):
        answer = client.post("/v1/tokens", json={"role": role, "label": role}, headers=HEADERS)
        assert answer.status_code == 201
        made[role] = {"Authorization": f"Bearer {answer.json()['token']}"}
    return made


@pytest.mark.parametrize(("method", "path", "allowed"), NEEDS)
def test_every_route_for_every_role(
    client: httpx.Client,
    tokens: dict[str | None, dict[str, str]],
    method: str,
    path: str,
    allowed: set[str | None],
) -> None:
    for role, headers in tokens.items():
        answer = client.request(method, path, headers=headers)
        if role in allowed:
            assert answer.status_code not in (401, 403), (role, answer.text)
        else:
            assert answer.status_code == (401 if role is None else 403), (role, answer.text)


def test_no_route_is_forgotten(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()["paths"]
    known = {
        (method, path.replace("/open/", "/{name}/").replace("/hidden", "/{name}"))
        for method, path, _ in NEEDS
    }
    known |= {
        ("GET", "/v1/streams/{name}"),
        ("GET", "/v1/streams/{name}/live"),
        ("GET", "/v1/plan"),
    }
    known |= {("DELETE", "/v1/tokens/{number}"), ("DELETE", "/v1/streams/{name}")}
    known |= {("GET", "/v1/streams/{name}/releases.{kind}")}
    assert {
        (method.upper(), path) for path, methods in described.items() for method in methods
    } <= known


def test_hidden_streams_are_not_betrayed(client: httpx.Client) -> None:
    assert [stream["name"] for stream in client.get("/v1/streams").json()["streams"]] == ["open"]
    for name in ("hidden", "none"):
        for rest in ("", "/releases", "/releases.csv", "/live", "/plan"):
            answers = client.get(f"/v1/streams/{name}{rest}")
            assert answers.status_code == 401
    assert client.get("/v1/streams/hidden").text == client.get("/v1/streams/none").text
    assert "hidden" not in client.get("/v1/streams").text


def test_released_numbers_of_hidden_streams_are_no_metrics(
    client: httpx.Client, tokens: dict[str | None, dict[str, str]]
) -> None:
    for name in ("open", "hidden"):
        client.post(f"/v1/streams/{name}/close-tick", headers=tokens["write"]).raise_for_status()
    page = client.get("/metrics", headers=tokens["read"]).text
    assert re.findall(r'^evercount_released_value{.*stream="(\w+)"}', page, re.MULTILINE) == [
        "open"
    ]


def test_an_outage_does_not_betray_them_either(client: httpx.Client, service: Service) -> None:
    """While the store is loaded again, a hidden name and an unused one have the same answer for a
    stranger."""
    service.writer.failing = "planted"
    try:
        for rest in ("", "/releases", "/releases.csv", "/live", "/plan"):
            hidden, none = (client.get(f"/v1/streams/{name}{rest}") for name in ("hidden", "none"))
            assert (
                (hidden.status_code, hidden.text)
                == (none.status_code, none.text)
                == (503, none.text)
            )
    finally:
        service.writer.failing = None


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer wrong", "Basic x", ADMIN, "Bearer " + ADMIN[:-1], "Bearer \xe9"]
)
def test_wrong_tokens_are_refused_everywhere(client: httpx.Client, header: str) -> None:
    for path in ("/v1/streams", "/v1/streams/open/releases", "/metrics"):
        answer = client.get(path, headers={"Authorization": header.encode("latin-1")})  # type: ignore[dict-item]
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ADMIN not in answer.text


def test_a_token_can_be_taken_back(client: httpx.Client, service: Service) -> None:
    made = client.post("/v1/tokens", json={"role": "read"}, headers=HEADERS).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert client.get("/v1/ledger", headers=headers).status_code == 200
    listed = client.get("/v1/tokens", headers=HEADERS).text
    assert made["token"] not in listed
    assert client.delete(f"/v1/tokens/{made['id']}", headers=HEADERS).status_code == 200
    assert client.get("/v1/ledger", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {}, {"role": "king"}, {"role": 5}, {"role": "read", "label": 5}, {"role": "read", "x": 1},
        [], {"role": "read", "label": "x" * 201}, {"role": "read", "label": "\u0000"},
    ],
)  # fmt: skip
def test_wrong_tokens_are_not_made(client: httpx.Client, body: Any) -> None:
    assert client.post("/v1/tokens", json=body, headers=HEADERS).status_code == 422


def test_tokens_are_stored_as_hashes(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    _, token = add_token(store, "admin")
    assert admin_token(store) == (None, None)  # somebody can administer the store already
    _, other = add_token(store, "write")
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert token.encode() not in content
    assert other.encode() not in content
    assert token_digest(token) in {known.digest for known in read_tokens(store)}
    with pytest.raises(ParameterError, match="at least"):
        Access(store, "short")
    store.close()


def test_a_bucket_empties_and_fills() -> None:
    buckets = Buckets(rate=2.0, burst=3.0, most=2)
    for _ in range(3):
        buckets.take("a", now=0.0)
    with pytest.raises(HttpProblem) as caught:
        buckets.take("a", now=0.0)
    assert caught.value.status == 429
    buckets.take("b", now=0.0)
    buckets.take("a", now=0.5)
    with pytest.raises(HttpProblem):
        buckets.take("a", now=0.6)
    for number in range(50):
        buckets.take(f"c{number}", now=1.0)
    assert len(buckets._buckets) == 2


def test_a_client_that_asks_too_often_is_slowed_down(tmp_path: Path) -> None:
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, limits=Limits(rate=0.001, burst=3))
    with served(service) as client:
        answers = [client.get("/healthz") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["error"]["type"] == "TooManyRequests"
    assert int(answers[-1].headers["retry-after"]) > 0


def test_live_connections_are_limited(tmp_path: Path) -> None:
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, limits=Limits(listeners=1))
    with served(service) as client:
        client.post("/v1/streams", json={**COUNT, "name": "open", "public": True}, headers=HEADERS)
        with client.stream("GET", "/v1/streams/open/live") as live:
            lines = live.iter_lines()
            next(lines)
            assert client.get("/v1/streams/open/live").status_code == 503
