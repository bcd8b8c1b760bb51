"""What a reader, a writer, an operator without the key and a neighbour on the machine must not
learn or change."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.errors import ParameterError
from evercount.service import read_events as read_events_module
from evercount.service.access import admin_token, default_file
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration, writer
from evercount.store.sealing import read_tokens
from evercount.store.writer import WatchedStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from mounted_disks import fill, read_only, small_disk
from postgres_cluster import Postgres
from preloaded_programs import COMMAND, Programs
from served_service import ADMIN, HEADERS, served

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
COUNT = {
    "name": "open",
    "query": {"name": "count"},
    "budget": BUDGET,
    "horizon": 100,
    "public": True,
}
HIDDEN_TEXTS = ["\u202eevil", "a\u200eb", "a\u061cb", "a\u2066b", "zero\u200bwidth",
                "soft\u00adhyphen", "line\nbreak",
                "nul\x00", "\ue000", " a", "a ", "e\u0301"]  # fmt: skip


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(Store(tmp_path / "a.db"), admin=ADMIN)


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        made.post("/v1/streams", json=COUNT, headers=HEADERS).raise_for_status()
        yield made


def new_token(client: httpx.Client, role: str) -> tuple[int, dict[str, str]]:
    made = client.post("/v1/tokens", json={"role": role}, headers=HEADERS).json()
    return made["id"], {"Authorization": f"Bearer {made['token']}"}


def test_private_streams_leave_no_trace_in_the_public_list(client: httpx.Client) -> None:
    before = client.get("/v1/streams")
    assert before.json()["ledger"]["totals"][0]["streams"] == 1
    for number in range(3):
        table = {**COUNT, "name": f"hidden{number}", "public": False}
        client.post("/v1/streams", json=table, headers=HEADERS).raise_for_status()
    after = client.get("/v1/streams")
    assert after.content == before.content
    assert client.get("/v1/streams", headers=HEADERS).json()["ledger"]["totals"][0]["streams"] == 4


def test_metrics_of_requests_are_for_admins(client: httpx.Client) -> None:
    _, read = new_token(client, "read")
    _, write = new_token(client, "write")
    assert client.get("/metrics").status_code == 401
    for headers in (read, write):
        names = {
            line.split("{")[0].split(" ")[0]
            for line in client.get("/metrics", headers=headers).text.splitlines()
        }
        assert names - {"#"} == {
            "evercount_build_info",
            "evercount_uptime_seconds",
            "evercount_healthy",
            "evercount_ready",
            "evercount_clock_skew_seconds",
            "evercount_streams_open",
            "evercount_ticks_released_total",
            "evercount_tick_lag_seconds",
            "evercount_catch_up_ticks_left",
        }
    client.post("/v1/streams/open/events", json=[1], headers=write).raise_for_status()
    page = client.get("/metrics", headers=HEADERS).text
    assert "evercount_requests_total{" in page
    assert "evercount_database_bytes " in page
    assert "process_resident_memory_bytes " in page
    assert 'evercount_accept_seconds{quantile="0.5"}' in page


def test_idempotency_keys_of_senders_are_their_own(client: httpx.Client, service: Service) -> None:
    """A writer learns nothing of another's keys, and cannot take them away."""
    _, one = new_token(client, "write")
    _, other = new_token(client, "write")
    key = {"Idempotency-Key": "order-1"}
    for headers, events in ((one, [1]), (other, [1, 1]), (one, [1]), (other, [1, 1])):
        answer = client.post("/v1/streams/open/events", json=events, headers={**headers, **key})
        assert answer.status_code == 200
    assert service.store.find("open").totals.tolist() == [3]
    assert (
        client.post("/v1/streams/open/events", json=[5], headers={**one, **key}).status_code == 409
    )


def test_a_token_that_is_taken_back_ends_its_live_connections(client: httpx.Client) -> None:
    table = {**COUNT, "name": "hidden", "public": False}
    client.post("/v1/streams", json=table, headers=HEADERS).raise_for_status()
    number, read = new_token(client, "read")
    with client.stream("GET", "/v1/streams/hidden/live", headers=read) as live:
        lines = live.iter_lines()
        assert next(lines) == "retry: 2000"
        client.post("/v1/streams/hidden/close-tick", headers=HEADERS).raise_for_status()
        assert any(line == "id: 1" for line in lines)
        client.delete(f"/v1/tokens/{number}", headers=HEADERS).raise_for_status()
        client.post("/v1/streams/hidden/close-tick", headers=HEADERS).raise_for_status()
        assert all(line != "id: 2" for line in lines)  # and the server ended it


def test_large_bodies_are_read_off_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[str] = []
    original = read_events_module.read_request

    def watched(*arguments: Any) -> Any:
        where.append(threading.current_thread().name)
        return original(*arguments)

    monkeypatch.setattr(read_events_module, "read_request", watched)
    for body in ([1], [1] * 9000):
        text = json.dumps(body, indent=4)
        client.post("/v1/streams/open/events", content=text, headers=HEADERS).raise_for_status()
    assert [name.startswith("evercount-prepare") for name in where] == [False, True]


# -- texts that look like others -------------------------------------------------------------------


def test_texts_that_look_like_others_are_refused_at_every_interface(client: httpx.Client) -> None:
    users = {**COUNT, "name": "users", "budget": {**BUDGET, "unit": "user", "max_events": 2}}
    client.post("/v1/streams", json=users, headers=HEADERS).raise_for_status()
    for text in HIDDEN_TEXTS:
        check_refused(client, text)
    assert [s["name"] for s in client.get("/v1/streams", headers=HEADERS).json()["streams"]] == [
        "open",
        "users",
    ]


def check_refused(client: httpx.Client, text: str) -> None:
    keys = {"name": "histogram", "parameters": {"keys": ["a", text]}}
    letters = {"name": "substrings", "parameters": {"alphabet": ["a", text], "max_length": 1}}
    asked: list[tuple[str, Any]] = [
        # lines are legal there
        ("/v1/streams", {**COUNT, "name": "new", "description": text.replace("\n", "\t")}),
        ("/v1/streams", {**COUNT, "name": "new", "query": keys}),
        ("/v1/streams", {**COUNT, "name": "new", "query": letters}),
        ("/v1/streams", {**COUNT, "name": text}),
        ("/v1/tokens", {"role": "read", "label": text}),
        ("/v1/streams/users/events", [{"user": text}]),
    ]
    for path, body in asked:
        answer = client.post(path, json=body, headers=HEADERS)
        assert answer.status_code == 422, (path, body, answer.text)
        assert answer.json()["error"]["message"].isprintable()  # what is quoted is shown escaped


@pytest.mark.parametrize("key", [b"soft\xadhyphen", b"a\x85b"])
def test_idempotency_keys_follow_the_same_rule(client: httpx.Client, key: bytes) -> None:
    headers: Any = {**{k: v.encode() for k, v in HEADERS.items()}, "Idempotency-Key": key}
    answer = client.post("/v1/streams/open/events", json=[1], headers=headers)
    assert answer.status_code == 422


# -- the store's failures --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


def test_an_outage_names_no_host_and_hides_no_stream(
    tmp_path: Path, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Store(postgres.fresh(), head=tmp_path / "head"), admin=ADMIN)
    with served(service) as client:
        client.post("/v1/streams", json=COUNT, headers=HEADERS).raise_for_status()
        client.post("/v1/streams/open/close-tick", headers=HEADERS).raise_for_status()
        postgres.stop()
        answers = [
            client.post("/v1/streams/open/events", json=[1], headers=HEADERS) for _ in range(2)
        ]
        answers += [
            client.get("/v1/streams/open/releases"),
            client.get("/v1/streams/never", headers=HEADERS),
        ]
        answers += [
            client.get("/v1/streams/never"),
            client.post("/v1/streams/never/events", json=[1], headers=HEADERS),
        ]
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 1
            for place in (
                "127.0.0.1",
                str(postgres.port),
                "evercount@",
                "psycopg",
                "connection",
                "Operational",
            ):
                assert place not in answer.text, answer.text
        assert client.get("/v1/streams/open").status_code == 200  # a fact that is known, not a 404
        postgres.start()
        assert any(
            client.post("/v1/streams/open/events", json=[1], headers=HEADERS).status_code == 200
            for _ in range(200)
        )
        assert client.get("/v1/streams/never", headers=HEADERS).status_code == 404
    assert "the store fails" in caplog.text


def test_streams_do_not_vanish_while_the_store_is_loaded_again(
    client: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    original = writer.load_live

    def slow(*arguments: Any) -> Any:
        began.set()
        assert go_on.wait(300)
        return original(*arguments)

    monkeypatch.setattr(writer, "load_live", slow)
    loading = service.writer.submit(service.store.recover)
    assert began.wait(300)
    try:
        assert client.get("/v1/streams/open").status_code == 200
    finally:
        go_on.set()
    loading.result(300)


# -- the admin token -------------------------------------------------------------------------------


def first_lines(programs: Programs, place: Path, *options: str) -> str:
    """What a service says when it starts."""
    process = programs.start(COMMAND, "serve", "--db", place, "--port", "0", *options)
    said = [process.stderr.readline(), process.stderr.readline()]
    process.terminate()
    said.append(process.stderr.read())
    assert process.wait() == 0
    return "".join(said)


def test_the_admin_token_goes_into_a_file_for_its_owner(programs: Programs, tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    said = first_lines(programs, place)
    file = tmp_path / "a.db.admin-token"
    token = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert f"the admin token is in {file}" in said.replace("\n", "")
    assert token not in said
    assert "evc_admin_" not in said
    assert token not in first_lines(programs, place)
    assert file.read_text().strip() == token  # the second start reads it
    assert b"evc_admin_" not in place.read_bytes()
    store = Store(place)
    assert admin_token(store) == (token, file)
    store.close()


def test_the_file_of_the_admin_token_can_be_named(programs: Programs, tmp_path: Path) -> None:
    named = tmp_path / "token"
    said = first_lines(programs, tmp_path / "b.db", "--admin-token-file", str(named))
    assert str(named) in said.replace("\n", "")
    assert named.stat().st_mode & 0o777 == 0o600


def test_a_reader_needs_no_place_for_a_token(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file system may be read-only, as in `deploy/kubernetes`."""
    place = postgres.fresh()
    Store(place, head=tmp_path / "a.head").close()
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/no state")
    with closing(WatchedStore(place)) as reader:
        assert admin_token(reader, read_only=True) == (None, None)
        with pytest.raises(ParameterError, match="cannot be written"):
            admin_token(reader)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(WatchedStore(place)) as reader:
        assert admin_token(reader, read_only=True)[0] is not None


def test_a_token_file_on_a_full_disk_leaves_no_file_without_a_token(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 16) as disk, closing(Store(tmp_path / "a.db")) as store:
        filler = fill(disk)
        with pytest.raises(ParameterError, match=r"the disk is full.*make room"):
            admin_token(store, disk / "token")
        filler.unlink()
        token, file = admin_token(store, disk / "token")
        assert file is not None
        assert file.read_text().strip() == token


def test_a_reader_is_served_from_a_disk_that_cannot_be_written(
    programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    place = tmp_path / "disk" / "a.db"
    with closing(Store(place)) as store:
        live = store.declare(StreamDeclaration.from_dict(COUNT), 0.0)
        store.close_ticks(live, 3, 0.0)
        published = store.read_releases(live, 0)
    with read_only(tmp_path / "disk"):
        process = programs.start(COMMAND, "serve", "--read-only", "--db", place, "--port", "0")
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + process.stderr.read()
        with httpx.Client(base_url=found[0], timeout=300) as client:
            assert client.get("/v1/streams/open/releases").json()["releases"] == published
            lines = client.get("/v1/streams/open/releases.csv").text.splitlines()
            assert len(lines) == 1 + len(published)
        process.terminate()
        assert process.wait() == 0


def test_a_token_file_of_somebody_else_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "a.db")
    file = default_file(store)
    file.write_text("a token that a neighbour planted here\n")
    file.chmod(0o644)
    with pytest.raises(ParameterError, match="chmod 600"):
        admin_token(store)
    file.chmod(0o600)
    assert admin_token(store)[0] == "a token that a neighbour planted here"
    with monkeypatch.context() as patch:
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
        else:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ParameterError, match="belong to the user"):
            admin_token(store)
    os.chown(file, os.geteuid(), os.getegid())
    file.write_text("short")
    with pytest.raises(ParameterError, match="holds no token"):
        admin_token(store)
    file.unlink()
    target = tmp_path / "target"
    target.write_text("a token behind a symbolic link\n")
    target.chmod(0o600)
    file.symlink_to(target)
    with pytest.raises(ParameterError, match="cannot be read"):
        admin_token(store)
    monkeypatch.setenv("EVERCOUNT_ADMIN_TOKEN", ADMIN)
    assert admin_token(store, file) == (ADMIN, None)
    assert read_tokens(store) == []
    store.close()
