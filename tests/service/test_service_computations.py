"""What requests compute ends when their client leaves, their time is over or the service stops.
Real fits."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine import noise_choice
from evercount.errors import TooLarge
from evercount.service.access import Limits
from evercount.service.runtime import Service
from evercount.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from preloaded_programs import COMMAND, Programs
from product_internals import noise_choices
from served_service import ADMIN, HEADERS, served

SMALL: dict[str, Any] = {
    "name": "small",
    "query": {"name": "count"},
    "budget": {"epsilon": 1.0, "delta": 1e-6},
    "tick": "1h",
    "start": "2026-01-01T00:00:00Z",
    "public": True,
}
MANY = [f"last-{width}" for width in range(2, 2 + 11 * noise_choice.MOST_VIEWS, 11)]
LONG = {**SMALL, "name": "long", "horizon": 8760, "views": MANY}
"""Its noise is fitted for minutes."""
PLAN = (
    "/v1/plan?horizon=8760&delta=1e-6&"
    f"{'&'.join(f'view=last-{width}' for width in (359, 360, 361, 362))}"
)


@contextmanager
def running(folder: Path, **limits: Any) -> Iterator[tuple[Service, httpx.Client]]:
    service = Service(Store(folder / "a.db"), admin=ADMIN, limits=Limits(**limits))
    with served(service) as client:
        yield service, client


def wait_for_thread(name: str, there: bool) -> None:
    """Wait until a thread of this name is there, or is not."""
    while any(thread.name.startswith(name) for thread in threading.enumerate()) is not there:
        time.sleep(0.01)


def ask(client: httpx.Client) -> socket.socket:
    """A request for the long declaration whose answer nobody has read."""
    made = socket.create_connection((client.base_url.host, client.base_url.port), timeout=300)
    request = client.build_request("POST", "/v1/streams", json=LONG, headers=HEADERS)
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join(["POST /v1/streams HTTP/1.1", *lines, "", ""])
    made.sendall(head.encode() + request.read())
    return made


def test_a_declaration_ends_when_its_client_leaves(tmp_path: Path) -> None:
    before = noise_choices()
    with running(tmp_path) as (service, client):
        asked = ask(client)
        wait_for_thread("evercount-declarations", there=True)
        asked.close()
        wait_for_thread("evercount-declarations", there=False)
        assert noise_choices() == before, "it was computed to its end"
        assert "long" not in service.store.streams
        assert client.post("/v1/streams", json=SMALL, headers=HEADERS).status_code == 201


@pytest.mark.parametrize("what", ["declaration", "plan"])
def test_what_takes_too_long_is_refused_and_ends(tmp_path: Path, what: str) -> None:
    before = noise_choices()
    with running(tmp_path, compute_seconds=0.3) as (service, client):
        refused = (
            client.get(PLAN)
            if what == "plan"
            else client.post("/v1/streams", json=LONG, headers=HEADERS)
        )
        assert (refused.status_code, refused.json()["error"]["type"]) == (422, "TooLarge")
        assert "evercount plan" in refused.json()["error"]["remedy"]
        wait_for_thread("evercount-plans", there=False)
        wait_for_thread("evercount-declarations", there=False)
        assert noise_choices() == before, "it was computed to its end"
        assert service.store.streams == {}


def processor_ticks(process: int) -> int:
    """How much a process has computed since its start."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_ends_and_answers(
    programs: Programs, tmp_path: Path, number: int
) -> None:
    """A real process. Without the interruption it goes on for minutes, and its client is cut off
    without an answer."""
    place = tmp_path / "a.db"
    environment = {**os.environ, "EVERCOUNT_ADMIN_TOKEN": ADMIN}
    process = programs.start(COMMAND, "serve", "--db", place, "--port", "0", env=environment)
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found
    with httpx.Client(base_url=found[0], timeout=300) as client:
        asked = ask(client)
        began = processor_ticks(process.pid)
        while processor_ticks(process.pid) < began + os.sysconf("SC_CLK_TCK"):
            time.sleep(0.05)
        process.send_signal(number)
        answer = b"".join(iter(lambda: asked.recv(65536), b""))
        asked.close()
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"the service is stopping" in answer
    said = process.stderr.read()
    assert process.wait() == 0
    assert "stopped; everything that was accepted is kept" in said
    with closing(Store(place)) as store:
        assert store.streams == {}


def test_an_export_ends_when_its_client_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose tables never end stands for one whose export takes hours. The unfinished file
    is removed."""
    files = tmp_path / "files"
    files.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(files))

    def wait_for_files(number: int) -> None:
        for _ in range(3000):
            if len(list(files.iterdir())) == number:
                return
            time.sleep(0.01)
        pytest.fail(f"there are not {number} files")

    with running(tmp_path) as (service, client):
        manual = {**SMALL, "tick": "manual", "start": None}
        client.post("/v1/streams", json=manual, headers=HEADERS).raise_for_status()
        client.post("/v1/streams/small/close-tick", headers=HEADERS).raise_for_status()
        table = next(iter(service.store.release_tables(service.store.find("small"), 1)))
        monkeypatch.setattr(service.store, "release_tables", lambda *_: repeat(table))
        asked = socket.create_connection((client.base_url.host, client.base_url.port), timeout=300)
        asked.sendall(b"GET /v1/streams/small/releases.csv HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for_files(1)
        asked.close()
        wait_for_files(0)


def test_the_number_of_views_is_bounded(tmp_path: Path) -> None:
    more = {**LONG, "views": [f"last-{width}" for width in range(2, 401)]}
    with running(tmp_path) as (_, client):
        refused = client.post("/v1/streams", json=more, headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["type"]) == (422, "TooLarge")
        assert "at most 32 views, and 399 are named" in refused.json()["error"]["message"]
    for way in (
        {"noise_for": more["views"], "views": []},
        {"factorization": "blend"},
        {"factorization": "best"},
    ):
        with pytest.raises(TooLarge, match="at most 32 views"):
            StreamDeclaration.from_dict({**more, **way})


def test_a_declaration_with_more_views_is_read_back() -> None:
    """Its noise was chosen when it was declared: a store that has one stays readable."""
    views = [f"last-{width}" for width in range(2, 40)]
    stored = {**SMALL, "horizon": 100, "views": views, "noise_for": views, "factorization": "fresh"}
    assert StreamDeclaration.from_dict(stored).views == tuple(views)
