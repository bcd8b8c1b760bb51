"""A database that holds another history than the published one: nothing of that history is shown,
by any route."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.service.read_events import read_batch
from evercount.service.runtime import Service
from evercount.store import Reading, Store, StreamDeclaration
from evercount.store.writer import WatchedStore
from served_service import ADMIN, served

QUERIES = {"one": "count", "other": "count", "keys": "discovered-keys"}


def declared(name: str) -> StreamDeclaration:
    budget = {"epsilon": 1.0, "delta": 1e-9}
    return StreamDeclaration.from_dict(
        {"name": name, "query": QUERIES[name], "budget": budget, "horizon": 100, "public": True}
    )


@pytest.fixture
def forked(tmp_path: Path) -> Path:
    """A store in whose place a copy lies that released tick 4 from other data with the same
    noise."""
    place, copy = tmp_path / "a.db", tmp_path / "b.db"
    store = Store(place)
    for name in QUERIES:
        store.close_ticks(store.declare(declared(name), 0.0), 3, 0.0)
    store.close()
    reading = Reading.open(place)
    reading.backup(copy)
    reading.close()
    (tmp_path / "b.db.head").write_text((tmp_path / "a.db.head").read_text())
    store = Store(copy)
    live = store.find("one")
    live.totals = live.totals + 1
    store.close_ticks(live, 1, 0.0)
    keys = store.find("keys")
    store.accept([read_batch(keys.declaration, json.dumps(["secret village"] * 500).encode())], 0.0)
    store.close_ticks(keys, 1, 0.0)
    assert "secret village" in keys.labels
    store.close()
    store = Store(place)
    for name in ("one", "keys"):
        store.close_ticks(store.find(name), 1, 0.0)
    store.close()
    for left in tmp_path.glob("a.db-*"):
        left.unlink()
    shutil.copy(copy, place)
    return place


def test_a_service_whose_file_declares_it_starts_with_the_others(forked: Path) -> None:
    store = Store(forked)
    service = Service(store, admin=ADMIN)
    service.declare([declared(name) for name in QUERIES])
    assert (list(store.streams), sorted(store.ended)) == (["other"], ["keys", "one"])
    with served(service) as client:
        assert client.get("/v1/streams/other").json()["state"] == "open"
        assert client.get("/v1/streams/one").json()["state"] == "quarantined"


@pytest.mark.parametrize("opened", [Store, WatchedStore])
def test_no_route_shows_it(forked: Path, opened: type[Store]) -> None:
    service = Service(opened(forked), admin=ADMIN)
    assert {name: ended.readable for name, ended in service.store.ended.items()} == {
        "one": False,
        "keys": False,
    }
    with served(service) as client:
        client.headers.pop("authorization", None)
        for suffix in ("", ".csv", ".json"):
            direct = client.get(f"/v1/streams/one/releases{suffix}")
            assert direct.status_code == 410
            ask = {"view": "running", "cell": "count", "minus": "count", "minus_stream": "one"}
            assert client.get(f"/v1/streams/other/releases{suffix}", params=ask).status_code == 410
        for path in ("", "/releases", "/plan"):
            assert "secret village" not in client.get(f"/v1/streams/keys{path}").text
        assert "secret village" not in client.get("/v1/streams").text


def test_the_export_command_refuses_it(forked: Path) -> None:
    done = CliRunner().invoke(app, ["store", "export-releases", "one", "--db", str(forked)])
    assert done.exit_code == 5
    assert "1," not in done.stdout
    assert (
        CliRunner()
        .invoke(app, ["store", "export-releases", "other", "--db", str(forked)])
        .exit_code
        == 0
    )
