"""Streams that end while the service runs, and a service on a restored backup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.errors import StoreError
from evercount.service.runtime import Service
from evercount.store import BudgetCap, Store, set_cap
from served_service import ADMIN, HEADERS, served

TABLE: dict[str, Any] = {
    "name": "one",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 100,
    "public": True,
}


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(Store(tmp_path / "a.db"), admin=ADMIN)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        made.headers.update(HEADERS)
        declare(made, "one")
        yield made


def declare(client: httpx.Client, name: str) -> None:
    client.post("/v1/streams", json={**TABLE, "name": name}).raise_for_status()
    client.post(f"/v1/streams/{name}/close-tick").raise_for_status()


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


def test_a_stream_is_retired_while_the_service_runs(client: httpx.Client) -> None:
    history = client.get("/v1/streams/one/releases").json()
    read = client.post("/v1/tokens", json={"role": "write"}).json()["token"]
    for token, status in (("", 401), (read, 403)):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        assert (
            httpx.delete(
                f"{client.base_url}/v1/streams/one", headers=headers, timeout=300
            ).status_code
            == status
        )
    answer = client.delete("/v1/streams/one", params={"reason": "a typo in the tick"})
    assert answer.status_code == 200
    assert answer.json()["retired"]["state"] == "retired"
    assert answer.json()["successor"] is None
    assert client.delete("/v1/streams/one").json() == answer.json(), "again changes nothing"
    for path in ("events", "close-tick"):
        assert kind(client.post(f"/v1/streams/one/{path}", json=["a"])) == (410, "StreamEnded")
    anonymous = httpx.get(f"{client.base_url}/v1/streams/one", timeout=300).json()
    assert (anonymous["state"], anonymous["reason"], anonymous["open_tick"]) == (
        "retired",
        "a typo in the tick",
        None,
    )
    assert client.get("/v1/streams/one/releases").json() == history
    assert client.get("/v1/streams/one/plan", params={"points": 3}).json()["std"]
    assert kind(client.post("/v1/streams", json=TABLE)) == (409, "Conflict")
    assert client.get("/v1/ledger").json()["entries"][0]["retired"] is True
    assert [stream["state"] for stream in client.get("/v1/streams").json()["streams"]] == [
        "retired"
    ]
    assert kind(client.delete("/v1/streams/none")) == (404, "NotFound")


def test_a_successor_goes_on(client: httpx.Client) -> None:
    answer = client.delete("/v1/streams/one", params={"successor": "two"}).json()
    assert answer["retired"]["successor"] == "two"
    assert answer["successor"]["released"] == 0
    assert client.post("/v1/streams/two/events", json=["a"]).json() == {"accepted": 1, "tick": 1}
    assert "'two'" in client.post("/v1/streams/one/events", json=["a"]).json()["error"]["message"]
    assert client.get("/v1/ledger").json()["totals"][0]["streams"] == 2


def test_declarations_beyond_the_cap_are_refused(client: httpx.Client, service: Service) -> None:
    service.writer.submit(lambda: set_cap(service.store.database, BudgetCap(1.2, 1e-8))).result()
    assert kind(client.post("/v1/streams", json={**TABLE, "name": "two"})) == (
        409,
        "BudgetExceeded",
    )
    assert kind(client.delete("/v1/streams/one", params={"successor": "two"})) == (
        409,
        "BudgetExceeded",
    )
    assert client.get("/v1/streams/one").json()["state"] == "open"
    assert client.get("/v1/ledger").json()["cap"] == {"epsilon": 1.2, "delta": 1e-8}


def test_a_backup_of_a_running_service_is_restored(tmp_path: Path) -> None:
    """The stream that went on is in quarantine, the other one serves on, and one request goes on
    with a successor."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    run = CliRunner()
    with served(Service(Store(place), admin=ADMIN)) as client:
        client.headers.update(HEADERS)
        declare(client, "one")
        declare(client, "two")
        assert run.invoke(commands, ["backup", str(copy), "--db", str(place)]).exit_code == 0
        client.post("/v1/streams/one/close-tick").raise_for_status()
        refused = run.invoke(commands, ["restore", str(copy), "--db", str(place)])
        assert isinstance(refused.exception, StoreError)
        assert "one writer" in str(refused.exception)
    place.write_bytes(b"SQLite format 3\0 and then a broken disk")  # what a restore is for
    done = run.invoke(commands, ["restore", str(copy), "--db", str(place)])
    assert done.exit_code == 0, done.output
    assert "QUARANTINE  one" in done.output
    assert "QUARANTINE  two" not in done.output
    assert [file.read_bytes()[16:20] for file in tmp_path.glob("a.db.before-*")] == [b" and"]
    with served(Service(Store(place), admin=ADMIN)) as client:
        client.headers.update(HEADERS)
        assert client.get("/v1/streams/one").json()["state"] == "quarantined"
        assert kind(client.post("/v1/streams/one/events", json=["a"])) == (410, "StreamEnded")
        assert len(client.get("/v1/streams/one/releases").json()["releases"]) == 1
        assert client.post("/v1/streams/two/close-tick").json()["tick"] == 2
        client.delete("/v1/streams/one", params={"successor": "one-b"}).raise_for_status()
        assert client.post("/v1/streams/one-b/close-tick").json()["tick"] == 1
    store = Store(place)
    assert store.verify(store.head) == []
    store.close()


def test_a_damaged_copy_is_not_restored(tmp_path: Path) -> None:
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with served(Service(Store(place), admin=ADMIN)) as client:
        client.headers.update(HEADERS)
        declare(client, "one")
        CliRunner().invoke(commands, ["backup", str(copy), "--db", str(place)])
    import sqlite3

    with sqlite3.connect(copy) as connection:
        connection.execute("update releases set value = value + 1")
    connection.close()
    done = CliRunner().invoke(commands, ["restore", str(copy), "--db", str(place)])
    assert "damaged" in str(done.exception)
    Store(place).close()
