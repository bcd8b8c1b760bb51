"""Connections: half-sent requests, unread answers, bursts of listeners, forged addresses, clients
that go away."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.errors import ParameterError
from evercount.service.access import Limits, shared_address
from evercount.service.http_server import parse_proxies
from evercount.service.log_format import LINES_PER_MINUTE, Repeated
from evercount.service.runtime import Service
from evercount.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from served_service import ADMIN, HEADERS, served

COUNT = {
    "name": "open",
    "query": {"name": "count"},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "public": True,
}
HEAD = (
    b"POST /v1/streams/open/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    + ADMIN.encode()
    + b"\r\n"
)
LIVE = b"GET /v1/streams/open/live HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.contextmanager
def limited(folder: Path, *proxies: str, **limits: Any) -> Iterator[tuple[Service, httpx.Client]]:
    service = Service(Store(folder / "a.db"), admin=ADMIN, limits=Limits(**limits))
    with served(service, *proxies) as client:
        client.post("/v1/streams", json=COUNT, headers=HEADERS).raise_for_status()
        yield service, client


def connect(client: httpx.Client) -> socket.socket:
    made = socket.create_connection((client.base_url.host, client.base_url.port), timeout=300)
    made.settimeout(300)  # only a server that never ends the connection makes a test wait for it
    return made


def narrow(client: httpx.Client) -> socket.socket:
    """A connection on which little can wait to be read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(300)
    made.connect((client.base_url.host, client.base_url.port))
    return made


def ended(connection: socket.socket) -> bool:
    """Whether the server ends the connection; waits until it does, and fails otherwise."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    connection.close()
    return True


def metrics(client: httpx.Client) -> str:
    return client.get("/metrics", headers=HEADERS).text


def counted(client: httpx.Client, line: str) -> bool:
    """Whether a line appears in the metrics; asks again until it does."""
    return any(line in metrics(client) for _ in range(3000))


HALVES = [
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    HEAD + b"Content-Length: 100\r\n\r\n[1,",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\nabc",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHos",
]


def test_half_sent_requests_are_ended(tmp_path: Path) -> None:
    """All kinds at once: a kind that is not ended makes the test wait for it."""
    with limited(tmp_path, header_seconds=0.3, body_seconds=0.3) as (_, client):
        connections = [connect(client) for _ in range(10 * len(HALVES))]
        for number, connection in enumerate(connections):
            connection.sendall(HALVES[number % len(HALVES)])
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"x")  # more of it does not buy more time
        assert all(map(ended, connections))
        assert client.get("/healthz").status_code == 200


def test_a_request_in_time_is_not_ended(tmp_path: Path) -> None:
    """A live connection outlives both deadlines: it waits for the server, not for the client."""
    with (
        limited(tmp_path, header_seconds=0.3, body_seconds=0.3) as (_, client),
        client.stream("GET", "/v1/streams/open/live") as live,
    ):
        lines = live.iter_lines()
        next(lines)
        assert ended(connect(client))  # the deadline has passed for a connection that is younger
        tick = client.post("/v1/streams/open/close-tick", headers=HEADERS).json()["tick"]
        assert any(line == f"id: {tick}" for line in lines)


def test_an_answer_that_nobody_reads_is_ended(tmp_path: Path) -> None:
    wide = {**COUNT, "name": "wide", "query": {"name": "histogram", "parameters": {"keys": 1000}}}
    with limited(tmp_path, write_seconds=0.3, header_seconds=2.0) as (service, client):
        client.post("/v1/streams", json=wide, headers=HEADERS).raise_for_status()
        service.writer.submit(
            lambda: service.store.close_ticks(service.store.find("wide"), 80, 0.0)
        ).result(300)
        size = int(client.get("/v1/streams/wide/releases").headers["content-length"])
        connection, other = narrow(client), narrow(client)
        connection.sendall(b"GET /v1/streams/wide/releases HTTP/1.1\r\nHost: x\r\n\r\n")
        other.sendall(b"GET /v1/streams/wide/live?after=0 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert counted(client, "evercount_listeners 1")
        # it did not read either: its seat is free again
        assert counted(client, "evercount_listeners 0")
        assert counted(
            client, 'route="/v1/streams/{name}/releases",status="200"} 2'
        )  # the second answer waits to be read
        # a connection that says nothing: its deadline is the later one
        assert ended(connect(client))
        got = 0
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                got += len(part)
        connection.close()
        other.close()
        assert got < size


def test_a_client_that_goes_away_is_a_499_and_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with limited(tmp_path) as (_, client):
        for _ in range(7):
            gone = connect(client)
            gone.sendall(HEAD + b"Content-Length: 100\r\n\r\n[1,")
            gone.close()
        line = (
            'evercount_requests_total{method="POST",'
            'route="/v1/streams/{name}/events",status="499"} 7.0'
        )
        assert counted(client, line)
        assert 'status="500"' not in metrics(client)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == ["a client disconnected during its request: POST /v1/streams/{name}/events"] * 7
    assert "Traceback" not in caplog.text


def statuses(connections: list[socket.socket]) -> list[bytes]:
    return [connection.recv(65536).split(b" ", 2)[1] for connection in connections]


def test_one_client_does_not_get_every_seat(tmp_path: Path) -> None:
    """A burst gets what one client may have; another client still gets in; a freed seat can be
    taken again."""
    with limited(tmp_path, listeners=6, listeners_per_client=3, listeners_kept=1) as (
        service,
        client,
    ):
        burst = [connect(client) for _ in range(25)]
        for connection in burst:
            connection.sendall(LIVE)
        assert sorted(statuses(burst)) == [b"200"] * 3 + [b"503"] * 22
        with client.stream("GET", "/v1/streams/open/live", headers=HEADERS) as live:
            assert live.status_code == 200
            assert service.hub.listeners == 4
        for connection in burst:
            connection.close()
        assert counted(client, "evercount_listeners 0")
        again = connect(client)
        again.sendall(LIVE)
        assert statuses([again]) == [b"200"]
        again.close()


def test_all_clients_together_have_a_limit_too(tmp_path: Path) -> None:
    with limited(tmp_path, "127.0.0.1", listeners=5, listeners_per_client=3, listeners_kept=0) as (
        _,
        client,
    ):
        burst = from_many_addresses(client, 20)
        assert sorted(statuses(burst)) == [b"200"] * 5 + [b"503"] * 15
        for connection in burst:
            connection.close()


def from_many_addresses(client: httpx.Client, number: int) -> list[socket.socket]:
    """Live connections without a token, each from an address of its own."""
    made = [connect(client) for _ in range(number)]
    for place, connection in enumerate(made):
        connection.sendall(LIVE[:-2] + f"X-Forwarded-For: 192.0.2.{place}\r\n\r\n".encode())
    return made


def test_clients_without_a_token_leave_seats_to_those_with_one(tmp_path: Path) -> None:
    """The limits that a service has without others: more addresses than seats ask for all that they
    may have."""
    kept = Limits().listeners_kept
    assert kept > 0
    with limited(tmp_path, "127.0.0.1", listeners=kept + 4) as (service, client):
        burst = from_many_addresses(client, kept + 8)
        assert sorted(statuses(burst)) == [b"200"] * 4 + [b"503"] * (kept + 4)
        with client.stream("GET", "/v1/streams/open/live", headers=HEADERS) as live:
            assert live.status_code == 200
            assert service.hub.listeners == 5
        for connection in burst:
            connection.close()
        assert counted(client, "evercount_listeners 0")
        again = from_many_addresses(client, 4)  # the seats of those that left can be taken again
        assert statuses(again) == [b"200"] * 4
        for connection in again:
            connection.close()


def test_one_address_has_so_many_connections(tmp_path: Path) -> None:
    with limited(tmp_path, connections=4) as (_, client):
        many = [connect(client) for _ in range(12)]
        refused = 0
        for connection in many:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            try:
                refused += not connection.recv(100)
            except ConnectionError:
                refused += 1
        assert refused >= 8
        for connection in many:
            connection.close()
        assert any(client.get("/healthz").status_code == 200 for _ in range(10))
    (tmp_path / "proxied").mkdir()
    with limited(tmp_path / "proxied", "127.0.0.0/8", connections=1) as (_, client):
        many = [connect(client) for _ in range(5)]
        for connection in many:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert statuses(many) == [b"200"] * 5
        for connection in many:
            connection.close()


def test_a_forged_address_buys_no_requests(tmp_path: Path) -> None:
    with limited(tmp_path, rate=0.001, burst=3) as (_, client):
        found = [
            client.get("/healthz", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code
            for n in range(6)
        ]
    assert found == [200, 200, 200, 429, 429, 429]


def test_a_declared_proxy_names_its_clients(tmp_path: Path) -> None:
    with limited(tmp_path, "127.0.0.1", rate=0.001, burst=3) as (_, client):
        for number in range(3):
            # the client's own part is not believed
            header = {"X-Forwarded-For": f"198.51.100.7, 192.0.2.{number}"}
            found = [client.get("/healthz", headers=header).status_code for _ in range(4)]
            assert found == [200, 200, 200, 429]


def test_the_rate_is_per_known_token_and_else_per_address(tmp_path: Path) -> None:
    with limited(tmp_path, rate=0.001, burst=4) as (_, client):
        read = client.post("/v1/tokens", json={"role": "read"}, headers=HEADERS).json()["token"]
        anonymous = [client.get("/healthz").status_code for _ in range(5)]
        assert anonymous == [200, 200, 200, 200, 429]
        assert client.get("/healthz", headers={"Authorization": "Bearer guess"}).status_code == 429
        known = {"Authorization": f"Bearer {read}"}
        assert [client.get("/healthz", headers=known).status_code for _ in range(5)] == [
            200
        ] * 4 + [429]
        assert client.get("/healthz", headers=HEADERS).status_code == 200


def test_addresses_of_one_network_are_one_client() -> None:
    assert (
        shared_address("2001:db8:1:2::1")
        == shared_address("2001:db8:1:2:ffff::9")
        == "2001:db8:1:2::/64"
    )
    assert shared_address("2001:db8:1:3::1") != shared_address("2001:db8:1:2::1")
    assert shared_address("192.0.2.1") == shared_address("::ffff:192.0.2.1") == "192.0.2.1"
    assert shared_address("anything") == "anything"


@pytest.mark.parametrize("proxy", ["*", "proxy.example", "10.0.0.1/8", ""])
def test_proxies_are_addresses(proxy: str) -> None:
    with pytest.raises(ParameterError, match="trusted proxy"):
        parse_proxies([proxy])
    made = CliRunner().invoke(app, ["serve", "--trusted-proxy", proxy])
    assert made.exit_code != 0


def test_a_length_that_is_told_twice_is_refused(tmp_path: Path) -> None:
    """A proxy that believes the other length would see a second request in the body: neither is
    served."""
    smuggled = (
        b"POST /v1/streams/open/close-tick HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        + ADMIN.encode()
    )
    body = b"0\r\n\r\n" + smuggled + b"\r\n\r\n"
    with limited(tmp_path) as (_, client):
        for lengths in (
            b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(body),
            b"Transfer-Encoding: chunked\r\ncontent-length: %d" % len(body),
        ):
            connection = connect(client)
            connection.sendall(HEAD + lengths + b"\r\n\r\n" + body)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):  # until the server ends the connection
                    answer += part
            connection.close()
            assert answer.startswith(b"HTTP/1.1 400")
            assert answer.count(b"HTTP/1.1") == 1
        assert client.get("/v1/streams/open").json()["released"] == 0


def test_malformed_requests_are_few_lines_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with limited(tmp_path) as (_, client):
        for _ in range(5 * LINES_PER_MINUTE):
            connection = connect(client)
            connection.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
            assert ended(connection)
    lines = [record for record in caplog.records if "Invalid HTTP request" in record.getMessage()]
    assert 0 < len(lines) <= 2 * LINES_PER_MINUTE  # a minute may end in between


def test_the_next_minute_says_how_many_lines_were_left_out() -> None:
    limit, passed = Repeated(), []
    for second in range(0, 125, 5):
        for _ in range(3):
            record = logging.LogRecord("x", logging.WARNING, "", 0, "no %s", ("request",), None)
            record.created = 6000.0 + second
            if limit.filter(record):
                passed.append(record.getMessage())
    left = 3 * 12 - LINES_PER_MINUTE
    minute = ["no request"] * LINES_PER_MINUTE
    said = [f"no request (and {left} more before)", *minute[1:]]
    assert passed == [*minute, *said, said[0], *["no request"] * 2]


def test_words_of_clients_make_no_metrics(tmp_path: Path) -> None:
    with limited(tmp_path) as (_, client):
        for number in range(5):
            assert client.request(f"WORD{number}", "/healthz").status_code == 405
        page = metrics(client)
        assert 'method="other"' in page
        assert "WORD" not in page
